// rand.h: every random number of the program: Philox4x32-10, counter-based (Salmon et al. 2011, "Parallel random
// numbers: as easy as 1, 2, 3").
//
// A number is a pure function of (seed, purpose, stream, step, element): no state, so nothing depends on how many
// threads or ranks there are or in which order they run, a resumed run draws the same numbers, and a GPU kernel that
// calls cuRAND's curand_Philox4x32_10(ctr, key) gets the same bits. The layout:
//
//     ctr = {element >> 2, element >> 34, stream, step}   key = {seed low, seed high ^ purpose}   word = element & 3
#ifndef LLMC_RAND_H
#define LLMC_RAND_H

#include <math.h>

#include "utils.h"

// What a number is for. Numbers of two purposes never coincide. The values are part of a run's reproducibility.
enum {
    RAND_ROUND_WEIGHT = 1,  // stochastic rounding of weights
    RAND_ROUND_M = 2,       //   and of Adam's moments
    RAND_ROUND_V = 3,
    RAND_ROUND_GRAD_FP4 = 4,
    RAND_INIT = 16,     // initial weights: stream = tensor
    RAND_SHUFFLE = 17,  // order of the training samples
    RAND_SAMPLE = 18,   // coins of text generation
    RAND_TEST = 19      // data of tests and benchmarks
};

typedef struct {
    uint32_t word[4];
} RandBlock;

// Philox4x32-10: 128 bits of counter and 64 bits of key to 128 random bits.
static inline RandBlock rand_philox(RandBlock ctr, uint32_t key0, uint32_t key1) {
    for (int round = 0; round < 10; round++) {
        uint64_t product0 = (uint64_t)0xD2511F53u * ctr.word[0];
        uint64_t product1 = (uint64_t)0xCD9E8D57u * ctr.word[2];
        RandBlock next;
        next.word[0] = (uint32_t)(product1 >> 32) ^ ctr.word[1] ^ key0;
        next.word[1] = (uint32_t)product1;
        next.word[2] = (uint32_t)(product0 >> 32) ^ ctr.word[3] ^ key1;
        next.word[3] = (uint32_t)product0;
        ctr = next;
        key0 += 0x9E3779B9u;  // the golden ratio's and sqrt(3) - 1's first 32 bits
        key1 += 0xBB67AE85u;
    }
    return ctr;
}

// The block that holds elements 4*block .. 4*block+3 of a stream.
static inline RandBlock rand_block(uint64_t seed, uint32_t purpose, uint32_t stream, uint32_t step, uint64_t block) {
    RandBlock ctr;
    ctr.word[0] = (uint32_t)block;
    ctr.word[1] = (uint32_t)(block >> 32);
    ctr.word[2] = stream;
    ctr.word[3] = step;
    return rand_philox(ctr, (uint32_t)seed, (uint32_t)(seed >> 32) ^ purpose);
}

// 32 random bits for one element.
static inline uint32_t rand_u32(uint64_t seed, uint32_t purpose, uint32_t stream, uint32_t step, uint64_t element) {
    return rand_block(seed, purpose, stream, step, element >> 2).word[element & 3];
}

// [0, 1) in steps of 2^-24: every value is exact in a float, and 1 never occurs.
static inline float rand_uniform_from_bits(uint32_t bits) { return (float)(bits >> 8) * (1.0f / 16777216.0f); }

// A uniform number in [0, 1) for one element.
static inline float rand_uniform(uint64_t seed, uint32_t purpose, uint32_t stream, uint32_t step, uint64_t element) {
    return rand_uniform_from_bits(rand_u32(seed, purpose, stream, step, element));
}

// Four independent standard normal numbers from one block: Box-Muller on words (0, 1) and (2, 3), in double, so that
// the float each is stored as is the same whichever C library computed the logarithm (but for a rare last bit).
// The half in (word + 0.5) keeps the logarithm finite: |z| <= sqrt(-2 ln 2^-33) = 6.77.
static inline void rand_normal4(double z[4], RandBlock block) {
    for (int pair = 0; pair < 4; pair += 2) {
        double radius = sqrt(-2.0 * log(((double)block.word[pair] + 0.5) * 0x1p-32));
        double angle = 6.283185307179586 * ((double)block.word[pair + 1] * 0x1p-32);
        z[pair] = radius * cos(angle);
        z[pair + 1] = radius * sin(angle);
    }
}

// x[i] = std * z(first_index + i) for i < n: normal numbers for the elements first_index.. of `stream` (a tensor's
// number), purpose RAND_INIT. The same values for any number of threads and however a tensor is cut into calls.
static inline void rand_normal_fill(float *x, size_t n, size_t first_index, float std, uint64_t seed, uint32_t stream) {
    if (n == 0) return;
    size_t first_block = first_index >> 2, last_block = (first_index + n - 1) >> 2;
#ifdef _OPENMP
#pragma omp parallel for schedule(static)
#endif
    for (size_t block = first_block; block <= last_block; block++) {
        double z[4];
        rand_normal4(z, rand_block(seed, RAND_INIT, stream, 0, block));
        for (size_t lane = 0; lane < 4; lane++) {
            size_t element = 4 * block + lane;
            if (element >= first_index && element - first_index < n)
                x[element - first_index] = (float)((double)std * z[lane]);
        }
    }
}

// ----------------------------------------------------------------------------------------------------------------
// One number after another, where a sequence is what is wanted. The whole state is plain data: saving `next` and
// putting it back continues the sequence.

typedef struct {
    uint64_t seed, next;
    uint32_t purpose, stream;
} RandSequence;

static inline RandSequence rand_sequence(uint64_t seed, uint32_t purpose, uint32_t stream) {
    RandSequence sequence;
    sequence.seed = seed;
    sequence.next = 0;
    sequence.purpose = purpose;
    sequence.stream = stream;
    return sequence;
}

static inline uint32_t rand_next_u32(RandSequence *sequence) {
    return rand_u32(sequence->seed, sequence->purpose, sequence->stream, 0, sequence->next++);
}

// [0, 1)
static inline float rand_next_uniform(RandSequence *sequence) {
    return rand_uniform_from_bits(rand_next_u32(sequence));
}

#endif
