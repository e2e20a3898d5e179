// test.h: a unit test in C.
//
//     TEST(rounds_to_even) { CHECK(f(1) == 2, "f(1) is %d", f(1)); }
//     int main(void) { RUN(rounds_to_even); return test_summary(); }
//
// Prints one line a test ("ok", "FAIL" with the first reasons, or "skip" with why) and ends with
// "N passed, N failed, N skipped", which dev/test/run.sh adds up. The exit code is 1 if anything failed or nothing ran.
#ifndef DEV_TEST_H
#define DEV_TEST_H

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

typedef struct {
    const char *name;
    int failures, skipped_now;        // of the running test
    int passed, failed, skipped;      // of the program
} TestState;

static TestState test_state;

#define TEST(name) static void test_##name(void)

__attribute__((format(printf, 3, 4))) static inline void test_fail(const char *file, int line, const char *fmt, ...) {
    va_list args;
    if (test_state.failures++ >= 5) return;  // the first few say enough
    printf("  %s:%d: ", file, line);
    va_start(args, fmt);
    vprintf(fmt, args);
    va_end(args);
    printf("\n");
}

// Counts a failure and says why (printf-like) unless `condition` holds; the test goes on.
#define CHECK(condition, ...)                                              \
    do {                                                                   \
        if (!(condition)) test_fail(__FILE__, __LINE__, __VA_ARGS__);      \
    } while (0)

// Ends a test that cannot run here, with the reason: SKIP("no python3"); return follows by itself.
#define SKIP(...)                        \
    do {                                 \
        printf("skip  %s: ", test_state.name); \
        printf(__VA_ARGS__);             \
        printf("\n");                    \
        test_state.skipped_now = 1;      \
        return;                          \
    } while (0)

static inline void test_run(const char *name, void (*function)(void)) {
    test_state.name = name;
    test_state.failures = test_state.skipped_now = 0;
    function();
    if (test_state.failures) {
        test_state.failed++;
        printf("FAIL  %s (%d checks)\n", name, test_state.failures);
    } else if (test_state.skipped_now) {
        test_state.skipped++;
    } else {
        test_state.passed++;
        printf("ok    %s\n", name);
    }
    fflush(stdout);
}
#define RUN(name) test_run(#name, test_##name)

static inline int test_summary(void) {
    printf("%d passed, %d failed, %d skipped\n", test_state.passed, test_state.failed, test_state.skipped);
    return test_state.failed != 0 || test_state.passed + test_state.skipped == 0;
}

#endif
