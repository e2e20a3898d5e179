// config.h: the shape of a model, by name or by numbers.
#ifndef LLMC_CONFIG_H
#define LLMC_CONFIG_H

#include "utils.h"

// Vocabulary rows are padded to a multiple of this, so that the classifier's GEMM has no ragged edge.
#define VOCAB_MULTIPLE ((size_t)128)

typedef struct {
    size_t L;      // layers
    size_t NH;     // attention heads
    size_t C;      // channels
    size_t V, Vp;  // vocabulary, and rounded up to VOCAB_MULTIPLE
    size_t max_T;  // positions (longest sequence)
} GPTConfig;

// What a name stands for. GPT-2 sizes from Radford et al. 2019, GPT-3's from Brown et al. 2020, table 2.1
// (its head count for 125M-2.7B; "dN" are llm.c's depth names).
typedef struct {
    const char *name;
    size_t L, NH, C, max_T;
} NamedShape;

#define NAMED_SHAPE_COUNT 17
static inline const NamedShape *named_shapes(void) {
    static const NamedShape shapes[NAMED_SHAPE_COUNT] = {
        {"gpt2", 12, 12, 768, 1024},        {"gpt2-medium", 24, 16, 1024, 1024}, {"gpt2-large", 36, 20, 1280, 1024},
        {"gpt2-xl", 48, 25, 1600, 1024},    {"d6", 6, 6, 384, 1024},             {"d12", 12, 12, 768, 1024},
        {"d24", 24, 16, 1024, 1024},        {"d36", 36, 20, 1280, 1024},         {"d48", 48, 25, 1600, 1024},
        {"gpt3:125M", 12, 12, 768, 2048},   {"gpt3:350M", 24, 16, 1024, 2048},   {"gpt3:760M", 24, 16, 1536, 2048},
        {"gpt3:1.3B", 24, 32, 2048, 2048},  {"gpt3:2.7B", 32, 32, 2560, 2048},   {"gpt3:6.7B", 32, 32, 4096, 2048},
        {"gpt3:13B", 40, 40, 5120, 2048},   {"gpt3:175B", 96, 96, 12288, 2048},
    };
    return shapes;
}

// The shape called `name`, or NULL.
static inline const NamedShape *find_shape(const char *name) {
    for (size_t i = 0; i < NAMED_SHAPE_COUNT; i++)
        if (strcmp(named_shapes()[i].name, name) == 0) return &named_shapes()[i];
    return NULL;
}

// Which of how many ranks this one is, and what they share out. One rank, all zero: nothing is.
typedef struct {
    size_t rank, ranks;
    int zero;             // 0: every rank has everything; 1: masters and moments are shared out; 2: gradients, too
    int reduce_bf16;      // gradients are summed over ranks in bf16, else fp32
    size_t bucket_bytes;  // of fp32 gradients that are reduced at once
} Parallel;

// Sets V and Vp.
static inline void config_set_vocab(GPTConfig *config, size_t V) {
    config->V = V;
    config->Vp = round_up(V, VOCAB_MULTIPLE);
}

// Ends the program with the number that is wrong, if one is. Limits are far above any model that fits a machine;
// they keep every product of two dimensions inside 63 bits.
static inline void config_check(const GPTConfig *config) {
    if (config->L < 1 || config->L > 100000) die_usage("--layers %zu is not between 1 and 100000", config->L);
    if (config->C < 1 || config->C > 1000000) die_usage("--channels %zu is not between 1 and 1000000", config->C);
    if (config->NH < 1 || config->C % config->NH != 0)
        die_usage("--heads %zu does not divide --channels %zu\nwhy: each head gets channels / heads columns",
                  config->NH, config->C);
    if (config->V < 2 || config->V > ((size_t)1 << 31) - VOCAB_MULTIPLE)
        die_usage("--vocab %zu is not between 2 and 2147483520", config->V);
    if (config->max_T < 1 || config->max_T > ((size_t)1 << 30))
        die_usage("--max-seq %zu is not between 1 and 1073741824", config->max_T);
}

#endif
