// Tests of llmc/spike.h: scores against hand-worked ones, and that NaN neither passes nor stays.
#include "../../llmc/rand.h"
#include "../../llmc/spike.h"
#include "test.h"

// A full window of 128 values that alternate between 1 and 3: mean 2, deviation 1.
static SpikeWindow alternating(void) {
    SpikeWindow window;
    memset(&window, 0, sizeof window);
    for (int i = 0; i < SPIKE_WINDOW; i++) spike_accept(&window, i % 2 ? 3 : 1);
    return window;
}

TEST(scores) {
    SpikeWindow window = alternating();
    CHECK(fabs(spike_zscore(&window, 5) - 3) < 1e-12, "5 scores %g, not 3", spike_zscore(&window, 5));
    CHECK(fabs(spike_zscore(&window, 2)) < 1e-12, "the mean scores %g", spike_zscore(&window, 2));
    CHECK(fabs(spike_zscore(&window, -2) + 4) < 1e-12, "-2 scores %g, not -4", spike_zscore(&window, -2));
    CHECK(spike_detected(&window, 5.01, 3) && !spike_detected(&window, 4.99, 3), "the limit of 3");
    CHECK(!spike_detected(&window, -100, 3), "a low loss is no spike");
}

TEST(silent_until_full) {
    SpikeWindow window;
    memset(&window, 0, sizeof window);
    for (int i = 0; i < SPIKE_WINDOW; i++) {
        CHECK(spike_zscore(&window, 1e6) == 0 && !spike_detected(&window, 1e6, 3), "scored with %d values", i);
        CHECK(spike_detected(&window, NAN, 3), "NaN passed with %d values", i);
        spike_accept(&window, i % 2 ? 3 : 1);
    }
    CHECK(window.count == SPIKE_WINDOW && spike_detected(&window, 1e6, 3), "not scored when full");
}

// The failure this header exists for: NaN, then a spike.
TEST(nan_then_spike) {
    const double bad[] = {NAN, -NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 4; i++) {
        SpikeWindow window = alternating(), before = window;
        CHECK(spike_detected(&window, bad[i], 3), "%g was not detected", bad[i]);
        CHECK(spike_detected(&window, bad[i], 0), "%g was not detected with scores off", bad[i]);
        CHECK(!(spike_zscore(&window, bad[i]) <= 3), "%g scores %g", bad[i], spike_zscore(&window, bad[i]));
        spike_accept(&window, bad[i]);
        CHECK(memcmp(&window, &before, sizeof window) == 0, "%g entered the window", bad[i]);
        CHECK(spike_detected(&window, 100, 3), "the spike after %g passed", bad[i]);
        CHECK(!spike_detected(&window, 2.5, 3), "a good value after %g did not pass", bad[i]);
    }
    SpikeWindow window = alternating();
    CHECK(spike_detected(&window, 2, NAN), "a NaN limit let a value pass");
}

// Skipped values stay out, so a second and a hundredth spike are seen like the first.
TEST(skipped_values_do_not_widen) {
    SpikeWindow window = alternating();
    for (int i = 0; i < 300; i++) {
        double value = i % 3 == 0 ? 10 : i % 2 ? 3 : 1;
        int skip = spike_detected(&window, value, 5);
        CHECK(skip == (value == 10), "value %g at %d: skip is %d", value, i, skip);
        if (!skip) spike_accept(&window, value);
    }
}

// The window is the last 128 accepted values, for any number of laps.
TEST(rolls) {
    enum { N = 1000 };
    static double all[N];
    SpikeWindow window;
    memset(&window, 0, sizeof window);
    for (int i = 0; i < N; i++) {
        all[i] = 3 + rand_uniform(1, RAND_TEST, 0, 0, (uint64_t)i);
        if (i >= SPIKE_WINDOW) {
            double mean = 0, square = 0;
            for (int j = i - SPIKE_WINDOW; j < i; j++) mean += all[j], square += all[j] * all[j];
            mean /= SPIKE_WINDOW, square /= SPIKE_WINDOW;
            double want = (9 - mean) / sqrt(square - mean * mean);
            double got = spike_zscore(&window, 9);
            CHECK(fabs(got - want) < 1e-8 * want, "step %d: %g, not %g", i, got, want);
        }
        spike_accept(&window, all[i]);
    }
}

// Equal values (an overfitted batch) must not turn a rounding error into a spike, nor hide a real one.
TEST(constant_window) {
    SpikeWindow window;
    memset(&window, 0, sizeof window);
    for (int i = 0; i < SPIKE_WINDOW; i++) spike_accept(&window, 2.5);
    CHECK(spike_zscore(&window, 2.5) == 0, "the value itself scores %g", spike_zscore(&window, 2.5));
    CHECK(!spike_detected(&window, 2.5 + 3e-7, 3), "a rounding error is a spike");
    CHECK(spike_detected(&window, 3.0, 3), "a real spike is none");
    memset(&window, 0, sizeof window);
    for (int i = 0; i < SPIKE_WINDOW; i++) spike_accept(&window, 0);
    CHECK(spike_zscore(&window, 0) == 0 && !spike_detected(&window, 0, 3), "zero among zeros");
    CHECK(spike_detected(&window, 1, 3), "one among zeros");
}

TEST(plain_data) {
    SpikeWindow window = alternating(), copy;
    memcpy(&copy, &window, sizeof copy);
    for (int i = 0; i < 200; i++) {
        CHECK(spike_zscore(&window, i) == spike_zscore(&copy, i), "a copy scores differently");
        spike_accept(&window, i), spike_accept(&copy, i);
    }
}

int main(void) {
    RUN(scores);
    RUN(silent_until_full);
    RUN(nan_then_spike);
    RUN(skipped_values_do_not_widen);
    RUN(rolls);
    RUN(constant_window);
    RUN(plain_data);
    return test_summary();
}
