// test_json.c: the strict reader, the escaping writer, and every kind of damaged text.
#include "../../llmc/json.h"

#include "test.h"

static int parses(const char *text) {
    Json json;
    int good = json_parse(&json, text, strlen(text));
    json_free(&json);
    return good;
}

TEST(reads_values) {
    static const char text[] =
        " {\"a\" : [1, -2.5e3, true, false, null, \"x\"], \"b\":{}, \"c\":[] ,\"n\":18446744073709551615} ";
    Json json;
    uint64_t u = 0;
    double d = 0;
    CHECK(json_parse(&json, text, strlen(text)), "%s", json.error);
    const JsonNode *a = json_get(&json, json_root(&json), "a"), *n = json_first(&json, a);
    CHECK(a && a->type == JSON_ARRAY && a->count == 6, "a is no list of 6");
    CHECK(json_u64(n, &u) && u == 1, "first is %llu", (unsigned long long)u);
    n = json_next(&json, n);
    CHECK(json_double(n, &d) && d == -2500, "second is %g", d);
    CHECK(!json_u64(n, &u), "-2.5e3 passes for a whole number");
    n = json_next(&json, n);
    CHECK(n->type == JSON_TRUE && json_next(&json, n)->type == JSON_FALSE, "true, false");
    n = json_next(&json, json_next(&json, n));
    CHECK(n->type == JSON_NULL && strcmp(json_string(json_next(&json, n)), "x") == 0, "null, \"x\"");
    CHECK(!json_next(&json, json_next(&json, n)), "a seventh element");
    CHECK(json_get(&json, json_root(&json), "b")->count == 0 && !json_get(&json, json_root(&json), "z"), "b or z");
    CHECK(json_u64(json_get(&json, json_root(&json), "n"), &u) && u == UINT64_MAX, "2^64 - 1 is %llu",
          (unsigned long long)u);
    CHECK(!json_get(&json, a, "a") && !json_get(&json, NULL, "a"), "a member of something that is no object");
    json_free(&json);
}

TEST(whole_numbers) {
    static const struct {
        const char *text;
        int good;
    } cases[] = {{"0", 1},
                 {"18446744073709551615", 1},
                 {"18446744073709551616", 0},
                 {"99999999999999999999999", 0},
                 {"-1", 0},
                 {"-0", 0},
                 {"1.0", 0},
                 {"1e3", 0},
                 {"\"1\"", 0},
                 {"true", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        Json json;
        uint64_t u;
        CHECK(json_parse(&json, cases[i].text, strlen(cases[i].text)), "%s does not parse", cases[i].text);
        CHECK(json_u64(json_root(&json), &u) == cases[i].good, "json_u64 of %s", cases[i].text);
        json_free(&json);
    }
}

TEST(strings_decode) {
    static const char text[] = "\"a\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0041\\u00e9\\u20AC\\ud83d\\uDE00\xC3\xA9\\u0000z\"";
    static const char expected[] = "a\"\\/\b\f\n\r\tA\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\xC3\xA9\0z";
    Json json;
    CHECK(json_parse(&json, text, strlen(text)), "%s", json.error);
    const JsonNode *n = json_root(&json);
    CHECK(n->text_bytes == sizeof expected - 1 && memcmp(n->text, expected, sizeof expected) == 0, "decoded to '%s'",
          n->text);
    json_free(&json);
}

TEST(refuses_what_is_not_json) {
    static const char *const bad[] = {"",
                                      " ",
                                      "{",
                                      "}",
                                      "[",
                                      "[1",
                                      "[1,",
                                      "[1,]",
                                      "[,1]",
                                      "{\"a\"}",
                                      "{\"a\":}",
                                      "{\"a\":1,}",
                                      "{a:1}",
                                      "{1:1}",
                                      "'a'",
                                      "{\"a\" 1}",
                                      "[1 2]",
                                      "1 2",
                                      "01",
                                      "-",
                                      "+1",
                                      "1.",
                                      ".5",
                                      "1e",
                                      "1e+",
                                      "0x10",
                                      "NaN",
                                      "Infinity",
                                      "-Infinity",
                                      "nul",
                                      "nulll",
                                      "True",
                                      "\"",
                                      "\"a",
                                      "\"\\",
                                      "\"\\x\"",
                                      "\"\\u12\"",
                                      "\"\\u12g4\"",
                                      "\"\\ud800\"",
                                      "\"\\udc00\"",
                                      "\"\\ud800\\n\"",
                                      "\"\\ud800\\u0041\"",
                                      "\"\t\"",
                                      "\"\n\"",
                                      "\"\x80\"",
                                      "\"\xC0\x80\"",
                                      "\"\xE0\x80\x80\"",
                                      "\"\xED\xA0\x80\"",
                                      "\"\xF4\x90\x80\x80\"",
                                      "\"\xF8\x88\x80\x80\x80\"",
                                      "\"\xC3\"",
                                      "// x\n1",
                                      "[1]]",
                                      "{}x",
                                      "\xEF\xBB\xBF{}"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) CHECK(!parses(bad[i]), "accepted: %s", bad[i]);
    Json json;
    CHECK(!json_parse(&json, "[\0]", 3), "accepted a NUL between values");
    json_free(&json);
    CHECK(!json_parse(&json, "\"\0\"", 3), "accepted a NUL in a string");
    json_free(&json);
}

TEST(depth_is_limited) {
    char text[400] = "";
    for (int depth = 1; depth < 150; depth++) {
        memset(text, '[', (size_t)depth);
        memset(text + depth, ']', (size_t)depth);
        text[2 * depth] = 0;
        CHECK(parses(text) == (depth <= JSON_MAX_DEPTH), "depth %d", depth);
    }
    size_t bytes = 10000000;
    char *open = (char *)malloc(bytes);
    memset(open, '[', bytes);
    Json json;
    CHECK(!json_parse(&json, open, bytes), "accepted ten million open brackets");
    json_free(&json);
    free(open);
}

// Every prefix and every single-byte change of a good text: no crash (the sanitizers watch), no prefix accepted.
TEST(damaged_texts) {
    static const char text[] = "{\"k\\u00e9\":[1.5e-3,{\"b\":\"\\ud83d\\ude00\\n\"},null],\"\":true}";
    size_t bytes = strlen(text), accepted = 0;
    Json json;
    for (size_t n = 0; n < bytes; n++) {
        CHECK(!json_parse(&json, text, n), "accepted the first %zu bytes", n);
        json_free(&json);
    }
    for (size_t at = 0; at < bytes; at++)
        for (int value = 0; value < 256; value++) {
            char *copy = (char *)malloc(bytes);  // exact size: an overread is caught
            memcpy(copy, text, bytes);
            copy[at] = (char)value;
            accepted += (size_t)json_parse(&json, copy, bytes);
            json_free(&json);
            free(copy);
        }
    CHECK(accepted > bytes, "only %zu changed texts accepted: the good one is not among them", accepted);
}

TEST(writes_and_measures) {
    char text[512], small[16];
    JsonWriter w;
    for (int pass = 0; pass < 3; pass++) {
        if (pass == 0) json_writer(&w, NULL, 0);
        if (pass == 1) json_writer(&w, text, sizeof text);
        if (pass == 2) json_writer(&w, small, sizeof small);
        json_begin(&w, '{');
        json_put_key(&w, "a\"b");
        json_begin(&w, '[');
        json_put_u64(&w, UINT64_MAX);
        json_put_double(&w, 0.1);
        json_put_double(&w, 1.0 / 3);
        json_put_double(&w, (double)NAN);
        json_put_double(&w, (double)INFINITY);
        json_put_bool(&w, 1);
        json_put_null(&w);
        json_end(&w, ']');
        json_put_key(&w, "s");
        json_put_string(&w, "\n\x01\\ \xC3\xA9 \xFF\xC3");
        json_end(&w, '}');
        if (pass == 1) {
            static const char expected[] =
                "{\"a\\\"b\":[18446744073709551615,0.1,0.33333333333333331,null,null,true,null],"
                "\"s\":\"\\u000a\\u0001\\\\ \xC3\xA9 \xEF\xBF\xBD\xEF\xBF\xBD\"}";
            CHECK(strcmp(text, expected) == 0, "%s", text);
        }
        CHECK(w.used == strlen(text) || pass == 0, "used %zu", w.used);
        CHECK(json_fits(&w) == (pass == 1), "pass %d", pass);
    }
    CHECK(memcmp(small, text, 15) == 0 && small[15] == 0, "cut text is '%.16s'", small);
    CHECK(parses(text), "our own text does not parse");
}

// Any bytes at all come back as valid JSON, and valid UTF-8 comes back unchanged.
TEST(strings_round_trip) {
    char bytes[257], text[2048];
    JsonWriter w;
    Json json;
    for (int i = 0; i < 256; i++) bytes[i] = (char)i;
    json_writer(&w, text, sizeof text);
    json_put_string_bytes(&w, bytes, 256);
    CHECK(json_parse(&json, text, w.used), "%s", json.error);
    CHECK(memcmp(json_root(&json)->text, bytes, 128) == 0, "ASCII, NUL included, came back changed");
    json_free(&json);
    uint32_t points[] = {0x7F, 0x80, 0x7FF, 0x800, 0xD7FF, 0xE000, 0xFFFD, 0xFFFF, 0x10000, 0x10FFFF};
    for (size_t i = 0; i < sizeof points / sizeof points[0]; i++) {
        size_t n = json_utf8_encode(bytes, points[i]);
        json_writer(&w, text, sizeof text);
        json_put_string_bytes(&w, bytes, n);
        CHECK(json_parse(&json, text, w.used), "U+%04X: %s", points[i], json.error);
        CHECK(json_root(&json)->text_bytes == n && memcmp(json_root(&json)->text, bytes, n) == 0, "U+%04X changed",
              points[i]);
        json_free(&json);
    }
}

int main(void) {
    RUN(reads_values);
    RUN(whole_numbers);
    RUN(strings_decode);
    RUN(refuses_what_is_not_json);
    RUN(depth_is_limited);
    RUN(damaged_texts);
    RUN(writes_and_measures);
    RUN(strings_round_trip);
    return test_summary();
}
