// precision_options.h: what the command line may say about number formats in this build, and what follows from it.
//
// The option table is one for all builds. An option given where it has no effect would be a silent lie: it is refused,
// with the builds that have it.
#ifndef LLMC_PRECISION_OPTIONS_H
#define LLMC_PRECISION_OPTIONS_H

#include "grad_scaler.h"
#include "options.h"

#define MODE_BIT(flag) (1u << MODE_##flag)

typedef struct {
    int option;
    uint32_t modes;  // bits 1 << PrecisionMode
} OptionModes;

// Writes the PRECISION= names of `modes` into `text`.
static inline const char *mode_names(char *text, size_t bytes, uint32_t modes) {
    size_t used = 0;
    text[0] = 0;
    for (int mode = 0; mode < PRECISION_MODE_COUNT; mode++) {
        if (!(modes >> mode & 1)) continue;
        PrecisionPolicy policy = precision_policy((PrecisionMode)mode, MASTER_RULE_FP32, MOMENTS_RULE_FP32);
        used += (size_t)snprintf(text + used, bytes - used, "%s%s", used ? ", " : "", policy.name);
    }
    return text;
}

// Refuses options this build has no use for.
static inline void precision_options_refuse(const Options *o) {
    static const OptionModes table[] = {
        {OPTION_loss_scale, MODE_BIT(fp16)},
        {OPTION_loss_scale_start, MODE_BIT(fp16)},
        {OPTION_loss_scale_interval, MODE_BIT(fp16)},
        {OPTION_loss_scale_min, MODE_BIT(fp16)},
        {OPTION_loss_scale_max, MODE_BIT(fp16)},
        {OPTION_tf32_round, MODE_BIT(tf32)},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        char names[128];
        if (!options_given(o, table[i].option) || table[i].modes >> BUILD_MODE & 1) continue;
        die_usage("--%s has no effect in this build (PRECISION=%s)\ntry: make PRECISION=, one of %s",
                  option_table()[table[i].option].name, build_policy().name,
                  mode_names(names, sizeof names, table[i].modes));
    }
}

// v in bf16 by nearest rounding cannot fall once 1 - beta2 < 2^-8: a ratchet that shrinks the steps without a sign.
static inline void precision_options_moments(const Options *o) {
    if (BUILD_MOMENTS_RULE == MOMENTS_RULE_BF16 && o->beta2 > 0.99)
        die_usage("--beta2 %g is above 0.99, too much for moments in bf16 rounded to nearest\n"
                  "why: v * beta2 rounds back to v, which then never falls\n"
                  "try: make MOMENTS=bf16sr, which rounds stochastically, or --beta2 0.95",
                  o->beta2);
}

// fp16's scaler as the options have it; scale 1 and fixed elsewhere.
static inline GradScaler precision_options_scaler(const Options *o, GradScalerOptions *scaler) {
    double start = 1;
    char *end = NULL;
    memset(scaler, 0, sizeof *scaler);
    scaler->interval = 1;
    scaler->floor = scaler->ceiling = 1;
    if (!BUILD_LOSS_SCALING) return grad_scaler(start);
    scaler->dynamic = strcmp(o->loss_scale, "dynamic") == 0;
    scaler->interval = o->loss_scale_interval;
    scaler->floor = o->loss_scale_min;
    scaler->ceiling = o->loss_scale_max;
    start = scaler->dynamic ? o->loss_scale_start : strtod(o->loss_scale, &end);
    if (!scaler->dynamic && (end == o->loss_scale || *end || !is_power_of_two(start)))
        die_usage("--loss-scale '%s' is neither dynamic nor a power of two", o->loss_scale);
    if (!scaler->dynamic) {  // the bounds are dynamic scaling's
        scaler->floor = fmin(scaler->floor, start);
        scaler->ceiling = fmax(scaler->ceiling, start);
    }
    grad_scaler_check(start, scaler);
    return grad_scaler(start);
}

// Checks all of it and sets what is global: how tf32 rounds.
static inline void precision_options_apply(const Options *o) {
    precision_options_refuse(o);
    precision_options_moments(o);
    *tf32_rounding() = strcmp(o->tf32_round, "rz") == 0 ? 0u : 0x1000u;
}

#endif
