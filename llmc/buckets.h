// buckets.h: gradients and weights as ranks exchange them. The parameters are cut into buckets in the order in which
// the backward pass finishes their gradients: some layers at a time from the last to the first (the final layernorm with
// the first of them), then the embeddings in equal parts. A bucket is copied into one staging buffer, padded with zeros
// to a whole number of equal shards, one a rank: any parameter count goes on any number of ranks, each exchange is one
// call of NCCL's, and what is padding stays there. A rank's shards of all buckets, one after the other, are its part of
// whatever is sharded.
#ifndef LLMC_BUCKETS_H
#define LLMC_BUCKETS_H

#include "tensors.h"

#define BUCKET_PIECES 16
#define SHARD_MULTIPLE ((size_t)64)  // elements: shards begin at 128 bytes or more, and a thread's 8 never leave one

// A run of one parameter tensor.
typedef struct {
    size_t arena, at, elems;  // its first element in the arena of all parameters, and in the bucket; a multiple of 8
    size_t first;             // within tensor `tensor`
    int tensor;
} BucketPiece;

typedef struct {
    BucketPiece pieces[BUCKET_PIECES];
    int count;
    size_t elems, shard_elems;
    size_t shard_at;  // where its shard begins among all of a rank's
} Bucket;

typedef struct {
    ParameterInfo table[GPT_PARAMETER_COUNT];
    size_t L, ranks, count;
    size_t layers_each, layer_buckets;  // of a bucket; buckets of layers
    size_t tail_elems, tail_each;       // the embeddings
    size_t staging_elems, shard_total;  // of the largest bucket, padded; of all of a rank's shards
} BucketPlan;

static inline int bucket_in_layers(int tensor) { return tensor >= 2 && tensor < GPT_PARAMETER_COUNT - 2; }

static inline void bucket_add(Bucket *bucket, const BucketPlan *plan, int tensor, size_t first, size_t elems) {
    if (elems == 0) return;
    if (bucket->count == BUCKET_PIECES) die("a bucket of more than %d pieces", BUCKET_PIECES);
    BucketPiece piece = {plan->table[tensor].offset_elems + first, bucket->elems, elems, first, tensor};
    bucket->pieces[bucket->count++] = piece;
    bucket->elems += elems;
}

// The layers of bucket `index`: [*begin, *end).
static inline void bucket_layers(const BucketPlan *plan, size_t index, size_t *begin, size_t *end) {
    *end = plan->L - index * plan->layers_each;
    *begin = *end > plan->layers_each ? *end - plan->layers_each : 0;
}

static inline Bucket bucket_make(const BucketPlan *plan, size_t index) {
    Bucket bucket;
    memset(&bucket, 0, sizeof bucket);
    if (index < plan->layer_buckets) {
        size_t begin, end;
        bucket_layers(plan, index, &begin, &end);
        for (int i = 2; i < GPT_PARAMETER_COUNT; i++) {
            size_t elems = plan->table[i].rows * plan->table[i].cols;
            if (bucket_in_layers(i)) bucket_add(&bucket, plan, i, begin * elems, (end - begin) * elems);
            else if (index == 0) bucket_add(&bucket, plan, i, 0, elems);
        }
    } else {
        size_t wte = parameter_elems(&plan->table[0]), begin = (index - plan->layer_buckets) * plan->tail_each;
        size_t end = min_size(begin + plan->tail_each, plan->tail_elems);
        if (begin < wte) bucket_add(&bucket, plan, 0, begin, min_size(end, wte) - begin);
        if (end > wte) bucket_add(&bucket, plan, 1, max_size(begin, wte) - wte, end - max_size(begin, wte));
    }
    bucket.shard_elems = round_up(ceil_div(bucket.elems, plan->ranks), SHARD_MULTIPLE);
    return bucket;
}

// How a model's parameters are cut: buckets of about `bucket_bytes` in fp32, of at least one layer.
static inline BucketPlan bucket_plan(const GPTConfig *config, size_t ranks, size_t bucket_bytes) {
    BucketPlan plan;
    size_t layer_elems = 0, bucket_elems = max_size(bucket_bytes / sizeof(float), 1);
    memset(&plan, 0, sizeof plan);
    parameter_table(config, plan.table);
    plan.L = config->L;
    plan.ranks = ranks;
    for (int i = 0; i < GPT_PARAMETER_COUNT; i++)
        if (bucket_in_layers(i)) layer_elems += plan.table[i].rows * plan.table[i].cols;
    plan.layers_each = min_size(max_size(bucket_elems / layer_elems, 1), config->L);
    plan.layer_buckets = ceil_div(config->L, plan.layers_each);
    plan.tail_elems = parameter_elems(&plan.table[0]) + parameter_elems(&plan.table[1]);
    plan.tail_each = round_up(ceil_div(plan.tail_elems, ceil_div(plan.tail_elems, bucket_elems)), SHARD_MULTIPLE);
    plan.count = plan.layer_buckets + ceil_div(plan.tail_elems, plan.tail_each);
    for (size_t i = 0; i < plan.count; i++) {
        Bucket bucket = bucket_make(&plan, i);
        plan.staging_elems = max_size(plan.staging_elems, bucket.shard_elems * ranks);
        plan.shard_total += bucket.shard_elems;
    }
    return plan;
}

// All buckets of a plan, to be freed.
static inline Bucket *buckets_make(const BucketPlan *plan) {
    Bucket *buckets = (Bucket *)checked_calloc(plan->count, sizeof *buckets, "buckets");
    size_t shard_at = 0;
    for (size_t i = 0; i < plan->count; i++) {
        buckets[i] = bucket_make(plan, i);
        buckets[i].shard_at = shard_at;
        shard_at += buckets[i].shard_elems;
    }
    return buckets;
}

// The part of piece `p` in rank `rank`'s shard: its elements [*begin, *end) of the bucket; 0 where there is none.
static inline int bucket_shard_run(const Bucket *bucket, int p, size_t rank, size_t *begin, size_t *end) {
    const BucketPiece *piece = &bucket->pieces[p];
    *begin = max_size(piece->at, rank * bucket->shard_elems);
    *end = min_size(piece->at + piece->elems, (rank + 1) * bucket->shard_elems);
    return *begin < *end;
}

#endif
