// bpe.h: GPT-2's byte-pair encoding (Sennrich et al. 2016; Radford et al. 2019): the splitting of a text into pieces,
// and the merging of a piece's bytes into ids. tokenizer.h reads the vocabulary files and is what callers use.
//
// Pieces are what this expression matches one after the other (\p{L}: letter, \p{N}: number, \s: white space):
//     's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// A piece that is a token is that token. Otherwise its bytes are merged: again and again the two neighbours whose
// concatenation is the token of lowest rank, the leftmost of equals. A byte that is not valid UTF-8 splits like a
// symbol (like U+FFFD) and keeps its own value.
#ifndef LLMC_BPE_H
#define LLMC_BPE_H

#include "unicode_class.h"

#define BPE_NO_RANK UINT32_MAX
#define BPE_SHORT_PIECE ((size_t)48)  // up to here a plain search for the best pair beats a heap (measured)

typedef struct {
    uint64_t pair;  // left id << 32 | right id; UINT64_MAX: free
    uint32_t rank;  // of the merged token: lower is merged first
    int32_t id;
} BpePair;

typedef struct {
    size_t V;
    uint8_t *pool;    // all tokens' bytes; id's are pool[starts[id] .. starts[id + 1])
    size_t *starts;   // V + 1
    uint32_t *ranks;  // V; BPE_NO_RANK: never a result of encoding (end of text, ids without a token)
    int32_t byte_ids[256];
    int32_t *by_bytes;  // hash table of ids, -1: free
    size_t by_bytes_mask;
    BpePair *pairs;  // hash table of all pairs of tokens whose concatenation is a token
    size_t pairs_mask;
    uint8_t *classes;  // unicode_classes_new(): NULL without PCRE2
} Bpe;

// ----------------------------------------------------------------------------------------------------------------
// Splitting

// End of the run of characters of class `klass` that begins at or before `at`.
static inline size_t bpe_run_end(const uint8_t *classes, const uint8_t *text, size_t bytes, size_t at, int klass) {
    while (at < bytes) {
        uint32_t point = text[at];
        size_t n = 1;
        if (point >= 0x80) n = utf8_decode(text + at, bytes - at, &point);
        if (classes[point] != klass) break;
        at += n;
    }
    return at;
}

// Length of the contraction at text[at], which is an apostrophe; 0 where there is none.
static inline size_t bpe_contraction(const uint8_t *text, size_t bytes, size_t at) {
    int a = at + 1 < bytes ? text[at + 1] : 0, b = at + 2 < bytes ? text[at + 2] : 0;
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
    return (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
}

// End of the piece that begins at `at` (< bytes): the expression above, by hand.
static inline size_t bpe_piece_end(const uint8_t *classes, const uint8_t *text, size_t bytes, size_t at) {
    size_t start = at, n;
    uint32_t point;
    if (text[at] == '\'' && (n = bpe_contraction(text, bytes, at))) return at + n;
    if (text[at] == ' ' && at + 1 < bytes) at++;  // one space may lead a word, a number or symbols
    n = utf8_decode(text + at, bytes - at, &point);
    int klass = classes[point];
    if (klass != CLASS_SPACE) return bpe_run_end(classes, text, bytes, at + n, klass);
    size_t end = bpe_run_end(classes, text, bytes, at + n, CLASS_SPACE), last = end;
    if (end == bytes) return end;
    do {  // \s+(?!\S): the last white space before a word is left for the word
        last--;
    } while ((text[last] & 0xC0) == 0x80);
    return last > start ? last : end;
}

// Class of the character that ends at `at` (> 0).
static inline int bpe_class_before(const uint8_t *classes, const uint8_t *text, size_t at) {
    size_t first = at - 1;
    uint32_t point;
    while (first > 0 && at - first < 4 && (text[first] & 0xC0) == 0x80) first--;
    if (utf8_decode(text + first, at - first, &point) != at - first) return CLASS_OTHER;  // a stray byte
    return classes[point];
}

// The largest c in 1..bytes where the text can be cut without changing a piece, whatever follows; 0: nowhere.
// Letters end where no letter follows, numbers where no number follows; symbols end before white space and numbers, and
// before letters unless the symbol is an apostrophe, which may begin a contraction. White space depends on what follows
// it and is never an end. The last 3 bytes are left alone: the character there may be incomplete.
static inline size_t bpe_safe_cut(const uint8_t *classes, const uint8_t *text, size_t bytes) {
    for (size_t cut = bytes > 3 ? bytes - 4 : 0; cut > 0; cut--) {
        uint32_t point;
        if ((text[cut] & 0xC0) == 0x80) continue;
        utf8_decode(text + cut, bytes - cut, &point);
        int before = bpe_class_before(classes, text, cut), after = classes[point];
        if (before != after && before != CLASS_SPACE && !(after == CLASS_LETTER && text[cut - 1] == '\'')) return cut;
    }
    return 0;
}

// ----------------------------------------------------------------------------------------------------------------
// Tables

static inline uint64_t bpe_mix(uint64_t x) {
    x *= 0x9E3779B97F4A7C15u;
    return x ^ x >> 32;
}

static inline uint64_t bpe_hash_bytes(const uint8_t *text, size_t bytes) {
    uint64_t hash = bytes, word;
    for (; bytes >= 8; text += 8, bytes -= 8) {
        memcpy(&word, text, 8);
        hash = bpe_mix(hash ^ word);
    }
    word = 0;
    memcpy(&word, text, bytes);
    return bpe_mix(hash ^ word);
}

static inline size_t bpe_table_size(size_t entries) {
    size_t size = 16;
    while (size < 2 * entries) size *= 2;
    return size;
}

// The id whose bytes these are, among those that encoding may give; -1 where there is none.
static inline int32_t bpe_find(const Bpe *bpe, const uint8_t *text, size_t bytes) {
    for (size_t slot = bpe_hash_bytes(text, bytes);; slot++) {
        int32_t id = bpe->by_bytes[slot & bpe->by_bytes_mask];
        if (id < 0) return -1;
        size_t start = bpe->starts[id];
        if (bpe->starts[id + 1] - start == bytes && memcmp(bpe->pool + start, text, bytes) == 0) return id;
    }
}

// The merge of two neighbouring ids, or NULL.
static inline const BpePair *bpe_find_pair(const Bpe *bpe, int32_t left, int32_t right) {
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    for (size_t slot = bpe_mix(pair);; slot++) {
        const BpePair *entry = &bpe->pairs[slot & bpe->pairs_mask];
        if (entry->pair == pair) return entry;
        if (entry->pair == UINT64_MAX) return NULL;
    }
}

// Puts all ranked tokens into by_bytes; returns -1, or an id whose bytes another one has as well.
static inline int32_t bpe_index_tokens(Bpe *bpe) {
    size_t size = bpe_table_size(bpe->V);
    bpe->by_bytes_mask = size - 1;
    bpe->by_bytes = (int32_t *)checked_calloc(size, sizeof(int32_t), "the vocabulary");
    memset(bpe->by_bytes, 0xFF, size * sizeof(int32_t));
    for (size_t id = 0; id < bpe->V; id++) {
        const uint8_t *text = bpe->pool + bpe->starts[id];
        size_t bytes = bpe->starts[id + 1] - bpe->starts[id];
        if (bpe->ranks[id] == BPE_NO_RANK) continue;
        if (bpe_find(bpe, text, bytes) >= 0) return (int32_t)id;
        size_t slot = bpe_hash_bytes(text, bytes);
        while (bpe->by_bytes[slot & bpe->by_bytes_mask] >= 0) slot++;
        bpe->by_bytes[slot & bpe->by_bytes_mask] = (int32_t)id;
    }
    return -1;
}

// Fills the table of pairs: every way to cut a token into two tokens. (tiktoken asks at each step whether the joined
// bytes are a token; the pairs are that question answered beforehand.)
static inline void bpe_index_pairs(Bpe *bpe) {
    BpePair *list = NULL;
    size_t count = 0, capacity = 0;
    for (size_t id = 0; id < bpe->V; id++) {
        const uint8_t *text = bpe->pool + bpe->starts[id];
        size_t bytes = bpe->starts[id + 1] - bpe->starts[id];
        if (bpe->ranks[id] == BPE_NO_RANK) continue;
        for (size_t cut = 1; cut < bytes; cut++) {
            int32_t left = bpe_find(bpe, text, cut), right = left < 0 ? -1 : bpe_find(bpe, text + cut, bytes - cut);
            if (right < 0) continue;
            if (count == capacity) {
                capacity = max_size(1024, 2 * capacity);
                list = (BpePair *)realloc(list, size_mul(capacity, sizeof *list));
                if (!list) die("out of memory: %zu pairs of the vocabulary", capacity);
            }
            BpePair pair = {(uint64_t)(uint32_t)left << 32 | (uint32_t)right, bpe->ranks[id], (int32_t)id};
            list[count++] = pair;
        }
    }
    size_t size = bpe_table_size(count);
    bpe->pairs_mask = size - 1;
    bpe->pairs = (BpePair *)checked_calloc(size, sizeof *bpe->pairs, "the vocabulary's pairs");
    for (size_t i = 0; i < size; i++) bpe->pairs[i].pair = UINT64_MAX;
    for (size_t i = 0; i < count; i++) {
        size_t slot = bpe_mix(list[i].pair);
        while (bpe->pairs[slot & bpe->pairs_mask].pair != UINT64_MAX) slot++;
        bpe->pairs[slot & bpe->pairs_mask] = list[i];
    }
    free(list);
}

static inline void bpe_free(Bpe *bpe) {
    free(bpe->pool);
    free(bpe->starts);
    free(bpe->ranks);
    free(bpe->by_bytes);
    free(bpe->pairs);
    free(bpe->classes);
    memset(bpe, 0, sizeof *bpe);
}

// ----------------------------------------------------------------------------------------------------------------
// Merging

#define BPE_CACHE_SLOTS ((size_t)1 << 14)  // of 48 bytes: fits a core's second-level cache
#define BPE_CACHED_BYTES ((size_t)16)
#define BPE_CACHED_IDS 7

typedef struct {
    uint64_t low, high;  // the piece's bytes, zero-filled; `bytes` tells NULs from filling
    uint16_t bytes, count;
    int32_t ids[BPE_CACHED_IDS];
} BpeCacheEntry;

// One thread's working memory: recent short pieces with their ids, and room for a long piece.
typedef struct TokenizerCache {
    BpeCacheEntry entries[BPE_CACHE_SLOTS];  // bytes == 0: free
    // of a long piece, by position: current id, the neighbours' positions, and the pair with the right neighbour
    int32_t *ids, *previous, *next, *merged;
    uint32_t *ranks;
    uint64_t *heap;  // rank << 32 | position; entries that no longer hold are skipped when they come up
    size_t capacity, heap_count;
} TokenizerCache;

static inline TokenizerCache *tokenizer_cache_new(void) {
    return (TokenizerCache *)checked_calloc(1, sizeof(TokenizerCache), "a tokenizer's cache");
}

static inline void bpe_free_long(TokenizerCache *cache) {
    free(cache->ids);
    free(cache->previous);
    free(cache->next);
    free(cache->merged);
    free(cache->ranks);
    free(cache->heap);
}

static inline void tokenizer_cache_free(TokenizerCache *cache) {
    if (cache) bpe_free_long(cache);
    free(cache);
}

// A short piece: look through all pairs for the best one, join it, until none is left. Returns the number of ids.
static inline size_t bpe_merge_short(const Bpe *bpe, const uint8_t *text, size_t bytes, int32_t *ids) {
    const BpePair *pairs[BPE_SHORT_PIECE + 1];  // pairs[i] joins ids i and i + 1
    uint32_t ranks[BPE_SHORT_PIECE + 1];
    size_t n = bytes;
    for (size_t i = 0; i < n; i++) ids[i] = bpe->byte_ids[text[i]];
    for (size_t i = 0; i + 1 < n; i++) {
        pairs[i] = bpe_find_pair(bpe, ids[i], ids[i + 1]);
        ranks[i] = pairs[i] ? pairs[i]->rank : BPE_NO_RANK;
    }
    for (;;) {
        uint32_t best = BPE_NO_RANK;
        size_t at = 0;
        for (size_t i = 0; i + 1 < n; i++)
            if (ranks[i] < best) best = ranks[i], at = i;
        if (best == BPE_NO_RANK) return n;
        ids[at] = pairs[at]->id;
        n--;
        memmove(ids + at + 1, ids + at + 2, (n - at - 1) * sizeof *ids);
        memmove(pairs + at, pairs + at + 1, (n - at - 1) * sizeof *pairs);  // n - 1 pairs; [at] is set anew below
        memmove(ranks + at, ranks + at + 1, (n - at - 1) * sizeof *ranks);
        for (size_t i = at ? at - 1 : 0; i <= at && i + 1 < n; i++) {
            pairs[i] = bpe_find_pair(bpe, ids[i], ids[i + 1]);
            ranks[i] = pairs[i] ? pairs[i]->rank : BPE_NO_RANK;
        }
    }
}

static inline void *bpe_grow(void *memory, size_t count, size_t element_bytes) {
    memory = realloc(memory, size_mul(count, element_bytes));
    if (!memory) die("out of memory: a piece of %zu bytes without a word border", count);
    return memory;
}

static inline void bpe_heap_push(TokenizerCache *c, uint64_t value) {
    size_t at = c->heap_count++;
    for (; at > 0 && c->heap[(at - 1) / 2] > value; at = (at - 1) / 2) c->heap[at] = c->heap[(at - 1) / 2];
    c->heap[at] = value;
}

static inline uint64_t bpe_heap_pop(TokenizerCache *c) {
    uint64_t top = c->heap[0], value = c->heap[--c->heap_count];
    size_t at = 0, child;
    while ((child = 2 * at + 1) < c->heap_count) {
        if (child + 1 < c->heap_count && c->heap[child + 1] < c->heap[child]) child++;
        if (c->heap[child] >= value) break;
        c->heap[at] = c->heap[child];
        at = child;
    }
    c->heap[at] = value;
    return top;
}

// Looks up the pair at position `at` and its right neighbour and queues it.
static inline void bpe_queue_pair(const Bpe *bpe, TokenizerCache *c, int32_t at) {
    c->ranks[at] = BPE_NO_RANK;
    if (c->next[at] < 0) return;
    const BpePair *pair = bpe_find_pair(bpe, c->ids[at], c->ids[c->next[at]]);
    if (!pair) return;
    c->ranks[at] = pair->rank;
    c->merged[at] = pair->id;
    bpe_heap_push(c, (uint64_t)pair->rank << 32 | (uint32_t)at);
}

// A long piece: the same result with a heap, n log n. (Not the search above: a megabyte of one letter would take days.)
static inline size_t bpe_merge_long(const Bpe *bpe, TokenizerCache *c, const uint8_t *text, size_t bytes,
                                    int32_t *ids) {
    if (bytes > c->capacity) {
        c->capacity = bytes;
        c->ids = (int32_t *)bpe_grow(c->ids, bytes, sizeof *c->ids);
        c->previous = (int32_t *)bpe_grow(c->previous, bytes, sizeof *c->previous);
        c->next = (int32_t *)bpe_grow(c->next, bytes, sizeof *c->next);
        c->merged = (int32_t *)bpe_grow(c->merged, bytes, sizeof *c->merged);
        c->ranks = (uint32_t *)bpe_grow(c->ranks, bytes, sizeof *c->ranks);
        c->heap = (uint64_t *)bpe_grow(c->heap, size_mul(bytes, 3), sizeof *c->heap);  // n, and 2 more for each merge
    }
    c->heap_count = 0;
    for (size_t i = 0; i < bytes; i++) {
        c->ids[i] = bpe->byte_ids[text[i]];
        c->previous[i] = (int32_t)i - 1;
        c->next[i] = i + 1 < bytes ? (int32_t)i + 1 : -1;
    }
    for (size_t i = 0; i < bytes; i++) bpe_queue_pair(bpe, c, (int32_t)i);
    while (c->heap_count) {
        uint64_t top = bpe_heap_pop(c);
        int32_t at = (int32_t)(uint32_t)top, right = c->next[at];
        if (c->ranks[at] != (uint32_t)(top >> 32)) continue;  // joined or changed since it was queued
        c->ids[at] = c->merged[at];
        c->ranks[right] = BPE_NO_RANK;  // gone
        c->next[at] = c->next[right];
        if (c->next[at] >= 0) c->previous[c->next[at]] = at;
        bpe_queue_pair(bpe, c, at);
        if (c->previous[at] >= 0) bpe_queue_pair(bpe, c, c->previous[at]);
    }
    size_t count = 0;
    for (int32_t at = 0; at >= 0; at = c->next[at]) ids[count++] = c->ids[at];
    return count;
}

// ids of one piece, without the cache.
static inline size_t bpe_encode_piece(const Bpe *bpe, TokenizerCache *cache, const uint8_t *text, size_t bytes,
                                      int32_t *ids) {
    int32_t whole = bpe_find(bpe, text, bytes);
    if (whole >= 0) {
        ids[0] = whole;
        return 1;
    }
    if (bytes <= BPE_SHORT_PIECE) return bpe_merge_short(bpe, text, bytes, ids);
    return bpe_merge_long(bpe, cache, text, bytes, ids);
}

// At most 16 bytes as two words, zero-filled, without reading beyond them.
static inline void bpe_load_words(const uint8_t *text, size_t bytes, uint64_t *low, uint64_t *high) {
    *low = *high = 0;
    if (bytes >= 8) {
        memcpy(low, text, 8);
        memcpy(high, text + bytes - 8, 8);  // overlaps `low`: as unique, given the length
    } else if (bytes >= 4) {
        uint32_t first, last;
        memcpy(&first, text, 4);
        memcpy(&last, text + bytes - 4, 4);
        *low = (uint64_t)last << 32 | first;
    } else {
        *low = text[0] | (uint64_t)text[bytes / 2] << 8 | (uint64_t)text[bytes - 1] << 16;
    }
}

// ids of `bytes` bytes of text, at most one a byte; returns how many.
static inline size_t bpe_encode(const Bpe *bpe, TokenizerCache *cache, const uint8_t *text, size_t bytes,
                                int32_t *ids) {
    size_t count = 0;
    for (size_t at = 0, end; at < bytes; at = end) {
        end = bpe_piece_end(bpe->classes, text, bytes, at);
        size_t length = end - at;
        if (length > BPE_CACHED_BYTES) {
            count += bpe_encode_piece(bpe, cache, text + at, length, ids + count);
            continue;
        }
        uint64_t low, high;
        bpe_load_words(text + at, length, &low, &high);
        BpeCacheEntry *entry = &cache->entries[bpe_mix(low ^ bpe_mix(high ^ length)) & (BPE_CACHE_SLOTS - 1)];
        if (entry->low != low || entry->high != high || entry->bytes != length) {
            size_t n = bpe_encode_piece(bpe, cache, text + at, length, ids + count);
            if (n <= BPE_CACHED_IDS) {
                entry->low = low;
                entry->high = high;
                entry->bytes = (uint16_t)length;
                entry->count = (uint16_t)n;
                memcpy(entry->ids, ids + count, n * sizeof *ids);
            }
            count += n;
            continue;
        }
        for (int i = 0; i < entry->count; i++) ids[count + (size_t)i] = entry->ids[i];
        count += entry->count;
    }
    return count;
}

#endif
