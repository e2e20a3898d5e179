// Tests of llmc/run_log.h: the lines, what resuming keeps, and files a crash or a person left behind.
#include <sys/resource.h>
#include <signal.h>

#include "../../llmc/run_log.h"
#include "dies.h"

static char folder[512], path[600];

static void write_text(const char *text, size_t bytes) {
    FILE *file = file_open(path, "w");
    file_write(file, text, bytes, path);
    file_close(file, path);
}

static size_t read_text(char *text, size_t capacity) {
    FILE *file = file_open(path, "r");
    size_t bytes = fread(text, 1, capacity - 1, file);
    text[bytes] = 0;
    fclose(file);
    return bytes;
}

TEST(a_line) {
    char line[1024];
    RunRecord record = run_record(12, 9216);
    CHECK(run_log_format(line, &record) == strlen(line), "length");
    CHECK(strcmp(line, "{\"step\":12,\"tokens\":9216}\n") == 0, "without values: %s", line);
    RUN_RECORD_SET(&record, loss, (double)3.48215f);
    RUN_RECORD_SET(&record, val_loss, 3.5);
    RUN_RECORD_SET(&record, lr, 1e-3);
    RUN_RECORD_SET(&record, grad_norm, (double)1.07f);
    RUN_RECORD_SET(&record, clipped, 1);
    RUN_RECORD_SET(&record, skipped, 0);
    RUN_RECORD_SET(&record, loss_scale, 65536);
    RUN_RECORD_SET(&record, tokens_per_s, 81234.5);
    RUN_RECORD_SET(&record, mfu, 0.655);
    RUN_RECORD_SET(&record, time_s, 12.25);
    run_log_format(line, &record);
    CHECK(strcmp(line, "{\"step\":12,\"tokens\":9216,\"loss\":3.48215,\"val_loss\":3.5,\"lr\":0.001,\"grad_norm\":1.07,"
                       "\"clipped\":1,\"skipped\":0,\"loss_scale\":65536,\"tokens_per_s\":81234.5,\"mfu\":0.655,"
                       "\"time_s\":12.25}\n") == 0, "with all values: %s", line);
}

TEST(not_finite_is_null) {
    char line[1024];
    RunRecord record = run_record(1, 2);
    RUN_RECORD_SET(&record, loss, NAN);
    RUN_RECORD_SET(&record, val_loss, INFINITY);
    RUN_RECORD_SET(&record, grad_norm, -INFINITY);
    run_log_format(line, &record);
    CHECK(strcmp(line, "{\"step\":1,\"tokens\":2,\"loss\":null,\"val_loss\":null,\"grad_norm\":null}\n") == 0, "%s",
          line);
}

// Every number reads back exactly, and the longest line fits.
TEST(numbers_read_back) {
    char text[32], line[1024];
    uint32_t bits = 1;
    for (int i = 0; i < 20000; i++) {
        float x;
        bits = bits * 1664525u + 1013904223u;
        memcpy(&x, &bits, sizeof x);
        if (!isfinite(x)) continue;
        CHECK(strtof(run_log_number(text, (double)x), NULL) == x, "%.9g is written %s", (double)x, text);
        double y = (double)x / 3;
        if ((double)(float)y == y) continue;
        CHECK(strtod(run_log_number(text, y), NULL) == y, "%.17g is written %s", y, text);
    }
    CHECK(strcmp(run_log_number(text, 0), "0") == 0 && strcmp(run_log_number(text, 0.1), "0.1") == 0, "%s", text);
    RunRecord record = run_record(UINT64_MAX, UINT64_MAX);
#define X(name) RUN_RECORD_SET(&record, name, -1.2345678901234567e-301);
    RUN_LOG_VALUES(X)
#undef X
    size_t bytes = run_log_format(line, &record);
    CHECK(bytes < 600 && line[bytes - 1] == '\n', "the longest line has %zu bytes", bytes);
}

TEST(step_of_a_line) {
    uint64_t step;
    struct {
        const char *line;
        int found;
        uint64_t step;
    } rows[] = {
        {"{\"step\":5,\"loss\":1}", 1, 5},
        {"{\"loss\":1,\"step\":18446744073709551615}", 1, UINT64_MAX},
        {"{ \"loss\" : 1 , \"step\" : 7 }\r", 1, 7},
        {"{\"note\":\"\\\"step\\\":9 {\",\"step\":4}", 1, 4},            // in a string, with quotes and braces
        {"{\"inner\":{\"step\":9},\"list\":[{\"step\":8}],\"step\":3}", 1, 3},  // in an inner object
        {"{\"name\":\"step\",\"step\":2}", 1, 2},                        // as a value
        {"{\"steps\":1,\"mystep\":2}", 0, 0},
        {"{\"step\":-1}", 0, 0},
        {"{\"step\":1.5}", 0, 0},
        {"{\"step\":\"1\"}", 0, 0},
        {"{\"step\":null}", 0, 0},
        {"{\"step\":18446744073709551616}", 0, 0},
        {"{\"step\":1", 0, 0},
        {"{\"step\":12,\"loss\":3.4", 0, 0},
        {"{\"step\":12,\"note\":\"abc", 0, 0},
        {"{\"step\":12,\"note\":\"abc\\", 0, 0},
        {"{\"step\":1}{\"step\":2}", 0, 0},
        {"step:1", 0, 0},
        {"", 0, 0},
        {"}", 0, 0},
        {"[{\"step\":1}]", 0, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        double seconds;
        int found = run_log_line_step(rows[i].line, strlen(rows[i].line), &step, &seconds);
        CHECK(found == rows[i].found && (!found || step == rows[i].step), "%s: found %d", rows[i].line, found);
    }
}

TEST(write_then_resume) {
    static char before[4096], after[4096], want[4096];
    RunLog log;
    run_log_open(&log, path);
    for (uint64_t step = 1; step <= 10; step++) {
        RunRecord record = run_record(step, 100 * step);
        RUN_RECORD_SET(&record, loss, 4.0 / (double)step);
        RUN_RECORD_SET(&record, time_s, 0.5 * (double)step);
        run_log_write(&log, &record);
        read_text(before, sizeof before);  // flushed: there before the log is closed
        CHECK(before[strlen(before) - 1] == '\n', "line %d is not on disk", (int)step);
    }
    run_log_close(&log);
    read_text(before, sizeof before);
    run_log_resume(&log, path, 7);
    CHECK(log.kept == 7 && log.dropped == 3, "kept %d, dropped %d", (int)log.kept, (int)log.dropped);
    CHECK(log.seconds == 3.5, "the clock goes on from %g", log.seconds);
    for (uint64_t step = 8; step <= 10; step++) {
        RunRecord record = run_record(step, 100 * step);
        RUN_RECORD_SET(&record, loss, 4.0 / (double)step);
        RUN_RECORD_SET(&record, time_s, 0.5 * (double)step);
        run_log_write(&log, &record);
    }
    run_log_close(&log);
    read_text(after, sizeof after);
    CHECK(strcmp(before, after) == 0, "a resumed log differs from an uninterrupted one:\n%s\n%s", before, after);
    run_log_resume(&log, path, 0);
    CHECK(log.kept == 0 && log.dropped == 10, "kept %d, dropped %d", (int)log.kept, (int)log.dropped);
    run_log_close(&log);
    CHECK(read_text(want, sizeof want) == 0, "something is left after a resume at 0");
}

// Kept lines stay byte for byte, whoever wrote them; torn, foreign and binary lines go.
TEST(resume_after_a_crash) {
    static char got[4096];
    static const char text[] = "{\"step\":1,  \"loss\":1.50,\"extra\":[1,{}]}\r\n"
                               "{\"step\":2,\"lo\n"
                               "\n"
                               "not json\n"
                               "{\"step\":3,\"x\":\"a\0b\"}\n"
                               "{\"step\":9,\"loss\":1}\n"
                               "{\"tokens\":5,\"step\":3}\n"
                               "{\"step\":3,\"loss\":1}";
    RunLog log;
    write_text(text, sizeof text - 1);
    run_log_resume(&log, path, 3);
    CHECK(log.kept == 2 && log.dropped == 6, "kept %d, dropped %d", (int)log.kept, (int)log.dropped);
    RunRecord record = run_record(4, 40);
    run_log_write(&log, &record);
    run_log_close(&log);
    read_text(got, sizeof got);
    CHECK(strcmp(got, "{\"step\":1,  \"loss\":1.50,\"extra\":[1,{}]}\r\n{\"tokens\":5,\"step\":3}\n"
                      "{\"step\":4,\"tokens\":40}\n") == 0, "%s", got);
}

TEST(resume_without_a_log) {
    static char got[4096];
    RunLog log;
    unlink(path);
    run_log_resume(&log, path, 5);
    RunRecord record = run_record(6, 60);
    run_log_write(&log, &record);
    run_log_close(&log);
    read_text(got, sizeof got);
    CHECK(strcmp(got, "{\"step\":6,\"tokens\":60}\n") == 0, "%s", got);
    run_log_open(&log, path);
    run_log_close(&log);
    CHECK(read_text(got, sizeof got) == 0, "a new log begins with the old one");
}

static void fill_disk(void) {
    struct rlimit limit;
    limit.rlim_cur = limit.rlim_max = 2000;
    RunLog log;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &limit);
    run_log_open(&log, path);
    for (uint64_t step = 1; step <= 1000; step++) {
        RunRecord record = run_record(step, step);
        run_log_write(&log, &record);
    }
}

TEST(failures_are_said) {
    static char got[8192];
    char missing[700];
    RunLog log;
    snprintf(missing, sizeof missing, "%s/no/such/run.jsonl", folder);
    CHECK_DIES(1, "no/such/run.jsonl", run_log_open(&log, missing));
    CHECK_DIES(1, "cannot open", run_log_resume(&log, missing, 3));
    CHECK_DIES(1, "cannot open", run_log_open(&log, folder));
    CHECK_DIES(1, "cannot read", run_log_resume(&log, folder, 3));
    snprintf(missing, sizeof missing, "%s.tmp", folder);
    unlink(missing);
    CHECK_DIES(1, "cannot write", fill_disk());
    CHECK(read_text(got, sizeof got) == 2000, "the fault did not fire");
    run_log_resume(&log, path, 1000);
    CHECK(log.dropped == 1 && log.kept > 50, "kept %d, dropped %d", (int)log.kept, (int)log.dropped);
    run_log_close(&log);
}

int main(void) {
    const char *base = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/train_gpt_log_XXXXXX", base ? base : "/tmp");
    if (!mkdtemp(folder)) die("cannot make a folder '%s': %s", folder, strerror(errno));
    snprintf(path, sizeof path, "%s/run.jsonl", folder);
    RUN(a_line);
    RUN(not_finite_is_null);
    RUN(numbers_read_back);
    RUN(step_of_a_line);
    RUN(write_then_resume);
    RUN(resume_after_a_crash);
    RUN(resume_without_a_log);
    RUN(failures_are_said);
    unlink(path);
    if (rmdir(folder) != 0) {
        printf("FAIL  files are left in %s\n", folder);
        test_state.failed++;
    }
    return test_summary();
}
