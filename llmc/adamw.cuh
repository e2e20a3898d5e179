// adamw.cuh: the CUDA twin of adamw.h: the same operations in the same order, each rounded by itself, so the same bits.
//
// All tensors are updated by one launch over a table of them. A thread has 4 consecutive elements: one 16-byte access a
// stream, and one Philox block where bits are drawn. Moves 28 bytes a parameter in fp32 (30 with a 16-bit working
// copy).
#ifndef LLMC_ADAMW_CUH
#define LLMC_ADAMW_CUH

#include "adamw.h"
#include "cuda_utils.cuh"
#include "precision_types.cuh"

#define ADAMW_THREADS 256
#define ADAMW_VECTOR 4
#define ADAMW_BLOCK_ELEMS ((size_t)(ADAMW_THREADS * ADAMW_VECTOR))
#define ADAMW_MAX_TENSORS 16

// One tensor (or a run of one: `first` is then the pointers' element within the tensor, a multiple of 4), on the
// device. Fields as in adamw.h; bf16 where that says codes.
typedef struct {
    void *weight;
    __nv_bfloat16 *kahan;
    weight_t *working;
    void *m, *v;
    const float *grad;
    size_t n, first;
    float weight_decay;
    uint32_t stream;
} AdamWTensor;

typedef struct {
    int count;
    unsigned first_block[ADAMW_MAX_TENSORS + 1];
    AdamWTensor tensors[ADAMW_MAX_TENSORS];
} AdamWTable;

__device__ __forceinline__ void adamw_load(float (&x)[ADAMW_VECTOR], const void *source, size_t i, bool in_fp32) {
    if (in_fp32) {
        load_floats(x, (const float *)source + i);
        return;
    }
    uint2 raw = *reinterpret_cast<const uint2 *>((const uint16_t *)source + i);  // 4 values of 16 bits
    __nv_bfloat16 codes[ADAMW_VECTOR];
    memcpy(codes, &raw, sizeof raw);
#pragma unroll
    for (int j = 0; j < ADAMW_VECTOR; j++) x[j] = to_float(codes[j]);
}

template <typename T>
__device__ __forceinline__ void adamw_store(T *out, const float (&x)[ADAMW_VECTOR]) {
    if constexpr (sizeof(T) == 4) {
        store_floats(out, x);
    } else {
        T codes[ADAMW_VECTOR];
#pragma unroll
        for (int j = 0; j < ADAMW_VECTOR; j++) codes[j] = from_float<T>(x[j]);
        uint2 raw;
        memcpy(&raw, codes, sizeof raw);
        *reinterpret_cast<uint2 *>(out) = raw;
    }
}

// bf16, rounded by the bits of `purpose`; leaves the rounded values in x.
__device__ __forceinline__ void adamw_store_stochastic(__nv_bfloat16 *out, float (&x)[ADAMW_VECTOR], uint32_t purpose,
                                                       const AdamWTensor &t, size_t element, const AdamWHyper &h) {
    const RandBlock random = rand_block(h.seed, purpose, t.stream, h.t, element / ADAMW_VECTOR);
#pragma unroll
    for (int j = 0; j < ADAMW_VECTOR; j++) x[j] = round_sr_bf16(x[j], random.word[j]);
    adamw_store(out, x);
}

template <MomentsRule MOMENTS>
__device__ __forceinline__ void adamw_store_moment(void *out, float (&x)[ADAMW_VECTOR], uint32_t purpose,
                                                   const AdamWTensor &t, size_t i, const AdamWHyper &h) {
    if (MOMENTS == MOMENTS_RULE_FP32) adamw_store((float *)out + i, x);
    else if (MOMENTS == MOMENTS_RULE_BF16) adamw_store((__nv_bfloat16 *)out + i, x);
    else adamw_store_stochastic((__nv_bfloat16 *)out + i, x, purpose, t, t.first + i, h);
}

template <MasterRule MASTER>
__device__ __forceinline__ void adamw_store_weight(float (&w)[ADAMW_VECTOR], const float (&up)[ADAMW_VECTOR],
                                                   const AdamWTensor &t, size_t i, const AdamWHyper &h) {
    if (MASTER == MASTER_RULE_KAHAN) {
        float c[ADAMW_VECTOR];
        adamw_load(c, t.kahan, i, false);
#pragma unroll
        for (int j = 0; j < ADAMW_VECTOR; j++) kahan_update_bf16(&w[j], &c[j], up[j]);
        adamw_store(t.kahan + i, c);
    } else {
#pragma unroll
        for (int j = 0; j < ADAMW_VECTOR; j++) w[j] = __fadd_rn(w[j], up[j]);
    }
    if (MASTER == MASTER_RULE_FP32) adamw_store((float *)t.weight + i, w);
    else if (MASTER == MASTER_RULE_STOCHASTIC)
        adamw_store_stochastic((__nv_bfloat16 *)t.weight + i, w, RAND_ROUND_WEIGHT, t, t.first + i, h);
    else adamw_store((__nv_bfloat16 *)t.weight + i, w);
    if (t.working) adamw_store(t.working + i, w);
}

template <MasterRule MASTER, MomentsRule MOMENTS>
__global__ void __launch_bounds__(ADAMW_THREADS, 4)
    adamw_kernel(const AdamWTable table, const AdamWHyper h) {
    int index = 0;
    while (blockIdx.x >= table.first_block[index + 1]) index++;
    const AdamWTensor &t = table.tensors[index];
    const size_t i = (blockIdx.x - table.first_block[index]) * ADAMW_BLOCK_ELEMS + threadIdx.x * ADAMW_VECTOR;
    if (i >= t.n) return;
    float grad[ADAMW_VECTOR], m[ADAMW_VECTOR], v[ADAMW_VECTOR], w[ADAMW_VECTOR], up[ADAMW_VECTOR];
    load_floats(grad, t.grad + i);
    adamw_load(m, t.m, i, MOMENTS == MOMENTS_RULE_FP32);
    adamw_load(v, t.v, i, MOMENTS == MOMENTS_RULE_FP32);
    adamw_load(w, t.weight, i, MASTER == MASTER_RULE_FP32);
#pragma unroll
    for (int j = 0; j < ADAMW_VECTOR; j++) {
        // The intrinsics keep the compiler from fusing what adamw.h rounds in between.
        float g = __fmul_rn(grad[j], h.grad_scale);
        m[j] = fmaf(h.beta1, m[j], __fmul_rn(h.one_minus_beta1, g));
        v[j] = fmaf(h.beta2, v[j], __fmul_rn(h.one_minus_beta2, __fmul_rn(g, g)));
        float root = __fadd_rn(__fsqrt_rn(__fmul_rn(v[j], h.bc2)), h.eps);
        float step = __fadd_rn(__fdiv_rn(__fmul_rn(m[j], h.bc1), root), __fmul_rn(t.weight_decay, w[j]));
        up[j] = __fmul_rn(-h.lr, step);
    }
    adamw_store_weight<MASTER>(w, up, t, i, h);
    adamw_store_moment<MOMENTS>(t.m, m, RAND_ROUND_M, t, i, h);
    adamw_store_moment<MOMENTS>(t.v, v, RAND_ROUND_V, t, i, h);
}

// adamw_update_tensors: see adamw_update_tensor in adamw.h; `count` tensors, at most ADAMW_MAX_TENSORS, in one launch
//   tensors[].weight_decay stands for h->weight_decay      n % 4 == 0, 16-byte pointers
static inline void adamw_update_tensors(const AdamWTensor *tensors, int count, const AdamWHyper *h, MasterRule master,
                                        MomentsRule moments, cudaStream_t stream) {
    AdamWTable table = {};
    if (count > ADAMW_MAX_TENSORS) die("adamw: %d tensors, the table holds %d", count, ADAMW_MAX_TENSORS);
    for (int i = 0; i < count; i++) {
        if (tensors[i].n % ADAMW_VECTOR != 0 || tensors[i].first % ADAMW_VECTOR != 0)
            die("adamw: tensor %u has %zu elements from %zu on\nwhy: the kernel takes 4 at a time", tensors[i].stream,
                tensors[i].n, tensors[i].first);
        if (tensors[i].n == 0) continue;
        table.tensors[table.count] = tensors[i];
        table.first_block[table.count + 1] =
            table.first_block[table.count] + (unsigned)ceil_div(tensors[i].n, ADAMW_BLOCK_ELEMS);
        table.count++;
    }
    if (table.count == 0) return;
    const size_t moment_bytes = moments == MOMENTS_RULE_FP32 ? 4 : 2, weight_bytes = master == MASTER_RULE_FP32 ? 4 : 2;
    double bytes = 0;
    for (int i = 0; i < table.count; i++) {
        const AdamWTensor *t = &table.tensors[i];
        bytes += (double)t->n * (double)(4 + 4 * moment_bytes + 2 * weight_bytes + (t->working ? sizeof(weight_t) : 0) +
                                         (master == MASTER_RULE_KAHAN ? 4 : 0));
    }
    DeviceOp op("adamw", bytes, 0, stream);
    void (*kernel)(const AdamWTable, const AdamWHyper) = NULL;
#define CASE(MASTER, MOMENTS)                                                \
    if (master == MASTER_RULE_##MASTER && moments == MOMENTS_RULE_##MOMENTS) \
    kernel = adamw_kernel<MASTER_RULE_##MASTER, MOMENTS_RULE_##MOMENTS>
    CASE(FP32, FP32);
    CASE(FP32, BF16);
    CASE(FP32, BF16SR);
    CASE(KAHAN, FP32);
    CASE(KAHAN, BF16);
    CASE(KAHAN, BF16SR);
    CASE(STOCHASTIC, FP32);
    CASE(STOCHASTIC, BF16);
    CASE(STOCHASTIC, BF16SR);
    CASE(NEAREST, FP32);
    CASE(NEAREST, BF16);
    CASE(NEAREST, BF16SR);
#undef CASE
    launch(kernel, grid_1d(table.first_block[table.count]), ADAMW_THREADS, 0, stream, table, *h);
}

// adamw_update: see adamw.h; one tensor in fp32
static inline void adamw_update(float *weight, float *m, float *v, const float *grad, size_t n, const AdamWHyper *h,
                                cudaStream_t stream) {
    AdamWTensor t = {weight, NULL, NULL, m, v, grad, n, 0, h->weight_decay, 0};
    adamw_update_tensors(&t, 1, h, MASTER_RULE_FP32, MOMENTS_RULE_FP32, stream);
}

// ----------------------------------------------------------------------------------------------------------------

template <typename W>
__global__ void __launch_bounds__(ADAMW_THREADS) adamw_refresh_kernel(W *working, const float *weight, size_t n) {
    const size_t i = ((size_t)blockIdx.x * ADAMW_THREADS + threadIdx.x) * ADAMW_VECTOR;
    if (i >= n) return;
    float w[ADAMW_VECTOR];
    load_floats(w, weight + i);
    adamw_store(working + i, w);
}

// adamw_refresh: see adamw.h, for fp32 masters; n % 4 == 0
template <typename W>
static inline void adamw_refresh(W *working, const float *weight, size_t n, cudaStream_t stream) {
    DeviceOp op("adamw_refresh", (double)n * (4 + sizeof(W)), 0, stream);
    launch(adamw_refresh_kernel<W>, grid_1d(ceil_div(n, ADAMW_BLOCK_ELEMS)), ADAMW_THREADS, 0, stream, working, weight,
           n);
}

#endif
