// precision_modes.c: what must hold in one precision build, whichever it is; test_precision_modes.sh builds it for all.
//
//     precision_modes                 the tests of this build
//     precision_modes errors STEPS    the error table's line of this build: at the start, and after STEPS steps
//     precision_modes train OPTIONS   the trainer itself, so that the shell test needs no second program a mode
//
// Errors are those of one forward and backward pass against a plain double-precision GPT with the same (master) weights,
// on a model of 2 layers, 64 channels, 4 heads, 8 x 64 tokens of this repository's text. Limits are about twice what an
// independent emulation measured; lower bounds catch a recipe that casts nothing.
#define TESTING
#include "../../train_gpt.c"

#include "dies.h"
#include "gpt_compare.h"
#include "gpt_double.h"
#include "test.h"

#define B_ ((size_t)8)
#define T_ ((size_t)64)
#define N_ (B_ * T_)

// ----------------------------------------------------------------------------------------------------------------
// A model and text

static int32_t text_tokens[1 << 16];
static size_t text_count;

// `name`, which is relative to the repository's root, as a path from here.
static void repository_path(char path[2048], const char *name) {
    snprintf(path, 1024, "%s", __FILE__);
    char *at = strstr(path, "dev/test/");
    if (at) *at = 0;
    snprintf(path + strlen(path), 1000, "%s", name);
}

static void read_text(void) {
    const char *const paths[] = {"LICENSE", "doc/checkpoint.md", "llmc/attention.h"};
    char path[2048];
    for (size_t i = 0; i < 3; i++) {
        repository_path(path, paths[i]);
        FILE *file = fopen(path, "rb");
        if (!file) die("cannot read '%s': run from the repository's root", path);
        for (int c; (c = fgetc(file)) != EOF && text_count < (1 << 16) - 1;) text_tokens[text_count++] = c;
        fclose(file);
    }
}

// Step `step`'s batch: windows of the text, a fixed pseudo-random choice.
static void batch_at(uint64_t step, int32_t *inputs, int32_t *targets) {
    for (size_t b = 0; b < B_; b++) {
        size_t at = rand_u32(7, RAND_TEST, 0, (uint32_t)step, b) % (text_count - T_ - 1);
        memcpy(inputs + b * T_, text_tokens + at, T_ * sizeof(int32_t));
        memcpy(targets + b * T_, text_tokens + at + 1, T_ * sizeof(int32_t));
    }
}

static LinearRecipe test_recipe(void) {
    PrecisionPolicy policy = build_policy();
    return linear_recipe(&policy, 1);  // no layer kept high, in nvfp4 too
}

static void create_model(Model *model, const LinearRecipe *recipe, uint64_t seed) {
    GPTConfig config = {2, 4, 64, 0, 0, T_};
    BatchShape shape = {B_, T_, 0};
    config_set_vocab(&config, 256);
    model_plan(model, &config, &shape, T_);
    model_set_recipe(model, recipe);
    model_create(model);
    model_init_weights(model, seed);
}

// One step of training at rate lr; returns the loss. The loss scale is fp16's, fixed.
static double take_step(Model *model, uint64_t step, double lr) {
    static int32_t inputs[N_], targets[N_];
    double sum = 0, scale = BUILD_LOSS_SCALING ? 1024 : 1;
    int nonfinite;
    batch_at(step, inputs, targets);
    model_begin_step(model, step);
    model_zero_grad(model);
    model_forward(model, inputs, targets, B_, T_, (float)(scale / (double)N_));
    for (size_t i = 0; i < N_; i++) sum += (double)model->acts.losses[i];
    model_backward(model);
    double norm = model_grad_norm(model, &nonfinite) / scale;
    CHECK(!nonfinite, "step %llu is not finite", (unsigned long long)step);
    AdamWHyper hyper = adamw_hyper(lr, 0.9, 0.95, 1e-8, 0.1, (norm > 1 ? 1 / norm : 1) / scale, step + 1);
    hyper.seed = 5;
    model_update(model, &hyper);
    model_end_step(model);
    return sum / (double)N_;
}

static double master_value(const Model *model, size_t i) {
    if (BUILD_MASTER_RULE == MASTER_RULE_FP32) return (double)((const float *)model->masters)[i];
    double c = model->kahan ? (double)decode_bf16(model->kahan[i]) : 0;
    (void)c;  // the compensation is of the next update, not of the weight
    return (double)decode_bf16(((const uint16_t *)model->masters)[i]);
}

// ----------------------------------------------------------------------------------------------------------------
// Errors against double precision

typedef struct {
    double fprop, dgrad, wgrad, cosine, loss;
} Errors;

typedef struct {
    double *dgrad;  // found gradients of dgrad_names in turn, both layers; DGRAD_WIDTH C a token and layer
    double scale;
} Observed;

// Of the first and the last, the one whose product rounds it: dfch with --gelu-fusion 2.
static const char *const dgrad_names[5] = {"dfch_gelu", "dln2", "datt", "dln1", "dfch"};
static const size_t dgrad_widths[5] = {4, 1, 1, 1, 4}, dgrad_starts[5] = {0, 4, 5, 6, 7};
static const int dgrad_acts[5] = {ACT_fch_gelu, ACT_ln2, ACT_att, ACT_ln1, ACT_fch};
#define DGRAD_WIDTH ((size_t)11)

static void keep_gradient(void *context, const char *name, size_t layer, const float *data, size_t elems) {
    Observed *o = (Observed *)context;
    for (size_t k = 0; k < 5; k++)
        for (size_t i = 0; i < elems && strcmp(name, dgrad_names[k]) == 0; i++)
            o->dgrad[(layer * DGRAD_WIDTH + dgrad_starts[k]) * N_ * 64 + i] = (double)data[i] / o->scale;
}

static double relative_float(const float *found, const double *expected, size_t n, double scale) {
    double error = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        double e = (double)found[i] / scale - expected[i];
        error += e * e;
        size += expected[i] * expected[i];
    }
    return sqrt(error / size);
}

static double relative_double(const double *found, const double *expected, size_t n) {
    double error = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        error += (found[i] - expected[i]) * (found[i] - expected[i]);
        size += expected[i] * expected[i];
    }
    return sqrt(error / size);
}

static double worse(double a, double b) { return isnan(a) || isnan(b) ? NAN : fmax(a, b); }

// All of it on the batch of `step`, worst tensor of each kind.
static Errors measure(Model *model, uint64_t step) {
    static int32_t inputs[N_], targets[N_];
    DoubleGPT gpt;
    Errors e = {0, 0, 0, 0, 0};
    Observed observed = {NULL, BUILD_LOSS_SCALING ? 1024 : 1};
    double loss = 0, dot = 0, found2 = 0, expected2 = 0;
    observed.dgrad = (double *)checked_calloc(2 * DGRAD_WIDTH * N_ * 64, sizeof(double), "gradients");
    double_create(&gpt, &model->config, B_, T_);
    for (size_t i = 0; i < model->parameter_elems; i++) gpt.parameter_base[i] = master_value(model, i);
    batch_at(step, inputs, targets);
    double expected_loss = double_forward(&gpt, inputs, targets);
    double_backward(&gpt, inputs, targets);
    model->observe = keep_gradient;
    model->observe_context = &observed;
    model_begin_step(model, step);
    model_zero_grad(model);
    model_forward(model, inputs, targets, B_, T_, (float)(observed.scale / (double)N_));
    for (size_t i = 0; i < N_; i++) loss += (double)model->acts.losses[i];
    model_backward(model);
    model->observe = NULL;
    e.loss = fabs(loss / (double)N_ - expected_loss);
    for (size_t l = 0; l < 2; l++) {
        const DoubleActivation *qkv = &gpt.act[ACT_qkv], *fch = &gpt.act[ACT_fch];
        e.fprop = worse(e.fprop, relative_float(model->acts.qkv + l * qkv->elems, qkv->value + l * qkv->elems, qkv->elems, 1));
        e.fprop = worse(e.fprop, relative_float(model->acts.fch + l * fch->elems, fch->value + l * fch->elems, fch->elems, 1));
        for (size_t k = 0; k < 5; k++) {
            const DoubleActivation *act = &gpt.act[dgrad_acts[k]];
            if (k == (model->recipe.gelu_fusion >= 2 ? 0 : 4)) continue;
            e.dgrad = worse(e.dgrad, relative_double(observed.dgrad + (l * DGRAD_WIDTH + dgrad_starts[k]) * N_ * 64,
                                                     act->grad + l * act->elems, dgrad_widths[k] * N_ * 64));
        }
        for (int kind = 0; kind < LINEAR_KINDS; kind++) {
            const Linear *linear = linear_at(model, l, (LinearKind)kind);
            size_t offset = (size_t)(linear->dweight - (float *)model->grads_arena.base);
            e.wgrad = worse(e.wgrad, relative_float(linear->dweight, gpt.gradient_base + offset, linear->C * linear->OC,
                                                    observed.scale));
        }
    }
    for (size_t i = 0; i < model->parameter_elems; i++) {
        double found = (double)((float *)model->grads_arena.base)[i], expected = gpt.gradient_base[i];
        dot += found * expected;
        found2 += found * found;
        expected2 += expected * expected;
    }
    e.cosine = 1 - dot / sqrt(found2 * expected2);
    double_destroy(&gpt);
    free(observed.dgrad);
    return e;
}

// Limits of the worst tensor; `least`: a forward error below it means that nothing was cast.
typedef struct {
    PrecisionMode mode;
    Errors limit;
    double least;
} ErrorLimit;

static const ErrorLimit *error_limit(void) {
    static const ErrorLimit limits[] = {
        {MODE_fp32, {2e-6, 2e-6, 3e-6, 1e-11, 1e-5}, 0},  // cosine and loss: the double sums' own noise is below that
        {MODE_tf32, {1e-3, 1.5e-3, 4e-3, 2e-6, 1e-4}, 1e-5},
        {MODE_bf16, {1.2e-2, 1.5e-2, 4e-2, 2e-4, 5e-4}, 1e-4},
        {MODE_fp16, {1.5e-3, 3e-3, 4e-3, 3e-6, 1e-4}, 1e-5},
        {MODE_fp8_delayed, {0.12, 0.18, 0.20, 5e-3, 2e-3}, 1e-2},
        {MODE_fp8_current, {0.12, 0.18, 0.20, 5e-3, 2e-3}, 1e-2},
        {MODE_fp8_row, {0.12, 0.12, 0.16, 3e-3, 2e-3}, 1e-2},
        {MODE_fp8_block, {0.12, 0.12, 0.16, 3e-3, 2e-3}, 1e-2},
        {MODE_mxfp8, {0.12, 0.12, 0.16, 3e-3, 2e-3}, 1e-2},
        {MODE_nvfp4, {0.45, 0.50, 0.80, 6e-2, 1e-2}, 5e-2},
    };
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        if (limits[i].mode == BUILD_MODE) return &limits[i];
    die("no limits for this build");
}

static void print_errors(const char *when, const Errors *e) {
    printf("    %-12s %-10s fprop %.2e  dgrad %.2e  wgrad %.2e  1-cos %.1e  |loss| %.1e\n", build_policy().name, when, e->fprop,
           e->dgrad, e->wgrad, e->cosine, e->loss);
}

static void check_limits(const char *when, const Errors *e) {
    const ErrorLimit *limit = error_limit();
    CHECK(e->fprop <= limit->limit.fprop, "%s: fprop error %.3g, limit %.3g", when, e->fprop, limit->limit.fprop);
    CHECK(e->dgrad <= limit->limit.dgrad, "%s: dgrad error %.3g, limit %.3g", when, e->dgrad, limit->limit.dgrad);
    CHECK(e->wgrad <= limit->limit.wgrad, "%s: wgrad error %.3g, limit %.3g", when, e->wgrad, limit->limit.wgrad);
    CHECK(e->cosine <= limit->limit.cosine, "%s: 1-cos %.3g, limit %.3g", when, e->cosine, limit->limit.cosine);
    if (strcmp(when, "start") == 0)  // the loss's limit is for untrained weights
        CHECK(e->loss <= limit->limit.loss, "%s: loss is off by %.3g, limit %.3g", when, e->loss, limit->limit.loss);
    CHECK(e->fprop >= limit->least, "%s: fprop error %.3g is below %.3g: nothing was cast", when, e->fprop, limit->least);
}

static void check_errors(const char *when, const Errors *e) {
    print_errors(when, e);
    check_limits(when, e);
}

static void measure_after(int steps, int gelu_fusion, void (*report)(const char *, const Errors *)) {
    Model model;
    LinearRecipe recipe = test_recipe();
    char when[32];
    recipe.gelu_fusion = gelu_fusion;
    create_model(&model, &recipe, 1);
    Errors start = measure(&model, 0);
    report("start", &start);
    for (int step = 0; step < steps; step++) take_step(&model, (uint64_t)step, step < 20 ? 5e-5 * (step + 1) : 1e-3);
    Errors end = measure(&model, (uint64_t)steps);
    snprintf(when, sizeof when, "step %d", steps);
    report(when, &end);
    model_destroy(&model);
}

TEST(errors_against_double_precision) { measure_after(60, 0, check_errors); }
TEST(errors_with_fused_gelu) {
    for (int level = 1; level <= 2; level++) measure_after(20, level, check_limits);
}

// Every stored value is one of its format's.
static size_t foreign(FormatId format, const float *x, size_t n) {
    size_t count = 0;
    for (size_t i = 0; i < n; i++) count += bits_of_float(format_round(format, x[i])) != bits_of_float(x[i]);
    return count;
}

static void check_gradient_format(void *context, const char *name, size_t layer, const float *data, size_t elems) {
    ++*(int *)context;
    CHECK(foreign(BUILD_GRAD, data, elems) == 0, "%s of layer %zu holds values that are not %s", name, layer,
          format_name(BUILD_GRAD));
}

TEST(stored_values_are_of_their_format) {
    Model model;
    LinearRecipe recipe = test_recipe();
    int gradients = 0;
    create_model(&model, &recipe, 2);
    model.observe = check_gradient_format;
    model.observe_context = &gradients;
    take_step(&model, 0, 1e-3);
    Activations *a = &model.acts;
#define FOREIGN(what, n) CHECK(foreign(BUILD_ACT, a->what, n) == 0, #what " holds values that are not " "%s", format_name(BUILD_ACT))
    FOREIGN(encoded, N_ * 64);
    FOREIGN(ln1, 2 * N_ * 64);
    FOREIGN(qkv, 2 * N_ * 192);
    FOREIGN(att, 2 * N_ * 64);
    FOREIGN(residual2, 2 * N_ * 64);
    FOREIGN(fch, 2 * N_ * 256);
    FOREIGN(fch_gelu, 2 * N_ * 256);
    FOREIGN(lnf, N_ * 64);
#undef FOREIGN
    CHECK(foreign(BUILD_GRAD, a->dresidual, N_ * 64) == 0, "dresidual");
    CHECK(foreign(BUILD_GRAD, a->logits, LOGITS_CHUNK_ROWS * 256) == 0, "dlogits");
    CHECK(foreign(BUILD_WEIGHT, (float *)model.weights_arena.base, model.parameter_elems) == 0, "working weights");
    CHECK(gradients >= 2 * 8, "only %d gradients were seen", gradients);
    // The working weights are the nearest to the masters; masters hold more than that.
    size_t finer = 0;
    for (size_t i = 0; i < model.parameter_elems; i++) {
        float master = (float)master_value(&model, i), working = ((float *)model.weights_arena.base)[i];
        CHECK(round_weight(master) == working, "weight %zu is %a, its master %a", i, (double)working, (double)master);
        finer += master != working;
    }
    if (BUILD_WEIGHTS_COPIED && BUILD_MASTER_RULE == MASTER_RULE_FP32)
        CHECK(finer > model.parameter_elems / 2, "only %zu masters differ from their working copy", finer);
    model_destroy(&model);
}

// --gelu-fusion: each number is that of double precision rounded once, from operands as they are stored.
typedef struct {
    float dresidual[N_ * 64], dfch[N_ * 256];  // of layer 1
} FusedObserved;

static void keep_fused(void *context, const char *name, size_t layer, const float *data, size_t elems) {
    FusedObserved *o = (FusedObserved *)context;
    CHECK(strcmp(name, "dfch_gelu") != 0, "dfch_gelu is shown, which is never stored");
    if (layer != 1) return;
    if (strcmp(name, "dresidual3") == 0) memcpy(o->dresidual, data, elems * sizeof(float));
    if (strcmp(name, "dfch") == 0) memcpy(o->dfch, data, elems * sizeof(float));
}

// 1 if `found` is what some number within `error` of `exact` is rounded to.
static int rounded_once(FormatId format, float found, double exact, double error) {
    return found >= format_round(format, (float)(exact - error)) && found <= format_round(format, (float)(exact + error));
}

TEST(fused_gelu_rounds_once) {
    static FusedObserved seen;
    static int32_t inputs[N_], targets[N_];
    Model model;
    LinearRecipe recipe = test_recipe();
    size_t wrong[3] = {0, 0, 0}, twice = 0, linear = 2 * LINEAR_KINDS;
    recipe.gelu_fusion = 2;
    create_model(&model, &recipe, 6);
    for (size_t i = 0; i < linear; i++)  // biases that change something
        for (size_t j = 0; j < model.linears[i].OC; j++) ((float *)model.linears[i].bias)[j] = 0.25f * (float)(j % 5);
    model.observe = keep_fused;
    model.observe_context = &seen;
    batch_at(0, inputs, targets);
    model_begin_step(&model, 0);
    model_zero_grad(&model);
    model_forward(&model, inputs, targets, B_, T_, BUILD_LOSS_SCALING ? 2.0f : 1.0f / (float)N_);
    model_backward(&model);
    const Linear *fc = linear_at(&model, 1, LINEAR_FC), *fcproj = linear_at(&model, 1, LINEAR_FCPROJ);
    const float *ln2 = model.acts.ln2 + N_ * 64, *fch = model.acts.fch + N_ * 256, *out = model.acts.fch_gelu + N_ * 256;
    for (size_t i = 0; i < N_ * 256; i++) {
        double sum = (double)fc->bias[i % 256], size = fabs(sum), up = 0, up_size = 0, x = (double)fch[i];
        for (size_t c = 0; c < 64; c++) {
            double term = (double)ln2[i / 256 * 64 + c] * (double)fc->weight[i % 256 * 64 + c];
            double up_term = (double)seen.dresidual[i / 256 * 64 + c] * (double)fcproj->weight[c * 256 + i % 256];
            sum += term, size += fabs(term), up += up_term, up_size += fabs(up_term);
        }
        wrong[0] += !rounded_once(BUILD_ACT, fch[i], sum, 1e-6 * size);
        wrong[1] += !rounded_once(BUILD_ACT, out[i], double_gelu(sum), 1.2e-6 * size);
        wrong[2] += !rounded_once(BUILD_GRAD, seen.dfch[i], up * double_gelu_slope(x), 1.2e-6 * up_size);
        twice += out[i] != format_round(BUILD_ACT, (float)double_gelu(x));
    }
    CHECK(wrong[0] + wrong[1] + wrong[2] == 0, "of %zu numbers, %zu of fch, %zu of fch_gelu, %zu of dfch are not rounded once",
          N_ * 256, wrong[0], wrong[1], wrong[2]);
    CHECK(twice > N_ * 256 / 50, "only %zu numbers differ from GELU of what was rounded before", twice);
    model_destroy(&model);
}

// The same bits for one and two threads, five steps on.
TEST(threads_change_no_bit) {
    static float weights[2][1 << 19];
    int threads = thread_count();
    size_t bytes = 0;
    for (int k = 0; k < 2; k++) {
        Model model;
        LinearRecipe recipe = test_recipe();
        set_thread_count(1 + 2 * k);
        create_model(&model, &recipe, 3);
        for (uint64_t step = 0; step < 5; step++) take_step(&model, step, 1e-3);
        bytes = model.parameter_elems * sizeof(float);
        memcpy(weights[k], model.weights_arena.base, bytes);
        model_destroy(&model);
    }
    set_thread_count(threads);
    CHECK(memcmp(weights[0], weights[1], bytes) == 0, "three threads train another model than one");
}

// ----------------------------------------------------------------------------------------------------------------
// PyTorch's autocast to bfloat16 (dev/reference/autocast_reference.py). It rounds at other points than we do and is itself
// up to 1.5e-2 from float64; two independent errors of the size allowed above differ by at most sqrt(2) of it.

static double element_float(const void *tensor, size_t i) { return (double)((const float *)tensor)[i]; }

static void check_autocast(const Fixture *fixture, const char *name, size_t stream, size_t elems, const float *found,
                           double limit) {
    Difference d = difference_from_fixture(fixture, name, stream, elems, element_float, found);
    double error = fmax(difference_frobenius(&d), d.projected);
    CHECK(error <= limit, "%s is %.3g from autocast's, allowed %.3g", name, error, limit);
    CHECK(error > 1e-4, "%s is %.3g from autocast's: nothing is rounded", name, error);
}

TEST(agrees_with_pytorch_autocast) {
    if (BUILD_MODE != MODE_bf16 || BUILD_MASTER_RULE != MASTER_RULE_FP32 || BUILD_MOMENTS_RULE != MOMENTS_RULE_FP32)
        SKIP("not bf16 with fp32 masters and moments");
    Fixture fixture;
    Model model;
    char path[2048], folder[400], name[64];
    repository_path(path, "dev/reference/fixtures");
    snprintf(folder, sizeof folder, "%.390s", path);
    fixture_open(&fixture, folder, "b4_t64_v256_autocast");
    const GPTConfig *config = &fixture.config;
    size_t B = fixture.B, T = fixture.T, N = B * T;
    BatchShape shape = {B, T, 0};
    int32_t *inp = (int32_t *)checked_calloc(2 * N, sizeof(int32_t), "tokens"), *tgt = inp + N;
    model_plan(&model, config, &shape, 0);
    model_create(&model);
    for (size_t i = 0; i < GPT_PARAMETER_COUNT; i++)
        for (size_t e = 0; e < parameter_elems(&model.table[i]); e++)
            ((float *)model.masters)[model.table[i].offset_elems + e] =
                (float)fixture_weight(config, &model.table[i], i, fixture.seed, e);
    model_weights_changed(&model);
    for (size_t s = 0; s < fixture.steps; s++) {
        double loss = 0;
        int nonfinite;
        fixture_batch(&fixture, s, inp, tgt);
        model_begin_step(&model, s);
        model_zero_grad(&model);
        if (s == 0) {  // the logits as such: one chunk holds them all
            model_forward(&model, inp, tgt, B, T, 0.0f);
            check_autocast(&fixture, "logits", FIXTURE_LOGITS, N * config->V, model.acts.logits, sqrt(2) * 1.2e-2);
        }
        model_forward(&model, inp, tgt, B, T, 1.0f / (float)N);
        model_backward(&model);
        for (size_t i = 0; i < N; i++) loss += (double)model.acts.losses[i];
        for (size_t i = 0; s == 0 && i < GPT_PARAMETER_COUNT; i++) {
            snprintf(name, sizeof name, "grad.%s", model.table[i].name);
            check_autocast(&fixture, name, i, parameter_elems(&model.table[i]),
                           (float *)model.grads_arena.base + model.table[i].offset_elems, sqrt(2) * 2e-2);
        }
        double norm = model_grad_norm(&model, &nonfinite);
        AdamWHyper hyper = adamw_hyper(fixture.lr, fixture.beta1, fixture.beta2, fixture.eps, fixture.weight_decay,
                                       norm > fixture.clip ? fixture.clip / norm : 1, s + 1);
        model_update(&model, &hyper);
        CHECK(fabs(loss / (double)N - fixture.loss[s]) < 2e-3, "step %zu: loss %.6f, autocast's %.6f", s, loss / (double)N,
              fixture.loss[s]);
        CHECK(fabs(norm / fixture.norm[s] - 1) < 1e-2, "step %zu: norm %.5f, autocast's %.5f", s, norm, fixture.norm[s]);
    }
    model_destroy(&model);
    fixture_close(&fixture);
    free(inp);
}

// ----------------------------------------------------------------------------------------------------------------
// Delayed scaling

TEST(delayed_history_moves_once_a_step) {
    static int32_t inputs[N_], targets[N_];
    Model model;
    LinearRecipe recipe = test_recipe();
    recipe.scaling = SCALING_DELAYED;  // in any build
    recipe.history = 4;
    create_model(&model, &recipe, 4);
    DelayedScale *x = &linear_at(&model, 1, LINEAR_FC)->delayed[QUANT_X];
    DelayedScale *dy = &linear_at(&model, 1, LINEAR_FC)->delayed[QUANT_DY];
    float largest = 0, largest_dy = 0, scale = x->scale;
    CHECK(scale == 0, "a fresh history has a scale, %g", (double)scale);
    model_begin_step(&model, 0);
    model_zero_grad(&model);
    for (uint64_t micro = 0; micro < 4; micro++) {  // the first has by far the largest gradients
        float before = x->history[0], before_dy = dy->history[0];
        batch_at(micro, inputs, targets);
        model_forward(&model, inputs, targets, B_, T_, micro == 0 ? 0.05f : 0.001f);
        model_backward(&model);
        CHECK(x->history[0] >= before && dy->history[0] >= before_dy, "a later micro-batch lowers the amax");
        largest = fmaxf(largest, x->history[0]);
        largest_dy = micro == 0 ? dy->history[0] : largest_dy;
        CHECK(x->scale == 0, "the scale moves within a step");
    }
    model_end_step(&model);
    CHECK(x->history[3] == largest && x->history[0] == 0, "newest %g, largest %g", (double)x->history[3], (double)largest);
    CHECK(dy->history[3] == largest_dy, "newest %g, the first micro-batch's %g", (double)dy->history[3], (double)largest_dy);
    CHECK(x->scale == 448.0f / largest, "scale %g", (double)x->scale);
    CHECK(dy->scale == (dy->format == FORMAT_E5M2 ? 57344.0f : 448.0f) / largest_dy, "gradients' scale %g", (double)dy->scale);
    // Evaluation and sampling leave everything as it is.
    size_t elems = linear_delayed_elems(&recipe, 2);
    float *copy = (float *)checked_calloc(elems, sizeof(float), "history"), logits[256];
    memcpy(copy, model.delayed_scales, elems * sizeof(float));
    model_forward(&model, inputs, targets, B_, T_, 0.0f);
    model_logits(&model, 65, 0, logits);
    CHECK(memcmp(copy, model.delayed_scales, elems * sizeof(float)) == 0, "evaluation moves a history");
    // A step without data (all of it skipped by the caller) moves nothing either.
    model_end_step(&model);
    CHECK(memcmp(copy, model.delayed_scales, elems * sizeof(float)) == 0, "a step without data moves a history");
    free(copy);
    model_destroy(&model);
}

// Resuming with another --fp8-history: the newest amaxes stay, and the scale in force.
TEST(histories_change_their_length) {
    enum { layers = 2, blocks = layers * LINEAR_KINDS * 3 };
    static float from[blocks * 5], to[blocks * 8], back[blocks * 3];  // histories of 4, 7 and 2, each with its scale
    for (size_t i = 0; i < blocks; i++)
        for (size_t k = 0; k < 5; k++) from[i * 5 + k] = (float)(100 * i + k);
    CHECK(linear_delayed_resize(to, blocks * 8, from, blocks * 5, layers), "refused");
    CHECK(linear_delayed_resize(back, blocks * 3, to, blocks * 8, layers), "refused");
    for (size_t i = 0; i < blocks; i++) {
        float base = (float)(100 * i);
        CHECK(to[i * 8] == base && to[i * 8 + 6] == base + 3 && to[i * 8 + 4] == base + 1 && to[i * 8 + 3] == 0 &&
              to[i * 8 + 7] == base + 4, "history %zu, longer", i);
        CHECK(back[i * 3] == base && back[i * 3 + 1] == base + 3 && back[i * 3 + 2] == base + 4, "history %zu, shorter", i);
    }
    CHECK(!linear_delayed_resize(to, blocks * 8, from, blocks * 5 - 1, layers), "half a history is taken");
}

TEST(delayed_starts_as_current_scaling) {
    static int32_t inputs[N_], targets[N_];
    double loss[2] = {0, 0};
    static float grads[2][1 << 19];
    batch_at(9, inputs, targets);
    size_t elems = 0;
    for (int k = 0; k < 2; k++) {
        Model model;
        LinearRecipe recipe = test_recipe();
        recipe.scaling = k ? SCALING_DELAYED : SCALING_TENSOR;
        create_model(&model, &recipe, 4);
        model_begin_step(&model, 0);
        model_zero_grad(&model);
        model_forward(&model, inputs, targets, B_, T_, 1.0f / (float)N_);
        model_backward(&model);
        for (size_t i = 0; i < N_; i++) loss[k] += (double)model.acts.losses[i];
        elems = model.parameter_elems;
        memcpy(grads[k], model.grads_arena.base, elems * sizeof(float));
        model_destroy(&model);
    }
    CHECK(loss[0] == loss[1], "losses %.9g and %.9g", loss[0], loss[1]);
    CHECK(memcmp(grads[0], grads[1], elems * sizeof(float)) == 0, "other gradients");
}

// ----------------------------------------------------------------------------------------------------------------
// The trainer's step: skips, and what they leave alone

static const char *data_path;

// A trainer on a tiny model and the text; `options` as on the command line, one space between words.
static Trainer *new_trainer(const char *options) {
    static char line[1024], *argv[64];
    int argc = 0;
    Trainer *t = (Trainer *)checked_calloc(1, sizeof *t, "a trainer");
    snprintf(line, sizeof line,
             "x --train %s --vocab 256 --val= --out= --layers 2 --heads 2 --channels 32 --seq 16 --batch 4 --warmup 3 --steps 40 "
             "--sample-every 0 %s%s",
             data_path, BUILD_SCALING == SCALING_NV ? "--fp8-hp-first 0 --fp8-hp-last 0 " : "", options);
    for (char *word = strtok(line, " "); word; word = strtok(NULL, " ")) argv[argc++] = word;
    fflush(stdout);
    int out = dup(1), quiet = open("/dev/null", O_WRONLY);
    dup2(quiet, 1);
    setup(t, argc, argv);
    start(t);
    fflush(stdout);
    dup2(out, 1);
    close(out);
    close(quiet);
    return t;
}

static void free_trainer(Trainer *t) {
    finish(t);
    free(t);
}

static void quiet_step(Trainer *t) {
    fflush(stdout);
    int out = dup(1), quiet = open("/dev/null", O_WRONLY);
    dup2(quiet, 1);
    train_step(t);
    fflush(stdout);
    dup2(out, 1);
    close(out);
    close(quiet);
}

// Everything a skipped step must not touch, copied.
typedef struct {
    char *bytes;
    size_t count;
    uint64_t adam_t;
} Snapshot;

static Snapshot snapshot(const Trainer *t) {
    const Arena *arenas[3] = {&t->model.weights_arena, &t->model.masters_arena, &t->model.moments_arena};
    Snapshot s = {NULL, 0, t->state.adam_t};
    for (int i = 0; i < 3; i++) s.count += arenas[i]->base ? arenas[i]->used_bytes : 0;
    s.bytes = (char *)checked_calloc(s.count, 1, "a snapshot");
    size_t at = 0;
    for (int i = 0; i < 3; i++) {
        if (!arenas[i]->base) continue;
        memcpy(s.bytes + at, arenas[i]->base, arenas[i]->used_bytes);
        at += arenas[i]->used_bytes;
    }
    return s;
}

static int unchanged(const Trainer *t, Snapshot *before) {
    Snapshot now = snapshot(t);
    int same = now.count == before->count && memcmp(now.bytes, before->bytes, now.count) == 0 && now.adam_t == before->adam_t;
    free(now.bytes);
    free(before->bytes);
    return same;
}

// Writes inf (or NaN) into one gradient of an activation, at one micro-step of one step.
typedef struct {
    const Trainer *trainer;
    uint64_t step;
    uint32_t micro_step;
    float value;
    int injected;
} Fault;

static void inject(void *context, const char *name, size_t layer, const float *data, size_t elems) {
    Fault *f = (Fault *)context;
    if (f->trainer->state.step != f->step || f->trainer->model.linear.micro_step != f->micro_step) return;
    if (strcmp(name, "dfch_gelu") != 0 || layer != 1) return;
    ((float *)(size_t)data)[elems / 2] = f->value;
    f->injected = 1;
}

// Inf in micro-step 2 of 4 of the fourth step: the step is skipped, counted and changes nothing; the rate and the data
// go on; the next step is clean.
TEST(skipped_step_changes_nothing) {
    static const float values[2] = {INFINITY, NAN};
    for (int k = 0; k < 2; k++) {
        Trainer *t = new_trainer("--total-batch 256");
        Fault fault = {t, 3, 1, values[k], 0};
        t->model.observe = inject;
        t->model.observe_context = &fault;
        for (int i = 0; i < 3; i++) quiet_step(t);
        CHECK(!t->update_skipped && t->state.adam_t == 3, "the run is skipping before the fault");
        Snapshot before = snapshot(t);
        double scale = t->state.scaler.scale;
        uint64_t samples = t->state.samples;
        quiet_step(t);
        CHECK(fault.injected, "the fault did not happen");
        CHECK(t->update_skipped && t->state.skipped == 1 && t->note, "the step was not skipped");
        CHECK(isfinite(t->loss), "the loss is %g", t->loss);
        CHECK(unchanged(t, &before), "the skipped step changed weights, moments or t");
        CHECK(t->overflow == BUILD_LOSS_SCALING, "taken for an overflow: %d", t->overflow);
        CHECK(t->state.scaler.scale == (BUILD_LOSS_SCALING ? scale / 2 : 1), "scale %g", t->state.scaler.scale);
        CHECK(t->loss_scale == scale, "the step is logged with scale %g, it had %g", t->loss_scale, scale);
        CHECK(t->state.step == 4 && t->state.samples == samples + 16, "step %llu", (unsigned long long)t->state.step);
        quiet_step(t);
        CHECK(!t->update_skipped && t->state.adam_t == 4 && t->state.skipped_in_row == 0, "the next step is not clean");
        CHECK(t->lr == schedule_lr(&t->schedule, 4), "the schedule did not count the skipped step");
        CHECK(isfinite(t->norm), "norm %g", t->norm);
        free_trainer(t);
    }
}

// In a child process, where OpenMP's other threads are not: one thread.
static void train_to_the_end(const char *options, size_t broken_weight, int faults) {
    set_thread_count(1);
    Trainer *t = new_trainer(options);
    Fault fault = {t, 0, 0, INFINITY, 0};
    quiet_step(t);
    if (broken_weight) {
        float *w = linear_at(&t->model, 1, LINEAR_FC)->dweight;
        size_t offset = (size_t)(w - (float *)t->model.grads_arena.base) + broken_weight;
        if (BUILD_MASTER_RULE == MASTER_RULE_FP32) ((float *)t->model.masters)[offset] = NAN;
        else ((uint16_t *)t->model.masters)[offset] = 0x7fff;
        model_weights_changed(&t->model);
    }
    t->model.observe = faults ? inject : NULL;
    t->model.observe_context = &fault;
    for (int i = 0; i < 400; i++) {
        fault.step = t->state.step;
        quiet_step(t);
    }
}

// A forward pass that is broken for good ends the run in a few steps and names the place, whatever the loss scale.
TEST(broken_forward_pass_ends_the_run) {
    const char *words = BUILD_SCALING == SCALING_NV ? "first in h.1.fc, its weight" : "first in layer 1, fc";
    CHECK_DIES(1, words, train_to_the_end("", 7, 0));
    CHECK(strstr(died_text, "error: step 4:") != NULL, "not after three broken steps: %s", died_text);
}

// Gradients that overflow for good: fp16's scale falls to its floor, never to 0, and the run ends; others end at once.
TEST(overflow_for_ever_ends_the_run) {
    if (!BUILD_LOSS_SCALING) {
        CHECK_DIES(1, "the gradients are not finite", train_to_the_end("", 0, 1));
        return;
    }
    CHECK_DIES(1, "a smaller scale cannot cure that", train_to_the_end("", 0, 1));
    CHECK(strstr(died_text, "error: step 51:") && strstr(died_text, "loss scale of 1:"), "%s", died_text);
    CHECK(strstr(died_text, "at its floor"), "the floor was reached in silence: %s", died_text);
    CHECK_DIES(1, "overflowed 4 steps in a row", train_to_the_end("--max-skips 4 --loss-scale 256", 0, 1));
}

// The printed norm and the new weights do not depend on the scale, and a scale that grows every step is divided out by
// its old value: what is left are gradients below fp16's range.
TEST(scale_is_divided_out) {
    if (!BUILD_LOSS_SCALING) SKIP("no loss scale in this build");
    static const char *const options[3] = {"--loss-scale 256", "--loss-scale 65536",
                                           "--loss-scale-start 256 --loss-scale-interval 1"};
    double norms[3][8], losses[3][8];
    for (int k = 0; k < 3; k++) {
        Trainer *t = new_trainer(options[k]);
        for (int i = 0; i < 8; i++) {
            quiet_step(t);
            norms[k][i] = t->norm;
            losses[k][i] = t->loss;
            CHECK(!t->update_skipped, "%s: step %d was skipped", options[k], i);
        }
        if (k == 2) CHECK(t->state.scaler.scale == 65536, "scale %g after 8 good steps", t->state.scaler.scale);
        free_trainer(t);
    }
    for (int k = 1; k < 3; k++)
        for (int i = 0; i < 8; i++) {
            CHECK(fabs(norms[k][i] / norms[0][i] - 1) < 2e-3, "%s: norm %g, not %g", options[k], norms[k][i], norms[0][i]);
            CHECK(fabs(losses[k][i] - losses[0][i]) < 2e-3, "%s: loss %g, not %g", options[k], losses[k][i], losses[0][i]);
        }
}

// Unscaled, then clipped, once: after the first step m is (1 - beta1) times a gradient of norm min(norm, clip), whatever
// the scale. AdamW's quotient hides a factor; its moments do not.
TEST(moments_hold_the_unscaled_clipped_gradient) {
    static const char *const options[3] = {"", "--loss-scale 65536", "--loss-scale-start 256 --loss-scale-interval 1"};
    for (int k = 0; k < (BUILD_LOSS_SCALING ? 3 : 1); k++)
        for (int clip = 0; clip < 2; clip++) {
            char line[128];
            snprintf(line, sizeof line, "%s --grad-clip %s", options[k], clip ? "0.5" : "0");
            Trainer *t = new_trainer(line);
            quiet_step(t);
            double sum = 0, norm = clip ? fmin(t->norm, 0.5) : t->norm;
            for (size_t i = 0; i < t->model.parameter_elems; i++) {
                double m = BUILD_MOMENTS_RULE == MOMENTS_RULE_FP32 ? (double)((float *)t->model.m)[i]
                                                                   : (double)decode_bf16(((uint16_t *)t->model.m)[i]);
                sum += m * m;
            }
            double limit = BUILD_MOMENTS_RULE == MOMENTS_RULE_FP32 ? 1e-5 : 3e-3;
            CHECK(t->norm > 0.5, "norm %g: nothing to clip", t->norm);
            CHECK(fabs(sqrt(sum) / (0.1 * norm) - 1) < limit, "%s: norm of m %g, of the gradient %g", line, sqrt(sum), norm);
            free_trainer(t);
        }
}

// 8 micro-batches give the gradients of one large batch: nothing is summed in 16 bits. (A tensor's scale, and an fp4
// gradient's random bits, depend on the batch: not there.)
TEST(micro_batches_add_up) {
    if (BUILD_SCALING != SCALING_NONE) SKIP("scales depend on the batch");
    double norms[2];
    for (int k = 0; k < 2; k++) {
        Trainer *t = new_trainer(k ? "--batch 8" : "--batch 1 --total-batch 128");
        quiet_step(t);
        norms[k] = t->norm;
        free_trainer(t);
    }
    CHECK(fabs(norms[0] / norms[1] - 1) < 1e-5, "norms %.9g and %.9g", norms[0], norms[1]);
}

// Layernorm weights start at 1, where bf16 is coarse: with masters they move at any rate. Kahan and stochastic rounding
// move them a whole step at a time, so that those whose gradient changes sign may be back where they were.
TEST(weights_at_one_move) {
    Model model;
    LinearRecipe recipe = test_recipe();
    create_model(&model, &recipe, 6);
    size_t offset = (size_t)(model.weights.ln1w - (float *)model.weights_arena.base), still = 0;
    for (uint64_t step = 0; step < 10; step++) take_step(&model, step, 0.0019);
    for (size_t i = 0; i < 2 * 64; i++) still += master_value(&model, offset + i) == 1.0;
    if (BUILD_MASTER_RULE == MASTER_RULE_NEAREST) CHECK(still > 64, "only %zu of 128 weights are stuck: no negative control", still);
    else CHECK(still < (BUILD_MASTER_RULE == MASTER_RULE_FP32 ? 16 : 64), "%zu of 128 weights are still exactly 1", still);
    model_destroy(&model);
}

// ----------------------------------------------------------------------------------------------------------------

static void write_data(char *path) {
    int32_t header[256] = {20240520, 1, 0};
    FILE *file = file_open(path, "wb");
    header[2] = (int32_t)text_count;
    file_write(file, header, sizeof header, path);
    for (size_t i = 0; i < text_count; i++) {
        uint16_t token = (uint16_t)text_tokens[i];
        file_write(file, &token, sizeof token, path);
    }
    file_close(file, path);
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "train") == 0) {
        argv[1] = argv[0];
        return trainer_main(argc - 1, argv + 1);
    }
    read_text();
    if (argc > 2 && strcmp(argv[1], "errors") == 0) {
        measure_after(atoi(argv[2]), 0, print_errors);
        return 0;
    }
    if (argc > 2 && strcmp(argv[1], "data") == 0) {
        write_data(argv[2]);
        return 0;
    }
    char dir[] = "/tmp/train_gpt_modes.XXXXXX", path[128];
    if (!mkdtemp(dir)) die("cannot make a folder in /tmp");
    snprintf(path, sizeof path, "%s/data.bin", dir);
    write_data(path);
    data_path = path;
    RUN(errors_against_double_precision);
    RUN(stored_values_are_of_their_format);
    if ((BUILD_MODE == MODE_bf16 || BUILD_MODE == MODE_fp16) && BUILD_MASTER_RULE == MASTER_RULE_FP32) {
        RUN(errors_with_fused_gelu);
        RUN(fused_gelu_rounds_once);
    }
    RUN(threads_change_no_bit);
    RUN(agrees_with_pytorch_autocast);
    RUN(delayed_history_moves_once_a_step);
    RUN(histories_change_their_length);
    RUN(delayed_starts_as_current_scaling);
    RUN(skipped_step_changes_nothing);
    RUN(broken_forward_pass_ends_the_run);
    RUN(overflow_for_ever_ends_the_run);
    RUN(scale_is_divided_out);
    RUN(moments_hold_the_unscaled_clipped_gradient);
    RUN(micro_batches_add_up);
    RUN(weights_at_one_move);
    unlink(path);
    rmdir(dir);
    return test_summary();
}
