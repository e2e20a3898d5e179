// run_log.h: run.jsonl, one JSON object a line: what scripts, plots and people read of a run.
//
//     {"step":12,"tokens":9216,"loss":3.48215,"lr":0.001,"grad_norm":1.07,"clipped":1,"skipped":0,"tokens_per_s":81234}
//
// A key without a value is left out; a value that is not finite is null (JSON has no NaN). Each line is one write,
// flushed at once: a killed run loses at most the line being written, and resuming removes such a torn line.
#ifndef LLMC_RUN_LOG_H
#define LLMC_RUN_LOG_H

#include <math.h>

#include "json.h"

// The keys besides step and tokens, in the order of a line.
#define RUN_LOG_VALUES(X) \
    X(loss)               \
    X(val_loss)           \
    X(hellaswag)          \
    X(lr)                 \
    X(grad_norm)          \
    X(clipped)            \
    X(skipped)            \
    X(loss_scale)         \
    X(tokens_per_s)       \
    X(mfu)                \
    X(exposed_ms)         \
    X(time_s)

// One line. Make it with run_record(), set what there is with RUN_RECORD_SET(&record, loss, 3.5).
typedef struct {
    uint64_t step, tokens;
#define X(name) double name;
    RUN_LOG_VALUES(X)
#undef X
#define X(name) unsigned char has_##name;
    RUN_LOG_VALUES(X)
#undef X
} RunRecord;

#define RUN_RECORD_SET(record, name, value) ((record)->name = (value), (record)->has_##name = 1)

typedef struct {
    FILE *file;
    char *path;
    uint64_t kept, dropped;  // lines of the earlier run, when resuming
    double seconds;          // time_s of the last kept one
    char hint[160];          // ends the message when a line cannot be written: what is safe all the same
} RunLog;

// A record with no values yet.
static inline RunRecord run_record(uint64_t step, uint64_t tokens) {
    RunRecord record;
    memset(&record, 0, sizeof record);
    record.step = step;
    record.tokens = tokens;
    return record;
}

// `x` in the fewest digits that read back as the same number (as the same float where x is one), or null. `text`: 32.
static inline const char *run_log_number(char *text, double x) {
    if (!isfinite(x)) return strcpy(text, "null");
    int is_float = (double)(float)x == x;
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(text, 32, "%.*g", digits, x);
        if (is_float ? (double)strtof(text, NULL) == x : strtod(text, NULL) == x) break;
    }
    return text;
}

// The record as a line with its newline into `line` (at least 1024 bytes); returns its length.
static inline size_t run_log_format(char *line, const RunRecord *record) {
    char number[32];
    int n = snprintf(line, 1024, "{\"step\":%llu,\"tokens\":%llu", (unsigned long long)record->step,
                     (unsigned long long)record->tokens);
#define X(name)             \
    if (record->has_##name) \
        n += snprintf(line + n, 1024 - (size_t)n, ",\"" #name "\":%s", run_log_number(number, record->name));
    RUN_LOG_VALUES(X)
#undef X
    n += snprintf(line + n, 1024 - (size_t)n, "}\n");
    return (size_t)n;
}

// The values of one line that run_log_line_step() found whole: what run_log_format() makes the same line of again.
static inline RunRecord run_log_line_values(const char *line, size_t bytes) {
    RunRecord record = run_record(0, 0);
    Json json;
    if (json_parse(&json, line, bytes)) {
        const JsonNode *root = json_root(&json), *node;
        json_u64(json_get(&json, root, "step"), &record.step);
        json_u64(json_get(&json, root, "tokens"), &record.tokens);
#define X(name)                                                             \
    if ((node = json_get(&json, root, #name)) != NULL) {                    \
        record.has_##name = 1;                                              \
        if (!json_double(node, &record.name)) record.name = NAN; /* null */ \
    }
        RUN_LOG_VALUES(X)
#undef X
    }
    json_free(&json);
    return record;
}

// The step of one line, and its time_s in *seconds (0 where it has none); 1 if the line is one whole JSON object with a
// whole number "step", else 0.
static inline int run_log_line_step(const char *line, size_t bytes, uint64_t *step, double *seconds) {
    Json json;
    int whole = json_parse(&json, line, bytes) && json_root(&json)->type == JSON_OBJECT &&
                json_u64(json_get(&json, json_root(&json), "step"), step);
    *seconds = 0;
    if (whole && !json_double(json_get(&json, json_root(&json), "time_s"), seconds)) *seconds = 0;
    json_free(&json);
    return whole;
}

// Copies the lines of `from` with step <= last_step to `to`, byte for byte; counts the others. A line without its
// newline was torn by a crash and is dropped like one that is no JSON object. With `taken` the line of last_step itself
// goes there instead.
static inline void run_log_copy(RunLog *log, FILE *from, FILE *to, const char *to_path, uint64_t last_step,
                                RunRecord *taken) {
    char *line = NULL;
    size_t capacity = 0;
    ssize_t bytes;
    while ((bytes = getline(&line, &capacity, from)) > 0) {
        uint64_t step = 0;
        double seconds;
        int whole = line[bytes - 1] == '\n' && run_log_line_step(line, (size_t)bytes - 1, &step, &seconds);
        if (whole && taken && step == last_step) {
            *taken = run_log_line_values(line, (size_t)bytes - 1);
            log->seconds = seconds;
        } else if (whole && step <= last_step) {
            file_write(to, line, (size_t)bytes, to_path);
            log->kept++;
            log->seconds = seconds;
        } else {
            log->dropped++;
        }
    }
    if (ferror(from)) die("cannot read '%s': %s", log->path, strerror(errno));
    free(line);
}

// Rewrites an existing log without what lies beyond `last_step`: written beside, synced, then renamed, so that a crash
// leaves the old file or the new one. A missing file is no error.
static inline void run_log_cut(RunLog *log, uint64_t last_step, RunRecord *taken) {
    FILE *from = fopen(log->path, "r");
    if (!from && errno == ENOENT) return;
    if (!from) die("cannot open '%s' for reading: %s", log->path, strerror(errno));
    size_t length = strlen(log->path) + 8;
    char *beside = (char *)checked_calloc(length, 1, "a file name");
    snprintf(beside, length, "%s.tmp", log->path);
    FILE *to = file_open(beside, "w");
    run_log_copy(log, from, to, beside, last_step, taken);
    fclose(from);
    if (fflush(to) != 0 || fsync(fileno(to)) != 0) die("cannot finish writing '%s': %s", beside, strerror(errno));
    file_close(to, beside);
    if (rename(beside, log->path) != 0) die("cannot rename '%s' to '%s': %s", beside, log->path, strerror(errno));
    free(beside);
}

// Starts a new log at `path`; one that is there is replaced.
static inline void run_log_open(RunLog *log, const char *path) {
    memset(log, 0, sizeof *log);
    log->path = checked_strdup(path);
    log->file = file_open(path, "w");
}

// Continues the log of a run resumed after `last_step`: its lines with step <= last_step stay byte for byte (counted in
// log->kept), all others go (log->dropped), and new lines are appended. Starts a new log where there is none.
// With `unfinished` (may be NULL) the line of last_step is taken out and its values are put there: the step was
// interrupted before all of them were known, and the caller will write the line again.
static inline void run_log_resume_step(RunLog *log, const char *path, uint64_t last_step, RunRecord *unfinished) {
    memset(log, 0, sizeof *log);
    log->path = checked_strdup(path);
    run_log_cut(log, last_step, unfinished);
    log->file = file_open(path, "a");
}

static inline void run_log_resume(RunLog *log, const char *path, uint64_t last_step) {
    run_log_resume_step(log, path, last_step, NULL);
}

// Appends one line: one write, flushed. A full disk ends the program: what follows could not be saved either.
static inline void run_log_write(RunLog *log, const RunRecord *record) {
    char line[1024];
    size_t bytes = run_log_format(line, record);
    if (fwrite(line, 1, bytes, log->file) != bytes || fflush(log->file) != 0)
        die("cannot write to '%s': %s%s", log->path, strerror(errno), log->hint);
}

static inline void run_log_close(RunLog *log) {
    if (log->file) file_close(log->file, log->path);
    free(log->path);
    memset(log, 0, sizeof *log);
}

#endif
