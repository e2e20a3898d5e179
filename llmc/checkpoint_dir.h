// checkpoint_dir.h: checkpoints as folders of an output folder: their names, the manifest that makes one complete,
// which is the newest complete one, rotation, leftovers of dead processes. What is inside the files: checkpoint.h.
//
//     OUT/step_00000100/            model.safetensors config.json train_state.safetensors manifest.json
//     OUT/step_00000100.tmp-PID/    being written, or being removed; locked (flock) by its process while in use
//     OUT/step_00000100.old-PID/    for an instant, where the file system cannot exchange two folders
//     OUT/best                      symbolic link to the best step
//
// manifest.json is written last, and lists every file with its size and checksum.
#ifndef LLMC_CHECKPOINT_DIR_H
#define LLMC_CHECKPOINT_DIR_H

#include "json.h"
#include "safe_file.h"

#include <sys/syscall.h>

#define CHECKPOINT_MODEL "model.safetensors"
#define CHECKPOINT_STATE "train_state.safetensors"
#define CHECKPOINT_CONFIG "config.json"
#define CHECKPOINT_MANIFEST "manifest.json"
#define CHECKPOINT_FORMAT "train_gpt checkpoint"
#define CHECKPOINT_VERSION 2  // 1: no file has more than one chunk

// Files are checksummed in chunks, so that several processes can write and read one: of 1 MiB, or as many times twice
// that as leave at most CHECKPOINT_CHUNKS of them.
#ifndef CHECKPOINT_CHUNK_BYTES
#define CHECKPOINT_CHUNK_BYTES ((uint64_t)1 << 20)
#endif
#define CHECKPOINT_CHUNKS 1024
#define CHECKPOINT_MANIFEST_BYTES ((size_t)1 << 17)  // is more than three files' checksums take

// What the functions of checkpoint_dir.h and checkpoint.h return; every other one than OK comes with a Message.
enum {
    CHECKPOINT_OK,
    CHECKPOINT_NONE,         // nothing there
    CHECKPOINT_FAILED,       // the system refused: full disk, permission, ...
    CHECKPOINT_NONFINITE,    // a tensor holds NaN or infinity: nothing was saved
    CHECKPOINT_DAMAGED,      // unfinished, cut, altered
    CHECKPOINT_MISMATCH,     // sound, but of another model
    CHECKPOINT_WEIGHTS_ONLY  // a model without training state: --init can start from it
};

// ----------------------------------------------------------------------------------------------------------------
// Names

static inline void checkpoint_step_name(char name[64], uint64_t step) {
    snprintf(name, 64, "step_%08llu", (unsigned long long)step);
}

// 1 and *step where `name` begins with a step's name; *rest is what follows ("" for a finished checkpoint).
static inline int checkpoint_parse_name(const char *name, uint64_t *step, const char **rest) {
    char again[64];
    if (strncmp(name, "step_", 5) != 0 || name[5] < '0' || name[5] > '9') return 0;
    errno = 0;
    char *end;
    *step = strtoull(name + 5, &end, 10);
    *rest = end;
    checkpoint_step_name(again, *step);
    return errno == 0 && strlen(again) == (size_t)(end - name) && strncmp(again, name, strlen(again)) == 0;
}

typedef struct {
    uint64_t *steps;  // descending
    size_t count, capacity;
} CheckpointList;

static inline int checkpoint_newer_first(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

// The steps of all folders named like checkpoints in `out`, newest first; free(list->steps) afterwards.
static inline void checkpoint_list(CheckpointList *list, const char *out) {
    DIR *dir = opendir(out);
    uint64_t step;
    const char *rest;
    memset(list, 0, sizeof *list);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        if (!checkpoint_parse_name(e->d_name, &step, &rest) || *rest) continue;
        if (list->count == list->capacity) {
            list->capacity = list->capacity ? 2 * list->capacity : 64;
            list->steps = (uint64_t *)realloc(list->steps, size_mul(list->capacity, sizeof(uint64_t)));
            if (!list->steps) die("out of memory: a list of %zu checkpoints", list->capacity);
        }
        list->steps[list->count++] = step;
    }
    if (dir) closedir(dir);
    if (list->count) qsort(list->steps, list->count, sizeof(uint64_t), checkpoint_newer_first);
}

// ----------------------------------------------------------------------------------------------------------------
// Manifest

typedef struct {
    const char *name;
    uint64_t bytes, chunk_bytes;
    size_t chunks;
    uint64_t sums[CHECKPOINT_CHUNKS];  // of each chunk, the last one perhaps shorter
} CheckpointFile;

static inline void checkpoint_file_start(CheckpointFile *file, const char *name, uint64_t bytes) {
    file->name = name;
    file->bytes = bytes;
    file->chunk_bytes = CHECKPOINT_CHUNK_BYTES;
    while (bytes / file->chunk_bytes >= CHECKPOINT_CHUNKS) file->chunk_bytes *= 2;
    file->chunks = max_size((size_t)ceil_div(bytes, file->chunk_bytes), 1);
}

// Part `part` of `parts` equal ones of a file: its chunks [*first, return value).
static inline size_t checkpoint_file_part(const CheckpointFile *file, size_t part, size_t parts, size_t *first) {
    *first = file->chunks * part / parts;
    return file->chunks * (part + 1) / parts;
}

static inline void checkpoint_put_sums(JsonWriter *w, const CheckpointFile *file) {
    char hex[20];
    if (file->chunks > 1) {
        json_put_key(w, "chunk_bytes");
        json_put_u64(w, file->chunk_bytes);
    }
    json_put_key(w, "xxh64");
    if (file->chunks > 1) json_begin(w, '[');
    for (size_t i = 0; i < file->chunks; i++) {
        snprintf(hex, sizeof hex, "%016llx", (unsigned long long)file->sums[i]);
        json_put_string(w, hex);
    }
    if (file->chunks > 1) json_end(w, ']');
}

// Writes manifest.json for these files, made up in `text` of CHECKPOINT_MANIFEST_BYTES; 1, or 0 with a message.
static inline int checkpoint_write_manifest(const char *dir, uint64_t step, const CheckpointFile *files, size_t count,
                                            char *text, Message *message) {
    char path[SAFE_PATH_BYTES];
    JsonWriter w;
    SafeFile file;
    uint64_t version = 1;
    for (size_t i = 0; i < count; i++)
        if (files[i].chunks > 1) version = CHECKPOINT_VERSION;
    json_writer(&w, text, CHECKPOINT_MANIFEST_BYTES);
    json_begin(&w, '{');
    json_put_key(&w, "format");
    json_put_string(&w, CHECKPOINT_FORMAT);
    json_put_key(&w, "version");
    json_put_u64(&w, version);
    json_put_key(&w, "step");
    json_put_u64(&w, step);
    json_put_key(&w, "files");
    json_begin(&w, '[');
    for (size_t i = 0; i < count; i++) {
        json_put_space(&w, "\n ");
        json_begin(&w, '{');
        json_put_key(&w, "name");
        json_put_string(&w, files[i].name);
        json_put_key(&w, "bytes");
        json_put_u64(&w, files[i].bytes);
        checkpoint_put_sums(&w, &files[i]);
        json_end(&w, '}');
    }
    json_end(&w, ']');
    json_end(&w, '}');
    // No newline at the end: then a file cut by one byte is no JSON any more.
    if (!path_join(path, dir, CHECKPOINT_MANIFEST)) path[0] = 0;  // cannot be: the folder was made with room to spare
    safe_file_create(&file, path, message);
    safe_file_write(&file, text, w.used);
    return safe_file_finish(&file);
}

// A checkpoint's contents against its manifest: of sizes alone, or of checksums too.
typedef struct {
    void *buffer;  // that files are read through; NULL: sizes alone
    size_t buffer_bytes;
    size_t part, parts;  // whose checksums are looked at, of each file's
} CheckpointReading;

static inline CheckpointReading checkpoint_reading(void *buffer, size_t buffer_bytes, size_t part, size_t parts) {
    CheckpointReading reading = {buffer, buffer_bytes, part, parts};
    return reading;
}

// Chunks [first, end) of `file`, open at `fd`, against their checksums.
static inline int checkpoint_verify_chunks(int fd, const char *path, const CheckpointFile *file, size_t first, size_t end,
                                           const CheckpointReading *reading, Message *message) {
    for (size_t i = first; i < end; i++) {
        Checksum sum;
        uint64_t at = i * file->chunk_bytes, last = at + file->chunk_bytes;
        if (last > file->bytes) last = file->bytes;
        checksum_start(&sum);
        while (at < last) {
            size_t n = last - at < reading->buffer_bytes ? (size_t)(last - at) : reading->buffer_bytes;
            if (!safe_read_at(fd, at, reading->buffer, n, path, message)) return CHECKPOINT_DAMAGED;
            checksum_add(&sum, reading->buffer, n);
            at += n;
        }
        if (checksum_value(&sum) == file->sums[i]) continue;
        message_add(message, "%s is damaged: its checksum is %016llx, its manifest says %016llx", file->name,
                    (unsigned long long)checksum_value(&sum), (unsigned long long)file->sums[i]);
        if (file->chunks > 1)
            message_add(message, "why: it is that of bytes %llu to %llu", (unsigned long long)(i * file->chunk_bytes),
                        (unsigned long long)last);
        return CHECKPOINT_DAMAGED;
    }
    return CHECKPOINT_OK;
}

// One file of the manifest against the disk: present, as long as told, and the same bytes.
static inline int checkpoint_verify_file(const char *dir, const CheckpointFile *file, const CheckpointReading *reading,
                                         Message *message) {
    char path[SAFE_PATH_BYTES];
    struct stat st;
    uint64_t bytes;
    size_t first, end = checkpoint_file_part(file, reading->part, reading->parts, &first);
    if (!path_join(path, dir, file->name) || stat(path, &st) != 0 || !S_ISREG(st.st_mode)) {
        message_add(message, "%s is missing", file->name);
        return CHECKPOINT_DAMAGED;
    }
    if ((uint64_t)st.st_size != file->bytes) {
        message_add(message, "%s has %llu bytes, its manifest says %llu", file->name, (unsigned long long)st.st_size,
                    (unsigned long long)file->bytes);
        return CHECKPOINT_DAMAGED;
    }
    if (!reading->buffer || first == end) return CHECKPOINT_OK;
    int fd = safe_open_read(path, &bytes, message);
    if (fd < 0) return CHECKPOINT_DAMAGED;
    int code = checkpoint_verify_chunks(fd, path, file, first, end, reading, message);
    close(fd);
    return code;
}

static inline int checkpoint_parse_sum(const JsonNode *node, uint64_t *sum) {
    const char *hex = json_string(node);
    char *end = NULL;
    if (!hex || strlen(hex) != 16) return 0;
    *sum = strtoull(hex, &end, 16);
    return !*end;
}

// One entry of the manifest's list.
static inline int checkpoint_parse_file(const Json *json, const JsonNode *node, CheckpointFile *file, Message *message) {
    const JsonNode *sums = json_get(json, node, "xxh64");
    file->name = json_string(json_get(json, node, "name"));
    file->chunks = 0;
    if (!file->name || strchr(file->name, '/') || !sums || !json_u64(json_get(json, node, "bytes"), &file->bytes)) {
        message_add(message, "%s has an entry without name, bytes or xxh64", CHECKPOINT_MANIFEST);
        return 0;
    }
    if (sums->type != JSON_ARRAY) {
        file->chunk_bytes = file->bytes;
        if (checkpoint_parse_sum(sums, &file->sums[0])) file->chunks = 1;
    } else if (json_u64(json_get(json, node, "chunk_bytes"), &file->chunk_bytes) && file->chunk_bytes > 0 &&
               sums->count <= CHECKPOINT_CHUNKS && sums->count == ceil_div(file->bytes, file->chunk_bytes)) {
        const JsonNode *n = json_first(json, sums);
        for (; n && checkpoint_parse_sum(n, &file->sums[file->chunks]); n = json_next(json, n)) file->chunks++;
        if (n) file->chunks = 0;
    }
    if (!file->chunks)
        message_add(message, "%s: the xxh64 of %.60s is no checksum", CHECKPOINT_MANIFEST, file->name);
    return file->chunks > 0;
}

// Every file the manifest lists; those a checkpoint cannot do without must be among them.
static inline int checkpoint_verify_files(const char *dir, const Json *json, const CheckpointReading *reading,
                                          Message *message) {
    static const char *const required[] = {CHECKPOINT_MODEL, CHECKPOINT_CONFIG, CHECKPOINT_STATE};
    const JsonNode *files = json_get(json, json_root(json), "files");
    CheckpointFile file;
    int seen = 0;
    if (!files || files->type != JSON_ARRAY) {
        message_add(message, "%s lists no files", CHECKPOINT_MANIFEST);
        return CHECKPOINT_DAMAGED;
    }
    for (const JsonNode *n = json_first(json, files); n; n = json_next(json, n)) {
        if (!checkpoint_parse_file(json, n, &file, message)) return CHECKPOINT_DAMAGED;
        int code = checkpoint_verify_file(dir, &file, reading, message);
        if (code != CHECKPOINT_OK) return code;
        for (int i = 0; i < 3; i++)
            if (strcmp(file.name, required[i]) == 0) seen |= 1 << i;
    }
    for (int i = 0; i < 3; i++) {
        if (seen >> i & 1) continue;
        message_add(message, "%s does not list %s", CHECKPOINT_MANIFEST, required[i]);
        return CHECKPOINT_DAMAGED;
    }
    return CHECKPOINT_OK;
}

// What a folder without a manifest is: weights that another program (or a copy without the state) left, or a remainder.
static inline int checkpoint_without_manifest(const char *dir, Message *message) {
    char model[SAFE_PATH_BYTES], state[SAFE_PATH_BYTES];
    int fits = path_join(model, dir, CHECKPOINT_MODEL) && path_join(state, dir, CHECKPOINT_STATE);
    if (fits && access(model, F_OK) == 0 && access(state, F_OK) != 0) {
        message_add(message, "it holds weights only, no %s\ntry: --init '%s' starts a new run from them",
                    CHECKPOINT_STATE, dir);
        return CHECKPOINT_WEIGHTS_ONLY;
    }
    message_add(message, "unfinished: %s, which is written last, is missing", CHECKPOINT_MANIFEST);
    return CHECKPOINT_DAMAGED;
}

// Is the folder `dir` a complete checkpoint? OK and *step, or DAMAGED, WEIGHTS_ONLY, NONE with the reason in `message`
// (a phrase without the folder's name).
static inline int checkpoint_verify_reading(const char *dir, uint64_t *step, const CheckpointReading *reading,
                                            Message *message) {
    char path[SAFE_PATH_BYTES];
    size_t bytes = 0;
    uint64_t version;
    Json json;
    if (!path_is_dir(dir)) {
        message_add(message, "it is not a folder");
        return CHECKPOINT_NONE;
    }
    if (!path_join(path, dir, CHECKPOINT_MANIFEST) || access(path, F_OK) != 0)
        return checkpoint_without_manifest(dir, message);
    char *text = safe_read_text(path, (size_t)1 << 20, &bytes, message);
    if (!text) return CHECKPOINT_DAMAGED;
    int code = CHECKPOINT_DAMAGED;
    if (!json_parse(&json, text, bytes)) {
        message_add(message, "%s is damaged: %s", CHECKPOINT_MANIFEST, json.error);
    } else {
        const JsonNode *root = json_root(&json);
        const char *format = json_string(json_get(&json, root, "format"));
        if (!format || strcmp(format, CHECKPOINT_FORMAT) != 0 ||
            !json_u64(json_get(&json, root, "version"), &version) || !json_u64(json_get(&json, root, "step"), step))
            message_add(message, "%s is not one of this program", CHECKPOINT_MANIFEST);
        else if (version < 1 || version > CHECKPOINT_VERSION)
            message_add(message, "%s has version %llu, this program reads 1 to %d", CHECKPOINT_MANIFEST,
                        (unsigned long long)version, CHECKPOINT_VERSION);
        else code = checkpoint_verify_files(dir, &json, reading, message);
    }
    json_free(&json);
    free(text);
    return code;
}

// The same of sizes and, where a `buffer` is given to read files through, of all checksums.
static inline int checkpoint_verify(const char *dir, uint64_t *step, void *buffer, size_t buffer_bytes,
                                    Message *message) {
    const CheckpointReading reading = checkpoint_reading(buffer, buffer_bytes, 0, 1);
    return checkpoint_verify_reading(dir, step, &reading, message);
}

// ----------------------------------------------------------------------------------------------------------------
// Leftovers

// 1 where no living process holds the folder's lock (one that died lost it, whatever its process id is used for now).
static inline int checkpoint_unlocked(const char *path) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int free_to_go = fd < 0 || flock(fd, LOCK_EX | LOCK_NB) == 0;
    if (fd >= 0) close(fd);
    return free_to_go;
}

// Removes what interrupted saves and removals left in `out`, and gives a checkpoint that was being replaced its name
// back if the replacement never took it. Called before each save and each search; other processes' work in progress
// is locked and stays.
static inline void checkpoint_clean(const char *out) {
    DIR *dir = opendir(out);
    uint64_t step;
    const char *rest;
    char path[SAFE_PATH_BYTES], home[SAFE_PATH_BYTES], name[64];
    for (struct dirent *e; dir && (e = readdir(dir));) {
        if (!checkpoint_parse_name(e->d_name, &step, &rest) || !path_join(path, out, e->d_name)) continue;
        int old = strncmp(rest, ".old-", 5) == 0;
        if ((!old && strncmp(rest, ".tmp-", 5) != 0) || !checkpoint_unlocked(path)) continue;
        checkpoint_step_name(name, step);
        if (old && path_join(home, out, name) && access(home, F_OK) != 0 && rename(path, home) == 0) continue;
        remove_dir(path);
    }
    if (dir) closedir(dir);
}

// "OUT/step_X.KIND-PID" into `path`; 0 where that is too long.
static inline int checkpoint_aside_path(char *path, const char *out, uint64_t step, const char *kind, long pid) {
    int n = snprintf(path, SAFE_PATH_BYTES, "%s/step_%08llu.%s-%ld", out, (unsigned long long)step, kind, pid);
    return n > 0 && n < SAFE_PATH_BYTES - 64;  // room for a file's name behind it
}

// Removes a finished checkpoint. Renamed first, so that being killed half-way leaves no step with files missing.
static inline void checkpoint_remove(const char *out, uint64_t step) {
    char name[64], path[SAFE_PATH_BYTES], aside[SAFE_PATH_BYTES];
    checkpoint_step_name(name, step);
    if (!path_join(path, out, name) || !checkpoint_aside_path(aside, out, step, "tmp", (long)getpid())) return;
    if (rename(path, aside) == 0) remove_dir(aside);
}

// ----------------------------------------------------------------------------------------------------------------
// Publishing

// Exchanges two folders in one step, so that at no instant the name is free; 0 where the system cannot.
static inline int checkpoint_exchange(const char *a, const char *b) {
#if defined(SYS_renameat2) && defined(AT_FDCWD)
    return syscall(SYS_renameat2, AT_FDCWD, a, AT_FDCWD, b, 2u /* RENAME_EXCHANGE */) == 0;
#else
    (void)a;
    (void)b;
    return 0;
#endif
}

// Gives the finished temporary folder its name; a checkpoint of the same step (a resumed run writes steps again) is
// replaced. 1, or 0 with a message and the older one still in place.
static inline int checkpoint_publish(const char *out, uint64_t step, const char *temporary, int may_exchange,
                                     Message *message) {
    char name[64], path[SAFE_PATH_BYTES], old[SAFE_PATH_BYTES];
    struct stat st;
    checkpoint_step_name(name, step);
    if (!path_join(path, out, name) || !checkpoint_aside_path(old, out, step, "old", (long)getpid())) return 0;
    if (lstat(path, &st) != 0) {
        if (rename(temporary, path) == 0) return sync_dir(out, message);
    } else if (may_exchange && checkpoint_exchange(temporary, path)) {
        if (!sync_dir(out, message)) return 0;
        remove_dir(temporary);
        return 1;
    } else if (rename(path, old) == 0) {
        if (rename(temporary, path) == 0) {
            if (!sync_dir(out, message)) return 0;
            remove_dir(old);
            return 1;
        }
        int reason = errno;
        rename(old, path);
        errno = reason;
    }
    message_add(message, "cannot rename '%s' to '%s': %s", temporary, path, strerror(errno));
    return 0;
}

// ----------------------------------------------------------------------------------------------------------------
// Best, latest, rotation

// Points OUT/best at `step`, in one step. OK or FAILED with a message.
static inline int checkpoint_mark_best(const char *out, uint64_t step, Message *message) {
    char name[64], path[SAFE_PATH_BYTES], fresh[SAFE_PATH_BYTES];
    checkpoint_step_name(name, step);
    if (!path_join(path, out, "best") || !path_join(fresh, out, "best.tmp")) return CHECKPOINT_FAILED;
    unlink(fresh);
    if (symlink(name, fresh) == 0 && rename(fresh, path) == 0) return CHECKPOINT_OK;
    message_add(message, "cannot point '%s' at %s: %s", path, name, strerror(errno));
    return CHECKPOINT_FAILED;
}

// 1 and the step OUT/best points at; 0 where there is none.
static inline int checkpoint_best(const char *out, uint64_t *step) {
    char path[SAFE_PATH_BYTES], target[64];
    const char *rest;
    ssize_t n = path_join(path, out, "best") ? readlink(path, target, sizeof target - 1) : -1;
    if (n < 0) return 0;
    target[n] = 0;
    return checkpoint_parse_name(target, step, &rest) && !*rest;
}

// The newest complete checkpoint of `out` of a step up to `last`: OK with its folder in `dir` (SAFE_PATH_BYTES) and its
// step. NONE; or WEIGHTS_ONLY or DAMAGED where there are candidates, but none is sound. `message` gets one line for each
// newer one that was passed over, and why.
static inline int checkpoint_newest(const char *out, uint64_t last, const CheckpointReading *reading, char *dir,
                                    uint64_t *step, Message *message) {
    CheckpointList list;
    int result = CHECKPOINT_NONE;
    checkpoint_clean(out);
    checkpoint_list(&list, out);
    for (size_t i = 0; i < list.count && result != CHECKPOINT_OK; i++) {
        char name[64];
        Message why;
        uint64_t inside = 0;
        if (list.steps[i] > last) continue;
        message_clear(&why);
        checkpoint_step_name(name, list.steps[i]);
        int code =
            path_join(dir, out, name) ? checkpoint_verify_reading(dir, &inside, reading, &why) : CHECKPOINT_NONE;
        if (code == CHECKPOINT_OK && inside != list.steps[i]) {
            message_add(&why, "%s is of step %llu", CHECKPOINT_MANIFEST, (unsigned long long)inside);
            code = CHECKPOINT_DAMAGED;
        }
        if (code == CHECKPOINT_OK) *step = inside;
        else message_add(message, "passed over %s: %s", name, why.text);
        if (code == CHECKPOINT_OK || code == CHECKPOINT_WEIGHTS_ONLY) result = code;
        else if (result == CHECKPOINT_NONE) result = CHECKPOINT_DAMAGED;
    }
    if (result != CHECKPOINT_OK) dir[0] = 0;
    free(list.steps);
    return result;
}

// The same, every file's checksums verified.
static inline int checkpoint_latest_until(const char *out, uint64_t last, char *dir, uint64_t *step,
                                          Message *message) {
    size_t bytes = (size_t)1 << 20;
    char *buffer = (char *)checked_calloc(bytes, 1, "reading checkpoints");
    const CheckpointReading reading = checkpoint_reading(buffer, bytes, 0, 1);
    int code = checkpoint_newest(out, last, &reading, dir, step, message);
    free(buffer);
    return code;
}

// The newest of all.
static inline int checkpoint_latest(const char *out, char *dir, uint64_t *step, Message *message) {
    return checkpoint_latest_until(out, UINT64_MAX, dir, step, message);
}

// Removes older checkpoints after `newest` was saved: all but the last `keep` complete ones (0 keeps all), steps that
// are multiples of `milestone_every` (0: none are), and the best. Steps above `newest` (a run resumed from an older
// one) are left to be overwritten. Damaged ones are neither counted nor removed: a person may want to look at them.
static inline void checkpoint_rotate(const char *out, uint64_t newest, size_t keep, uint64_t milestone_every) {
    CheckpointList list;
    uint64_t best = 0, inside;
    size_t kept = 0;
    int has_best = checkpoint_best(out, &best);
    if (keep == 0) return;
    checkpoint_list(&list, out);
    for (size_t i = 0; i < list.count; i++) {
        char name[64], path[SAFE_PATH_BYTES];
        Message why;
        uint64_t step = list.steps[i];
        message_clear(&why);
        checkpoint_step_name(name, step);
        if (step > newest || !path_join(path, out, name)) continue;
        if (checkpoint_verify(path, &inside, NULL, 0, &why) != CHECKPOINT_OK || inside != step) continue;
        if (kept++ < keep || step == newest) continue;
        if ((milestone_every && step % milestone_every == 0) || (has_best && step == best)) continue;
        checkpoint_remove(out, step);
    }
    free(list.steps);
}

#endif
