// tensors.h: the model's tensors, each told once: name, shape, initial values, decay, name in a checkpoint.
//
// Struct, sizes, initialisation, the optimizer, checkpoints, the memory plan and the tests all expand these tables;
// adding a parameter is one line here and its use in the forward and backward pass.
#ifndef LLMC_TENSORS_H
#define LLMC_TENSORS_H

#include "config.h"

enum { INIT_ZERO, INIT_ONE, INIT_NORMAL, INIT_RESIDUAL };  // RESIDUAL: normal with its deviation / sqrt(2 L)

// Parameters, in memory and initialisation order. Linear weights are (OC, C): each output's row contiguous. `hf` is the
// Hugging Face GPT-2 name, %zu its layer; `conv1d` = 1 where that file holds the transpose (its Conv1D is in x out).
//     name      layers rows          cols       init          decay conv1d hf
#define GPT_PARAMETERS(X)                                                                    \
    X(wte,      1,     config->Vp,    config->C,     INIT_NORMAL,   1, 0, "wte.weight")               \
    X(wpe,      1,     config->max_T, config->C,     INIT_NORMAL,   1, 0, "wpe.weight")               \
    X(ln1w,     config->L, 1,         config->C,     INIT_ONE,      0, 0, "h.%zu.ln_1.weight")        \
    X(ln1b,     config->L, 1,         config->C,     INIT_ZERO,     0, 0, "h.%zu.ln_1.bias")          \
    X(qkvw,     config->L, 3 * config->C, config->C, INIT_NORMAL,   1, 1, "h.%zu.attn.c_attn.weight") \
    X(qkvb,     config->L, 1,     3 * config->C,     INIT_ZERO,     0, 0, "h.%zu.attn.c_attn.bias")   \
    X(attprojw, config->L, config->C, config->C,     INIT_RESIDUAL, 1, 1, "h.%zu.attn.c_proj.weight") \
    X(attprojb, config->L, 1,         config->C,     INIT_ZERO,     0, 0, "h.%zu.attn.c_proj.bias")   \
    X(ln2w,     config->L, 1,         config->C,     INIT_ONE,      0, 0, "h.%zu.ln_2.weight")        \
    X(ln2b,     config->L, 1,         config->C,     INIT_ZERO,     0, 0, "h.%zu.ln_2.bias")          \
    X(fcw,      config->L, 4 * config->C, config->C, INIT_NORMAL,   1, 1, "h.%zu.mlp.c_fc.weight")    \
    X(fcb,      config->L, 1,     4 * config->C,     INIT_ZERO,     0, 0, "h.%zu.mlp.c_fc.bias")      \
    X(fcprojw,  config->L, config->C, 4 * config->C, INIT_RESIDUAL, 1, 1, "h.%zu.mlp.c_proj.weight")  \
    X(fcprojb,  config->L, 1,         config->C,     INIT_ZERO,     0, 0, "h.%zu.mlp.c_proj.bias")    \
    X(lnfw,     1,     1,             config->C,     INIT_ONE,      0, 0, "ln_f.weight")              \
    X(lnfb,     1,     1,             config->C,     INIT_ZERO,     0, 0, "ln_f.bias")

#define GPT_PARAMETER_COUNT 16

// One parameter tensor: `layers` blocks of rows x cols floats, `offset_elems` into its arena (256-byte steps).
typedef struct {
    const char *name;
    size_t layers, rows, cols;
    int init, decay, conv1d;
    const char *hf;
    size_t offset_elems;
} ParameterInfo;

// One pointer a parameter tensor, by its name; the same struct serves weights, gradients and moments.
typedef struct {
#define X(name, ...) float *name;
    GPT_PARAMETERS(X)
#undef X
} Parameters;

static inline size_t parameter_elems(const ParameterInfo *info) { return info->layers * info->rows * info->cols; }

// Fills `table`; returns the elements one arena of them takes, padding between tensors included.
static inline size_t parameter_table(const GPTConfig *config, ParameterInfo table[GPT_PARAMETER_COUNT]) {
    size_t i = 0, offset = 0;
#define X(name, layers, rows, cols, init, decay, conv1d, hf)                                     \
    {                                                                                            \
        ParameterInfo info = {#name, layers, rows, cols, init, decay, conv1d, hf, offset};       \
        table[i++] = info;                                                                       \
        offset += round_up(parameter_elems(&info), ARENA_ALIGN_BYTES / sizeof(float));           \
    }
    GPT_PARAMETERS(X)
#undef X
    return offset;
}

// Points each tensor of `parameters` at its place in `base` (an arena of parameter_table()'s size).
static inline void parameters_point(Parameters *parameters, float *base, const ParameterInfo *table) {
    size_t i = 0;
#define X(name, ...) parameters->name = base + table[i++].offset_elems;
    GPT_PARAMETERS(X)
#undef X
}

// Trainable numbers. Padding rows of wte are not counted: they stay zero and are never exported.
static inline size_t parameter_count(const GPTConfig *config) {
    ParameterInfo table[GPT_PARAMETER_COUNT];
    size_t count = 0;
    parameter_table(config, table);
    for (size_t i = 0; i < GPT_PARAMETER_COUNT; i++) count += parameter_elems(&table[i]);
    return count - (config->Vp - config->V) * config->C;
}

// ----------------------------------------------------------------------------------------------------------------
// Activations of one micro-batch of N = B * T tokens, `layers` blocks of `elems` floats each. `recompute` 1 keeps one
// layer's GELU output and makes it again in the backward pass, 2 the layernorm outputs too.

// Rows of logits held at once: the classifier works through B*T in chunks, so that B*T*Vp floats never exist together.
// A trainer may define another number before it includes this; the GPU trainer has DEVICE_LOGITS_CHUNK_ROWS.
#define DEVICE_LOGITS_CHUNK_ROWS ((size_t)8192)
#ifndef LOGITS_CHUNK_ROWS
#define LOGITS_CHUNK_ROWS ((size_t)256)
#endif

typedef struct {
    size_t B, T;
    int recompute;
} BatchShape;

//     name       layers                      elems
#define GPT_ACTIVATIONS(X)                                                                                       \
    X(encoded,    1,                            N * config->C)        /* wte[token] + wpe[position] */             \
    X(ln1,        shape->recompute < 2 ? config->L : 1, N * config->C)                                           \
    X(ln1_mean,   config->L,                    N)                                                               \
    X(ln1_rstd,   config->L,                    N)                                                               \
    X(qkv,        config->L,                    N * 3 * config->C)                                               \
    X(att,        config->L,                    N * config->C)        /* attention output before its projection */ \
    X(lse,        config->L,                    N * config->NH)       /* log-sum-exp of each row of scores */      \
    X(residual2,  config->L,                    N * config->C)        /* after attention */                        \
    X(ln2,        shape->recompute < 2 ? config->L : 1, N * config->C)                                           \
    X(ln2_mean,   config->L,                    N)                                                               \
    X(ln2_rstd,   config->L,                    N)                                                               \
    X(fch,        config->L,                    N * 4 * config->C)    /* before GELU */                            \
    X(fch_gelu,   shape->recompute < 1 ? config->L : 1, N * 4 * config->C)                                       \
    X(residual3,  config->L,                    N * config->C)        /* after the MLP */                          \
    X(lnf,        1,                            N * config->C)                                                   \
    X(lnf_mean,   1,                            N)                                                               \
    X(lnf_rstd,   1,                            N)                                                               \
    X(branch,     1,                            N * config->C)        /* a projection, until added to the stream */ \
    X(logits,     1,                            min_size(N, LOGITS_CHUNK_ROWS) * config->Vp) /* then dlogits */    \
    X(losses,     1,                            N)                                                               \
    X(dresidual,  1,                            N * config->C)        /* gradient of the residual stream */        \
    X(dnorm,      1,                            N * config->C)        /* dlnf, dln2, datt, dln1 in turn */         \
    X(dhidden,    1,                            N * 4 * config->C)    /* dfch_gelu, dfch, then dqkv */

#define GPT_ACTIVATION_COUNT 23

typedef struct {
    const char *name;
    size_t layers, elems;  // elems of one layer
} ActivationInfo;

typedef struct {
#define X(name, ...) float *name;
    GPT_ACTIVATIONS(X)
#undef X
} Activations;

static inline void activation_table(const GPTConfig *config, const BatchShape *shape,
                                    ActivationInfo table[GPT_ACTIVATION_COUNT]) {
    size_t i = 0, N = size_mul(shape->B, shape->T);
#define X(name, layers, elems)                            \
    {                                                     \
        ActivationInfo info = {#name, layers, elems};     \
        table[i++] = info;                                \
    }
    GPT_ACTIVATIONS(X)
#undef X
}

// Takes each activation's room from `arena` (or only counts, while planning).
static inline void activations_take(Activations *acts, Arena *arena, const GPTConfig *config, const BatchShape *shape) {
    ActivationInfo table[GPT_ACTIVATION_COUNT];
    size_t i = 0;
    activation_table(config, shape, table);
#define X(name, ...)                                                                                          \
    acts->name = (float *)arena_take(arena, size_mul(table[i].layers, table[i].elems), sizeof(float));        \
    i++;
    GPT_ACTIVATIONS(X)
#undef X
}

#endif
