// formats.h: every number format of the program: what it holds, and how a float becomes one of its values.
//
// Two implementations stand side by side:
//   * format_encode / format_decode, driven by the descriptor table below: one integer algorithm, slow and plain, the
//     definition that everything else is tested against;
//   * encode_F, decode_F, round_F per format: branch-free, so that a loop over them vectorises. encode gives the code
//     (the bits as stored), decode its value, round the nearest representable value as a float (decode of encode).
// `make test-exhaustive` compares both, and the CUDA headers where they are installed, on all 2^32 floats.
//
// Rounding is to nearest, ties to even, directly from fp32 (through a second narrow format or from double it would
// round twice). fp8 and fp4 casts saturate, Inf included; fp16 and bf16 never do (a loss scaler waits for the Inf).
// NaN stays NaN but loses sign and payload; fp4 has none and writes +6, so non-finite inputs must be counted first.
// Needs gradual underflow and real NaN tests: no -ffast-math (formats_self_test finds out at start).
//
// Sources: IEEE 754; OCP OFP8 (e4m3 "fn", e5m2) and MX v1.0 (e8m0, e2m1); stochastic rounding as in Gupta et al. 2015.
#ifndef LLMC_FORMATS_H
#define LLMC_FORMATS_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

// The branch-free functions also compile for the device when nvcc reads this file.
#ifdef __CUDACC__
#define FORMAT_FN static inline __host__ __device__
#else
#define FORMAT_FN static inline
#endif

typedef enum {
    FORMAT_FP32,
    FORMAT_TF32,  // 32 bits stored, 19 of them used: how a GEMM reads an operand, never how a tensor is stored
    FORMAT_FP16,
    FORMAT_BF16,
    FORMAT_E4M3,  // OCP "fn"; AMD's "fnuz" is another format
    FORMAT_E5M2,
    FORMAT_E8M0,   // a power of two: the scale of an MX block
    FORMAT_E2M1,   // fp4: 0 0.5 1 1.5 2 3 4 6
    FORMAT_UE4M3,  // e4m3 with sign bit 0: the scale of an NVFP4 block
    FORMAT_COUNT
} FormatId;

// What the all-ones exponent means.
typedef enum { SPECIALS_IEEE, SPECIALS_ONE_NAN, SPECIALS_NONE } FormatSpecials;

typedef struct {
    const char *name;
    int sign_bits, exponent_bits, mantissa_bits, bias;
    int stored_bits;  // of one element in memory
    int code_shift;   // unused low bits of a code (tf32 only)
    FormatSpecials specials;
    uint32_t max_code;       // largest finite value, as a code before code_shift
    uint32_t overflow_code;  // what a non-saturating cast writes beyond it: Inf, else NaN, else max
    uint32_t nan_code;       // what a cast writes for NaN (fp4: +6)
    float max, min_normal, min_subnormal;
    float epsilon;  // distance from 1 to the next value; a rounding errs by at most epsilon/2, relatively
} Format;

// One row per format. min_normal = 2^(1-bias) and min_subnormal = 2^(1-bias-M) throughout; max is (2-2^-M) 2^bias for
// the IEEE-like ones, while e4m3 and e2m1 also use the all-ones exponent for numbers. e8m0 has neither zero nor
// subnormals.
static inline const Format *format_info(FormatId id) {
    // clang-format off
    static const Format table[FORMAT_COUNT] = {
        // name    s  E  M   bias bits shift specials          max code    overflow    NaN
        //         max              min normal       min subnormal    epsilon
        {"fp32",   1, 8, 23, 127, 32, 0,  SPECIALS_IEEE,    0x7f7fffffu, 0x7f800000u, 0x7fffffffu,
                   3.4028234663852886e38f, 0x1p-126f, 0x1p-149f, 0x1p-23f},
        {"tf32",   1, 8, 10, 127, 32, 13, SPECIALS_IEEE,    0x3fbffu,    0x3fc00u,    0x3fe00u,
                   3.4011621342146535e38f, 0x1p-126f, 0x1p-136f, 0x1p-10f},
        {"fp16",   1, 5, 10, 15,  16, 0,  SPECIALS_IEEE,    0x7bffu,     0x7c00u,     0x7fffu,
                   65504.0f, 0x1p-14f, 0x1p-24f, 0x1p-10f},
        {"bf16",   1, 8, 7,  127, 16, 0,  SPECIALS_IEEE,    0x7f7fu,     0x7f80u,     0x7fffu,
                   3.3895313892515355e38f, 0x1p-126f, 0x1p-133f, 0x1p-7f},
        {"e4m3",   1, 4, 3,  7,   8,  0,  SPECIALS_ONE_NAN, 0x7eu,       0x7fu,       0x7fu,
                   448.0f, 0x1p-6f, 0x1p-9f, 0x1p-3f},
        {"e5m2",   1, 5, 2,  15,  8,  0,  SPECIALS_IEEE,    0x7bu,       0x7cu,       0x7fu,
                   57344.0f, 0x1p-14f, 0x1p-16f, 0x1p-2f},
        {"e8m0",   0, 8, 0,  127, 8,  0,  SPECIALS_ONE_NAN, 0xfeu,       0xffu,       0xffu,
                   0x1p127f, 0x1p-127f, 0x1p-127f, 1.0f},
        {"e2m1",   1, 2, 1,  1,   4,  0,  SPECIALS_NONE,    0x7u,        0x7u,        0x7u,
                   6.0f, 1.0f, 0.5f, 0.5f},
        {"ue4m3",  0, 4, 3,  7,   8,  0,  SPECIALS_ONE_NAN, 0x7eu,       0x7fu,       0x7fu,
                   448.0f, 0x1p-6f, 0x1p-9f, 0x1p-3f},
    };
    // clang-format on
    return &table[id];
}

static inline const char *format_name(FormatId id) { return format_info(id)->name; }
static inline float format_epsilon(FormatId id) { return format_info(id)->epsilon; }
static inline float format_max(FormatId id) { return format_info(id)->max; }
// Bytes of `count` stored elements; two fp4 values share one byte.
static inline size_t format_bytes(FormatId id, size_t count) {
    return (count * (size_t)format_info(id)->stored_bits + 7) / 8;
}

// How the elements of a tensor in a narrow format get their scale (quantize.h has the arithmetic).
typedef enum {
    SCALING_NONE,
    SCALING_TENSOR,    // one per tensor, from its amax now             (fp8-current)
    SCALING_DELAYED,   // one per tensor, from the amaxes of past steps (fp8-delayed)
    SCALING_ROW,       // one per row along the contraction of the GEMM (fp8-row)
    SCALING_ROW_GWHP,  // as row, weights for dgrad per tensor, wgrad in bf16
    SCALING_BLOCK,     // 1x128 along the contraction, weights 128x128  (fp8-block)
    SCALING_MX,        // 1x32 along the contraction, e8m0              (mxfp8)
    SCALING_NV,        // 1x16 (weights 16x16) ue4m3 under one fp32     (nvfp4)
    SCALING_COUNT
} ScalingRule;

static inline const char *scaling_name(ScalingRule rule) {
    static const char *const names[SCALING_COUNT] = {"none",     "tensor", "delayed", "row",
                                                     "row_gwhp", "block",  "mx",      "nv"};
    return names[rule];
}

// ----------------------------------------------------------------------------------------------------------------
// Bits

FORMAT_FN uint32_t bits_of_float(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

FORMAT_FN float float_of_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

// Sign-and-magnitude split of a float for the integer algorithms: |x| = significand * 2^exponent, exactly.
typedef struct {
    uint32_t significand;  // below 2^24
    int exponent;          // of its lowest bit
    int leading;           // exponent of its leading bit (for zero: below every format's range)
} FloatParts;

static inline FloatParts float_parts(uint32_t magnitude_bits) {
    FloatParts parts;
    int field = (int)(magnitude_bits >> 23);
    parts.significand = (magnitude_bits & 0x7fffffu) | (field ? 0x800000u : 0);
    parts.exponent = (field ? field : 1) - 150;
    parts.leading = parts.exponent + (parts.significand ? 31 - __builtin_clz(parts.significand) : -1);
    return parts;
}

// ----------------------------------------------------------------------------------------------------------------
// The definition: any format from its descriptor (all but e8m0, which rounds differently and has functions of its own)

// What both generic casts share: a result for NaN, Inf and overflow. Sets *done if that settles it.
static inline uint32_t format_special_code(const Format *f, float x, int saturate, int *done) {
    uint32_t bits = bits_of_float(x), magnitude = bits & 0x7fffffffu;
    uint32_t sign = f->sign_bits ? bits >> 31 << (f->exponent_bits + f->mantissa_bits) : 0;
    *done = magnitude >= 0x7f800000u;
    if (magnitude > 0x7f800000u) return f->nan_code << f->code_shift;
    return (sign | (saturate ? f->max_code : f->overflow_code)) << f->code_shift;
}

// Nearest code, ties to even. In units of the spacing at |x|, 2^quantum, the value is an integer plus a remainder; a
// carry out of the mantissa runs into the exponent, which is just what the next binade (or the first normal) is.
static inline uint32_t format_encode(const Format *f, float x, int saturate) {
    int special;
    uint32_t bits = bits_of_float(x), limit_code = format_special_code(f, x, saturate, &special);
    if (special) return limit_code;
    FloatParts parts = float_parts(bits & 0x7fffffffu);
    int min_leading = 1 - f->bias, M = f->mantissa_bits;
    int shift = (parts.leading > min_leading ? parts.leading : min_leading) - M - parts.exponent;
    uint32_t rounded = 0;
    if (shift <= 25) {  // beyond that even the largest significand is below half a unit
        uint64_t half = shift ? 1ull << (shift - 1) : 0, below = shift ? (1ull << shift) - 1 : 0;
        uint64_t remainder = parts.significand & below;
        rounded = (uint32_t)((uint64_t)parts.significand >> shift);
        if (shift && (remainder > half || (remainder == half && (rounded & 1)))) rounded++;
    }
    uint32_t code = parts.leading < min_leading ? rounded : ((uint32_t)(parts.leading - min_leading) << M) + rounded;
    if (code > f->max_code) return limit_code;
    uint32_t sign = f->sign_bits ? bits >> 31 << (f->exponent_bits + M) : 0;
    return (code | sign) << f->code_shift;
}

// Stochastic: up to the next code away from zero with probability remainder / spacing, taken to `random_bits` bits:
// floor(2^random_bits * remainder / spacing) + random >= 2^random_bits, random in [0, 2^random_bits). Exact values
// never move. No finite value ever becomes Inf; Inf stays Inf where the format has one and `saturate` is 0.
static inline uint32_t format_encode_stochastic(const Format *f, float x, uint32_t random, int random_bits,
                                                int saturate) {
    int special;
    uint32_t bits = bits_of_float(x), limit_code = format_special_code(f, x, saturate, &special);
    if (special) return limit_code;
    FloatParts parts = float_parts(bits & 0x7fffffffu);
    int min_leading = 1 - f->bias, M = f->mantissa_bits;
    int shift = (parts.leading > min_leading ? parts.leading : min_leading) - M - parts.exponent;
    uint64_t down = shift < 64 ? (uint64_t)parts.significand >> shift : 0;
    uint64_t remainder = shift < 64 ? (uint64_t)parts.significand & ((1ull << shift) - 1) : parts.significand;
    // remainder * 2^random_bits / 2^shift without losing low bits: shift the smaller way round
    uint64_t fraction = random_bits >= shift       ? remainder << (random_bits - shift)
                        : shift - random_bits < 64 ? remainder >> (shift - random_bits)
                                                   : 0;
    down += fraction + random >= 1ull << random_bits;
    uint32_t code = (uint32_t)down;
    if (parts.leading >= min_leading) code += (uint32_t)(parts.leading - min_leading) << M;
    if (code > f->max_code) code = f->max_code;
    uint32_t sign = f->sign_bits ? bits >> 31 << (f->exponent_bits + M) : 0;
    return (code | sign) << f->code_shift;
}

// The value of a code.
static inline float format_decode(const Format *f, uint32_t code) {
    code >>= f->code_shift;
    int M = f->mantissa_bits, all_ones = (1 << f->exponent_bits) - 1;
    uint32_t mantissa = code & ((1u << M) - 1);
    int field = (int)(code >> M) & all_ones;
    float sign = f->sign_bits && (code >> (f->exponent_bits + M) & 1) ? -1.0f : 1.0f;
    if (f->specials == SPECIALS_IEEE && field == all_ones) return mantissa ? NAN : sign * INFINITY;
    if (f->specials == SPECIALS_ONE_NAN && field == all_ones && mantissa == (1u << M) - 1) return NAN;
    if (M == 0) return ldexpf(1.0f, field - f->bias);  // e8m0: no zero
    return sign * ldexpf((float)(mantissa + (field ? 1u << M : 0)), (field ? field : 1) - f->bias - M);
}

// ----------------------------------------------------------------------------------------------------------------
// fp32-range formats: round the low bits of the pattern. The NaN test is part of the format: without it 0x7fffffff
// would carry into the sign and become -0.

FORMAT_FN int is_nan_bits(uint32_t bits) { return (bits & 0x7fffffffu) > 0x7f800000u; }

FORMAT_FN uint16_t encode_bf16(float x) {
    uint32_t bits = bits_of_float(x);
    uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
    return (uint16_t)(is_nan_bits(bits) ? 0x7fffu : rounded);
}
FORMAT_FN float decode_bf16(uint16_t code) { return float_of_bits((uint32_t)code << 16); }
FORMAT_FN float round_bf16(float x) {
    uint32_t bits = bits_of_float(x);
    uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1)) & 0xffff0000u;
    return float_of_bits(is_nan_bits(bits) ? 0x7fff0000u : rounded);
}

// tf32: nearest-even; nearest with ties away (PTX cvt.rna); toward zero (a tensor core fed raw fp32 reads 19 bits).
FORMAT_FN float round_tf32(float x) {
    uint32_t bits = bits_of_float(x);
    uint32_t rounded = (bits + 0xfffu + (bits >> 13 & 1)) & 0xffffe000u;
    return float_of_bits(is_nan_bits(bits) ? 0x7fc00000u : rounded);
}
FORMAT_FN float round_tf32_rna(float x) {
    uint32_t bits = bits_of_float(x);
    return float_of_bits(is_nan_bits(bits) ? 0x7fc00000u : (bits + 0x1000u) & 0xffffe000u);
}
FORMAT_FN float round_tf32_rz(float x) {
    uint32_t bits = bits_of_float(x);
    return float_of_bits(is_nan_bits(bits) ? 0x7fc00000u : bits & 0xffffe000u);
}

// ----------------------------------------------------------------------------------------------------------------
// Formats of a narrower range: fp16, fp8, fp4.
//
// Adding c = 2^(e + 23 - M) to |x|, with e its exponent but not below the smallest normal's, leaves |x| rounded to the
// format's spacing at |x|: the addition itself does RNE, for normals and subnormals alike. The low bits of the sum
// count units of that spacing, which is the mantissa of the code; subtracting c gives the value. `clamp` is applied
// first: the largest value where casts saturate, else the value that the overflow code would have. min_field is the
// exponent field of the smallest normal as fp32. All arguments but x are constants: everything folds.

// The clamp compares patterns, which order as magnitudes do (of a float comparison gcc may make a branch). It turns NaN
// into `clamp`, so callers put the NaN back.
typedef struct {
    uint32_t field;  // max(exponent field, min_field), in place
    float sum;       // |x| + c
    float c;
} NarrowSum;

FORMAT_FN NarrowSum narrow_sum(float x, int M, uint32_t min_field, float clamp) {
    NarrowSum s;
    uint32_t bits = bits_of_float(x) & 0x7fffffffu, limit = bits_of_float(clamp);
    bits = bits < limit ? bits : limit;
    uint32_t field = bits & 0x7f800000u;
    s.field = field > min_field << 23 ? field : min_field << 23;
    s.c = float_of_bits(s.field + ((uint32_t)(23 - M) << 23));
    s.sum = float_of_bits(bits) + s.c;
    return s;
}

FORMAT_FN float narrow_round(float x, int M, uint32_t min_field, float clamp, float nan) {
    NarrowSum s = narrow_sum(x, M, min_field, clamp);
    uint32_t bits = bits_of_float(x), rounded = bits_of_float(s.sum - s.c) | (bits & 0x80000000u);
    return float_of_bits(is_nan_bits(bits) ? bits_of_float(nan) : rounded);
}

FORMAT_FN uint32_t narrow_encode(float x, int M, uint32_t min_field, float clamp, int sign_position,
                                 uint32_t nan_code) {
    NarrowSum s = narrow_sum(x, M, min_field, clamp);
    uint32_t code = ((s.field - (min_field << 23)) >> (23 - M)) + (bits_of_float(s.sum) - bits_of_float(s.c));
    code |= bits_of_float(x) >> 31 << sign_position;
    return is_nan_bits(bits_of_float(x)) ? nan_code : code;
}

// As narrow_encode, stochastically. |x| in units of 2^-random_bits spacings, cut to an integer (exact until the cut),
// plus the random bits, carries into whole units just where the fraction and the random number reach 1 together.
FORMAT_FN uint32_t narrow_encode_stochastic(float x, int M, uint32_t min_field, float clamp, int sign_position,
                                            uint32_t nan_code, uint32_t random, int random_bits) {
    // NaN becomes clamp as in narrow_sum: the conversion to int must not see one
    uint32_t bits = bits_of_float(x) & 0x7fffffffu, limit = bits_of_float(clamp);
    bits = bits < limit ? bits : limit;
    uint32_t field = bits & 0x7f800000u;
    field = field > min_field << 23 ? field : min_field << 23;
    float fine_units = float_of_bits(bits) * float_of_bits(((uint32_t)(254 + M + random_bits) << 23) - field);
    uint32_t units = (uint32_t)((int32_t)fine_units + (int32_t)random) >> random_bits;
    uint32_t code = ((field - (min_field << 23)) >> (23 - M)) + units;
    code |= bits_of_float(x) >> 31 << sign_position;
    return is_nan_bits(bits_of_float(x)) ? nan_code : code;
}

// Value of a code without sign bit: a shift for normals, an exact product for the few subnormals. (Scaling the shifted
// pattern by 2^(127-bias) would do both at once, but through fp32 subnormals, which some processors handle slowly.)
FORMAT_FN float narrow_decode(uint32_t code, int M, uint32_t min_field, float min_subnormal) {
    float normal = float_of_bits((code << (23 - M)) + ((min_field - 1) << 23));
    float subnormal = (float)(int32_t)code * min_subnormal;
    return code >> M ? normal : subnormal;
}
FORMAT_FN float with_sign(float magnitude, uint32_t sign) {
    return float_of_bits(bits_of_float(magnitude) | sign << 31);
}

FORMAT_FN uint16_t encode_fp16(float x) { return (uint16_t)narrow_encode(x, 10, 113, 65536.0f, 15, 0x7fffu); }
FORMAT_FN float decode_fp16(uint16_t code) {
    uint32_t c = code & 0x7fffu;
    float x = narrow_decode(c, 10, 113, 0x1p-24f);
    x = c == 0x7c00u ? float_of_bits(0x7f800000u) : c > 0x7c00u ? float_of_bits(0x7fc00000u) : x;
    return with_sign(x, code >> 15);
}
FORMAT_FN float round_fp16(float x) {
    uint32_t r = bits_of_float(narrow_round(x, 10, 113, 65536.0f, NAN));
    // 65536 is where Inf begins
    return float_of_bits((r & 0x7fffffffu) == 0x47800000u ? (r & 0x80000000u) | 0x7f800000u : r);
}

FORMAT_FN uint8_t encode_e4m3(float x) { return (uint8_t)narrow_encode(x, 3, 121, 448.0f, 7, 0x7fu); }
FORMAT_FN uint8_t encode_e4m3_nosat(float x) { return (uint8_t)narrow_encode(x, 3, 121, 480.0f, 7, 0x7fu); }
FORMAT_FN float round_e4m3(float x) { return narrow_round(x, 3, 121, 448.0f, NAN); }
FORMAT_FN float decode_e4m3(uint8_t code) {
    uint32_t c = code & 0x7fu;
    float x = narrow_decode(c, 3, 121, 0x1p-9f);
    return with_sign(c == 0x7fu ? float_of_bits(0x7fc00000u) : x, (uint32_t)code >> 7);
}

FORMAT_FN uint8_t encode_e5m2(float x) { return (uint8_t)narrow_encode(x, 2, 113, 57344.0f, 7, 0x7fu); }
FORMAT_FN uint8_t encode_e5m2_nosat(float x) { return (uint8_t)narrow_encode(x, 2, 113, 65536.0f, 7, 0x7fu); }
FORMAT_FN float round_e5m2(float x) { return narrow_round(x, 2, 113, 57344.0f, NAN); }
FORMAT_FN float decode_e5m2(uint8_t code) {
    uint32_t c = code & 0x7fu;
    float x = narrow_decode(c, 2, 113, 0x1p-16f);
    x = c == 0x7cu ? float_of_bits(0x7f800000u) : c > 0x7cu ? float_of_bits(0x7fc00000u) : x;
    return with_sign(x, (uint32_t)code >> 7);
}

FORMAT_FN uint8_t encode_e2m1(float x) { return (uint8_t)narrow_encode(x, 1, 127, 6.0f, 3, 0x7u); }
FORMAT_FN float round_e2m1(float x) { return narrow_round(x, 1, 127, 6.0f, 6.0f); }
FORMAT_FN float decode_e2m1(uint8_t code) {
    return with_sign(narrow_decode(code & 7u, 1, 127, 0.5f), (uint32_t)code >> 3 & 1);
}

// Scales are never negative; a sign would be dropped.
FORMAT_FN uint8_t encode_ue4m3(float x) { return (uint8_t)(encode_e4m3(x) & 0x7fu); }
FORMAT_FN float decode_ue4m3(uint8_t code) { return decode_e4m3((uint8_t)(code & 0x7fu)); }

// ----------------------------------------------------------------------------------------------------------------
// e8m0: 2^(code - 127). A block scale must not be smaller than what it scales, so rounding is up; sign ignored.

// Smallest power of two >= x, saturating at both ends (Inf too).
FORMAT_FN uint8_t encode_e8m0(float x) {
    uint32_t bits = bits_of_float(x) & 0x7fffffffu, field = bits >> 23, mantissa = bits & 0x7fffffu;
    uint32_t up = field == 0 ? mantissa > 0x400000u : mantissa != 0 && field != 254;
    uint32_t code = field == 255 ? 254u : field + up;
    return (uint8_t)(bits > 0x7f800000u ? 255u : code);
}
// As above, but NaN where 2^127 is too small.
FORMAT_FN uint8_t encode_e8m0_nosat(float x) {
    uint32_t bits = bits_of_float(x) & 0x7fffffffu;
    return (uint8_t)(bits > 0x7f000000u ? 255u : encode_e8m0(x));
}
// Largest power of two <= x; below 2^-127 still code 0.
FORMAT_FN uint8_t encode_e8m0_rz(float x) {
    uint32_t bits = bits_of_float(x) & 0x7fffffffu, field = bits >> 23;
    uint32_t code = field == 255 ? 254u : field;
    return (uint8_t)(bits > 0x7f800000u ? 255u : code);
}
FORMAT_FN float decode_e8m0(uint8_t code) {
    uint32_t bits = code == 0 ? 0x00400000u : (uint32_t)code << 23;
    return float_of_bits(code == 255 ? 0x7fc00000u : bits);
}
// 1 / decode_e8m0(code), exact: what elements are multiplied by. Code 254 gives 2^-127, a subnormal.
FORMAT_FN float encode_scale_e8m0(uint8_t code) {
    uint32_t bits = code == 254 ? 0x00400000u : (uint32_t)(254 - code) << 23;
    return float_of_bits(code == 255 ? 0x7fc00000u : bits);
}

// ----------------------------------------------------------------------------------------------------------------
// Stochastic rounding. The random bits come from the caller (Philox by seed, step and element index: rand.h), so that
// the result depends on neither threads nor ranks.
//
// GPUs use these functions too, also those with an instruction for it (PTX: cvt.rs, on sm_100a and sm_103a; ptxas
// refuses it for sm_120a). Its four-wide forms, to e2m1, e4m3 and e5m2, take 32 random bits for four numbers; the
// manual says which 16 belong to which two, not how they share them, nor which of the discarded bits the random ones
// meet. Codes would not be the same on every card, which a run that is resumed elsewhere, and every test of a cast,
// counts on; and nobody without that card could check them (doc/numerics.md).

// random: 16 bits. P(away from zero) = low half / 65536 exactly, also for subnormals. Finite never becomes Inf.
FORMAT_FN uint16_t sr_bf16(float x, uint32_t random) {
    uint32_t bits = bits_of_float(x), sum = bits + (random & 0xffffu), magnitude = bits & 0x7fffffffu;
    uint32_t code = (sum & 0x7fffffffu) >= 0x7f800000u ? (bits >> 16 & 0x8000u) | 0x7f7fu : sum >> 16;
    code = magnitude == 0x7f800000u ? bits >> 16 : code;
    return (uint16_t)(magnitude > 0x7f800000u ? 0x7fffu : code);
}
FORMAT_FN float round_sr_bf16(float x, uint32_t random) { return decode_bf16(sr_bf16(x, random)); }

// random: 8 bits.
FORMAT_FN uint8_t sr_e2m1(float x, uint32_t random) {
    return (uint8_t)narrow_encode_stochastic(x, 1, 127, 6.0f, 3, 0x7u, random & 0xffu, 8);
}
FORMAT_FN uint8_t sr_e4m3(float x, uint32_t random) {
    return (uint8_t)narrow_encode_stochastic(x, 3, 121, 448.0f, 7, 0x7fu, random & 0xffu, 8);
}
FORMAT_FN uint8_t sr_e5m2(float x, uint32_t random) {
    return (uint8_t)narrow_encode_stochastic(x, 2, 113, 57344.0f, 7, 0x7fu, random & 0xffu, 8);
}

// ----------------------------------------------------------------------------------------------------------------
// Weights kept in bf16 without an fp32 master

// One compensated update of weight w by `update`, with c (bf16 too, starts at 0) holding what earlier updates
// overshot. Each rounding is a bf16 one; no term may be reordered.
FORMAT_FN void kahan_update_bf16(float *w, float *c, float update) {
    float y = update - *c;
    float t = round_bf16(*w + y);
    *c = round_bf16((t - *w) - y);
    *w = t;
}

// ----------------------------------------------------------------------------------------------------------------
// Arrays and dispatch

// The nearest representable value in format `id`, as training casts do it (fp8, fp4: saturating; e8m0: up; scales
// unsigned). A constant `id` leaves one of the functions above.
FORMAT_FN float format_round(FormatId id, float x) {
    switch (id) {
        case FORMAT_TF32: return round_tf32(x);
        case FORMAT_FP16: return round_fp16(x);
        case FORMAT_BF16: return round_bf16(x);
        case FORMAT_E4M3: return round_e4m3(x);
        case FORMAT_E5M2: return round_e5m2(x);
        case FORMAT_E8M0: return decode_e8m0(encode_e8m0(x));
        case FORMAT_E2M1: return round_e2m1(x);
        case FORMAT_UE4M3: return decode_ue4m3(encode_ue4m3(x));
        default: return x;
    }
}

#define FORMAT_ROUND_LOOP(function) \
    for (size_t i = 0; i < n; i++) out[i] = function(in[i])

// out[i] = in[i] rounded to `id`; out == in is fine. One thread.
static inline void format_round_array(FormatId id, float *out, const float *in, size_t n) {
    switch (id) {
        case FORMAT_TF32: FORMAT_ROUND_LOOP(round_tf32); break;
        case FORMAT_FP16: FORMAT_ROUND_LOOP(round_fp16); break;
        case FORMAT_BF16: FORMAT_ROUND_LOOP(round_bf16); break;
        case FORMAT_E4M3: FORMAT_ROUND_LOOP(round_e4m3); break;
        case FORMAT_E5M2: FORMAT_ROUND_LOOP(round_e5m2); break;
        case FORMAT_E2M1: FORMAT_ROUND_LOOP(round_e2m1); break;
        default:
            for (size_t i = 0; i < n; i++) out[i] = format_round(id, in[i]);
    }
}

// Two fp4 codes a byte, element 2i in the low half. An odd last element leaves the high half 0.
static inline void pack_fp4(uint8_t *packed, const uint8_t *codes, size_t n) {
    for (size_t i = 0; i < n / 2; i++) packed[i] = (uint8_t)((codes[2 * i] & 15) | codes[2 * i + 1] << 4);
    if (n % 2) packed[n / 2] = codes[n - 1] & 15;
}
static inline void unpack_fp4(uint8_t *codes, const uint8_t *packed, size_t n) {
    for (size_t i = 0; i < n; i++) codes[i] = packed[i / 2] >> (i % 2 * 4) & 15;
}

// ----------------------------------------------------------------------------------------------------------------
// Start-up check

// NULL, or what is broken in this build's arithmetic: a compiler flag or a library that flushes subnormals or removes
// NaN tests changes results silently, so trainers call this before anything else. Ten vectors per format.
static inline const char *formats_self_test(void) {
    static const uint32_t inputs[10] = {0x80000000u, 0x3f808000u, 0x3f818000u, 0x40490fdbu, 0xbe99999au,
                                        0x33000001u, 0x43fa0000u, 0x7f7fffffu, 0x7f800000u, 0x7fffffffu};
    static const uint16_t bf16[10] = {0x8000, 0x3f80, 0x3f82, 0x4049, 0xbe9a, 0x3300, 0x43fa, 0x7f80, 0x7f80, 0x7fff};
    static const uint16_t fp16[10] = {0x8000, 0x3c04, 0x3c0c, 0x4248, 0xb4cd, 0x0001, 0x5fd0, 0x7c00, 0x7c00, 0x7fff};
    static const uint8_t e4m3[10] = {0x80, 0x38, 0x38, 0x45, 0xaa, 0x00, 0x7e, 0x7e, 0x7e, 0x7f};
    static const uint8_t e5m2[10] = {0x80, 0x3c, 0x3c, 0x42, 0xb5, 0x00, 0x60, 0x7b, 0x7b, 0x7f};
    static const uint8_t e8m0[10] = {0x00, 0x80, 0x80, 0x81, 0x7e, 0x67, 0x88, 0xfe, 0xfe, 0xff};
    static const uint8_t e2m1[10] = {0x8, 0x2, 0x2, 0x5, 0x9, 0x0, 0x7, 0x7, 0x7, 0x7};
    volatile float tiny = 1e-40f, not_a_number = NAN;
    tiny *= 0.5f;
    if (tiny == 0.0f)
        return "fp32 subnormals are flushed to zero (a flag like -ffast-math, here or in a linked library)";
    if (not_a_number == not_a_number) return "NaN compares equal to itself (a flag like -ffast-math)";
    for (int i = 0; i < 10; i++) {
        volatile uint32_t bits =
            inputs[i];  // volatile: the check is of the running code, not of the compiler's folding
        float x = float_of_bits(bits);
        if (encode_bf16(x) != bf16[i]) return "fp32 to bf16 conversion is wrong";
        if (encode_fp16(x) != fp16[i]) return "fp32 to fp16 conversion is wrong";
        if (encode_e4m3(x) != e4m3[i]) return "fp32 to e4m3 conversion is wrong";
        if (encode_e5m2(x) != e5m2[i]) return "fp32 to e5m2 conversion is wrong";
        if (encode_e8m0(x) != e8m0[i]) return "fp32 to e8m0 conversion is wrong";
        if (encode_e2m1(x) != e2m1[i]) return "fp32 to e2m1 conversion is wrong";
    }
    return NULL;
}

#endif
