// attention.h: causal multi-head self-attention, forward and backward, and one step of it with a KV cache.
//
// Flash attention (Milakov & Gimelshein 2018 for the running softmax, Dao 2022 and 2023 for the tiling and the
// backward pass): 64 queries meet 64 keys at a time, the T x T scores never exist; memory is O(T) a head.
//
// Where values round (the GPU twin does the same with the same 64-key blocks): scores, maxima, exps and sums are fp32;
// P = exp(score - running max) goes through round_act before P V, its row sum is taken before that; in the backward
// pass P = exp(score - lse) goes through round_act before it makes dV, and dS = P (dP - D) through round_grad before
// it makes dQ and dK.
//
// Layout of a tile. Scores are kept transposed, keys down and queries across, so that the softmax of 16 queries runs
// in 16 lanes without any sum across lanes. Every product is then one form, att_rows(): scalars of the one operand
// times rows of the other. Only Q (and dO) must be transposed, once a tile. Blocks on the diagonal skip what is above
// it, R rows at a time.
#ifndef LLMC_ATTENTION_H
#define LLMC_ATTENTION_H

#include <math.h>

#include "precision.h"
#include "simd.h"
#include "utils.h"
#include "vmath.h"

CPU_TWIN_BEGIN

#define ATT_TILE ((size_t)64)  // queries a tile and keys a block
#if VEC_REGISTERS >= 32
#define ATT_ROWS 8  // rows of att_product's register block, times two vectors: 16 sums
#else
#define ATT_ROWS 4
#endif

// One head's view of the arguments, and what its strides are.
typedef struct {
    size_t T, C, HS, HSp;  // HSp: HS rounded up to whole vectors, the stride of packed rows
    float scale;           // 1 / sqrt(HS)
} AttShape;

static inline AttShape att_shape(size_t T, size_t C, size_t NH) {
    AttShape shape;
    shape.T = T;
    shape.C = C;
    shape.HS = C / NH;
    shape.HSp = round_up(shape.HS, VEC_WIDTH);
    shape.scale = 1.0f / sqrtf((float)shape.HS);
    return shape;
}

// What one thread works in.
typedef struct {
    float *q, *k, *v, *dout;  // (64, HSp) packed blocks, zero beyond HS and beyond T
    float *qt, *doutt;        // (HSp, 64) transposed
    float *p, *ds;            // (64 keys, 64 queries)
    float *acc;               // (64, HSp) out or dQ of the tile
    float *dk, *dv;           // (T rounded up to 64, HSp)
} AttScratch;

static inline size_t att_thread_scratch_elems(size_t T, size_t C, size_t NH) {
    size_t HSp = round_up(C / NH, VEC_WIDTH);
    return 7 * ATT_TILE * HSp + 2 * ATT_TILE * ATT_TILE + 2 * round_up(T, ATT_TILE) * HSp;
}

static inline AttScratch att_scratch(float *scratch, AttShape shape) {
    AttScratch s;
    size_t block = ATT_TILE * shape.HSp;
    s.q = scratch;
    s.k = s.q + block;
    s.v = s.k + block;
    s.dout = s.v + block;
    s.qt = s.dout + block;
    s.doutt = s.qt + block;
    s.acc = s.doutt + block;
    s.p = s.acc + block;
    s.ds = s.p + ATT_TILE * ATT_TILE;
    s.dk = s.ds + ATT_TILE * ATT_TILE;
    s.dv = s.dk + round_up(shape.T, ATT_TILE) * shape.HSp;
    return s;
}

// Floats of scratch that attention_forward and attention_backward need with up to `threads` threads.
static inline size_t attention_scratch_elems(size_t T, size_t C, size_t NH, int threads) {
    return (size_t)threads * att_thread_scratch_elems(T, C, NH);
}

// ----------------------------------------------------------------------------------------------------------------
// Tiles

// out (ATT_ROWS, `vectors` vectors) = or += sum over k of a[r a_row + k a_k] * b[k][...]. `vectors` and `add` are
// constants where this is called.
ALWAYS_INLINE void att_product(float *out, size_t out_stride, const float *a, size_t a_row, size_t a_k, const float *b,
                               size_t b_stride, size_t K, const int vectors, int add) {
    vecf sum[ATT_ROWS][2];
#pragma GCC unroll 8
    for (int r = 0; r < ATT_ROWS; r++)
#pragma GCC unroll 2
        for (int i = 0; i < vectors; i++)
            sum[r][i] = add ? vec_load(out + (size_t)r * out_stride + (size_t)i * VEC_WIDTH) : vec_zero();
    for (size_t k = 0; k < K; k++) {
        vecf b0 = vec_load(b + k * b_stride);
        vecf b1 = vectors > 1 ? vec_load(b + k * b_stride + VEC_WIDTH) : b0;
#pragma GCC unroll 8
        for (int r = 0; r < ATT_ROWS; r++) {
            vecf a_rk = vec_set1(a[(size_t)r * a_row + k * a_k]);
            sum[r][0] = vec_fma(a_rk, b0, sum[r][0]);
            if (vectors > 1) sum[r][1] = vec_fma(a_rk, b1, sum[r][1]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < ATT_ROWS; r++)
#pragma GCC unroll 2
        for (int i = 0; i < vectors; i++) vec_store(out + (size_t)r * out_stride + (size_t)i * VEC_WIDTH, sum[r][i]);
}

// ATT_ROWS rows of a product, `columns` (whole vectors) wide.
static inline void att_rows(float *out, size_t out_stride, const float *a, size_t a_row, size_t a_k, const float *b,
                            size_t b_stride, size_t K, size_t columns, int add) {
    size_t c = 0;
    for (; c + 2 * VEC_WIDTH <= columns; c += 2 * VEC_WIDTH)
        att_product(out + c, out_stride, a, a_row, a_k, b + c, b_stride, K, 2, add);
    if (c < columns) att_product(out + c, out_stride, a, a_row, a_k, b + c, b_stride, K, 1, add);
}

// `rows` <= 64 rows of HS floats, `stride` apart, into packed (64, HSp), zero around them. (A plain loop becomes a call
// of memcpy for each short row.)
static inline void att_pack(float *RESTRICT packed, const float *RESTRICT inp, size_t stride, size_t rows,
                            AttShape shape) {
    for (size_t i = 0; i < rows; i++) {
        float *to = packed + i * shape.HSp;
        const float *from = inp + i * stride;
        size_t d = 0;
        for (; d + VEC_WIDTH <= shape.HS; d += VEC_WIDTH) vec_store(to + d, vec_load(from + d));
        if (d < shape.HS) vec_store(to + d, vec_load_partial(from + d, shape.HS - d));
    }
    if (rows < ATT_TILE) memset(packed + rows * shape.HSp, 0, (ATT_TILE - rows) * shape.HSp * sizeof(float));
}

// (64, HSp) -> (HSp, 64)
static inline void att_transpose(float *RESTRICT out, const float *RESTRICT inp, AttShape shape) {
    for (size_t i = 0; i < ATT_TILE; i += VEC_WIDTH)
        for (size_t d = 0; d < shape.HSp; d += VEC_WIDTH) {
            vecf square[VEC_WIDTH];
#pragma GCC unroll 16
            for (size_t r = 0; r < VEC_WIDTH; r++) square[r] = vec_load(inp + (i + r) * shape.HSp + d);
            vec_transpose(square);
#pragma GCC unroll 16
            for (size_t r = 0; r < VEC_WIDTH; r++) vec_store(out + (d + r) * ATT_TILE + i, square[r]);
        }
}

// scores (keys, queries) = a (64, HSp) . bt (HSp, 64). On the diagonal, a group of keys needs no query before its
// first.
static inline void att_scores(float *scores, const float *a, const float *bt, size_t keys, size_t queries, int diagonal,
                              AttShape shape) {
    size_t end = round_up(queries, VEC_WIDTH);
    for (size_t j = 0; j < keys; j += ATT_ROWS) {
        size_t first = diagonal ? j / VEC_WIDTH * VEC_WIDTH : 0;
        if (first < end)
            att_rows(scores + j * ATT_TILE + first, ATT_TILE, a + j * shape.HSp, shape.HSp, 1, bt + first, ATT_TILE,
                     shape.HS, end - first, 0);
    }
}

// acc (queries, HSp) += scores^T . b (keys, HSp): out from P and V, dQ from dS and K.
static inline void att_per_query(float *acc, const float *scores, const float *b, size_t keys, size_t queries,
                                 int diagonal, AttShape shape) {
    for (size_t i = 0; i < queries; i += ATT_ROWS) {
        size_t K = diagonal ? min_size(keys, i + ATT_ROWS) : keys;
        att_rows(acc + i * shape.HSp, shape.HSp, scores + i, 1, ATT_TILE, b, shape.HSp, K, shape.HSp, 1);
    }
}

// acc (keys, HSp) += scores . b (queries, HSp): dV from P and dO, dK from dS and Q.
static inline void att_per_key(float *acc, const float *scores, const float *b, size_t keys, size_t queries,
                               int diagonal, AttShape shape) {
    for (size_t j = 0; j < keys; j += ATT_ROWS) {
        size_t first = diagonal ? j : 0;
        if (first < queries)
            att_rows(acc + j * shape.HSp, shape.HSp, scores + j * ATT_TILE + first, ATT_TILE, 1, b + first * shape.HSp,
                     shape.HSp, queries - first, shape.HSp, 1);
    }
}

// The keys of a block that VEC_WIDTH queries from `lane` on can see; rows beyond are not read by anyone. On the
// diagonal the scores of keys after their query become -inf here, so that what follows need not know about it: exp
// makes 0 of them. (Masking inside the softmax loops made gcc give up on vector code.)
static inline size_t att_mask(float *scores, size_t keys, size_t lane, int diagonal) {
    if (!diagonal) return keys;
    keys = round_up(min_size(keys, lane + VEC_WIDTH), ATT_ROWS);  // the products read whole groups of keys
    for (size_t j = lane + 1; j < keys; j++)
        for (size_t i = lane; i < j; i++) scores[j * ATT_TILE + i] = -INFINITY;
    return keys;
}

// ----------------------------------------------------------------------------------------------------------------
// Forward

// One block's turn of the running softmax for VEC_WIDTH queries: raw scores in p become P; the new maximum and sum go
// to max and sum; `correction` is what the earlier blocks' sums must be multiplied with.
static inline void att_softmax_lanes(float *RESTRICT p, float *RESTRICT max, float *RESTRICT sum,
                                     float *RESTRICT correction, size_t keys, float scale) {
    float new_max[VEC_WIDTH], new_sum[VEC_WIDTH];
    const vecf scales = vec_set1(scale);
    vecf largest = vec_load(max);
    for (size_t j = 0; j < keys; j++) {
        vecf score = vec_load(p + j * ATT_TILE) * scales;
        vec_store(p + j * ATT_TILE, score);
        largest = vec_max(score, largest);
    }
    vec_store(new_max, largest);
    for (size_t i = 0; i < VEC_WIDTH; i++) {
        correction[i] = vexpf(max[i] - new_max[i]);
        new_sum[i] = sum[i] * correction[i];
    }
    for (size_t j = 0; j < keys; j++)
        for (size_t i = 0; i < VEC_WIDTH; i++) {
            float e = vexpf(p[j * ATT_TILE + i] - new_max[i]);
            new_sum[i] += e;
            p[j * ATT_TILE + i] = round_act(e);
        }
    for (size_t i = 0; i < VEC_WIDTH; i++) {
        max[i] = new_max[i];
        sum[i] = new_sum[i];
    }
}

// One head's queries first..first+63. q, k, v point at the head's first row of each, rows 3C apart.
static inline void att_forward_tile(float *out, float *lse, const float *qkv, size_t first, AttShape shape,
                                    AttScratch s) {
    float max[ATT_TILE], sum[ATT_TILE], correction[ATT_TILE];
    size_t stride = 3 * shape.C, queries = min_size(ATT_TILE, shape.T - first);
    att_pack(s.q, qkv + first * stride, stride, queries, shape);
    att_transpose(s.qt, s.q, shape);
    memset(s.acc, 0, ATT_TILE * shape.HSp * sizeof(float));
    for (size_t i = 0; i < ATT_TILE; i++) {
        max[i] = -INFINITY;
        sum[i] = 0.0f;
    }
    for (size_t key = 0; key <= first; key += ATT_TILE) {
        size_t keys = min_size(ATT_TILE, shape.T - key);
        int diagonal = key == first;
        att_pack(s.k, qkv + shape.C + key * stride, stride, keys, shape);
        att_pack(s.v, qkv + 2 * shape.C + key * stride, stride, keys, shape);
        att_scores(s.p, s.k, s.qt, keys, queries, diagonal, shape);
        for (size_t i = 0; i < queries; i += VEC_WIDTH) {
            size_t visible = att_mask(s.p, keys, i, diagonal);
            att_softmax_lanes(s.p + i, max + i, sum + i, correction + i, visible, shape.scale);
        }
        if (key > 0)
            for (size_t i = 0; i < queries; i++)
                for (size_t d = 0; d < shape.HSp; d++) s.acc[i * shape.HSp + d] *= correction[i];
        att_per_query(s.acc, s.p, s.v, keys, queries, diagonal, shape);
    }
    for (size_t i = 0; i < queries; i++) {
        float inverse = 1.0f / sum[i];
        float *RESTRICT out_i = out + (first + i) * shape.C;
        for (size_t d = 0; d < shape.HS; d++) out_i[d] = round_act(s.acc[i * shape.HSp + d] * inverse);
        lse[first + i] = max[i] + logf(sum[i]);
    }
}

// attention_forward: out = softmax(causal(q k^T / sqrt(HS))) v, head by head
//   out (B, T, C) act =      lse (B, NH, T) f32 =, log of the sum of exps of each query's scores, kept for backward
//   qkv (B, T, 3C) act: q, k, v side by side, in each of them head h at columns h HS to (h+1) HS, HS = C / NH
//   scratch: attention_scratch_elems floats      any HS and T >= 1; out rounds once, at its store
//   A query's output depends on no later position, bit for bit.
static inline void attention_forward(float *out, float *lse, const float *qkv, size_t B, size_t T, size_t C, size_t NH,
                                     float *scratch) {
    AttShape shape = att_shape(T, C, NH);
    size_t tiles = ceil_div(T, ATT_TILE);
    // Late tiles are the long ones; they are handed out first.
#pragma omp parallel for schedule(dynamic)
    for (size_t item = 0; item < B * NH * tiles; item++) {
        size_t tile = tiles - 1 - item / (B * NH), b = item % (B * NH) / NH, h = item % NH;
        AttScratch s = att_scratch(scratch + (size_t)thread_index() * att_thread_scratch_elems(T, C, NH), shape);
        att_forward_tile(out + b * T * C + h * shape.HS, lse + (b * NH + h) * T, qkv + b * T * 3 * C + h * shape.HS,
                         tile * ATT_TILE, shape, s);
    }
}

// ----------------------------------------------------------------------------------------------------------------
// Backward

// Raw scores in p and dP in ds, for VEC_WIDTH queries, become P and dS.
static inline void att_dscores_lanes(float *RESTRICT p, float *RESTRICT ds, const float *RESTRICT lse,
                                     const float *RESTRICT D, size_t keys, float scale) {
    for (size_t j = 0; j < keys; j++)
        for (size_t i = 0; i < VEC_WIDTH; i++) {
            size_t ix = j * ATT_TILE + i;
            float prob = vexpf(p[ix] * scale - lse[i]);
            ds[ix] = round_grad(prob * (ds[ix] - D[i]));
            p[ix] = round_act(prob);
        }
}

// D = rowsum(dO * O), which is also the sum of P dP over the keys.
static inline float att_row_dot(const float *RESTRICT a, const float *RESTRICT b, size_t n) {
    vecf sum = vec_zero();
    size_t i = 0;
    for (; i + VEC_WIDTH <= n; i += VEC_WIDTH) sum = vec_fma(vec_load(a + i), vec_load(b + i), sum);
    if (i < n) sum = vec_fma(vec_load_partial(a + i, n - i), vec_load_partial(b + i, n - i), sum);
    return vec_sum(sum);
}

// Stores `rows` rows of gradients, HS wide, 3C apart, times `scale`.
static inline void att_store_grad(float *dqkv, const float *acc, float scale, size_t rows, AttShape shape) {
    for (size_t i = 0; i < rows; i++) {
        float *RESTRICT to = dqkv + i * 3 * shape.C;
        const float *RESTRICT from = acc + i * shape.HSp;
        for (size_t d = 0; d < shape.HS; d++) to[d] = round_grad(from[d] * scale);
    }
}

// One head's queries first..first+63: dQ stored, dK and dV of the keys they see added to s.dk and s.dv.
static inline void att_backward_tile(float *dqkv, const float *dout, const float *qkv, const float *out,
                                     const float *lse, size_t first, AttShape shape, AttScratch s) {
    float D[ATT_TILE] = {0}, tile_lse[ATT_TILE] = {0};
    size_t stride = 3 * shape.C, queries = min_size(ATT_TILE, shape.T - first);
    att_pack(s.q, qkv + first * stride, stride, queries, shape);
    att_transpose(s.qt, s.q, shape);
    att_pack(s.dout, dout + first * shape.C, shape.C, queries, shape);
    att_transpose(s.doutt, s.dout, shape);
    for (size_t i = 0; i < queries; i++) {
        D[i] = att_row_dot(s.dout + i * shape.HSp, out + (first + i) * shape.C, shape.HS);
        tile_lse[i] = lse[first + i];
    }
    memset(s.acc, 0, ATT_TILE * shape.HSp * sizeof(float));
    for (size_t key = 0; key <= first; key += ATT_TILE) {
        size_t keys = min_size(ATT_TILE, shape.T - key);
        int diagonal = key == first;
        att_pack(s.k, qkv + shape.C + key * stride, stride, keys, shape);
        att_pack(s.v, qkv + 2 * shape.C + key * stride, stride, keys, shape);
        att_scores(s.p, s.k, s.qt, keys, queries, diagonal, shape);
        att_scores(s.ds, s.v, s.doutt, keys, queries, diagonal, shape);
        for (size_t i = 0; i < queries; i += VEC_WIDTH) {
            size_t visible = att_mask(s.p, keys, i, diagonal);
            att_dscores_lanes(s.p + i, s.ds + i, tile_lse + i, D + i, visible, shape.scale);
        }
        att_per_key(s.dv + key * shape.HSp, s.p, s.dout, keys, queries, diagonal, shape);
        att_per_key(s.dk + key * shape.HSp, s.ds, s.q, keys, queries, diagonal, shape);
        att_per_query(s.acc, s.ds, s.k, keys, queries, diagonal, shape);
    }
    att_store_grad(dqkv + first * stride, s.acc, shape.scale, queries, shape);
}

// attention_backward
//   dqkv (B, T, 3C) grad =      dout (B, T, C) grad      qkv, out, lse: the forward pass's
//   scratch: attention_scratch_elems floats. A head is one thread's; its sums run over tiles in ascending order.
static inline void attention_backward(float *dqkv, const float *dout, const float *qkv, const float *out,
                                      const float *lse, size_t B, size_t T, size_t C, size_t NH, float *scratch) {
    AttShape shape = att_shape(T, C, NH);
#pragma omp parallel for schedule(dynamic)
    for (size_t item = 0; item < B * NH; item++) {
        AttScratch s = att_scratch(scratch + (size_t)thread_index() * att_thread_scratch_elems(T, C, NH), shape);
        size_t head = item / NH * T * C + item % NH * shape.HS;       // in out and dout
        size_t head3 = item / NH * T * 3 * C + item % NH * shape.HS;  // in qkv and dqkv
        memset(s.dk, 0, round_up(T, ATT_TILE) * shape.HSp * sizeof(float));
        memset(s.dv, 0, round_up(T, ATT_TILE) * shape.HSp * sizeof(float));
        for (size_t first = 0; first < T; first += ATT_TILE)
            att_backward_tile(dqkv + head3, dout + head, qkv + head3, out + head, lse + item * T, first, shape, s);
        att_store_grad(dqkv + head3 + C, s.dk, shape.scale, T, shape);
        att_store_grad(dqkv + head3 + 2 * C, s.dv, 1.0f, T, shape);
    }
}

// ----------------------------------------------------------------------------------------------------------------
// Sampling

// One head of attention_decode: the same running softmax over blocks of 64 keys, for one query.
static inline void att_decode_head(float *RESTRICT out, const float *q, const float *k, const float *v, size_t keys,
                                   AttShape shape) {
    float max = -INFINITY, sum = 0.0f;
    for (size_t d = 0; d < shape.HS; d++) out[d] = 0.0f;
    for (size_t key = 0; key < keys; key += ATT_TILE) {
        float p[ATT_TILE], new_max = max;
        size_t n = min_size(ATT_TILE, keys - key);
        for (size_t j = 0; j < n; j++) {
            p[j] = att_row_dot(q, k + (key + j) * shape.C, shape.HS) * shape.scale;
            new_max = p[j] > new_max ? p[j] : new_max;
        }
        float correction = vexpf(max - new_max);
        max = new_max;
        sum *= correction;
        for (size_t d = 0; d < shape.HS; d++) out[d] *= correction;
        for (size_t j = 0; j < n; j++) {
            float e = vexpf(p[j] - max), rounded = round_act(e);
            const float *RESTRICT v_j = v + (key + j) * shape.C;
            sum += e;
            for (size_t d = 0; d < shape.HS; d++) out[d] = fmaf(rounded, v_j[d], out[d]);
        }
    }
    float inverse = 1.0f / sum;
    for (size_t d = 0; d < shape.HS; d++) out[d] = round_act(out[d] * inverse);
}

// attention_decode: attention of one new token at position `pos` over itself and the `pos` tokens before it
//   out (C) act =      qkv_t (3C) act, the new token's      kcache, vcache (> pos, C) act: rows 0..pos-1 hold the
//   earlier tokens' k and v, row pos is written here      agrees with attention_forward up to the order of sums
static inline void attention_decode(float *out, const float *qkv_t, float *kcache, float *vcache, size_t pos, size_t C,
                                    size_t NH) {
    AttShape shape = att_shape(pos + 1, C, NH);
    memcpy(kcache + pos * C, qkv_t + C, C * sizeof(float));
    memcpy(vcache + pos * C, qkv_t + 2 * C, C * sizeof(float));
#pragma omp parallel for schedule(static) if ((pos + 1) * C >= 65536)
    for (size_t h = 0; h < NH; h++) {
        size_t head = h * shape.HS;
        att_decode_head(out + head, qkv_t + head, kcache + head, vcache + head, pos + 1, shape);
    }
}

CPU_TWIN_END
#endif
