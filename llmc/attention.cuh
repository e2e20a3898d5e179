// attention.cuh: the GPU twin of attention.h: causal self-attention forward, backward and one step with a KV cache.
//
// Three families behind attention_forward and attention_backward:
//   16-bit storage, HS % 8 == 0, HS <= 128:  flash attention on tensor cores by mma.sync (this file), made for head
//     sizes 64 and 128; others run in tiles padded with zeros to 32, 64 or 128 columns.
//   fp32 (and tf32) storage, other head sizes up to 256:  flash attention in fp32 arithmetic, attention_plain.cuh.
//   one query against a cache:  attention_decode.
// q, k, v are read straight from the (B, T, 3C) rows of the GEMM, so there are no permute kernels.
//
// Where values round is the CPU twin's: scores, maxima, exps, sums fp32; P rounded before P V and dV, dS before dQ and
// dK; running maximum over 64-key blocks ascending. exp(x) is exp2(x log2 e), with scale log2 e folded into one FMA.
//
// Tiles and what bounds them (mma.sync on Hopper: 2,580 flop/clk an SM, so m16n8k16 is 1.6 clk; ldmatrix.x4 is 4 clk
// of the SM's one shared memory port; so a load should feed several products):
//   forward   128 queries x 64 keys, 4 warps of 32 queries: 4 products a load at HS 64 (q stays in registers), 3.2 at
//             128. 16 queries a warp would get 2 and wait for shared memory. Two blocks an SM overlap one's exps with
//             the other's products. A warp leaves out the half of the diagonal block it cannot see.
//   backward  128 keys x 32 queries, 4 warps of 32 keys (HS 128: 128 x 64, 8 warps of 16), in S^T = K Q^T, whose
//             accumulators are the A operands of dV and dK as they stand; only dS passes through shared memory, once,
//             for dQ. 160 products to 76 loads and stores (HS 128: 320 to 180): bound by shared memory, at 2.1 and 1.8.
// Both want all 255 registers, and two blocks an SM (HS 128 backward: one block of 8 warps) is what 255 leave. ptxas
// for sm_80 to sm_120a spills nothing, if only just: what a kernel needs again later is made anew there (att_opaque).
// Shared memory: forward 48 KB (HS 128: 96), backward 57 KB (145; 69 for cards with 99 KB).
//
// Order of sums in the backward pass, without atomics. dK and dV live in registers while a block walks the queries of
// its keys. dQ gets a contribution from every key block. Either a second kernel recomputes S and dP by query blocks:
// 7 products instead of 5, 40 % more of a kernel that is bound by them (+6.8 ms of a 97 ms step of d12 on H100). Or one
// block owns a head and walks its key blocks in ascending order, adding to dQ in fp32 in global memory by plain
// read-add-write: same order every time. A query row of T=1024, HS=64 then moves 3.5 x 512 B of dQ and 4.5 x 256 B of q
// and dout: with k, v and the results 2.8 GB a layer at B=64 if the L2 caught none of it, 0.9 ms at 3 TB/s beside
// 1.4 ms of products at 181 TFLOP/s. So the latter, with the old dQ loaded a phase before it is added to. The last key
// block a query sees is its diagonal one, which stores dQ rounded and scaled: no convert kernel.
// Few heads would leave SMs idle: up to ATT_SPLITS_TARGET / heads blocks then share a head (key blocks s, s + splits,
// ..), each with its own fp32 dQ, added in order by one more kernel. Splits depend on the shape alone.
#ifndef LLMC_ATTENTION_CUH
#define LLMC_ATTENTION_CUH

#include "attention_plain.cuh"
#include "mma.cuh"

#define ATT_SPLITS_TARGET ((size_t)528)  // two waves of two blocks on 132 SMs

// ----------------------------------------------------------------------------------------------------------------
// Tiles in shared memory

// x, as a number the compiler cannot trace back: what is made from it is made where it stands, and does not wait in
// registers through the loop before.
__device__ __forceinline__ int att_opaque(int x) {
    asm volatile("" : "+r"(x));
    return x;
}

// Element (row, col) of a tile W elements wide, 16 bits each, col a multiple of 8. The 16-byte pieces of a row are
// permuted so that 8 rows of one column, as ldmatrix and the fragment stores touch them, lie in 32 different banks:
// rows of 128 and 256 bytes repeat the banks every row, those of 64 every second row.
template <int W>
__device__ __forceinline__ int att_at(int row, int col) {
    static_assert(W == 32 || W % 64 == 0, "whole groups of four or eight pieces");
    const int permute = W % 64 == 0 ? row & 7 : (row >> 1) & 3;
    return row * W + (((col >> 3) ^ permute) << 3);
}

// The same for (row + rows, col + cols), rows a multiple of 8, cols of 16 (of 8 if col is of 16): of what depends on
// the lane, only one exclusive or per 16 columns of 64 is left to compute; the rest is in the instruction's offset.
template <int W>
__device__ __forceinline__ int att_at_plus(int row, int col, int rows, int cols) {
    constexpr int PERMUTED = W % 64 == 0 ? 64 : 32;
    return (att_at<W>(row, col) ^ (cols % PERMUTED)) + cols / PERMUTED * PERMUTED + rows * W;
}

// Operands of mma.m16n8k16 from a tile, from (row, col) on. A: 16 x 16 of (m, k). B: two 8-column pieces, b[0..1] and
// b[2..3], of 16 k. The name says how the tile lies: mk, nk (k along the row), or km, kn (transposed on loading).
template <int W, typename E>
__device__ __forceinline__ void att_load_a_mk(uint32_t (&a)[4], const E *tile, int row, int col,
                                              int lane = threadIdx.x % WARP_SIZE) {
    ldmatrix_x4(a, tile + att_at_plus<W>(lane % 16, lane / 16 * 8, row, col));
}
template <int W, typename E>
__device__ __forceinline__ void att_load_a_km(uint32_t (&a)[4], const E *tile, int row, int col,
                                              int lane = threadIdx.x % WARP_SIZE) {
    ldmatrix_x4_trans(a, tile + att_at_plus<W>(lane % 8 + lane / 16 * 8, lane / 8 % 2 * 8, row, col));
}
template <int W, typename E>
__device__ __forceinline__ void att_load_b_nk(uint32_t (&b)[4], const E *tile, int row, int col,
                                              int lane = threadIdx.x % WARP_SIZE) {
    ldmatrix_x4(b, tile + att_at_plus<W>(lane % 8 + lane / 16 * 8, lane / 8 % 2 * 8, row, col));
}
template <int W, typename E>
__device__ __forceinline__ void att_load_b_kn(uint32_t (&b)[4], const E *tile, int row, int col,
                                              int lane = threadIdx.x % WARP_SIZE) {
    ldmatrix_x4_trans(b, tile + att_at_plus<W>(lane % 16, lane / 16 * 8, row, col));
}

// acc[0], acc[1] (16 x 8 each) += a . b
template <typename E>
__device__ __forceinline__ void att_mma_pair(float (&acc0)[4], float (&acc1)[4], const uint32_t (&a)[4],
                                             const uint32_t (&b)[4]) {
    const uint32_t b0[2] = {b[0], b[1]}, b1[2] = {b[2], b[3]};
    mma_m16n8k16<E>(acc0, a, b0, acc0);
    mma_m16n8k16<E>(acc1, a, b1, acc1);
}

// Two accumulators (16 x 16 of (m, n)), rounded, as the A operand of a product over n.
template <typename E>
__device__ __forceinline__ void att_round_to_a(uint32_t (&a)[4], const float (&left)[4], const float (&right)[4]) {
    a[0] = pack_pair<E>(left[0], left[1]);
    a[1] = pack_pair<E>(left[2], left[3]);
    a[2] = pack_pair<E>(right[0], right[1]);
    a[3] = pack_pair<E>(right[2], right[3]);
}

// Starts the copy of ROWS rows of HS elements, `stride` apart, into a tile; zeros beyond HS and from row `rows` on.
template <int W, int ROWS, int THREADS, typename E>
__device__ __forceinline__ void att_load_tile(E *tile, const E *inp, size_t stride, int rows, int HS,
                                              unsigned thread = threadIdx.x) {
    constexpr int PIECES = W / 8, STEP = THREADS / PIECES;  // rows the block copies at a time
    static_assert(ROWS % STEP == 0 && STEP % 8 == 0, "every thread copies the same number of pieces");
    const int row = thread / PIECES, col = thread % PIECES * 8;
    E *to = tile + att_at<W>(row, col);
    const unsigned offset = att_opaque(row * (unsigned)stride + col);  // 64-bit addresses of all pieces would be kept
    rows = col < HS ? rows - row : 0;
#pragma unroll
    for (int i = 0; i < ROWS; i += STEP) cp_async_16(to + i * W, inp + i * stride + offset, i < rows);
}

// This warp's 16 MT rows of a tile from `row` on = acc * scale, rounded, and from there to global memory in 16-byte
// pieces: rows below `rows`, columns below HS. `out` points at the tile's row 0. (Straight from the fragments, a store
// would write 16 bytes of every 32-byte sector.)
template <int W, int MT, typename E>
__device__ __forceinline__ void att_store_rows(E *out, size_t stride, E *tile, const float (&acc)[MT][W / 8][4],
                                               const float (&scale)[MT][2], int row, int rows, int HS) {
    const int lane = att_opaque(threadIdx.x % WARP_SIZE);
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < W / 8; n++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const uint32_t pair =
                    pack_pair<E>(acc[m][n][2 * half] * scale[m][half], acc[m][n][2 * half + 1] * scale[m][half]);
                E *to = tile + row * W + lane % 4 * 2 + att_at_plus<W>(lane / 4, 0, m * 16 + half * 8, n * 8);
                *reinterpret_cast<uint32_t *>(to) = pair;
            }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < MT * 16 * W / 8 / WARP_SIZE; i++) {
        const int piece = i * WARP_SIZE + lane, r = row + piece / (W / 8), col = piece % (W / 8) * 8;
        if (r < rows && col < HS) {
            Packed<E, 8> packed = load_packed<8>(tile + att_at<W>(r, col));
            store_packed(out + r * stride + col, packed);
        }
    }
}

// ----------------------------------------------------------------------------------------------------------------
// Forward

#define ATT_FWD_QUERIES 128  // a block's
#define ATT_FWD_KEYS 64      // a step's
#define ATT_FWD_WARPS 4
#define ATT_FWD_MT 2  // pieces of 16 queries a warp

// Where a head begins: its batch entry's first token, its columns within C.
struct AttHead {
    size_t token0, column;
    __device__ __forceinline__ AttHead(int head, const AttentionShape &shape)
        : token0((size_t)(head / shape.NH) * shape.T), column((size_t)(head % shape.NH) * shape.HS) {}
};

template <bool VALUE>
struct AttBool {
    static constexpr bool value = VALUE;
};

template <typename E, int W>
struct AttForwardState {
    float acc[ATT_FWD_MT][W / 8][4];               // sum of P V
    float max[ATT_FWD_MT][2], sum[ATT_FWD_MT][2];  // raw scores' maximum; this lane's part of the sum of P
};

// One 64-key block. `offset`: this warp's first query minus the block's first key; on the DIAGONAL, 0 or 32: the block
// then ends, for this warp, at key offset + 31. `q` is used if Q_IN_REGISTERS, else the warp's rows q_tile.
template <bool DIAGONAL, bool Q_IN_REGISTERS, typename E, int W>
__device__ __forceinline__ void att_forward_step(AttForwardState<E, W> &state,
                                                 const uint32_t (&q)[ATT_FWD_MT][W / 16][4], const E *q_tile,
                                                 const E *k, const E *v, int offset, float scale_log2) {
    const int lane = threadIdx.x % WARP_SIZE;
    const int keys = DIAGONAL ? min(offset + 16 * ATT_FWD_MT, ATT_FWD_KEYS) : ATT_FWD_KEYS;
    const int distance = lane % 4 * 2 - lane / 4 - offset;  // key minus query of element 0
    float s[ATT_FWD_MT][ATT_FWD_KEYS / 8][4] = {};
#pragma unroll(Q_IN_REGISTERS ? W / 16 : 2)
    for (int d = 0; d < W; d += 16) {
        uint32_t q_d[ATT_FWD_MT][4];
#pragma unroll
        for (int m = 0; m < ATT_FWD_MT; m++) {
            if (Q_IN_REGISTERS) {
#pragma unroll
                for (int i = 0; i < 4; i++) q_d[m][i] = q[m][d / 16][i];
            } else {
                att_load_a_mk<W>(q_d[m], q_tile, m * 16, d, att_opaque(threadIdx.x % WARP_SIZE));
            }
        }
#pragma unroll
        for (int n = 0; n < ATT_FWD_KEYS; n += 16) {
            if (DIAGONAL && n >= keys) continue;
            uint32_t b[4];
            att_load_b_nk<W>(b, k, n, d);
#pragma unroll
            for (int m = 0; m < ATT_FWD_MT; m++) att_mma_pair<E>(s[m][n / 8], s[m][n / 8 + 1], q_d[m], b);
        }
    }
#pragma unroll
    for (int m = 0; m < ATT_FWD_MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float largest = state.max[m][half];
#pragma unroll
            for (int n = 0; n < ATT_FWD_KEYS / 8; n++)
#pragma unroll
                for (int x = 0; x < 2; x++) {
                    float &score = s[m][n][2 * half + x];
                    if (DIAGONAL && distance > m * 16 + half * 8 - n * 8 - x) score = -INFINITY;
                    largest = fmaxf(largest, score);
                }
            // The four lanes of a row. The first block holds key 0, which everyone sees: no maximum stays -inf.
            largest = fmaxf(largest, __shfl_xor_sync(FULL_WARP, largest, 1));
            largest = fmaxf(largest, __shfl_xor_sync(FULL_WARP, largest, 2));
            const float correction = exp2_approx((state.max[m][half] - largest) * scale_log2);
            const float shift = largest * scale_log2;
            float sum = state.sum[m][half] * correction;
#pragma unroll
            for (int n = 0; n < ATT_FWD_KEYS / 8; n++)
#pragma unroll
                for (int x = 0; x < 2; x++) {
                    float &p = s[m][n][2 * half + x];
                    p = exp2_approx(fmaf(p, scale_log2, -shift));
                    sum += p;
                }
#pragma unroll
            for (int n = 0; n < W / 8; n++) {
                state.acc[m][n][2 * half] *= correction;
                state.acc[m][n][2 * half + 1] *= correction;
            }
            state.max[m][half] = largest;
            state.sum[m][half] = sum;
        }
#pragma unroll
    for (int key = 0; key < ATT_FWD_KEYS; key += 16) {
        if (DIAGONAL && key >= keys) continue;
        uint32_t p[ATT_FWD_MT][4];
#pragma unroll
        for (int m = 0; m < ATT_FWD_MT; m++) att_round_to_a<E>(p[m], s[m][key / 8], s[m][key / 8 + 1]);
#pragma unroll
        for (int d = 0; d < W; d += 16) {
            uint32_t b[4];
            att_load_b_kn<W>(b, v, key, d);
#pragma unroll
            for (int m = 0; m < ATT_FWD_MT; m++) att_mma_pair<E>(state.acc[m][d / 8], state.acc[m][d / 8 + 1], p[m], b);
        }
    }
}

template <typename E, int W>
static constexpr size_t att_forward_shared_bytes() {
    return (size_t)(ATT_FWD_QUERIES + 4 * ATT_FWD_KEYS) * W * sizeof(E);
}

// One block: one head's 128 queries. Keys and values are double-buffered, one barrier a step. A head's tiles are
// neighbours in the grid (its k and v stay in the L2), the longest first. EXACT: HS is W.
template <typename E, int W, bool EXACT>
static __global__ void __launch_bounds__(ATT_FWD_WARPS *WARP_SIZE, 2)
    attention_forward_kernel(E *out, float *lse, const E *qkv, AttentionShape shape) {
    constexpr int THREADS = ATT_FWD_WARPS * WARP_SIZE;
    constexpr bool Q_IN_REGISTERS = W <= 64;
    DYNAMIC_SHARED(E, q_tile);
    E *k_tiles = q_tile + ATT_FWD_QUERIES * W, *v_tiles = k_tiles + 2 * ATT_FWD_KEYS * W;

    const int T = shape.T, HS = EXACT ? W : shape.HS;
    const int tiles = (T + ATT_FWD_QUERIES - 1) / ATT_FWD_QUERIES;
    const int first = (tiles - 1 - blockIdx.x % tiles) * ATT_FWD_QUERIES;
    const int row = threadIdx.x / WARP_SIZE * 16 * ATT_FWD_MT;  // this warp's first, in the tile
    const size_t stride = 3 * shape.C;
    const E *k, *v;
    {
        const AttHead head(blockIdx.x / tiles, shape);
        qkv += head.token0 * stride + head.column;
        k = qkv + shape.C, v = k + shape.C;
    }

    att_load_tile<W, ATT_FWD_QUERIES, THREADS>(q_tile, qkv + first * stride, stride, T - first, HS,
                                               att_opaque(threadIdx.x));
    att_load_tile<W, ATT_FWD_KEYS, THREADS>(k_tiles, k, stride, T, HS, att_opaque(threadIdx.x));
    att_load_tile<W, ATT_FWD_KEYS, THREADS>(v_tiles, v, stride, T, HS, att_opaque(threadIdx.x));
    cp_async_commit();

    AttForwardState<E, W> state;
#pragma unroll
    for (int m = 0; m < ATT_FWD_MT; m++) {
#pragma unroll
        for (int n = 0; n < W / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) state.acc[m][n][i] = 0;
        state.max[m][0] = state.max[m][1] = -INFINITY;
        state.sum[m][0] = state.sum[m][1] = 0;
    }
    uint32_t q[ATT_FWD_MT][W / 16][4];
    if (Q_IN_REGISTERS) {
        cp_async_wait<0>();
        __syncthreads();
#pragma unroll
        for (int m = 0; m < ATT_FWD_MT; m++)
#pragma unroll
            for (int d = 0; d < W; d += 16) att_load_a_mk<W>(q[m][d / 16], q_tile + row * W, m * 16, d);
    }
    const int end = min(first + ATT_FWD_QUERIES, T);
    auto step = [&](int key, auto diagonal) {
        const int stage = key / ATT_FWD_KEYS % 2, next = key + ATT_FWD_KEYS;
        cp_async_wait<0>();
        __syncthreads();  // this block of keys is here for all, and nobody reads the other buffer any more
        if (next < end) {
            const int to = (stage ^ 1) * ATT_FWD_KEYS * W;
            att_load_tile<W, ATT_FWD_KEYS, THREADS>(k_tiles + to, k + next * stride, stride, T - next, HS,
                                                    att_opaque(threadIdx.x));
            att_load_tile<W, ATT_FWD_KEYS, THREADS>(v_tiles + to, v + next * stride, stride, T - next, HS,
                                                    att_opaque(threadIdx.x));
        }
        cp_async_commit();
        const int offset = first + att_opaque(row) - key;
        if (offset > -16 * ATT_FWD_MT)
            att_forward_step<decltype(diagonal)::value, Q_IN_REGISTERS>(state, q, q_tile + row * W,
                                                                        k_tiles + stage * ATT_FWD_KEYS * W,
                                                                        v_tiles + stage * ATT_FWD_KEYS * W, offset,
                                                                        shape.scale_log2);
    };
    int key = 0;
    for (; key < first; key += ATT_FWD_KEYS) step(key, AttBool<false>());
    for (; key < end; key += ATT_FWD_KEYS) step(key, AttBool<true>());

    const int head_ix = att_opaque(blockIdx.x) / ((att_opaque(T) + ATT_FWD_QUERIES - 1) / ATT_FWD_QUERIES);
    const int lane = threadIdx.x % WARP_SIZE;
    const AttHead head(head_ix, shape);
    float inverse[ATT_FWD_MT][2];
#pragma unroll
    for (int m = 0; m < ATT_FWD_MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float sum = state.sum[m][half];
            sum += __shfl_xor_sync(FULL_WARP, sum, 1);
            sum += __shfl_xor_sync(FULL_WARP, sum, 2);
            inverse[m][half] = 1.0f / sum;
            const int t = first + row + m * 16 + half * 8 + lane / 4;
            if (lane % 4 == 0 && t < T) lse[(size_t)head_ix * T + t] = state.max[m][half] * shape.scale + logf(sum);
        }
    __syncwarp();  // the warp's rows of q become its rows of out
    att_store_rows<W, ATT_FWD_MT>(out + (head.token0 + first) * shape.C + head.column, shape.C, q_tile, state.acc,
                                  inverse, row, T - first, HS);
}

// ----------------------------------------------------------------------------------------------------------------
// Backward

// A block's tile: KEYS keys, 16 MT a warp, against QUERIES queries a step.
template <typename E, int W_, int MT_, int WARPS_, int QUERIES_, bool EXACT_>
struct AttBackwardTile {
    static constexpr int W = W_, MT = MT_, WARPS = WARPS_, QUERIES = QUERIES_;
    static constexpr bool EXACT = EXACT_;  // HS is W
    static constexpr int THREADS = WARPS * WARP_SIZE, KEYS = 16 * MT * WARPS;
    // dQ (QUERIES x W) is split over the warps as 2 x WARPS / 2
    static constexpr int DQ_MT = QUERIES / 32, DQ_COLS = W / (WARPS / 2), DQ_NT = DQ_COLS / 8;
    static constexpr int BLOCKS_AN_SM = WARPS == 8 ? 1 : 2;
    static constexpr size_t shared_bytes =
        (size_t)(2 * KEYS * W + 4 * QUERIES * W + KEYS * QUERIES) * sizeof(E) + 2 * QUERIES * sizeof(float2);
    static_assert(QUERIES % 32 == 0 && KEYS % QUERIES == 0 && DQ_COLS % 16 == 0, "tiles divide");
};

// What S^T (keys x queries) of a warp starts from: 0 where the query sees the key, else -inf, which the product leaves
// as it is. (Masked afterwards, the kernel needs more registers.) `offset`: first query minus first key.
template <typename Tile>
__device__ __forceinline__ void att_backward_mask(float (&s)[Tile::MT][Tile::QUERIES / 8][4], int offset) {
    const int lane = att_opaque(threadIdx.x % WARP_SIZE),
              distance = lane / 4 - lane % 4 * 2 - offset;  // key - query, element 0
#pragma unroll
    for (int m = 0; m < Tile::MT; m++)
#pragma unroll
        for (int n = 0; n < Tile::QUERIES / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) s[m][n][i] = distance > n * 8 + i % 2 - m * 16 - i / 2 * 8 ? -INFINITY : 0;
}

// From S^T and dP^T (keys x queries) of a warp to P and dS, rounded, as A operands over the queries; dS also goes to
// the warp's rows ds_tile.
template <typename Tile, typename E>
__device__ __forceinline__ void att_backward_softmax(uint32_t (&p)[Tile::MT][Tile::QUERIES / 16][4],
                                                     uint32_t (&ds)[Tile::MT][Tile::QUERIES / 16][4],
                                                     float (&s)[Tile::MT][Tile::QUERIES / 8][4],
                                                     float (&dp)[Tile::MT][Tile::QUERIES / 8][4], E *ds_tile,
                                                     const float2 *stats, float scale_log2) {
    const int lane = att_opaque(threadIdx.x % WARP_SIZE);
#pragma unroll
    for (int n = 0; n < Tile::QUERIES / 8; n++) {
        const float4 stat = *reinterpret_cast<const float4 *>(stats + n * 8 + lane % 4 * 2);  // of two queries
#pragma unroll
        for (int m = 0; m < Tile::MT; m++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float prob = exp2_approx(fmaf(s[m][n][i], scale_log2, i % 2 ? -stat.z : -stat.x));
                s[m][n][i] = prob;
                dp[m][n][i] = prob * (dp[m][n][i] - (i % 2 ? stat.w : stat.y));
            }
    }
#pragma unroll
    for (int m = 0; m < Tile::MT; m++)
#pragma unroll
        for (int n = 0; n < Tile::QUERIES / 16; n++) {
            att_round_to_a<E>(p[m][n], s[m][2 * n], s[m][2 * n + 1]);
            att_round_to_a<E>(ds[m][n], dp[m][2 * n], dp[m][2 * n + 1]);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                E *to = ds_tile + lane % 4 * 2 +
                        att_at_plus<Tile::QUERIES>(lane / 4, 0, m * 16 + i % 2 * 8, n * 16 + i / 2 * 8);
                *reinterpret_cast<uint32_t *>(to) = ds[m][n][i];
            }
        }
}

// acc (16 MT x W) += a (16 MT x QUERIES) . tile (QUERIES x W)
template <typename Tile, typename E>
__device__ __forceinline__ void att_backward_accumulate(float (&acc)[Tile::MT][Tile::W / 8][4],
                                                        const uint32_t (&a)[Tile::MT][Tile::QUERIES / 16][4],
                                                        const E *tile) {
#pragma unroll
    for (int q = 0; q < Tile::QUERIES; q += 16)
#pragma unroll
        for (int d = 0; d < Tile::W; d += 16) {
            uint32_t b[4];
            att_load_b_kn<Tile::W>(b, tile, q, d);
#pragma unroll
            for (int m = 0; m < Tile::MT; m++) att_mma_pair<E>(acc[m][d / 8], acc[m][d / 8 + 1], a[m][q / 16], b);
        }
}

// out (16 MT keys x QUERIES) += keys_tile . queries_tile^T
template <typename Tile, typename E>
__device__ __forceinline__ void att_backward_scores(float (&out)[Tile::MT][Tile::QUERIES / 8][4], const E *keys_tile,
                                                    const E *queries_tile) {
#pragma unroll
    for (int d = 0; d < Tile::W; d += 16) {
        uint32_t a[Tile::MT][4];
#pragma unroll
        for (int m = 0; m < Tile::MT; m++) att_load_a_mk<Tile::W>(a[m], keys_tile, m * 16, d);
#pragma unroll
        for (int n = 0; n < Tile::QUERIES; n += 16) {
            uint32_t b[4];
            att_load_b_nk<Tile::W>(b, queries_tile, n, d);
#pragma unroll
            for (int m = 0; m < Tile::MT; m++) att_mma_pair<E>(out[m][n / 8], out[m][n / 8 + 1], a[m], b);
        }
    }
}

// dQ (QUERIES x W) is split over the warps as 2 x WARPS / 2: this lane's first row and column. It has the pairs of
// floats at rows + 8 i, columns + 8 n.
template <typename Tile>
__device__ __forceinline__ int att_dq_row(void) {
    const int thread = att_opaque(threadIdx.x);
    return thread / WARP_SIZE % 2 * (Tile::QUERIES / 2) + thread % WARP_SIZE / 4;
}
template <typename Tile>
__device__ __forceinline__ int att_dq_col(void) {
    const int thread = att_opaque(threadIdx.x);
    return thread / (2 * WARP_SIZE) * Tile::DQ_COLS + thread % 4 * 2;
}

// The sums so far, from dq (rows HS wide, the tile's first row), or 0. Called well before they are needed.
template <typename Tile>
__device__ __forceinline__ void att_load_dq(float2 (&old)[2 * Tile::DQ_MT][Tile::DQ_NT], const float *dq,
                                            bool first_visit, int rows, int HS) {
    const int row = att_dq_row<Tile>(), col = att_dq_col<Tile>();
    const float *from = dq + att_opaque(row * HS + col);
    if (first_visit) rows = 0;
#pragma unroll
    for (int i = 0; i < 2 * Tile::DQ_MT; i++)
#pragma unroll
        for (int n = 0; n < Tile::DQ_NT; n++) {
            old[i][n] = make_float2(0, 0);
            if (row + 8 * i < rows && col + 8 * n < HS)
                old[i][n] = *reinterpret_cast<const float2 *>(from + 8 * i * HS + 8 * n);
        }
}

// sum = old + dS (QUERIES x keys) . K (keys x W), for the first `keys` keys of the block.
template <typename Tile, typename E>
__device__ __forceinline__ void att_backward_dq(float2 (&sum)[2 * Tile::DQ_MT][Tile::DQ_NT], const E *ds_tile,
                                                const E *k_tile, int keys) {
    const int lane = att_opaque(threadIdx.x % WARP_SIZE), warp = threadIdx.x / WARP_SIZE;
    const int q0 = warp % 2 * (Tile::QUERIES / 2), d0 = warp / 2 * Tile::DQ_COLS;
    float acc[Tile::DQ_MT][Tile::DQ_NT][4] = {};
#pragma unroll 2
    for (int key = 0; key < keys; key += 16) {
        uint32_t a[Tile::DQ_MT][4];
#pragma unroll
        for (int m = 0; m < Tile::DQ_MT; m++)
            att_load_a_km<Tile::QUERIES>(a[m], ds_tile + key * Tile::QUERIES, 0, q0 + m * 16, lane);
#pragma unroll
        for (int n = 0; n < Tile::DQ_COLS; n += 16) {
            uint32_t b[4];
            att_load_b_kn<Tile::W>(b, k_tile + key * Tile::W, 0, d0 + n, lane);
#pragma unroll
            for (int m = 0; m < Tile::DQ_MT; m++) att_mma_pair<E>(acc[m][n / 8], acc[m][n / 8 + 1], a[m], b);
        }
    }
#pragma unroll
    for (int i = 0; i < 2 * Tile::DQ_MT; i++)
#pragma unroll
        for (int n = 0; n < Tile::DQ_NT; n++) {
            sum[i][n].x += acc[i / 2][n][i % 2 * 2];
            sum[i][n].y += acc[i / 2][n][i % 2 * 2 + 1];
        }
}

// The sums to dq as they are, or (`final`) scaled and rounded to rows `stride` apart.
template <typename Tile>
__device__ __forceinline__ void att_store_dq(float *dq, const float2 (&sum)[2 * Tile::DQ_MT][Tile::DQ_NT], int rows,
                                             int HS) {
    const int row = att_dq_row<Tile>(), col = att_dq_col<Tile>();
    float *to = dq + att_opaque(row * HS + col);
#pragma unroll
    for (int i = 0; i < 2 * Tile::DQ_MT; i++)
#pragma unroll
        for (int n = 0; n < Tile::DQ_NT; n++)
            if (row + 8 * i < rows && col + 8 * n < HS)
                *reinterpret_cast<float2 *>(to + 8 * i * HS + 8 * n) = sum[i][n];
}
template <typename Tile, typename E>
__device__ __forceinline__ void att_store_final_dq(E *dqkv, size_t stride,
                                                   const float2 (&sum)[2 * Tile::DQ_MT][Tile::DQ_NT], float scale,
                                                   int rows, int HS) {
    const int row = att_dq_row<Tile>(), col = att_dq_col<Tile>();
    E *to = dqkv + row * stride + col;
#pragma unroll
    for (int i = 0; i < 2 * Tile::DQ_MT; i++)
#pragma unroll
        for (int n = 0; n < Tile::DQ_NT; n++)
            if (row + 8 * i < rows && col + 8 * n < HS)
                *reinterpret_cast<uint32_t *>(to + 8 * i * stride + 8 * n) =
                    pack_pair<E>(sum[i][n].x * scale, sum[i][n].y * scale);
}

// Where a head begins in the tensors. In shared memory, as the kernel has no registers for what it needs once a step.
struct AttHeadOffsets {
    size_t qkv, out, stats, dq;
};

// One block: key blocks split, split + splits, .. of one head. dq (splits, B NH, T, HS) f32. Two barriers a step: the
// next queries are copied while the warps compute; dS of all warps is complete before dQ.
template <typename Tile, typename E>
static __global__ void __launch_bounds__(Tile::THREADS, Tile::BLOCKS_AN_SM)
    attention_backward_kernel(E *dqkv, const E *dout, const E *qkv, const float2 *stats, float *dq, int splits,
                              AttentionShape shape) {
    constexpr int W = Tile::W, KEYS = Tile::KEYS, QUERIES = Tile::QUERIES, MT = Tile::MT, THREADS = Tile::THREADS;
    DYNAMIC_SHARED(E, k_tile);
    E *v_tile = k_tile + KEYS * W, *q_tiles = v_tile + KEYS * W, *dout_tiles = q_tiles + 2 * QUERIES * W;
    E *ds_tile = dout_tiles + 2 * QUERIES * W;
    float2 *stat_tiles = reinterpret_cast<float2 *>(ds_tile + KEYS * QUERIES);

    const int T = shape.T, HS = Tile::EXACT ? W : shape.HS, heads = gridDim.x / splits;
    const int head = blockIdx.x / splits, split = blockIdx.x % splits;
    const int row = threadIdx.x / WARP_SIZE * 16 * MT;  // this warp's first key, in the tile
    const size_t stride = 3 * shape.C;
    __shared__ AttHeadOffsets at;
    if (threadIdx.x == 0) {
        at.out = (size_t)(head / shape.NH) * T * shape.C + (size_t)(head % shape.NH) * HS;
        at.qkv = (size_t)(head / shape.NH) * T * stride + (size_t)(head % shape.NH) * HS;
        at.stats = (size_t)head * shape.T_padded;
        at.dq = ((size_t)split * heads + head) * T * HS;
    }

    auto load_queries = [&](int query, int stage) {
        const E *q = qkv + at.qkv + query * stride, *dout_q = dout + at.out + query * shape.C;
        att_load_tile<W, QUERIES, THREADS>(q_tiles + stage * QUERIES * W, q, stride, T - query, HS);
        att_load_tile<W, QUERIES, THREADS>(dout_tiles + stage * QUERIES * W, dout_q, shape.C, T - query, HS);
        if (threadIdx.x < QUERIES / 2)
            cp_async_16(stat_tiles + stage * QUERIES + threadIdx.x * 2, stats + at.stats + query + threadIdx.x * 2);
    };
    for (int key = split * KEYS; key < T; key += splits * KEYS) {
        __syncthreads();  // `at` is here, and nobody reads the last block's tiles any more
        att_load_tile<W, KEYS, THREADS>(k_tile, qkv + at.qkv + shape.C + key * stride, stride, T - key, HS);
        att_load_tile<W, KEYS, THREADS>(v_tile, qkv + at.qkv + 2 * shape.C + key * stride, stride, T - key, HS);
        load_queries(key, 0);
        cp_async_commit();
        float dk[MT][W / 8][4] = {}, dv[MT][W / 8][4] = {};
        int stage = 0;
        for (int query = key; query < T; query += QUERIES, stage ^= 1) {
            cp_async_wait<0>();
            __syncthreads();  // the tiles are here for all, and nobody reads the other stage or ds_tile any more
            if (query + QUERIES < T) load_queries(query + QUERIES, stage ^ 1);
            cp_async_commit();
            const E *q_tile = q_tiles + stage * QUERIES * W, *dout_tile = dout_tiles + stage * QUERIES * W;
            float *dq_tile = dq + at.dq + (size_t)query * HS;
            const bool first_visit = key == split * KEYS;
            float2 dq_sum[2 * Tile::DQ_MT][Tile::DQ_NT];
            if (query - key + QUERIES > row) {  // a query here sees a key of this warp
                uint32_t p[MT][QUERIES / 16][4], ds[MT][QUERIES / 16][4];
                {
                    float s[MT][QUERIES / 8][4], dp[MT][QUERIES / 8][4] = {};
                    att_backward_mask<Tile>(s, query - key - row);
                    att_backward_scores<Tile>(s, k_tile + row * W, q_tile);
                    att_backward_scores<Tile>(dp, v_tile + row * W, dout_tile);
                    att_backward_softmax<Tile>(p, ds, s, dp, ds_tile + row * QUERIES, stat_tiles + stage * QUERIES,
                                               shape.scale_log2);
                }
                __syncwarp();  // keeps the next loads, and their registers, out of the phase above
                att_load_dq<Tile>(dq_sum, dq_tile, first_visit, T - query, HS);
                att_backward_accumulate<Tile>(dv, p, dout_tile);
                att_backward_accumulate<Tile>(dk, ds, q_tile);
            } else {
                att_load_dq<Tile>(dq_sum, dq_tile, first_visit, T - query, HS);
            }
            __syncthreads();  // dS is complete
            att_backward_dq<Tile>(dq_sum, ds_tile, k_tile, min(query - key + QUERIES, KEYS));
            if (splits == 1 && query - key < KEYS)  // the last visit
                att_store_final_dq<Tile>(dqkv + at.qkv + query * stride, stride, dq_sum, shape.scale, T - query, HS);
            else att_store_dq<Tile>(dq_tile, dq_sum, T - query, HS);
        }
        __syncthreads();  // the tiles of k and v become those of dk and dv
        float scale[MT][2], one[MT][2];
#pragma unroll
        for (int m = 0; m < MT; m++) scale[m][0] = scale[m][1] = shape.scale, one[m][0] = one[m][1] = 1;
        att_store_rows<W, MT>(dqkv + at.qkv + shape.C + key * stride, stride, k_tile, dk, scale, row, T - key, HS);
        att_store_rows<W, MT>(dqkv + at.qkv + 2 * shape.C + key * stride, stride, v_tile, dv, one, row, T - key, HS);
    }
}

// dqkv's q part = the sum over the splits, in order, of those that saw the query; scaled, rounded. 8 columns a thread.
template <typename E>
static __global__ void __launch_bounds__(256)
    attention_dq_kernel(E *dqkv, const float *dq, int splits, int keys, size_t heads, AttentionShape shape) {
    const size_t i = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * 8, n = heads * shape.T * shape.HS;
    if (i >= n) return;
    const size_t d = i % shape.HS, t = i / shape.HS % shape.T, head = i / shape.HS / shape.T;
    float sum[8], more[8];
    load_floats(sum, dq + i);
    for (int split = 1; split < splits && (size_t)split * keys <= t; split++) {
        load_floats(more, dq + split * n + i);
#pragma unroll
        for (int x = 0; x < 8; x++) sum[x] += more[x];
    }
#pragma unroll
    for (int x = 0; x < 8; x++) sum[x] *= shape.scale;
    store_floats(dqkv + (head / shape.NH * shape.T + t) * 3 * shape.C + head % shape.NH * shape.HS + d, sum);
}

// Blocks that share a head, of the key blocks there are.
static inline size_t att_splits(size_t B, size_t T, size_t NH, size_t keys) {
    return max_size(min_size(ceil_div(ATT_SPLITS_TARGET, B * NH), ceil_div(T, keys)), 1);
}

template <typename Tile, typename E>
static inline void att_backward_mma(E *dqkv, const E *dout, const E *qkv, const float2 *stats, float *dq, size_t B,
                                    AttentionShape shape, size_t splits, cudaStream_t stream) {
    size_t heads = B * shape.NH;
    launch((attention_backward_kernel<Tile, E>), grid_1d(heads * splits), Tile::THREADS, Tile::shared_bytes, stream,
           dqkv, dout, qkv, stats, dq, (int)splits, shape);
    if (splits > 1)
        launch((attention_dq_kernel<E>), grid_1d(ceil_div(heads * shape.T * shape.HS / 8, 256)), 256, 0, stream, dqkv,
               dq, (int)splits, Tile::KEYS, heads, shape);
}

// ----------------------------------------------------------------------------------------------------------------
// The calls

// Whether the tensor core kernels take this type and head size.
template <typename E>
static inline bool att_on_tensor_cores(size_t HS) {
    return sizeof(E) == 2 && HS % 8 == 0 && HS <= 128;
}

// Keys a block of the backward kernel: with 128 columns, 128 of them need more shared memory (145 KiB) than sm_89 and
// sm_120 have (99).
static inline bool att_large_blocks(void) { return device_info()->shared_block_bytes >= (size_t)146 << 10; }
static inline size_t att_block_keys(size_t HS) { return HS <= 64 || (HS == 128 && att_large_blocks()) ? 128 : 64; }

// Floats of scratch of attention_backward; attention_forward needs none.
template <typename E>
static inline size_t attention_scratch_elems(size_t B, size_t T, size_t C, size_t NH) {
    size_t HS = C / NH, stats = 2 * B * NH * round_up(T, ATT_STATS_PAD);
    if (!att_on_tensor_cores<E>(HS)) return stats;
    return stats + att_splits(B, T, NH, att_block_keys(HS)) * B * T * C;
}

// attention_forward: the contract is attention.h's; E: storage of out and qkv; GPU: 16-byte pointers, HS <= 256.
// scratch is not used (NULL will do). Moves qkv once from memory, 4 C elements a token, k and v again from the L2.
template <typename E>
static inline void attention_forward(E *out, float *lse, const E *qkv, size_t B, size_t T, size_t C, size_t NH,
                                     float *scratch, cudaStream_t stream) {
    AttentionShape shape = attention_shape(T, C, NH);
    const double rows = (double)B * (double)T, pairs = rows * (double)(T + 1) / 2;
    DeviceOp op("attention_forward", rows * (4.0 * (double)C * sizeof(E) + 4.0 * (double)NH), 4 * pairs * (double)C, stream);
    (void)scratch;
    if constexpr (sizeof(E) == 2) {
        if (att_on_tensor_cores<E>(shape.HS)) {
            dim3 grid = grid_1d(B * NH * ceil_div(T, ATT_FWD_QUERIES));
            const unsigned threads = ATT_FWD_WARPS * WARP_SIZE;
#define ATT_LAUNCH_FORWARD(W, exact)                                                                                \
    launch((attention_forward_kernel<E, W, exact>), grid, threads, (att_forward_shared_bytes<E, W>()), stream, out, \
           lse, qkv, shape)
            if (shape.HS == 64) ATT_LAUNCH_FORWARD(64, true);
            else if (shape.HS == 128) ATT_LAUNCH_FORWARD(128, true);
            else if (shape.HS <= 32) ATT_LAUNCH_FORWARD(32, false);
            else if (shape.HS < 64) ATT_LAUNCH_FORWARD(64, false);
            else ATT_LAUNCH_FORWARD(128, false);
#undef ATT_LAUNCH_FORWARD
            return;
        }
    }
    attention_forward_plain(out, lse, qkv, B, shape, stream);
}

// attention_backward with a given number of splits (at most attention_scratch_elems' own: a test's way to every path).
template <typename E>
static inline void att_backward(E *dqkv, const E *dout, const E *qkv, const E *out, const float *lse, size_t B,
                                size_t splits, AttentionShape shape, float *scratch, cudaStream_t stream) {
    float2 *stats = reinterpret_cast<float2 *>(scratch);
    attention_stats(stats, dout, out, lse, B, shape, stream);
    if constexpr (sizeof(E) == 2) {
        if (att_on_tensor_cores<E>(shape.HS)) {
            float *dq = scratch + 2 * B * shape.NH * shape.T_padded;
#define ATT_BACKWARD(...) \
    att_backward_mma<AttBackwardTile<E, __VA_ARGS__>>(dqkv, dout, qkv, stats, dq, B, shape, splits, stream)
            if (shape.HS == 64) ATT_BACKWARD(64, 2, 4, 32, true);
            else if (shape.HS == 128 && att_large_blocks()) ATT_BACKWARD(128, 1, 8, 64, true);
            else if (shape.HS <= 32) ATT_BACKWARD(32, 2, 4, 32, false);
            else if (shape.HS < 64) ATT_BACKWARD(64, 2, 4, 32, false);
            else ATT_BACKWARD(128, 1, 4, 32, false);
#undef ATT_BACKWARD
            return;
        }
    }
    attention_backward_plain(dqkv, dout, qkv, stats, B, shape, stream);
}

// attention_backward: the contract is attention.h's. scratch: attention_scratch_elems<E>(B, T, C, NH) floats, 16-byte
// aligned. Deterministic: see the head of this file.
template <typename E>
static inline void attention_backward(E *dqkv, const E *dout, const E *qkv, const E *out, const float *lse, size_t B,
                                      size_t T, size_t C, size_t NH, float *scratch, cudaStream_t stream) {
    // out and dout for their product's row sums, then qkv, dout and dqkv
    const double rows = (double)B * (double)T, pairs = rows * (double)(T + 1) / 2;
    DeviceOp op("attention_backward", rows * (9.0 * (double)C * sizeof(E) + 4.0 * (double)NH), 10 * pairs * (double)C,
                stream);
    att_backward(dqkv, dout, qkv, out, lse, B, att_splits(B, T, NH, att_block_keys(C / NH)), attention_shape(T, C, NH),
                 scratch, stream);
}

#endif
