// test_safetensors.c: against files of the safetensors package and back, conversions, and hostile headers.
#include "../../llmc/safetensors.h"

#include <math.h>

#include "checkpoint_test.h"
#include "test.h"

// The dtypes fixture's values, told again: kind i holds 0..5 + i (bool: 0 1 0 1 0 1).
TEST(reads_the_packages_file) {
    SafetensorsFile file;
    Message message;
    char path[SAFE_PATH_BYTES];
    message_clear(&message);
    fixture_path(path, "dtypes.safetensors");
    CHECK(safetensors_open(&file, path, &message), "%s", message.text);
    if (message.text[0]) return;
    CHECK(file.count == 16, "%zu tensors", file.count);
    static const char *const names[] = {"a.bool",   "a.uint8", "a.int8",   "a.int16",   "a.uint16",  "a.int32",
                                        "a.uint32", "a.int64", "a.uint64", "a.float16", "a.float32", "a.float64"};
    static const int dtypes[] = {ST_BOOL, ST_U8,  ST_I8,  ST_I16, ST_U16, ST_I32,
                                 ST_U32,  ST_I64, ST_U64, ST_F16, ST_F32, ST_F64};
    for (int i = 0; i < 12; i++) {
        const SafetensorsEntry *e = safetensors_find(&file, names[i]);
        char raw[48];
        float f[6];
        CHECK(e && e->dtype == dtypes[i] && e->ndim == 2 && e->shape[0] == 2 && e->shape[1] == 3, "%s", names[i]);
        if (!e || !safetensors_read(&file, e, 0, raw, (size_t)(e->end - e->begin), &message)) continue;
        for (int k = 0; k < 6; k++) {
            if (safetensors_dtype_is_float(dtypes[i])) {
                safetensors_to_f32(f, raw, dtypes[i], 6);
                CHECK(f[k] == (float)(k + i), "%s[%d] is %g", names[i], k, f[k]);
            } else {
                uint64_t x = 0;
                size_t n = safetensors_dtype_bytes(dtypes[i]);
                memcpy(&x, raw + (size_t)k * n, n);
                CHECK(x == (uint64_t)(i ? k + i : k % 2), "%s[%d] is %llu", names[i], k, (unsigned long long)x);
            }
        }
    }
    const SafetensorsEntry *e = safetensors_find(&file, "bf16");
    uint16_t raw[5];
    float f[5];
    CHECK(e && e->dtype == ST_BF16 && safetensors_read(&file, e, 0, raw, 10, &message), "bf16 %s", message.text);
    safetensors_to_f32(f, raw, ST_BF16, 5);
    for (int k = 0; k < 5; k++)
        CHECK(fabsf(f[k] - fixture_value("bf16", (size_t)k)) < 0.008f, "bf16[%d] is %g", k, f[k]);
    e = safetensors_find(&file, "scalar");
    CHECK(e && e->ndim == 0 && safetensors_read(&file, e, 0, f, 4, &message) && f[0] == 2.5f, "scalar");
    e = safetensors_find(&file, "empty");
    CHECK(e && e->ndim == 2 && e->begin == e->end, "empty");
    CHECK(safetensors_find(&file, "n\xC3\xA4me \"\\\n\xF0\x9F\x98\x80"), "the name with escapes");
    CHECK(!safetensors_find(&file, "nothing"), "found what is not there");
    const char *value = safetensors_metadata(&file, "k\xC3\xA9y");
    CHECK(value && strcmp(value, "v\"\\\xE2\x80\xA8") == 0, "metadata is %s", value ? value : "missing");
    CHECK(!safetensors_metadata(&file, "none"), "metadata that is not there");
    safetensors_close(&file);
}

// Writes a file with one tensor of each dtype; returns its entries' count.
static size_t write_all_dtypes(const char *path, SafetensorsEntry *entries, Message *message) {
    static char header[8192], data[64];
    SafeFile file;
    size_t n = 0;
    for (size_t size = 8; size >= 1; size /= 2)
        for (int d = 0; d < ST_DTYPE_COUNT; d++)
            if (safetensors_dtype_bytes(d) == size) {
                SafetensorsEntry e = {safetensors_dtype_name(d), d, 2, {2, 3}, 0, 0};
                entries[n++] = e;
            }
    size_t bytes = safetensors_header(header, sizeof header, entries, n, "{\"format\":\"pt\",\"o\":\"{\\\"x\\\":1}\"}");
    CHECK(bytes <= sizeof header &&
              bytes == safetensors_header(NULL, 0, entries, n, "{\"format\":\"pt\",\"o\":\"{\\\"x\\\":1}\"}"),
          "header of %zu bytes", bytes);
    safe_file_create(&file, path, message);
    safe_file_write(&file, header, bytes - 1);
    CHECK((bytes - 1) % 8 == 0, "header ends at byte %zu", bytes - 1);
    for (size_t i = 0; i < n; i++) {
        size_t size = (size_t)(entries[i].end - entries[i].begin);
        for (size_t k = 0; k < size; k++) data[k] = (char)(entries[i].dtype == ST_BOOL ? k % 2 : (7 * k + i) % 100);
        safe_file_write(&file, data, size);
    }
    CHECK(safe_file_finish(&file), "%s", message->text);
    return n;
}

TEST(writes_what_it_reads) {
    char dir[64], path[SAFE_PATH_BYTES];
    SafetensorsEntry entries[ST_DTYPE_COUNT];
    SafetensorsFile file;
    Message message;
    message_clear(&message);
    temporary_dir(dir);
    path_join(path, dir, "x.safetensors");
    size_t n = write_all_dtypes(path, entries, &message);
    CHECK(safetensors_open(&file, path, &message), "%s", message.text);
    CHECK(file.count == n, "%zu tensors", file.count);
    for (size_t i = 0; i < n && file.count; i++) {
        const SafetensorsEntry *e = safetensors_find(&file, entries[i].name);
        CHECK(e && e->begin == entries[i].begin && e->end == entries[i].end && e->dtype == entries[i].dtype, "%s",
              entries[i].name);
        CHECK(e && (file.data_start + e->begin) % safetensors_dtype_bytes(e->dtype) == 0, "%s is not aligned",
              entries[i].name);
    }
    CHECK(strcmp(safetensors_metadata(&file, "o"), "{\"x\":1}") == 0, "metadata");
    safetensors_close(&file);
    remove_dir(dir);
}

// The package opens ours and sees the same names, dtypes, shapes and bytes.
TEST(the_package_reads_ours) {
    char dir[64], path[SAFE_PATH_BYTES], script[SAFE_PATH_BYTES], line[512], name[64], dtype[16], shape[32];
    SafetensorsEntry entries[ST_DTYPE_COUNT];
    SafetensorsFile file;
    Message message;
    unsigned long long sum;
    size_t seen = 0;
    if (system("python3 -c 'import safetensors' >/dev/null 2>&1") != 0) SKIP("no python3 with the safetensors package");
    message_clear(&message);
    temporary_dir(dir);
    path_join(path, dir, "x.safetensors");
    write_all_dtypes(path, entries, &message);
    CHECK(safetensors_open(&file, path, &message), "%s", message.text);
    fixture_path(script, "../checkpoint_fixtures.py");
    snprintf(line, sizeof line, "python3 '%.200s' --check '%.200s' 2>&1", script, path);
    FILE *pipe = popen(line, "r");
    while (pipe && fgets(line, sizeof line, pipe)) {
        if (sscanf(line, "%63s %15s %31s %llu", name, dtype, shape, &sum) != 4) {
            CHECK(0, "the package says: %s", line);
            continue;
        }
        const SafetensorsEntry *e = safetensors_find(&file, name);
        unsigned char raw[64];
        unsigned long long expected = 0;
        size_t bytes = e ? (size_t)(e->end - e->begin) : 0;
        if (e) safetensors_read(&file, e, 0, raw, bytes, &message);
        for (size_t k = 0; k < bytes; k++) expected += (k % 251 + 1) * raw[k];
        CHECK(e && strcmp(dtype, name) == 0 && strcmp(shape, "2x3") == 0 && sum == expected, "%s", line);
        seen++;
    }
    CHECK(pipe && pclose(pipe) == 0 && seen == file.count, "the package saw %zu tensors", seen);
    safetensors_close(&file);
    remove_dir(dir);
}

// ----------------------------------------------------------------------------------------------------------------

// Writes `header` with its true length and `data_bytes` zeros behind it.
static void write_raw(const char *path, const char *header, size_t data_bytes) {
    FILE *f = fopen(path, "wb");
    uint64_t n = strlen(header);
    fwrite(&n, 8, 1, f);
    fwrite(header, 1, (size_t)n, f);
    for (size_t i = 0; i < data_bytes; i++) fputc(0, f);
    fclose(f);
}

TEST(refuses_hostile_headers) {
    static const struct {
        const char *header;
        size_t data;
        const char *words;
    } cases[] = {
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, NULL},
        {"{}", 0, NULL},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 7, "outside the file"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 9, "longer than its tensors"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}", 12, "hole"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", 8, "outside"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}}", 8, "do not fit"},
        {"{\"a\":{\"dtype\":\"F33\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "unknown dtype"},
        {"{\"a\":{\"dtype\":4,\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "no dtype"},
        {"{\"a\":{\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "no dtype"},
        {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,8]}}", 8, "no shape"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":2,\"data_offsets\":[0,8]}}", 8, "no shape"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", 8, "whole number"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2.0],\"data_offsets\":[0,8]}}", 8, "whole number"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,2],\"data_offsets\":[0,8]}}", 8, "8 dimensions"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296,2],\"data_offsets\":[0,8]}}", 8, "64 bits"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387906],\"data_offsets\":[0,8]}}", 8, "64 bits"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0]}}", 8, "two whole numbers"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8,9]}}", 8, "two whole numbers"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[-8,0]}}", 8, "two whole numbers"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[18446744073709551608,18446744073709551615]}}", 8,
         "outside"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8, "two whole numbers"},
        {"{\"a\":[1]}", 0, "no dtype"},
        {"{\"a\":1}", 0, "no dtype"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[2,6]}}",
         6, "overlaps"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,8]}}",
         8, "twice"},
        {"{\"a\\u0000b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4, "NUL"},
        {"{\"__metadata__\":1}", 0, "__metadata__"},
        {"{\"__metadata__\":{\"a\":1}}", 0, "strings"},
        {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "__metadata__"},
        {"[]", 0, "begin with"},
        {" {}", 0, "begin with"},
        {"{},", 0, "follows"},
        {"{", 0, "header length"},
        {"", 0, "header length"},
    };
    char dir[64], path[SAFE_PATH_BYTES];
    temporary_dir(dir);
    path_join(path, dir, "x.safetensors");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        SafetensorsFile file;
        Message message;
        message_clear(&message);
        write_raw(path, cases[i].header, cases[i].data);
        int good = safetensors_open(&file, path, &message);
        if (good) safetensors_close(&file);
        CHECK(good == !cases[i].words, "case %zu %s: %s", i, good ? "accepted" : "refused", cases[i].header);
        CHECK(good || strstr(message.text, cases[i].words), "case %zu: no \"%s\" in: %s", i, cases[i].words,
              message.text);
    }
    remove_dir(dir);
}

TEST(refuses_wrong_lengths_and_kinds) {
    static const uint64_t lengths[] = {0, 1, 3, 1000, UINT64_MAX, UINT64_MAX - 8, (uint64_t)1 << 63, 100000001};
    char dir[64], path[SAFE_PATH_BYTES];
    SafetensorsFile file;
    Message message;
    temporary_dir(dir);
    path_join(path, dir, "x.safetensors");
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        FILE *f = fopen(path, "wb");
        fwrite(&lengths[i], 8, 1, f);
        fputs("{}", f);
        fclose(f);
        message_clear(&message);
        CHECK(!safetensors_open(&file, path, &message) && strstr(message.text, "header"), "length %llu: %s",
              (unsigned long long)lengths[i], message.text);
    }
    message_clear(&message);
    CHECK(truncate(path, 7) == 0 && !safetensors_open(&file, path, &message) && strstr(message.text, "8 bytes"),
          "7 bytes: %s", message.text);
    message_clear(&message);
    CHECK(!safetensors_open(&file, dir, &message) && strstr(message.text, "regular"), "a folder: %s", message.text);
    unlink(path);
    CHECK(mkfifo(path, 0600) == 0, "mkfifo");
    message_clear(&message);
    CHECK(!safetensors_open(&file, path, &message) && strstr(message.text, "regular"), "a pipe: %s", message.text);
    unlink(path);
    message_clear(&message);
    CHECK(!safetensors_open(&file, path, &message) && strstr(message.text, "No such file"), "nothing: %s",
          message.text);
    remove_dir(dir);
}

// Random damage to a good header: bytes changed, removed, doubled. Whatever opens must be sound.
TEST(fuzzed_headers) {
    char dir[64], path[SAFE_PATH_BYTES], fixture[SAFE_PATH_BYTES];
    unsigned char good[4096], bytes[8192];
    uint64_t random = 88172645463325252ull;
    size_t opened = 0, rounds = 5000;
    temporary_dir(dir);
    path_join(path, dir, "x.safetensors");
    fixture_path(fixture, "dtypes.safetensors");
    FILE *f = fopen(fixture, "rb");
    size_t n = f ? fread(good, 1, sizeof good, f) : 0;
    if (f) fclose(f);
    CHECK(n > 1000, "fixture has %zu bytes", n);
    for (size_t round = 0; round < rounds && n; round++) {
        SafetensorsFile file;
        Message message;
        size_t m = n;
        message_clear(&message);
        memcpy(bytes, good, n);
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        for (uint64_t edits = 1 + random % 3, r = random >> 8; edits;
             edits--, r = r * 6364136223846793005ull + 1442695040888963407ull) {
            size_t at = (size_t)((r >> 20) % m), kind = (size_t)(r >> 60) % 4;
            if (kind == 0) bytes[at] = (unsigned char)(r >> 12);
            if (kind == 1) bytes[at] = (unsigned char)"0123456789[]{},:\""[(r >> 12) % 17];
            if (kind == 2) memmove(bytes + at, bytes + at + 1, --m - at);
            if (kind == 3 && m < sizeof bytes) memmove(bytes + at + 1, bytes + at, m++ - at);
        }
        unlink(path);  // a new file: rewriting one in place makes some file systems flush it
        f = fopen(path, "wb");
        fwrite(bytes, 1, m, f);
        fclose(f);
        if (!safetensors_open(&file, path, &message)) {
            CHECK(message.text[0], "refused without a word");
            continue;
        }
        opened++;
        for (size_t i = 0; i < file.count; i++)
            CHECK(file.entries[i].end <= file.data_bytes && file.data_start + file.data_bytes == m,
                  "entry outside the file");
        safetensors_close(&file);
    }
    CHECK(opened > rounds / 100 && opened < rounds * 3 / 4, "%zu of %zu opened", opened, rounds);
    remove_dir(dir);
}

// ----------------------------------------------------------------------------------------------------------------

// binary16 by its definition, in double.
static double half_value(unsigned h) {
    int e = (int)(h >> 10 & 31), m = (int)(h & 1023);
    double x = e == 0 ? ldexp(m, -24) : e == 31 ? (m ? (double)NAN : (double)INFINITY) : ldexp(1024 + m, e - 25);
    return h >> 15 ? -x : x;
}

TEST(conversions) {
    for (unsigned h = 0; h < 65536; h++) {
        float f = decode_fp16((uint16_t)h);
        double d = half_value(h);
        CHECK((isnan(f) && isnan(d)) || ((double)f == d && !signbit(f) == !signbit(d)), "f16 %04x is %g, not %g", h,
              (double)f, d);
        uint32_t bits = h << 16;
        memcpy(&f, &bits, 4);
        uint16_t back = encode_bf16(f);
        CHECK(isnan(f) ? (back & 0x7F80) == 0x7F80 && (back & 0x7F) : back == h, "bf16 %04x comes back as %04x", h,
              back);
    }
    static const struct {
        uint32_t f;
        uint16_t b;
    } ties[] = {
        {0x3F808000, 0x3F80}, {0x3F818000, 0x3F82}, {0x3F808001, 0x3F81}, {0x3F807FFF, 0x3F80}, {0x7F7FFFFF, 0x7F80}};
    for (int i = 0; i < 5; i++) {
        float f;
        memcpy(&f, &ties[i].f, 4);
        CHECK(encode_bf16(f) == ties[i].b, "%08x", ties[i].f);
    }
}

TEST(finds_the_first_nonfinite) {
    static const int dtypes[] = {ST_F32, ST_F64, ST_F16, ST_BF16};
    static const size_t places[] = {0, 1, 4095, 4096, 9998, 9999};
    static char data[10000 * 8];
    for (int d = 0; d < 4; d++) {
        size_t size = safetensors_dtype_bytes(dtypes[d]);
        memset(data, 0x3B, sizeof data);
        CHECK(safetensors_first_nonfinite(data, dtypes[d], 10000) == 10000, "%s: a finite one refused",
              safetensors_dtype_name(dtypes[d]));
        CHECK(safetensors_first_nonfinite(data, dtypes[d], 0) == 0, "none");
        for (int p = 0; p < 6; p++)
            for (int kind = 0; kind < 3; kind++) {
                float f32 = kind == 0 ? NAN : kind == 1 ? INFINITY : -INFINITY;
                double f64 = (double)f32;
                uint16_t f16 = kind == 0 ? 0x7E00 : kind == 1 ? 0x7C00 : 0xFC00, bf16 = encode_bf16(f32);
                const void *from = d == 0   ? (void *)&f32
                                   : d == 1 ? (void *)&f64
                                   : d == 2 ? (void *)&f16
                                            : (void *)&bf16;
                memset(data, 0x3B, sizeof data);
                memcpy(data + places[p] * size, from, size);
                size_t found = safetensors_first_nonfinite(data, dtypes[d], 10000);
                CHECK(found == places[p], "%s: found at %zu, is at %zu", safetensors_dtype_name(dtypes[d]), found,
                      places[p]);
            }
    }
    memset(data, 0xFF, 64);
    CHECK(safetensors_first_nonfinite(data, ST_U32, 16) == 16, "U32 has no NaN");
}

// XXH64's published answers, and python's xxhash for the longer ones; any cutting of the stream gives the same.
TEST(checksum) {
    static const struct {
        size_t n;
        uint64_t sum;
    } known[] = {{0, 0xef46db3751d8e999ull},   {1, 0xe934a84adb052768ull},   {3, 0xe38ecea27964f1a0ull},
                 {4, 0x4d0a1255b7392f55ull},   {7, 0xab23d8eaba8b0fd0ull},   {8, 0x9ae9ad02529c6e94ull},
                 {12, 0xb7b25b5b3225e535ull},  {31, 0xf802085ae7e12fa9ull},  {32, 0xabe98b5116e5ed4dull},
                 {33, 0xd9c3a758ecff9219ull},  {63, 0x9d597e61218f5977ull},  {64, 0xc2b8d1eca1282124ull},
                 {100, 0xa38a818449594369ull}, {255, 0xd3e5309411b5be80ull}, {999, 0xd9d3aaf9fef4a245ull},
                 {1000, 0x2d5f4044a731ebd7ull}};
    unsigned char data[1000];
    Checksum sum;
    for (size_t i = 0; i < sizeof data; i++) data[i] = (unsigned char)(i * i % 251);
    checksum_start(&sum);
    checksum_add(&sum, "abc", 3);
    CHECK(checksum_value(&sum) == 0x44BC2CF5AD770999ull, "abc: %016llx", (unsigned long long)checksum_value(&sum));
    for (size_t k = 0; k < sizeof known / sizeof known[0]; k++)
        for (size_t step = 1; step <= known[k].n + 1; step += 1 + step / 5) {
            checksum_start(&sum);
            for (size_t at = 0; at < known[k].n; at += step)
                checksum_add(&sum, data + at, min_size(step, known[k].n - at));
            CHECK(checksum_value(&sum) == known[k].sum, "%zu bytes by %zu: %016llx", known[k].n, step,
                  (unsigned long long)checksum_value(&sum));
        }
}

int main(void) {
    RUN(reads_the_packages_file);
    RUN(writes_what_it_reads);
    RUN(the_package_reads_ours);
    RUN(refuses_hostile_headers);
    RUN(refuses_wrong_lengths_and_kinds);
    RUN(fuzzed_headers);
    RUN(conversions);
    RUN(finds_the_first_nonfinite);
    RUN(checksum);
    return test_summary();
}
