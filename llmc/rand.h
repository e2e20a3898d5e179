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

// The generator itself also compiles for the device when nvcc reads this file.
#ifdef __CUDACC__
#define RAND_FN static inline __host__ __device__
#else
#define RAND_FN static inline
#endif

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
RAND_FN RandBlock rand_philox(RandBlock ctr, uint32_t key0, uint32_t key1) {
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
RAND_FN RandBlock rand_block(uint64_t seed, uint32_t purpose, uint32_t stream, uint32_t step, uint64_t block) {
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

// ----------------------------------------------------------------------------------------------------------------
// Normal numbers: Box-Muller in double. Logarithm, sine and cosine are made here from +, -, * and / alone, so that
// initial weights are the same bits with every C library and compiler, and so that the loops vectorise.

// ln(x) for a normal positive x: x = 2^e * m with m in [sqrt(1/2), sqrt(2)), ln(m) = 2 artanh((m - 1) / (m + 1)).
static inline double rand_log(double x) {
    uint64_t bits, sqrt_half = 0x3fe6a09e667f3bcdu;
    memcpy(&bits, &x, sizeof bits);
    uint64_t shifted = bits - sqrt_half;
    int32_t e = (int32_t)(uint32_t)(shifted >> 32) >> 20;
    bits = (shifted & 0xfffffffffffffu) + sqrt_half;
    double m;
    memcpy(&m, &bits, sizeof m);
    double f = (m - 1) / (m + 1), s = f * f;
    double series = 1.0 / 19;
    series = series * s + 1.0 / 17;
    series = series * s + 1.0 / 15;
    series = series * s + 1.0 / 13;
    series = series * s + 1.0 / 11;
    series = series * s + 1.0 / 9;
    series = series * s + 1.0 / 7;
    series = series * s + 1.0 / 5;
    series = series * s + 1.0 / 3;
    return (double)e * 0.6931471805599453 + (2 * f + 2 * f * (s * series));
}

// cos and sin of a full turn times word / 2^32: exact reduction to an eighth of a turn, then the Taylor series.
static inline void rand_cos_sin(double *cosine, double *sine, uint32_t word) {
    uint32_t quadrant = (word + 0x20000000u) >> 30;
    double angle = 6.283185307179586 * 0x1p-32 * (double)(int32_t)(word - (quadrant << 30)), s = angle * angle;
    double c = 1.0 / 20922789888000, d = 1.0 / 355687428096000;  // 16! and 17!
    c = c * s - 1.0 / 87178291200, d = d * s - 1.0 / 1307674368000;
    c = c * s + 1.0 / 479001600, d = d * s + 1.0 / 6227020800;
    c = c * s - 1.0 / 3628800, d = d * s - 1.0 / 39916800;
    c = c * s + 1.0 / 40320, d = d * s + 1.0 / 362880;
    c = c * s - 1.0 / 720, d = d * s - 1.0 / 5040;
    c = c * s + 1.0 / 24, d = d * s + 1.0 / 120;
    c = c * s - 1.0 / 2, d = d * s - 1.0 / 6;
    c = c * s + 1, d = (d * s) * angle + angle;
    double swapped_c = quadrant & 1 ? d : c, swapped_d = quadrant & 1 ? c : d;
    *cosine = (quadrant + 1) & 2 ? -swapped_c : swapped_c;
    *sine = quadrant & 2 ? -swapped_d : swapped_d;
}

// Two independent standard normal numbers from two random words. The half keeps the logarithm finite:
// |z| <= sqrt(-2 ln 2^-33) = 6.77.
static inline void rand_normal_pair(double *z0, double *z1, uint32_t word0, uint32_t word1) {
    double radius = sqrt(-2.0 * rand_log(((double)word0 + 0.5) * 0x1p-32));
    rand_cos_sin(z0, z1, word1);
    *z0 *= radius;
    *z1 *= radius;
}

#define RAND_CHUNK_BLOCKS 64

// The 256 normal numbers of 64 blocks, words (0, 1) and (2, 3) of each making a pair.
static inline void rand_normal_chunk(float *x, size_t first_block, float std, uint64_t seed, uint32_t stream) {
    uint32_t word[4][RAND_CHUNK_BLOCKS];
    float z[4][RAND_CHUNK_BLOCKS];
    for (int i = 0; i < RAND_CHUNK_BLOCKS; i++) {
        RandBlock block = rand_block(seed, RAND_INIT, stream, 0, first_block + (size_t)i);
        for (int lane = 0; lane < 4; lane++) word[lane][i] = block.word[lane];
    }
    for (int lane = 0; lane < 4; lane += 2)
        for (int i = 0; i < RAND_CHUNK_BLOCKS; i++) {
            double z0, z1;
            rand_normal_pair(&z0, &z1, word[lane][i], word[lane + 1][i]);
            z[lane][i] = (float)((double)std * z0);
            z[lane + 1][i] = (float)((double)std * z1);
        }
    for (int i = 0; i < RAND_CHUNK_BLOCKS; i++)
        for (int lane = 0; lane < 4; lane++) x[4 * i + lane] = z[lane][i];
}

// x[i] = std * z(first_index + i) for i < n: normal numbers for the elements first_index.. of `stream` (a tensor's
// number), purpose RAND_INIT. The same values for any number of threads and however a tensor is cut into calls.
static inline void rand_normal_fill(float *x, size_t n, size_t first_index, float std, uint64_t seed, uint32_t stream) {
    const size_t chunk_elems = 4 * RAND_CHUNK_BLOCKS;
    if (n == 0) return;
    size_t first_chunk = first_index / chunk_elems, last_chunk = (first_index + n - 1) / chunk_elems;
#ifdef _OPENMP
#pragma omp parallel for schedule(static)
#endif
    for (size_t chunk = first_chunk; chunk <= last_chunk; chunk++) {
        float values[4 * RAND_CHUNK_BLOCKS];
        size_t begin = max_size(chunk * chunk_elems, first_index);
        size_t end = min_size((chunk + 1) * chunk_elems, first_index + n);
        rand_normal_chunk(values, chunk * RAND_CHUNK_BLOCKS, std, seed, stream);
        memcpy(x + (begin - first_index), values + (begin - chunk * chunk_elems), (end - begin) * sizeof(float));
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
