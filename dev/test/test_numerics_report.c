// numerics_report.h and adamw_count: sums against plain loops in double, lines against what they must say, every warning
// made to fire and kept from firing.
#include "llmc/numerics_report.h"
#include "test.h"

#include <sys/stat.h>

#define N 5000

static float x[N], cast[N];

static void fill(float std) { rand_normal_fill(x, N, 0, std, 7, 1); }

static NumericsReport quiet_report(MasterRule master) {
    NumericsReport r;
    numerics_open(&r, NULL, 1, master, 0, 0);
    r.quiet = 1;
    numerics_begin(&r, 1);
    return r;
}

// The one line of an entry, as text.
static const char *line_of(const NumericsReport *r, size_t i) {
    static NumericsLine line;
    numerics_format(&line, &r->entries[i], r->step);
    return line.text;
}

#define HAS(text, part) CHECK(strstr(text, part) != NULL, "no '%s' in %s", part, text)
#define HAS_NOT(text, part) CHECK(strstr(text, part) == NULL, "'%s' in %s", part, text)

TEST(sums_of_a_stored_tensor) {
    double squares = 0, bits = 0, amax = 0;
    fill(1e-6f);  // around fp16's subnormals
    for (size_t i = 0; i < N; i++) {
        x[i] = round_fp16(x[i]);
        double a = fabs((double)x[i]);
        squares += a * a;
        bits += a == 0 ? 0 : a < 0x1p-14 ? ilogb(a) + 25 : 11;  // the bit length of a / 2^-24
        amax = fmax(amax, a);
    }
    NumericsSums s = numerics_sums(x, NULL, N, FORMAT_FP16, 1.0f);
    CHECK(s.elements == N && s.nonfinite == 0, "%llu elements", (unsigned long long)s.elements);
    CHECK((double)float_of_bits(s.amax_bits) == amax, "amax %g, expected %g", (double)float_of_bits(s.amax_bits), amax);
    CHECK(fabs(s.squares / squares - 1) < 1e-5, "squares %g, expected %g", s.squares, squares);
    CHECK((double)s.bits == bits, "%g bits, expected %g", (double)s.bits, bits);
}

TEST(nonfinite_elements_stay_out_of_sums) {
    fill(1.0f);
    NumericsSums before = numerics_sums(x, NULL, N, FORMAT_BF16, 1.0f);
    float kept[3] = {x[0], x[1500], x[N - 1]};
    x[0] = NAN, x[1500] = INFINITY, x[N - 1] = -INFINITY;
    NumericsSums s = numerics_sums(x, NULL, N, FORMAT_BF16, 1.0f);
    double expected = before.squares;
    for (size_t i = 0; i < 3; i++) expected -= (double)kept[i] * (double)kept[i];
    CHECK(s.nonfinite == 3, "%llu not finite, expected 3", (unsigned long long)s.nonfinite);
    CHECK(fabs(s.squares / expected - 1) < 1e-5 && s.bits == before.bits - 3 * 8, "squares %g, expected %g", s.squares, expected);
}

// Significant bits that a cast leaves, from its relative error, in double.
static double bits_left(const float *values, double decode, int all) {
    double bits = 0, nonzero = 0;
    for (size_t i = 0; i < N; i++) {
        double error = fabs((double)values[i] * decode / (double)x[i] - 1);
        if (x[i] == 0) continue;
        nonzero++;
        bits += error == 0 ? all : fmin(fmax(floor(-log2(error)), 0), all);
    }
    return bits / nonzero;
}

// Of a stored tensor only the result is known; what its binades say is what a real rounding leaves.
TEST(bits_of_a_stored_tensor) {
    static const FormatId ids[] = {FORMAT_FP16, FORMAT_BF16};
    static const float stds[] = {1.0f, 1e-3f, 2e-6f, 1e-7f};
    for (size_t f = 0; f < 2; f++)
        for (size_t k = 0; k < 4; k++) {
            NumericsReport r = quiet_report(MASTER_RULE_FP32);
            fill(stds[k]);
            for (size_t i = 0; i < N; i++) cast[i] = format_round(ids[f], x[i]);
            double real = bits_left(cast, 1, format_info(ids[f])->mantissa_bits + 1);
            numerics_stored(&r, NUMERICS_GRAD, "dx", 0, ids[f], cast, N, 0);
            double bits = numerics_bits(&r.entries[0]);
            // A rounding that happens to be good looks like more bits, so a subnormal measures up to one and a half more
            CHECK(bits < real + 0.01 && bits > real - 1.5, "%s, deviation %g: %.3f bits, really %.3f", format_name(ids[f]),
                  (double)stds[k], bits, real);
            if (f == 1) CHECK(fabs(bits - 8) < 1e-9, "bf16, deviation %g: %.3f bits", (double)stds[k], bits);
            if (f == 0 && k == 3) CHECK(bits < 2, "fp16 at its last subnormals: %.3f bits", bits);
            numerics_close(&r);
        }
}

TEST(bits_of_a_cast) {
    static const ScalingRule rules[] = {SCALING_TENSOR, SCALING_ROW, SCALING_BLOCK, SCALING_MX, SCALING_NV};
    QuantOptions options = quant_default_options(1);
    fill(1.0f);
    for (size_t k = 0; k < 5; k++) {
        QuantSpec spec = quant_spec(rules[k], QUANT_X, GEMM_FPROP, &options, 0, 0);
        QuantResult result;
        NumericsReport r = quiet_report(MASTER_RULE_FP32);
        quantize_operand(cast, &result, x, 10, N / 10, &spec);
        numerics_operand(&r, "x", "x", 2, &spec, &result, x, cast, N, NULL, 0);
        double bits = numerics_bits(&r.entries[0]), decode = result.nv ? 1 / (double)result.scale : (double)result.decode;
        double real = bits_left(cast, decode, format_info(spec.format)->mantissa_bits + 1);
        CHECK(fabs(bits - real) < 2e-3, "%s: %.3f bits, really %.3f", scaling_name(rules[k]), bits, real);
        if (rules[k] != SCALING_NV) CHECK(bits > 3.95 && bits <= 4, "%s: %.3f bits", scaling_name(rules[k]), bits);
        else CHECK(bits > 1 && bits < 2, "nv: %.3f bits", bits);
        HAS(line_of(&r, 0), "\"layer\":2");
        HAS(line_of(&r, 0), "\"saturated_frac\":");
        HAS(line_of(&r, 0), scaling_name(rules[k]));
        numerics_close(&r);
    }
}

TEST(zeros_are_underflow_unless_genuine) {
    NumericsReport r = quiet_report(MASTER_RULE_FP32);
    fill(1.0f);
    for (size_t i = 0; i < 500; i++) x[i] = 0;
    numerics_stored(&r, NUMERICS_GRAD, "datt", 0, FORMAT_FP16, x, N, 0);
    numerics_stored(&r, NUMERICS_GRAD, "dqkv", 0, FORMAT_FP16, x, N, 400);
    numerics_stored(&r, NUMERICS_GRAD, "dfch", 0, FORMAT_FP16, x, N, 0);
    numerics_stored(&r, NUMERICS_ACT, "ln1", 0, FORMAT_FP32, x, N, 0);
    numerics_stored(&r, NUMERICS_GRAD, "dqkv", 1, FORMAT_FP16, x, N, 600);  // more than there are
    CHECK(numerics_underflow(&r.entries[4]) == 0, "dqkv: %g", numerics_underflow(&r.entries[4]));
    CHECK(numerics_underflow(&r.entries[0]) == 0.1, "datt: %g", numerics_underflow(&r.entries[0]));
    CHECK(fabs(numerics_underflow(&r.entries[1]) - 100.0 / 4600) < 1e-12, "dqkv: %g", numerics_underflow(&r.entries[1]));
    HAS(line_of(&r, 0), "\"underflow_frac\":0.1,");
    HAS_NOT(line_of(&r, 2), "underflow_frac");
    HAS_NOT(line_of(&r, 3), "underflow_frac");
    HAS_NOT(line_of(&r, 3), "bits");
    numerics_close(&r);
}

TEST(micro_batches_add_up) {
    NumericsReport r = quiet_report(MASTER_RULE_FP32);
    fill(1.0f);
    numerics_stored(&r, NUMERICS_ACT, "ln1", 0, FORMAT_BF16, x, N, 0);
    numerics_stored(&r, NUMERICS_ACT, "ln1", 1, FORMAT_BF16, x, N, 0);
    for (size_t i = 0; i < N; i++) x[i] *= 3;
    numerics_stored(&r, NUMERICS_ACT, "ln1", 0, FORMAT_BF16, x, N, 0);
    CHECK(r.count == 2 && r.entries[0].sums.elements == 2 * N, "%zu entries", r.count);
    CHECK(numerics_amax(&r.entries[0]) == 3 * numerics_amax(&r.entries[1]), "the amax is not the larger one");
    CHECK(fabs(numerics_rms(&r.entries[0]) - sqrt(5.0) * numerics_rms(&r.entries[1])) < 1e-4, "rms %g", numerics_rms(&r.entries[0]));
    numerics_begin(&r, 2);  // entries stay, their sums begin anew
    CHECK(r.count == 2 && r.entries[0].sums.elements == 0, "sums were kept");
    numerics_close(&r);
}

// adamw_count against doing the update in every master rule.
TEST(counting_is_what_updating_does) {
    static const MasterRule masters[] = {MASTER_RULE_FP32, MASTER_RULE_NEAREST};
    for (size_t k = 0; k < 2; k++) {
        enum { M = 3000 };
        static float w[M], before[M], grad[M], m[M], v[M];
        static uint16_t codes[M], codes_before[M], m16[M], v16[M], v16_before[M];
        int narrow = masters[k] == MASTER_RULE_NEAREST;
        rand_normal_fill(w, M, 0, 0.02f, 7, 2);
        rand_normal_fill(grad, M, 0, 1e-3f, 7, 3);
        for (size_t i = 0; i < M; i++) {
            grad[i] = i % 7 ? grad[i] : 0.0f;
            codes[i] = codes_before[i] = encode_bf16(w[i]);
            m[i] = 0.0f, v[i] = 1e-6f;
            m16[i] = 0, v16[i] = v16_before[i] = encode_bf16(1e-6f);
            before[i] = w[i];
        }
        AdamWHyper h = adamw_hyper(1e-3, 0.9, 0.999, 1e-8, 0.0, 1.0, 10);
        AdamWTensor t = {narrow ? (void *)codes : (void *)w, NULL, NULL, narrow ? (void *)m16 : (void *)m,
                         narrow ? (void *)v16 : (void *)v, grad, M, 0};
        MomentsRule moments = narrow ? MOMENTS_RULE_BF16 : MOMENTS_RULE_FP32;
        UpdateCounts counts = {0, 0, 0, 0, 0}, halves = {0, 0, 0, 0, 0};
        adamw_count(&counts, &t, 0, M, &h, masters[k], moments);
        adamw_count(&halves, &t, 0, 1000, &h, masters[k], moments);
        adamw_count(&halves, &t, 1000, M, &h, masters[k], moments);
        CHECK(memcmp(before, w, sizeof w) == 0 && memcmp(codes, codes_before, sizeof codes) == 0, "counting wrote");
        CHECK(counts.lost == halves.lost && counts.updates == halves.updates, "parts do not add up");
        adamw_update_tensor(&t, &h, masters[k], moments);
        uint64_t updates = 0, lost = 0, stored = 0, frozen = 0;
        for (size_t i = 0; i < M; i++) {
            updates += grad[i] != 0;
            if (narrow) stored += grad[i] != 0 && codes[i] == codes_before[i];
            else stored += grad[i] != 0 && w[i] == before[i];
            lost += grad[i] != 0 && (narrow ? codes[i] == codes_before[i] : encode_bf16(w[i]) == encode_bf16(before[i]));
            frozen += narrow && v16[i] == v16_before[i];
        }
        CHECK(counts.updates == updates, "%llu updates, expected %llu", (unsigned long long)counts.updates, (unsigned long long)updates);
        CHECK(counts.lost == lost && lost > M / 10, "%llu lost, expected %llu", (unsigned long long)counts.lost, (unsigned long long)lost);
        CHECK(counts.lost_stored == stored, "%llu lost as stored, expected %llu", (unsigned long long)counts.lost_stored,
              (unsigned long long)stored);
        CHECK(counts.v_frozen == frozen && (counts.v_elements == M) == narrow, "%llu frozen, expected %llu",
              (unsigned long long)counts.v_frozen, (unsigned long long)frozen);
    }
}

// ----------------------------------------------------------------------------------------------------------------
// Warnings: each rule on both sides of its threshold.

static int warned(NumericsReport *r, NumericsRule rule) { return r->wait[rule] != 0; }

// An operand that is made up: `part` of 10000 elements is what `counter` counts.
static NumericsEntry *made_up(NumericsReport *r, ScalingRule scaling, uint64_t underflow, uint64_t saturated, float amax) {
    NumericsEntry *e = numerics_entry(r, NUMERICS_OPERAND, "fc.x.fprop", 3);
    e->scaling = scaling;
    e->format = scaling == SCALING_NV ? FORMAT_E2M1 : FORMAT_E4M3;
    e->sums.elements = e->sums.nonzero = 10000;
    e->sums.squares = 10000;
    e->sums.amax_bits = bits_of_float(amax);
    e->underflow = underflow;
    e->saturated = saturated;
    e->scale_min = e->scale_max = 448 / amax;
    return e;
}

#define FIRES(rule, expected, setup)                                                         \
    do {                                                                                     \
        NumericsReport r = quiet_report(MASTER_RULE_FP32);                                   \
        setup;                                                                               \
        numerics_end(&r);                                                                    \
        CHECK(warned(&r, rule) == (expected), "%s: rule %d %s", #setup, (int)(rule),         \
              (expected) ? "does not fire" : "fires");                                       \
        CHECK(r.warnings == (expected), "%s: %d warnings", #setup, (int)r.warnings);         \
        numerics_close(&r);                                                                  \
    } while (0)

TEST(warnings_of_operands) {
    FIRES(RULE_UNDERFLOW, 1, made_up(&r, SCALING_TENSOR, 150, 0, 4));
    FIRES(RULE_UNDERFLOW, 0, made_up(&r, SCALING_TENSOR, 90, 0, 4));
    FIRES(RULE_UNDERFLOW, 0, made_up(&r, SCALING_NV, 900, 0, 4));  // 7 to 9% are normal there
    FIRES(RULE_UNDERFLOW, 1, made_up(&r, SCALING_NV, 1600, 0, 4));
    FIRES(RULE_SATURATED, 1, made_up(&r, SCALING_DELAYED, 0, 15, 4));
    FIRES(RULE_SATURATED, 0, made_up(&r, SCALING_DELAYED, 0, 9, 4));
    FIRES(RULE_SATURATED, 0, made_up(&r, SCALING_NV, 0, 400, 4));
    FIRES(RULE_SATURATED, 1, made_up(&r, SCALING_NV, 0, 900, 4));
    FIRES(RULE_OUTLIERS, 1, made_up(&r, SCALING_TENSOR, 0, 0, 2000));
    FIRES(RULE_OUTLIERS, 0, made_up(&r, SCALING_TENSOR, 0, 0, 900));
    FIRES(RULE_OUTLIERS, 0, made_up(&r, SCALING_BLOCK, 0, 0, 2000));
    FIRES(RULE_AMAX_JUMP, 1, made_up(&r, SCALING_DELAYED, 0, 0, 4)->history_amax = 1.5f);
    FIRES(RULE_AMAX_JUMP, 0, made_up(&r, SCALING_DELAYED, 0, 0, 4)->history_amax = 2.5f);
    FIRES(RULE_NONFINITE, 1, made_up(&r, SCALING_TENSOR, 0, 0, 4)->sums.nonfinite = 1);
}

TEST(warnings_of_gradients_and_logits) {
    fill(1.0f);
    for (size_t i = 0; i < N / 50; i++) x[i] = 0;  // 2%
    FIRES(RULE_GRAD_UNDERFLOW, 1, numerics_stored(&r, NUMERICS_GRAD, "datt", 0, FORMAT_FP16, x, N, 0));
    FIRES(RULE_GRAD_UNDERFLOW, 0, numerics_stored(&r, NUMERICS_GRAD, "datt", 0, FORMAT_FP32, x, N, 0));
    FIRES(RULE_GRAD_UNDERFLOW, 0, numerics_stored(&r, NUMERICS_ACT, "att", 0, FORMAT_FP16, x, N, 0));
    FIRES(RULE_GRAD_UNDERFLOW, 0, numerics_stored(&r, NUMERICS_GRAD, "datt", 0, FORMAT_FP16, x + 200, N - 200, 0));
    FIRES(RULE_LOGITS, 0, numerics_stored(&r, NUMERICS_LOGITS, "logits", NUMERICS_NO_LAYER, FORMAT_BF16, x, N, 0));
    x[9] = 150;
    FIRES(RULE_LOGITS, 1, numerics_stored(&r, NUMERICS_LOGITS, "logits", NUMERICS_NO_LAYER, FORMAT_BF16, x, N, 0));
    FIRES(RULE_LOGITS, 0, numerics_stored(&r, NUMERICS_LOGITS, "logits", NUMERICS_NO_LAYER, FORMAT_FP32, x, N, 0));
}

// 40% of the updates lost as stored.
static void lost_updates(NumericsReport *r, MasterRule master) {
    UpdateCounts counts = {1000, 900, 400, 0, 0};
    r->master_rule = master;
    numerics_weight(r, "fcw", 0, FORMAT_BF16, &counts, x, x, N);
}
static void frozen_v(NumericsReport *r, uint64_t frozen) {
    UpdateCounts counts = {1000, 0, 0, frozen, 1000};
    numerics_weight(r, "fcw", 0, FORMAT_BF16, &counts, x, x, N);
}

TEST(warnings_of_weights) {
    fill(1.0f);
    FIRES(RULE_LOST_UPDATES, 1, lost_updates(&r, MASTER_RULE_NEAREST));
    FIRES(RULE_LOST_UPDATES, 0, lost_updates(&r, MASTER_RULE_KAHAN));
    FIRES(RULE_LOST_UPDATES, 0, lost_updates(&r, MASTER_RULE_FP32));
    FIRES(RULE_V_FROZEN, 1, frozen_v(&r, 250));
    FIRES(RULE_V_FROZEN, 0, frozen_v(&r, 150));
}

TEST(warning_of_a_scale_that_stands_still) {
    for (int moves = 0; moves < 2; moves++) {
        NumericsReport r = quiet_report(MASTER_RULE_FP32);
        for (uint64_t step = 1; step <= 20; step++) {
            numerics_begin(&r, step);
            NumericsEntry *e = made_up(&r, SCALING_DELAYED, 0, 0, step < 3 ? 4.0f : 1.0f);
            e->history_length = 16;
            e->scale_min = e->scale_max = moves && step > 10 ? 448.0f : 112.0f;
            numerics_end(&r);
        }
        CHECK(warned(&r, RULE_SCALE_STILL) == !moves, "%s", moves ? "fires" : "does not fire");
        numerics_close(&r);
    }
}

TEST(warnings_over_steps) {
    NumericsReport r = quiet_report(MASTER_RULE_FP32);
    for (uint64_t step = 1; step <= 9; step++) numerics_step(&r, step, 52429, 65536, 0, 0);
    CHECK(!warned(&r, RULE_CLIP_SCALED), "clip fires after 9 steps");
    numerics_step(&r, 10, 52429, 65536, 0, 0);
    CHECK(warned(&r, RULE_CLIP_SCALED), "clip does not fire");
    numerics_close(&r);
    r = quiet_report(MASTER_RULE_FP32);
    for (uint64_t step = 1; step <= 50; step++) numerics_step(&r, step, 0.8, 65536, 0, 0);
    numerics_step(&r, 51, 0.8, 65536, 4, 4);
    CHECK(r.warnings == 0, "a healthy run is warned");
    numerics_step(&r, 52, 0.8, 65536, 5, 5);
    CHECK(warned(&r, RULE_SKIPS), "5 skips in a row do not fire");
    numerics_close(&r);
    r = quiet_report(MASTER_RULE_FP32);
    for (uint64_t step = 1; step <= 2100; step++) numerics_step(&r, step, 0.8, 65536, step / 80, 0);
    CHECK(warned(&r, RULE_SKIPS), "one skip in 80 does not fire");
    numerics_close(&r);
}

TEST(warning_of_a_trend) {
    for (int growth = 1; growth <= 3; growth += 2) {
        NumericsReport r = quiet_report(MASTER_RULE_FP32);
        fill(1.0f);
        numerics_begin(&r, 100);
        numerics_stored(&r, NUMERICS_ACT, "fch_gelu", 0, FORMAT_BF16, x, N, 0);
        numerics_end(&r);
        for (size_t i = 0; i < N; i++) x[i] *= (float)growth;
        numerics_begin(&r, 1100);
        numerics_stored(&r, NUMERICS_ACT, "fch_gelu", 0, FORMAT_BF16, x, N, 0);
        numerics_end(&r);
        CHECK(warned(&r, RULE_TREND) == (growth == 3), "growth by %d", growth);
        numerics_close(&r);
    }
}

TEST(a_standing_warning_is_given_ever_less_often) {
    NumericsReport r = quiet_report(MASTER_RULE_FP32);
    uint64_t given = 0, at[8] = {0};
    for (uint64_t step = 1; step <= 40; step++) {
        numerics_begin(&r, step);
        made_up(&r, SCALING_TENSOR, 1500, 0, 4);
        numerics_end(&r);
        if (r.warnings > given && given < 8) at[given++] = step;
    }
    CHECK(given == 6 && at[0] == 1 && at[1] == 3 && at[2] == 6 && at[3] == 11 && at[4] == 20 && at[5] == 37, "%d warnings, at %d %d %d %d %d",
          (int)given, (int)at[0], (int)at[1], (int)at[2], (int)at[3], (int)at[4]);
    numerics_close(&r);
}

// ----------------------------------------------------------------------------------------------------------------
// The file

static void write_steps(NumericsReport *r, uint64_t from, uint64_t to) {
    for (uint64_t step = from; step <= to; step++) {
        if (!numerics_due(r->every, step)) continue;
        numerics_begin(r, step);
        numerics_stored(r, NUMERICS_ACT, "ln1", 0, FORMAT_BF16, x, N, 0);
        numerics_stored(r, NUMERICS_ACT, "logits", NUMERICS_NO_LAYER, FORMAT_BF16, x, N, 0);
        made_up(r, SCALING_TENSOR, 1500, 0, 4);  // a warning, too
        numerics_end(r);
    }
}

// Lines of the file that are whole JSON objects with a step, those of `step` (0: all), or -1 where one is not.
static int count_lines(const char *path, uint64_t step, const char *part) {
    char line[2048];
    int count = 0;
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    while (fgets(line, sizeof line, file)) {
        uint64_t at = 0;
        double seconds;
        if (!run_log_line_step(line, strlen(line) - 1, &at, &seconds)) count = -1000;
        count += (step == 0 || at == step) && (!part || strstr(line, part));
    }
    fclose(file);
    return count;
}

TEST(the_file_and_its_resume) {
    char dir[] = "/tmp/test_numerics.XXXXXX", path[64];
    NumericsReport r;
    CHECK(mkdtemp(dir) != NULL, "no folder");
    snprintf(path, sizeof path, "%s/numerics.jsonl", dir);
    fill(1.0f);
    numerics_open(&r, path, 5, MASTER_RULE_FP32, 0, 0);
    r.quiet = 1;
    write_steps(&r, 1, 20);
    numerics_close(&r);
    CHECK(count_lines(path, 0, "\"kind\"") == 3 * 5, "%d lines", count_lines(path, 0, "\"kind\""));
    CHECK(count_lines(path, 1, NULL) == 4 && count_lines(path, 20, "\"kind\"") == 3, "the first and the last step");
    CHECK(count_lines(path, 0, "\"warning\":\"15.0% of fc.x.fprop of layer 3 became zero in e4m3. Likely cause: ") > 0,
          "no warning line");
    numerics_open(&r, path, 5, MASTER_RULE_FP32, 1, 12);  // killed later, resumed from a checkpoint at 12
    r.quiet = 1;
    CHECK(count_lines(path, 15, NULL) == 0 && count_lines(path, 10, "\"kind\"") == 3, "not cut at step 12");
    write_steps(&r, 13, 20);
    numerics_close(&r);
    CHECK(count_lines(path, 15, "\"kind\"") == 3 && count_lines(path, 0, "\"kind\"") == 3 * 5, "lines twice or lost");
    numerics_open(&r, path, 0, MASTER_RULE_FP32, 1, 12);  // off now: later lines go all the same
    CHECK(r.log.file == NULL && count_lines(path, 15, NULL) == 0 && count_lines(path, 10, "\"kind\"") == 3, "off, resumed");
    numerics_close(&r);
    numerics_open(&r, path, 0, MASTER_RULE_FP32, 0, 0);  // a new run without reports in the same folder
    numerics_close(&r);
    CHECK(access(path, F_OK) != 0, "another run's file stays");
    numerics_open(&r, path, 0, MASTER_RULE_FP32, 1, 3);
    CHECK(access(path, F_OK) != 0, "an empty file appears");
    numerics_close(&r);
    rmdir(dir);
}

int main(void) {
    RUN(sums_of_a_stored_tensor);
    RUN(nonfinite_elements_stay_out_of_sums);
    RUN(bits_of_a_stored_tensor);
    RUN(bits_of_a_cast);
    RUN(zeros_are_underflow_unless_genuine);
    RUN(micro_batches_add_up);
    RUN(counting_is_what_updating_does);
    RUN(warnings_of_operands);
    RUN(warnings_of_gradients_and_logits);
    RUN(warnings_of_weights);
    RUN(warning_of_a_scale_that_stands_still);
    RUN(warnings_over_steps);
    RUN(warning_of_a_trend);
    RUN(a_standing_warning_is_given_ever_less_often);
    RUN(the_file_and_its_resume);
    return test_summary();
}
