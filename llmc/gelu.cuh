// gelu.cuh: the CUDA twin of gelu.h: the same formula, with the approximate exp2 and reciprocal (2 and 1 ulp): 11
// instructions an element forward, 19 backward, against a budget of 28 and 41 while memory-bound on an H200.
#ifndef LLMC_GELU_CUH
#define LLMC_GELU_CUH

#include "column_sums.cuh"
#include "mma.cuh"

// gelu.h's constants times log2(e): e^(-2u) = 2^(x (LINEAR + CUBIC x^2)).
#define GELU_LINEAR_LOG2 (-2.302208198144325f)
#define GELU_CUBIC_LOG2 (-0.1029432346069625f)

__device__ __forceinline__ float gelu_value(float x) {
    return x * reciprocal_approx(1.0f + exp2_approx(x * fmaf(GELU_CUBIC_LOG2, x * x, GELU_LINEAR_LOG2)));
}

// See gelu.h; x is held within +-10 for the same reason. -2u' is in natural units.
__device__ __forceinline__ float gelu_derivative(float x) {
    x = fabsf(x) > 10.0f ? copysignf(10.0f, x) : x;
    float e = exp2_approx(x * fmaf(GELU_CUBIC_LOG2, x * x, GELU_LINEAR_LOG2));
    float s = reciprocal_approx(1.0f + e);
    float minus_2du = fmaf(3.0f * -0.07135481282553705f, x * x, -1.5957691216057308f);
    return fmaf(-x * minus_2du, e * s * s, s);
}

#define GELU_THREADS 256
#define GELU_VECTORS 2  // 16-byte loads a thread has under way, per input

template <typename T>
__global__ void __launch_bounds__(GELU_THREADS, 6) gelu_forward_kernel(T *out, const T *inp, size_t vectors) {
    const size_t first = (size_t)blockIdx.x * GELU_THREADS * GELU_VECTORS + threadIdx.x;
    Packed<T, PACK> x[GELU_VECTORS];
#pragma unroll
    for (int i = 0; i < GELU_VECTORS; i++)
        if (first + i * GELU_THREADS < vectors) x[i] = load_packed(inp + (first + i * GELU_THREADS) * PACK);
#pragma unroll
    for (int i = 0; i < GELU_VECTORS; i++) {
        if (first + i * GELU_THREADS >= vectors) continue;
        float y[PACK];
#pragma unroll
        for (int j = 0; j < PACK; j++) y[j] = gelu_value(to_float(x[i][j]));
        store_floats(out + (first + i * GELU_THREADS) * PACK, y);
    }
}

// gelu_forward: see gelu.h; n % 8 == 0; moves 2 n elements
template <typename T>
static inline void gelu_forward(T *out, const T *inp, size_t n, cudaStream_t stream) {
    DeviceOp op("gelu_forward", (double)n * 2 * sizeof(T), 0, stream);
    launch(gelu_forward_kernel<T>, grid_1d(ceil_div(n / PACK, GELU_THREADS * GELU_VECTORS)), GELU_THREADS, 0, stream,
           out, inp, n / PACK);
}

template <typename G, typename T>
__global__ void __launch_bounds__(GELU_THREADS, 5)
    gelu_backward_kernel(G *dinp, const G *dout, const T *inp, size_t vectors) {
    const size_t first = (size_t)blockIdx.x * GELU_THREADS * GELU_VECTORS + threadIdx.x;
    Packed<T, PACK> x[GELU_VECTORS];
    Packed<G, PACK> dy[GELU_VECTORS];
#pragma unroll
    for (int i = 0; i < GELU_VECTORS; i++)
        if (first + i * GELU_THREADS < vectors) {
            x[i] = load_packed(inp + (first + i * GELU_THREADS) * PACK);
            dy[i] = load_packed(dout + (first + i * GELU_THREADS) * PACK);
        }
#pragma unroll
    for (int i = 0; i < GELU_VECTORS; i++) {
        if (first + i * GELU_THREADS >= vectors) continue;
        float dx[PACK];
#pragma unroll
        for (int j = 0; j < PACK; j++) dx[j] = to_float(dy[i][j]) * gelu_derivative(to_float(x[i][j]));
        store_floats(dinp + (first + i * GELU_THREADS) * PACK, dx);
    }
}

// gelu_backward: see gelu.h; n % 8 == 0; dinp may be dout; moves 3 n elements
template <typename G, typename T>
static inline void gelu_backward(G *dinp, const G *dout, const T *inp, size_t n, cudaStream_t stream) {
    DeviceOp op("gelu_backward", (double)n * (2 * sizeof(G) + sizeof(T)), 0, stream);
    launch(gelu_backward_kernel<G, T>, grid_1d(ceil_div(n / PACK, GELU_THREADS * GELU_VECTORS)), GELU_THREADS, 0,
           stream, dinp, dout, inp, n / PACK);
}

// For column_sums: makes and stores dinp, and hands on its values as stored.
template <typename G, typename T>
struct GeluBackwardColumns {
    G *dinp;
    const G *dout;
    const T *inp;
    struct Raw {
        Packed<G, PACK> dy;
        Packed<T, PACK> x;
    };
    __device__ __forceinline__ Raw load(size_t index) const {
        return {load_packed(dout + index), load_packed(inp + index)};
    }
    __device__ __forceinline__ void finish(size_t index, const Raw &raw, float (&values)[PACK]) const {
        Packed<G, PACK> dx;
#pragma unroll
        for (int j = 0; j < PACK; j++) {
            dx[j] = from_float<G>(to_float(raw.dy[j]) * gelu_derivative(to_float(raw.x[j])));
            values[j] = to_float(dx[j]);
        }
        store_packed(dinp + index, dx);
    }
};

// gelu_backward_bias: gelu_backward on (N, OC) and, from the same visit, the bias gradient of the linear layer before
// it:
//   dbias (OC) f32 = or += the column sums of dinp as stored      OC % 8 == 0      deterministic
//   scratch: column_sums_scratch_elems(N, OC) floats      saves matmul_backward_bias's read of N OC elements
template <typename G, typename T>
static inline void gelu_backward_bias(G *dinp, float *dbias, const G *dout, const T *inp, size_t N, size_t OC,
                                      int accumulate, float *scratch, cudaStream_t stream) {
    GeluBackwardColumns<G, T> columns = {dinp, dout, inp};
    DeviceOp op("gelu_backward_bias", (double)(N * OC) * (2 * sizeof(G) + sizeof(T)), 0, stream);
    column_sums(dbias, columns, N, OC, accumulate, scratch, stream);
}

#endif
