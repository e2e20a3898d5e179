// simd.h: one vector of floats, as wide as the target has it: AVX-512 (16), AVX2 + FMA (8), NEON or anything else (4).
//
// Kernels are written once over `vecf` and VEC_WIDTH. + - * / work on a vecf lane by lane (a compiler extension that
// gcc and clang share); the functions below add what operators cannot say. All of it is the plain IEEE operation in
// each lane: no reassociation, NaN and infinities as in scalar code.
//
// vec_fma is the one place where targets differ: a fused multiply-add where the hardware has one, else a product
// rounded and then a sum rounded. Results are therefore the same for any number of threads, but not from one target to
// another.
#ifndef LLMC_SIMD_H
#define LLMC_SIMD_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__) || (defined(__AVX2__) && defined(__FMA__)) || defined(__SSE2__)
#include <immintrin.h>
#elif defined(__ARM_NEON) && defined(__aarch64__)
#include <arm_neon.h>
#endif

// For functions that must be specialised by constant arguments (a tile's rows) at each call.
#define ALWAYS_INLINE static inline __attribute__((always_inline))

#if defined(__AVX512F__)

#define VEC_NAME "AVX-512"
#define VEC_WIDTH 16
#define VEC_REGISTERS 32
typedef __m512 vecf;

ALWAYS_INLINE vecf vec_load(const float *p) { return _mm512_loadu_ps(p); }
ALWAYS_INLINE void vec_store(float *p, vecf x) { _mm512_storeu_ps(p, x); }
ALWAYS_INLINE vecf vec_set1(float x) { return _mm512_set1_ps(x); }
ALWAYS_INLINE vecf vec_fma(vecf a, vecf b, vecf c) { return _mm512_fmadd_ps(a, b, c); }
ALWAYS_INLINE vecf vec_max(vecf a, vecf b) { return _mm512_max_ps(a, b); }

ALWAYS_INLINE vecf vec_load_partial(const float *p, size_t n) {
    return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
}
ALWAYS_INLINE void vec_store_partial(float *p, vecf x, size_t n) {
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), x);
}
ALWAYS_INLINE vecf vec_zip_lo(vecf a, vecf b) {
    const __m512i pick = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    return _mm512_permutex2var_ps(a, pick, b);
}
ALWAYS_INLINE vecf vec_zip_hi(vecf a, vecf b) {
    const __m512i pick = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    return _mm512_permutex2var_ps(a, pick, b);
}

#elif defined(__AVX2__) && defined(__FMA__)

#define VEC_NAME "AVX2"
#define VEC_WIDTH 8
#define VEC_REGISTERS 16
typedef __m256 vecf;

ALWAYS_INLINE vecf vec_load(const float *p) { return _mm256_loadu_ps(p); }
ALWAYS_INLINE void vec_store(float *p, vecf x) { _mm256_storeu_ps(p, x); }
ALWAYS_INLINE vecf vec_set1(float x) { return _mm256_set1_ps(x); }
ALWAYS_INLINE vecf vec_fma(vecf a, vecf b, vecf c) { return _mm256_fmadd_ps(a, b, c); }
ALWAYS_INLINE vecf vec_max(vecf a, vecf b) { return _mm256_max_ps(a, b); }

// The first n lanes on, the others off: a window of a row of ones followed by zeros.
ALWAYS_INLINE __m256i vec_lane_mask(size_t n) {
    static const int32_t lanes[16] = {-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0};
    return _mm256_loadu_si256((const __m256i *)(const void *)(lanes + 8 - n));
}
ALWAYS_INLINE vecf vec_load_partial(const float *p, size_t n) { return _mm256_maskload_ps(p, vec_lane_mask(n)); }
ALWAYS_INLINE void vec_store_partial(float *p, vecf x, size_t n) { _mm256_maskstore_ps(p, vec_lane_mask(n), x); }
// AVX2 zips within 128-bit halves; the permute then joins the two low or the two high halves.
ALWAYS_INLINE vecf vec_zip_lo(vecf a, vecf b) {
    return _mm256_permute2f128_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b), 0x20);
}
ALWAYS_INLINE vecf vec_zip_hi(vecf a, vecf b) {
    return _mm256_permute2f128_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b), 0x31);
}

#else  // four lanes: NEON, SSE2, or the compiler's own vector type

#define VEC_WIDTH 4
#if defined(__ARM_NEON) && defined(__aarch64__)
#define VEC_NAME "NEON"
#define VEC_REGISTERS 32
typedef float32x4_t vecf;
ALWAYS_INLINE vecf vec_set1(float x) { return vdupq_n_f32(x); }
ALWAYS_INLINE vecf vec_fma(vecf a, vecf b, vecf c) { return vfmaq_f32(c, a, b); }
ALWAYS_INLINE vecf vec_max(vecf a, vecf b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
ALWAYS_INLINE vecf vec_zip_lo(vecf a, vecf b) { return vzip1q_f32(a, b); }
ALWAYS_INLINE vecf vec_zip_hi(vecf a, vecf b) { return vzip2q_f32(a, b); }
#elif defined(__SSE2__)
#define VEC_NAME "SSE2"
#define VEC_REGISTERS 16
typedef __m128 vecf;
ALWAYS_INLINE vecf vec_set1(float x) { return _mm_set1_ps(x); }
ALWAYS_INLINE vecf vec_fma(vecf a, vecf b, vecf c) { return a * b + c; }
ALWAYS_INLINE vecf vec_max(vecf a, vecf b) { return _mm_max_ps(a, b); }
ALWAYS_INLINE vecf vec_zip_lo(vecf a, vecf b) { return _mm_unpacklo_ps(a, b); }
ALWAYS_INLINE vecf vec_zip_hi(vecf a, vecf b) { return _mm_unpackhi_ps(a, b); }
#else
#define VEC_NAME "portable"
#define VEC_REGISTERS 16
typedef float vecf __attribute__((vector_size(16)));
ALWAYS_INLINE vecf vec_set1(float x) {
    vecf r = {x, x, x, x};
    return r;
}
ALWAYS_INLINE vecf vec_fma(vecf a, vecf b, vecf c) { return a * b + c; }
ALWAYS_INLINE vecf vec_max(vecf a, vecf b) {
    vecf r;
    for (int i = 0; i < 4; i++) r[i] = a[i] > b[i] ? a[i] : b[i];
    return r;
}
ALWAYS_INLINE vecf vec_zip_lo(vecf a, vecf b) {
    vecf r = {a[0], b[0], a[1], b[1]};
    return r;
}
ALWAYS_INLINE vecf vec_zip_hi(vecf a, vecf b) {
    vecf r = {a[2], b[2], a[3], b[3]};
    return r;
}
#endif

ALWAYS_INLINE vecf vec_load(const float *p) {
    vecf r;
    memcpy(&r, p, sizeof r);  // one unaligned load
    return r;
}
ALWAYS_INLINE void vec_store(float *p, vecf x) { memcpy(p, &x, sizeof x); }

ALWAYS_INLINE vecf vec_load_partial(const float *p, size_t n) {
    float lanes[VEC_WIDTH] = {0};
    for (size_t i = 0; i < VEC_WIDTH; i++)
        if (i < n) lanes[i] = p[i];
    return vec_load(lanes);
}
ALWAYS_INLINE void vec_store_partial(float *p, vecf x, size_t n) {
    float lanes[VEC_WIDTH];
    vec_store(lanes, x);
    for (size_t i = 0; i < VEC_WIDTH; i++)
        if (i < n) p[i] = lanes[i];
}

#endif

// What each of the above does:
//   vec_load, vec_store            VEC_WIDTH floats, any alignment
//   vec_load_partial(p, n)         the first n <= VEC_WIDTH lanes from p, zero above; reads nothing beyond p[n-1]
//   vec_store_partial(p, x, n)     the first n lanes
//   vec_fma(a, b, c)               a * b + c
//   vec_max(a, b)                  a > b ? a : b, so b where either is NaN
//   vec_zip_lo, vec_zip_hi(a, b)   a0 b0 a1 b1 ...: its first half, its second half

ALWAYS_INLINE vecf vec_zero(void) { return vec_set1(0.0f); }

// The sum of all lanes, always in the same order: halves folded onto each other.
ALWAYS_INLINE float vec_sum(vecf x) {
    float lanes[VEC_WIDTH];
    vec_store(lanes, x);
#pragma GCC unroll 4
    for (int half = VEC_WIDTH / 2; half > 0; half /= 2)
#pragma GCC unroll 8
        for (int i = 0; i < half; i++) lanes[i] += lanes[i + half];
    return lanes[0];
}

// Transposes the square matrix whose rows are x[0..VEC_WIDTH-1]. Zipping row i with row i + VEC_WIDTH/2 rotates the
// bits of every element's (row, column) number by one place; after log2(VEC_WIDTH) rounds row and column have changed
// places.
ALWAYS_INLINE void vec_transpose(vecf x[VEC_WIDTH]) {
#pragma GCC unroll 4
    for (int round = 1; round < VEC_WIDTH; round *= 2) {
        vecf y[VEC_WIDTH];
#pragma GCC unroll 8
        for (int i = 0; i < VEC_WIDTH / 2; i++) {
            y[2 * i] = vec_zip_lo(x[i], x[i + VEC_WIDTH / 2]);
            y[2 * i + 1] = vec_zip_hi(x[i], x[i + VEC_WIDTH / 2]);
        }
#pragma GCC unroll 16
        for (int i = 0; i < VEC_WIDTH; i++) x[i] = y[i];
    }
}

#endif
