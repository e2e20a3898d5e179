// grad_scaler.h: the trace of a known run, its floor, ceiling and interval, and what a start may be.
#include "../../llmc/grad_scaler.h"

#include "dies.h"
#include "test.h"

static GradScalerOptions dynamic(uint64_t interval, double floor, double ceiling) {
    GradScalerOptions options = {1, interval, floor, ceiling};
    return options;
}

// PyTorch's GradScaler(init_scale=8, growth_interval=3) with found_inf as given.
TEST(trace_of_a_known_run) {
    static const int overflow[9] = {0, 0, 0, 1, 0, 1, 0, 0, 0};
    static const double after[9] = {8, 8, 16, 8, 8, 4, 4, 4, 8};
    GradScalerOptions options = dynamic(3, 1, 16777216);
    GradScaler s = grad_scaler(8);
    for (int i = 0; i < 9; i++) {
        int at_floor = grad_scaler_update(&s, &options, overflow[i]);
        CHECK(s.scale == after[i] && !at_floor, "after step %d the scale is %g, not %g", i, s.scale, after[i]);
    }
    CHECK(s.overflows == 2 && s.good_steps == 0, "overflows %llu, good steps %llu", (unsigned long long)s.overflows,
          (unsigned long long)s.good_steps);
}

// Overflows for ever: never below the floor, never zero, and every step at the floor says so.
TEST(floor_holds) {
    GradScalerOptions options = dynamic(2000, 1, 16777216);
    GradScaler s = grad_scaler(65536);
    int at_floor = 0;
    for (int i = 0; i < 200; i++) at_floor += grad_scaler_update(&s, &options, 1);
    CHECK(s.scale == 1 && at_floor == 200 - 16, "scale %g, at the floor %d times", s.scale, at_floor);
    CHECK(s.overflows == 200, "%llu overflows", (unsigned long long)s.overflows);
}

// A clean run of any length: never above the ceiling, and its inverse stays a number.
TEST(ceiling_holds) {
    const double ceilings[] = {16777216, 0x1p126};
    for (int k = 0; k < 2; k++) {
        GradScalerOptions options = dynamic(1, 1, ceilings[k]);
        GradScaler s = grad_scaler(65536);
        for (int i = 0; i < 200; i++) grad_scaler_update(&s, &options, 0);
        CHECK(s.scale == ceilings[k] && isfinite((float)s.scale) && (float)(1 / s.scale) > 0, "scale %g", s.scale);
    }
}

// A resumed run may ask for an interval below the count it has: it grows at once, where a test for equality never would.
TEST(shorter_interval_after_resume_still_grows) {
    GradScalerOptions options = dynamic(10, 1, 16777216);
    GradScaler s = grad_scaler(1024);
    for (int i = 0; i < 9; i++) grad_scaler_update(&s, &options, 0);
    options.interval = 4;
    grad_scaler_update(&s, &options, 0);
    CHECK(s.scale == 2048 && s.good_steps == 0, "scale %g after %llu", s.scale, (unsigned long long)s.good_steps);
}

TEST(fixed_scale_stays) {
    GradScalerOptions options = dynamic(1, 1, 16777216);
    options.dynamic = 0;
    GradScaler s = grad_scaler(128);
    for (int i = 0; i < 20; i++) grad_scaler_update(&s, &options, i % 3 == 0);
    CHECK(s.scale == 128 && s.overflows == 7, "scale %g, overflows %llu", s.scale, (unsigned long long)s.overflows);
}

// Dividing by what was multiplied with changes no bit: the norm and update of a step cannot depend on the scale.
TEST(powers_of_two_divide_out) {
    for (int e = 0; e <= 24; e++)
        for (int i = 1; i < 2000; i++) {
            float g = (float)i * 1.2345678e-7f, scaled = g * (float)ldexp(1, e);
            CHECK(scaled * (float)(1 / ldexp(1, e)) == g, "2^%d, %a", e, (double)g);
        }
}

static void check_start(double start, double floor, double ceiling) {
    GradScalerOptions options = dynamic(2000, floor, ceiling);
    grad_scaler_check(start, &options);
}
static void start_3(void) { check_start(3, 1, 16777216); }
static void start_zero(void) { check_start(0, 1, 16777216); }
static void start_infinite(void) { check_start(INFINITY, 1, 16777216); }
static void start_nan(void) { check_start(NAN, 1, 16777216); }
static void start_below(void) { check_start(2, 4, 16777216); }
static void ceiling_too_high(void) { check_start(2, 1, 0x1p127); }
static void floor_above_ceiling(void) { check_start(2, 4, 2); }

TEST(wrong_settings_are_refused) {
    CHECK_DIES(2, "not a power of two", start_3());
    CHECK_DIES(2, "not a power of two", start_zero());
    CHECK_DIES(2, "not a power of two", start_infinite());
    CHECK_DIES(2, "not a power of two", start_nan());
    CHECK_DIES(2, "between --loss-scale-min 4", start_below());
    CHECK_DIES(2, "--loss-scale-max", ceiling_too_high());
    CHECK_DIES(2, "--loss-scale-max", floor_above_ceiling());
    check_start(65536, 1, 16777216);
}

int main(void) {
    RUN(trace_of_a_known_run);
    RUN(floor_holds);
    RUN(ceiling_holds);
    RUN(shorter_interval_after_resume_still_grows);
    RUN(fixed_scale_stays);
    RUN(powers_of_two_divide_out);
    RUN(wrong_settings_are_refused);
    return test_summary();
}
