// checkpoint_test.h: what the checkpoint tests share: temporary folders, and the fixtures' place and values.
#ifndef DEV_TEST_CHECKPOINT_TEST_H
#define DEV_TEST_CHECKPOINT_TEST_H

#include "../../llmc/safe_file.h"
#include "test.h"

// A fresh folder into `dir` (64 bytes), below $TMPDIR or /tmp.
static inline void temporary_dir(char *dir) {
    const char *base = getenv("TMPDIR");
    snprintf(dir, 64, "%.40s/ckpt.XXXXXX", base && strlen(base) <= 40 ? base : "/tmp");
    if (!mkdtemp(dir)) die("cannot make a temporary folder '%s'", dir);
}

// Removes a folder and what is below it.
static inline void remove_tree(const char *path) {
    char entry[SAFE_PATH_BYTES];
    struct stat st;
    DIR *dir = lstat(path, &st) == 0 && S_ISDIR(st.st_mode) ? opendir(path) : NULL;
    for (struct dirent *e; dir && (e = readdir(dir));)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0 && path_join(entry, path, e->d_name))
            remove_tree(entry);
    if (dir) closedir(dir);
    remove(path);
}

// dev/reference/checkpoint/NAME into `path`: beside this source, or up from where the program runs.
static inline void fixture_path(char *path, const char *name) {
    static const char *const ups[] = {"", "../", "../../", "../../../"};
    const char *slash = strrchr(__FILE__, '/');
    int n = slash ? (int)(slash - __FILE__) : 0;
    for (int i = 0; i < 4; i++) {
        snprintf(path, SAFE_PATH_BYTES, "%s%.*s/../reference/checkpoint/%s", ups[i], n, __FILE__, name);
        if (access(path, R_OK) == 0) return;
    }
    ssize_t m = readlink("/proc/self/exe", path, SAFE_PATH_BYTES - 200);  // build/KIND/test_x -> the repository
    if (m < 0) m = 0;
    path[m] = 0;
    for (int up = 0; up < 3 && strrchr(path, '/'); up++) *strrchr(path, '/') = 0;
    m = (ssize_t)strlen(path);
    snprintf(path + m, (size_t)(SAFE_PATH_BYTES - m), "/dev/reference/checkpoint/%s", name);
}

// Value `index` of tensor `name` in the fixtures (checkpoint_fixtures.py has the same formula).
static inline float fixture_value(const char *name, size_t index) {
    size_t sum = 0;
    for (const char *c = name; *c; c++) sum += (unsigned char)*c;
    return (float)((double)((sum + index) % 2039) - 1019) / 1024;
}

#endif
