// global_norm.h: the sum, where it must not overflow or lose small terms, and that nothing non-finite goes unseen.
#include "../../llmc/global_norm.h"

#include "compare.h"

static const size_t lengths[] = {0, 1, 15, 16, 17, 1023, 1024, 1025, 70001, 1100003};
#define LENGTHS (sizeof lengths / sizeof lengths[0])

TEST(sum_equals_reference_for_any_thread_count) {
    int threads = thread_count();
    for (size_t k = 0; k < LENGTHS; k++) {
        size_t n = lengths[k];
        float *x = random_floats(n, 0.1f, 1.0f, k);
        long double want = 0;
        double first = 0;
        for (size_t i = 0; i < n; i++) want += (long double)x[i] * (long double)x[i];
        for (int t = 1; t <= 3; t++) {
            int nonfinite = 0;
            set_thread_count(t);
            double got = global_norm_squared(x, n, &nonfinite);
            CHECK(fabs(got - (double)want) <= 1e-14 * (double)want, "n %zu: %.17g, want %.17g", n, got, (double)want);
            CHECK(nonfinite == 0, "n %zu: flag %d", n, nonfinite);
            if (t == 1) first = got;
            CHECK(memcmp(&first, &got, sizeof got) == 0, "n %zu: %d threads give %a, one gives %a", n, t, got, first);
        }
        guarded_free("x", x, n);
    }
    set_thread_count(threads);
}

TEST(huge_and_tiny_values) {
    float x[3] = {FLT_MAX, FLT_MAX, 1.0f}, tiny[2] = {1e-45f, 1e-30f};
    int nonfinite = 0;
    double big = global_norm_squared(x, 3, &nonfinite), small = global_norm_squared(tiny, 2, &nonfinite);
    CHECK(fabs(big / (2.0 * (double)FLT_MAX * (double)FLT_MAX) - 1) < 1e-15, "squares of the largest floats: %g", big);
    CHECK(fabs(small / 1e-60 - 1) < 1e-6, "squares of tiny floats: %g", small);
    CHECK(nonfinite == 0, "flag %d", nonfinite);
}

// One bad value anywhere sets the flag; the flag is only ever set, never cleared.
TEST(every_position_is_looked_at) {
    enum { n = 2069 };
    const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
    float *x = random_floats(n, 0.0f, 1.0f, 1);
    for (size_t i = 0; i < n; i++) {
        float keep = x[i];
        int nonfinite = 0;
        x[i] = bad[i % 4];
        double got = global_norm_squared(x, n, &nonfinite);
        CHECK(nonfinite == 1, "%g at %zu not seen", (double)x[i], i);
        CHECK(!isfinite(got), "%g at %zu: sum %g", (double)x[i], i, got);
        x[i] = keep;
    }
    int nonfinite = 1;
    global_norm_squared(x, n, &nonfinite);
    CHECK(nonfinite == 1, "the flag was cleared");
    guarded_free("x", x, n);
}

int main(void) {
    RUN(sum_equals_reference_for_any_thread_count);
    RUN(huge_and_tiny_values);
    RUN(every_position_is_looked_at);
    return test_summary();
}
