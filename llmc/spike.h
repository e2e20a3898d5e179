// spike.h: is this loss or gradient norm out of line with the last 128? (llm.c's outlier detector, made NaN-proof.)
//
// Use, once per step and quantity:
//
//     if (spike_detected(&window, loss, z_limit)) skip the update;
//     else spike_accept(&window, loss);
//
// Only values of steps that were applied enter the window: a skipped spike would widen it and let the next one pass,
// and one NaN would make every later score NaN. A run whose loss has jumped for good is therefore skipped for ever;
// whoever calls this counts consecutive skips and gives up.
#ifndef LLMC_SPIKE_H
#define LLMC_SPIKE_H

#include <math.h>

#include "utils.h"

#define SPIKE_WINDOW 128

// Plain data, saved in a checkpoint as it is; all zero is the empty window.
typedef struct {
    double values[SPIKE_WINDOW];
    uint64_t count;  // values present, at most SPIKE_WINDOW
    uint64_t next;   // where the next one goes
} SpikeWindow;

// How many standard deviations `value` lies above the window's mean (negative: below). 0 until the window is full,
// +inf for a value that is not finite. Sums are made afresh each time: 128 additions cost nothing and never drift.
static inline double spike_zscore(const SpikeWindow *window, double value) {
    double mean = 0, variance = 0;
    if (!isfinite(value)) return INFINITY;
    if (window->count < SPIKE_WINDOW) return 0;
    for (int i = 0; i < SPIKE_WINDOW; i++) mean += window->values[i] / SPIKE_WINDOW;
    for (int i = 0; i < SPIKE_WINDOW; i++)
        variance += (window->values[i] - mean) * (window->values[i] - mean) / SPIKE_WINDOW;
    // A window of equal values must not make rounding noise a spike: float's own resolution is the least deviation.
    double deviation = fmax(sqrt(variance), 1e-6 * fabs(mean));
    if (value == mean) return 0;
    return (value - mean) / deviation;
}

// 1 if the step should be skipped: its value is not finite, or z_limit is positive and the score above it.
// z_limit 0 switches scores off; a value that is not finite is reported all the same. A NaN on either side of the
// comparison means "skip".
static inline int spike_detected(const SpikeWindow *window, double value, double z_limit) {
    if (!isfinite(value)) return 1;
    if (z_limit == 0) return 0;
    return !(spike_zscore(window, value) <= z_limit);
}

// Puts the value of an applied step into the window, in place of the oldest. What is not finite stays out.
static inline void spike_accept(SpikeWindow *window, double value) {
    if (!isfinite(value)) return;
    window->values[window->next] = value;
    window->next = (window->next + 1) % SPIKE_WINDOW;
    if (window->count < SPIKE_WINDOW) window->count++;
}

#endif
