// unicode_class.h: is a character a letter, a number, white space or something else? What GPT-2's splitting of text
// into words asks, for all of Unicode 16.
//
// Letters (general category L) and numbers (N) come from PCRE2, which the build uses where it is installed; characters
// that Unicode 15 and 16 added are named here as well, because PCRE2 10.42 and older stop at Unicode 14 and ids must
// not depend on who tokenized. White space is Unicode's White_Space, a list that has not changed since 2013.
#ifndef LLMC_UNICODE_CLASS_H
#define LLMC_UNICODE_CLASS_H

#include "utils.h"

#ifdef HAVE_PCRE2
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#endif

#define UNICODE_POINTS ((size_t)0x110000)

enum { CLASS_OTHER = 0, CLASS_LETTER = 1, CLASS_NUMBER = 2, CLASS_SPACE = 3 };

// Reads the character at `s` (left >= 1 bytes are there) into *point; returns its bytes. A byte that begins no valid
// UTF-8 sequence (overlong, surrogate and beyond-the-end forms are not valid) is U+FFFD by itself, one byte long.
static inline size_t utf8_decode(const uint8_t *s, size_t left, uint32_t *point) {
    uint32_t lead = s[0];
    *point = 0xFFFD;
    if (lead < 0x80) return *point = lead, 1;
    if (lead < 0xC2 || lead > 0xF4) return 1;
    size_t n = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    if (n > left) return 1;
    uint32_t value = lead & (0x7Fu >> n);
    for (size_t i = 1; i < n; i++) {
        if ((s[i] & 0xC0) != 0x80) return 1;
        value = value << 6 | (s[i] & 0x3Fu);
    }
    if (n == 3 && (value < 0x800 || (value >= 0xD800 && value <= 0xDFFF))) return 1;
    if (n == 4 && (value < 0x10000 || value > 0x10FFFF)) return 1;
    *point = value;
    return n;
}

// UTF-8 of a code point (no surrogate) at `out`; returns its 1 to 4 bytes.
static inline size_t utf8_encode(uint8_t *out, uint32_t point) {
    if (point < 0x80) return out[0] = (uint8_t)point, 1;
    size_t n = point < 0x800 ? 2 : point < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i > 0; i--, point >>= 6) out[i] = (uint8_t)(0x80 | (point & 0x3F));
    out[0] = (uint8_t)((0xF00 >> n) | point);
    return n;
}

typedef struct {
    uint32_t first, last;
    uint8_t klass;
} UnicodeRange;

static inline void unicode_mark(uint8_t *classes, const UnicodeRange *ranges, size_t count) {
    for (size_t i = 0; i < count; i++)
        memset(classes + ranges[i].first, ranges[i].klass, ranges[i].last - ranges[i].first + 1);
}

// White space, and what Unicode 15.0, 15.1 and 16.0 added to the letters and numbers of Unicode 14.
static inline void unicode_mark_known(uint8_t *classes) {
    static const UnicodeRange known[] = {
        {0x9, 0xD, 3},         {0x20, 0x20, 3},       {0x85, 0x85, 3},       {0xA0, 0xA0, 3},
        {0x1680, 0x1680, 3},   {0x2000, 0x200A, 3},   {0x2028, 0x2029, 3},   {0x202F, 0x202F, 3},
        {0x205F, 0x205F, 3},   {0x3000, 0x3000, 3},   {0x1C89, 0x1C8A, 1},   {0xA7CB, 0xA7CD, 1},
        {0xA7DA, 0xA7DC, 1},   {0x105C0, 0x105F3, 1}, {0x10D4A, 0x10D65, 1}, {0x10D6F, 0x10D85, 1},
        {0x10EC2, 0x10EC4, 1}, {0x1123F, 0x11240, 1}, {0x11380, 0x11389, 1}, {0x1138B, 0x1138B, 1},
        {0x1138E, 0x1138E, 1}, {0x11390, 0x113B5, 1}, {0x113B7, 0x113B7, 1}, {0x113D1, 0x113D1, 1},
        {0x113D3, 0x113D3, 1}, {0x11BC0, 0x11BE0, 1}, {0x11F02, 0x11F02, 1}, {0x11F04, 0x11F10, 1},
        {0x11F12, 0x11F33, 1}, {0x1342F, 0x1342F, 1}, {0x13441, 0x13446, 1}, {0x13460, 0x143FA, 1},
        {0x16100, 0x1611D, 1}, {0x16D40, 0x16D6C, 1}, {0x18CFF, 0x18CFF, 1}, {0x1B132, 0x1B132, 1},
        {0x1B155, 0x1B155, 1}, {0x1DF25, 0x1DF2A, 1}, {0x1E030, 0x1E06D, 1}, {0x1E4D0, 0x1E4EB, 1},
        {0x1E5D0, 0x1E5ED, 1}, {0x1E5F0, 0x1E5F0, 1}, {0x2B739, 0x2B739, 1}, {0x2EBF0, 0x2EE5D, 1},
        {0x31350, 0x323AF, 1}, {0x10D40, 0x10D49, 2}, {0x116D0, 0x116E3, 2}, {0x11BF0, 0x11BF9, 2},
        {0x11F50, 0x11F59, 2}, {0x16130, 0x16139, 2}, {0x16D70, 0x16D79, 2}, {0x1CCF0, 0x1CCF9, 2},
        {0x1D2C0, 0x1D2D3, 2}, {0x1E4F0, 0x1E4F9, 2}, {0x1E5F1, 0x1E5FA, 2},
    };
    unicode_mark(classes, known, sizeof known / sizeof known[0]);
}

#ifdef HAVE_PCRE2
// Writes every character once, in order, and lets one expression cut that text into runs of letters, numbers and the
// rest: about 1,600 matches instead of a million.
static inline int unicode_mark_from_pcre2(uint8_t *classes) {
    static const char pattern[] = "(\\p{L}+)|(\\p{N}+)|[^\\p{L}\\p{N}]+";
    uint8_t *text = (uint8_t *)checked_calloc(UNICODE_POINTS, 4, "Unicode's characters");
    size_t bytes = 0, at = 0, offset;
    int code;
    for (uint32_t point = 0; point < UNICODE_POINTS; point++)
        if (point < 0xD800 || point > 0xDFFF) bytes += utf8_encode(text + bytes, point);
    pcre2_code *expression =
        pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &code, &offset, NULL);
    pcre2_match_data *match = expression ? pcre2_match_data_create_from_pattern(expression, NULL) : NULL;
    if (!match) die("PCRE2 cannot compile '%s' (its error %d): built without Unicode?", pattern, code);
    while (at < bytes) {
        int groups = pcre2_match(expression, text, bytes, at, PCRE2_NO_UTF_CHECK, match, NULL);
        if (groups < 1) die("PCRE2 cannot match '%s' (its error %d)", pattern, groups);
        size_t end = pcre2_get_ovector_pointer(match)[1];
        uint32_t first, last;
        utf8_decode(text + at, bytes - at, &first);
        do {
            at += utf8_decode(text + at, bytes - at, &last);
        } while (at < end);
        UnicodeRange range = {first, last, (uint8_t)(groups == 2 ? CLASS_LETTER : groups == 3 ? CLASS_NUMBER : 0)};
        unicode_mark(classes, &range, 1);
    }
    pcre2_match_data_free(match);
    pcre2_code_free(expression);
    free(text);
    return 1;
}
#else
static inline int unicode_mark_from_pcre2(uint8_t *classes) {
    (void)classes;
    return 0;
}
#endif

// The class of every code point, UNICODE_POINTS bytes for free(); NULL in a build without PCRE2.
static inline uint8_t *unicode_classes_new(void) {
    uint8_t *classes = (uint8_t *)checked_calloc(UNICODE_POINTS, 1, "character classes");
    if (!unicode_mark_from_pcre2(classes)) {
        free(classes);
        return NULL;
    }
    unicode_mark_known(classes);
    return classes;
}

#endif
