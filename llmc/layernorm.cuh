// layernorm.cuh: the CUDA twin of layernorm.h.
//
// Forward: one warp a row (8 warps for rows over 2,048 columns), the row in registers: read once, statistics in two
// passes over registers. Backward: a block owns whole rows, a thread 8 columns, whose sums stay in its registers. Both
// load everything of a row (of a group of rows) before they use any of it.
#ifndef LLMC_LAYERNORM_CUH
#define LLMC_LAYERNORM_CUH

#include "column_sums.cuh"

#define LAYERNORM_WARPS 8  // of a block
#define LAYERNORM_EPSILON 1e-5f

// The sum over the warps that share a row, in each of their threads. `shared`: LAYERNORM_WARPS floats of its own.
template <int ROW_WARPS>
__device__ __forceinline__ float layernorm_row_sum(float x, float *shared) {
    if constexpr (ROW_WARPS == 1) return warp_sum(x);
    else return block_sum<ROW_WARPS>(x, shared);
}

__device__ __forceinline__ float layernorm_value(float x, float mean, float rstd, float weight, float bias) {
    return fmaf((x - mean) * rstd, weight, bias);
}

// VECTORS: 8-column vectors a thread holds; ROW_WARPS: 1 or LAYERNORM_WARPS. inp2 and residual are NULL where the
// residual is not FUSED, inp2_bias where inp2 has it already, `out` where nothing reads it, amax where that is not wanted.
// Threads without columns take part with zeros.
template <typename T, typename W, int VECTORS, int ROW_WARPS, bool FUSED>
__global__ void __launch_bounds__(WARP_SIZE *LAYERNORM_WARPS, VECTORS <= (sizeof(T) == 2 ? 3 : 2)   ? 4
                                                              : VECTORS <= (sizeof(T) == 2 ? 4 : 3) ? 3
                                                              : VECTORS <= (sizeof(T) == 2 ? 7 : 6) ? 2
                                                                                                    : 1)
    layernorm_forward_kernel(T *residual, T *out, float *mean, float *rstd, const T *inp1, const T *inp2,
                             const W *inp2_bias, const W *weight, const W *bias, uint32_t *amax, size_t N, int C) {
    __shared__ float shared[2][LAYERNORM_WARPS];
    const int rows = LAYERNORM_WARPS / ROW_WARPS;
    const int first = (threadIdx.x % (WARP_SIZE * ROW_WARPS)) * PACK;  // this thread's first column
    const int step = WARP_SIZE * ROW_WARPS * PACK;
    const size_t row = (size_t)blockIdx.x * rows + threadIdx.x / (WARP_SIZE * ROW_WARPS);
    if (row >= N) return;  // whole warps, or the whole block
    Packed<T, PACK> a[VECTORS], b[VECTORS];
#pragma unroll
    for (int i = 0; i < VECTORS; i++)
        if (first + i * step < C) {
            a[i] = load_packed(inp1 + row * C + first + i * step);
            if (FUSED) b[i] = load_packed(inp2 + row * C + first + i * step);
        }
    // The row stays as stored: half the registers of floats, and converting again costs an instruction an element.
    float sum = 0;
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        if (first + i * step >= C) continue;
        if (FUSED && inp2_bias) {
            const Packed<W, PACK> add = load_packed(inp2_bias + first + i * step);
#pragma unroll
            for (int j = 0; j < PACK; j++) b[i][j] = from_float<T>(to_float(b[i][j]) + to_float(add[j]));
        }
#pragma unroll
        for (int j = 0; j < PACK; j++) {
            if (FUSED) a[i][j] = from_float<T>(to_float(a[i][j]) + to_float(b[i][j]));
            sum += to_float(a[i][j]);
        }
        if (FUSED) store_packed(residual + row * C + first + i * step, a[i]);
    }
    const float m = layernorm_row_sum<ROW_WARPS>(sum, shared[0]) / (float)C;
    float squares = 0;
#pragma unroll
    for (int i = 0; i < VECTORS; i++)
        if (first + i * step < C)
#pragma unroll
            for (int j = 0; j < PACK; j++) {
                float centred = to_float(a[i][j]) - m;
                squares = fmaf(centred, centred, squares);
            }
    const float s = 1.0f / sqrtf(layernorm_row_sum<ROW_WARPS>(squares, shared[1]) / (float)C + LAYERNORM_EPSILON);
    if (first == 0) {
        mean[row] = m;
        rstd[row] = s;
    }
    if (!out && !amax) return;
    uint32_t largest = 0;
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        if (first + i * step >= C) continue;
        float w[PACK], shift[PACK];
        Packed<T, PACK> y;
        load_floats(w, weight + first + i * step);
        load_floats(shift, bias + first + i * step);
#pragma unroll
        for (int j = 0; j < PACK; j++) y[j] = from_float<T>(layernorm_value(to_float(a[i][j]), m, s, w[j], shift[j]));
        if (out) store_packed(out + row * C + first + i * step, y);
        if (!amax) continue;
#pragma unroll
        for (int j = 0; j < PACK; j++) largest = amax_of(largest, amax_bits(to_float(y[j])));
    }
    if (amax) amax_record(amax, largest);
}

// The output of a layernorm whose statistics are known, as column_sums.cuh describes tensors.
template <typename T, typename W>
struct LayernormColumns {
    typedef T Value;
    struct Raw {
        Packed<T, PACK> x;
        float mean, rstd;
    };
    struct Columns {
        Packed<W, PACK> weight, bias;
    };
    static constexpr double BYTES = sizeof(T);
    static const char *cast_name() { return "quantize: layernorm and cast"; }
    const T *inp;
    float *mean, *rstd;
    const W *weight, *bias;
    size_t cols;
    __device__ __forceinline__ Columns columns(size_t col) const {
        return {load_packed(weight + col), load_packed(bias + col)};
    }
    __device__ __forceinline__ Raw load(size_t row, size_t col) const {
        return {load_packed(inp + row * cols + col), mean[row], rstd[row]};
    }
    __device__ __forceinline__ Packed<T, PACK> finish(const Raw &raw, const Columns &c) const {
        Packed<T, PACK> y;
#pragma unroll
        for (int j = 0; j < PACK; j++)
            y[j] = from_float<T>(layernorm_value(to_float(raw.x[j]), raw.mean, raw.rstd, to_float(c.weight[j]),
                                                 to_float(c.bias[j])));
        return y;
    }
};

#define LAYERNORM_MAX_C ((size_t)8192)

static inline void layernorm_check_columns(size_t C) {
    if (C % PACK != 0 || C == 0 || C > LAYERNORM_MAX_C)
        die("layernorm: C = %zu\nwhy: the GPU's kernels need a multiple of %d up to %zu\ntry: another --channels", C,
            PACK, LAYERNORM_MAX_C);
}

template <bool FUSED, typename T, typename W>
static inline void layernorm_forward_dispatch(T *residual, T *out, float *mean, float *rstd, const T *inp1,
                                              const T *inp2, const W *inp2_bias, const W *weight, const W *bias,
                                              uint32_t *amax, size_t N, size_t C, cudaStream_t stream) {
    layernorm_check_columns(C);
    void (*kernel)(T *, T *, float *, float *, const T *, const T *, const W *, const W *, const W *, uint32_t *,
                   size_t, int) = NULL;
    size_t rows = LAYERNORM_WARPS;
    if (C <= 2048) {
        switch (ceil_div(C, WARP_SIZE * PACK)) {
#define CASE(vectors) \
    case vectors: kernel = layernorm_forward_kernel<T, W, vectors, 1, FUSED>; break
            CASE(1);
            CASE(2);
            CASE(3);
            CASE(4);
            CASE(5);
            CASE(6);
            CASE(7);
            CASE(8);
#undef CASE
        }
    } else {
        rows = 1;
        if (C <= 4096) kernel = layernorm_forward_kernel<T, W, 2, LAYERNORM_WARPS, FUSED>;
        else kernel = layernorm_forward_kernel<T, W, 4, LAYERNORM_WARPS, FUSED>;
    }
    launch(kernel, grid_1d(ceil_div(N, rows)), WARP_SIZE * LAYERNORM_WARPS, 0, stream, residual, out, mean, rstd, inp1,
           inp2, inp2_bias, weight, bias, amax, N, (int)C);
}

// layernorm_forward: see layernorm.h; C % 8 == 0, C <= 8192; moves 2 N C elements
//   out NULL: the statistics alone; a cast makes the output itself, with LayernormColumns
//   amax, unless NULL: = max(what is there, pattern of the largest magnitude of the output)
template <typename T, typename W>
static inline void layernorm_forward(T *out, float *mean, float *rstd, const T *inp, const W *weight, const W *bias,
                                     uint32_t *amax, size_t N, size_t C, cudaStream_t stream) {
    DeviceOp op("layernorm_forward", (double)(N * C) * (out ? 2 : 1) * sizeof(T), 0, stream);
    layernorm_forward_dispatch<false>((T *)NULL, out, mean, rstd, inp, (const T *)NULL, (const W *)NULL, weight, bias,
                                      amax, N, C, stream);
}

// fused_residual_layernorm_forward: see layernorm.h; residual may be inp1 or inp2; moves 4 N C elements
//   inp2_bias (C): of the linear layer that inp2 comes from, where that has not added it: inp2 + inp2_bias is rounded
//   before it is added to the residual; NULL: none
//   out, amax: as above
template <typename T, typename W>
static inline void fused_residual_layernorm_forward(T *residual, T *out, float *mean, float *rstd, const T *inp1,
                                                    const T *inp2, const W *inp2_bias, const W *weight, const W *bias,
                                                    uint32_t *amax, size_t N, size_t C, cudaStream_t stream) {
    DeviceOp op("fused_residual_layernorm_forward", (double)(N * C) * (out ? 4 : 3) * sizeof(T), 0, stream);
    layernorm_forward_dispatch<true>(residual, out, mean, rstd, inp1, inp2, inp2_bias, weight, bias, amax, N, C, stream);
}

// ----------------------------------------------------------------------------------------------------------------
// Backward. Blocks of rows depend on N alone, so the sums have the same bits on every card. 512 blocks fill the 528 (C
// = 768) and twice the 264 places (C = 1600) of 132 multiprocessors, and their partial sums are 2 % of the bytes.

#define LAYERNORM_BACKWARD_BLOCKS ((size_t)512)

static inline size_t layernorm_backward_block_rows(size_t N) {
    return round_up(max_size(ceil_div(N, LAYERNORM_BACKWARD_BLOCKS), 1), 4);
}
static inline size_t layernorm_backward_scratch_elems(size_t N, size_t C) {
    return ceil_div(N, layernorm_backward_block_rows(N)) * 3 * C;
}

// partials (blocks, 3, C): sums of dout x^, of dout, and of the new dinp. THREADS >= C / 8.
template <typename G, typename T, typename W, int THREADS, int BLOCKS_PER_SM>
__global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    layernorm_backward_kernel(G *dinp, float *partials, uint32_t *amax, const G *dout, const T *inp, const W *weight, const float *mean,
                              const float *rstd, size_t N, int C, size_t block_rows) {
    // Rows whose loads are under way together: as many as fit the registers, 64 KB and more on a multiprocessor.
    constexpr int ROWS = THREADS > 512 ? 1 : THREADS > 256 || sizeof(T) == 4 ? 2 : THREADS > 160 ? 3 : 4;
    constexpr int WARPS = THREADS / WARP_SIZE;
    __shared__ float shared[2][WARPS][2 * ROWS];  // by parity of the group: one barrier a group is then enough
    const int col = threadIdx.x * PACK, lane = threadIdx.x % WARP_SIZE, warp = threadIdx.x / WARP_SIZE;
    const bool active = col < C;
    const size_t begin = blockIdx.x * block_rows, end = begin + block_rows < N ? begin + block_rows : N;
    float sum_dw[PACK] = {}, sum_db[PACK] = {}, sum_dx[PACK] = {};
    uint32_t largest = 0;
    Packed<W, PACK> w;
    if (active) w = load_packed(weight + col);
    int parity = 0;
    for (size_t row = begin; row < end; row += ROWS, parity ^= 1) {
        Packed<G, PACK> dy[ROWS], dx[ROWS];
        Packed<T, PACK> x[ROWS];
        float row_mean[ROWS], row_rstd[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (row + r >= end) continue;
            if (active) {
                dy[r] = load_packed(dout + (row + r) * C + col);
                x[r] = load_packed(inp + (row + r) * C + col);
                dx[r] = load_packed(dinp + (row + r) * C + col);
            }
            row_mean[r] = mean[row + r];
            row_rstd[r] = rstd[row + r];
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float d_sum = 0, dx_sum = 0;
            if (active && row + r < end)
#pragma unroll
                for (int j = 0; j < PACK; j++) {
                    float d = to_float(dy[r][j]) * to_float(w[j]);
                    d_sum += d;
                    dx_sum = fmaf(d, (to_float(x[r][j]) - row_mean[r]) * row_rstd[r], dx_sum);
                }
            d_sum = warp_sum(d_sum);
            dx_sum = warp_sum(dx_sum);
            if (lane == 0) {
                shared[parity][warp][2 * r] = d_sum;
                shared[parity][warp][2 * r + 1] = dx_sum;
            }
        }
        __syncthreads();
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (!active || row + r >= end) continue;
            float avg_d = 0, avg_dx = 0;
#pragma unroll 4  // all at once, the sums would take the registers of the loads
            for (int i = 0; i < WARPS; i++) {
                avg_d += shared[parity][i][2 * r];
                avg_dx += shared[parity][i][2 * r + 1];
            }
            avg_d /= (float)C;
            avg_dx /= (float)C;
#pragma unroll
            for (int j = 0; j < PACK; j++) {
                float x_hat = (to_float(x[r][j]) - row_mean[r]) * row_rstd[r], d_out = to_float(dy[r][j]);
                float centred = fmaf(-x_hat, avg_dx, d_out * to_float(w[j]) - avg_d);
                dx[r][j] = from_float<G>(fmaf(row_rstd[r], centred, to_float(dx[r][j])));
                sum_dw[j] = fmaf(d_out, x_hat, sum_dw[j]);
                sum_db[j] += d_out;
                sum_dx[j] += to_float(dx[r][j]);
                if (amax) largest = amax_of(largest, amax_bits(to_float(dx[r][j])));
            }
            store_packed(dinp + (row + r) * C + col, dx[r]);
        }
    }
    if (amax) amax_record(amax, largest);
    if (!active) return;
    float *out = partials + (size_t)blockIdx.x * 3 * C + col;
    store_floats(out, sum_dw);
    store_floats(out + C, sum_db);
    store_floats(out + 2 * C, sum_dx);
}

// layernorm_backward_sums: layernorm_backward, and from the same visit
//   dinp_sums (C) f32 += the column sums of dinp as stored, or NULL: the residual stream's gradient is also that of the
//   projection that was added to it, so this is that projection's bias gradient
//   amax, unless NULL: = max(what is there, pattern of the largest magnitude of dinp as stored)
//   C % 8 == 0, C <= 8192      moves 4 N C elements
template <typename G, typename T, typename W>
static inline void layernorm_backward_sums(G *dinp, float *dweight, float *dbias, float *dinp_sums, uint32_t *amax,
                                           const G *dout, const T *inp, const W *weight, const float *mean,
                                           const float *rstd, size_t N, size_t C, float *scratch,
                                           cudaStream_t stream) {
    layernorm_check_columns(C);
    void (*kernel)(G *, float *, uint32_t *, const G *, const T *, const W *, const float *, const float *, size_t, int, size_t) =
        NULL;
    unsigned threads = (unsigned)round_up(C / PACK, WARP_SIZE);
    // Blocks an SM: what registers allow (about 170 a thread without spills), so 4 x 96 threads for d12.
#define CASE(size, per_sm)                                         \
    if (!kernel && threads <= size) {                              \
        kernel = layernorm_backward_kernel<G, T, W, size, per_sm>; \
        threads = size;                                            \
    }
    CASE(32, 8)
    CASE(96, 4)
    CASE(160, 2)
    CASE(224, 2)
    CASE(256, 1)
    CASE(512, 1)
    CASE(640, 1)
    CASE(1024, 1)
#undef CASE
    size_t block_rows = layernorm_backward_block_rows(N), blocks = ceil_div(N, block_rows);
    DeviceOp op("layernorm_backward", (double)(N * C) * (3 * sizeof(G) + sizeof(T)), 0, stream);
    launch(kernel, grid_1d(blocks), threads, 0, stream, dinp, scratch, amax, dout, inp, weight, mean, rstd, N,
           (int)C, block_rows);
    sum_partials(dweight, scratch, blocks, 3 * C, C, 1, stream);
    sum_partials(dbias, scratch + C, blocks, 3 * C, C, 1, stream);
    if (dinp_sums) sum_partials(dinp_sums, scratch + 2 * C, blocks, 3 * C, C, 1, stream);
}

// layernorm_backward: see layernorm.h; scratch is this header's layernorm_backward_scratch_elems()
template <typename G, typename T, typename W>
static inline void layernorm_backward(G *dinp, float *dweight, float *dbias, const G *dout, const T *inp,
                                      const W *weight, const float *mean, const float *rstd, size_t N, size_t C,
                                      float *scratch, cudaStream_t stream) {
    layernorm_backward_sums(dinp, dweight, dbias, (float *)NULL, (uint32_t *)NULL, dout, inp, weight, mean, rstd, N, C,
                            scratch, stream);
}

#endif
