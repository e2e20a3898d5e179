// linear.h: a linear layer of the blocks: its three matrix products with operands cast as the precision recipe has it.
//
//     fprop  Y  = X W^T + b     sums over in-features
//     dgrad  dX = dY W          sums over out-features
//     wgrad  dW = dY^T X        sums over tokens            db = column sums of dY, never cast
//
// Where the recipe is "none", or a layer is kept high, this is matmul.h's three functions and nothing else. Otherwise
// each product's operands are cast from the stored tensor (never from another cast of it) along the dimension that
// product sums over, multiplied in partial sums of 128 and scaled once, and the result is rounded as it is stored:
// fprop's product, then again with its bias (precision.h says why), dgrad's once, wgrad's never.
//
// A weight is cast once per optimizer step, not per micro-batch: casts carry the version of the weights they were made
// of. x and dY are cast where they are used; what was saved for the backward pass is the uncast x.
//
// Delayed scaling (fp8_scaling.h) keeps a history for each of x, w and dY. It is written in training passes only, and
// moves once per optimizer step with the maximum over its micro-batches (linear_end_step).
//
// A number that is not finite in any operand is counted in context.nonfinite: the casts themselves would hide it.
#ifndef LLMC_LINEAR_H
#define LLMC_LINEAR_H

#include "accumulate.h"
#include "fp8_scaling.h"
#include "matmul.h"
#include "quantize.h"

// What a run's linear layers do; read-only once the run has begun.
typedef struct {
    ScalingRule scaling;
    QuantOptions quant;
    DelayedOptions delayed;
    int history;              // amaxes a delayed scale looks back on
    AccumulateModel accumulate;
    int fast_forward;         // h14: fprop keeps the short accumulator all along K
    int promote;              // h14: 128 or 0 for all three products, -1: 0 for a fast fprop, else 128
    size_t hp_first, hp_last; // blocks at either end that stay high
    const char *exclude;      // "a,b": layers whose name holds one of these stay high
    uint64_t forward_high_from;  // from this step on fprop is high; 0: never
    const char *autotune;        // GPU: the file with each product's fastest algorithm; "": none
    int gelu_fusion;             // fc's fprop (1), and fcproj's dgrad (2), leave their rounding to GELU
} LinearRecipe;

static inline LinearRecipe linear_recipe(const PrecisionPolicy *policy, uint64_t seed) {
    LinearRecipe recipe;
    memset(&recipe, 0, sizeof recipe);
    recipe.scaling = policy->scaling;
    recipe.quant = quant_default_options(seed);
    recipe.history = FP8_HISTORY_DEFAULT;
    recipe.fast_forward = policy->fast_accumulate;
    recipe.promote = -1;
    recipe.exclude = "";
    recipe.autotune = "";
    return recipe;
}

typedef enum { LINEAR_QKV, LINEAR_ATTPROJ, LINEAR_FC, LINEAR_FCPROJ, LINEAR_KINDS } LinearKind;

static inline const char *linear_kind_name(LinearKind kind) {
    static const char *const names[LINEAR_KINDS] = {"qkv", "attproj", "fc", "fcproj"};
    return names[kind];
}

// in-features C and out-features OC of a kind in a model of `channels`.
static inline void linear_shape(LinearKind kind, size_t channels, size_t *C, size_t *OC) {
    *C = kind == LINEAR_FCPROJ ? 4 * channels : channels;
    *OC = kind == LINEAR_QKV ? 3 * channels : kind == LINEAR_FC ? 4 * channels : channels;
}

typedef enum { HIGH_NOT, HIGH_MODE, HIGH_FEATURES, HIGH_FIRST, HIGH_LAST, HIGH_EXCLUDED } HighReason;

typedef struct {
    char name[32];  // h.3.fc
    LinearKind kind;
    size_t layer, C, OC;
    uint32_t index;    // of all linear layers, from 0
    HighReason high;   // not HIGH_NOT: every product in the format activations have
    const float *weight, *bias;  // (OC, C), (OC): the working weights
    float *dweight, *dbias;
    float *w_fprop, *w_dgrad;  // (OC, C) the casts of weight; one memory where the two are the same
    QuantResult w_fprop_result, w_dgrad_result;
    uint64_t w_version;      // of the weights they were made of; 0: none
    DelayedScale delayed[3]; // by QuantRole
} Linear;

// How a GPU runs each product of a kind of layer, by QuantGemm: emulated_why is NULL where the card has it, else why the
// same casts are multiplied in bf16 instead.
typedef struct {
    const char *emulated_why[LINEAR_KINDS][3];
    const char *why;  // of the last one that is emulated; NULL: none is
    char card[128];
} LinearRoutes;

// ----------------------------------------------------------------------------------------------------------------
// Which layers are cast, and the memory that takes

// 1 if `name` holds one of the comma-separated words.
static inline int linear_excluded(const char *name, const char *words) {
    while (*words) {
        size_t length = strcspn(words, ",");
        for (const char *at = name; length && *at; at++)
            if (strncmp(at, words, length) == 0) return 1;
        words += length + (words[length] == ',');
    }
    return 0;
}

static inline Linear linear_describe(const LinearRecipe *recipe, LinearKind kind, size_t layer, size_t layers,
                                     size_t channels) {
    Linear l;
    memset(&l, 0, sizeof l);
    snprintf(l.name, sizeof l.name, "h.%zu.%s", layer, linear_kind_name(kind));
    l.kind = kind;
    l.layer = layer;
    l.index = (uint32_t)(layer * LINEAR_KINDS + kind);
    linear_shape(kind, channels, &l.C, &l.OC);
    if (recipe->scaling == SCALING_NONE) l.high = HIGH_MODE;
    else if (l.C % 16 || l.OC % 16) l.high = HIGH_FEATURES;
    else if (layer < recipe->hp_first) l.high = HIGH_FIRST;
    else if (layer + recipe->hp_last >= layers) l.high = HIGH_LAST;
    else if (linear_excluded(l.name, recipe->exclude)) l.high = HIGH_EXCLUDED;
    return l;
}

// Are both casts of a weight the same numbers? Where a scale is one for all of it, or blocks are square.
static inline int linear_weight_casts_agree(const LinearRecipe *recipe) {
    QuantSpec fprop = quant_spec(recipe->scaling, QUANT_W, GEMM_FPROP, &recipe->quant, 0, 0);
    QuantSpec dgrad = quant_spec(recipe->scaling, QUANT_W, GEMM_DGRAD, &recipe->quant, 0, 0);
    int tensor = fprop.scaling == SCALING_TENSOR || fprop.scaling == SCALING_DELAYED;
    return fprop.scaling == dgrad.scaling && (tensor || (fprop.square && dgrad.square));
}

// Does GELU take product `gemm` of layer l unrounded (--gelu-fusion)?
static inline int linear_leaves_rounding(const LinearRecipe *recipe, const Linear *l, QuantGemm gemm) {
    return (recipe->gelu_fusion >= 1 && l->kind == LINEAR_FC && gemm == GEMM_FPROP) ||
           (recipe->gelu_fusion >= 2 && l->kind == LINEAR_FCPROJ && gemm == GEMM_DGRAD);
}

// Floats of the casts of one layer's weight; of cast_a and cast_b for N tokens; of product.
static inline size_t linear_weight_elems(const LinearRecipe *recipe, const Linear *l) {
    return l->high ? 0 : size_mul(l->C, l->OC) * (linear_weight_casts_agree(recipe) ? 1 : 2);
}
static inline size_t linear_cast_elems(const LinearRecipe *recipe, size_t N, size_t channels) {
    return recipe->scaling == SCALING_NONE ? 0 : size_mul(round_up(N, HADAMARD_SIZE), 4 * channels);
}
static inline size_t linear_product_elems(const LinearRecipe *recipe, size_t N, size_t channels) {
    if (recipe->scaling == SCALING_NONE || recipe->accumulate == ACCUMULATE_FP32) return 0;
    return size_mul(max_size(N, channels), 4 * channels);
}

// A delayed scale in memory, for checkpoints: its history, then the scale.
static inline size_t linear_delayed_elems(const LinearRecipe *recipe, size_t layers) {
    return recipe->scaling == SCALING_DELAYED ? layers * LINEAR_KINDS * 3 * ((size_t)recipe->history + 1) : 0;
}

static inline float *linear_delayed_block(float *memory, const LinearRecipe *recipe, const Linear *l, int role) {
    return memory + (l->index * 3 + (size_t)role) * ((size_t)recipe->history + 1);
}

// An empty history in `memory`, linear_delayed_elems() floats for all layers.
static inline void linear_delayed_init(const LinearRecipe *recipe, Linear *l, float *memory) {
    for (int role = 0; role < 3; role++) {
        FormatId format = quant_spec(recipe->scaling, (QuantRole)role, GEMM_DGRAD, &recipe->quant, 0, 0).format;
        float *block = linear_delayed_block(memory, recipe, l, role);
        delayed_init(&l->delayed[role], block, recipe->history, format, &recipe->delayed);
        block[recipe->history] = l->delayed[role].scale;
    }
}

// The same after `memory` was loaded from a checkpoint.
static inline void linear_delayed_loaded(const LinearRecipe *recipe, Linear *l, float *memory) {
    for (int role = 0; role < 3; role++)
        l->delayed[role].scale = linear_delayed_block(memory, recipe, l, role)[recipe->history];
}

// The same where the checkpoint's histories had another length: `from` (from_elems) for all layers to `to` (to_elems).
// The most recent amaxes stay, and the scales. 0 if from_elems is not that of so many layers.
static inline int linear_delayed_resize(float *to, size_t to_elems, const float *from, size_t from_elems, size_t layers) {
    size_t blocks = layers * LINEAR_KINDS * 3, to_block = to_elems / blocks, from_block = from_elems / blocks;
    if (from_elems % blocks || from_block < 2) return 0;
    for (size_t i = 0; i < blocks; i++) {
        delayed_resize_history(to + i * to_block, (int)to_block - 1, from + i * from_block, (int)from_block - 1);
        to[(i + 1) * to_block - 1] = from[(i + 1) * from_block - 1];
    }
    return 1;
}

CPU_TWIN_BEGIN

// Everything linear layers share.
typedef struct {
    const LinearRecipe *recipe;
    MatmulScratch *matmul;
    float *cast_a, *cast_b;  // linear_cast_elems() each
    float *padded;           // as much, for nv; else NULL
    float *product;          // linear_product_elems(), for the accumulator models; else NULL
    uint64_t weights_version;  // from 1; one more whenever weights or their scales have changed
    uint32_t step, micro_step, layers;  // what stochastic rounding's random bits are for; `layers`: all linear ones
    int training;
    uint64_t nonfinite;        // numbers that were not finite, in operands, since the caller last set it to 0
    char nonfinite_where[48];  // the first of them: "h.1.fc, its weight"; of meaning while nonfinite is not 0
    // Called with each cast of a step that is looked at: `in` (n) became `values`; NULL otherwise.
    void (*observe)(void *context, const Linear *l, QuantRole role, QuantGemm gemm, const QuantSpec *spec,
                    const QuantResult *result, const float *in, const float *values, size_t n);
    void *observe_context;
} LinearContext;

// ----------------------------------------------------------------------------------------------------------------
// Casts

static inline QuantSpec linear_spec(const LinearContext *ctx, const Linear *l, QuantRole role, QuantGemm gemm) {
    uint32_t stream = (ctx->micro_step * ctx->layers + l->index) & 0x7fffffffu;
    return quant_spec(ctx->recipe->scaling, role, gemm, &ctx->recipe->quant, stream, ctx->step);
}

// One operand of one product, ready for the GEMM.
typedef struct {
    const float *data;
    size_t rows;
    QuantResult result;
} LinearOperand;

static inline void linear_count_nonfinite(LinearContext *ctx, const Linear *l, QuantRole role, uint64_t count) {
    static const char *const names[3] = {"its input", "its weight", "its output's gradient"};
    if (count && !ctx->nonfinite)
        snprintf(ctx->nonfinite_where, sizeof ctx->nonfinite_where, "%.20s, %s", l->name, names[role]);
    ctx->nonfinite += count;
}

// `in` (rows, cols) as product `gemm` reads it, in `values`. Rows beyond `rows` that the Hadamard transform needs are zero.
static inline LinearOperand linear_cast(LinearContext *ctx, Linear *l, QuantRole role, QuantGemm gemm, float *values,
                                        const float *in, size_t rows, size_t cols) {
    QuantSpec spec = linear_spec(ctx, l, role, gemm);
    LinearOperand operand;
    operand.data = values;
    operand.rows = rows;
    if (spec.hadamard && rows % HADAMARD_SIZE) {
        operand.rows = round_up(rows, HADAMARD_SIZE);
        memcpy(ctx->padded, in, rows * cols * sizeof(float));
        memset(ctx->padded + rows * cols, 0, (operand.rows - rows) * cols * sizeof(float));
        in = ctx->padded;
    }
    if (spec.scaling == SCALING_DELAYED) spec.delayed_scale = delayed_scale_in_force(&l->delayed[role]);
    quantize_operand(values, &operand.result, in, operand.rows, cols, &spec);
    linear_count_nonfinite(ctx, l, role, operand.result.nonfinite);
    if (spec.scaling == SCALING_DELAYED && ctx->training) delayed_record(&l->delayed[role], operand.result.amax);
    if (ctx->observe && role != QUANT_W)  // a weight's cast outlives its step: linear_cast_weight() shows it
        ctx->observe(ctx->observe_context, l, role, gemm, &spec, &operand.result, in, values, operand.rows * cols);
    return operand;
}

static inline void linear_observe_weight(LinearContext *ctx, const Linear *l) {
    QuantSpec fprop = linear_spec(ctx, l, QUANT_W, GEMM_FPROP), dgrad = linear_spec(ctx, l, QUANT_W, GEMM_DGRAD);
    size_t n = l->C * l->OC;
    ctx->observe(ctx->observe_context, l, QUANT_W, GEMM_FPROP, &fprop, &l->w_fprop_result, l->weight, l->w_fprop, n);
    if (l->w_dgrad == l->w_fprop) return;
    ctx->observe(ctx->observe_context, l, QUANT_W, GEMM_DGRAD, &dgrad, &l->w_dgrad_result, l->weight, l->w_dgrad, n);
}

// The casts of the weight, made again if the weights have changed since.
static inline void linear_cast_weight(LinearContext *ctx, Linear *l) {
    if (l->w_version != ctx->weights_version) {
        l->w_fprop_result = linear_cast(ctx, l, QUANT_W, GEMM_FPROP, l->w_fprop, l->weight, l->OC, l->C).result;
        l->w_dgrad_result = l->w_fprop_result;
        if (l->w_dgrad != l->w_fprop)
            l->w_dgrad_result = linear_cast(ctx, l, QUANT_W, GEMM_DGRAD, l->w_dgrad, l->weight, l->OC, l->C).result;
        l->w_version = ctx->weights_version;
    } else {
        linear_count_nonfinite(ctx, l, QUANT_W, l->w_fprop_result.nonfinite);  // every step that uses it must know
    }
    // Evaluation may have made them: the step's first training pass still records.
    if (ctx->recipe->scaling == SCALING_DELAYED && ctx->training)
        delayed_record(&l->delayed[QUANT_W], l->w_fprop_result.amax);
    if (ctx->observe) linear_observe_weight(ctx, l);
}

// ----------------------------------------------------------------------------------------------------------------
// Products

// A product in one of the slow accumulator models: the sum to ctx->product, then what gemm() does with it.
static inline void linear_accumulate(LinearContext *ctx, const Gemm *g, int fast) {
    AccumulateOperand a = accumulate_operand(g->a.data, g->a.outer_stride, g->a.k_stride);
    AccumulateOperand b = accumulate_operand(g->b.data, g->b.outer_stride, g->b.k_stride);
    size_t promote = ctx->recipe->promote >= 0 ? (size_t)ctx->recipe->promote : fast ? 0 : ACCUMULATE_CHUNK;
    accumulate_gemm(ctx->product, &a, &b, g->M, g->N, g->K, g->alpha, ctx->recipe->accumulate, promote);
    for (size_t i = 0; i < g->M * g->N; i++) {
        float x = g->accumulate ? g->out[i] + ctx->product[i] : ctx->product[i];
        g->out[i] = g->rounding == ROUND_ACT ? round_act(x) : g->rounding == ROUND_GRAD ? round_grad(x) : x;
    }
}

static inline void linear_product(LinearContext *ctx, const Gemm *g, int fast) {
    if (ctx->recipe->accumulate == ACCUMULATE_FP32) gemm(ctx->matmul, g);
    else linear_accumulate(ctx, g, fast);
}

static inline void linear_add_bias(float *out, const float *bias, size_t N, size_t OC) {
#pragma omp parallel for schedule(static) if (N * OC > 20000)
    for (size_t row = 0; row < N; row++) {
        float *RESTRICT out_row = out + row * OC;
        const float *RESTRICT b = bias;
        for (size_t i = 0; i < OC; i++) out_row[i] = round_act(out_row[i] + b[i]);
    }
}

// linear_forward: out (N, OC) act = inp (N, C) act . weight^T + bias
static inline void linear_forward(LinearContext *ctx, Linear *l, float *out, const float *inp, size_t N) {
    uint64_t high_from = ctx->recipe->forward_high_from;
    if (l->high || (high_from && ctx->step >= high_from)) {
        matmul_forward_rounding(ctx->matmul, out, inp, l->weight, l->bias, N, l->C, l->OC,
                                linear_leaves_rounding(ctx->recipe, l, GEMM_FPROP) ? ROUND_NONE : ROUND_ACT);
        return;
    }
    linear_cast_weight(ctx, l);
    LinearOperand x = linear_cast(ctx, l, QUANT_X, GEMM_FPROP, ctx->cast_a, inp, N, l->C);
    float alpha = quant_alpha(&x.result, &l->w_fprop_result);
    Gemm g = {N,   l->OC, l->C, {x.data, l->C, 1}, {l->w_fprop, l->C, 1}, out, l->OC, NULL, alpha, ACCUMULATE_CHUNK,
              0,   ROUND_ACT};
    linear_product(ctx, &g, ctx->recipe->fast_forward);
    linear_add_bias(out, l->bias, N, l->OC);
}

// dweight from the casts of dout and inp along the tokens. `dout_cast`: dgrad's cast of dout, in cast_a, still.
static inline void linear_backward_weight(LinearContext *ctx, Linear *l, const LinearOperand *dout_cast, const float *dout,
                                          const float *inp, size_t N, int accumulate) {
    QuantSpec spec = linear_spec(ctx, l, QUANT_DY, GEMM_WGRAD);
    if (spec.scaling == SCALING_NONE) {
        matmul_backward_weight(ctx->matmul, l->dweight, dout, inp, N, l->C, l->OC, accumulate);
        return;
    }
    int same = spec.scaling == SCALING_TENSOR || spec.scaling == SCALING_DELAYED;
    LinearOperand dy = same ? *dout_cast : linear_cast(ctx, l, QUANT_DY, GEMM_WGRAD, ctx->cast_a, dout, N, l->OC);
    LinearOperand x = linear_cast(ctx, l, QUANT_X, GEMM_WGRAD, ctx->cast_b, inp, N, l->C);
    float alpha = quant_alpha(&dy.result, &x.result);
    Gemm g = {l->OC, l->C, dy.rows, {dy.data, 1, l->OC}, {x.data, 1, l->C}, l->dweight, l->C, NULL, alpha,
              ACCUMULATE_CHUNK, accumulate, ROUND_NONE};
    linear_product(ctx, &g, 0);
}

// linear_backward: dinp (N, C) grad =, and the layer's dweight, dbias f32 = or, with accumulate, +=
//   dout (N, OC) grad      inp (N, C) act, what the forward pass read      dinp is neither
static inline void linear_backward(LinearContext *ctx, Linear *l, float *dinp, const float *dout, const float *inp,
                                   size_t N, int accumulate) {
    matmul_backward_bias(l->dbias, dout, N, l->OC, accumulate);
    if (l->high) {
        matmul_backward_input_rounding(ctx->matmul, dinp, dout, l->weight, N, l->C, l->OC, 0,
                                       linear_leaves_rounding(ctx->recipe, l, GEMM_DGRAD) ? ROUND_NONE : ROUND_GRAD);
        matmul_backward_weight(ctx->matmul, l->dweight, dout, inp, N, l->C, l->OC, accumulate);
        return;
    }
    linear_cast_weight(ctx, l);
    LinearOperand dy = linear_cast(ctx, l, QUANT_DY, GEMM_DGRAD, ctx->cast_a, dout, N, l->OC);
    float alpha = quant_alpha(&dy.result, &l->w_dgrad_result);
    Gemm g = {N, l->C, l->OC, {dy.data, l->OC, 1}, {l->w_dgrad, 1, l->C}, dinp, l->C, NULL, alpha, ACCUMULATE_CHUNK,
              0, ROUND_GRAD};
    linear_product(ctx, &g, 0);
    linear_backward_weight(ctx, l, &dy, dout, inp, N, accumulate);
}

// Ends an optimizer step, a skipped one too: delayed scales move, and with them the casts of the weights. `memory`: as
// in linear_delayed_init().
static inline void linear_end_step(LinearContext *ctx, Linear *linears, size_t count, float *memory) {
    if (ctx->recipe->scaling != SCALING_DELAYED) return;
    for (size_t i = 0; i < count; i++)
        for (int role = 0; role < 3 && !linears[i].high; role++) {
            DelayedScale *d = &linears[i].delayed[role];
            delayed_step(d, &ctx->recipe->delayed);
            linear_delayed_block(memory, ctx->recipe, &linears[i], role)[ctx->recipe->history] = d->scale;
        }
    ctx->weights_version++;
}

CPU_TWIN_END

#endif
