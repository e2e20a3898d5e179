// cuda_recipes.cuh: what the fp8 and fp4 builds add to cuda_steps.cuh: their options, their delayed scales and their
// numerics report, on the GPU and on the CPU side by side. Included by test_gpt.cu, which calls test_recipes_cuda().
#ifndef DEV_CUDA_RECIPES_CUH
#define DEV_CUDA_RECIPES_CUH

#include "cuda_steps.cuh"

// An option of a recipe, and the scaling rule that has it (SCALING_NONE: all have).
typedef struct {
    const char *name;
    ScalingRule scaling;
    void (*set)(LinearRecipe *recipe);
} RecipeVariant;

static const RecipeVariant recipe_variants[] = {
    {"fprop high from step 1", SCALING_NONE, [](LinearRecipe *r) { r->forward_high_from = 1; }},
    {"fc and the last layer high", SCALING_NONE, [](LinearRecipe *r) { r->hp_last = 1, r->exclude = "fc"; }},
    {"all e4m3", SCALING_TENSOR, [](LinearRecipe *r) { r->quant.hybrid = 0; }},
    {"powers of two", SCALING_TENSOR, [](LinearRecipe *r) { r->quant.tensor_pow2 = 1; }},
    {"most recent, margin 1", SCALING_DELAYED, [](LinearRecipe *r) { r->delayed.most_recent = r->delayed.margin = 1; }},
    {"history of 2, scale 1 at first", SCALING_DELAYED,
     [](LinearRecipe *r) { r->history = 2, r->delayed.te_first_step = 1; }},
    {"wgrad high", SCALING_ROW, [](LinearRecipe *r) { r->scaling = SCALING_ROW_GWHP; }},
    {"hybrid", SCALING_BLOCK, [](LinearRecipe *r) { r->quant.hybrid = 1; }},
    {"ocp, square weights", SCALING_MX, [](LinearRecipe *r) { r->quant.mx_ocp = r->quant.mx_square_weights = 1; }},
    {"plain", SCALING_NV, [](LinearRecipe *r) { r->quant.nv_plain = 1; }},
};

// Two steps of each option that this build's recipe has.
TEST(recipes_options) {
    const StepLimits limits = step_limits();
    for (const RecipeVariant &variant : recipe_variants) {
        if (variant.scaling != SCALING_NONE && variant.scaling != BUILD_SCALING) continue;
        StepPair pair(0, 1, variant.set);
        double difference;
        int failures = test_state.failures;
        for (uint64_t step = 0; step < 2; step++) {
            take_steps(pair, step, step + 1, 1, &difference);
            record("loss of options", difference, limits.losses);
            if (step == 0) compare_gradients(pair, limits.weight_grad);
        }
        CHECK(test_state.failures == failures, "that was with: %s", variant.name);
    }
}

// Fewer tokens than there is room for: a number of them that no block divides.
TEST(recipes_few_tokens) {
    const size_t B = 1, T = 48;
    StepPair pair(0, 1);
    model_zero_grad(&pair.gpu);
    cpu::model_zero_grad(&pair.cpu);
    model_forward(&pair.gpu, pair.inputs.data(), pair.targets.data(), B, T, 1.0f / (B * T));
    cpu::model_forward(&pair.cpu, pair.inputs.data(), pair.targets.data(), B, T, 1.0f / (B * T));
    model_backward(&pair.gpu);
    cpu::model_backward(&pair.cpu);
    compare_gradients(pair, step_limits().weight_grad);
}

// Histories and scales after some steps, evaluation between them. What an amax may be off is what gradients may.
TEST(recipes_delayed_histories) {
    if (BUILD_SCALING != SCALING_DELAYED) SKIP("histories are for delayed scaling");
    StepPair pair(0, 1);
    const LinearRecipe *recipe = &pair.gpu.recipe;
    const size_t elems = linear_delayed_elems(recipe, STEP_L), block = (size_t)recipe->history + 1;
    double difference;
    for (uint64_t step = 0; step < 3; step++) {
        model_forward(&pair.gpu, pair.inputs.data(), pair.targets.data(), 1, STEP_T, 0.0f);
        cpu::model_forward(&pair.cpu, pair.inputs.data(), pair.targets.data(), 1, STEP_T, 0.0f);
        take_steps(pair, step, step + 1, 1, &difference);
    }
    Floats got = device_floats(&pair.gpu, pair.gpu.linear.delayed, elems);
    size_t filled = 0;
    for (size_t i = 0; i < elems; i++) {
        const float want = pair.cpu.delayed_scales[i];
        CHECK(fabsf(got[i] - want) <= 0.1f * want, "block %zu, word %zu: %g, the CPU has %g", i / block, i % block,
              got[i], want);
        filled += i % block != (size_t)recipe->history && got[i] != 0.0f;
    }
    CHECK(filled == 3 * elems / block, "%zu words of the histories are filled, not 3 of each", filled);
}

// A reported step shows the same tensors, with the same counts.
TEST(recipes_numerics) {
    StepPair pair(0, 1);
    NumericsReport got, want;
    double difference;
    numerics_open(&got, NULL, 1, BUILD_MASTER_RULE, 0, 0);
    numerics_open(&want, NULL, 1, BUILD_MASTER_RULE, 0, 0);
    got.quiet = want.quiet = 1;
    for (uint64_t step = 0; step < 2; step++) {  // the second with a history
        numerics_begin(&got, step + 1);
        numerics_begin(&want, step + 1);
        model_observe(&pair.gpu, &got);
        cpu::model_observe(&pair.cpu, &want);
        take_steps(pair, step, step + 1, 1, &difference);
    }
    size_t operands = 0;
    CHECK(got.count == want.count, "%zu tensors, the CPU shows %zu", got.count, want.count);
    for (size_t i = 0; i < got.count && i < want.count; i++) {
        const NumericsEntry *g = &got.entries[i], *w = &want.entries[i];
        const double n = (double)w->sums.elements, amax = float_of_bits(w->sums.amax_bits);
        CHECK(strcmp(g->tensor, w->tensor) == 0 && g->layer == w->layer && g->kind == w->kind && g->format == w->format,
              "tensor %zu: %s, the CPU shows %s", i, g->tensor, w->tensor);
        if (w->kind != NUMERICS_OPERAND) continue;
        operands++;
        CHECK(g->sums.elements == w->sums.elements, "%s: %llu elements, not %.0f", w->tensor,
              (unsigned long long)g->sums.elements, n);
        CHECK(fabs((double)float_of_bits(g->sums.amax_bits) - amax) <= 0.1 * amax, "%s: amax %g, not %g", w->tensor,
              float_of_bits(g->sums.amax_bits), amax);
        CHECK(fabs((double)g->underflow - (double)w->underflow) <= 1e-2 * n &&
                  fabs((double)g->saturated - (double)w->saturated) <= 1e-2 * n,
              "%s: %llu and %llu of %.0f, the CPU counts %llu and %llu", w->tensor, (unsigned long long)g->underflow,
              (unsigned long long)g->saturated, n, (unsigned long long)w->underflow, (unsigned long long)w->saturated);
        CHECK(fabs(g->history_amax - w->history_amax) <= 0.1f * w->history_amax, "%s: history %g, not %g", w->tensor,
              g->history_amax, w->history_amax);
    }
    CHECK(operands >= 6 * LINEAR_KINDS * STEP_L - 3 * LINEAR_KINDS * STEP_L, "only %zu operands are shown", operands);
    numerics_close(&got);
    numerics_close(&want);
}

// 50 steps: the losses' mean over the last ten, and where the weights went.
TEST(recipes_fifty_steps) {
    StepPair pair(0, 1);
    Floats start((float *)pair.cpu.masters, (float *)pair.cpu.masters + pair.cpu.parameter_elems);
    double gap = 0, difference;
    for (uint64_t step = 0; step < 50; step++) {
        take_steps(pair, step, step + 1, 1, &difference);
        if (step >= 40) gap += difference / 10;
    }
    record("50 steps loss", gap, BUILD_SCALING == SCALING_NV ? 0.02 : BUILD_SCALING == SCALING_DELAYED ? 0.012 : 0.01);
    compare_weights(pair, start, step_limits().steps);
}

static void test_recipes_cuda(void) {
    tensor_error_count = 0;
    memset(tensor_errors, 0, sizeof tensor_errors);
    RUN(recipes_options);
    RUN(recipes_few_tokens);
    RUN(recipes_delayed_histories);
    RUN(recipes_numerics);
    RUN(recipes_fifty_steps);
    print_tensor_errors();
}

#endif
