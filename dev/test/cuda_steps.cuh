// cuda_steps.cuh: whole steps of the GPU trainer against the CPU trainer in the same precision, in one program: every
// activation, every gradient, 20 optimizer steps, an overflow under loss scaling, checkpoints in both directions, and
// generated text. Included by test_gpt.cu, which calls test_steps_cuda().
//
// Both round at the same places. They differ by the order of fp32 sums and by what that moves across a rounding
// boundary, so each stays within what its precision may be off the exact numbers: the limits below are those of a
// tiny GPT against fp64 in its own precision. An error is ||got - want|| / ||want|| of a tensor. The fp8 and fp4 recipes
// part further where a rounding of bf16 moves a cast; an emulator, which sums almost as the CPU, is held to bf16's.
#ifndef DEV_CUDA_STEPS_CUH
#define DEV_CUDA_STEPS_CUH

#include <string>
#include <utility>

#define TESTING
#define LOGITS_CHUNK_ROWS ((size_t)96)  // small enough that a test's batch has two chunks
#include "../../train_gpt.cu"

#include "../../llmc/attention.h"
#include "../../llmc/cross_entropy.h"
#include "../../llmc/device_plan.h"
#include "../../llmc/embedding.h"
#include "../../llmc/gelu.h"
#include "../../llmc/global_norm.h"
#include "../../llmc/layernorm.h"
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"  // what only the loop calls
#ifdef __CUDACC__
#pragma nv_diagnostic push
#pragma nv_diag_suppress 177
#endif
#undef MODEL_ON_GPU
namespace cpu {
#include "../../train_gpt.c"
}
#ifdef __CUDACC__
#pragma nv_diagnostic pop
#endif
#pragma GCC diagnostic pop

#include "cuda_kernels.cuh"
#include "dies.h"
#include "gpt_fixture.h"

// activation, activation gradient, weight gradient: against fp64. loss: of a whole batch, GPU against CPU. steps: how
// far weights may be apart after 20 steps (50 where they are cast), as a share of the way they went; losses along it.
typedef struct {
    double act, act_grad, weight_grad, loss, steps, losses;
} StepLimits;

static StepLimits step_limits(void) {
    static const StepLimits fp32 = {2e-6, 2e-6, 3e-6, 1e-5, 1e-4, 1e-5};
    static const StepLimits tf32 = {1e-3, 1.5e-3, 4e-3, 1e-4, 1e-2, 1e-4};
    static const StepLimits fp16 = {1.5e-3, 3e-3, 4e-3, 3e-4, 2e-2, 3e-4};
    static const StepLimits bf16 = {1.2e-2, 1.5e-2, 4e-2, 3e-4, 1e-1, 2e-3};
    static const StepLimits tensor = {0.12, 0.18, 0.20, 1e-3, 0.3, 1e-2};
    static const StepLimits blocks = {0.12, 0.12, 0.16, 1e-3, 0.3, 1e-2};
    static const StepLimits nv = {0.45, 0.50, 0.80, 3e-3, 0.8, 3e-2};
    if (BUILD_SCALING != SCALING_NONE) {
        StepLimits limits = BUILD_SCALING == SCALING_NV                                         ? nv
                            : BUILD_SCALING == SCALING_TENSOR || BUILD_SCALING == SCALING_DELAYED ? tensor
                                                                                                : blocks;
#ifdef EMU
        limits.act = bf16.act;
        limits.act_grad = bf16.act_grad;
        limits.weight_grad = bf16.weight_grad;
#endif
        return limits;
    }
    return BUILD_MODE == MODE_fp32 ? fp32 : BUILD_MODE == MODE_tf32 ? tf32 : BUILD_MODE == MODE_fp16 ? fp16 : bf16;
}

// One model on each side, with the same weights, and a batch.
#define STEP_L 2
#define STEP_NH 4
#define STEP_C 64
#define STEP_V 67
#define STEP_B 2
#define STEP_T (BUILD_SCALING == SCALING_NONE ? 65 : 64)  // cards' fp8 products want multiples of 16 tokens

struct StepPair {
    GPTConfig config;
    Model gpu;
    cpu::Model cpu;
    std::vector<int32_t> inputs, targets;
    static constexpr size_t N = (size_t)STEP_B * STEP_T;

    // set: of another recipe than the build's default; NULL: none
    StepPair(int recompute, uint64_t seed, void (*set)(LinearRecipe *) = NULL) : inputs(N), targets(N) {
        BatchShape shape = {STEP_B, STEP_T, recompute};
        memset(&config, 0, sizeof config);
        config.L = STEP_L;
        config.NH = STEP_NH;
        config.C = STEP_C;
        config.max_T = STEP_T;
        config_set_vocab(&config, STEP_V);
        model_plan(&gpu, &config, &shape, STEP_T);
        cpu::model_plan(&cpu, &config, &shape, STEP_T);
        if (set) {
            LinearRecipe recipe = gpu.recipe;
            set(&recipe);
            model_set_recipe(&gpu, &recipe);
            cpu::model_set_recipe(&cpu, &recipe);
        }
        model_create(&gpu);
        CUDA_CHECK(cudaMemset(gpu.acts_arena.base, 0xff, gpu.acts_arena.used_bytes));
        CUDA_CHECK(cudaMemset(gpu.grads_arena.base, 0xff, gpu.grads_arena.used_bytes));
        clear_padding();
        CUDA_CHECK(cudaDeviceSynchronize());
        cpu::model_create(&cpu);
        set_weights(seed);
        batch(0);
    }
    ~StepPair() {
        model_destroy(&gpu);
        cpu::model_destroy(&cpu);
    }
    StepPair(const StepPair &) = delete;

    // Gradients' NaN is not to be in the padding between tensors, which the norm counts on being zero.
    void clear_padding() {
        for (size_t i = 0; i < GPT_PARAMETER_COUNT; i++) {
            size_t begin = gpu.table[i].offset_elems + parameter_elems(&gpu.table[i]);
            size_t end = i + 1 < GPT_PARAMETER_COUNT ? gpu.table[i + 1].offset_elems : gpu.parameter_elems;
            CUDA_CHECK(cudaMemset((float *)gpu.grads_arena.base + begin, 0, (end - begin) * sizeof(float)));
        }
    }
    // Uneven enough that attention is not flat and no bias is without effect.
    void set_weights(uint64_t seed) {
        Floats values(gpu.parameter_elems);
        for (size_t i = 0; i < GPT_PARAMETER_COUNT; i++)
            for (size_t e = 0; e < parameter_elems(&gpu.table[i]); e++) {
                double w = fixture_weight(&config, &gpu.table[i], i, seed, e);
                values[gpu.table[i].offset_elems + e] = (float)(gpu.table[i].decay ? w / 2 : w);
            }
        memcpy(cpu.masters, values.data(), values.size() * sizeof(float));
        masters_set(&gpu, 0, values.data(), values.size());
        model_weights_changed(&gpu);
        cpu::model_weights_changed(&cpu);
    }
    void batch(uint64_t step) {
        for (size_t i = 0; i < N; i++) {
            inputs[i] = (int32_t)(fixture_hash(1000 + step, 0, i) % STEP_V);
            if (i % 3 == 0) inputs[i] = 5;  // a frequent token
            targets[i] = (int32_t)(fixture_hash(1000 + step, 1, i) % STEP_V);
        }
    }
};

// Gradients of the mean loss times `scale`, `micro` sequences at a time; returns the mean loss. F: the six functions of
// a trainer, so that both are driven alike.
template <typename M, typename Zero, typename Forward, typename Losses, typename Backward>
static double gradients_of(M *model, const StepPair &pair, size_t micro, double scale, Zero zero, Forward forward,
                           Losses get_losses, Backward backward) {
    double loss = 0;
    Floats losses(micro * STEP_T);
    zero(model);
    for (size_t b = 0; b < STEP_B; b += micro) {
        forward(model, &pair.inputs[b * STEP_T], &pair.targets[b * STEP_T], micro, STEP_T, (float)(scale / (double)pair.N));
        backward(model);
        get_losses(model, losses.data());
        for (float x : losses) loss += (double)x;
    }
    return loss / (double)pair.N;
}
static double gpu_gradients(StepPair &pair, size_t micro, double scale) {
    return gradients_of(&pair.gpu, pair, micro, scale, model_zero_grad, model_forward, model_losses, model_backward);
}
static double cpu_gradients(StepPair &pair, size_t micro, double scale) {
    return gradients_of(&pair.cpu, pair, micro, scale, cpu::model_zero_grad, cpu::model_forward, cpu::model_losses,
                        cpu::model_backward);
}

// ----------------------------------------------------------------------------------------------------------------
// Comparing whole tensors

static double relative_error(const float *got, const float *want, size_t n) {
    double error = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        double d = (double)got[i] - (double)want[i];
        error += d * d;
        size += (double)want[i] * (double)want[i];
    }
    return error == 0 ? 0 : sqrt(error / size);
}

// Into the table of worst errors; a name that is not a constant must be given as one of these.
static const char *tensor_name(const char *kind, const char *name) {
    static char names[80][40];
    char text[40];
    snprintf(text, sizeof text, "%s %s", kind, name);
    size_t i = 0;
    for (; names[i][0]; i++)
        if (strcmp(names[i], text) == 0) return names[i];
    memcpy(names[i], text, sizeof text);
    return names[i];
}

static void record(const char *name, double error, double limit) {
    TensorError *entry = tensor_error(name);
    entry->error = fmax(entry->error, error);
    entry->share = fmax(entry->share, error / limit);
    entry->cases++;
    CHECK(error <= limit, "%s: %.3g off the CPU's, the limit is %.3g", name, error, limit);  // NaN fails
}

template <typename E>
static void compare_device(const char *name, const Model *model, const E *got, const float *want, size_t n,
                           double limit) {
    float *floats = floats_from_device(model, got, n);
    record(name, relative_error(floats, want, n), limit);
    free(floats);
}

static Floats device_floats(const Model *model, const void *data, size_t n) {
    float *floats = floats_from_device(model, (const float *)data, n);
    Floats copy(floats, floats + n);
    free(floats);
    return copy;
}

// ----------------------------------------------------------------------------------------------------------------

static void compare_activations(const StepPair &pair, double limit) {
    const DeviceActivations *got = &pair.gpu.acts;
    const Activations *want = &pair.cpu.acts;
    const size_t NC = pair.N * STEP_C;
#define COMPARE(name, n) compare_device(tensor_name("act", #name), &pair.gpu, got->name, want->name, n, limit)
    COMPARE(encoded, NC);
    COMPARE(ln1, STEP_L * NC);
    COMPARE(qkv, STEP_L * 3 * NC);
    COMPARE(att, STEP_L * NC);
    COMPARE(residual2, STEP_L * NC);
    COMPARE(ln2, STEP_L * NC);
    COMPARE(fch, STEP_L * 4 * NC);
    COMPARE(fch_gelu, STEP_L * 4 * NC);
    COMPARE(residual3, STEP_L * NC);
    COMPARE(lnf, NC);
    COMPARE(losses, pair.N);
    COMPARE(logits, (pair.N - LOGITS_CHUNK_ROWS) * pair.config.Vp);  // the last chunk's
#undef COMPARE
}

// A pass without gradients leaves all activations, the logits too.
TEST(steps_forward) {
    StepPair pair(0, 1);
    pair.gpu.linear.apart = 1;
    model_forward(&pair.gpu, pair.inputs.data(), pair.targets.data(), STEP_B, STEP_T, 0.0f);
    cpu::model_forward(&pair.cpu, pair.inputs.data(), pair.targets.data(), STEP_B, STEP_T, 0.0f);
    compare_activations(pair, step_limits().act);
}

typedef std::vector<std::pair<std::string, Floats>> Observed;
static void keep_observed(void *context, const char *name, size_t, const float *data, size_t n) {
    ((Observed *)context)->push_back({name, Floats(data, data + n)});
}

static void compare_gradients(const StepPair &pair, double limit) {
    for (size_t i = 0; i < GPT_PARAMETER_COUNT; i++) {
        size_t offset = pair.gpu.table[i].offset_elems;
        compare_device(tensor_name("grad", pair.gpu.table[i].name), &pair.gpu,
                       (const float *)pair.gpu.grads_arena.base + offset,
                       (const float *)pair.cpu.grads_arena.base + offset, parameter_elems(&pair.gpu.table[i]), limit);
    }
}

static void check_gradients(size_t micro, void (*set)(LinearRecipe *)) {
    const StepLimits limits = step_limits();
    const double scale = BUILD_LOSS_SCALING ? 1024 : 1;
    StepPair pair(0, 1, set);
    Observed got, want;
    pair.gpu.observe = pair.cpu.observe = keep_observed;
    pair.gpu.linear.apart = 1;  // the gradient of GELU's input is not stored otherwise
    pair.gpu.observe_context = &got;
    pair.cpu.observe_context = &want;
    double gpu_loss = gpu_gradients(pair, micro, scale), cpu_loss = cpu_gradients(pair, micro, scale);
    record("loss", fabs(gpu_loss - cpu_loss), limits.loss);
    CHECK(got.size() == want.size(), "%zu and %zu activation gradients", got.size(), want.size());
    for (size_t i = 0; i < got.size(); i++) {
        CHECK(got[i].first == want[i].first, "%s and %s", got[i].first.c_str(), want[i].first.c_str());
        record(tensor_name("act grad", want[i].first.c_str()),
               relative_error(got[i].second.data(), want[i].second.data(), want[i].second.size()), limits.act_grad);
    }
    compare_gradients(pair, limits.weight_grad);
    int gpu_nonfinite, cpu_nonfinite;
    double norm = model_grad_norm(&pair.gpu, &gpu_nonfinite), cpu_norm = cpu::model_grad_norm(&pair.cpu, &cpu_nonfinite);
    CHECK(!gpu_nonfinite && !cpu_nonfinite, "a gradient is not finite");
    record("gradient norm", fabs(norm / cpu_norm - 1), limits.weight_grad);
}
TEST(steps_gradients) { check_gradients(STEP_B, NULL); }
TEST(steps_gradients_of_micro_batches) { check_gradients(1, NULL); }
static void fuse_gelu_forward(LinearRecipe *recipe) { recipe->gelu_fusion = 1; }
static void fuse_gelu(LinearRecipe *recipe) { recipe->gelu_fusion = 2; }
TEST(steps_gradients_fused_gelu) {
    check_gradients(1, fuse_gelu_forward);
    check_gradients(1, fuse_gelu);
}

// The products that --gelu-fusion asks for are looked for at the start: an emulator refuses columns of aux that are not
// 16 bytes apart.
TEST(steps_fused_gelu_refused) {
#ifdef EMU
    PrecisionPolicy policy = build_policy();
    LinearRecipe recipe = linear_recipe(&policy, 1);
    recipe.gelu_fusion = 2;
    CHECK_DIES(2, "product of 64 x 12 over 3 with GELU on ", linear_routes(&recipe, 3, 2, 64));
    CHECK(strstr(died_text, "try: --gelu-fusion 0"), "no way out in: %s", died_text);
#else
    SKIP("every card may have them");
#endif
}

// The same bits: again, with activations made twice, and with each operation's result stored by itself.
TEST(steps_same_bits) {
    Floats first;
    for (int run = 0; run < 7; run++) {
        const int recompute = run < 6 ? run / 2 : 0, apart = run % 2;
        StepPair pair(recompute, 1);
        pair.gpu.linear.apart = apart;
        gpu_gradients(pair, 1, BUILD_LOSS_SCALING ? 1024 : 1);
        Floats grads = device_floats(&pair.gpu, pair.gpu.grads_arena.base, pair.gpu.parameter_elems);
        if (first.empty()) first = grads;
        CHECK(memcmp(first.data(), grads.data(), grads.size() * sizeof(float)) == 0,
              "the gradients differ from the first run's, --recompute %d, apart %d", recompute, apart);
    }
}

TEST(steps_initial_weights) {
    StepPair pair(0, 1);
    pair.set_weights(0);
    model_init_weights(&pair.gpu, 7);
    memset(pair.cpu.masters, 0, pair.cpu.parameter_elems * sizeof(float));
    cpu::model_init_weights(&pair.cpu, 7);
    for (size_t i = 2; i < GPT_PARAMETER_COUNT; i++) {  // set_weights left non-zero biases on the GPU: start anew
        if (pair.gpu.table[i].init != INIT_ZERO) continue;
        Floats zeros(parameter_elems(&pair.gpu.table[i]));
        masters_set(&pair.gpu, pair.gpu.table[i].offset_elems, zeros.data(), zeros.size());
    }
    model_weights_changed(&pair.gpu);
    Floats got = device_floats(&pair.gpu, pair.gpu.masters, pair.gpu.parameter_elems);
    CHECK(memcmp(got.data(), pair.cpu.masters, got.size() * sizeof(float)) == 0, "the initial weights differ");
    float *working = floats_from_device(&pair.gpu, (weight_t *)pair.gpu.weights_arena.base, got.size());
    CHECK(memcmp(working, pair.cpu.weights_arena.base, got.size() * sizeof(float)) == 0, "the working weights differ");
    free(working);
}

// ----------------------------------------------------------------------------------------------------------------
// Steps

// One step of both under the loss scale; returns 1 if it was skipped. A large eps keeps AdamW from enlarging rounding
// noise where a gradient is almost zero.
static int take_steps(StepPair &pair, uint64_t step, uint64_t t, double scale, double *difference) {
    int gpu_nonfinite, cpu_nonfinite;
    pair.batch(step);
    model_begin_step(&pair.gpu, step);
    cpu::model_begin_step(&pair.cpu, step);
    double gpu_loss = gpu_gradients(pair, 1, scale), cpu_loss = cpu_gradients(pair, 1, scale);
    double gpu_norm = model_grad_norm(&pair.gpu, &gpu_nonfinite) / scale;
    double cpu_norm = cpu::model_grad_norm(&pair.cpu, &cpu_nonfinite) / scale;
    *difference = fabs(gpu_loss - cpu_loss);
    CHECK(gpu_nonfinite == cpu_nonfinite, "step %llu: the GPU found %s, the CPU did not agree",
          (unsigned long long)step, gpu_nonfinite ? "an overflow" : "none");
    if (!gpu_nonfinite) {
        AdamWHyper hyper = adamw_hyper(1e-3, 0.9, 0.95, 1e-5, 0.1, (gpu_norm > 1 ? 1 / gpu_norm : 1) / scale, t);
        model_update(&pair.gpu, &hyper);
        hyper = adamw_hyper(1e-3, 0.9, 0.95, 1e-5, 0.1, (cpu_norm > 1 ? 1 / cpu_norm : 1) / scale, t);
        cpu::model_update(&pair.cpu, &hyper);
    }
    model_end_step(&pair.gpu);
    cpu::model_end_step(&pair.cpu);
    return gpu_nonfinite;
}

static void compare_weights(const StepPair &pair, const Floats &start, double limit) {
    Floats got = device_floats(&pair.gpu, pair.gpu.masters, pair.gpu.parameter_elems);
    const float *want = (const float *)pair.cpu.masters;
    for (size_t i = 0; i < GPT_PARAMETER_COUNT; i++) {
        double error = 0, way = 0;
        const ParameterInfo *info = &pair.gpu.table[i];
        for (size_t e = info->offset_elems; e < info->offset_elems + parameter_elems(info); e++) {
            // A bias of the keys moves all scores of a query alike: its gradient is rounding noise, which AdamW enlarges
            if (strcmp(info->name, "qkvb") == 0 && (e - info->offset_elems) / STEP_C % 3 == 1) continue;
            error += pow((double)got[e] - want[e], 2);
            way += pow((double)want[e] - start[e], 2);
        }
        record(tensor_name("steps", info->name), error == 0 ? 0 : sqrt(error / way), limit);
    }
}

static void twenty_steps(void (*set)(LinearRecipe *)) {
    const StepLimits limits = step_limits();
    StepPair pair(0, 1, set);
    Floats start((float *)pair.cpu.masters, (float *)pair.cpu.masters + pair.cpu.parameter_elems);
    for (uint64_t step = 0; step < 20; step++) {
        double difference;
        int skipped = take_steps(pair, step, step + 1, BUILD_LOSS_SCALING ? 1024 : 1, &difference);
        CHECK(!skipped, "step %llu overflowed", (unsigned long long)step);
        record("20 steps loss", difference, limits.losses);
    }
    compare_weights(pair, start, limits.steps);
}
TEST(steps_twenty) { twenty_steps(NULL); }
TEST(steps_twenty_fused_gelu) { twenty_steps(fuse_gelu); }

// Loss scales from far too large downwards, in the order of a run: overflowing steps are skipped on both sides, change
// nothing, and the first that fits goes on as if they had not been.
TEST(steps_overflow) {
    if (!BUILD_LOSS_SCALING) SKIP("the loss is scaled in fp16 only");
    StepPair pair(0, 1);
    GradScalerOptions options = {1, 3, 1, 0x1p60};
    GradScaler scaler = grad_scaler(0x1p24);
    Floats start((float *)pair.cpu.masters, (float *)pair.cpu.masters + pair.cpu.parameter_elems);
    uint64_t t = 1, skipped = 0;
    for (uint64_t step = 0; step < 24 && t < 6; step++) {
        double difference;
        int skip = take_steps(pair, step, t, scaler.scale, &difference);
        skipped += (uint64_t)skip;
        t += (uint64_t)!skip;
        grad_scaler_update(&scaler, &options, skip);
        if (t > 1) continue;
        Floats now = device_floats(&pair.gpu, pair.gpu.masters, pair.gpu.parameter_elems);
        CHECK(memcmp(now.data(), start.data(), now.size() * sizeof(float)) == 0, "a skipped step changed the weights");
    }
    CHECK(skipped >= 3 && t == 6, "%llu steps were skipped, %llu taken", (unsigned long long)skipped,
          (unsigned long long)t - 1);
    compare_weights(pair, start, step_limits().steps);
}

// Where a pass that is not finite broke, is said in the same words.
TEST(steps_nonfinite) {
    StepPair pair(0, 1);
    const size_t bad = (size_t)(pair.gpu.weights.fcw - (weight_t *)pair.gpu.weights_arena.base) + 4 * STEP_C * STEP_C;
    char got[96] = "", want[96] = "";
    int nonfinite;
    float value[1] = {INFINITY};
    ((float *)pair.cpu.masters)[bad] = INFINITY;
    masters_set(&pair.gpu, bad, value, 1);
    model_weights_changed(&pair.gpu);
    cpu::model_weights_changed(&pair.cpu);
    gpu_gradients(pair, STEP_B, 1);
    cpu_gradients(pair, STEP_B, 1);
    model_grad_norm(&pair.gpu, &nonfinite);
    CHECK(nonfinite, "the norm is finite");
    CHECK(model_first_nonfinite(&pair.gpu, got, sizeof got) && cpu::model_first_nonfinite(&pair.cpu, want, sizeof want),
          "an infinite weight is not found");
    // A cast may hide an Inf, whose layer is then named
    CHECK(strcmp(got, want) == 0 && (strcmp(got, "layer 1, fc") == 0 || strcmp(got, "h.1.fc, its weight") == 0), "'%s' and '%s'", got, want);
}

// ----------------------------------------------------------------------------------------------------------------
// Checkpoints and text

// Masters, moments and delayed scales of both sides, one after the other.
static Floats gpu_state(const StepPair &pair) {
    Floats all = device_floats(&pair.gpu, pair.gpu.masters, pair.gpu.parameter_elems);
    Floats moments = device_floats(&pair.gpu, pair.gpu.moments_arena.base, 2 * pair.gpu.parameter_elems);
    all.insert(all.end(), moments.begin(), moments.end());
    if (pair.gpu.linear.delayed) {
        const size_t elems = linear_delayed_elems(&pair.gpu.recipe, STEP_L);
        Floats delayed = device_floats(&pair.gpu, pair.gpu.linear.delayed, elems);
        all.insert(all.end(), delayed.begin(), delayed.end());
    }
    return all;
}
static Floats cpu_state(const StepPair &pair) {
    const size_t P = pair.cpu.parameter_elems;
    Floats all((float *)pair.cpu.masters, (float *)pair.cpu.masters + P);
    all.insert(all.end(), (float *)pair.cpu.moments_arena.base, (float *)pair.cpu.moments_arena.base + 2 * P);
    const float *delayed = pair.cpu.delayed_scales;
    if (delayed) all.insert(all.end(), delayed, delayed + linear_delayed_elems(&pair.cpu.recipe, STEP_L));
    return all;
}

// A checkpoint that one trainer writes is the other's state, bit for bit, and trains on as the writer does.
TEST(steps_checkpoint) {
    if (BUILD_MOMENTS_RULE != MOMENTS_RULE_FP32 || BUILD_MASTER_RULE != MASTER_RULE_FP32) SKIP("written for fp32 state");
    StepPair pair(0, 1);
    const size_t most = 4 * checkpoint_parameter_tensors(&pair.config) + 1;
    std::vector<CheckpointTensor> gpu_list(most), cpu_list(most);
    Checkpointer gpu_ck, cpu_ck;
    Message message;
    char dir[] = "/tmp/train_gpt_steps_XXXXXX", path[SAFE_PATH_BYTES];
    double difference;
    message_clear(&message);
    if (!mkdtemp(dir)) die("mkdtemp");
    size_t n = model_checkpoint_list(&pair.gpu, gpu_list.data());
    checkpoint_open(&gpu_ck, dir, &pair.config, gpu_list.data(), n, "{}");
    model_checkpoint_access(&pair.gpu, &gpu_ck);
    CHECK(cpu::model_checkpoint_list(&pair.cpu, cpu_list.data()) == n, "the two list different tensors");
    checkpoint_open(&cpu_ck, dir, &pair.config, cpu_list.data(), n, "{}");
    for (uint64_t step = 0; step < 2; step++) take_steps(pair, step, step + 1, 1, &difference);

    CHECK(checkpoint_save(&gpu_ck, 2, &message) == CHECKPOINT_OK, "%s", message.text);
    snprintf(path, sizeof path, "%s/step_00000002", dir);
    CHECK(checkpoint_load(&cpu_ck, path, &message) == CHECKPOINT_OK, "%s", message.text);
    cpu::model_weights_changed(&pair.cpu);
    Floats saved = gpu_state(pair), loaded = cpu_state(pair);
    CHECK(memcmp(saved.data(), loaded.data(), saved.size() * sizeof(float)) == 0, "GPU to CPU: the state differs");

    take_steps(pair, 2, 3, 1, &difference);
    CHECK(checkpoint_save(&cpu_ck, 3, &message) == CHECKPOINT_OK, "%s", message.text);
    saved = cpu_state(pair);
    take_steps(pair, 3, 4, 1, &difference);  // away from it
    snprintf(path, sizeof path, "%s/step_00000003", dir);
    CHECK(checkpoint_load(&gpu_ck, path, &message) == CHECKPOINT_OK, "%s", message.text);
    model_weights_changed(&pair.gpu);
    loaded = gpu_state(pair);
    CHECK(memcmp(saved.data(), loaded.data(), saved.size() * sizeof(float)) == 0, "CPU to GPU: the state differs");
    checkpoint_close(&gpu_ck);
    checkpoint_close(&cpu_ck);
    char remove_all[sizeof dir + 16];
    snprintf(remove_all, sizeof remove_all, "rm -rf '%s'", dir);
    CHECK(system(remove_all) == 0, "%s stays", dir);
}

// Logits of a text token by token: the CPU's, and those of a whole pass.
TEST(steps_sampling) {
    StepPair pair(0, 1);
    Floats got(STEP_V), want(STEP_V);
    // Tokens one by one go through weights that are not cast
    const double cast = BUILD_SCALING == SCALING_NONE ? step_limits().act : BUILD_SCALING == SCALING_NV ? 0.45 : 0.12;
    model_forward(&pair.gpu, pair.inputs.data(), pair.targets.data(), 1, STEP_T, 0.0f);
    float *pass = floats_from_device(&pair.gpu, pair.gpu.acts.logits, STEP_T * pair.config.Vp);
    for (size_t pos = 0; pos < STEP_T; pos++) {
        model_logits(&pair.gpu, pair.inputs[pos], pos, got.data());
        cpu::model_logits(&pair.cpu, pair.inputs[pos], pos, want.data());
        record("sampled logits", relative_error(got.data(), want.data(), STEP_V), 2 * step_limits().act);
        record("sampled logits, whole pass", relative_error(got.data(), pass + pos * pair.config.Vp, STEP_V),
               2 * cast);
    }
    free(pass);
}

// ----------------------------------------------------------------------------------------------------------------

// Whether this device's tf32 products round their operands or cut them is not documented: the CPU does as it does.
static void match_tf32_rounding(void) {
    if (BUILD_OPERAND != FORMAT_TF32) return;
    Floats inp(64), weight(64);
    inp[0] = 1.0f + 0x1.8p-11f;  // three quarters of the way to the next number of 10 bits
    weight[0] = 1.0f;
    void *workspace;
    CUDA_CHECK(cudaMalloc(&workspace, matmul_scratch_bytes()));
    MatmulScratch *scratch = matmul_scratch(workspace, matmul_scratch_bytes());
    DeviceTensor<float> d_inp(inp), d_weight(weight), out((size_t)64);
    matmul_forward(scratch, out.data, d_inp.data, d_weight.data, (float *)NULL, 8, 8, 8, 0);
    if (out.get("tf32 probe")[0] == 1.0f) *tf32_rounding() = 0;
    printf("tf32 operands are %s\n", *tf32_rounding() ? "rounded" : "cut");
    matmul_scratch_free(scratch);
    CUDA_CHECK(cudaFree(workspace));
}

// The bits of one pass's losses and gradients, so that runs of the program can be compared (schedules, devices).
static void print_digest(void) {
    StepPair pair(0, 1);
    double loss = gpu_gradients(pair, 1, BUILD_LOSS_SCALING ? 1024 : 1);
    Floats grads = device_floats(&pair.gpu, pair.gpu.grads_arena.base, pair.gpu.parameter_elems);
    uint64_t hash = 0;
    for (float x : grads) hash = fixture_mix(hash + bits_of_float(x));
    printf("  digest %016llx, loss %.9g\n", (unsigned long long)hash, loss);
}

// ----------------------------------------------------------------------------------------------------------------
// Plans

static void check_planned(const char *what, size_t ranks, int zero, size_t planned, size_t bytes) {
    // Each of the few takes of an arena is rounded up to 256 bytes
    CHECK(planned <= bytes && bytes - planned < 4 * ARENA_ALIGN_BYTES, "%s of %zu ranks, --zero %d: planned %zu, %zu bytes",
          what, ranks, zero, planned, bytes);
}

// What a machine without a GPU is told that a rank takes (device_plan.h) is what the arenas take. 32 tokens, so that
// this file's short chunks of logits are as long as the trainer's.
TEST(steps_plan) {
    static const Parallel cases[] = {{0, 1, 0, 0, 1 << 20}, {0, 2, 0, 0, 1 << 20}, {0, 3, 1, 0, 100000}, {1, 4, 1, 1, 1},
                                     {2, 4, 2, 0, 100000}};
    static Model model;
    GPTConfig config = {3, 2, 64, 0, 0, 16};
    BatchShape shape = {2, 16, 0};
    PrecisionPolicy policy = build_policy();
    config_set_vocab(&config, 300);
    for (const Parallel &p : cases) {
        DevicePlan plan = device_plan(&config, &shape, &p, &policy);
        model_plan(&model, &config, &shape, 0);
        model_set_parallel(&model, &p);
        check_planned("weights", p.ranks, p.zero, plan.weights, model.weights_arena.used_bytes);
        check_planned("masters", p.ranks, p.zero, plan.masters, model.masters_arena.used_bytes);
        check_planned("gradients", p.ranks, p.zero, plan.gradients, model.grads_arena.used_bytes);
        check_planned("moments", p.ranks, p.zero, plan.moments, model.moments_arena.used_bytes);
        check_planned("activations", p.ranks, p.zero, plan.activations, model.acts_arena.used_bytes);
    }
}

// What a schedule of threads or a sanitizer has to see, in seconds.
static void test_steps_quick(void) {
    RUN(steps_forward);
    RUN(steps_gradients_of_micro_batches);
    if (BUILD_MODE == MODE_bf16 || BUILD_MODE == MODE_fp16) RUN(steps_gradients_fused_gelu);
    RUN(steps_sampling);
    print_digest();
}

static void test_steps_cuda(void) {
    tensor_error_count = 0;
    memset(tensor_errors, 0, sizeof tensor_errors);
    RUN(steps_plan);
    RUN(steps_forward);
    RUN(steps_gradients);
    RUN(steps_gradients_of_micro_batches);
    if (BUILD_MODE == MODE_bf16 || BUILD_MODE == MODE_fp16) {
        RUN(steps_gradients_fused_gelu);
        RUN(steps_twenty_fused_gelu);
        RUN(steps_fused_gelu_refused);
    }
    RUN(steps_same_bits);
    RUN(steps_initial_weights);
    if (BUILD_SCALING == SCALING_NONE) RUN(steps_twenty);  // the others: recipes_fifty_steps
    RUN(steps_overflow);
    RUN(steps_nonfinite);
    RUN(steps_checkpoint);
    RUN(steps_sampling);
    print_tensor_errors();
}

#endif
