// layernorm.h against double precision; its gradient against central differences of that.
#include "../../llmc/layernorm.h"

#include "compare.h"

typedef struct {
    size_t N, C;
} Shape;

static const Shape shapes[] = {{1, 1}, {3, 5}, {1, 48}, {65, 72}, {127, 80}, {33, 64}, {2, 768}, {70, 129}};
#define SHAPES (sizeof shapes / sizeof shapes[0])

static void reference_row(double *out, double *mean, double *rstd, const double *x, const double *weight,
                          const double *bias, size_t C) {
    double m = 0, v = 0;
    for (size_t c = 0; c < C; c++) m += x[c] / (double)C;
    for (size_t c = 0; c < C; c++) v += (x[c] - m) * (x[c] - m) / (double)C;
    double s = 1.0 / sqrt(v + 1e-5);
    for (size_t c = 0; c < C; c++) out[c] = (x[c] - m) * s * weight[c] + bias[c];
    *mean = m, *rstd = s;
}

// sum over c of dout * out
static double reference_loss(const double *x, const double *weight, const double *bias, const double *dout, size_t C) {
    double *out = zero_doubles(C), mean, rstd, loss = 0;
    reference_row(out, &mean, &rstd, x, weight, bias, C);
    for (size_t c = 0; c < C; c++) loss += dout[c] * out[c];
    free(out);
    return loss;
}

typedef struct {
    size_t N, C, n, scratch_elems;
    float *inp, *inp2, *weight, *bias, *dout, *residual, *out, *mean, *rstd, *dinp, *dweight, *dbias, *scratch;
} Run;

// `=` outputs begin as NaN, `+=` outputs as 3 plus or minus 1.
static Run run_create(Shape s, float offset, float scale) {
    Run r;
    r.N = s.N, r.C = s.C, r.n = s.N * s.C, r.scratch_elems = layernorm_backward_scratch_elems(s.N, s.C);
    r.inp = random_floats(r.n, offset, scale, r.n), r.inp2 = random_floats(r.n, 0.0f, scale, r.n + 1);
    r.weight = random_floats(r.C, 1.0f, 0.5f, 3), r.bias = random_floats(r.C, 0.0f, 0.5f, 4);
    r.dout = random_floats(r.n, 0.0f, 1.0f, r.n + 5);
    r.residual = guarded_floats(r.n, NAN), r.out = guarded_floats(r.n, NAN);
    r.mean = guarded_floats(r.N, NAN), r.rstd = guarded_floats(r.N, NAN);
    r.dinp = random_floats(r.n, 3.0f, 1.0f, 6), r.dweight = random_floats(r.C, 3.0f, 1.0f, 7);
    r.dbias = random_floats(r.C, 3.0f, 1.0f, 8);
    r.scratch = guarded_floats(r.scratch_elems, NAN);
    return r;
}

static void run_forward(Run *r) { layernorm_forward(r->out, r->mean, r->rstd, r->inp, r->weight, r->bias, r->N, r->C); }

static void run_backward(Run *r) {
    layernorm_backward(r->dinp, r->dweight, r->dbias, r->dout, r->inp, r->weight, r->mean, r->rstd, r->N, r->C,
                       r->scratch);
}

static void run_free(Run *r) {
    guarded_free("inp", r->inp, r->n), guarded_free("inp2", r->inp2, r->n), guarded_free("weight", r->weight, r->C);
    guarded_free("bias", r->bias, r->C), guarded_free("dout", r->dout, r->n), guarded_free("out", r->out, r->n);
    guarded_free("residual", r->residual, r->n), guarded_free("mean", r->mean, r->N);
    guarded_free("rstd", r->rstd, r->N), guarded_free("dinp", r->dinp, r->n);
    guarded_free("dweight", r->dweight, r->C), guarded_free("dbias", r->dbias, r->C);
    guarded_free("scratch", r->scratch, r->scratch_elems);
}

static double *to_double(const float *x, size_t n) {
    double *y = zero_doubles(n);
    for (size_t i = 0; i < n; i++) y[i] = (double)x[i];
    return y;
}

// `condition`: |mean| / deviation of a row, by which its rounding is magnified.
static void check_forward(Shape s, float offset, float scale, double condition) {
    Run r = run_create(s, offset, scale);
    double *x = to_double(r.inp, r.n), *weight = to_double(r.weight, r.C), *bias = to_double(r.bias, r.C);
    double *out = zero_doubles(r.n), *mean = zero_doubles(r.N), *rstd = zero_doubles(r.N);
    double bound = 2 * FLT_EPSILON * sqrt((double)s.C) * condition;
    run_forward(&r);
    for (size_t row = 0; row < r.N; row++)
        reference_row(out + row * r.C, mean + row, rstd + row, x + row * r.C, weight, bias, r.C);
    CHECK_CLOSE("out", r.out, out, r.n, bound);
    CHECK_CLOSE("mean", r.mean, mean, r.N, bound);
    CHECK_CLOSE("rstd", r.rstd, rstd, r.N, bound);
    free(x), free(weight), free(bias), free(out), free(mean), free(rstd);
    run_free(&r);
}

TEST(forward_equals_double_reference) {
    for (size_t i = 0; i < SHAPES; i++) check_forward(shapes[i], 0.1f, 1.0f, 1);
}

// A row far from 0: variance as mean square minus squared mean would be wrong in the first digit here.
TEST(rows_far_from_zero) {
    const Shape s = {5, 96};
    check_forward(s, 3000.0f, 1.0f, 3000 / 0.57);
}

TEST(fused_residual_is_addition_then_layernorm) {
    for (size_t i = 0; i < SHAPES; i++) {
        Run r = run_create(shapes[i], 0.0f, 1.0f), plain = run_create(shapes[i], 0.0f, 1.0f);
        fused_residual_layernorm_forward(r.residual, r.out, r.mean, r.rstd, r.inp, r.inp2, r.weight, r.bias, r.N, r.C);
        for (size_t k = 0; k < r.n; k++) plain.inp[k] = r.inp[k] + r.inp2[k];
        run_forward(&plain);
        CHECK_SAME("residual", r.residual, plain.inp, r.n);
        CHECK_SAME("out", r.out, plain.out, r.n);
        CHECK_SAME("mean", r.mean, plain.mean, r.N);
        CHECK_SAME("rstd", r.rstd, plain.rstd, r.N);
        fused_residual_layernorm_forward(r.inp, r.out, r.mean, r.rstd, r.inp, r.inp2, r.weight, r.bias, r.N, r.C);
        CHECK_SAME("residual in place", r.inp, plain.inp, r.n);
        CHECK_SAME("out, residual in place", r.out, plain.out, r.n);
        run_free(&r), run_free(&plain);
    }
}

// Analytic gradients in double, added to what the buffers held; `slope` checks a few of them by central differences.
static void check_backward(Shape s) {
    Run r = run_create(s, 0.1f, 1.0f);
    size_t C = s.C;
    double *x = to_double(r.inp, r.n), *weight = to_double(r.weight, C), *bias = to_double(r.bias, C);
    double *dout = to_double(r.dout, r.n), *dinp = to_double(r.dinp, r.n), *dweight = to_double(r.dweight, C);
    double *dbias = to_double(r.dbias, C), *out = zero_doubles(C), mean, rstd, h = 1e-5;
    run_forward(&r);
    run_backward(&r);
    for (size_t row = 0; row < s.N; row++) {
        double *x_r = x + row * C, *dout_r = dout + row * C;
        reference_row(out, &mean, &rstd, x_r, weight, bias, C);
        for (size_t c = 0; c < C; c++) {
            double keep = x_r[c];
            x_r[c] = keep + h;
            double above = reference_loss(x_r, weight, bias, dout_r, C);
            x_r[c] = keep - h;
            double below = reference_loss(x_r, weight, bias, dout_r, C);
            x_r[c] = keep;
            dinp[row * C + c] += (above - below) / (2 * h);
            dweight[c] += dout_r[c] * (keep - mean) * rstd;
            dbias[c] += dout_r[c];
        }
    }
    CHECK_CLOSE("dinp", r.dinp, dinp, r.n, 2 * FLT_EPSILON * sqrt((double)C));
    CHECK_CLOSE("dweight", r.dweight, dweight, C, 2 * FLT_EPSILON * sqrt((double)s.N));
    CHECK_CLOSE("dbias", r.dbias, dbias, C, 2 * FLT_EPSILON * sqrt((double)s.N));
    free(x), free(weight), free(bias), free(dout), free(dinp), free(dweight), free(dbias), free(out);
    run_free(&r);
}

TEST(backward_equals_finite_differences) {
    for (size_t i = 0; i < SHAPES; i++) check_backward(shapes[i]);
}

TEST(equal_elements_give_the_bias) {
    const Shape s = {2, 72};
    Run r = run_create(s, 0.0f, 1.0f);
    for (size_t i = 0; i < r.n; i++) r.inp[i] = 2.5f;
    run_forward(&r);
    CHECK_SAME("out", r.out, r.bias, r.C);
    run_backward(&r);
    for (size_t i = 0; i < r.n; i++) CHECK(isfinite(r.dinp[i]), "dinp[%zu] is %g", i, (double)r.dinp[i]);
    run_free(&r);
}

TEST(nan_and_inf_stay_in_their_row) {
    const Shape s = {3, 72};
    Run r = run_create(s, 0.0f, 1.0f);
    r.inp[5] = NAN, r.inp[s.C + 70] = INFINITY;
    run_forward(&r);
    for (size_t c = 0; c < s.C; c++) {
        CHECK(isnan(r.out[c]) && isnan(r.out[s.C + c]), "column %zu: %g %g", c, (double)r.out[c],
              (double)r.out[s.C + c]);
        CHECK(isfinite(r.out[2 * s.C + c]), "column %zu of the good row is %g", c, (double)r.out[2 * s.C + c]);
    }
    run_free(&r);
}

TEST(any_thread_count_gives_the_same_bits) {
    int threads = thread_count();
    for (size_t i = 0; i < SHAPES; i++) {
        set_thread_count(1);
        Run one = run_create(shapes[i], 0.0f, 1.0f);
        run_forward(&one), run_backward(&one);
        for (int k = 2; k <= 3; k++) {
            set_thread_count(k);
            Run many = run_create(shapes[i], 0.0f, 1.0f);
            run_forward(&many), run_backward(&many);
            CHECK_SAME("out", one.out, many.out, one.n);
            CHECK_SAME("dinp", one.dinp, many.dinp, one.n);
            CHECK_SAME("dweight", one.dweight, many.dweight, one.C);
            CHECK_SAME("dbias", one.dbias, many.dbias, one.C);
            run_free(&many);
        }
        run_free(&one);
    }
    set_thread_count(threads);
}

int main(void) {
    RUN(forward_equals_double_reference);
    RUN(rows_far_from_zero);
    RUN(fused_residual_is_addition_then_layernorm);
    RUN(backward_equals_finite_differences);
    RUN(equal_elements_give_the_bias);
    RUN(nan_and_inf_stay_in_their_row);
    RUN(any_thread_count_gives_the_same_bits);
    return test_summary();
}
