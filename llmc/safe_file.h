// safe_file.h: files that are either wholly written or reported: checked, checksummed, synced. For checkpoints, where
// a failure must not end the program (a full disk at step 90000 is no reason to lose the run), so nothing here dies:
// the first failure stays in a Message and the caller decides.
#ifndef LLMC_SAFE_FILE_H
#define LLMC_SAFE_FILE_H

#include "checksum.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#define SAFE_PATH_BYTES 4096

// What went wrong or is worth knowing, in die()'s form ("what\nwhy: ...\ntry: ..."); "" is nothing.
typedef struct {
    char text[3000];
} Message;

static inline void message_clear(Message *message) { message->text[0] = 0; }

// Appends, on a line of its own; what does not fit is cut.
static inline void message_add(Message *message, const char *fmt, ...) PRINTF_LIKE(2, 3);
static inline void message_add(Message *message, const char *fmt, ...) {
    size_t used = strlen(message->text);
    va_list args;
    va_start(args, fmt);
    if (used && used + 1 < sizeof message->text) {
        message->text[used++] = '\n';
        message->text[used] = 0;
    }
    vsnprintf(message->text + used, sizeof message->text - used, fmt, args);
    va_end(args);
}

// "DIR/NAME" into `path` (SAFE_PATH_BYTES); 0 where that is too long.
static inline int path_join(char *path, const char *dir, const char *name) {
    size_t dir_bytes = strlen(dir), name_bytes = strlen(name);
    if (dir_bytes + 1 + name_bytes >= SAFE_PATH_BYTES) return 0;
    memmove(path, dir, dir_bytes);
    path[dir_bytes] = '/';
    memcpy(path + dir_bytes + 1, name, name_bytes + 1);
    return 1;
}

// ----------------------------------------------------------------------------------------------------------------
// Writing

typedef struct {
    int fd;
    int failed;  // sticky: once set, writes do nothing and safe_file_finish reports
    const char *path;
    Message *message;
    uint64_t bytes;
    Checksum sum;
} SafeFile;

static inline void safe_file_failed(SafeFile *file, const char *doing) {
    int reason = errno;
    struct statvfs space;
    char text[32];
    if (file->failed) return;
    file->failed = 1;
    message_add(file->message, "cannot %s '%s': %s (after %llu bytes)", doing, file->path, strerror(reason),
                (unsigned long long)file->bytes);
    if (reason == EFBIG) message_add(file->message, "why: a limit on file sizes is in force (ulimit -f)");
    if ((reason == ENOSPC || reason == EDQUOT) && statvfs(file->path, &space) == 0)
        message_add(file->message, "why: %s are free there\ntry: free some space, or a smaller --keep",
                    format_bytes_text(text, (double)space.f_bavail * (double)space.f_frsize));
}

static inline void safe_file_open(SafeFile *file, const char *path, int flags, Message *message) {
    memset(file, 0, sizeof *file);
    file->path = path;
    file->message = message;
    checksum_start(&file->sum);
    file->fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0666);
    if (file->fd < 0) safe_file_failed(file, "create");
}

// A new empty file. `path` and `message` must outlive it.
static inline void safe_file_create(SafeFile *file, const char *path, Message *message) {
    safe_file_open(file, path, O_TRUNC, message);
}

// A part of a file that several processes write, each from its own byte `at` on; whoever comes first creates it.
static inline void safe_file_join(SafeFile *file, const char *path, uint64_t at, Message *message) {
    safe_file_open(file, path, 0, message);
    if (!file->failed && lseek(file->fd, (off_t)at, SEEK_SET) < 0) safe_file_failed(file, "seek in");
}

static inline void safe_file_write(SafeFile *file, const void *data, size_t bytes) {
    const char *p = (const char *)data;
    if (file->failed) return;
    checksum_add(&file->sum, data, bytes);
    while (bytes) {
        ssize_t n = write(file->fd, p, min_size(bytes, (size_t)1 << 30));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            if (n == 0) errno = ENOSPC;
            safe_file_failed(file, "write");
            return;
        }
        p += n;
        bytes -= (size_t)n;
        file->bytes += (uint64_t)n;
    }
}

// Syncs and closes. 1 when every byte is on the disk; 0 when anything failed since the file was created.
static inline int safe_file_finish(SafeFile *file) {
    if (!file->failed && fsync(file->fd) != 0) safe_file_failed(file, "sync");
    // A later read then comes from the disk, which is what a verification wants to see.
    if (!file->failed) posix_fadvise(file->fd, 0, 0, POSIX_FADV_DONTNEED);
    if (file->fd >= 0 && close(file->fd) != 0) safe_file_failed(file, "close");
    file->fd = -1;
    return !file->failed;
}

// `text` and a newline as the file `path`, written beside it, synced, then renamed: whoever looks, and a crash, finds the
// old file or the new one. 0 with a message.
static inline int safe_write_text(const char *path, const char *text, Message *message) {
    char beside[SAFE_PATH_BYTES];
    SafeFile file;
    int length = snprintf(beside, sizeof beside, "%s.tmp", path);
    if (length < 0 || (size_t)length >= sizeof beside) {
        message_add(message, "the name '%.60s...' is too long", path);
        return 0;
    }
    safe_file_create(&file, beside, message);
    safe_file_write(&file, text, strlen(text));
    safe_file_write(&file, "\n", 1);
    if (!safe_file_finish(&file)) return 0;
    if (rename(beside, path) == 0) return 1;
    message_add(message, "cannot rename '%s' to '%s': %s", beside, path, strerror(errno));
    return 0;
}

// ----------------------------------------------------------------------------------------------------------------
// Reading

// All of `bytes` from `offset`; 0 with a message where the file is shorter or cannot be read.
static inline int safe_read_at(int fd, uint64_t offset, void *data, size_t bytes, const char *path, Message *message) {
    char *p = (char *)data;
    while (bytes) {
        ssize_t n = pread(fd, p, min_size(bytes, (size_t)1 << 30), (off_t)offset);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            message_add(message, "cannot read '%s' at byte %llu: %s", path, (unsigned long long)offset,
                        n ? strerror(errno) : "the file ends there");
            return 0;
        }
        p += n;
        offset += (uint64_t)n;
        bytes -= (size_t)n;
    }
    return 1;
}

// Opens a regular file for reading; its descriptor and size, or -1 with a message.
static inline int safe_open_read(const char *path, uint64_t *bytes, Message *message) {
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // NONBLOCK: a pipe of that name must not hang the run
    if (fd < 0) {
        message_add(message, "cannot open '%s': %s", path, strerror(errno));
        return -1;
    }
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        message_add(message, "'%s' is not a regular file", path);
        close(fd);
        return -1;
    }
    *bytes = (uint64_t)st.st_size;
    return fd;
}

// A whole small file as NUL-terminated text that the caller frees; NULL with a message, also above `max_bytes`.
static inline char *safe_read_text(const char *path, size_t max_bytes, size_t *bytes, Message *message) {
    uint64_t size;
    int fd = safe_open_read(path, &size, message);
    char *text = NULL;
    if (fd < 0) return NULL;
    if (size > max_bytes) {
        message_add(message, "'%s' has %llu bytes, at most %zu make sense", path, (unsigned long long)size, max_bytes);
    } else {
        text = (char *)checked_calloc((size_t)size + 1, 1, path);
        *bytes = (size_t)size;
        if (!safe_read_at(fd, 0, text, *bytes, path, message)) {
            free(text);
            text = NULL;
        }
    }
    close(fd);
    return text;
}

// ----------------------------------------------------------------------------------------------------------------
// Directories

static inline int path_is_dir(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

// Makes `path` and what is missing above it; 0 with a message where it cannot.
static inline int make_dirs(const char *path, Message *message) {
    char part[SAFE_PATH_BYTES];
    size_t n = strlen(path);
    if (n == 0 || n >= sizeof part) {
        message_add(message, "folder name '%.60s' is empty or too long", path);
        return 0;
    }
    memcpy(part, path, n + 1);
    for (size_t i = 1; i <= n; i++) {
        if (part[i] != '/' && part[i] != 0) continue;
        part[i] = 0;
        if (mkdir(part, 0777) != 0 && !path_is_dir(part)) {
            message_add(message, "cannot make the folder '%s': %s", part, strerror(errno == EEXIST ? ENOTDIR : errno));
            return 0;
        }
        part[i] = path[i];
    }
    return 1;
}

// Makes renames inside `path` durable. Some file systems know no sync of a folder (EINVAL): nothing to wait for then.
static inline int sync_dir(const char *path, Message *message) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int good = fd >= 0 && (fsync(fd) == 0 || errno == EINVAL);
    if (!good) message_add(message, "cannot sync the folder '%s': %s", path, strerror(errno));
    if (fd >= 0) close(fd);
    return good;
}

// Removes a folder and the files in it, one level deep; a symbolic link is removed, never followed. Best effort.
static inline void remove_dir(const char *path) {
    struct stat st;
    char entry[SAFE_PATH_BYTES];
    DIR *dir = lstat(path, &st) == 0 && S_ISDIR(st.st_mode) ? opendir(path) : NULL;
    if (!dir) {
        unlink(path);
        return;
    }
    for (struct dirent *e; (e = readdir(dir));)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0 && path_join(entry, path, e->d_name))
            unlink(entry);
    closedir(dir);
    rmdir(path);
}

#endif
