// dataloader.h: training and validation samples from llm.c's token files.
//
// A token file is 256 int32 (magic, version, number of tokens, zeros), then the tokens: uint16 (magic 20240520,
// version 1) or uint32 (magic 20240801, version 7), little-endian.
//
//     file of n tokens:   | t0 t1 ... | tT ...     | t2T ...    |     (n - 1) / T samples at stride T
//     sample 1:                        inp: T ids from tT        tgt: the T ids that follow each of them
//
// Samples never cross from one file into the next. All files' samples, in file order, make an epoch; epochs follow
// each other without end, each in its own pseudo-random order. Sample g of that endless sequence is a pure function of
// (files, T, seed, g): a run resumes by its count of samples alone, and R ranks that take the parts
// [first + r*B, first + (r+1)*B) of every R*B samples read disjoint data that covers the epoch.
//
// Each way a file can be wrong has a sentence of its own; every id is checked each time it is read.
#ifndef LLMC_DATALOADER_H
#define LLMC_DATALOADER_H

#include <fcntl.h>
#include <glob.h>
#include <sys/stat.h>

#include "rand.h"
#include "utils.h"

#define TOKENS_MAGIC_UINT16 20240520u
#define TOKENS_VERSION_UINT16 1u
#define TOKENS_MAGIC_UINT32 20240801u
#define TOKENS_VERSION_UINT32 7u
#define TOKENS_HEADER_INTS 256
#define TOKENS_HEADER_BYTES ((size_t)1024)

// Words of the header that llm.c leaves 0 and data/tokenize fills; 0 means "not said".
#define TOKENS_NOTE_VOCABULARY 3   // ids of the tokenizer
#define TOKENS_NOTE_TOKENIZER 4    // its kind (tokenizer.h)
#define TOKENS_NOTE_FINGERPRINT 5  // of its vocabulary: files with different ones do not belong together

// Files kept open at once: a data set may have more shards than a process may have open files.
#define DATALOADER_OPEN_FILES 64

typedef struct {
    char *path;
    uint64_t tokens;
    uint64_t first_sample;  // number of its first sample in file order
    int token_bytes;        // 2 or 4
    uint32_t note_vocabulary, note_tokenizer, note_fingerprint;  // see TOKENS_NOTE_
} DataShard;

typedef struct {
    // facts, fixed after opening
    uint64_t num_shards, total_tokens;
    uint64_t samples_per_epoch;  // 0 where no file has T + 1 tokens: dataloader_require() says so
    size_t T;
    size_t V;                              // as asked for, else as noted in the files, else 0
    uint32_t tokenizer_kind, fingerprint;  // as noted in the files; 0: not said
    uint64_t seed;
    int shuffle;
    // the rest is the loader's own
    char *option_name, *pattern;  // for messages: "--train", "data/x_*.bin"
    DataShard *shards;
    int open_fd[DATALOADER_OPEN_FILES];  // shard i may be open in slot i % DATALOADER_OPEN_FILES; -1: nothing is
    uint64_t open_shard[DATALOADER_OPEN_FILES];
    uint32_t *window;  // T + 1 ids as read
} DataLoader;

// ----------------------------------------------------------------------------------------------------------------
// What a file is, when it is not a token file

// The names of other formats' magic numbers, llm.c's first; NULL where the number is unknown.
static inline const char *tokens_foreign_magic(uint32_t magic) {
    switch (magic) {
        case 20240326: return "an llm.c GPT-2 model checkpoint (use it with --init)";
        case 20240327: return "an llm.c debug state of a GPT-2 model";
        case 20240328: return "an llm.c tokenizer file (use it with --tokenizer)";
        case 20240522: return "an evaluation file (use it with --hellaswag)";
        case 20240527: return "an llm.c optimizer state";
        case 20240803: return "an llm.c Llama 3 model or debug state";
        case 0x04034b50: return "a zip archive or PyTorch file";
        case 0x46554747: return "a GGUF model";
        case 0x31524150: return "a Parquet table";
        case 0xfd2fb528: return "a zstd archive";
        case 0x4d554e93: return "a NumPy array";
        default: return (magic & 0xffff) == 0x8b1f ? "a gzip archive" : NULL;
    }
}

// 1 if the bytes could be text: no control characters but white space (bytes above 127 are taken for UTF-8).
static inline int tokens_is_text(const unsigned char *data, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        if (data[i] == 127 || (data[i] < 32 && !(data[i] >= '\t' && data[i] <= '\r'))) return 0;
    return bytes > 0;
}

// Ends the program: the file does not begin like a token file. `bytes` of its beginning are at hand.
static inline void tokens_die_foreign(const char *option, const char *path, const unsigned char *data, size_t bytes)
    __attribute__((noreturn));
static inline void tokens_die_foreign(const char *option, const char *path, const unsigned char *data, size_t bytes) {
    if (tokens_is_text(data, bytes)) {
        char begin[33];
        size_t n = 0;
        for (; n < bytes && n < 32; n++) begin[n] = (data[n] < 32) ? ' ' : (char)data[n];
        while (n > 0 && n < bytes && (data[n] & 0xC0) == 0x80) n--;  // not in the middle of a UTF-8 character
        begin[n] = 0;
        const char *kind = data[0] == '{' || data[0] == '[' ? "JSON" : data[0] == '<' ? "HTML or XML" : "plain";
        if (bytes >= 20 && memcmp(data, "version https://git-", 20) == 0)
            die("%s '%s': this is a git-lfs pointer, not the data itself\ntry: git lfs pull", option, path);
        die("%s '%s': this is a text file (%s text that begins \"%s\"), not a token file\n"
            "try: turn it into tokens first: data/tokenize --tokenizer byte --out PREFIX '%s'",
            option, path, kind, begin, path);
    }
    uint32_t magic = 0;
    memcpy(&magic, data, min_size(bytes, sizeof magic));
    uint32_t swapped = __builtin_bswap32(magic);
    if (swapped == TOKENS_MAGIC_UINT16 || swapped == TOKENS_MAGIC_UINT32)
        die("%s '%s': the bytes of each number are in reverse order (magic %u read backwards)\n"
            "why: the file was written on a big-endian machine\ntry: make it again with data/tokenize", option, path,
            swapped);
    const char *looks_like = tokens_foreign_magic(magic);
    if (!looks_like && bytes > 10 && data[8] == '{' && data[9] == '"') looks_like = "a safetensors file";
    die("%s '%s': bad magic number %u (0x%08x), a token file has %u (2-byte ids) or %u (4-byte ids)\nwhy: %s%s\n"
        "try: make token files with data/tokenize",
        option, path, magic, magic, TOKENS_MAGIC_UINT16, TOKENS_MAGIC_UINT32,
        looks_like ? "this looks like " : "the file is damaged, or something else altogether",
        looks_like ? looks_like : "");
}

// Compares the header's count with the file's size, to the byte.
static inline void tokens_check_size(const char *option, const char *path, uint64_t count, uint64_t token_bytes,
                                     uint64_t file_bytes) {
    uint64_t present_bytes = file_bytes - TOKENS_HEADER_BYTES, expected_bytes = count * token_bytes;
    if (present_bytes == expected_bytes) return;
    const char *what = present_bytes < expected_bytes ? "missing" : "too many";
    uint64_t off = present_bytes < expected_bytes ? expected_bytes - present_bytes : present_bytes - expected_bytes;
    die("%s '%s': the header counts %llu tokens, the file holds %llu%s (%llu bytes %s)\n"
        "why: %llu header bytes + %llu tokens x %llu bytes = %llu bytes, the file has %llu: %s\n"
        "try: download or make the file again", option, path, (unsigned long long)count,
        (unsigned long long)(present_bytes / token_bytes), present_bytes % token_bytes ? " and part of one more" : "",
        (unsigned long long)off, what, (unsigned long long)TOKENS_HEADER_BYTES, (unsigned long long)count,
        (unsigned long long)token_bytes, (unsigned long long)(TOKENS_HEADER_BYTES + expected_bytes),
        (unsigned long long)file_bytes,
        present_bytes < expected_bytes ? "a copy or download was cut short" : "the header is older than the contents");
}

// Opens a token file for reading, checked; fills shard->tokens and shard->token_bytes and returns the descriptor.
// Ends the program with one sentence for each thing that can be wrong. V: the vocabulary the ids are meant for.
static inline int tokens_open(DataShard *shard, size_t V, const char *option) {
    const char *path = shard->path;
    struct stat info;
    union {
        uint32_t word[TOKENS_HEADER_INTS];
        unsigned char byte[TOKENS_HEADER_BYTES];
    } header;
    if (stat(path, &info) != 0) die("%s '%s': %s", option, path, strerror(errno));
    if (S_ISDIR(info.st_mode))
        die("%s '%s': this is a folder, not a token file\ntry: a pattern of the files in it, '%s/*.bin'",
            option, path, path);
    if (!S_ISREG(info.st_mode))
        die("%s '%s': this is a pipe or device, which cannot be read at random places", option, path);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 && errno == EACCES)
        die("%s '%s': no permission to read this file\ntry: chmod +r '%s'", option, path, path);
    if (fd < 0) die("%s '%s': cannot open: %s", option, path, strerror(errno));
    uint64_t file_bytes = (uint64_t)info.st_size;
    if (file_bytes == 0) die("%s '%s': the file is empty (0 bytes)\ntry: download or make it again", option, path);
    size_t wanted = (size_t)(file_bytes < TOKENS_HEADER_BYTES ? file_bytes : TOKENS_HEADER_BYTES);
    ssize_t got = pread(fd, header.byte, wanted, 0);
    if (got < 0 || (size_t)got != wanted) die("%s '%s': cannot read the header: %s", option, path,
                                              got < 0 ? strerror(errno) : "the file ends early");
    uint32_t magic = wanted >= 4 ? header.word[0] : 0;
    if (magic != TOKENS_MAGIC_UINT16 && magic != TOKENS_MAGIC_UINT32)
        tokens_die_foreign(option, path, header.byte, wanted);
    if (file_bytes < TOKENS_HEADER_BYTES)
        die("%s '%s': the header itself is cut short, %llu of its %llu bytes are there\ntry: download or make it again",
            option, path, (unsigned long long)file_bytes, (unsigned long long)TOKENS_HEADER_BYTES);
    uint32_t version = magic == TOKENS_MAGIC_UINT16 ? TOKENS_VERSION_UINT16 : TOKENS_VERSION_UINT32;
    if (header.word[1] != version)
        die("%s '%s': token file version %u, this program reads version %u of the format with magic %u", option, path,
            header.word[1], version, magic);
    if (file_bytes == TOKENS_HEADER_BYTES)
        die("%s '%s': there is only a header and not one token (the header counts %u)\n"
            "try: download or make the file again", option, path, header.word[2]);
    shard->tokens = header.word[2];  // unsigned: llm.c's int32 count, and files up to 4 billion tokens
    shard->token_bytes = magic == TOKENS_MAGIC_UINT16 ? 2 : 4;
    shard->note_vocabulary = header.word[TOKENS_NOTE_VOCABULARY];
    shard->note_tokenizer = header.word[TOKENS_NOTE_TOKENIZER];
    shard->note_fingerprint = header.word[TOKENS_NOTE_FINGERPRINT];
    tokens_check_size(option, path, shard->tokens, (uint64_t)shard->token_bytes, file_bytes);
    if (shard->token_bytes == 2 && V > 65536)
        die("%s '%s': the file has 2-byte ids, which end at 65535, but the vocabulary is %zu\n"
            "why: larger ids would have wrapped when it was written\ntry: make the file again for this vocabulary",
            option, path, V);
    return fd;
}

// ----------------------------------------------------------------------------------------------------------------
// Opening

static inline int dataloader_compare_paths(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

// Takes over what a file notes about its tokenizer; files of two tokenizers end the program.
static inline void dataloader_note(DataLoader *dl, const DataShard *shard, int wants_V) {
    const DataShard *first = &dl->shards[0];
    if (shard->note_fingerprint && dl->fingerprint && shard->note_fingerprint != dl->fingerprint)
        die("%s '%s': this file was made with another tokenizer (%u ids) than '%s' (%u ids)\n"
            "try: a pattern that matches the files of one data set only",
            dl->option_name, shard->path, shard->note_vocabulary, first->path, first->note_vocabulary);
    if (!dl->fingerprint) dl->fingerprint = shard->note_fingerprint;
    if (!dl->tokenizer_kind) dl->tokenizer_kind = shard->note_tokenizer;
    if (wants_V) dl->V = max_size(dl->V, shard->note_vocabulary);
}

// Opens the named files, in this order. See dataloader_open().
static inline void dataloader_open_paths(DataLoader *dl, char *const *paths, size_t count, size_t T, uint64_t seed,
                                         int shuffle, size_t V, const char *option_name) {
    if (T < 1 || T > (size_t)1 << 30) die_usage("--seq %zu is not between 1 and 1073741824", T);
    memset(dl, 0, sizeof *dl);
    dl->T = T;
    dl->V = V;
    dl->seed = seed;
    dl->shuffle = shuffle;
    dl->num_shards = count;
    dl->option_name = checked_strdup(option_name);
    dl->pattern = checked_strdup(count == 1 ? paths[0] : "(list of files)");
    dl->shards = (DataShard *)checked_calloc(count, sizeof(DataShard), "the list of token files");
    dl->window = (uint32_t *)checked_calloc(T + 1, sizeof(uint32_t), "one sample");
    for (int slot = 0; slot < DATALOADER_OPEN_FILES; slot++) dl->open_fd[slot] = -1;
    for (size_t i = 0; i < count; i++) {
        DataShard *shard = &dl->shards[i];
        shard->path = checked_strdup(paths[i]);
        shard->first_sample = dl->samples_per_epoch;
        close(tokens_open(shard, V, option_name));
        dataloader_note(dl, shard, V == 0);
        dl->total_tokens += shard->tokens;
        dl->samples_per_epoch += (shard->tokens - 1) / T;
    }
}

static inline int dataloader_glob_error(const char *path, int error) {
    warn("cannot look into '%s': %s", path, strerror(error));
    return 0;
}

// Opens every token file that matches `pattern` (shell wildcards; one plain path is fine), in the order of their names
// by bytes, for samples of T tokens. Headers are read and checked here; whatever is wrong ends the program with
// `option_name` ("--train") and the file in the message. `shuffle` 0: every epoch in file order. V: vocabulary;
// 0 takes the one noted in the files (dl->V is still 0 where none is: set it before fetching).
// Holds T + 1 ids of memory; no file is read ahead. Close with dataloader_close().
static inline void dataloader_open(DataLoader *dl, const char *pattern, size_t T, uint64_t seed, int shuffle, size_t V,
                                   const char *option_name) {
    struct stat info;
    glob_t found;
    char *literal = (char *)pattern;
    if (stat(pattern, &info) == 0) {  // a file whose name has brackets is meant as it is
        dataloader_open_paths(dl, &literal, 1, T, seed, shuffle, V, option_name);
        return;
    }
    if (errno != ENOENT) die("%s '%s': %s", option_name, pattern, strerror(errno));
    memset(&found, 0, sizeof found);
    int rc = glob(pattern, GLOB_NOSORT, dataloader_glob_error, &found);
    if (rc != 0 || found.gl_pathc == 0) {
        char folder[2048];
        if (!getcwd(folder, sizeof folder)) strcpy(folder, "?");
        die("%s '%s': no such file\nwhy: looked from the folder '%s'\n"
            "try: `make data` for the built-in data set, or data/tokenize for your own (data/README.md)",
            option_name, pattern, pattern[0] == '/' ? "/" : folder);
    }
    // glob's own order depends on the locale; this one does not.
    qsort(found.gl_pathv, found.gl_pathc, sizeof(char *), dataloader_compare_paths);
    dataloader_open_paths(dl, found.gl_pathv, found.gl_pathc, T, seed, shuffle, V, option_name);
    free(dl->pattern);
    dl->pattern = checked_strdup(pattern);
    globfree(&found);
}

// 1 if dataloader_open() would find a file.
static inline int dataloader_matches(const char *pattern) {
    struct stat info;
    glob_t found;
    memset(&found, 0, sizeof found);
    int is_there = stat(pattern, &info) == 0 || (glob(pattern, GLOB_NOSORT, NULL, &found) == 0 && found.gl_pathc > 0);
    globfree(&found);
    return is_there;
}

static inline void dataloader_close(DataLoader *dl) {
    for (int slot = 0; slot < DATALOADER_OPEN_FILES; slot++)
        if (dl->open_fd[slot] >= 0) close(dl->open_fd[slot]);
    for (size_t i = 0; i < dl->num_shards; i++) free(dl->shards[i].path);
    free(dl->shards);
    free(dl->window);
    free(dl->option_name);
    free(dl->pattern);
    memset(dl, 0, sizeof *dl);
}

// Samples of length T that the open files hold.
static inline uint64_t dataloader_samples_at(const DataLoader *dl, size_t T) {
    uint64_t samples = 0;
    for (size_t i = 0; i < dl->num_shards; i++) samples += (dl->shards[i].tokens - 1) / T;
    return samples;
}

// The longest T at which the files hold `samples` samples; 0 if there is none. Fewer fit as T grows: bisection.
static inline size_t dataloader_largest_seq(const DataLoader *dl, uint64_t samples) {
    size_t fits = 0, too_long = dl->T + 1;
    while (too_long - fits > 1) {
        size_t middle = fits + (too_long - fits) / 2;
        if (dataloader_samples_at(dl, middle) >= samples) fits = middle;
        else too_long = middle;
    }
    return fits;
}

// Ends the program unless an epoch holds at least one batch of B samples for each of `ranks` ranks; the message has
// the tokens there, the tokens needed and the largest --batch and --seq that would do.
static inline void dataloader_require(const DataLoader *dl, size_t B, size_t ranks) {
    size_t needed = size_mul(B, ranks);
    if (dl->samples_per_epoch >= needed) return;
    char why[160] = "", how[160], ranks_text[48] = "";
    size_t fit_B = (size_t)(dl->samples_per_epoch / ranks), fit_T = dataloader_largest_seq(dl, needed);
    if (dl->num_shards > 1)
        snprintf(why, sizeof why, "\nwhy: %llu files make %llu samples of %zu tokens; a sample lies in one file",
                 (unsigned long long)dl->num_shards, (unsigned long long)dl->samples_per_epoch, dl->T);
    if (ranks > 1) snprintf(ranks_text, sizeof ranks_text, " x %zu ranks", ranks);
    if (fit_B && fit_T) snprintf(how, sizeof how, "--batch %zu or --seq %zu, or more text", fit_B, fit_T);
    else if (fit_T) snprintf(how, sizeof how, "--seq %zu, or more text", fit_T);
    else if (fit_B) snprintf(how, sizeof how, "--batch %zu, or more text", fit_B);
    else snprintf(how, sizeof how, "more text: this is too little for any --seq at --batch %zu", B);
    die("%s '%s': %llu tokens are too few, one batch needs %zu (--batch %zu x --seq %zu%s + 1)%s\ntry: %s",
        dl->option_name, dl->pattern, (unsigned long long)dl->total_tokens, size_mul(needed, dl->T) + 1, B, dl->T,
        ranks_text, why, how);
}

// ----------------------------------------------------------------------------------------------------------------
// The order of samples

// Where position `index` of an epoch's order points: a bijection of [0, n), its own for each (seed, epoch), in O(1)
// memory. A Feistel network of 8 Philox rounds permutes [0, 4^h), the least such power with 4^h >= n; results beyond n
// go through it again (cycle walking, Black & Rogaway 2002), under 4 times on average for n > 4.
static inline uint64_t dataloader_permute(uint64_t index, uint64_t n, uint64_t seed, uint64_t epoch) {
    unsigned half_bits = 2;
    if (n < 2) return 0;
    while (2 * half_bits < 64 && (n - 1) >> (2 * half_bits)) half_bits++;
    uint64_t mask = ((uint64_t)1 << half_bits) - 1;
    do {
        uint64_t left = index >> half_bits, right = index & mask;
        for (uint32_t round = 0; round < 8; round++) {
            RandBlock ctr;
            ctr.word[0] = (uint32_t)right;
            ctr.word[1] = round;
            ctr.word[2] = (uint32_t)epoch;
            ctr.word[3] = (uint32_t)(epoch >> 32);
            uint64_t mixed = rand_philox(ctr, (uint32_t)seed, (uint32_t)(seed >> 32) ^ RAND_SHUFFLE).word[0];
            uint64_t next = left ^ (mixed & mask);
            left = right;
            right = next;
        }
        index = left << half_bits | right;
    } while (index >= n);
    return index;
}

// The epoch (from 0) that sample g of the endless order belongs to.
static inline uint64_t dataloader_epoch(const DataLoader *dl, uint64_t g) { return g / dl->samples_per_epoch; }

// The number, in file order, of sample g of the endless order.
static inline uint64_t dataloader_sample(const DataLoader *dl, uint64_t g) {
    uint64_t epoch = g / dl->samples_per_epoch, index = g % dl->samples_per_epoch;
    return dl->shuffle ? dataloader_permute(index, dl->samples_per_epoch, dl->seed, epoch) : index;
}

// ----------------------------------------------------------------------------------------------------------------
// Reading

// The last shard whose first sample is not after `sample` and that has samples at all.
static inline uint64_t dataloader_find_shard(const DataLoader *dl, uint64_t sample) {
    uint64_t low = 0, high = dl->num_shards;
    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;
        if (dl->shards[middle].first_sample <= sample) low = middle;
        else high = middle;
    }
    return low;
}

// A descriptor of shard `index`, opened if need be. A file that was exchanged meanwhile ends the program.
static inline int dataloader_shard_fd(DataLoader *dl, uint64_t index) {
    int slot = (int)(index % DATALOADER_OPEN_FILES);
    if (dl->open_fd[slot] >= 0 && dl->open_shard[slot] == index) return dl->open_fd[slot];
    if (dl->open_fd[slot] >= 0) close(dl->open_fd[slot]);
    DataShard now = dl->shards[index];
    dl->open_fd[slot] = tokens_open(&now, dl->V, dl->option_name);
    dl->open_shard[slot] = index;
    if (now.tokens != dl->shards[index].tokens || now.token_bytes != dl->shards[index].token_bytes)
        die("%s '%s': the file was replaced while the program ran (it had %llu tokens, now %llu)", dl->option_name,
            now.path, (unsigned long long)dl->shards[index].tokens, (unsigned long long)now.tokens);
    return dl->open_fd[slot];
}

// Reads `count` ids from token `first` of a shard into dl->window (count <= T + 1).
static inline void dataloader_read(DataLoader *dl, uint64_t shard_index, uint64_t first, size_t count) {
    const DataShard *shard = &dl->shards[shard_index];
    int fd = dataloader_shard_fd(dl, shard_index);
    size_t bytes = count * (size_t)shard->token_bytes, done = 0;
    uint64_t offset = TOKENS_HEADER_BYTES + first * (uint64_t)shard->token_bytes;
    // 2-byte ids are read into the upper half of the window and widened front to back: each id is read before the
    // widened ones reach it.
    char *target = (char *)dl->window + (count * sizeof(uint32_t) - bytes);
    while (done < bytes) {
        ssize_t got = pread(fd, target + done, bytes - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0)
            die("%s '%s': cannot read %zu tokens from token %llu: %s", dl->option_name, shard->path, count,
                (unsigned long long)first, got < 0 ? strerror(errno) : "the file has become shorter since the start");
        done += (size_t)got;
    }
    if (shard->token_bytes == 2) {
        for (size_t i = 0; i < count; i++) {
            uint16_t id;
            memcpy(&id, target + 2 * i, sizeof id);
            dl->window[i] = id;
        }
    }
}

// Ends the program if an id in dl->window is not below V: never clamped, never wrapped. The scan for the largest is
// one vector loop; only a failure looks for the place.
static inline void dataloader_check_ids(const DataLoader *dl, uint64_t shard_index, uint64_t first, size_t count) {
    uint32_t largest = 0;
    for (size_t i = 0; i < count; i++) largest = dl->window[i] > largest ? dl->window[i] : largest;
    if (largest < dl->V) return;
    size_t bad = 0;
    while (dl->window[bad] < dl->V) bad++;
    die("%s '%s': token %llu (counted from 0) is id %u, the vocabulary has ids 0 to %zu\n"
        "why: the file was made with another tokenizer, or it is damaged\n"
        "try: --vocab %zu or more (a multiple of 128 costs nothing), or make the file again with data/tokenize",
        dl->option_name, dl->shards[shard_index].path, (unsigned long long)(first + bad), dl->window[bad], dl->V - 1,
        (size_t)dl->window[bad] + 1);
}

// Samples first .. first+count-1 of the endless order: inp (count, T) = their ids, tgt (count, T) = the id that follows
// each. Both int32, all below V, else the program ends with the file, the place and the id. The same answer however the
// samples are cut into calls, across epochs too. No allocation. One call at a time per loader.
static inline void dataloader_fetch(DataLoader *dl, uint64_t first, size_t count, int32_t *inp, int32_t *tgt) {
    if (dl->samples_per_epoch == 0) dataloader_require(dl, 1, 1);
    if (dl->V == 0)
        die("%s '%s': no vocabulary to check ids against (a fault of this program)", dl->option_name, dl->pattern);
    for (size_t i = 0; i < count; i++) {
        uint64_t sample = dataloader_sample(dl, first + i);
        uint64_t shard = dataloader_find_shard(dl, sample);
        uint64_t token = (sample - dl->shards[shard].first_sample) * dl->T;
        int32_t *inp_b = inp + i * dl->T, *tgt_b = tgt + i * dl->T;
        dataloader_read(dl, shard, token, dl->T + 1);
        dataloader_check_ids(dl, shard, token, dl->T + 1);
        memcpy(inp_b, dl->window, dl->T * sizeof(int32_t));
        memcpy(tgt_b, dl->window + 1, dl->T * sizeof(int32_t));
    }
}

#endif
