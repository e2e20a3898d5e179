// embedding.h: token + position embedding, the model's first layer.
#ifndef LLMC_EMBEDDING_H
#define LLMC_EMBEDDING_H

#include "precision.h"
#include "utils.h"

CPU_TWIN_BEGIN

// embedding_forward: out[b,t] = wte[inp[b,t]] + wpe[t]
//   out (B, T, C) act =      inp (B, T) ids, checked when they were loaded      wte (Vp, C), wpe (>= T, C) weight
//   rounds once, at the store of out
static inline void embedding_forward(float *out, const int32_t *inp, const float *wte, const float *wpe, size_t B,
                                     size_t T, size_t C) {
#pragma omp parallel for schedule(static)
    for (size_t bt = 0; bt < B * T; bt++) {
        float *RESTRICT out_bt = out + bt * C;
        const float *wte_ix = wte + (size_t)inp[bt] * C;
        const float *wpe_t = wpe + bt % T * C;
        for (size_t c = 0; c < C; c++) out_bt[c] = round_act(wte_ix[c] + wpe_t[c]);
    }
}

// Columns that a thread takes at a time: one cache line, so that two threads never write to the same one.
#define EMBEDDING_COLUMNS ((size_t)16)

// embedding_backward: dwte[inp[b,t]] += dout[b,t],  dwpe[t] += dout[b,t]
//   dwte (Vp, C), dwpe (>= T, C) f32 +=, never rounded      dout (B, T, C) grad      inp (B, T) ids
//   Threads split columns and each walks all rows in order, so repeated tokens need no atomics, no sorting and no
//   scratch, and the sums' order is that of the rows. Touches only the rows of dwte that occur.
static inline void embedding_backward(float *dwte, float *dwpe, const float *dout, const int32_t *inp, size_t B,
                                      size_t T, size_t C) {
    size_t chunks = ceil_div(C, EMBEDDING_COLUMNS);
#pragma omp parallel
    {
        // Each thread's chunks are neighbours: long runs of columns read and write best.
#ifdef _OPENMP
        size_t threads = (size_t)omp_get_num_threads();
#else
        size_t threads = 1;
#endif
        size_t thread = (size_t)thread_index();
        size_t first = chunks * thread / threads * EMBEDDING_COLUMNS;
        size_t last = min_size(chunks * (thread + 1) / threads * EMBEDDING_COLUMNS, C);
        for (size_t bt = 0; bt < B * T && first < last; bt++) {
            const float *RESTRICT dout_bt = dout + bt * C;
            float *RESTRICT dwte_ix = dwte + (size_t)inp[bt] * C;
            float *RESTRICT dwpe_t = dwpe + bt % T * C;
            for (size_t c = first; c < last; c++) {
                dwte_ix[c] += dout_bt[c];
                dwpe_t[c] += dout_bt[c];
            }
        }
    }
}

CPU_TWIN_END
#endif
