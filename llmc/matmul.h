// matmul.h: the linear layer's three matrix products, its bias gradient, and the matrix-vector product for sampling.
//
// One GEMM serves the three: out (M, N) = a (M, K) . b (K, N), where each operand is contiguous either along K or
// along its other dimension. It is the packed, register-blocked scheme of Goto and van de Geijn ("Anatomy of
// High-Performance Matrix Multiplication", 2008), reduced to what a transformer needs:
//
//   each thread owns one block of `out`                               threads never share a sum nor wait for another
//     for a block of rows (GEMM_ROWS) and of columns (GEMM_COLS)
//       for a chunk of K
//         pack a's rows of that chunk in panels of GEMM_TILE_ROWS     stays in the L2 cache
//         for each GEMM_TILE_COLS columns
//           pack b's columns of that chunk                            used at once by every panel
//           for each panel: a tile of products in registers           GEMM_TILE_ROWS x GEMM_TILE_COLS sums
//
// Order of summation: within a chunk of K one fused multiply-add after the other, starting from zero; chunks are added
// to the running sum in ascending order. It depends on K alone, so an output has the same bits for any number of
// threads, any number of rows beside it and any blocking.
#ifndef LLMC_MATMUL_H
#define LLMC_MATMUL_H

#include "precision.h"
#include "simd.h"
#include "utils.h"

CPU_TWIN_BEGIN

// The register tile: GEMM_TILE_ROWS x 2 vectors of sums, 2 vectors of b and one broadcast of a must fit the registers.
#define GEMM_TILE_COLS (2 * VEC_WIDTH)
#if VEC_REGISTERS == 32 && VEC_WIDTH == 16
#define GEMM_TILE_ROWS 14
#elif VEC_REGISTERS == 32
#define GEMM_TILE_ROWS 12
#else
#define GEMM_TILE_ROWS 6
#endif

// A row of packed a: GEMM_TILE_ROWS floats and room, so that packing stores whole vectors that cross no cache line.
#define GEMM_A_WIDTH ((GEMM_TILE_ROWS + VEC_WIDTH - 1) / VEC_WIDTH * VEC_WIDTH)

#define GEMM_CHUNK ((size_t)256)                                     // of K; the longest chunk a caller may ask for
#define GEMM_ROWS ((size_t)(280 / GEMM_TILE_ROWS * GEMM_TILE_ROWS))  // packed a: GEMM_ROWS x GEMM_CHUNK floats, in L2
#define GEMM_COLS ((size_t)1024)  // running sums of more than one chunk: GEMM_ROWS x GEMM_COLS
#define GEMM_LINE ((size_t)16)    // floats in a cache line
#define GEMM_THREAD_FLOPS 1e5     // a thread with less to do than this costs more than it gives

// ----------------------------------------------------------------------------------------------------------------
// Scratch

// Packing buffers for `threads` threads. No product may run inside a parallel region or twice at once on one scratch.
typedef struct {
    float *memory;
    int threads;
} MatmulScratch;

#define SCRATCH_A (GEMM_ROWS / GEMM_TILE_ROWS * GEMM_A_WIDTH * GEMM_CHUNK)
#define SCRATCH_B (GEMM_CHUNK * GEMM_TILE_COLS)
#define SCRATCH_SUMS (GEMM_ROWS * GEMM_COLS)

static inline size_t matmul_scratch_thread_elems(void) {
    return round_up(SCRATCH_A, 64) + round_up(SCRATCH_B, 64) + round_up(SCRATCH_SUMS, 64);
}

// Bytes of scratch for this many threads; independent of any shape. Fewer threads than that are used where fewer fit.
static inline size_t matmul_scratch_bytes(int threads) {
    return (size_t)threads * matmul_scratch_thread_elems() * sizeof(float);
}

// `memory` holds matmul_scratch_bytes(threads), 64-byte aligned for speed.
static inline MatmulScratch matmul_scratch(void *memory, int threads) {
    MatmulScratch scratch = {(float *)memory, threads};
    return scratch;
}

// ----------------------------------------------------------------------------------------------------------------
// The general product

// a as (M, K) or b as (N, K): element (outer, k) is data[outer * outer_stride + k * k_stride], one stride being 1.
typedef struct {
    const float *data;
    size_t outer_stride, k_stride;
} GemmOperand;

typedef enum { ROUND_NONE, ROUND_ACT, ROUND_GRAD } GemmRounding;

// out (M, N) = round(alpha * (a . b) + bias), or round(out + alpha * (a . b)) with accumulate; then bias must be NULL.
// Operands go through round_operand() as they are packed. K is summed in chunks of k_chunk <= GEMM_CHUNK (see above):
// the fp8 recipes need 128, for the partial sums their hardware adds in full precision. M, N, K >= 1.
typedef struct {
    size_t M, N, K;
    GemmOperand a, b;
    float *out;
    size_t out_stride;
    const float *bias;  // (N) or NULL
    float alpha;
    size_t k_chunk;
    int accumulate;
    GemmRounding rounding;
} Gemm;

// Rows [first_row, end_row) and columns [first_col, end_col) of out.
typedef struct {
    size_t first_row, end_row, first_col, end_col;
} GemmBlock;

// Copies `count` <= width rows of an operand, K range [k0, k0 + kc), into panel[k][width]; width is a constant
// multiple of VEC_WIDTH. Lanes beyond count may hold anything: no sum made from them is ever stored. Here the operand
// is contiguous along K: square blocks are transposed in registers.
ALWAYS_INLINE void gemm_pack_transposed(float *RESTRICT panel, const GemmOperand *x, size_t first, size_t count,
                                        size_t k0, size_t kc, const size_t width) {
    const float *data = x->data + first * x->outer_stride + k0;
    const size_t whole = kc / VEC_WIDTH * VEC_WIDTH;
    for (size_t lane = 0; lane < width && lane < count; lane += VEC_WIDTH) {
        for (size_t k = 0; k < whole; k += VEC_WIDTH) {
            vecf block[VEC_WIDTH];
            for (size_t i = 0; i < VEC_WIDTH; i++)  // rows that are not there: the last one again
                block[i] = vec_load(data + min_size(lane + i, count - 1) * x->outer_stride + k);
            vec_transpose(block);
            for (size_t i = 0; i < VEC_WIDTH; i++) vec_store(panel + (k + i) * width + lane, block[i]);
        }
    }
    for (size_t k = whole; k < kc; k++)
        for (size_t i = 0; i < width; i++) panel[k * width + i] = data[min_size(i, count - 1) * x->outer_stride + k];
}

// The same where the operand is contiguous along its outer dimension: rows of the panel are copied.
ALWAYS_INLINE void gemm_pack_copied(float *RESTRICT panel, const GemmOperand *x, size_t first, size_t count, size_t k0,
                                    size_t kc, const size_t width) {
    const float *data = x->data + k0 * x->k_stride + first;
    for (size_t k = 0; k < kc; k++, data += x->k_stride, panel += width) {
        for (size_t lane = 0; lane < width && lane < count; lane += VEC_WIDTH) {
            const int whole = lane + VEC_WIDTH <= count;
            vec_store(panel + lane, whole ? vec_load(data + lane) : vec_load_partial(data + lane, count - lane));
        }
    }
}

ALWAYS_INLINE void gemm_pack(float *RESTRICT panel, const GemmOperand *x, size_t first, size_t count, size_t k0,
                             size_t kc, const size_t width) {
    if (x->k_stride == 1) gemm_pack_transposed(panel, x, first, count, k0, kc, width);
    else gemm_pack_copied(panel, x, first, count, k0, kc, width);
    for (size_t i = 0; i < kc * width; i++) panel[i] = round_operand(panel[i]);  // no code where it is the identity
}

// Asks for share `part` of `parts` of the memory that gemm_pack() with the same arguments will read. Packing a few
// columns of a matrix that lies in memory, not in cache, would otherwise wait for every line of it.
static inline void gemm_prefetch(const GemmOperand *x, size_t first, size_t count, size_t k0, size_t kc, size_t part,
                                 size_t parts) {
    const int along_k = x->k_stride == 1;
    const size_t lines = along_k ? count : kc, length = along_k ? kc : count;
    const size_t stride = along_k ? x->outer_stride : x->k_stride;
    const float *data = x->data + first * x->outer_stride + k0 * x->k_stride;
    for (size_t i = lines * part / parts; i < lines * (part + 1) / parts; i++)
        for (size_t j = 0; j < length; j += GEMM_LINE) __builtin_prefetch(data + i * stride + j, 0, 2);
}

// One tile of out and one chunk of K. With `out`, the chunk is the last one and the tile is finished; without, its
// products go to `sums`.
typedef struct {
    const float *a, *b;  // packed panels, kc long
    size_t kc;
    float *sums;  // (rows, GEMM_TILE_COLS): the running sums of earlier chunks, if there were any
    int first;    // there were none
    float *out;   // or NULL
    size_t out_stride;
    const float *bias;  // or NULL
} GemmTile;

// round_x() in each lane: where it is the identity the compiler removes the trip through memory.
ALWAYS_INLINE vecf gemm_round(vecf x, GemmRounding rounding) {
    float lanes[VEC_WIDTH];
    if (rounding == ROUND_NONE) return x;
    vec_store(lanes, x);
    for (int i = 0; i < VEC_WIDTH; i++) lanes[i] = rounding == ROUND_ACT ? round_act(lanes[i]) : round_grad(lanes[i]);
    return vec_load(lanes);
}

// With GEMM_ONE_TILE one tile serves all heights, its sums in memory: the same numbers, several times slower, but compiled
// in half a second instead of four, for tests that are built in many precisions and multiply little.
#ifdef GEMM_ONE_TILE
#define GEMM_UNROLL(n)
#else
#define GEMM_PRAGMA(text) _Pragma(#text)
#define GEMM_UNROLL(n) GEMM_PRAGMA(GCC unroll n)
#endif

// A tile of whole vectors, from the first product to the rounded result; rows and vectors are constants in every call,
// so that the sums live in registers throughout.
ALWAYS_INLINE void gemm_tile(const Gemm *g, const GemmTile *t, const int rows, const int vectors) {
    vecf acc[GEMM_TILE_ROWS][2];
    const float *RESTRICT a = t->a, *RESTRICT b = t->b;
    GEMM_UNROLL(16)
    for (int i = 0; i < rows; i++) acc[i][0] = acc[i][1] = vec_zero();
    for (size_t k = t->kc; k > 0; k--, a += GEMM_A_WIDTH, b += GEMM_TILE_COLS) {
        const vecf b0 = vec_load(b);
        const vecf b1 = vectors > 1 ? vec_load(b + VEC_WIDTH) : b0;
        GEMM_UNROLL(16)
        for (int i = 0; i < rows; i++) {
            const vecf x = vec_set1(a[i]);
            acc[i][0] = vec_fma(x, b0, acc[i][0]);
            if (vectors > 1) acc[i][1] = vec_fma(x, b1, acc[i][1]);
        }
    }
#define EACH_SUM(statement)                                              \
    GEMM_UNROLL(16) for (int i = 0; i < rows; i++) {                     \
        GEMM_UNROLL(2) for (int j = 0; j < vectors; j++) { statement; }  \
    }
    if (!t->first) EACH_SUM(acc[i][j] = vec_load(t->sums + i * GEMM_TILE_COLS + j * VEC_WIDTH) + acc[i][j])
    if (!t->out) {
        EACH_SUM(vec_store(t->sums + i * GEMM_TILE_COLS + j * VEC_WIDTH, acc[i][j]))
        return;
    }
    const vecf alpha = vec_set1(g->alpha);
    EACH_SUM(acc[i][j] = alpha * acc[i][j])
    if (t->bias) EACH_SUM(acc[i][j] = acc[i][j] + vec_load(t->bias + j * VEC_WIDTH))
    if (g->accumulate) EACH_SUM(acc[i][j] = vec_load(t->out + (size_t)i * t->out_stride + j * VEC_WIDTH) + acc[i][j])
    EACH_SUM(vec_store(t->out + (size_t)i * t->out_stride + j * VEC_WIDTH, gemm_round(acc[i][j], g->rounding)))
#undef EACH_SUM
}

// gemm_tile with constants for any height and for one or two vectors: a ragged edge costs only what it has.
static inline void gemm_tile_any(const Gemm *g, const GemmTile *t, size_t rows, size_t cols) {
#ifdef GEMM_ONE_TILE
    gemm_tile(g, t, (int)rows, cols > VEC_WIDTH ? 2 : 1);
#else
#define TILE(r)                                      \
    case r:                                          \
        if (cols > VEC_WIDTH) gemm_tile(g, t, r, 2); \
        else gemm_tile(g, t, r, 1);                  \
        break;
    switch (rows) {
        TILE(1)
        TILE(2)
        TILE(3) TILE(4) TILE(5) TILE(6)
#if GEMM_TILE_ROWS > 6
            TILE(7) TILE(8) TILE(9) TILE(10) TILE(11) TILE(12)
#endif
#if GEMM_TILE_ROWS > 12
                TILE(13) TILE(14)
#endif
    }
#undef TILE
#endif
}

// gemm_tile_any where the last vector of out (and of bias) is not whole: by way of a copy that is.
static inline void gemm_tile_edge(const Gemm *g, const GemmTile *t, size_t rows, size_t cols) {
    float out[GEMM_TILE_ROWS * GEMM_TILE_COLS] = {0}, bias[GEMM_TILE_COLS] = {0};
    GemmTile whole = *t;
    whole.out = out;
    whole.out_stride = GEMM_TILE_COLS;
    if (t->bias) {
        memcpy(bias, t->bias, cols * sizeof(float));
        whole.bias = bias;
    }
    for (size_t i = 0; g->accumulate && i < rows; i++)
        memcpy(out + i * GEMM_TILE_COLS, t->out + i * t->out_stride, cols * sizeof(float));
    gemm_tile_any(g, &whole, rows, cols);
    for (size_t i = 0; i < rows; i++)
        memcpy(t->out + i * t->out_stride, out + i * GEMM_TILE_COLS, cols * sizeof(float));
}

// A block of rows is cut into panels of nearly equal height: 256 rows are 10 x 14 and 9 x 13 of them rather than 18 x
// 14 and one of 4, whose few sums would not hide the latency of an FMA.
typedef struct {
    size_t row, rows, panels;
} GemmPanels;

static inline size_t gemm_panel_row(const GemmPanels *p, size_t panel) {
    return p->row + panel * (p->rows / p->panels) + min_size(panel, p->rows % p->panels);
}

// A block of out at work: its panels of rows, its columns, and this thread's buffers.
typedef struct {
    GemmPanels panels;
    size_t first_col, end_col;
    float *a_packed, *b_packed;
    float *sums;  // tile by tile, where K has more than one chunk
} GemmWork;

static inline void gemm_pack_rows(const Gemm *g, const GemmWork *w, size_t k0, size_t kc) {
    const GemmPanels *p = &w->panels;
    for (size_t panel = 0; panel < p->panels; panel++) {
        const size_t row = gemm_panel_row(p, panel), end = gemm_panel_row(p, panel + 1);
        if (panel + 1 < p->panels) gemm_prefetch(&g->a, end, gemm_panel_row(p, panel + 2) - end, k0, kc, 0, 1);
        gemm_pack(w->a_packed + panel * GEMM_A_WIDTH * kc, &g->a, row, end - row, k0, kc, GEMM_A_WIDTH);
    }
}

// Asks for what gemm_chunk() packs after the columns at `col`: the next ones, or the first ones of the next chunk.
static inline void gemm_prefetch_next(const Gemm *g, const GemmWork *w, size_t col, size_t k0, size_t kc,
                                      size_t panel) {
    if (col + GEMM_TILE_COLS < w->end_col) {
        col += GEMM_TILE_COLS;
    } else {
        col = w->first_col;
        k0 += kc;
        kc = min_size(g->k_chunk, g->K - k0);  // 0 after the last chunk
    }
    gemm_prefetch(&g->b, col, min_size(GEMM_TILE_COLS, w->end_col - col), k0, kc, panel, w->panels.panels);
}

static inline void gemm_prefetch_write(float *x, size_t stride, size_t rows, size_t cols) {
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < cols; j += GEMM_LINE) __builtin_prefetch(x + i * stride + j, 1);
}

// All products of one chunk of K for one block of out, whose rows of a are packed.
static inline void gemm_chunk(const Gemm *g, const GemmWork *w, size_t k0, size_t kc) {
    const int first = k0 == 0, last = k0 + kc == g->K;
    float *sums = w->sums;
    for (size_t col = w->first_col; col < w->end_col; col += GEMM_TILE_COLS) {
        const size_t cols = min_size(GEMM_TILE_COLS, w->end_col - col);
        gemm_pack(w->b_packed, &g->b, col, cols, k0, kc, GEMM_TILE_COLS);
        for (size_t panel = 0; panel < w->panels.panels; panel++) {
            const size_t row = gemm_panel_row(&w->panels, panel), rows = gemm_panel_row(&w->panels, panel + 1) - row;
            GemmTile t = {
                w->a_packed + panel * GEMM_A_WIDTH * kc, w->b_packed, kc, sums, first, NULL, g->out_stride, NULL};
            gemm_prefetch_next(g, w, col, k0, kc, panel);
            if (!first) gemm_prefetch_write(sums, GEMM_TILE_COLS, rows, GEMM_TILE_COLS);
            if (last) {
                t.out = g->out + row * g->out_stride + col;
                if (g->bias) t.bias = g->bias + col;
                gemm_prefetch_write(t.out, g->out_stride, rows, cols);
            }
            if (last && cols % VEC_WIDTH != 0) gemm_tile_edge(g, &t, rows, cols);
            else gemm_tile_any(g, &t, rows, cols);
            if (!(first && last)) sums += GEMM_TILE_ROWS * GEMM_TILE_COLS;
        }
    }
}

// One thread's share of out, from start to end.
static inline void gemm_block(const Gemm *g, const GemmBlock *block, float *scratch) {
    GemmWork w;
    w.a_packed = scratch;
    w.b_packed = w.a_packed + round_up(SCRATCH_A, 64);
    w.sums = w.b_packed + round_up(SCRATCH_B, 64);
    const size_t rows = block->end_row - block->first_row, parts = ceil_div(rows, GEMM_ROWS);
    const size_t col_step =
        g->K <= g->k_chunk ? block->end_col - block->first_col : GEMM_COLS;  // one chunk needs no sums
    for (size_t part = 0; part < parts; part++) {
        w.panels.row = block->first_row + part * rows / parts;
        w.panels.rows = block->first_row + (part + 1) * rows / parts - w.panels.row;
        w.panels.panels = ceil_div(w.panels.rows, GEMM_TILE_ROWS);
        for (w.first_col = block->first_col; w.first_col < block->end_col; w.first_col += col_step) {
            w.end_col = min_size(w.first_col + col_step, block->end_col);
            for (size_t k0 = 0; k0 < g->K; k0 += g->k_chunk) {
                const size_t kc = min_size(g->k_chunk, g->K - k0);
                gemm_pack_rows(g, &w, k0, kc);
                gemm_chunk(g, &w, k0, kc);
            }
        }
    }
}

// How many of `threads` blocks lie along the rows of out: the largest block should be small, and nearly square, since
// what is packed for it grows with the sum of its sides.
static inline size_t gemm_row_blocks(const Gemm *g, size_t threads) {
    size_t best = 1;
    double best_cost = 0;
    for (size_t by_rows = 1; by_rows <= threads; by_rows++) {
        if (threads % by_rows != 0) continue;
        const double rows = (double)ceil_div(ceil_div(g->M, GEMM_TILE_ROWS), by_rows) * GEMM_TILE_ROWS;
        const double cols = (double)ceil_div(ceil_div(g->N, GEMM_TILE_COLS), threads / by_rows) * GEMM_TILE_COLS;
        const double cost = rows * cols + 8 * (rows + cols);  // packing an element costs about 8 products of it
        if (best_cost == 0 || cost < best_cost) {
            best = by_rows;
            best_cost = cost;
        }
    }
    return best;
}

// Share `i` of `parts` of n, cut at multiples of `step`.
static inline size_t gemm_cut(size_t n, size_t step, size_t i, size_t parts) {
    return min_size(n, ceil_div(n, step) * i / parts * step);
}

static inline void gemm(MatmulScratch *scratch, const Gemm *g) {
    const double flops = 2.0 * (double)g->M * (double)g->N * (double)g->K;
    int threads = thread_count() < scratch->threads ? thread_count() : scratch->threads;
    if (flops < GEMM_THREAD_FLOPS * threads) threads = (int)(flops / GEMM_THREAD_FLOPS) + 1;
    const size_t blocks = (size_t)threads, row_blocks = gemm_row_blocks(g, blocks), col_blocks = blocks / row_blocks;
    // One block an iteration, whatever number of threads the system then grants.
#pragma omp parallel for schedule(static, 1) num_threads(threads) if (threads > 1)
    for (size_t i = 0; i < blocks; i++) {
        const size_t r = i % row_blocks, c = i / row_blocks;
        GemmBlock block = {gemm_cut(g->M, GEMM_TILE_ROWS, r, row_blocks),
                           gemm_cut(g->M, GEMM_TILE_ROWS, r + 1, row_blocks),
                           gemm_cut(g->N, GEMM_TILE_COLS, c, col_blocks),
                           gemm_cut(g->N, GEMM_TILE_COLS, c + 1, col_blocks)};
        if (block.first_row < block.end_row && block.first_col < block.end_col)
            gemm_block(g, &block, scratch->memory + i * matmul_scratch_thread_elems());
    }
}

// ----------------------------------------------------------------------------------------------------------------
// The linear layer. Weights are (OC, C), so that a forward output's weights are contiguous.

// out (N, OC) = inp (N, C) . weight (OC, C)^T + bias (OC) or NULL, rounded as asked; by itself round_act()
static inline void matmul_forward_rounding(MatmulScratch *scratch, float *out, const float *inp, const float *weight,
                                           const float *bias, size_t N, size_t C, size_t OC, GemmRounding rounding) {
    Gemm g = {N, OC, C, {inp, C, 1}, {weight, C, 1}, out, OC, bias, 1.0f, GEMM_CHUNK, 0, rounding};
    gemm(scratch, &g);
}
static inline void matmul_forward(MatmulScratch *scratch, float *out, const float *inp, const float *weight,
                                  const float *bias, size_t N, size_t C, size_t OC) {
    matmul_forward_rounding(scratch, out, inp, weight, bias, N, C, OC, ROUND_ACT);
}

// dinp (N, C) = dout (N, OC) . weight (OC, C), or += with accumulate, rounded as asked; by itself round_grad()
static inline void matmul_backward_input_rounding(MatmulScratch *scratch, float *dinp, const float *dout,
                                                  const float *weight, size_t N, size_t C, size_t OC, int accumulate,
                                                  GemmRounding rounding) {
    Gemm g = {N, C, OC, {dout, OC, 1}, {weight, 1, C}, dinp, C, NULL, 1.0f, GEMM_CHUNK, accumulate, rounding};
    gemm(scratch, &g);
}
static inline void matmul_backward_input(MatmulScratch *scratch, float *dinp, const float *dout, const float *weight,
                                         size_t N, size_t C, size_t OC, int accumulate) {
    matmul_backward_input_rounding(scratch, dinp, dout, weight, N, C, OC, accumulate, ROUND_GRAD);
}

// dweight (OC, C) = dout (N, OC)^T . inp (N, C), or += with accumulate; fp32, never rounded
static inline void matmul_backward_weight(MatmulScratch *scratch, float *dweight, const float *dout, const float *inp,
                                          size_t N, size_t C, size_t OC, int accumulate) {
    Gemm g = {OC, C, N, {dout, 1, OC}, {inp, 1, C}, dweight, C, NULL, 1.0f, GEMM_CHUNK, accumulate, ROUND_NONE};
    gemm(scratch, &g);
}

// Columns [first, end), at most MATMUL_BIAS_COLS, of matmul_backward_bias. Rows are added in groups of 4, groups in
// blocks of MATMUL_BIAS_ROWS: rounding errors then grow with the square root of the block, not of N.
#define MATMUL_BIAS_COLS ((size_t)256)
#define MATMUL_BIAS_ROWS ((size_t)64)
static inline void matmul_bias_columns(float *RESTRICT dbias, const float *RESTRICT dout, size_t N, size_t OC,
                                       size_t first, size_t end, int accumulate) {
    float total[MATMUL_BIAS_COLS] = {0};
    const size_t cols = end - first;
    for (size_t block = 0; block < N; block += MATMUL_BIAS_ROWS) {
        const size_t block_end = min_size(block + MATMUL_BIAS_ROWS, N);
        float part[MATMUL_BIAS_COLS] = {0};
        size_t i = block;
        for (; i + 4 <= block_end; i += 4) {
            const float *row = dout + i * OC + first;
            for (size_t j = 0; j < cols; j++) part[j] += (row[j] + row[OC + j]) + (row[2 * OC + j] + row[3 * OC + j]);
        }
        for (; i < block_end; i++)
            for (size_t j = 0; j < cols; j++) part[j] += dout[i * OC + first + j];
        for (size_t j = 0; j < cols; j++) total[j] += part[j];
    }
    for (size_t j = 0; j < cols; j++) dbias[first + j] = accumulate ? dbias[first + j] + total[j] : total[j];
}

// dbias (OC) = column sums of dout (N, OC), or += with accumulate; fp32. Each column is summed by one thread in an
// order that depends on N alone.
static inline void matmul_backward_bias(float *dbias, const float *dout, size_t N, size_t OC, int accumulate) {
#pragma omp parallel for schedule(static) if (N * OC > 20000)
    for (size_t first = 0; first < OC; first += MATMUL_BIAS_COLS)
        matmul_bias_columns(dbias, dout, N, OC, first, min_size(first + MATMUL_BIAS_COLS, OC), accumulate);
}

// ----------------------------------------------------------------------------------------------------------------
// Decoding: one row of activations, so every weight is read once and used once

// round_operand() in each lane; a plain copy, which the compiler removes, where that is the identity.
ALWAYS_INLINE vecf vec_round_operand(vecf x) {
    float lanes[VEC_WIDTH];
    vec_store(lanes, x);
    for (int i = 0; i < VEC_WIDTH; i++) lanes[i] = round_operand(lanes[i]);
    return vec_load(lanes);
}

// weight (C) . inp (C): four vectors of sums, enough to hide an FMA's latency. One row after the other, so that memory
// is read as a single stream: four rows side by side had half the bandwidth.
static inline float matvec_row(const float *RESTRICT weight, const float *RESTRICT inp, size_t C) {
    vecf acc[4] = {vec_zero(), vec_zero(), vec_zero(), vec_zero()};
    size_t c = 0;
    for (; c + 4 * VEC_WIDTH <= C; c += 4 * VEC_WIDTH) {
#pragma GCC unroll 4
        for (size_t i = 0; i < 4; i++)
            acc[i] = vec_fma(vec_round_operand(vec_load(weight + c + i * VEC_WIDTH)),
                             vec_round_operand(vec_load(inp + c + i * VEC_WIDTH)), acc[i]);
    }
    for (; c < C; c += VEC_WIDTH) {
        const size_t n = min_size(VEC_WIDTH, C - c);
        acc[0] = vec_fma(vec_round_operand(vec_load_partial(weight + c, n)),
                         vec_round_operand(vec_load_partial(inp + c, n)), acc[0]);
    }
    return vec_sum((acc[0] + acc[1]) + (acc[2] + acc[3]));
}

// out (OC) = round_act(weight (OC, C) . inp (C) + bias (OC) or NULL): matmul_forward for N = 1 at the speed of memory.
// Its order of summation is its own (4 VEC_WIDTH interleaved sums), the same for any number of threads.
static inline void matvec_forward(float *out, const float *inp, const float *weight, const float *bias, size_t C,
                                  size_t OC) {
#pragma omp parallel for schedule(static) if (C * OC > 50000)
    for (size_t oc = 0; oc < OC; oc++) {
        const float sum = matvec_row(weight + oc * C, inp, C);
        out[oc] = round_act(bias ? sum + bias[oc] : sum);
    }
}

#undef SCRATCH_A
#undef SCRATCH_B
#undef SCRATCH_SUMS

CPU_TWIN_END

#endif
