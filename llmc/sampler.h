// sampler.h: the next token from a row of logits: temperature, then top-k, then top-p, then one coin.
//
// Filters work as in Hugging Face transformers: top-k keeps the k likeliest tokens; top-p (nucleus sampling, Holtzman
// et al. 2020) then keeps the shortest run of the likeliest whose share of what is left reaches p.
#ifndef LLMC_SAMPLER_H
#define LLMC_SAMPLER_H

#include <math.h>

#include "utils.h"

typedef struct {
    float temperature;  // 0: greedy, the likeliest token (the lowest id among equals)
    size_t top_k;       // 0: off; above the vocabulary: the whole vocabulary
    float top_p;        // 1: off
} SamplerParams;

// One token while it competes. The caller gives V of these as scratch.
typedef struct {
    float logit;
    int32_t id;
} SamplerCandidate;

static inline size_t sampler_scratch_bytes(size_t V) { return size_mul(V, sizeof(SamplerCandidate)); }

// Ends the program with the option that makes no sense, if one does. Comparisons are written so that NaN fails them.
static inline void sampler_check(const SamplerParams *p) {
    if (!(p->temperature >= 0 && p->temperature <= 1e30f))
        die_usage("--temperature %g is not a number from 0 (greedy) to 1e30", (double)p->temperature);
    if (!(p->top_p > 0 && p->top_p <= 1))
        die_usage("--top-p %g is not above 0 and up to 1 (1 is off)\ntry: --temperature 0 for the likeliest token",
                  (double)p->top_p);
}

// The likeliest token; the lowest id among equals. Ends the program at a logit that is not finite: NaN compares false
// with everything, so it would otherwise be passed over in silence.
static inline size_t sampler_argmax(const float *logits, size_t V) {
    size_t best = 0;
    for (size_t i = 0; i < V; i++) {
        if (!isfinite(logits[i]))
            die("sampling: the logit of token %zu is %g\nwhy: the model's weights or activations are not finite\n"
                "try: resume from an earlier checkpoint with a lower --lr", i, (double)logits[i]);
        if (logits[i] > logits[best]) best = i;
    }
    return best;
}

// Likelier first, lower id first among equals: a total order, so the candidates' order never depends on the method.
static inline int sampler_before(SamplerCandidate a, SamplerCandidate b) {
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

static inline void sampler_sift_down(SamplerCandidate *heap, size_t count, size_t root) {
    SamplerCandidate moving = heap[root];
    for (size_t child; (child = 2 * root + 1) < count; root = child) {
        if (child + 1 < count && sampler_before(heap[child + 1], heap[child])) child++;
        if (!sampler_before(heap[child], moving)) break;
        heap[root] = heap[child];
    }
    heap[root] = moving;
}

// A candidate's weight relative to the likeliest one's. In double: a temperature of 1e-30 divides without overflow
// (the quotient is -inf and its weight 0), and 50,000 weights add up without loss.
static inline double sampler_weight(float logit, float max_logit, float temperature) {
    return exp(((double)logit - (double)max_logit) / (double)temperature);
}

// Takes candidates off the heap, likeliest first, until k are out or (when k is all of them) their weight reaches
// `enough`; the i-th lands in scratch[V - 1 - i]. Returns how many, their weight in *mass.
static inline size_t sampler_take_likeliest(SamplerCandidate *scratch, size_t V, size_t k, double enough,
                                            float max_logit, float temperature, double *mass) {
    size_t taken = 0;
    *mass = 0;
    for (size_t i = V / 2; i-- > 0;) sampler_sift_down(scratch, V, i);
    while (taken < k && (taken == 0 || *mass < enough)) {
        SamplerCandidate top = scratch[0];
        size_t left = V - 1 - taken;
        scratch[0] = scratch[left];
        if (left > 1) sampler_sift_down(scratch, left, 0);
        scratch[left] = top;
        *mass += sampler_weight(top.logit, max_logit, temperature);
        taken++;
    }
    return taken;
}

// The next token's id, always below V. logits (V) finite, else the program ends with the token named; `coin` in [0, 1)
// decides, the same coin always the same way; scratch: V candidates (unused where greedy). No allocation.
// Without filters tokens are laid on [0, 1) in id order, with them in order of likelihood.
static inline size_t sample_token(const float *logits, size_t V, const SamplerParams *p, float coin,
                                  SamplerCandidate *scratch) {
    size_t best = sampler_argmax(logits, V);
    size_t k = p->top_k == 0 ? V : min_size(p->top_k, V);
    if (p->temperature == 0 || k == 1) return best;
    float max_logit = logits[best], temperature = p->temperature;
    double mass = 0, reached = 0;
    if (k == V)
        for (size_t i = 0; i < V; i++) mass += sampler_weight(logits[i], max_logit, temperature);
    if (k == V && !(p->top_p < 1)) {  // no filter: no order needed
        size_t chosen = best;
        for (size_t i = 0; i < V; i++) {
            double weight = sampler_weight(logits[i], max_logit, temperature);
            reached += weight;
            if (weight > 0) chosen = i;  // where rounding leaves the coin beyond the sum: the last that can occur
            if (reached > (double)coin * mass) break;
        }
        return chosen;
    }
    for (size_t i = 0; i < V; i++) {
        scratch[i].logit = logits[i];
        scratch[i].id = (int32_t)i;
    }
    double enough = k == V ? (double)p->top_p * mass : INFINITY;
    size_t taken = sampler_take_likeliest(scratch, V, k, enough, max_logit, temperature, &mass);
    if (k < V && p->top_p < 1) {  // top-p of what top-k left
        size_t kept = 0;
        enough = (double)p->top_p * mass;
        for (mass = 0; kept < taken && (kept == 0 || mass < enough); kept++)
            mass += sampler_weight(scratch[V - 1 - kept].logit, max_logit, temperature);
        taken = kept;
    }
    size_t chosen = 0;
    for (size_t i = 0; i < taken; i++) {
        double weight = sampler_weight(scratch[V - 1 - i].logit, max_logit, temperature);
        reached += weight;
        if (weight > 0) chosen = i;
        if (reached > (double)coin * mass) break;
    }
    return (size_t)scratch[V - 1 - chosen].id;
}

#endif
