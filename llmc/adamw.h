// adamw.h: the optimizer's update of one tensor (Loshchilov & Hutter 2019), in fp32.
//
//     g  = grad * grad_scale
//     m  = beta1 m + (1 - beta1) g             v  = beta2 v + (1 - beta2) g^2
//     w -= lr (m bc1 / (sqrt(v bc2) + eps) + weight_decay w)         bc = 1 / (1 - beta^t)
//
// Each fused multiply-add is written as one, so that the GPU twin gives the same bits.
#ifndef LLMC_ADAMW_H
#define LLMC_ADAMW_H

#include <assert.h>
#include <math.h>

#include "utils.h"

// What the update needs, as fp32; outside the twin, for both trainers fill it. The differences 1 - beta are rounded
// once from double: 1.0f - 0.999f is 1.3e-5 off.
typedef struct {
    float lr, beta1, beta2, one_minus_beta1, one_minus_beta2, eps;
    float weight_decay;  // 0 for tensors that are not matrices
    float grad_scale;    // clip coefficient / loss scale
    float bc1, bc2;      // bias corrections of step t
} AdamWHyper;

// t counts updates from 1.
static inline AdamWHyper adamw_hyper(double lr, double beta1, double beta2, double eps, double weight_decay,
                                     double grad_scale, uint64_t t) {
    assert(t >= 1);
    AdamWHyper h;
    h.lr = (float)lr;
    h.beta1 = (float)beta1;
    h.beta2 = (float)beta2;
    h.one_minus_beta1 = (float)(1.0 - beta1);
    h.one_minus_beta2 = (float)(1.0 - beta2);
    h.eps = (float)eps;
    h.weight_decay = (float)weight_decay;
    h.grad_scale = (float)grad_scale;
    h.bc1 = (float)(1.0 / (1.0 - pow(beta1, (double)t)));
    h.bc2 = (float)(1.0 / (1.0 - pow(beta2, (double)t)));
    return h;
}

CPU_TWIN_BEGIN

// A plain function over a range: inside a parallel loop clang no longer knows that the pointers do not overlap, and
// makes scalar code of it (7 times slower).
static inline void adamw_range(float *RESTRICT weight, float *RESTRICT m, float *RESTRICT v, const float *RESTRICT grad,
                               size_t n, AdamWHyper a) {
    for (size_t i = 0; i < n; i++) {
        float g = grad[i] * a.grad_scale;
        float m_i = fmaf(a.beta1, m[i], a.one_minus_beta1 * g);
        float v_i = fmaf(a.beta2, v[i], a.one_minus_beta2 * (g * g));
        float step = (m_i * a.bc1) / (sqrtf(v_i * a.bc2) + a.eps) + a.weight_decay * weight[i];
        m[i] = m_i;
        v[i] = v_i;
        weight[i] += -a.lr * step;
    }
}

#define ADAMW_CHUNK ((size_t)8192)  // elements a thread takes at a time

// adamw_update: one step for n elements, in place
//   weight, m, v (n) f32, updated      grad (n) f32, read      no two of them overlap
//   one pass: reads four streams, writes three
static inline void adamw_update(float *weight, float *m, float *v, const float *grad, size_t n, const AdamWHyper *h) {
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i += ADAMW_CHUNK)
        adamw_range(weight + i, m + i, v + i, grad + i, min_size(ADAMW_CHUNK, n - i), *h);
}

CPU_TWIN_END
#endif
