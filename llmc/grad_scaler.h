// grad_scaler.h: the factor that fp16's loss is multiplied with, so that small gradients stay above 2^-24.
//
// Order of a step (the trainer's): backward from loss * scale; sum micro-batches; [reduce over ranks]; the finite test
// on the scaled gradients; norm of the unscaled ones; clip; update or skip; and only then grad_scaler_update(). The
// scale is a power of two, so that multiplying with it and dividing again changes no bit (but for what underflows), and
// one unscaling can ride along in AdamW's grad_scale.
//
// Dynamic scaling is PyTorch's GradScaler (Micikevicius et al. 2018): halve after an overflow, double after `interval`
// good steps in a row. It differs in having a floor, a ceiling and a limit on overflows in a row: a forward pass that is
// broken cannot be cured by halving.
#ifndef LLMC_GRAD_SCALER_H
#define LLMC_GRAD_SCALER_H

#include <math.h>

#include "utils.h"

typedef struct {
    int dynamic;         // 0: the scale never changes
    uint64_t interval;   // good steps in a row before the scale doubles
    double floor, ceiling;
} GradScalerOptions;

// Plain data, for the checkpoint.
typedef struct {
    double scale;         // a power of two
    uint64_t good_steps;  // since the last change of scale
    uint64_t overflows;   // steps whose scaled gradients were not finite, of the whole run
} GradScaler;

static inline int is_power_of_two(double x) {
    int exponent;
    return x > 0 && frexp(x, &exponent) == 0.5;
}

// Ends the program with the option that is wrong, if one is.
static inline void grad_scaler_check(double start, const GradScalerOptions *options) {
    const double largest = 0x1p126;  // its inverse is still a normal float
    if (!is_power_of_two(options->floor) || options->floor > largest || options->floor < 0x1p-100)
        die_usage("--loss-scale-min %g is not a power of two between 2^-100 and 2^126", options->floor);
    if (!is_power_of_two(options->ceiling) || options->ceiling > largest || options->ceiling < options->floor)
        die_usage("--loss-scale-max %g is not a power of two between --loss-scale-min %g and 2^126", options->ceiling,
                  options->floor);
    if (!is_power_of_two(start) || start < options->floor || start > options->ceiling)
        die_usage("the loss scale %g is not a power of two between --loss-scale-min %g and --loss-scale-max %g\n"
                  "why: dividing by a power of two is exact",
                  start, options->floor, options->ceiling);
    if (options->interval < 1) die_usage("--loss-scale-interval must be at least 1");
}

static inline GradScaler grad_scaler(double start) {
    GradScaler scaler = {start, 0, 0};
    return scaler;
}

// After the update or its omission: the next step's scale. `overflow`: this step's scaled gradients were not finite.
// Returns 1 if the scale should have fallen below its floor.
static inline int grad_scaler_update(GradScaler *s, const GradScalerOptions *options, int overflow) {
    s->overflows += (uint64_t)(overflow != 0);
    if (!options->dynamic) return 0;
    if (overflow) {
        int at_floor = s->scale * 0.5 < options->floor;
        s->good_steps = 0;
        if (!at_floor) s->scale *= 0.5;
        return at_floor;
    }
    if (++s->good_steps >= options->interval) {  // >=: a resumed run may have a shorter interval than its count
        if (s->scale * 2.0 <= options->ceiling) s->scale *= 2.0;
        s->good_steps = 0;
    }
    return 0;
}

#endif
