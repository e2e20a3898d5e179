// tokenizer.h: text -> ids -> text, losslessly for any bytes.
//
//     Tokenizer t;
//     tokenizer_load(&t, "byte");                            // or the path of a GPT-2 vocabulary
//     size_t n = tokenizer_encode(&t, NULL, text, bytes, ids);
//     const uint8_t *piece = tokenizer_decode(&t, ids[0], &piece_bytes);
//     tokenizer_free(&t);
//
// "byte": ids 0..255 are the bytes, 256 ends a text. V = 257.
//
// A path: GPT-2's byte-pair encoding (bpe.h) with the vocabulary found there, which is one of
//   encoder.json + vocab.bpe   as OpenAI published them (Hugging Face's names vocab.json + merges.txt do as well):
//                              the folder that holds both, or the path of either
//   NAME.tiktoken              one "BASE64 RANK" a line; the end-of-text id is the highest rank + 1
// Decoding works in every build; encoding needs PCRE2 (unicode_class.h).
#ifndef LLMC_TOKENIZER_H
#define LLMC_TOKENIZER_H

#include <sys/stat.h>

#include "bpe.h"
#include "json.h"

#define TOKENIZER_END_OF_TEXT "<|endoftext|>"
#define BYTE_TOKENIZER_V ((size_t)257)
#define TOKENIZER_MAX_V ((size_t)1 << 24)  // a larger id in a vocabulary file is taken for damage
#define TOKENIZER_MAX_FILE_BYTES ((size_t)1 << 30)

typedef enum { TOKENIZER_NONE = 0, TOKENIZER_BYTE = 1, TOKENIZER_GPT2 = 2 } TokenizerKind;  // also in token files

typedef struct {
    TokenizerKind kind;
    size_t V;
    int32_t end_of_text;
    uint32_t fingerprint;  // of the vocabulary: tokenizers with the same number decode alike
    Bpe bpe;               // of TOKENIZER_GPT2
} Tokenizer;

// ----------------------------------------------------------------------------------------------------------------
// Vocabulary files

// The whole file, NUL-terminated; for free().
static inline char *tokenizer_read_file(const char *path, size_t *bytes) {
    struct stat status;
    FILE *file = file_open(path, "rb");
    if (fstat(fileno(file), &status) != 0) die("cannot examine '%s': %s", path, strerror(errno));
    if (!S_ISREG(status.st_mode)) die("vocabulary '%s': this is no ordinary file", path);
    if ((uint64_t)status.st_size > TOKENIZER_MAX_FILE_BYTES) die("vocabulary '%s': larger than 1 GiB", path);
    *bytes = (size_t)status.st_size;
    char *text = (char *)checked_calloc(*bytes + 1, 1, "a vocabulary file");
    file_read(file, text, *bytes, path);
    file_close(file, path);
    return text;
}

// While a vocabulary is read: id -> token. Pieces of text stay where they are until bpe_build copies them.
typedef struct {
    const char *path;
    uint8_t **tokens;  // by id, NULL where there is none
    size_t *bytes;
    uint32_t *ranks;
    size_t V, capacity;
} VocabBuilder;

// Adds a token (copied), refusing an id that is taken or absurd; `line` is 0 where the file has no lines.
static inline void vocab_add(VocabBuilder *vocab, uint64_t id, const uint8_t *token, size_t bytes, uint32_t rank) {
    if (id >= TOKENIZER_MAX_V)
        die("vocabulary '%s': id %llu is beyond %zu", vocab->path, (unsigned long long)id, TOKENIZER_MAX_V);
    if (!bytes) die("vocabulary '%s': id %llu has an empty token", vocab->path, (unsigned long long)id);
    if (id >= vocab->capacity) {
        size_t old = vocab->capacity;
        vocab->capacity = max_size(2 * old, (size_t)id + 1024);
        vocab->tokens = (uint8_t **)bpe_grow(vocab->tokens, vocab->capacity, sizeof *vocab->tokens);
        vocab->bytes = (size_t *)bpe_grow(vocab->bytes, vocab->capacity, sizeof *vocab->bytes);
        vocab->ranks = (uint32_t *)bpe_grow(vocab->ranks, vocab->capacity, sizeof *vocab->ranks);
        memset(vocab->tokens + old, 0, (vocab->capacity - old) * sizeof *vocab->tokens);
        memset(vocab->bytes + old, 0, (vocab->capacity - old) * sizeof *vocab->bytes);
    }
    if (vocab->tokens[id]) die("vocabulary '%s': two tokens have the id %llu", vocab->path, (unsigned long long)id);
    vocab->tokens[id] = (uint8_t *)checked_calloc(bytes, 1, "a token");
    memcpy(vocab->tokens[id], token, bytes);
    vocab->bytes[id] = bytes;
    vocab->ranks[id] = rank;
    vocab->V = max_size(vocab->V, (size_t)id + 1);
}

// Turns what was read into the tables of `bpe` and empties `vocab`.
static inline void vocab_build(VocabBuilder *vocab, Bpe *bpe) {
    size_t pool_bytes = 0;
    for (size_t id = 0; id < vocab->V; id++) pool_bytes += vocab->bytes[id];
    bpe->V = vocab->V;
    bpe->pool = (uint8_t *)checked_calloc(pool_bytes, 1, "the vocabulary");
    bpe->starts = (size_t *)checked_calloc(vocab->V + 1, sizeof(size_t), "the vocabulary");
    bpe->ranks = (uint32_t *)checked_calloc(vocab->V, sizeof(uint32_t), "the vocabulary");
    for (size_t id = 0; id < vocab->V; id++) {
        bpe->ranks[id] = vocab->tokens[id] ? vocab->ranks[id] : BPE_NO_RANK;
        bpe->starts[id + 1] = bpe->starts[id] + vocab->bytes[id];
        if (vocab->tokens[id]) memcpy(bpe->pool + bpe->starts[id], vocab->tokens[id], vocab->bytes[id]);
        free(vocab->tokens[id]);
    }
    free(vocab->tokens);
    free(vocab->bytes);
    free(vocab->ranks);
    int32_t twice = bpe_index_tokens(bpe);
    if (twice >= 0) die("vocabulary '%s': the token with id %d has another id as well", vocab->path, twice);
    for (int byte = 0; byte < 256; byte++) {
        uint8_t text = (uint8_t)byte;
        bpe->byte_ids[byte] = bpe_find(bpe, &text, 1);
        if (bpe->byte_ids[byte] < 0)
            die("vocabulary '%s': no token for the byte 0x%02x\nwhy: a byte-pair vocabulary has all 256 bytes, so that "
                "any text can be coded",
                vocab->path, byte);
    }
    bpe_index_pairs(bpe);
}

// OpenAI's files show bytes as characters: printable Latin-1 as themselves; the 68 others (0x00 to 0x20, 0x7F to 0xA0,
// 0xAD) as U+0100, U+0101, ... Decodes `text` into `out`, which may be `text` itself and never gets longer; returns the
// bytes, 0 on a character that stands for none.
static inline size_t vocab_unmask(const char *text, size_t bytes, uint8_t *out) {
    size_t n = 0;
    for (size_t at = 0; at < bytes;) {
        uint32_t point;
        at += utf8_decode((const uint8_t *)text + at, bytes - at, &point);
        if (point >= 0x100 + 68 || point <= 0x20 || (point >= 0x7F && point <= 0xA0) || point == 0xAD) return 0;
        if (point >= 0x100) {
            point -= 0x100;
            point = point <= 0x20 ? point : point < 67 ? point - 33 + 0x7F : 0xAD;
        }
        out[n++] = (uint8_t)point;
    }
    return n;
}

// encoder.json: {"token": id, ...}. Single bytes get the ranks below the merges'; end-of-text, and what no merge makes,
// none.
static inline void vocab_read_encoder(VocabBuilder *vocab, int32_t *end_of_text) {
    size_t bytes;
    char *text = tokenizer_read_file(vocab->path, &bytes);
    Json json;
    if (!json_parse(&json, text, bytes))
        die("vocabulary '%s': %s\nwhy: encoder.json is one object {\"token\": id, ...}", vocab->path, json.error);
    if (json_root(&json)->type != JSON_OBJECT)
        die("vocabulary '%s': this is not an object {\"token\": id, ...}", vocab->path);
    for (const JsonNode *node = json_first(&json, json_root(&json)); node; node = json_next(&json, node)) {
        uint64_t id;
        uint8_t *token = (uint8_t *)node->key;  // the parser's own copy: unmasked in place, it only shrinks
        int is_end = strcmp(node->key, TOKENIZER_END_OF_TEXT) == 0;
        if (!json_u64(node, &id)) die("vocabulary '%s': the id of '%s' is not a whole number", vocab->path, node->key);
        size_t length = is_end ? node->key_bytes : vocab_unmask(node->key, node->key_bytes, token);
        if (!length)
            die("vocabulary '%s': the token of id %llu is empty or has a character that stands for no byte\n"
                "why: not a byte-level vocabulary?",
                vocab->path, (unsigned long long)id);
        vocab_add(vocab, id, token, length, !is_end && length == 1 ? token[0] : BPE_NO_RANK);
        if (is_end) *end_of_text = (int32_t)id;
    }
    json_free(&json);
    free(text);
}

// Finds ids by bytes while vocab.bpe is read; a table of its own, because ranks come only now.
typedef struct {
    int32_t *slots;
    size_t mask;
} VocabIndex;

static inline int32_t *vocab_slot(const VocabBuilder *vocab, const VocabIndex *index, const uint8_t *token,
                                  size_t bytes) {
    size_t slot = bpe_hash_bytes(token, bytes);
    for (;; slot++) {
        int32_t *id = &index->slots[slot & index->mask];
        if (*id < 0 || (vocab->bytes[*id] == bytes && memcmp(vocab->tokens[*id], token, bytes) == 0)) return id;
    }
}

// vocab.bpe: after a "#version" line one merge "LEFT RIGHT" a line, the first merged first. Gives each result its rank.
static inline void vocab_read_merges(VocabBuilder *vocab, const char *path) {
    size_t bytes, line_number = 0, merges = 0;
    char *text = tokenizer_read_file(path, &bytes), *next;
    VocabIndex index = {NULL, bpe_table_size(vocab->V) - 1};
    index.slots = (int32_t *)checked_calloc(index.mask + 1, sizeof(int32_t), "the vocabulary");
    memset(index.slots, 0xFF, (index.mask + 1) * sizeof(int32_t));
    for (size_t id = 0; id < vocab->V; id++)
        if (vocab->tokens[id]) *vocab_slot(vocab, &index, vocab->tokens[id], vocab->bytes[id]) = (int32_t)id;
    for (char *line = text; line < text + bytes; line = next) {
        char *newline = (char *)memchr(line, '\n', (size_t)(text + bytes - line));
        size_t length = newline ? (size_t)(newline - line) : (size_t)(text + bytes - line);
        next = line + length + 1;
        if (length && line[length - 1] == '\r') length--;
        if (!length || (++line_number, line_number == 1 && length >= 8 && memcmp(line, "#version", 8) == 0)) continue;
        char *space = (char *)memchr(line, ' ', length);
        size_t left = space ? (size_t)(space - line) : 0, right = space ? length - left - 1 : 0, n1 = 0, n2 = 0;
        if (left && right) n1 = vocab_unmask(line, left, (uint8_t *)line);
        if (n1) n2 = vocab_unmask(space + 1, right, (uint8_t *)line + n1);
        if (!n2) die("vocabulary '%s', merge %zu: not two tokens with a space between them", path, merges + 1);
        int32_t id = *vocab_slot(vocab, &index, (uint8_t *)line, n1 + n2);
        if (id < 0)
            die("vocabulary '%s', merge %zu: its result is no token of '%s'\nwhy: the two files belong to different "
                "vocabularies",
                path, merges + 1, vocab->path);
        merges++;
        if (vocab->ranks[id] == BPE_NO_RANK) vocab->ranks[id] = (uint32_t)(255 + merges);
    }
    if (!merges) die("vocabulary '%s': there are no merges in it", path);
    free(index.slots);
    free(text);
}

// One base64 character's value, -1 for any other.
static inline int base64_value(int c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

// Decodes base64 in place; returns the bytes, 0 where it is malformed.
static inline size_t base64_decode(uint8_t *text, size_t length) {
    size_t n = 0;
    uint32_t bits = 0;
    int held = 0;
    if (length % 4) return 0;
    for (int padding = 0; length && text[length - 1] == '=' && padding < 2; padding++) length--;
    for (size_t i = 0; i < length; i++) {
        int value = base64_value(text[i]);
        if (value < 0) return 0;
        bits = bits << 6 | (uint32_t)value;
        held += 6;
        if (held >= 8) text[n++] = (uint8_t)(bits >> (held -= 8));
    }
    return n;
}

#define VOCAB_KINDS "why: GPT-2's vocabulary is encoder.json and vocab.bpe side by side, or one .tiktoken file"

// NAME.tiktoken: a token in base64 and its rank, which is also its id, on each line.
static inline void vocab_read_tiktoken(VocabBuilder *vocab) {
    size_t bytes, line_number = 0;
    char *text = tokenizer_read_file(vocab->path, &bytes), *next;
    for (char *line = text; line < text + bytes; line = next) {
        char *newline = (char *)memchr(line, '\n', (size_t)(text + bytes - line)), *end = NULL;
        size_t length = newline ? (size_t)(newline - line) : (size_t)(text + bytes - line), token_bytes = 0;
        next = line + length + 1;
        line[length] = 0;  // the newline, or the file's terminating NUL
        line_number++;
        if (!length) continue;
        char *space = strchr(line, ' ');
        unsigned long long rank = 0;
        if (space && space[1] >= '0' && space[1] <= '9') {
            rank = strtoull(space + 1, &end, 10);
            if (*end == '\r') end++;
            token_bytes = base64_decode((uint8_t *)line, (size_t)(space - line));
        }
        if (!token_bytes || end != line + length)
            die("vocabulary '%s': line %zu is not a token in base64, a space and its rank, as in a .tiktoken file\n%s",
                vocab->path, line_number, VOCAB_KINDS);
        vocab_add(vocab, rank, (uint8_t *)line, token_bytes, (uint32_t)rank);
    }
    if (!vocab->V) die("vocabulary '%s': the file is empty", vocab->path);
    free(text);
}

// The file of `folder` that is called `name` or else `other_name`; for free(). Ends the program where there is neither.
static inline char *vocab_find_file(const char *folder, const char *name, const char *other_name) {
    const char *names[2] = {name, other_name};
    for (int i = 0; i < 2; i++) {
        size_t room = strlen(folder) + strlen(names[i]) + 2;
        char *path = (char *)checked_calloc(room, 1, "a path");
        snprintf(path, room, "%s/%s", folder, names[i]);
        if (access(path, F_OK) == 0) return path;
        free(path);
    }
    die("vocabulary '%s': there is no %s (nor %s) in this folder\n"
        "%s",
        folder, name, other_name, VOCAB_KINDS);
}

static inline int vocab_has_suffix(const char *path, const char *suffix) {
    size_t length = strlen(path), n = strlen(suffix);
    return length >= n && strcmp(path + length - n, suffix) == 0;
}

// Reads the vocabulary at `path`, of whichever kind it is.
static inline void vocab_read(VocabBuilder *vocab, const char *path, int32_t *end_of_text) {
    struct stat status;
    if (stat(path, &status) != 0) die("vocabulary '%s': %s\n%s", path, strerror(errno), VOCAB_KINDS);
    char *folder = checked_strdup(path), *slash = strrchr(folder, '/');
    if (!S_ISDIR(status.st_mode)) {
        const char *name = slash ? slash + 1 : path;
        if (!vocab_has_suffix(path, ".json") && !vocab_has_suffix(path, ".bpe") && strcmp(name, "merges.txt") != 0) {
            vocab->path = path;
            vocab_read_tiktoken(vocab);
            free(folder);
            return;
        }
        if (slash) slash[slash == folder] = 0;  // keeps the slash of a file in "/"
        else strcpy(folder, ".");               // not longer: the name has a suffix
    }
    char *encoder = vocab_find_file(folder, "encoder.json", "vocab.json");
    char *merges = vocab_find_file(folder, "vocab.bpe", "merges.txt");
    vocab->path = encoder;
    vocab_read_encoder(vocab, end_of_text);
    vocab_read_merges(vocab, merges);
    vocab->path = path;  // later messages are about the whole
    free(encoder);
    free(merges);
    free(folder);
}

// ----------------------------------------------------------------------------------------------------------------
// Tokenizer

// FNV-1a over all tokens and their lengths; never 0, which means "not known" in a token file.
static inline uint32_t tokenizer_fingerprint(const Bpe *bpe) {
    uint64_t hash = 0xCBF29CE484222325u;
    for (size_t id = 0; id < bpe->V; id++) {
        hash = (hash ^ (bpe->starts[id + 1] - bpe->starts[id])) * 0x100000001B3u;
        for (size_t i = bpe->starts[id]; i < bpe->starts[id + 1]; i++) hash = (hash ^ bpe->pool[i]) * 0x100000001B3u;
    }
    uint32_t folded = (uint32_t)(hash ^ hash >> 32);
    return folded ? folded : 1;
}

// Fills `t` from "byte" or a vocabulary path; ends the program with the reason where that cannot be done.
static inline void tokenizer_load(Tokenizer *t, const char *path) {
    VocabBuilder vocab = {path, NULL, NULL, NULL, 0, 0};
    memset(t, 0, sizeof *t);
    if (strcmp(path, "byte") == 0) {
        t->kind = TOKENIZER_BYTE;
        t->V = BYTE_TOKENIZER_V;
        t->end_of_text = 256;
        t->fingerprint = 1;
        return;
    }
    t->kind = TOKENIZER_GPT2;
    t->end_of_text = -1;
    vocab_read(&vocab, path, &t->end_of_text);
    if (t->end_of_text < 0) {
        const uint8_t *text = (const uint8_t *)TOKENIZER_END_OF_TEXT;
        t->end_of_text = (int32_t)vocab.V;
        vocab_add(&vocab, vocab.V, text, sizeof TOKENIZER_END_OF_TEXT - 1, BPE_NO_RANK);
    }
    vocab_build(&vocab, &t->bpe);
    t->V = t->bpe.V;
    t->fingerprint = tokenizer_fingerprint(&t->bpe);
    t->bpe.classes = unicode_classes_new();
}

static inline void tokenizer_free(Tokenizer *t) {
    bpe_free(&t->bpe);
    memset(t, 0, sizeof *t);
}

// 1 if `path` is "byte" or is there at all: a trainer that only wants to show samples can ask before tokenizer_load().
static inline int tokenizer_exists(const char *path) { return strcmp(path, "byte") == 0 || access(path, R_OK) == 0; }

// Ends the program where this build cannot encode with `t`.
static inline void tokenizer_require_encode(const Tokenizer *t) {
    if (t->kind == TOKENIZER_GPT2 && !t->bpe.classes)
        die("the gpt2 tokenizer needs PCRE2, which this build lacks: install libpcre2-dev and run make again\n"
            "why: PCRE2 knows which characters of Unicode are letters and numbers (Fedora calls it pcre2-devel)\n"
            "try: --tokenizer byte, which needs nothing");
}

// ids = the ids of `bytes` bytes of text, at most one a byte; returns how many. Never gives end_of_text: a literal
// "<|endoftext|>" is ordinary text. `cache` (one a thread, tokenizer_cache_new) makes many calls faster, may be NULL.
static inline size_t tokenizer_encode(const Tokenizer *t, TokenizerCache *cache, const void *text, size_t bytes,
                                      int32_t *ids) {
    const uint8_t *in = (const uint8_t *)text;
    if (t->kind == TOKENIZER_BYTE) {
        for (size_t i = 0; i < bytes; i++) ids[i] = in[i];
        return bytes;
    }
    tokenizer_require_encode(t);
    TokenizerCache *own = cache ? NULL : tokenizer_cache_new();
    size_t count = bpe_encode(&t->bpe, cache ? cache : own, in, bytes, ids);
    tokenizer_cache_free(own);
    return count;
}

// The bytes that `id` stands for and their number; "<|endoftext|>" for end_of_text, no bytes for an id without any.
static inline const uint8_t *tokenizer_decode(const Tokenizer *t, int32_t id, size_t *bytes) {
    // Every byte value once, so that a pointer into it is a one-byte text.
#define BYTES_16(x) \
    x, x + 1, x + 2, x + 3, x + 4, x + 5, x + 6, x + 7, x + 8, x + 9, x + 10, x + 11, x + 12, x + 13, x + 14, x + 15
    static const uint8_t every_byte[256] = {BYTES_16(0x00), BYTES_16(0x10), BYTES_16(0x20), BYTES_16(0x30),
                                            BYTES_16(0x40), BYTES_16(0x50), BYTES_16(0x60), BYTES_16(0x70),
                                            BYTES_16(0x80), BYTES_16(0x90), BYTES_16(0xA0), BYTES_16(0xB0),
                                            BYTES_16(0xC0), BYTES_16(0xD0), BYTES_16(0xE0), BYTES_16(0xF0)};
#undef BYTES_16
    *bytes = 0;
    if (id < 0 || (size_t)id >= t->V) return every_byte;
    if (t->kind == TOKENIZER_GPT2) {
        *bytes = t->bpe.starts[id + 1] - t->bpe.starts[id];
        return t->bpe.pool + t->bpe.starts[id];
    }
    if (id > UINT8_MAX) {  // the one id of this tokenizer that is no byte: end_of_text
        *bytes = sizeof TOKENIZER_END_OF_TEXT - 1;
        return (const uint8_t *)TOKENIZER_END_OF_TEXT;
    }
    *bytes = 1;
    return &every_byte[id];
}

// The largest c in 1..bytes where the text may be cut so that the parts' ids together are the whole's, whatever text
// follows; 0 where there is none.
static inline size_t tokenizer_safe_cut(const Tokenizer *t, const void *text, size_t bytes) {
    return t->kind == TOKENIZER_BYTE ? bytes : bpe_safe_cut(t->bpe.classes, (const uint8_t *)text, bytes);
}

#endif
