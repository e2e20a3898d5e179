// global_norm.cuh: the CUDA twin of global_norm.h. The result stays on the device; the host reads it when it needs it.
//
// Groups of elements depend on n alone; a block has one group, its threads sum squares in double, and a second kernel
// adds the groups in order: the same bits on every card.
#ifndef LLMC_GLOBAL_NORM_CUH
#define LLMC_GLOBAL_NORM_CUH

#include "cuda_utils.cuh"

#define NORM_THREADS 256
#define NORM_MAX_GROUPS ((size_t)1024)
#define NORM_GROUP_STEP ((size_t)(NORM_THREADS * 4 * 4))  // 4 loads of 4 floats a thread under way

static inline size_t global_norm_scratch_elems(void) { return NORM_MAX_GROUPS; }  // doubles

static __global__ void __launch_bounds__(NORM_THREADS, 6)
    global_norm_groups_kernel(double *partials, const float *x, size_t n, size_t group_elems) {
    __shared__ double shared[NORM_THREADS / WARP_SIZE];
    const size_t begin = blockIdx.x * group_elems, end = begin + group_elems < n ? begin + group_elems : n;
    double sum = 0;
    size_t i = begin + threadIdx.x * 4;
    for (; i + 3 * NORM_THREADS * 4 + 4 <= end; i += NORM_GROUP_STEP) {
        Packed<float, 4> v[4];
#pragma unroll
        for (int k = 0; k < 4; k++) v[k] = load_packed<4>(x + i + k * NORM_THREADS * 4);
#pragma unroll
        for (int k = 0; k < 4; k++)
#pragma unroll
            for (int j = 0; j < 4; j++) sum = fma((double)v[k][j], (double)v[k][j], sum);
    }
    for (; i < end; i += NORM_THREADS * 4)
        for (size_t j = i; j < i + 4 && j < end; j++) sum = fma((double)x[j], (double)x[j], sum);
    sum = block_sum<NORM_THREADS / WARP_SIZE>(sum, shared);
    if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

static __global__ void __launch_bounds__(NORM_THREADS)
    global_norm_total_kernel(double *sum, int *nonfinite, const double *partials, size_t groups) {
    __shared__ double shared[NORM_THREADS / WARP_SIZE];
    double part = 0;
    for (size_t i = threadIdx.x; i < groups; i += NORM_THREADS) part += partials[i];
    part = block_sum<NORM_THREADS / WARP_SIZE>(part, shared);
    if (threadIdx.x != 0) return;
    *sum += part;
    // A float's square never overflows a double, nor does the sum of as many as fit in memory.
    if (!isfinite(part)) *nonfinite = 1;
}

// global_norm_squared: see global_norm.h
//   *sum (double) +=, *nonfinite |= : device memory, cleared by the caller before the first tensor
//   x 16-byte aligned; scratch: global_norm_scratch_elems() doubles on the device
static inline void global_norm_squared(double *sum, const float *x, size_t n, int *nonfinite, double *scratch,
                                       cudaStream_t stream) {
    if (n == 0) return;
    const size_t group_elems = round_up(ceil_div(n, NORM_MAX_GROUPS), NORM_GROUP_STEP);
    const size_t groups = ceil_div(n, group_elems);
    DeviceOp op("global_norm", (double)n * sizeof(float), 0, stream);
    launch(global_norm_groups_kernel, grid_1d(groups), NORM_THREADS, 0, stream, scratch, x, n, group_elems);
    launch(global_norm_total_kernel, 1, NORM_THREADS, 0, stream, sum, nonfinite, scratch, groups);
}

#endif
