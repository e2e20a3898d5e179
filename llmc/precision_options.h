// precision_options.h: what the command line may say about number formats in this build, and what follows from it.
//
// The option table is one for all builds. An option given where it has no effect would be a silent lie: it is refused,
// with the builds that have it.
#ifndef LLMC_PRECISION_OPTIONS_H
#define LLMC_PRECISION_OPTIONS_H

#include "grad_scaler.h"
#include "linear.h"
#include "options.h"

#define MODE_BIT(flag) (1u << MODE_##flag)
#define MODE_BITS_TENSOR (MODE_BIT(fp8_delayed) | MODE_BIT(fp8_current))
#define MODE_BITS_FP8 (MODE_BITS_TENSOR | MODE_BIT(fp8_row) | MODE_BIT(fp8_block) | MODE_BIT(mxfp8))
#define MODE_BITS_CAST (MODE_BITS_FP8 | MODE_BIT(nvfp4))

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
        {OPTION_gelu_fusion, MODE_BIT(bf16) | MODE_BIT(fp16)},
        {OPTION_fp8_format, MODE_BITS_FP8},
        {OPTION_fp8_exclude, MODE_BITS_CAST},
        {OPTION_fp8_hp_first, MODE_BITS_CAST},
        {OPTION_fp8_hp_last, MODE_BITS_CAST},
        {OPTION_fp8_pow2, MODE_BIT(fp8_current)},
        {OPTION_fp8_history, MODE_BIT(fp8_delayed)},
        {OPTION_fp8_margin, MODE_BIT(fp8_delayed)},
        {OPTION_fp8_amax, MODE_BIT(fp8_delayed)},
        {OPTION_fp8_first_step, MODE_BIT(fp8_delayed)},
        {OPTION_fp8_wgrad_hp, MODE_BIT(fp8_row)},
        {OPTION_block_scale, MODE_BIT(fp8_block)},
        {OPTION_mx_scale, MODE_BIT(mxfp8)},
        {OPTION_mx_square_weights, MODE_BIT(mxfp8)},
        {OPTION_fp4_plain, MODE_BIT(nvfp4)},
        {OPTION_fp4_switch_step, MODE_BIT(nvfp4)},
        {OPTION_acc, MODE_BITS_CAST},
        {OPTION_promote, MODE_BITS_CAST},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        char names[128];
        if (!options_given(o, table[i].option) || table[i].modes >> BUILD_MODE & 1) continue;
        if (table[i].option == OPTION_gelu_fusion && o->gelu_fusion == 0) continue;  // llm.c's -ge 0 asks for nothing
        die_usage("--%s has no effect in this build (PRECISION=%s)\ntry: make PRECISION=MODE with MODE one of: %s",
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

static inline int option_is(const char *value, const char *word) { return strcmp(value, word) == 0; }

// What the linear layers do, for a model of `layers` blocks.
static inline LinearRecipe precision_options_recipe(const Options *o, size_t layers) {
    PrecisionPolicy policy = build_policy();
    LinearRecipe r = linear_recipe(&policy, o->seed);
    int nv = policy.scaling == SCALING_NV;
    if (o->fp8_wgrad_hp) r.scaling = SCALING_ROW_GWHP;
    if (!option_is(o->fp8_format, "recipe")) r.quant.hybrid = option_is(o->fp8_format, "hybrid");
    r.quant.tensor_pow2 = o->fp8_pow2;
    r.quant.block_fp32 = option_is(o->block_scale, "fp32");
    r.quant.mx_ocp = option_is(o->mx_scale, "ocp");
    r.quant.mx_square_weights = o->mx_square_weights;
    r.quant.nv_plain = o->fp4_plain;
    r.delayed.margin = (int)o->fp8_margin;
    r.delayed.most_recent = option_is(o->fp8_amax, "most-recent");
    r.delayed.te_first_step = option_is(o->fp8_first_step, "te");
    r.history = (int)o->fp8_history;
    r.accumulate = option_is(o->acc, "exact") ? ACCUMULATE_EXACT : option_is(o->acc, "h14") ? ACCUMULATE_H14 : ACCUMULATE_FP32;
    if (!option_is(o->promote, "recipe")) {
        if (r.accumulate != ACCUMULATE_H14)
            die_usage("--promote has no effect without --acc h14\nwhy: only that model keeps a short sum to be moved");
        if (option_is(o->promote, "0") && (policy.scaling == SCALING_BLOCK || policy.scaling == SCALING_MX || nv))
            die_usage("--promote 0 does not go with %s\nwhy: each block's sum has its own scale", policy.name);
        r.promote = option_is(o->promote, "0") ? 0 : 128;
    }
    r.hp_first = nv && !options_given(o, OPTION_fp8_hp_first) ? 1 : o->fp8_hp_first;
    r.hp_last = nv && !options_given(o, OPTION_fp8_hp_last) ? (layers * 15 + 99) / 100 : o->fp8_hp_last;
    r.exclude = o->fp8_exclude;
    r.forward_high_from = o->fp4_switch_step;
    r.autotune = o->autotune;
    r.gelu_fusion = (int)o->gelu_fusion;
    if (r.gelu_fusion && o->recompute)
        die_usage("--gelu-fusion %d needs --recompute 0\nwhy: GELU of a sum that was not rounded cannot be made again from "
                  "the sum as it is kept", r.gelu_fusion);
    return r;
}

// ----------------------------------------------------------------------------------------------------------------
// The start-up list: for each product of each linear layer, in what it is computed and why

// What becomes of product `gemm` of a layer over `tokens`.
static inline void product_text(char *text, size_t bytes, const LinearRecipe *recipe, const Linear *l, QuantGemm gemm,
                                size_t tokens, const LinearRoutes *routes) {
    QuantSpec spec = quant_spec(recipe->scaling, QUANT_DY, gemm, &recipe->quant, 0, 0);
    PrecisionPolicy policy = build_policy();
    size_t K = gemm == GEMM_FPROP ? l->C : gemm == GEMM_DGRAD ? l->OC : tokens;
    const char *what = gemm == GEMM_WGRAD ? "tokens" : gemm == GEMM_FPROP ? "in-features" : "out-features";
    const char *emulated = routes ? routes->emulated_why[l->kind][gemm] : NULL;
    if (gemm == GEMM_WGRAD && spec.scaling == SCALING_NONE) snprintf(text, bytes, "%s (--fp8-wgrad-hp)", format_name(BUILD_ACT));
    else if (emulated) snprintf(text, bytes, "%s emulated by a bf16 product: %s", policy.name, emulated);
    else if (K % 32) snprintf(text, bytes, "%s, %s %zu padded to %zu", policy.name, what, K, round_up(K, 32));
    else snprintf(text, bytes, "%s", policy.name);
}

// One line of the list, without the layer's number.
static inline void linear_text(char *text, size_t bytes, const LinearRecipe *recipe, const Linear *l, size_t tokens,
                               const LinearRoutes *routes) {
    static const char *const names[3] = {"fprop", "dgrad", "wgrad"};
    char products[3][160];
    const char *high = format_name(BUILD_ACT);
    size_t used = (size_t)snprintf(text, bytes, "%5zu -> %-5zu ", l->C, l->OC);
    switch (l->high) {
        case HIGH_FEATURES: {
            int in = l->C % 16 != 0;
            snprintf(text + used, bytes - used, "%s: %s-features %zu are no multiple of 16", high, in ? "in" : "out",
                     in ? l->C : l->OC);
            return;
        }
        case HIGH_FIRST: snprintf(text + used, bytes - used, "%s: first %zu (--fp8-hp-first)", high, recipe->hp_first); return;
        case HIGH_LAST: snprintf(text + used, bytes - used, "%s: last %zu (--fp8-hp-last)", high, recipe->hp_last); return;
        case HIGH_EXCLUDED: snprintf(text + used, bytes - used, "%s: --fp8-exclude %s", high, recipe->exclude); return;
        default: break;
    }
    for (int gemm = 0; gemm < 3; gemm++) product_text(products[gemm], sizeof products[gemm], recipe, l, (QuantGemm)gemm, tokens, routes);
    for (int gemm = 0; gemm < 3; gemm++) {
        int with = 1;  // products that share their fate share their text
        if (gemm > 0 && strcmp(products[gemm], products[gemm - 1]) == 0) continue;
        while (gemm + with < 3 && strcmp(products[gemm + with], products[gemm]) == 0) with++;
        used += (size_t)snprintf(text + used, bytes - used, "%s%s%s: %s", gemm ? "; " : "",
                                 with == 3 ? "all three" : names[gemm], with == 2 ? gemm ? ", wgrad" : ", dgrad" : "",
                                 products[gemm]);
        if (used >= bytes) return;
    }
}

// Layers of one kind with the same text share a line: "h.1-3.fc".
static inline void print_linear_plan(FILE *out, const LinearRecipe *recipe, size_t layers, size_t channels, size_t tokens,
                                     const LinearRoutes *routes) {
    if (recipe->scaling == SCALING_NONE) return;
    size_t cast = 0;
    fprintf(out, "linear layers (weight gradients sum over %zu tokens)%s%s:\n", tokens, routes ? " on " : "", routes ? routes->card : "");
    for (int kind = 0; kind < LINEAR_KINDS; kind++)
        for (size_t first = 0, end; first < layers; first = end) {
            char text[2][640], name[64];
            Linear l = linear_describe(recipe, (LinearKind)kind, first, layers, channels);
            linear_text(text[0], sizeof text[0], recipe, &l, tokens, routes);
            for (end = first + 1; end < layers; end++) {
                Linear next = linear_describe(recipe, (LinearKind)kind, end, layers, channels);
                linear_text(text[1], sizeof text[1], recipe, &next, tokens, routes);
                if (strcmp(text[0], text[1]) != 0) break;
            }
            cast += l.high ? 0 : end - first;
            if (end == first + 1) snprintf(name, sizeof name, "h.%zu.%s", first, linear_kind_name((LinearKind)kind));
            else snprintf(name, sizeof name, "h.%zu-%zu.%s", first, end - 1, linear_kind_name((LinearKind)kind));
            fprintf(out, "  %-16s %s\n", name, text[0]);
        }
    fprintf(out, "  embeddings, logits, layernorm, attention: %s or fp32\n", format_name(BUILD_ACT));
    if (!cast) warn("every linear layer is kept in %s: this run shows nothing of %s", format_name(BUILD_ACT), build_policy().name);
}

// From how many channels on a recipe's products save more than its casts cost on an H100, by 3 % (doc/gpu.md works it out
// from bytes and flops; nobody has measured it yet). 0: Hopper has no such products.
static inline size_t fp8_pays_from_channels(ScalingRule scaling) {
    switch (scaling) {
        case SCALING_NONE: return 1;
        case SCALING_MX:
        case SCALING_NV: return 0;
        case SCALING_DELAYED:
        case SCALING_BLOCK: return 512;
        case SCALING_TENSOR: return 768;
        case SCALING_ROW: return 1024;
        default: return 1600;  // its casts are passes of their own
    }
}

// For a GPU: warns where bf16 is expected to be as fast.
static inline void warn_linear_speed(const LinearRecipe *recipe, size_t channels) {
    const size_t pays_from = fp8_pays_from_channels(recipe->scaling);
    const char *name = build_policy().name;
    if (pays_from == 0)
        warn("%s is expected to be slower than bf16 on a GPU without such products\nwhy: they begin with compute "
             "capability 10.0; before, casts come on top of bf16's products", name);
    else if (channels < pays_from)
        warn("%s is not expected to be faster than bf16 with %zu channels\nwhy: casting costs what the products save; it "
             "pays from %zu on an H100 (doc/gpu.md)", name, channels, pays_from);
}

// Checks all of it and sets what is global: how tf32 rounds.
static inline void precision_options_apply(const Options *o) {
    precision_options_refuse(o);
    precision_options_moments(o);
    *tf32_rounding() = strcmp(o->tf32_round, "rz") == 0 ? 0u : 0x1000u;
}

#endif
