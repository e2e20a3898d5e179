// checksum.h: the 64-bit checksum of checkpoint files, as a stream.
//
// XXH64 with seed 0 (the published xxHash specification, written anew): four independent multiply-rotate lanes over
// 32-byte stripes, so it runs at memory speed and hides no save time. It recognises damage, not malice. `xxhsum -H1
// FILE` prints the same number, so a checkpoint can be checked without this program.
#ifndef LLMC_CHECKSUM_H
#define LLMC_CHECKSUM_H

#include "utils.h"

#define CHECKSUM_P1 0x9E3779B185EBCA87ull
#define CHECKSUM_P2 0xC2B2AE3D27D4EB4Full
#define CHECKSUM_P3 0x165667B19E3779F9ull
#define CHECKSUM_P4 0x85EBCA77C2B2AE63ull
#define CHECKSUM_P5 0x27D4EB2F165667C5ull

typedef struct {
    uint64_t lane[4];
    uint64_t bytes;          // seen so far
    unsigned char tail[32];  // the last bytes % 32 of them
} Checksum;

static inline uint64_t checksum_rotate(uint64_t x, int bits) { return (x << bits) | (x >> (64 - bits)); }

static inline uint64_t checksum_load64(const unsigned char *p) {
    uint64_t x;
    memcpy(&x, p, sizeof x);
    return x;
}

static inline uint64_t checksum_round(uint64_t lane, uint64_t word) {
    return checksum_rotate(lane + word * CHECKSUM_P2, 31) * CHECKSUM_P1;
}

static inline void checksum_start(Checksum *sum) {
    memset(sum, 0, sizeof *sum);
    sum->lane[0] = CHECKSUM_P1 + CHECKSUM_P2;
    sum->lane[1] = CHECKSUM_P2;
    sum->lane[3] = 0 - CHECKSUM_P1;
}

static inline void checksum_stripe(Checksum *sum, const unsigned char *p) {
    for (int i = 0; i < 4; i++) sum->lane[i] = checksum_round(sum->lane[i], checksum_load64(p + 8 * i));
}

// Takes in `bytes` more bytes; how a stream is cut into calls makes no difference.
static inline void checksum_add(Checksum *sum, const void *data, size_t bytes) {
    const unsigned char *p = (const unsigned char *)data;
    size_t held = (size_t)(sum->bytes % 32);
    sum->bytes += bytes;
    if (held) {
        size_t take = min_size(32 - held, bytes);
        memcpy(sum->tail + held, p, take);
        p += take;
        bytes -= take;
        if (held + take < 32) return;
        checksum_stripe(sum, sum->tail);
    }
    for (; bytes >= 32; p += 32, bytes -= 32) checksum_stripe(sum, p);
    if (bytes) memcpy(sum->tail, p, bytes);
}

// The checksum of everything added so far; more may be added afterwards.
static inline uint64_t checksum_value(const Checksum *sum) {
    uint64_t h = sum->lane[2] + CHECKSUM_P5;  // fewer than 32 bytes: lane 2 still holds the seed
    if (sum->bytes >= 32) {
        static const int turns[4] = {1, 7, 12, 18};
        h = 0;
        for (int i = 0; i < 4; i++) h += checksum_rotate(sum->lane[i], turns[i]);
        for (int i = 0; i < 4; i++) h = (h ^ checksum_round(0, sum->lane[i])) * CHECKSUM_P1 + CHECKSUM_P4;
    }
    h += sum->bytes;
    const unsigned char *p = sum->tail, *end = p + sum->bytes % 32;
    for (; end - p >= 8; p += 8)
        h = checksum_rotate(h ^ checksum_round(0, checksum_load64(p)), 27) * CHECKSUM_P1 + CHECKSUM_P4;
    if (end - p >= 4) {
        uint32_t word;
        memcpy(&word, p, sizeof word);
        h = checksum_rotate(h ^ (word * CHECKSUM_P1), 23) * CHECKSUM_P2 + CHECKSUM_P3;
        p += 4;
    }
    for (; p < end; p++) h = checksum_rotate(h ^ (*p * CHECKSUM_P5), 11) * CHECKSUM_P1;
    h = (h ^ (h >> 33)) * CHECKSUM_P2;
    h = (h ^ (h >> 29)) * CHECKSUM_P3;
    return h ^ (h >> 32);
}

#endif
