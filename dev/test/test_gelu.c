// gelu.h against the tanh formula in double, its slope by central differences, and the ends of the range.
#include "../../llmc/gelu.h"

#include "compare.h"

// 0.5 x (1 + tanh u), with 1 + tanh u written so that it keeps its digits for x << 0.
static double reference(double x) {
    double u = sqrt(2.0 / 3.14159265358979323846) * (x + 0.044715 * x * x * x);
    return x / (1.0 + exp(-2.0 * u));
}

static double reference_slope(double x) {
    double h = 1e-5;
    return (reference(x + h) - reference(x - h)) / (2 * h);
}

static const size_t lengths[] = {1, 15, 17, 64, 1003, 10007};
#define LENGTHS (sizeof lengths / sizeof lengths[0])

TEST(the_reference_is_the_tanh_formula) {
    for (double x = -3; x < 6; x += 0.01) {
        double u = sqrt(2.0 / 3.14159265358979323846) * (x + 0.044715 * x * x * x), want = 0.5 * x * (1.0 + tanh(u));
        CHECK(fabs(reference(x) - want) < 1e-14, "at %g: %.17g and %.17g", x, reference(x), want);
    }
}

TEST(forward_and_backward) {
    for (size_t k = 0; k < LENGTHS; k++) {
        size_t n = lengths[k];
        float *inp = random_floats(n, 0.0f, 6.0f, n), *dout = random_floats(n, 0.0f, 1.0f, n + 1);
        float *out = guarded_floats(n, NAN), *dinp = guarded_floats(n, NAN);
        double *want = zero_doubles(n), *dwant = zero_doubles(n);
        for (size_t i = 0; i < n; i++) {
            want[i] = reference((double)inp[i]);
            dwant[i] = (double)dout[i] * reference_slope((double)inp[i]);
        }
        gelu_forward(out, inp, n);
        gelu_backward(dinp, dout, inp, n);
        CHECK_CLOSE("out", out, want, n, 4 * FLT_EPSILON);
        CHECK_CLOSE("dinp", dinp, dwant, n, 8 * FLT_EPSILON);
        gelu_backward(dout, dout, inp, n);  // dinp may be dout
        CHECK_SAME("dinp in place", dout, dinp, n);
        gelu_forward(inp, inp, n);
        CHECK_SAME("out in place", inp, out, n);
        free(want), free(dwant);
        guarded_free("inp", inp, n), guarded_free("dout", dout, n);
        guarded_free("out", out, n), guarded_free("dinp", dinp, n);
    }
}

// Relative accuracy for every size of x. exp magnifies the rounding of its argument by the argument.
TEST(relative_accuracy) {
    for (float magnitude = 1e-38f; magnitude < 1e30f; magnitude *= 1.37f)
        for (int sign = -1; sign <= 1; sign += 2) {
            float x = (float)sign * magnitude, out, one = 1.0f, slope;
            double want = reference((double)x), argument = fabs(1.6 * (double)x * (1 + 0.045 * (double)x * (double)x));
            gelu_forward(&out, &x, 1);
            gelu_backward(&slope, &one, &x, 1);
            double bound =
                FLT_EPSILON * (2 + fmin(argument, 200)) * fabs(want) + 0x1p-149 + (argument > 80 ? 1e-32 : 0);
            CHECK(fabs((double)out - want) <= bound, "gelu(%g) is %g, want %g", (double)x, (double)out, want);
            double slope_want = fabs(x) > 1e-3f ? reference_slope((double)x) : 0.5 + (double)x * 0.7978845608;
            if (x > 20) slope_want = 1;
            if (x < -20) slope_want = 0;
            CHECK(fabs((double)slope - slope_want) < 4 * FLT_EPSILON + (fabs(x) > 1e-3f ? 1e-9 : 1e-6),
                  "slope at %g is %g, want %g", (double)x, (double)slope, slope_want);
        }
}

TEST(special_values) {
    float x[] = {0.0f, -0.0f, INFINITY, -INFINITY, NAN, FLT_MAX, -FLT_MAX}, out[7], one[7], slope[7];
    for (int i = 0; i < 7; i++) one[i] = 1.0f;
    gelu_forward(out, x, 7);
    gelu_backward(slope, one, x, 7);
    CHECK(out[0] == 0.0f && out[1] == 0.0f && slope[0] == 0.5f, "at 0: %g, slope %g", (double)out[0], (double)slope[0]);
    CHECK(out[2] == INFINITY && isnan(out[3]) && isnan(out[4]), "inf, -inf, NaN: %g %g %g", (double)out[2],
          (double)out[3], (double)out[4]);
    CHECK(out[5] == FLT_MAX && out[6] == 0.0f, "the largest floats: %g %g", (double)out[5], (double)out[6]);
    CHECK(isnan(slope[4]) && slope[5] == 1.0f && fabsf(slope[6]) < 1e-30f, "slopes: NaN, max, -max: %g %g %g",
          (double)slope[4], (double)slope[5], (double)slope[6]);
    one[0] = NAN;
    gelu_backward(slope, one, x, 1);
    CHECK(isnan(slope[0]), "NaN in dout stays");
}

TEST(any_thread_count_gives_the_same_bits) {
    enum { n = 20011 };
    int threads = thread_count();
    float *inp = random_floats(n, 0.0f, 6.0f, 1), *out[4];
    for (int k = 1; k <= 3; k++) {
        set_thread_count(k);
        out[k] = guarded_floats(2 * n, NAN);
        gelu_forward(out[k], inp, n);
        gelu_backward(out[k] + n, inp, inp, n);
    }
    CHECK_SAME("2 threads", out[1], out[2], 2 * n);
    CHECK_SAME("3 threads", out[1], out[3], 2 * n);
    for (int k = 1; k <= 3; k++) guarded_free("out", out[k], 2 * n);
    guarded_free("inp", inp, n);
    set_thread_count(threads);
}

int main(void) {
    RUN(the_reference_is_the_tanh_formula);
    RUN(forward_and_backward);
    RUN(relative_accuracy);
    RUN(special_values);
    RUN(any_thread_count_gives_the_same_bits);
    return test_summary();
}
