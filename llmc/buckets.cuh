// buckets.cuh: buckets (buckets.h) between the arenas and the staging buffer.
#ifndef LLMC_BUCKETS_CUH
#define LLMC_BUCKETS_CUH

#include "buckets.h"
#include "cuda_utils.cuh"

#define BUCKET_THREADS 256

// 8 elements a thread; sizes and places are multiples of 8.

// Where element i of the bucket is in the arena; SIZE_MAX: it is padding. No pointer to a piece, which would have to be
// one that reaches kernels' parameters.
__device__ __forceinline__ size_t bucket_place(const Bucket &bucket, size_t i) {
    for (int p = 0; p < bucket.count; p++) {
        const size_t at = i - bucket.pieces[p].at;
        if (at < bucket.pieces[p].elems) return bucket.pieces[p].arena + at;  // unsigned: both limits
    }
    return SIZE_MAX;
}

template <typename S, typename A>
__global__ void __launch_bounds__(BUCKET_THREADS)
    bucket_pack_kernel(S *staging, const A *arena, const Bucket bucket, size_t begin, size_t end) {
    const size_t i = begin + ((size_t)blockIdx.x * BUCKET_THREADS + threadIdx.x) * PACK;
    float values[PACK] = {0, 0, 0, 0, 0, 0, 0, 0};
    if (i >= end) return;
    const size_t place = bucket_place(bucket, i);
    if (place != SIZE_MAX) load_floats(values, arena + place);
    store_floats(staging + i, values);
}

// staging[begin, end) = the bucket's elements from the arena, zeros beyond its last one
template <typename S, typename A>
static inline void bucket_pack(S *staging, const A *arena, const Bucket *bucket, size_t begin, size_t end,
                               cudaStream_t stream) {
    launch((bucket_pack_kernel<S, A>), grid_1d(ceil_div(end - begin, BUCKET_THREADS * PACK)), BUCKET_THREADS, 0, stream,
           staging, arena, *bucket, begin, end);
}

template <typename A, typename S>
__global__ void __launch_bounds__(BUCKET_THREADS)
    bucket_unpack_kernel(A *arena, const S *staging, const Bucket bucket, size_t skip_begin, size_t skip_end) {
    const size_t i = ((size_t)blockIdx.x * BUCKET_THREADS + threadIdx.x) * PACK;
    float values[PACK];
    if (i >= bucket.elems || (i >= skip_begin && i < skip_end)) return;
    load_floats(values, staging + i);
    store_floats(arena + bucket_place(bucket, i), values);
}

// The arena's elements of this bucket = staging, but those of [skip_begin, skip_end)
template <typename A, typename S>
static inline void bucket_unpack(A *arena, const S *staging, const Bucket *bucket, size_t skip_begin, size_t skip_end,
                                 cudaStream_t stream) {
    launch((bucket_unpack_kernel<A, S>), grid_1d(ceil_div(bucket->elems, BUCKET_THREADS * PACK)), BUCKET_THREADS, 0,
           stream, arena, staging, *bucket, skip_begin, skip_end);
}

template <typename S>
__global__ void __launch_bounds__(BUCKET_THREADS)
    shard_take_kernel(float *shard, const S *staging, size_t n, int accumulate) {
    const size_t i = ((size_t)blockIdx.x * BUCKET_THREADS + threadIdx.x) * PACK;
    float values[PACK], before[PACK];
    if (i >= n) return;
    load_floats(values, staging + i);
    if (accumulate) {
        load_floats(before, shard + i);
#pragma unroll
        for (int k = 0; k < PACK; k++) values[k] += before[k];
    }
    store_floats(shard + i, values);
}

// shard (n) = staging (n), or += where accumulate
template <typename S>
static inline void shard_take(float *shard, const S *staging, size_t n, int accumulate, cudaStream_t stream) {
    launch(shard_take_kernel<S>, grid_1d(ceil_div(n, BUCKET_THREADS * PACK)), BUCKET_THREADS, 0, stream, shard, staging,
           n, accumulate);
}

#endif
