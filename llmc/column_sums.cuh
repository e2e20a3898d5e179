// column_sums.cuh: sums over the rows of a matrix (bias gradients, layernorm's weights), in a fixed order, without
// atomics. Two kernels: each block of the first sums some rows and leaves a row of partial sums, the second adds those.
// How rows are split depends on their number alone, so the bits are the same on every card.
#ifndef LLMC_COLUMN_SUMS_CUH
#define LLMC_COLUMN_SUMS_CUH

#include "cuda_utils.cuh"

#define SUM_PARTIALS_GROUPS 32

// A warp's lanes are 32 columns; warp g takes rows g, g + 32, .., then the warps' sums are added in order.
static __global__ void __launch_bounds__(WARP_SIZE *SUM_PARTIALS_GROUPS)
    sum_partials_kernel(float *out, const float *partials, size_t blocks, size_t stride, size_t cols, int accumulate) {
    __shared__ float sums[SUM_PARTIALS_GROUPS][WARP_SIZE];
    const int lane = threadIdx.x % WARP_SIZE, group = threadIdx.x / WARP_SIZE;
    const size_t col = (size_t)blockIdx.x * WARP_SIZE + lane;
    float sum = 0;
    if (col < cols)
        for (size_t block = group; block < blocks; block += SUM_PARTIALS_GROUPS) sum += partials[block * stride + col];
    sums[group][lane] = sum;
    __syncthreads();
    if (group != 0 || col >= cols) return;
    for (int i = 1; i < SUM_PARTIALS_GROUPS; i++) sum += sums[i][lane];
    out[col] = accumulate ? out[col] + sum : sum;
}

// out (cols) f32 = or += the sums over partials (blocks, stride), of whose rows the first `cols` elements count.
static inline void sum_partials(float *out, const float *partials, size_t blocks, size_t stride, size_t cols,
                                int accumulate, cudaStream_t stream) {
    launch(sum_partials_kernel, grid_1d(ceil_div(cols, WARP_SIZE)), WARP_SIZE * SUM_PARTIALS_GROUPS, 0, stream, out,
           partials, blocks, stride, cols, accumulate);
}

#define COLUMN_SUMS_WARPS 8
#define COLUMN_SUMS_WIDTH (WARP_SIZE * PACK)  // columns a block works on
#define COLUMN_SUMS_ROWS 128                  // rows of a block: those of a tile of quantize.cuh, which sums alike
#define COLUMN_SUMS_UNROLL 4                  // rows whose loads are under way together

static inline size_t column_sums_scratch_elems(size_t N, size_t cols) {
    return ceil_div(N, COLUMN_SUMS_ROWS) * cols;
}

// A tensor as kernels here take it, eight columns of a row at a time, in memory or made of what is: such a struct has
//   columns(col)           what those columns have in common, loaded once
//   load(row, col)         what is read for them in a row: several of these are under way at once
//   finish(raw, columns)   their values, as they are stored
//   Value, BYTES           the type they are stored in, and the bytes that load() reads for each
//   cast_name()            what to call the pass in which quantize.cuh makes and casts it
template <typename T>
struct StoredColumns {
    typedef T Value;
    typedef Packed<T, PACK> Raw;
    struct Columns {};
    static constexpr double BYTES = sizeof(T);
    static const char *cast_name() { return "quantize: cast"; }
    const T *data;
    size_t cols;
    __device__ __forceinline__ Columns columns(size_t) const { return {}; }
    __device__ __forceinline__ Raw load(size_t row, size_t col) const { return load_packed(data + row * cols + col); }
    __device__ __forceinline__ Packed<T, PACK> finish(const Raw &raw, const Columns &) const { return raw; }
};

// Partial sums of `f`, a tensor; stored: what it makes, or NULL. Warps take rows in turn.
template <typename F>
__global__ void __launch_bounds__(WARP_SIZE *COLUMN_SUMS_WARPS, 2)
    column_sums_kernel(float *partials, F f, typename F::Value *stored, size_t N, size_t cols,
                       unsigned col_blocks) {
    __shared__ float shared[COLUMN_SUMS_WARPS][COLUMN_SUMS_WIDTH];
    const int lane = threadIdx.x % WARP_SIZE, warp = threadIdx.x / WARP_SIZE;
    const size_t row_block = blockIdx.x / col_blocks;
    const size_t col = (size_t)(blockIdx.x % col_blocks) * COLUMN_SUMS_WIDTH + lane * PACK;
    const size_t begin = row_block * COLUMN_SUMS_ROWS;
    const size_t end = begin + COLUMN_SUMS_ROWS < N ? begin + COLUMN_SUMS_ROWS : N;
    float sums[PACK] = {};
    if (col < cols) {
        const typename F::Columns columns = f.columns(col);
        for (size_t first = begin + warp; first < end; first += COLUMN_SUMS_WARPS * COLUMN_SUMS_UNROLL) {
            typename F::Raw raw[COLUMN_SUMS_UNROLL];
#pragma unroll
            for (int i = 0; i < COLUMN_SUMS_UNROLL; i++)
                if (first + i * COLUMN_SUMS_WARPS < end) raw[i] = f.load(first + i * COLUMN_SUMS_WARPS, col);
#pragma unroll
            for (int i = 0; i < COLUMN_SUMS_UNROLL; i++) {
                const size_t row = first + i * COLUMN_SUMS_WARPS;
                if (row >= end) continue;
                const Packed<typename F::Value, PACK> values = f.finish(raw[i], columns);
                if (stored) store_packed(stored + row * cols + col, values);
#pragma unroll
                for (int j = 0; j < PACK; j++) sums[j] += to_float(values[j]);
            }
        }
    }
#pragma unroll
    for (int j = 0; j < PACK; j++) shared[warp][j * WARP_SIZE + lane] = sums[j];
    __syncthreads();
    for (int i = threadIdx.x; i < COLUMN_SUMS_WIDTH; i += WARP_SIZE * COLUMN_SUMS_WARPS) {
        const size_t out_col = (size_t)(blockIdx.x % col_blocks) * COLUMN_SUMS_WIDTH + i;
        float total = 0;
        for (int w = 0; w < COLUMN_SUMS_WARPS; w++) total += shared[w][i % PACK * WARP_SIZE + i / PACK];
        if (out_col < cols) partials[row_block * cols + out_col] = total;
    }
}

// out (cols) f32 = or += the sums over N rows of f, which is also stored, unless that is NULL; cols % 8 == 0. scratch:
// column_sums_scratch_elems(N, cols) floats.
template <typename F>
static inline void column_sums(float *out, F f, typename F::Value *stored, size_t N, size_t cols, int accumulate,
                               float *scratch, cudaStream_t stream) {
    const size_t row_blocks = ceil_div(N, COLUMN_SUMS_ROWS);
    const size_t col_blocks = ceil_div(cols, COLUMN_SUMS_WIDTH);
    launch(column_sums_kernel<F>, grid_1d(row_blocks * col_blocks), WARP_SIZE * COLUMN_SUMS_WARPS, 0, stream, scratch,
           f, stored, N, cols, (unsigned)col_blocks);
    sum_partials(out, scratch, row_blocks, cols, cols, accumulate, stream);
}

#endif
