// tokenizer.h: text -> ids -> text, losslessly for any bytes.
//
//     Tokenizer t;
//     tokenizer_load(&t, "byte");                            // or the path of a GPT-2 vocabulary
//     size_t n = tokenizer_encode(&t, NULL, text, bytes, ids);
//     const uint8_t *piece = tokenizer_decode(&t, ids[0], &piece_bytes);
//     tokenizer_free(&t);
//
// "byte": ids 0..255 are the bytes, 256 ends a text. V = 257.
// A path: GPT-2's byte-pair encoding (bpe.h).
#ifndef LLMC_TOKENIZER_H
#define LLMC_TOKENIZER_H

#include "utils.h"

#define TOKENIZER_END_OF_TEXT "<|endoftext|>"
#define BYTE_TOKENIZER_V ((size_t)257)

typedef enum { TOKENIZER_NONE = 0, TOKENIZER_BYTE = 1, TOKENIZER_GPT2 = 2 } TokenizerKind;  // as in token_file.h

typedef struct {
    TokenizerKind kind;
    size_t V;
    int32_t end_of_text;
    uint32_t fingerprint;  // of the vocabulary: two tokenizers with the same number decode alike
} Tokenizer;

typedef struct TokenizerCache TokenizerCache;

// Fills `t` from "byte" or a vocabulary path; ends the program with the reason where that cannot be done.
static inline void tokenizer_load(Tokenizer *t, const char *path) {
    memset(t, 0, sizeof *t);
    if (strcmp(path, "byte") != 0) die("tokenizer '%s': only \"byte\" is there so far", path);
    t->kind = TOKENIZER_BYTE;
    t->V = BYTE_TOKENIZER_V;
    t->end_of_text = 256;
    t->fingerprint = 1;
}

static inline void tokenizer_free(Tokenizer *t) { memset(t, 0, sizeof *t); }

// ids = the ids of `bytes` bytes of text, at most one a byte; returns how many. Never gives end_of_text: a literal
// "<|endoftext|>" is ordinary text. `cache` (one a thread) makes it faster and may be NULL.
static inline size_t tokenizer_encode(const Tokenizer *t, TokenizerCache *cache, const void *text, size_t bytes,
                                      int32_t *ids) {
    const uint8_t *in = (const uint8_t *)text;
    (void)t, (void)cache;
    for (size_t i = 0; i < bytes; i++) ids[i] = in[i];
    return bytes;
}

// The bytes that `id` stands for and their number; "<|endoftext|>" for end_of_text, no bytes for an id without any.
static inline const uint8_t *tokenizer_decode(const Tokenizer *t, int32_t id, size_t *bytes) {
    // Every byte value once, so that a pointer into it is a one-byte text.
#define BYTES_16(x) x, x+1, x+2, x+3, x+4, x+5, x+6, x+7, x+8, x+9, x+10, x+11, x+12, x+13, x+14, x+15
    static const uint8_t every_byte[256] = {
        BYTES_16(0x00), BYTES_16(0x10), BYTES_16(0x20), BYTES_16(0x30), BYTES_16(0x40), BYTES_16(0x50), BYTES_16(0x60),
        BYTES_16(0x70), BYTES_16(0x80), BYTES_16(0x90), BYTES_16(0xA0), BYTES_16(0xB0), BYTES_16(0xC0), BYTES_16(0xD0),
        BYTES_16(0xE0), BYTES_16(0xF0)};
#undef BYTES_16
    *bytes = 0;
    if (id == t->end_of_text) {
        *bytes = sizeof TOKENIZER_END_OF_TEXT - 1;
        return (const uint8_t *)TOKENIZER_END_OF_TEXT;
    }
    if (id < 0 || id > 255) return every_byte;
    *bytes = 1;
    return &every_byte[id];
}

// The largest c in 1..bytes where the text may be cut so that the parts' ids together are the whole's, whatever text
// follows; 0 where there is none.
static inline size_t tokenizer_safe_cut(const Tokenizer *t, const void *text, size_t bytes) {
    (void)t, (void)text;
    return bytes;
}

static inline TokenizerCache *tokenizer_cache_new(void) { return NULL; }
static inline void tokenizer_cache_free(TokenizerCache *cache) { (void)cache; }

#endif
