// safetensors.h: the safetensors format, read and written as a stream (doc/checkpoint.md shows its bytes).
//
//     8 bytes    header length, little-endian
//     header     JSON: {"__metadata__":{"key":"value"},"name":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},...}
//     data       the tensors' values, row-major, little-endian, back to back
//
// The reader trusts nothing: every number of the header is checked against the file before any tensor is touched, so
// a hostile or damaged file gives a message, never a crash. Format: https://github.com/huggingface/safetensors.
#ifndef LLMC_SAFETENSORS_H
#define LLMC_SAFETENSORS_H

#include "formats.h"
#include "json.h"
#include "safe_file.h"

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "safetensors files are little-endian and this code copies memory as it is"
#endif

#define SAFETENSORS_MAX_DIMS 8
#define SAFETENSORS_MAX_HEADER_BYTES ((uint64_t)100000000)  // the reference implementation's own limit

typedef enum {
    ST_BOOL,
    ST_U8,
    ST_I8,
    ST_F8_E5M2,
    ST_F8_E4M3,
    ST_I16,
    ST_U16,
    ST_F16,
    ST_BF16,
    ST_I32,
    ST_U32,
    ST_F32,
    ST_I64,
    ST_U64,
    ST_F64,
    ST_DTYPE_COUNT
} SafetensorsDType;

static inline const char *safetensors_dtype_name(int dtype) {
    static const char *const names[ST_DTYPE_COUNT] = {"BOOL", "U8",  "I8",  "F8_E5M2", "F8_E4M3", "I16", "U16", "F16",
                                                      "BF16", "I32", "U32", "F32",     "I64",     "U64", "F64"};
    return names[dtype];
}

static inline size_t safetensors_dtype_bytes(int dtype) {
    return dtype <= ST_F8_E4M3 ? 1 : dtype <= ST_BF16 ? 2 : dtype <= ST_F32 ? 4 : 8;
}

// The dtype of that name, or -1.
static inline int safetensors_dtype(const char *name) {
    for (int i = 0; i < ST_DTYPE_COUNT; i++)
        if (strcmp(safetensors_dtype_name(i), name) == 0) return i;
    return -1;
}

// Formats that hold real numbers and that this program converts between.
static inline int safetensors_dtype_is_float(int dtype) {
    return dtype == ST_F16 || dtype == ST_BF16 || dtype == ST_F32 || dtype == ST_F64;
}

typedef struct {
    const char *name;
    int dtype, ndim;
    size_t shape[SAFETENSORS_MAX_DIMS];
    uint64_t begin, end;  // bytes from the start of the data
} SafetensorsEntry;

// "F32 [50257, 768]" into `text` (at least 200 bytes); returns it.
static inline const char *safetensors_shape_text(char *text, int dtype, int ndim, const size_t *shape) {
    int n = snprintf(text, 200, "%s [", safetensors_dtype_name(dtype));
    for (int i = 0; i < ndim; i++) n += snprintf(text + n, 200 - (size_t)n, i ? ", %zu" : "%zu", shape[i]);
    snprintf(text + n, 200 - (size_t)n, "]");
    return text;
}

// ----------------------------------------------------------------------------------------------------------------
// Conversion of values (on loading only: what is saved is saved as it is)

// out (n) float = in (n) of one of the four float dtypes.
static inline void safetensors_to_f32(float *out, const void *in, int dtype, size_t n) {
    if (dtype == ST_F32) memcpy(out, in, n * sizeof(float));
    for (size_t i = 0; i < n && dtype != ST_F32; i++) {
        if (dtype == ST_F64) {
            out[i] = (float)((const double *)in)[i];
        } else if (dtype == ST_F16) {
            out[i] = decode_fp16(((const uint16_t *)in)[i]);
        } else {
            out[i] = decode_bf16(((const uint16_t *)in)[i]);
        }
    }
}

// The first element that is NaN or infinite among `n` of `dtype`, or n. Formats without such values: n.
static inline size_t safetensors_first_nonfinite(const void *values, int dtype, size_t n) {
    if (!safetensors_dtype_is_float(dtype)) return n;
    for (size_t first = 0; first < n;
         first += 4096) {  // whole blocks without a branch, the search only where one is bad
        size_t last = min_size(first + 4096, n);
        int bad = 0;
        if (dtype == ST_F32)
            for (size_t i = first; i < last; i++) bad |= (((const uint32_t *)values)[i] & 0x7F800000) == 0x7F800000;
        else if (dtype == ST_F64)
            for (size_t i = first; i < last; i++) bad |= (((const uint64_t *)values)[i] >> 52 & 0x7FF) == 0x7FF;
        else
            for (size_t i = first; i < last; i++) {
                uint16_t mask = dtype == ST_F16 ? 0x7C00 : 0x7F80;
                bad |= (((const uint16_t *)values)[i] & mask) == mask;
            }
        if (!bad) continue;
        if (last - first == 1) return first;
        for (size_t i = first; i < last; i++)
            if (safetensors_first_nonfinite((const char *)values + i * safetensors_dtype_bytes(dtype), dtype, 1) == 0)
                return i;
    }
    return n;
}

// ----------------------------------------------------------------------------------------------------------------
// Writing

// Bytes of one tensor's data.
static inline uint64_t safetensors_entry_bytes(const SafetensorsEntry *entry) {
    size_t elems = 1;
    for (int i = 0; i < entry->ndim; i++) elems = size_mul(elems, entry->shape[i]);
    return size_mul(elems, safetensors_dtype_bytes(entry->dtype));
}

// Writes length and header of a file with these tensors in this order into `buffer`, and fills their begin and end.
// `metadata` is a JSON object of strings, or NULL. Returns the bytes it takes, padded with spaces to a multiple of 8
// as the format asks; more than `capacity` means nothing usable was written (capacity 0 measures).
static inline size_t safetensors_header(char *buffer, size_t capacity, SafetensorsEntry *entries, size_t count,
                                        const char *metadata) {
    JsonWriter w;
    uint64_t at = 0;
    json_writer(&w, capacity > 8 ? buffer + 8 : NULL, capacity > 8 ? capacity - 8 : 0);
    json_begin(&w, '{');
    if (metadata) {
        json_put_key(&w, "__metadata__");
        json_put_raw(&w, metadata);
    }
    for (size_t i = 0; i < count; i++) {
        entries[i].begin = at;
        entries[i].end = at += safetensors_entry_bytes(&entries[i]);
        json_put_key(&w, entries[i].name);
        json_begin(&w, '{');
        json_put_key(&w, "dtype");
        json_put_string(&w, safetensors_dtype_name(entries[i].dtype));
        json_put_key(&w, "shape");
        json_begin(&w, '[');
        for (int d = 0; d < entries[i].ndim; d++) json_put_u64(&w, entries[i].shape[d]);
        json_end(&w, ']');
        json_put_key(&w, "data_offsets");
        json_begin(&w, '[');
        json_put_u64(&w, entries[i].begin);
        json_put_u64(&w, entries[i].end);
        json_end(&w, ']');
        json_end(&w, '}');
    }
    json_end(&w, '}');
    while (w.used % 8) json_put_bytes(&w, " ", 1);
    uint64_t length = w.used;
    if (capacity >= 8) memcpy(buffer, &length, 8);
    return w.used + 8 + 1;  // + 1: the writer's terminating NUL needs room; it is not part of the file
}

// ----------------------------------------------------------------------------------------------------------------
// Reading

typedef struct {
    int fd;
    char path[SAFE_PATH_BYTES];
    uint64_t data_start, data_bytes;
    SafetensorsEntry *entries;  // sorted by name
    size_t count;
    Json json;                 // owns the names
    const JsonNode *metadata;  // object of strings, or NULL
} SafetensorsFile;

static inline int safetensors_by_name(const void *a, const void *b) {
    return strcmp(((const SafetensorsEntry *)a)->name, ((const SafetensorsEntry *)b)->name);
}
static inline int safetensors_by_offset(const void *a, const void *b) {
    const SafetensorsEntry *x = (const SafetensorsEntry *)a, *y = (const SafetensorsEntry *)b;
    return x->begin != y->begin ? (x->begin < y->begin ? -1 : 1) : (x->end > y->end) - (x->end < y->end);
}

static inline int safetensors_bad(SafetensorsFile *file, Message *message, const char *name, const char *what) {
    if (name) message_add(message, "'%s': tensor '%.120s': %s", file->path, name, what);
    else message_add(message, "'%s' is no safetensors file: %s", file->path, what);
    return 0;
}

// One entry from its JSON, every number checked against the others and the size of the data.
static inline int safetensors_read_entry(SafetensorsFile *file, const JsonNode *node, Message *message) {
    SafetensorsEntry *entry = &file->entries[file->count++];
    const Json *json = &file->json;
    const JsonNode *dtype = json_get(json, node, "dtype"), *shape = json_get(json, node, "shape");
    const JsonNode *offsets = json_get(json, node, "data_offsets"), *n;
    uint64_t bytes, value;
    entry->name = node->key;
    if (strlen(node->key) != node->key_bytes) return safetensors_bad(file, message, node->key, "a NUL in its name");
    if (!json_string(dtype)) return safetensors_bad(file, message, node->key, "no dtype");
    entry->dtype = safetensors_dtype(dtype->text);
    if (entry->dtype < 0) return safetensors_bad(file, message, node->key, "unknown dtype");
    if (!shape || shape->type != JSON_ARRAY) return safetensors_bad(file, message, node->key, "no shape");
    if (shape->count > SAFETENSORS_MAX_DIMS) return safetensors_bad(file, message, node->key, "more than 8 dimensions");
    bytes = safetensors_dtype_bytes(entry->dtype);
    for (n = json_first(json, shape); n; n = json_next(json, n)) {
        if (!json_u64(n, &value)) return safetensors_bad(file, message, node->key, "a dimension is not a whole number");
        if (__builtin_mul_overflow(bytes, value, &bytes))
            return safetensors_bad(file, message, node->key, "its shape does not fit in 64 bits");
        entry->shape[entry->ndim++] = (size_t)value;
    }
    if (!offsets || offsets->type != JSON_ARRAY || offsets->count != 2 ||
        !json_u64(json_first(json, offsets), &entry->begin) ||
        !json_u64(json_next(json, json_first(json, offsets)), &entry->end))
        return safetensors_bad(file, message, node->key, "data_offsets are not two whole numbers");
    if (entry->begin > entry->end || entry->end > file->data_bytes)
        return safetensors_bad(file, message, node->key, "its data_offsets lie outside the file (was it cut short?)");
    if (entry->end - entry->begin != bytes)
        return safetensors_bad(file, message, node->key, "its data_offsets do not fit its dtype and shape");
    return 1;
}

// All entries: each sound, names unique, data back to back from the first byte to the last.
static inline int safetensors_read_entries(SafetensorsFile *file, Message *message) {
    const JsonNode *root = json_root(&file->json);
    uint64_t at = 0;
    if (root->type != JSON_OBJECT) return safetensors_bad(file, message, NULL, "the header is not a JSON object");
    file->entries = (SafetensorsEntry *)checked_calloc(root->count, sizeof(SafetensorsEntry), "safetensors entries");
    for (const JsonNode *n = json_first(&file->json, root); n; n = json_next(&file->json, n)) {
        if (strcmp(n->key, "__metadata__") != 0) {
            if (!safetensors_read_entry(file, n, message)) return 0;
            continue;
        }
        if (file->metadata || n->type != JSON_OBJECT)
            return safetensors_bad(file, message, NULL, "__metadata__ is not one JSON object");
        for (const JsonNode *m = json_first(&file->json, n); m; m = json_next(&file->json, m))
            if (m->type != JSON_STRING)
                return safetensors_bad(file, message, NULL, "__metadata__ holds more than strings");
        file->metadata = n;
    }
    qsort(file->entries, file->count, sizeof(SafetensorsEntry), safetensors_by_offset);
    for (size_t i = 0; i < file->count; at = file->entries[i++].end)
        if (file->entries[i].begin != at)
            return safetensors_bad(file, message, file->entries[i].name,
                                   file->entries[i].begin < at ? "it overlaps another" : "a hole lies before its data");
    if (at != file->data_bytes) return safetensors_bad(file, message, NULL, "the file is longer than its tensors");
    qsort(file->entries, file->count, sizeof(SafetensorsEntry), safetensors_by_name);
    for (size_t i = 1; i < file->count; i++)
        if (strcmp(file->entries[i - 1].name, file->entries[i].name) == 0)
            return safetensors_bad(file, message, file->entries[i].name, "it appears twice");
    return 1;
}

static inline int safetensors_read_header(SafetensorsFile *file, uint64_t file_bytes, Message *message) {
    uint64_t length;
    if (file_bytes < 8) return safetensors_bad(file, message, NULL, "it has fewer than 8 bytes");
    if (!safe_read_at(file->fd, 0, &length, 8, file->path, message)) return 0;
    if (length > file_bytes - 8 || length > SAFETENSORS_MAX_HEADER_BYTES || length < 2) {
        message_add(message, "'%s' is no safetensors file: its header length is %llu, the file has %llu bytes",
                    file->path, (unsigned long long)length, (unsigned long long)file_bytes);
        return 0;
    }
    file->data_start = 8 + length;
    file->data_bytes = file_bytes - file->data_start;
    char *text = (char *)checked_calloc((size_t)length, 1, "a safetensors header");
    int good = safe_read_at(file->fd, 8, text, (size_t)length, file->path, message);
    if (good && text[0] != '{') good = safetensors_bad(file, message, NULL, "its header does not begin with '{'");
    else if (good && !json_parse(&file->json, text, (size_t)length))
        good = safetensors_bad(file, message, NULL, file->json.error);
    free(text);
    return good && safetensors_read_entries(file, message);
}

static inline void safetensors_close(SafetensorsFile *file) {
    if (file->fd >= 0) close(file->fd);
    file->fd = -1;
    json_free(&file->json);
    free(file->entries);
    file->entries = NULL;
    file->count = 0;
}

// Opens and checks; 1, or 0 with a message (nothing is left open then).
static inline int safetensors_open(SafetensorsFile *file, const char *path, Message *message) {
    uint64_t bytes = 0;
    memset(file, 0, sizeof *file);
    snprintf(file->path, sizeof file->path, "%s", path);
    file->fd = safe_open_read(path, &bytes, message);
    if (file->fd >= 0 && safetensors_read_header(file, bytes, message)) return 1;
    safetensors_close(file);
    return 0;
}

// The tensor of that name, or NULL.
static inline const SafetensorsEntry *safetensors_find(const SafetensorsFile *file, const char *name) {
    size_t low = 0, high = file->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(file->entries[middle].name, name);
        if (order == 0) return &file->entries[middle];
        if (order < 0) low = middle + 1;
        else high = middle;
    }
    return NULL;
}

// The metadata string of that key, or NULL.
static inline const char *safetensors_metadata(const SafetensorsFile *file, const char *key) {
    return json_string(json_get(&file->json, file->metadata, key));
}

// `bytes` of a tensor's data from byte `offset` of it, as stored; 0 with a message where they cannot be read.
static inline int safetensors_read(const SafetensorsFile *file, const SafetensorsEntry *entry, uint64_t offset,
                                   void *data, size_t bytes, Message *message) {
    return safe_read_at(file->fd, file->data_start + entry->begin + offset, data, bytes, file->path, message);
}

#endif
