// train_gpt.c: the CPU trainer. GPT-2's forward pass, its backward pass and AdamW, over the kernels of llmc/; the
// loop around them (options, data, evaluation, sampling, checkpoints, log) is llmc/trainer.h, shared with the GPU.
//
//     make && ./train_gpt --train 'data/my_train_*.bin' --val 'data/my_val_*.bin'
//
// Every tensor is held in float; where the precision policy gives it a narrower format, kernels round at the points
// where the GPU trainer stores it, so that this program is the reference the GPU's numbers are checked against.
// The same bits for any number of threads.
#include <float.h>
#include <math.h>

#include "llmc/tensors.h"

#include "llmc/adamw.h"
#include "llmc/attention.h"
#include "llmc/checkpoint.h"
#include "llmc/cross_entropy.h"
#include "llmc/embedding.h"
#include "llmc/gelu.h"
#include "llmc/global_norm.h"
#include "llmc/launcher.h"
#include "llmc/layernorm.h"
#include "llmc/linear.h"
#include "llmc/matmul.h"
#include "llmc/numerics_report.h"
#include "llmc/rand.h"

// ----------------------------------------------------------------------------------------------------------------
// The model

// Buffers kernels work in, and what generating one token needs: the keys and values of all earlier positions.
typedef struct {
    MatmulScratch matmul;
    float *attention, *layernorm;
    float *kcache, *vcache;  // (L, decode_T, C)
    float *token;            // activations of one token: 16 C
} Workspace;

typedef struct Model {
    GPTConfig config;
    BatchShape shape;  // the largest micro-batch, which the activations have room for
    size_t decode_T;   // positions a generated text may have

    ParameterInfo table[GPT_PARAMETER_COUNT];
    size_t parameter_elems;    // of one arena of parameters, padding included
    Parameters weights;        // as kernels read them, in the policy's weight format
    Parameters grads;
    void *masters;             // the authoritative weights, fp32 or bf16 codes; weights' own memory where that is fp32
    uint16_t *kahan;           // their compensation, bf16 codes; NULL without
    void *m, *v;               // AdamW's moments, fp32 or bf16 codes; all four laid out as the weights are
    Activations acts;
    Workspace work;
    LinearRecipe recipe;    // how the linear layers' products read their operands
    Linear *linears;        // (L, LINEAR_KINDS)
    LinearContext linear;
    float *delayed_scales;  // of recipes with delayed scaling, as linear_delayed_init() lays them out; else NULL
    Arena weights_arena, masters_arena, grads_arena, moments_arena, casts_arena, acts_arena, work_arena;

    const int32_t *inputs;  // of the forward pass the next backward pass belongs to
    size_t B, T;            // its shape
    int accumulate;         // 0: the next backward pass overwrites the gradients, 1: it adds to them

    // Called with each activation gradient as the backward pass finishes it (tests); NULL otherwise.
    void (*observe)(void *context, const char *name, size_t layer, const float *data, size_t elems);
    void *observe_context;
    NumericsReport *numerics;  // is shown every tensor of a reported step; NULL otherwise
} Model;

static void observe(const Model *model, const char *name, size_t layer, const float *data, size_t elems) {
    if (model->observe) model->observe(model->observe_context, name, layer, data, elems);
    if (!model->numerics) return;
    // The first position attends to itself alone: its query has no gradient
    size_t genuine_zeros = strcmp(name, "dqkv") == 0 ? model->B * model->config.C : 0;
    numerics_stored(model->numerics, NUMERICS_GRAD, name, layer, BUILD_GRAD, data, elems, genuine_zeros);
}

static Linear *linear_at(const Model *model, size_t layer, LinearKind kind) {
    return &model->linears[layer * LINEAR_KINDS + kind];
}

// Layer l's block of the tensor `base` with `elems` elements a layer.
static float *at_layer(float *base, size_t layer, size_t elems) { return base + layer * elems; }

// ----------------------------------------------------------------------------------------------------------------
// Memory

#define MASTER_BYTES (BUILD_MASTER_RULE == MASTER_RULE_FP32 ? sizeof(float) : sizeof(uint16_t))
#define MOMENT_BYTES (BUILD_MOMENTS_RULE == MOMENTS_RULE_FP32 ? sizeof(float) : sizeof(uint16_t))

// The linear layers: what each is, where its weights, their casts and its gradients are.
static void model_lay_out_linears(Model *model) {
    const GPTConfig *config = &model->config;
    const LinearRecipe *recipe = &model->recipe;
    Parameters *w = &model->weights, *g = &model->grads;
    float *const weights[LINEAR_KINDS] = {w->qkvw, w->attprojw, w->fcw, w->fcprojw};
    float *const biases[LINEAR_KINDS] = {w->qkvb, w->attprojb, w->fcb, w->fcprojb};
    float *const dweights[LINEAR_KINDS] = {g->qkvw, g->attprojw, g->fcw, g->fcprojw};
    float *const dbiases[LINEAR_KINDS] = {g->qkvb, g->attprojb, g->fcb, g->fcprojb};
    size_t N = model->shape.B * model->shape.T, C = config->C;
    Arena *work = &model->work_arena;
    model->linears = (Linear *)arena_take(work, config->L * LINEAR_KINDS, sizeof(Linear));
    for (size_t i = 0; i < config->L * LINEAR_KINDS; i++) {
        Linear l = linear_describe(recipe, (LinearKind)(i % LINEAR_KINDS), i / LINEAR_KINDS, config->L, C);
        size_t kind = i % LINEAR_KINDS, layer = i / LINEAR_KINDS, elems = l.C * l.OC;
        l.w_fprop = (float *)arena_take(&model->casts_arena, linear_weight_elems(recipe, &l), sizeof(float));
        if (!model->linears) continue;
        l.w_dgrad = linear_weight_elems(recipe, &l) > elems ? l.w_fprop + elems : l.w_fprop;
        l.weight = at_layer(weights[kind], layer, elems);
        l.bias = at_layer(biases[kind], layer, l.OC);
        l.dweight = at_layer(dweights[kind], layer, elems);
        l.dbias = at_layer(dbiases[kind], layer, l.OC);
        model->linears[i] = l;
    }
    LinearContext *ctx = &model->linear;
    ctx->recipe = recipe;
    ctx->matmul = &model->work.matmul;
    ctx->layers = (uint32_t)(config->L * LINEAR_KINDS);
    ctx->weights_version = 1;
    ctx->cast_a = (float *)arena_take(work, linear_cast_elems(recipe, N, C), sizeof(float));
    ctx->cast_b = (float *)arena_take(work, linear_cast_elems(recipe, N, C), sizeof(float));
    if (recipe->scaling == SCALING_NV)
        ctx->padded = (float *)arena_take(work, linear_cast_elems(recipe, N, C), sizeof(float));
    ctx->product = (float *)arena_take(work, linear_product_elems(recipe, N, C), sizeof(float));
    if (recipe->scaling == SCALING_DELAYED)
        model->delayed_scales = (float *)arena_take(work, linear_delayed_elems(recipe, config->L), sizeof(float));
    for (size_t i = 0; model->delayed_scales && i < ctx->layers; i++)
        linear_delayed_init(recipe, &model->linears[i], model->delayed_scales);
}

// Hands out (or, while planning, counts) every buffer. The one place that knows what a run needs.
static void model_lay_out(Model *model) {
    const GPTConfig *config = &model->config;
    size_t N = size_mul(model->shape.B, model->shape.T), C = config->C;
    int threads = thread_count();
    float *base;
    model->parameter_elems = parameter_table(config, model->table);
    base = (float *)arena_take(&model->weights_arena, model->parameter_elems, sizeof(float));
    if (base) parameters_point(&model->weights, base, model->table);
    model->masters = base;
    if (BUILD_WEIGHTS_COPIED) model->masters = arena_take(&model->masters_arena, model->parameter_elems, MASTER_BYTES);
    if (BUILD_MASTER_RULE == MASTER_RULE_KAHAN)
        model->kahan = (uint16_t *)arena_take(&model->masters_arena, model->parameter_elems, sizeof(uint16_t));
    base = (float *)arena_take(&model->grads_arena, model->parameter_elems, sizeof(float));
    if (base) parameters_point(&model->grads, base, model->table);
    model->m = arena_take(&model->moments_arena, model->parameter_elems, MOMENT_BYTES);
    model->v = arena_take(&model->moments_arena, model->parameter_elems, MOMENT_BYTES);
    activations_take(&model->acts, &model->acts_arena, config, &model->shape);

    Arena *work = &model->work_arena;
    void *packing = arena_take(work, matmul_scratch_bytes(threads), 1);
    model->work.matmul = matmul_scratch(packing, threads);
    model->work.attention = (float *)arena_take(
        work, attention_scratch_elems(model->shape.T, C, config->NH, threads), sizeof(float));
    model->work.layernorm = (float *)arena_take(work, layernorm_backward_scratch_elems(N, C), sizeof(float));
    model->work.kcache = (float *)arena_take(work, size_mul(config->L * model->decode_T, C), sizeof(float));
    model->work.vcache = (float *)arena_take(work, size_mul(config->L * model->decode_T, C), sizeof(float));
    model->work.token = (float *)arena_take(work, 16 * C, sizeof(float));
    model_lay_out_linears(model);
}

// The arenas, those that this precision has no use for left out.
static size_t model_arenas(Model *model, Arena *arenas[7]) {
    Arena *all[7] = {&model->weights_arena, &model->masters_arena, &model->casts_arena, &model->grads_arena,
                     &model->moments_arena, &model->acts_arena,    &model->work_arena};
    size_t n = 0;
    for (size_t i = 0; i < 7; i++)
        if ((i != 1 || BUILD_WEIGHTS_COPIED) && (i != 2 || model->recipe.scaling != SCALING_NONE)) arenas[n++] = all[i];
    return n;
}

// Works out the memory of a model without asking for any: afterwards each arena's used_bytes is what it will take.
static void model_plan(Model *model, const GPTConfig *config, const BatchShape *shape, size_t decode_T) {
    PrecisionPolicy policy = build_policy();
    memset(model, 0, sizeof *model);
    model->config = *config;
    model->shape = *shape;
    model->decode_T = decode_T;
    model->recipe = linear_recipe(&policy, 0);
    model->weights_arena.name = BUILD_WEIGHTS_COPIED ? "working weights" : "weights";
    model->masters_arena.name = "master weights";
    model->casts_arena.name = "cast weights";
    model->grads_arena.name = "gradients";
    model->moments_arena.name = "AdamW moments";
    model->acts_arena.name = "activations";
    model->work_arena.name = "workspace";
    model_lay_out(model);
}

// After model_plan(), before model_create(): another recipe than the build's default one. Plans again.
static void model_set_recipe(Model *model, const LinearRecipe *recipe) {
    Arena *arenas[7];
    if (recipe->autotune[0])
        die_usage("--autotune '%s': the CPU's products have one algorithm\ntry: leave it out; it is for the GPU trainer",
                  recipe->autotune);
    model->recipe = *recipe;
    for (size_t i = 0, n = model_arenas(model, arenas); i < n; i++) arenas[i]->used_bytes = 0;
    model_lay_out(model);
}

// Casts are always multiplied as floats here.
static const LinearRoutes *model_linear_routes(const Model *model) { return (void)model, (const LinearRoutes *)NULL; }

// Several ranks are the GPU trainer's: this one uses all cores of its machine by threads.
static void ranks_join(const Launch *launch, double timeout, uint64_t fingerprint) {
    (void)timeout, (void)fingerprint;
    die_usage("%s started %zu ranks, the CPU trainer has one\ntry: one process, which uses all cores; or make DEVICE=cuda",
              launch->launcher, launch->ranks);
}
static void ranks_leave(void) {}
static void ranks_gather(void *all, const void *mine, size_t bytes) { memcpy(all, mine, bytes); }
static void model_reduce_next(Model *model) { (void)model; }
static double model_exposed_ms(const Model *model) { return (void)model, 0.0; }
static void model_gather_weights(Model *model) { (void)model; }
static void model_check_replicas(Model *model) { (void)model; }
static void model_set_parallel(Model *model, const Parallel *parallel) {
    (void)model;
    if (parallel->ranks > 1) die_usage("a plan for %zu ranks is the GPU trainer's\ntry: make DEVICE=emu", parallel->ranks);
}

// The memory arenas come from, in bytes, and what to call it. SIZE_MAX: unknown. A plan (dry_run) asks the same.
static size_t model_memory_bytes(int dry_run, const char **owner) {
    long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    (void)dry_run;
    *owner = "this machine";
    return pages > 0 && page_bytes > 0 ? size_mul((size_t)pages, (size_t)page_bytes) : SIZE_MAX;
}

// Allocates what model_plan() planned. All zero; model_init_weights() or model_set() give it numbers.
static void model_create(Model *model) {
    Arena *arenas[7];
    for (size_t i = 0, n = model_arenas(model, arenas); i < n; i++) arena_allocate(arenas[i]);
    model_lay_out(model);
}

static void model_destroy(Model *model) {
    Arena *arenas[7];
    for (size_t i = 0, n = model_arenas(model, arenas); i < n; i++) arena_free(arenas[i]);
}

// The authoritative weights, and perhaps delayed scales, were loaded or made: what is derived from them follows.
static void model_weights_changed(Model *model) {
    if (BUILD_WEIGHTS_COPIED)
        adamw_refresh((float *)model->weights_arena.base, model->masters, model->parameter_elems, BUILD_MASTER_RULE);
    for (size_t i = 0; model->delayed_scales && i < model->linear.layers; i++)
        linear_delayed_loaded(&model->recipe, &model->linears[i], model->delayed_scales);
    model->linear.weights_version++;
}

// GPT-2's initialisation: normal(0, 0.02), the two projections into the residual stream scaled by 1/sqrt(2 L).
// Each tensor has its own random stream, so a tensor's numbers do not depend on the others. The same numbers in every
// precision, in fp32; weights without an fp32 master start as their nearest bf16.
static void model_init_weights(Model *model, uint64_t seed) {
    float residual_std = (float)(0.02 / sqrt(2.0 * (double)model->config.L));
    int has_fp32 = BUILD_MASTER_RULE == MASTER_RULE_FP32;
    float *base = has_fp32 ? (float *)model->masters : (float *)model->weights_arena.base;
    for (size_t i = 0; i < GPT_PARAMETER_COUNT; i++) {
        const ParameterInfo *info = &model->table[i];
        float *data = base + info->offset_elems;
        size_t elems = parameter_elems(info);
        if (info->init == INIT_NORMAL || info->init == INIT_RESIDUAL)
            rand_normal_fill(data, elems, 0, info->init == INIT_NORMAL ? 0.02f : residual_std, seed, (uint32_t)i);
        for (size_t e = 0; info->init == INIT_ONE && e < elems; e++) data[e] = 1.0f;
    }
    size_t V = model->config.V, C = model->config.C;  // padding rows stay zero for ever
    memset(base + V * C, 0, (model->config.Vp - V) * C * sizeof(float));  // wte is the first tensor
    if (!has_fp32) adamw_encode((uint16_t *)model->masters, base, model->parameter_elems);
    model_weights_changed(model);
}

// ----------------------------------------------------------------------------------------------------------------
// Forward

// The classifier over the final layernorm's output, LOGITS_CHUNK_ROWS tokens at a time: losses of all tokens and, where
// dloss is not 0, already its whole backward pass (dnorm = gradient of lnf, grads.wte), since a chunk's logits are
// gone when the next one comes.
static void classifier_forward_backward(Model *model, const int32_t *targets, float dloss) {
    const GPTConfig *config = &model->config;
    Activations *acts = &model->acts;
    size_t N = model->B * model->T, C = config->C, Vp = config->Vp;
    for (size_t row = 0; row < N; row += LOGITS_CHUNK_ROWS) {
        size_t rows = min_size(LOGITS_CHUNK_ROWS, N - row);
        const float *lnf = acts->lnf + row * C;
        matmul_forward(&model->work.matmul, acts->logits, lnf, model->weights.wte, NULL, rows, C, Vp);
        if (model->numerics)
            numerics_stored(model->numerics, NUMERICS_LOGITS, "logits", NUMERICS_NO_LAYER, BUILD_ACT, acts->logits,
                            rows * Vp, 0);
        fused_classifier(acts->logits, acts->losses + row, targets + row, dloss, rows, config->V, Vp);
        if (dloss == 0.0f) continue;
        matmul_backward_input(&model->work.matmul, acts->dnorm + row * C, acts->logits, model->weights.wte, rows, C, Vp,
                              0);
        matmul_backward_weight(&model->work.matmul, model->grads.wte, acts->logits, lnf, rows, C, Vp,
                               model->accumulate || row > 0);
    }
}

// Layer l from its input residual stream `inp`: acts of that layer. The stream after attention and after the MLP is
// formed together with the layernorm that reads it.
static void layer_forward(Model *model, size_t l, const float *inp) {
    const Parameters *w = &model->weights;
    Activations *acts = &model->acts;
    size_t B = model->B, T = model->T, N = B * T, C = model->config.C, NH = model->config.NH, L = model->config.L;
    size_t S = model->shape.B * model->shape.T;  // tokens a layer's block has room for
    size_t l_ln = model->shape.recompute < 2 ? l : 0, l_gelu = model->shape.recompute < 1 ? l : 0;
    float *ln1 = at_layer(acts->ln1, l_ln, S * C), *qkv = at_layer(acts->qkv, l, S * 3 * C);
    float *att = at_layer(acts->att, l, S * C), *residual2 = at_layer(acts->residual2, l, S * C);
    float *ln2 = at_layer(acts->ln2, l_ln, S * C), *fch = at_layer(acts->fch, l, S * 4 * C);
    float *fch_gelu = at_layer(acts->fch_gelu, l_gelu, S * 4 * C), *residual3 = at_layer(acts->residual3, l, S * C);

    linear_forward(&model->linear, linear_at(model, l, LINEAR_QKV), qkv, ln1, N);
    attention_forward(att, at_layer(acts->lse, l, S * NH), qkv, B, T, C, NH, model->work.attention);
    linear_forward(&model->linear, linear_at(model, l, LINEAR_ATTPROJ), acts->branch, att, N);
    fused_residual_layernorm_forward(residual2, ln2, at_layer(acts->ln2_mean, l, S), at_layer(acts->ln2_rstd, l, S),
                                     inp, acts->branch, at_layer(w->ln2w, l, C), at_layer(w->ln2b, l, C), N, C);
    linear_forward(&model->linear, linear_at(model, l, LINEAR_FC), fch, ln2, N);
    if (model->recipe.gelu_fusion >= 1) gelu_forward_unrounded(fch_gelu, fch, N * 4 * C);
    else gelu_forward(fch_gelu, fch, N * 4 * C);
    linear_forward(&model->linear, linear_at(model, l, LINEAR_FCPROJ), acts->branch, fch_gelu, N);
    if (l + 1 < L) {
        size_t next_ln = model->shape.recompute < 2 ? l + 1 : 0;
        fused_residual_layernorm_forward(
            residual3, at_layer(acts->ln1, next_ln, S * C), at_layer(acts->ln1_mean, l + 1, S),
            at_layer(acts->ln1_rstd, l + 1, S), residual2, acts->branch, at_layer(w->ln1w, l + 1, C),
            at_layer(w->ln1b, l + 1, C), N, C);
    } else {
        fused_residual_layernorm_forward(residual3, acts->lnf, acts->lnf_mean, acts->lnf_rstd, residual2, acts->branch,
                                         w->lnfw, w->lnfb, N, C);
    }
}

// Shows the saved activations of the forward pass to the numerics report; what is recomputed later is gone by then.
static void observe_activations(const Model *model) {
    const Activations *acts = &model->acts;
    size_t N = model->B * model->T, S = model->shape.B * model->shape.T, C = model->config.C;
    int recompute = model->shape.recompute;
    const struct {
        const char *name;
        const float *base;
        size_t width;
        int kept;
    } saved[] = {{"ln1", acts->ln1, C, recompute < 2},          {"qkv", acts->qkv, 3 * C, 1},
                 {"att", acts->att, C, 1},                      {"residual2", acts->residual2, C, 1},
                 {"ln2", acts->ln2, C, recompute < 2},          {"fch", acts->fch, 4 * C, 1},
                 {"fch_gelu", acts->fch_gelu, 4 * C, recompute < 1}, {"residual3", acts->residual3, C, 1}};
    numerics_stored(model->numerics, NUMERICS_ACT, "encoded", NUMERICS_NO_LAYER, BUILD_ACT, acts->encoded, N * C, 0);
    for (size_t l = 0; l < model->config.L; l++)
        for (size_t i = 0; i < sizeof saved / sizeof *saved; i++)
            if (saved[i].kept)
                numerics_stored(model->numerics, NUMERICS_ACT, saved[i].name, l, BUILD_ACT,
                                saved[i].base + l * S * saved[i].width, N * saved[i].width, 0);
    numerics_stored(model->numerics, NUMERICS_ACT, "lnf", NUMERICS_NO_LAYER, BUILD_ACT, acts->lnf, N * C, 0);
}

// Runs B sequences of T tokens through the model: acts.losses (B, T) = the loss of each token, not averaged. Where dloss
// is not 0 it is the factor each token's loss enters the objective with (1 / tokens of the step), and model_backward()
// must follow. `inputs` must stay in place until then.
static void model_forward(Model *model, const int32_t *inputs, const int32_t *targets, size_t B, size_t T, float dloss) {
    const Parameters *w = &model->weights;
    Activations *acts = &model->acts;
    size_t C = model->config.C, S = model->shape.B * model->shape.T;
    model->inputs = inputs;
    model->B = B;
    model->T = T;
    model->linear.training = dloss != 0.0f;
    embedding_forward(acts->encoded, inputs, w->wte, w->wpe, B, T, C);
    layernorm_forward(acts->ln1, acts->ln1_mean, acts->ln1_rstd, acts->encoded, w->ln1w, w->ln1b, B * T, C);
    for (size_t l = 0; l < model->config.L; l++)
        layer_forward(model, l, l == 0 ? acts->encoded : at_layer(acts->residual3, l - 1, S * C));
    classifier_forward_backward(model, targets, dloss);
    if (model->numerics) observe_activations(model);
}

// ----------------------------------------------------------------------------------------------------------------
// Backward

// The MLP of layer l: dresidual, the gradient of residual3, becomes that of residual2.
static void mlp_backward(Model *model, size_t l) {
    const Parameters *w = &model->weights;
    Parameters *g = &model->grads;
    Activations *acts = &model->acts;
    size_t N = model->B * model->T, C = model->config.C, S = model->shape.B * model->shape.T;
    size_t l_ln = model->shape.recompute < 2 ? l : 0, l_gelu = model->shape.recompute < 1 ? l : 0;
    float *ln2 = at_layer(acts->ln2, l_ln, S * C), *fch = at_layer(acts->fch, l, S * 4 * C);
    float *fch_gelu = at_layer(acts->fch_gelu, l_gelu, S * 4 * C), *residual2 = at_layer(acts->residual2, l, S * C);
    float *mean = at_layer(acts->ln2_mean, l, S), *rstd = at_layer(acts->ln2_rstd, l, S);

    if (model->shape.recompute >= 1) gelu_forward(fch_gelu, fch, N * 4 * C);
    linear_backward(&model->linear, linear_at(model, l, LINEAR_FCPROJ), acts->dhidden, acts->dresidual, fch_gelu, N,
                    model->accumulate);
    if (model->recipe.gelu_fusion < 2) observe(model, "dfch_gelu", l, acts->dhidden, N * 4 * C);  // else never stored
    gelu_backward(acts->dhidden, acts->dhidden, fch, N * 4 * C);
    observe(model, "dfch", l, acts->dhidden, N * 4 * C);
    if (model->shape.recompute >= 2)
        layernorm_forward(ln2, mean, rstd, residual2, at_layer(w->ln2w, l, C), at_layer(w->ln2b, l, C), N, C);
    linear_backward(&model->linear, linear_at(model, l, LINEAR_FC), acts->dnorm, acts->dhidden, ln2, N,
                    model->accumulate);
    observe(model, "dln2", l, acts->dnorm, N * C);
    layernorm_backward(acts->dresidual, at_layer(g->ln2w, l, C), at_layer(g->ln2b, l, C), acts->dnorm, residual2,
                       at_layer(w->ln2w, l, C), mean, rstd, N, C, model->work.layernorm);
    observe(model, "dresidual2", l, acts->dresidual, N * C);
}

// The attention of layer l: dresidual, the gradient of residual2, becomes that of the layer's input `inp`.
static void attention_block_backward(Model *model, size_t l, const float *inp) {
    const Parameters *w = &model->weights;
    Parameters *g = &model->grads;
    Activations *acts = &model->acts;
    size_t B = model->B, T = model->T, N = B * T, C = model->config.C, NH = model->config.NH;
    size_t S = model->shape.B * model->shape.T;
    float *ln1 = at_layer(acts->ln1, model->shape.recompute < 2 ? l : 0, S * C);
    float *qkv = at_layer(acts->qkv, l, S * 3 * C), *att = at_layer(acts->att, l, S * C);
    float *mean = at_layer(acts->ln1_mean, l, S), *rstd = at_layer(acts->ln1_rstd, l, S);

    linear_backward(&model->linear, linear_at(model, l, LINEAR_ATTPROJ), acts->dnorm, acts->dresidual, att, N,
                    model->accumulate);
    observe(model, "datt", l, acts->dnorm, N * C);
    attention_backward(acts->dhidden, acts->dnorm, qkv, att, at_layer(acts->lse, l, S * NH), B, T, C, NH,
                       model->work.attention);
    observe(model, "dqkv", l, acts->dhidden, N * 3 * C);
    if (model->shape.recompute >= 2)
        layernorm_forward(ln1, mean, rstd, inp, at_layer(w->ln1w, l, C), at_layer(w->ln1b, l, C), N, C);
    linear_backward(&model->linear, linear_at(model, l, LINEAR_QKV), acts->dnorm, acts->dhidden, ln1, N,
                    model->accumulate);
    observe(model, "dln1", l, acts->dnorm, N * C);
    layernorm_backward(acts->dresidual, at_layer(g->ln1w, l, C), at_layer(g->ln1b, l, C), acts->dnorm, inp,
                       at_layer(w->ln1w, l, C), mean, rstd, N, C, model->work.layernorm);
    observe(model, l == 0 ? "dencoded" : "dresidual3", l == 0 ? 0 : l - 1, acts->dresidual, N * C);
}

// Starts a step: the next backward pass overwrites the gradients. Matmul gradients need no clearing for that; those
// whose kernels only add (layernorm, wpe) do.
static void model_zero_grad(Model *model) {
    model->accumulate = 0;
    model->linear.micro_step = 0;
    model->linear.nonfinite = 0;
    for (size_t i = 0; i < GPT_PARAMETER_COUNT; i++) {
        const ParameterInfo *info = &model->table[i];
        float *grad = (float *)model->grads_arena.base + info->offset_elems;
        if (info->init == INIT_ONE || grad == model->grads.wpe || grad == model->grads.ln1b ||
            grad == model->grads.ln2b || grad == model->grads.lnfb)
            memset(grad, 0, parameter_elems(info) * sizeof(float));
    }
}

// grads += the gradient of (sum of the last forward pass's losses) * dloss.
static void model_backward(Model *model) {
    Activations *acts = &model->acts;
    size_t N = model->B * model->T, C = model->config.C, L = model->config.L, S = model->shape.B * model->shape.T;
    observe(model, "dlnf", 0, acts->dnorm, N * C);
    memset(acts->dresidual, 0, N * C * sizeof(float));
    layernorm_backward(acts->dresidual, model->grads.lnfw, model->grads.lnfb, acts->dnorm,
                       at_layer(acts->residual3, L - 1, S * C), model->weights.lnfw, acts->lnf_mean, acts->lnf_rstd, N,
                       C, model->work.layernorm);
    observe(model, "dresidual3", L - 1, acts->dresidual, N * C);
    for (size_t l = L; l-- > 0;) {
        mlp_backward(model, l);
        attention_block_backward(model, l, l == 0 ? acts->encoded : at_layer(acts->residual3, l - 1, S * C));
    }
    embedding_backward(model->grads.wte, model->grads.wpe, acts->dresidual, model->inputs, model->B, model->T, C);
    model->accumulate = 1;
    model->linear.micro_step++;
}

// ----------------------------------------------------------------------------------------------------------------
// Update

// The Euclidean norm of all gradients; *nonfinite = 1 if any of them, or the norm, is NaN or infinite, or if any number
// was that a linear layer cast to a narrow format on the way.
static double model_grad_norm(Model *model, int *nonfinite) {
    double sum = 0.0;
    *nonfinite = model->linear.nonfinite != 0;
    for (size_t i = 0; i < GPT_PARAMETER_COUNT; i++)
        sum += global_norm_squared((float *)model->grads_arena.base + model->table[i].offset_elems,
                                   parameter_elems(&model->table[i]), nonfinite);
    double norm = sqrt(sum);
    if (!(norm <= (double)FLT_MAX)) *nonfinite = 1;
    return norm;
}

// Parameter tensor i as the optimizer sees it.
static AdamWTensor model_adamw_tensor(const Model *model, size_t i) {
    size_t offset = model->table[i].offset_elems;
    float *working = (float *)model->weights_arena.base + offset;
    AdamWTensor tensor = {(char *)model->masters + offset * MASTER_BYTES,
                          model->kahan ? model->kahan + offset : NULL,
                          BUILD_WEIGHTS_COPIED ? working : NULL,
                          (char *)model->m + offset * MOMENT_BYTES,
                          (char *)model->v + offset * MOMENT_BYTES,
                          (float *)model->grads_arena.base + offset,
                          parameter_elems(&model->table[i]),
                          (uint32_t)i};
    return tensor;
}

// The step's numbers for tensor i: decay on matrices only.
static AdamWHyper model_adamw_hyper(const Model *model, size_t i, const AdamWHyper *hyper) {
    AdamWHyper tensor_hyper = *hyper;
    if (!model->table[i].decay) tensor_hyper.weight_decay = 0.0f;
    return tensor_hyper;
}

// One AdamW step with the accumulated gradients times hyper->grad_scale.
static void model_update(Model *model, const AdamWHyper *hyper) {
    for (size_t i = 0; i < GPT_PARAMETER_COUNT; i++) {
        AdamWHyper tensor_hyper = model_adamw_hyper(model, i, hyper);
        AdamWTensor tensor = model_adamw_tensor(model, i);
        adamw_update_tensor(&tensor, &tensor_hyper, BUILD_MASTER_RULE, BUILD_MOMENTS_RULE);
    }
    model->linear.weights_version++;
}

// From now on every tensor of a training pass is shown to `report`; NULL ends that.
static void model_observe(Model *model, NumericsReport *report) {
    model->numerics = report;
    model->linear.observe = report ? numerics_cast : NULL;
    model->linear.observe_context = report;
}

// Before model_update() with the same hyper, while observed: shows what it will do to the weights, layer by layer.
static void model_count_updates(Model *model, const AdamWHyper *hyper) {
    for (size_t i = 0; i < GPT_PARAMETER_COUNT; i++) {
        const ParameterInfo *info = &model->table[i];
        AdamWHyper tensor_hyper = model_adamw_hyper(model, i, hyper);
        AdamWTensor tensor = model_adamw_tensor(model, i);
        size_t elems = info->rows * info->cols;
        int in_layers = strncmp(info->hf, "h.", 2) == 0;
        const float *working = (float *)model->weights_arena.base + info->offset_elems;
        const float *weight = BUILD_MASTER_RULE == MASTER_RULE_FP32 ? (const float *)tensor.weight : working;
        for (size_t l = 0; l < info->layers; l++) {
            UpdateCounts counts = {0, 0, 0, 0, 0};
            adamw_count(&counts, &tensor, l * elems, (l + 1) * elems, &tensor_hyper, BUILD_MASTER_RULE, BUILD_MOMENTS_RULE);
            numerics_weight(model->numerics, info->name, in_layers ? l : NUMERICS_NO_LAYER, BUILD_WEIGHT, &counts,
                            weight + l * elems, working + l * elems, elems);
        }
    }
}

// The number of the step that begins (from 0): random roundings depend on it.
static void model_begin_step(Model *model, uint64_t step) { model->linear.step = (uint32_t)step; }

// Ends a step, whether its update was applied or skipped.
static void model_end_step(Model *model) {
    linear_end_step(&model->linear, model->linears, model->linear.layers, model->delayed_scales);
}

// ----------------------------------------------------------------------------------------------------------------
// Access by the shared loop: checkpoints, failures, sampling

// Lists the tensors a checkpoint holds; returns how many: at most 4 * checkpoint_parameter_tensors() + 1.
static size_t model_checkpoint_list(Model *model, CheckpointTensor *list) {
    const GPTConfig *config = &model->config;
    int master_type = BUILD_MASTER_RULE == MASTER_RULE_FP32 ? ST_F32 : ST_BF16;
    int moment_type = BUILD_MOMENTS_RULE == MOMENTS_RULE_FP32 ? ST_F32 : ST_BF16;
    size_t n = checkpoint_parameters(list, config, model->masters, CHECKPOINT_IN_MODEL, "transformer.", master_type);
    n += checkpoint_parameters(list + n, config, model->m, CHECKPOINT_IN_STATE, "m.transformer.", moment_type);
    n += checkpoint_parameters(list + n, config, model->v, CHECKPOINT_IN_STATE, "v.transformer.", moment_type);
    if (model->delayed_scales) {
        checkpoint_array(&list[n], "fp8.delayed", ST_F32, linear_delayed_elems(&model->recipe, config->L),
                         model->delayed_scales);
        list[n++].optional = 1;  // a run of another precision has none: histories start empty
    }
    if (!model->kahan) return n;
    size_t end = n + checkpoint_parameters(list + n, config, model->kahan, CHECKPOINT_IN_STATE, "c.transformer.", ST_BF16);
    for (; n < end; n++) list[n].optional = 1;  // a run that had masters has none: it starts at zero
    return n;
}

// How checkpoints reach the tensors of the list: they are in host memory.
static void model_checkpoint_access(Model *model, Checkpointer *checkpointer) {
    (void)model;
    (void)checkpointer;
}

// The losses (B, T) of the last forward pass.
static void model_losses(Model *model, float *losses) {
    memcpy(losses, model->acts.losses, model->B * model->T * sizeof(float));
}

// Where the last forward pass first left the finite numbers: writes the tensor's name and layer into `text` and returns
// 1, or returns 0 if all its activations are finite. In the order the forward pass makes them. A cast to fp4 hides what
// is not finite: then the linear layer that met it is named, be it in the backward pass.
static int model_first_nonfinite(Model *model, char *text, size_t text_bytes) {
    Activations *acts = &model->acts;
    size_t N = model->B * model->T, C = model->config.C, S = model->shape.B * model->shape.T;
    size_t wide = S * 4 * C;
    int nonfinite = 0;
    global_norm_squared(acts->encoded, N * C, &nonfinite);
    if (nonfinite) {
        snprintf(text, text_bytes, "the embedding");
        return 1;
    }
    for (size_t l = 0; l < model->config.L; l++) {
        struct {
            const char *name;
            const float *data;
            size_t elems;
        } stages[5] = {{"qkv", at_layer(acts->qkv, l, S * 3 * C), N * 3 * C},
                       {"attention", at_layer(acts->att, l, S * C), N * C},
                       {"residual after attention", at_layer(acts->residual2, l, S * C), N * C},
                       {"fc", at_layer(acts->fch, l, wide), N * 4 * C},
                       {"residual after the MLP", at_layer(acts->residual3, l, S * C), N * C}};
        for (size_t i = 0; i < 5; i++) {
            global_norm_squared(stages[i].data, stages[i].elems, &nonfinite);
            if (!nonfinite) continue;
            snprintf(text, text_bytes, "layer %zu, %s", l, stages[i].name);
            return 1;
        }
    }
    global_norm_squared(acts->losses, N, &nonfinite);
    if (nonfinite) snprintf(text, text_bytes, "the logits");
    else if (model->linear.nonfinite) snprintf(text, text_bytes, "%s", model->linear.nonfinite_where);
    return nonfinite || model->linear.nonfinite;
}

// logits (V) after `token` at position `pos` of a text whose earlier tokens went through this function at 0..pos-1.
static void model_logits(Model *model, int32_t token, size_t pos, float *logits) {
    const Parameters *w = &model->weights;
    size_t C = model->config.C, NH = model->config.NH, cache = model->decode_T * C;
    float mean, rstd;
    float *x = model->work.token, *norm = x + C, *branch = x + 2 * C, *att = x + 3 * C;
    float *qkv = x + 4 * C, *fch = x + 7 * C, *fch_gelu = x + 11 * C;
    const float *wpe = w->wpe + pos * C;
    embedding_forward(x, &token, w->wte, wpe, 1, 1, C);
    layernorm_forward(norm, &mean, &rstd, x, w->ln1w, w->ln1b, 1, C);
    for (size_t l = 0; l < model->config.L; l++) {
        int last = l + 1 == model->config.L;
        matvec_forward(qkv, norm, at_layer(w->qkvw, l, 3 * C * C), at_layer(w->qkvb, l, 3 * C), C, 3 * C);
        attention_decode(att, qkv, model->work.kcache + l * cache, model->work.vcache + l * cache, pos, C, NH);
        matvec_forward(branch, att, at_layer(w->attprojw, l, C * C), at_layer(w->attprojb, l, C), C, C);
        fused_residual_layernorm_forward(x, norm, &mean, &rstd, x, branch, at_layer(w->ln2w, l, C),
                                         at_layer(w->ln2b, l, C), 1, C);
        matvec_forward(fch, norm, at_layer(w->fcw, l, 4 * C * C), at_layer(w->fcb, l, 4 * C), C, 4 * C);
        gelu_forward(fch_gelu, fch, 4 * C);
        matvec_forward(branch, fch_gelu, at_layer(w->fcprojw, l, 4 * C * C), at_layer(w->fcprojb, l, C), 4 * C, C);
        fused_residual_layernorm_forward(x, norm, &mean, &rstd, x, branch, last ? w->lnfw : at_layer(w->ln1w, l + 1, C),
                                         last ? w->lnfb : at_layer(w->ln1b, l + 1, C), 1, C);
    }
    matvec_forward(logits, norm, w->wte, NULL, C, model->config.V);
}

// ----------------------------------------------------------------------------------------------------------------

#define MODEL_ON_GPU 0
#include "llmc/trainer.h"

#ifndef TESTING  // test_gpt.c includes this file for the model and brings its own main
int main(int argc, char **argv) { return trainer_main(argc, argv); }
#endif
