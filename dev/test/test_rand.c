// Tests of llmc/rand.h: published answers, the documented layout, distributions, independence of threads.
#include "../../llmc/rand.h"
#include "test.h"

static RandBlock block(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    RandBlock block;
    block.word[0] = a, block.word[1] = b, block.word[2] = c, block.word[3] = d;
    return block;
}

static void check_block(RandBlock got, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    RandBlock want = block(a, b, c, d);
    for (int i = 0; i < 4; i++)
        CHECK(got.word[i] == want.word[i], "word %d is %08x, not %08x", i, got.word[i], want.word[i]);
}

// The first two are in Random123's kat_vectors, the third is cuRAND's for this key and counter.
TEST(philox_known_answers) {
    uint32_t ones = 0xffffffffu;
    check_block(rand_philox(block(0, 0, 0, 0), 0, 0), 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8);
    check_block(rand_philox(block(ones, ones, ones, ones), ones, ones), 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd);
    check_block(rand_philox(block(5, 0, 7, 100), 1234, 0), 0xe8cf8427, 0x0aeb4140, 0x9e320d7b, 0x5a1f53e5);
    // Random123's third: digits of pi
    check_block(rand_philox(block(0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344), 0xa4093822, 0x299f31d0), 0xd16cfe09,
                0x94fdcceb, 0x5001e420, 0x24126ea1);
}

// element -> counter and word, seed and purpose -> key: a GPU kernel has to agree with this.
TEST(layout) {
    uint64_t element = ((uint64_t)0x12345678 << 34) + 4 * 0x9abcdefull + 3, seed = 0x1111222233334444ull;
    RandBlock want = rand_philox(block(0x9abcdef, 0x12345678, 7, 100), 0x33334444, 0x11112222 ^ RAND_ROUND_V);
    CHECK(rand_u32(seed, RAND_ROUND_V, 7, 100, element) == want.word[3], "word of a large element");
    CHECK(rand_u32(1234, 0, 7, 100, 20) == 0xe8cf8427, "element 20 is word 0 of counter 5");
    CHECK(rand_u32(1234, 0, 7, 100, 23) == 0x5a1f53e5, "element 23 is word 3 of counter 5");
}

TEST(uniform_is_below_one) {
    CHECK(rand_uniform_from_bits(0xffffffffu) < 1.0f, "the largest is %.9g", rand_uniform_from_bits(0xffffffffu));
    CHECK(rand_uniform_from_bits(0) == 0.0f, "the smallest is not 0");
    CHECK(rand_uniform_from_bits(0x80000000u) == 0.5f, "the middle");
}

// 100 bins, 200,000 numbers: chi-square has mean 99 and deviation 14; 160 is beyond one in 10,000. The numbers are
// fixed, so this never fails by chance.
TEST(uniform_distribution) {
    enum { N = 200000, BINS = 100 };
    static int bins[BINS];
    double chi_square = 0;
    for (uint64_t i = 0; i < N; i++) bins[(int)(BINS * rand_uniform(42, RAND_TEST, 0, 0, i))]++;
    for (int i = 0; i < BINS; i++) chi_square += pow(bins[i] - (double)N / BINS, 2) / ((double)N / BINS);
    CHECK(chi_square > 55 && chi_square < 160, "chi-square %.1f for 99 degrees of freedom", chi_square);
}

// Streams, steps, purposes and seeds must not be shifted copies of each other: no equal number within 1000 elements.
TEST(streams_differ) {
    for (uint64_t i = 0; i < 1000; i++) {
        uint32_t base = rand_u32(1, RAND_TEST, 0, 0, i);
        CHECK(base != rand_u32(2, RAND_TEST, 0, 0, i), "seed does not matter at %d", (int)i);
        CHECK(base != rand_u32(1 + ((uint64_t)1 << 32), RAND_TEST, 0, 0, i), "the seed's high half does not matter");
        CHECK(base != rand_u32(1, RAND_INIT, 0, 0, i), "purpose does not matter at %d", (int)i);
        CHECK(base != rand_u32(1, RAND_TEST, 1, 0, i), "stream does not matter at %d", (int)i);
        CHECK(base != rand_u32(1, RAND_TEST, 0, 1, i), "step does not matter at %d", (int)i);
    }
}

// Moments, tails and neighbours of normal numbers, each within 4 standard errors.
TEST(normal_moments) {
    enum { N = 400000 };
    static float x[N];
    double sum1 = 0, sum2 = 0, sum3 = 0, sum4 = 0, neighbours = 0;
    int beyond2 = 0, beyond3 = 0;
    rand_normal_fill(x, N, 0, 1.0f, 1234, 5);
    for (int i = 0; i < N; i++) {
        double z = x[i];
        sum1 += z, sum2 += z * z, sum3 += z * z * z, sum4 += z * z * z * z;
        beyond2 += fabs(z) > 2, beyond3 += fabs(z) > 3;
        if (i) neighbours += z * x[i - 1];
    }
    double error = 1 / sqrt((double)N);
    CHECK(fabs(sum1 / N) < 4 * error, "mean %g", sum1 / N);
    CHECK(fabs(sum2 / N - 1) < 4 * sqrt(2.0) * error, "variance %g", sum2 / N);
    CHECK(fabs(sum3 / N) < 4 * sqrt(15.0) * error, "third moment %g", sum3 / N);
    CHECK(fabs(sum4 / N - 3) < 4 * sqrt(96.0) * error, "fourth moment %g", sum4 / N);
    CHECK(fabs(neighbours / N) < 4 * error, "correlation of neighbours %g", neighbours / N);
    CHECK(fabs((double)beyond2 / N - 0.0455003) < 4 * sqrt(0.0455 / N), "%d beyond 2", beyond2);
    CHECK(fabs((double)beyond3 / N - 0.0026998) < 4 * sqrt(0.0027 / N), "%d beyond 3", beyond3);
}

TEST(normal_is_finite_at_the_ends) {
    const uint32_t ends[] = {0, 1, 0x7fffffffu, 0x80000000u, 0xfffffffeu, 0xffffffffu};
    double z0, z1;
    for (int i = 0; i < 36; i++) {
        rand_normal_pair(&z0, &z1, ends[i / 6], ends[i % 6]);
        CHECK(isfinite(z0) && fabs(z0) < 6.8 && isfinite(z1) && fabs(z1) < 6.8, "words %d: %g %g", i, z0, z1);
    }
    rand_normal_pair(&z0, &z1, 0, 0);
    CHECK(fabs(z0 - 6.7636) < 1e-3 && z1 == 0, "the largest possible is %g", z0);
}

// The header's own logarithm, cosine and sine against the C library's.
TEST(functions_against_libm) {
    for (uint64_t i = 0; i < 300000; i++) {
        uint32_t word = i < 100000 ? (uint32_t)i : i < 200000 ? (uint32_t)(0u - i) : rand_u32(3, RAND_TEST, 0, 0, i);
        double x = ((double)word + 0.5) * 0x1p-32, turn = 6.283185307179586 * ((double)word * 0x1p-32), c, s;
        rand_cos_sin(&c, &s, word);
        CHECK(fabs(rand_log(x) - log(x)) <= 1e-15 * fabs(log(x)), "log(%.17g): %.17g, not %.17g", x, rand_log(x),
              log(x));
        CHECK(fabs(c - cos(turn)) < 2e-15, "cos of word %08x: %.17g, not %.17g", word, c, cos(turn));
        CHECK(fabs(s - sin(turn)) < 2e-15, "sin of word %08x: %.17g, not %.17g", word, s, sin(turn));
    }
    for (uint32_t eighth = 0; eighth < 8; eighth++) {
        double c, s, half = sqrt(0.5), want[] = {1, half, 0, -half, -1, -half, 0, half};
        rand_cos_sin(&c, &s, eighth << 29);
        CHECK(fabs(c - want[eighth]) < 1e-15, "cos of %d/8 turn: %g", eighth, c);
        CHECK(fabs(s - want[(eighth + 6) % 8]) < 1e-15, "sin of %d/8 turn: %g", eighth, s);
    }
}

// Element e is lane e & 3 of block e >> 2: what a GPU kernel or another program has to reproduce.
TEST(normal_layout) {
    float x[8];
    rand_normal_fill(x, 8, 1000, 0.5f, 1234, 5);
    for (int i = 0; i < 8; i += 2) {
        RandBlock b = rand_block(1234, RAND_INIT, 5, 0, (uint64_t)(1000 + i) / 4);
        double radius = sqrt(-2 * log((b.word[i % 4] + 0.5) * 0x1p-32));
        double turn = 6.283185307179586 * 0x1p-32 * b.word[i % 4 + 1];
        CHECK(fabs(x[i] - 0.5 * radius * cos(turn)) < 1e-7, "element %d: %g", i, (double)x[i]);
        CHECK(fabs(x[i + 1] - 0.5 * radius * sin(turn)) < 1e-7, "element %d: %g", i + 1, (double)x[i + 1]);
    }
}

// Initial weights are the same bits with every compiler, flag and C library: a hash of 300,001 of them.
TEST(normal_bits_are_fixed) {
    static float x[300001];
    uint64_t hash = 1469598103934665603u;
    const unsigned char *bytes = (const unsigned char *)x;
    rand_normal_fill(x, 300001, 3, 0.02f, 1337, 2);
    for (size_t i = 0; i < sizeof x; i++) hash = (hash ^ bytes[i]) * 1099511628211u;
    CHECK(hash == 0xaab7289b9b1e80cau, "FNV-1a is %016llx", (unsigned long long)hash);
}

// The same bits with 1, 2 and 3 threads, cut anywhere, and nothing written outside.
TEST(normal_fill_is_a_function_of_the_element) {
    enum { N = 1003 };
    static float whole[N], part[N + 2];
    int threads = thread_count();
    rand_normal_fill(whole, N, 0, 0.02f, 7, 3);
    for (int n = 1; n <= 3; n++) {
        set_thread_count(n);
        for (size_t first = 0; first < 9; first++) {
            for (size_t count = 0; count <= N - first; count = count < 12 ? count + 1 : count * 3 - 5) {
                for (int i = 0; i < N + 2; i++) part[i] = -99;
                rand_normal_fill(part + 1, count, first, 0.02f, 7, 3);
                CHECK(memcmp(part + 1, whole + first, count * sizeof(float)) == 0, "%d threads, %d from %d", n,
                      (int)count, (int)first);
                CHECK(part[0] == -99 && part[count + 1] == -99, "wrote outside %d from %d", (int)count, (int)first);
            }
        }
    }
    set_thread_count(threads);
    rand_normal_fill(part, N, 0, 0.02f, 7, 4);
    CHECK(memcmp(part, whole, sizeof whole) != 0, "two tensors are equal");
}

// A sequence is its counter: copied and continued it goes on as before.
TEST(sequence_is_plain_data) {
    RandSequence a = rand_sequence(9, RAND_SAMPLE, 0), saved;
    for (int i = 0; i < 10; i++) rand_next_u32(&a);
    memcpy(&saved, &a, sizeof saved);
    for (int i = 0; i < 100; i++) {
        uint32_t x = rand_next_u32(&a), y = rand_next_u32(&saved);
        CHECK(x == y, "number %d differs after a copy", i);
        CHECK(x == rand_u32(9, RAND_SAMPLE, 0, 0, (uint64_t)(10 + i)), "number %d is not element %d", i, 10 + i);
    }
    float u = rand_next_uniform(&a);
    CHECK(u >= 0 && u < 1, "uniform %g", (double)u);
}

int main(void) {
    RUN(philox_known_answers);
    RUN(layout);
    RUN(uniform_is_below_one);
    RUN(uniform_distribution);
    RUN(streams_differ);
    RUN(normal_moments);
    RUN(normal_is_finite_at_the_ends);
    RUN(functions_against_libm);
    RUN(normal_layout);
    RUN(normal_bits_are_fixed);
    RUN(normal_fill_is_a_function_of_the_element);
    RUN(sequence_is_plain_data);
    return test_summary();
}
