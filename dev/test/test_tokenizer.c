// Tests of llmc/tokenizer.h, bpe.h and unicode_class.h: tiktoken's ids, PCRE2 as a second opinion on the splitting, and
// the properties that data/tokenize relies on. Fixtures: dev/reference/tokenizer_reference.py.
#include "../../llmc/tokenizer.h"

#include <sys/stat.h>

#include "dies.h"

static uint64_t random_state = 20240520;

// A number below n.
static uint32_t random_below(uint32_t n) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(((random_state >> 32) * n) >> 32);
}

// Path of a fixture beside this file.
static const char *fixture(const char *name) {
    static char paths[4][1024];
    static int next;
    char *path = paths[next++ % 4];
    const char *slash = strrchr(__FILE__, '/');
    snprintf(path, sizeof paths[0], "%.*s/data/%s", slash ? (int)(slash - __FILE__) : 1, slash ? __FILE__ : ".", name);
    if (access(path, F_OK) != 0) snprintf(path, sizeof paths[0], "dev/test/data/%s", name);
    return path;
}

// Every kind of neighbour: classes of characters, apostrophes, and bytes that are no UTF-8.
static size_t random_text(uint8_t *text, size_t room, int valid_only) {
    static const char *const parts[] = {
        "a", "s", "t", "m", "d", "ll", "re", "ve", "l", "Z", "\u00e9", "\u4e2d", "\U00020bb7", "1", "\u00b2", "\u0663",
        "'", "'", "!", "\u2019", "\U0001f600", "\u0301", "\u200b", " ", " ", "  ", "\n", "\r\n", "\t", "\u00a0",
        "\u3000", "\xc2\x85", "hello",
        // no UTF-8: stray continuation, lone leads, overlong, surrogate, beyond the last character
        "\x80", "\xbf\xbf", "\xc3", "\xe4\xb8", "\xf0\x9f\x98", "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xff",
        "\xe3\x80"};
    uint32_t count = valid_only ? 33 : sizeof parts / sizeof parts[0];
    size_t bytes = 0;
    for (;;) {
        const char *part = parts[random_below(count)];
        if (bytes + strlen(part) + 1 > room) return bytes;
        memcpy(text + bytes, part, strlen(part));
        bytes += strlen(part);
        if (random_below(40) == 0) text[bytes++] = 0;
    }
}

// The file, and its size; dies where it cannot be read.
static uint8_t *read_fixture(const char *name, size_t *bytes) {
    return (uint8_t *)tokenizer_read_file(fixture(name), bytes);
}

// Encodes torture.txt with the vocabulary at `path`, compares with the ids in `expected_name`, and decodes again.
static void check_torture(const char *path, const char *expected_name) {
    Tokenizer t;
    size_t bytes, expected_bytes, back = 0;
    uint8_t *text = read_fixture("torture.txt", &bytes);
    uint16_t *expected = (uint16_t *)(void *)read_fixture(expected_name, &expected_bytes);
    int32_t *ids = (int32_t *)checked_calloc(bytes, sizeof *ids, "ids");
    TokenizerCache *cache = tokenizer_cache_new();
    tokenizer_load(&t, path);
    for (int pass = 0; pass < 3; pass++) {  // without a cache, with an empty one, with a filled one
        size_t count = tokenizer_encode(&t, pass ? cache : NULL, text, bytes, ids), i = 0;
        CHECK(count == expected_bytes / 2, "%zu ids, tiktoken has %zu", count, expected_bytes / 2);
        while (i < min_size(count, expected_bytes / 2) && ids[i] == expected[i]) i++;
        CHECK(i == count, "id %zu is %d, tiktoken's %d", i, ids[i], expected[i]);
        back = 0;
        for (size_t k = 0; k < count; k++) {
            size_t n;
            const uint8_t *piece = tokenizer_decode(&t, ids[k], &n);
            if (back + n > bytes || memcmp(text + back, piece, n) != 0) break;
            back += n;
        }
        CHECK(back == bytes, "decoding differs after byte %zu of %zu", back, bytes);
    }
    tokenizer_cache_free(cache);
    tokenizer_free(&t);
    free(ids);
    free(expected);
    free(text);
}

#ifdef HAVE_PCRE2
#define NEED_PCRE2() (void)0
#else
#define NEED_PCRE2() SKIP("this build has no PCRE2 (libpcre2-dev)")
#endif

TEST(byte_tokenizer) {
    Tokenizer t;
    uint8_t text[256];
    int32_t ids[256];
    size_t n;
    tokenizer_load(&t, "byte");
    CHECK(t.V == 257 && t.end_of_text == 256 && t.kind == TOKENIZER_BYTE, "V %zu, end %d", t.V, t.end_of_text);
    for (int i = 0; i < 256; i++) text[i] = (uint8_t)i;
    CHECK(tokenizer_encode(&t, NULL, text, 256, ids) == 256, "not one id a byte");
    for (int i = 0; i < 256; i++) {
        const uint8_t *piece = tokenizer_decode(&t, ids[i], &n);
        CHECK(ids[i] == i && n == 1 && piece[0] == i, "byte %d: id %d, decoded to %zu bytes", i, ids[i], n);
    }
    CHECK(memcmp(tokenizer_decode(&t, 256, &n), "<|endoftext|>", 13) == 0 && n == 13, "end of text: %zu bytes", n);
    tokenizer_decode(&t, 257, &n);
    CHECK(n == 0, "id 257 has %zu bytes", n);
    tokenizer_decode(&t, -1, &n);
    CHECK(n == 0, "id -1 has %zu bytes", n);
    tokenizer_free(&t);
}

TEST(tiktoken_ids_tiny) {
    NEED_PCRE2();
    check_torture(fixture("tiny"), "torture.tiny.ids");
    check_torture(fixture("tiny/encoder.json"), "torture.tiny.ids");
    check_torture(fixture("tiny/vocab.bpe"), "torture.tiny.ids");
    check_torture(fixture("tiny/tiny.tiktoken"), "torture.tiny.ids");
}

TEST(tiktoken_ids_gpt2) {
    char path[1024];
    const char *shared = getenv("SHARED");
    NEED_PCRE2();
    snprintf(path, sizeof path, "%s/data/gpt2", shared && *shared ? shared : "../shared");
    if (access(path, R_OK) != 0) SKIP("no GPT-2 vocabulary at %s (SHARED names the folder that has data/gpt2)", path);
    check_torture(path, "torture.gpt2.ids");
}

// The vocabulary is the same whichever file it comes from.
TEST(vocabulary_files_agree) {
    Tokenizer a, b;
    tokenizer_load(&a, fixture("tiny"));
    tokenizer_load(&b, fixture("tiny/tiny.tiktoken"));
    CHECK(a.V == 700 && b.V == 700, "%zu and %zu ids", a.V, b.V);
    CHECK(a.end_of_text == 699 && b.end_of_text == 699, "ends of text %d and %d", a.end_of_text, b.end_of_text);
    CHECK(a.fingerprint == b.fingerprint && a.fingerprint > 1, "fingerprints %u and %u", a.fingerprint, b.fingerprint);
    CHECK(a.bpe.pairs_mask == b.bpe.pairs_mask, "pair tables of %zu and %zu", a.bpe.pairs_mask, b.bpe.pairs_mask);
    tokenizer_free(&a);
    tokenizer_free(&b);
}

// Any bytes at all come back, and at most one id a byte is made.
TEST(round_trip_of_random_bytes) {
    NEED_PCRE2();
    Tokenizer t;
    static uint8_t text[5000], back[5000];
    static int32_t ids[5001];
    tokenizer_load(&t, fixture("tiny"));
    for (int round = 0; round < 200; round++) {
        size_t bytes = random_below(sizeof text), at = 0;
        if (round % 2) bytes = random_text(text, bytes, 0);
        else
            for (size_t i = 0; i < bytes; i++) text[i] = (uint8_t)random_below(256);
        ids[bytes] = -77;
        size_t count = tokenizer_encode(&t, NULL, text, bytes, ids);
        CHECK(count <= bytes && ids[bytes] == -77, "%zu ids for %zu bytes", count, bytes);
        for (size_t i = 0; i < count; i++) {
            size_t n;
            const uint8_t *piece = tokenizer_decode(&t, ids[i], &n);
            CHECK(n > 0 && ids[i] != t.end_of_text && at + n <= bytes, "id %d", ids[i]);
            if (at + n <= bytes) memcpy(back + at, piece, n);
            at += n;
        }
        CHECK(at == bytes && memcmp(text, back, bytes) == 0, "round %d: %zu bytes became %zu", round, bytes, at);
    }
    tokenizer_free(&t);
}

// The hand-written splitter against PCRE2 with the published expression.
TEST(pieces_equal_the_expression) {
#ifdef HAVE_PCRE2
#define WS "\\x09-\\x0d\\x20\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
    static const char pattern[] =
        "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" WS "\\p{L}\\p{N}]+|[" WS "]+(?![^" WS "])|[" WS "]+";
    static uint8_t text[400];
    uint8_t *classes = unicode_classes_new();
    int code, pieces = 0;
    size_t offset;
    pcre2_code *expression = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF, &code, &offset, NULL);
    CHECK(expression != NULL, "the expression does not compile at %zu", offset);
    if (!expression) return;
    pcre2_match_data *match = pcre2_match_data_create_from_pattern(expression, NULL);
    for (int round = 0; round < 2000; round++) {
        size_t bytes = random_text(text, 4 + random_below(sizeof text - 4), 1), at = 0;
        while (at < bytes) {
            int groups = pcre2_match(expression, text, bytes, at, PCRE2_ANCHORED, match, NULL);
            size_t end = bpe_piece_end(classes, text, bytes, at),
                   expected = groups < 1 ? 0 : pcre2_get_ovector_pointer(match)[1];
            CHECK(end == expected, "round %d: the piece at %zu ends at %zu, PCRE2 says %zu", round, at, end, expected);
            if (end <= at || end != expected) break;
            at = end;
            pieces++;
        }
    }
    CHECK(pieces > 50000, "only %d pieces were compared", pieces);
    pcre2_match_data_free(match);
    pcre2_code_free(expression);
    free(classes);
#else
    NEED_PCRE2();
#endif
}

// Cutting where tokenizer_safe_cut says so never changes an id, with whatever follows; and cuts are not rare.
TEST(safe_cuts_change_nothing) {
    NEED_PCRE2();
    Tokenizer t;
    static uint8_t text[300];
    static int32_t whole[300], parts[300];
    size_t cuts = 0, tries = 0;
    tokenizer_load(&t, fixture("tiny"));
    TokenizerCache *cache = tokenizer_cache_new();
    for (int round = 0; round < 2000; round++) {
        size_t bytes = random_text(text, sizeof text, 0), count = tokenizer_encode(&t, cache, text, bytes, whole);
        for (size_t seen = 5; seen < bytes; seen += 1 + random_below(20)) {
            size_t cut = tokenizer_safe_cut(&t, text, seen), n;
            CHECK(cut <= seen, "cut %zu of %zu", cut, seen);
            tries++;
            if (!cut) continue;
            cuts++;
            n = tokenizer_encode(&t, cache, text, cut, parts);
            n += tokenizer_encode(&t, cache, text + cut, bytes - cut, parts + n);
            CHECK(n == count && memcmp(whole, parts, n * sizeof *whole) == 0, "round %d: a cut at %zu changes ids",
                  round, cut);
        }
    }
    CHECK(cuts > tries * 9 / 10, "%zu cuts in %zu tries", cuts, tries);
    CHECK(tokenizer_safe_cut(&t, "aaaaaaaaaaaaaaaa", 16) == 0, "a cut inside a word");
    CHECK(tokenizer_safe_cut(&t, "                ", 16) == 0, "a cut inside white space");
    CHECK(tokenizer_safe_cut(&t, "it's all right", 14) == 8, "cut at %zu",
          tokenizer_safe_cut(&t, "it's all right", 14));
    tokenizer_cache_free(cache);
    tokenizer_free(&t);
}

// The search for short pieces and the heap for long ones give the same ids, and both what the definition says.
TEST(merging_by_search_heap_and_definition) {
    Tokenizer t;
    uint8_t text[BPE_SHORT_PIECE];
    int32_t a[BPE_SHORT_PIECE], b[BPE_SHORT_PIECE], c[BPE_SHORT_PIECE];
    tokenizer_load(&t, fixture("tiny"));
    TokenizerCache *cache = tokenizer_cache_new();
    for (int round = 0; round < 5000; round++) {
        size_t bytes = 1 + random_below(BPE_SHORT_PIECE), n = bytes;
        for (size_t i = 0; i < bytes; i++)
            text[i] = (uint8_t)(random_below(3) ? (uint32_t) "aabl =-"[random_below(7)] : random_below(256));
        size_t na = bpe_merge_short(&t.bpe, text, bytes, a), nb = bpe_merge_long(&t.bpe, cache, text, bytes, b);
        size_t starts[BPE_SHORT_PIECE + 1];  // the definition: join the neighbours whose bytes have the lowest rank
        for (size_t i = 0; i <= n; i++) starts[i] = i;
        for (;;) {
            size_t best = n;
            uint32_t rank = BPE_NO_RANK;
            for (size_t i = 0; i + 1 < n; i++) {
                int32_t id = bpe_find(&t.bpe, text + starts[i], starts[i + 2] - starts[i]);
                if (id >= 0 && t.bpe.ranks[id] < rank) rank = t.bpe.ranks[id], best = i;
            }
            if (best == n) break;
            memmove(starts + best + 1, starts + best + 2, (n - best - 1) * sizeof *starts);
            n--;
        }
        for (size_t i = 0; i < n; i++) c[i] = bpe_find(&t.bpe, text + starts[i], starts[i + 1] - starts[i]);
        CHECK(na == n && memcmp(a, c, n * sizeof *a) == 0, "round %d: %zu ids by search, %zu by definition", round, na,
              n);
        CHECK(nb == n && memcmp(b, c, n * sizeof *b) == 0, "round %d: %zu ids by heap, %zu by definition", round, nb,
              n);
    }
    tokenizer_cache_free(cache);
    tokenizer_free(&t);
}

// A megabyte without a word border takes a moment, not a day.
TEST(very_long_piece) {
    NEED_PCRE2();
    Tokenizer t;
    size_t bytes = (size_t)1 << 20, count, sum = 0;
    uint8_t *text = (uint8_t *)checked_calloc(bytes, 1, "text");
    int32_t *ids = (int32_t *)checked_calloc(bytes, sizeof *ids, "ids");
    tokenizer_load(&t, fixture("tiny"));
    for (size_t i = 0; i < bytes; i++) text[i] = "ab"[random_below(2)];
    count = tokenizer_encode(&t, NULL, text, bytes, ids);
    for (size_t i = 0, n; i < count; i++) tokenizer_decode(&t, ids[i], &n), sum += n;
    CHECK(sum == bytes && count < bytes, "%zu ids with %zu bytes", count, sum);
    free(ids);
    free(text);
    tokenizer_free(&t);
}

// Every sequence of three bytes, and many of four, against json.h's own test of validity.
TEST(utf8_is_strict) {
    uint8_t s[4] = {0, 0, 0, 0}, out[4];
    size_t wrong = 0;
    for (uint32_t i = 0; i < 1u << 24; i++) {
        uint32_t point;
        s[0] = (uint8_t)(i >> 16), s[1] = (uint8_t)(i >> 8), s[2] = (uint8_t)i;
        if ((s[0] >= 0xF0) && (i & 63) == 0) s[3] = (uint8_t)random_below(256);
        size_t n = utf8_decode(s, 4, &point), expected = json_utf8_bytes((char *)s, 4);
        if (expected == 0) wrong += n != 1 || point != 0xFFFD;
        else wrong += n != expected || utf8_encode(out, point) != n || memcmp(out, s, n) != 0;
        if (n > 1) wrong += utf8_decode(s, n - 1, &point) != 1;
    }
    CHECK(wrong == 0, "%zu sequences are read wrongly", wrong);
}

TEST(classes_of_unicode) {
    NEED_PCRE2();
    uint8_t *classes = unicode_classes_new();
    size_t spaces = 0, letters = 0, numbers = 0;
    for (size_t point = 0; point < UNICODE_POINTS && classes; point++) {
        spaces += classes[point] == CLASS_SPACE;
        letters += classes[point] == CLASS_LETTER;
        numbers += classes[point] == CLASS_NUMBER;
    }
    CHECK(spaces == 25, "%zu characters are white space", spaces);
    // Unicode 16.0 has 141,028 letters and 1,911 numbers; a PCRE2 that knows a later version may add some.
    CHECK(letters >= 141028 && letters < 150000, "%zu letters", letters);
    CHECK(numbers >= 1911 && numbers < 2100, "%zu numbers", numbers);
    CHECK(classes[0x180E] == CLASS_OTHER && classes[0xFFFD] == CLASS_OTHER && classes[0x1C] == CLASS_OTHER,
          "not others");
    CHECK(classes[0x31350] == CLASS_LETTER && classes[0x1E4F0] == CLASS_NUMBER, "new in Unicode 15");
    free(classes);
}

// Writes `text` to a file in `folder` and returns its path.
static const char *write_file(const char *folder, const char *name, const char *text) {
    static char path[1024];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = file_open(path, "wb");
    file_write(file, text, strlen(text), path);
    file_close(file, path);
    return path;
}

TEST(bad_vocabularies) {
    Tokenizer t;
    char folder[512], command[600];
    const char *base = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/tokenizer.XXXXXX", base && *base ? base : "/tmp");
    CHECK(mkdtemp(folder) != NULL, "no folder for the test");
    CHECK_DIES(1, "No such file", tokenizer_load(&t, "/nowhere/at/all"));
    CHECK_DIES(1, "no encoder.json", tokenizer_load(&t, folder));
    CHECK_DIES(1, "two tokens have the id 0", tokenizer_load(&t, write_file(folder, "a.tiktoken", "YQ== 0\nYg== 0\n")));
    CHECK_DIES(1, "a.tiktoken': line 2 is not a token", tokenizer_load(&t, write_file(folder, "a.tiktoken", "YQ== 0\nhello\n")));
    CHECK_DIES(1, "a.tiktoken': line 1 is not a token", tokenizer_load(&t, write_file(folder, "a.tiktoken", "YQ= 0\n")));
    CHECK_DIES(1, "a.tiktoken': line 1 is not a token", tokenizer_load(&t, write_file(folder, "a.tiktoken", "YQ== 0x\n")));
    CHECK_DIES(1, "no token for the byte 0x00", tokenizer_load(&t, write_file(folder, "a.tiktoken", "YQ== 0\n")));
    CHECK_DIES(1, "another id as well", tokenizer_load(&t, write_file(folder, "a.tiktoken", "YQ== 0\nYQ== 1\n")));
    CHECK_DIES(1, "beyond", tokenizer_load(&t, write_file(folder, "a.tiktoken", "YQ== 99999999999\n")));
    CHECK_DIES(1, "the file is empty", tokenizer_load(&t, write_file(folder, "a.tiktoken", "")));
    write_file(folder, "encoder.json", "{\"a\": 0, \"b\": 1}");
    CHECK_DIES(1, "no vocab.bpe", tokenizer_load(&t, folder));
    write_file(folder, "vocab.bpe", "#version: 0.2\na b\n");
    CHECK_DIES(1, "merge 1: its result is no token", tokenizer_load(&t, folder));
    write_file(folder, "vocab.bpe", "#version: 0.2\nab\n");
    CHECK_DIES(1, "merge 1: not two tokens", tokenizer_load(&t, folder));
    write_file(folder, "vocab.bpe", "#version: 0.2\n");
    CHECK_DIES(1, "no merges", tokenizer_load(&t, folder));
    write_file(folder, "encoder.json", "{\"a\": 0, \"b\": \"x\"}");
    CHECK_DIES(1, "not a whole number", tokenizer_load(&t, folder));
    write_file(folder, "encoder.json", "{\"a\": 0, \"\\u4e2d\": 1}");
    CHECK_DIES(1, "stands for no byte", tokenizer_load(&t, folder));
    write_file(folder, "encoder.json", "{\"a\": 0,");
    CHECK_DIES(1, "encoder.json", tokenizer_load(&t, folder));
    write_file(folder, "encoder.json", "[]");
    CHECK_DIES(1, "not an object", tokenizer_load(&t, folder));
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    CHECK(system(command) == 0, "cannot remove %s", folder);
#ifndef HAVE_PCRE2
    tokenizer_load(&t, fixture("tiny"));
    CHECK_DIES(1, "libpcre2-dev", tokenizer_require_encode(&t));
    tokenizer_free(&t);
#endif
}

int main(void) {
    RUN(byte_tokenizer);
    RUN(tiktoken_ids_tiny);
    RUN(tiktoken_ids_gpt2);
    RUN(vocabulary_files_agree);
    RUN(round_trip_of_random_bytes);
    RUN(pieces_equal_the_expression);
    RUN(safe_cuts_change_nothing);
    RUN(merging_by_search_heap_and_definition);
    RUN(very_long_piece);
    RUN(utf8_is_strict);
    RUN(classes_of_unicode);
    RUN(bad_vocabularies);
    return test_summary();
}
