// test_formats.c: llmc/formats.h against recorded conversions, against its own slow definition, and against a search
// for the nearest value; stochastic rounding against its probabilities; the arithmetic facts that the precision modes
// rest on.
#include "llmc/formats.h"

#include <stdlib.h>

#include "dev/test/golden_formats.h"
#include "dev/test/test.h"
#include "llmc/rand.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

// One row per cast: the fast function behind one signature, and what the slow one is asked for the same result.
typedef uint32_t (*Encode)(float x);
static uint32_t fast_fp32(float x) { return is_nan_bits(bits_of_float(x)) ? 0x7fffffffu : bits_of_float(x); }
static uint32_t fast_tf32(float x) { return bits_of_float(round_tf32(x)); }
static uint32_t fast_fp16(float x) { return encode_fp16(x); }
static uint32_t fast_bf16(float x) { return encode_bf16(x); }
static uint32_t fast_e4m3(float x) { return encode_e4m3(x); }
static uint32_t fast_e4m3_nosat(float x) { return encode_e4m3_nosat(x); }
static uint32_t fast_e5m2(float x) { return encode_e5m2(x); }
static uint32_t fast_e5m2_nosat(float x) { return encode_e5m2_nosat(x); }
static uint32_t fast_e2m1(float x) { return encode_e2m1(x); }
static uint32_t fast_ue4m3(float x) { return encode_ue4m3(x); }
static uint32_t fast_e8m0(float x) { return encode_e8m0(x); }
static uint32_t fast_e8m0_rz(float x) { return encode_e8m0_rz(x); }
static uint32_t fast_e8m0_nosat(float x) { return encode_e8m0_nosat(x); }

typedef struct {
    const char *name;
    FormatId id;
    int saturate;
    Encode encode;
} Cast;
static const Cast casts[] = {
    {"fp32", FORMAT_FP32, 0, fast_fp32}, {"tf32", FORMAT_TF32, 0, fast_tf32},
    {"fp16", FORMAT_FP16, 0, fast_fp16}, {"bf16", FORMAT_BF16, 0, fast_bf16},
    {"e4m3", FORMAT_E4M3, 1, fast_e4m3}, {"e4m3 nosat", FORMAT_E4M3, 0, fast_e4m3_nosat},
    {"e5m2", FORMAT_E5M2, 1, fast_e5m2}, {"e5m2 nosat", FORMAT_E5M2, 0, fast_e5m2_nosat},
    {"e2m1", FORMAT_E2M1, 1, fast_e2m1}, {"ue4m3", FORMAT_UE4M3, 1, fast_ue4m3},
};

// Codes of the one (CUDA and our) NaN of tf32 differ; a tf32 is a float, and those are compared as "both NaN".
static int same_code(FormatId id, uint32_t a, uint32_t b) {
    return a == b || (id == FORMAT_TF32 && is_nan_bits(a) && is_nan_bits(b));
}

static float decode_fast(FormatId id, uint32_t code) {
    switch (id) {
        case FORMAT_FP16: return decode_fp16((uint16_t)code);
        case FORMAT_BF16: return decode_bf16((uint16_t)code);
        case FORMAT_E4M3: return decode_e4m3((uint8_t)code);
        case FORMAT_E5M2: return decode_e5m2((uint8_t)code);
        case FORMAT_E8M0: return decode_e8m0((uint8_t)code);
        case FORMAT_E2M1: return decode_e2m1((uint8_t)code);
        case FORMAT_UE4M3: return decode_ue4m3((uint8_t)code);
        default: return float_of_bits(code);
    }
}

static int same_float(float a, float b) { return bits_of_float(a) == bits_of_float(b) || (a != a && b != b); }

static uint32_t random_bits(uint64_t i) { return rand_u32(1, RAND_TEST, 0, 0, i); }

// ----------------------------------------------------------------------------------------------------------------

static void check_golden(const char *name, Encode encode, const Golden *table, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint32_t code = encode(float_of_bits(table[i].input));
        CHECK(code == table[i].code, "%s: %08x gives %x, expected %x", name, table[i].input, code, table[i].code);
    }
}
#define GOLDEN(encode, table) check_golden(#table, encode, table, COUNT(table))

TEST(recorded_conversions) {
    GOLDEN(fast_bf16, golden_bf16);
    GOLDEN(fast_fp16, golden_fp16);
    GOLDEN(fast_e4m3, golden_e4m3);
    GOLDEN(fast_e4m3_nosat, golden_e4m3_nosat);
    GOLDEN(fast_e5m2, golden_e5m2);
    GOLDEN(fast_e5m2_nosat, golden_e5m2_nosat);
    GOLDEN(fast_e2m1, golden_e2m1);
    GOLDEN(fast_e8m0, golden_e8m0);
    GOLDEN(fast_e8m0_rz, golden_e8m0_rz);
    GOLDEN(fast_e8m0_nosat, golden_e8m0_nosat);
    for (size_t i = 0; i < COUNT(golden_e4m3); i++) {
        uint32_t input = golden_e4m3[i].input;
        if (input >> 31 || is_nan_bits(input)) continue;
        CHECK(encode_ue4m3(float_of_bits(input)) == golden_e4m3[i].code, "ue4m3 of %08x", input);
    }
    for (size_t i = 0; i < COUNT(golden_e8m0_decode); i++) {
        uint16_t code = encode_bf16(decode_e8m0((uint8_t)golden_e8m0_decode[i].input));
        CHECK(code == golden_e8m0_decode[i].code, "e8m0 %02x decodes to %04x", golden_e8m0_decode[i].input, code);
    }
}

// Where a "differs at" list is silent, both variants must agree on the full list.
static const Golden *find_golden(const Golden *table, size_t n, uint32_t input) {
    for (size_t i = 0; i < n; i++)
        if (table[i].input == input) return &table[i];
    return NULL;
}
TEST(variants_differ_only_where_recorded) {
    for (size_t i = 0; i < COUNT(golden_e4m3); i++) {
        const Golden *g = find_golden(golden_e4m3_nosat, COUNT(golden_e4m3_nosat), golden_e4m3[i].input);
        CHECK(encode_e4m3_nosat(float_of_bits(golden_e4m3[i].input)) == (g ? g : &golden_e4m3[i])->code, "e4m3 %zu", i);
    }
    for (size_t i = 0; i < COUNT(golden_e5m2); i++) {
        const Golden *g = find_golden(golden_e5m2_nosat, COUNT(golden_e5m2_nosat), golden_e5m2[i].input);
        CHECK(encode_e5m2_nosat(float_of_bits(golden_e5m2[i].input)) == (g ? g : &golden_e5m2[i])->code, "e5m2 %zu", i);
    }
    for (size_t i = 0; i < COUNT(golden_e8m0); i++) {
        const Golden *g = find_golden(golden_e8m0_rz, COUNT(golden_e8m0_rz), golden_e8m0[i].input);
        CHECK(encode_e8m0_rz(float_of_bits(golden_e8m0[i].input)) == (g ? g : &golden_e8m0[i])->code, "e8m0 rz %zu", i);
        g = find_golden(golden_e8m0_nosat, COUNT(golden_e8m0_nosat), golden_e8m0[i].input);
        CHECK(encode_e8m0_nosat(float_of_bits(golden_e8m0[i].input)) == (g ? g : &golden_e8m0[i])->code, "e8m0 ns %zu",
              i);
    }
}

TEST(recorded_tf32) {
    for (size_t i = 0; i < COUNT(golden_tf32_rz); i++) {
        float x = float_of_bits(golden_tf32_rz[i].input);
        const Golden *rne = find_golden(golden_tf32_rne, COUNT(golden_tf32_rne), golden_tf32_rz[i].input);
        uint32_t expected = (rne ? rne : &golden_tf32_rna[i])->code;
        CHECK(bits_of_float(round_tf32_rz(x)) == golden_tf32_rz[i].code, "rz %08x", golden_tf32_rz[i].input);
        CHECK(bits_of_float(round_tf32_rna(x)) == golden_tf32_rna[i].code, "rna %08x", golden_tf32_rna[i].input);
        CHECK(bits_of_float(round_tf32(x)) == expected, "rne %08x", golden_tf32_rna[i].input);
    }
    float nan_with_low_bits = float_of_bits(0x7f800001u);  // toward zero on the raw pattern would make it Inf
    CHECK(isnan(round_tf32_rz(nan_with_low_bits)) && isnan(round_tf32_rna(nan_with_low_bits)) &&
              isnan(round_tf32(nan_with_low_bits)),
          "NaN lost");
}

TEST(descriptors_agree_with_their_formats) {
    for (int id = 0; id < FORMAT_COUNT; id++) {
        const Format *f = format_info((FormatId)id);
        int shift = f->code_shift;
        CHECK(format_decode(f, f->max_code << shift) == f->max, "%s: max %g", f->name, f->max);
        CHECK(format_decode(f, (f->max_code + 1) << shift) == INFINITY ||
                  isnan(format_decode(f, (f->max_code + 1) << shift)) || id == FORMAT_E2M1,
              "%s: a number lies beyond max", f->name);
        if (id != FORMAT_E8M0) {
            CHECK(format_decode(f, 1u << shift) == f->min_subnormal, "%s: min subnormal", f->name);
            CHECK(format_decode(f, 1u << f->mantissa_bits << shift) == f->min_normal, "%s: min normal", f->name);
            uint32_t one = (uint32_t)f->bias << f->mantissa_bits;
            CHECK(format_decode(f, one << shift) == 1.0f, "%s: one", f->name);
            CHECK(format_decode(f, (one + 1) << shift) == 1.0f + f->epsilon, "%s: epsilon", f->name);
        }
        int bits = f->sign_bits + f->exponent_bits + f->mantissa_bits;
        CHECK(id == FORMAT_UE4M3 || bits + shift == f->stored_bits, "%s: %d bits", f->name, bits);
    }
    CHECK(format_bytes(FORMAT_E2M1, 5) == 3 && format_bytes(FORMAT_BF16, 3) == 6 && format_bytes(FORMAT_E4M3, 7) == 7,
          "bytes");
}

// ----------------------------------------------------------------------------------------------------------------

// Every pattern near something: around each code's value, around the midpoint to the next; and a sweep over all.
static size_t make_samples(uint32_t **samples, const Format *f) {
    size_t sweep = 1 << 20, codes = (size_t)1 << (f->stored_bits > 16 ? 12 : f->stored_bits), n = 0;
    uint32_t *s = (uint32_t *)checked_calloc(sweep + codes * 10, sizeof *s, "samples");
    for (size_t i = 0; i < sweep; i++) s[n++] = (uint32_t)i * 4093u + (uint32_t)(i >> 8);  // reaches every exponent
    if (f->stored_bits <= 16)
        for (uint32_t c = 0; c < codes; c++) {
            float value = format_decode(f, c), next = format_decode(f, c + 1);
            uint32_t here = bits_of_float(value), middle = bits_of_float(0.5f * value + 0.5f * next);
            for (int d = -2; d <= 2; d++) {
                s[n++] = here + (uint32_t)d;
                s[n++] = middle + (uint32_t)d;
            }
        }
    *samples = s;
    return n;
}

TEST(fast_casts_equal_the_definition) {
    for (size_t k = 0; k < COUNT(casts); k++) {
        const Format *f = format_info(casts[k].id);
        uint32_t *samples;
        size_t n = make_samples(&samples, f), wrong = 0;
        for (size_t i = 0; i < n; i++) {
            float x = float_of_bits(samples[i]);
            uint32_t slow = format_encode(f, x, casts[k].saturate), fast = casts[k].encode(x);
            if (!same_code(casts[k].id, slow, fast) && wrong++ < 3)
                CHECK(0, "%s of %08x: %x, definition %x", casts[k].name, samples[i], fast, slow);
            // the value-to-value function is decode of encode (nosat fp8 has none)
            if (casts[k].saturate == (casts[k].id >= FORMAT_E4M3)) {
                float rounded = format_round(casts[k].id, x), decoded = decode_fast(casts[k].id, fast);
                if (!same_float(rounded, decoded) && wrong++ < 3)
                    CHECK(0, "round_%s(%08x) is %g, the code's value %g", casts[k].name, samples[i], rounded, decoded);
            }
        }
        CHECK(wrong == 0, "%s: %zu of %zu wrong", casts[k].name, wrong, n);
        free(samples);
    }
}

// Nothing but the list of values: the nearest one, the even code on a tie.
static uint32_t search_nearest(const Format *f, double magnitude) {
    uint32_t low = 0, high = f->max_code;
    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;
        if ((double)format_decode(f, middle) <= magnitude) low = middle;
        else high = middle;
    }
    double down = magnitude - (double)format_decode(f, low), up = (double)format_decode(f, high) - magnitude;
    return down < up || (down == up && low % 2 == 0) ? low : high;
}
TEST(definition_equals_a_search) {
    static const FormatId ids[] = {FORMAT_FP16, FORMAT_BF16, FORMAT_E4M3, FORMAT_E5M2, FORMAT_E2M1, FORMAT_UE4M3};
    for (size_t k = 0; k < COUNT(ids); k++) {
        const Format *f = format_info(ids[k]);
        size_t wrong = 0;
        for (uint32_t i = 0; i < 100000; i++) {
            // magnitudes spread over the format's range and just outside it
            float span = log2f(f->max) - log2f(f->min_subnormal) + 4.0f;
            float x = exp2f(log2f(f->min_subnormal) - 3.0f + span * rand_uniform_from_bits(random_bits(i)));
            if (i % 4 == 0)
                x = format_decode(f, random_bits(i) % f->max_code) * 0.5f +
                    format_decode(f, random_bits(i) % f->max_code + 1) * 0.5f;
            if (!(x <= f->max)) x = f->max;
            if (format_encode(f, x, 1) != search_nearest(f, x) && wrong++ < 3)
                CHECK(0, "%s: %g (%08x)", f->name, x, bits_of_float(x));
        }
        CHECK(wrong == 0, "%s: %zu wrong", f->name, wrong);
    }
}

TEST(all_codes_round_trip) {
    for (size_t k = 0; k < COUNT(casts); k++) {
        const Format *f = format_info(casts[k].id);
        if (f->stored_bits > 16) continue;
        for (uint32_t code = 0; code < 1u << f->stored_bits; code++) {
            if (casts[k].id == FORMAT_UE4M3 && code > 0x7f) break;
            float value = format_decode(f, code);
            CHECK(same_float(value, decode_fast(casts[k].id, code)), "%s %x decodes to %g", f->name, code, value);
            uint32_t expected = isnan(value) ? f->nan_code : code;
            if (isinf(value) && casts[k].saturate) expected = f->max_code | (code & 0x80u);
            CHECK(casts[k].encode(value) == expected, "%s %x comes back as %x", casts[k].name, code,
                  casts[k].encode(value));
            CHECK(format_encode(f, value, casts[k].saturate) == expected, "%s %x, definition", casts[k].name, code);
        }
    }
    for (uint32_t code = 0; code < 256; code++) {
        float value = decode_e8m0((uint8_t)code);
        CHECK(same_float(value, format_decode(format_info(FORMAT_E8M0), code)), "e8m0 %x", code);
        CHECK(encode_e8m0(value) == code && encode_e8m0_rz(value) == code && encode_e8m0_nosat(value) == code,
              "e8m0 %x", code);
        if (code < 255) CHECK(value * encode_scale_e8m0((uint8_t)code) == 1.0f, "e8m0 %x: scale and inverse", code);
    }
}

// e8m0 by its meaning: the smallest power of two that is not below x.
TEST(e8m0_is_the_next_power_of_two) {
    for (uint64_t i = 0; i < 1 << 18; i++) {
        uint32_t bits = (uint32_t)(i << 14) + (uint32_t)(i % 5) - 2;
        float x = fabsf(float_of_bits(bits));
        if (!(x <= 0x1p127f)) continue;
        int up = 0, down = 254;
        while (up < 254 && ldexp(1.0, up - 127) < (double)x) up++;
        while (down > 0 && ldexp(1.0, down - 127) > (double)x) down--;
        CHECK(encode_e8m0(x) == up, "%08x: %d, expected %d", bits, encode_e8m0(x), up);
        CHECK(encode_e8m0_rz(x) == down, "%08x toward zero: %d, expected %d", bits, encode_e8m0_rz(x), down);
    }
}

// ----------------------------------------------------------------------------------------------------------------

TEST(stochastic_vectors) {
    for (size_t i = 0; i < COUNT(golden_sr_bf16); i++) {
        uint32_t code = sr_bf16(float_of_bits(golden_sr_bf16[i][0]), golden_sr_bf16[i][1]);
        CHECK(code == golden_sr_bf16[i][2], "%08x + %04x gives %04x, expected %04x", golden_sr_bf16[i][0],
              golden_sr_bf16[i][1], code, golden_sr_bf16[i][2]);
    }
    for (size_t i = 0; i < COUNT(golden_sr_e2m1); i++) {
        const float *row = golden_sr_e2m1[i];
        float value = decode_e2m1(sr_e2m1(row[0], (uint32_t)row[1]));
        CHECK(value == row[2], "%g with %g gives %g, expected %g", row[0], row[1], value, row[2]);
    }
    for (uint32_t r = 0; r < 256; r++) {
        CHECK(sr_e2m1(NAN, r) == 7 && sr_e2m1(-NAN, r) == 7, "NaN is +6");
        for (uint32_t code = 0; code < 16; code++)
            CHECK(sr_e2m1(decode_e2m1((uint8_t)code), r) == code, "an exact value moved");
    }
}

TEST(fast_stochastic_equals_the_definition) {
    const Format *bf16 = format_info(FORMAT_BF16), *e2m1 = format_info(FORMAT_E2M1);
    const Format *e4m3 = format_info(FORMAT_E4M3), *e5m2 = format_info(FORMAT_E5M2);
    for (uint64_t i = 0; i < 1 << 20; i++) {
        uint32_t bits = (uint32_t)i * 4093u + (uint32_t)(i >> 8), r = random_bits(i);
        if (i % 2) bits = (bits & 0x87ffffffu) + 0x38000000u;  // magnitudes where fp8 and fp4 have numbers
        float x = float_of_bits(bits);
        CHECK(sr_bf16(x, r) == format_encode_stochastic(bf16, x, r & 0xffff, 16, 0), "bf16 %08x %08x", bits, r);
        CHECK(sr_e2m1(x, r) == format_encode_stochastic(e2m1, x, r & 0xff, 8, 1), "e2m1 %08x %08x", bits, r);
        CHECK(sr_e4m3(x, r) == format_encode_stochastic(e4m3, x, r & 0xff, 8, 1), "e4m3 %08x %08x", bits, r);
        CHECK(sr_e5m2(x, r) == format_encode_stochastic(e5m2, x, r & 0xff, 8, 1), "e5m2 %08x %08x", bits, r);
    }
}

// Rounding up has probability j/65536: the count of a million draws lies within 4 standard deviations.
TEST(stochastic_probabilities) {
    static const uint32_t steps[] = {1, 100, 0x7fff, 0xffff};
    const int draws = 1000000;
    for (size_t k = 0; k < COUNT(steps); k++) {
        float x = float_of_bits(0x3f800000u + steps[k]);
        int up = 0;
        for (int i = 0; i < draws; i++) up += sr_bf16(x, rand_u32(7, RAND_TEST, (uint32_t)k, 0, (uint64_t)i)) == 0x3f81;
        double p = steps[k] / 65536.0, sigma = sqrt(p * (1 - p) / draws), share = (double)up / draws;
        CHECK(fabs(share - p) <= 4 * sigma, "j=%u: share %.6f, expected %.6f +- %.6f", steps[k], share, p, 4 * sigma);
    }
}

// ----------------------------------------------------------------------------------------------------------------
// What the precision modes rest on

TEST(a_thousand_small_updates) {
    float rne = 1.0f, kahan = 1.0f, kahan_c = 0.0f, master = 1.0f;
    for (int i = 0; i < 1000; i++) {
        rne = round_bf16(rne + 0.001f);
        kahan_update_bf16(&kahan, &kahan_c, 0.001f);
        master += 0.001f;
    }
    CHECK(rne == 1.0f, "round to nearest: %g, expected 1: every update is below half an ulp", rne);
    CHECK(kahan == 2.0f, "Kahan: %g, expected 2", kahan);
    CHECK(fabsf(kahan_c + 0.00316f) < 5e-5f, "Kahan's c is %g", kahan_c);
    CHECK(round_bf16(master) == 2.0f, "fp32 master: %g", master);
    double sum = 0, squares = 0;
    for (uint32_t seed = 0; seed < 200; seed++) {
        float w = 1.0f;
        for (uint32_t i = 0; i < 1000; i++) w = round_sr_bf16(w + 0.001f, rand_u32(seed, RAND_ROUND_WEIGHT, 0, i, 0));
        sum += w;
        squares += (double)w * w;
    }
    double mean = sum / 200, sd = sqrt(squares / 200 - mean * mean);
    CHECK(fabs(mean - 2.0) <= 0.02, "stochastic: mean %.4f over 200 seeds", mean);
    CHECK(sd > 0.05 && sd < 0.1, "stochastic: standard deviation %.4f, expected about 0.075", sd);
}

TEST(second_moment_in_bf16_is_a_ratchet) {
    float v = 1.0f;
    for (int i = 0; i < 2000; i++) v = round_bf16(0.999f * v);
    CHECK(v == 1.0f, "v decayed to %g", v);
    double sum = 0;
    for (uint32_t e = 0; e < 1000; e++) {
        float s = 1.0f;
        for (uint32_t i = 0; i < 2000; i++) s = round_sr_bf16(0.999f * s, rand_u32(3, RAND_ROUND_V, 0, i, e));
        sum += s;
    }
    CHECK(fabs(sum / 1000 - 0.135) <= 0.002, "stochastic: mean %.4f, 0.999^2000 is 0.1352", sum / 1000);
    // up, v = 1 moves only if (1-beta2) (g^2 - v) reaches half an ulp; beta2 = 0.95 follows much sooner
    CHECK(round_bf16(0.999f + 0.001f * 4.0f) == 1.0f && round_bf16(0.999f + 0.001f * 5.0f) > 1.0f, "beta2 0.999");
    CHECK(round_bf16(0.95f + 0.05f * 1.2f) > 1.0f && round_bf16(0.95f) < 1.0f, "beta2 0.95");
}

TEST(half_ulp_facts) {
    CHECK(round_bf16(1.0f + 0x1p-9f) == 1.0f, "bf16: 1 + 2^-9");
    CHECK(round_fp16(1.0f - 2e-4f) == 1.0f, "fp16: spacing halves below 1, 2e-4 is still lost");
    CHECK(fabsf(round_fp16(2.0f - 5e-4f) - 1.99902f) < 1e-5f, "fp16: 2 - 5e-4 sticks");
    CHECK(round_fp16(2.0f + 5e-4f) == 2.0f, "fp16: 2 + 5e-4 is lost");
    CHECK(round_fp16(1e-8f) == 0.0f && round_fp16(1e-8f * 1024.0f) > 0.0f, "fp16: 1e-8 needs a loss scale");
    CHECK(round_fp16(3.1e-8f) == 0x1p-24f, "fp16: 3.1e-8 becomes the smallest subnormal");
    CHECK(round_e4m3(500.0f) == 448.0f && round_e4m3(INFINITY) == 448.0f, "e4m3 saturates");
    CHECK(round_bf16(round_bf16(256.0f + 1.0f) + 1.0f) == 256.0f && round_bf16(256.0f + 2.0f) == 258.0f,
          "not associative");
    float bf16_sum = 0, fp16_sum = 0;
    for (int i = 0; i < 100000; i++) {
        bf16_sum = round_bf16(bf16_sum + round_bf16(0.025f));
        fp16_sum = round_fp16(fp16_sum + round_fp16(0.025f));
    }
    CHECK(bf16_sum == 8.0f && fp16_sum == 64.0f, "sums of 0.025 stall at %g (bf16), %g (fp16)", bf16_sum, fp16_sum);
    // a cast through a second narrow format rounds twice
    CHECK(encode_e4m3(float_of_bits(0x3f880001u)) == 0x39 &&
              encode_e4m3(round_bf16(float_of_bits(0x3f880001u))) == 0x38,
          "via bf16");
    CHECK(encode_e4m3(float_of_bits(0x3f978000u)) == 0x39 &&
              encode_e4m3(round_bf16(float_of_bits(0x3f978000u))) == 0x3a,
          "via bf16");
}

// A rounding errs by 0.425 half-epsilons on log-uniform mantissas, for any scale that keeps values normal.
TEST(rounding_error_is_what_the_mantissa_gives) {
    enum { SAMPLES = 100000 };
    float *normal = (float *)checked_calloc(SAMPLES, sizeof *normal, "samples");
    rand_normal_fill(normal, SAMPLES, 0, 1.0f, 5, 0);
    static const FormatId ids[] = {FORMAT_TF32, FORMAT_FP16, FORMAT_BF16, FORMAT_E4M3, FORMAT_E5M2};
    for (size_t k = 0; k < COUNT(ids); k++)
        for (float scale = 0.25f; scale <= 16.0f; scale *= 64.0f) {
            double error = 0, total = 0;
            for (size_t i = 0; i < SAMPLES; i++) {
                float x = normal[i] * scale;
                double e = (double)format_round(ids[k], x) - (double)x;
                error += e * e;
                total += (double)x * x;
            }
            double relative = sqrt(error / total), expected = 0.425 * 0.5 * format_epsilon(ids[k]);
            CHECK(fabs(relative / expected - 1) < 0.05, "%s: rms %.3e, expected %.3e", format_name(ids[k]), relative,
                  expected);
        }
    free(normal);
}

TEST(fp4_packing) {
    uint8_t codes[8], packed[4], back[8];  // 8: gcc 12 misjudges an unrolled loop over 7
    for (size_t n = 0; n <= 7; n++) {
        for (size_t i = 0; i < 7; i++) codes[i] = (uint8_t)(i * 5 + 1) & 15;
        memset(packed, 0xee, sizeof packed);
        pack_fp4(packed, codes, n);
        unpack_fp4(back, packed, n);
        CHECK(memcmp(codes, back, n) == 0, "%zu codes", n);
        for (size_t i = (n + 1) / 2; i < 4; i++) CHECK(packed[i] == 0xee, "%zu codes wrote byte %zu", n, i);
    }
    pack_fp4(packed, codes, 2);
    CHECK(packed[0] == (codes[0] | codes[1] << 4), "element 0 belongs in the low half");
}

TEST(array_rounding) {
    float in[37], out[37];
    for (size_t i = 0; i < 37; i++) in[i] = float_of_bits(random_bits(i));
    in[5] = NAN, in[6] = INFINITY, in[7] = -0.0f;
    for (int id = 0; id < FORMAT_COUNT; id++) {
        format_round_array((FormatId)id, out, in, 37);
        for (size_t i = 0; i < 37; i++)
            CHECK(same_float(out[i], format_round((FormatId)id, in[i])), "format %d element %zu", id, i);
    }
}

TEST(self_test_passes) {
    const char *broken = formats_self_test();
    CHECK(broken == NULL, "%s", broken);
}

int main(void) {
    RUN(recorded_conversions);
    RUN(variants_differ_only_where_recorded);
    RUN(recorded_tf32);
    RUN(descriptors_agree_with_their_formats);
    RUN(fast_casts_equal_the_definition);
    RUN(definition_equals_a_search);
    RUN(all_codes_round_trip);
    RUN(e8m0_is_the_next_power_of_two);
    RUN(stochastic_vectors);
    RUN(fast_stochastic_equals_the_definition);
    RUN(stochastic_probabilities);
    RUN(a_thousand_small_updates);
    RUN(second_moment_in_bf16_is_a_ratchet);
    RUN(half_ulp_facts);
    RUN(rounding_error_is_what_the_mantissa_gives);
    RUN(fp4_packing);
    RUN(array_rounding);
    RUN(self_test_passes);
    return test_summary();
}
