// vmath.h: exp and tanh as straight-line inline code, so that a loop over them becomes vector code; and sums over a
// row in a fixed order that also becomes vector code.
//
// No table, no branch, no call into libm: the same bits with every compiler and vector width that has FMA in hardware
// (without it fmaf() is a slow call, the bits stay). Errors against exact values, over all floats (test_vmath.c):
// vexpf below 1 ulp, vtanhf below 2 ulp. NaN gives NaN; overflow gives inf; results below 2^-126 are rounded once.
#ifndef LLMC_VMATH_H
#define LLMC_VMATH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline uint32_t vmath_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float vmath_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

// Splits x = n ln2 + r with |r| <= ln2/2 and returns e^r - 1; for |x| < 2^21. Adding 1.5 * 2^23 leaves n in the low
// bits of the sum, which is *shifted: its bits are 0x4b400000 + n, and the constant's low 22 bits are 0. ln2 is taken
// in two floats; both products are inside an FMA, so r's error is that of the second one's rounding. The polynomial is
// (e^r - 1 - r) / r^2 to 1.7e-10 of e^r - 1 (Chebyshev fit over [-0.34666, 0.34666], made for this file with mpmath).
static inline float vmath_expm1_reduced(float x, uint32_t *shifted) {
    const float shift = 12582912.0f;
    float sum = fmaf(x, 1.44269504f, shift);
    float n = sum - shift;
    float r = fmaf(n, -0x1.62e43p-1f, x);
    r = fmaf(n, 0x1.05c61p-29f, r);
    float p = fmaf(0x1.a12506p-13f, r, 0x1.6d433cp-10f);
    p = fmaf(p, r, 0x1.1110ep-7f);
    p = fmaf(p, r, 0x1.5554e8p-5f);
    p = fmaf(p, r, 0x1.555556p-3f);
    p = fmaf(p, r, 0.5f);
    *shifted = vmath_bits(sum);
    return fmaf(r * r, p, r);
}

// e^x.
static inline float vexpf(float x) {
    uint32_t shifted;
    float p = 1.0f + vmath_expm1_reduced(x, &shifted);
    // 2^n in two factors: n reaches 128 and -150, which a float's exponent does not. The first product is exact. The
    // shifts drop all but the low 9 bits of the sums, where only n is. (Adding n to p's exponent bits would save a
    // product and lose NaN.)
    uint32_t half = shifted >> 1;
    p = p * vmath_float((half + 127u) << 23) * vmath_float((shifted - half + 127u) << 23);
    // Far out the above is nonsense. Two selects at the end, off the chain of operations, beat clamping x at its start;
    // NaN compares false and stays.
    p = x < -104.0f ? 0.0f : p;
    return x > 89.0f ? INFINITY : p;
}

// tanh(x) = t / (t + 2) with t = e^(2|x|) - 1, then x's sign. t is exact to an ulp near 0 (no e^y - 1 in floats).
static inline float vtanhf(float x) {
    float y = 2.0f * fabsf(x);
    y = y > 20.0f ? 20.0f : y;  // tanh(10) rounds to 1
    uint32_t shifted;
    float p = vmath_expm1_reduced(y, &shifted);
    float scale = vmath_float((shifted + 127u) << 23);
    float t = fmaf(scale, p, scale - 1.0f);
    // The sum's rounding error is taken back to first order; 1 / (t + 2) is (1 - tanh) / 2. Without: 2.2 ulp. Beyond
    // 4 it no longer matters, and beyond 2^24 it would be wrong.
    float sum = t + 2.0f;
    float error = sum < 4.0f ? (2.0f - sum) + t : 0.0f;
    float tanh_y = t / sum;
    tanh_y = fmaf(tanh_y * error, 0.5f * tanh_y - 0.5f, tanh_y);
    return copysignf(tanh_y, x);
}

// Row sums: SUM_LANES running sums, element i going to lane i % SUM_LANES, then added in pairs. The order is part of
// the definition (not the vector width's), and the error grows like length / SUM_LANES instead of length.
#define SUM_LANES ((size_t)64)

static inline float lanes_total(float lanes[SUM_LANES]) {
    for (size_t width = SUM_LANES / 2; width > 0; width /= 2)
        for (size_t j = 0; j < width; j++) lanes[j] += lanes[j + width];
    return lanes[0];
}

#endif
