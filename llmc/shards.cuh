// shards.cuh: how ranks share the work on one model's parameters. Bucket by bucket (buckets.cuh), as the backward pass
// finishes them, gradients are summed over ranks while it goes on: each rank gets its shard's sums (reduce-scatter).
//
//     --zero 0   the sums of all shards go back to every rank, and every rank updates everything
//     --zero 1   a rank updates its shard, for which alone it has masters and moments; the new weights go to all ranks
//
//     --zero 2   and it keeps the summed gradients of its shard alone: of the others, just the layers that the backward
//                pass is at, in two halves of one bucket's layers each. Every micro-batch's gradients go out, so A times
//                as much is sent, and they are added over ranks first, then over micro-batches: with one micro-batch
//                a step the bits are those of --zero 0 and 1.
//
// All sum in the same way and take the norm over shards, so that their updates have the same bits.
#ifndef LLMC_SHARDS_CUH
#define LLMC_SHARDS_CUH

#include "buckets.cuh"
#include "communicator.cuh"
#include "global_norm.cuh"

typedef struct {
    Parallel parallel;
    BucketPlan plan;
    Bucket *buckets;
    float *gradients;  // this rank's shards of the summed gradients
    void *staging;     // one bucket, in fp32 or narrower
    size_t slots;      // layers that the gradients' arena has room for, where --zero 2 limits it; else 0
    Bucket *sources;   // with --zero 2: the buckets as they lie there; else `buckets`
    int accumulate;    // 1: this rank's shards of earlier micro-batches' gradients are added to
    int reduce_next;   // the next backward pass completes the gradients
    cudaEvent_t ready, packed, backward_done, reduced;
    cudaEvent_t *arrived;  // each bucket of the new weights
    size_t unseen;         // of the buckets from 0 on, how many no stream has waited for yet
} Shards;

static inline int shards_several(const Shards *s) { return s->parallel.ranks > 1; }
// Are masters and moments shared out?
static inline int shards_optimizer(const Shards *s) { return shards_several(s) && s->parallel.zero >= 1; }

// Are gradients?
static inline int shards_gradients(const Shards *s) { return shards_several(s) && s->parallel.zero >= 2; }

// Layers whose gradients are there at once, of L; and where those of layer l are.
static inline size_t shards_gradient_layers(const Shards *s, size_t L) { return s->slots ? s->slots : L; }
static inline size_t shards_gradient_layer(const Shards *s, size_t l) {
    return s->slots ? s->slots - 1 - (s->plan.L - 1 - l) % s->slots : l;  // a bucket's layers lie together, in order
}

static inline void shards_plan(Shards *s, const Parallel *parallel, const GPTConfig *config) {
    memset(s, 0, sizeof *s);
    s->parallel = *parallel;
    if (shards_several(s)) s->plan = bucket_plan(config, parallel->ranks, parallel->bucket_bytes);
    if (shards_gradients(s)) s->slots = 2 * s->plan.layers_each;
}

// `gradient_table`: where gradients lie in their arena.
static inline void shards_create(Shards *s, const ParameterInfo *gradient_table) {
    if (!shards_several(s)) return;
    s->buckets = buckets_make(&s->plan);
    s->sources = buckets_make(&s->plan);
    for (size_t i = 0; i < s->plan.count; i++)
        for (int p = 0; p < s->sources[i].count; p++) {
            BucketPiece *piece = &s->sources[i].pieces[p];
            const ParameterInfo *info = &gradient_table[piece->tensor];
            size_t elems = info->rows * info->cols, layer = piece->first / elems;
            if (bucket_in_layers(piece->tensor))
                piece->arena = info->offset_elems + shards_gradient_layer(s, layer) * elems;
            else piece->arena = info->offset_elems + piece->first;
        }
    CUDA_CHECK(cudaEventCreateWithFlags(&s->packed, cudaEventDisableTiming));
    CUDA_CHECK(cudaEventCreateWithFlags(&s->ready, cudaEventDisableTiming));
    CUDA_CHECK(cudaEventCreate(&s->backward_done));
    CUDA_CHECK(cudaEventCreate(&s->reduced));
    s->arrived = (cudaEvent_t *)checked_calloc(s->plan.count, sizeof *s->arrived, "buckets");
    for (size_t i = 0; i < s->plan.count; i++) CUDA_CHECK(cudaEventCreateWithFlags(&s->arrived[i], cudaEventDisableTiming));
}

static inline void shards_destroy(Shards *s) {
    if (!shards_several(s)) return;
    free(s->buckets);
    free(s->sources);
    CUDA_CHECK(cudaEventDestroy(s->packed));
    CUDA_CHECK(cudaEventDestroy(s->ready));
    CUDA_CHECK(cudaEventDestroy(s->backward_done));
    CUDA_CHECK(cudaEventDestroy(s->reduced));
    for (size_t i = 0; i < s->plan.count; i++) CUDA_CHECK(cudaEventDestroy(s->arrived[i]));
    free(s->arrived);
}

// What the ranks' stream is given from here on comes after all that `stream` has been given.
static inline void shards_follow(Shards *s, cudaStream_t stream) {
    CUDA_CHECK(cudaEventRecord(s->ready, stream));
    CUDA_CHECK(cudaStreamWaitEvent(all_ranks()->stream, s->ready, 0));
}

// And the other way round.
static inline void shards_wait(cudaEvent_t event, cudaStream_t stream) {
    CUDA_CHECK(cudaEventRecord(event, all_ranks()->stream));
    CUDA_CHECK(cudaStreamWaitEvent(stream, event, 0));
}

static inline ncclDataType_t nccl_type(float) { return ncclFloat32; }
static inline ncclDataType_t nccl_type(__nv_bfloat16) { return ncclBfloat16; }

// ----------------------------------------------------------------------------------------------------------------
// Gradients

// T: what is sent, fp32 or bf16.
template <typename T>
static inline void shards_reduce_as(Shards *s, size_t index, float *grads) {
    const Bucket *bucket = &s->sources[index];
    Ranks *r = all_ranks();
    size_t elems = bucket->shard_elems;
    T *staging = (T *)s->staging, *own = staging + r->rank * elems;
    bucket_pack(staging, grads, bucket, 0, elems * r->ranks, r->stream);
    CUDA_CHECK(cudaEventRecord(s->packed, r->stream));
    NCCL_CHECK(ncclReduceScatter(staging, own, elems, nccl_type(T()), ncclSum, r->nccl, r->stream));
    shard_take(s->gradients + bucket->shard_at, own, elems, s->accumulate, r->stream);
    if (shards_optimizer(s)) return;
    NCCL_CHECK(ncclAllGather(own, staging, elems, nccl_type(T()), r->nccl, r->stream));
    bucket_unpack(grads, staging, bucket, 0, 0, r->stream);
}

// The gradients of bucket `index` are complete on this rank once `stream` comes here.
static inline void shards_reduce(Shards *s, size_t index, float *grads, cudaStream_t stream) {
    shards_follow(s, stream);
    if (s->parallel.reduce_bf16) shards_reduce_as<__nv_bfloat16>(s, index, grads);
    else shards_reduce_as<float>(s, index, grads);
}

static inline int shards_reducing(const Shards *s) {
    return shards_several(s) && (s->reduce_next || shards_gradients(s));
}

// In the backward pass, with --zero 2: layer l begins. Where it is a bucket's first, the half that the bucket before it
// was in is soon needed again. It is free once `stream` comes here; returns how many layers it has, from *first on.
static inline size_t shards_layer_begins(Shards *s, size_t l, size_t *first, cudaStream_t stream) {
    size_t done = s->plan.L - 1 - l, each = s->plan.layers_each;
    if (!shards_gradients(s) || done == 0 || done % each != 0) return 0;
    CUDA_CHECK(cudaStreamWaitEvent(stream, s->packed, 0));
    *first = done / each % 2 == 1 ? each : 0;
    return each;
}

// In the backward pass: layer l is done. (Its last bias comes from the layer above.)
static inline void shards_layer_done(Shards *s, size_t l, float *grads, cudaStream_t stream) {
    size_t index, begin, end;
    if (!shards_reducing(s)) return;
    index = (s->plan.L - 1 - l) / s->plan.layers_each;
    bucket_layers(&s->plan, index, &begin, &end);
    if (l == begin) shards_reduce(s, index, grads, stream);
}

// At its end: the embeddings are done, too.
static inline void shards_backward_done(Shards *s, float *grads, cudaStream_t stream) {
    if (!shards_reducing(s)) return;
    CUDA_CHECK(cudaEventRecord(s->backward_done, stream));
    for (size_t i = s->plan.layer_buckets; i < s->plan.count; i++) shards_reduce(s, i, grads, stream);
    shards_wait(s->reduced, stream);
    s->reduce_next = 0;
    s->accumulate = shards_gradients(s);
}

// Of the last step, once the host has waited for it: how long its gradients took after the backward pass had ended.
static inline double shards_exposed_ms(const Shards *s) {
    float ms = 0;
    if (shards_several(s)) CUDA_CHECK(cudaEventElapsedTime(&ms, s->backward_done, s->reduced));
    return ms > 0 ? (double)ms : 0.0;
}

// The sum of squares over all ranks' shards, in the order of ranks, from this rank's; *nonfinite: whether any has one.
static inline double shards_sum_norms(double own, int *nonfinite) {
    typedef struct {
        double norm_squared;
        int64_t nonfinite;
    } Part;
    Part mine = {own, *nonfinite}, *all = (Part *)checked_calloc(all_ranks()->ranks, sizeof mine, "ranks");
    double sum = 0;
    ranks_gather(all, &mine, sizeof mine);
    for (size_t i = 0; i < all_ranks()->ranks; i++) {
        sum += all[i].norm_squared;
        *nonfinite |= all[i].nonfinite != 0;
    }
    free(all);
    return sum;
}

// ----------------------------------------------------------------------------------------------------------------
// Weights

// Bucket `index` of the weights is here once the ranks' stream comes here.
static inline void shards_arrive(Shards *s, size_t index) {
    CUDA_CHECK(cudaEventRecord(s->arrived[index], all_ranks()->stream));
    s->unseen = max_size(s->unseen, index + 1);
}

// Bucket `index` of the working weights is new in this rank's shard of it once `stream` comes here: it goes to all
// ranks, the last bucket first, as the next forward pass needs them. They have it when shards_await() has passed.
template <typename W>
static inline void shards_publish(Shards *s, size_t index, W *weights, cudaStream_t stream) {
    const Bucket *bucket = &s->buckets[index];
    Ranks *r = all_ranks();
    size_t elems = bucket->shard_elems, begin = r->rank * elems, end = begin + elems;
    W *staging = (W *)s->staging;
    shards_follow(s, stream);
    bucket_pack(staging, weights, bucket, begin, end, r->stream);
    NCCL_CHECK(ncclAllGather(staging + begin, staging, elems * sizeof(W), ncclUint8, r->nccl, r->stream));
    bucket_unpack(weights, staging, bucket, begin, end, r->stream);
    shards_arrive(s, index);
}

// The weights of bucket `index` and of all that were published before it are there once `stream`, the one that computes,
// comes here.
static inline void shards_await(Shards *s, size_t index, cudaStream_t stream) {
    if (index >= s->unseen) return;
    CUDA_CHECK(cudaStreamWaitEvent(stream, s->arrived[index], 0));
    s->unseen = index;
}

// Those of the embeddings; of layer l, and of the final layernorm with the last; all.
static inline void shards_await_embeddings(Shards *s, cudaStream_t stream) { shards_await(s, s->plan.layer_buckets, stream); }
static inline void shards_await_layer(Shards *s, size_t l, cudaStream_t stream) {
    if (s->unseen) shards_await(s, (s->plan.L - 1 - l) / s->plan.layers_each, stream);
}
static inline void shards_await_all(Shards *s, cudaStream_t stream) { shards_await(s, 0, stream); }

// Rows of a tensor, or a part of each: `rows` runs of `cols` elements, `pitch` elements apart in the arena, from element
// `first` of it on.
typedef struct {
    size_t first, rows, cols, pitch;
} ShardBlock;

// The elements [from, to) of the arena, which lie together at `near`, and the same ones of `block`, which lies dense at
// `far`. Rows of which all elements are among them go in one copy. Without `near`: only whether there are any.
static inline int shard_copy_run(char *near, size_t from, size_t to, size_t size, const ShardBlock *block, char *far,
                                 int to_far, cudaMemcpyKind kind, cudaStream_t stream) {
    size_t r = from < block->first + block->cols ? 0 : (from - block->first - block->cols) / block->pitch + 1;
    for (size_t n; r < block->rows && block->first + r * block->pitch < to; r += n) {
        size_t row = block->first + r * block->pitch, begin = max_size(from, row), end = min_size(to, row + block->cols);
        n = 1;
        if (begin >= end) continue;
        if (!near) return 1;
        if (end - begin == block->cols) n = min_size((to - end) / block->pitch + 1, block->rows - r);
        char *in_shard = near + (begin - from) * size, *in_block = far + (r * block->cols + begin - row) * size;
        size_t width = (end - begin) * size, shard_pitch = block->pitch * size, block_pitch = block->cols * size;
        if (to_far)
            CUDA_CHECK(cudaMemcpy2DAsync(in_block, block_pitch, in_shard, shard_pitch, width, n, kind, stream));
        else CUDA_CHECK(cudaMemcpy2DAsync(in_shard, shard_pitch, in_block, block_pitch, width, n, kind, stream));
    }
    return 0;
}

// Between this rank's shards at `shard`, of elements of `size` bytes, and `dense`, which stands for a block of the arena:
// elements that are this rank's are copied, others left alone. Without `shard`: only whether there are any.
static inline int shards_copy(const Shards *s, void *shard, size_t size, const ShardBlock *block, void *dense, int to_dense,
                              cudaMemcpyKind kind, cudaStream_t stream) {
    size_t rank = all_ranks()->rank, last = block->first + (block->rows - 1) * block->pitch + block->cols;
    for (size_t i = 0; i < s->plan.count; i++) {
        const Bucket *bucket = &s->buckets[i];
        for (int p = 0; p < bucket->count; p++) {
            const BucketPiece *piece = &bucket->pieces[p];
            size_t begin, end;
            if (piece->arena >= last || piece->arena + piece->elems <= block->first) continue;
            if (!bucket_shard_run(bucket, p, rank, &begin, &end)) continue;
            size_t place = bucket->shard_at + begin - rank * bucket->shard_elems;
            char *near = shard ? (char *)shard + place * size : NULL;
            if (shard_copy_run(near, piece->arena + begin - piece->at, piece->arena + end - piece->at, size, block,
                               (char *)dense, to_dense, kind, stream))
                return 1;
        }
    }
    return 0;
}

#endif
