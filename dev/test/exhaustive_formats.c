// exhaustive_formats.c: every fast conversion of llmc/formats.h on all 2^32 floats. `make test-exhaustive`; minutes.
//
// For each cast, block by block of 65536 inputs:
//   * the codes' hash equals the one recorded below, from a run that compared them with the CUDA headers;
//   * they equal the slow definition (format_encode; for e8m0 and tf32's other roundings the few lines below);
//   * round_F gives the value of the code;
//   * where this file is compiled as C++ with -DWITH_CUDA_HEADERS: they equal the toolkit's own host conversions.
// Options: --only NAME; --hash (no definition, no CUDA: seconds); --print (hashes, for the table below).
#include "llmc/formats.h"

#include <stdio.h>
#include <stdlib.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#ifdef WITH_CUDA_HEADERS
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp4.h>
#include <cuda_fp8.h>
#endif

#define BLOCK 65536u     // inputs under one hash
#define SUB_BLOCK 4096u  // inputs at once: their codes stay in the L1 cache

// ----------------------------------------------------------------------------------------------------------------
// Slow definitions of what format_encode does not cover

// Magnitude rounded to tf32's spacing in double, where every step is exact: mode 0 toward zero, 1 nearest with ties
// away.
static uint32_t slow_tf32(float x, int nearest) {
    if (isnan(x)) return 0x7fc00000u;
    if (isinf(x)) return bits_of_float(x);
    int exponent;
    double magnitude = fabs((double)x);
    frexp(magnitude, &exponent);  // magnitude in [2^(exponent-1), 2^exponent)
    double spacing = ldexp(1.0, (exponent - 1 > -126 ? exponent - 1 : -126) - 10);
    double rounded = floor(magnitude / spacing + (nearest ? 0.5 : 0.0)) * spacing;
    uint32_t bits = rounded > 3.4028234663852886e38 ? 0x7f800000u : bits_of_float((float)rounded);
    return bits | (bits_of_float(x) & 0x80000000u);
}

// e8m0 through frexp: |x| = fraction * 2^exponent, fraction in [1/2, 1).
static uint32_t slow_e8m0(float x, int up, int saturate) {
    if (isnan(x)) return 255;
    if (isinf(x)) return saturate ? 254 : 255;
    int exponent;
    double fraction = frexp(fabs((double)x), &exponent);
    if (fraction == 0) return 0;
    int code = exponent - 1 + (up && fraction > 0.5) + 127;
    if (code > 254) return saturate ? 254 : 255;
    return code < 0 ? 0 : (uint32_t)code;
}

static uint32_t slow_tf32_rna(float x) { return slow_tf32(x, 1); }
static uint32_t slow_tf32_rz(float x) { return slow_tf32(x, 0); }
static uint32_t slow_tf32_rne(float x) {
    return isnan(x) ? 0x7fc00000u : format_encode(format_info(FORMAT_TF32), x, 0);
}
static uint32_t slow_fp16(float x) { return format_encode(format_info(FORMAT_FP16), x, 0); }
static uint32_t slow_bf16(float x) { return format_encode(format_info(FORMAT_BF16), x, 0); }
static uint32_t slow_e4m3(float x) { return format_encode(format_info(FORMAT_E4M3), x, 1); }
static uint32_t slow_e4m3_nosat(float x) { return format_encode(format_info(FORMAT_E4M3), x, 0); }
static uint32_t slow_e5m2(float x) { return format_encode(format_info(FORMAT_E5M2), x, 1); }
static uint32_t slow_e5m2_nosat(float x) { return format_encode(format_info(FORMAT_E5M2), x, 0); }
static uint32_t slow_e2m1(float x) { return format_encode(format_info(FORMAT_E2M1), x, 1); }
static uint32_t slow_e8m0_rp(float x) { return slow_e8m0(x, 1, 1); }
static uint32_t slow_e8m0_nosat(float x) { return slow_e8m0(x, 1, 0); }
static uint32_t slow_e8m0_rz(float x) { return slow_e8m0(x, 0, 1); }

// ----------------------------------------------------------------------------------------------------------------
// The toolkit's conversions

#ifdef WITH_CUDA_HEADERS
static uint32_t cuda_fp16(float x) { return __half_raw(__float2half_rn(x)).x; }
static uint32_t cuda_bf16(float x) { return __nv_bfloat16_raw(__float2bfloat16_rn(x)).x; }
static uint32_t cuda_e4m3(float x) { return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3); }
static uint32_t cuda_e4m3_nosat(float x) { return __nv_cvt_float_to_fp8(x, __NV_NOSAT, __NV_E4M3); }
static uint32_t cuda_e5m2(float x) { return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E5M2); }
static uint32_t cuda_e5m2_nosat(float x) { return __nv_cvt_float_to_fp8(x, __NV_NOSAT, __NV_E5M2); }
static uint32_t cuda_e2m1(float x) { return __nv_cvt_float_to_fp4(x, __NV_E2M1, cudaRoundNearest); }
static uint32_t cuda_e8m0_rp(float x) { return __nv_cvt_float_to_e8m0(x, __NV_SATFINITE, cudaRoundPosInf); }
static uint32_t cuda_e8m0_nosat(float x) { return __nv_cvt_float_to_e8m0(x, __NV_NOSAT, cudaRoundPosInf); }
static uint32_t cuda_e8m0_rz(float x) { return __nv_cvt_float_to_e8m0(x, __NV_SATFINITE, cudaRoundZero); }
#endif

// ----------------------------------------------------------------------------------------------------------------
// One function per cast over SUB_BLOCK consecutive patterns, so that the fast functions vectorise and the slow ones are
// inlined. Returns how many rounded values differ from the value of their code.

static uint32_t differ(float a, float b) {
    return bits_of_float(a) != bits_of_float(b) && !(is_nan_bits(bits_of_float(a)) && is_nan_bits(bits_of_float(b)));
}

// Compares with a reference; shows the first few differences.
#define COMPARE(name, with, reference)                                                          \
    uint64_t wrong = 0;                                                                         \
    for (uint32_t i = 0; i < SUB_BLOCK; i++) {                                                  \
        uint32_t expected = reference(float_of_bits(first + i));                                \
        if (codes[i] != expected && wrong++ < 3)                                                \
            printf("  %s: %08x gives %x, %s %x\n", #name, first + i, codes[i], with, expected); \
    }                                                                                           \
    return wrong;

#define CAST_FUNCTIONS(name, encode_call, decode_call, round_call)             \
    static uint32_t fast_##name(uint32_t first, uint32_t *codes) {             \
        uint32_t different = 0;                                                \
        for (uint32_t i = 0; i < SUB_BLOCK; i++) {                             \
            float x = float_of_bits(first + i);                                \
            uint32_t code = encode_call(x);                                    \
            codes[i] = code;                                                   \
            different += differ(decode_call(code), round_call(x));             \
        }                                                                      \
        return different;                                                      \
    }                                                                          \
    static uint64_t check_slow_##name(uint32_t first, const uint32_t *codes) { \
        COMPARE(name, "definition", slow_##name)                               \
    }
#ifdef WITH_CUDA_HEADERS
#define CUDA_FUNCTION(name)                                                    \
    static uint64_t check_cuda_##name(uint32_t first, const uint32_t *codes) { \
        COMPARE(name, "CUDA header", cuda_##name)                              \
    }
#else
#define CUDA_FUNCTION(name)
#endif
#define ENCODE_TF32(x) bits_of_float(round_tf32(x))
#define ENCODE_TF32_RNA(x) bits_of_float(round_tf32_rna(x))
#define ENCODE_TF32_RZ(x) bits_of_float(round_tf32_rz(x))
#define DECODE_FP16(c) decode_fp16((uint16_t)(c))
#define DECODE_BF16(c) decode_bf16((uint16_t)(c))
#define DECODE_E4M3(c) decode_e4m3((uint8_t)(c))
#define DECODE_E5M2(c) decode_e5m2((uint8_t)(c))
#define DECODE_E2M1(c) decode_e2m1((uint8_t)(c))
#define NO_VALUE(c) ((void)(c), 0.0f)
CAST_FUNCTIONS(fp16, encode_fp16, DECODE_FP16, round_fp16)
CAST_FUNCTIONS(bf16, encode_bf16, DECODE_BF16, round_bf16)
CAST_FUNCTIONS(e4m3, encode_e4m3, DECODE_E4M3, round_e4m3)
CAST_FUNCTIONS(e4m3_nosat, encode_e4m3_nosat, NO_VALUE, NO_VALUE)
CAST_FUNCTIONS(e5m2, encode_e5m2, DECODE_E5M2, round_e5m2)
CAST_FUNCTIONS(e5m2_nosat, encode_e5m2_nosat, NO_VALUE, NO_VALUE)
CAST_FUNCTIONS(e2m1, encode_e2m1, DECODE_E2M1, round_e2m1)
CAST_FUNCTIONS(e8m0_rp, encode_e8m0, NO_VALUE, NO_VALUE)
CAST_FUNCTIONS(e8m0_nosat, encode_e8m0_nosat, NO_VALUE, NO_VALUE)
CAST_FUNCTIONS(e8m0_rz, encode_e8m0_rz, NO_VALUE, NO_VALUE)
CAST_FUNCTIONS(tf32_rne, ENCODE_TF32, NO_VALUE, NO_VALUE)
CAST_FUNCTIONS(tf32_rna, ENCODE_TF32_RNA, NO_VALUE, NO_VALUE)
CAST_FUNCTIONS(tf32_rz, ENCODE_TF32_RZ, NO_VALUE, NO_VALUE)

CUDA_FUNCTION(bf16)
CUDA_FUNCTION(fp16)
CUDA_FUNCTION(e4m3)
CUDA_FUNCTION(e4m3_nosat)
CUDA_FUNCTION(e5m2)
CUDA_FUNCTION(e5m2_nosat)
CUDA_FUNCTION(e2m1)
CUDA_FUNCTION(e8m0_rp)
CUDA_FUNCTION(e8m0_nosat)
CUDA_FUNCTION(e8m0_rz)

typedef struct {
    const char *name;
    uint32_t (*fast)(uint32_t first, uint32_t *codes);
    uint64_t (*slow)(uint32_t first, const uint32_t *codes);
    uint64_t (*cuda)(uint32_t first, const uint32_t *codes);
    uint64_t hash;
} Case;
#ifdef WITH_CUDA_HEADERS
#define CASE(name, hash) \
    { #name, fast_##name, check_slow_##name, check_cuda_##name, hash }
#else
#define CASE(name, hash) CASE_NO_CUDA(name, hash)
#endif
#define CASE_NO_CUDA(name, hash) \
    { #name, fast_##name, check_slow_##name, NULL, hash }

static const Case cases[] = {
    CASE(bf16, 0x58a5f57049ab5cffull),
    CASE(fp16, 0x0c65332e45b00817ull),
    CASE(e4m3, 0x0ba7421f053957d8ull),
    CASE(e4m3_nosat, 0xf216152f7d0564aeull),
    CASE(e5m2, 0xd0ef5b2fe0ad6d8bull),
    CASE(e5m2_nosat, 0x48f6653ff25e765aull),
    CASE(e2m1, 0x3d0ffee385592464ull),
    CASE(e8m0_rp, 0x256a6d5f6b29995aull),
    CASE(e8m0_nosat, 0x0efb603074e81972ull),
    CASE(e8m0_rz, 0x16b4e27253fd6334ull),
    CASE_NO_CUDA(tf32_rne, 0x3f2529416402df6bull),
    CASE_NO_CUDA(tf32_rna, 0xe03b61d98d0f3e28ull),
    CASE_NO_CUDA(tf32_rz, 0x83103d90f0caa00bull),
};

// ----------------------------------------------------------------------------------------------------------------

static uint64_t mix(uint64_t h, uint64_t x) {
    h = (h ^ x) * 0x9e3779b97f4a7c15ull;
    return h ^ h >> 29;
}

// FNV-like in 16 interleaved lanes, so that it vectorises; each step is a bijection of the lane, so that one wrong code
// always changes the result.
static void hash_codes(uint32_t lanes[16], const uint32_t *codes) {
    for (uint32_t i = 0; i < SUB_BLOCK; i += 16)
        for (uint32_t j = 0; j < 16; j++) lanes[j] = (lanes[j] ^ codes[i + j]) * 0x01000193u;
}

typedef struct {
    uint64_t hash, slow_wrong, cuda_wrong, round_wrong;
} Totals;

static Totals run_case(const Case *c, int hash_only) {
    Totals t = {0, 0, 0, 0};
    uint64_t *hashes = (uint64_t *)malloc(65536 * sizeof *hashes), slow = 0, cuda = 0, value = 0;
    if (!hashes) exit(1);
#ifdef _OPENMP
#pragma omp parallel for schedule(dynamic, 64) reduction(+ : slow, cuda, value)
#endif
    for (uint32_t b = 0; b < 65536; b++) {
        uint32_t codes[SUB_BLOCK], lanes[16];
        for (uint32_t j = 0; j < 16; j++) lanes[j] = 0x811c9dc5u + j;
        for (uint32_t s = 0; s < BLOCK; s += SUB_BLOCK) {
            uint32_t first = b * BLOCK + s;
            value += c->fast(first, codes);
            hash_codes(lanes, codes);
            if (!hash_only) slow += c->slow(first, codes);
            if (!hash_only && c->cuda) cuda += c->cuda(first, codes);
        }
        hashes[b] = 0;
        for (int j = 0; j < 16; j++) hashes[b] = mix(hashes[b], lanes[j]);
    }
    for (uint32_t b = 0; b < 65536; b++) t.hash = mix(t.hash, hashes[b]);
    free(hashes);
    t.slow_wrong = slow;
    t.cuda_wrong = cuda;
    t.round_wrong = value;
    return t;
}

int main(int argc, char **argv) {
    int hash_only = 0, print = 0, passed = 0, failed = 0;
    const char *only = NULL;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--hash") == 0) hash_only = 1;
        else if (strcmp(argv[i], "--print") == 0) print = 1;
        else if (strcmp(argv[i], "--only") == 0 && i + 1 < argc) only = argv[++i];
        else return fprintf(stderr, "usage: exhaustive_formats [--hash] [--print] [--only CAST]\n"), 2;
    }
#ifdef WITH_CUDA_HEADERS
    printf("with the CUDA %d.%d headers' host conversions\n", CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
#else
    printf("without the CUDA headers: codes against recorded hashes\n");
#endif
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        const Case *c = &cases[k];
        if (only && strcmp(only, c->name) != 0) continue;
        Totals t = run_case(c, hash_only);
        int ok = t.hash == c->hash && !t.slow_wrong && !t.cuda_wrong && !t.round_wrong;
        if (print)
            printf("    %s(%s, 0x%016llxull),\n", c->cuda ? "CASE" : "CASE_NO_CUDA", c->name,
                   (unsigned long long)t.hash);
        printf("%s  %s%s", ok ? "ok   " : "FAIL", c->name, !hash_only && c->cuda ? " (CUDA compared)" : "");
        if (t.slow_wrong) printf(", %llu differ from the definition", (unsigned long long)t.slow_wrong);
        if (t.cuda_wrong) printf(", %llu differ from CUDA", (unsigned long long)t.cuda_wrong);
        if (t.round_wrong) printf(", %llu rounded values differ from the code's", (unsigned long long)t.round_wrong);
        if (t.hash != c->hash)
            printf(", hash %016llx, recorded %016llx", (unsigned long long)t.hash, (unsigned long long)c->hash);
        printf("\n");
        fflush(stdout);
        if (ok) passed++;
        else failed++;
    }
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed != 0 || passed == 0;
}
