// device_plan.h: what a rank of a run on GPUs keeps, worked out from tensors.h and precision.h on any machine: so that a
// laptop can say whether a model fits. What the GPU trainer lays out is tested to be the same.
//
//     device_plan_print(stdout, &config, &shape, &parallel);     a line for each precision
#ifndef LLMC_DEVICE_PLAN_H
#define LLMC_DEVICE_PLAN_H

#include "buckets.h"
#include "precision.h"

// Bytes of one rank. Not in it: kernels' workspaces, text generation, CUDA's and NCCL's own memory.
typedef struct {
    size_t weights, masters, casts, gradients, moments, buffer, activations;  // buffer: of one bucket, for NCCL
} DevicePlan;

// Statistics are fp32 in every precision, the other activations have the policy's format.
static inline size_t device_activation_bytes(const GPTConfig *config, const BatchShape *shape, FormatId format) {
    ActivationInfo table[GPT_ACTIVATION_COUNT];
    size_t bytes = 0, N = size_mul(shape->B, shape->T);
    activation_table(config, shape, table);
    for (size_t i = 0; i < GPT_ACTIVATION_COUNT; i++) {
        const char *name = table[i].name;
        size_t elems = size_mul(table[i].layers, table[i].elems);
        int statistic = strstr(name, "_mean") || strstr(name, "_rstd") || !strcmp(name, "lse") || !strcmp(name, "losses");
        if (!strcmp(name, "logits")) elems = size_mul(min_size(N, DEVICE_LOGITS_CHUNK_ROWS), config->Vp);
        bytes += round_up(format_bytes(statistic ? FORMAT_FP32 : format, elems), ARENA_ALIGN_BYTES);
    }
    return bytes;
}

// ZeRO 1 shares out masters and moments, 2 the gradients too, but for the embeddings' and those of two buckets' layers.
// Of several ranks each has its shards of their summed gradients besides. Casts: as if no linear layer were kept high.
static inline DevicePlan device_plan(const GPTConfig *config, const BatchShape *shape, const Parallel *parallel,
                                     const PrecisionPolicy *policy) {
    ParameterInfo table[GPT_PARAMETER_COUNT];
    BucketPlan buckets;
    BytesPerParameter each = precision_bytes(policy);
    size_t P = parameter_table(config, table);
    memset(&buckets, 0, sizeof buckets);
    if (parallel->ranks > 1) buckets = bucket_plan(config, parallel->ranks, parallel->bucket_bytes);
    double optimizer = (double)(parallel->ranks > 1 && parallel->zero >= 1 ? buckets.shard_total : P);
    GPTConfig in_work = *config;  // the layers whose gradients are there at once
    if (parallel->ranks > 1 && parallel->zero >= 2) in_work.L = 2 * buckets.layers_each;
    DevicePlan plan;
    plan.weights = (size_t)(each.weight * (double)P);
    plan.masters = (size_t)((each.master + each.kahan) * optimizer);
    plan.casts = (size_t)(each.codes * 12.0 * (double)config->L * (double)config->C * (double)config->C);
    plan.gradients = (parameter_table(&in_work, table) + buckets.shard_total) * sizeof(float);
    plan.moments = (size_t)(each.moments * optimizer);
    plan.buffer = buckets.staging_elems * sizeof(float);
    plan.activations = device_activation_bytes(config, shape, policy->act);
    return plan;
}

// One line a precision; those that take the same memory share one. This build's own MASTER and MOMENTS count in its own.
static inline void device_plan_print(FILE *out, const GPTConfig *config, const BatchShape *shape,
                                     const Parallel *parallel) {
    static const char *const titles[] = {"weights", "masters", "casts", "gradients",
                                         "moments", "buffer", "activations", "total"};
    fprintf(out, "memory of each of %zu GPU%s, --zero %d, B %zu (kernels' workspaces, CUDA and NCCL: 1 to 4 GiB more):\n",
            parallel->ranks, plural(parallel->ranks), parallel->zero, shape->B);
    for (size_t i = 0; i < 8; i++) fprintf(out, "%s%11s", i ? " " : "  ", titles[i]);
    DevicePlan plans[PRECISION_MODE_COUNT];
    const char *names[PRECISION_MODE_COUNT];
    for (int mode = 0; mode < PRECISION_MODE_COUNT; mode++) {
        PrecisionPolicy policy = precision_policy((PrecisionMode)mode, MASTER_RULE_FP32, MOMENTS_RULE_FP32);
        if (mode == (int)BUILD_MODE) policy = build_policy();
        plans[mode] = device_plan(config, shape, parallel, &policy);
        names[mode] = policy.name;
    }
    for (int mode = 0, next; mode < PRECISION_MODE_COUNT; mode = next) {
        const DevicePlan *p = &plans[mode];
        char list[128] = "", text[32];
        for (next = mode; next < PRECISION_MODE_COUNT && memcmp(&plans[next], p, sizeof *p) == 0; next++) {
            if (next > mode) strcat(list, " ");
            strcat(list, names[next]);
        }
        size_t bytes[8] = {p->weights, p->masters, p->casts, p->gradients, p->moments, p->buffer, p->activations, 0};
        for (size_t i = 0; i < 7; i++) bytes[7] += bytes[i];
        for (size_t i = 0; i < 8; i++)
            fprintf(out, "%s%11s", i ? " " : "\n  ", bytes[i] ? format_bytes_text(text, (double)bytes[i]) : "-");
        fprintf(out, "  %s", list);
    }
    fprintf(out, "\n");
}

#endif
