// demos.h: small experiments with the program's own number formats, each one function.
//
//     make demos                       all of them               build/cpu-fp32/demos sum weight     these
//     build/cpu-fp32/demos --list      their names
//
// What a demonstration prints it also records under a key: dev/test/test_demos.c runs the same functions and asserts the
// numbers. Nothing here rounds, casts or accumulates by itself; it calls formats.h, quantize.h, accumulate.h,
// fp8_scaling.h, grad_scaler.h and adamw.h, as the trainers do. Random numbers are counter-based: every run prints the
// same.
#ifndef DEV_DEMOS_H
#define DEV_DEMOS_H

#include "llmc/accumulate.h"
#include "llmc/adamw.h"
#include "llmc/fp8_scaling.h"
#include "llmc/global_norm.h"
#include "llmc/grad_scaler.h"
#include "llmc/precision.h"
#include "llmc/quantize.h"

#define DEMO_MAX_NUMBERS 64
#define DEMO_SEED 1234

typedef struct {
    const char *key;
    double value;
} DemoNumber;

// What one demonstration found. `out` NULL: only record.
typedef struct {
    FILE *out;
    DemoNumber numbers[DEMO_MAX_NUMBERS];
    size_t count;
} Demo;

// A line of explanation.
static inline void demo_say(Demo *d, const char *fmt, ...) PRINTF_LIKE(2, 3);
static inline void demo_say(Demo *d, const char *fmt, ...) {
    va_list args;
    if (!d->out) return;
    va_start(args, fmt);
    fputs("  ", d->out);
    vfprintf(d->out, fmt, args);
    fputc('\n', d->out);
    va_end(args);
}

// A result: "  what ...............  value", recorded as `key` (a literal).
static inline void demo_show(Demo *d, const char *key, double value, const char *fmt, ...) PRINTF_LIKE(4, 5);
static inline void demo_show(Demo *d, const char *key, double value, const char *fmt, ...) {
    char text[160];
    va_list args;
    if (d->count == DEMO_MAX_NUMBERS) die("demos: more than %d numbers in one demonstration", DEMO_MAX_NUMBERS);
    d->numbers[d->count].key = key;
    d->numbers[d->count++].value = value;
    if (!d->out) return;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    fprintf(d->out, "  %-78s %.9g\n", text, value);
}

// The value recorded under `key`; NaN if there is none, which fails every comparison.
static inline double demo_value(const Demo *d, const char *key) {
    for (size_t i = 0; i < d->count; i++)
        if (strcmp(d->numbers[i].key, key) == 0) return d->numbers[i].value;
    return NAN;
}

// ----------------------------------------------------------------------------------------------------------------
// What a format holds

// max, smallest normal, smallest subnormal and epsilon from the bits alone, against the table of formats.h.
static inline void demo_limits(Demo *d) {
    static const FormatId ids[] = {FORMAT_FP32, FORMAT_FP16, FORMAT_BF16, FORMAT_E4M3, FORMAT_E5M2, FORMAT_E2M1};
    int agree = 1;
    if (d->out)
        fprintf(d->out, "  %-6s %4s %4s %5s %15s %15s %15s %12s\n", "", "exp", "man", "bias", "largest", "smallest normal",
                "subnormal", "epsilon");
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        const Format *f = format_info(ids[i]);
        uint32_t largest = f->max_code << f->code_shift, one_up = (uint32_t)f->bias << f->mantissa_bits | 1;
        float max = format_decode(f, largest), normal = format_decode(f, 1u << f->mantissa_bits);
        float subnormal = format_decode(f, 1), epsilon = format_decode(f, one_up) - 1.0f;
        agree &= max == f->max && normal == f->min_normal && subnormal == f->min_subnormal && epsilon == f->epsilon;
        if (d->out)
            fprintf(d->out, "  %-6s %4d %4d %5d %15.9g %15.9g %15.9g %12.6g\n", f->name, f->exponent_bits,
                    f->mantissa_bits, f->bias, (double)max, (double)normal, (double)subnormal, (double)epsilon);
    }
    demo_show(d, "agree", agree, "decoded codes agree with the table (1 yes)");
    demo_show(d, "fp16 max", decode_fp16(0x7bff), "fp16: (2 - 2^-10) 2^15");
    demo_show(d, "e4m3 max", decode_e4m3(0x7e), "e4m3: 1.75 * 2^8, for the all-ones exponent holds numbers too");
    demo_show(d, "e4m3 ieee", 1.875 * 128, "  what IEEE's rules would have left it with");
    demo_show(d, "e5m2 max", decode_e5m2(0x7b), "e5m2: 1.75 * 2^15");
}

static inline void demo_bf16(Demo *d) {
    uint32_t nan_bits = 0x7fffffffu, naive = (nan_bits + 0x7fffu + (nan_bits >> 16 & 1)) >> 16;
    demo_show(d, "pi code", encode_bf16(3.1415927f), "pi in bf16 is the top half of its fp32 pattern, rounded (0x4049)");
    demo_show(d, "pi", round_bf16(3.1415927f), "  its value");
    demo_show(d, "naive NaN", naive, "the bit trick without a NaN test turns NaN 7fffffff into -0 (0x8000)");
    demo_show(d, "NaN", encode_bf16(float_of_bits(nan_bits)), "  encode_bf16 keeps it a NaN (0x7fff)");
    demo_show(d, "257", round_bf16(257.0f), "257: the spacing is 2 from 256 on, so counters never live in bf16");
    demo_show(d, "1+2^-9", round_bf16(1.0f + 0x1p-9f), "1 + 2^-9");
    demo_show(d, "(256+1)+1", round_bf16(round_bf16(256.0f + 1.0f) + 1.0f), "(256 + 1) + 1");
    demo_show(d, "256+(1+1)", round_bf16(256.0f + round_bf16(1.0f + 1.0f)), "256 + (1 + 1): addition is not associative");
}

static inline void demo_saturate(Demo *d) {
    demo_show(d, "500", decode_e4m3(encode_e4m3(500.0f)), "500 in e4m3, as training casts it (saturating)");
    demo_show(d, "500 nosat", decode_e4m3(encode_e4m3_nosat(500.0f)), "500 in e4m3, not saturating");
    demo_show(d, "464", round_e4m3(464.0f), "464, half-way to the 480 that does not exist: a tie, to even");
    demo_show(d, "inf", round_e4m3(INFINITY), "infinity, saturating: a plausible number, hence non-finites are counted first");
    demo_show(d, "fp4 nan", round_e2m1(NAN), "NaN in fp4, which has none");
    demo_show(d, "e5m2 60000", round_e5m2(60000.0f), "60000 in e5m2");
    demo_show(d, "fp16 65519", round_fp16(65519.0f), "65519 in fp16");
    demo_show(d, "fp16 65520", round_fp16(65520.0f), "65520 in fp16: never saturating, a loss scaler waits for this");
    demo_show(d, "bf16 65520", round_bf16(65520.0f), "65520 in bf16");
}

// Through a second narrow format a value is rounded twice.
static inline void demo_twice(Demo *d) {
    float x = float_of_bits(0x3f880001u);
    demo_show(d, "direct", encode_e4m3(x), "1.0625001 straight to e4m3, code 0x39 (1.125)");
    demo_show(d, "through bf16", encode_e4m3(round_bf16(x)), "  by way of bf16 it meets a tie: code 0x38 (1)");
}

// ----------------------------------------------------------------------------------------------------------------
// Sums

// x added `terms` times, every sum rounded to `id`.
static inline float demo_sequential_sum(FormatId id, float x, size_t terms) {
    float sum = 0;
    for (size_t i = 0; i < terms; i++) sum = format_round(id, sum + x);
    return sum;
}

// The same as a tree.
static inline float demo_pairwise_sum(FormatId id, float x, size_t terms) {
    if (terms == 1) return format_round(id, x);
    return format_round(id, demo_pairwise_sum(id, x, terms / 2) + demo_pairwise_sum(id, x, terms - terms / 2));
}

static inline void demo_sum(Demo *d) {
    const float x = 0.025f;
    const size_t terms = 4000;
    demo_say(d, "0.025 added 4000 times: 100");
    demo_show(d, "bf16", demo_sequential_sum(FORMAT_BF16, x, terms), "bf16 accumulator: at 8 half a spacing is 0.03125");
    demo_show(d, "fp16", demo_sequential_sum(FORMAT_FP16, x, terms), "fp16 accumulator: at 64 half a spacing is 0.03125");
    demo_show(d, "fp32", demo_sequential_sum(FORMAT_FP32, x, terms), "fp32 accumulator");
    demo_show(d, "pairwise", demo_pairwise_sum(FORMAT_BF16, x, terms), "bf16, pairwise: errors grow like log2(n)");
    float chunks = 0;
    for (size_t i = 0; i < terms; i += 50)
        chunks = round_bf16(chunks + demo_sequential_sum(FORMAT_BF16, x, 50));
    demo_show(d, "chunked", chunks, "bf16 in chunks of 50, then over the chunks: stalls later");
    chunks = 0;
    for (size_t i = 0; i < terms; i += 50) chunks += demo_sequential_sum(FORMAT_BF16, x, 50);
    demo_show(d, "promoted", chunks, "bf16 chunks of 50 promoted to an fp32 sum");
}

// A product of one row and one column of `K` elements under an accumulator model.
static inline float demo_dot(const float *a, const float *b, size_t K, AccumulateModel model, size_t promote) {
    float out;
    AccumulateOperand x = accumulate_operand(a, K, 1), y = accumulate_operand(b, K, 1);
    accumulate_gemm(&out, &x, &y, 1, 1, K, 1.0f, model, promote);
    return out;
}

// RMS error over `rows` products of e4m3 values, relative to the RMS of the results.
static inline double demo_h14_error(size_t K, int positive, size_t promote, size_t rows) {
    float *a = (float *)checked_calloc(2 * K, sizeof(float), "a demonstration"), *b = a + K;
    double error = 0, size = 0;
    for (size_t r = 0; r < rows; r++) {
        rand_normal_fill(a, K, 2 * r * K, 1.0f, DEMO_SEED, 1);
        rand_normal_fill(b, K, (2 * r + 1) * K, 1.0f, DEMO_SEED, 1);
        for (size_t i = 0; i < K; i++) {
            a[i] = round_e4m3(positive ? fabsf(a[i]) : a[i]);
            b[i] = round_e4m3(positive ? fabsf(b[i]) : b[i]);
        }
        double exact = demo_dot(a, b, K, ACCUMULATE_EXACT, 0), got = demo_dot(a, b, K, ACCUMULATE_H14, promote);
        error += (got - exact) * (got - exact);
        size += exact * exact;
    }
    free(a);
    return sqrt(error / size);
}

static inline void demo_accumulator(Demo *d) {
    demo_say(d, "Hopper's fp8 accumulator keeps 14 bits and cuts. Error over K products, relative to the results:");
    demo_show(d, "mixed 1024", demo_h14_error(1024, 0, 0, 64), "K  1024, both signs, never promoted");
    demo_show(d, "mixed 4096", demo_h14_error(4096, 0, 0, 64), "K  4096");
    demo_show(d, "mixed 16384", demo_h14_error(16384, 0, 0, 64), "K 16384");
    demo_show(d, "mixed promoted", demo_h14_error(16384, 0, 128, 64), "K 16384, moved to fp32 every 128: flat in K");
    demo_show(d, "positive 1024", demo_h14_error(1024, 1, 0, 16), "K  1024, all positive, never promoted");
    demo_show(d, "positive 4096", demo_h14_error(4096, 1, 0, 16), "K  4096: cutting is a bias, it grows with K");
    demo_show(d, "positive 16384", demo_h14_error(16384, 1, 0, 16), "K 16384");
    demo_show(d, "positive promoted", demo_h14_error(16384, 1, 128, 16), "K 16384, moved to fp32 every 128");
}

// ----------------------------------------------------------------------------------------------------------------
// Updates smaller than half a spacing

static inline void demo_half_ulp(Demo *d) {
    demo_show(d, "1-2e-4", round_fp16(1.0f - 2e-4f), "fp16: 1 - 0.0002 (half a spacing below 1 is 0.000244): lost");
    demo_show(d, "2-5e-4", round_fp16(2.0f - 5e-4f), "fp16: 2 - 0.0005: the spacing halves below a power of two: sticks");
    demo_show(d, "2+5e-4", round_fp16(2.0f + 5e-4f), "fp16: 2 + 0.0005: lost");
    float master = 2.0f;
    int steps = 0;
    while (round_fp16(master) == 2.0f) master -= 5e-4f, steps++;
    demo_show(d, "ticks down", steps, "  with an fp32 master the fp16 copy of 2 ticks down after so many steps of -0.0005");
    for (master = 2.0f, steps = 0; round_fp16(master) == 2.0f; steps++) master += 5e-4f;
    demo_show(d, "ticks up", steps, "  and up after so many of +0.0005");
}

// 1 + 0.001, a thousand times, in bf16 by each way of keeping weights.
static inline void demo_weight(Demo *d) {
    const float update = 0.001f;
    const int seeds = 200;
    float nearest = 1.0f, master = 1.0f, kahan = 1.0f, c = 0.0f;
    for (int i = 0; i < 1000; i++) {
        nearest = round_bf16(nearest + update);
        master += update;
        kahan_update_bf16(&kahan, &c, update);
    }
    double sum = 0, squares = 0;
    for (int s = 0; s < seeds; s++) {
        float w = 1.0f;
        for (int i = 0; i < 1000; i++)
            w = round_sr_bf16(w + update, rand_u32(DEMO_SEED, RAND_ROUND_WEIGHT, (uint32_t)s, (uint32_t)i, 0));
        sum += w;
        squares += (double)w * w;
    }
    double mean = sum / seeds;
    demo_say(d, "1 + 0.001 a thousand times: 2");
    demo_show(d, "nearest", nearest, "bf16, round to nearest: never moves");
    demo_show(d, "master", master, "an fp32 master");
    demo_show(d, "working", round_bf16(master), "  and its bf16 copy");
    demo_show(d, "kahan", kahan, "bf16 with Kahan's compensation");
    demo_show(d, "kahan c", c, "  the compensation (bf16) at the end");
    demo_show(d, "stochastic", mean, "bf16, stochastic rounding: mean of %d runs", seeds);
    demo_show(d, "deviation", sqrt(squares / seeds - mean * mean), "  standard deviation of one run");
}

// In [128, 256) bf16 values are the integers.
static inline void demo_grid(Demo *d) {
    const int seeds = 200;
    float nearest = 128.0f;
    double sum = 0;
    for (int i = 0; i < 100; i++) nearest = round_bf16(nearest + 0.1f);
    for (int s = 0; s < seeds; s++) {
        float x = 128.0f;
        for (int i = 0; i < 100; i++)
            x = round_sr_bf16(x + 0.1f, rand_u32(DEMO_SEED, RAND_ROUND_WEIGHT, (uint32_t)s, (uint32_t)i, 1));
        sum += x;
    }
    demo_say(d, "0.1 added 100 times on a grid of integers (bf16 between 128 and 256), from 128:");
    demo_show(d, "nearest", nearest, "round to nearest");
    demo_show(d, "stochastic", sum / seeds, "stochastic: mean of %d runs", seeds);
}

// Share of updates of a given relative size that leave weights as they are.
static inline double demo_lost_share(FormatId id, double ratio) {
    enum { N = 20000 };
    static float w[N];
    size_t lost = 0;
    rand_normal_fill(w, N, 0, 0.02f, DEMO_SEED, 2);
    for (size_t i = 0; i < N; i++) {
        float stored = format_round(id, w[i]), update = (float)(ratio * (double)stored);
        lost += format_round(id, stored + update) == stored;
    }
    return (double)lost / N;
}

static inline void demo_lost(Demo *d) {
    static const double ratios[] = {1e-2, 3e-3, 1e-3, 3e-4, 1e-4};
    static const char *const bf16_keys[] = {"bf16 1e-2", "bf16 3e-3", "bf16 1e-3", "bf16 3e-4", "bf16 1e-4"};
    static const char *const fp16_keys[] = {"fp16 1e-2", "fp16 3e-3", "fp16 1e-3", "fp16 3e-4", "fp16 1e-4"};
    demo_say(d, "share of updates that round away, by their size relative to the weight:");
    for (size_t i = 0; i < 5; i++)
        demo_show(d, bf16_keys[i], demo_lost_share(FORMAT_BF16, ratios[i]), "bf16, updates of %g of the weight", ratios[i]);
    for (size_t i = 0; i < 5; i++)
        demo_show(d, fp16_keys[i], demo_lost_share(FORMAT_FP16, ratios[i]), "fp16, updates of %g of the weight", ratios[i]);
    demo_show(d, "fp32 1e-7", demo_lost_share(FORMAT_FP32, 1e-7), "fp32, updates of 1e-7");
    demo_show(d, "fp32 2e-8", demo_lost_share(FORMAT_FP32, 2e-8), "fp32, updates of 2e-8: lost there too, once the rate has fallen");
}

// v after `steps` steps with gradients whose square is `g2`, stored in bf16 to nearest.
static inline float demo_v(float beta2, float g2, int steps) {
    float v = 1.0f, one_minus = (float)(1.0 - (double)beta2);
    for (int i = 0; i < steps; i++) v = round_bf16(fmaf(beta2, v, one_minus * g2));
    return v;
}

static inline void demo_moment(Demo *d) {
    enum { ELEMENTS = 1000, STEPS = 2000 };
    const float beta2 = 0.999f;
    double sum = 0;
    float exact = 1.0f;
    for (int i = 0; i < STEPS; i++) exact = beta2 * exact;
    for (uint32_t e = 0; e < ELEMENTS; e++) {
        float v = 1.0f;
        for (uint32_t i = 0; i < STEPS; i++)
            v = round_sr_bf16(beta2 * v, rand_u32(DEMO_SEED, RAND_ROUND_V, 0, i, e));
        sum += v;
    }
    demo_say(d, "Adam's v = 1, gradients vanish; v after 2000 steps:");
    demo_show(d, "fp32 .999", exact, "fp32, beta2 0.999");
    demo_show(d, "bf16 .999", demo_v(0.999f, 0, STEPS), "bf16 to nearest, beta2 0.999: cannot fall");
    demo_show(d, "bf16sr .999", sum / ELEMENTS, "bf16 stochastic, mean of 1000");
    demo_show(d, "bf16 .99", demo_v(0.99f, 0, STEPS), "bf16 to nearest, beta2 0.99: falls (fp32: 1.86e-9)");
    demo_show(d, "rise 4", demo_v(0.999f, 4.0f, STEPS), "beta2 0.999, g^2 = 4 v: cannot rise either");
    demo_show(d, "rise 5", demo_v(0.999f, 5.0f, STEPS), "  g^2 = 5 v: moves");
    demo_show(d, "band .95", demo_v(0.95f, 1.05f, STEPS), "beta2 0.95, g^2 = 1.05 v: inside the dead band");
    demo_show(d, "band .95 1.2", demo_v(0.95f, 1.2f, STEPS), "  g^2 = 1.2 v: moves");
}

// ----------------------------------------------------------------------------------------------------------------
// Gradients that are too small, and loss scaling

static inline void demo_underflow(Demo *d) {
    const float S = 65536.0f;
    demo_show(d, "1e-8", round_fp16(1e-8f), "1e-8 in fp16");
    demo_show(d, "1e-8 scaled", round_fp16(1e-8f * S) / S, "  times 2^16, stored, divided again");
    demo_show(d, "3.1e-8", round_fp16(3.1e-8f), "3.1e-8 in fp16: above half of the smallest subnormal");
    demo_show(d, "2^-27", round_fp16(0x1p-27f), "2^-27, the smallest gradients that one detector needed");
    demo_show(d, "2^-27 scaled 8", round_fp16(0x1p-27f * 8.0f) / 8.0f, "  a factor of 8 is enough");
    demo_show(d, "g^2", round_fp16(1e-5f * 1e-5f), "g^2 of g = 1e-5: no moment is ever kept in fp16");
    demo_show(d, "bf16 1e-8", round_bf16(1e-8f), "1e-8 in bf16, which has fp32's range");
    demo_show(d, "overflow", round_fp16(2.0f * S), "a gradient of 2 times 2^16: the scale is too large, the step is skipped");
}

static inline void demo_scaler(Demo *d) {
    static const int overflow[] = {0, 0, 0, 1, 0, 1, 0, 0, 0};
    static const char *const keys[] = {"S1", "S2", "S3", "S4", "S5", "S6", "S7", "S8", "S9"};
    GradScalerOptions options = {1, 3, 1.0, 0x1p24};
    GradScaler s = grad_scaler(8.0);
    int t = 0;
    demo_say(d, "dynamic scaling from 8, doubling after 3 good steps; after each step the scale is");
    for (size_t i = 0; i < 9; i++) {
        t += !overflow[i];
        grad_scaler_update(&s, &options, overflow[i]);
        demo_show(d, keys[i], s.scale, "step %zu, %s (%d update%s so far)", i + 1, overflow[i] ? "overflow, skipped" : "good",
                  t, t == 1 ? "" : "s");
    }
}

// One AdamW step from w = 0; how far the weight moved.
static inline double demo_adam_move(float grad, float grad_scale) {
    float w = 0, m = 0, v = 0;
    AdamWHyper h = adamw_hyper(1e-3, 0.9, 0.95, 1e-8, 0, grad_scale, 1);
    adamw_update(&w, &m, &v, &grad, 1, &h);
    return -(double)w;
}

// A gradient of norm 0.8 under a loss scale of 2^16, clipped to norm 1 before and after it is unscaled.
static inline void demo_clip(Demo *d) {
    enum { N = 10000 };
    const double S = 65536.0, clip = 1.0;
    static float grad[N];
    int nonfinite = 0;
    for (size_t i = 0; i < N; i++) grad[i] = (float)(0.8 / 100.0 * S);
    double seen = sqrt(global_norm_squared(grad, N, &nonfinite)), norm = seen / S;
    double wrong = seen > clip ? clip / seen : 1.0, right = norm > clip ? clip / norm : 1.0;
    demo_show(d, "norm", norm, "true norm of the gradient (clipping at 1)");
    demo_show(d, "seen", seen, "norm that clipping sees before unscaling by 2^16");
    demo_show(d, "coefficient", wrong, "  what it multiplies with");
    demo_show(d, "right", norm * right, "norm of the update's gradient, unscaled first");
    demo_show(d, "wrong", norm * wrong, "  clipped first: 2^-16, whatever the gradient was");
    demo_show(d, "ratio", right / wrong, "  too small by");
    demo_show(d, "adam right", demo_adam_move(grad[0], (float)(right / S)), "AdamW's first step at lr 0.001");
    demo_show(d, "adam wrong", demo_adam_move(grad[0], (float)(wrong / S)), "  clipped first: its epsilon of 1e-8 shows");
}

// ----------------------------------------------------------------------------------------------------------------
// fp8 with scales

#define DEMO_ROWS ((size_t)64)
#define DEMO_COLS ((size_t)1024)

static inline QuantSpec demo_spec(ScalingRule scaling) {
    QuantOptions options = quant_default_options(DEMO_SEED);
    return quant_spec(scaling, QUANT_X, GEMM_FPROP, &options, 0, 0);
}

typedef struct {
    double zeros;  // share of non-zeros that became zero
    double error;  // RMS error over RMS of all but the outlier
} DemoCast;

// Quantises and dequantises normal numbers with one outlier among them (0: none).
static inline DemoCast demo_cast(ScalingRule scaling, float outlier) {
    static float x[DEMO_ROWS * DEMO_COLS], y[DEMO_ROWS * DEMO_COLS];
    const size_t n = DEMO_ROWS * DEMO_COLS;
    QuantSpec spec = demo_spec(scaling);
    QuantResult result;
    rand_normal_fill(x, n, 0, 1.0f, DEMO_SEED, 3);
    if (outlier != 0) x[777] = outlier;
    quantize_operand(y, &result, x, DEMO_ROWS, DEMO_COLS, &spec);
    double error = 0, size = 0, decode = result.nv ? 1.0 / (double)result.scale : (double)result.decode;
    for (size_t i = 0; i < n; i++) {
        if (outlier != 0 && i == 777) continue;
        double e = (double)y[i] * decode - (double)x[i];
        error += e * e;
        size += (double)x[i] * (double)x[i];
    }
    DemoCast cast = {(double)result.underflow / (double)result.nonzero, sqrt(error / size)};
    return cast;
}

static inline void demo_outlier(Demo *d) {
    static const float outliers[] = {0, 1e2f, 1e4f, 1e5f, 1e6f};
    static const char *const zero_keys[] = {"zeros none", "zeros 1e2", "zeros 1e4", "zeros 1e5", "zeros 1e6"};
    static const char *const error_keys[] = {"error none", "error 1e2", "error 1e4", "error 1e5", "error 1e6"};
    demo_say(d, "65536 normal numbers with one outlier, in e4m3 under one scale for all:");
    for (size_t i = 0; i < 5; i++) {
        DemoCast cast = demo_cast(SCALING_TENSOR, outliers[i]);
        demo_show(d, zero_keys[i], cast.zeros, "outlier %g: share that became zero", (double)outliers[i]);
        demo_show(d, error_keys[i], cast.error, "  error of the others");
    }
    DemoCast block = demo_cast(SCALING_BLOCK, 1e5f), mx = demo_cast(SCALING_MX, 1e5f), row = demo_cast(SCALING_ROW, 1e5f);
    demo_say(d, "outlier 100000 with a scale of its own for every");
    demo_show(d, "zeros row", row.zeros, "row: share that became zero");
    demo_show(d, "zeros block", block.zeros, "block of 128: share that became zero");
    demo_show(d, "error block", block.error, "  error of the others");
    demo_show(d, "zeros mx", mx.zeros, "block of 32: share that became zero");
    demo_show(d, "error mx", mx.error, "  error of the others");
}

// An fp8 linear layer's forward product: quantise both operands, multiply, apply the scales.
static inline double demo_linear_error(ScalingRule scaling, float outlier) {
    enum { M = 16, N = 64, K = 1024 };
    static float x[M * K], w[N * K], xq[M * K], wq[N * K], out[M * N], exact[M * N];
    QuantOptions options = quant_default_options(DEMO_SEED);
    QuantSpec x_spec = quant_spec(scaling, QUANT_X, GEMM_FPROP, &options, 0, 0);
    QuantSpec w_spec = quant_spec(scaling, QUANT_W, GEMM_FPROP, &options, 1, 0);
    QuantResult x_result, w_result;
    rand_normal_fill(x, M * K, 0, 1.0f, DEMO_SEED, 4);
    rand_normal_fill(w, N * K, 0, 0.02f, DEMO_SEED, 5);
    if (outlier != 0) x[5] = outlier;
    quantize_operand(xq, &x_result, x, M, K, &x_spec);
    quantize_operand(wq, &w_result, w, N, K, &w_spec);
    AccumulateOperand a = accumulate_operand(xq, K, 1), b = accumulate_operand(wq, K, 1);
    AccumulateOperand a_exact = accumulate_operand(x, K, 1), b_exact = accumulate_operand(w, K, 1);
    accumulate_gemm(out, &a, &b, M, N, K, quant_alpha(&x_result, &w_result), ACCUMULATE_FP32, 128);
    accumulate_gemm(exact, &a_exact, &b_exact, M, N, K, 1.0f, ACCUMULATE_EXACT, 0);
    double error = 0, size = 0;
    for (size_t i = N; i < M * N; i++) {  // the outlier's own row apart
        error += ((double)out[i] - exact[i]) * ((double)out[i] - exact[i]);
        size += (double)exact[i] * exact[i];
    }
    return sqrt(error / size);
}

static inline void demo_linear(Demo *d) {
    demo_say(d, "Y = X W^T over K = 1024 with both operands quantised; error relative to Y:");
    demo_show(d, "tensor", demo_linear_error(SCALING_TENSOR, 0), "e4m3, one scale each");
    demo_show(d, "row", demo_linear_error(SCALING_ROW, 0), "e4m3, one scale a row");
    demo_show(d, "block", demo_linear_error(SCALING_BLOCK, 0), "e4m3, blocks of 128: no better without outliers");
    demo_show(d, "mx", demo_linear_error(SCALING_MX, 0), "mxfp8");
    demo_show(d, "nv", demo_linear_error(SCALING_NV, 0), "nvfp4");
    demo_show(d, "tensor 1e6", demo_linear_error(SCALING_TENSOR, 1e6f), "an outlier of 1e6 in another row of X: one scale each");
    demo_show(d, "block 1e6", demo_linear_error(SCALING_BLOCK, 1e6f), "  blocks of 128");
}

// Delayed scaling over a sequence of amaxes, then a spike.
static inline void demo_delayed(Demo *d) {
    static const float amaxes[] = {2, 8, 1, 1, 1, 1, 0};
    static const char *const keys[] = {"used 1", "used 2", "used 3", "used 4", "used 5", "used 6", "used 7"};
    DelayedOptions te = {0, 0, 1}, ours = {0, 0, 0};
    DelayedScale scale;
    float history[4], spike[1024], cast[1024];
    demo_say(d, "history of 4, e4m3, starting at scale 1 as Transformer Engine does; scale in force while the amax is");
    delayed_init(&scale, history, 4, FORMAT_E4M3, &te);
    for (size_t i = 0; i < 7; i++) {
        demo_show(d, keys[i], delayed_scale_in_force(&scale), "step %zu, %g", i, (double)amaxes[i]);
        delayed_record(&scale, amaxes[i]);
        delayed_step(&scale, &te);
    }
    delayed_init(&scale, history, 4, FORMAT_E4M3, &ours);
    delayed_record(&scale, 1.0f);
    delayed_step(&scale, &ours);
    for (size_t i = 0; i < 1024; i++) spike[i] = 8.0f * (float)(i + 1) / 1024.0f;
    QuantSpec spec = demo_spec(SCALING_DELAYED);
    QuantResult result;
    spec.delayed_scale = delayed_scale_in_force(&scale);
    quantize_operand(cast, &result, spike, 1, 1024, &spec);
    delayed_record(&scale, result.amax);
    delayed_step(&scale, &ours);
    demo_show(d, "saturated", (double)result.saturated, "after amaxes of 1, a tensor 8/1024, 16/1024 .. 8: elements that saturate");
    demo_show(d, "next", delayed_scale_in_force(&scale), "  the next step's scale");
}

// ----------------------------------------------------------------------------------------------------------------
// Memory of a model

static inline double demo_gigabytes(PrecisionMode mode, MasterRule master, MomentsRule moments, int gradients) {
    PrecisionPolicy policy = precision_policy(mode, master, moments);
    BytesPerParameter b = precision_bytes(&policy);
    return 13.0 * (gradients ? b.total : b.total - b.grad);
}

static inline void demo_memory(Demo *d) {
    demo_say(d, "13 billion parameters, GB (10^9 bytes), activations apart:");
    demo_show(d, "fp32", demo_gigabytes(MODE_fp32, MASTER_RULE_FP32, MOMENTS_RULE_FP32, 1), "fp32: 16 bytes each");
    demo_show(d, "bf16 no grads", demo_gigabytes(MODE_bf16, MASTER_RULE_FP32, MOMENTS_RULE_FP32, 0),
              "bf16, fp32 master and moments, without gradients: 14");
    demo_show(d, "bf16 grads", demo_gigabytes(MODE_bf16, MASTER_RULE_FP32, MOMENTS_RULE_FP32, 0) + 13 * 2,
              "  with bf16 gradients, as books count: 16");
    demo_show(d, "bf16", demo_gigabytes(MODE_bf16, MASTER_RULE_FP32, MOMENTS_RULE_FP32, 1),
              "  with fp32 gradients, as here: 18");
    double bf16 = demo_gigabytes(MODE_bf16, MASTER_RULE_FP32, MOMENTS_RULE_FP32, 1);
    demo_show(d, "gpus", ceil(bf16 / 80.0), "  GPUs of 80 GB that takes");
    demo_show(d, "kahan", demo_gigabytes(MODE_bf16, MASTER_RULE_KAHAN, MOMENTS_RULE_FP32, 1), "bf16 with Kahan's compensation: 16");
    demo_show(d, "stochastic", demo_gigabytes(MODE_bf16, MASTER_RULE_STOCHASTIC, MOMENTS_RULE_FP32, 1),
              "bf16 rounded stochastically: 14");
    demo_show(d, "stochastic bf16", demo_gigabytes(MODE_bf16, MASTER_RULE_STOCHASTIC, MOMENTS_RULE_BF16, 1),
              "  with bf16 moments too: 10");
    demo_show(d, "fp8", demo_gigabytes(MODE_fp8_current, MASTER_RULE_FP32, MOMENTS_RULE_FP32, 1),
              "fp8, codes in both orientations beside the bf16 copy: 20");
}

// ----------------------------------------------------------------------------------------------------------------
// All of them

typedef struct {
    const char *name, *title;
    void (*run)(Demo *);
} DemoEntry;

static inline const DemoEntry *demo_table(size_t *count) {
    static const DemoEntry table[] = {
        {"limits", "what each format holds, from its bits", demo_limits},
        {"bf16", "the top half of an fp32", demo_bf16},
        {"saturate", "beyond the largest number", demo_saturate},
        {"twice", "rounding twice", demo_twice},
        {"sum", "a 16-bit accumulator stalls", demo_sum},
        {"accumulator", "a 14-bit accumulator and promotion", demo_accumulator},
        {"half-ulp", "updates around half a spacing", demo_half_ulp},
        {"weight", "a bf16 weight that never moves, and four that do", demo_weight},
        {"grid", "stochastic rounding on a grid of integers", demo_grid},
        {"lost", "how many updates a format loses", demo_lost},
        {"moment", "Adam's v in bf16 is a ratchet at beta2 = 0.999", demo_moment},
        {"underflow", "small gradients in fp16, and loss scaling", demo_underflow},
        {"scaler", "the dynamic loss scale", demo_scaler},
        {"clip", "clipping a gradient that is still scaled", demo_clip},
        {"outlier", "one outlier under one scale, and under blocks", demo_outlier},
        {"linear", "a linear layer in fp8 and fp4", demo_linear},
        {"delayed", "delayed scaling meets a spike", demo_delayed},
        {"memory", "bytes of a 13-billion-parameter model", demo_memory},
    };
    *count = sizeof table / sizeof *table;
    return table;
}

#endif
