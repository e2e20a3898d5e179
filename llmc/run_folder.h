// run_folder.h: the folder a run keeps its files in (--out): one run at a time, and no log of an earlier run lost.
// Checkpoints are checkpoint_dir.h's.
#ifndef LLMC_RUN_FOLDER_H
#define LLMC_RUN_FOLDER_H

#include "safe_file.h"

#define RUN_LOG_FILE "run.jsonl"
#define RUN_NUMERICS_FILE "numerics.jsonl"
#define RUN_OPTIONS_FILE "options.json"
#define RUN_FILES 3

static inline const char *run_file(int i) {
    static const char *const names[RUN_FILES] = {RUN_LOG_FILE, RUN_NUMERICS_FILE, RUN_OPTIONS_FILE};
    return names[i];
}

// "OUT/NAME" into `path` (SAFE_PATH_BYTES).
static inline void run_folder_path(char *path, const char *out, const char *name) {
    if (!path_join(path, out, name)) die("--out: the name of the output folder is too long");
}

// Two runs in one folder would lose each other's log and checkpoints: the second one ends here. Returns what holds the
// lock until it is closed or the program ends, however it ends; 0 where there is no such folder yet.
static inline int run_folder_lock(const char *out) {
    int folder = open(out, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) return 0;
    if (flock(folder, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        die("--out '%s' is in use by another run\ntry: another --out, or wait until that one ends", out);
    return folder;
}

// Ends the program where something else has the name of a file that the run will write: opening a pipe would wait for
// ever, and a folder would end the run when it writes there first, perhaps hours from now.
static inline void run_folder_check(const char *out) {
    char path[SAFE_PATH_BYTES];
    struct stat st;
    for (int i = 0; i < RUN_FILES; i++) {
        run_folder_path(path, out, run_file(i));
        if (stat(path, &st) != 0 || S_ISREG(st.st_mode)) continue;
        die_usage("'%s' is a %s, where the run writes a file of that name\ntry: move it away, or another --out", path,
                  S_ISDIR(st.st_mode)    ? "folder"
                  : S_ISFIFO(st.st_mode) ? "pipe"
                                         : "device");
    }
    run_folder_path(path, out, "best");
    if (lstat(path, &st) == 0 && !S_ISLNK(st.st_mode))
        die_usage(
            "'%s' is a %s, where the run makes a link to its best checkpoint\n"
            "why: copying a run with its links followed makes a folder of it\ntry: move it away, or another --out",
            path, S_ISDIR(st.st_mode) ? "folder" : "file");
}

// "OUT/NAME.N" into `path`.
static inline void run_folder_aside_path(char *path, const char *out, const char *name, unsigned number) {
    char numbered[64];
    snprintf(numbered, sizeof numbered, "%s.%u", name, number);
    run_folder_path(path, out, numbered);
}

// Before a run starts from the beginning: the log that one without a checkpoint left here, and what belongs to it, become
// run.jsonl.N and so on, with the first N that none of them has.
static inline void run_folder_set_aside(const char *out) {
    char path[SAFE_PATH_BYTES], aside[SAFE_PATH_BYTES];
    struct stat st;
    unsigned number = 1;
    run_folder_path(path, out, RUN_LOG_FILE);
    if (stat(path, &st) != 0 || st.st_size == 0) return;
    for (int i = 0; i < RUN_FILES;) {
        run_folder_aside_path(aside, out, run_file(i), number);
        if (lstat(aside, &st) == 0) {
            number++;
            i = 0;
        } else {
            i++;
        }
    }
    for (int i = RUN_FILES - 1; i >= 0; i--) {  // the log last: being killed on the way, the rest follows next time
        run_folder_path(path, out, run_file(i));
        run_folder_aside_path(aside, out, run_file(i), number);
        if (rename(path, aside) != 0 && errno != ENOENT)
            die("cannot rename '%s' to '%s': %s", path, aside, strerror(errno));
    }
    printf("the log of an earlier run, which saved no checkpoint, is now %s\n", aside);
}

// Writes the options beside the log, for people and scripts; a checkpoint carries its own copy.
static inline void run_folder_write_options(const char *out, const char *options_json) {
    char path[SAFE_PATH_BYTES];
    Message message;
    message_clear(&message);
    run_folder_path(path, out, RUN_OPTIONS_FILE);
    if (!safe_write_text(path, options_json, &message)) die("%s", message.text);
}

#endif
