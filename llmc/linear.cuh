// linear.cuh: the CUDA twin of linear.h: a linear layer's three matrix products, operands cast as the recipe has it.
//
// Each product is native (fp8 or fp4 through cuBLASLt) or emulated (the same casts, written as bf16 values, through a
// bf16 product), decided once for each kind of layer by asking cuBLASLt: LinearRoutes.
//
// A tensor that only a layer's casts read is not stored: they make it, in both directions at once, and x for wgrad waits
// for the backward pass as the cast that it is (linear_makes_input, linear_makes_gradient). The bits are those of passes
// that store it and cast it, which is what reports and tests have (`apart`).
//
// Maxima, scales, histories and counts of numbers that are not finite stay on the device: words of 32 bits, one of a
// kind for each (layer, role), and histories laid out as linear.h's, so that a checkpoint holds the same. The host
// learns two things with the gradients' norm, which it waits for in any case: whether any cast met a number that was
// not finite, and whether a delayed scale is still missing.
#ifndef LLMC_LINEAR_CUH
#define LLMC_LINEAR_CUH

#include "code_buckets.cuh"
#include "linear.h"
#include "matmul.cuh"
#include "matmul_fp8.cuh"
#include "quantize.cuh"
#include "tensors.h"

typedef struct {
    Linear layer;  // what it is; its host pointers are not used here
    const weight_t *weight, *bias;
    float *dweight;
    DeviceOperand w_fprop, w_dgrad;
} DeviceLinear;

// Words by kind, `layers` of each. What is cleared together lies together.
typedef enum {
    WORD_X_AMAX,
    WORD_X_TRANSFORMED,
    WORD_DY_AMAX,
    WORD_DY_TRANSFORMED,  // cleared before every pass
    WORD_W_AMAX,
    WORD_W_TRANSFORMED,
    WORD_W_NONFINITE,  // before the weights are cast
    WORD_X_NONFINITE,
    WORD_DY_NONFINITE,  // before every step
    WORD_X_DECODE,
    WORD_W_DECODE,
    WORD_DY_DECODE,
    WORD_KINDS
} LinearWord;

// Everything linear layers share.
typedef struct {
    const LinearRecipe *recipe;
    LinearRoutes routes;
    MatmulScratch *matmul;
    cudaStream_t stream;
    void *codes[3], *scales[3];  // of x or dY as fprop or dgrad reads it; of dY, of x as wgrad does
    uint32_t *amax_scratch;      // row recipes
    uint32_t *words;             // (WORD_KINDS, layers)
    float *delayed;              // delayed: linear_delayed_elems(); else NULL
    int *missing;                // delayed: how many scales are missing, on the device and on the host
    int *host_missing;
    uint64_t weights_version, cast_version;  // of the weights, and of those that were cast
    int casting;                             // this forward pass casts them
    int scales_known;                        // delayed: none is missing, as all ranks know since the last gradient norm
    int gathered, transposing;               // the weights came as codes; this forward pass transposes them
    uint32_t step, micro_step, layers;       // as in linear.h
    int training;  // a backward pass follows
    int apart;  // 1: every tensor is stored as the CPU has it, by passes of their own: what tests and reports look at
    void (*observe)(void *context, const Linear *l, QuantRole role, QuantGemm gemm, const QuantSpec *spec,
                    const QuantResult *result, const float *in, const float *values, size_t n);
    void *observe_context;
} LinearContext;

// ----------------------------------------------------------------------------------------------------------------
// Routes

static inline QuantSpec linear_spec(const LinearRecipe *recipe, QuantRole role, QuantGemm gemm, uint32_t stream,
                                    uint32_t step) {
    return quant_spec(recipe->scaling, role, gemm, &recipe->quant, stream, step);
}

// An operand of layer l for N tokens, all but its memory.
static inline DeviceOperand linear_operand(const LinearRoutes *routes, const Linear *l, const QuantSpec *spec,
                                           QuantRole role, QuantGemm gemm, size_t N) {
    const size_t rows = role == QUANT_W ? l->OC : N, cols = role == QUANT_DY ? l->OC : l->C;
    return quant_operand(spec, rows, cols, routes->emulated_why[l->kind][gemm] != NULL, quant_card());
}

// Whose fp4 products may come out without the scales of whole tensors (release notes of CUDA 13.2 update 1).
#define LINEAR_CUBLAS_NV_BROKEN 130400

// Why this card does not run product `gemm` of layer l for N tokens natively; NULL: it does. cuBLASLt is asked; without a
// device, it goes by what a Hopper has.
static inline const char *linear_refusal(MatmulScratch *matmul, const LinearRecipe *recipe, const Linear *l,
                                         QuantGemm gemm, size_t N) {
    static const LinearRoutes native = {{{NULL}}, NULL, ""};
    const QuantRole first = gemm == GEMM_WGRAD ? QUANT_X : QUANT_W, second = gemm == GEMM_FPROP ? QUANT_X : QUANT_DY;
    const QuantSpec a_spec = linear_spec(recipe, first, gemm, 0, 0), b_spec = linear_spec(recipe, second, gemm, 0, 0);
    if (a_spec.scaling == SCALING_NONE) return NULL;
    if (a_spec.scaling != b_spec.scaling) return "no card scales one operand by rows, the other as a whole";
    if (recipe->quant.block_fp32 && quant_card().tiled_blocks) return "this card's block scales are powers of two";
    if (a_spec.scaling == SCALING_NV && cublasLtGetVersion() == LINEAR_CUBLAS_NV_BROKEN)
        return "cuBLAS 13.4.0 may leave out a tensor's scale (13.4.1 does not)";
    if (!matmul)
        return recipe->scaling == SCALING_MX || recipe->scaling == SCALING_NV ? "a Hopper has no such product" : NULL;
    const DeviceOperand a = linear_operand(&native, l, &a_spec, first, gemm, N),
                        b = linear_operand(&native, l, &b_spec, second, gemm, N);
    const int fast = gemm == GEMM_FPROP && recipe->fast_forward;
    return matmul_cast_query(matmul, gemm == GEMM_WGRAD ? CUDA_R_32F : CUDA_R_16BF, &a, &b, fast) ==
                   CUBLAS_STATUS_SUCCESS
               ? NULL
               : "cuBLASLt has no such product here";
}

// Ends the program where cuBLASLt lacks what --gelu-fusion asks for with N tokens; without a device nobody knows.
static inline void linear_require_gelu(MatmulScratch *matmul, const LinearRecipe *recipe, size_t channels, size_t N) {
    const int32_t type = TypeFormat<act_t>::cuda;
    const size_t C = channels, OC = 4 * channels;
    const MatmulKey forward = matmul_key(OC, N, C, 1, 0, type, type, 0, MATMUL_GELU_BIAS),
                    backward = matmul_key(OC, N, C, 0, 0, type, type, 0, MATMUL_DGELU);
    for (int level = 1; matmul && level <= recipe->gelu_fusion; level++)
        if (matmul_query(matmul, level == 1 ? &forward : &backward) != CUBLAS_STATUS_SUCCESS)
            die_usage("--gelu-fusion %d: cuBLASLt has no %s product of %zu x %zu over %zu with GELU%s on %s, compute capability "
                      "%d.%d\ntry: --gelu-fusion %d",
                      recipe->gelu_fusion, build_policy().name, N, OC, C, level == 1 ? "" : "'s derivative",
                      device_info()->name, device_info()->cc / 10, device_info()->cc % 10, level - 1);
}

// For micro-batches of up to B sequences of T tokens. One sequence is asked about, too: what cuBLASLt wants a number of
// tokens to be a multiple of holds for any number of sequences then.
static inline LinearRoutes linear_routes(const LinearRecipe *recipe, size_t channels, size_t B, size_t T) {
    LinearRoutes routes;
    int devices = 0;
    memset(&routes, 0, sizeof routes);
    if (recipe->scaling == SCALING_NONE && !recipe->gelu_fusion) return routes;
    snprintf(routes.card, sizeof routes.card, "%.64s, compute capability %d.%d", device_info()->name,
             device_info()->cc / 10, device_info()->cc % 10);
    void *anywhere = (void *)(uintptr_t)4096;  // a workspace for products that are only asked about
    const int present = cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
    MatmulScratch *matmul = present ? matmul_scratch(anywhere, matmul_scratch_bytes()) : NULL;
    linear_require_gelu(matmul, recipe, channels, T);
    linear_require_gelu(matmul, recipe, channels, B * T);
    for (int kind = 0; kind < LINEAR_KINDS; kind++)
        for (int gemm = 0; gemm < 3; gemm++) {
            const Linear l = linear_describe(recipe, (LinearKind)kind, 0, 1, channels);
            if (l.high == HIGH_MODE || l.high == HIGH_FEATURES) continue;
            const char *why = linear_refusal(matmul, recipe, &l, (QuantGemm)gemm, T);
            if (!why) why = linear_refusal(matmul, recipe, &l, (QuantGemm)gemm, B * T);
            routes.emulated_why[kind][gemm] = why;
            if (why) routes.why = why;
        }
    if (matmul) matmul_scratch_free(matmul);
    if (routes.why && recipe->scaling == SCALING_BLOCK && recipe->quant.block_fp32)
        die_usage(
            "--block-scale fp32 needs products with such scales, which Hopper has\nwhy: %s, and the bf16 of emulated "
            "operands does not hold a code times any fp32\ntry: --block-scale pow2",
            routes.why);
    return routes;
}

// ----------------------------------------------------------------------------------------------------------------
// Memory

static inline size_t linear_word_elems(const LinearRecipe *recipe, size_t layers) {
    return recipe->scaling == SCALING_NONE ? 0 : WORD_KINDS * LINEAR_KINDS * layers;
}

// What is cast into the context's codes[slot] and scales[slot] of a layer: role and product.
typedef struct {
    QuantRole role;
    QuantGemm gemm;
    int slot;
} LinearCastPlace;
#define LINEAR_CAST_PLACES 4
static inline LinearCastPlace linear_cast_place(int i) {
    static const LinearCastPlace places[LINEAR_CAST_PLACES] = {{QUANT_X, GEMM_FPROP, 0},
                                                               {QUANT_DY, GEMM_DGRAD, 0},
                                                               {QUANT_DY, GEMM_WGRAD, 1},
                                                               {QUANT_X, GEMM_WGRAD, 2}};
    return places[i];
}

// Bytes of codes and scales of each slot for N tokens of any layer.
static inline void linear_slot_bytes(const LinearRecipe *recipe, const LinearRoutes *routes, size_t N, size_t channels,
                                     size_t codes[3], size_t scales[3]) {
    for (int slot = 0; slot < 3; slot++) codes[slot] = scales[slot] = 0;
    if (recipe->scaling == SCALING_NONE) return;
    for (int kind = 0; kind < LINEAR_KINDS; kind++)
        for (int i = 0; i < LINEAR_CAST_PLACES; i++) {
            const LinearCastPlace place = linear_cast_place(i);
            const Linear l = linear_describe(recipe, (LinearKind)kind, 0, 1, channels);
            const QuantSpec spec = linear_spec(recipe, place.role, place.gemm, 0, 0);
            if (spec.scaling == SCALING_NONE) continue;
            const DeviceOperand x = linear_operand(routes, &l, &spec, place.role, place.gemm, N);
            codes[place.slot] = max_size(codes[place.slot], quant_code_bytes(&x));
            scales[place.slot] = max_size(scales[place.slot], quant_scale_bytes(&x));
        }
}

static inline size_t linear_amax_scratch_elems(const LinearRecipe *recipe, size_t N, size_t channels) {
    const int rows = recipe->scaling == SCALING_ROW || recipe->scaling == SCALING_ROW_GWHP;
    return rows ? quantize_scratch_elems(max_size(N, 4 * channels), 4 * channels) : 0;
}

// One layer, its weight's casts from `casts`; the caller gives it weight, bias and gradient.
static inline DeviceLinear linear_take(const LinearContext *ctx, Arena *casts, LinearKind kind, size_t layer,
                                       size_t layers, size_t channels) {
    DeviceLinear d;
    memset(&d, 0, sizeof d);
    d.layer = linear_describe(ctx->recipe, kind, layer, layers, channels);
    DeviceOperand *operands[2] = {&d.w_fprop, &d.w_dgrad};
    for (int gemm = GEMM_FPROP; gemm <= GEMM_DGRAD && !d.layer.high; gemm++) {
        const QuantSpec spec = linear_spec(ctx->recipe, QUANT_W, (QuantGemm)gemm, 0, 0);
        DeviceOperand *x = operands[gemm];
        *x = linear_operand(&ctx->routes, &d.layer, &spec, QUANT_W, (QuantGemm)gemm, 0);
    }
    for (int gemm = GEMM_FPROP; gemm <= GEMM_DGRAD && !d.layer.high; gemm++) {
        DeviceOperand *x = operands[gemm];
        if (gemm == GEMM_FPROP && quant_shared(&d.w_fprop, &d.w_dgrad)) continue;  // the cast gives it dgrad's
        x->codes = arena_take(casts, quant_code_bytes(x), 1);
        x->scales = arena_take(casts, quant_scale_bytes(x), 1);
    }
    return d;
}

// What they share, for N tokens; ctx->routes is known.
static inline void linear_context_take(LinearContext *ctx, const LinearRecipe *recipe, Arena *work, size_t N,
                                       size_t layers, size_t channels) {
    size_t codes[3], scales[3];
    ctx->recipe = recipe;
    ctx->layers = (uint32_t)(layers * LINEAR_KINDS);
    ctx->weights_version = 1;
    if (recipe->scaling == SCALING_NONE) return;
    linear_slot_bytes(recipe, &ctx->routes, N, channels, codes, scales);
    for (int slot = 0; slot < 3; slot++) {
        ctx->codes[slot] = arena_take(work, codes[slot], 1);
        ctx->scales[slot] = arena_take(work, scales[slot], 1);
    }
    ctx->amax_scratch = (uint32_t *)arena_take(work, linear_amax_scratch_elems(recipe, N, channels), sizeof(uint32_t));
    ctx->words = (uint32_t *)arena_take(work, linear_word_elems(recipe, layers), sizeof(uint32_t));
    if (recipe->scaling != SCALING_DELAYED) return;
    ctx->delayed = (float *)arena_take(work, linear_delayed_elems(recipe, layers), sizeof(float));
    ctx->missing = (int *)arena_take(work, 1, sizeof(int));
}

// Once there is memory. host_missing: a pinned int. Histories start empty.
static inline void linear_context_start(LinearContext *ctx, const DeviceLinear *linears, MatmulScratch *matmul,
                                        int *host_missing, cudaStream_t stream) {
    ctx->matmul = matmul;
    ctx->stream = stream;
    ctx->host_missing = host_missing;
    *host_missing = 1;
    if (!ctx->delayed) return;
    const size_t elems = linear_delayed_elems(ctx->recipe, ctx->layers / LINEAR_KINDS);
    float *initial = (float *)checked_calloc(elems, sizeof *initial, "histories");
    for (uint32_t i = 0; i < ctx->layers; i++) {
        Linear l = linears[i].layer;
        linear_delayed_init(ctx->recipe, &l, initial);
    }
    CUDA_CHECK(cudaMemcpyAsync(ctx->delayed, initial, elems * sizeof *initial, cudaMemcpyHostToDevice, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    free(initial);
}

// ----------------------------------------------------------------------------------------------------------------
// Delayed scales

#define LINEAR_DELAYED_THREADS 128

// One thread a (layer, role): the amax of this micro-batch to slot 0 of its history, if it is finite.
static __global__ void linear_delayed_record_kernel(float *delayed, const uint32_t *words, unsigned layers,
                                                    int history) {
    const unsigned i = blockIdx.x * LINEAR_DELAYED_THREADS + threadIdx.x;
    if (i >= 3 * layers) return;
    const unsigned layer = i / 3, role = i % 3;
    const unsigned word = role == QUANT_X ? WORD_X_AMAX : role == QUANT_W ? WORD_W_AMAX : WORD_DY_AMAX;
    const float amax = float_of_bits(words[word * layers + layer]);
    float *block = delayed + (size_t)i * (history + 1);
    if (amax <= FLT_MAX && amax > block[0]) block[0] = amax;
}

struct LinearDelayedTops {
    float top[3];  // the largest value of each role's format, with the margin
};

// delayed_step() of fp8_scaling.h. missing += scales that are still 0.
static __global__ void linear_delayed_step_kernel(float *delayed, unsigned layers, int history, LinearDelayedTops tops,
                                                  int most_recent, int *missing) {
    const unsigned i = blockIdx.x * LINEAR_DELAYED_THREADS + threadIdx.x;
    if (i >= 3 * layers) return;
    float *h = delayed + (size_t)i * (history + 1), amax = h[0];
    if (amax != 0.0f) {
        for (int j = 1; j < history && !most_recent; j++) amax = fmaxf(amax, h[j]);
        h[history] = quant_finite(tops.top[i % 3] / amax);
        const float newest = h[0];
        for (int j = 1; j + 1 < history; j++) h[j] = h[j + 1];
        if (history > 1) h[history - 1] = newest;
        h[0] = 0.0f;
    }
    if (h[history] == 0.0f) atomicAdd(missing, 1);
}

// ----------------------------------------------------------------------------------------------------------------
// Casts

static inline uint32_t *linear_word(const LinearContext *ctx, LinearWord word, const Linear *l) {
    return ctx->words + (size_t)word * ctx->layers + l->index;
}

static inline QuantState linear_state(const LinearContext *ctx, const Linear *l, QuantRole role) {
    static const LinearWord words[3][4] = {{WORD_X_AMAX, WORD_X_TRANSFORMED, WORD_X_NONFINITE, WORD_X_DECODE},
                                           {WORD_W_AMAX, WORD_W_TRANSFORMED, WORD_W_NONFINITE, WORD_W_DECODE},
                                           {WORD_DY_AMAX, WORD_DY_TRANSFORMED, WORD_DY_NONFINITE, WORD_DY_DECODE}};
    QuantState state = {linear_word(ctx, words[role][0], l), linear_word(ctx, words[role][1], l),
                        linear_word(ctx, words[role][2], l), (float *)linear_word(ctx, words[role][3], l), NULL};
    if (ctx->recipe->scaling == SCALING_DELAYED)
        state.scale = linear_delayed_block(ctx->delayed, ctx->recipe, l, role) + ctx->recipe->history;
    return state;
}

static inline QuantSpec linear_spec_now(const LinearContext *ctx, const Linear *l, QuantRole role, QuantGemm gemm) {
    const uint32_t stream = (ctx->micro_step * ctx->layers + l->index) & 0x7fffffffu;
    return linear_spec(ctx->recipe, role, gemm, stream, ctx->step);
}

// The operand that a cast of x or dY makes, in its slot.
static inline DeviceOperand linear_slot_operand(const LinearContext *ctx, const Linear *l, QuantRole role,
                                                QuantGemm gemm, size_t N) {
    const QuantSpec spec = linear_spec_now(ctx, l, role, gemm);
    const int slot = gemm != GEMM_WGRAD ? 0 : role == QUANT_DY ? 1 : 2;
    DeviceOperand x = linear_operand(&ctx->routes, l, &spec, role, gemm, N);
    x.codes = ctx->codes[slot];
    x.scales = ctx->scales[slot];
    return x;
}

// Casts a tensor for one or two products at once, where it can. sums: of its columns, .out NULL: none. amax_known: the
// role's amax word holds it.
template <typename Source>
static inline void linear_cast(const LinearContext *ctx, const Linear *l, QuantRole role, const QuantCast *casts,
                               int count, const Source &source, QuantSums sums, size_t rows, size_t cols,
                               int amax_known) {
    if constexpr (BUILD_SCALING != SCALING_NONE) {
        constexpr ScalingRule scaling = BUILD_SCALING == SCALING_DELAYED ? SCALING_TENSOR : BUILD_SCALING;
        const QuantState state = linear_state(ctx, l, role);
        // row_gwhp has w for dgrad by its tensor
        constexpr ScalingRule other = BUILD_SCALING == SCALING_ROW ? SCALING_TENSOR : scaling;
        if (count == 2 &&
            (casts[0].spec.scaling != casts[1].spec.scaling || casts[0].operand->format != casts[1].operand->format)) {
            linear_cast(ctx, l, role, &casts[0], 1, source, sums, rows, cols, amax_known);
            sums.out = NULL;
            linear_cast(ctx, l, role, &casts[1], 1, source, sums, rows, cols, amax_known);
        } else if (other != scaling && casts[0].spec.scaling == other) {
            quantize_device<other>(casts, count, &state, source, &sums, rows, cols, amax_known, NULL, ctx->stream);
        } else {
            amax_known = amax_known || (BUILD_SCALING == SCALING_DELAYED && *ctx->host_missing == 0);
            quantize_device<scaling>(casts, count, &state, source, &sums, rows, cols, amax_known, ctx->amax_scratch,
                                     ctx->stream);
        }
    }
}

// The same of a tensor in memory, without sums.
static inline void linear_cast_stored(const LinearContext *ctx, const Linear *l, QuantRole role, const QuantCast *casts,
                                      int count, const act_t *in, size_t rows, size_t cols, int amax_known) {
    const StoredColumns<act_t> source = {in, cols};
    const QuantSums none = {NULL, NULL, 0};
    linear_cast(ctx, l, role, casts, count, source, none, rows, cols, amax_known);
}

static inline void linear_clear_words(const LinearContext *ctx, LinearWord first, LinearWord end) {
    device_clear(ctx->words + (size_t)first * ctx->layers, (size_t)(end - first) * ctx->layers * sizeof *ctx->words,
                 ctx->stream);
}

// Before each forward pass: room for its maxima, and for those of the weights where they, or their scales, have changed.
static inline void linear_begin_pass(LinearContext *ctx) {
    if (ctx->recipe->scaling == SCALING_NONE) return;
    linear_clear_words(ctx, WORD_X_AMAX, WORD_W_AMAX);
    ctx->transposing = ctx->gathered;
    ctx->gathered = 0;
    ctx->casting = ctx->cast_version != ctx->weights_version;
    ctx->cast_version = ctx->weights_version;
    if (ctx->casting) linear_clear_words(ctx, WORD_W_AMAX, WORD_X_NONFINITE);
}

// In a forward pass, before the linear layers of layer `layer`: their weights are cast again where they have changed.
static inline void linear_begin_layer(LinearContext *ctx, DeviceLinear *linears, size_t layer) {
    if (ctx->recipe->scaling == SCALING_NONE || !(ctx->casting || ctx->transposing)) return;
    for (size_t i = layer * LINEAR_KINDS; i < (layer + 1) * LINEAR_KINDS; i++) {
        const Linear *l = &linears[i].layer;
        if (l->high) continue;
        if (ctx->transposing) {
            if (!quant_shared(&linears[i].w_fprop, &linears[i].w_dgrad))
                code_transpose(linears[i].w_dgrad.codes, linears[i].w_fprop.codes, l->OC, l->C, ctx->stream);
            continue;
        }
        QuantCast casts[2] = {{linear_spec_now(ctx, l, QUANT_W, GEMM_FPROP), &linears[i].w_fprop},
                              {linear_spec_now(ctx, l, QUANT_W, GEMM_DGRAD), &linears[i].w_dgrad}};
        linear_cast_stored(ctx, l, QUANT_W, casts, 2, linears[i].weight, l->OC, l->C, 0);
    }
}

// Before each step.
static inline void linear_begin_step(LinearContext *ctx) {
    ctx->micro_step = 0;
    if (ctx->recipe->scaling != SCALING_NONE) linear_clear_words(ctx, WORD_X_NONFINITE, WORD_X_DECODE);
}

// After each backward pass.
static inline void linear_end_pass(LinearContext *ctx) {
    ctx->micro_step++;
    if (ctx->recipe->scaling != SCALING_DELAYED) return;
    DeviceOp op("delayed scales", (double)ctx->layers * 3 * 3 * sizeof(float), 0, ctx->stream);
    launch(linear_delayed_record_kernel, grid_1d(ceil_div(3 * ctx->layers, LINEAR_DELAYED_THREADS)),
           LINEAR_DELAYED_THREADS, 0, ctx->stream, ctx->delayed, ctx->words, ctx->layers, ctx->recipe->history);
}

// Ends an optimizer step, a skipped one too: delayed scales move, and with them the casts of the weights.
static inline void linear_end_step(LinearContext *ctx) {
    const LinearRecipe *recipe = ctx->recipe;
    if (recipe->scaling != SCALING_DELAYED) return;
    LinearDelayedTops tops;
    for (int role = 0; role < 3; role++)
        tops.top[role] =
            ldexpf(format_max(linear_spec(recipe, (QuantRole)role, GEMM_DGRAD, 0, 0).format), -recipe->delayed.margin);
    device_clear(ctx->missing, sizeof *ctx->missing, ctx->stream);
    launch(linear_delayed_step_kernel, grid_1d(ceil_div(3 * ctx->layers, LINEAR_DELAYED_THREADS)),
           LINEAR_DELAYED_THREADS, 0, ctx->stream, ctx->delayed, ctx->layers, recipe->history, tops,
           recipe->delayed.most_recent, ctx->missing);
    CUDA_CHECK(
        cudaMemcpyAsync(ctx->host_missing, ctx->missing, sizeof *ctx->missing, cudaMemcpyDeviceToHost, ctx->stream));
    ctx->weights_version++;
}

// ----------------------------------------------------------------------------------------------------------------
// Weights that come as codes (code_buckets.cuh)

// 1: ranks may exchange new weights as codes: every linear layer is cast, by one scale, natively, without padding.
static inline int linear_takes_codes(const LinearContext *ctx, const DeviceLinear *linears) {
    int takes = BUILD_SCALING == SCALING_TENSOR || (BUILD_SCALING == SCALING_DELAYED && ctx->scales_known);
    if (ctx->routes.why) takes = 0;
    for (uint32_t i = 0; i < ctx->layers && takes; i++)
        takes = !linears[i].layer.high && linears[i].layer.C % 32 == 0 && linears[i].layer.OC % 32 == 0;
    return takes;
}

// Before the ranks look at their shards of the weights, with the scales of the step to come.
static inline void linear_begin_codes(LinearContext *ctx) {
    linear_clear_words(ctx, WORD_W_AMAX, WORD_X_NONFINITE);
    ctx->cast_version = ctx->weights_version;
    ctx->gathered = 1;
}

// decode (layers) = 1 / the weights' scales
static __global__ void linear_decode_kernel(float *decode, const float *delayed, const uint32_t *amax, unsigned layers,
                                            int history, int pow2) {
    const unsigned i = blockIdx.x * LINEAR_DELAYED_THREADS + threadIdx.x;
    if (i >= layers) return;
    if (delayed) delayed += (size_t)(i * 3 + QUANT_W + 1) * (history + 1) - 1;
    decode[i] = 1.0f / code_scale(delayed, amax + i, pow2);
}

// Before linear_cast_run(); current scaling: once WORD_W_AMAX has the maxima of all ranks' linear_amax_run().
static inline void linear_codes_scales(const LinearContext *ctx, cudaStream_t stream) {
    const uint32_t *amax = ctx->words + (size_t)WORD_W_AMAX * ctx->layers;
    float *decode = (float *)ctx->words + (size_t)WORD_W_DECODE * ctx->layers;
    launch(linear_decode_kernel, grid_1d(ceil_div(ctx->layers, LINEAR_DELAYED_THREADS)), LINEAR_DELAYED_THREADS, 0, stream,
           decode, ctx->delayed, amax, ctx->layers, ctx->recipe->history, ctx->recipe->quant.tensor_pow2);
}

// Current scaling: looks at n elements of a layer's weight, of this rank's shard.
static inline void linear_amax_run(const LinearContext *ctx, const DeviceLinear *linear, const weight_t *weights, size_t n,
                                   cudaStream_t stream) {
    if constexpr (BUILD_SCALING == SCALING_TENSOR)
        launch(code_amax_kernel, grid_1d(ceil_div(n, BUCKET_THREADS * PACK)), BUCKET_THREADS, 0, stream,
               linear_word(ctx, WORD_W_AMAX, &linear->layer), weights, n);
}

// Casts them to codes.
static inline void linear_cast_run(const LinearContext *ctx, const DeviceLinear *linear, uint8_t *codes,
                                   const weight_t *weights, size_t n, cudaStream_t stream) {
    if constexpr (BUILD_SCALING == SCALING_TENSOR || BUILD_SCALING == SCALING_DELAYED) {
        DeviceOp op("quantize: cast of a shard", 3.0 * (double)n, 0, stream);
        launch(code_run_kernel, grid_1d(ceil_div(n, BUCKET_THREADS * PACK)), BUCKET_THREADS, 0, stream, codes, weights, n,
               linear_state(ctx, &linear->layer, QUANT_W), ctx->recipe->quant.tensor_pow2);
    }
}

// ----------------------------------------------------------------------------------------------------------------
// Numbers that are not finite

static __global__ void linear_nonfinite_kernel(const uint32_t *counts, unsigned n, int *nonfinite) {
    uint32_t any = 0;
    for (unsigned i = threadIdx.x; i < n; i += WARP_SIZE) any |= counts[i];
    if (any) *nonfinite = 1;
}

// *nonfinite (on the device) = 1 if a cast of this step, or of the weights it used, met one.
static inline void linear_check_finite(const LinearContext *ctx, int *nonfinite) {
    if (ctx->recipe->scaling == SCALING_NONE) return;
    launch(linear_nonfinite_kernel, grid_1d(1), WARP_SIZE, 0, ctx->stream,
           ctx->words + (size_t)WORD_W_NONFINITE * ctx->layers, 3 * ctx->layers, nonfinite);
}

// Names the first of them, as a step meets them: "h.1.fc, its weight". 0: there was none.
static inline int linear_first_nonfinite(const LinearContext *ctx, const DeviceLinear *linears, char *text,
                                         size_t bytes) {
    const char *where = NULL;
    const size_t n = ctx->layers;
    uint32_t i = 0;
    if (ctx->recipe->scaling == SCALING_NONE) return 0;
    uint32_t *counts = (uint32_t *)checked_calloc(3 * n, sizeof *counts, "counts");
    CUDA_CHECK(cudaMemcpyAsync(counts, ctx->words + WORD_W_NONFINITE * n, 3 * n * sizeof *counts,
                               cudaMemcpyDeviceToHost, ctx->stream));
    CUDA_CHECK(cudaStreamSynchronize(ctx->stream));
    for (uint32_t layer = 0; layer < n && !where; layer++) {
        i = layer;
        where = counts[layer] ? "its weight" : counts[n + layer] ? "its input" : NULL;
    }
    for (uint32_t layer = ctx->layers; layer-- > 0 && !where;) {
        i = layer;
        where = counts[2 * n + layer] ? "its output's gradient" : NULL;
    }
    free(counts);
    if (where) snprintf(text, bytes, "%.20s, %s", linears[i].layer.name, where);
    return where != NULL;
}

// ----------------------------------------------------------------------------------------------------------------
// What a reported step shows: the CPU twin casts a copy, and counts.

static inline void linear_observe(const LinearContext *ctx, const Linear *l, QuantRole role, QuantGemm gemm,
                                  const act_t *in, size_t rows, size_t cols) {
    QuantSpec spec = linear_spec_now(ctx, l, role, gemm);
    if (!ctx->observe || spec.scaling == SCALING_NONE) return;
    const size_t padded = spec.hadamard ? round_up(rows, HADAMARD_SIZE) : rows, n = padded * cols;
    const int history = ctx->recipe->history;
    Linear shown = *l;
    QuantResult result;
    act_t *stored = (act_t *)checked_calloc(rows * cols, sizeof *stored, "a copy of a tensor");
    float *floats = (float *)checked_calloc(n, sizeof *floats, "a copy of a tensor");
    float *values = (float *)checked_calloc(n, sizeof *values, "a cast tensor");
    float *block = (float *)checked_calloc((size_t)history + 1, sizeof *block, "a history");
    CUDA_CHECK(cudaMemcpyAsync(stored, in, rows * cols * sizeof *stored, cudaMemcpyDeviceToHost, ctx->stream));
    if (spec.scaling == SCALING_DELAYED)
        CUDA_CHECK(cudaMemcpyAsync(block, linear_delayed_block(ctx->delayed, ctx->recipe, l, role),
                                   ((size_t)history + 1) * sizeof *block, cudaMemcpyDeviceToHost, ctx->stream));
    CUDA_CHECK(cudaStreamSynchronize(ctx->stream));
    for (size_t i = 0; i < rows * cols; i++) floats[i] = (float)stored[i];
    spec.delayed_scale = block[history];
    shown.delayed[role].history = block;
    shown.delayed[role].length = history;
    cpu::quantize_operand(values, &result, floats, padded, cols, &spec);
    ctx->observe(ctx->observe_context, &shown, role, gemm, &spec, &result, floats, values, n);
    free(stored);
    free(floats);
    free(values);
    free(block);
}

static inline void linear_observe_weight(const LinearContext *ctx, const DeviceLinear *linear) {
    const Linear *l = &linear->layer;
    if (!ctx->observe) return;
    linear_observe(ctx, l, QUANT_W, GEMM_FPROP, linear->weight, l->OC, l->C);
    if (!linear_weight_casts_agree(ctx->recipe))
        linear_observe(ctx, l, QUANT_W, GEMM_DGRAD, linear->weight, l->OC, l->C);
}

// ----------------------------------------------------------------------------------------------------------------
// Products

static __global__ void __launch_bounds__(256)
    linear_bias_kernel(act_t *out, const weight_t *bias, size_t vectors, size_t across) {
    const size_t i = (size_t)blockIdx.x * 256 + threadIdx.x;
    if (i >= vectors) return;
    float x[PACK], b[PACK];
    load_floats(x, out + i * PACK);
    load_floats(b, bias + i % across * PACK);
#pragma unroll
    for (int j = 0; j < PACK; j++) x[j] += b[j];
    store_floats(out + i * PACK, x);
}

// out (N, OC) += bias (OC), rounded again. NULL: none is left to add.
static inline void linear_add_bias(act_t *out, const weight_t *bias, size_t N, size_t OC, cudaStream_t stream) {
    if (!bias) return;
    DeviceOp op("linear_add_bias", (double)N * OC * 2 * sizeof(act_t), 0, stream);
    launch(linear_bias_kernel, grid_1d(ceil_div(N * OC / PACK, 256)), 256, 0, stream, out, bias, N * OC / PACK,
           OC / PACK);
}

static inline int linear_forward_high(const LinearContext *ctx, const Linear *l) {
    const uint64_t high_from = ctx->recipe->forward_high_from;
    return l->high || (high_from && ctx->step >= high_from);
}

// The bias that linear_forward() leaves to whatever reads its output: to be added and rounded again. NULL: it is in there.
static inline const weight_t *linear_bias_left(const LinearContext *ctx, const DeviceLinear *linear) {
    return linear_forward_high(ctx, &linear->layer) || ctx->apart ? NULL : linear->bias;
}

// Can this build's casts make a tensor? Those of nv look at it down columns; row_gwhp's wgrad reads it uncast.
static inline int linear_casts_make(const LinearContext *ctx) {
    return BUILD_SCALING != SCALING_NONE && BUILD_SCALING != SCALING_NV && ctx->recipe->scaling != SCALING_ROW_GWHP &&
           !ctx->apart;
}

// 1: the casts of the layer's input make it, of LinearInput.source; nothing is to store it.
static inline int linear_makes_input(const LinearContext *ctx, const DeviceLinear *linear) {
    return linear_casts_make(ctx) && !linear_forward_high(ctx, &linear->layer);
}

// 1: the cast of its output's gradient makes that, of LinearGradient.source, and the bias's gradient along.
static inline int linear_makes_gradient(const LinearContext *ctx, const DeviceLinear *linear) {
    return linear_casts_make(ctx) && !linear->layer.high;
}

// Current scaling: the word to which the kernel that makes x, or dY, is to record its amax, so that no pass looks for it;
// NULL: nobody asks.
static inline uint32_t *linear_amax_word(const LinearContext *ctx, const DeviceLinear *linear, QuantRole role) {
    const int high = role == QUANT_X ? linear_forward_high(ctx, &linear->layer) : linear->layer.high != HIGH_NOT;
    if (BUILD_SCALING != SCALING_TENSOR || high) return NULL;
    return linear_word(ctx, role == QUANT_X ? WORD_X_AMAX : WORD_DY_AMAX, &linear->layer);
}

// A layer's input (N, C).
template <typename Source>
struct LinearInput {
    act_t *stored;  // the tensor, where linear_makes_input() is 0
    Source source;        // what it is made of, where that is 1
    int amax_known;       // linear_amax_word() has its amax
    void *room;           // where its cast for wgrad may wait for the backward pass; NULL: it is made again
    size_t room_bytes;
};

// The gradient (N, OC) of its output.
template <typename Source>
struct LinearGradient {
    const grad_t *stored;  // the tensor, where linear_makes_gradient() is 0
    Source source;         // what it is made of, where that is 1
    int amax_known;
    QuantSums bias;        // .out: the bias's gradient, to be made here; NULL: it is made elsewhere
};

// x as wgrad reads it, in the room where it waits; .codes is NULL where it does not. The room is that of the bf16 tensor,
// which the codes fit in unless there are a handful of tokens.
template <typename Source>
static inline DeviceOperand linear_kept_operand(const LinearContext *ctx, const DeviceLinear *linear,
                                                const LinearInput<Source> *inp, size_t N) {
    const Linear *l = &linear->layer;
    const QuantSpec spec = linear_spec_now(ctx, l, QUANT_X, GEMM_WGRAD);
    DeviceOperand x = linear_operand(&ctx->routes, l, &spec, QUANT_X, GEMM_WGRAD, N);
    const size_t scales_at = round_up(quant_code_bytes(&x), 16);
    if (!ctx->training || !linear_makes_input(ctx, linear) || scales_at + quant_scale_bytes(&x) > inp->room_bytes)
        return x;
    x.codes = inp->room;
    x.scales = (char *)inp->room + scales_at;
    if (x.layout == SCALES_SCALAR) x.alpha_part = linear_state(ctx, l, QUANT_X).decode;
    return x;
}

// Casts x as it is, or made; likewise dY, with the sums of its columns.
template <typename Source>
static inline void linear_cast_input(const LinearContext *ctx, const DeviceLinear *linear, const QuantCast *casts,
                                     int count, const LinearInput<Source> &inp, size_t N, int amax_known) {
    const Linear *l = &linear->layer;
    const QuantSums none = {NULL, NULL, 0};
    if (!linear_makes_input(ctx, linear))
        linear_cast_stored(ctx, l, QUANT_X, casts, count, inp.stored, N, l->C, amax_known);
    else if constexpr (BUILD_SCALING != SCALING_NV)
        linear_cast(ctx, l, QUANT_X, casts, count, inp.source, none, N, l->C, amax_known);
}

template <typename Source>
static inline void linear_cast_gradient(const LinearContext *ctx, const DeviceLinear *linear, const QuantCast *casts,
                                        int count, const LinearGradient<Source> &dout, size_t N) {
    const Linear *l = &linear->layer;
    if (!linear_makes_gradient(ctx, linear))
        linear_cast_stored(ctx, l, QUANT_DY, casts, count, dout.stored, N, l->OC, dout.amax_known);
    else if constexpr (BUILD_SCALING != SCALING_NV)
        linear_cast(ctx, l, QUANT_DY, casts, count, dout.source, dout.bias, N, l->OC, dout.amax_known);
}

// linear_forward: out (N, OC) act = inp . weight^T, + bias but for linear_bias_left(), which it returns
template <typename Source>
static inline const weight_t *linear_forward(const LinearContext *ctx, const DeviceLinear *linear, act_t *out,
                                             const LinearInput<Source> &inp, size_t N) {
    const Linear *l = &linear->layer;
    if (linear_forward_high(ctx, l)) {
        matmul_forward(ctx->matmul, out, inp.stored, linear->weight, linear->bias, N, l->C, l->OC, ctx->stream);
        return NULL;
    }
    if constexpr (BUILD_SCALING != SCALING_NONE) {
        DeviceOperand x = linear_slot_operand(ctx, l, QUANT_X, GEMM_FPROP, N);
        DeviceOperand kept = linear_kept_operand(ctx, linear, &inp, N);
        const QuantCast casts[2] = {{linear_spec_now(ctx, l, QUANT_X, GEMM_FPROP), &x},
                                    {linear_spec_now(ctx, l, QUANT_X, GEMM_WGRAD), &kept}};
        linear_observe_weight(ctx, linear);
        linear_observe(ctx, l, QUANT_X, GEMM_FPROP, inp.stored, N, l->C);
        linear_cast_input(ctx, linear, casts, kept.codes ? 2 : 1, inp, N, inp.amax_known);
        matmul_forward_cast(ctx->matmul, (__nv_bfloat16 *)out, &x, &linear->w_fprop, ctx->recipe->fast_forward,
                            ctx->stream);
        if (ctx->apart) linear_add_bias(out, linear->bias, N, l->OC, ctx->stream);
    }
    return linear_bias_left(ctx, linear);
}

// --gelu-fusion: fc's product and GELU in one: out (N, OC) = gelu(fch), fch (N, OC) = inp . weight^T + bias
static inline void linear_forward_gelu(const LinearContext *ctx, const DeviceLinear *fc, act_t *out, act_t *fch,
                                       const act_t *inp, size_t N) {
    matmul_forward_gelu(ctx->matmul, out, fch, inp, fc->weight, fc->bias, N, fc->layer.C, fc->layer.OC, ctx->stream);
}

// And linear_backward() of fcproj with that of GELU: dfch (N, C), of GELU's input fch. fc's bias gradient is left to
// linear_backward() of fc: cuBLASLt's would be rounded to 16 bits and could not be added to.
static inline void linear_backward_gelu(const LinearContext *ctx, const DeviceLinear *fcproj, grad_t *dfch,
                                        const act_t *fch, const grad_t *dout, const act_t *inp, size_t N,
                                        int accumulate) {
    const size_t C = fcproj->layer.C, OC = fcproj->layer.OC;
    matmul_backward_input_gelu(ctx->matmul, dfch, fch, dout, fcproj->weight, N, C, OC, ctx->stream);
    matmul_backward_weight(ctx->matmul, fcproj->dweight, dout, inp, N, C, OC, accumulate, ctx->stream);
}

// The products with dY, and x for wgrad, cast.
template <typename DY, typename X>
static inline void linear_backward_cast(const LinearContext *ctx, const DeviceLinear *linear, act_t *dinp,
                                        const LinearGradient<DY> &dout, const LinearInput<X> &inp, size_t N,
                                        int accumulate) {
    const Linear *l = &linear->layer;
    const QuantSpec dgrad = linear_spec_now(ctx, l, QUANT_DY, GEMM_DGRAD),
                    wgrad = linear_spec_now(ctx, l, QUANT_DY, GEMM_WGRAD);
    const int wgrad_high = wgrad.scaling == SCALING_NONE;
    const int same = wgrad.scaling == SCALING_TENSOR || wgrad.scaling == SCALING_DELAYED;
    DeviceOperand dy = linear_slot_operand(ctx, l, QUANT_DY, GEMM_DGRAD, N);
    DeviceOperand dy_wgrad = linear_slot_operand(ctx, l, QUANT_DY, GEMM_WGRAD, N);
    const QuantCast dy_casts[2] = {{dgrad, &dy}, {wgrad, &dy_wgrad}};
    linear_observe_weight(ctx, linear);
    linear_observe(ctx, l, QUANT_DY, GEMM_DGRAD, dout.stored, N, l->OC);
    linear_cast_gradient(ctx, linear, dy_casts, wgrad_high ? 1 : 2, dout, N);
    matmul_backward_input_cast(ctx->matmul, (__nv_bfloat16 *)dinp, &dy, &linear->w_dgrad, ctx->stream);
    if (wgrad_high) {
        matmul_backward_weight(ctx->matmul, linear->dweight, dout.stored, inp.stored, N, l->C, l->OC, accumulate,
                               ctx->stream);
        return;
    }
    if (!same) linear_observe(ctx, l, QUANT_DY, GEMM_WGRAD, dout.stored, N, l->OC);
    linear_observe(ctx, l, QUANT_X, GEMM_WGRAD, inp.stored, N, l->C);
    DeviceOperand x = linear_kept_operand(ctx, linear, &inp, N);
    if (!x.codes) {
        x = linear_slot_operand(ctx, l, QUANT_X, GEMM_WGRAD, N);
        const QuantCast cast = {linear_spec_now(ctx, l, QUANT_X, GEMM_WGRAD), &x};
        linear_cast_input(ctx, linear, &cast, 1, inp, N, !linear_forward_high(ctx, l));
    }
    matmul_backward_weight_cast(ctx->matmul, linear->dweight, &dy_wgrad, &x, accumulate, ctx->stream);
}

// linear_backward: dinp (N, C) grad =, and the layer's dweight f32 (and the bias's, if asked for) = or, with accumulate, +=
//   inp: what the forward pass had      dinp is neither that nor dout
template <typename DY, typename X>
static inline void linear_backward(const LinearContext *ctx, const DeviceLinear *linear, grad_t *dinp,
                                   const LinearGradient<DY> &dout, const LinearInput<X> &inp, size_t N,
                                   int accumulate) {
    const Linear *l = &linear->layer;
    if (dout.bias.out && !linear_makes_gradient(ctx, linear))
        matmul_backward_bias(dout.bias.out, dout.stored, N, l->OC, dout.bias.accumulate, dout.bias.scratch, ctx->stream);
    if (!l->high) {
        if constexpr (BUILD_SCALING != SCALING_NONE) linear_backward_cast(ctx, linear, dinp, dout, inp, N, accumulate);
        return;
    }
    matmul_backward_input(ctx->matmul, dinp, dout.stored, linear->weight, N, l->C, l->OC, 0, ctx->stream);
    matmul_backward_weight(ctx->matmul, linear->dweight, dout.stored, inp.stored, N, l->C, l->OC, accumulate,
                           ctx->stream);
}

#endif
