// cross_entropy.h against log-softmax in double, its gradient against central differences, padding, hard rows.
#include "../../llmc/cross_entropy.h"

#include "compare.h"

typedef struct {
    size_t rows, V, Vp;
} Shape;

static const Shape shapes[] = {{1, 2, 128},     {1, 67, 128},  {65, 67, 67},
                               {127, 257, 384}, {5, 128, 128}, {3, 5003, 5120}};
#define SHAPES (sizeof shapes / sizeof shapes[0])

static double reference_loss(const double *x, size_t target, size_t V) {
    double max = -INFINITY, sum = 0;
    for (size_t i = 0; i < V; i++) max = fmax(max, x[i]);
    for (size_t i = 0; i < V; i++) sum += exp(x[i] - max);
    return log(sum) + max - x[target];
}

// Logits with NaN and huge values in the padding columns: nothing may ever come from there.
static float *random_logits(Shape s, float scale, uint64_t seed) {
    float *logits = random_floats(s.rows * s.Vp, 0.0f, scale, seed);
    for (size_t i = 0; i < s.rows * s.Vp; i++)
        if (i % s.Vp >= s.V) logits[i] = i % 2 ? NAN : 1e30f;
    return logits;
}

static int32_t *random_targets(Shape s) {
    int32_t *targets = (int32_t *)malloc(s.rows * sizeof *targets);
    uint64_t state = test_seed(s.V);
    for (size_t i = 0; targets && i < s.rows; i++) targets[i] = (int32_t)(test_uniform(&state) * (double)s.V);
    if (targets) targets[s.rows - 1] = (int32_t)s.V - 1;
    return targets;
}

// Loss and gradient of one shape; the gradient's reference is (p - onehot) dloss in double.
static void check_shape(Shape s, float scale, float dloss) {
    size_t n = s.rows * s.Vp;
    float *logits = random_logits(s, scale, s.V), *before = random_logits(s, scale, s.V);
    float *losses = guarded_floats(s.rows, NAN), *losses_only = guarded_floats(s.rows, NAN);
    int32_t *targets = random_targets(s);
    double *loss_want = zero_doubles(s.rows), *want = zero_doubles(n), *x = zero_doubles(s.V);
    for (size_t row = 0; row < s.rows; row++) {
        for (size_t i = 0; i < s.V; i++) x[i] = (double)before[row * s.Vp + i];
        loss_want[row] = reference_loss(x, (size_t)targets[row], s.V);
        double log_sum = loss_want[row] + x[targets[row]];
        for (size_t i = 0; i < s.V; i++)
            want[row * s.Vp + i] = (exp(x[i] - log_sum) - ((int32_t)i == targets[row])) * (double)dloss;
    }
    fused_classifier(logits, losses_only, targets, 0.0f, s.rows, s.V, s.Vp);
    CHECK_SAME("logits without a gradient", logits, before, n);
    fused_classifier(logits, losses, targets, dloss, s.rows, s.V, s.Vp);
    double bound = 2 * FLT_EPSILON * (sqrt((double)s.V) + (double)scale);  // exp magnifies its argument's rounding
    CHECK_SAME("losses with and without a gradient", losses, losses_only, s.rows);
    CHECK_CLOSE("losses", losses, loss_want, s.rows, bound);
    CHECK_CLOSE("dlogits", logits, want, n, bound);
    for (size_t i = 0; i < n; i++)
        if (i % s.Vp >= s.V) CHECK(logits[i] == 0.0f, "padding gradient %zu is %g", i, (double)logits[i]);
    free(targets), free(loss_want), free(want), free(x);
    guarded_free("logits", logits, n), guarded_free("before", before, n);
    guarded_free("losses", losses, s.rows), guarded_free("losses", losses_only, s.rows);
}

TEST(loss_and_gradient_equal_double_reference) {
    for (size_t i = 0; i < SHAPES; i++) {
        check_shape(shapes[i], 3.0f, 1.0f);
        check_shape(shapes[i], 3.0f, 1.0f / 4096.0f);
    }
}

// Logits of 1e4 and more, where exp of a logit itself is inf or 0.
TEST(huge_logits) {
    for (size_t i = 0; i < SHAPES; i++) check_shape(shapes[i], 1e4f, 1.0f);
}

TEST(reference_gradient_is_the_derivative) {
    double x[11], h = 1e-5;
    uint64_t state = test_seed(5);
    for (int i = 0; i < 11; i++) x[i] = 4 * test_uniform(&state);
    for (int i = 0; i < 11; i++) {
        double keep = x[i], want = exp(-reference_loss(x, (size_t)i, 11)) - (i == 6);
        x[i] = keep + h;
        double above = reference_loss(x, 6, 11);
        x[i] = keep - h;
        double below = reference_loss(x, 6, 11);
        x[i] = keep;
        CHECK(fabs((above - below) / (2 * h) - want) < 1e-9, "d%d: %.10g, slope %.10g", i, want,
              (above - below) / (2 * h));
    }
}

TEST(equal_logits_and_masks) {
    enum { V = 67, Vp = 128 };
    float *x = guarded_floats(3 * Vp, NAN), losses[3];
    const int32_t targets[3] = {3, 0, 5};
    for (int i = 0; i < V; i++) {
        x[i] = 7.0f;                                // all equal: loss log V
        x[Vp + i] = i < 2 ? 1.0f : -INFINITY;       // two left by a mask: loss log 2
        x[2 * Vp + i] = i == 5 ? -INFINITY : 0.0f;  // the target itself masked: loss inf
    }
    fused_classifier(x, losses, targets, 1.0f, 3, V, Vp);
    CHECK(fabs((double)losses[0] - log(67.0)) < 1e-6, "loss of equal logits is %.9g", (double)losses[0]);
    CHECK(fabs((double)losses[1] - log(2.0)) < 1e-7, "loss of two is %.9g", (double)losses[1]);
    CHECK(losses[2] == INFINITY, "loss of a masked target is %g", (double)losses[2]);
    CHECK(x[Vp] == -0.5f && x[Vp + 1] == 0.5f && x[Vp + 2] == 0.0f, "gradient under a mask: %g %g %g", (double)x[Vp],
          (double)x[Vp + 1], (double)x[Vp + 2]);
    guarded_free("x", x, 3 * Vp);
}

TEST(nan_and_inf_give_nan) {
    enum { V = 67, Vp = 128 };
    const float bad[] = {NAN, INFINITY, -NAN};
    for (int place = 0; place < V; place += 11)
        for (int k = 0; k < 3; k++) {
            float *x = random_floats(2 * Vp, 0.0f, 1.0f, 1), losses[2];
            const int32_t targets[2] = {30, 31};
            x[place] = bad[k];
            fused_classifier(x, losses, targets, 1.0f, 2, V, Vp);
            CHECK(isnan(losses[0]), "%g at %d: loss %g", (double)bad[k], place, (double)losses[0]);
            CHECK(isnan(x[place]), "%g at %d: gradient %g", (double)bad[k], place, (double)x[place]);
            CHECK(x[V] == 0.0f && isfinite(losses[1]), "%g at %d: padding or the next row", (double)bad[k], place);
            guarded_free("x", x, 2 * Vp);
        }
}

TEST(any_thread_count_gives_the_same_bits) {
    const Shape s = {37, 257, 384};
    const size_t n = s.rows * s.Vp;
    int threads = thread_count();
    float *x[4], *losses[4];
    int32_t *targets = random_targets(s);
    for (int k = 1; k <= 3; k++) {
        set_thread_count(k);
        x[k] = random_logits(s, 2.0f, 9), losses[k] = guarded_floats(s.rows, NAN);
        fused_classifier(x[k], losses[k], targets, 0.25f, s.rows, s.V, s.Vp);
    }
    for (int k = 2; k <= 3; k++) {
        CHECK_SAME("dlogits", x[1], x[k], n);
        CHECK_SAME("losses", losses[1], losses[k], s.rows);
    }
    for (int k = 1; k <= 3; k++) guarded_free("x", x[k], n), guarded_free("losses", losses[k], s.rows);
    free(targets);
    set_thread_count(threads);
}

int main(void) {
    RUN(loss_and_gradient_equal_double_reference);
    RUN(huge_logits);
    RUN(reference_gradient_is_the_derivative);
    RUN(equal_logits_and_masks);
    RUN(nan_and_inf_give_nan);
    RUN(any_thread_count_gives_the_same_bits);
    return test_summary();
}
