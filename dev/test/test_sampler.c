// Tests of llmc/sampler.h: exact shares on a grid of coins, against a plain sort-everything reference.
#include "../../llmc/rand.h"
#include "../../llmc/sampler.h"
#include "dies.h"

#define MAX_V 300

static SamplerParams params(float temperature, size_t top_k, float top_p) {
    SamplerParams p;
    p.temperature = temperature, p.top_k = top_k, p.top_p = top_p;
    return p;
}

static void fill_logits(float *logits, size_t V, uint32_t stream, float scale) {
    rand_normal_fill(logits, V, 0, scale, 11, stream);
}

// Each token's probability the slow way: sort (selection sort), cut to k, cut to p, normalise.
static void reference_probabilities(double *share, const float *logits, size_t V, const SamplerParams *p) {
    size_t order[MAX_V], kept = p->top_k && p->top_k < V ? p->top_k : V;
    double sum = 0, reached = 0;
    for (size_t i = 0; i < V; i++) order[i] = i, share[i] = 0;
    for (size_t i = 0; i < V; i++) {
        size_t best = i;
        for (size_t j = i + 1; j < V; j++)
            if (logits[order[j]] > logits[order[best]] ||
                (logits[order[j]] == logits[order[best]] && order[j] < order[best])) best = j;
        size_t swap = order[i];
        order[i] = order[best], order[best] = swap;
    }
    for (size_t i = 0; i < kept; i++) sum += exp(logits[order[i]] / (double)p->temperature);
    if (p->top_p < 1) {
        size_t n = 0;
        while (n < kept && reached < (double)p->top_p * sum)
            reached += exp(logits[order[n++]] / (double)p->temperature);
        kept = n, sum = reached;
    }
    for (size_t i = 0; i < kept; i++) share[order[i]] = exp(logits[order[i]] / (double)p->temperature) / sum;
}

// With `coins` equally spaced coins a token of share s must come out s * coins times, give or take the two ends of its
// interval: a test of the whole distribution without chance.
static void check_distribution(const float *logits, size_t V, SamplerParams p) {
    enum { COINS = 4096 };
    static SamplerCandidate scratch[MAX_V + 1];
    static int times[MAX_V];
    static double share[MAX_V];
    memset(times, 0, sizeof times);
    reference_probabilities(share, logits, V, &p);
    scratch[V].id = 12345;
    for (int i = 0; i < COINS; i++) {
        size_t id = sample_token(logits, V, &p, ((float)i + 0.5f) / COINS, scratch);
        CHECK(id < V, "id %zu of %zu", id, V);
        if (id < V) times[id]++;
    }
    CHECK(scratch[V].id == 12345, "scratch beyond V was written");
    for (size_t i = 0; i < V; i++) {
        CHECK(fabs(times[i] - share[i] * COINS) <= 1.01, "V=%zu t=%g k=%zu p=%g: id %zu %d times, share %.2f", V,
              (double)p.temperature, p.top_k, (double)p.top_p, i, times[i], share[i] * COINS);
        CHECK(share[i] > 0 || times[i] == 0, "id %zu was cut away and still came", i);
    }
}

TEST(distributions) {
    static float logits[MAX_V];
    const size_t vocabularies[] = {1, 2, 3, 7, 67, 300};
    const size_t top_ks[] = {0, 1, 2, 5, 66, 67, 1000};
    const float temperatures[] = {0.3f, 1.0f, 2.5f}, top_ps[] = {0.01f, 0.5f, 0.9f, 0.999f, 1.0f};
    for (int v = 0; v < 6; v++) {
        fill_logits(logits, vocabularies[v], (uint32_t)v, 2.0f);
        for (int k = 0; k < 7; k++)
            for (int t = 0; t < 3; t++)
                for (int p = 0; p < 5; p++)
                    check_distribution(logits, vocabularies[v], params(temperatures[t], top_ks[k], top_ps[p]));
    }
}

// Equal logits: cuts take the lowest ids, everything is uniform.
TEST(ties) {
    static float logits[MAX_V];
    static SamplerCandidate scratch[MAX_V];
    for (int i = 0; i < MAX_V; i++) logits[i] = 1.5f;
    check_distribution(logits, 64, params(1, 0, 1));
    check_distribution(logits, 64, params(1, 8, 1));
    check_distribution(logits, 64, params(1, 0, 0.25f));
    SamplerParams greedy = params(0, 0, 1);
    logits[40] = logits[17] = logits[200] = 2;
    CHECK(sample_token(logits, MAX_V, &greedy, 0.99f, scratch) == 17, "greedy does not take the lowest id");
    SamplerParams first = params(1, 1, 1);
    CHECK(sample_token(logits, MAX_V, &first, 0.99f, scratch) == 17, "top-k 1 is not greedy");
    SamplerParams tiny_p = params(1, 0, 1e-6f);
    CHECK(sample_token(logits, MAX_V, &tiny_p, 0.99f, scratch) == 17, "a tiny top-p is not greedy");
}

TEST(greedy_needs_no_scratch) {
    float logits[5] = {-3, -1, -2, -1, -9};
    SamplerParams greedy = params(0, 50, 0.5f);
    for (int i = 0; i < 10; i++)
        CHECK(sample_token(logits, 5, &greedy, (float)i / 10, NULL) == 1, "greedy depends on the coin");
}

// A top-k above V, or exactly V, changes nothing.
TEST(top_k_above_vocabulary) {
    static float logits[MAX_V];
    static SamplerCandidate scratch[MAX_V];
    fill_logits(logits, 67, 3, 1.0f);
    SamplerParams off = params(1, 0, 1), same = params(1, 67, 1), above = params(1, SIZE_MAX, 1);
    for (int i = 0; i < 1000; i++) {
        float coin = rand_uniform(5, RAND_TEST, 0, 0, (uint64_t)i);
        size_t id = sample_token(logits, 67, &off, coin, scratch);
        CHECK(id == sample_token(logits, 67, &same, coin, scratch), "top-k V differs from off");
        CHECK(id == sample_token(logits, 67, &above, coin, scratch), "top-k above V differs from off");
        CHECK(id == sample_token(logits, 67, &off, coin, scratch), "the same coin gives another token");
    }
}

// Temperatures and logits at the ends of float, and coins outside [0, 1): still a token of the vocabulary, and one
// that can occur.
TEST(extremes) {
    static SamplerCandidate scratch[8];
    float logits[8] = {3e38f, -3e38f, 0, 1, 2.5f, -1e-40f, 3e38f, 7};
    const float temperatures[] = {1e-45f, 1e-38f, 1e-6f, 1, 1e6f, 1e30f};
    const float coins[] = {0, 1e-45f, 0.5f, 0.99999994f, 1, 2, NAN, -1};
    for (int t = 0; t < 6; t++)
        for (int c = 0; c < 8; c++)
            for (size_t k = 0; k < 9; k++) {
                SamplerParams p = params(temperatures[t], k, k % 2 ? 0.9f : 1.0f);
                size_t id = sample_token(logits, 8, &p, coins[c], scratch);
                CHECK(id == 0 || id == 6, "temperature %g, coin %g, top-k %zu: id %zu", (double)p.temperature,
                      (double)coins[c], k, id);
            }
}

// 20,000 draws of a sequence: chi-square against the softmax, 66 degrees of freedom (mean 66, deviation 11.5).
TEST(with_random_coins) {
    enum { V = 67, N = 20000 };
    static float logits[V];
    static SamplerCandidate scratch[V];
    static double share[MAX_V];
    int times[V] = {0};
    SamplerParams p = params(1, 0, 1);
    RandSequence coins = rand_sequence(2, RAND_SAMPLE, 0);
    double chi_square = 0;
    fill_logits(logits, V, 9, 0.7f);
    reference_probabilities(share, logits, V, &p);
    for (int i = 0; i < N; i++) times[sample_token(logits, V, &p, rand_next_uniform(&coins), scratch)]++;
    for (int i = 0; i < V; i++) chi_square += pow(times[i] - N * share[i], 2) / (N * share[i]);
    CHECK(chi_square > 30 && chi_square < 110, "chi-square %.1f", chi_square);
}

TEST(not_finite_is_refused) {
    static SamplerCandidate scratch[4];
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int b = 0; b < 3; b++)
        for (int at = 0; at < 4; at++)
            for (int t = 0; t < 2; t++) {
                float logits[4] = {1, 2, 3, 4};
                char words[40];
                SamplerParams p = params((float)t, 2, 0.9f);
                logits[at] = bad[b];
                snprintf(words, sizeof words, "the logit of token %d is", at);
                CHECK_DIES(1, words, sample_token(logits, 4, &p, 0.5f, scratch));
            }
}

TEST(refusals) {
    const float bad_temperatures[] = {-1, -1e-9f, NAN, INFINITY, -INFINITY};
    const float bad_ps[] = {-0.5f, 0, 1.01f, NAN, INFINITY};
    for (int i = 0; i < 5; i++) {
        SamplerParams p = params(bad_temperatures[i], 0, 1), q = params(1, 0, bad_ps[i]);
        CHECK_DIES(2, "--temperature", sampler_check(&p));
        CHECK_DIES(2, "--top-p", sampler_check(&q));
    }
    SamplerParams good = params(0, 0, 1), also = params(0.7f, 40, 0.95f);
    sampler_check(&good);
    sampler_check(&also);
}

int main(void) {
    RUN(distributions);
    RUN(ties);
    RUN(greedy_needs_no_scratch);
    RUN(top_k_above_vocabulary);
    RUN(extremes);
    RUN(with_random_coins);
    RUN(not_finite_is_refused);
    RUN(refusals);
    return test_summary();
}
