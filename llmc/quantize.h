// quantize.h: casting the operands of a linear layer's GEMMs to fp8 and fp4, for every scaling recipe.
//
// A recipe cuts an operand (rows, cols) into blocks, gives each a scale from its largest magnitude (amax), multiplies
// and casts:
//
//     scaling        block                                 scale of a block                  left for alpha
//     tensor         all of it                             fp32, max/amax                    1/scale
//     delayed        all of it                             fp32, from past steps             1/scale
//     row            one row along the contraction         power of two, rounded down        -
//     block          1x128 along it (weights 128x128)      power of two (option: fp32)       -
//     mx             1x32 along it                         e8m0, a power of two              -
//     nv             1x16 along it (weights 16x16)         e4m3, under one fp32 per tensor   1/(tensor scale)
//
// The contraction is the index that the GEMM sums over, so x, w and dY are each cast twice (quant_spec knows how):
//
//     fprop  Y = X W^T  over in-features      dgrad  dX = dY W  over out-features      wgrad  dW = dY^T X  over tokens
//
// quantize_operand writes floats for a plain GEMM that sums K in chunks of 128 and multiplies once, at the end, by
// quant_alpha(a, b): code values times the block's decode scale. That product is exact for power-of-two and e4m3 scales
// (but for magnitudes at the very ends of fp32), so the GEMM's bits are those of the recipe. Block scales in fp32 round
// it (relative error 2^-24); the recipe itself, scaling each chunk's sum, is accumulate.h's with scales from
// quantize_codes.
//
// quantize_codes writes the codes and scale codes as a GPU stores them, by the slow definition of each format.
//
// Results are laid out as the operand is, whichever way the contraction runs, and do not depend on the number of
// threads. NaN: ignored by amax, stays NaN in fp8, becomes +6 in fp4; Inf saturates. Hence result.nonfinite: a training
// step that finds any must be skipped.
//
// Sources: Micikevicius et al. 2022 (tensor), torchao (row), DeepSeek-V3 2024 (block), OCP MX v1.0 with NVIDIA's
// round-up (mx), NVIDIA 2025 (nv); scales and edge cases follow Transformer Engine.
#ifndef LLMC_QUANTIZE_H
#define LLMC_QUANTIZE_H

#include <float.h>

#include "formats.h"
#include "rand.h"
#include "utils.h"

#define QUANT_INLINE static inline __attribute__((always_inline))
#define QUANT_PANEL ((size_t)512)       // columns handled at once, in the L1 cache with their scales; whole blocks
#define QUANT_RUN ((size_t)1 << 12)     // elements of a row or tensor cast in one go: they stay in the L1 cache
#define QUANT_SERIAL ((size_t)1 << 14)  // operands below this many elements are not worth waking threads for
#define HADAMARD_SIZE ((size_t)16)
#define HADAMARD_SIGNS 0xd7e8u  // bit i: row i of each group of 16 is negated first; any fixed mask would do (TE's)

typedef enum { CONTRACT_COLS, CONTRACT_ROWS } QuantAxis;  // the GEMM sums over the operand's columns, or rows

typedef struct {
    ScalingRule scaling;
    FormatId format;  // e4m3, e5m2 or e2m1
    QuantAxis contraction;
    int square;           // blocks as tall as wide: the transposed operand then has the same codes
    int pow2;             // tensor, block: round the scale down to a power of two (row always does)
    int mx_ocp;           // mx: OCP's own rule, which saturates the top of some blocks; for comparison
    int stochastic;       // round stochastically, 8 random bits an element
    int hadamard;         // transform along the rows first (CONTRACT_ROWS, rows % 16 == 0)
    float delayed_scale;  // delayed: the scale in force; 0: none yet, use this tensor's amax
    uint64_t seed;        // random bits: rand.h, purpose RAND_ROUND_GRAD_FP4, element = row * cols + col
    uint32_t stream, step;
} QuantSpec;

// What happened to an operand. The counters are exact.
typedef struct {
    uint64_t elements, nonzero;
    uint64_t underflow;  // non-zero, became zero (in nv also through a block scale that did)
    uint64_t saturated;  // scaled magnitude beyond what rounds to max (fp4: beyond 6)
    uint64_t nonfinite;
    float amax;                  // of what was cast (after the transform)
    float scale_min, scale_max;  // of the blocks with any non-zero; 0 if there is none
    float scale;                 // tensor, delayed: the scale; nv: the tensor's; else 1
    float decode;                // tensor, delayed: 1/scale; else 1
    int nv;
} QuantResult;

// The factor that the GEMM of two operands applies once, at the end.
static inline float quant_alpha(const QuantResult *a, const QuantResult *b) {
    const float nv = 1.0f / 7225344.0f;  // (6 * 448)^2: the inverse of both tensor scales, without dividing twice
    return a->nv ? a->amax * b->amax * nv : a->decode * b->decode;
}

// ----------------------------------------------------------------------------------------------------------------
// Which recipe casts which operand how

typedef enum { QUANT_X, QUANT_W, QUANT_DY } QuantRole;
typedef enum { GEMM_FPROP, GEMM_DGRAD, GEMM_WGRAD } QuantGemm;

typedef struct {
    int hybrid;       // dY in e5m2: 1 yes, 0 no, -1 as the recipe has it (tensor and delayed: yes)
    int tensor_pow2;  // tensor: power-of-two scales
    int block_fp32;   // block: fp32 scales
    int mx_ocp;
    int mx_square_weights;  // mx: one scale for 32x32 of a weight
    int nv_plain;           // nv: nearest rounding, 1x16 weights, no transform; for comparison
    uint64_t seed;
} QuantOptions;

static inline QuantOptions quant_default_options(uint64_t seed) {
    QuantOptions options = {-1, 0, 0, 0, 0, 0, seed};
    return options;
}

// How `scaling` casts operand `role` for `gemm`; .scaling is SCALING_NONE where the recipe keeps the operand in bf16.
// `stream` numbers the tensor (and the micro-batch, where a step has several): the two casts of one dY differ by its
// top bit, so that they draw different random bits.
static inline QuantSpec quant_spec(ScalingRule scaling, QuantRole role, QuantGemm gemm, const QuantOptions *options,
                                   uint32_t stream, uint32_t step) {
    QuantSpec spec;
    memset(&spec, 0, sizeof spec);
    int nv = scaling == SCALING_NV, tensor = scaling == SCALING_TENSOR || scaling == SCALING_DELAYED;
    int hybrid = options->hybrid < 0 ? tensor : options->hybrid;
    spec.scaling = scaling == SCALING_ROW_GWHP ? SCALING_ROW : scaling;
    spec.format = nv ? FORMAT_E2M1 : role == QUANT_DY && hybrid ? FORMAT_E5M2 : FORMAT_E4M3;
    // x is (tokens, in), w (out, in), dY (tokens, out): fprop and dgrad's dY sum over columns, the others over rows
    spec.contraction = gemm == GEMM_WGRAD || (gemm == GEMM_DGRAD && role == QUANT_W) ? CONTRACT_ROWS : CONTRACT_COLS;
    spec.square = role == QUANT_W && (scaling == SCALING_BLOCK || (nv && !options->nv_plain) ||
                                      (scaling == SCALING_MX && options->mx_square_weights));
    spec.pow2 = (tensor && options->tensor_pow2) || (scaling == SCALING_BLOCK && !options->block_fp32);
    spec.mx_ocp = options->mx_ocp;
    spec.stochastic = nv && !options->nv_plain && role == QUANT_DY;
    spec.hadamard = nv && !options->nv_plain && gemm == GEMM_WGRAD;
    if (scaling == SCALING_ROW_GWHP && gemm == GEMM_WGRAD) spec.scaling = SCALING_NONE;
    if (scaling == SCALING_ROW_GWHP && gemm == GEMM_DGRAD && role == QUANT_W) {
        spec.scaling = SCALING_TENSOR;
        spec.pow2 = 1;
    }
    spec.seed = options->seed;
    spec.stream = stream | (gemm == GEMM_WGRAD ? 0x80000000u : 0);
    spec.step = step;
    return spec;
}

// ----------------------------------------------------------------------------------------------------------------
// Scales. Divisions are single fp32 roundings, products are taken in the order written: CPU and GPU get the same bits.

// The largest power of two <= x: the mantissa masked away. (x normal and positive)
FORMAT_FN float quant_floor_pow2(float x) { return float_of_bits(bits_of_float(x) & 0x7f800000u); }

// x, but no more than the largest float. Compares patterns, which order as positive floats do: a loop then vectorises.
FORMAT_FN float quant_finite(float x) {
    uint32_t bits = bits_of_float(x);
    return float_of_bits(bits < 0x7f7fffffu ? bits : 0x7f7fffffu);
}

// tensor and block: max/amax; 1 for amax 0 or Inf; the largest float where the quotient is Inf.
FORMAT_FN float quant_scale_tensor(float amax, float format_max, int pow2) {
    float scale = quant_finite(format_max / amax);
    scale = amax == 0.0f || amax > FLT_MAX ? 1.0f : scale;
    return pow2 ? quant_floor_pow2(scale) : scale;
}

// row: as above to a power of two, amax not below 1e-12 (a zero row gets 2^48, as in torchao).
FORMAT_FN float quant_scale_row(float amax, float format_max) {
    return quant_scale_tensor(amax > 1e-12f ? amax : 1e-12f, format_max, 1);
}

// mx: the e8m0 code of the smallest power of two >= amax/max, which is max/amax rounded down, inverted. OCP's rule
// takes amax's own exponent less that of max: amax/max may then reach 512/448 of the scale.
FORMAT_FN uint8_t quant_scale_mx(float amax, float format_max, int ocp) {
    uint32_t exponent = bits_of_float(amax) >> 23, max_exponent = (bits_of_float(format_max) >> 23) - 127;
    uint32_t floored = exponent > max_exponent ? exponent - max_exponent : 0;
    floored = amax > FLT_MAX ? 254 : floored;
    uint32_t code = encode_e8m0(amax * (1.0f / format_max));
    return (uint8_t)(ocp ? floored : code);
}

// nv, the tensor: what brings amax to the largest element (6) times the largest block scale (448).
FORMAT_FN float quant_scale_nv_tensor(float amax) {
    float scale = quant_finite(2688.0f / amax);
    return amax == 0.0f || scale == 0.0f ? 1.0f : scale;
}
// nv, a block: its ue4m3 code, and what its elements are multiplied by: the inverse of the scale *as rounded*. Code 0
// (a block of next to nothing) gives the largest float; its elements decode to 0 whatever their codes.
FORMAT_FN uint8_t quant_scale_nv_block(float amax, float tensor_scale) {
    float b = amax * (tensor_scale * (1.0f / 6.0f));
    return encode_ue4m3(quant_finite(b));
}
FORMAT_FN float quant_encode_nv_block(uint8_t code, float inverse_tensor_scale) {
    return quant_finite(1.0f / (decode_ue4m3(code) * inverse_tensor_scale));
}

// ----------------------------------------------------------------------------------------------------------------
// The grid of blocks

typedef struct {
    size_t block_rows, block_cols;  // of a whole block; those at the edges may be smaller
    size_t grid_rows, grid_cols;    // blocks down and across; scale (i, j) is at [i * grid_cols + j]
} QuantGrid;

static inline QuantGrid quant_grid(const QuantSpec *spec, size_t rows, size_t cols) {
    size_t along = spec->scaling == SCALING_BLOCK ? 128
                   : spec->scaling == SCALING_MX  ? 32
                   : spec->scaling == SCALING_NV  ? 16
                                                  : 0;
    QuantGrid grid;
    grid.block_rows = spec->square || spec->contraction == CONTRACT_ROWS ? along : 1;
    grid.block_cols = spec->square || spec->contraction == CONTRACT_COLS ? along : 1;
    if (spec->scaling == SCALING_ROW) {
        grid.block_rows = spec->contraction == CONTRACT_ROWS ? rows : 1;
        grid.block_cols = spec->contraction == CONTRACT_COLS ? cols : 1;
    } else if (along == 0) {
        grid.block_rows = rows;
        grid.block_cols = cols;
    }
    grid.grid_rows = ceil_div(rows, grid.block_rows);
    grid.grid_cols = ceil_div(cols, grid.block_cols);
    return grid;
}

CPU_TWIN_BEGIN

// ----------------------------------------------------------------------------------------------------------------
// amax and counters

typedef struct {
    uint64_t nonzero, underflow, saturated, nonfinite;
    uint32_t amax_bits;             // magnitudes order as their patterns do
    uint32_t scale_min, scale_max;  // patterns too
} QuantCounts;

static inline QuantCounts quant_no_counts(void) {
    QuantCounts counts = {0, 0, 0, 0, 0, 0xffffffffu, 0};
    return counts;
}

static inline void quant_add_counts(QuantCounts *to, const QuantCounts *from) {
    to->nonzero += from->nonzero;
    to->underflow += from->underflow;
    to->saturated += from->saturated;
    to->nonfinite += from->nonfinite;
    if (from->amax_bits > to->amax_bits) to->amax_bits = from->amax_bits;
    if (from->scale_min < to->scale_min) to->scale_min = from->scale_min;
    if (from->scale_max > to->scale_max) to->scale_max = from->scale_max;
}

// Pattern of the largest |x|, NaN left out as fmaxf does; *nonfinite += Infs and NaNs. n < 2^32.
static inline uint32_t quant_run_amax(const float *in, size_t n, uint64_t *nonfinite) {
    uint32_t amax = 0, bad = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = bits_of_float(in[i]) & 0x7fffffffu;
        uint32_t number = bits & (0u - (uint32_t)(bits <= 0x7f800000u));  // a mask: gcc makes a branch of "? 0 :"
        amax = number > amax ? number : amax;
        bad += bits >= 0x7f800000u;
    }
    *nonfinite += bad;
    return amax;
}

// The same per column: amax[j] = max(amax[j], |in[j]|).
static inline void quant_column_amax(uint32_t *RESTRICT amax, const float *RESTRICT in, size_t n, uint64_t *nonfinite) {
    uint32_t bad = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = bits_of_float(in[i]) & 0x7fffffffu;
        uint32_t number = bits & (0u - (uint32_t)(bits <= 0x7f800000u));
        amax[i] = number > amax[i] ? number : amax[i];
        bad += bits >= 0x7f800000u;
    }
    *nonfinite += bad;
}

// amax of n elements by all threads.
static inline float quant_amax(const float *in, size_t n, uint64_t *nonfinite) {
    uint32_t amax = 0;
    uint64_t bad = 0;
#pragma omp parallel for schedule(static) reduction(max : amax) reduction(+ : bad) if (n >= QUANT_SERIAL)
    for (size_t i = 0; i < n; i += QUANT_RUN) {
        uint32_t run = quant_run_amax(in + i, min_size(QUANT_RUN, n - i), &bad);
        amax = run > amax ? run : amax;
    }
    *nonfinite += bad;
    return float_of_bits(amax);
}

// ----------------------------------------------------------------------------------------------------------------
// Casting

#define QUANT_RANDOM_BLOCKS 64

// Bits of QUANT_RANDOM_BLOCKS Philox blocks, 4 elements each; by lanes first, so that the generator vectorises.
static inline void quant_random_chunk(uint8_t *RESTRICT random, const QuantSpec *spec, uint64_t first_block) {
    uint32_t word[4][QUANT_RANDOM_BLOCKS];
    for (int i = 0; i < QUANT_RANDOM_BLOCKS; i++) {
        RandBlock block =
            rand_block(spec->seed, RAND_ROUND_GRAD_FP4, spec->stream, spec->step, first_block + (uint64_t)i);
        for (int lane = 0; lane < 4; lane++) word[lane][i] = block.word[lane];
    }
    for (int i = 0; i < QUANT_RANDOM_BLOCKS; i++)
        for (int lane = 0; lane < 4; lane++) random[4 * i + lane] = (uint8_t)word[lane][i];
}

// 8 random bits for each of n elements from `element` on.
static inline void quant_random(uint8_t *random, const QuantSpec *spec, uint64_t element, size_t n) {
    const size_t chunk = 4 * QUANT_RANDOM_BLOCKS;
    uint8_t bytes[4 * QUANT_RANDOM_BLOCKS];
    for (uint64_t first = element / chunk * chunk; first < element + n; first += chunk) {
        quant_random_chunk(bytes, spec, first / 4);
        uint64_t begin = first > element ? first : element,
                 end = first + chunk < element + n ? first + chunk : element + n;
        memcpy(random + (begin - element), bytes + (begin - first), (size_t)(end - begin));
    }
}

// A scaled magnitude above this is saturated: it would have rounded beyond max (fp4, whose next value would be 8, by
// convention beyond 6).
FORMAT_FN float quant_saturation_limit(FormatId format) {
    return format == FORMAT_E4M3 ? 464.0f : format == FORMAT_E5M2 ? 61439.99609375f : 6.0f;
}

FORMAT_FN float quant_round_stochastic(FormatId format, float x, uint32_t random) {
    return format == FORMAT_E4M3   ? decode_e4m3(sr_e4m3(x, random))
           : format == FORMAT_E5M2 ? decode_e5m2(sr_e5m2(x, random))
                                   : decode_e2m1(sr_e2m1(x, random));
}

// values[i] = cast(in[i] * encode) * decode, with one scale for all or one per column. The last three arguments are
// constants.
QUANT_INLINE void quant_cast(float *RESTRICT values, const float *RESTRICT in, const float *RESTRICT encode,
                             const float *RESTRICT decode, const uint8_t *RESTRICT random, size_t n,
                             QuantCounts *counts, const FormatId format, const int stochastic, const int per_column) {
    const float limit = quant_saturation_limit(format);
    const float encode_all = encode[0], decode_all = decode[0];
    uint32_t nonzero = 0, underflow = 0, saturated = 0;
    for (size_t i = 0; i < n; i++) {
        float x = in[i], scaled = x * (per_column ? encode[i] : encode_all);
        float y = stochastic ? quant_round_stochastic(format, scaled, random[i]) : format_round(format, scaled);
        float value = y * (per_column ? decode[i] : decode_all);
        nonzero += x != 0.0f;
        underflow += (x != 0.0f) & (value == 0.0f);
        saturated += fabsf(scaled) > limit;
        values[i] = value;
    }
    counts->nonzero += nonzero;
    counts->underflow += underflow;
    counts->saturated += saturated;
}

// A run of one row; `element` is the index of in[0] in the operand.
typedef struct {
    float *values;
    uint8_t *codes;  // instead of values
    const float *in, *encode, *decode;
    size_t n, element;
} QuantRun;

// As quant_cast, but the codes, from the slow definitions.
static inline void quant_cast_codes(const QuantRun *run, const QuantSpec *spec, const uint8_t *random, int per_column,
                                    QuantCounts *counts) {
    const Format *f = format_info(spec->format);
    const float limit = quant_saturation_limit(spec->format);
    for (size_t i = 0; i < run->n; i++) {
        float x = run->in[i], scaled = x * run->encode[per_column ? i : 0];
        uint32_t code =
            spec->stochastic ? format_encode_stochastic(f, scaled, random[i], 8, 1) : format_encode(f, scaled, 1);
        counts->nonzero += x != 0.0f;
        counts->underflow += x != 0.0f && format_decode(f, code) * run->decode[per_column ? i : 0] == 0.0f;
        counts->saturated += fabsf(scaled) > limit;
        run->codes[i] = (uint8_t)code;
    }
}

#define QUANT_CAST(format, stochastic, per_column) \
    quant_cast(run->values, run->in, run->encode, run->decode, random, run->n, counts, format, stochastic, per_column)
#define QUANT_CAST_ANY(format)                                    \
    if (spec->stochastic && per_column) QUANT_CAST(format, 1, 1); \
    else if (spec->stochastic) QUANT_CAST(format, 1, 0);          \
    else if (per_column) QUANT_CAST(format, 0, 1);                \
    else QUANT_CAST(format, 0, 0)

// n <= QUANT_RUN
static inline void quant_cast_run(const QuantRun *run, const QuantSpec *spec, int per_column, QuantCounts *counts) {
    uint8_t random[QUANT_RUN];
    if (spec->stochastic) quant_random(random, spec, run->element, run->n);
    if (run->codes) {
        quant_cast_codes(run, spec, random, per_column, counts);
        return;
    }
    switch (spec->format) {
        case FORMAT_E4M3: QUANT_CAST_ANY(FORMAT_E4M3); break;
        case FORMAT_E5M2: QUANT_CAST_ANY(FORMAT_E5M2); break;
        default: QUANT_CAST_ANY(FORMAT_E2M1); break;
    }
}

// ----------------------------------------------------------------------------------------------------------------
// One operand

// Where results go: values or codes (the other NULL), both laid out as the operand; the rest may be NULL.
typedef struct {
    float *values;         // (rows, cols)
    uint8_t *codes;        // (rows, cols), one byte each (pack_fp4 for fp4)
    float *decode_scales;  // (grid) what a code is multiplied by; nv: the tensor's scale apart
    uint8_t *scale_codes;  // (grid) mx: e8m0, nv: ue4m3
} QuantOutput;

// Everything the loops below share.
typedef struct {
    const QuantSpec *spec;
    const QuantOutput *out;
    const float *in;
    size_t rows, cols;
    QuantGrid grid;
    float format_max;
    float nv_scale, nv_inverse;  // nv: the tensor's scale
} QuantJob;

// A block scale's two directions for `n` blocks. The branch is outside the loops, so that these vectorise.
static inline void quant_block_scales(const QuantJob *job, const uint32_t *amax_bits, float *RESTRICT encode,
                                      float *RESTRICT decode, uint8_t *RESTRICT codes, size_t n) {
    const float format_max = job->format_max, nv_scale = job->nv_scale, nv_inverse = job->nv_inverse;
    const int pow2 = job->spec->pow2, ocp = job->spec->mx_ocp;
    switch (job->spec->scaling) {
        case SCALING_NV:
            for (size_t i = 0; i < n; i++) {
                codes[i] = quant_scale_nv_block(float_of_bits(amax_bits[i]), nv_scale);
                encode[i] = quant_encode_nv_block(codes[i], nv_inverse);
                decode[i] = decode_ue4m3(codes[i]);
            }
            break;
        case SCALING_MX:
            for (size_t i = 0; i < n; i++) {
                codes[i] = quant_scale_mx(float_of_bits(amax_bits[i]), format_max, ocp);
                encode[i] = encode_scale_e8m0(codes[i]);
                decode[i] = decode_e8m0(codes[i]);
            }
            break;
        case SCALING_ROW:
            for (size_t i = 0; i < n; i++) {
                encode[i] = quant_scale_row(float_of_bits(amax_bits[i]), format_max);
                decode[i] = 1.0f / encode[i];
            }
            break;
        default:
            for (size_t i = 0; i < n; i++) {
                encode[i] = quant_scale_tensor(float_of_bits(amax_bits[i]), format_max, pow2);
                decode[i] = 1.0f / encode[i];
            }
    }
}

static inline void quant_count_block(QuantCounts *counts, uint32_t amax_bits, float encode) {
    if (amax_bits > counts->amax_bits) counts->amax_bits = amax_bits;
    if (amax_bits == 0) return;
    uint32_t scale = bits_of_float(encode);
    if (scale < counts->scale_min) counts->scale_min = scale;
    if (scale > counts->scale_max) counts->scale_max = scale;
}

static inline QuantRun quant_run_at(const QuantJob *job, size_t offset, size_t n, const float *encode,
                                    const float *decode) {
    QuantRun run;
    run.values = job->out->values ? job->out->values + offset : NULL;
    run.codes = job->out->codes ? job->out->codes + offset : NULL;
    run.in = job->in + offset;
    run.encode = encode;
    run.decode = decode;
    run.n = n;
    run.element = offset;
    return run;
}

// One row of blocks, columns [c0, c0 + width) of it; width <= QUANT_PANEL and whole blocks but for the last. Columns
// first get their amax, then blocks of several columns share theirs; each row is then cast with a scale per column.
static inline void quant_panel(const QuantJob *job, size_t block_row, size_t c0, size_t width, QuantCounts *counts) {
    uint32_t amax[QUANT_PANEL];
    float block_encode[QUANT_PANEL], block_decode[QUANT_PANEL], encode[QUANT_PANEL], decode[QUANT_PANEL],
        copy[QUANT_PANEL];
    uint8_t codes[QUANT_PANEL];
    size_t r0 = block_row * job->grid.block_rows, r1 = min_size(r0 + job->grid.block_rows, job->rows);
    size_t step = job->grid.block_cols, blocks = ceil_div(width, step);
    for (size_t i = 0; i < width; i++) amax[i] = 0;
    for (size_t r = r0; r < r1; r++) quant_column_amax(amax, job->in + r * job->cols + c0, width, &counts->nonfinite);
    for (size_t b = 0; step > 1 && b < blocks; b++) {
        uint32_t block_amax = 0;
        for (size_t i = b * step; i < min_size(b * step + step, width); i++)
            block_amax = amax[i] > block_amax ? amax[i] : block_amax;
        amax[b] = block_amax;  // b <= b * step: nothing unread is overwritten
    }
    quant_block_scales(job, amax, block_encode, block_decode, codes, blocks);
    size_t grid_offset = block_row * job->grid.grid_cols + c0 / step;
    for (size_t b = 0; b < blocks; b++) {
        quant_count_block(counts, amax[b], block_encode[b]);
        if (job->out->decode_scales) job->out->decode_scales[grid_offset + b] = block_decode[b];
        if (job->out->scale_codes) job->out->scale_codes[grid_offset + b] = codes[b];
        for (size_t i = b * step; i < min_size(b * step + step, width); i++) {
            encode[i] = block_encode[b];
            decode[i] = block_decode[b];
        }
    }
    for (size_t r = r0; r < r1; r++) {
        QuantRun run = quant_run_at(job, r * job->cols + c0, width, encode, decode);
        if (run.in == run.values) {  // after the Hadamard transform; quant_cast wants the two apart
            memcpy(copy, run.in, width * sizeof *copy);
            run.in = copy;
        }
        quant_cast_run(&run, job->spec, 1, counts);
    }
}

static inline void quant_panels(const QuantJob *job, QuantCounts *total) {
    size_t across = ceil_div(job->cols, QUANT_PANEL), panels = job->grid.grid_rows * across;
#pragma omp parallel if (job->rows * job->cols >= QUANT_SERIAL)
    {
        QuantCounts counts = quant_no_counts();
#pragma omp for schedule(static)
        for (size_t p = 0; p < panels; p++) {
            size_t c0 = p % across * QUANT_PANEL;
            quant_panel(job, p / across, c0, min_size(QUANT_PANEL, job->cols - c0), &counts);
        }
#pragma omp critical(quant_counts)
        quant_add_counts(total, &counts);
    }
}

// Rows of their own scale, contracted along the columns: too long for a panel, and one scale serves a whole run.
static inline void quant_rows(const QuantJob *job, QuantCounts *total) {
#pragma omp parallel if (job->rows * job->cols >= QUANT_SERIAL)
    {
        QuantCounts counts = quant_no_counts();
#pragma omp for schedule(static)
        for (size_t r = 0; r < job->rows; r++) {
            uint32_t amax = quant_run_amax(job->in + r * job->cols, job->cols, &counts.nonfinite);
            float encode, decode;
            uint8_t code;
            quant_block_scales(job, &amax, &encode, &decode, &code, 1);
            quant_count_block(&counts, amax, encode);
            if (job->out->decode_scales) job->out->decode_scales[r] = decode;
            for (size_t c = 0; c < job->cols; c += QUANT_RUN) {
                QuantRun run =
                    quant_run_at(job, r * job->cols + c, min_size(QUANT_RUN, job->cols - c), &encode, &decode);
                quant_cast_run(&run, job->spec, 0, &counts);
            }
        }
#pragma omp critical(quant_counts)
        quant_add_counts(total, &counts);
    }
}

// One scale for the whole operand. Values stay code values: the scale goes into alpha. With find_amax the amax is found
// on the way (delayed scaling needs it only afterwards).
static inline void quant_whole(const QuantJob *job, float encode, int find_amax, QuantCounts *total) {
    const float one = 1.0f;
    size_t n = job->rows * job->cols;
#pragma omp parallel if (job->rows * job->cols >= QUANT_SERIAL)
    {
        QuantCounts counts = quant_no_counts();
#pragma omp for schedule(static)
        for (size_t i = 0; i < n; i += QUANT_RUN) {
            QuantRun run = quant_run_at(job, i, min_size(QUANT_RUN, n - i), &encode, &one);
            if (find_amax) quant_count_block(&counts, quant_run_amax(run.in, run.n, &counts.nonfinite), encode);
            quant_cast_run(&run, job->spec, 0, &counts);
        }
#pragma omp critical(quant_counts)
        quant_add_counts(total, &counts);
    }
}

// ----------------------------------------------------------------------------------------------------------------
// The Hadamard transform of nv's wgrad operands: spreads an outlier over 16 tokens. Orthogonal, so it cancels in the
// product of two transformed operands.

// Transforms 16 rows of `width` columns in place: x * signs, fp32 butterflies of stride 1, 2, 4, 8, times 1/4, to bf16.
static inline void hadamard_rows(float (*RESTRICT x)[64], size_t width) {
    for (size_t i = 0; i < HADAMARD_SIZE; i++)
        if (HADAMARD_SIGNS >> i & 1)
            for (size_t c = 0; c < width; c++) x[i][c] = -x[i][c];
    for (size_t h = 1; h < HADAMARD_SIZE; h *= 2)
        for (size_t i = 0; i < HADAMARD_SIZE; i++) {
            if (i & h) continue;
            for (size_t c = 0; c < width; c++) {
                float a = x[i][c], b = x[i + h][c];
                x[i][c] = a + b;
                x[i + h][c] = a - b;
            }
        }
    for (size_t i = 0; i < HADAMARD_SIZE; i++)
        for (size_t c = 0; c < width; c++) x[i][c] = round_bf16(x[i][c] * 0.25f);
}

// out (rows, cols) = the transform of `in` over groups of 16 rows; returns its amax; *nonfinite += those of `in`.
static inline float hadamard_transform(float *out, const float *in, size_t rows, size_t cols, uint64_t *nonfinite) {
    if (rows % HADAMARD_SIZE)
        die("the Hadamard transform needs a multiple of 16 rows, got %zu\n"
            "why: nvfp4 transforms its wgrad operands over groups of 16 tokens\n"
            "try: a --batch times --seq that 16 divides",
            rows);
    uint32_t amax = 0;
    uint64_t bad = 0;
#pragma omp parallel for schedule(static) reduction(max : amax) reduction(+ : bad) if (rows * cols >= QUANT_SERIAL)
    for (size_t r0 = 0; r0 < rows; r0 += HADAMARD_SIZE) {
        float x[HADAMARD_SIZE][64];
        for (size_t c0 = 0; c0 < cols; c0 += 64) {
            size_t width = min_size(64, cols - c0);
            for (size_t i = 0; i < HADAMARD_SIZE; i++) {
                memcpy(x[i], in + (r0 + i) * cols + c0, width * sizeof(float));
                quant_run_amax(x[i], width, &bad);
            }
            hadamard_rows(x, width);
            for (size_t i = 0; i < HADAMARD_SIZE; i++) {
                uint64_t ignored = 0;
                uint32_t row_amax = quant_run_amax(x[i], width, &ignored);
                amax = row_amax > amax ? row_amax : amax;
                memcpy(out + (r0 + i) * cols + c0, x[i], width * sizeof(float));
            }
        }
    }
    *nonfinite += bad;
    return float_of_bits(amax);
}

// ----------------------------------------------------------------------------------------------------------------
// The casts

static inline void quant_finish(QuantResult *result, const QuantCounts *counts, size_t elements) {
    result->elements = elements;
    result->nonzero = counts->nonzero;
    result->underflow = counts->underflow;
    result->saturated = counts->saturated;
    result->nonfinite = counts->nonfinite;
    result->amax = float_of_bits(counts->amax_bits);
    result->scale_min = counts->scale_max ? float_of_bits(counts->scale_min) : 0.0f;
    result->scale_max = float_of_bits(counts->scale_max);
}

// tensor, and delayed in its first step: amax first. delayed: one pass.
static inline void quant_run_whole(const QuantJob *job, QuantResult *result) {
    const QuantSpec *spec = job->spec;
    QuantCounts counts = quant_no_counts();
    int one_pass = spec->scaling == SCALING_DELAYED && spec->delayed_scale > 0;
    result->scale = spec->delayed_scale;
    if (!one_pass) {
        float amax = quant_amax(job->in, job->rows * job->cols, &counts.nonfinite);
        result->scale = quant_scale_tensor(amax, job->format_max, spec->pow2);
        quant_count_block(&counts, bits_of_float(amax), result->scale);
    }
    result->decode = 1.0f / result->scale;
    quant_whole(job, result->scale, one_pass, &counts);
    if (job->out->decode_scales) job->out->decode_scales[0] = result->decode;
    quant_finish(result, &counts, job->rows * job->cols);
}

// nv: the tensor's amax, of the transformed operand where there is a transform (`transformed` holds it), then its
// blocks.
static inline void quant_run_nv(QuantJob *job, QuantResult *result, float *transformed) {
    QuantCounts counts = quant_no_counts();
    uint64_t nonfinite = 0;
    float amax;
    if (job->spec->hadamard) {
        amax = hadamard_transform(transformed, job->in, job->rows, job->cols, &nonfinite);
        job->in = transformed;
    } else {
        amax = quant_amax(job->in, job->rows * job->cols, &nonfinite);
    }
    job->nv_scale = quant_scale_nv_tensor(amax);
    job->nv_inverse = 1.0f / job->nv_scale;
    quant_panels(job, &counts);
    counts.nonfinite = nonfinite;  // of the operand as given: the transform spreads one NaN over its group
    quant_finish(result, &counts, job->rows * job->cols);
    result->scale = job->nv_scale;
    result->nv = 1;
}

static inline void quant_run_job(QuantJob *job, QuantResult *result, float *transformed) {
    memset(result, 0, sizeof *result);
    result->scale = result->decode = 1.0f;
    if (job->spec->scaling == SCALING_TENSOR || job->spec->scaling == SCALING_DELAYED) {
        quant_run_whole(job, result);
        return;
    }
    if (job->spec->scaling == SCALING_NV) {
        quant_run_nv(job, result, transformed);
        return;
    }
    QuantCounts counts = quant_no_counts();
    if (job->spec->scaling == SCALING_ROW && job->spec->contraction == CONTRACT_COLS) quant_rows(job, &counts);
    else quant_panels(job, &counts);
    quant_finish(result, &counts, job->rows * job->cols);
}

static inline QuantJob quant_job(const QuantOutput *out, const float *in, size_t rows, size_t cols,
                                 const QuantSpec *spec) {
    if (spec->scaling == SCALING_NONE || spec->scaling == SCALING_ROW_GWHP)
        die("quantize: scaling '%s' casts nothing (a fault of this program)", scaling_name(spec->scaling));
    if (spec->format != FORMAT_E4M3 && spec->format != FORMAT_E5M2 && spec->format != FORMAT_E2M1)
        die("quantize: '%s' is not a GEMM operand's format (a fault of this program)", format_name(spec->format));
    if (spec->hadamard && (spec->contraction != CONTRACT_ROWS || spec->scaling != SCALING_NV))
        die("quantize: the Hadamard transform runs along the rows of an nv operand (a fault of this program)");
    QuantJob job = {spec, out, in, rows, cols, quant_grid(spec, rows, cols), format_max(spec->format), 1.0f, 1.0f};
    return job;
}

// quantize_operand: values (rows, cols) f32 = what the GEMM multiplies; see the top of the file
//   in (rows, cols) f32, not overlapping values      result = counters, amax, and the operand's part of alpha
//   rows and cols >= 1, any (but for the Hadamard transform); blocks at the edges are cut short
//   deterministic, any number of threads; moves 12 bytes an element (delayed: 8) where it does not fit the cache
static inline void quantize_operand(float *values, QuantResult *result, const float *in, size_t rows, size_t cols,
                                    const QuantSpec *spec) {
    QuantOutput out = {values, NULL, NULL, NULL};
    QuantJob job = quant_job(&out, in, rows, cols, spec);
    quant_run_job(&job, result, values);
}

// quantize_codes: codes (rows, cols), one byte each, and scales, as a GPU stores them; slow, for tests and exact models
//   decode_scales, scale_codes (grid of quant_grid(spec, rows, cols)) or NULL      scratch (rows, cols) f32, for the
//   Hadamard transform only, else NULL      the same result as quantize_operand
static inline void quantize_codes(uint8_t *codes, float *decode_scales, uint8_t *scale_codes, QuantResult *result,
                                  const float *in, size_t rows, size_t cols, const QuantSpec *spec, float *scratch) {
    QuantOutput out = {NULL, codes, decode_scales, scale_codes};
    QuantJob job = quant_job(&out, in, rows, cols, spec);
    quant_run_job(&job, result, scratch);
}

CPU_TWIN_END

#endif
