// Are NaN and infinity what they are, with the very flags the program is built with?
//
// A compiler told that numbers are finite (fast-math in its many spellings) may fold isnan() to 0, drop the masking
// with -inf, and turn every check for a broken run into nothing, silently. Values come from volatile variables, so
// that the answer is computed by the compiled code, not by the compiler. This test fails if such a flag is added;
// dev/test/test_make.sh shows that it does.
#include "test.h"

#include <float.h>

static volatile float zero_f = 0.0f, one_f = 1.0f, huge_f = FLT_MAX;
static volatile double zero_d = 0.0, one_d = 1.0;

TEST(nan_is_seen) {
    float nan_f = zero_f / zero_f;
    double nan_d = zero_d / zero_d;
    CHECK(isnan(nan_f) && isnan(nan_d), "isnan(0/0) is false");
    CHECK(!isfinite(nan_f) && !isfinite(nan_d), "isfinite(0/0) is true");
    CHECK(nan_f != nan_f, "0/0 equals itself");
    // The program's checks are written so that NaN fails them; that needs comparisons kept as written.
    CHECK(!(nan_f < one_f) && !(nan_f >= one_f), "0/0 compares with 1");
    int inside = nan_f >= zero_f && nan_f <= one_f;
    CHECK(!inside, "0/0 lies between 0 and 1");
}

TEST(infinity_is_seen) {
    float inf_f = one_f / zero_f;
    double inf_d = one_d / zero_d;
    CHECK(isinf(inf_f) && isinf(inf_d), "isinf(1/0) is false");
    CHECK(!isfinite(inf_f) && !isfinite(inf_d), "isfinite(1/0) is true");
    CHECK(inf_f > FLT_MAX && -inf_f < -FLT_MAX, "1/0 is not beyond the largest float");
    CHECK(isinf(huge_f * 2.0f), "FLT_MAX * 2 is finite");
    CHECK(isnan(inf_f - inf_f) && isnan(inf_f * zero_f), "inf - inf or inf * 0 is a number");
    CHECK(expf(-inf_f) == 0.0f, "exp(-inf) is %g", (double)expf(-inf_f));
}

// In a loop the compiler vectorises, as gradients and logits are scanned.
TEST(one_bad_value_among_many_is_seen) {
    static float values[1024];
    for (int bad = 0; bad < 1024; bad += 93) {
        for (int i = 0; i < 1024; i++) values[i] = one_f;
        values[bad] = zero_f / zero_f;
        int bad_values = 0;
        float sum = 0.0f;
        for (int i = 0; i < 1024; i++) {
            bad_values += !isfinite(values[i]);
            sum += values[i];
        }
        CHECK(bad_values == 1, "%d values that are not finite, 1 was put in at %d", bad_values, bad);
        CHECK(isnan(sum), "a sum with a NaN in it is %g", (double)sum);
    }
}

// Reassociation: (1 + eps/2) + eps/2 rounds to 1 twice, 1 + (eps/2 + eps/2) does not. Compensated sums rest on it.
TEST(sums_keep_their_order) {
    volatile float half = FLT_EPSILON / 2;
    float sum = one_f;
    for (int i = 0; i < 64; i++) sum += half;
    CHECK(sum == 1.0f, "1 + 64 halves of epsilon, one by one, is 1 + %g", (double)(sum - 1.0f));
    float a = one_f, b = half, s = a + b;
    CHECK((s - a) == 0.0f && b - (s - a) == half, "the compensation term of 1 + epsilon/2 was simplified away");
}

// Contraction: a * b + c in one rounding gives other bits than two; which would depend on compiler and loop.
TEST(products_are_rounded_before_they_are_added) {
    volatile float a = 1.0f + FLT_EPSILON, b = 1.0f - FLT_EPSILON, c = -1.0f;
    float x = a, y = b, z = c;
    CHECK(x * y + z == 0.0f, "a * b + c is %g: contracted into one rounding", (double)(x * y + z));
}

// Flush-to-zero start-up code (linked in by fast-math on x86) would lose them; low precision formats need them.
TEST(subnormals_are_kept) {
    volatile float smallest_normal = FLT_MIN;
    float sub = smallest_normal / 4.0f;
    CHECK(sub > 0.0f && sub * 4.0f == FLT_MIN, "FLT_MIN / 4 is %g", (double)sub);
}

int main(void) {
    RUN(nan_is_seen);
    RUN(infinity_is_seen);
    RUN(one_bad_value_among_many_is_seen);
    RUN(sums_keep_their_order);
    RUN(products_are_rounded_before_they_are_added);
    RUN(subnormals_are_kept);
    return test_summary();
}
