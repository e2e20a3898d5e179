// utils.h: what every other header stands on: error messages, checked memory and files, sizes, time, threads.
//
// Errors have one shape (on stderr), whatever part of the program found them:
//
//     error: tokens 'data/x.bin': header says 1000 tokens, the file holds 999
//       why: the copy or download was cut short
//       try: make the file again with data/tokenize
//       at:  llmc/dataloader.h:80
//
// written as die("tokens '%s': ...\nwhy: ...\ntry: ...", path, ...). die() exits with 1, die_usage() with 2.
#ifndef LLMC_UTILS_H
#define LLMC_UTILS_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE  // strptime, asprintf and MADV_HUGEPAGE are wanted from <stdlib.h> and friends
#endif
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif

// Kernel headers with a CUDA twin live in namespace cpu when a .cu file includes them, so that a test can call
// cpu::gelu_forward(...) beside gelu_forward(..., stream). In C both macros are empty.
#ifdef __cplusplus
#define CPU_TWIN_BEGIN namespace cpu {
#define CPU_TWIN_END }
#else
#define CPU_TWIN_BEGIN
#define CPU_TWIN_END
#endif

#define RESTRICT __restrict__
#define PRINTF_LIKE(fmt, first) __attribute__((format(printf, fmt, first)))

// ----------------------------------------------------------------------------------------------------------------
// Messages

// Who is speaking: set once at start by a run with several ranks, printed in every error.
typedef struct {
    int rank, ranks;
    int live_line;  // 1 while an unfinished progress line is on the terminal: messages first end it
    const char *host;
    void (*on_error)(int code, const char *text);  // after the message: tells the other ranks, and ends the program
} RunContext;

static inline RunContext *run_context(void) {
    static RunContext context = {0, 1, 0, "", NULL};
    return &context;
}

// Ends an unfinished progress line, so that what is printed next starts on a line of its own.
static inline void end_live_line(void) {
    if (run_context()->live_line) {
        fputc('\n', stdout);
        fflush(stdout);
        run_context()->live_line = 0;
    }
}

// Prints "error: TEXT" with TEXT's further lines indented, then where; exits with `code`. Use die() or die_usage().
static inline void error_exit(int code, const char *file, int line, const char *fmt, ...)
    __attribute__((noreturn, format(printf, 4, 5), cold));
static inline void error_exit(int code, const char *file, int line, const char *fmt, ...) {
    char text[4096], shaped[3 * sizeof text], where[512];
    size_t n = 0;
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (run_context()->ranks > 1)
        snprintf(where, sizeof where, "rank %d of %d on %s, %s:%d", run_context()->rank, run_context()->ranks,
                 run_context()->host, file, line);
    else snprintf(where, sizeof where, "%s:%d", file, line);
    for (const char *c = text; *c; c++) {
        shaped[n++] = *c;
        for (int i = 0; *c == '\n' && i < 2; i++) shaped[n++] = ' ';
    }
    shaped[n] = 0;
    end_live_line();
    fprintf(stderr, "error: %s\n  at:  %s\n", shaped, where);  // in one write: other ranks share the terminal
    if (run_context()->on_error) run_context()->on_error(code, text);
    exit(code);
}
#define die(...) error_exit(1, __FILE__, __LINE__, __VA_ARGS__)
#define die_usage(...) error_exit(2, __FILE__, __LINE__, __VA_ARGS__)

// One line on stderr that begins with "warning: "; the run goes on. Of several ranks, which all see the same, one speaks.
static inline void warn(const char *fmt, ...) PRINTF_LIKE(1, 2);
static inline void warn(const char *fmt, ...) {
    char text[4096];
    va_list args;
    if (run_context()->rank > 0) return;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    end_live_line();
    fprintf(stderr, "warning: %s\n", text);
}

// ----------------------------------------------------------------------------------------------------------------
// Sizes

static inline size_t min_size(size_t a, size_t b) { return a < b ? a : b; }
static inline size_t max_size(size_t a, size_t b) { return a > b ? a : b; }
static inline size_t ceil_div(size_t a, size_t b) { return (a + b - 1) / b; }
static inline size_t round_up(size_t a, size_t multiple) { return ceil_div(a, multiple) * multiple; }

// "1 step", "2 steps": printf("%zu step%s", n, plural(n)).
static inline const char *plural(uint64_t n) { return n == 1 ? "" : "s"; }

// a * b, or the end of the program where that is no size_t.
static inline size_t size_mul(size_t a, size_t b) {
    size_t product;
    if (__builtin_mul_overflow(a, b, &product)) die("%zu x %zu elements do not fit in 64 bits", a, b);
    return product;
}

static inline int all_finite(const float *values, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!isfinite(values[i])) return 0;
    return 1;
}

// "1.50 GiB" and the like into `text` (at least 32 bytes); returns `text`.
static inline const char *format_bytes_text(char *text, double bytes) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    int unit = 0;
    for (; bytes >= 1024 && unit < 5; unit++) bytes /= 1024;
    snprintf(text, 32, unit ? "%.2f %s" : "%.0f %s", bytes, units[unit]);
    return text;
}

// ----------------------------------------------------------------------------------------------------------------
// Memory

// malloc/calloc that cannot return NULL; `what` names the use in the message.
static inline void *checked_calloc(size_t count, size_t element_bytes, const char *what) {
    size_t bytes = size_mul(count, element_bytes);
    void *memory = calloc(bytes ? bytes : 1, 1);
    if (!memory) die("out of memory: %zu bytes for %s", bytes, what);
    return memory;
}

static inline char *checked_strdup(const char *text) {
    char *copy = strdup(text);
    if (!copy) die("out of memory: %zu bytes for a string", strlen(text) + 1);
    return copy;
}

#define ARENA_ALIGN_BYTES ((size_t)256)

// One block of memory per lifetime, handed out front to back in 256-byte steps. Planned first (base NULL:
// arena_take only counts), so that a run's memory is known and printed before any of it is asked for.
typedef struct {
    const char *name;
    char *base;         // NULL while planning
    size_t used_bytes;  // handed out so far
    size_t capacity_bytes;
} Arena;

// Reserves `arena->used_bytes` as planned, zero-filled, in huge pages where the system has them (a GEMM that
// strides over weights is otherwise bound by address translation), and rewinds the arena for the real hand-out.
static inline void arena_allocate(Arena *arena) {
    arena->capacity_bytes = round_up(max_size(arena->used_bytes, 1), (size_t)2 << 20);
    void *base = mmap(NULL, arena->capacity_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) {
        char text[32];
        die("out of memory: the arena '%s' needs %s\ntry: a smaller --batch, --seq or model (--dry-run prints the plan)",
            arena->name, format_bytes_text(text, (double)arena->capacity_bytes));
    }
#ifdef MADV_HUGEPAGE
    if (arena->capacity_bytes >= (size_t)8 << 20) madvise(base, arena->capacity_bytes, MADV_HUGEPAGE);
#endif
    arena->base = (char *)base;
    arena->used_bytes = 0;
}

// The next `count` elements; NULL while planning.
static inline void *arena_take(Arena *arena, size_t count, size_t element_bytes) {
    char *memory = arena->base ? arena->base + arena->used_bytes : NULL;
    arena->used_bytes += round_up(size_mul(count, element_bytes), ARENA_ALIGN_BYTES);
    if (arena->base && arena->used_bytes > arena->capacity_bytes)
        die("arena '%s': %zu bytes asked for, %zu planned (a fault of this program)", arena->name, arena->used_bytes,
            arena->capacity_bytes);
    return memory;
}

static inline void arena_free(Arena *arena) {
    if (arena->base) munmap(arena->base, arena->capacity_bytes);
    arena->base = NULL;
    arena->used_bytes = arena->capacity_bytes = 0;
}

// ----------------------------------------------------------------------------------------------------------------
// Files. Each call either does all of what it says or ends the program with the path and the system's reason.

// Call first in main. Of a program begun without a standard stream (`>&-`) the first file it opens would take the
// stream's place, and what it prints would go into that file. /dev/null takes it instead, opened so that its use fails.
static inline void open_standard_streams(void) {
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) < 0) return;
}

static inline FILE *file_open(const char *path, const char *mode) {
    FILE *file = fopen(path, mode);
    if (!file) die("cannot open '%s' for %s: %s", path, mode[0] == 'r' ? "reading" : "writing", strerror(errno));
    return file;
}

static inline void file_read(FILE *file, void *data, size_t bytes, const char *path) {
    if (fread(data, 1, bytes, file) != bytes)
        die("cannot read %zu bytes from '%s': %s", bytes, path, ferror(file) ? strerror(errno) : "the file ends early");
}

static inline void file_write(FILE *file, const void *data, size_t bytes, const char *path) {
    if (fwrite(data, 1, bytes, file) != bytes) die("cannot write to '%s': %s", path, strerror(errno));
}

// Closing can fail too: a full disk often shows here first.
static inline void file_close(FILE *file, const char *path) {
    if (fclose(file) != 0) die("cannot finish writing '%s': %s", path, strerror(errno));
}

// ----------------------------------------------------------------------------------------------------------------
// Time and threads

static inline double now_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// Threads a parallel region will have; 1 in a build without OpenMP.
static inline int thread_count(void) {
#ifdef _OPENMP
    return omp_get_max_threads();
#else
    return 1;
#endif
}

// What --threads asks for. Far more threads than processors would end in a message of OpenMP's, or of the system's.
static inline void set_thread_count(int threads) {
    long processors = sysconf(_SC_NPROCESSORS_ONLN), most = processors > 16 ? 4 * processors : 64;
    if (threads > most)
        die_usage(
            "--threads %d: this machine has %ld processor%s, more than %ld threads make no sense\n"
            "try: --threads 0, one thread a processor",
            threads, processors, plural((uint64_t)processors), most);
#ifdef _OPENMP
    omp_set_num_threads(threads);
#else
    (void)threads;
#endif
}

// Call first in main. OpenMP's threads wait for each other by spinning, by default for milliseconds (gcc) or for ever
// (clang): on a machine that runs anything else besides, the spinning takes the core the awaited thread needs, and a
// step was measured ten times slower than with a short spin, which costs nothing measurable on an idle machine. The
// runtimes read these settings before main, so the program starts itself again with them, unless the user has set any.
static inline void limit_thread_spinning(char **argv) {
#ifdef _OPENMP
    static const char *const settings[][2] = {{"OMP_WAIT_POLICY", NULL},
                                              {"GOMP_SPINCOUNT", "1000"},
                                              {"KMP_BLOCKTIME", "0"}};
    for (size_t i = 0; i < 3; i++)
        if (getenv(settings[i][0])) return;
    for (size_t i = 1; i < 3; i++) setenv(settings[i][0], settings[i][1], 1);
    execv("/proc/self/exe", argv);  // returns only if it failed: then the run is merely slower
#else
    (void)argv;
#endif
}

// Said beside the thread count.
static inline const char *thread_count_note(void) {
#ifdef _OPENMP
    return "";
#else
    return ", built without OpenMP";
#endif
}

// This thread's number within a parallel region.
static inline int thread_index(void) {
#ifdef _OPENMP
    return omp_get_thread_num();
#else
    return 0;
#endif
}

#endif
