// compare.h: what kernel tests share: random numbers, buffers with guard words, and comparing float results with
// double references so that a failure names the worst element and by how much it misses.
#ifndef DEV_COMPARE_H
#define DEV_COMPARE_H

#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test.h"

#define GUARD_WORDS 64
#define GUARD_VALUE (-1.2345e33f)

// n floats, each `fill`, between two rows of guard words. Free with guarded_free(), which checks the guards.
static inline float *guarded_floats(size_t n, float fill) {
    float *memory = (float *)malloc((n + 2 * GUARD_WORDS) * sizeof(float));
    if (!memory) {
        fprintf(stderr, "test: out of memory for %zu floats\n", n);
        exit(1);
    }
    for (size_t i = 0; i < GUARD_WORDS; i++) memory[i] = memory[GUARD_WORDS + n + i] = GUARD_VALUE;
    for (size_t i = 0; i < n; i++) memory[GUARD_WORDS + i] = fill;
    return memory + GUARD_WORDS;
}

static inline void guarded_free(const char *what, float *x, size_t n) {
    int intact = 1;
    for (size_t i = 0; i < GUARD_WORDS; i++) intact &= x[n + i] == GUARD_VALUE && x[-1 - (ptrdiff_t)i] == GUARD_VALUE;
    CHECK(intact, "%s: wrote outside its %zu elements", what, n);
    free(x - GUARD_WORDS);
}

// A stream of its own (xorshift64*), so that the tests do not rest on the program's generator.
static inline double test_uniform(uint64_t *state) {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return (double)((*state * 2685821657736338717ull) >> 11) * 0x1p-53;
}

static inline uint64_t test_seed(uint64_t seed) { return seed * 0x9e3779b97f4a7c15ull + 0x1234567; }

// x[i] uniform in offset +- scale.
static inline void fill_random(float *x, size_t n, float offset, float scale, uint64_t seed) {
    uint64_t state = test_seed(seed);
    for (size_t i = 0; i < n; i++) x[i] = offset + scale * (float)(2.0 * test_uniform(&state) - 1.0);
}

static inline float *random_floats(size_t n, float offset, float scale, uint64_t seed) {
    float *x = guarded_floats(n, 0.0f);
    fill_random(x, n, offset, scale, seed);
    return x;
}

static inline double *zero_doubles(size_t n) {
    double *x = (double *)calloc(n ? n : 1, sizeof(double));
    if (!x) exit(1);
    return x;
}

// The largest |got - want| / (|want| + rms(want)) must be at most `bound`: 4 * FLT_EPSILON * sqrt(length of the sums).
// The rms keeps elements that happen to cancel from being asked for more than their terms hold. NaN must meet NaN and
// infinities their equals.
static inline void check_close(const char *file, int line, const char *what, const float *got, const double *want,
                               size_t n, double bound) {
    double squares = 0, worst = -1;
    size_t worst_ix = 0, finite = 0;
    for (size_t i = 0; i < n; i++)
        if (isfinite(want[i])) squares += want[i] * want[i], finite++;
    double rms = finite ? sqrt(squares / (double)finite) : 0;
    for (size_t i = 0; i < n; i++) {
        double error = fabs((double)got[i] - want[i]) / (fabs(want[i]) + rms + DBL_MIN);
        if (isnan(want[i]) || isinf(want[i]))
            error = (isnan(want[i]) && isnan(got[i])) || (double)got[i] == want[i] ? 0 : INFINITY;
        if (isnan(error)) error = INFINITY;
        if (error > worst) worst = error, worst_ix = i;
    }
    if (!(worst <= bound))
        test_fail(file, line, "%s[%zu] of %zu is %.9g, want %.9g: off by %.3g, %.1f times the bound", what, worst_ix, n,
                  (double)got[worst_ix], want[worst_ix], worst, worst / bound);
}
#define CHECK_CLOSE(what, got, want, n, bound) check_close(__FILE__, __LINE__, what, got, want, n, bound)

// The same bits in both (NaNs included).
static inline void check_same(const char *file, int line, const char *what, const float *a, const float *b, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (memcmp(a + i, b + i, sizeof *a) != 0) {
            test_fail(file, line, "%s[%zu] of %zu differs: %a and %a", what, i, n, (double)a[i], (double)b[i]);
            return;
        }
}
#define CHECK_SAME(what, a, b, n) check_same(__FILE__, __LINE__, what, a, b, n)

#endif
