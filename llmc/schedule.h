// schedule.h: the learning rate of each step, a pure function of the step and the options.
//
// With w warm-up steps, N steps in all, peak rate p and final rate f = p * final_fraction, step s counted from 0:
//
//     s >= N   f                                                      (constant: p)
//     s <  w   p * (s + 1) / w                                        the first step already moves, step w-1 is at p
//     cosine   f + (p - f) * (1 + cos(pi * r)) / 2                    r = (s - w) / (N - w)
//     linear   p + (f - p) * r
//     constant p
//     wsd      p while s < d, then f + (p - f) * (1 - sqrt(r))        d = max(w, floor((1 - decay_fraction) * N)),
//                                                                     r = (s - d) / (N - d)
//
// These are llm.c's formulas, except that warm-up applies to `constant` too and that every case it leaves undefined
// (w = 0, w >= N, N = 1, s >= N) is defined. The shape of wsd's decay is from Haegele et al. 2024.
#ifndef LLMC_SCHEDULE_H
#define LLMC_SCHEDULE_H

#include <math.h>

#include "utils.h"

typedef enum { SCHEDULE_COSINE, SCHEDULE_LINEAR, SCHEDULE_CONSTANT, SCHEDULE_WSD, SCHEDULE_KINDS } ScheduleKind;

typedef struct {
    ScheduleKind kind;
    double peak_lr;
    uint64_t warmup_steps;  // 0: none
    uint64_t total_steps;
    double final_fraction;  // of peak_lr, reached at total_steps
    double decay_fraction;  // wsd only: the share of total_steps that decays (llm.c: 0.2)
} Schedule;

#define SCHEDULE_NAMES "cosine|linear|constant|wsd"

static inline const char *schedule_name(ScheduleKind kind) {
    static const char *const names[SCHEDULE_KINDS] = {"cosine", "linear", "constant", "wsd"};
    return names[kind];
}

// Sets *kind from its name; 0 where there is no such schedule (then *kind is left alone), else 1.
static inline int schedule_parse(ScheduleKind *kind, const char *name) {
    for (int i = 0; i < SCHEDULE_KINDS; i++) {
        if (strcmp(name, schedule_name((ScheduleKind)i)) != 0) continue;
        *kind = (ScheduleKind)i;
        return 1;
    }
    return 0;
}

// Ends the program with the option that makes no sense, if one does. Comparisons are written so that NaN fails them.
static inline void schedule_check(const Schedule *s) {
    if (!(s->peak_lr >= 0 && s->peak_lr <= 1e30)) die_usage("--lr %g is not a number from 0 to 1e30", s->peak_lr);
    if (!(s->final_fraction >= 0 && s->final_fraction <= 1))
        die_usage("--final-lr-fraction %g is not between 0 and 1", s->final_fraction);
    if (!(s->decay_fraction >= 0 && s->decay_fraction <= 1))
        die_usage("the wsd schedule's decay fraction %g is not between 0 and 1", s->decay_fraction);
}

// The rate of step `step` (0 is the first). Defined for every step and every schedule that schedule_check() accepts.
static inline double schedule_lr(const Schedule *s, uint64_t step) {
    double peak = s->peak_lr;
    double final_lr = s->kind == SCHEDULE_CONSTANT ? peak : peak * s->final_fraction;
    if (step >= s->total_steps) return final_lr;
    if (step < s->warmup_steps) return peak * ((double)(step + 1) / (double)s->warmup_steps);
    // From here warmup_steps <= step < total_steps, so no length below is zero.
    double total = (double)s->total_steps, start = (double)s->warmup_steps;
    if (s->kind == SCHEDULE_WSD) start = fmax(start, floor((1.0 - s->decay_fraction) * total + 1e-6));
    if ((double)step < start) return peak;
    double ratio = ((double)step - start) / (total - start);
    switch (s->kind) {
        case SCHEDULE_COSINE: return final_lr + (peak - final_lr) * 0.5 * (1.0 + cos(3.141592653589793 * ratio));
        case SCHEDULE_LINEAR: return peak + (final_lr - peak) * ratio;
        case SCHEDULE_WSD: return final_lr + (peak - final_lr) * (1.0 - sqrt(ratio));
        default: return peak;
    }
}

#endif
