// cross_entropy.cuh: the CUDA twin of cross_entropy.h: softmax, loss and the logits' gradient with one read and one
// write of each logit.
//
// A block has one row and keeps it in shared memory (GPT-2's 100,608 bytes in 16 bits: two blocks on an SM of Hopper).
// The copy is asynchronous, so the whole row is under way at once and no registers hold it. Each thread works only on
// what it copied itself, so the row needs no barrier; only the two block reductions do. Rows too long for shared memory
// are read twice, the second time mostly from L2.
#ifndef LLMC_CROSS_ENTROPY_CUH
#define LLMC_CROSS_ENTROPY_CUH

#include <float.h>

#include "mma.cuh"

#define CLASSIFIER_THREADS 512
#define CLASSIFIER_LOG2E 1.4426950408889634f

template <typename T, bool IN_SHARED>
__global__ void __launch_bounds__(CLASSIFIER_THREADS, 2)
    fused_classifier_kernel(T *logits, float *losses, const int32_t *targets, float dloss, int V, int Vp) {
    constexpr int WIDTH = 16 / sizeof(T), WARPS = CLASSIFIER_THREADS / WARP_SIZE;  // WIDTH: one copy's elements
    DYNAMIC_SHARED(T, row_shared);
    __shared__ float shared_max[WARPS], shared_sum[WARPS];
    const size_t row = blockIdx.x;
    T *row_global = logits + row * Vp;
    const int first = threadIdx.x * WIDTH, step = CLASSIFIER_THREADS * WIDTH;
    if (IN_SHARED) {
        for (int i = first; i < V; i += step) cp_async_16(row_shared + i, row_global + i);
        cp_async_commit();
    }
    const int target = targets[row];
    const float target_logit = to_float(row_global[target]);
    if (IN_SHARED) cp_async_wait<0>();
    const T *source = IN_SHARED ? row_shared : row_global;

    // Largest value and, relative to it, sum of exps, in one go: a new largest rescales the sum. It starts from a
    // finite value, so that -inf logits give 0 and no NaN.
    float largest = -FLT_MAX, sum = 0;
    for (int i = first; i < V; i += step) {
        float x[WIDTH], part = largest;
        load_floats<WIDTH>(x, source + i);
#pragma unroll
        for (int j = 0; j < WIDTH; j++)
            if (i + j < V) part = fmaxf(part, x[j]);
        sum *= exp2_approx((largest - part) * CLASSIFIER_LOG2E);
        largest = part;
#pragma unroll
        for (int j = 0; j < WIDTH; j++)
            if (i + j < V) sum += exp2_approx((x[j] - largest) * CLASSIFIER_LOG2E);
    }
    const float row_max = block_max<WARPS>(largest, shared_max);
    sum *= exp2_approx((largest - row_max) * CLASSIFIER_LOG2E);
    const float row_sum = block_sum<WARPS>(sum, shared_sum);
    if (threadIdx.x == 0) losses[row] = logf(row_sum) - (target_logit - row_max);
    if (dloss == 0.0f) return;

    // No thread writes a vector that another reads, and all have read the target's logit before the barriers above.
    const float scale = dloss / row_sum;
    for (int i = first; i < Vp; i += step) {
        float x[WIDTH] = {};
        if (i < V) load_floats<WIDTH>(x, source + i);
#pragma unroll
        for (int j = 0; j < WIDTH; j++) {
            float grad = exp2_approx((x[j] - row_max) * CLASSIFIER_LOG2E);
            grad = i + j == target ? fmaf(grad, scale, -dloss) : grad * scale;
            x[j] = i + j < V ? grad : 0.0f;
        }
        store_floats<WIDTH>(row_global + i, x);
    }
}

// fused_classifier: see cross_entropy.h; Vp % 8 == 0; moves 2 rows Vp elements (one more read where a row is longer
// than a block's shared memory)
template <typename T>
static inline void fused_classifier(T *logits, float *losses, const int32_t *targets, float dloss, size_t rows,
                                    size_t V, size_t Vp, cudaStream_t stream) {
    DeviceOp op("fused_classifier", (dloss != 0 ? 2.0 : 1.0) * (double)rows * (double)Vp * sizeof(T), 0, stream);
    const size_t row_bytes = Vp * sizeof(T), reductions_bytes = 2 * CLASSIFIER_THREADS / WARP_SIZE * sizeof(float);
    if (row_bytes + reductions_bytes <= device_info()->shared_block_bytes)
        launch(fused_classifier_kernel<T, true>, grid_1d(rows), CLASSIFIER_THREADS, row_bytes, stream, logits, losses,
               targets, dloss, (int)V, (int)Vp);
    else
        launch(fused_classifier_kernel<T, false>, grid_1d(rows), CLASSIFIER_THREADS, 0, stream, logits, losses, targets,
               dloss, (int)V, (int)Vp);
}

// ----------------------------------------------------------------------------------------------------------------

#define LOSS_SUM_THREADS 1024

static __global__ void __launch_bounds__(LOSS_SUM_THREADS)
    loss_sum_kernel(double *total, const float *losses, size_t n, int accumulate) {
    __shared__ double shared[LOSS_SUM_THREADS / WARP_SIZE];
    double sum = 0;
    for (size_t i = threadIdx.x; i < n; i += LOSS_SUM_THREADS) sum += (double)losses[i];
    sum = block_sum<LOSS_SUM_THREADS / WARP_SIZE>(sum, shared);
    if (threadIdx.x == 0) *total = accumulate ? *total + sum : sum;
}

// loss_sum: *total (device, double) = or += the sum of n losses, in double and a fixed order: the host reads one number
// when it wants it, not N losses.
static inline void loss_sum(double *total, const float *losses, size_t n, int accumulate, cudaStream_t stream) {
    launch(loss_sum_kernel, 1, LOSS_SUM_THREADS, 0, stream, total, losses, n, accumulate);
}

#endif
