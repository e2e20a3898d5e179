// json.h: a strict reader (RFC 8259) and an escaping writer for the small JSON texts of checkpoints and logs.
//
//     Json json;
//     if (!json_parse(&json, text, bytes)) ... json.error says what is wrong and at which byte ...
//     const JsonNode *layers = json_get(&json, json_root(&json), "n_layer");
//     json_free(&json);
//
// Strict: no comments, no trailing commas, no bare NaN, valid UTF-8 only, nothing after the value. Safe on hostile
// input: nesting is limited, memory is proportional to the text, nothing recurses deeper than JSON_MAX_DEPTH.
#ifndef LLMC_JSON_H
#define LLMC_JSON_H

#include "utils.h"

#define JSON_MAX_DEPTH 64

enum { JSON_NULL, JSON_FALSE, JSON_TRUE, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT };

typedef struct {
    int type;
    const char *key;   // of a member of an object, decoded and NUL-terminated; else NULL
    const char *text;  // string: decoded and NUL-terminated; number: as written, not terminated
    size_t key_bytes, text_bytes;
    size_t count;        // members or elements
    size_t child, next;  // index of the first child and of the next sibling; 0 is none
} JsonNode;

typedef struct {
    char *text;  // a copy of the input in which strings are decoded in place
    JsonNode *nodes;
    size_t count, capacity;
    char error[200];
    // while parsing
    size_t at, bytes;
} Json;

// ----------------------------------------------------------------------------------------------------------------
// Reader

static inline int json_fail(Json *json, const char *what) {
    if (!json->error[0]) snprintf(json->error, sizeof json->error, "%s at byte %zu", what, json->at);
    return 0;
}

static inline void json_skip_space(Json *json) {
    while (json->at < json->bytes && strchr(" \t\r\n", json->text[json->at]) && json->text[json->at]) json->at++;
}

// The next byte, or 0 at the end (a NUL in the text is an error wherever it stands, so 0 is not ambiguous).
static inline char json_peek(const Json *json) { return json->at < json->bytes ? json->text[json->at] : 0; }

// Bytes of the UTF-8 sequence at `s` (at most `left`): 1 to 4, or 0 for none (overlong and surrogates are none).
static inline size_t json_utf8_bytes(const char *s, size_t left) {
    const unsigned char *u = (const unsigned char *)s;
    if (u[0] < 0x80) return 1;
    size_t n = u[0] >= 0xC2 && u[0] <= 0xDF ? 2 : (u[0] & 0xF0) == 0xE0 ? 3 : u[0] >= 0xF0 && u[0] <= 0xF4 ? 4 : 0;
    if (!n || n > left) return 0;
    for (size_t i = 1; i < n; i++)
        if ((u[i] & 0xC0) != 0x80) return 0;
    if ((u[0] == 0xE0 && u[1] < 0xA0) || (u[0] == 0xED && u[1] > 0x9F)) return 0;
    if ((u[0] == 0xF0 && u[1] < 0x90) || (u[0] == 0xF4 && u[1] > 0x8F)) return 0;
    return n;
}

static inline size_t json_utf8_encode(char *out, uint32_t code) {
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    size_t n = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i > 0; i--, code >>= 6) out[i] = (char)(0x80 | (code & 0x3F));
    out[0] = (char)((0xF00 >> n) | code);
    return n;
}

// Four hexadecimal digits at the reading position.
static inline int json_hex4(Json *json, uint32_t *code) {
    *code = 0;
    for (int i = 0; i < 4; i++) {
        char c = json_peek(json), *digits = (char *)"0123456789abcdef0123456789ABCDEF";
        const char *found = c ? strchr(digits, c) : NULL;
        if (!found) return json_fail(json, "a \\u escape needs four hexadecimal digits");
        *code = *code * 16 + (uint32_t)((found - digits) % 16);
        json->at++;
    }
    return 1;
}

// What follows a backslash, decoded to `out`; adds its bytes to *used.
static inline int json_escape(Json *json, char *out, size_t *used) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    char c = json_peek(json);
    const char *found = c ? strchr(from, c) : NULL;
    if (!found && c != 'u') return json_fail(json, "unknown escape");
    json->at++;
    if (found) {
        out[(*used)++] = to[found - from];
        return 1;
    }
    uint32_t code, low;
    if (!json_hex4(json, &code)) return 0;
    if (code >= 0xDC00 && code <= 0xDFFF) return json_fail(json, "half of a surrogate pair");
    if (code >= 0xD800 && code <= 0xDBFF) {
        if (json_peek(json) != '\\') return json_fail(json, "half of a surrogate pair");
        json->at++;
        if (json_peek(json) != 'u') return json_fail(json, "half of a surrogate pair");
        json->at++;
        if (!json_hex4(json, &low)) return 0;
        if (low < 0xDC00 || low > 0xDFFF) return json_fail(json, "half of a surrogate pair");
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    }
    *used += json_utf8_encode(out + *used, code);  // never longer than the escape it replaces
    return 1;
}

// A string at its opening quote. Decodes in place; the terminating NUL replaces the closing quote or stands before it.
static inline int json_parse_string(Json *json, const char **text, size_t *bytes) {
    char *out = json->text + ++json->at;
    size_t used = 0;
    for (;;) {
        if (json->at >= json->bytes) return json_fail(json, "a string without its closing quote");
        unsigned char c = (unsigned char)json->text[json->at];
        if (c == '"') break;
        if (c < 0x20) return json_fail(json, "a control character inside a string");
        if (c == '\\') {
            json->at++;
            if (!json_escape(json, out, &used)) return 0;
            continue;
        }
        size_t n = json_utf8_bytes(json->text + json->at, json->bytes - json->at);
        if (!n) return json_fail(json, "invalid UTF-8");
        memmove(out + used, json->text + json->at, n);
        used += n;
        json->at += n;
    }
    json->at++;
    out[used] = 0;
    *text = out;
    *bytes = used;
    return 1;
}

static inline int json_digits(Json *json) {
    size_t first = json->at;
    while (json_peek(json) >= '0' && json_peek(json) <= '9') json->at++;
    return json->at > first || json_fail(json, "a digit is missing");
}

static inline int json_parse_number(Json *json, JsonNode *node) {
    size_t first = json->at;
    if (json_peek(json) == '-') json->at++;
    if (json_peek(json) == '0') json->at++;
    else if (!json_digits(json)) return 0;
    if (json_peek(json) == '.') {
        json->at++;
        if (!json_digits(json)) return 0;
    }
    if (json_peek(json) == 'e' || json_peek(json) == 'E') {
        json->at++;
        if (json_peek(json) == '+' || json_peek(json) == '-') json->at++;
        if (!json_digits(json)) return 0;
    }
    node->type = JSON_NUMBER;
    node->text = json->text + first;
    node->text_bytes = json->at - first;
    return 1;
}

static inline int json_parse_word(Json *json, JsonNode *node) {
    static const char *const words[] = {"null", "false", "true"};
    for (int type = 0; type < 3; type++) {
        size_t n = strlen(words[type]);
        if (json->bytes - json->at >= n && memcmp(json->text + json->at, words[type], n) == 0) {
            json->at += n;
            node->type = type;
            return 1;
        }
    }
    return json_fail(json, json->at < json->bytes ? "not a value" : "a value is missing");
}

static inline size_t json_add_node(Json *json) {
    if (json->count == json->capacity) {
        json->capacity = json->capacity ? size_mul(json->capacity, 2) : 64;
        json->nodes = (JsonNode *)realloc(json->nodes, size_mul(json->capacity, sizeof(JsonNode)));
        if (!json->nodes) die("out of memory: %zu JSON nodes", json->capacity);
    }
    memset(&json->nodes[json->count], 0, sizeof(JsonNode));
    return json->count++;
}

static inline int json_parse_value(Json *json, size_t index, int depth);

// An array or object at its opening bracket.
static inline int json_parse_list(Json *json, size_t index, int depth) {
    int object = json_peek(json) == '{';
    char close = object ? '}' : ']';
    size_t last = 0;
    json->nodes[index].type = object ? JSON_OBJECT : JSON_ARRAY;
    if (depth >= JSON_MAX_DEPTH) return json_fail(json, "nested too deeply");
    json->at++;
    json_skip_space(json);
    if (json_peek(json) == close) {
        json->at++;
        return 1;
    }
    for (;;) {
        size_t child = json_add_node(json);
        if (object) {
            JsonNode *node = &json->nodes[child];
            json_skip_space(json);
            if (json_peek(json) != '"') return json_fail(json, "a member's name is missing");
            if (!json_parse_string(json, &node->key, &node->key_bytes)) return 0;
            json_skip_space(json);
            if (json_peek(json) != ':') return json_fail(json, "':' is missing");
            json->at++;
        }
        if (!json_parse_value(json, child, depth + 1)) return 0;
        if (last) json->nodes[last].next = child;
        else json->nodes[index].child = child;
        last = child;
        json->nodes[index].count++;
        json_skip_space(json);
        char c = json_peek(json);
        if (c != ',' && c != close) return json_fail(json, object ? "',' or '}' is missing" : "',' or ']' is missing");
        json->at++;
        if (c == close) return 1;
    }
}

static inline int json_parse_value(Json *json, size_t index, int depth) {
    json_skip_space(json);
    char c = json_peek(json);
    if (c == '{' || c == '[') return json_parse_list(json, index, depth);
    JsonNode *node = &json->nodes[index];
    if (c == '"') {
        node->type = JSON_STRING;
        return json_parse_string(json, &node->text, &node->text_bytes);
    }
    if (c == '-' || (c >= '0' && c <= '9')) return json_parse_number(json, node);
    return json_parse_word(json, node);
}

// 1, or 0 with json->error. Either way json_free() ends it.
static inline int json_parse(Json *json, const char *text, size_t bytes) {
    memset(json, 0, sizeof *json);
    json->text = (char *)checked_calloc(bytes + 1, 1, "a JSON text");
    if (bytes) memcpy(json->text, text, bytes);
    json->bytes = bytes;
    size_t root = json_add_node(json);
    if (!json_parse_value(json, root, 0)) return 0;
    json_skip_space(json);
    return json->at == json->bytes || json_fail(json, "something follows the value");
}

static inline void json_free(Json *json) {
    free(json->text);
    free(json->nodes);
    json->text = NULL;
    json->nodes = NULL;
    json->count = json->capacity = 0;
}

static inline const JsonNode *json_root(const Json *json) { return &json->nodes[0]; }

// First child and next sibling: for (n = json_first(j, list); n; n = json_next(j, n)).
static inline const JsonNode *json_first(const Json *json, const JsonNode *list) {
    return list->child ? &json->nodes[list->child] : NULL;
}
static inline const JsonNode *json_next(const Json *json, const JsonNode *node) {
    return node->next ? &json->nodes[node->next] : NULL;
}

// The member called `key` (the first, should there be two), or NULL; also NULL where `object` is NULL or none.
static inline const JsonNode *json_get(const Json *json, const JsonNode *object, const char *key) {
    if (!object || object->type != JSON_OBJECT) return NULL;
    for (const JsonNode *n = json_first(json, object); n; n = json_next(json, n))
        if (n->key_bytes == strlen(key) && memcmp(n->key, key, n->key_bytes) == 0) return n;
    return NULL;
}

// 1 and *value where `node` is a whole number from 0 to 2^64 - 1 written without point or exponent; else 0.
static inline int json_u64(const JsonNode *node, uint64_t *value) {
    if (!node || node->type != JSON_NUMBER) return 0;
    uint64_t x = 0;
    for (size_t i = 0; i < node->text_bytes; i++) {
        char c = node->text[i];
        if (c < '0' || c > '9') return 0;
        if (__builtin_mul_overflow(x, (uint64_t)10, &x) || __builtin_add_overflow(x, (uint64_t)(c - '0'), &x)) return 0;
    }
    *value = x;
    return 1;
}

// 1 and *value where `node` is a number; strtod stops at the delimiter behind it, which is never part of a number.
static inline int json_double(const JsonNode *node, double *value) {
    if (!node || node->type != JSON_NUMBER) return 0;
    *value = strtod(node->text, NULL);
    return 1;
}

// The decoded string, or NULL where `node` is none (a string may hold NULs: text_bytes has its length).
static inline const char *json_string(const JsonNode *node) {
    return node && node->type == JSON_STRING ? node->text : NULL;
}

// ----------------------------------------------------------------------------------------------------------------
// Writer: into a buffer the caller owns. `used` goes on counting past `capacity` like snprintf's result, so a first
// pass with capacity 0 measures. Commas are placed by the writer.

typedef struct {
    char *text;
    size_t used, capacity;
    int comma;  // the next value needs one before it
} JsonWriter;

static inline void json_writer(JsonWriter *w, char *text, size_t capacity) {
    w->text = text;
    w->capacity = capacity;
    w->used = 0;
    w->comma = 0;
}

// 1 when everything fitted with its terminating NUL.
static inline int json_fits(const JsonWriter *w) { return w->used < w->capacity; }

static inline void json_put_bytes(JsonWriter *w, const char *bytes, size_t count) {
    size_t last = w->capacity ? w->capacity - 1 : 0;  // of the buffer: kept for the NUL
    if (w->used < last) memcpy(w->text + w->used, bytes, min_size(count, last - w->used));
    w->used += count;
    if (w->capacity) w->text[min_size(w->used, last)] = 0;
}

// Text that is JSON already, as one value.
static inline void json_put_raw(JsonWriter *w, const char *json_text) {
    if (w->comma) json_put_bytes(w, ",", 1);
    json_put_bytes(w, json_text, strlen(json_text));
    w->comma = 1;
}

// White space between values, for people who read the file.
static inline void json_put_space(JsonWriter *w, const char *space) {
    if (w->comma) json_put_bytes(w, ",", 1);
    json_put_bytes(w, space, strlen(space));
    w->comma = 0;
}

// '{' or '[', and their ends.
static inline void json_begin(JsonWriter *w, char bracket) {
    if (w->comma) json_put_bytes(w, ",", 1);
    json_put_bytes(w, &bracket, 1);
    w->comma = 0;
}
static inline void json_end(JsonWriter *w, char bracket) {
    json_put_bytes(w, &bracket, 1);
    w->comma = 1;
}

// A quoted string of `count` bytes. Invalid UTF-8 (a file name may be anything) becomes U+FFFD, one a byte.
static inline void json_put_string_bytes(JsonWriter *w, const char *s, size_t count) {
    if (w->comma) json_put_bytes(w, ",", 1);
    json_put_bytes(w, "\"", 1);
    for (size_t i = 0; i < count;) {
        unsigned char c = (unsigned char)s[i];
        char escape[8];
        size_t n = json_utf8_bytes(s + i, count - i);
        if (!n) {
            json_put_bytes(w, "\xEF\xBF\xBD", 3);
            i++;
        } else if (c == '"' || c == '\\') {
            escape[0] = '\\';
            escape[1] = (char)c;
            json_put_bytes(w, escape, 2);
            i++;
        } else if (c < 0x20) {
            snprintf(escape, sizeof escape, "\\u%04x", c);
            json_put_bytes(w, escape, 6);
            i++;
        } else {
            json_put_bytes(w, s + i, n);
            i += n;
        }
    }
    json_put_bytes(w, "\"", 1);
    w->comma = 1;
}
static inline void json_put_string(JsonWriter *w, const char *s) { json_put_string_bytes(w, s, strlen(s)); }

// The name of the value that follows.
static inline void json_put_key(JsonWriter *w, const char *key) {
    json_put_string(w, key);
    json_put_bytes(w, ":", 1);
    w->comma = 0;
}

static inline void json_put_u64(JsonWriter *w, uint64_t value) {
    char text[32];
    snprintf(text, sizeof text, "%llu", (unsigned long long)value);
    json_put_raw(w, text);
}

static inline void json_put_bool(JsonWriter *w, int value) { json_put_raw(w, value ? "true" : "false"); }
static inline void json_put_null(JsonWriter *w) { json_put_raw(w, "null"); }

// The shortest of %.15g and %.17g that reads back as the same number; null where it is not finite (JSON has no NaN).
static inline void json_put_double(JsonWriter *w, double value) {
    char text[40];
    if (value - value != 0) {
        json_put_null(w);
        return;
    }
    snprintf(text, sizeof text, "%.15g", value);
    if (strtod(text, NULL) != value) snprintf(text, sizeof text, "%.17g", value);
    json_put_raw(w, text);
}

#endif
