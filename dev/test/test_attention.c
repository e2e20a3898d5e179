// attention.h against a double-precision attention that does materialise the scores, itself checked by finite
// differences; causality and thread counts bit for bit.
#include "../../llmc/attention.h"

#include "compare.h"

typedef struct {
    size_t B, T, NH, HS;
} Shape;

static const Shape shapes[] = {
    {1, 1, 1, 5},    {2, 1, 2, 16},  {2, 33, 2, 5},   {2, 64, 2, 64}, {2, 65, 3, 16},
    {1, 127, 3, 24}, {1, 63, 2, 72}, {1, 130, 1, 80}, {1, 200, 1, 1}, {1, 257, 2, 32},
};
#define SHAPES (sizeof shapes / sizeof shapes[0])

// Probabilities of query (b, h, t) over keys 0..t into p; returns the log of the sum of exps. qkv as in the contract.
static double reference_row(double *p, const double *qkv, Shape s, size_t b, size_t h, size_t t) {
    size_t C = s.NH * s.HS;
    double max = -INFINITY, sum = 0;
    for (size_t j = 0; j <= t; j++) {
        p[j] = 0;
        for (size_t d = 0; d < s.HS; d++)
            p[j] += qkv[(b * s.T + t) * 3 * C + h * s.HS + d] * qkv[(b * s.T + j) * 3 * C + C + h * s.HS + d];
        p[j] /= sqrt((double)s.HS);
        max = fmax(max, p[j]);
    }
    for (size_t j = 0; j <= t; j++) sum += p[j] = exp(p[j] - max);
    for (size_t j = 0; j <= t; j++) p[j] /= sum;
    return max + log(sum);
}

static void reference_forward(double *out, double *lse, const double *qkv, Shape s) {
    size_t C = s.NH * s.HS;
    double *p = zero_doubles(s.T);
    for (size_t i = 0; i < s.B * s.NH * s.T; i++) {
        size_t b = i / (s.NH * s.T), h = i / s.T % s.NH, t = i % s.T;
        lse[i] = reference_row(p, qkv, s, b, h, t);
        for (size_t d = 0; d < s.HS; d++) {
            double sum = 0;
            for (size_t j = 0; j <= t; j++) sum += p[j] * qkv[(b * s.T + j) * 3 * C + 2 * C + h * s.HS + d];
            out[(b * s.T + t) * C + h * s.HS + d] = sum;
        }
    }
    free(p);
}

static void reference_backward(double *dqkv, const double *dout, const double *qkv, Shape s) {
    size_t C = s.NH * s.HS;
    double *p = zero_doubles(s.T), *dp = zero_doubles(s.T);
    for (size_t i = 0; i < s.B * s.NH * s.T; i++) {
        size_t b = i / (s.NH * s.T), h = i / s.T % s.NH, t = i % s.T;
        size_t q = (b * s.T + t) * 3 * C + h * s.HS, o = (b * s.T + t) * C + h * s.HS;
        double p_dp = 0;
        reference_row(p, qkv, s, b, h, t);
        for (size_t j = 0; j <= t; j++) {
            size_t v = (b * s.T + j) * 3 * C + 2 * C + h * s.HS;
            dp[j] = 0;
            for (size_t d = 0; d < s.HS; d++) {
                dp[j] += dout[o + d] * qkv[v + d];
                dqkv[v + d] += p[j] * dout[o + d];
            }
            p_dp += p[j] * dp[j];
        }
        for (size_t j = 0; j <= t; j++) {
            size_t k = (b * s.T + j) * 3 * C + C + h * s.HS;
            double ds = p[j] * (dp[j] - p_dp) / sqrt((double)s.HS);
            for (size_t d = 0; d < s.HS; d++) {
                dqkv[q + d] += ds * qkv[k + d];
                dqkv[k + d] += ds * qkv[q + d];
            }
        }
    }
    free(p), free(dp);
}

// The tensors of one run of a shape.
typedef struct {
    Shape s;
    size_t n, n3, rows, scratch_elems;
    float *qkv, *out, *lse, *dout, *dqkv, *scratch;
} Run;

static Run run_create(Shape s, float scale, uint64_t seed) {
    Run r;
    size_t C = s.NH * s.HS;
    r.s = s;
    r.n = s.B * s.T * C, r.n3 = 3 * r.n, r.rows = s.B * s.NH * s.T;
    r.scratch_elems = attention_scratch_elems(s.T, C, s.NH, thread_count());
    r.qkv = random_floats(r.n3, 0.0f, scale, seed);
    r.dout = random_floats(r.n, 0.0f, 1.0f, seed + 1);
    r.out = guarded_floats(r.n, NAN), r.lse = guarded_floats(r.rows, NAN), r.dqkv = guarded_floats(r.n3, NAN);
    r.scratch = guarded_floats(r.scratch_elems, NAN);
    return r;
}

static void run_both(Run *r) {
    size_t C = r->s.NH * r->s.HS;
    attention_forward(r->out, r->lse, r->qkv, r->s.B, r->s.T, C, r->s.NH, r->scratch);
    attention_backward(r->dqkv, r->dout, r->qkv, r->out, r->lse, r->s.B, r->s.T, C, r->s.NH, r->scratch);
}

static void run_free(Run *r) {
    guarded_free("qkv", r->qkv, r->n3), guarded_free("out", r->out, r->n), guarded_free("lse", r->lse, r->rows);
    guarded_free("dout", r->dout, r->n), guarded_free("dqkv", r->dqkv, r->n3);
    guarded_free("scratch", r->scratch, r->scratch_elems);
}

static double *to_double(const float *x, size_t n) {
    double *y = zero_doubles(n);
    for (size_t i = 0; i < n; i++) y[i] = (double)x[i];
    return y;
}

// `condition`: how much the scores' own rounding is magnified by exp (their size).
static void check_against_reference(Shape s, float scale, double condition) {
    Run r = run_create(s, scale, s.T * 131 + s.HS);
    double *qkv = to_double(r.qkv, r.n3), *dout = to_double(r.dout, r.n), *out = zero_doubles(r.n);
    double *lse = zero_doubles(r.rows), *dqkv = zero_doubles(r.n3);
    double bound = 2 * FLT_EPSILON * sqrt((double)(s.HS + s.T)) * condition;
    char what[4][64];
    const char *const names[] = {"out", "lse", "dqkv", ""};
    for (int i = 0; i < 4; i++) snprintf(what[i], 64, "%s (B %zu T %zu NH %zu HS %zu)", names[i], s.B, s.T, s.NH, s.HS);
    run_both(&r);
    reference_forward(out, lse, qkv, s);
    reference_backward(dqkv, dout, qkv, s);
    CHECK_CLOSE(what[0], r.out, out, r.n, bound);
    CHECK_CLOSE(what[1], r.lse, lse, r.rows, bound);
    CHECK_CLOSE(what[2], r.dqkv, dqkv, r.n3, 2 * bound);
    free(qkv), free(dout), free(out), free(lse), free(dqkv);
    run_free(&r);
}

TEST(equals_double_reference) {
    for (size_t i = 0; i < SHAPES; i++) check_against_reference(shapes[i], 1.0f, 1);
}

// Scores in the thousands: exp of them overflows, exp of their distance to the maximum does not.
TEST(huge_scores) {
    Shape s = {1, 70, 2, 16};
    check_against_reference(s, 60.0f, 4000);
    s.T = 130;
    Run r = run_create(s, 1e4f, 3);
    run_both(&r);
    for (size_t i = 0; i < r.n; i++) CHECK(isfinite(r.out[i]), "out[%zu] is %g", i, (double)r.out[i]);
    for (size_t i = 0; i < r.n3; i++) CHECK(isfinite(r.dqkv[i]), "dqkv[%zu] is %g", i, (double)r.dqkv[i]);
    run_free(&r);
}

// The reference's derivative against central differences of its forward pass.
TEST(reference_backward_is_the_derivative) {
    const Shape s = {2, 5, 2, 3};
    size_t n = s.B * s.T * s.NH * s.HS;
    float *x = random_floats(3 * n, 0.0f, 1.0f, 11), *g = random_floats(n, 0.0f, 1.0f, 12);
    double *qkv = to_double(x, 3 * n), *dout = to_double(g, n), *dqkv = zero_doubles(3 * n);
    double *out = zero_doubles(n), *lse = zero_doubles(s.B * s.NH * s.T);
    reference_backward(dqkv, dout, qkv, s);
    for (size_t i = 0; i < 3 * n; i++) {
        double loss[2], x_i = qkv[i], h = 1e-5;
        for (int side = 0; side < 2; side++) {
            qkv[i] = side ? x_i + h : x_i - h;
            reference_forward(out, lse, qkv, s);
            loss[side] = 0;
            for (size_t k = 0; k < n; k++) loss[side] += dout[k] * out[k];
        }
        qkv[i] = x_i;
        double slope = (loss[1] - loss[0]) / (2 * h);
        CHECK(fabs(slope - dqkv[i]) < 1e-8, "dqkv[%zu] is %.10g, slope %.10g", i, dqkv[i], slope);
    }
    free(qkv), free(dout), free(dqkv), free(out), free(lse);
    guarded_free("x", x, 3 * n), guarded_free("g", g, n);
}

TEST(any_thread_count_gives_the_same_bits) {
    int threads = thread_count();
    for (size_t i = 0; i < SHAPES; i++) {
        set_thread_count(1);
        Run one = run_create(shapes[i], 1.0f, i);
        run_both(&one);
        for (int k = 2; k <= 3; k++) {
            set_thread_count(k);
            Run many = run_create(shapes[i], 1.0f, i);
            run_both(&many);
            CHECK_SAME("out", one.out, many.out, one.n);
            CHECK_SAME("lse", one.lse, many.lse, one.rows);
            CHECK_SAME("dqkv", one.dqkv, many.dqkv, one.n3);
            run_free(&many);
        }
        run_free(&one);
    }
    set_thread_count(threads);
}

// Changing position 70 and later leaves every earlier output as it was, bit for bit.
TEST(no_output_sees_the_future) {
    const Shape s = {1, 130, 2, 24};
    const size_t C = s.NH * s.HS, from = 70;
    Run a = run_create(s, 1.0f, 5), b = run_create(s, 1.0f, 5);
    fill_random(b.qkv + from * 3 * C, (s.T - from) * 3 * C, 0.0f, 50.0f, 77);
    run_both(&a), run_both(&b);
    CHECK_SAME("out", a.out, b.out, from * C);
    CHECK(memcmp(a.out + from * C, b.out + from * C, C * sizeof(float)) != 0, "the change had no effect at all");
    run_free(&a), run_free(&b);
}

// Equal keys share the weight equally: out is the average of the values so far.
TEST(equal_keys_average_the_values) {
    const Shape s = {1, 100, 1, 8};
    const size_t C = s.HS;
    Run r = run_create(s, 1.0f, 8);
    double *want = zero_doubles(r.n);
    for (size_t t = 0; t < s.T; t++)
        for (size_t d = 0; d < C; d++) {
            r.qkv[t * 3 * C + C + d] = 0.25f;
            for (size_t j = 0; j <= t; j++) want[t * C + d] += (double)r.qkv[j * 3 * C + 2 * C + d] / (double)(t + 1);
        }
    run_both(&r);
    CHECK_CLOSE("out", r.out, want, r.n, 2 * FLT_EPSILON * sqrt((double)s.T));
    free(want);
    run_free(&r);
}

TEST(nan_input_gives_nan_output) {
    const Shape s = {1, 70, 2, 16};
    const size_t C = s.NH * s.HS;
    for (size_t part = 0; part < 3; part++) {
        Run r = run_create(s, 1.0f, 9);
        r.qkv[3 * 3 * C + part * C] = NAN;  // token 3, head 0, its q, k or v
        run_both(&r);
        CHECK(isnan(r.out[3 * C]), "part %zu: out of token 3 is %g", part, (double)r.out[3 * C]);
        CHECK(isfinite(r.out[3 * C + s.HS]), "part %zu: the other head is untouched", part);
        if (part > 0) CHECK(isnan(r.out[69 * C]), "part %zu: out of token 69 is %g", part, (double)r.out[69 * C]);
        CHECK(isnan(r.dqkv[3 * 3 * C]), "part %zu: dq of token 3 is %g", part, (double)r.dqkv[3 * 3 * C]);
        run_free(&r);
    }
}

TEST(decode_equals_forward) {
    for (size_t i = 0; i < SHAPES; i++) {
        Shape s = shapes[i];
        s.B = 1;
        size_t C = s.NH * s.HS, cache_elems = s.T * C;
        Run r = run_create(s, 1.0f, 20 + i);
        float *k = guarded_floats(cache_elems, NAN), *v = guarded_floats(cache_elems, NAN);
        float *out = guarded_floats(r.n, NAN);
        run_both(&r);
        double *want = to_double(r.out, r.n);
        for (size_t t = 0; t < s.T; t++) attention_decode(out + t * C, r.qkv + t * 3 * C, k, v, t, C, s.NH);
        CHECK_CLOSE("out", out, want, r.n, 2 * FLT_EPSILON * sqrt((double)(s.HS + s.T)));
        free(want);
        guarded_free("k", k, cache_elems), guarded_free("v", v, cache_elems), guarded_free("out", out, r.n);
        run_free(&r);
    }
}

int main(void) {
    RUN(equals_double_reference);
    RUN(huge_scores);
    RUN(reference_backward_is_the_derivative);
    RUN(any_thread_count_gives_the_same_bits);
    RUN(no_output_sees_the_future);
    RUN(equal_keys_average_the_values);
    RUN(nan_input_gives_nan_output);
    RUN(decode_equals_forward);
    return test_summary();
}
