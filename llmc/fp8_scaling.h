// fp8_scaling.h: the scale of delayed scaling (fp8-delayed): from the largest magnitudes of past steps, so that a
// tensor can be cast in one pass. One DelayedScale per quantised tensor (x, w, dY of each linear layer).
//
//     every micro-batch   quantize_operand(..., delayed_scale_in_force(&d)), then delayed_record(&d, result.amax)
//     end of the step     [maximum of d.history[0] over ranks]  delayed_step(&d)
//
// Evaluation and sampling read the scale and record nothing. history, length and scale are what a checkpoint saves. The
// rule is Transformer Engine's, but for two choices: while nothing has been recorded the tensor is scaled by its own
// amax (TE starts at 1, which casts most first gradients to zero), and an Inf amax is not recorded (TE's keeps the
// scale frozen until it has left the window).
#ifndef LLMC_FP8_SCALING_H
#define LLMC_FP8_SCALING_H

#include <float.h>

#include "formats.h"

#define FP8_HISTORY_DEFAULT 16  // TE's default is 1024: one spike then costs precision for 1024 steps

typedef struct {
    int margin;         // a power of two to leave free above the history's maximum: scale * 2^-margin
    int most_recent;    // 1: the last step alone decides, not the maximum of the history
    int te_first_step;  // 1: start at scale 1 as TE does (for comparison)
} DelayedOptions;

typedef struct {
    float *history;  // (length) [0] this step so far, [1] the oldest .. [length-1] the newest
    int length;
    FormatId format;
    float scale;  // 0 until the first step has ended
} DelayedScale;

// `history` is the caller's memory of `length` >= 1 floats.
static inline void delayed_init(DelayedScale *d, float *history, int length, FormatId format,
                                const DelayedOptions *options) {
    d->history = history;
    d->length = length;
    d->format = format;
    d->scale = options->te_first_step ? 1.0f : 0.0f;
    for (int i = 0; i < length; i++) history[i] = 0.0f;
}

// The scale to quantise with; 0 stands for "by the tensor's own amax" (QuantSpec.delayed_scale understands it).
static inline float delayed_scale_in_force(const DelayedScale *d) { return d->scale; }

// history[0] = max(history[0], amax); what is not finite stays out (its step is skipped anyway).
static inline void delayed_record(DelayedScale *d, float amax) {
    if (isfinite(amax) && amax > d->history[0]) d->history[0] = amax;
}

// Ends a step (skipped ones too): the next scale, then the history moves by one. Nothing changes if nothing was
// recorded.
static inline void delayed_step(DelayedScale *d, const DelayedOptions *options) {
    float amax = d->history[0];
    if (amax == 0.0f) return;
    if (!options->most_recent)
        for (int i = 1; i < d->length; i++) amax = fmaxf(amax, d->history[i]);
    float scale = ldexpf(format_max(d->format), -options->margin) / amax;
    d->scale = isinf(scale) ? FLT_MAX : scale;
    float newest = d->history[0];
    for (int i = 1; i + 1 < d->length; i++) d->history[i] = d->history[i + 1];
    if (d->length > 1) d->history[d->length - 1] = newest;
    d->history[0] = 0.0f;
}

// A history of another length, for a resumed run: the most recent entries are kept, missing ones are 0.
static inline void delayed_resize_history(float *to, int to_length, const float *from, int from_length) {
    to[0] = from[0];
    for (int age = 1; age < to_length; age++) to[to_length - age] = age < from_length ? from[from_length - age] : 0.0f;
}

#endif
