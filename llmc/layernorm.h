// layernorm.h: out = (inp - mean) / sqrt(var + 1e-5) * weight + bias over each row of C (Ba, Kiros & Hinton 2016).
//
// Statistics in fp32 in two passes (the mean first, then the squares of what is left: one pass loses the variance of a
// row far from 0). A row is a few KiB, so the later passes read it from the first-level cache: each function moves its
// tensors through memory once. Row sums run in vmath.h's fixed lanes.
#ifndef LLMC_LAYERNORM_H
#define LLMC_LAYERNORM_H

#include "precision.h"
#include "utils.h"
#include "vmath.h"

CPU_TWIN_BEGIN

#define LAYERNORM_EPS 1e-5f

static inline float layernorm_row_mean(const float *RESTRICT x, size_t C) {
    float lanes[SUM_LANES] = {0};
    size_t c = 0;
    for (; c + SUM_LANES <= C; c += SUM_LANES)
        for (size_t j = 0; j < SUM_LANES; j++) lanes[j] += x[c + j];
    for (size_t j = 0; c + j < C; j++) lanes[j] += x[c + j];
    return lanes_total(lanes) / (float)C;
}

static inline float layernorm_row_rstd(const float *RESTRICT x, float mean, size_t C) {
    float lanes[SUM_LANES] = {0};
    size_t c = 0;
    for (; c + SUM_LANES <= C; c += SUM_LANES)
        for (size_t j = 0; j < SUM_LANES; j++) {
            float centred = x[c + j] - mean;
            lanes[j] = fmaf(centred, centred, lanes[j]);
        }
    for (size_t j = 0; c + j < C; j++) {
        float centred = x[c + j] - mean;
        lanes[j] = fmaf(centred, centred, lanes[j]);
    }
    return 1.0f / sqrtf(lanes_total(lanes) / (float)C + LAYERNORM_EPS);
}

static inline void layernorm_row(float *RESTRICT out, float *mean, float *rstd, const float *RESTRICT inp,
                                 const float *RESTRICT weight, const float *RESTRICT bias, size_t C) {
    float m = layernorm_row_mean(inp, C);
    float s = layernorm_row_rstd(inp, m, C);
    for (size_t c = 0; c < C; c++) out[c] = round_act(fmaf((inp[c] - m) * s, weight[c], bias[c]));
    *mean = m;
    *rstd = s;
}

// layernorm_forward: row by row over C
//   out (N, C) act =      mean, rstd (N) f32 =, kept for backward      inp (N, C) act      weight, bias (C) weight
//   out is not inp; rounds once, at the store of out
static inline void layernorm_forward(float *out, float *mean, float *rstd, const float *inp, const float *weight,
                                     const float *bias, size_t N, size_t C) {
#pragma omp parallel for schedule(static)
    for (size_t row = 0; row < N; row++)
        layernorm_row(out + row * C, mean + row, rstd + row, inp + row * C, weight, bias, C);
}

// fused_residual_layernorm_forward: residual = inp1 + inp2, and the layernorm of that
//   residual (N, C) act =      the rest as above, with residual (as rounded) in the place of inp
//   residual may be inp1 or inp2; out is neither
static inline void fused_residual_layernorm_forward(float *residual, float *out, float *mean, float *rstd,
                                                    const float *inp1, const float *inp2, const float *weight,
                                                    const float *bias, size_t N, size_t C) {
#pragma omp parallel for schedule(static)
    for (size_t row = 0; row < N; row++) {
        float *sum = residual + row * C;
        const float *a = inp1 + row * C, *b = inp2 + row * C;
        for (size_t c = 0; c < C; c++) sum[c] = round_act(a[c] + b[c]);
        layernorm_row(out + row * C, mean + row, rstd + row, sum, weight, bias, C);
    }
}

// Rows whose contributions to dweight and dbias are summed together before blocks are added, in order. Fixed, so that
// the sums do not depend on the number of threads; small, so that a batch of 256 rows still feeds several threads.
#define LAYERNORM_ROW_BLOCK ((size_t)32)

static inline size_t layernorm_backward_scratch_elems(size_t N, size_t C) {
    return ceil_div(N, LAYERNORM_ROW_BLOCK) * 2 * C;
}

// One row of layernorm_backward. With x^ = (inp - mean) rstd and d = dout weight:
//   dinp += rstd (d - avg(d) - x^ avg(d x^))     dweight += dout x^     dbias += dout
static inline void layernorm_backward_row(float *RESTRICT dinp, float *RESTRICT dweight, float *RESTRICT dbias,
                                          const float *RESTRICT dout, const float *RESTRICT inp,
                                          const float *RESTRICT weight, float mean, float rstd, size_t C) {
    float lanes_d[SUM_LANES] = {0}, lanes_dx[SUM_LANES] = {0};
    size_t c = 0;
    for (; c + SUM_LANES <= C; c += SUM_LANES)
        for (size_t j = 0; j < SUM_LANES; j++) {
            float d = dout[c + j] * weight[c + j];
            lanes_d[j] += d;
            lanes_dx[j] = fmaf(d, (inp[c + j] - mean) * rstd, lanes_dx[j]);
        }
    for (size_t j = 0; c + j < C; j++) {
        float d = dout[c + j] * weight[c + j];
        lanes_d[j] += d;
        lanes_dx[j] = fmaf(d, (inp[c + j] - mean) * rstd, lanes_dx[j]);
    }
    float avg_d = lanes_total(lanes_d) / (float)C;
    float avg_dx = lanes_total(lanes_dx) / (float)C;
    for (c = 0; c < C; c++) {
        float x = (inp[c] - mean) * rstd;
        float centred = fmaf(-x, avg_dx, dout[c] * weight[c] - avg_d);
        dinp[c] = round_grad(fmaf(rstd, centred, dinp[c]));
        dweight[c] = fmaf(dout[c], x, dweight[c]);
        dbias[c] += dout[c];
    }
}

// layernorm_backward:
//   dinp (N, C) grad +=, rounded once at the store      dweight, dbias (C) f32 +=, never rounded
//   dout (N, C) grad      inp (N, C), mean, rstd (N), weight (C): the forward pass's
//   scratch: layernorm_backward_scratch_elems(N, C) floats, contents of no meaning      dinp is not dout
static inline void layernorm_backward(float *dinp, float *dweight, float *dbias, const float *dout, const float *inp,
                                      const float *weight, const float *mean, const float *rstd, size_t N, size_t C,
                                      float *scratch) {
    size_t blocks = ceil_div(N, LAYERNORM_ROW_BLOCK);
#pragma omp parallel for schedule(static)
    for (size_t block = 0; block < blocks; block++) {
        float *partial = scratch + block * 2 * C;
        size_t end = min_size((block + 1) * LAYERNORM_ROW_BLOCK, N);
        memset(partial, 0, 2 * C * sizeof(float));
        for (size_t row = block * LAYERNORM_ROW_BLOCK; row < end; row++)
            layernorm_backward_row(dinp + row * C, partial, partial + C, dout + row * C, inp + row * C, weight,
                                   mean[row], rstd[row], C);
    }
    // 16 columns, one cache line, at a time: threads split columns, each adds the blocks in order.
    const size_t width = 16;
#pragma omp parallel for schedule(static)
    for (size_t first = 0; first < C; first += width) {
        size_t last = min_size(first + width, C);
        for (size_t block = 0; block < blocks; block++) {
            const float *RESTRICT partial = scratch + block * 2 * C;
            for (size_t c = first; c < last; c++) {
                dweight[c] += partial[c];
                dbias[c] += partial[C + c];
            }
        }
    }
}

CPU_TWIN_END
#endif
