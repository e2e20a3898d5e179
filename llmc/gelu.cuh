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

// What a linear layer's output still lacks: its bias (NULL: nothing), added to what the product was rounded to and rounded
// again, as linear.h has it.
template <typename T, typename W>
struct GeluBias {
    const W *bias;
    typedef Packed<W, PACK> Columns;  // of 8 columns
    __device__ __forceinline__ Columns columns(size_t col) const {
        Columns columns = {};
        if (bias) columns = load_packed(bias + col);
        return columns;
    }
    __device__ __forceinline__ float add(T x, W b) const {
        return bias ? to_float(from_float<T>(to_float(x) + to_float(b))) : to_float(x);
    }
};

// GELU's output, as column_sums.cuh describes tensors.
template <typename T, typename W>
struct GeluColumns {
    typedef T Value;
    typedef Packed<T, PACK> Raw;
    typedef typename GeluBias<T, W>::Columns Columns;
    static constexpr double BYTES = sizeof(T);
    static const char *cast_name() { return "gelu_forward and cast"; }
    const T *inp;
    GeluBias<T, W> bias;
    size_t cols;
    __device__ __forceinline__ Columns columns(size_t col) const { return bias.columns(col); }
    __device__ __forceinline__ Raw load(size_t row, size_t col) const { return load_packed(inp + row * cols + col); }
    __device__ __forceinline__ Packed<T, PACK> finish(const Raw &raw, const Columns &columns) const {
        Packed<T, PACK> out;
#pragma unroll
        for (int j = 0; j < PACK; j++) out[j] = from_float<T>(gelu_value(bias.add(raw[j], columns[j])));
        return out;
    }
};

template <typename T, typename W>
__global__ void __launch_bounds__(GELU_THREADS, 5)
    gelu_forward_kernel(T *out, GeluColumns<T, W> gelu, size_t vectors, unsigned across) {
    const size_t first = (size_t)blockIdx.x * GELU_THREADS * GELU_VECTORS + threadIdx.x;
    Packed<T, PACK> x[GELU_VECTORS];
    typename GeluColumns<T, W>::Columns columns[GELU_VECTORS];
#pragma unroll
    for (int i = 0; i < GELU_VECTORS; i++) {
        const size_t vector = first + i * GELU_THREADS;
        if (vector >= vectors) continue;
        x[i] = load_packed(gelu.inp + vector * PACK);
        columns[i] = gelu.columns(gelu.bias.bias ? vector % across * PACK : 0);
    }
#pragma unroll
    for (int i = 0; i < GELU_VECTORS; i++) {
        const size_t vector = first + i * GELU_THREADS;
        if (vector < vectors) store_packed(out + vector * PACK, gelu.finish(x[i], columns[i]));
    }
}

// gelu_forward: see gelu.h; of inp (N, OC) with bias (OC) added and rounded first, where it is not NULL; OC % 8 == 0;
// moves 2 N OC elements
template <typename T, typename W>
static inline void gelu_forward(T *out, const T *inp, const W *bias, size_t N, size_t OC, cudaStream_t stream) {
    const size_t vectors = N * OC / PACK;
    GeluColumns<T, W> gelu = {inp, {bias}, OC};
    DeviceOp op("gelu_forward", (double)(N * OC) * 2 * sizeof(T), 0, stream);
    launch((gelu_forward_kernel<T, W>), grid_1d(ceil_div(vectors, GELU_THREADS * GELU_VECTORS)), GELU_THREADS, 0, stream,
           out, gelu, vectors, (unsigned)(OC / PACK));
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

// The gradient of GELU's input, as column_sums.cuh describes tensors.
template <typename G, typename T, typename W>
struct GeluBackwardColumns {
    typedef G Value;
    struct Raw {
        Packed<G, PACK> dy;
        Packed<T, PACK> x;
    };
    typedef typename GeluBias<T, W>::Columns Columns;
    static constexpr double BYTES = sizeof(G) + sizeof(T);
    static const char *cast_name() { return "gelu_backward_bias and cast"; }
    const G *dout;
    const T *inp;
    GeluBias<T, W> bias;
    size_t cols;
    __device__ __forceinline__ Columns columns(size_t col) const { return bias.columns(col); }
    __device__ __forceinline__ Raw load(size_t row, size_t col) const {
        return {load_packed(dout + row * cols + col), load_packed(inp + row * cols + col)};
    }
    __device__ __forceinline__ Packed<G, PACK> finish(const Raw &raw, const Columns &columns) const {
        Packed<G, PACK> dx;
#pragma unroll
        for (int j = 0; j < PACK; j++)
            dx[j] = from_float<G>(to_float(raw.dy[j]) * gelu_derivative(bias.add(raw.x[j], columns[j])));
        return dx;
    }
};

// gelu_backward_bias: gelu_backward on (N, OC) and, from the same visit, the bias gradient of the linear layer before
// it, whose bias is added to inp first, where it is not NULL:
//   dbias (OC) f32 = or += the column sums of dinp as stored      OC % 8 == 0      deterministic
//   scratch: column_sums_scratch_elems(N, OC) floats      saves matmul_backward_bias's read of N OC elements
template <typename G, typename T, typename W>
static inline void gelu_backward_bias(G *dinp, float *dbias, const G *dout, const T *inp, const W *bias, size_t N,
                                      size_t OC, int accumulate, float *scratch, cudaStream_t stream) {
    GeluBackwardColumns<G, T, W> columns = {dout, inp, {bias}, OC};
    DeviceOp op("gelu_backward_bias", (double)(N * OC) * (2 * sizeof(G) + sizeof(T)), 0, stream);
    column_sums(dbias, columns, dinp, N, OC, accumulate, scratch, stream);
}

#endif
