// Every number that dev/demos prints, against what is known: formulas, the source texts' claims (as corrected), and
// statistics within four standard errors. The demonstrations themselves only call the library.
#include "dev/demos/demos.h"
#include "test.h"

static Demo run_demo(const char *name) {
    Demo demo;
    size_t count;
    const DemoEntry *table = demo_table(&count);
    memset(&demo, 0, sizeof demo);
    for (size_t i = 0; i < count; i++)
        if (strcmp(table[i].name, name) == 0) table[i].run(&demo);
    return demo;
}

// The number under `key` is exactly `expected` (NaN: is NaN).
#define EXACT(demo, key, expected) \
    check_range(__LINE__, &(demo), key, (double)(expected), (double)(expected))
// It lies in [lo, hi].
#define BETWEEN(demo, key, lo, hi) check_range(__LINE__, &(demo), key, lo, hi)

static void check_range(int line, const Demo *demo, const char *key, double lo, double hi) {
    double value = demo_value(demo, key);
    int recorded = 0;
    for (size_t i = 0; i < demo->count; i++) recorded |= strcmp(demo->numbers[i].key, key) == 0;
    if (!recorded) test_fail(__FILE__, line, "nothing is recorded under '%s'", key);
    else if (isnan(lo) ? !isnan(value) : !(value >= lo && value <= hi))
        test_fail(__FILE__, line, "'%s' is %.9g, expected %.9g to %.9g", key, value, lo, hi);
}

TEST(limits) {
    Demo d = run_demo("limits");
    EXACT(d, "agree", 1);
    EXACT(d, "fp16 max", 65504);
    EXACT(d, "e4m3 max", 448);
    EXACT(d, "e4m3 ieee", 240);
    EXACT(d, "e5m2 max", 57344);
}

TEST(bf16) {
    Demo d = run_demo("bf16");
    EXACT(d, "pi code", 0x4049);
    EXACT(d, "pi", 3.140625);
    EXACT(d, "naive NaN", 0x8000);
    EXACT(d, "NaN", 0x7fff);
    EXACT(d, "257", 256);
    EXACT(d, "1+2^-9", 1);
    EXACT(d, "(256+1)+1", 256);
    EXACT(d, "256+(1+1)", 258);
}

TEST(saturate) {
    Demo d = run_demo("saturate");
    EXACT(d, "500", 448);
    EXACT(d, "500 nosat", NAN);
    EXACT(d, "464", 448);
    EXACT(d, "inf", 448);
    EXACT(d, "fp4 nan", 6);
    EXACT(d, "e5m2 60000", 57344);
    EXACT(d, "fp16 65519", 65504);
    EXACT(d, "fp16 65520", INFINITY);
    EXACT(d, "bf16 65520", 65536);
}

TEST(twice) {
    Demo d = run_demo("twice");
    EXACT(d, "direct", 0x39);
    EXACT(d, "through bf16", 0x38);
}

TEST(sum) {
    Demo d = run_demo("sum");
    EXACT(d, "bf16", 8);
    EXACT(d, "fp16", 64);
    BETWEEN(d, "fp32", 99.99, 100.01);
    BETWEEN(d, "pairwise", 98, 102);
    BETWEEN(d, "chunked", 16, 99);  // far beyond 8, still short
    BETWEEN(d, "promoted", 90, 110);
}

TEST(accumulator) {
    Demo d = run_demo("accumulator");
    // Within a factor of 1.5 of the specification's figures for this model.
    BETWEEN(d, "mixed 1024", 5.2e-4 / 1.5, 5.2e-4 * 1.5);
    BETWEEN(d, "mixed 4096", 1.3e-3 / 1.5, 1.3e-3 * 1.5);
    BETWEEN(d, "mixed 16384", 3.6e-3 / 1.5, 3.6e-3 * 1.5);
    BETWEEN(d, "mixed promoted", 1.3e-4 / 1.5, 1.3e-4 * 1.5);
    BETWEEN(d, "positive 1024", 1.4e-2 / 1.5, 1.4e-2 * 1.5);
    BETWEEN(d, "positive 4096", 6.6e-2 / 1.5, 6.6e-2 * 1.5);
    BETWEEN(d, "positive 16384", 0.24 / 1.5, 0.24 * 1.5);
    BETWEEN(d, "positive promoted", 6e-4 / 1.5, 6e-4 * 1.5);
}

TEST(half_ulp) {
    Demo d = run_demo("half-ulp");
    EXACT(d, "1-2e-4", 1);
    EXACT(d, "2-5e-4", 1.9990234375);
    EXACT(d, "2+5e-4", 2);
    EXACT(d, "ticks down", 1);
    EXACT(d, "ticks up", 2);
}

TEST(weight) {
    Demo d = run_demo("weight");
    EXACT(d, "nearest", 1);
    BETWEEN(d, "master", 1.9999, 2.0001);
    EXACT(d, "working", 2);
    EXACT(d, "kahan", 2);
    BETWEEN(d, "kahan c", -0.00317, -0.00315);
    BETWEEN(d, "stochastic", 1.98, 2.02);
    BETWEEN(d, "deviation", 0.06, 0.11);  // 0.088 for steps of 2^-7 taken with probability 0.128
}

TEST(grid) {
    Demo d = run_demo("grid");
    EXACT(d, "nearest", 128);
    BETWEEN(d, "stochastic", 138 - 4 * 3 / sqrt(200), 138 + 4 * 3 / sqrt(200));  // variance 100 * 0.1 * 0.9
}

TEST(lost) {
    Demo d = run_demo("lost");
    EXACT(d, "bf16 1e-2", 0);
    BETWEEN(d, "bf16 3e-3", 0.2, 0.6);  // between 1/512 and 1/256: it depends on the weight's mantissa
    EXACT(d, "bf16 1e-3", 1);
    EXACT(d, "bf16 1e-4", 1);
    BETWEEN(d, "fp16 1e-3", 0, 0.01);   // of subnormal weights only
    BETWEEN(d, "fp16 3e-4", 0.5, 0.9);
    EXACT(d, "fp16 1e-4", 1);
    EXACT(d, "fp32 1e-7", 0);
    EXACT(d, "fp32 2e-8", 1);
}

TEST(moment) {
    Demo d = run_demo("moment");
    BETWEEN(d, "fp32 .999", 0.1351, 0.1353);
    EXACT(d, "bf16 .999", 1);
    BETWEEN(d, "bf16sr .999", 0.133, 0.137);
    BETWEEN(d, "bf16 .99", 1e-10, 1e-7);
    EXACT(d, "rise 4", 1);
    BETWEEN(d, "rise 5", 1.001, 5);
    EXACT(d, "band .95", 1);
    BETWEEN(d, "band .95 1.2", 1.05, 1.2);
}

TEST(underflow) {
    Demo d = run_demo("underflow");
    EXACT(d, "1e-8", 0);
    BETWEEN(d, "1e-8 scaled", 0.999e-8, 1.001e-8);
    EXACT(d, "3.1e-8", 0x1p-24);
    EXACT(d, "2^-27", 0);
    EXACT(d, "2^-27 scaled 8", 0x1p-27);
    EXACT(d, "g^2", 0);
    BETWEEN(d, "bf16 1e-8", 0.996e-8, 1.004e-8);
    EXACT(d, "overflow", INFINITY);
}

TEST(scaler) {
    static const double scales[] = {8, 8, 16, 8, 8, 4, 4, 4, 8};
    Demo d = run_demo("scaler");
    for (size_t i = 0; i < 9; i++) {
        char key[] = "S1";
        key[1] = (char)('1' + i);
        EXACT(d, key, scales[i]);
    }
}

TEST(clip) {
    Demo d = run_demo("clip");
    BETWEEN(d, "norm", 0.8 - 1e-6, 0.8 + 1e-6);
    BETWEEN(d, "seen", 52428.7, 52428.9);
    BETWEEN(d, "coefficient", 1.9073e-5, 1.9074e-5);
    BETWEEN(d, "right", 0.8 - 1e-6, 0.8 + 1e-6);
    BETWEEN(d, "wrong", 1 / 65536.0 * (1 - 1e-6), 1 / 65536.0 * (1 + 1e-6));
    BETWEEN(d, "ratio", 52428.7, 52428.9);
    BETWEEN(d, "adam right", 0.99999e-3, 1.00001e-3);
    BETWEEN(d, "adam wrong", 0.93e-3, 0.945e-3);  // 1 / (1 + 1e-8 / 1.526e-7)
}

TEST(outlier) {
    Demo d = run_demo("outlier");
    EXACT(d, "zeros none", 0);
    BETWEEN(d, "error none", 0.025, 0.028);
    BETWEEN(d, "zeros 1e2", 0, 5e-4);
    BETWEEN(d, "error 1e2", 0.025, 0.028);
    BETWEEN(d, "zeros 1e4", 0.015, 0.02);
    BETWEEN(d, "error 1e4", 0.025, 0.029);
    BETWEEN(d, "zeros 1e5", 0.16, 0.185);
    BETWEEN(d, "error 1e5", 0.12, 0.14);
    BETWEEN(d, "zeros 1e6", 0.96, 0.98);
    BETWEEN(d, "zeros row", 0.0015, 0.0045);    // 17% of one row in 64
    BETWEEN(d, "zeros block", 1e-4, 6e-4);      // of one block in 512
    BETWEEN(d, "error block", 0.025, 0.029);
    BETWEEN(d, "zeros mx", 0, 2e-4);            // of one in 2048
    BETWEEN(d, "error mx", 0.025, 0.029);
}

TEST(linear) {
    Demo d = run_demo("linear");
    BETWEEN(d, "tensor", 0.035, 0.040);
    BETWEEN(d, "row", 0.035, 0.040);
    BETWEEN(d, "block", 0.035, 0.040);
    BETWEEN(d, "mx", 0.035, 0.040);
    BETWEEN(d, "nv", 0.135, 0.157);
    BETWEEN(d, "tensor 1e6", 0.8, 1.1);  // nothing is left
    BETWEEN(d, "block 1e6", 0.035, 0.040);
}

TEST(delayed) {
    static const double used[] = {1, 224, 56, 56, 56, 56, 448};
    Demo d = run_demo("delayed");
    for (size_t i = 0; i < 7; i++) {
        char key[] = "used 1";
        key[5] = (char)('1' + i);
        EXACT(d, key, used[i]);
    }
    EXACT(d, "saturated", 892);  // those above 464/448
    EXACT(d, "next", 56);
}

TEST(memory) {
    Demo d = run_demo("memory");
    EXACT(d, "fp32", 208);
    EXACT(d, "bf16 no grads", 182);
    EXACT(d, "bf16 grads", 208);
    EXACT(d, "bf16", 234);
    EXACT(d, "gpus", 3);
    EXACT(d, "kahan", 208);
    EXACT(d, "stochastic", 182);
    EXACT(d, "stochastic bf16", 130);
    EXACT(d, "fp8", 260);
}

// No demonstration without a test here, and none that records nothing.
TEST(every_demo_is_tested) {
    static const char *const tested[] = {"limits",   "bf16", "saturate", "twice",     "sum",    "accumulator",
                                         "half-ulp", "weight", "grid",   "lost",      "moment", "underflow",
                                         "scaler",   "clip", "outlier",  "linear",    "delayed", "memory"};
    size_t count;
    const DemoEntry *table = demo_table(&count);
    CHECK(count == sizeof tested / sizeof *tested, "%zu demonstrations, %zu tested", count, sizeof tested / sizeof *tested);
    for (size_t i = 0; i < count && i < sizeof tested / sizeof *tested; i++) {
        Demo d = run_demo(table[i].name);
        CHECK(strcmp(table[i].name, tested[i]) == 0, "'%s' is not tested", table[i].name);
        CHECK(d.count > 0, "'%s' records nothing", table[i].name);
    }
}

int main(void) {
    RUN(limits);
    RUN(bf16);
    RUN(saturate);
    RUN(twice);
    RUN(sum);
    RUN(accumulator);
    RUN(half_ulp);
    RUN(weight);
    RUN(grid);
    RUN(lost);
    RUN(moment);
    RUN(underflow);
    RUN(scaler);
    RUN(clip);
    RUN(outlier);
    RUN(linear);
    RUN(delayed);
    RUN(memory);
    RUN(every_demo_is_tested);
    return test_summary();
}
