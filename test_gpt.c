// test_gpt.c: the CPU trainer against numbers nobody here computed.
//
//     make test_gpt && ./test_gpt
//
// The chain of evidence: finite differences check the gradients of a plain double-precision GPT (gpt_double.h in
// dev/test), PyTorch's fixtures (dev/reference) check its results, and both check the trainer: every activation, every
// gradient of an activation and of a parameter, and ten AdamW steps, to LIMIT of each tensor's size. Then what a user
// relies on: batches may be cut anyhow, threads and recomputation change no bit, padding columns do not exist,
// generating text gives the training pass's logits.
#define TESTING
#include "train_gpt.c"

#include "dev/test/gpt_compare.h"
#include "dev/test/gpt_double.h"
#include "dev/test/gpt_fixture.h"
#include "dev/test/test.h"

// Relative to the tensor. PyTorch's own float32 is up to 1.5e-6 from the same fixtures.
#define LIMIT 1e-5

// A single weight may be this much further off after AdamW steps: they divide a gradient by its own size, so where one
// happens to be almost zero (below 1e-8), its rounding noise decides a visible part of the step. Whole tensors are held
// to LIMIT all the same.
#define ADAM_SLACK 10.0

static const char *const fixture_names[] = {"t65_v67_h3", "c30_h3",      "b4_t64_v256",
                                            "t1",         "t127_h1_c72", "c51_h3_l3_v300"};
#define FIXTURE_COUNT (sizeof fixture_names / sizeof *fixture_names)

// ----------------------------------------------------------------------------------------------------------------
// Models, weights and batches for tests

static GPTConfig make_config(size_t L, size_t NH, size_t C, size_t V, size_t max_T) {
    GPTConfig config;
    memset(&config, 0, sizeof config);
    config.L = L;
    config.NH = NH;
    config.C = C;
    config.max_T = max_T;
    config_set_vocab(&config, V);
    config_check(&config);
    return config;
}

// A model with the fixtures' weights for `seed` (0: all zero, as model_create leaves them). Activations, gradients and
// the key and value cache start as NaN: whatever is read before it is written shows.
static void create_model(Model *model, const GPTConfig *config, size_t B, size_t T, int recompute, uint64_t seed) {
    BatchShape shape = {B, T, recompute};
    model_plan(model, config, &shape, T);
    model_create(model);
    memset(model->acts_arena.base, 0xff, model->acts_arena.used_bytes);
    memset(model->grads_arena.base, 0xff, model->grads_arena.used_bytes);
    memset(model->work.kcache, 0xff, config->L * T * config->C * sizeof(float));
    memset(model->work.vcache, 0xff, config->L * T * config->C * sizeof(float));
    for (size_t i = 0; seed && i < GPT_PARAMETER_COUNT; i++) {
        float *weight = (float *)model->weights_arena.base + model->table[i].offset_elems;
        for (size_t e = 0; e < parameter_elems(&model->table[i]); e++)
            weight[e] = (float)fixture_weight(config, &model->table[i], i, seed, e);
    }
}

static void create_double(DoubleGPT *gpt, const GPTConfig *config, size_t B, size_t T, uint64_t seed) {
    double_create(gpt, config, B, T);
    for (size_t i = 0; i < GPT_PARAMETER_COUNT; i++)
        for (size_t e = 0; e < parameter_elems(&gpt->table[i]); e++)
            gpt->parameter_base[gpt->table[i].offset_elems + e] = fixture_weight(config, &gpt->table[i], i, seed, e);
}

// `count` pseudo-random tokens below V, different for each `step`.
static void make_tokens(int32_t *tokens, size_t count, size_t V, uint64_t step) {
    for (size_t i = 0; i < count; i++) tokens[i] = (int32_t)(fixture_hash(1000 + step, 0, i) % V);
}

static int32_t *new_tokens(size_t count) { return (int32_t *)checked_calloc(count, sizeof(int32_t), "tokens"); }

// Gradients of the mean loss over B sequences, micro_B at a time; returns that loss.
static double compute_gradients(Model *model, const int32_t *inp, const int32_t *tgt, size_t B, size_t T,
                                size_t micro_B) {
    double loss = 0;
    model_zero_grad(model);
    for (size_t b = 0; b < B; b += micro_B) {
        model_forward(model, inp + b * T, tgt + b * T, micro_B, T, (float)(1.0 / (double)(B * T)));
        for (size_t i = 0; i < micro_B * T; i++) loss += (double)model->acts.losses[i];
        model_backward(model);
    }
    return loss / (double)(B * T);
}

// Clips to `clip` and takes AdamW step t; returns the norm before clipping.
static double take_step(Model *model, double lr, double eps, double weight_decay, double clip, uint64_t t) {
    int nonfinite;
    double norm = model_grad_norm(model, &nonfinite);
    AdamWHyper hyper = adamw_hyper(lr, 0.9, 0.95, eps, weight_decay, norm > clip ? clip / norm : 1.0, t);
    CHECK(!nonfinite, "step %llu: the gradient is not finite", (unsigned long long)t);
    model_update(model, &hyper);
    return norm;
}

// One whole step on fresh tokens, for tests that compare runs with each other. Returns the loss, *norm the norm. The
// large eps keeps AdamW from enlarging rounding noise (see ADAM_SLACK), so that runs that round differently can be
// compared.
static double random_step(Model *model, size_t B, size_t micro_B, size_t T, uint64_t t, double *norm) {
    int32_t *inp = new_tokens(B * T), *tgt = new_tokens(B * T);
    make_tokens(inp, B * T, model->config.V, 2 * t);
    make_tokens(tgt, B * T, model->config.V, 2 * t + 1);
    double loss = compute_gradients(model, inp, tgt, B, T, micro_B);
    *norm = take_step(model, 1e-3, 1e-5, 0.1, 1.0, t);
    free(inp);
    free(tgt);
    return loss;
}

// 1 if the weights and moments of two models of one shape have the same bits.
static int same_weights(const Model *a, const Model *b) {
    return memcmp(a->weights_arena.base, b->weights_arena.base, a->parameter_elems * sizeof(float)) == 0 &&
           memcmp(a->moments_arena.base, b->moments_arena.base, 2 * a->parameter_elems * sizeof(float)) == 0;
}

// ----------------------------------------------------------------------------------------------------------------
// The yardstick itself

// (f(-2h) - 8 f(-h) + 8 f(h) - f(2h)) / 12h, where f is the loss with *x moved, or with the model's nudge in its place.
static double finite_difference(DoubleGPT *gpt, double *x, const int32_t *inp, const int32_t *tgt) {
    static const double weights[4] = {1, -8, 8, -1}, steps[4] = {-2, -1, 1, 2};
    const double h = 5e-4;
    double start = *x, sum = 0;
    for (int i = 0; i < 4; i++) {
        *x = start + steps[i] * h;
        sum += weights[i] * double_forward(gpt, inp, tgt);
    }
    *x = start;
    return sum / (12 * h);
}

TEST(double_gradients_are_finite_differences) {
    const GPTConfig config = make_config(2, 2, 6, 7, 5);
    const size_t B = 2, T = 4;
    const double limit = 1e-8;
    DoubleGPT gpt;
    int32_t inp[8], tgt[8];
    create_double(&gpt, &config, B, T, 99);
    make_tokens(inp, 8, config.V, 1);
    make_tokens(tgt, 8, config.V, 2);
    double_forward(&gpt, inp, tgt);
    double_backward(&gpt, inp, tgt);
    difference_header("double precision: gradients (found) and finite differences (expected)");
    for (size_t i = 0; i < GPT_PARAMETER_COUNT; i++) {
        const ParameterInfo *info = &gpt.table[i];
        Difference d;
        memset(&d, 0, sizeof d);
        for (size_t e = 0; e < parameter_elems(info); e++) {
            size_t at = info->offset_elems + e;
            difference_add(&d, e, gpt.gradient_base[at], finite_difference(&gpt, gpt.parameter_base + at, inp, tgt));
        }
        difference_report(&d, info->name, info->rows, info->cols, limit);
    }
    for (int i = 0; i < DOUBLE_ACTIVATION_COUNT; i++) {
        const DoubleActivation *act = &gpt.act[i];
        Difference d;
        memset(&d, 0, sizeof d);
        gpt.nudge_act = i;
        for (size_t e = 0; e < act->layers * act->elems; e++) {
            gpt.nudge_index = e;
            difference_add(&d, e, act->grad[e], finite_difference(&gpt, &gpt.nudge, inp, tgt));
        }
        difference_report(&d, act->name, act->elems, 1, limit);
    }
    double_destroy(&gpt);
}

// A tensor as the fixtures see it, from a float or double one of `cols` columns that are `stride` apart.
typedef struct {
    const float *floats;  // or NULL
    const double *doubles;
    size_t cols, stride;
    const char *parameter;  // set: elements without a gradient count as 0
    size_t C, T;
} TensorView;

static double view_element(const void *tensor, size_t index) {
    const TensorView *view = (const TensorView *)tensor;
    size_t at = index / view->cols * view->stride + index % view->cols;
    if (view->parameter && fixture_without_gradient(view->C, view->T, view->parameter, index)) return 0;
    return view->floats ? (double)view->floats[at] : view->doubles[at];
}

// One parameter-shaped tensor of `arena` (floats or doubles) against "<prefix>.<parameter>" of the fixture.
static void report_parameter(const Fixture *fixture, const char *prefix, const ParameterInfo *info, size_t number,
                             const float *floats, const double *doubles, double limit) {
    char name[64];
    TensorView view = {NULL, NULL, info->cols, info->cols, NULL, fixture->config.C, fixture->T};
    size_t rows = number == 0 ? fixture->config.V : info->rows;  // a fixture has no padding rows
    if (floats) view.floats = floats + info->offset_elems;
    if (doubles) view.doubles = doubles + info->offset_elems;
    if (strcmp(prefix, "final") == 0) view.parameter = info->name;
    snprintf(name, sizeof name, "%s.%s", prefix, info->name);
    Difference d =
        difference_from_fixture(fixture, name, number, info->layers * rows * info->cols, view_element, &view);
    if (view.parameter) d.slack = ADAM_SLACK;
    difference_report(&d, name, info->rows, info->cols, limit);
}

// Logits with rows of Vp against the fixture's (B, T, V).
static void report_logits(const Fixture *fixture, const float *floats, const double *doubles, double limit) {
    TensorView view = {floats, doubles, fixture->config.V, fixture->config.Vp, NULL, 0, 0};
    size_t elems = fixture->B * fixture->T * fixture->config.V;
    Difference d = difference_from_fixture(fixture, "logits", FIXTURE_LOGITS, elems, view_element, &view);
    difference_report(&d, "logits", fixture->B * fixture->T, fixture->config.V, limit);
}

static void report_number(const char *name, double found, double expected, double limit) {
    Difference d;
    memset(&d, 0, sizeof d);
    difference_add(&d, 0, found, expected);
    difference_report(&d, name, 0, 0, limit);
}

// ./dev/reference/fixtures, or the same beside the build folder this program is in.
static const char *fixture_folder(void) {
    static char folder[600] = "dev/reference/fixtures";
    char self[400];
    if (access(folder, R_OK) == 0) return folder;
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length > 0) {
        self[length] = 0;
        char *slash = strrchr(self, '/');
        if (slash) *slash = 0;
        snprintf(folder, sizeof folder, "%s/../../dev/reference/fixtures", self);
    }
    return folder;
}

static void title_of(const Fixture *f, const char *name, const char *what, char title[200]) {
    snprintf(title, 200, "%s: %s (B=%zu T=%zu L=%zu NH=%zu C=%zu V=%zu)", name, what, f->B, f->T, f->config.L,
             f->config.NH, f->config.C, f->config.V);
}

// The double model on a fixture's first batch: fills *gpt, inp and tgt.
static void run_double(DoubleGPT *gpt, const Fixture *fixture, int32_t *inp, int32_t *tgt, double *loss) {
    create_double(gpt, &fixture->config, fixture->B, fixture->T, fixture->seed);
    fixture_batch(fixture, 0, inp, tgt);
    *loss = double_forward(gpt, inp, tgt);
    double_backward(gpt, inp, tgt);
}

TEST(double_agrees_with_pytorch) {
    const double limit = 1.2e-7;  // two roundings to float, in which the fixtures store elements
    for (size_t i = 0; i < FIXTURE_COUNT; i++) {
        Fixture fixture;
        DoubleGPT gpt;
        char title[200];
        double loss;
        fixture_open(&fixture, fixture_folder(), fixture_names[i]);
        int32_t *inp = new_tokens(fixture.B * fixture.T), *tgt = new_tokens(fixture.B * fixture.T);
        run_double(&gpt, &fixture, inp, tgt, &loss);
        title_of(&fixture, fixture_names[i], "double precision against PyTorch", title);
        difference_header(title);
        report_number("loss", loss, fixture.loss[0], 1e-12);
        report_logits(&fixture, NULL, gpt.act[ACT_logits].value, limit);
        for (size_t p = 0; p < GPT_PARAMETER_COUNT; p++)
            report_parameter(&fixture, "grad", &gpt.table[p], p, NULL, gpt.gradient_base, limit);
        double_destroy(&gpt);
        fixture_close(&fixture);
        free(inp);
        free(tgt);
    }
}

// ----------------------------------------------------------------------------------------------------------------
// The trainer against both

// What the trainer shows through Model.observe, held against the double model as it comes.
typedef struct {
    const DoubleGPT *gpt;
    int seen[DOUBLE_ACTIVATION_COUNT];  // layers shown
} Watch;

static void watch(void *context, const char *name, size_t layer, const float *data, size_t elems) {
    Watch *w = (Watch *)context;
    for (int i = 0; i < DOUBLE_ACTIVATION_COUNT; i++) {
        const DoubleActivation *act = &w->gpt->act[i];
        char line[64];
        Difference d;
        if (strcmp(act->name, name + 1) != 0) continue;
        CHECK(name[0] == 'd' && layer < act->layers && elems == act->elems, "%s of layer %zu: %zu elements, not %zu",
              name, layer, elems, act->elems);
        memset(&d, 0, sizeof d);
        for (size_t e = 0; e < elems; e++) difference_add(&d, e, (double)data[e], act->grad[layer * act->elems + e]);
        snprintf(line, sizeof line, "%s %zu", name, layer);
        difference_report(&d, line, 0, 0, LIMIT);
        w->seen[i]++;
        return;
    }
    CHECK(0, "the trainer shows '%s', which the double model does not have", name);
}

static void report_activation(const DoubleGPT *gpt, int act, const float *data) {
    const DoubleActivation *a = &gpt->act[act];
    for (size_t l = 0; l < a->layers; l++) {
        Difference d;
        char line[64];
        memset(&d, 0, sizeof d);
        for (size_t e = 0; e < a->elems; e++)
            difference_add(&d, e, (double)data[l * a->elems + e], a->value[l * a->elems + e]);
        snprintf(line, sizeof line, "%s %zu", a->name, l);
        difference_report(&d, line, 0, 0, LIMIT);
    }
}

// Every tensor the last forward pass kept.
static void report_activations(const DoubleGPT *gpt, const Model *model) {
    const Activations *acts = &model->acts;
#define X(name) report_activation(gpt, ACT_##name, acts->name);
    X(encoded) X(ln1) X(qkv) X(att) X(residual2) X(ln2) X(fch) X(fch_gelu) X(residual3) X(lnf)
#undef X
}

// All logits (B*T, Vp), sequence by sequence: the trainer keeps only a chunk's.
static void forward_logits(Model *model, const int32_t *inp, const int32_t *tgt, size_t B, size_t T, float *logits) {
    const size_t Vp = model->config.Vp;
    for (size_t b = 0; b < B; b++) {
        model_forward(model, inp + b * T, tgt + b * T, 1, T, 0.0f);
        memcpy(logits + b * T * Vp, model->acts.logits, T * Vp * sizeof(float));
    }
}

// Gradients of a fixture's first batch, tensor by tensor.
static void check_first_step(Model *model, const Fixture *fixture, const char *name, const int32_t *inp,
                             const int32_t *tgt, const DoubleGPT *gpt) {
    const size_t B = fixture->B, T = fixture->T, Vp = fixture->config.Vp;
    Watch seen;
    char title[200];
    float *logits = (float *)checked_calloc(B * T * Vp, sizeof(float), "logits");
    title_of(fixture, name, "activations and their gradients against double precision", title);
    difference_header(title);
    forward_logits(model, inp, tgt, B, T, logits);

    memset(&seen, 0, sizeof seen);
    seen.gpt = gpt;
    model->observe = watch;
    model->observe_context = &seen;
    double loss = compute_gradients(model, inp, tgt, B, T, B);
    model->observe = NULL;
    report_activations(gpt, model);
    static const int shown[] = {ACT_encoded, ACT_ln1, ACT_qkv,      ACT_att,       ACT_residual2,
                                ACT_ln2,     ACT_fch, ACT_fch_gelu, ACT_residual3, ACT_lnf};
    for (size_t i = 0; i < sizeof shown / sizeof *shown; i++)
        CHECK(seen.seen[shown[i]] == (int)gpt->act[shown[i]].layers, "d%s was shown for %d of %zu layers",
              gpt->act[shown[i]].name, seen.seen[shown[i]], gpt->act[shown[i]].layers);

    title_of(fixture, name, "parameter gradients against double precision", title);
    difference_header(title);
    for (size_t p = 0; p < GPT_PARAMETER_COUNT; p++) {
        const ParameterInfo *info = &model->table[p];
        Difference d;
        memset(&d, 0, sizeof d);
        for (size_t e = 0; e < parameter_elems(info); e++)
            difference_add(&d, e, (double)((float *)model->grads_arena.base)[info->offset_elems + e],
                           gpt->gradient_base[info->offset_elems + e]);
        difference_report(&d, info->name, info->rows, info->cols, LIMIT);
    }
    title_of(fixture, name, "against PyTorch", title);
    difference_header(title);
    report_number("loss", loss, fixture->loss[0], LIMIT);
    report_logits(fixture, logits, NULL, LIMIT);
    for (size_t p = 0; p < GPT_PARAMETER_COUNT; p++)
        report_parameter(fixture, "grad", &model->table[p], p, (float *)model->grads_arena.base, NULL, LIMIT);
    free(logits);
}

static void check_fixture(const char *name) {
    Fixture fixture;
    DoubleGPT gpt;
    Model model;
    double loss;
    char line[32];
    fixture_open(&fixture, fixture_folder(), name);
    const size_t B = fixture.B, T = fixture.T;
    int32_t *inp = new_tokens(B * T), *tgt = new_tokens(B * T);
    run_double(&gpt, &fixture, inp, tgt, &loss);
    create_model(&model, &fixture.config, B, T, 0, fixture.seed);
    check_first_step(&model, &fixture, name, inp, tgt, &gpt);
    CHECK(fixture.beta1 == 0.9 && fixture.beta2 == 0.95, "other betas than take_step's");
    for (size_t s = 0; s < fixture.steps; s++) {
        fixture_batch(&fixture, s, inp, tgt);
        snprintf(line, sizeof line, "loss, step %zu", s);
        report_number(line, compute_gradients(&model, inp, tgt, B, T, B), fixture.loss[s], LIMIT);
        snprintf(line, sizeof line, "norm, step %zu", s);
        report_number(line, take_step(&model, fixture.lr, fixture.eps, fixture.weight_decay, fixture.clip, s + 1),
                      fixture.norm[s], LIMIT);
    }
    for (size_t p = 0; p < GPT_PARAMETER_COUNT; p++)
        report_parameter(&fixture, "final", &model.table[p], p, (float *)model.weights_arena.base, NULL, LIMIT);
    // What the comparison leaves out may wander by what Adam can move it, and no further.
    for (size_t e = 0; e < fixture.config.L * 3 * fixture.config.C; e++) {
        double start = fixture_weight(&fixture.config, &model.table[5], 5, fixture.seed, e);
        CHECK(fabs((double)model.weights.qkvb[e] - start) <= 1.5 * fixture.lr * (double)fixture.steps,
              "qkvb[%zu] moved from %g to %g", e, start, (double)model.weights.qkvb[e]);
    }
    model_destroy(&model);
    double_destroy(&gpt);
    fixture_close(&fixture);
    free(inp);
    free(tgt);
}

TEST(pytorch_t65_v67_h3) { check_fixture("t65_v67_h3"); }
TEST(pytorch_c30_h3) { check_fixture("c30_h3"); }
TEST(pytorch_b4_t64_v256) { check_fixture("b4_t64_v256"); }
TEST(pytorch_t1) { check_fixture("t1"); }
TEST(pytorch_t127_h1_c72) { check_fixture("t127_h1_c72"); }
TEST(pytorch_c51_h3_l3_v300) { check_fixture("c51_h3_l3_v300"); }

// ----------------------------------------------------------------------------------------------------------------
// What a user relies on

TEST(micro_batches_add_up) {
    const GPTConfig config = make_config(2, 3, 48, 67, 40);
    const double limit = 1e-6;
    Model once, eight;
    create_model(&once, &config, 8, 40, 0, 21);
    create_model(&eight, &config, 1, 40, 0, 21);
    difference_header("B=8 once (expected) and B=1 eight times (found), after three steps");
    for (uint64_t t = 1; t <= 3; t++) {
        double norm_once, norm_eight, loss_once = random_step(&once, 8, 8, 40, t, &norm_once);
        double loss_eight = random_step(&eight, 8, 1, 40, t, &norm_eight);
        report_number("loss", loss_eight, loss_once, limit);
        report_number("norm", norm_eight, norm_once, limit);
    }
    for (size_t p = 0; p < GPT_PARAMETER_COUNT; p++) {
        const ParameterInfo *info = &once.table[p];
        Difference d;
        memset(&d, 0, sizeof d);
        for (size_t e = 0; e < parameter_elems(info); e++)
            if (!fixture_without_gradient(config.C, 40, info->name, e))
                difference_add(&d, e, (double)((float *)eight.weights_arena.base)[info->offset_elems + e],
                               (double)((float *)once.weights_arena.base)[info->offset_elems + e]);
        difference_report(&d, info->name, info->rows, info->cols, limit);
    }
    model_destroy(&once);
    model_destroy(&eight);
}

// Padding columns have no probability whatever their weights, and weights no gradient.
TEST(padding_columns_do_not_exist) {
    const GPTConfig config = make_config(2, 3, 48, 67, 40);
    const size_t padding = (config.Vp - config.V) * config.C;
    Model model, other;
    double norm;
    int32_t *inp = new_tokens(80), *tgt = new_tokens(80);
    make_tokens(inp, 80, config.V, 5);
    make_tokens(tgt, 80, config.V, 6);
    create_model(&model, &config, 2, 40, 0, 22);
    create_model(&other, &config, 2, 40, 0, 22);
    for (size_t e = 0; e < padding; e++) other.weights.wte[config.V * config.C + e] = e % 3 == 0 ? -1e3f : 1e3f;
    compute_gradients(&model, inp, tgt, 2, 40, 2);
    compute_gradients(&other, inp, tgt, 2, 40, 2);
    CHECK(memcmp(model.acts.losses, other.acts.losses, 80 * sizeof(float)) == 0,
          "padding rows of wte change the losses");
    for (size_t p = 0; p < GPT_PARAMETER_COUNT; p++)
        CHECK(memcmp((float *)model.grads_arena.base + model.table[p].offset_elems,
                     (float *)other.grads_arena.base + model.table[p].offset_elems,
                     parameter_elems(&model.table[p]) * sizeof(float)) == 0,
              "padding rows of wte change the gradient of %s", model.table[p].name);
    for (size_t e = 0; e < padding; e++)
        CHECK(model.grads.wte[config.V * config.C + e] == 0.0f, "padding element %zu has a gradient of %g", e,
              (double)model.grads.wte[config.V * config.C + e]);
    for (size_t n = 0; n < 80; n++)
        for (size_t v = config.V; v < config.Vp; v++)
            CHECK(other.acts.logits[n * config.Vp + v] == 0.0f, "row %zu: dlogits of padding column %zu is %g", n, v,
                  (double)other.acts.logits[n * config.Vp + v]);
    for (uint64_t t = 1; t <= 5; t++) random_step(&model, 2, 2, 40, t, &norm);
    for (size_t e = 0; e < padding; e++)
        CHECK(model.weights.wte[config.V * config.C + e] == 0.0f, "padding element %zu of wte became %g", e,
              (double)model.weights.wte[config.V * config.C + e]);
    model_destroy(&model);
    model_destroy(&other);
    free(inp);
    free(tgt);
}

// Runs `steps` steps with `threads` threads and the given recomputation, from the same start each time.
static void train_run(Model *model, const GPTConfig *config, size_t B, size_t T, int recompute, int threads,
                      uint64_t steps, double *losses, double *norms) {
    set_thread_count(threads);
    create_model(model, config, B, T, recompute, 23);
    for (uint64_t t = 1; t <= steps; t++) losses[t - 1] = random_step(model, B, B, T, t, &norms[t - 1]);
}

static void check_threads(const GPTConfig *config, size_t B, size_t T, uint64_t steps) {
    const int before = thread_count();
    double losses[2][64], norms[2][64];
    Model one, more;
    train_run(&one, config, B, T, 0, 1, steps, losses[0], norms[0]);
    for (int threads = 2; threads <= 3; threads++) {
        train_run(&more, config, B, T, 0, threads, steps, losses[1], norms[1]);
        for (uint64_t t = 0; t < steps; t++)
            CHECK(losses[1][t] == losses[0][t] && norms[1][t] == norms[0][t],
                  "step %llu with %d threads: loss %.17g, norm %.17g; with 1 thread %.17g, %.17g",
                  (unsigned long long)t, threads, losses[1][t], norms[1][t], losses[0][t], norms[0][t]);
        CHECK(same_weights(&one, &more), "weights differ between 1 and %d threads", threads);
        model_destroy(&more);
    }
    model_destroy(&one);
    set_thread_count(before);
}

TEST(fifty_steps_same_bits_for_1_2_3_threads) {
#ifndef _OPENMP
    SKIP("built without OpenMP: there is only one thread");
#endif
    const GPTConfig config = make_config(2, 3, 48, 67, 40);
    check_threads(&config, 3, 40, 50);
}

// Large enough that every kernel splits its work.
TEST(larger_model_same_bits_for_1_2_3_threads) {
#ifndef _OPENMP
    SKIP("built without OpenMP: there is only one thread");
#endif
    const GPTConfig config = make_config(2, 4, 192, 1000, 130);
    check_threads(&config, 3, 130, 2);
}

TEST(recomputation_changes_no_bit) {
    const GPTConfig config = make_config(3, 3, 48, 67, 40);
    double losses[2][8], norms[2][8];
    Model keep, again;
    train_run(&keep, &config, 3, 40, 0, thread_count(), 5, losses[0], norms[0]);
    for (int recompute = 1; recompute <= 2; recompute++) {
        train_run(&again, &config, 3, 40, recompute, thread_count(), 5, losses[1], norms[1]);
        for (int t = 0; t < 5; t++)
            CHECK(losses[1][t] == losses[0][t] && norms[1][t] == norms[0][t],
                  "--recompute %d, step %d: loss %.17g, not %.17g", recompute, t, losses[1][t], losses[0][t]);
        CHECK(same_weights(&keep, &again), "--recompute %d changes the weights", recompute);
        CHECK(again.acts_arena.capacity_bytes <= keep.acts_arena.capacity_bytes &&
                  again.acts_arena.used_bytes < keep.acts_arena.used_bytes,
              "--recompute %d saves nothing: %zu of %zu bytes", recompute, again.acts_arena.used_bytes,
              keep.acts_arena.used_bytes);
        model_destroy(&again);
    }
    model_destroy(&keep);
}

// Token by token with cached keys and values, twice over (the second text must not see the first one's cache).
TEST(generation_has_the_forward_pass_s_logits) {
    const GPTConfig config = make_config(2, 3, 51, 67, 70);
    const size_t T = 65;
    Model model;
    int32_t inp[2 * 65], tgt[2 * 65];
    float logits[128], *expected = (float *)checked_calloc(2 * T * config.Vp, sizeof(float), "logits");
    make_tokens(inp, 2 * T, config.V, 7);
    make_tokens(tgt, 2 * T, config.V, 8);
    create_model(&model, &config, 2, T, 0, 24);
    forward_logits(&model, inp, tgt, 2, T, expected);
    difference_header("logits by token with cache (found) and of the whole sequence (expected)");
    for (size_t b = 0; b < 2; b++) {
        Difference d;
        memset(&d, 0, sizeof d);
        for (size_t t = 0; t < T; t++) {
            model_logits(&model, inp[b * T + t], t, logits);
            for (size_t v = 0; v < config.V; v++)
                difference_add(&d, t * config.V + v, (double)logits[v], (double)expected[(b * T + t) * config.Vp + v]);
        }
        difference_report(&d, b ? "second text" : "first text", T, config.V, LIMIT);
    }
    free(expected);
    model_destroy(&model);
}

// Evaluating and generating between two steps leaves training as it was, bit for bit.
TEST(looking_does_not_disturb_training) {
    const GPTConfig config = make_config(2, 3, 48, 67, 40);
    int32_t tokens[120];
    float logits[128];
    double norm;
    Model quiet, looked_at;
    make_tokens(tokens, 120, config.V, 9);
    create_model(&quiet, &config, 3, 40, 0, 25);
    create_model(&looked_at, &config, 3, 40, 0, 25);
    for (uint64_t t = 1; t <= 4; t++) {
        double loss = random_step(&quiet, 3, 3, 40, t, &norm);
        CHECK(loss == random_step(&looked_at, 3, 3, 40, t, &norm), "step %llu has another loss", (unsigned long long)t);
        model_forward(&looked_at, tokens, tokens, 2, 17, 0.0f);
        for (size_t pos = 0; pos < 10; pos++) model_logits(&looked_at, tokens[pos], pos, logits);
    }
    CHECK(same_weights(&quiet, &looked_at), "weights differ");
    model_destroy(&quiet);
    model_destroy(&looked_at);
}

// A sequence's losses do not depend on what else is in the batch, nor on how many rows there are.
TEST(a_sequence_s_losses_do_not_depend_on_its_batch) {
    const GPTConfig config = make_config(2, 3, 48, 300, 130);
    const size_t B = 3, T = 129;  // 387 rows: two chunks of logits
    int32_t *inp = new_tokens(B * T), *tgt = new_tokens(B * T);
    float losses[3 * 129];
    Model model;
    make_tokens(inp, B * T, config.V, 10);
    make_tokens(tgt, B * T, config.V, 11);
    create_model(&model, &config, B, T, 0, 26);
    model_forward(&model, inp, tgt, B, T, 0.0f);
    memcpy(losses, model.acts.losses, sizeof losses);
    for (size_t b = 0; b < B; b++) {
        model_forward(&model, inp + b * T, tgt + b * T, 1, T, 0.0f);
        CHECK(memcmp(losses + b * T, model.acts.losses, T * sizeof(float)) == 0, "sequence %zu alone has other losses",
              b);
        model_forward(&model, inp + b * T, tgt + b * T, 1, 50, 0.0f);
        for (size_t t = 0; t < 50;
             t++)  // nor on what follows in it; other rows may sit in other tiles: not the same bits
            CHECK(fabsf(losses[b * T + t] - model.acts.losses[t]) <= 1e-5f * losses[b * T + t],
                  "the loss at %zu depends on later tokens: %.9g, %.9g", t, (double)losses[b * T + t],
                  (double)model.acts.losses[t]);
    }
    model_destroy(&model);
    free(inp);
    free(tgt);
}

TEST(one_batch_can_be_learned_by_heart) {
    const GPTConfig config = make_config(2, 2, 32, 67, 32);
    int32_t inp[64], tgt[64];
    double loss = 0, first = 0;
    Model model;
    make_tokens(inp, 64, config.V, 12);
    make_tokens(tgt, 64, config.V, 13);
    create_model(&model, &config, 2, 32, 0, 0);
    model_init_weights(&model, 1234);
    for (uint64_t t = 1; t <= 120; t++) {
        loss = compute_gradients(&model, inp, tgt, 2, 32, 2);
        if (t == 1) first = loss;
        take_step(&model, 1e-2, 1e-8, 0.0, 1.0, t);
    }
    printf("  one batch: loss %.4f -> %.5f in 120 steps\n", first, loss);
    CHECK(fabs(first - log(67.0)) < 0.1, "the first loss is %g: a fresh model should guess, ln 67 = %g", first,
          log(67.0));
    CHECK(loss < 0.02, "the loss is still %g", loss);
    model_destroy(&model);
}

TEST(initial_weights_are_gpt2_s) {
    const GPTConfig config = make_config(3, 2, 64, 67, 128);
    Model model;
    create_model(&model, &config, 1, 8, 0, 0);
    model_init_weights(&model, 42);
    for (size_t p = 0; p < GPT_PARAMETER_COUNT; p++) {
        const ParameterInfo *info = &model.table[p];
        const float *w = (const float *)model.weights_arena.base + info->offset_elems;
        size_t n = p == 0 ? config.V * config.C : parameter_elems(info);
        double mean = 0, squares = 0, deviation;
        for (size_t e = 0; e < n; e++) mean += (double)w[e] / (double)n;
        for (size_t e = 0; e < n; e++) squares += ((double)w[e] - mean) * ((double)w[e] - mean) / (double)n;
        deviation = info->init == INIT_NORMAL ? 0.02 : info->init == INIT_RESIDUAL ? 0.02 / sqrt(6.0) : 0;
        CHECK(fabs(sqrt(squares) - deviation) <= 0.04 * deviation + 1e-12, "%s: standard deviation %g, not %g",
              info->name, sqrt(squares), deviation);
        CHECK(fabs(mean - (info->init == INIT_ONE)) <= 5 * deviation / sqrt((double)n) + 1e-12, "%s: mean %g",
              info->name, mean);
    }
    for (size_t e = config.V * config.C; e < config.Vp * config.C; e++)
        CHECK(model.weights.wte[e] == 0.0f, "padding element %zu of wte is %g", e, (double)model.weights.wte[e]);
    model_destroy(&model);
}

// NaN and infinity are found, wherever they sit, and named.
TEST(numbers_that_are_not_finite_are_seen) {
    const GPTConfig config = make_config(2, 3, 48, 67, 40);
    int32_t tokens[40];
    char text[100];
    int nonfinite;
    Model model;
    make_tokens(tokens, 40, config.V, 14);
    create_model(&model, &config, 1, 40, 0, 27);
    compute_gradients(&model, tokens, tokens, 1, 40, 1);
    CHECK(!model_first_nonfinite(&model, text, sizeof text), "a sound model is said to fail in %s", text);
    for (size_t p = 0; p < GPT_PARAMETER_COUNT; p++) {
        float *grad = (float *)model.grads_arena.base + model.table[p].offset_elems;
        size_t last = parameter_elems(&model.table[p]) - 1;
        float kept = grad[last];
        grad[last] = p % 2 ? INFINITY : NAN;
        model_grad_norm(&model, &nonfinite);
        CHECK(nonfinite, "a gradient of %s that is not finite is not seen", model.table[p].name);
        grad[last] = kept;
        model_grad_norm(&model, &nonfinite);
        CHECK(!nonfinite, "a finite gradient counts as not finite");
    }
    model.weights.fcb[4 * config.C + 7] = INFINITY;
    model_forward(&model, tokens, tokens, 1, 40, 0.0f);
    CHECK(model_first_nonfinite(&model, text, sizeof text) && strstr(text, "layer 1") && strstr(text, "fc"),
          "an infinite fcb of layer 1 is said to be in %s", text);
    model.weights.wpe[3] = NAN;
    model_forward(&model, tokens, tokens, 1, 40, 0.0f);
    CHECK(model_first_nonfinite(&model, text, sizeof text) && strstr(text, "embedding"),
          "a NaN in wpe is said to be in %s", text);
    model_destroy(&model);
}

// ----------------------------------------------------------------------------------------------------------------
// The tests themselves can fail

TEST(wrong_numbers_are_caught) {
    Fixture fixture;
    DoubleGPT gpt;
    double loss;
    fixture_open(&fixture, fixture_folder(), "c30_h3");
    int32_t *inp = new_tokens(fixture.B * fixture.T), *tgt = new_tokens(fixture.B * fixture.T);
    run_double(&gpt, &fixture, inp, tgt, &loss);
    const ParameterInfo *info = &gpt.table[10];  // fcw
    double *grad = gpt.gradient_base + info->offset_elems, largest = 0;
    TensorView view = {NULL, grad, info->cols, info->cols, NULL, 0, 0};
    size_t elems = parameter_elems(info);
    for (size_t e = 0; e < elems; e++) largest = fmax(largest, fabs(grad[e]));
    for (size_t e = 0; e < 300; e++) {  // one element wrong, in or out of the sample
        double kept = grad[e], relative;
        grad[e] += e % 100 == 99 ? NAN : e % 2 ? largest : -largest;
        Difference d = difference_from_fixture(&fixture, "grad.fcw", 10, elems, view_element, &view);
        relative = difference_relative(&d);
        CHECK(!(relative <= LIMIT), "element %zu off by the tensor's largest: only %g is seen", e, relative);
        grad[e] = kept;
    }
    for (size_t e = 0; e < elems; e++) grad[e] *= 1 + 1.5e-5;  // all slightly wrong
    Difference d = difference_from_fixture(&fixture, "grad.fcw", 10, elems, view_element, &view);
    CHECK(difference_relative(&d) > LIMIT, "a gradient 1.5e-5 too large passes");
    double_destroy(&gpt);
    fixture_close(&fixture);
    free(inp);
    free(tgt);
}

int main(void) {
    RUN(double_gradients_are_finite_differences);
    RUN(double_agrees_with_pytorch);
    RUN(wrong_numbers_are_caught);
    RUN(pytorch_t65_v67_h3);
    RUN(pytorch_c30_h3);
    RUN(pytorch_b4_t64_v256);
    RUN(pytorch_t1);
    RUN(pytorch_t127_h1_c72);
    RUN(pytorch_c51_h3_l3_v300);
    RUN(micro_batches_add_up);
    RUN(padding_columns_do_not_exist);
    RUN(fifty_steps_same_bits_for_1_2_3_threads);
    RUN(larger_model_same_bits_for_1_2_3_threads);
    RUN(recomputation_changes_no_bit);
    RUN(generation_has_the_forward_pass_s_logits);
    RUN(looking_does_not_disturb_training);
    RUN(a_sequence_s_losses_do_not_depend_on_its_batch);
    RUN(one_batch_can_be_learned_by_heart);
    RUN(initial_weights_are_gpt2_s);
    RUN(numbers_that_are_not_finite_are_seen);
    return test_summary();
}
