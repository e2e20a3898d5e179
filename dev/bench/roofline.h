// roofline.h: what this machine can do at most, measured by short loops: fused multiply-adds a second, bytes a second.
//
// A benchmark quotes its own figure as a share of these, taken in the same run, so that it means something on a busy
// or a borrowed machine. Each call takes the best of several passes and a few tens of milliseconds.
#ifndef DEV_BENCH_ROOFLINE_H
#define DEV_BENCH_ROOFLINE_H

#include "../../llmc/simd.h"
#include "../../llmc/utils.h"

// More independent sums than an FMA's latency (4 cycles) times the FMAs a cycle (at most 2), and few enough for 16
// registers.
#define ROOFLINE_SUMS 12

static inline float roofline_fma_loop(long rounds) {
    vecf sum[ROOFLINE_SUMS];
    vecf a = vec_set1(0.999f), b = vec_set1(0.001f);
    for (int i = 0; i < ROOFLINE_SUMS; i++) sum[i] = vec_set1((float)i);
    for (long round = 0; round < rounds; round++) {
#pragma GCC unroll 12
        for (int i = 0; i < ROOFLINE_SUMS; i++) sum[i] = vec_fma(sum[i], a, b);
    }
    for (int i = 1; i < ROOFLINE_SUMS; i++) sum[0] = sum[0] + sum[i];
    return vec_sum(sum[0]);
}

// Floating-point operations a second (an FMA counts as two) of `threads` threads together, in registers alone.
static inline double roofline_flops(int threads, int passes) {
    const long rounds = 400000;
    double best = 0;
    volatile float keep = 0;  // so that no loop is dropped for want of a reader
    for (int pass = 0; pass < passes; pass++) {
        float total = 0;
        const double start = now_seconds();
#pragma omp parallel for schedule(static, 1) num_threads(threads) reduction(+ : total)
        for (int t = 0; t < threads; t++) total += roofline_fma_loop(rounds);
        const double flops = 2.0 * VEC_WIDTH * ROOFLINE_SUMS * (double)rounds * threads / (now_seconds() - start);
        keep = total;
        if (flops > best) best = flops;
    }
    (void)keep;
    return best;
}

static inline float roofline_read_loop(const float *x, size_t n) {
    vecf sum[4] = {vec_zero(), vec_zero(), vec_zero(), vec_zero()};
    for (size_t i = 0; i + 4 * VEC_WIDTH <= n; i += 4 * VEC_WIDTH)
        for (int j = 0; j < 4; j++) sum[j] = sum[j] + vec_load(x + i + (size_t)j * VEC_WIDTH);
    return vec_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

typedef struct {
    double read, copy;  // bytes a second; a copied byte counts twice (read and written)
} RooflineBandwidth;

// Bandwidth of `threads` threads over two buffers of `bytes` each: larger than the last cache to measure memory.
static inline RooflineBandwidth roofline_bandwidth(int threads, size_t bytes, int passes) {
    RooflineBandwidth best = {0, 0};
    Arena arena = {"roofline", NULL, 0, 0};
    const size_t n = bytes / sizeof(float) / (size_t)threads;  // of each thread
    arena.used_bytes = 2 * (size_t)threads * n * sizeof(float) + 2 * ARENA_ALIGN_BYTES;
    arena_allocate(&arena);
    float *from = (float *)arena_take(&arena, n * (size_t)threads, sizeof(float));
    float *to = (float *)arena_take(&arena, n * (size_t)threads, sizeof(float));
    memset(from, 0, n * (size_t)threads * sizeof(float));  // pages never written may all be one page of zeros
    memset(to, 0, n * (size_t)threads * sizeof(float));
    volatile float keep = 0;
    for (int pass = 0; pass < passes; pass++) {
        float total = 0;
        const double start = now_seconds();
#pragma omp parallel for schedule(static, 1) num_threads(threads) reduction(+ : total)
        for (int t = 0; t < threads; t++) total += roofline_read_loop(from + (size_t)t * n, n);
        const double middle = now_seconds();
#pragma omp parallel for schedule(static, 1) num_threads(threads)
        for (int t = 0; t < threads; t++) memcpy(to + (size_t)t * n, from + (size_t)t * n, n * sizeof(float));
        const double end = now_seconds(), moved = (double)n * threads * sizeof(float);
        keep = total;
        if (moved / (middle - start) > best.read) best.read = moved / (middle - start);
        if (2 * moved / (end - middle) > best.copy) best.copy = 2 * moved / (end - middle);
    }
    (void)keep;
    arena_free(&arena);
    return best;
}

#endif
