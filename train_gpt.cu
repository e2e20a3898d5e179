// train_gpt.cu: the GPU trainer. The same sections, names and argument orders as train_gpt.c, over the CUDA twins of
// the same kernels and the same loop (llmc/trainer.h): a checkpoint of one is resumed by the other.
//
//     make DEVICE=cuda PRECISION=bf16 && ./train_gpt --model d12 --train 'data/my_train_*.bin'
//     make DEVICE=emu PRECISION=bf16        the same source on the CPU, over dev/emu
//
// Tensors are stored in the formats of the precision policy. All work goes to one stream, in order, and the host waits
// for it twice a step: for the losses, which come while the backward pass runs, and for the gradients' norm. No sum's
// order depends on timing, so two runs give the same bits.
#include <float.h>
#include <math.h>

// Rows of logits at once: below 8,192 the head's fp32 weight gradient is read and written too often.
#ifndef LOGITS_CHUNK_ROWS
#define LOGITS_CHUNK_ROWS DEVICE_LOGITS_CHUNK_ROWS
#endif
#include "llmc/tensors.h"

#include "llmc/adamw.cuh"
#include "llmc/attention.cuh"
#include "llmc/checkpoint.h"
#include "llmc/cross_entropy.cuh"
#include "llmc/embedding.cuh"
#include "llmc/gelu.cuh"
#include "llmc/global_norm.cuh"
#include "llmc/layernorm.cuh"
#include "llmc/linear.cuh"
#include "llmc/matmul.cuh"
#include "llmc/numerics_report.h"
#include "llmc/rand.h"
#include "llmc/shards.cuh"

static_assert(BUILD_ACT == BUILD_GRAD && BUILD_ACT == BUILD_WEIGHT, "a product's operands share one type");

// ----------------------------------------------------------------------------------------------------------------
// The model

// One pointer a parameter tensor: the working weights, or the gradients, which are fp32 in every precision.
template <typename E>
struct DeviceParameters {
#define X(name, ...) E *name;
    GPT_PARAMETERS(X)
#undef X
};

// Statistics are fp32, what products read is stored in the policy's format.
typedef struct {
    act_t *encoded, *ln1, *qkv, *att, *residual2, *ln2, *fch, *fch_gelu, *residual3, *lnf, *branch, *logits;
    float *ln1_mean, *ln1_rstd, *lse, *ln2_mean, *ln2_rstd, *lnf_mean, *lnf_rstd, *losses;
    grad_t *dresidual, *dnorm, *dhidden;
} DeviceActivations;

// Buffers kernels work in, and what generating one token needs: the keys and values of all earlier positions.
typedef struct {
    MatmulScratch *matmul;
    void *matmul_workspace;
    float *floats;           // of whichever kernel runs: they follow each other
    int32_t *tokens;         // inputs, targets (B, T), then the embedding's plan
    double *norm;            // the squared norm; then its scratch
    int *nonfinite;
    act_t *kcache, *vcache;  // (L, decode_T, C)
    act_t *token;            // activations of one token: 16 C, then its logits
    float *token_stats;
    void *block;  // of a checkpoint's tensor, put together from all ranks' shards
} Workspace;

// Pinned memory that copies from and to the device go through, and the events that say when it may be touched again.
typedef struct {
    int32_t *tokens;
    float *losses;
    double *norm;
    int *nonfinite, *missing_scales;
    uint32_t *token_counts;  // of the embedding's sort; ordinary memory
    cudaEvent_t uploaded, losses_here;
} HostSide;

typedef struct Model {
    GPTConfig config;
    BatchShape shape;  // the largest micro-batch, which the activations have room for
    size_t decode_T;   // positions a generated text may have
    LinearRecipe recipe;    // how the linear layers' products read their operands
    DeviceLinear *linears;  // (L, LINEAR_KINDS), on the host
    LinearContext linear;

    ParameterInfo table[GPT_PARAMETER_COUNT];
    ParameterInfo gradient_table[GPT_PARAMETER_COUNT];  // the same, but with --zero 2: of the layers in work alone
    size_t parameter_elems;  // of one arena of parameters, padding included
    DeviceParameters<weight_t> weights;
    DeviceParameters<float> grads;
    void *masters;         // the authoritative weights, fp32 or bf16; the working weights themselves where formats agree
    __nv_bfloat16 *kahan;  // their compensation; NULL without
    void *m, *v;           // AdamW's moments, fp32 or bf16; all laid out as the weights are
    DeviceActivations acts;
    Workspace work;
    HostSide host;
    cudaStream_t stream;
    Shards shards;  // of several ranks: what they share out; with --zero 1 masters and moments are shards alone
    int weights_partial;  // 1: of the layers' weights there are codes; as they are stored, this rank's shard alone
    Arena weights_arena, masters_arena, casts_arena, grads_arena, moments_arena, acts_arena, work_arena;

    EmbeddingPlan plan;  // of the forward pass the next backward pass belongs to
    size_t B, T;         // its shape
    int accumulate;      // 0: the next backward pass overwrites the gradients, 1: it adds to them

    // Called with each activation gradient as the backward pass finishes it (tests); NULL otherwise.
    void (*observe)(void *context, const char *name, size_t layer, const float *data, size_t elems);
    void *observe_context;
    NumericsReport *numerics;  // is shown every tensor of a reported step; NULL otherwise
} Model;

// Layer l's block of the tensor `base` with `elems` elements a layer.
template <typename E>
static E *at_layer(E *base, size_t layer, size_t elems) {
    return base + layer * elems;
}

static const DeviceLinear *linear_at(const Model *model, size_t layer, LinearKind kind) {
    return &model->linears[layer * LINEAR_KINDS + kind];
}

// Device memory as floats on the host, once everything queued before is done. The caller frees them. For reports,
// failures and tests.
template <typename E>
static float *floats_from_device(const Model *model, const E *data, size_t elems) {
    E *raw = (E *)checked_calloc(max_size(elems, 1), sizeof(E), "a copy of a tensor");
    float *floats = (float *)checked_calloc(max_size(elems, 1), sizeof(float), "a copy of a tensor");
    CUDA_CHECK(cudaMemcpyAsync(raw, data, elems * sizeof(E), cudaMemcpyDeviceToHost, model->stream));
    CUDA_CHECK(cudaStreamSynchronize(model->stream));
    for (size_t i = 0; i < elems; i++) floats[i] = (float)raw[i];
    free(raw);
    return floats;
}

template <typename E>
static void observe_stored(const Model *model, NumericsKind kind, const char *name, size_t layer, FormatId format,
                           const E *data, size_t elems, size_t genuine_zeros) {
    float *floats = floats_from_device(model, data, elems);
    numerics_stored(model->numerics, kind, name, layer, format, floats, elems, genuine_zeros);
    free(floats);
}

static void observe(const Model *model, const char *name, size_t layer, const grad_t *data, size_t elems) {
    if (model->observe) {
        float *floats = floats_from_device(model, data, elems);
        model->observe(model->observe_context, name, layer, floats, elems);
        free(floats);
    }
    if (!model->numerics) return;
    // The first position attends to itself alone: its query has no gradient
    size_t genuine_zeros = strcmp(name, "dqkv") == 0 ? model->B * model->config.C : 0;
    observe_stored(model, NUMERICS_GRAD, name, layer, BUILD_GRAD, data, elems, genuine_zeros);
}

// ----------------------------------------------------------------------------------------------------------------
// The device

static int device_present(void) {
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

// Ends the program where this build cannot run, in one line that says why.
static void device_check(void) {
    int count = 0, driver = 0, runtime = 0;
    cudaError_t status = cudaGetDeviceCount(&count);
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    if (status == cudaErrorInsufficientDriver && driver > 0)  // 0: there is none
        die("the GPU driver is too old: it knows CUDA %d.%d, this program was built with %d.%d\n"
            "try: a newer driver, or make DEVICE=cuda with an older toolkit (CUDA_HOME=...)",
            driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    if (status != cudaSuccess || count == 0)
        die("no GPU: %s\ntry: nvidia-smi, CUDA_VISIBLE_DEVICES; or make DEVICE=cpu",
            driver == 0               ? "no driver is installed"
            : status != cudaSuccess ? cudaGetErrorString(status)
                                    : "the driver shows no device");
    const DeviceInfo *device = device_info();
    if (device->cc < 80)
        die("%s has compute capability %d.%d, precision %s needs 8.0 or newer\ntry: make DEVICE=cpu", device->name,
            device->cc / 10, device->cc % 10, build_policy().name);
}

// The memory arenas come from, in bytes, and what to call it. SIZE_MAX: unknown, which only a plan (dry_run) may meet.
// Libraries' kernels and NCCL's buffers come at their first use, after the arenas: a thirty-second is left to them.
static size_t model_memory_bytes(int dry_run, const char **owner) {
    size_t free_bytes = SIZE_MAX, total;
    *owner = "the GPU (31/32 of its free memory)";
    if (!dry_run) device_check();
    if (!device_present()) return free_bytes;
    CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total));
    return free_bytes - free_bytes / 32;
}

// ----------------------------------------------------------------------------------------------------------------
// Memory

#define MASTER_BYTES (BUILD_MASTER_RULE == MASTER_RULE_FP32 ? sizeof(float) : sizeof(uint16_t))
#define MOMENT_BYTES (BUILD_MOMENTS_RULE == MOMENTS_RULE_FP32 ? sizeof(float) : sizeof(uint16_t))
// Weights without an fp32 master are bf16, as the working weights are: then there is one copy.
#define MASTERS_APART (BUILD_WEIGHTS_COPIED && BUILD_MASTER_RULE == MASTER_RULE_FP32)
#define DECODE_SLOTS ((size_t)16)  // C elements each

template <typename E>
static void parameters_point_device(DeviceParameters<E> *parameters, E *base, const ParameterInfo *table) {
    size_t i = 0;
#define X(name, ...) parameters->name = base + table[i++].offset_elems;
    GPT_PARAMETERS(X)
#undef X
}

template <typename E>
static void take(E **pointer, Arena *arena, size_t elems) {
    *pointer = (E *)arena_take(arena, elems, sizeof(E));
}

// Each activation's room in its own type; sizes are tensors.h's.
static void activations_take_device(DeviceActivations *acts, Arena *arena, const GPTConfig *config,
                                    const BatchShape *shape) {
    ActivationInfo table[GPT_ACTIVATION_COUNT];
    size_t i = 0;
    activation_table(config, shape, table);
#define X(name, ...)                                                       \
    take(&acts->name, arena, size_mul(table[i].layers, table[i].elems)); \
    i++;
    GPT_ACTIVATIONS(X)
#undef X
}

// Kernels that need scratch follow each other on one stream, so the largest wish is enough for all.
static size_t scratch_elems(const GPTConfig *config, const BatchShape *shape) {
    size_t N = size_mul(shape->B, shape->T), C = config->C;
    size_t elems = max_size(column_sums_scratch_elems(N, 4 * C), layernorm_backward_scratch_elems(N, C));
    elems = max_size(elems, embedding_backward_scratch_elems(N, C));
    return max_size(elems, attention_scratch_elems<act_t>(shape->B, shape->T, C, config->NH));
}

static size_t token_elems(const Model *model) {
    size_t N = model->shape.B * model->shape.T;
    return 2 * round_up(N, 4) + embedding_plan_elems(N);
}

// The linear layers: what each is, where its weights, their casts and its gradients are.
static void model_lay_out_linears(Model *model) {
    const GPTConfig *config = &model->config;
    const DeviceParameters<weight_t> *w = &model->weights;
    const DeviceParameters<float> *g = &model->grads;
    weight_t *const weights[LINEAR_KINDS] = {w->qkvw, w->attprojw, w->fcw, w->fcprojw};
    weight_t *const biases[LINEAR_KINDS] = {w->qkvb, w->attprojb, w->fcb, w->fcprojb};
    const Shards *shards = &model->shards;
    float *const dweights[LINEAR_KINDS] = {g->qkvw, g->attprojw, g->fcw, g->fcprojw};
    linear_context_take(&model->linear, &model->recipe, &model->work_arena, model->shape.B * model->shape.T, config->L,
                        config->C);
    for (size_t i = 0; i < config->L * LINEAR_KINDS; i++) {
        const size_t kind = i % LINEAR_KINDS, layer = i / LINEAR_KINDS;
        DeviceLinear d =
            linear_take(&model->linear, &model->casts_arena, (LinearKind)kind, layer, config->L, config->C);
        if (!model->linears) continue;  // planning
        d.weight = at_layer(weights[kind], layer, d.layer.C * d.layer.OC);
        d.bias = at_layer(biases[kind], layer, d.layer.OC);
        d.dweight = at_layer(dweights[kind], shards_gradient_layer(shards, layer), d.layer.C * d.layer.OC);
        model->linears[i] = d;
    }
}

// Hands out (or, while planning, counts) every buffer. The one place that knows what a run needs.
static void model_lay_out(Model *model) {
    const GPTConfig *config = &model->config;
    size_t C = config->C, P = model->parameter_elems = parameter_table(config, model->table);
    Shards *shards = &model->shards;
    size_t S = shards_optimizer(shards) ? shards->plan.shard_total : P;  // elements that this rank updates
    weight_t *weights;
    float *grads;
    take(&weights, &model->weights_arena, P);
    if (weights) parameters_point_device(&model->weights, weights, model->table);
    model->masters = weights;
    if (MASTERS_APART) model->masters = arena_take(&model->masters_arena, S, MASTER_BYTES);
    if (BUILD_MASTER_RULE == MASTER_RULE_KAHAN) take(&model->kahan, &model->masters_arena, S);
    GPTConfig gradient_config = *config;
    gradient_config.L = shards_gradient_layers(shards, config->L);
    take(&grads, &model->grads_arena, parameter_table(&gradient_config, model->gradient_table));
    if (grads) parameters_point_device(&model->grads, grads, model->gradient_table);
    take(&shards->gradients, &model->grads_arena, shards->plan.shard_total);
    model->m = arena_take(&model->moments_arena, S, MOMENT_BYTES);
    model->v = arena_take(&model->moments_arena, S, MOMENT_BYTES);
    activations_take_device(&model->acts, &model->acts_arena, config, &model->shape);

    Arena *work = &model->work_arena;
    model->work.matmul_workspace = arena_take(work, matmul_scratch_bytes(), 1);
    take(&model->work.floats, work, scratch_elems(config, &model->shape));
    take(&model->work.tokens, work, token_elems(model));
    take(&model->work.norm, work, 1 + global_norm_scratch_elems());
    take(&model->work.nonfinite, work, 1);
    take(&model->work.kcache, work, size_mul(config->L * model->decode_T, C));
    take(&model->work.vcache, work, size_mul(config->L * model->decode_T, C));
    take(&model->work.token, work, DECODE_SLOTS * C + config->Vp);
    take(&model->work.token_stats, work, 2);
    model_lay_out_linears(model);
    shards->staging = arena_take(work, shards->plan.staging_elems, sizeof(float));
    model->work.block = arena_take(work, shards_optimizer(shards) ? CHECKPOINT_STAGE_BYTES : 0, 1);
}

// The arenas, those that this precision has no use for left out.
static size_t model_arenas(Model *model, Arena *arenas[7]) {
    Arena *all[7] = {&model->weights_arena, &model->masters_arena, &model->casts_arena, &model->grads_arena,
                     &model->moments_arena, &model->acts_arena,    &model->work_arena};
    const int masters = MASTERS_APART || BUILD_MASTER_RULE == MASTER_RULE_KAHAN;
    size_t n = 0;
    for (size_t i = 0; i < 7; i++)
        if ((i != 1 || masters) && (i != 2 || model->recipe.scaling != SCALING_NONE)) arenas[n++] = all[i];
    return n;
}

// Works out the memory of a model without asking for any: afterwards each arena's used_bytes is what it will take.
static void model_plan(Model *model, const GPTConfig *config, const BatchShape *shape, size_t decode_T) {
    PrecisionPolicy policy = build_policy();
    if (config->C % PACK != 0)
        die_usage("--channels %zu is not a multiple of %d\nwhy: the GPU's kernels read 16 bytes at a time", config->C,
                  PACK);
    memset(model, 0, sizeof *model);
    model->config = *config;
    model->shape = *shape;
    model->decode_T = decode_T;
    model->recipe = linear_recipe(&policy, 0);
    model->weights_arena.name = MASTERS_APART ? "working weights" : "weights";
    model->masters_arena.name = MASTERS_APART ? "master weights" : "compensation";
    model->casts_arena.name = "cast weights";
    model->grads_arena.name = "gradients";
    model->moments_arena.name = "AdamW moments";
    model->acts_arena.name = "activations";
    model->work_arena.name = "workspace";
    model->linear.routes = linear_routes(&model->recipe, config->C, shape->B, shape->T);
    model_lay_out(model);
}

// After model_plan(), before model_create(): another recipe than the build's default one. Plans again.
static void model_set_recipe(Model *model, const LinearRecipe *recipe) {
    Arena *arenas[7];
    if (recipe->accumulate != ACCUMULATE_FP32)
        die_usage("--acc is a model of the CPU trainer: here products sum as the card does\ntry: leave it out");
    model->recipe = *recipe;
    for (size_t i = 0, n = model_arenas(model, arenas); i < n; i++) arenas[i]->used_bytes = 0;
    model->linear.routes = linear_routes(recipe, model->config.C, model->shape.B, model->shape.T);
    model_lay_out(model);
}

// After model_plan(), before model_create(): ranks, and what they share out. Plans again.
static void model_set_parallel(Model *model, const Parallel *parallel) {
    Arena *arenas[7];
    shards_plan(&model->shards, parallel, &model->config);
    for (size_t i = 0, n = model_arenas(model, arenas); i < n; i++) arenas[i]->used_bytes = 0;
    model_lay_out(model);
}

// How the card runs the linear layers' products.
static const LinearRoutes *model_linear_routes(const Model *model) {
    return &model->linear.routes;
}

// The most sequences a micro-batch of this model may have in `bytes`; 0: none.
static size_t largest_batch(const Model *model, size_t bytes) {
    size_t low = 0, high = model->shape.B;
    while (high - low > 1) {
        Model *planned = (Model *)checked_calloc(1, sizeof *planned, "a plan");
        BatchShape shape = {low + (high - low) / 2, model->shape.T, model->shape.recompute};
        Arena *arenas[7];
        size_t total = 0;
        model_plan(planned, &model->config, &shape, model->decode_T);
        model_set_recipe(planned, &model->recipe);
        model_set_parallel(planned, &model->shards.parallel);
        for (size_t i = 0, n = model_arenas(planned, arenas); i < n; i++) total += arenas[i]->used_bytes;
        if (total <= bytes) low = shape.B;
        else high = shape.B;
        free(planned);
    }
    return low;
}

// arena_allocate() on the device. `taken_bytes`: what the arenas before it have.
static void arena_allocate_device(const Model *model, Arena *arena, size_t taken_bytes) {
    arena->capacity_bytes = round_up(max_size(arena->used_bytes, 1), (size_t)2 << 20);
    cudaError_t status = cudaMalloc((void **)&arena->base, arena->capacity_bytes);
    if (status == cudaErrorMemoryAllocation) {
        size_t free_bytes = 0, total_bytes = 0;
        char need[32], missing[32], fits[64] = "a smaller model or --seq";
        cudaGetLastError();  // it is not to show at the next call
        CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
        size_t batch = largest_batch(model, taken_bytes + free_bytes);
        if (batch) snprintf(fits, sizeof fits, "--batch %zu", batch);
        die("out of GPU memory: the arena '%s' needs %s, %s more than is free\ntry: %s%s", arena->name,
            format_bytes_text(need, (double)arena->capacity_bytes),
            format_bytes_text(missing, (double)(arena->capacity_bytes - min_size(free_bytes, arena->capacity_bytes))),
            fits, model->shape.recompute < 2 && !model->recipe.gelu_fusion ? ", or --recompute 2" : "");
    }
    CUDA_CHECK(status);
    arena->used_bytes = 0;
}

// Allocates what model_plan() planned. Weights, gradients and moments are zero; model_init_weights() or a checkpoint
// gives the weights numbers. Activations start as whatever is there.
static void model_create(Model *model) {
    Arena *arenas[7];
    HostSide *host = &model->host;
    size_t N = model->shape.B * model->shape.T, taken = 0;
    device_check();
    CUDA_CHECK(cudaStreamCreateWithFlags(&model->stream, cudaStreamNonBlocking));
    CUDA_CHECK(cudaEventCreateWithFlags(&host->uploaded, cudaEventDisableTiming));
    CUDA_CHECK(cudaEventCreateWithFlags(&host->losses_here, cudaEventDisableTiming));
    for (size_t i = 0, n = model_arenas(model, arenas); i < n; i++) {
        arena_allocate_device(model, arenas[i], taken);
        taken += arenas[i]->capacity_bytes;
        if (arenas[i] != &model->acts_arena && arenas[i] != &model->work_arena && arenas[i] != &model->casts_arena)
            CUDA_CHECK(cudaMemsetAsync(arenas[i]->base, 0, arenas[i]->capacity_bytes, model->stream));
    }
    size_t linears = model->config.L * LINEAR_KINDS;
    model->linears = (DeviceLinear *)checked_calloc(linears, sizeof(DeviceLinear), "linear layers");
    model_lay_out(model);
    shards_create(&model->shards, model->gradient_table);
    model->work.matmul = matmul_scratch(model->work.matmul_workspace, matmul_scratch_bytes());
    model->work.matmul->autotune = model->recipe.autotune;
    CUDA_CHECK(cudaMallocHost((void **)&host->tokens, token_elems(model) * sizeof(int32_t)));
    CUDA_CHECK(cudaMallocHost((void **)&host->losses, N * sizeof(float)));
    CUDA_CHECK(cudaMallocHost((void **)&host->norm, sizeof(double)));
    CUDA_CHECK(cudaMallocHost((void **)&host->nonfinite, sizeof(int)));
    CUDA_CHECK(cudaMallocHost((void **)&host->missing_scales, sizeof(int)));
    host->token_counts = (uint32_t *)checked_calloc(model->config.V + 1, sizeof(uint32_t), "the sort of a batch");
    linear_context_start(&model->linear, model->linears, model->work.matmul, host->missing_scales, model->stream);
    CUDA_CHECK(cudaStreamSynchronize(model->stream));
}

static void model_destroy(Model *model) {
    Arena *arenas[7];
    CUDA_CHECK(cudaStreamSynchronize(model->stream));
    shards_destroy(&model->shards);
    matmul_scratch_free(model->work.matmul);
    for (size_t i = 0, n = model_arenas(model, arenas); i < n; i++) CUDA_CHECK(cudaFree(arenas[i]->base));
    CUDA_CHECK(cudaFreeHost(model->host.tokens));
    CUDA_CHECK(cudaFreeHost(model->host.losses));
    CUDA_CHECK(cudaFreeHost(model->host.norm));
    CUDA_CHECK(cudaFreeHost(model->host.nonfinite));
    CUDA_CHECK(cudaFreeHost(model->host.missing_scales));
    free(model->linears);
    free(model->host.token_counts);
    CUDA_CHECK(cudaEventDestroy(model->host.uploaded));
    CUDA_CHECK(cudaEventDestroy(model->host.losses_here));
    CUDA_CHECK(cudaStreamDestroy(model->stream));
}

// Parameter tensor i as the optimizer sees it; decay on matrices only.
static AdamWTensor model_adamw_tensor(const Model *model, size_t i, float weight_decay) {
    const ParameterInfo *info = &model->table[i];
    size_t offset = info->offset_elems;
    AdamWTensor tensor = {(char *)model->masters + offset * MASTER_BYTES,
                          model->kahan ? model->kahan + offset : NULL,
                          MASTERS_APART ? (weight_t *)model->weights_arena.base + offset : NULL,
                          (char *)model->m + offset * MOMENT_BYTES,
                          (char *)model->v + offset * MOMENT_BYTES,
                          (const float *)model->grads_arena.base + offset,
                          parameter_elems(info),
                          0,
                          info->decay ? weight_decay : 0.0f,
                          (uint32_t)i};
    return tensor;
}

#include "llmc/model_shards.cuh"

// The authoritative weights, and perhaps delayed scales, were loaded or made: what is derived from them follows.
static void model_weights_changed(Model *model) {
    Shards *shards = &model->shards;
    model->linear.weights_version++;
    model->linear.gathered = model->weights_partial = 0;
    *model->host.missing_scales = 1;
    if (!MASTERS_APART) return;
    if (!shards_optimizer(shards)) {
        adamw_refresh((weight_t *)model->weights_arena.base, (const float *)model->masters, model->parameter_elems,
                      model->stream);
        return;
    }
    for (size_t i = 0; i < shards->plan.count; i++) {
        AdamWTensor tensors[BUCKET_PIECES];
        for (int k = 0, n = model_adamw_shard(model, i, 0, tensors); k < n; k++)
            adamw_refresh(tensors[k].working, (const float *)tensors[k].weight, tensors[k].n, model->stream);
        shards_publish(shards, i, (weight_t *)model->weights_arena.base, model->stream);
    }
    shards_await_all(shards, model->stream);
}

// `elems` floats to element `first` of the authoritative weights, in their format.
static void masters_set(Model *model, size_t first, float *values, size_t elems) {
    uint16_t *codes = (uint16_t *)values;  // narrower: conversion in place never overtakes itself
    if (BUILD_MASTER_RULE != MASTER_RULE_FP32)
        for (size_t i = 0; i < elems; i++) codes[i] = encode_bf16(values[i]);
    const ShardBlock run = {first, 1, elems, elems};
    if (MASTERS_APART && shards_optimizer(&model->shards))
        shards_copy(&model->shards, model->masters, MASTER_BYTES, &run, values, 0, cudaMemcpyHostToDevice, model->stream);
    else
        CUDA_CHECK(cudaMemcpyAsync((char *)model->masters + first * MASTER_BYTES, values, elems * MASTER_BYTES,
                                   cudaMemcpyHostToDevice, model->stream));
    CUDA_CHECK(cudaStreamSynchronize(model->stream));  // `values` is free again
}

// GPT-2's initialisation: normal(0, 0.02), the two projections into the residual stream scaled by 1/sqrt(2 L).
// Each tensor has its own random stream, so a tensor's numbers do not depend on the others. The same numbers as the CPU
// trainer's, made on the host, a piece at a time; padding rows of wte stay zero for ever.
static void model_init_weights(Model *model, uint64_t seed) {
    const size_t piece = (size_t)1 << 20;
    float residual_std = (float)(0.02 / sqrt(2.0 * (double)model->config.L));
    float *values = (float *)checked_calloc(piece, sizeof(float), "initial weights");
    for (size_t i = 0; i < GPT_PARAMETER_COUNT; i++) {
        const ParameterInfo *info = &model->table[i];
        size_t elems = i == 0 ? model->config.V * model->config.C : parameter_elems(info);  // wte is the first tensor
        if (info->init == INIT_ZERO) continue;
        for (size_t first = 0; first < elems; first += piece) {
            size_t count = min_size(piece, elems - first);
            if (info->init == INIT_ONE)
                for (size_t e = 0; e < count; e++) values[e] = 1.0f;
            else
                rand_normal_fill(values, count, first, info->init == INIT_NORMAL ? 0.02f : residual_std, seed,
                                 (uint32_t)i);
            masters_set(model, info->offset_elems + first, values, count);
        }
    }
    free(values);
    model_weights_changed(model);
}

// ----------------------------------------------------------------------------------------------------------------
// Forward

#include "llmc/layer_inputs.cuh"

// The classifier over the final layernorm's output, LOGITS_CHUNK_ROWS tokens at a time: losses of all tokens and, where
// dloss is not 0, already its whole backward pass (dnorm = gradient of lnf, grads.wte), since a chunk's logits are
// gone when the next one comes.
static void classifier_forward_backward(Model *model, float dloss) {
    DeviceRange range("classifier");
    const GPTConfig *config = &model->config;
    DeviceActivations *acts = &model->acts;
    MatmulScratch *matmul = model->work.matmul;
    cudaStream_t stream = model->stream;
    const int32_t *targets = model->work.tokens + round_up(model->B * model->T, 4);
    size_t N = model->B * model->T, C = config->C, Vp = config->Vp;
    for (size_t row = 0; row < N; row += LOGITS_CHUNK_ROWS) {
        size_t rows = min_size(LOGITS_CHUNK_ROWS, N - row);
        const act_t *lnf = acts->lnf + row * C;
        matmul_forward(matmul, acts->logits, lnf, model->weights.wte, (weight_t *)NULL, rows, C, Vp, stream);
        if (model->numerics)
            observe_stored(model, NUMERICS_LOGITS, "logits", NUMERICS_NO_LAYER, BUILD_ACT, acts->logits, rows * Vp, 0);
        fused_classifier(acts->logits, acts->losses + row, targets + row, dloss, rows, config->V, Vp, stream);
        if (dloss == 0.0f) continue;
        matmul_backward_input(matmul, acts->dnorm + row * C, acts->logits, model->weights.wte, rows, C, Vp, 0, stream);
        matmul_backward_weight(matmul, model->grads.wte, acts->logits, lnf, rows, C, Vp, model->accumulate || row > 0,
                               stream);
    }
}

// residual = inp + the branch and what it lacks of its bias, and of that the layernorm that `x` is, for `reader`: its
// statistics, and its output unless a cast makes it. residual NULL: the layernorm alone.
static void norm_forward(Model *model, const NormInput &x, const DeviceLinear *reader, act_t *residual,
                         const act_t *inp, const weight_t *bias) {
    const LinearContext *linear = &model->linear;
    const LayernormColumns<act_t, weight_t> &norm = x.source;
    act_t *out = linear_makes_input(linear, reader) ? NULL : x.stored;
    uint32_t *amax = linear_amax_word(linear, reader, QUANT_X);
    size_t N = model->B * model->T, C = model->config.C;
    if (residual)
        fused_residual_layernorm_forward(residual, out, norm.mean, norm.rstd, inp, model->acts.branch, bias,
                                         norm.weight, norm.bias, amax, N, C, model->stream);
    else
        layernorm_forward(out, norm.mean, norm.rstd, norm.inp, norm.weight, norm.bias, amax, N, C, model->stream);
}

// Layer l, from its input residual stream: acts of that layer. The stream after attention and after the MLP is formed
// together with the layernorm that reads it.
static void layer_forward(Model *model, size_t l) {
    DeviceRange range("layer forward", l);
    const DeviceParameters<weight_t> *w = &model->weights;
    LinearContext *linear = &model->linear;
    const DeviceLinear *fc = linear_at(model, l, LINEAR_FC), *fcproj = linear_at(model, l, LINEAR_FCPROJ);
    DeviceActivations *acts = &model->acts;
    cudaStream_t stream = model->stream;
    size_t B = model->B, T = model->T, N = B * T, C = model->config.C, NH = model->config.NH, L = model->config.L;
    size_t S = model->shape.B * model->shape.T;  // tokens a layer's block has room for
    act_t *qkv = at_layer(acts->qkv, l, S * 3 * C), *fch = at_layer(acts->fch, l, S * 4 * C);
    act_t *residual2 = at_layer(acts->residual2, l, S * C), *residual3 = at_layer(acts->residual3, l, S * C);
    StoredInput att = att_input(model, l);
    NormInput ln2 = ln2_input(model, l);
    GeluInput gelu = gelu_input(model, l);

    linear_begin_layer(linear, model->linears, l);
    const weight_t *bias = linear_forward(linear, linear_at(model, l, LINEAR_QKV), qkv, ln1_input(model, l), N);
    linear_add_bias(qkv, bias, N, 3 * C, stream);  // attention's kernels have no room for it
    attention_forward(att.stored, at_layer(acts->lse, l, S * NH), qkv, B, T, C, NH, model->work.floats, stream);
    bias = linear_forward(linear, linear_at(model, l, LINEAR_ATTPROJ), acts->branch, att, N);
    norm_forward(model, ln2, fc, residual2, layer_input(model, l), bias);
    if (model->recipe.gelu_fusion >= 1) {
        linear_forward_gelu(linear, fc, gelu.stored, fch, ln2.stored, N);
    } else {
        bias = linear_forward(linear, fc, fch, ln2, N);
        if (!linear_makes_input(linear, fcproj)) gelu_forward(gelu.stored, fch, bias, N, 4 * C, stream);
    }
    bias = linear_forward(linear, fcproj, acts->branch, gelu, N);
    if (l + 1 < L) {
        shards_await_layer(&model->shards, l + 1, stream);
        norm_forward(model, ln1_input(model, l + 1), linear_at(model, l + 1, LINEAR_QKV), residual3, residual2, bias);
    } else {
        fused_residual_layernorm_forward(residual3, acts->lnf, acts->lnf_mean, acts->lnf_rstd, residual2, acts->branch,
                                         bias, w->lnfw, w->lnfb, (uint32_t *)NULL, N, C, stream);
    }
}

// From the tokens to the final layernorm.
static void layers_forward(Model *model) {
    const DeviceParameters<weight_t> *w = &model->weights;
    shards_await_embeddings(&model->shards, model->stream);
    embedding_forward(model->acts.encoded, model->work.tokens, w->wte, w->wpe, model->B, model->T, model->config.C,
                      model->stream);
    shards_await_layer(&model->shards, 0, model->stream);
    norm_forward(model, ln1_input(model, 0), linear_at(model, 0, LINEAR_QKV), NULL, NULL, NULL);
    for (size_t l = 0; l < model->config.L; l++) layer_forward(model, l);
}

// Shows the saved activations of the forward pass to the numerics report; what is recomputed later is gone by then.
static void observe_activations(const Model *model) {
    const DeviceActivations *acts = &model->acts;
    size_t N = model->B * model->T, S = model->shape.B * model->shape.T, C = model->config.C;
    int recompute = model->shape.recompute;
    const struct {
        const char *name;
        const act_t *base;
        size_t width;
        int kept;
    } saved[] = {{"ln1", acts->ln1, C, recompute < 2},          {"qkv", acts->qkv, 3 * C, 1},
                 {"att", acts->att, C, 1},                      {"residual2", acts->residual2, C, 1},
                 {"ln2", acts->ln2, C, recompute < 2},          {"fch", acts->fch, 4 * C, 1},
                 {"fch_gelu", acts->fch_gelu, 4 * C, recompute < 1}, {"residual3", acts->residual3, C, 1}};
    observe_stored(model, NUMERICS_ACT, "encoded", NUMERICS_NO_LAYER, BUILD_ACT, acts->encoded, N * C, 0);
    for (size_t l = 0; l < model->config.L; l++)
        for (size_t i = 0; i < sizeof saved / sizeof *saved; i++)
            if (saved[i].kept)
                observe_stored(model, NUMERICS_ACT, saved[i].name, l, BUILD_ACT, saved[i].base + l * S * saved[i].width,
                               N * saved[i].width, 0);
    observe_stored(model, NUMERICS_ACT, "lnf", NUMERICS_NO_LAYER, BUILD_ACT, acts->lnf, N * C, 0);
}

// The micro-batch to the device, with the order in which its embedding's gradient is summed where one is wanted.
static void upload_batch(Model *model, const int32_t *inputs, const int32_t *targets, int training) {
    DeviceRange range("upload");
    HostSide *host = &model->host;
    size_t N = model->B * model->T, tgt_at = round_up(N, 4), plan_at = 2 * tgt_at, elems = plan_at;
    CUDA_CHECK(cudaEventSynchronize(host->uploaded));  // the last batch has left the pinned memory
    memcpy(host->tokens, inputs, N * sizeof *inputs);
    memcpy(host->tokens + tgt_at, targets, N * sizeof *targets);
    if (training) {
        model->plan = embedding_plan_make(host->tokens + plan_at, host->token_counts, inputs, N, model->config.V);
        elems += model->plan.elems;
    }
    CUDA_CHECK(cudaMemcpyAsync(model->work.tokens, host->tokens, elems * sizeof(int32_t), cudaMemcpyHostToDevice,
                               model->stream));
    CUDA_CHECK(cudaEventRecord(host->uploaded, model->stream));
}

// Runs B sequences of T tokens through the model: acts.losses (B, T) = the loss of each token, not averaged. Where dloss
// is not 0 it is the factor each token's loss enters the objective with (1 / tokens of the step), and model_backward()
// must follow.
static void model_forward(Model *model, const int32_t *inputs, const int32_t *targets, size_t B, size_t T, float dloss) {
    DeviceRange range("forward");
    model->B = B;
    model->T = T;
    model->linear.training = dloss != 0.0f;
    upload_batch(model, inputs, targets, dloss != 0.0f);
    linear_begin_pass(&model->linear);
    layers_forward(model);
    classifier_forward_backward(model, dloss);
    CUDA_CHECK(cudaMemcpyAsync(model->host.losses, model->acts.losses, B * T * sizeof(float), cudaMemcpyDeviceToHost,
                               model->stream));
    CUDA_CHECK(cudaEventRecord(model->host.losses_here, model->stream));
    if (model->numerics) observe_activations(model);
}

// ----------------------------------------------------------------------------------------------------------------
// Backward. A bias's gradient is taken by a kernel that has its columns in hand anyway: those of the two projections
// into the residual stream by the layernorm that makes the stream's gradient, fc's by GELU's unless a product makes that.

// The MLP of layer l: dresidual, the gradient of residual3, becomes that of residual2.
static void mlp_backward(Model *model, size_t l) {
    DeviceRange range("mlp backward", l);
    DeviceParameters<float> *g = &model->grads;
    DeviceActivations *acts = &model->acts;
    const LinearContext *linear = &model->linear;
    const DeviceLinear *fc = linear_at(model, l, LINEAR_FC), *fcproj = linear_at(model, l, LINEAR_FCPROJ);
    cudaStream_t stream = model->stream;
    size_t N = model->B * model->T, C = model->config.C, gl = shards_gradient_layer(&model->shards, l);
    int makes_dfch = linear_makes_gradient(linear, fc), again = model->shape.recompute;
    int fused = model->recipe.gelu_fusion >= 2;
    GeluInput gelu = gelu_input(model, l);
    NormInput ln2 = ln2_input(model, l);
    const LayernormColumns<act_t, weight_t> &norm = ln2.source;
    const act_t *fch = gelu.source.inp;
    const weight_t *bias = gelu.source.bias.bias;
    float *dfcb = at_layer(g->fcb, gl, 4 * C);

    if (again >= 1 && !linear_makes_input(linear, fcproj)) gelu_forward(gelu.stored, fch, bias, N, 4 * C, stream);
    if (fused) {
        linear_backward_gelu(linear, fcproj, acts->dhidden, fch, acts->dresidual, gelu.stored, N, model->accumulate);
    } else {
        linear_backward(linear, fcproj, acts->dhidden, residual_gradient(model, fcproj), gelu, N, model->accumulate);
        observe(model, "dfch_gelu", l, acts->dhidden, N * 4 * C);
    }
    GeluGradient dfch = {acts->dhidden, {acts->dhidden, fch, {bias}, 4 * C}, 0,
                         {makes_dfch || fused ? dfcb : NULL, model->work.floats, model->accumulate}};
    if (!makes_dfch && !fused)
        gelu_backward_bias(acts->dhidden, dfcb, acts->dhidden, fch, bias, N, 4 * C, model->accumulate,
                           model->work.floats, stream);
    if (!makes_dfch) observe(model, "dfch", l, acts->dhidden, N * 4 * C);
    if (again >= 2 && !linear_makes_input(linear, fc)) norm_forward(model, ln2, fc, NULL, NULL, NULL);
    linear_backward(linear, fc, acts->dnorm, dfch, ln2, N, model->accumulate);
    observe(model, "dln2", l, acts->dnorm, N * C);
    layernorm_backward_sums(acts->dresidual, at_layer(g->ln2w, gl, C), at_layer(g->ln2b, gl, C),
                            at_layer(g->attprojb, gl, C),
                            linear_amax_word(linear, linear_at(model, l, LINEAR_ATTPROJ), QUANT_DY), acts->dnorm,
                            norm.inp, norm.weight, norm.mean, norm.rstd, N, C, model->work.floats, stream);
    observe(model, "dresidual2", l, acts->dresidual, N * C);
}

// The attention of layer l: dresidual, the gradient of residual2, becomes that of the layer's input.
static void attention_block_backward(Model *model, size_t l) {
    DeviceRange range("attention block backward", l);
    DeviceParameters<float> *g = &model->grads;
    DeviceActivations *acts = &model->acts;
    const LinearContext *linear = &model->linear;
    const DeviceLinear *qkv_layer = linear_at(model, l, LINEAR_QKV), *attproj = linear_at(model, l, LINEAR_ATTPROJ);
    const DeviceLinear *before = l > 0 ? linear_at(model, l - 1, LINEAR_FCPROJ) : NULL;  // reads dresidual next
    cudaStream_t stream = model->stream;
    size_t B = model->B, T = model->T, N = B * T, C = model->config.C, NH = model->config.NH;
    size_t S = model->shape.B * model->shape.T, gl = shards_gradient_layer(&model->shards, l);
    act_t *qkv = at_layer(acts->qkv, l, S * 3 * C);
    StoredInput att = att_input(model, l);
    NormInput ln1 = ln1_input(model, l);
    const LayernormColumns<act_t, weight_t> &norm = ln1.source;

    linear_backward(linear, attproj, acts->dnorm, residual_gradient(model, attproj), att, N, model->accumulate);
    observe(model, "datt", l, acts->dnorm, N * C);
    attention_backward(acts->dhidden, acts->dnorm, qkv, att.stored, at_layer(acts->lse, l, S * NH), B, T, C, NH,
                       model->work.floats, stream);
    observe(model, "dqkv", l, acts->dhidden, N * 3 * C);
    if (model->shape.recompute >= 2 && !linear_makes_input(linear, qkv_layer))
        norm_forward(model, ln1, qkv_layer, NULL, NULL, NULL);
    StoredGradient dqkv = {acts->dhidden, {acts->dhidden, 3 * C}, 0,
                           {at_layer(g->qkvb, gl, 3 * C), model->work.floats, model->accumulate}};
    linear_backward(linear, qkv_layer, acts->dnorm, dqkv, ln1, N, model->accumulate);
    observe(model, "dln1", l, acts->dnorm, N * C);
    layernorm_backward_sums(acts->dresidual, at_layer(g->ln1w, gl, C), at_layer(g->ln1b, gl, C),
                            before ? at_layer(g->fcprojb, shards_gradient_layer(&model->shards, l - 1), C) : (float *)NULL,
                            before ? linear_amax_word(linear, before, QUANT_DY) : (uint32_t *)NULL, acts->dnorm,
                            norm.inp, norm.weight, norm.mean, norm.rstd, N, C, model->work.floats, stream);
    observe(model, l == 0 ? "dencoded" : "dresidual3", l == 0 ? 0 : l - 1, acts->dresidual, N * C);
}

// Before a pass that overwrites the gradients. Matmul gradients need no clearing for that; those whose kernels only add
// (layernorm's, wpe, the biases before a layernorm) do: of `layers` layers from `first` on, where `whole` of what is in
// no layer, too.
static void clear_gradients(Model *model, size_t first, size_t layers, int whole) {
    const DeviceParameters<float> *g = &model->grads;
    for (size_t i = 0; i < GPT_PARAMETER_COUNT; i++) {
        const ParameterInfo *info = &model->gradient_table[i];
        float *grad = (float *)model->grads_arena.base + info->offset_elems;
        size_t elems = info->rows * info->cols;
        if (info->init != INIT_ONE && grad != g->wpe && grad != g->ln1b && grad != g->ln2b && grad != g->lnfb &&
            grad != g->attprojb && grad != g->fcprojb)
            continue;
        if (bucket_in_layers((int)i)) device_clear(grad + first * elems, layers * elems * sizeof(float), model->stream);
        else if (whole) device_clear(grad, elems * sizeof(float), model->stream);
    }
}

// Starts a step: the next backward pass overwrites the gradients.
static void model_zero_grad(Model *model) {
    DeviceRange range("zero gradients");
    model->accumulate = 0;
    model->shards.accumulate = 0;
    linear_begin_step(&model->linear);
    clear_gradients(model, 0, shards_gradient_layers(&model->shards, model->config.L), 1);
}

// grads += the gradient of (sum of the last forward pass's losses) * dloss.
static void model_backward(Model *model) {
    DeviceRange range("backward");
    DeviceActivations *acts = &model->acts;
    cudaStream_t stream = model->stream;
    size_t N = model->B * model->T, C = model->config.C, L = model->config.L, S = model->shape.B * model->shape.T;
    observe(model, "dlnf", 0, acts->dnorm, N * C);
    device_clear(acts->dresidual, N * C * sizeof(grad_t), stream);
    layernorm_backward_sums(acts->dresidual, model->grads.lnfw, model->grads.lnfb,
                            at_layer(model->grads.fcprojb, shards_gradient_layer(&model->shards, L - 1), C),
                            linear_amax_word(&model->linear, linear_at(model, L - 1, LINEAR_FCPROJ), QUANT_DY),
                            acts->dnorm, at_layer(acts->residual3, L - 1, S * C), model->weights.lnfw, acts->lnf_mean,
                            acts->lnf_rstd, N, C, model->work.floats, stream);
    observe(model, "dresidual3", L - 1, acts->dresidual, N * C);
    for (size_t l = L; l-- > 0;) {
        size_t first, layers = shards_layer_begins(&model->shards, l, &first, stream);
        if (layers) clear_gradients(model, first, layers, 0);
        mlp_backward(model, l);
        attention_block_backward(model, l);
        shards_layer_done(&model->shards, l, (float *)model->grads_arena.base, stream);
    }
    embedding_backward(model->grads.wte, model->grads.wpe, acts->dresidual, &model->plan,
                       model->work.tokens + 2 * round_up(N, 4), model->B, model->T, C, model->work.floats, stream);
    shards_backward_done(&model->shards, (float *)model->grads_arena.base, stream);
    if (shards_gradients(&model->shards)) clear_gradients(model, 0, model->shards.slots, 1);  // for the next pass
    else model->accumulate = 1;
    linear_end_pass(&model->linear);
}

// The next backward pass is the step's last: what it finishes goes to the other ranks while it goes on.
static void model_reduce_next(Model *model) { model->shards.reduce_next = 1; }
static double model_exposed_ms(const Model *model) { return shards_exposed_ms(&model->shards); }

// ----------------------------------------------------------------------------------------------------------------
// Update

// The Euclidean norm of all gradients; *nonfinite = 1 if any of them, or the norm, is NaN or infinite, or if any number
// was that a linear layer cast to a narrow format on the way. The arena's padding is zero: one pass takes all tensors.
static double model_grad_norm(Model *model, int *nonfinite) {
    DeviceRange range("gradient norm");
    Workspace *work = &model->work;
    HostSide *host = &model->host;
    cudaStream_t stream = model->stream;
    // Delayed scales follow the largest values of all ranks; what is older, and the scales, they have in common.
    if (shards_several(&model->shards) && model->linear.delayed)
        ranks_max(model->linear.delayed, linear_delayed_elems(&model->recipe, model->config.L), stream);
    device_clear(work->norm, sizeof(double), stream);
    device_clear(work->nonfinite, sizeof(int), stream);
    linear_check_finite(&model->linear, work->nonfinite);
    int several = shards_several(&model->shards);
    global_norm_squared(work->norm, several ? model->shards.gradients : (const float *)model->grads_arena.base,
                        several ? model->shards.plan.shard_total : model->parameter_elems, work->nonfinite,
                        work->norm + 1, stream);
    CUDA_CHECK(cudaMemcpyAsync(host->norm, work->norm, sizeof(double), cudaMemcpyDeviceToHost, stream));
    CUDA_CHECK(cudaMemcpyAsync(host->nonfinite, work->nonfinite, sizeof(int), cudaMemcpyDeviceToHost, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    model->linear.scales_known = *host->missing_scales == 0;
    if (several) *host->norm = shards_sum_norms(*host->norm, host->nonfinite);
    double norm = sqrt(*host->norm);
    *nonfinite = *host->nonfinite || !(norm <= (double)FLT_MAX);
    return norm;
}

// One AdamW step with the accumulated gradients times hyper->grad_scale.
static void model_update(Model *model, const AdamWHyper *hyper) {
    DeviceRange range("update");
    AdamWTensor tensors[GPT_PARAMETER_COUNT];
    if (shards_optimizer(&model->shards)) {
        model_update_shards(model, hyper);
    } else {
        for (size_t i = 0; i < GPT_PARAMETER_COUNT; i++) tensors[i] = model_adamw_tensor(model, i, hyper->weight_decay);
        adamw_update_tensors(tensors, GPT_PARAMETER_COUNT, hyper, BUILD_MASTER_RULE, BUILD_MOMENTS_RULE, model->stream);
    }
    model->linear.weights_version++;
}

// From now on every tensor of a training pass is shown to `report`; NULL ends that.
static void model_observe(Model *model, NumericsReport *report) {
    model->numerics = report;
    model->linear.observe = report ? numerics_cast : NULL;
    model->linear.apart = report != NULL;
    model->linear.observe_context = report;
}

// The number of the step that begins (from 0): random roundings depend on it.
static void model_begin_step(Model *model, uint64_t step) { model->linear.step = (uint32_t)step; }

// Ends a step, whether its update was applied or skipped.
static void model_end_step(Model *model) {
    linear_end_step(&model->linear);
    if (model_sends_codes(model)) model_publish_codes(model);
}

// ----------------------------------------------------------------------------------------------------------------
// Access by the shared loop: checkpoints, reports and failures (llmc/model_access.cuh), sampling

#include "llmc/model_access.cuh"

// logits (V) after `token` at position `pos` of a text whose earlier tokens went through this function at 0..pos-1.
static void model_logits(Model *model, int32_t token, size_t pos, float *logits) {
    const DeviceParameters<weight_t> *w = &model->weights;
    cudaStream_t stream = model->stream;
    size_t C = model->config.C, NH = model->config.NH, V = model->config.V, cache = model->decode_T * C;
    float *mean = model->work.token_stats, *rstd = mean + 1;
    act_t *x = model->work.token, *norm = x + C, *branch = x + 2 * C, *att = x + 3 * C;
    act_t *qkv = x + 4 * C, *fch = x + 7 * C, *fch_gelu = x + 11 * C, *out = x + DECODE_SLOTS * C;
    shards_await_all(&model->shards, stream);
    CUDA_CHECK(cudaEventSynchronize(model->host.uploaded));
    model->host.tokens[0] = token;
    CUDA_CHECK(cudaMemcpyAsync(model->work.tokens, model->host.tokens, sizeof token, cudaMemcpyHostToDevice, stream));
    CUDA_CHECK(cudaEventRecord(model->host.uploaded, stream));
    embedding_forward(x, model->work.tokens, w->wte, w->wpe + pos * C, 1, 1, C, stream);
    layernorm_forward(norm, mean, rstd, x, w->ln1w, w->ln1b, (uint32_t *)NULL, 1, C, stream);
    for (size_t l = 0; l < model->config.L; l++) {
        int last = l + 1 == model->config.L;
        matvec_forward(qkv, norm, at_layer(w->qkvw, l, 3 * C * C), at_layer(w->qkvb, l, 3 * C), C, 3 * C, stream);
        attention_decode(att, qkv, model->work.kcache + l * cache, model->work.vcache + l * cache, pos, C, NH, stream);
        matvec_forward(branch, att, at_layer(w->attprojw, l, C * C), at_layer(w->attprojb, l, C), C, C, stream);
        fused_residual_layernorm_forward(x, norm, mean, rstd, x, branch, (weight_t *)NULL, at_layer(w->ln2w, l, C),
                                         at_layer(w->ln2b, l, C), (uint32_t *)NULL, 1, C, stream);
        matvec_forward(fch, norm, at_layer(w->fcw, l, 4 * C * C), at_layer(w->fcb, l, 4 * C), C, 4 * C, stream);
        gelu_forward(fch_gelu, fch, (weight_t *)NULL, 1, 4 * C, stream);
        matvec_forward(branch, fch_gelu, at_layer(w->fcprojw, l, 4 * C * C), at_layer(w->fcprojb, l, C), 4 * C, C,
                       stream);
        fused_residual_layernorm_forward(x, norm, mean, rstd, x, branch, (weight_t *)NULL,
                                         last ? w->lnfw : at_layer(w->ln1w, l + 1, C),
                                         last ? w->lnfb : at_layer(w->ln1b, l + 1, C), (uint32_t *)NULL, 1, C,
                                         stream);
    }
    matvec_forward(out, norm, w->wte, (weight_t *)NULL, C, V, stream);
    float *floats = floats_from_device(model, out, V);
    memcpy(logits, floats, V * sizeof *logits);
    free(floats);
}

// ----------------------------------------------------------------------------------------------------------------

#define MODEL_ON_GPU 1
#include "llmc/trainer.h"

#ifndef TESTING  // test_gpt.cu includes this file for the model and brings its own main
int main(int argc, char **argv) { return trainer_main(argc, argv); }
#endif
