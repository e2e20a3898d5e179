// global_norm.h: the sum of squares of a gradient tensor, and whether it holds anything that is not finite.
#ifndef LLMC_GLOBAL_NORM_H
#define LLMC_GLOBAL_NORM_H

#include "utils.h"
#include "vmath.h"

CPU_TWIN_BEGIN

#define NORM_BLOCK ((size_t)1024)   // elements summed in one go
#define NORM_GROUPS ((size_t)1024)  // partial sums at most; each group is a run of whole blocks
#define NORM_LANES 16

// Sum of squares of up to NORM_BLOCK elements in double; *nonfinite gets a non-zero value for inf or NaN. The test is
// on the bits: no compiler flag can reason it away. Two loops, since gcc makes scalar code of both in one; the block is
// in the first-level cache for the second.
static inline double norm_block_squared(const float *RESTRICT x, size_t n, uint32_t *nonfinite) {
    double lanes[NORM_LANES] = {0};
    uint32_t largest = 0;
    size_t i = 0;
    for (; i + NORM_LANES <= n; i += NORM_LANES)
        for (size_t j = 0; j < NORM_LANES; j++) lanes[j] += (double)x[i + j] * (double)x[i + j];
    for (size_t j = 0; i < n; i++, j++) lanes[j] += (double)x[i] * (double)x[i];
    for (i = 0; i < n; i++) {
        uint32_t magnitude = vmath_bits(x[i]) & 0x7fffffffu;
        largest = magnitude > largest ? magnitude : largest;
    }
    double sum = 0;
    for (size_t j = 0; j < NORM_LANES; j++) sum += lanes[j];
    *nonfinite |= largest >= 0x7f800000u;
    return sum;
}

// global_norm_squared: the sum of x[i]^2 over n elements, as double (a float's square never overflows one)
//   x (n) f32, read once      *nonfinite |= 1 where an element is inf or NaN (the sum is then inf or NaN too)
//   Blocks, groups of blocks and their order depend on n alone, so the bits do not depend on the number of threads.
static inline double global_norm_squared(const float *x, size_t n, int *nonfinite) {
    size_t group_elems = round_up(max_size(ceil_div(n, NORM_GROUPS), 1), NORM_BLOCK);
    size_t groups = ceil_div(n, group_elems);
    double partial[NORM_GROUPS];
    uint32_t bad = 0;
#pragma omp parallel for schedule(static) reduction(| : bad)
    for (size_t group = 0; group < groups; group++) {
        size_t end = min_size((group + 1) * group_elems, n);
        double sum = 0;
        for (size_t i = group * group_elems; i < end; i += NORM_BLOCK)
            sum += norm_block_squared(x + i, min_size(NORM_BLOCK, end - i), &bad);
        partial[group] = sum;
    }
    double total = 0;
    for (size_t group = 0; group < groups; group++) total += partial[group];
    *nonfinite |= bad != 0;
    return total;
}

CPU_TWIN_END
#endif
