// gpt_fixture.h: reads the fixtures of dev/reference/gpt_reference.py, whose text says what is in them, and makes the
// same pseudo-random weights and samples. A reader of its own, not llmc/safetensors.h: the yardstick shares no code
// with what is measured.
#ifndef DEV_TEST_GPT_FIXTURE_H
#define DEV_TEST_GPT_FIXTURE_H

#include <math.h>

#include "../../llmc/tensors.h"

#define FIXTURE_SAMPLES ((size_t)512)
#define FIXTURE_PROJECTIONS ((size_t)8)

// Streams of the hash: 0..15 the parameters in the table's order; these two are added to a tensor's number (the
// parameter's index, or FIXTURE_LOGITS).
enum { FIXTURE_LOGITS = 16, FIXTURE_SIGNS = 64, FIXTURE_POSITIONS = 128 };

// ----------------------------------------------------------------------------------------------------------------
// Pseudo-random numbers, the same as in gpt_reference.py

// The mixer of splitmix64 (Steele, Lea, Flood 2014).
static inline uint64_t fixture_mix(uint64_t x) {
    uint64_t z = x + 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static inline uint64_t fixture_hash(uint64_t seed, uint64_t stream, uint64_t index) {
    return fixture_mix(fixture_mix(seed * 256 + stream) + index);
}

// An odd multiple of 2^-16 in (-1, 1).
static inline double fixture_uniform(uint64_t seed, uint64_t stream, uint64_t index) {
    return (2.0 * (double)(fixture_hash(seed, stream, index) >> 48) + 1 - 65536) / 65536;
}

// The weight at `index` of parameter `number`: layernorm weights 1 + u/4, a layer's matrices u/4, all else u/8, each
// exact in float. `info` is the parameter's row of the table; wte's padding rows are 0.
static inline double fixture_weight(const GPTConfig *config, const ParameterInfo *info, size_t number, uint64_t seed,
                                    size_t index) {
    double u = fixture_uniform(seed, number, index);
    if (number == 0 && index >= config->V * config->C) return 0;
    if (info->init == INIT_ONE) return 1 + u / 4;
    return info->decay && number >= 2 ? u / 4 : u / 8;
}

// ----------------------------------------------------------------------------------------------------------------
// Files

typedef struct {
    char path[512];
    char *data;        // the whole file
    const char *body;  // where the tensors begin
    size_t body_bytes;
    GPTConfig config;
    size_t B, T, steps;
    uint64_t seed;
    double lr, beta1, beta2, eps, weight_decay, clip;
    const int32_t *tokens;      // (steps, B, T + 1)
    const double *loss, *norm;  // (steps)
} Fixture;

// Tensor `name` of type `dtype` ("F32", "F64", "I32", "I64"); its element count into *count where count is not NULL.
// Trusts the header to be as gpt_reference.py writes it: no spaces, and dtype, shape, data_offsets in this order.
static inline const void *fixture_tensor(const Fixture *fixture, const char *name, const char *dtype, size_t *count) {
    char key[128];
    size_t begin, end;
    snprintf(key, sizeof key, "\"%s\":{\"dtype\":\"%s\",", name, dtype);
    const char *entry = strstr(fixture->data + 8, key);
    const char *offsets = entry ? strstr(entry, "\"data_offsets\":[") : NULL;
    if (!offsets || sscanf(offsets, "\"data_offsets\":[%zu,%zu]", &begin, &end) != 2 || end > fixture->body_bytes)
        die("fixture '%s': no tensor %s of type %s\ntry: python3 dev/reference/gpt_reference.py", fixture->path, name,
            dtype);
    if (count) *count = (end - begin) / (dtype[1] == '6' ? 8 : 4);
    return fixture->body + begin;
}

// Reads `folder`/`name`.safetensors.
static inline void fixture_open(Fixture *fixture, const char *folder, const char *name) {
    memset(fixture, 0, sizeof *fixture);
    snprintf(fixture->path, sizeof fixture->path, "%s/%s.safetensors", folder, name);
    FILE *file = file_open(fixture->path, "rb");
    uint64_t header_bytes;
    fseek(file, 0, SEEK_END);
    size_t bytes = (size_t)ftell(file);
    rewind(file);
    fixture->data = (char *)checked_calloc(bytes + 1, 1, "a fixture");
    file_read(file, fixture->data, bytes, fixture->path);
    file_close(file, fixture->path);
    memcpy(&header_bytes, fixture->data, 8);
    if (bytes < 8 || header_bytes > bytes - 8) die("fixture '%s' is cut short", fixture->path);
    fixture->body = fixture->data + 8 + header_bytes;
    fixture->body_bytes = bytes - 8 - (size_t)header_bytes;

    const int64_t *shape = (const int64_t *)fixture_tensor(fixture, "config", "I64", NULL);
    const double *hyper = (const double *)fixture_tensor(fixture, "hyper", "F64", NULL);
    fixture->config.L = (size_t)shape[0];
    fixture->config.NH = (size_t)shape[1];
    fixture->config.C = (size_t)shape[2];
    config_set_vocab(&fixture->config, (size_t)shape[3]);
    fixture->config.max_T = (size_t)shape[4];
    fixture->B = (size_t)shape[5];
    fixture->T = (size_t)shape[6];
    fixture->steps = (size_t)shape[7];
    fixture->seed = (uint64_t)shape[8];
    fixture->lr = hyper[0];
    fixture->beta1 = hyper[1];
    fixture->beta2 = hyper[2];
    fixture->eps = hyper[3];
    fixture->weight_decay = hyper[4];
    fixture->clip = hyper[5];
    fixture->tokens = (const int32_t *)fixture_tensor(fixture, "tokens", "I32", NULL);
    fixture->loss = (const double *)fixture_tensor(fixture, "loss", "F64", NULL);
    fixture->norm = (const double *)fixture_tensor(fixture, "norm", "F64", NULL);
}

static inline void fixture_close(Fixture *fixture) { free(fixture->data); }

// Step s's inputs and targets, (B, T) each.
static inline void fixture_batch(const Fixture *fixture, size_t s, int32_t *inp, int32_t *tgt) {
    const size_t T = fixture->T;
    for (size_t b = 0; b < fixture->B; b++) {
        const int32_t *row = fixture->tokens + (s * fixture->B + b) * (T + 1);
        memcpy(inp + b * T, row, T * sizeof *inp);
        memcpy(tgt + b * T, row + 1, T * sizeof *tgt);
    }
}

// 1 for a weight that no loss can depend on: a key's bias, and where T = 1 all of queries and keys. Its exact gradient
// is 0, a computed one is rounding noise, and Adam turns noise into steps of up to lr: final weights leave it out.
static inline int fixture_without_gradient(size_t C, size_t T, const char *parameter, size_t index) {
    if (strcmp(parameter, "qkvb") == 0) {
        size_t channel = index % (3 * C);
        return channel < 2 * C && (channel >= C || T == 1);
    }
    return strcmp(parameter, "qkvw") == 0 && T == 1 && index / C % (3 * C) < 2 * C;
}

#endif
