// fuzz_tokenize.c: any bytes into the tokenizer and the JSONL reader; what must hold is checked, memory by sanitizers.
//
//   F="-g -O1 -DHAVE_PCRE2 -I. dev/test/fuzz_tokenize.c -lpcre2-8 -o build/fuzz_tokenize"
//   clang -DLIBFUZZER -fsanitize=fuzzer,address,undefined $F && build/fuzz_tokenize -max_len=4096 -max_total_time=60
//   gcc -fsanitize=address,undefined $F && build/fuzz_tokenize 20000     random inputs without libFuzzer, so many
//
// Run from the repository's root: the vocabulary is dev/test/data/tiny.
#include "../../llmc/tokenizer.h"

static void require(int condition, const char *what) {
    if (condition) return;
    fprintf(stderr, "broken: %s\n", what);
    abort();
}

// The text comes back from its ids, and every safe cut of it gives the same ids.
static void fuzz_encode(const Tokenizer *t, TokenizerCache *cache, const uint8_t *text, size_t bytes) {
    int32_t *ids = (int32_t *)checked_calloc(bytes, sizeof *ids, "ids");
    int32_t *parts = (int32_t *)checked_calloc(bytes, sizeof *parts, "ids");
    size_t count = tokenizer_encode(t, cache, text, bytes, ids), at = 0;
    require(count <= bytes, "more ids than bytes");
    for (size_t i = 0; i < count; i++) {
        size_t n;
        const uint8_t *piece = tokenizer_decode(t, ids[i], &n);
        require(n > 0 && n <= bytes - at && memcmp(piece, text + at, n) == 0, "decoding gives other bytes");
        at += n;
    }
    require(at == bytes, "decoding gives fewer bytes");
    for (size_t seen = bytes; seen > 0; seen = seen * 2 / 3) {
        size_t cut = tokenizer_safe_cut(t, text, seen), n;
        require(cut <= seen, "a cut beyond the text");
        if (!cut) continue;
        n = tokenizer_encode(t, cache, text, cut, parts);
        n += tokenizer_encode(t, cache, text + cut, bytes - cut, parts + n);
        require(n == count && memcmp(ids, parts, n * sizeof *ids) == 0, "a safe cut changes ids");
    }
    free(ids);
    free(parts);
}

// A line either has a fault or a value; a string's decoded text is never longer than the line.
static void fuzz_json(const uint8_t *line, size_t bytes) {
    Json json;
    int good = json_parse(&json, (const char *)line, bytes);
    require(good == !json.error[0], "a fault without words, or words without a fault");
    const JsonNode *text = good ? json_get(&json, json_root(&json), "text") : NULL;
    require(!text || text->type != JSON_STRING || text->text_bytes <= bytes, "a text longer than its line");
    json_free(&json);
}

static void fuzz_once(const uint8_t *data, size_t bytes) {
    static Tokenizer byte, tiny;
    static TokenizerCache *cache;
    if (!cache) {
        tokenizer_load(&byte, "byte");
        tokenizer_load(&tiny, "dev/test/data/tiny");
        tokenizer_require_encode(&tiny);
        cache = tokenizer_cache_new();
    }
    fuzz_encode(&byte, NULL, data, bytes);
    fuzz_encode(&tiny, cache, data, bytes);
    fuzz_json(data, bytes);
}

#ifdef LIBFUZZER
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    fuzz_once(data, bytes);
    return 0;
}
#else
int main(int argc, char **argv) {
    static const char *const parts[] = {"{\"text\": \"",
                                        "\"}",
                                        "\\u",
                                        "d83d",
                                        "\\",
                                        "\"",
                                        ": ",
                                        ", ",
                                        "[",
                                        "]",
                                        "{",
                                        "}",
                                        "null",
                                        "1e5",
                                        "-",
                                        "0",
                                        "'",
                                        "'s",
                                        "'ll",
                                        " ",
                                        "  ",
                                        "\n",
                                        "a",
                                        "the",
                                        "\xc3\xa9",
                                        "\xf0\x9f\x98\x80",
                                        "\xe3\x80\x80",
                                        "\xff",
                                        "\xc3"};
    static uint8_t data[4096];
    uint64_t state = 1;
    long runs = argc > 1 ? atol(argv[1]) : 20000;
    for (long run = 0; run < runs; run++) {
        size_t bytes = 0, length = (size_t)(run * 37 % 512);
        while (bytes + 16 < length) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            uint32_t choice = (uint32_t)(state >> 33) % 40;
            if (choice >= sizeof parts / sizeof parts[0]) {
                data[bytes++] = (uint8_t)(state >> 50);
            } else {
                memcpy(data + bytes, parts[choice], strlen(parts[choice]));
                bytes += strlen(parts[choice]);
            }
        }
        fuzz_once(data, bytes);
    }
    printf("%ld inputs, nothing broke\n", runs);
    return 0;
}
#endif
