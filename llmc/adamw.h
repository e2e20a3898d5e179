// adamw.h: the optimizer's update of one tensor (Loshchilov & Hutter 2019), in fp32 whatever the stored formats are.
//
//     g  = grad * grad_scale
//     m  = beta1 m + (1 - beta1) g             v  = beta2 v + (1 - beta2) g^2
//     w -= lr (m bc1 / (sqrt(v bc2) + eps) + weight_decay w)         bc = 1 / (1 - beta^t)
//
// Each fused multiply-add is written as one, so that the GPU twin gives the same bits.
//
// Where the weights are kept (precision.h, MasterRule): fp32 masters, with a rounded working copy where the policy has
// one; or bf16 alone, updated stochastically (Zamirai et al. 2020), with Kahan's compensation, or, as a negative
// control, to nearest. Moments: fp32, or bf16 rounded to nearest or stochastically. With nearest rounding v cannot fall
// once 1 - beta2 < 2^-8; the trainer refuses that.
#ifndef LLMC_ADAMW_H
#define LLMC_ADAMW_H

#include <assert.h>
#include <math.h>

#include "precision.h"
#include "rand.h"
#include "utils.h"

// What the update needs, as fp32; outside the twin, for both trainers fill it. The differences 1 - beta are rounded
// once from double: 1.0f - 0.999f is 1.3e-5 off.
typedef struct {
    float lr, beta1, beta2, one_minus_beta1, one_minus_beta2, eps;
    float weight_decay;  // 0 for tensors that are not matrices
    float grad_scale;    // clip coefficient / loss scale
    float bc1, bc2;      // bias corrections of step t
    uint64_t seed;       // of stochastic rounding, with the step t below
    uint32_t t;
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
    h.seed = 0;
    h.t = (uint32_t)t;
    return h;
}

// What updates do to weights of 16 bits, counted (numerics_report.h).
typedef struct {
    uint64_t updates;      // that are not zero
    uint64_t lost;         // of them, that leave the nearest 16-bit weight as it is
    uint64_t lost_stored;  // the nearest weight in the format it is kept in
    uint64_t v_frozen;     // v that its update leaves as it is in bf16, rounding to nearest
    uint64_t v_elements;   // v looked at: all with moments in bf16 to nearest, else 0
} UpdateCounts;

CPU_TWIN_BEGIN

// One tensor as the optimizer sees it; no two arrays overlap. "weight": what is authoritative.
typedef struct {
    void *weight;       // (n) f32 with fp32 masters, else bf16 codes
    uint16_t *kahan;    // (n) bf16 codes, with MASTER_RULE_KAHAN
    float *working;     // (n) = the weights in BUILD_WEIGHT, as kernels read them; NULL: they read `weight`
    void *m, *v;        // (n) f32 or bf16 codes
    const float *grad;  // (n)
    size_t n;
    uint32_t stream;  // the tensor's number: its own random bits
} AdamWTensor;

#define ADAMW_CHUNK ((size_t)8192)  // elements a thread takes at a time
#define ADAMW_BLOCK ((size_t)512)   // elements whose update is held between its calculation and its store, in the L1

// m and v, and up = what is to be added to the weight. A plain function over a range: inside a parallel loop clang no
// longer knows that the pointers do not overlap, and makes scalar code of it (7 times slower).
static inline void adamw_direction(float *RESTRICT up, float *RESTRICT m, float *RESTRICT v, const float *RESTRICT weight,
                                   const float *RESTRICT grad, size_t n, AdamWHyper a) {
    for (size_t i = 0; i < n; i++) {
        float g = grad[i] * a.grad_scale;
        float m_i = fmaf(a.beta1, m[i], a.one_minus_beta1 * g);
        float v_i = fmaf(a.beta2, v[i], a.one_minus_beta2 * (g * g));
        float step = (m_i * a.bc1) / (sqrtf(v_i * a.bc2) + a.eps) + a.weight_decay * weight[i];
        m[i] = m_i;
        v[i] = v_i;
        up[i] = -a.lr * step;
    }
}

// A random word for each of n <= ADAMW_BLOCK elements from `first`, a multiple of 4, on: one Philox block for four.
static inline void adamw_random(uint32_t *RESTRICT bits, uint32_t purpose, const AdamWTensor *t, size_t first, size_t n,
                                const AdamWHyper *h) {
    uint32_t word[4][ADAMW_BLOCK / 4];
    for (size_t i = 0; i < ceil_div(n, 4); i++) {
        RandBlock block = rand_block(h->seed, purpose, t->stream, h->t, first / 4 + i);
        for (int lane = 0; lane < 4; lane++) word[lane][i] = block.word[lane];
    }
    for (size_t i = 0; i < ceil_div(n, 4); i++)
        for (size_t lane = 0; lane < 4; lane++) bits[4 * i + lane] = word[lane][i];
}

static inline void adamw_decode(float *RESTRICT out, const uint16_t *RESTRICT codes, size_t n) {
    for (size_t i = 0; i < n; i++) out[i] = decode_bf16(codes[i]);
}
static inline void adamw_encode(uint16_t *RESTRICT codes, const float *RESTRICT x, size_t n) {
    for (size_t i = 0; i < n; i++) codes[i] = encode_bf16(x[i]);
}
static inline void adamw_encode_stochastic(uint16_t *RESTRICT codes, const float *RESTRICT x,
                                           const uint32_t *RESTRICT bits, size_t n) {
    for (size_t i = 0; i < n; i++) codes[i] = sr_bf16(x[i], bits[i]);
}

static inline void adamw_add(float *RESTRICT weight, const float *RESTRICT up, size_t n) {
    for (size_t i = 0; i < n; i++) weight[i] += up[i];
}
static inline void adamw_add_copied(float *RESTRICT weight, float *RESTRICT working, const float *RESTRICT up, size_t n) {
    for (size_t i = 0; i < n; i++) {
        float w = weight[i] + up[i];
        weight[i] = w;
        working[i] = round_weight(w);
    }
}
static inline void adamw_add_kahan(float *RESTRICT weight, uint16_t *RESTRICT kahan, const float *RESTRICT up, size_t n) {
    for (size_t i = 0; i < n; i++) {
        float c = decode_bf16(kahan[i]);
        kahan_update_bf16(&weight[i], &c, up[i]);
        kahan[i] = encode_bf16(c);
    }
}

// Weights in bf16 codes, `weight` their values, already decoded.
static inline void adamw_store_bf16(const AdamWTensor *t, float *weight, const float *up, size_t i, size_t n,
                                    const AdamWHyper *h, MasterRule master) {
    uint32_t bits[ADAMW_BLOCK];
    uint16_t *codes = (uint16_t *)t->weight + i;
    if (master == MASTER_RULE_KAHAN) adamw_add_kahan(weight, t->kahan + i, up, n);
    else adamw_add(weight, up, n);
    if (master == MASTER_RULE_STOCHASTIC) {
        adamw_random(bits, RAND_ROUND_WEIGHT, t, i, n, h);
        adamw_encode_stochastic(codes, weight, bits, n);
    } else {
        adamw_encode(codes, weight, n);
    }
    if (t->working) adamw_decode(t->working + i, codes, n);
}

static inline void adamw_store_moment(uint16_t *codes, const float *x, uint32_t purpose, const AdamWTensor *t, size_t i,
                                      size_t n, const AdamWHyper *h, MomentsRule moments) {
    uint32_t bits[ADAMW_BLOCK];
    if (moments == MOMENTS_RULE_BF16) {
        adamw_encode(codes + i, x, n);
        return;
    }
    adamw_random(bits, purpose, t, i, n, h);
    adamw_encode_stochastic(codes + i, x, bits, n);
}

// Elements [i, i + n) of the tensor, n <= ADAMW_BLOCK.
static inline void adamw_block(const AdamWTensor *t, size_t i, size_t n, const AdamWHyper *h, MasterRule master,
                               MomentsRule moments) {
    float up[ADAMW_BLOCK], w_copy[ADAMW_BLOCK], m_copy[ADAMW_BLOCK], v_copy[ADAMW_BLOCK];
    float *w = (float *)t->weight + i, *m = (float *)t->m + i, *v = (float *)t->v + i;
    if (master != MASTER_RULE_FP32) adamw_decode(w = w_copy, (const uint16_t *)t->weight + i, n);
    if (moments != MOMENTS_RULE_FP32) {
        adamw_decode(m = m_copy, (const uint16_t *)t->m + i, n);
        adamw_decode(v = v_copy, (const uint16_t *)t->v + i, n);
    }
    adamw_direction(up, m, v, w, t->grad + i, n, *h);
    if (master != MASTER_RULE_FP32) adamw_store_bf16(t, w, up, i, n, h, master);
    else if (t->working) adamw_add_copied(w, t->working + i, up, n);
    else adamw_add(w, up, n);
    if (moments == MOMENTS_RULE_FP32) return;
    adamw_store_moment((uint16_t *)t->m, m, RAND_ROUND_M, t, i, n, h, moments);
    adamw_store_moment((uint16_t *)t->v, v, RAND_ROUND_V, t, i, n, h, moments);
}

// adamw_update_tensor: one step, in place; grad is read
//   one pass over memory; the same bits for any number of threads
static inline void adamw_update_tensor(const AdamWTensor *t, const AdamWHyper *h, MasterRule master, MomentsRule moments) {
#pragma omp parallel for schedule(static)
    for (size_t chunk = 0; chunk < t->n; chunk += ADAMW_CHUNK) {
        size_t end = min_size(chunk + ADAMW_CHUNK, t->n);
        for (size_t i = chunk; i < end; i += ADAMW_BLOCK) adamw_block(t, i, min_size(ADAMW_BLOCK, end - i), h, master, moments);
    }
}

static inline float adamw_round_narrow(float x) { return BUILD_WEIGHT == FORMAT_FP16 ? round_fp16(x) : round_bf16(x); }

// Counts over w + up. Comparisons of patterns and no branches, so that it vectorises.
static inline void adamw_count_lost(UpdateCounts *counts, const float *RESTRICT w, const float *RESTRICT up, size_t n,
                                    int stored_bf16) {
    uint32_t updates = 0, lost = 0, lost_stored = 0;
    for (size_t i = 0; i < n; i++) {
        float sum = w[i] + up[i];
        uint32_t moves = (bits_of_float(up[i]) & 0x7fffffffu) != 0, old = bits_of_float(w[i]);
        uint32_t stored = stored_bf16 ? bits_of_float(round_bf16(sum)) : bits_of_float(sum);
        updates += moves;
        lost += moves & (uint32_t)(bits_of_float(adamw_round_narrow(sum)) == bits_of_float(adamw_round_narrow(w[i])));
        lost_stored += moves & (uint32_t)(stored == old);
    }
    counts->updates += updates;
    counts->lost += lost;
    counts->lost_stored += lost_stored;
}

static inline void adamw_count_frozen(UpdateCounts *counts, const float *RESTRICT v, const float *RESTRICT v_old, size_t n) {
    uint32_t frozen = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t old = bits_of_float(v_old[i]);
        frozen += (uint32_t)(bits_of_float(v[i]) != old) & (uint32_t)(bits_of_float(round_bf16(v[i])) == old);
    }
    counts->v_frozen += frozen;
    counts->v_elements += n;
}

// As adamw_block, but only counts. Kahan and stochastic rounding keep on average what lost_stored says is lost.
static inline void adamw_count_block(UpdateCounts *counts, const AdamWTensor *t, size_t i, size_t n, const AdamWHyper *h,
                                     MasterRule master, MomentsRule moments) {
    float up[ADAMW_BLOCK], w[ADAMW_BLOCK], m[ADAMW_BLOCK], v[ADAMW_BLOCK], v_old[ADAMW_BLOCK];
    if (master != MASTER_RULE_FP32) adamw_decode(w, (const uint16_t *)t->weight + i, n);
    else memcpy(w, (const float *)t->weight + i, n * sizeof *w);
    if (moments != MOMENTS_RULE_FP32) {
        adamw_decode(m, (const uint16_t *)t->m + i, n);
        adamw_decode(v, (const uint16_t *)t->v + i, n);
    } else {
        memcpy(m, (const float *)t->m + i, n * sizeof *m);
        memcpy(v, (const float *)t->v + i, n * sizeof *v);
    }
    memcpy(v_old, v, n * sizeof *v);
    adamw_direction(up, m, v, w, t->grad + i, n, *h);
    adamw_count_lost(counts, w, up, n, master != MASTER_RULE_FP32);
    if (moments == MOMENTS_RULE_BF16) adamw_count_frozen(counts, v, v_old, n);
}

// adamw_count: counts += what adamw_update_tensor with the same arguments would do to elements [begin, end); writes nothing
static inline void adamw_count(UpdateCounts *counts, const AdamWTensor *t, size_t begin, size_t end, const AdamWHyper *h,
                               MasterRule master, MomentsRule moments) {
    uint64_t updates = 0, lost = 0, lost_stored = 0, v_frozen = 0, v_elements = 0;
#pragma omp parallel for schedule(static) reduction(+ : updates, lost, lost_stored, v_frozen, v_elements)
    for (size_t i = begin; i < end; i += ADAMW_BLOCK) {
        UpdateCounts block = {0, 0, 0, 0, 0};
        adamw_count_block(&block, t, i, min_size(ADAMW_BLOCK, end - i), h, master, moments);
        updates += block.updates;
        lost += block.lost;
        lost_stored += block.lost_stored;
        v_frozen += block.v_frozen;
        v_elements += block.v_elements;
    }
    counts->updates += updates;
    counts->lost += lost;
    counts->lost_stored += lost_stored;
    counts->v_frozen += v_frozen;
    counts->v_elements += v_elements;
}

// adamw_update: one step for n elements in fp32, in place
//   weight, m, v (n) f32, updated      grad (n) f32, read      no two of them overlap
static inline void adamw_update(float *weight, float *m, float *v, const float *grad, size_t n, const AdamWHyper *h) {
    AdamWTensor t = {weight, NULL, NULL, m, v, grad, n, 0};
    adamw_update_tensor(&t, h, MASTER_RULE_FP32, MOMENTS_RULE_FP32);
}

// adamw_refresh: the working copy of n weights that were loaded or made, where there is one
static inline void adamw_refresh(float *working, const void *weight, size_t n, MasterRule master) {
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i += ADAMW_CHUNK) {
        size_t count = min_size(ADAMW_CHUNK, n - i);
        if (master != MASTER_RULE_FP32) adamw_decode(working + i, (const uint16_t *)weight + i, count);
        else
            for (size_t j = i; j < i + count; j++) working[j] = round_weight(((const float *)weight)[j]);
    }
}

CPU_TWIN_END
#endif
