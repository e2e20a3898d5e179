// embedding.cuh: the CUDA twin of embedding.h. The backward pass is deterministic and has no atomics: the host sorts
// the batch's positions by token (stable; the loader knows the tokens a step ahead), so that each token's rows are
// added by one warp, in order.
#ifndef LLMC_EMBEDDING_CUH
#define LLMC_EMBEDDING_CUH

#include "cuda_utils.cuh"

#define EMBEDDING_WARPS 8

// One warp a token; a lane takes 8 columns, then those 256 further on.
template <typename T, typename W>
__global__ void __launch_bounds__(WARP_SIZE *EMBEDDING_WARPS, 6)
    embedding_forward_kernel(T *out, const int32_t *inp, const W *wte, const W *wpe, size_t N, int T_len, int C) {
    const size_t bt = (size_t)blockIdx.x * EMBEDDING_WARPS + threadIdx.x / WARP_SIZE;
    if (bt >= N) return;
    const W *wte_ix = wte + (size_t)inp[bt] * C, *wpe_t = wpe + bt % (size_t)T_len * C;
#pragma unroll 3
    for (int c = threadIdx.x % WARP_SIZE * PACK; c < C; c += WARP_SIZE * PACK) {
        Packed<W, PACK> token = load_packed(wte_ix + c), position = load_packed(wpe_t + c);
        Packed<T, PACK> sum;
#pragma unroll
        for (int j = 0; j < PACK; j++) sum[j] = from_float<T>(to_float(token[j]) + to_float(position[j]));
        store_packed(out + bt * C + c, sum);
    }
}

// embedding_forward: see embedding.h; C % 8 == 0; moves 3 B T C elements at most
template <typename T, typename W>
static inline void embedding_forward(T *out, const int32_t *inp, const W *wte, const W *wpe, size_t B, size_t T_len,
                                     size_t C, cudaStream_t stream) {
    DeviceOp op("embedding_forward", (double)(B * T_len * C) * (sizeof(W) + sizeof(T)) + (double)(T_len * C) * sizeof(W), 0,
                stream);
    launch(embedding_forward_kernel<T, W>, grid_1d(ceil_div(B * T_len, EMBEDDING_WARPS)), WARP_SIZE * EMBEDDING_WARPS,
           0, stream, out, inp, wte, wpe, B * T_len, (int)T_len, (int)C);
}

// ----------------------------------------------------------------------------------------------------------------
// The plan: which rows of dout belong to which token. Made on the host, uploaded as one array of int32.

#define EMBEDDING_CHUNK 64  // rows one warp adds; a token with more is summed in chunks, and those by a second kernel

// Rows `first` .. `first + rows` of `order`, all of one token. Where the token has more chunks, the sum goes to row
// `partial` of the scratch, else (-1) straight to dwte.
typedef struct {
    int32_t token, first, rows, partial;
} EmbeddingChunk;

// A token with several chunks: their sums, in order, are scratch rows `first` .. `first + rows`.
typedef struct {
    int32_t token, first, rows, unused;
} EmbeddingLong;

// Offsets are in int32 elements into the plan's array.
typedef struct {
    size_t N, chunks, longs;
    size_t order_at, chunks_at, longs_at, elems;  // elems: how much of the array is in use
} EmbeddingPlan;

// int32 elements that the array of a plan for N tokens may take.
static inline size_t embedding_plan_elems(size_t N) { return round_up(N, 4) + 4 * N + 4 * (N / EMBEDDING_CHUNK + 1); }
static inline size_t embedding_backward_scratch_elems(size_t N, size_t C) { return (N / EMBEDDING_CHUNK * 2 + 1) * C; }

// Fills `array` (host, embedding_plan_elems(N)) from the batch's N tokens, ids < V; `counts`: V + 1 of uint32, scratch.
// A counting sort, stable, so that a token's rows come in the order of the batch.
static inline EmbeddingPlan embedding_plan_make(int32_t *array, uint32_t *counts, const int32_t *inp, size_t N,
                                                size_t V) {
    EmbeddingPlan plan = {N, 0, 0, 0, round_up(N, 4), 0, 0};
    memset(counts, 0, (V + 1) * sizeof *counts);
    for (size_t i = 0; i < N; i++) counts[inp[i] + 1]++;
    for (size_t v = 0; v < V; v++) counts[v + 1] += counts[v];
    for (size_t i = 0; i < N; i++) array[counts[inp[i]]++] = (int32_t)i;
    // counts[v] is now the end of v's rows. Long tokens' chunks are counted first: their table stands behind the
    // chunks'.
    EmbeddingChunk *chunks = (EmbeddingChunk *)(void *)(array + plan.chunks_at);
    size_t partials = 0, longs = 0;
    for (size_t first = 0; first < N;) {
        int32_t token = inp[array[first]];
        size_t end = counts[token], is_long = end - first > EMBEDDING_CHUNK;
        for (; first < end; first += EMBEDDING_CHUNK) {
            EmbeddingChunk chunk = {token, (int32_t)first, (int32_t)min_size(end - first, EMBEDDING_CHUNK),
                                    is_long ? (int32_t)partials++ : -1};
            chunks[plan.chunks++] = chunk;
        }
        first = end;
        longs += is_long;
    }
    plan.longs_at = plan.chunks_at + 4 * plan.chunks;
    plan.elems = plan.longs_at + 4 * longs;
    EmbeddingLong *table = (EmbeddingLong *)(void *)(array + plan.longs_at);
    for (size_t i = 0; i < plan.chunks; i++) {
        if (chunks[i].partial < 0) continue;
        if (plan.longs && table[plan.longs - 1].token == chunks[i].token) {
            table[plan.longs - 1].rows++;
        } else {
            EmbeddingLong entry = {chunks[i].token, chunks[i].partial, 1, 0};
            table[plan.longs++] = entry;
        }
    }
    return plan;
}

// ----------------------------------------------------------------------------------------------------------------
// Backward. A warp has one chunk (one long token, one position) and 256 columns of it.

// out[j] += the sum of `rows` rows in order, four of them loaded at a time; row i is at source + index(i) * C.
template <typename T, typename Index>
__device__ __forceinline__ void embedding_add_rows(float (&sums)[PACK], const T *source, int rows, int C, Index index) {
    int i = 0;
    for (; i + 4 <= rows; i += 4) {
        Packed<T, PACK> row[4];
#pragma unroll
        for (int r = 0; r < 4; r++) row[r] = load_packed(source + index(i + r) * C);
#pragma unroll
        for (int r = 0; r < 4; r++)
#pragma unroll
            for (int j = 0; j < PACK; j++) sums[j] += to_float(row[r][j]);
    }
    for (; i < rows; i++) {
        Packed<T, PACK> row = load_packed(source + index(i) * C);
#pragma unroll
        for (int j = 0; j < PACK; j++) sums[j] += to_float(row[j]);
    }
}

__device__ __forceinline__ void embedding_accumulate(float *out, const float (&sums)[PACK]) {
    float old[PACK];
    load_floats(old, out);
#pragma unroll
    for (int j = 0; j < PACK; j++) old[j] += sums[j];
    store_floats(out, old);
}

// This warp's item of `items` and its first column; false beyond the last. Items x blocks of 256 columns, columns
// fastest.
__device__ __forceinline__ bool embedding_item(size_t &item, int &col, size_t items, int C) {
    const unsigned col_blocks = (C + WARP_SIZE * PACK - 1) / (WARP_SIZE * PACK);
    const size_t index = (size_t)blockIdx.x * EMBEDDING_WARPS + threadIdx.x / WARP_SIZE;
    item = index / col_blocks;
    col = (int)(index % col_blocks) * WARP_SIZE * PACK + threadIdx.x % WARP_SIZE * PACK;
    return item < items && col < C;
}

template <typename G>
__global__ void __launch_bounds__(WARP_SIZE *EMBEDDING_WARPS, 4)
    embedding_backward_chunks_kernel(float *dwte, float *partials, const G *dout, const int32_t *order,
                                     const EmbeddingChunk *chunks, size_t count, int C) {
    size_t item;
    int col;
    if (!embedding_item(item, col, count, C)) return;
    const EmbeddingChunk chunk = chunks[item];
    float sums[PACK] = {};
    embedding_add_rows(sums, dout + col, chunk.rows, C, [&](int i) { return (size_t)order[chunk.first + i]; });
    if (chunk.partial >= 0) store_floats(partials + (size_t)chunk.partial * C + col, sums);
    else embedding_accumulate(dwte + (size_t)chunk.token * C + col, sums);
}

static __global__ void __launch_bounds__(WARP_SIZE *EMBEDDING_WARPS, 4)
    embedding_backward_long_kernel(float *dwte, const float *partials, const EmbeddingLong *table, size_t count,
                                   int C) {
    size_t item;
    int col;
    if (!embedding_item(item, col, count, C)) return;
    const EmbeddingLong entry = table[item];
    float sums[PACK] = {};
    embedding_add_rows(sums, partials + (size_t)entry.first * C + col, entry.rows, C, [](int i) { return (size_t)i; });
    embedding_accumulate(dwte + (size_t)entry.token * C + col, sums);
}

template <typename G>
__global__ void __launch_bounds__(WARP_SIZE *EMBEDDING_WARPS, 4)
    embedding_backward_positions_kernel(float *dwpe, const G *dout, int B, size_t T_len, int C) {
    size_t t;
    int col;
    if (!embedding_item(t, col, T_len, C)) return;
    float sums[PACK] = {};
    embedding_add_rows(sums, dout + t * C + col, B, C, [&](int b) { return b * T_len; });
    embedding_accumulate(dwpe + t * C + col, sums);
}

// embedding_backward: see embedding.h; C % 8 == 0
//   plan and its array on the device stand in the place of inp
//   scratch: embedding_backward_scratch_elems(B T, C) floats
//   moves 2 B T C elements of dout and the rows of dwte that occur
template <typename G>
static inline void embedding_backward(float *dwte, float *dwpe, const G *dout, const EmbeddingPlan *plan,
                                      const int32_t *plan_array, size_t B, size_t T_len, size_t C, float *scratch,
                                      cudaStream_t stream) {
    const size_t col_blocks = ceil_div(C, WARP_SIZE * PACK);
    const unsigned threads = WARP_SIZE * EMBEDDING_WARPS;
    DeviceOp op("embedding_backward", (double)(B * T_len * C) * 2 * sizeof(G) + (double)((plan->chunks + T_len) * C) * 8, 0,
                stream);
    launch(embedding_backward_chunks_kernel<G>, grid_1d(ceil_div(plan->chunks * col_blocks, EMBEDDING_WARPS)), threads,
           0, stream, dwte, scratch, dout, plan_array + plan->order_at,
           (const EmbeddingChunk *)(const void *)(plan_array + plan->chunks_at), plan->chunks, (int)C);
    if (plan->longs > 0)
        launch(embedding_backward_long_kernel, grid_1d(ceil_div(plan->longs * col_blocks, EMBEDDING_WARPS)), threads, 0,
               stream, dwte, scratch, (const EmbeddingLong *)(const void *)(plan_array + plan->longs_at), plan->longs,
               (int)C);
    launch(embedding_backward_positions_kernel<G>, grid_1d(ceil_div(T_len * col_blocks, EMBEDDING_WARPS)), threads, 0,
           stream, dwpe, dout, (int)B, T_len, (int)C);
}

#endif
