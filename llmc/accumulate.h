// accumulate.h: how a GEMM adds up, in three models. Slow and plain: for tests, and to show what an accumulator costs.
//
//     fp32    chunks of 128 along K, each summed in fp32 in order, then added to an fp32 sum, as the program's GEMMs do
//     exact   double
//     h14     Hopper's fp8 tensor cores: products are aligned to the largest of 32 and of the running sum and cut to 14
//             bits, and so is their total. Every `promote` elements the sum is moved to fp32 (0: never)
//
// Cutting always goes toward zero: on sums of one sign it is a bias that grows with K, which is why promotion exists.
// h14 follows published measurements (14 bits: one and 13 of fraction) in magnitude, not bit for bit. Products of fp8
// or fp4 values are exact in fp32, so nothing else is lost anywhere.
#ifndef LLMC_ACCUMULATE_H
#define LLMC_ACCUMULATE_H

#include <math.h>

#include "utils.h"

#define ACCUMULATE_CHUNK ((size_t)128)  // of K; also the block of fp8-block, whose scales multiply a chunk's sum
#define H14_MMA ((size_t)32)            // products of one tensor core instruction
#define H14_BITS 14

typedef enum { ACCUMULATE_FP32, ACCUMULATE_EXACT, ACCUMULATE_H14 } AccumulateModel;

CPU_TWIN_BEGIN

// One operand as (outer, K): element (i, k) at data[i * outer_stride + k * k_stride]. `scale`, if not NULL, holds a
// factor for each chunk: (i, chunk) at scale[i / scale_block * scale_outer_stride + chunk * scale_k_stride].
typedef struct {
    const float *data;
    size_t outer_stride, k_stride;
    const float *scale;
    size_t scale_block, scale_outer_stride, scale_k_stride;
} AccumulateOperand;

static inline AccumulateOperand accumulate_operand(const float *data, size_t outer_stride, size_t k_stride) {
    AccumulateOperand x = {data, outer_stride, k_stride, NULL, 1, 0, 0};
    return x;
}

static inline float accumulate_scale(const AccumulateOperand *x, size_t i, size_t chunk) {
    return x->scale ? x->scale[i / x->scale_block * x->scale_outer_stride + chunk * x->scale_k_stride] : 1.0f;
}

// Floor of log2|x| for a normal double; the exponents of zero and of what is not finite come out below and above all.
static inline int accumulate_exponent(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (int)(bits >> 52 & 0x7ff) - 1023;
}

// state + n exact products, n <= H14_MMA, as one instruction adds them.
static inline double h14_add(double state, const double *products, size_t n) {
    int exponent = accumulate_exponent(state);
    double plain = state;
    for (size_t i = 0; i < n; i++) {
        int e = accumulate_exponent(products[i]);
        exponent = e > exponent ? e : exponent;
        plain += products[i];
    }
    if (exponent == 1024 || exponent <= -1023 + H14_BITS) return plain;  // not finite; or nothing but zeros
    double to_units = ldexp(1.0, H14_BITS - 1 - exponent);
    int64_t sum = (int64_t)(state * to_units);  // a C conversion cuts toward zero, as the aligner does
    for (size_t i = 0; i < n; i++) sum += (int64_t)(products[i] * to_units);
    uint64_t magnitude = sum < 0 ? (uint64_t)-sum : (uint64_t)sum;
    int excess = 0;
    while (magnitude >> excess >> H14_BITS) excess++;
    magnitude = magnitude >> excess << excess;
    double result = (double)magnitude * ldexp(1.0, exponent - (H14_BITS - 1));
    return sum < 0 ? -result : result;
}

// Sum of products k in [k0, k1) of row i of a and row j of b, from zero.
static inline double accumulate_part(const AccumulateOperand *a, const AccumulateOperand *b, size_t i, size_t j,
                                     size_t k0, size_t k1, AccumulateModel model) {
    const float *a_i = a->data + i * a->outer_stride, *b_j = b->data + j * b->outer_stride;
    if (model == ACCUMULATE_FP32) {
        float sum = 0;
        for (size_t k = k0; k < k1; k++) sum = fmaf(a_i[k * a->k_stride], b_j[k * b->k_stride], sum);
        return sum;
    }
    double sum = 0, products[H14_MMA];
    for (size_t k = k0; k < k1; k += H14_MMA) {
        size_t n = min_size(H14_MMA, k1 - k);
        for (size_t l = 0; l < n; l++)
            products[l] = (double)a_i[(k + l) * a->k_stride] * (double)b_j[(k + l) * b->k_stride];
        if (model == ACCUMULATE_H14) sum = h14_add(sum, products, n);
        else
            for (size_t l = 0; l < n; l++) sum += products[l];
    }
    return sum;
}

// accumulate_gemm: out (M, N) f32 = alpha * a . b^T, K summed as `model` says
//   promote: h14 only, 0 or a multiple of 32; with scaled chunks it must be their 128, as it is in the other models
static inline void accumulate_gemm(float *out, const AccumulateOperand *a, const AccumulateOperand *b, size_t M,
                                   size_t N, size_t K, float alpha, AccumulateModel model, size_t promote) {
    size_t chunk = model == ACCUMULATE_H14 ? (promote ? promote : K) : ACCUMULATE_CHUNK;
    if (chunk % H14_MMA && chunk != K) die("accumulate: --promote %zu is not a multiple of 32", promote);
    if ((a->scale || b->scale) && chunk != ACCUMULATE_CHUNK && chunk < K)
        die("accumulate: block scales need --promote 128, not %zu", promote);
    if ((a->scale || b->scale) && chunk > ACCUMULATE_CHUNK)
        die("accumulate: block scales need --promote 128\nwhy: each chunk's sum has its own scale");
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < M; i++)
        for (size_t j = 0; j < N; j++) {
            double exact = 0;
            float sum = 0;
            for (size_t k = 0; k < K; k += chunk) {
                double part = accumulate_part(a, b, i, j, k, min_size(k + chunk, K), model);
                float a_scale = accumulate_scale(a, i, k / chunk), b_scale = accumulate_scale(b, j, k / chunk);
                if (model == ACCUMULATE_EXACT) exact += part * (double)a_scale * (double)b_scale;
                else if (a->scale || b->scale) sum += (float)part * (a_scale * b_scale);
                else sum += (float)part;
            }
            out[i * N + j] = model == ACCUMULATE_EXACT ? (float)(exact * (double)alpha) : sum * alpha;
        }
}

CPU_TWIN_END

#endif
