// Tests of llmc/schedule.h: rates at every corner, by table.
#include "../../llmc/schedule.h"
#include "dies.h"

static Schedule schedule(ScheduleKind kind, uint64_t warmup, uint64_t total, double final_fraction) {
    Schedule s;
    s.kind = kind, s.peak_lr = 1.0, s.warmup_steps = warmup, s.total_steps = total;
    s.final_fraction = final_fraction, s.decay_fraction = 0.2;
    return s;
}

typedef struct {
    ScheduleKind kind;
    uint64_t warmup, total;
    double final_fraction;
    uint64_t step;
    double want;  // worked out by hand, the cosines with Python
} Row;

static const Row rows[] = {
    // cosine, 10 of 110 steps warm-up, down to 0.1
    {SCHEDULE_COSINE, 10, 110, 0.1, 0, 0.1},
    {SCHEDULE_COSINE, 10, 110, 0.1, 8, 0.9},
    {SCHEDULE_COSINE, 10, 110, 0.1, 9, 1.0},
    {SCHEDULE_COSINE, 10, 110, 0.1, 10, 1.0},
    {SCHEDULE_COSINE, 10, 110, 0.1, 35, 0.8681980515339464},
    {SCHEDULE_COSINE, 10, 110, 0.1, 60, 0.55},
    {SCHEDULE_COSINE, 10, 110, 0.1, 109, 0.10022204783542078},
    {SCHEDULE_COSINE, 10, 110, 0.1, 110, 0.1},
    {SCHEDULE_COSINE, 10, 110, 0.1, 1000000, 0.1},
    // linear
    {SCHEDULE_LINEAR, 10, 110, 0.1, 0, 0.1},
    {SCHEDULE_LINEAR, 10, 110, 0.1, 10, 1.0},
    {SCHEDULE_LINEAR, 10, 110, 0.1, 60, 0.55},
    {SCHEDULE_LINEAR, 10, 110, 0.1, 109, 0.109},
    {SCHEDULE_LINEAR, 10, 110, 0.1, 110, 0.1},
    {SCHEDULE_LINEAR, 10, 110, 0.1, UINT64_MAX, 0.1},
    // constant: warm-up applies, the final fraction does not
    {SCHEDULE_CONSTANT, 10, 110, 0.1, 4, 0.5},
    {SCHEDULE_CONSTANT, 10, 110, 0.1, 10, 1.0},
    {SCHEDULE_CONSTANT, 10, 110, 0.1, 109, 1.0},
    {SCHEDULE_CONSTANT, 10, 110, 0.1, 500, 1.0},
    // wsd: the last 20 of 100 steps decay as 1 - sqrt
    {SCHEDULE_WSD, 10, 100, 0.1, 9, 1.0},
    {SCHEDULE_WSD, 10, 100, 0.1, 50, 1.0},
    {SCHEDULE_WSD, 10, 100, 0.1, 79, 1.0},
    {SCHEDULE_WSD, 10, 100, 0.1, 80, 1.0},
    {SCHEDULE_WSD, 10, 100, 0.1, 85, 0.55},
    {SCHEDULE_WSD, 10, 100, 0.1, 100, 0.1},
    {SCHEDULE_WSD, 10, 100, 0.1, 101, 0.1},
    {SCHEDULE_WSD, 95, 100, 0.0, 94, 1.0},                  // warm-up ends inside the decay: it shortens the decay
    {SCHEDULE_WSD, 95, 100, 0.0, 95, 1.0},
    {SCHEDULE_WSD, 95, 100, 0.0, 96, 1 - 0.4472135954999579},
    // no warm-up
    {SCHEDULE_COSINE, 0, 100, 0.0, 0, 1.0},
    {SCHEDULE_COSINE, 0, 100, 0.0, 50, 0.5},
    {SCHEDULE_LINEAR, 0, 100, 0.0, 0, 1.0},
    {SCHEDULE_LINEAR, 0, 100, 0.0, 99, 0.01},
    // warm-up as long as the run, and longer
    {SCHEDULE_COSINE, 10, 10, 0.1, 0, 0.1},
    {SCHEDULE_COSINE, 10, 10, 0.1, 9, 1.0},
    {SCHEDULE_COSINE, 10, 10, 0.1, 10, 0.1},
    {SCHEDULE_LINEAR, 20, 10, 0.1, 9, 0.5},
    {SCHEDULE_LINEAR, 20, 10, 0.1, 10, 0.1},
    {SCHEDULE_WSD, 10, 10, 0.1, 9, 1.0},
    // one step, no step
    {SCHEDULE_COSINE, 0, 1, 0.1, 0, 1.0},
    {SCHEDULE_COSINE, 1, 1, 0.1, 0, 1.0},
    {SCHEDULE_COSINE, 0, 1, 0.1, 1, 0.1},
    {SCHEDULE_WSD, 0, 1, 0.1, 0, 1.0},
    {SCHEDULE_LINEAR, 0, 0, 0.1, 0, 0.1},
    {SCHEDULE_CONSTANT, 0, 0, 0.1, 0, 1.0},
};

TEST(table) {
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        Schedule s = schedule(rows[i].kind, rows[i].warmup, rows[i].total, rows[i].final_fraction);
        double got = schedule_lr(&s, rows[i].step);
        CHECK(fabs(got - rows[i].want) <= 1e-14, "%s, warm-up %d of %d, step %llu: %.17g, not %.17g",
              schedule_name(s.kind), (int)s.warmup_steps, (int)s.total_steps, (unsigned long long)rows[i].step, got,
              rows[i].want);
    }
}

// No schedule jumps, rises after warm-up, falls below its final rate, or gives something that is no rate.
TEST(shape) {
    for (int kind = 0; kind < SCHEDULE_KINDS; kind++)
        for (uint64_t total = 0; total < 40; total++)
            for (uint64_t warmup = 0; warmup < 45; warmup += 3) {
                Schedule s = schedule((ScheduleKind)kind, warmup, total, 0.25);
                double before = 0, last = schedule_lr(&s, total);
                for (uint64_t step = 0; step < total + 5; step++) {
                    double lr = schedule_lr(&s, step);
                    CHECK(lr > 0 && lr <= 1 && lr == schedule_lr(&s, step), "rate %g", lr);
                    if (step < warmup && step < total) CHECK(lr > before, "warm-up does not rise at %d", (int)step);
                    if (step >= warmup && step > 0 && warmup > 0) CHECK(lr <= before, "rises at %d", (int)step);
                    if (step >= warmup) CHECK(lr >= last, "%g is below the final rate %g", lr, last);
                    if (step >= total) CHECK(lr == last, "changes after the end");
                    before = lr;
                }
            }
}

// (1 - 0.9) * 10 is 0.99999999999999978 in double; the decay still starts at step 1.
TEST(wsd_decay_starts_at_a_whole_step) {
    Schedule s = schedule(SCHEDULE_WSD, 0, 10, 0.0);
    s.decay_fraction = 0.9;
    CHECK(schedule_lr(&s, 1) == 1, "step 1: %.17g", schedule_lr(&s, 1));
    CHECK(fabs(schedule_lr(&s, 5) - (1 - 2.0 / 3)) < 1e-14, "step 5: %.17g", schedule_lr(&s, 5));
    s.decay_fraction = 1;
    CHECK(schedule_lr(&s, 0) == 1 && schedule_lr(&s, 1) < 1, "all of the run decays");
    s.decay_fraction = 0;
    CHECK(schedule_lr(&s, 9) == 1 && schedule_lr(&s, 10) == 0, "nothing of the run decays");
}

TEST(scales_with_peak) {
    Schedule s = schedule(SCHEDULE_COSINE, 5, 50, 0.1), t = s;
    t.peak_lr = 6e-4;
    for (uint64_t step = 0; step < 60; step++)
        CHECK(fabs(schedule_lr(&t, step) - 6e-4 * schedule_lr(&s, step)) < 1e-18, "step %d", (int)step);
}

TEST(names) {
    for (int kind = 0; kind < SCHEDULE_KINDS; kind++) {
        ScheduleKind parsed = SCHEDULE_KINDS;
        CHECK(schedule_parse(&parsed, schedule_name((ScheduleKind)kind)) && (int)parsed == kind, "kind %d", kind);
        CHECK(strstr(SCHEDULE_NAMES, schedule_name((ScheduleKind)kind)) != NULL, "the names lack kind %d", kind);
    }
    ScheduleKind untouched = SCHEDULE_WSD;
    CHECK(!schedule_parse(&untouched, "cosin") && untouched == SCHEDULE_WSD, "a wrong name was taken");
    CHECK(!schedule_parse(&untouched, "") && !schedule_parse(&untouched, "Linear"), "a wrong name was taken");
}

TEST(refusals) {
    Schedule s = schedule(SCHEDULE_COSINE, 5, 50, 0.1);
    schedule_check(&s);
    s.peak_lr = NAN;
    CHECK_DIES(2, "--lr", schedule_check(&s));
    s.peak_lr = -1e-3;
    CHECK_DIES(2, "--lr", schedule_check(&s));
    s.peak_lr = INFINITY;
    CHECK_DIES(2, "--lr", schedule_check(&s));
    s.peak_lr = 1e-3, s.final_fraction = 1.5;
    CHECK_DIES(2, "--final-lr-fraction 1.5", schedule_check(&s));
    s.final_fraction = NAN;
    CHECK_DIES(2, "--final-lr-fraction", schedule_check(&s));
    s.final_fraction = 0, s.decay_fraction = -1;
    CHECK_DIES(2, "decay fraction", schedule_check(&s));
}

int main(void) {
    RUN(table);
    RUN(shape);
    RUN(wsd_decay_starts_at_a_whole_step);
    RUN(scales_with_peak);
    RUN(names);
    RUN(refusals);
    return test_summary();
}
