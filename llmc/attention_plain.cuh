// attention_plain.cuh: the parts of GPU attention that do without tensor cores: flash attention in fp32 arithmetic (for
// fp32 and tf32 storage, and for head sizes the tensor core kernels do not take), D = rowsum(dO o O), and one step with
// a KV cache. attention.cuh has the calls for the rest.
//
// The products are 16 x 16 threads' register blocks over tiles in shared memory, fp32 FMAs: bound by fp32 arithmetic
// (a step of 4 columns: 8 vector loads, 64 FMAs a thread at HS <= 64). The backward pass is two kernels, one by key
// blocks for dK and dV, one by query blocks for dQ: 7 products instead of 5, but no sum leaves the registers.
#ifndef LLMC_ATTENTION_PLAIN_CUH
#define LLMC_ATTENTION_PLAIN_CUH

#include "cuda_utils.cuh"

#define ATT_LOG2E 1.4426950408889634f
#define ATT_STATS_PAD ((size_t)64)  // rows of D and lse are padded to a multiple of any tile's queries
#define ATT_MAX_HS ((size_t)256)

typedef struct {
    int T, T_padded, NH, HS;
    size_t C;
    float scale, scale_log2;  // 1 / sqrt(HS), and that times log2(e)
} AttentionShape;

static inline AttentionShape attention_shape(size_t T, size_t C, size_t NH) {
    AttentionShape shape;
    if (NH == 0 || C % NH || C / NH > ATT_MAX_HS || T == 0 || T > (size_t)1 << 24)
        die("attention: T=%zu C=%zu NH=%zu\nwhy: the GPU kernels need C divisible by NH, heads of at most %zu, T from "
            "1 to 2^24",
            T, C, NH, ATT_MAX_HS);
    shape.T = (int)T, shape.T_padded = (int)round_up(T, ATT_STATS_PAD), shape.NH = (int)NH, shape.HS = (int)(C / NH);
    shape.C = C;
    shape.scale = 1.0f / sqrtf((float)shape.HS), shape.scale_log2 = shape.scale * ATT_LOG2E;
    return shape;
}

// ----------------------------------------------------------------------------------------------------------------
// Statistics of the backward pass

#define ATT_STATS_ROWS 4  // tokens a thread: their loads go out together, their stores fill a 32-byte sector

// N elements as they are loaded: one access for 8 (two for floats), plain for 1.
template <typename E, int N>
struct AttElements {
    E v[N];
    __device__ __forceinline__ void load(const E *address) {
        Packed<E, N> packed = load_packed<N>(address);
#pragma unroll
        for (int x = 0; x < N; x++) v[x] = packed[x];
    }
};
template <typename E>
struct AttElements<E, 1> {
    E v[1];
    __device__ __forceinline__ void load(const E *address) { v[0] = *address; }
};

// stats (B NH, T_padded) = {lse log2(e), D = sum over d of dout out}; beyond T {inf, 0}, with which P and dS become 0.
// `group` lanes (a power of two) work on one head's columns of ATT_STATS_ROWS tokens, neighbours on neighbouring heads.
// Bound by memory: 8 loads of 16 bytes a thread are under way together, 64 KB an SM at 2 blocks.
template <typename E, bool VECTOR>
static __global__ void __launch_bounds__(256, 2)
    attention_stats_kernel(float2 *stats, const E *dout, const E *out, const float *lse, size_t items, int group,
                           AttentionShape shape) {
    constexpr int N = VECTOR ? 8 : 1;  // elements a lane takes at a time
    const size_t item = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) / group;
    const int lane = threadIdx.x % group, quads = shape.T_padded / ATT_STATS_ROWS;
    const int h = item % shape.NH, t0 = item / shape.NH % quads * ATT_STATS_ROWS;
    const size_t b = item / shape.NH / quads, first = (b * shape.T + t0) * shape.C + (size_t)h * shape.HS;
    const int rows = item < items ? shape.T - t0 : 0;
    float D[ATT_STATS_ROWS] = {};
    for (int d = lane * N; d < shape.HS; d += group * N) {
        AttElements<E, N> dout_d[ATT_STATS_ROWS], out_d[ATT_STATS_ROWS];
#pragma unroll
        for (int i = 0; i < ATT_STATS_ROWS; i++) {
            const size_t ix = first + (i < rows ? i : 0) * shape.C + d;  // in range also beyond the last token
            if (rows > 0) dout_d[i].load(dout + ix), out_d[i].load(out + ix);
        }
#pragma unroll
        for (int i = 0; i < ATT_STATS_ROWS; i++)
#pragma unroll
            for (int x = 0; x < N; x++)
                if (i < rows) D[i] = fmaf(to_float(dout_d[i].v[x]), to_float(out_d[i].v[x]), D[i]);
    }
    for (int distance = group / 2; distance > 0; distance /= 2)
#pragma unroll
        for (int i = 0; i < ATT_STATS_ROWS; i++) D[i] += __shfl_xor_sync(FULL_WARP, D[i], distance);
    if (item >= items || lane != 0) return;
    const size_t head = b * shape.NH + h;
#pragma unroll
    for (int i = 0; i < ATT_STATS_ROWS; i++) {
        const float log_sum = i < rows ? lse[head * shape.T + t0 + i] * ATT_LOG2E : INFINITY;
        stats[head * shape.T_padded + t0 + i] = make_float2(log_sum, D[i]);
    }
}

template <typename E>
static inline void attention_stats(float2 *stats, const E *dout, const E *out, const float *lse, size_t B,
                                   AttentionShape shape, cudaStream_t stream) {
    const bool vector = shape.HS % 8 == 0;
    const size_t items = B * shape.NH * (shape.T_padded / ATT_STATS_ROWS);
    int group = 1;
    while (group < WARP_SIZE && group * (vector ? 8 : 1) < shape.HS) group *= 2;
    dim3 grid = grid_1d(ceil_div(items * group, 256));
    if (vector)
        launch((attention_stats_kernel<E, true>), grid, 256, 0, stream, stats, dout, out, lse, items, group, shape);
    else launch((attention_stats_kernel<E, false>), grid, 256, 0, stream, stats, dout, out, lse, items, group, shape);
}

// ----------------------------------------------------------------------------------------------------------------
// Flash attention in fp32 arithmetic

// TILE queries against TILE keys, heads padded to W columns; thread (y, x) of 16 x 16 has rows y R.. of a product and
// every 16th column from x. Rows of tiles are 4 floats longer than W: 8 lanes' 16-byte reads of a column then meet
// 32 different banks.
template <typename E, int W_, int TILE_>
struct AttPlain {
    static constexpr int W = W_, TILE = TILE_, R = TILE / 16, COLS = W / 16, STRIDE = W + 4, P_STRIDE = TILE + 4;
    static constexpr int THREADS = 256, TILE_ELEMS = TILE * STRIDE, P_ELEMS = TILE * P_STRIDE;
    static constexpr size_t forward_bytes = (3 * TILE_ELEMS + P_ELEMS) * sizeof(float);
    static constexpr size_t backward_bytes = (4 * TILE_ELEMS + P_ELEMS) * sizeof(float);
};

// Rows of HS elements, `stride` apart, as floats; zeros beyond HS and from row `rows` on.
template <typename Plain, typename E>
__device__ __forceinline__ void att_plain_load(float *tile, const E *inp, size_t stride, int rows, int HS) {
    for (int i = threadIdx.x * 4; i < Plain::TILE * Plain::W; i += Plain::THREADS * 4) {
        const int row = i / Plain::W, d = i % Plain::W;
        const E *from = inp + row * stride + d;
        float x[4] = {0, 0, 0, 0};
        if (row < rows && sizeof(E) == 4 && HS % 4 == 0) {
            if (d < HS) {
                const float4 loaded = *reinterpret_cast<const float4 *>(from);
                x[0] = loaded.x, x[1] = loaded.y, x[2] = loaded.z, x[3] = loaded.w;
            }
        } else if (row < rows) {
#pragma unroll
            for (int j = 0; j < 4; j++)
                if (d + j < HS) x[j] = to_float(from[j]);
        }
        *reinterpret_cast<float4 *>(tile + row * Plain::STRIDE + d) = make_float4(x[0], x[1], x[2], x[3]);
    }
}

// out[i][j] = row y R + i of a . row x + 16 j of b
template <typename Plain>
__device__ __forceinline__ void att_plain_dot(float (&out)[Plain::R][Plain::R], const float *a, const float *b,
                                              int HS) {
    const int x = threadIdx.x % 16, y = threadIdx.x / 16;
#pragma unroll
    for (int i = 0; i < Plain::R; i++)
#pragma unroll
        for (int j = 0; j < Plain::R; j++) out[i][j] = 0;
    for (int d = 0; d < HS; d += 4) {
        float4 a4[Plain::R], b4[Plain::R];
#pragma unroll
        for (int i = 0; i < Plain::R; i++) {
            a4[i] = *reinterpret_cast<const float4 *>(a + (y * Plain::R + i) * Plain::STRIDE + d);
            b4[i] = *reinterpret_cast<const float4 *>(b + (x + 16 * i) * Plain::STRIDE + d);
        }
#pragma unroll
        for (int i = 0; i < Plain::R; i++)
#pragma unroll
            for (int j = 0; j < Plain::R; j++) {
                out[i][j] = fmaf(a4[i].x, b4[j].x, out[i][j]);
                out[i][j] = fmaf(a4[i].y, b4[j].y, out[i][j]);
                out[i][j] = fmaf(a4[i].z, b4[j].z, out[i][j]);
                out[i][j] = fmaf(a4[i].w, b4[j].w, out[i][j]);
            }
    }
}

// acc[i][j] += sum over k of p(y R + i, k) b(k, x + 16 j), p rounded to E and passed through p_tile. A row's 16 threads
// are half a warp, so the exchange needs no more than the warp.
template <typename Plain, typename E>
__device__ __forceinline__ void att_plain_accumulate(float (&acc)[Plain::R][Plain::COLS],
                                                     const float (&p)[Plain::R][Plain::R], float *p_tile,
                                                     const float *b) {
    const int x = threadIdx.x % 16, y = threadIdx.x / 16;
    __syncwarp();  // the last use of p_tile is over
#pragma unroll
    for (int i = 0; i < Plain::R; i++)
#pragma unroll
        for (int j = 0; j < Plain::R; j++)
            p_tile[(y * Plain::R + i) * Plain::P_STRIDE + x + 16 * j] = to_float(from_float<E>(p[i][j]));
    __syncwarp();
#pragma unroll 4
    for (int k = 0; k < Plain::TILE; k++) {
        float p_k[Plain::R];
#pragma unroll
        for (int i = 0; i < Plain::R; i++) p_k[i] = p_tile[(y * Plain::R + i) * Plain::P_STRIDE + k];
#pragma unroll
        for (int j = 0; j < Plain::COLS; j++) {
            const float b_kj = b[k * Plain::STRIDE + x + 16 * j];
#pragma unroll
            for (int i = 0; i < Plain::R; i++) acc[i][j] = fmaf(p_k[i], b_kj, acc[i][j]);
        }
    }
}

// Rows y R + i of a tile to global memory.
template <typename Plain, typename E>
__device__ __forceinline__ void att_plain_store(E *out, size_t stride, const float (&acc)[Plain::R][Plain::COLS],
                                                const float (&scale)[Plain::R], int rows, int HS) {
    const int x = threadIdx.x % 16, y = threadIdx.x / 16;
#pragma unroll
    for (int i = 0; i < Plain::R; i++)
#pragma unroll
        for (int j = 0; j < Plain::COLS; j++)
            if (y * Plain::R + i < rows && x + 16 * j < HS)
                out[(y * Plain::R + i) * stride + x + 16 * j] = from_float<E>(acc[i][j] * scale[i]);
}

// One head's TILE queries a block, the late (long) ones first.
template <typename Plain, typename E>
static __global__ void __launch_bounds__(Plain::THREADS, 2)
    attention_forward_plain_kernel(E *out, float *lse, const E *qkv, AttentionShape shape) {
    constexpr int TILE = Plain::TILE, R = Plain::R;
    DYNAMIC_SHARED(float, q_tile);
    float *k_tile = q_tile + Plain::TILE_ELEMS, *v_tile = k_tile + Plain::TILE_ELEMS,
          *p_tile = v_tile + Plain::TILE_ELEMS;
    const int T = shape.T, HS = shape.HS, x = threadIdx.x % 16, y = threadIdx.x / 16;
    const int tiles = (T + TILE - 1) / TILE, head = blockIdx.x / tiles;
    const int first = (tiles - 1 - blockIdx.x % tiles) * TILE;
    const size_t token0 = (size_t)(head / shape.NH) * T, column = (size_t)(head % shape.NH) * HS, stride = 3 * shape.C;
    qkv += token0 * stride + column;

    att_plain_load<Plain>(q_tile, qkv + first * stride, stride, T - first, HS);
    float acc[R][Plain::COLS] = {}, max[R], sum[R];
#pragma unroll
    for (int i = 0; i < R; i++) max[i] = -INFINITY, sum[i] = 0;
    for (int key = 0; key <= first; key += TILE) {
        __syncthreads();  // the last block's k and v are no longer read
        att_plain_load<Plain>(k_tile, qkv + shape.C + key * stride, stride, T - key, HS);
        att_plain_load<Plain>(v_tile, qkv + 2 * shape.C + key * stride, stride, T - key, HS);
        __syncthreads();
        float s[R][R];
        att_plain_dot<Plain>(s, q_tile, k_tile, HS);
#pragma unroll
        for (int i = 0; i < R; i++) {
            float largest = max[i];
#pragma unroll
            for (int j = 0; j < R; j++) {
                s[i][j] = key + x + 16 * j > first + y * R + i ? -INFINITY : s[i][j] * shape.scale_log2;
                largest = fmaxf(largest, s[i][j]);
            }
            for (int distance = 8; distance > 0; distance /= 2)
                largest = fmaxf(largest, __shfl_xor_sync(FULL_WARP, largest, distance));
            const float correction = exp2f(max[i] - largest);
            sum[i] *= correction;
            max[i] = largest;
#pragma unroll
            for (int j = 0; j < R; j++) {
                s[i][j] = exp2f(s[i][j] - largest);
                sum[i] += s[i][j];
            }
#pragma unroll
            for (int j = 0; j < Plain::COLS; j++) acc[i][j] *= correction;
        }
        att_plain_accumulate<Plain, E>(acc, s, p_tile, v_tile);
    }
    float inverse[R];
#pragma unroll
    for (int i = 0; i < R; i++) {
        for (int distance = 8; distance > 0; distance /= 2) sum[i] += __shfl_xor_sync(FULL_WARP, sum[i], distance);
        inverse[i] = 1.0f / sum[i];
        const int t = first + y * R + i;
        if (x == 0 && t < T) lse[(size_t)head * T + t] = max[i] / ATT_LOG2E + logf(sum[i]);
    }
    att_plain_store<Plain>(out + (token0 + first) * shape.C + column, shape.C, acc, inverse, T - first, HS);
}

// P and dS of the R x R pairs of a thread. KEY_ROWS: the rows are keys and the columns queries, else the other way.
template <typename Plain, bool KEY_ROWS>
__device__ __forceinline__ void att_plain_softmax(float (&p)[Plain::R][Plain::R], float (&ds)[Plain::R][Plain::R],
                                                  const float2 *stats, int query, int key, float scale_log2) {
    const int x = threadIdx.x % 16, y = threadIdx.x / 16;
#pragma unroll
    for (int i = 0; i < Plain::R; i++)
#pragma unroll
        for (int j = 0; j < Plain::R; j++) {
            const int row = y * Plain::R + i, col = x + 16 * j;
            const int q = query + (KEY_ROWS ? col : row), k = key + (KEY_ROWS ? row : col);
            const float2 stat = stats[q];
            p[i][j] = k > q ? 0 : exp2f(p[i][j] * scale_log2 - stat.x);
            ds[i][j] = p[i][j] * (ds[i][j] - stat.y);
        }
}

// dK and dV of one head's TILE keys a block, the early (long) ones first.
template <typename Plain, typename E>
static __global__ void __launch_bounds__(Plain::THREADS, 2)
    attention_dkv_plain_kernel(E *dqkv, const E *dout, const E *qkv, const float2 *stats, AttentionShape shape) {
    constexpr int TILE = Plain::TILE, R = Plain::R;
    DYNAMIC_SHARED(float, q_tile);
    float *k_tile = q_tile + Plain::TILE_ELEMS, *v_tile = k_tile + Plain::TILE_ELEMS;
    float *dout_tile = v_tile + Plain::TILE_ELEMS, *p_tile = dout_tile + Plain::TILE_ELEMS;
    const int T = shape.T, HS = shape.HS, tiles = (T + TILE - 1) / TILE;
    const int head = blockIdx.x / tiles, key = blockIdx.x % tiles * TILE;
    const size_t token0 = (size_t)(head / shape.NH) * T, column = (size_t)(head % shape.NH) * HS, stride = 3 * shape.C;
    qkv += token0 * stride + column;
    dqkv += token0 * stride + column + key * stride;
    dout += token0 * shape.C + column;
    stats += (size_t)head * shape.T_padded;

    att_plain_load<Plain>(k_tile, qkv + shape.C + key * stride, stride, T - key, HS);
    att_plain_load<Plain>(v_tile, qkv + 2 * shape.C + key * stride, stride, T - key, HS);
    float dk[R][Plain::COLS] = {}, dv[R][Plain::COLS] = {};
    for (int query = key; query < T; query += TILE) {
        __syncthreads();
        att_plain_load<Plain>(q_tile, qkv + query * stride, stride, T - query, HS);
        att_plain_load<Plain>(dout_tile, dout + query * shape.C, shape.C, T - query, HS);
        __syncthreads();
        float p[R][R], ds[R][R];
        att_plain_dot<Plain>(p, k_tile, q_tile, HS);
        att_plain_dot<Plain>(ds, v_tile, dout_tile, HS);
        att_plain_softmax<Plain, true>(p, ds, stats, query, key, shape.scale_log2);
        att_plain_accumulate<Plain, E>(dv, p, p_tile, dout_tile);
        att_plain_accumulate<Plain, E>(dk, ds, p_tile, q_tile);
    }
    float scale[R], one[R];
#pragma unroll
    for (int i = 0; i < R; i++) scale[i] = shape.scale, one[i] = 1;
    att_plain_store<Plain>(dqkv + shape.C, stride, dk, scale, T - key, HS);
    att_plain_store<Plain>(dqkv + 2 * shape.C, stride, dv, one, T - key, HS);
}

// dQ of one head's TILE queries a block, the late (long) ones first.
template <typename Plain, typename E>
static __global__ void __launch_bounds__(Plain::THREADS, 2)
    attention_dq_plain_kernel(E *dqkv, const E *dout, const E *qkv, const float2 *stats, AttentionShape shape) {
    constexpr int TILE = Plain::TILE, R = Plain::R;
    DYNAMIC_SHARED(float, q_tile);
    float *k_tile = q_tile + Plain::TILE_ELEMS, *v_tile = k_tile + Plain::TILE_ELEMS;
    float *dout_tile = v_tile + Plain::TILE_ELEMS, *p_tile = dout_tile + Plain::TILE_ELEMS;
    const int T = shape.T, HS = shape.HS, tiles = (T + TILE - 1) / TILE;
    const int head = blockIdx.x / tiles, query = (tiles - 1 - blockIdx.x % tiles) * TILE;
    const size_t token0 = (size_t)(head / shape.NH) * T, column = (size_t)(head % shape.NH) * HS, stride = 3 * shape.C;
    qkv += token0 * stride + column;
    dout += (token0 + query) * shape.C + column;

    att_plain_load<Plain>(q_tile, qkv + query * stride, stride, T - query, HS);
    att_plain_load<Plain>(dout_tile, dout, shape.C, T - query, HS);
    float dq[R][Plain::COLS] = {}, scale[R];
    for (int key = 0; key <= query; key += TILE) {
        __syncthreads();
        att_plain_load<Plain>(k_tile, qkv + shape.C + key * stride, stride, T - key, HS);
        att_plain_load<Plain>(v_tile, qkv + 2 * shape.C + key * stride, stride, T - key, HS);
        __syncthreads();
        float p[R][R], ds[R][R];
        att_plain_dot<Plain>(p, q_tile, k_tile, HS);
        att_plain_dot<Plain>(ds, dout_tile, v_tile, HS);
        att_plain_softmax<Plain, false>(p, ds, stats + (size_t)head * shape.T_padded, query, key, shape.scale_log2);
        att_plain_accumulate<Plain, E>(dq, ds, p_tile, k_tile);
    }
#pragma unroll
    for (int i = 0; i < R; i++) scale[i] = shape.scale;
    att_plain_store<Plain>(dqkv + (token0 + query) * stride + column, stride, dq, scale, T - query, HS);
}

template <typename Plain, typename E>
static inline void att_forward_plain_tiles(E *out, float *lse, const E *qkv, size_t B, AttentionShape shape,
                                           cudaStream_t stream) {
    launch((attention_forward_plain_kernel<Plain, E>), grid_1d(B * shape.NH * ceil_div(shape.T, Plain::TILE)),
           Plain::THREADS, Plain::forward_bytes, stream, out, lse, qkv, shape);
}

template <typename Plain, typename E>
static inline void att_backward_plain_tiles(E *dqkv, const E *dout, const E *qkv, const float2 *stats, size_t B,
                                            AttentionShape shape, cudaStream_t stream) {
    dim3 grid = grid_1d(B * shape.NH * ceil_div(shape.T, Plain::TILE));
    launch((attention_dkv_plain_kernel<Plain, E>), grid, Plain::THREADS, Plain::backward_bytes, stream, dqkv, dout, qkv,
           stats, shape);
    launch((attention_dq_plain_kernel<Plain, E>), grid, Plain::THREADS, Plain::backward_bytes, stream, dqkv, dout, qkv,
           stats, shape);
}

// Wider heads take smaller tiles: 87, 72 and 68 KB of shared memory, which every card has.
template <typename E>
static inline void attention_forward_plain(E *out, float *lse, const E *qkv, size_t B, AttentionShape shape,
                                           cudaStream_t stream) {
    if (shape.HS <= 64) att_forward_plain_tiles<AttPlain<E, 64, 64>>(out, lse, qkv, B, shape, stream);
    else if (shape.HS <= 128) att_forward_plain_tiles<AttPlain<E, 128, 32>>(out, lse, qkv, B, shape, stream);
    else att_forward_plain_tiles<AttPlain<E, 256, 16>>(out, lse, qkv, B, shape, stream);
}

template <typename E>
static inline void attention_backward_plain(E *dqkv, const E *dout, const E *qkv, const float2 *stats, size_t B,
                                            AttentionShape shape, cudaStream_t stream) {
    if (shape.HS <= 64) att_backward_plain_tiles<AttPlain<E, 64, 64>>(dqkv, dout, qkv, stats, B, shape, stream);
    else if (shape.HS <= 128) att_backward_plain_tiles<AttPlain<E, 128, 32>>(dqkv, dout, qkv, stats, B, shape, stream);
    else att_backward_plain_tiles<AttPlain<E, 256, 16>>(dqkv, dout, qkv, stats, B, shape, stream);
}

// ----------------------------------------------------------------------------------------------------------------
// Sampling

#define ATT_DECODE_WARPS 8
#define ATT_DECODE_KEYS 64                               // a warp's step
#define ATT_DECODE_COLS ((int)(ATT_MAX_HS / WARP_SIZE))  // columns of out a lane

// q . k over HS columns, k in global memory
template <typename E>
__device__ __forceinline__ float att_decode_dot(const float *q, const E *k, int HS) {
    float sum = 0;
    if (HS % 8 == 0) {
        for (int d = 0; d < HS; d += 8) {
            float k8[8];
            load_floats(k8, k + d);
#pragma unroll
            for (int x = 0; x < 8; x++) sum = fmaf(q[d + x], k8[x], sum);
        }
    } else {
        for (int d = 0; d < HS; d++) sum = fmaf(q[d], to_float(k[d]), sum);
    }
    return sum;
}

// One head a block. Warp w runs the softmax over the 64-key blocks w, w + 8, ..; then the warps' parts are put on a
// common maximum and added in order.
template <typename E>
static __global__ void __launch_bounds__(ATT_DECODE_WARPS *WARP_SIZE)
    attention_decode_kernel(E *out, const E *qkv_t, E *kcache, E *vcache, int pos, AttentionShape shape) {
    __shared__ float q[ATT_MAX_HS], p[ATT_DECODE_WARPS][ATT_DECODE_KEYS], parts[ATT_DECODE_WARPS][ATT_MAX_HS];
    __shared__ float maxima[ATT_DECODE_WARPS], sums[ATT_DECODE_WARPS];
    const int HS = shape.HS, lane = threadIdx.x % WARP_SIZE, warp = threadIdx.x / WARP_SIZE;
    const size_t column = (size_t)blockIdx.x * HS, C = shape.C;
    for (int d = threadIdx.x; d < HS; d += ATT_DECODE_WARPS * WARP_SIZE) {
        q[d] = to_float(qkv_t[column + d]);
        kcache[pos * C + column + d] = qkv_t[C + column + d];
        vcache[pos * C + column + d] = qkv_t[2 * C + column + d];
    }
    __syncthreads();  // the new row is seen by the whole block

    float acc[ATT_DECODE_COLS] = {}, max = -INFINITY, sum = 0;
    for (int key = warp * ATT_DECODE_KEYS; key <= pos; key += ATT_DECODE_WARPS * ATT_DECODE_KEYS) {
        const int keys = min(ATT_DECODE_KEYS, pos + 1 - key);
        float s[2], largest = max;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int j = lane + i * WARP_SIZE;
            s[i] = j < keys ? att_decode_dot(q, kcache + (key + j) * C + column, HS) * shape.scale_log2 : -INFINITY;
            largest = fmaxf(largest, s[i]);
        }
        largest = warp_max(largest);
        const float correction = exp2f(max - largest);
        sum *= correction;
        __syncwarp();  // the last block's p is no longer read
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float e = exp2f(s[i] - largest);
            sum += e;
            p[warp][lane + i * WARP_SIZE] = to_float(from_float<E>(e));
        }
        __syncwarp();
        max = largest;
#pragma unroll
        for (int c = 0; c < ATT_DECODE_COLS; c++) acc[c] *= correction;
        for (int j = 0; j < keys; j++) {
            const E *v = vcache + (key + j) * C + column;
#pragma unroll
            for (int c = 0; c < ATT_DECODE_COLS; c++)
                if (lane + c * WARP_SIZE < HS) acc[c] = fmaf(p[warp][j], to_float(v[lane + c * WARP_SIZE]), acc[c]);
        }
    }
    sum = warp_sum(sum);
    if (lane == 0) maxima[warp] = max, sums[warp] = sum;
#pragma unroll
    for (int c = 0; c < ATT_DECODE_COLS; c++) parts[warp][lane + c * WARP_SIZE] = acc[c];
    __syncthreads();
    max = maxima[0];  // key 0 is warp 0's: finite
#pragma unroll
    for (int w = 1; w < ATT_DECODE_WARPS; w++) max = fmaxf(max, maxima[w]);
    for (int d = threadIdx.x; d < HS; d += ATT_DECODE_WARPS * WARP_SIZE) {
        float total = 0, value = 0;
        for (int w = 0; w < ATT_DECODE_WARPS; w++) {
            const float factor = exp2f(maxima[w] - max);  // 0 for a warp without keys
            total = fmaf(sums[w], factor, total);
            value = fmaf(parts[w][d], factor, value);
        }
        out[column + d] = from_float<E>(value / total);
    }
}

// attention_decode: the contract is attention.h's; kcache and vcache (> pos, C) act on the GPU, 16-byte pointers.
template <typename E>
static inline void attention_decode(E *out, const E *qkv_t, E *kcache, E *vcache, size_t pos, size_t C, size_t NH,
                                    cudaStream_t stream) {
    AttentionShape shape = attention_shape(pos + 1, C, NH);
    DeviceOp op("attention_decode", (double)(2 * (pos + 1) + 4) * (double)C * sizeof(E), 0, stream);
    launch((attention_decode_kernel<E>), dim3((unsigned)NH), ATT_DECODE_WARPS * WARP_SIZE, 0, stream, out, qkv_t,
           kcache, vcache, (int)pos, shape);
}

#endif
