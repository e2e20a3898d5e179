// tokenize.c: text or JSONL files -> token shards for training and validation, and back. See data/README.md.
//
//     data/tokenize --tokenizer byte --out data/mine FILE...      data/mine_train_000000.bin, data/mine_val_000000.bin
//     data/tokenize --decode FILE.bin > text
//     data/tokenize --choices --out data/hellaswag FILE.jsonl     data/hellaswag_val.bin
//
// How it works: one reader cuts the input into chunks of about 1 MiB at places where cutting cannot change an id; all
// cores encode a handful of chunks; one writer appends their ids in order. So memory is constant, and the output
// depends neither on the number of threads nor on the machine. Shards are written under temporary names and get their
// final ones together, after everything went well.
#include "../llmc/utils.h"  // first: it asks the system headers for asprintf and memrchr

#include "../llmc/dataloader.h"
#include "../llmc/json.h"
#include "../llmc/multiple_choice.h"
#include "../llmc/tokenizer.h"
#include <signal.h>

#define CHUNK_BYTES ((size_t)1 << 20)
#define MAX_PIECE_BYTES ((size_t)8 << 20)  // text without any safe cut is cut after this much
#define MAX_LINE_BYTES ((size_t)1 << 30)   // one JSONL document
#define CHUNKS_PER_THREAD 4
#define WRITE_BUFFER_IDS ((size_t)1 << 16)

// A token file's header; its words from TOKENS_NOTE_VOCABULARY on say which tokenizer made it, so that --decode needs no
// options.
enum { HEADER_MAGIC = 0, HEADER_VERSION, HEADER_COUNT };

enum { TRAIN = 0, VAL = 1, SPLITS = 2 };
static const char *const split_names[SPLITS] = {"train", "val"};

// ----------------------------------------------------------------------------------------------------------------
// Options

typedef enum { FORMAT_AUTO, FORMAT_TEXT, FORMAT_JSONL } InputFormat;

typedef struct {
    const char *tokenizer, *vocab, *out, *field;
    double val_fraction;
    uint64_t shard_tokens;
    int threads, token_bytes, decode, show_eot, choices;
    InputFormat format;
    const char **inputs;
    size_t input_count;
} Options;

static const char usage_text[] =
    "usage: tokenize [options] --out PREFIX FILE...   text or JSONL -> PREFIX_train_000000.bin, PREFIX_val_...\n"
    "       tokenize --decode [options] FILE.bin...   token files -> their text, on standard output\n"
    "       tokenize --choices [options] --out PREFIX FILE   questions, JSONL with ctx, endings and label -> PREFIX_val.bin\n"
    "\n"
    "  --tokenizer byte|gpt2  byte: 256 bytes + end of text; gpt2: needs --vocab and PCRE2       (default byte)\n"
    "  --vocab PATH           GPT-2's vocabulary: folder with encoder.json and vocab.bpe, either file, or a .tiktoken file\n"
    "  --out PREFIX           where the shards go; missing folders are an error\n"
    "  --val-fraction F       share of the documents (of a lone text: its last part) for validation  (default 0.05)\n"
    "  --shard-tokens N       ids in a shard, at most 2147483647                              (default 100000000)\n"
    "  --threads N            0: all cores                                                             (default 0)\n"
    "  --format F             auto, text or jsonl; auto: *.jsonl and *.ndjson are JSONL              (default auto)\n"
    "  --field NAME           the JSONL field that holds the text                                    (default text)\n"
    "  --token-bytes N        0: 2 where the vocabulary fits 65536 ids, else 4; 2 or 4 forces it       (default 0)\n"
    "  --show-eot             with --decode: print <|endoftext|> between documents instead of nothing\n"
    "  --help\n"
    "\n"
    "FILE may be - for standard input.\n";

static double parse_double(const char *name, const char *value, double low, double below) {
    char *end;
    double x = strtod(value, &end);
    if (end == value || *end || !(x >= low && x < below))
        die_usage("%s '%s' is not a number from %g to below %g", name, value, low, below);
    return x;
}

static uint64_t parse_count(const char *name, const char *value, uint64_t low, uint64_t high) {
    char *end;
    errno = 0;
    unsigned long long n = strtoull(value, &end, 10);
    if (*value < '0' || *value > '9' || *end || errno || n < low || n > high)
        die_usage("%s '%s' is not a whole number from %llu to %llu", name, value, (unsigned long long)low,
                  (unsigned long long)high);
    return n;
}

static int parse_choice(const char *name, const char *value, const char *const *choices, int count) {
    for (int i = 0; i < count; i++)
        if (strcmp(value, choices[i]) == 0) return i;
    die_usage("%s '%s' is none of: %s, %s%s%s", name, value, choices[0], choices[1], count > 2 ? ", " : "",
              count > 2 ? choices[2] : "");
}

// Takes `--name value` or `--name=value`; *i moves past what was used.
static void parse_option(Options *o, int argc, char **argv, int *i) {
    static const char *const tokenizers[] = {"byte", "gpt2"}, *const formats[] = {"auto", "text", "jsonl"};
    static const char *const names[] = {"--tokenizer", "--vocab",  "--out",   "--val-fraction", "--shard-tokens",
                                        "--threads",   "--format", "--field", "--token-bytes"};
    char name[32];
    const char *value = strchr(argv[*i], '=');
    size_t length = value ? (size_t)(value - argv[*i]) : strlen(argv[*i]), which = 0,
           count = sizeof names / sizeof *names;
    snprintf(name, sizeof name, "%.*s", (int)min_size(length, sizeof name - 1), argv[*i]);
    while (which < count && strcmp(names[which], name) != 0) which++;
    if (which == count) die_usage("unknown option '%s'\ntry: tokenize --help", argv[*i]);
    if (value) value++;
    else if (*i + 1 < argc) value = argv[++*i];
    else die_usage("%s needs a value\ntry: tokenize --help", name);
    switch (which) {
        case 0: o->tokenizer = tokenizers[parse_choice(name, value, tokenizers, 2)]; break;
        case 1: o->vocab = value; break;
        case 2: o->out = value; break;
        case 3: o->val_fraction = parse_double(name, value, 0, 1); break;
        case 4: o->shard_tokens = parse_count(name, value, 1, INT32_MAX); break;
        case 5: o->threads = (int)parse_count(name, value, 0, 4096); break;
        case 6: o->format = (InputFormat)parse_choice(name, value, formats, 3); break;
        case 7: o->field = value; break;
        default:
            o->token_bytes = (int)parse_count(name, value, 0, 4);
            if (o->token_bytes == 1 || o->token_bytes == 3) die_usage("--token-bytes is 0, 2 or 4, not %s", value);
    }
}

static Options parse_options(int argc, char **argv) {
    Options o = {NULL, NULL, NULL, "text", 0.05, 100000000, 0, 0, 0, 0, 0, FORMAT_AUTO, NULL, 0};
    int only_files = 0;
    o.inputs = (const char **)checked_calloc((size_t)argc, sizeof *o.inputs, "the list of files");
    for (int i = 1; i < argc; i++) {
        if (only_files || argv[i][0] != '-' || !argv[i][1]) o.inputs[o.input_count++] = argv[i];
        else if (strcmp(argv[i], "--") == 0) only_files = 1;
        else if (strcmp(argv[i], "--decode") == 0) o.decode = 1;
        else if (strcmp(argv[i], "--show-eot") == 0) o.show_eot = 1;
        else if (strcmp(argv[i], "--choices") == 0) o.choices = 1;
        else if (strcmp(argv[i], "--help") == 0) exit(fputs(usage_text, stdout) == EOF);
        else parse_option(&o, argc, argv, &i);
    }
    if (!o.input_count) die_usage("no input file is named\ntry: tokenize --help");
    if (!o.decode && (!o.out || !*o.out)) die_usage("--out is missing\ntry: tokenize --out PREFIX FILE...");
    if (o.choices && (o.decode || o.input_count > 1)) die_usage("--choices makes one file of one file");
    if (o.vocab && !o.tokenizer) o.tokenizer = "gpt2";
    if (!o.decode && !o.tokenizer) o.tokenizer = "byte";
    if (o.tokenizer && strcmp(o.tokenizer, "gpt2") == 0 && !o.vocab)
        die_usage("--tokenizer gpt2 needs --vocab\ntry: --vocab FOLDER, with encoder.json and vocab.bpe in it");
    if (o.tokenizer && strcmp(o.tokenizer, "byte") == 0 && o.vocab)
        die_usage("--vocab '%s' goes with --tokenizer gpt2; the byte tokenizer has no vocabulary file", o.vocab);
    return o;
}

// Document number `document` (from 0) is for validation: spread evenly, floor(n * fraction) of the first n.
static int split_of_document(uint64_t document, double fraction) {
    return (uint64_t)((double)(document + 1) * fraction) > (uint64_t)((double)document * fraction) ? VAL : TRAIN;
}

// ----------------------------------------------------------------------------------------------------------------
// Writer: one split's shards

typedef struct {
    const char *prefix, *split;
    const Tokenizer *tokenizer;
    size_t token_bytes;
    uint64_t shard_tokens, count, total;  // ids: at most in a shard, in the open one, in all
    size_t shards;                        // begun so far
    size_t renamed;                       // that have their final names
    FILE *file;                           // the open shard, or NULL
    char *path;                           // its temporary name
} ShardWriter;

static ShardWriter writers[SPLITS];  // file scope for the clean-up at exit

static char *shard_path(const ShardWriter *w, size_t shard, const char *suffix) {
    char *path;
    if (asprintf(&path, "%s_%s_%06zu.bin%s", w->prefix, w->split, shard, suffix) < 0) die("out of memory for a path");
    return path;
}

// Removes what has no final name yet. Runs at every exit, so it must not fail or print.
static void remove_temporaries(void) {
    for (int split = 0; split < SPLITS; split++) {
        for (size_t shard = writers[split].renamed; shard < writers[split].shards; shard++) {
            char *path = shard_path(&writers[split], shard, ".tmp");
            unlink(path);
            free(path);
        }
    }
}

// As above with what a signal handler may call: names are put together by hand.
static void remove_temporaries_and_exit(int signal_number) {
    static char path[4096];
    for (int split = 0; split < SPLITS; split++) {
        const ShardWriter *w = &writers[split];
        size_t n = w->prefix ? strlen(w->prefix) : sizeof path, m = w->split ? strlen(w->split) : 0;
        if (n + m + 32 > sizeof path) continue;
        memcpy(path, w->prefix, n);
        path[n] = '_';
        memcpy(path + n + 1, w->split, m);
        memcpy(path + n + 1 + m, "_000000.bin.tmp", sizeof "_000000.bin.tmp");
        for (size_t shard = w->renamed; shard < w->shards; shard++) {
            size_t rest = shard;
            for (char *digit = path + n + 1 + m + 6; digit > path + n + 1 + m; digit--, rest /= 10)
                *digit = (char)('0' + rest % 10);
            unlink(path);
        }
    }
    _exit(128 + signal_number);
}

// However the program ends, `clean` runs, or after a signal `clean_and_exit`.
static void clean_up_at_exit(void (*clean)(void), void (*clean_and_exit)(int signal_number)) {
    atexit(clean);
    signal(SIGXFSZ, SIG_IGN);  // a file size limit then is an ordinary write error
    signal(SIGINT, clean_and_exit);
    signal(SIGTERM, clean_and_exit);
    signal(SIGHUP, clean_and_exit);
}

static void shard_begin(ShardWriter *w) {
    static const uint32_t empty_header[TOKENS_HEADER_INTS];
    if (w->shards > 999999) die("more than 1000000 shards of six digits\ntry: a larger --shard-tokens");
    w->path = shard_path(w, w->shards, ".tmp");
    w->file = file_open(w->path, "wb");
    w->shards++;
    w->count = 0;
    file_write(w->file, empty_header, sizeof empty_header, w->path);
}

// The open shard is complete: true header, on the disk, still under its temporary name.
static void shard_end(ShardWriter *w) {
    uint32_t header[TOKENS_HEADER_INTS] = {0};
    if (!w->file) return;
    header[HEADER_MAGIC] = w->token_bytes == 2 ? TOKENS_MAGIC_UINT16 : TOKENS_MAGIC_UINT32;
    header[HEADER_VERSION] = w->token_bytes == 2 ? TOKENS_VERSION_UINT16 : TOKENS_VERSION_UINT32;
    header[HEADER_COUNT] = (uint32_t)w->count;
    header[TOKENS_NOTE_VOCABULARY] = (uint32_t)w->tokenizer->V;
    header[TOKENS_NOTE_TOKENIZER] = (uint32_t)w->tokenizer->kind;
    header[TOKENS_NOTE_FINGERPRINT] = w->tokenizer->fingerprint;
    if (fflush(w->file) != 0 || fseeko(w->file, 0, SEEK_SET) != 0)
        die("cannot write to '%s': %s", w->path, strerror(errno));
    file_write(w->file, header, sizeof header, w->path);
    if (fflush(w->file) != 0 || fsync(fileno(w->file)) != 0) die("cannot write to '%s': %s", w->path, strerror(errno));
    file_close(w->file, w->path);
    w->file = NULL;
    free(w->path);
    w->path = NULL;
}

// Appends ids, beginning new shards as needed; refuses one that does not fit the width.
static void shard_write(ShardWriter *w, const int32_t *ids, size_t count) {
    static uint16_t narrow[WRITE_BUFFER_IDS];
    while (count) {
        if (w->file && w->count == w->shard_tokens) shard_end(w);
        if (!w->file) shard_begin(w);
        size_t n = min_size(min_size(count, WRITE_BUFFER_IDS), (size_t)(w->shard_tokens - w->count));
        if (w->token_bytes == 2) {
            for (size_t i = 0; i < n; i++) {
                if ((uint32_t)ids[i] > UINT16_MAX)
                    die("id %d does not fit the 2 bytes a token of '%s'\ntry: --token-bytes 4", ids[i], w->path);
                narrow[i] = (uint16_t)ids[i];
            }
            file_write(w->file, narrow, n * 2, w->path);
        } else {
            file_write(w->file, ids, n * 4, w->path);
        }
        w->count += n;
        w->total += n;
        ids += n;
        count -= n;
    }
}

// Gives the shards their final names and removes those of an earlier, longer run, which a glob would mix in.
static void shards_publish(ShardWriter *w) {
    for (; w->renamed < w->shards; w->renamed++) {
        char *from = shard_path(w, w->renamed, ".tmp"), *to = shard_path(w, w->renamed, "");
        if (rename(from, to) != 0) die("cannot rename '%s' to '%s': %s", from, to, strerror(errno));
        free(from);
        free(to);
    }
    for (size_t shard = w->shards;; shard++) {
        char *old = shard_path(w, shard, "");
        int gone = unlink(old) == 0;
        if (gone) printf("removed %s, left by an earlier run\n", old);
        free(old);
        if (!gone) break;
    }
}

// ----------------------------------------------------------------------------------------------------------------
// Reader: files -> chunks

typedef struct {
    uint8_t *text;
    size_t bytes, capacity;
    int jsonl;                            // whole lines of JSONL, else a part of one text
    int starts_document, split;           // of a text
    uint64_t first_document, first_line;  // of JSONL: number of the first document and line (from 1)
    const char *input;
    int32_t *ids[SPLITS];  // results, in order
    size_t counts[SPLITS], id_capacity[SPLITS];
    uint64_t documents;
    char problem[256];  // empty while all is well
    uint64_t problem_line;
} Chunk;

typedef struct {
    const Options *options;
    const Tokenizer *tokenizer;
    size_t next_input;
    FILE *file;  // the open input, or NULL
    const char *path;
    int jsonl, starts_document, split;
    uint64_t at, end_of_part;  // offset in the file of what comes next; where a text's training part ends
    uint64_t document, line;   // JSONL and by-document split
    uint8_t *carry;            // read, but behind the last cut
    size_t carry_bytes, carry_capacity;
    uint64_t bytes_done, bytes_total;
    int split_each_text;  // fewer texts than 1 / fraction: each gives its last part
} Reader;

static void reserve(uint8_t **memory, size_t *capacity, size_t bytes, const char *what) {
    if (bytes <= *capacity) return;
    *capacity = max_size(bytes, 2 * *capacity);
    *memory = (uint8_t *)realloc(*memory, *capacity);
    if (!*memory) die("out of memory: %zu bytes for %s", *capacity, what);
}

static int is_jsonl(const Options *o, const char *path) {
    const char *dot = strrchr(path, '.');
    if (o->format != FORMAT_AUTO) return o->format == FORMAT_JSONL;
    return dot && (strcmp(dot, ".jsonl") == 0 || strcmp(dot, ".ndjson") == 0);
}

// Looks at every input before the work begins, so that a misspelt last name costs no hour.
static void reader_open(Reader *r, const Options *o, const Tokenizer *t) {
    size_t texts = 0, streams = 0, lines = 0;
    memset(r, 0, sizeof *r);
    r->options = o;
    r->tokenizer = t;
    for (size_t i = 0; i < o->input_count; i++) {
        const char *path = o->inputs[i];
        struct stat status;
        if (is_jsonl(o, path)) lines++;
        else texts++;
        if (strcmp(path, "-") == 0) {
            streams += !is_jsonl(o, path);
            continue;
        }
        if (stat(path, &status) != 0) die("cannot read '%s': %s", path, strerror(errno));
        if (S_ISDIR(status.st_mode)) die("cannot read '%s': it is a directory\ntry: name the files in it", path);
        if (S_ISCHR(status.st_mode) || S_ISBLK(status.st_mode))
            die("cannot read '%s': it is a device, neither a file nor a pipe\ntry: - for standard input", path);
        if (access(path, R_OK) != 0) die("cannot read '%s': %s", path, strerror(errno));
        if (S_ISREG(status.st_mode)) r->bytes_total += (uint64_t)status.st_size;
        else streams += !is_jsonl(o, path);
    }
    r->split_each_text = !lines && o->val_fraction > 0 && (double)texts * o->val_fraction < 1;
    if (r->split_each_text && streams)
        die_usage(
            "the last %g of a pipe cannot be set apart: its length is not known\n"
            "try: --val-fraction 0, or a file instead of the pipe",
            o->val_fraction);
}

// Where the training part of a text of `size` bytes ends: the first line start (else character start) at or after
// (1 - fraction) of it; UINT64_MAX, all is for training, where the text is too short for that.
static uint64_t find_split(const Reader *r, uint64_t size) {
    uint8_t window[1 << 16];
    uint64_t target = (uint64_t)((double)size * (1 - r->options->val_fraction));
    ssize_t got = pread(fileno(r->file), window, sizeof window, (off_t)target);
    if (got <= 0) return UINT64_MAX;
    const uint8_t *newline = (const uint8_t *)memchr(window, '\n', (size_t)got);
    uint64_t line_start = newline ? target + (uint64_t)(newline - window) + 1 : size;
    if (line_start < size) return line_start;
    for (ssize_t i = 0; i < got; i++)
        if ((window[i] & 0xC0) != 0x80 && target + (uint64_t)i > 0) return target + (uint64_t)i;
    return UINT64_MAX;
}

// Opens the next input that is not empty; 0 when there is none.
static int reader_next_input(Reader *r) {
    const Options *o = r->options;
    struct stat status;
    for (; r->next_input < o->input_count; r->next_input++) {
        r->path = o->inputs[r->next_input];
        r->file = strcmp(r->path, "-") == 0 ? stdin : file_open(r->path, "rb");
        if (fstat(fileno(r->file), &status) != 0) die("cannot read '%s': %s", r->path, strerror(errno));
        if (!S_ISREG(status.st_mode) || status.st_size > 0) break;
        if (o->input_count > 1) warn("'%s' is empty: skipped", r->path);
        file_close(r->file, r->path);
        r->file = NULL;
    }
    if (r->next_input++ >= o->input_count) return 0;
    posix_fadvise(fileno(r->file), 0, 0, POSIX_FADV_SEQUENTIAL);
    r->jsonl = is_jsonl(o, r->path);
    r->at = r->line = 0;
    r->end_of_part = UINT64_MAX;
    r->starts_document = 1;
    r->split = TRAIN;
    if (!r->jsonl && r->split_each_text) r->end_of_part = find_split(r, (uint64_t)status.st_size);
    else if (!r->jsonl) r->split = split_of_document(r->document++, o->val_fraction);
    return 1;
}

// Appends up to `bytes` bytes of the open input to the chunk, not beyond end_of_part; fewer only at that end.
static size_t reader_fill(Reader *r, Chunk *chunk, size_t bytes) {
    bytes = (size_t)(r->end_of_part - r->at < bytes ? r->end_of_part - r->at : bytes);
    reserve(&chunk->text, &chunk->capacity, chunk->bytes + bytes, "a chunk of text");
    size_t got = fread(chunk->text + chunk->bytes, 1, bytes, r->file);
    if (got < bytes && ferror(r->file)) die("cannot read '%s': %s", r->path, strerror(errno));
    chunk->bytes += got;
    r->at += got;
    r->bytes_done += got;
    return got;
}

// How much of the chunk can be encoded without seeing what follows; 0: more must be read.
static size_t reader_cut(const Reader *r, const Chunk *chunk) {
    if (r->jsonl) {
        const uint8_t *newline = (const uint8_t *)memrchr(chunk->text, '\n', chunk->bytes);
        if (!newline && chunk->bytes >= MAX_LINE_BYTES)
            die("%s:%llu: the line is longer than 1 GiB\nwhy: not JSONL?", r->path, (unsigned long long)r->line + 1);
        return newline ? (size_t)(newline - chunk->text) + 1 : 0;
    }
    size_t cut = tokenizer_safe_cut(r->tokenizer, chunk->text, chunk->bytes);
    if (!cut && chunk->bytes >= MAX_PIECE_BYTES)
        for (cut = chunk->bytes - 1; cut > chunk->bytes - 4 && (chunk->text[cut] & 0xC0) == 0x80;) cut--;
    return cut;
}

// A line with nothing but blanks is no document.
static int is_blank(const uint8_t *line, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        if (line[i] != ' ' && line[i] != '\t' && line[i] != '\r' && line[i] != '\n') return 0;
    return 1;
}

// Numbers the chunk's lines and documents.
static void reader_count_lines(Reader *r, Chunk *chunk) {
    chunk->first_line = r->line + 1;
    chunk->first_document = r->document;
    for (size_t at = 0; at < chunk->bytes; r->line++) {
        const uint8_t *start = chunk->text + at;
        const uint8_t *newline = (const uint8_t *)memchr(start, '\n', chunk->bytes - at);
        size_t length = newline ? (size_t)(newline - start) + 1 : chunk->bytes - at;
        r->document += !is_blank(start, length);
        at += length;
    }
}

// The next chunk, in input order; 0 at the end of everything.
static int reader_next(Reader *r, Chunk *chunk) {
    if (!r->file && !reader_next_input(r)) return 0;
    chunk->bytes = 0;
    chunk->input = r->path;
    chunk->jsonl = r->jsonl;
    chunk->split = r->split;
    chunk->starts_document = r->starts_document;
    r->starts_document = 0;
    reserve(&chunk->text, &chunk->capacity, r->carry_bytes, "a chunk of text");
    if (r->carry_bytes) memcpy(chunk->text, r->carry, r->carry_bytes);
    chunk->bytes = r->carry_bytes;
    r->carry_bytes = 0;
    for (;;) {
        size_t want = chunk->bytes < CHUNK_BYTES ? CHUNK_BYTES - chunk->bytes : chunk->bytes, got;
        if ((got = reader_fill(r, chunk, want)) < want) {  // the part or the file ends: all of it can go
            if (r->at == r->end_of_part) {
                r->split = VAL;
                r->starts_document = 1;
                r->end_of_part = UINT64_MAX;
            } else {
                if (r->file != stdin) file_close(r->file, r->path);
                r->file = NULL;
            }
            break;
        }
        size_t cut = reader_cut(r, chunk);
        if (cut) {
            r->carry_bytes = chunk->bytes - cut;
            reserve(&r->carry, &r->carry_capacity, r->carry_bytes, "a chunk of text");
            if (r->carry_bytes) memcpy(r->carry, chunk->text + cut, r->carry_bytes);
            chunk->bytes = cut;
            break;
        }
    }
    if (r->jsonl) reader_count_lines(r, chunk);
    return 1;
}

// ----------------------------------------------------------------------------------------------------------------
// Encoding, any number of chunks at once

static int32_t *chunk_reserve(Chunk *chunk, int split, size_t more) {
    uint8_t *memory = (uint8_t *)chunk->ids[split];
    size_t bytes = chunk->id_capacity[split];
    reserve(&memory, &bytes, (chunk->counts[split] + more) * sizeof(int32_t), "a chunk's ids");
    chunk->ids[split] = (int32_t *)(void *)memory;
    chunk->id_capacity[split] = bytes;
    return chunk->ids[split] + chunk->counts[split];
}

static void encode_text(const Tokenizer *t, TokenizerCache *cache, Chunk *chunk, int split, const uint8_t *text,
                        size_t bytes, int starts_document) {
    int32_t *ids = chunk_reserve(chunk, split, bytes + 1);
    if (starts_document) *ids++ = t->end_of_text, chunk->counts[split]++, chunk->documents++;
    chunk->counts[split] += tokenizer_encode(t, cache, text, bytes, ids);
}

// Encodes the text field of one JSONL line as a document; 0 with chunk->problem where there is none.
static int encode_line(const Options *o, const Tokenizer *t, TokenizerCache *cache, Chunk *chunk, int split,
                       const uint8_t *line, size_t bytes) {
    Json json;
    const JsonNode *text = NULL;
    if (!json_parse(&json, (const char *)line, bytes)) {
        snprintf(chunk->problem, sizeof chunk->problem, "%s", json.error);
    } else if (json_root(&json)->type != JSON_OBJECT) {
        snprintf(chunk->problem, sizeof chunk->problem, "the line is not an object {...}");
    } else if (text = json_get(&json, json_root(&json), o->field), !text) {
        snprintf(chunk->problem, sizeof chunk->problem, "the object has no field \"%s\"", o->field);
    } else if (text->type != JSON_STRING) {
        snprintf(chunk->problem, sizeof chunk->problem, "the field \"%s\" is not a string", o->field);
    } else {
        encode_text(t, cache, chunk, split, (const uint8_t *)text->text, text->text_bytes, 1);
    }
    json_free(&json);
    return !chunk->problem[0];
}

static void encode_chunk(const Options *o, const Tokenizer *t, TokenizerCache *cache, Chunk *chunk) {
    chunk->counts[TRAIN] = chunk->counts[VAL] = 0;
    chunk->documents = 0;
    chunk->problem[0] = 0;
    if (!chunk->jsonl) {
        encode_text(t, cache, chunk, chunk->split, chunk->text, chunk->bytes, chunk->starts_document);
        return;
    }
    uint64_t document = chunk->first_document, line = chunk->first_line;
    for (size_t at = 0; at < chunk->bytes; line++) {
        uint8_t *start = chunk->text + at;
        uint8_t *newline = (uint8_t *)memchr(start, '\n', chunk->bytes - at);
        size_t length = newline ? (size_t)(newline - start) : chunk->bytes - at;
        at += length + 1;
        if (line == 1 && length >= 3 && memcmp(start, "\xEF\xBB\xBF", 3) == 0) start += 3, length -= 3;  // a BOM
        if (is_blank(start, length)) continue;
        int split = split_of_document(document++, o->val_fraction);
        if (!encode_line(o, t, cache, chunk, split, start, length)) {
            chunk->problem_line = line;
            return;
        }
    }
}

// ----------------------------------------------------------------------------------------------------------------
// Questions

// Writes the question of one line: NULL, or what is wrong with it.
static const char *encode_question(ChoicesWriter *w, const Tokenizer *t, TokenizerCache *cache, const Json *json) {
    const JsonNode *root = json_root(json), *context = json_get(json, root, "ctx"), *list = json_get(json, root, "endings");
    uint64_t label;
    if (!context || context->type != JSON_STRING) return "the object has no text \"ctx\"";
    if (!list || list->type != JSON_ARRAY || list->count < 2 || list->count > CHOICES_MAX)
        return "the object has no list \"endings\" of 2 to 16 texts";
    if (!json_u64(json_get(json, root, "label"), &label) || label >= list->count)
        return "\"label\" is not the number of one of its endings, counted from 0";
    question_begin(w, (size_t)label, list->count);
    const char *wrong = NULL;
    size_t bytes = context->text_bytes;
    for (const JsonNode *n = json_first(json, list); n; n = json_next(json, n)) bytes = max_size(bytes, n->text_bytes);
    char *text = (char *)checked_calloc(bytes + 1, 1, "a text");
    int32_t *ids = (int32_t *)checked_calloc(bytes + 1, sizeof *ids, "a text's ids");
    if (!question_add(w, ids, tokenizer_encode(t, cache, context->text, context->text_bytes, ids)))
        wrong = "\"ctx\" is empty, or longer than the file can hold";
    for (const JsonNode *n = json_first(json, list); n && !wrong; n = json_next(json, n)) {
        if (n->type != JSON_STRING) wrong = "an ending is not a text";
        if (wrong) break;
        text[0] = ' ';  // GPT-2's words begin with their space
        memcpy(text + 1, n->text, n->text_bytes);
        if (!question_add(w, ids, tokenizer_encode(t, cache, text, n->text_bytes + 1, ids)))
            wrong = "the question is longer than the file can hold";
    }
    if (!wrong) question_end(w);
    free(text);
    free(ids);
    return wrong;
}

static char questions_beside[SAFE_PATH_BYTES];  // the file being made; file scope for the clean-up at exit
static void remove_questions(void) { unlink(questions_beside); }
static void remove_questions_and_exit(int signal_number) {
    remove_questions();
    _exit(128 + signal_number);
}

static void tokenize_choices(const Options *o) {
    static ChoicesWriter writer;
    Tokenizer t;
    Message message;
    char path[SAFE_PATH_BYTES], *line = NULL;
    const char *input = o->inputs[0];
    size_t capacity = 0, number = 0;
    message_clear(&message);
    int length = snprintf(path, sizeof path, "%s_val.bin", o->out);
    if (length < 0 || (size_t)length + 4 >= sizeof path) die_usage("--out: the name is too long");
    snprintf(questions_beside, sizeof questions_beside, "%.*s.tmp", length, path);
    tokenizer_load(&t, o->vocab ? o->vocab : o->tokenizer);
    tokenizer_require_encode(&t);
    TokenizerCache *cache = tokenizer_cache_new();
    FILE *file = strcmp(input, "-") == 0 ? stdin : file_open(input, "rb");
    choices_begin(&writer, questions_beside, &message);
    clean_up_at_exit(remove_questions, remove_questions_and_exit);
    for (ssize_t bytes; (bytes = getline(&line, &capacity, file)) >= 0;) {
        Json json;
        const char *wrong = NULL;
        number++;
        if (is_blank((const uint8_t *)line, (size_t)bytes)) continue;
        if (!json_parse(&json, line, (size_t)bytes)) wrong = json.error;
        else wrong = encode_question(&writer, &t, cache, &json);
        if (wrong)
            die("%s:%zu: %s\nwhy: each line is {\"ctx\": \"...\", \"endings\": [\"...\", ...], \"label\": 0}", input,
                number, wrong);
        json_free(&json);
    }
    if (ferror(file)) die("cannot read '%s': %s", input, strerror(errno));
    if (!writer.header[CHOICES_HEADER_COUNT]) die("'%s': there is no question in it", input);
    if (!choices_end(&writer)) die("%s", message.text);
    if (rename(questions_beside, path) != 0)
        die("cannot rename '%s' to '%s': %s", questions_beside, path, strerror(errno));
    questions_beside[0] = 0;
    printf("%s: %d questions\n", path, writer.header[CHOICES_HEADER_COUNT]);
    free(line);
    if (file != stdin) file_close(file, input);
    tokenizer_cache_free(cache);
    tokenizer_free(&t);
}

// ----------------------------------------------------------------------------------------------------------------
// The commands

static void print_progress(const Reader *r, double started, double *last, uint64_t ids) {
    double now = now_seconds(), seconds = now - started, done = (double)r->bytes_done;
    if (!isatty(STDOUT_FILENO) || now - *last < 0.2) return;
    *last = now;
    printf("\r%8.1f MB", done * 1e-6);
    if (r->bytes_total) printf(" of %.1f (%.0f%%)", (double)r->bytes_total * 1e-6, 100 * done / (double)r->bytes_total);
    printf("  %llu tokens  %.1f MB/s", (unsigned long long)ids, done * 1e-6 / seconds);
    if (r->bytes_total > r->bytes_done && done > 0)
        printf("  %.0f s left", seconds * ((double)r->bytes_total / done - 1));
    printf("   ");
    fflush(stdout);
    run_context()->live_line = 1;
}

static void print_summary(const Reader *r, uint64_t documents, double seconds) {
    end_live_line();
    for (int split = 0; split < SPLITS; split++) {
        ShardWriter *w = &writers[split];
        if (!w->shards) continue;
        char *first = shard_path(w, 0, "");
        printf("%s: %llu tokens, %zu shard%s, %s%s\n", w->split, (unsigned long long)w->total, w->shards,
               plural(w->shards), first, w->shards == 1 ? "" : " ...");
        free(first);
    }
    printf("%llu document%s, %.1f MB, %.2f bytes a token, %.1f MB/s\n", (unsigned long long)documents,
           plural(documents), (double)r->bytes_done * 1e-6,
           (double)r->bytes_done / (double)(writers[TRAIN].total + writers[VAL].total),
           (double)r->bytes_done * 1e-6 / (seconds > 0 ? seconds : 1e-9));
}

// Encodes everything into the writers' temporary files; returns the number of documents.
static uint64_t encode_all(const Options *o, const Tokenizer *t, Reader *reader) {
    size_t chunk_count = (size_t)thread_count() * CHUNKS_PER_THREAD, filled;
    Chunk *chunks = (Chunk *)checked_calloc(chunk_count, sizeof *chunks, "chunks");
    TokenizerCache **caches =
        (TokenizerCache **)checked_calloc((size_t)thread_count(), sizeof *caches, "tokenizer caches");
    uint64_t documents = 0;
    double started = now_seconds(), last = started;
    for (int i = 0; i < thread_count(); i++) caches[i] = tokenizer_cache_new();
    do {
        for (filled = 0; filled < chunk_count && reader_next(reader, &chunks[filled]);) filled++;
#pragma omp parallel for schedule(dynamic, 1)
        for (size_t i = 0; i < filled; i++) encode_chunk(o, t, caches[thread_index()], &chunks[i]);
        for (size_t i = 0; i < filled; i++) {
            Chunk *chunk = &chunks[i];
            if (chunk->problem[0])
                die("%s:%llu: %s\nwhy: each line of a JSONL file is one object like {\"%s\": \"...\"}", chunk->input,
                    (unsigned long long)chunk->problem_line, chunk->problem, o->field);
            for (int split = 0; split < SPLITS; split++)
                shard_write(&writers[split], chunk->ids[split], chunk->counts[split]);
            documents += chunk->documents;
        }
        print_progress(reader, started, &last, writers[TRAIN].total + writers[VAL].total);
    } while (filled == chunk_count);
    for (size_t i = 0; i < chunk_count; i++) {
        free(chunks[i].text);
        for (int split = 0; split < SPLITS; split++) free(chunks[i].ids[split]);
    }
    for (int i = 0; i < thread_count(); i++) tokenizer_cache_free(caches[i]);
    free(caches);
    free(chunks);
    return documents;
}

static void tokenize(const Options *o) {
    Tokenizer t;
    Reader reader;
    double started = now_seconds();
    reader_open(&reader, o, &t);
    tokenizer_load(&t, o->vocab ? o->vocab : o->tokenizer);
    tokenizer_require_encode(&t);
    for (int split = 0; split < SPLITS; split++) {
        ShardWriter *w = &writers[split];
        w->prefix = o->out;
        w->split = split_names[split];
        w->shard_tokens = o->shard_tokens;
        w->tokenizer = &t;
        w->token_bytes = o->token_bytes ? (size_t)o->token_bytes : t.V <= 65536 ? 2 : 4;
    }
    clean_up_at_exit(remove_temporaries, remove_temporaries_and_exit);
    uint64_t documents = encode_all(o, &t, &reader);
    if (!documents)
        die("'%s'%s: there is nothing to tokenize in it", o->inputs[0],
            o->input_count > 1   ? " and the others"
            : reader.bytes_total ? " has only empty lines"
                                 : " is empty");
    for (int split = 0; split < SPLITS; split++)
        if (!writers[split].total && (split == TRAIN || o->val_fraction > 0))
            die("too little text: nothing is left for %s: %llu document%s, %llu bytes, --val-fraction %g\n"
                "try: more text, another --val-fraction, or --val-fraction 0 for no validation files",
                split == VAL ? "validation" : "training", (unsigned long long)documents, plural(documents),
                (unsigned long long)reader.bytes_done, o->val_fraction);
    for (int split = 0; split < SPLITS; split++) shard_end(&writers[split]);
    end_live_line();
    for (int split = 0; split < SPLITS; split++) shards_publish(&writers[split]);
    print_summary(&reader, documents, now_seconds() - started);
    free(reader.carry);
    tokenizer_free(&t);
}

// Loads the tokenizer that the command line or else the token file names.
static void decode_tokenizer(const Options *o, Tokenizer *t, const uint32_t *header, const char *path) {
    uint32_t kind = header[TOKENS_NOTE_TOKENIZER];
    if (!o->tokenizer && kind == TOKENIZER_GPT2)
        die_usage("'%s' was made with the gpt2 tokenizer\ntry: --vocab FOLDER, with encoder.json and vocab.bpe in it",
                  path);
    if (!o->tokenizer && kind != TOKENIZER_BYTE)
        die_usage(
            "'%s' does not say which tokenizer made it\n"
            "try: --tokenizer byte, or --vocab FOLDER with encoder.json and vocab.bpe in it",
            path);
    tokenizer_load(t, o->vocab ? o->vocab : "byte");
    if (header[TOKENS_NOTE_FINGERPRINT] && header[TOKENS_NOTE_FINGERPRINT] != t->fingerprint)
        die("'%s' was made with another vocabulary (%u ids) than '%s' (%zu ids)", path, header[TOKENS_NOTE_VOCABULARY],
            o->vocab ? o->vocab : "byte", t->V);
}

// Writes what `count` ids stand for. End-of-text ids are nothing, or (show_eot) are written out.
static void decode_ids(const Tokenizer *t, const void *ids, size_t width, size_t count, uint64_t at, int show_eot,
                       const char *path) {
    for (size_t i = 0; i < count; i++) {
        uint32_t id = width == 2 ? ((const uint16_t *)ids)[i] : ((const uint32_t *)ids)[i];
        size_t bytes = 0;
        const uint8_t *text = id < t->V ? tokenizer_decode(t, (int32_t)id, &bytes) : NULL;
        if (!bytes)
            die("tokens '%s': id %u at position %llu is not in the vocabulary of %zu ids\n"
                "why: the file was made with another tokenizer, or is damaged",
                path, id, (unsigned long long)(at + i), t->V);
        if ((int32_t)id == t->end_of_text && !(show_eot && at + i > 0)) continue;
        if (fwrite(text, 1, bytes, stdout) != bytes) die("cannot write to standard output: %s", strerror(errno));
    }
}

// Writes the text of all files, one after the other.
static void decode(const Options *o) {
    static uint32_t ids[WRITE_BUFFER_IDS];
    Tokenizer t;
    for (size_t f = 0; f < o->input_count; f++) {
        uint32_t header[TOKENS_HEADER_INTS];
        DataShard shard;
        memset(&shard, 0, sizeof shard);
        shard.path = checked_strdup(o->inputs[f]);
        FILE *file = fdopen(tokens_open(&shard, 0, "tokens"), "rb");
        if (!file) die("cannot open '%s': %s", shard.path, strerror(errno));
        file_read(file, header, sizeof header, shard.path);
        if (f == 0) decode_tokenizer(o, &t, header, shard.path);
        for (uint64_t at = 0, n; at < shard.tokens; at += n) {
            n = shard.tokens - at < WRITE_BUFFER_IDS ? shard.tokens - at : WRITE_BUFFER_IDS;
            file_read(file, ids, (size_t)n * (size_t)shard.token_bytes, shard.path);
            decode_ids(&t, ids, (size_t)shard.token_bytes, (size_t)n, at, o->show_eot, shard.path);
        }
        file_close(file, shard.path);
        free(shard.path);
    }
    if (fflush(stdout) != 0) die("cannot write to standard output: %s", strerror(errno));
    tokenizer_free(&t);
}

int main(int argc, char **argv) {
    open_standard_streams();
    Options o = parse_options(argc, argv);
    if (o.threads) set_thread_count(o.threads);
    if (o.decode) decode(&o);
    else if (o.choices) tokenize_choices(&o);
    else tokenize(&o);
    free(o.inputs);
    return 0;
}
