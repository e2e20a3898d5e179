// cross_entropy.h: softmax, loss and the gradient of the logits in one visit to each row.
//
// A row of logits (200 KB at GPT-2's vocabulary) stays in the second-level cache between the passes, so the logits
// cross memory once in each direction and the probabilities are never stored beside them.
#ifndef LLMC_CROSS_ENTROPY_H
#define LLMC_CROSS_ENTROPY_H

#include <assert.h>

#include "precision.h"
#include "utils.h"
#include "vmath.h"

CPU_TWIN_BEGIN

// The largest of x[0..n). NaN is passed over here; the sum of exps will hold it.
static inline float classifier_row_max(const float *RESTRICT x, size_t n) {
    float lanes[SUM_LANES];
    size_t i = 0;
    for (size_t j = 0; j < SUM_LANES; j++) lanes[j] = -INFINITY;
    for (; i + SUM_LANES <= n; i += SUM_LANES)
        for (size_t j = 0; j < SUM_LANES; j++) lanes[j] = x[i + j] > lanes[j] ? x[i + j] : lanes[j];
    for (size_t j = 0; i + j < n; j++) lanes[j] = x[i + j] > lanes[j] ? x[i + j] : lanes[j];
    for (size_t width = SUM_LANES / 2; width > 0; width /= 2)
        for (size_t j = 0; j < width; j++) lanes[j] = lanes[j + width] > lanes[j] ? lanes[j + width] : lanes[j];
    return lanes[0];
}

// The sum of exp(x - max), which is at least 1 for a row without NaN.
static inline float classifier_row_sum(const float *RESTRICT x, float max, size_t n) {
    float lanes[SUM_LANES] = {0};
    size_t i = 0;
    for (; i + SUM_LANES <= n; i += SUM_LANES)
        for (size_t j = 0; j < SUM_LANES; j++) lanes[j] += vexpf(x[i + j] - max);
    for (size_t j = 0; i + j < n; j++) lanes[j] += vexpf(x[i + j] - max);
    return lanes_total(lanes);
}

// The same sum, the exps staying in the place of x.
static inline float classifier_row_exp(float *RESTRICT x, float max, size_t n) {
    float lanes[SUM_LANES] = {0};
    size_t i = 0;
    for (; i + SUM_LANES <= n; i += SUM_LANES)
        for (size_t j = 0; j < SUM_LANES; j++) {
            float e = vexpf(x[i + j] - max);
            x[i + j] = e;
            lanes[j] += e;
        }
    for (size_t j = 0; i + j < n; j++) {
        x[i + j] = vexpf(x[i + j] - max);
        lanes[j] += x[i + j];
    }
    return lanes_total(lanes);
}

static inline float classifier_row(float *RESTRICT logits, size_t target, float dloss, size_t V, size_t Vp) {
    float max = classifier_row_max(logits, V);
    float target_shifted = logits[target] - max;
    if (dloss == 0.0f) return logf(classifier_row_sum(logits, max, V)) - target_shifted;
    float sum = classifier_row_exp(logits, max, V);
    float scale = dloss / sum;
    float target_grad = fmaf(logits[target], scale, -dloss);  // (p - 1) dloss
    for (size_t i = 0; i < V; i++) logits[i] = round_grad(logits[i] * scale);
    logits[target] = round_grad(target_grad);
    for (size_t i = V; i < Vp; i++) logits[i] = 0.0f;
    return logf(sum) - target_shifted;
}

// fused_classifier: losses = -log softmax(logits)[target] over the first V columns; with dloss != 0 the logits then
// give way to their gradient times dloss, (p - onehot) dloss (dloss is 1 / tokens of the whole step, loss scale in it)
//   logits (rows, Vp) act, becomes grad (=)      losses (rows) f32 =      targets (rows) ids < V
//   columns V..Vp are never read and get gradient 0; dloss = 0 leaves the logits as they are
//   a row with NaN or +inf gives loss NaN; a target whose logit is -inf gives loss inf
static inline void fused_classifier(float *logits, float *losses, const int32_t *targets, float dloss, size_t rows,
                                    size_t V, size_t Vp) {
#pragma omp parallel for schedule(static)
    for (size_t row = 0; row < rows; row++) {
        assert(targets[row] >= 0 && (size_t)targets[row] < V);
        losses[row] = classifier_row(logits + row * Vp, (size_t)targets[row], dloss, V, Vp);
    }
}

CPU_TWIN_END
#endif
