// test_quantize.c: llmc/quantize.h, fp8_scaling.h and accumulate.h: scales by hand-computed examples, every recipe
// against a plain recomputation, edge cases, and the errors of whole products against figures derived from the formats.
#include "llmc/quantize.h"

#include <stdlib.h>

#include "dev/test/test.h"
#include "llmc/accumulate.h"
#include "llmc/fp8_scaling.h"
#include "llmc/matmul.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static float *new_floats(size_t n) { return (float *)checked_calloc(n, sizeof(float), "test"); }
static uint8_t *new_bytes(size_t n) { return (uint8_t *)checked_calloc(n, 1, "test"); }
static float *new_normal(size_t n, uint32_t stream) {
    float *x = new_floats(n);
    rand_normal_fill(x, n, 0, 1.0f, 11, stream);
    return x;
}
static int same_float(float a, float b) { return bits_of_float(a) == bits_of_float(b) || (a != a && b != b); }

// A spec without options: what one recipe does to one operand.
static QuantSpec plain_spec(ScalingRule scaling, FormatId format, QuantAxis contraction, int square) {
    QuantSpec spec;
    memset(&spec, 0, sizeof spec);
    spec.scaling = scaling;
    spec.format = format;
    spec.contraction = contraction;
    spec.square = square;
    spec.pow2 = scaling == SCALING_BLOCK;
    spec.seed = 42;
    return spec;
}

// Casts one row to codes and compares them.
static QuantResult check_codes(const char *what, const QuantSpec *spec, const float *in, const uint8_t *expected,
                               size_t n, float *decode_scales, uint8_t *scale_codes) {
    uint8_t codes[64];
    QuantResult result;
    quantize_codes(codes, decode_scales, scale_codes, &result, in, 1, n, spec, NULL);
    for (size_t i = 0; i < n; i++)
        CHECK(codes[i] == expected[i], "%s: %g gives %02x, expected %02x", what, in[i], codes[i], expected[i]);
    return result;
}

// ----------------------------------------------------------------------------------------------------------------
// Worked examples

TEST(example_tensor_scale) {
    const float in[6] = {3.0f, 1.0f, -0.5f, 0.001f, 1e-4f, 0.0f};
    const uint8_t expected[6] = {0x7e, 0x71, 0xe9, 0x22, 0x08, 0x00}, pow2_expected[2] = {0x7c, 0x70};
    QuantSpec spec = plain_spec(SCALING_TENSOR, FORMAT_E4M3, CONTRACT_COLS, 0);
    QuantResult r = check_codes("448/3", &spec, in, expected, 6, NULL, NULL);
    CHECK(bits_of_float(r.scale) == 0x43155555u && r.amax == 3.0f && r.nonzero == 5 && r.underflow == 0, "scale %08x",
          bits_of_float(r.scale));
    CHECK(decode_e4m3(0x71) * r.decode == 0.964285731f, "1 comes back as %.9g", decode_e4m3(0x71) * r.decode);
    spec.pow2 = 1;
    r = check_codes("128", &spec, in, pow2_expected, 2, NULL, NULL);
    CHECK(r.scale == 128.0f, "scale %g", r.scale);
}

TEST(example_mx_block) {
    const float in[5] = {5.0f, 3.0f, 0.01f, -1e-4f, 0.0f};
    const uint8_t expected[5] = {0x7a, 0x74, 0x32, 0x83, 0x00};
    uint8_t scale_code;
    QuantSpec spec = plain_spec(SCALING_MX, FORMAT_E4M3, CONTRACT_COLS, 0);
    check_codes("mx", &spec, in, expected, 5, NULL, &scale_code);
    CHECK(scale_code == 0x79, "scale code %02x", scale_code);
    // OCP's rule saturates between 448 and 512 times the scale
    CHECK(quant_scale_mx(500.0f, 448.0f, 1) == 0x7f && quant_scale_mx(500.0f, 448.0f, 0) == 0x80,
          "500: OCP and round-up");
}

TEST(example_nv_block) {
    // 16 columns with the block's amax 2, then a second block that holds the tensor's 7.5
    const float in[17] = {0.1f,  -0.2f, 0.3f, -0.45f, 0.6f, -0.75f, 0.9f,  -1,  1.2f,
                          -1.5f, 0.05f, 0,    -0.0f,  2,    -0.33f, 0.02f, 7.5f};
    const uint8_t expected[17] = {1, 9, 2, 0xb, 4, 0xc, 5, 0xd, 6, 0xe, 0, 0, 8, 7, 0xa, 0, 7};
    uint8_t scale_codes[2];
    float decode_scales[2];
    QuantSpec spec = plain_spec(SCALING_NV, FORMAT_E2M1, CONTRACT_COLS, 0);
    QuantResult r = check_codes("nv", &spec, in, expected, 17, decode_scales, scale_codes);
    CHECK(bits_of_float(r.scale) == 0x43b33333u && r.amax == 7.5f, "tensor scale %08x", bits_of_float(r.scale));
    CHECK(bits_of_float(r.scale * (1.0f / 6.0f)) == 0x426eeeefu, "multiplier");
    CHECK(scale_codes[0] == 0x6f && decode_scales[0] == 120.0f, "block scale %02x", scale_codes[0]);
    CHECK(bits_of_float(quant_encode_nv_block(0x6f, 1.0f / r.scale)) == 0x403f258cu, "encode scale");
    CHECK(fabsf(6.0f * 120.0f / r.scale - 2.00892854f) < 1e-6f, "2 comes back as %.9g", 6.0f * 120.0f / r.scale);
}

// One rule serves row, block and mx: the masked quotient, e8m0 of amax/max rounded up, and the plain definition agree.
TEST(power_of_two_scales_agree) {
    static const float maxima[] = {448.0f, 57344.0f};
    CHECK(bits_of_float(1.0f / 448.0f) == 0x3b124925u, "1/448");
    for (size_t k = 0; k < 2; k++)
        for (uint32_t mantissa = 0; mantissa < 1u << 23; mantissa += mantissa < 0x600000u ? 61 : 1) {
            float amax = float_of_bits(0x40000000u | mantissa), scale = quant_scale_tensor(amax, maxima[k], 1);
            uint8_t code = quant_scale_mx(amax, maxima[k], 0);
            if (scale == encode_scale_e8m0(code) && amax * scale <= maxima[k] && amax * scale * 2 > maxima[k]) continue;
            CHECK(0, "amax %08x: %g and code %02x", bits_of_float(amax), scale, code);
            break;
        }
}

TEST(edge_scales) {
    const float inf = INFINITY, tiny = 1e-45f;
    CHECK(quant_scale_tensor(0.0f, 448.0f, 0) == 1.0f && quant_scale_tensor(0.0f, 448.0f, 1) == 1.0f,
          "tensor, block: zero");
    CHECK(quant_scale_tensor(tiny, 448.0f, 0) == FLT_MAX && quant_scale_tensor(tiny, 448.0f, 1) == 0x1p127f,
          "tensor, block: tiny");
    CHECK(quant_scale_tensor(1.3165e-36f, 448.0f, 0) == FLT_MAX && quant_scale_tensor(1.3167e-36f, 448.0f, 0) < FLT_MAX,
          "1.3166e-36");
    CHECK(quant_scale_tensor(inf, 448.0f, 0) == 1.0f && quant_scale_tensor(inf, 448.0f, 1) == 1.0f,
          "tensor, block: Inf");
    CHECK(quant_scale_row(0.0f, 448.0f) == 0x1p48f && quant_scale_row(tiny, 448.0f) == 0x1p48f &&
              quant_scale_row(inf, 448.0f) == 1.0f,
          "row");
    CHECK(quant_scale_mx(0.0f, 448.0f, 0) == 0 && quant_scale_mx(tiny, 448.0f, 0) == 0 &&
              quant_scale_mx(inf, 448.0f, 0) == 0xfe,
          "mx");
    CHECK(quant_scale_mx(0.0f, 448.0f, 1) == 0 && quant_scale_mx(inf, 448.0f, 1) == 0xfe &&
              quant_scale_mx(1.0f, 57344.0f, 1) == 112,
          "ocp");
    CHECK(quant_scale_nv_tensor(0.0f) == 1.0f && quant_scale_nv_tensor(tiny) == FLT_MAX &&
              quant_scale_nv_tensor(inf) == 1.0f,
          "nv");
    CHECK(quant_scale_nv_block(inf, 1.0f) == 0x7e && quant_scale_nv_block(0.0f, 1.0f) == 0, "nv block");
    CHECK(quant_encode_nv_block(0, 1.0f) == FLT_MAX, "nv block of scale 0");
    // where another order of the products, or a division for a product, gives other bits
    CHECK(quant_scale_nv_block(float_of_bits(0x42b6cdffu), float_of_bits(0x3ff3ab80u)) == 0x5f &&
              quant_scale_nv_block(float_of_bits(0x425cb78au), float_of_bits(0x40043940u)) == 0x5a,
          "nv block: order of products");
    CHECK(bits_of_float(quant_encode_nv_block(0x45, 1.0f / float_of_bits(0x409b3333u))) == 0x3fbf03f1u &&
              bits_of_float(quant_encode_nv_block(0x49, 1.0f / float_of_bits(0x40ca8f5cu))) == 0x3fb40da8u,
          "nv encode scale: order of products");
    float smallest = 1.0f / FLT_MAX;
    CHECK(smallest > 0 && smallest < FLT_MIN, "the decode scale of the largest scale is subnormal: %g", smallest);
}

// ----------------------------------------------------------------------------------------------------------------
// Every recipe against a plain recomputation

// Scales and codes of an operand the obvious way: for each element, the amax of all elements of its block.
static void check_recomputed(const QuantSpec *spec, const float *in, size_t rows, size_t cols, const char *what) {
    size_t n = rows * cols;
    QuantGrid grid = quant_grid(spec, rows, cols);
    float *values = new_floats(n), *scales = new_floats(grid.grid_rows * grid.grid_cols), *scratch = new_floats(n);
    uint8_t *codes = new_bytes(n), *scale_codes = new_bytes(grid.grid_rows * grid.grid_cols);
    QuantResult fast, slow;
    for (size_t i = 0; i < n; i++) values[i] = NAN;
    quantize_operand(values, &fast, in, rows, cols, spec);
    quantize_codes(codes, scales, scale_codes, &slow, in, rows, cols, spec, scratch);
    CHECK(memcmp(&fast, &slow, sizeof fast) == 0, "%s: counters of values and codes differ", what);
    const float *cast = spec->hadamard ? scratch : in;
    uint64_t nonzero = 0, underflow = 0, saturated = 0;
    float amax = 0;
    for (size_t i = 0; i < n; i++) amax = fmaxf(amax, fabsf(cast[i]));
    CHECK(fast.amax == amax && fast.elements == n, "%s: amax %g, expected %g", what, fast.amax, amax);
    float max = format_max(spec->format), limit = spec->format == FORMAT_E4M3   ? 464.0f
                                                  : spec->format == FORMAT_E2M1 ? 6.0f
                                                                                : 61439.996f;
    float *amaxes = new_floats(grid.grid_rows * grid.grid_cols);
    for (size_t i = 0; i < n; i++) {
        float *block_amax = &amaxes[i / cols / grid.block_rows * grid.grid_cols + i % cols / grid.block_cols];
        *block_amax = fmaxf(*block_amax, fabsf(cast[i]));
    }
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < cols; c++) {
            size_t block = r / grid.block_rows * grid.grid_cols + c / grid.block_cols, i = r * cols + c;
            float block_amax = amaxes[block], encode, decode;
            if (spec->scaling == SCALING_NV) {
                float tensor = amax == 0 ? 1.0f : fminf(2688.0f / amax, FLT_MAX);
                uint32_t b =
                    format_encode(format_info(FORMAT_UE4M3), fminf(block_amax * (tensor * (1.0f / 6.0f)), FLT_MAX), 1);
                decode = format_decode(format_info(FORMAT_UE4M3), b);
                encode = fminf(1.0f / (decode * (1.0f / tensor)), FLT_MAX);
                CHECK(scale_codes[block] == b, "%s: scale code %02x, expected %02x", what, scale_codes[block], b);
            } else if (spec->scaling == SCALING_MX) {
                int exponent;  // block_amax * 2^-k <= max for the smallest such k: code k + 127
                for (exponent = -127; exponent < 127 && ldexp(block_amax, -exponent) > max; exponent++) {
                }
                if (spec->mx_ocp) exponent = block_amax == 0 ? -127 : ilogbf(block_amax) - ilogbf(max);
                decode = ldexpf(1.0f, exponent);
                encode = ldexpf(1.0f, -exponent);
                CHECK(scale_codes[block] == exponent + 127, "%s: scale code %02x, exponent %d", what,
                      scale_codes[block], exponent);
            } else {
                float floor_amax = spec->scaling == SCALING_ROW ? fmaxf(block_amax, 1e-12f) : block_amax;
                encode = floor_amax == 0 ? 1.0f : (float)((double)max / (double)floor_amax);
                if (spec->scaling == SCALING_ROW || spec->pow2) encode = ldexpf(1.0f, ilogbf(encode));
                if (spec->scaling == SCALING_DELAYED && spec->delayed_scale > 0) encode = spec->delayed_scale;
                decode = 1.0f / encode;
            }
            CHECK(scales[block] == decode, "%s: decode scale %g, expected %g", what, scales[block], decode);
            const Format *f = format_info(spec->format);
            float scaled = cast[i] * encode;
            uint32_t random = rand_u32(spec->seed, RAND_ROUND_GRAD_FP4, spec->stream, spec->step, i) & 0xff;
            uint32_t code =
                spec->stochastic ? format_encode_stochastic(f, scaled, random, 8, 1) : format_encode(f, scaled, 1);
            int in_alpha = spec->scaling == SCALING_TENSOR || spec->scaling == SCALING_DELAYED;
            float value = format_decode(f, code) * (in_alpha ? 1.0f : decode);
            CHECK(codes[i] == code, "%s (%zu,%zu): %g code %02x, expected %02x", what, r, c, cast[i], codes[i], code);
            CHECK(bits_of_float(values[i]) == bits_of_float(value), "%s (%zu,%zu): value %g, expected %g", what, r, c,
                  values[i], value);
            nonzero += cast[i] != 0;
            underflow += cast[i] != 0 && value == 0;
            saturated += fabsf(scaled) > limit;
        }
    CHECK(fast.nonzero == nonzero && fast.underflow == underflow && fast.saturated == saturated && fast.nonfinite == 0,
          "%s: counters %llu %llu %llu, expected %llu %llu %llu", what, (unsigned long long)fast.nonzero,
          (unsigned long long)fast.underflow, (unsigned long long)fast.saturated, (unsigned long long)nonzero,
          (unsigned long long)underflow, (unsigned long long)saturated);
    free(values), free(scales), free(scratch), free(codes), free(scale_codes), free(amaxes);
}

// Values over many binades, some zeros, a zero block.
static float *awkward_operand(size_t rows, size_t cols) {
    float *x = new_normal(rows * cols, 3);
    for (size_t i = 0; i < rows * cols; i++) {
        uint32_t r = rand_u32(9, RAND_TEST, 1, 0, i);
        x[i] *= exp2f((float)(r % 24) - 12.0f);
        if (r % 7 == 0) x[i] = r & 64 ? 0.0f : -0.0f;
    }
    for (size_t r = 0; r < min_size(rows, 128); r++)
        for (size_t c = 0; c < min_size(cols, 32); c++) x[r * cols + c] = 0.0f;
    return x;
}

TEST(recipes_equal_a_plain_recomputation) {
    static const size_t shapes[][2] = {{1, 1},    {1, 17},    {33, 1},   {16, 128},
                                       {31, 129}, {130, 127}, {129, 33}, {17, 530}};
    static const ScalingRule rules[] = {SCALING_TENSOR, SCALING_DELAYED, SCALING_ROW,
                                        SCALING_BLOCK,  SCALING_MX,      SCALING_NV};
    for (size_t s = 0; s < COUNT(shapes); s++) {
        size_t rows = shapes[s][0], cols = shapes[s][1];
        float *in = awkward_operand(rows, cols);
        for (size_t k = 0; k < COUNT(rules); k++)
            for (int variant = 0; variant < 16; variant++) {
                QuantSpec spec = plain_spec(rules[k],
                                            rules[k] == SCALING_NV ? FORMAT_E2M1
                                            : variant & 4          ? FORMAT_E5M2
                                                                   : FORMAT_E4M3,
                                            variant & 1 ? CONTRACT_ROWS : CONTRACT_COLS, variant >> 1 & 1);
                spec.pow2 = variant >> 3 & 1;
                spec.mx_ocp = variant >> 3 & 1;
                spec.stochastic = variant == 5 || variant == 9 || variant == 14;
                spec.stream = 7, spec.step = 3;
                spec.delayed_scale = variant & 1 ? 100.0f : 0.0f;
                char what[96];
                snprintf(what, sizeof what, "%s variant %d, %zu x %zu", scaling_name(rules[k]), variant, rows, cols);
                check_recomputed(&spec, in, rows, cols, what);
            }
        if (rows % 16 == 0) {
            QuantSpec spec = plain_spec(SCALING_NV, FORMAT_E2M1, CONTRACT_ROWS, 0);
            spec.hadamard = 1;
            check_recomputed(&spec, in, rows, cols, "nv with transform");
            spec.stochastic = 1;
            check_recomputed(&spec, in, rows, cols, "nv with transform, stochastic");
        }
        free(in);
    }
}

TEST(square_blocks_do_not_depend_on_the_orientation) {
    size_t rows = 130, cols = 140, n = rows * cols;
    float *in = awkward_operand(rows, cols), *along_cols = new_floats(n), *along_rows = new_floats(n);
    static const ScalingRule rules[] = {SCALING_BLOCK, SCALING_MX, SCALING_NV};
    for (size_t k = 0; k < COUNT(rules); k++) {
        QuantResult a, b;
        QuantSpec spec = plain_spec(rules[k], rules[k] == SCALING_NV ? FORMAT_E2M1 : FORMAT_E4M3, CONTRACT_COLS, 1);
        quantize_operand(along_cols, &a, in, rows, cols, &spec);
        spec.contraction = CONTRACT_ROWS;
        quantize_operand(along_rows, &b, in, rows, cols, &spec);
        CHECK(memcmp(along_cols, along_rows, n * sizeof(float)) == 0 && memcmp(&a, &b, sizeof a) == 0, "%s",
              scaling_name(rules[k]));
    }
    free(in), free(along_cols), free(along_rows);
}

TEST(threads_change_nothing) {
    size_t rows = 272, cols = 1030, n = rows * cols;
    float *in = awkward_operand(rows, cols), *one = new_floats(n), *many = new_floats(n);
    int threads = thread_count();
    in[5 * cols + 700] = NAN;
    for (int rule = SCALING_TENSOR; rule < SCALING_COUNT; rule++)
        for (int rows_first = 0; rows_first < 2; rows_first++) {
            if (rule == SCALING_ROW_GWHP) continue;
            QuantResult a, b;
            QuantSpec spec =
                plain_spec((ScalingRule)rule, rule == SCALING_NV ? FORMAT_E2M1 : FORMAT_E4M3, (QuantAxis)rows_first, 0);
            spec.stochastic = spec.hadamard = rule == SCALING_NV && rows_first;
            spec.delayed_scale = 3.0f;
            set_thread_count(1);
            quantize_operand(one, &a, in, rows, cols, &spec);
            for (int t = 2; t < 5; t++) {
                set_thread_count(t);
                quantize_operand(many, &b, in, rows, cols, &spec);
                size_t different = 0;
                for (size_t i = 0; i < n; i++) different += !same_float(one[i], many[i]);
                CHECK(different == 0 && memcmp(&a, &b, sizeof a) == 0, "%s, %d threads",
                      scaling_name((ScalingRule)rule), t);
            }
        }
    set_thread_count(threads);
    free(in), free(one), free(many);
}

// ----------------------------------------------------------------------------------------------------------------
// Edge cases

static QuantSpec edge_spec(int rule) {
    return plain_spec((ScalingRule)rule, rule == SCALING_NV ? FORMAT_E2M1 : FORMAT_E4M3, CONTRACT_COLS, 0);
}

TEST(zeros_of_either_sign) {
    float in[40] = {0};
    uint8_t codes[40];
    for (int i = 20; i < 40; i++) in[i] = -0.0f;
    for (int rule = SCALING_TENSOR; rule < SCALING_COUNT; rule++) {
        if (rule == SCALING_ROW_GWHP) continue;
        QuantSpec spec = edge_spec(rule);
        QuantResult r;
        uint8_t scale_codes[8];
        quantize_codes(codes, NULL, scale_codes, &r, in, 1, 40, &spec, NULL);
        for (int i = 0; i < 40; i++)
            CHECK(codes[i] == (i < 20               ? 0
                               : rule == SCALING_NV ? 8
                                                    : 0x80),
                  "%s: code %02x", scaling_name(spec.scaling), codes[i]);
        CHECK(r.amax == 0 && r.nonzero == 0 && r.underflow == 0 && r.saturated == 0 && r.scale_max == 0, "counters");
        if (rule == SCALING_MX || rule == SCALING_NV) CHECK(scale_codes[0] == 0, "scale code %02x", scale_codes[0]);
        QuantResult s = r;
        CHECK(!(quant_alpha(&r, &s) != quant_alpha(&r, &s)), "alpha of nothing is NaN");
    }
}

// amax over the whole range: nothing but finite values comes out, the largest element survives where its scale can hold
// it.
TEST(magnitudes_from_subnormal_to_huge) {
    float in[160], values[160];
    for (int exponent = -149; exponent <= 126; exponent++)
        for (int rule = SCALING_TENSOR; rule < SCALING_COUNT; rule++) {
            if (rule == SCALING_ROW_GWHP) continue;
            QuantSpec spec = edge_spec(rule);
            QuantResult r;
            for (int i = 0; i < 160; i++) in[i] = ldexpf(1.0f - (float)i / 160.0f, exponent);
            quantize_operand(values, &r, in, 1, 160, &spec);
            int finite = 1;
            for (int i = 0; i < 160; i++) finite &= isfinite(values[i]) != 0;
            CHECK(finite && r.nonfinite == 0, "%s, 2^%d: not finite", scaling_name(spec.scaling), exponent);
            float back = values[0] * (r.nv ? 1.0f / r.scale : r.decode), relative = fabsf(back / in[0] - 1.0f);
            if (exponent > -30)
                CHECK(relative < 0.13f, "%s, 2^%d: %g comes back as %g", scaling_name(spec.scaling), exponent, in[0],
                      back);
            CHECK(r.saturated == 0 || rule == SCALING_NV, "%s, 2^%d: %d saturated", scaling_name(spec.scaling),
                  exponent, (int)r.saturated);
        }
}

// One NaN at every position of two blocks: it is counted, stays a NaN (fp4: +6), and nothing else changes.
TEST(one_nan_anywhere) {
    enum { N = 300 };
    float *in = new_normal(N, 5);
    uint8_t clean[N], codes[N];
    for (int rule = SCALING_TENSOR; rule < SCALING_COUNT; rule++) {
        if (rule == SCALING_ROW_GWHP) continue;
        QuantSpec spec = edge_spec(rule);
        QuantResult r, s;
        for (size_t p = 0; p < N; p++) {
            float saved = in[p];
            in[p] = 0.0f;  // the same block without the value
            quantize_codes(clean, NULL, NULL, &r, in, 1, N, &spec, NULL);
            in[p] = p % 2 ? NAN : -NAN;
            quantize_codes(codes, NULL, NULL, &s, in, 1, N, &spec, NULL);
            in[p] = saved;
            CHECK(codes[p] == (rule == SCALING_NV ? 0x7 : 0x7f), "%s: NaN at %zu gives %02x",
                  scaling_name(spec.scaling), p, codes[p]);
            codes[p] = clean[p];
            CHECK(memcmp(codes, clean, N) == 0, "%s: NaN at %zu changed its neighbours", scaling_name(spec.scaling), p);
            CHECK(s.nonfinite == 1 && r.nonfinite == 0 && s.amax == r.amax, "%s: nonfinite %d",
                  scaling_name(spec.scaling), (int)s.nonfinite);
        }
    }
    free(in);
}

TEST(one_inf) {
    float in[32] = {0}, values[32];
    uint8_t codes[32], scale_code = 0;
    in[0] = 2.0f, in[1] = -1.0f, in[7] = -INFINITY;
    for (int rule = SCALING_TENSOR; rule < SCALING_COUNT; rule++) {
        if (rule == SCALING_ROW_GWHP) continue;
        QuantSpec spec = edge_spec(rule);
        QuantResult r;
        quantize_codes(codes, NULL, &scale_code, &r, in, 1, rule == SCALING_NV ? 16 : 32, &spec, NULL);
        quantize_operand(values, &r, in, 1, rule == SCALING_NV ? 16 : 32, &spec);
        CHECK(r.nonfinite == 1 && isinf(r.amax), "%s: nonfinite %d amax %g", scaling_name(spec.scaling),
              (int)r.nonfinite, r.amax);
        CHECK(codes[7] == (rule == SCALING_NV ? 0xf : 0xfe), "%s: -Inf gives %02x", scaling_name(spec.scaling),
              codes[7]);
        if (rule == SCALING_MX) CHECK(scale_code == 0xfe && codes[0] == 0, "mx: scale %02x", scale_code);
        if (rule == SCALING_NV) CHECK(scale_code == 0x7e && r.scale == 1.0f, "nv: block scale %02x", scale_code);
        if (rule == SCALING_TENSOR || rule == SCALING_ROW || rule == SCALING_BLOCK)
            CHECK(codes[0] == 0x40 && codes[1] == 0xb8, "%s: the scale is 1, 2 gives %02x", scaling_name(spec.scaling),
                  codes[0]);
    }
}

// ----------------------------------------------------------------------------------------------------------------
// Delayed scaling

TEST(delayed_trace) {
    static const float amaxes[] = {2, 8, 1, 1, 1, 1, 0, 0}, expected[] = {1, 224, 56, 56, 56, 56, 448, 448};
    float history[4];
    DelayedScale d;
    DelayedOptions options = {0, 0, 1};
    delayed_init(&d, history, 4, FORMAT_E4M3, &options);
    for (size_t i = 0; i < COUNT(amaxes); i++) {
        CHECK(delayed_scale_in_force(&d) == expected[i], "step %zu: scale %g, expected %g", i, d.scale, expected[i]);
        delayed_record(&d, amaxes[i] / 2);  // two micro-batches: the maximum counts, whatever the order
        delayed_record(&d, amaxes[i]);
        delayed_record(&d, amaxes[i] / 4);
        delayed_step(&d, &options);
    }
    CHECK(history[0] == 0, "the current slot starts at 0");
}

TEST(delayed_options) {
    float history[3], longer[5], shorter[2];
    DelayedScale d;
    DelayedOptions options = {1, 1, 0};
    delayed_init(&d, history, 3, FORMAT_E5M2, &options);
    CHECK(delayed_scale_in_force(&d) == 0, "nothing recorded: by the tensor's own amax");
    delayed_step(&d, &options);
    CHECK(d.scale == 0, "a step without a record changes nothing");
    delayed_record(&d, 7.0f);
    delayed_record(&d, INFINITY);
    delayed_record(&d, NAN);
    CHECK(history[0] == 7.0f, "what is not finite is not recorded");
    delayed_step(&d, &options);
    CHECK(d.scale == 57344.0f / 2 / 7, "margin 1: scale %g", d.scale);
    delayed_record(&d, 3.5f);
    delayed_step(&d, &options);
    CHECK(d.scale == 57344.0f / 2 / 3.5f, "most recent: scale %g", d.scale);
    delayed_record(&d, 1e-45f);
    delayed_step(&d, &options);
    CHECK(d.scale == FLT_MAX, "tiny amax: scale %g", d.scale);
    float now[4] = {9, 1, 2, 3};
    delayed_resize_history(longer, 5, now, 4);
    delayed_resize_history(shorter, 2, now, 4);
    CHECK(longer[0] == 9 && longer[1] == 0 && longer[2] == 1 && longer[3] == 2 && longer[4] == 3, "longer history");
    CHECK(shorter[0] == 9 && shorter[1] == 3, "shorter history keeps the most recent");
    float single[1];
    delayed_init(&d, single, 1, FORMAT_E4M3, &options);
    delayed_record(&d, 4);
    delayed_step(&d, &options);
    CHECK(d.scale == 56 && single[0] == 0, "a history of one");
}

// A history of 1, then a tensor with amax 8: just what lies above 464/448 saturates, and the next scale is 56.
TEST(delayed_spike) {
    enum { N = 4096 };
    float history[16], *in = new_floats(N), *values = new_floats(N);
    DelayedScale d;
    DelayedOptions options = {0, 0, 0};
    delayed_init(&d, history, 16, FORMAT_E4M3, &options);
    for (int i = 0; i < 5; i++) {
        delayed_record(&d, 1.0f);
        delayed_step(&d, &options);
    }
    uint64_t above = 0;
    for (size_t i = 0; i < N; i++) {
        in[i] = 8.0f * ((float)i + 1) / N;
        above += in[i] > 464.0f / 448.0f;
    }
    QuantSpec spec = plain_spec(SCALING_DELAYED, FORMAT_E4M3, CONTRACT_COLS, 0);
    spec.delayed_scale = delayed_scale_in_force(&d);
    QuantResult r;
    quantize_operand(values, &r, in, 1, N, &spec);
    CHECK(r.scale == 448.0f && r.saturated == above && above > 0, "%llu saturated, expected %llu",
          (unsigned long long)r.saturated, (unsigned long long)above);
    delayed_record(&d, r.amax);
    delayed_step(&d, &options);
    CHECK(d.scale == 56.0f, "next scale %g", d.scale);
    spec.delayed_scale = 0;  // an empty history: this tensor's own amax
    quantize_operand(values, &r, in, 1, N, &spec);
    CHECK(r.scale == 56.0f && r.saturated == 0, "current scaling: %g", r.scale);
    free(in), free(values);
}

// ----------------------------------------------------------------------------------------------------------------
// Accumulators

// Small integers with scale 1: all partial sums are exact, so every model and every order gives the same bits.
TEST(integer_products_are_exact_in_every_model) {
    size_t M = 9, N = 7, K = 2048;
    float *a = new_floats(M * K), *b = new_floats(N * K), *out[4];
    for (size_t i = 0; i < M * K; i++) a[i] = (float)(rand_u32(1, RAND_TEST, 2, 0, i) % 5) - 2.0f;
    for (size_t i = 0; i < N * K; i++) b[i] = (float)(rand_u32(1, RAND_TEST, 3, 0, i) % 5) - 2.0f;
    AccumulateOperand x = accumulate_operand(a, K, 1), y = accumulate_operand(b, K, 1);
    for (int i = 0; i < 4; i++) out[i] = new_floats(M * N);
    accumulate_gemm(out[0], &x, &y, M, N, K, 1.0f, ACCUMULATE_EXACT, 0);
    accumulate_gemm(out[1], &x, &y, M, N, K, 1.0f, ACCUMULATE_FP32, 0);
    accumulate_gemm(out[2], &x, &y, M, N, K, 1.0f, ACCUMULATE_H14, 0);
    accumulate_gemm(out[3], &x, &y, M, N, K, 1.0f, ACCUMULATE_H14, 128);
    for (int i = 1; i < 4; i++) CHECK(memcmp(out[0], out[i], M * N * sizeof(float)) == 0, "model %d", i);
    for (int i = 0; i < 4; i++) free(out[i]);
    free(a), free(b);
}

TEST(h14_by_hand) {
    double p[2] = {1.0, 0x1p-13};
    CHECK(h14_add(0, p, 2) == 1.0 + 0x1p-13, "14 bits are kept");
    p[1] = 0x1.8p-13;
    CHECK(h14_add(0, p, 2) == 1.0 + 0x1p-13 && h14_add(0, p + 1, 1) == 0x1.8p-13, "the rest is cut");
    p[0] = -1.0, p[1] = -0x1.8p-14;
    CHECK(h14_add(0, p, 2) == -1.0, "toward zero");
    p[0] = 1.0, p[1] = 1.0 + 0x1p-13;
    CHECK(h14_add(0, p, 2) == 2.0, "the total is cut to 14 bits too");
    p[0] = 0, p[1] = 0;
    CHECK(h14_add(0, p, 2) == 0 && h14_add(3.0, p, 2) == 3.0, "zeros");
    p[0] = INFINITY;
    CHECK(isinf(h14_add(0, p, 2)), "Inf");
    p[1] = NAN;
    CHECK(isnan(h14_add(0, p, 2)), "NaN");
}

// Error of a model on M x N outputs, relative to the root mean square of the exact result.
static double model_error(size_t K, int positive, size_t promote) {
    size_t M = 24, N = 24;
    float *a = new_normal(M * K, 21), *b = new_normal(N * K, 22), *exact = new_floats(M * N), *out = new_floats(M * N);
    for (size_t i = 0; i < M * K; i++) a[i] = round_e4m3((positive ? fabsf(a[i]) : a[i]) * 64.0f);
    for (size_t i = 0; i < N * K; i++) b[i] = round_e4m3((positive ? fabsf(b[i]) : b[i]) * 64.0f);
    AccumulateOperand x = accumulate_operand(a, K, 1), y = accumulate_operand(b, K, 1);
    accumulate_gemm(exact, &x, &y, M, N, K, 1.0f, ACCUMULATE_EXACT, 0);
    accumulate_gemm(out, &x, &y, M, N, K, 1.0f, ACCUMULATE_H14, promote);
    double error = 0, total = 0;
    for (size_t i = 0; i < M * N; i++) {
        error += pow((double)out[i] - (double)exact[i], 2);
        total += pow((double)exact[i], 2);
    }
    free(a), free(b), free(exact), free(out);
    return sqrt(error / total);
}

TEST(h14_errors_grow_as_measured) {
    static const struct {
        size_t K;
        int positive;
        size_t promote;
        double expected;
    } rows[] = {
        {1024, 0, 0, 5.2e-4},  {1024, 0, 128, 1.2e-4},  {4096, 0, 0, 1.3e-3}, {4096, 0, 128, 1.3e-4},
        {16384, 0, 0, 3.6e-3}, {16384, 0, 128, 1.3e-4}, {1024, 1, 0, 1.4e-2}, {4096, 1, 0, 6.6e-2},
        {4096, 1, 128, 6e-4},  {16384, 1, 0, 0.24},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        double error = model_error(rows[i].K, rows[i].positive, rows[i].promote), ratio = error / rows[i].expected;
        CHECK(ratio > 1 / 1.5 && ratio < 1.5, "K=%zu%s, promote %zu: %.2e, expected %.2e", rows[i].K,
              rows[i].positive ? " positive" : "", rows[i].promote, error, rows[i].expected);
    }
}

// ----------------------------------------------------------------------------------------------------------------
// Whole products

enum { GM = 96, GN = 96, GK = 1024 };

// How one operand (outer, K) with Gaussian entries is prepared: its data, and what the format made of it.
typedef struct {
    float *data, *values;
    QuantResult result;
    size_t outer_stride, k_stride;
} Operand;

static Operand new_operand(size_t outer, uint32_t stream, const QuantSpec *spec) {
    Operand x;
    x.data = new_normal(outer * GK, stream);
    x.values = new_floats(outer * GK);
    memset(&x.result, 0, sizeof x.result);
    x.result.decode = 1.0f;
    int by_rows = spec && spec->contraction == CONTRACT_ROWS;  // then stored as (K, outer)
    x.outer_stride = by_rows ? 1 : GK;
    x.k_stride = by_rows ? outer : 1;
    if (spec && by_rows) quantize_operand(x.values, &x.result, x.data, GK, outer, spec);
    else if (spec) quantize_operand(x.values, &x.result, x.data, outer, GK, spec);
    else memcpy(x.values, x.data, outer * GK * sizeof(float));
    return x;
}
static void free_operand(Operand *x) { free(x->data), free(x->values); }

static double relative_error(const float *x, const float *reference, size_t n) {
    double error = 0, total = 0;
    for (size_t i = 0; i < n; i++) {
        error += pow((double)x[i] - (double)reference[i], 2);
        total += pow((double)reference[i], 2);
    }
    return sqrt(error / total);
}

typedef struct {
    double product, a, b;  // relative errors; of operands only where they are not transformed
    double bias;           // <out, reference> / <reference, reference> - 1
} Errors;

static Errors product_errors(Operand *a, Operand *b, FormatId out_format) {
    float *reference = new_floats(GM * GN), *out = new_floats(GM * GN);
    AccumulateOperand x = accumulate_operand(a->data, a->outer_stride, a->k_stride);
    AccumulateOperand y = accumulate_operand(b->data, b->outer_stride, b->k_stride);
    accumulate_gemm(reference, &x, &y, GM, GN, GK, 1.0f, ACCUMULATE_EXACT, 0);
    x.data = a->values, y.data = b->values;
    accumulate_gemm(out, &x, &y, GM, GN, GK, quant_alpha(&a->result, &b->result), ACCUMULATE_FP32, 0);
    format_round_array(out_format, out, out, GM * GN);
    Errors e;
    e.product = relative_error(out, reference, GM * GN);
    double dot = 0, square = 0;
    for (size_t i = 0; i < GM * GN; i++) {
        dot += (double)out[i] * (double)reference[i];
        square += (double)reference[i] * (double)reference[i];
    }
    e.bias = dot / square - 1;
    Operand *operands[2] = {a, b};
    double *errors[2] = {&e.a, &e.b};
    for (int k = 0; k < 2; k++) {
        float *back = new_floats(GM * GK),
              factor = operands[k]->result.nv ? 1.0f / operands[k]->result.scale : operands[k]->result.decode;
        for (size_t i = 0; i < GM * GK; i++) back[i] = operands[k]->values[i] * factor;
        *errors[k] = relative_error(back, operands[k]->data, GM * GK);
        free(back);
    }
    free(reference), free(out);
    return e;
}

static void check_range(const char *what, double value, double low, double high) {
    CHECK(value >= low && value <= high, "%s: %.3e, expected %.3e to %.3e", what, value, low, high);
}

static Errors rounded_product(float (*round)(float), FormatId out_format) {
    Operand a = new_operand(GM, 31, NULL), b = new_operand(GN, 32, NULL);
    for (size_t i = 0; i < GM * GK; i++) a.values[i] = round(a.data[i]);
    for (size_t i = 0; i < GN * GK; i++) b.values[i] = round(b.data[i]);
    Errors e = product_errors(&a, &b, out_format);
    free_operand(&a), free_operand(&b);
    return e;
}
static float same(float x) { return x; }

// Operand error 0.425 half-epsilons; two of them and a rounded output add in quadrature. Bounds on both sides: an error
// too small means that nothing was rounded.
TEST(product_errors_16_bit) {
    check_range("fp32", rounded_product(same, FORMAT_FP32).product, 1e-9, 1e-6);
    Errors e = rounded_product(round_tf32_rna, FORMAT_FP32);
    check_range("tf32 rna", e.product, 2.94e-4 * 0.85, 2.94e-4 * 1.15);
    check_range("tf32 rna bias", e.bias, -3e-5, 3e-5);
    e = rounded_product(round_tf32_rz, FORMAT_FP32);
    check_range("tf32 rz", e.product, 7.7e-4 * 0.85, 7.7e-4 * 1.15);
    check_range("tf32 rz bias", e.bias, -8.5e-4, -5.5e-4);
    check_range("fp16", rounded_product(round_fp16, FORMAT_FP32).product, 2.94e-4 * 0.85, 2.94e-4 * 1.15);
    check_range("fp16 out", rounded_product(round_fp16, FORMAT_FP16).product, 3.6e-4 * 0.85, 3.6e-4 * 1.15);
    check_range("bf16", rounded_product(round_bf16, FORMAT_FP32).product, 2.35e-3 * 0.85, 2.35e-3 * 1.15);
    check_range("bf16 out", rounded_product(round_bf16, FORMAT_BF16).product, 2.9e-3 * 0.85, 2.9e-3 * 1.15);
}

// Both operands of a GEMM as a recipe casts them.
static Errors recipe_product(ScalingRule rule, QuantGemm gemm, const QuantOptions *options) {
    QuantSpec a_spec = quant_spec(rule, gemm == GEMM_FPROP ? QUANT_X : QUANT_DY, gemm, options, 1, 0);
    QuantSpec b_spec = quant_spec(rule, gemm == GEMM_WGRAD ? QUANT_X : QUANT_W, gemm, options, 2, 0);
    Operand a = new_operand(GM, 33, &a_spec), b = new_operand(GN, 34, &b_spec);
    Errors e = product_errors(&a, &b, FORMAT_FP32);
    free_operand(&a), free_operand(&b);
    return e;
}

TEST(product_errors_fp8) {
    static const ScalingRule rules[] = {SCALING_TENSOR, SCALING_DELAYED, SCALING_ROW, SCALING_BLOCK, SCALING_MX};
    QuantOptions options = quant_default_options(1);
    for (size_t k = 0; k < COUNT(rules); k++)
        for (int gemm = GEMM_FPROP; gemm <= GEMM_WGRAD; gemm++) {
            char what[64];
            Errors e = recipe_product(rules[k], (QuantGemm)gemm, &options);
            int hybrid = gemm != GEMM_FPROP && k < 2;  // dY in e5m2
            snprintf(what, sizeof what, "%s gemm %d", scaling_name(rules[k]), gemm);
            check_range(what, e.product, hybrid ? 5.5e-2 : 3.5e-2, hybrid ? 6.2e-2 : 4.0e-2);
            check_range(what, e.a, hybrid ? 5.0e-2 : 2.5e-2, hybrid ? 5.5e-2 : 2.8e-2);
            check_range(what, e.b, 2.5e-2, 2.8e-2);
        }
    options.block_fp32 = 1;
    check_range("block, fp32 scales", recipe_product(SCALING_BLOCK, GEMM_FPROP, &options).product, 3.5e-2, 4.0e-2);
    options.mx_ocp = 1;
    check_range("mx OCP operand", recipe_product(SCALING_MX, GEMM_FPROP, &options).a, 2.94e-2 * 0.95, 2.94e-2 * 1.05);
}

TEST(product_errors_nvfp4) {
    QuantOptions options = quant_default_options(1);
    Errors e = recipe_product(SCALING_NV, GEMM_FPROP, &options);
    check_range("fprop", e.product, 0.135, 0.157);
    check_range("fprop x", e.a, 9.5e-2 * 0.95, 9.5e-2 * 1.05);
    check_range("fprop w", e.b, 0.111 * 0.95, 0.111 * 1.05);
    e = recipe_product(SCALING_NV, GEMM_DGRAD, &options);
    check_range("dgrad", e.product, 0.16, 0.19);
    check_range("dgrad dY", e.a, 0.137 * 0.95, 0.137 * 1.05);
    check_range("wgrad", recipe_product(SCALING_NV, GEMM_WGRAD, &options).product, 0.155, 0.18);
}

// Two channels at 100 and 300 times the rest: fp8 keeps its precision under every scale.
TEST(outlier_channels_cost_fp8_nothing) {
    static const ScalingRule rules[] = {SCALING_TENSOR, SCALING_ROW, SCALING_BLOCK, SCALING_MX};
    QuantOptions options = quant_default_options(1);
    for (size_t k = 0; k < COUNT(rules); k++) {
        QuantSpec x_spec = quant_spec(rules[k], QUANT_X, GEMM_FPROP, &options, 1, 0),
                  w_spec = quant_spec(rules[k], QUANT_W, GEMM_FPROP, &options, 2, 0);
        Operand x = new_operand(GM, 35, &x_spec), w = new_operand(GN, 36, &w_spec);
        for (size_t i = 0; i < GM; i++) x.data[i * GK + 3] *= 100.0f, x.data[i * GK + 500] *= 300.0f;
        quantize_operand(x.values, &x.result, x.data, GM, GK, &x_spec);
        check_range(scaling_name(rules[k]), product_errors(&x, &w, FORMAT_FP32).product, 3.4e-2, 3.9e-2);
        check_range("underflow", (double)x.result.underflow / (double)x.result.nonzero, 0, 2e-3);
        free_operand(&x), free_operand(&w);
    }
}

// One outlier under a tensor scale: the share that becomes zero, and the error of the rest. Blocks confine it.
TEST(one_outlier) {
    static const struct {
        float outlier;
        double zeros, rms;
    } rows[] = {{1e4f, 0.017, 2.7e-2}, {1e5f, 0.17, 0.13}, {1e6f, 0.97, 0}};
    size_t n = 256 * 256;
    float *in = new_normal(n, 41), *values = new_floats(n);
    for (size_t k = 0; k < COUNT(rows); k++) {
        in[777] = rows[k].outlier;
        QuantSpec spec = plain_spec(SCALING_TENSOR, FORMAT_E4M3, CONTRACT_COLS, 0);
        QuantResult r;
        quantize_operand(values, &r, in, 256, 256, &spec);
        double error = 0, total = 0;
        for (size_t i = 0; i < n; i++) {
            if (i == 777) continue;
            error += pow((double)(values[i] * r.decode) - (double)in[i], 2);
            total += pow((double)in[i], 2);
        }
        check_range("zeros", (double)r.underflow / (double)n, rows[k].zeros * 0.85, rows[k].zeros * 1.15);
        if (rows[k].rms > 0) check_range("rms", sqrt(error / total), rows[k].rms * 0.85, rows[k].rms * 1.15);
        spec = plain_spec(SCALING_MX, FORMAT_E4M3, CONTRACT_COLS, 0);
        quantize_operand(values, &r, in, 256, 256, &spec);
        CHECK(r.underflow <= 31, "mx: %d zeros, all in the outlier's block of 32", (int)r.underflow);
    }
    free(in), free(values);
}

// Power-of-two block scales folded into the values give the bits of scaling every chunk's sum; fp32 ones nearly.
TEST(folding_block_scales_is_exact) {
    for (int fp32_scales = 0; fp32_scales < 2; fp32_scales++) {
        size_t M = 33, N = 150, K = 700, chunks = ceil_div(K, 128), w_blocks = ceil_div(N, 128);
        float *x = new_normal(M * K, 51), *w = new_normal(N * K, 52), *xv = new_floats(M * K), *wv = new_floats(N * K);
        float *xs = new_floats(M * chunks), *ws = new_floats(w_blocks * chunks), *folded = new_floats(M * N),
              *scaled = new_floats(M * N);
        uint8_t *codes = new_bytes(N * K);
        for (size_t i = 0; i < M * K; i++) x[i] *= exp2f((float)(i / 128 % 9) - 4.0f);
        QuantOptions options = quant_default_options(1);
        options.block_fp32 = fp32_scales;
        QuantSpec x_spec = quant_spec(SCALING_BLOCK, QUANT_X, GEMM_FPROP, &options, 0, 0),
                  w_spec = quant_spec(SCALING_BLOCK, QUANT_W, GEMM_FPROP, &options, 0, 0);
        QuantResult xr, wr;
        quantize_operand(xv, &xr, x, M, K, &x_spec);
        quantize_operand(wv, &wr, w, N, K, &w_spec);
        AccumulateOperand a = accumulate_operand(xv, K, 1), b = accumulate_operand(wv, K, 1);
        accumulate_gemm(folded, &a, &b, M, N, K, quant_alpha(&xr, &wr), ACCUMULATE_FP32, 0);
        quantize_codes(codes, xs, NULL, &xr, x, M, K, &x_spec, NULL);
        for (size_t i = 0; i < M * K; i++) xv[i] = decode_e4m3(codes[i]);
        quantize_codes(codes, ws, NULL, &wr, w, N, K, &w_spec, NULL);
        for (size_t i = 0; i < N * K; i++) wv[i] = decode_e4m3(codes[i]);
        a.scale = xs, a.scale_block = 1, a.scale_outer_stride = chunks, a.scale_k_stride = 1;
        b.scale = ws, b.scale_block = 128, b.scale_outer_stride = chunks, b.scale_k_stride = 1;
        accumulate_gemm(scaled, &a, &b, M, N, K, 1.0f, ACCUMULATE_FP32, 0);
        if (fp32_scales) check_range("fp32 scales, folded", relative_error(folded, scaled, M * N), 1e-9, 1e-6);
        else
            CHECK(memcmp(folded, scaled, M * N * sizeof(float)) == 0, "folding changed bits: %g",
                  relative_error(folded, scaled, M * N));
        free(x), free(w), free(xv), free(wv), free(xs), free(ws), free(folded), free(scaled), free(codes);
    }
}

// The program's GEMM with chunks of 128 and alpha is the fp32 model, bit for bit.
TEST(matmul_equals_the_fp32_model) {
    size_t M = 37, N = 45, K = 300;
    float *x = new_normal(M * K, 61), *w = new_normal(N * K, 62), *xv = new_floats(M * K), *wv = new_floats(N * K);
    float *model = new_floats(M * N), *fast = new_floats(M * N);
    int threads = thread_count();
    void *memory = checked_calloc(matmul_scratch_bytes(threads), 1, "scratch");
    MatmulScratch scratch = matmul_scratch(memory, threads);
    for (int rule = SCALING_TENSOR; rule < SCALING_COUNT; rule++) {
        if (rule == SCALING_ROW_GWHP) continue;
        QuantOptions options = quant_default_options(1);
        QuantSpec x_spec = quant_spec((ScalingRule)rule, QUANT_X, GEMM_FPROP, &options, 0, 0);
        QuantSpec w_spec = quant_spec((ScalingRule)rule, QUANT_W, GEMM_FPROP, &options, 0, 0);
        QuantResult xr, wr;
        quantize_operand(xv, &xr, x, M, K, &x_spec);
        quantize_operand(wv, &wr, w, N, K, &w_spec);
        AccumulateOperand a = accumulate_operand(xv, K, 1), b = accumulate_operand(wv, K, 1);
        accumulate_gemm(model, &a, &b, M, N, K, quant_alpha(&xr, &wr), ACCUMULATE_FP32, 0);
        Gemm g;
        memset(&g, 0, sizeof g);
        g.M = M, g.N = N, g.K = K, g.out = fast, g.out_stride = N, g.alpha = quant_alpha(&xr, &wr), g.k_chunk = 128;
        g.a.data = xv, g.a.outer_stride = K, g.a.k_stride = 1;
        g.b.data = wv, g.b.outer_stride = K, g.b.k_stride = 1;
        gemm(&scratch, &g);
        CHECK(memcmp(model, fast, M * N * sizeof(float)) == 0, "%s: matmul.h and the model differ by %g",
              scaling_name((ScalingRule)rule), relative_error(fast, model, M * N));
    }
    free(memory), free(x), free(w), free(xv), free(wv), free(model), free(fast);
}

// ----------------------------------------------------------------------------------------------------------------
// The Hadamard transform

TEST(hadamard_is_the_signed_sylvester_matrix) {
    // columns of the identity come out as columns of H16/4 * signs: +-1/4, with parity of (row & column) and the sign
    // mask
    float in[256] = {0}, out[256];
    uint64_t nonfinite = 0;
    static const int negated[] = {3, 5, 6, 7, 8, 9, 10, 12, 14, 15};
    for (int i = 0; i < 16; i++) in[i * 16 + i] = 1.0f;
    hadamard_transform(out, in, 16, 16, &nonfinite);
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 16; j++) {
            float sign = __builtin_parity((unsigned)(i & j)) ? -1.0f : 1.0f;
            for (size_t k = 0; k < COUNT(negated); k++)
                if (negated[k] == j) sign = -sign;
            CHECK(out[i * 16 + j] == sign * 0.25f, "(%d,%d): %g", i, j, out[i * 16 + j]);
            float product = 0;
            for (int k = 0; k < 16; k++) product += out[k * 16 + i] * out[k * 16 + j];
            CHECK(product == (i == j ? 1.0f : 0.0f), "not orthogonal: (%d,%d) %g", i, j, product);
        }
}

TEST(hadamard_cancels_in_wgrad) {
    size_t tokens = 512, cols = 70;
    float *x = new_normal(tokens * cols, 71), *dy = new_normal(tokens * cols, 72), *xt = new_floats(tokens * cols),
          *dyt = new_floats(tokens * cols);
    float *plain = new_floats(cols * cols), *transformed = new_floats(cols * cols);
    uint64_t nonfinite = 0;
    hadamard_transform(xt, x, tokens, cols, &nonfinite);
    hadamard_transform(dyt, dy, tokens, cols, &nonfinite);
    AccumulateOperand a = accumulate_operand(dy, 1, cols), b = accumulate_operand(x, 1, cols);
    accumulate_gemm(plain, &a, &b, cols, cols, tokens, 1.0f, ACCUMULATE_EXACT, 0);
    a.data = dyt, b.data = xt;
    accumulate_gemm(transformed, &a, &b, cols, cols, tokens, 1.0f, ACCUMULATE_EXACT, 0);
    check_range("bf16 rounding of the transform", relative_error(transformed, plain, cols * cols), 1e-4, 2e-2);
    CHECK(nonfinite == 0, "nonfinite");
    x[20 * cols + 3] = NAN;  // spreads over its group of 16, but is counted once
    QuantOptions options = quant_default_options(1);
    QuantSpec spec = quant_spec(SCALING_NV, QUANT_X, GEMM_WGRAD, &options, 0, 0);
    QuantResult r;
    quantize_operand(xt, &r, x, tokens, cols, &spec);
    CHECK(r.nonfinite == 1 && isfinite(r.amax), "nonfinite %d", (int)r.nonfinite);
    free(x), free(dy), free(xt), free(dyt), free(plain), free(transformed);
}

// ----------------------------------------------------------------------------------------------------------------
// Stochastic rounding in nv: unbiased, where rounding to nearest is not

TEST(stochastic_gradients_are_unbiased) {
    enum { N = 16, DRAWS = 4000 };
    float in[N] = {6.0f,  0.1f, -0.2f, 0.3f,  0.7f, -1.1f, 1.4f,  2.2f,
                   -2.6f, 3.3f, 3.9f,  -4.4f, 5.1f, 5.9f,  0.02f, -0.01f},
          values[N];
    double mean[N] = {0};
    QuantSpec spec = plain_spec(SCALING_NV, FORMAT_E2M1, CONTRACT_COLS, 0);
    spec.stochastic = 1;
    QuantResult r;
    for (uint32_t step = 0; step < DRAWS; step++) {
        spec.step = step;
        quantize_operand(values, &r, in, 1, N, &spec);
        for (int i = 0; i < N; i++) mean[i] += (double)(values[i] / r.scale) / DRAWS;
    }
    for (int i = 0; i < N;
         i++)  // spacing at most 2, so the standard error is below 1/sqrt(DRAWS); bits cost up to 2/256
        CHECK(fabs(mean[i] - (double)in[i]) < 4 / sqrt(DRAWS) *
                                                      (fabsf(in[i]) > 4   ? 1
                                                       : fabsf(in[i]) > 2 ? 0.5
                                                                          : 0.25) +
                                                  0.008,
              "%g: mean %g", in[i], mean[i]);
}

TEST(recipes_cast_what_they_should) {
    QuantOptions options = quant_default_options(5);
    static const struct {
        ScalingRule rule;
        QuantRole role;
        QuantGemm gemm;
        ScalingRule scaling;
        FormatId format;
        QuantAxis axis;
        int square, pow2, sr, rht;
    } rows[] = {
        {SCALING_TENSOR, QUANT_X, GEMM_FPROP, SCALING_TENSOR, FORMAT_E4M3, CONTRACT_COLS, 0, 0, 0, 0},
        {SCALING_TENSOR, QUANT_DY, GEMM_DGRAD, SCALING_TENSOR, FORMAT_E5M2, CONTRACT_COLS, 0, 0, 0, 0},
        {SCALING_DELAYED, QUANT_DY, GEMM_WGRAD, SCALING_DELAYED, FORMAT_E5M2, CONTRACT_ROWS, 0, 0, 0, 0},
        {SCALING_ROW, QUANT_W, GEMM_DGRAD, SCALING_ROW, FORMAT_E4M3, CONTRACT_ROWS, 0, 0, 0, 0},
        {SCALING_ROW, QUANT_X, GEMM_WGRAD, SCALING_ROW, FORMAT_E4M3, CONTRACT_ROWS, 0, 0, 0, 0},
        {SCALING_ROW_GWHP, QUANT_X, GEMM_WGRAD, SCALING_NONE, FORMAT_E4M3, CONTRACT_ROWS, 0, 0, 0, 0},
        {SCALING_ROW_GWHP, QUANT_W, GEMM_DGRAD, SCALING_TENSOR, FORMAT_E4M3, CONTRACT_ROWS, 0, 1, 0, 0},
        {SCALING_ROW_GWHP, QUANT_W, GEMM_FPROP, SCALING_ROW, FORMAT_E4M3, CONTRACT_COLS, 0, 0, 0, 0},
        {SCALING_BLOCK, QUANT_W, GEMM_FPROP, SCALING_BLOCK, FORMAT_E4M3, CONTRACT_COLS, 1, 1, 0, 0},
        {SCALING_BLOCK, QUANT_DY, GEMM_WGRAD, SCALING_BLOCK, FORMAT_E4M3, CONTRACT_ROWS, 0, 1, 0, 0},
        {SCALING_MX, QUANT_W, GEMM_DGRAD, SCALING_MX, FORMAT_E4M3, CONTRACT_ROWS, 0, 0, 0, 0},
        {SCALING_NV, QUANT_X, GEMM_FPROP, SCALING_NV, FORMAT_E2M1, CONTRACT_COLS, 0, 0, 0, 0},
        {SCALING_NV, QUANT_W, GEMM_DGRAD, SCALING_NV, FORMAT_E2M1, CONTRACT_ROWS, 1, 0, 0, 0},
        {SCALING_NV, QUANT_DY, GEMM_DGRAD, SCALING_NV, FORMAT_E2M1, CONTRACT_COLS, 0, 0, 1, 0},
        {SCALING_NV, QUANT_DY, GEMM_WGRAD, SCALING_NV, FORMAT_E2M1, CONTRACT_ROWS, 0, 0, 1, 1},
        {SCALING_NV, QUANT_X, GEMM_WGRAD, SCALING_NV, FORMAT_E2M1, CONTRACT_ROWS, 0, 0, 0, 1},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        QuantSpec s = quant_spec(rows[i].rule, rows[i].role, rows[i].gemm, &options, 3, 9);
        CHECK(s.scaling == rows[i].scaling && s.format == rows[i].format && s.contraction == rows[i].axis &&
                  s.square == rows[i].square && s.pow2 == rows[i].pow2 && s.stochastic == rows[i].sr &&
                  s.hadamard == rows[i].rht && s.seed == 5 && s.step == 9,
              "row %zu", i);
    }
    options.hybrid = 1;
    CHECK(quant_spec(SCALING_MX, QUANT_DY, GEMM_DGRAD, &options, 0, 0).format == FORMAT_E5M2, "hybrid mx");
    CHECK(quant_spec(SCALING_MX, QUANT_X, GEMM_WGRAD, &options, 0, 0).format == FORMAT_E4M3, "hybrid mx, x");
}

int main(void) {
    RUN(example_tensor_scale);
    RUN(example_mx_block);
    RUN(example_nv_block);
    RUN(power_of_two_scales_agree);
    RUN(edge_scales);
    RUN(recipes_equal_a_plain_recomputation);
    RUN(square_blocks_do_not_depend_on_the_orientation);
    RUN(threads_change_nothing);
    RUN(zeros_of_either_sign);
    RUN(magnitudes_from_subnormal_to_huge);
    RUN(one_nan_anywhere);
    RUN(one_inf);
    RUN(delayed_trace);
    RUN(delayed_options);
    RUN(delayed_spike);
    RUN(integer_products_are_exact_in_every_model);
    RUN(h14_by_hand);
    RUN(h14_errors_grow_as_measured);
    RUN(product_errors_16_bit);
    RUN(product_errors_fp8);
    RUN(product_errors_nvfp4);
    RUN(outlier_channels_cost_fp8_nothing);
    RUN(one_outlier);
    RUN(folding_block_scales_is_exact);
    RUN(matmul_equals_the_fp32_model);
    RUN(hadamard_is_the_signed_sylvester_matrix);
    RUN(hadamard_cancels_in_wgrad);
    RUN(stochastic_gradients_are_unbiased);
    RUN(recipes_cast_what_they_should);
    return test_summary();
}
