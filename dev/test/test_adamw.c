// adamw.h: the written formula bit for bit, ten steps against double precision, edges.
#include "../../llmc/adamw.h"

#include "compare.h"

static const size_t lengths[] = {1, 15, 17, 1000, 5003};
#define LENGTHS (sizeof lengths / sizeof lengths[0])

typedef struct {
    size_t n;
    float *w, *m, *v, *grad;
} Run;

static Run run_create(size_t n) {
    Run r = {n, random_floats(n, 0.0f, 1.0f, n), random_floats(n, 0.0f, 0.01f, n + 1),
             random_floats(n, 0.02f, 0.01f, n + 2), random_floats(n, 0.0f, 0.1f, n + 3)};
    return r;
}

static void run_free(Run *r) {
    guarded_free("w", r->w, r->n), guarded_free("m", r->m, r->n), guarded_free("v", r->v, r->n);
    guarded_free("grad", r->grad, r->n);
}

// One operation a statement and volatile between, so that no compiler can join or split any of them.
static void scalar_update(Run *r, const AdamWHyper *h) {
    for (size_t i = 0; i < r->n; i++) {
        volatile float g = r->grad[i] * h->grad_scale, gg = g * g;
        volatile float a = h->one_minus_beta1 * g, b = h->one_minus_beta2 * gg;
        volatile float m = fmaf(h->beta1, r->m[i], a), v = fmaf(h->beta2, r->v[i], b);
        volatile float mh = m * h->bc1, vh = v * h->bc2, root = sqrtf(vh), denominator = root + h->eps;
        volatile float ratio = mh / denominator, decay = h->weight_decay * r->w[i], sum = ratio + decay;
        volatile float up = -h->lr * sum;
        r->w[i] = r->w[i] + up, r->m[i] = m, r->v[i] = v;
    }
}

TEST(every_operation_rounds_as_written) {
    int threads = thread_count();
    for (size_t k = 0; k < LENGTHS; k++)
        for (int t = 1; t <= 3; t++) {
            Run got = run_create(lengths[k]), want = run_create(lengths[k]);
            AdamWHyper h = adamw_hyper(3e-4, 0.9, 0.95, 1e-8, 0.1, 0.37, 7);
            set_thread_count(t);
            adamw_update(got.w, got.m, got.v, got.grad, got.n, &h);
            scalar_update(&want, &h);
            CHECK_SAME("w", got.w, want.w, got.n);
            CHECK_SAME("m", got.m, want.m, got.n);
            CHECK_SAME("v", got.v, want.v, got.n);
            run_free(&got), run_free(&want);
        }
    set_thread_count(threads);
}

// Ten steps from zero moments as the paper writes them, in double, with the betas most used and both decays.
TEST(ten_steps_equal_double_precision) {
    const double beta2s[] = {0.95, 0.999}, decays[] = {0.0, 0.1};
    enum { n = 301 };
    for (int k = 0; k < 4; k++) {
        double beta1 = 0.9, beta2 = beta2s[k / 2], decay = decays[k % 2], lr = 1e-2, eps = 1e-8;
        Run r = run_create(n);
        double *w = zero_doubles(n), *m = zero_doubles(n), *v = zero_doubles(n);
        for (size_t i = 0; i < n; i++) w[i] = (double)r.w[i], r.m[i] = r.v[i] = 0.0f;
        for (uint64_t t = 1; t <= 10; t++) {
            fill_random(r.grad, n, 0.01f, 0.1f, t);
            AdamWHyper h = adamw_hyper(lr, beta1, beta2, eps, decay, 0.5, t);
            adamw_update(r.w, r.m, r.v, r.grad, n, &h);
            for (size_t i = 0; i < n; i++) {
                double g = 0.5 * (double)r.grad[i];
                m[i] = beta1 * m[i] + (1 - beta1) * g;
                v[i] = beta2 * v[i] + (1 - beta2) * g * g;
                double m_hat = m[i] / (1 - pow(beta1, (double)t)), v_hat = v[i] / (1 - pow(beta2, (double)t));
                w[i] -= lr * (m_hat / (sqrt(v_hat) + eps) + decay * w[i]);
            }
        }
        CHECK_CLOSE("w", r.w, w, n, FLT_EPSILON * sqrt(10.0));
        CHECK_CLOSE("m", r.m, m, n, FLT_EPSILON * 10);
        CHECK_CLOSE("v", r.v, v, n, FLT_EPSILON * 10);
        free(w), free(m), free(v);
        run_free(&r);
    }
}

TEST(zero_gradient_and_moments_only_decay) {
    Run r = run_create(1000), start = run_create(1000);
    AdamWHyper h = adamw_hyper(0.5, 0.9, 0.95, 1e-8, 0.0, 1.0, 1);
    for (size_t i = 0; i < r.n; i++) r.grad[i] = r.m[i] = r.v[i] = 0.0f;
    adamw_update(r.w, r.m, r.v, r.grad, r.n, &h);
    CHECK_SAME("w without decay", r.w, start.w, r.n);
    h.weight_decay = 0.5f;
    adamw_update(r.w, r.m, r.v, r.grad, r.n, &h);
    for (size_t i = 0; i < r.n; i++)
        CHECK(r.w[i] == start.w[i] - 0.25f * start.w[i] || fabsf(r.w[i] / start.w[i] - 0.75f) < FLT_EPSILON,
              "w[%zu] is %g, was %g", i, (double)r.w[i], (double)start.w[i]);
    run_free(&r), run_free(&start);
}

// The first step of Adam moves every weight by lr, however small or large its gradient.
TEST(first_step_is_lr_for_any_gradient) {
    for (float g = 1e-3f; g < 1e9f; g *= 10.0f) {
        float w = 0.0f, m = 0.0f, v = 0.0f;
        AdamWHyper h = adamw_hyper(1e-3, 0.9, 0.999, 1e-8, 0.1, 1.0, 1);
        adamw_update(&w, &m, &v, &g, 1, &h);
        CHECK(fabs((double)w + 1e-3) < 2e-8, "gradient %g moved the weight by %g", (double)g, (double)w);
    }
}

TEST(nan_gradient_gives_nan) {
    float w[3] = {1.0f, 1.0f, 1.0f}, m[3] = {0}, v[3] = {0}, g[3] = {1.0f, NAN, 1.0f};
    AdamWHyper h = adamw_hyper(1e-3, 0.9, 0.95, 1e-8, 0.0, 1.0, 1);
    adamw_update(w, m, v, g, 3, &h);
    CHECK(isfinite(w[0]) && isnan(w[1]) && isfinite(w[2]), "%g %g %g", (double)w[0], (double)w[1], (double)w[2]);
}

int main(void) {
    RUN(every_operation_rounds_as_written);
    RUN(ten_steps_equal_double_precision);
    RUN(zero_gradient_and_moments_only_decay);
    RUN(first_step_is_lr_for_any_gradient);
    RUN(nan_gradient_gives_nan);
    return test_summary();
}
