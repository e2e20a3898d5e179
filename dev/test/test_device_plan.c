// Tests of llmc/device_plan.h: bytes added up by hand.
#include "../../llmc/device_plan.h"
#include "test.h"

static GPTConfig shape_of(const char *name, size_t V) {
    const NamedShape *shape = find_shape(name);
    GPTConfig config = {shape->L, shape->NH, shape->C, 0, 0, shape->max_T};
    config_set_vocab(&config, V);
    return config;
}

// With buckets of 64 MiB.
static DevicePlan plan_of(PrecisionMode mode, MasterRule master, MomentsRule moments, size_t ranks, int zero) {
    GPTConfig config = shape_of("gpt2-xl", 50257);
    BatchShape shape = {1, 1024, 0};
    Parallel parallel = {0, ranks, zero, 0, (size_t)64 << 20};
    PrecisionPolicy policy = precision_policy(mode, master, moments);
    return device_plan(&config, &shape, &parallel, &policy);
}

static void check_plan(DevicePlan plan, size_t weights, size_t masters, size_t casts, size_t gradients, size_t moments,
                       size_t buffer) {
    CHECK(plan.weights == weights, "weights: %zu, not %zu", plan.weights, weights);
    CHECK(plan.masters == masters, "masters: %zu, not %zu", plan.masters, masters);
    CHECK(plan.casts == casts, "casts: %zu, not %zu", plan.casts, casts);
    CHECK(plan.gradients == gradients, "gradients: %zu, not %zu", plan.gradients, gradients);
    CHECK(plan.moments == moments, "moments: %zu, not %zu", plan.moments, moments);
    CHECK(plan.buffer == buffer, "buffer: %zu, not %zu", plan.buffer, buffer);
}

// GPT-2 XL. wte 50304 x 1600, wpe 1024 x 1600, 48 layers of 12 x 1600^2 + 13 x 1600, the last layernorm 2 x 1600:
// 1,557,686,400 elements, each tensor a multiple of 64.
//
// A layer, 30,740,800 elements, is more than 64 MiB: a bucket each, the first with the last layernorm's 3,200. The
// embeddings make five of 16,424,960. An eighth of each, rounded up to 64: 3,843,008 + 47 x 3,842,624 + 5 x 2,053,120 =
// 194,711,936. A seventh: 4,392,000 + 47 x 4,391,552 + 5 x 2,346,432 = 222,527,104. The largest bucket: 8 x 3,843,008.
TEST(state_of_gpt2_xl) {
    const MasterRule fp32 = MASTER_RULE_FP32;
    const MomentsRule plain = MOMENTS_RULE_FP32;
    const size_t P = 1557686400, eighth = 194711936, seventh = 222527104, buffer = 4 * 8 * 3843008;
    check_plan(plan_of(MODE_fp32, fp32, plain, 1, 0), 4 * P, 0, 0, 4 * P, 8 * P, 0);
    check_plan(plan_of(MODE_fp32, fp32, plain, 1, 2), 4 * P, 0, 0, 4 * P, 8 * P, 0);
    check_plan(plan_of(MODE_bf16, fp32, plain, 8, 0), 2 * P, 4 * P, 0, 4 * P + 4 * eighth, 8 * P, buffer);
    check_plan(plan_of(MODE_bf16, fp32, plain, 8, 1), 2 * P, 4 * eighth, 0, 4 * P + 4 * eighth, 8 * eighth, buffer);
    check_plan(plan_of(MODE_bf16, fp32, plain, 7, 1), 2 * P, 4 * seventh, 0, 4 * P + 4 * seventh, 8 * seventh,
               4 * 7 * 4392000);
    // The embeddings, the last layernorm and two layers: 82,124,800 + 3,200 + 2 x 30,740,800
    check_plan(plan_of(MODE_bf16, fp32, plain, 8, 2), 2 * P, 4 * eighth, 0, 4 * 143609600 + 4 * eighth, 8 * eighth, buffer);
    check_plan(plan_of(MODE_bf16, MASTER_RULE_KAHAN, MOMENTS_RULE_BF16, 8, 1), 2 * P, 2 * eighth, 0, 4 * P + 4 * eighth,
               4 * eighth, buffer);
    // Both orientations of 48 x 12 x 1600^2, a byte each: 2,949,120,000
    check_plan(plan_of(MODE_fp8_delayed, fp32, plain, 1, 0), 2 * P, 4 * P, 2949120000, 4 * P, 8 * P, 0);
}

// One layer, C 64, 2 heads, 16 tokens, vocabulary 128. Ten tensors of 16 x 64; fch, its GELU and dhidden of 16 x 256; qkv
// of 16 x 192; logits of 16 x 128; eight of statistics, which take 256 bytes each: 27648 x 2 (or 4) + 8 x 256.
TEST(activations_of_one_layer) {
    GPTConfig config = {1, 2, 64, 128, 128, 16};
    BatchShape shape = {1, 16, 0};
    CHECK(device_activation_bytes(&config, &shape, FORMAT_BF16) == 57344, "bf16: %zu",
          device_activation_bytes(&config, &shape, FORMAT_BF16));
    CHECK(device_activation_bytes(&config, &shape, FORMAT_FP32) == 112640, "fp32: %zu",
          device_activation_bytes(&config, &shape, FORMAT_FP32));
}

// 64 sequences of 1,024 tokens have more rows of logits than the GPU trainer holds at once: 8,192 x 50,304 are the rest
// of what changes between the vocabularies 128 and 50,257.
TEST(logits_come_in_chunks) {
    GPTConfig large = shape_of("gpt2", 50257), small = shape_of("gpt2", 128);
    BatchShape shape = {64, 1024, 0};
    size_t difference = device_activation_bytes(&large, &shape, FORMAT_BF16) -
                        device_activation_bytes(&small, &shape, FORMAT_BF16);
    CHECK(difference == (size_t)8192 * (50304 - 128) * 2, "%zu", difference);
}

int main(void) {
    RUN(state_of_gpt2_xl);
    RUN(activations_of_one_layer);
    RUN(logits_come_in_chunks);
    return test_summary();
}
