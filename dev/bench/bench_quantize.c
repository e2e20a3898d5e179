// bench_quantize.c: what a cast costs, as a multiple of copying the same memory: every rounding of formats.h on one
// thread, in the L2 cache and from memory, and every recipe of quantize.h on a weight matrix with all threads.
//
// Passes alternate with copies and the best of each counts, so that the ratios hold on a busy machine; a ratio of 1 is
// memory bandwidth. Options: --mib N, the size of the matrix (default 64).
#include <stdio.h>
#include <stdlib.h>

#include "llmc/quantize.h"

#define PASSES 15

typedef void (*Pass)(void *out, const float *in, size_t n);

#define ROUND_PASS(name)                                            \
    static void pass_##name(void *out, const float *in, size_t n) { \
        float *RESTRICT values = (float *)out;                      \
        for (size_t i = 0; i < n; i++) values[i] = name(in[i]);     \
    }
#define ENCODE_PASS(name, type)                                     \
    static void pass_##name(void *out, const float *in, size_t n) { \
        type *RESTRICT codes = (type *)out;                         \
        for (size_t i = 0; i < n; i++) codes[i] = name(in[i]);      \
    }
#define DECODE_PASS(name, type)                                     \
    static void pass_##name(void *out, const float *in, size_t n) { \
        float *RESTRICT values = (float *)out;                      \
        const type *codes = (const type *)in;                       \
        for (size_t i = 0; i < n; i++) values[i] = name(codes[i]);  \
    }
ROUND_PASS(round_bf16)
ROUND_PASS(round_tf32)
ROUND_PASS(round_fp16)
ROUND_PASS(round_e4m3)
ROUND_PASS(round_e5m2)
ROUND_PASS(round_e2m1)
ENCODE_PASS(encode_bf16, uint16_t)
ENCODE_PASS(encode_fp16, uint16_t)
ENCODE_PASS(encode_e4m3, uint8_t)
ENCODE_PASS(encode_e2m1, uint8_t)
DECODE_PASS(decode_bf16, uint16_t)
DECODE_PASS(decode_fp16, uint16_t)
DECODE_PASS(decode_e4m3, uint8_t)
static void pass_copy(void *out, const float *in, size_t n) { memcpy(out, in, n * sizeof(float)); }

static const struct {
    const char *name;
    Pass pass;
    size_t bytes;  // read and written per element
} passes[] = {
    {"round_bf16", pass_round_bf16, 8},   {"round_tf32", pass_round_tf32, 8},   {"round_fp16", pass_round_fp16, 8},
    {"round_e4m3", pass_round_e4m3, 8},   {"round_e5m2", pass_round_e5m2, 8},   {"round_e2m1", pass_round_e2m1, 8},
    {"encode_bf16", pass_encode_bf16, 6}, {"encode_fp16", pass_encode_fp16, 6}, {"encode_e4m3", pass_encode_e4m3, 5},
    {"encode_e2m1", pass_encode_e2m1, 5}, {"decode_bf16", pass_decode_bf16, 6}, {"decode_fp16", pass_decode_fp16, 6},
    {"decode_e4m3", pass_decode_e4m3, 5},
};

// Seconds of `repeat` passes over n elements.
static double time_pass(Pass pass, void *out, const float *in, size_t n, int repeat) {
    double start = now_seconds();
    for (int r = 0; r < repeat; r++) {
        pass(out, in, n);
        __asm__ volatile("" : : "r"(out) : "memory");  // the result is wanted every time
    }
    return now_seconds() - start;
}

static void bench_passes(const char *where, void *out, const float *in, size_t n, int repeat) {
    printf("one thread, %s (%.1f MiB in, best of %d)\n", where, (double)n * 4 / 1048576, PASSES);
    for (size_t k = 0; k < sizeof passes / sizeof passes[0]; k++) {
        double best = 1e30, copy = 1e30;
        for (int p = 0; p < PASSES; p++) {
            double c = time_pass(pass_copy, out, in, n, repeat), t = time_pass(passes[k].pass, out, in, n, repeat);
            copy = c < copy ? c : copy;
            best = t < best ? t : best;
        }
        double elements = (double)n * repeat;
        printf("  %-12s %7.2f GB/s  %6.2f G elements/s   time / copy of fp32 %5.2f\n", passes[k].name,
               elements * (double)passes[k].bytes / best * 1e-9, elements / best * 1e-9, best / copy);
    }
}

static void copy_all(float *out, const float *in, size_t n) {
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i += QUANT_RUN) memcpy(out + i, in + i, min_size(QUANT_RUN, n - i) * sizeof(float));
}

static void bench_recipe(const char *name, const QuantSpec *spec, float *out, const float *in, size_t rows,
                         size_t cols) {
    double best = 1e30, copy = 1e30;
    QuantResult result;
    for (int p = 0; p < PASSES; p++) {
        double start = now_seconds();
        copy_all(out, in, rows * cols);
        double middle = now_seconds();
        quantize_operand(out, &result, in, rows, cols, spec);
        double end = now_seconds();
        copy = middle - start < copy ? middle - start : copy;
        best = end - middle < best ? end - middle : best;
    }
    printf("  %-28s %6.2f G elements/s   time / copy %5.2f\n", name, (double)(rows * cols) / best * 1e-9, best / copy);
}

int main(int argc, char **argv) {
    size_t mib = argc == 3 && strcmp(argv[1], "--mib") == 0 ? strtoul(argv[2], NULL, 10) : 64;
    size_t cols = 1024, rows = max_size(mib, 1) * 256, n = rows * cols;
    float *in = (float *)checked_calloc(n, sizeof *in, "matrix"),
          *out = (float *)checked_calloc(n, sizeof *out, "matrix");
    rand_normal_fill(in, n, 0, 1.0f, 1, 0);
    bench_passes("in cache", out, in, (size_t)1 << 15, 200);
    bench_passes("from memory", out, in, n, 1);
    printf("%d threads, recipes on %zu x %zu\n", thread_count(), rows, cols);
    QuantOptions options = quant_default_options(1);
    static const ScalingRule rules[] = {SCALING_TENSOR, SCALING_DELAYED, SCALING_ROW,
                                        SCALING_BLOCK,  SCALING_MX,      SCALING_NV};
    static const char *const roles[] = {"x", "w", "dY"};
    static const char *const gemms[] = {"fprop", "dgrad", "wgrad"};
    for (size_t k = 0; k < sizeof rules / sizeof rules[0]; k++)
        for (int role = QUANT_X; role <= QUANT_DY; role++)
            for (int gemm = GEMM_FPROP; gemm <= GEMM_WGRAD; gemm++) {
                if ((role == QUANT_X && gemm == GEMM_DGRAD) || (role == QUANT_W && gemm == GEMM_WGRAD) ||
                    (role == QUANT_DY && gemm == GEMM_FPROP))
                    continue;  // no such operand
                QuantSpec spec = quant_spec(rules[k], (QuantRole)role, (QuantGemm)gemm, &options, 0, 0);
                spec.delayed_scale = rules[k] == SCALING_DELAYED ? 90.0f : 0.0f;
                char name[64];
                snprintf(name, sizeof name, "%s %s of %s", scaling_name(rules[k]), roles[role], gemms[gemm]);
                bench_recipe(name, &spec, out, in, rows, cols);
            }
    free(in);
    free(out);
    return 0;
}
