// precision.h: which format each kind of tensor has, in every precision mode. The only file that mentions the
// compile-time flags PRECISION, MASTER and MOMENTS (the Makefile passes them as -DPRECISION_bf16 -DMASTER_fp32 ...).
//
// The table below is data: every build knows every mode's row, and tests and --print-policy show them. The build's own
// row is also a set of constants (BUILD_ACT and so on), so that the rounding functions cost what their format costs,
// and nothing in fp32.
//
// The CPU build holds tensors in float. A format is applied by rounding where the GPU would store the value or feed it
// to a tensor core, so kernels call these functions at exactly those points:
//
//     round_act      every saved activation: embedding, layernorm, GELU, attention, matmul outputs (bias included), the
//                    residual stream, logits, softmax's P before P V
//     round_grad     every activation gradient at its store, dlogits among them, and dS before it makes dQ and dK
//     round_weight   the working copy of a weight, made once per optimizer step: nearest-even of the master
//     round_operand  what a matrix product reads, where that is not what is stored (tf32)
//
// In fp32 in every mode: accumulators, scores, softmax's maxima and sums, layernorm statistics, loss and
// log-softmax, weight gradients, AdamW's arithmetic. Sums over many elements are in double (global_norm.h, the loss).
//
// Bias: bf16 and fp16 add it to the fp32 accumulator and round once (cuBLASLt's BIAS epilogue). The fp8 and fp4 recipes
// use plain products: the product is rounded to bf16, then a pass of ours adds the bias in fp32 and rounds again.
// GELU is never fused into a product: it reads the pre-activation as it was stored, so that recomputing it gives the
// same bits (doc/gpu.md weighs that against the bytes).
#ifndef LLMC_PRECISION_H
#define LLMC_PRECISION_H

#include <stdio.h>

#include "formats.h"

// One row a mode. act: saved activations; operand, dy: what the linear layers' products read, forward and as gradient;
// grad: activation gradients; dw: weight gradients; sum: reductions over ranks; m, v: AdamW's moments.
// chunk: products along K summed in one go before they are added to the running sum (0: any order of fp32 adds).
// fast: the forward product may keep Hopper's short accumulator all along K. S: the loss is scaled.
//
// clang-format off
//     flag         name           master weight act   operand grad  dy    dw    sum   logits loss  m     v     scaling  chunk fast S
#define PRECISION_MODES(X)                                                                                                     \
    X(fp32,        "fp32",         FP32,  FP32,  FP32, FP32,   FP32, FP32, FP32, FP32, FP32,  FP32, FP32, FP32, NONE,    0,    0,  0) \
    X(tf32,        "tf32",         FP32,  FP32,  FP32, TF32,   FP32, TF32, FP32, FP32, FP32,  FP32, FP32, FP32, NONE,    0,    0,  0) \
    X(bf16,        "bf16",         FP32,  BF16,  BF16, BF16,   BF16, BF16, FP32, FP32, BF16,  FP32, FP32, FP32, NONE,    0,    0,  0) \
    X(fp16,        "fp16",         FP32,  FP16,  FP16, FP16,   FP16, FP16, FP32, FP32, FP16,  FP32, FP32, FP32, NONE,    0,    0,  1) \
    X(fp8_delayed, "fp8-delayed",  FP32,  BF16,  BF16, E4M3,   BF16, E5M2, FP32, FP32, BF16,  FP32, FP32, FP32, DELAYED, 128,  1,  0) \
    X(fp8_current, "fp8-current",  FP32,  BF16,  BF16, E4M3,   BF16, E5M2, FP32, FP32, BF16,  FP32, FP32, FP32, TENSOR,  128,  1,  0) \
    X(fp8_row,     "fp8-row",      FP32,  BF16,  BF16, E4M3,   BF16, E4M3, FP32, FP32, BF16,  FP32, FP32, FP32, ROW,     128,  1,  0) \
    X(fp8_block,   "fp8-block",    FP32,  BF16,  BF16, E4M3,   BF16, E4M3, FP32, FP32, BF16,  FP32, FP32, FP32, BLOCK,   128,  0,  0) \
    X(mxfp8,       "mxfp8",        FP32,  BF16,  BF16, E4M3,   BF16, E4M3, FP32, FP32, BF16,  FP32, FP32, FP32, MX,      128,  0,  0) \
    X(nvfp4,       "nvfp4",        FP32,  BF16,  BF16, E2M1,   BF16, E2M1, FP32, FP32, BF16,  FP32, FP32, FP32, NV,      128,  0,  0)
// clang-format on

typedef enum {
#define X(flag, ...) MODE_##flag,
    PRECISION_MODES(X)
#undef X
        PRECISION_MODE_COUNT
} PrecisionMode;

// How the authoritative weights are kept. nearest is a negative control: bf16 weights without a master, updated by
// nearest rounding, which loses most small updates. It exists to show that.
typedef enum { MASTER_RULE_FP32, MASTER_RULE_KAHAN, MASTER_RULE_STOCHASTIC, MASTER_RULE_NEAREST } MasterRule;

// How AdamW's moments are kept: fp32, or bf16 rounded to nearest, or bf16 rounded stochastically.
typedef enum { MOMENTS_RULE_FP32, MOMENTS_RULE_BF16, MOMENTS_RULE_BF16SR } MomentsRule;

typedef struct {
    const char *name;
    MasterRule master_rule;
    MomentsRule moments_rule;
    FormatId master, weight, act, operand, grad, grad_operand, weight_grad, reduction, logits, loss, adam_m, adam_v;
    ScalingRule scaling;   // of operand and grad_operand
    int k_chunk;           // accumulation rule; 0: plain fp32
    int fast_accumulate;   // of the forward product
    int loss_scaling;
    int bias_in_product;   // 1: added before the only rounding; 0: the product is rounded, then a pass of its own
} PrecisionPolicy;

static inline PrecisionPolicy precision_policy(PrecisionMode mode, MasterRule master, MomentsRule moments) {
    static const PrecisionPolicy table[PRECISION_MODE_COUNT] = {
#define X(flag, name, master, weight, act, operand, grad, dy, dw, sum, logits, loss, m, v, scaling, chunk, fast, scaled) \
    {name, MASTER_RULE_FP32, MOMENTS_RULE_FP32, FORMAT_##master, FORMAT_##weight, FORMAT_##act, FORMAT_##operand,       \
     FORMAT_##grad, FORMAT_##dy, FORMAT_##dw, FORMAT_##sum, FORMAT_##logits, FORMAT_##loss, FORMAT_##m, FORMAT_##v,     \
     SCALING_##scaling, chunk, fast, scaled, SCALING_##scaling == SCALING_NONE},
        PRECISION_MODES(X)
#undef X
    };
    PrecisionPolicy policy = table[mode];
    policy.master_rule = master;
    policy.moments_rule = moments;
    if (master != MASTER_RULE_FP32) policy.master = FORMAT_BF16;
    if (moments != MOMENTS_RULE_FP32) policy.adam_m = policy.adam_v = FORMAT_BF16;
    return policy;
}

static inline const char *master_rule_name(MasterRule rule) {
    static const char *const names[] = {"fp32", "kahan", "stochastic", "nearest"};
    return names[rule];
}
static inline const char *moments_rule_name(MomentsRule rule) {
    static const char *const names[] = {"fp32", "bf16", "bf16sr"};
    return names[rule];
}

// ----------------------------------------------------------------------------------------------------------------
// This build

#if defined PRECISION_fp32
#define BUILD_FLAG fp32
#elif defined PRECISION_tf32
#define BUILD_FLAG tf32
#elif defined PRECISION_bf16
#define BUILD_FLAG bf16
#elif defined PRECISION_fp16
#define BUILD_FLAG fp16
#elif defined PRECISION_fp8_delayed
#define BUILD_FLAG fp8_delayed
#elif defined PRECISION_fp8_current
#define BUILD_FLAG fp8_current
#elif defined PRECISION_fp8_row
#define BUILD_FLAG fp8_row
#elif defined PRECISION_fp8_block
#define BUILD_FLAG fp8_block
#elif defined PRECISION_mxfp8
#define BUILD_FLAG mxfp8
#elif defined PRECISION_nvfp4
#define BUILD_FLAG nvfp4
#else
#error "no precision chosen: build with make PRECISION=..., or compile with -DPRECISION_fp32 (or another row's flag)"
#endif

#if defined MASTER_kahan
#define BUILD_MASTER_RULE MASTER_RULE_KAHAN
#elif defined MASTER_stochastic
#define BUILD_MASTER_RULE MASTER_RULE_STOCHASTIC
#elif defined MASTER_nearest
#define BUILD_MASTER_RULE MASTER_RULE_NEAREST
#else
#define BUILD_MASTER_RULE MASTER_RULE_FP32
#endif
#if !defined PRECISION_bf16 && (defined MASTER_kahan || defined MASTER_stochastic || defined MASTER_nearest)
#error "weights without an fp32 master (MASTER=kahan, stochastic or nearest) exist in bf16 only"
#endif

#if defined MOMENTS_bf16
#define BUILD_MOMENTS_RULE MOMENTS_RULE_BF16
#elif defined MOMENTS_bf16sr
#define BUILD_MOMENTS_RULE MOMENTS_RULE_BF16SR
#else
#define BUILD_MOMENTS_RULE MOMENTS_RULE_FP32
#endif

#define PRECISION_PASTE_(a, b) a##b
#define PRECISION_PASTE(a, b) PRECISION_PASTE_(a, b)

// Each row's entries that code is compiled for, as constants: POLICY_ACT_bf16 and so on.
enum {
#define X(flag, name, master, weight, act, operand, grad, dy, dw, sum, logits, loss, m, v, scaling, chunk, fast, scaled) \
    POLICY_WEIGHT_##flag = FORMAT_##weight, POLICY_ACT_##flag = FORMAT_##act, POLICY_GRAD_##flag = FORMAT_##grad,        \
    POLICY_OPERAND_##flag = FORMAT_##operand, POLICY_SCALING_##flag = SCALING_##scaling,                                \
    POLICY_LOSS_SCALING_##flag = scaled,
    PRECISION_MODES(X)
#undef X
        POLICY_CONSTANTS_END
};
#define BUILD_MODE ((PrecisionMode)PRECISION_PASTE(MODE_, BUILD_FLAG))
#define BUILD_WEIGHT ((FormatId)PRECISION_PASTE(POLICY_WEIGHT_, BUILD_FLAG))
#define BUILD_ACT ((FormatId)PRECISION_PASTE(POLICY_ACT_, BUILD_FLAG))
#define BUILD_GRAD ((FormatId)PRECISION_PASTE(POLICY_GRAD_, BUILD_FLAG))
#define BUILD_OPERAND ((FormatId)PRECISION_PASTE(POLICY_OPERAND_, BUILD_FLAG))
#define BUILD_SCALING ((ScalingRule)PRECISION_PASTE(POLICY_SCALING_, BUILD_FLAG))
#define BUILD_LOSS_SCALING ((int)PRECISION_PASTE(POLICY_LOSS_SCALING_, BUILD_FLAG))

// 1 where the working weights are a copy beside the authoritative ones.
#define BUILD_WEIGHTS_COPIED (BUILD_WEIGHT != FORMAT_FP32)

static inline PrecisionPolicy build_policy(void) {
    return precision_policy(BUILD_MODE, BUILD_MASTER_RULE, BUILD_MOMENTS_RULE);
}

// ----------------------------------------------------------------------------------------------------------------
// Rounding, as this build has it

// What is added to a pattern before its low 13 bits go: 0x1000 rounds to nearest, ties away (PTX cvt.rna); 0 cuts, as a
// tensor core that is fed raw fp32 does. --tf32-round sets it.
static inline uint32_t *tf32_rounding(void) {
    static uint32_t half = 0x1000u;
    return &half;
}

static inline float round_act(float x) { return format_round(BUILD_ACT, x); }
static inline float round_grad(float x) { return format_round(BUILD_GRAD, x); }
static inline float round_weight(float x) { return format_round(BUILD_WEIGHT, x); }
static inline float round_operand(float x) {
    if (BUILD_OPERAND != FORMAT_TF32) return x;
    uint32_t bits = bits_of_float(x);
    return float_of_bits(is_nan_bits(bits) ? 0x7fc00000u : (bits + *tf32_rounding()) & 0xffffe000u);
}

// ----------------------------------------------------------------------------------------------------------------
// Memory a parameter takes, and the table for people

typedef struct {
    double weight, master, grad, moments, kahan, codes, total;
} BytesPerParameter;

// Weights, gradients and optimizer, as the GPU stores them; activations come on top. codes: a quantised weight in both
// orientations, scales included, for a parameter of a linear layer.
static inline BytesPerParameter precision_bytes(const PrecisionPolicy *p) {
    BytesPerParameter b;
    double code = (double)format_info(p->operand)->stored_bits / 8;
    b.weight = (double)format_bytes(p->weight, 1);
    b.master = p->master == p->weight ? 0.0 : (double)format_bytes(p->master, 1);
    b.grad = (double)format_bytes(p->weight_grad, 1);
    b.moments = (double)(format_bytes(p->adam_m, 1) + format_bytes(p->adam_v, 1));
    b.kahan = p->master_rule == MASTER_RULE_KAHAN ? 2.0 : 0.0;
    b.codes = p->scaling == SCALING_NONE ? 0.0 : 2.0 * code;
    if (p->scaling == SCALING_MX) b.codes += 2.0 / 32;
    if (p->scaling == SCALING_NV) b.codes += 2.0 / 16;
    b.total = b.weight + b.master + b.grad + b.moments + b.kahan + b.codes;
    return b;
}

// Does the cast of a token depend on all others in the tensor? Delayed scaling's does only before its first step.
static inline int scaling_sees_whole_tensor(ScalingRule rule) {
    return rule == SCALING_TENSOR || rule == SCALING_DELAYED || rule == SCALING_NV;
}

static inline const char *scaling_text(ScalingRule rule) {
    switch (rule) {
        case SCALING_TENSOR: return "one fp32 scale per tensor, from its largest magnitude now";
        case SCALING_DELAYED: return "one fp32 scale per tensor, from the largest magnitudes of past steps";
        case SCALING_ROW: return "one power of two per row along the contraction";
        case SCALING_ROW_GWHP: return "as row; weights for dgrad per tensor; wgrad in bf16";
        case SCALING_BLOCK: return "one power of two per 1x128 along the contraction, weights per 128x128";
        case SCALING_MX: return "one e8m0 per 1x32 along the contraction";
        case SCALING_NV: return "one ue4m3 per 1x16 along the contraction (weights 16x16), one fp32 per tensor";
        default: return "none";
    }
}

// The whole policy of one build, every tensor role in a line.
static inline void precision_print(FILE *out, const PrecisionPolicy *p) {
    static const char *const master_text[] = {
        "authoritative", "authoritative, with a bf16 compensation beside it (Kahan)",
        "authoritative, updates rounded stochastically",
        "authoritative, updates rounded to nearest: a negative control, most small updates are lost"};
    static const char *const moments_text[] = {"", ", stored by nearest rounding (needs beta2 <= 0.99)",
                                               ", stored by stochastic rounding"};
    int copied = p->weight != FORMAT_FP32 && p->master == FORMAT_FP32;
    BytesPerParameter b = precision_bytes(p);
    fprintf(out, "precision %s, master %s, moments %s\n\n", p->name, master_rule_name(p->master_rule),
            moments_rule_name(p->moments_rule));
    fprintf(out, "  %-28s %-7s %s\n", "tensor", "format", "how");
#define ROW(role, format, ...) (fprintf(out, "  %-28s %-7s ", role, format_name(format)), fprintf(out, __VA_ARGS__), fputc('\n', out))
    ROW("weights", p->master, "%s", master_text[p->master_rule]);
    ROW("working weights", p->weight, "%s",
        copied ? "nearest-even of the weights, made once per optimizer step" : "the weights themselves");
    ROW("saved activations", p->act, "rounded once, at their store%s",
        p->bias_in_product ? "" : "; a product's output before and after its bias");
    ROW("linear operands, forward", p->operand, "scaling: %s", scaling_text(p->scaling));
    ROW("activation gradients", p->grad, "%s", p->loss_scaling ? "times the loss scale" : "rounded once, at their store");
    ROW("linear operands, gradient", p->grad_operand, "scaling: as forward%s",
        p->scaling == SCALING_NV ? "; gradients rounded stochastically, wgrad after a Hadamard transform" : "");
    ROW("weight gradients", p->weight_grad, "summed over micro-batches in the product%s",
        p->loss_scaling ? ", times the loss scale" : "");
    ROW("reduction over ranks", p->reduction, "sum");
    ROW("logits", p->logits, "read as fp32 by the log-softmax");
    ROW("loss, log-sum-exp", p->loss, "summed in double");
    ROW("Adam m", p->adam_m, "computed in fp32%s", moments_text[p->moments_rule]);
    ROW("Adam v", p->adam_v, "computed in fp32%s", moments_text[p->moments_rule]);
#undef ROW
    fprintf(out, "\n  accumulation      fp32");
    if (p->k_chunk)
        fprintf(out, ", partial sums of %d along the contraction%s", p->k_chunk,
                p->fast_accumulate ? " (forward on Hopper: fast, 14 bits, unless --promote 128)" : "");
    fprintf(out, "\n  bias              %s\n",
            p->bias_in_product ? "added before the product's only rounding" : "added to the rounded product, rounded again");
    fprintf(out, "  GELU              of the stored pre-activation\n");
    if (p->scaling != SCALING_NONE)
        fprintf(out, "  never in %-8s embeddings, the logits' product, layernorm, attention, softmax, loss%s\n",
                format_name(p->operand), p->scaling == SCALING_NV ? ", the first and the last layers" : "");
    fprintf(out, "\n  bytes per parameter: working %g", b.weight);
    if (b.master > 0) fprintf(out, " + master %g", b.master);
    fprintf(out, " + gradient %g + moments %g", b.grad, b.moments);
    if (b.kahan > 0) fprintf(out, " + compensation %g", b.kahan);
    if (b.codes > 0) fprintf(out, " + codes and scales, both orientations %g", b.codes);
    fprintf(out, " = %.4g\n  (activations apart; this CPU build holds working weights and activations in floats)\n", b.total);
}

#endif
