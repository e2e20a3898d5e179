// vexpf and vtanhf against double libm, over a dense sample of all floats; row sums.
#include "../../llmc/vmath.h"

#include "compare.h"

// |got - want| in units of the float spacing at want.
static double ulps(float got, double want) {
    if (isnan(want)) return isnan(got) ? 0 : INFINITY;
    if (fabs(want) >= 0x1.ffffffp127) return isinf(got) && (got > 0) == (want > 0) ? 0 : INFINITY;
    int exponent;
    frexp(want, &exponent);
    double spacing = ldexp(1.0, exponent - 24 < -149 ? -149 : exponent - 24);
    double error = fabs((double)got - want) / spacing;
    return isnan(error) ? INFINITY : error;
}

typedef struct {
    double exp_ulps, tanh_ulps;
    float exp_at, tanh_at;
} Worst;

static void measure(Worst *worst, uint32_t first, uint32_t last, uint32_t stride) {
    for (uint64_t bits = first; bits <= last; bits += stride) {
        float x = vmath_float((uint32_t)bits);
        double e = ulps(vexpf(x), exp((double)x)), t = ulps(vtanhf(x), tanh((double)x));
        if (e > worst->exp_ulps) worst->exp_ulps = e, worst->exp_at = x;
        if (t > worst->tanh_ulps) worst->tanh_ulps = t, worst->tanh_at = x;
    }
}

static void check_worst(Worst worst) {
    CHECK(worst.exp_ulps < 1.0, "vexpf(%a) is %.2f ulp off", (double)worst.exp_at, worst.exp_ulps);
    CHECK(worst.tanh_ulps < 2.0, "vtanhf(%a) is %.2f ulp off", (double)worst.tanh_at, worst.tanh_ulps);
}

// VMATH_STRIDE=1 visits every float (minutes).
TEST(all_floats_sampled) {
    Worst worst = {0, 0, 0, 0};
    const char *stride = getenv("VMATH_STRIDE");
    measure(&worst, 0, 0xffffffffu, stride ? (uint32_t)atoi(stride) : 1409);
    if (stride)
        printf("  worst: vexpf %.3f ulp at %a, vtanhf %.3f ulp at %a\n", worst.exp_ulps, (double)worst.exp_at,
               worst.tanh_ulps, (double)worst.tanh_at);
    check_worst(worst);
}

// Where exp overflows, where it becomes subnormal, where it reaches zero, and where tanh reaches one.
TEST(edges_of_the_range) {
    const float edges[] = {88.72284f, 89.0f, -87.33655f, -103.97208f, -104.0f, 8.664339f, 9.010913f, 10.0f, 0.34657f};
    Worst worst = {0, 0, 0, 0};
    for (size_t i = 0; i < sizeof edges / sizeof edges[0]; i++) {
        uint32_t bits = vmath_bits(edges[i]);
        measure(&worst, bits - 20000, bits + 20000, 1);
    }
    check_worst(worst);
}

TEST(special_values) {
    CHECK(isnan(vexpf(NAN)) && isnan(vtanhf(NAN)) && isnan(vexpf(-NAN)) && isnan(vtanhf(-NAN)), "NaN must stay NaN");
    CHECK(vexpf(INFINITY) == INFINITY && vexpf(-INFINITY) == 0.0f, "exp(inf) %g, exp(-inf) %g", (double)vexpf(INFINITY),
          (double)vexpf(-INFINITY));
    CHECK(vexpf(FLT_MAX) == INFINITY && vexpf(-FLT_MAX) == 0.0f, "exp at the largest floats");
    CHECK(vexpf(0.0f) == 1.0f && vexpf(-0.0f) == 1.0f, "exp(0) is %a", (double)vexpf(0.0f));
    CHECK(vtanhf(INFINITY) == 1.0f && vtanhf(-INFINITY) == -1.0f, "tanh at infinity");
    CHECK(vtanhf(0.0f) == 0.0f && !signbit(vtanhf(0.0f)) && signbit(vtanhf(-0.0f)), "tanh keeps the sign of zero");
    CHECK(vtanhf(1e-40f) == 1e-40f && vtanhf(-1e-20f) == -1e-20f, "tanh(x) is x for tiny x");
}

// A loop over an array, which becomes vector code, gives the bits of single calls.
TEST(vector_loop_equals_scalar_calls) {
    enum { n = 1003 };
    float *x = random_floats(n, 0.0f, 100.0f, 1), *e = guarded_floats(n, NAN), *t = guarded_floats(n, NAN);
    x[7] = NAN, x[8] = INFINITY, x[9] = -INFINITY, x[1000] = -0.0f, x[1001] = 1e-39f;
    for (size_t i = 0; i < n; i++) e[i] = vexpf(x[i]);
    for (size_t i = 0; i < n; i++) t[i] = vtanhf(x[i]);
    for (size_t i = 0; i < n; i++) {
        volatile float one = x[i];  // out of the vectoriser's reach
        float e_i = vexpf(one), t_i = vtanhf(one);
        CHECK(isnan(x[i]) ? isnan(e[i]) : e[i] == e_i, "exp(%a): %a and %a", (double)x[i], (double)e[i], (double)e_i);
        CHECK(isnan(x[i]) ? isnan(t[i]) : t[i] == t_i, "tanh(%a): %a and %a", (double)x[i], (double)t[i], (double)t_i);
    }
    guarded_free("x", x, n), guarded_free("e", e, n), guarded_free("t", t, n);
}

TEST(lanes_total_adds_all) {
    float lanes[SUM_LANES];
    for (size_t i = 0; i < SUM_LANES; i++) lanes[i] = (float)(i + 1);
    float total = lanes_total(lanes);
    CHECK(total == 64.0f * 65.0f / 2.0f, "sum is %g", (double)total);
}

int main(void) {
    RUN(all_floats_sampled);
    RUN(edges_of_the_range);
    RUN(special_values);
    RUN(vector_loop_equals_scalar_calls);
    RUN(lanes_total_adds_all);
    return test_summary();
}
