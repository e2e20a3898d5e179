// checkpoint.h: a run's state to and from disk. doc/checkpoint.md has the bytes, checkpoint_dir.h the folders.
//
// The trainer describes its tensors once in a list; saving and loading walk that list, tensor by tensor, through one
// bounded buffer allocated at start, so no second copy of the model ever exists. Where the tensors live is the
// trainer's business: in host memory, or anywhere its two callbacks can copy a block from or to (a GPU, other ranks).
//
//     size_t n = checkpoint_parameters(list, &config, weights, CHECKPOINT_IN_MODEL, "transformer.", ST_F32);
//     n += checkpoint_parameters(list + n, &config, m, CHECKPOINT_IN_STATE, "m.transformer.", ST_F32);
//     checkpoint_array(&list[n++], "state.step", ST_U64, 1, &step);
//     checkpoint_open(&ck, out, &config, list, n, options_json);
//     checkpoint_save(&ck, step, &message);
//
// Several ranks write one checkpoint together, each its part of both files; they call the same functions with the same
// arguments, and agree on what comes of it (checkpoint_parallel()).
#ifndef LLMC_CHECKPOINT_H
#define LLMC_CHECKPOINT_H

#include "checkpoint_dir.h"
#include "config.h"
#include "safetensors.h"
#include "tensors.h"

#include <signal.h>

#define CHECKPOINT_NAME_BYTES 96
#define CHECKPOINT_STAGE_BYTES ((size_t)4 << 20)

enum { CHECKPOINT_IN_MODEL, CHECKPOINT_IN_STATE };  // which of the two safetensors files

// One tensor: in memory `rows` x `cols` elements, row-major, at `data`. In the file: (cols, rows) where `transpose`,
// else (rows, cols); a vector (ndim 1, rows 1) is (cols) alone.
typedef struct {
    char name[CHECKPOINT_NAME_BYTES];
    int file, dtype, ndim;
    size_t rows, cols;
    int transpose;
    int host;      // `data` is host memory whatever the callbacks (counters and the like)
    int optional;  // loading: a file without it leaves memory as it is
    void *data;
    int parameter;  // index in GPT_PARAMETERS and its layer; -1 for anything else
    size_t layer;
} CheckpointTensor;

// Copies the block [row, row + rows) x [col, col + cols) of a tensor in memory to `host` (dense, rows x cols), or back.
// They do not return on failure. CheckpointRead is called in the same order on every rank, so that it may communicate;
// `host` is NULL on ranks that only take part. CheckpointWrite is called by a rank for blocks that it wants alone.
typedef void CheckpointRead(void *ctx, const CheckpointTensor *tensor, size_t row, size_t rows, size_t col, size_t cols,
                            void *host);
typedef void CheckpointWrite(void *ctx, const CheckpointTensor *tensor, size_t row, size_t rows, size_t col,
                             size_t cols, const void *host);
// Has this rank a use for any of the block?
typedef int CheckpointWanted(void *ctx, const CheckpointTensor *tensor, size_t row, size_t rows, size_t col,
                             size_t cols);
// all[rank] = `bytes` bytes of each rank, at most CHECKPOINT_GATHER_BYTES
typedef void CheckpointGather(void *all, const void *mine, size_t bytes);
#define CHECKPOINT_GATHER_BYTES ((size_t)1024)

// How far a file is written of the part that ends at byte `end`: to byte `at`, in tensor `index` of the file's order.
typedef struct {
    uint64_t at, end;
    size_t index;
} CheckpointCursor;

typedef struct {
    char out[SAFE_PATH_BYTES];
    GPTConfig config;
    CheckpointTensor *tensors;  // the caller's list; must stay
    size_t count;
    // Set after checkpoint_open() where the defaults do not fit:
    CheckpointRead *read;  // NULL: tensor->data is host memory
    CheckpointWrite *write;
    CheckpointWanted *wanted;  // NULL: all blocks are
    void *ctx;
    int may_exchange;  // 0 keeps to plain renames (for tests)
    // Of checkpoint_parallel():
    size_t rank, ranks;
    const char *host;
    CheckpointGather *gather;
    char *gathered;  // CHECKPOINT_GATHER_BYTES a rank
    // Its own:
    size_t stage_bytes;
    char *stage[2];
    char *header, *metadata;
    size_t header_capacity;
    SafetensorsEntry *entries;
    size_t *order;
    CheckpointCursor *cursors;  // one a rank
    CheckpointFile files[3];
} Checkpointer;

// ----------------------------------------------------------------------------------------------------------------
// The list

// One state array of `elems` values in host memory, e.g. "state.step".
static inline void checkpoint_array(CheckpointTensor *tensor, const char *name, int dtype, size_t elems, void *data) {
    memset(tensor, 0, sizeof *tensor);
    snprintf(tensor->name, sizeof tensor->name, "%s", name);
    tensor->file = CHECKPOINT_IN_STATE;
    tensor->dtype = dtype;
    tensor->ndim = 1;
    tensor->rows = 1;
    tensor->cols = elems;
    tensor->host = 1;
    tensor->data = data;
    tensor->parameter = -1;
}

// Tensors checkpoint_parameters() adds: one a layer.
static inline size_t checkpoint_parameter_tensors(const GPTConfig *config) {
    ParameterInfo table[GPT_PARAMETER_COUNT];
    size_t count = 0;
    parameter_table(config, table);
    for (size_t i = 0; i < GPT_PARAMETER_COUNT; i++) count += table[i].layers;
    return count;
}

// Lists every parameter of an arena laid out by parameter_table(), named prefix + Hugging Face's name, one entry a
// layer; returns how many. In the model file linear weights are transposed as that layout asks; in the state file
// everything is as in memory. Of wte only the V rows of the vocabulary are listed. `base` may be a device pointer.
static inline size_t checkpoint_parameters(CheckpointTensor *list, const GPTConfig *config, void *base, int file,
                                           const char *prefix, int dtype) {
    ParameterInfo table[GPT_PARAMETER_COUNT];
    size_t n = 0;
    parameter_table(config, table);
    for (size_t i = 0; i < GPT_PARAMETER_COUNT; i++)
        for (size_t l = 0; l < table[i].layers; l++) {
            CheckpointTensor *tensor = &list[n++];
            size_t elems = table[i].rows * table[i].cols, used = 0;
            memset(tensor, 0, sizeof *tensor);
            snprintf(tensor->name, sizeof tensor->name, "%s", prefix);
            used = strlen(tensor->name);
            const char *layer = strstr(table[i].hf, "%zu");
            if (layer)
                snprintf(tensor->name + used, sizeof tensor->name - used, "%.*s%zu%s", (int)(layer - table[i].hf),
                         table[i].hf, l, layer + 3);
            else snprintf(tensor->name + used, sizeof tensor->name - used, "%s", table[i].hf);
            tensor->file = file;
            tensor->dtype = dtype;
            tensor->ndim = i < 2 || table[i].conv1d ? 2 : 1;  // wte and wpe are matrices whatever their rows
            tensor->rows = i == 0 ? config->V : table[i].rows;
            tensor->cols = table[i].cols;
            tensor->transpose = table[i].conv1d && file == CHECKPOINT_IN_MODEL;
            if (base)
                tensor->data = (char *)base + (table[i].offset_elems + l * elems) * safetensors_dtype_bytes(dtype);
            tensor->parameter = (int)i;
            tensor->layer = l;
        }
    return n;
}

// Shape in the file into `shape` (2 sizes); returns how many dimensions.
static inline int checkpoint_shape(const CheckpointTensor *tensor, size_t *shape) {
    shape[0] = tensor->transpose ? tensor->cols : tensor->rows;
    shape[1] = tensor->transpose ? tensor->rows : tensor->cols;
    if (tensor->ndim == 1) shape[0] = tensor->cols;
    return tensor->ndim;
}

// ----------------------------------------------------------------------------------------------------------------
// Staging

// out (cols, rows) = in (rows, cols) transposed, elements of 2, 4 or 8 bytes; in blocks, so that both stay in cache.
static inline void checkpoint_transpose(void *out, const void *in, size_t rows, size_t cols, size_t element_bytes) {
    const size_t block = 16;
    for (size_t r0 = 0; r0 < rows; r0 += block)
        for (size_t c0 = 0; c0 < cols; c0 += block)
            for (size_t r = r0; r < min_size(r0 + block, rows); r++)
                for (size_t c = c0; c < min_size(c0 + block, cols); c++) {
                    size_t to = c * rows + r, from = r * cols + c;
                    if (element_bytes == 4) ((uint32_t *)out)[to] = ((const uint32_t *)in)[from];
                    else if (element_bytes == 2) ((uint16_t *)out)[to] = ((const uint16_t *)in)[from];
                    else ((uint64_t *)out)[to] = ((const uint64_t *)in)[from];
                }
}

typedef struct {
    size_t row, rows, col, cols;
} CheckpointBlock;

// The block that begins at element `first` of a tensor, counted in a file where it is `transposed` or not, and has at
// most `elems` elements: whole lines of the file where it begins with one and has one, else a part of one line.
static inline CheckpointBlock checkpoint_block(const CheckpointTensor *tensor, int transposed, size_t first,
                                               size_t elems) {
    size_t line = transposed ? tensor->rows : tensor->cols, at = first / line, in_line = first % line;
    size_t lines = in_line == 0 && elems >= line ? elems / line : 1;
    size_t width = in_line == 0 && elems >= line ? line : min_size(elems, line - in_line);
    CheckpointBlock along = {at, lines, in_line, width}, across = {in_line, width, at, lines};
    return transposed ? across : along;
}

// Elements a block may have: the buffer is counted in 8-byte elements, so that a conversion from any dtype fits.
static inline size_t checkpoint_block_elems(const Checkpointer *ck) { return ck->stage_bytes / 8; }

static inline void checkpoint_fetch(const Checkpointer *ck, const CheckpointTensor *tensor, const CheckpointBlock *b,
                                    void *host) {
    size_t size = safetensors_dtype_bytes(tensor->dtype);
    if (ck->read && !tensor->host) {
        ck->read(ck->ctx, tensor, b->row, b->rows, b->col, b->cols, host);
        return;
    }
    for (size_t r = 0; host && r < b->rows; r++)
        memcpy((char *)host + r * b->cols * size,
               (const char *)tensor->data + ((b->row + r) * tensor->cols + b->col) * size, b->cols * size);
}

static inline void checkpoint_store(const Checkpointer *ck, const CheckpointTensor *tensor, const CheckpointBlock *b,
                                    const void *host) {
    size_t size = safetensors_dtype_bytes(tensor->dtype);
    if (ck->write && !tensor->host) {
        ck->write(ck->ctx, tensor, b->row, b->rows, b->col, b->cols, host);
        return;
    }
    for (size_t r = 0; r < b->rows; r++)
        memcpy((char *)tensor->data + ((b->row + r) * tensor->cols + b->col) * size,
               (const char *)host + r * b->cols * size, b->cols * size);
}

// ----------------------------------------------------------------------------------------------------------------
// config.json

// The token Hugging Face's generate() stops at: GPT-2's where the vocabulary has it, else the last one (byte: 256).
static inline uint64_t checkpoint_end_of_text(const GPTConfig *config) {
    return config->V > 50256 ? 50256 : (uint64_t)config->V - 1;
}

// Writes a transformers GPT2Config; returns its bytes.
static inline size_t checkpoint_config_text(char *text, size_t capacity, const GPTConfig *config, int dtype) {
    static const char *const zeros[] = {"attn_pdrop", "embd_pdrop", "resid_pdrop"};  // trained without dropout
    JsonWriter w;
    json_writer(&w, text, capacity);
    json_begin(&w, '{');
#define ENTRY(key, put) (json_put_space(&w, "\n  "), json_put_key(&w, key), put)
    ENTRY("activation_function", json_put_string(&w, "gelu_new"));
    ENTRY("architectures", json_put_raw(&w, "[\"GPT2LMHeadModel\"]"));
    for (int i = 0; i < 3; i++) ENTRY(zeros[i], json_put_raw(&w, "0.0"));
    ENTRY("bos_token_id", json_put_u64(&w, checkpoint_end_of_text(config)));
    ENTRY("eos_token_id", json_put_u64(&w, checkpoint_end_of_text(config)));
    ENTRY("initializer_range", json_put_raw(&w, "0.02"));
    ENTRY("layer_norm_epsilon", json_put_raw(&w, "1e-05"));
    ENTRY("model_type", json_put_string(&w, "gpt2"));
    ENTRY("n_ctx", json_put_u64(&w, config->max_T));
    ENTRY("n_embd", json_put_u64(&w, config->C));
    ENTRY("n_head", json_put_u64(&w, config->NH));
    ENTRY("n_inner", json_put_null(&w));
    ENTRY("n_layer", json_put_u64(&w, config->L));
    ENTRY("n_positions", json_put_u64(&w, config->max_T));
    ENTRY("scale_attn_weights", json_put_bool(&w, 1));
    ENTRY("tie_word_embeddings", json_put_bool(&w, 1));
    ENTRY("torch_dtype", json_put_string(&w, dtype == ST_BF16 ? "bfloat16" : dtype == ST_F16 ? "float16" : "float32"));
    ENTRY("use_cache", json_put_bool(&w, 1));
    ENTRY("vocab_size", json_put_u64(&w, config->V));
#undef ENTRY
    json_put_bytes(&w, "\n", 1);
    json_end(&w, '}');
    json_put_bytes(&w, "\n", 1);
    return w.used;
}

// A setting of config.json that must have one value, because this program computes nothing else.
static inline int checkpoint_config_demand(const Json *json, const char *path, const char *key, const char *wanted,
                                           Message *message) {
    const JsonNode *node = json_get(json, json_root(json), key);
    if (!node || node->type == JSON_NULL) return 1;  // absent: the default, which is what is wanted
    const char *text = node->type == JSON_TRUE ? "true" : node->type == JSON_FALSE ? "false" : json_string(node);
    double found, number;
    if (json_double(node, &found)) {
        number = strtod(wanted, NULL);
        if (found > number * 0.999 && found < number * 1.001) return 1;
        message_add(message, "'%s': %s is %g, this program computes with %s only", path, key, found, wanted);
        return 0;
    }
    if (text && strcmp(text, wanted) == 0) return 1;
    message_add(message, "'%s': %s is %.60s, this program computes with %s only", path, key, text ? text : "a list",
                wanted);
    return 0;
}

static inline int checkpoint_config_parse(const Json *json, const char *path, GPTConfig *config, Message *message) {
    static const char *const keys[] = {"n_layer", "n_head", "n_embd", "vocab_size", "n_positions"};
    uint64_t values[5];
    for (int i = 0; i < 5; i++)
        if (!json_u64(json_get(json, json_root(json), keys[i]), &values[i]) || values[i] < 1 || values[i] > 1u << 30) {
            message_add(message, "'%s': %s is missing or not between 1 and 2^30", path, keys[i]);
            return 0;
        }
    config->L = (size_t)values[0];
    config->NH = (size_t)values[1];
    config->C = (size_t)values[2];
    config_set_vocab(config, (size_t)values[3]);
    config->max_T = (size_t)values[4];
    if (config->C % config->NH != 0) {
        message_add(message, "'%s': n_head %zu does not divide n_embd %zu", path, config->NH, config->C);
        return 0;
    }
    return checkpoint_config_demand(json, path, "model_type", "gpt2", message) &&
           checkpoint_config_demand(json, path, "activation_function", "gelu_new", message) &&
           checkpoint_config_demand(json, path, "layer_norm_epsilon", "1e-5", message) &&
           checkpoint_config_demand(json, path, "scale_attn_weights", "true", message) &&
           checkpoint_config_demand(json, path, "scale_attn_by_inverse_layer_idx", "false", message) &&
           checkpoint_config_demand(json, path, "tie_word_embeddings", "true", message);
}

// The model's shape from DIR/config.json: OK, NONE where there is no such file, MISMATCH where it is no model of ours.
static inline int checkpoint_config(const char *dir, GPTConfig *config, Message *message) {
    char path[SAFE_PATH_BYTES];
    size_t bytes = 0;
    Json json;
    if (!path_join(path, dir, CHECKPOINT_CONFIG) || access(path, F_OK) != 0) return CHECKPOINT_NONE;
    char *text = safe_read_text(path, (size_t)1 << 20, &bytes, message);
    if (!text) return CHECKPOINT_DAMAGED;
    int code = CHECKPOINT_DAMAGED;
    if (!json_parse(&json, text, bytes)) message_add(message, "'%s' is no JSON: %s", path, json.error);
    else code = checkpoint_config_parse(&json, path, config, message) ? CHECKPOINT_OK : CHECKPOINT_MISMATCH;
    json_free(&json);
    free(text);
    return code;
}

// ----------------------------------------------------------------------------------------------------------------
// Opening

// The metadata object of a file into ck->metadata; returns its bytes.
static inline size_t checkpoint_metadata(Checkpointer *ck, size_t capacity, int file, const char *options_json) {
    JsonWriter w;
    json_writer(&w, ck->metadata, capacity);
    json_begin(&w, '{');
    json_put_key(&w, "format");
    json_put_string(&w, "pt");  // transformers refuses a file without it
    if (file == CHECKPOINT_IN_STATE && options_json) {
        json_put_key(&w, "options");
        json_put_string(&w, options_json);
    }
    json_end(&w, '}');
    return w.used;
}

// Entries of one file: wide dtypes first, so that every tensor's data is aligned; ck->order has their list indices.
static inline size_t checkpoint_entries(Checkpointer *ck, int file) {
    size_t n = 0;
    for (size_t size = 8; size >= 1; size /= 2)
        for (size_t i = 0; i < ck->count; i++) {
            const CheckpointTensor *tensor = &ck->tensors[i];
            if (tensor->file != file || safetensors_dtype_bytes(tensor->dtype) != size) continue;
            ck->entries[n].name = tensor->name;
            ck->entries[n].dtype = tensor->dtype;
            ck->entries[n].ndim = checkpoint_shape(tensor, ck->entries[n].shape);
            ck->order[n++] = i;
        }
    return n;
}

// Ready to save to and load from: allocates everything saving needs. `options_json` (may be NULL) is kept in the
// training state. `out` may be NULL where nothing will be saved.
static inline void checkpoint_open(Checkpointer *ck, const char *out, const GPTConfig *config,
                                   CheckpointTensor *tensors, size_t count, const char *options_json) {
    memset(ck, 0, sizeof *ck);
    snprintf(ck->out, sizeof ck->out, "%s", out ? out : "");
    ck->config = *config;
    ck->tensors = tensors;
    ck->count = count;
    ck->may_exchange = 1;
    ck->ranks = 1;
    ck->stage_bytes = CHECKPOINT_STAGE_BYTES;
    for (int i = 0; i < 2; i++) ck->stage[i] = (char *)checked_calloc(ck->stage_bytes, 1, "checkpoint staging");
    ck->entries = (SafetensorsEntry *)checked_calloc(count, sizeof *ck->entries, "checkpoint entries");
    ck->order = (size_t *)checked_calloc(count, sizeof *ck->order, "checkpoint entries");
    size_t metadata_bytes = checkpoint_metadata(ck, 0, CHECKPOINT_IN_STATE, options_json) + 1;
    ck->metadata = (char *)checked_calloc(metadata_bytes, 1, "checkpoint options");
    checkpoint_metadata(ck, metadata_bytes, CHECKPOINT_IN_STATE, options_json);
    ck->header_capacity = 0;
    for (int file = CHECKPOINT_IN_MODEL; file <= CHECKPOINT_IN_STATE; file++) {
        size_t n = checkpoint_entries(ck, file);
        ck->header_capacity = max_size(ck->header_capacity, safetensors_header(NULL, 0, ck->entries, n, ck->metadata));
    }
    ck->header = (char *)checked_calloc(ck->header_capacity, 1, "checkpoint header");
    ck->cursors = (CheckpointCursor *)checked_calloc(1, sizeof *ck->cursors, "checkpoint entries");
    // A file size limit (ulimit -f) must show as a failed write, which is reported, not as a deadly signal.
    if (out) signal(SIGXFSZ, SIG_IGN);
}

static inline void checkpoint_close(Checkpointer *ck) {
    for (int i = 0; i < 2; i++) free(ck->stage[i]);
    free(ck->entries);
    free(ck->order);
    free(ck->metadata);
    free(ck->header);
    free(ck->cursors);
    free(ck->gathered);
    memset(ck, 0, sizeof *ck);
}

// After checkpoint_open(): this is rank `rank` of `ranks`, on `host` (a name that stays).
static inline void checkpoint_parallel(Checkpointer *ck, size_t rank, size_t ranks, const char *host,
                                       CheckpointGather *gather) {
    ck->rank = rank;
    ck->ranks = ranks;
    ck->host = host;
    ck->gather = gather;
    free(ck->cursors);
    ck->cursors = (CheckpointCursor *)checked_calloc(ranks, sizeof *ck->cursors, "checkpoint entries");
    ck->gathered = (char *)checked_calloc(ranks, CHECKPOINT_GATHER_BYTES, "ranks");
}

// ----------------------------------------------------------------------------------------------------------------
// Agreement

// What a rank tells the others of what it has done.
typedef struct {
    int64_t code, process;
    char host[64], text[CHECKPOINT_GATHER_BYTES - 80];
} CheckpointReport;

// All ranks' codes become one, and their messages that of the first one that failed. Rank 0's process id goes along.
static inline int checkpoint_agree(Checkpointer *ck, int code, Message *message, long *first_process) {
    CheckpointReport mine, *all = (CheckpointReport *)ck->gathered;
    if (first_process) *first_process = (long)getpid();
    if (ck->ranks == 1) return code;
    memset(&mine, 0, sizeof mine);
    mine.code = code;
    mine.process = getpid();
    snprintf(mine.host, sizeof mine.host, "%s", ck->host);
    if (code != CHECKPOINT_OK) snprintf(mine.text, sizeof mine.text, "%.*s", (int)sizeof mine.text - 1, message->text);
    ck->gather(all, &mine, sizeof mine);
    if (first_process) *first_process = (long)all[0].process;
    for (size_t i = 0; i < ck->ranks; i++) {
        if (all[i].code == CHECKPOINT_OK) continue;
        message_clear(message);
        message_add(message, "rank %zu on %s: %s", i, all[i].host, all[i].text);
        return (int)all[i].code;
    }
    return CHECKPOINT_OK;
}

// The checksums of each rank's chunks, to all of them.
static inline void checkpoint_share_sums(Checkpointer *ck, CheckpointFile *file) {
    enum { AT_ONCE = CHECKPOINT_GATHER_BYTES / sizeof(uint64_t) };
    size_t largest = ceil_div(file->chunks, ck->ranks), first, end;
    for (size_t at = 0; ck->ranks > 1 && at < largest; at += AT_ONCE) {
        uint64_t mine[AT_ONCE] = {0}, *all = (uint64_t *)ck->gathered;
        end = checkpoint_file_part(file, ck->rank, ck->ranks, &first);
        for (size_t i = 0; i < AT_ONCE && first + at + i < end; i++) mine[i] = file->sums[first + at + i];
        ck->gather(all, mine, sizeof mine);
        for (size_t r = 0; r < ck->ranks; r++) {
            end = checkpoint_file_part(file, r, ck->ranks, &first);
            for (size_t i = 0; i < AT_ONCE && first + at + i < end; i++)
                file->sums[first + at + i] = all[r * AT_ONCE + i];
        }
    }
}

// ----------------------------------------------------------------------------------------------------------------
// Saving

// This rank's part of a file, while it is written.
typedef struct {
    SafeFile file;
    CheckpointFile *about;
    size_t chunk;           // under way
    uint64_t chunk_filled;  // bytes of it
    int code;
    Message *message;
} CheckpointPart;

static inline void checkpoint_chunk_done(CheckpointPart *part) {
    part->about->sums[part->chunk++] = checksum_value(&part->file.sum);
    part->chunk_filled = 0;
    checksum_start(&part->file.sum);
}

static inline void checkpoint_put(CheckpointPart *part, const void *data, size_t bytes) {
    const char *p = (const char *)data;
    while (bytes && !part->file.failed) {
        uint64_t room = part->about->chunk_bytes - part->chunk_filled;
        size_t n = bytes < room ? bytes : (size_t)room;
        safe_file_write(&part->file, p, n);
        p += n;
        bytes -= n;
        part->chunk_filled += n;
        if (n == room) checkpoint_chunk_done(part);
    }
    if (part->file.failed) part->code = CHECKPOINT_FAILED;
}

// The next block of the part of the file that `cursor` is in, and its tensor; NULL after the last.
static inline const CheckpointTensor *checkpoint_next_block(const Checkpointer *ck, uint64_t data_start,
                                                            CheckpointCursor *cursor, CheckpointBlock *block) {
    if (cursor->at >= cursor->end) return NULL;
    while (data_start + ck->entries[cursor->index].end <= cursor->at) cursor->index++;
    const SafetensorsEntry *entry = &ck->entries[cursor->index];
    const CheckpointTensor *tensor = &ck->tensors[ck->order[cursor->index]];
    size_t size = safetensors_dtype_bytes(tensor->dtype);
    uint64_t end = data_start + entry->end < cursor->end ? data_start + entry->end : cursor->end;
    size_t elems = min_size((size_t)(end - cursor->at) / size, checkpoint_block_elems(ck));
    *block = checkpoint_block(tensor, tensor->transpose, (size_t)(cursor->at - data_start - entry->begin) / size, elems);
    cursor->at += block->rows * block->cols * size;
    return tensor;
}

// One block, fetched into ck->stage[0], to this rank's part.
static inline void checkpoint_write_block(Checkpointer *ck, CheckpointPart *part, const CheckpointTensor *tensor,
                                          const CheckpointBlock *block) {
    size_t size = safetensors_dtype_bytes(tensor->dtype), elems = block->rows * block->cols;
    size_t bad = safetensors_first_nonfinite(ck->stage[0], tensor->dtype, elems);
    if (bad < elems) {
        message_add(part->message,
                    "tensor %s is not finite at row %zu, column %zu (in memory's layout): nothing was saved\n"
                    "why: the training state is broken; earlier checkpoints are kept",
                    tensor->name, block->row + bad / block->cols, block->col + bad % block->cols);
        part->code = CHECKPOINT_NONFINITE;
        return;
    }
    if (tensor->transpose) checkpoint_transpose(ck->stage[1], ck->stage[0], block->rows, block->cols, size);
    checkpoint_put(part, ck->stage[tensor->transpose], elems * size);
}

// All blocks of a file. In each round every rank gets one and writes it while the others write theirs. A rank that has
// failed goes on taking part, since the others wait for it.
static inline void checkpoint_write_blocks(Checkpointer *ck, uint64_t data_start, CheckpointPart *part) {
    for (int more = 1; more;) {
        const CheckpointTensor *mine = NULL;
        CheckpointBlock my_block = {0, 0, 0, 0};
        more = 0;
        for (size_t owner = 0; owner < ck->ranks; owner++) {
            CheckpointBlock block;
            const CheckpointTensor *tensor = checkpoint_next_block(ck, data_start, &ck->cursors[owner], &block);
            int wanted = owner == ck->rank && part->code == CHECKPOINT_OK;
            if (!tensor) continue;
            more = 1;
            checkpoint_fetch(ck, tensor, &block, wanted ? ck->stage[0] : NULL);
            if (!wanted) continue;
            mine = tensor;
            my_block = block;
        }
        if (mine) checkpoint_write_block(ck, part, mine, &my_block);
    }
}

// This rank's part of one of the two safetensors files, in folder `dir`: some of its chunks. Everything about the file
// but the checksums of others' chunks is in ck->files[which] then. `code`: what has become of the save so far.
static inline int checkpoint_write_part(Checkpointer *ck, const char *dir, int which, int code, Message *message) {
    char path[SAFE_PATH_BYTES];
    CheckpointFile *about = &ck->files[which];
    CheckpointPart part;
    size_t n = checkpoint_entries(ck, which), first, end;
    size_t used = safetensors_header(ck->header, ck->header_capacity, ck->entries, n,
                                     which == CHECKPOINT_IN_MODEL ? "{\"format\":\"pt\"}" : ck->metadata) - 1;
    memset(&part, 0, sizeof part);
    part.file.fd = -1;
    part.about = about;
    part.code = code;
    part.message = message;
    checkpoint_file_start(about, which == CHECKPOINT_IN_MODEL ? CHECKPOINT_MODEL : CHECKPOINT_STATE,
                          used + (n ? ck->entries[n - 1].end : 0));
    for (size_t r = 0; r < ck->ranks; r++) {
        CheckpointCursor *cursor = &ck->cursors[r];
        end = checkpoint_file_part(about, r, ck->ranks, &first);
        cursor->at = max_size(first * about->chunk_bytes, used);
        cursor->end = end == about->chunks ? about->bytes : end * about->chunk_bytes;
        cursor->index = 0;
    }
    end = checkpoint_file_part(about, ck->rank, ck->ranks, &first);
    part.chunk = first;
    if (first < end && code == CHECKPOINT_OK) {
        uint64_t at = first * about->chunk_bytes;
        path_join(path, dir, about->name);
        safe_file_join(&part.file, path, at, message);
        if (part.file.failed) part.code = CHECKPOINT_FAILED;
        if (at < used) checkpoint_put(&part, ck->header + at, min_size(used, (size_t)(end * about->chunk_bytes)) - at);
    }
    checkpoint_write_blocks(ck, used, &part);
    if (part.chunk < end && part.code == CHECKPOINT_OK) checkpoint_chunk_done(&part);  // the file's last, if not full
    if (part.file.fd >= 0 && !safe_file_finish(&part.file) && part.code == CHECKPOINT_OK) part.code = CHECKPOINT_FAILED;
    return part.code;
}

static inline int checkpoint_write_config(Checkpointer *ck, const char *dir, Message *message) {
    char text[2048], path[SAFE_PATH_BYTES];
    CheckpointFile *about = &ck->files[2];
    SafeFile file;
    int dtype = ST_F32;
    for (size_t i = 0; i < ck->count; i++)
        if (ck->tensors[i].file == CHECKPOINT_IN_MODEL) dtype = ck->tensors[i].dtype;
    size_t bytes = checkpoint_config_text(text, sizeof text, &ck->config, dtype);
    checkpoint_file_start(about, CHECKPOINT_CONFIG, bytes);
    path_join(path, dir, about->name);
    safe_file_create(&file, path, message);
    safe_file_write(&file, text, bytes);
    about->sums[0] = checksum_value(&file.sum);
    return safe_file_finish(&file) ? CHECKPOINT_OK : CHECKPOINT_FAILED;
}

// Everything into the folder `dir`, then read back and compared: a rank reads what another one wrote.
static inline int checkpoint_write_all(Checkpointer *ck, const char *dir, uint64_t step, Message *message) {
    uint64_t again;
    int code = checkpoint_write_part(ck, dir, CHECKPOINT_IN_MODEL, CHECKPOINT_OK, message);
    code = checkpoint_write_part(ck, dir, CHECKPOINT_IN_STATE, code, message);
    code = checkpoint_agree(ck, code, message, NULL);
    if (code != CHECKPOINT_OK) return code;
    for (int i = CHECKPOINT_IN_MODEL; i <= CHECKPOINT_IN_STATE; i++) checkpoint_share_sums(ck, &ck->files[i]);
    if (ck->rank == 0) {
        code = checkpoint_write_config(ck, dir, message);
        if (code == CHECKPOINT_OK && (!checkpoint_write_manifest(dir, step, ck->files, 3, ck->stage[0], message) ||
                                      !sync_dir(dir, message)))
            code = CHECKPOINT_FAILED;
    }
    code = checkpoint_agree(ck, code, message, NULL);
    if (code != CHECKPOINT_OK) return code;
    const CheckpointReading reading =
        checkpoint_reading(ck->stage[0], ck->stage_bytes, (ck->rank + 1) % ck->ranks, ck->ranks);
    if (checkpoint_verify_reading(dir, &again, &reading, message) != CHECKPOINT_OK) {
        message_add(message, "why: what was written to '%s' does not read back the same: the disk is failing", dir);
        code = CHECKPOINT_FAILED;
    }
    return checkpoint_agree(ck, code, message, NULL);
}

// Rank 0 makes the locked temporary folder, with its descriptor (the lock) in *lock; all ranks must see it.
static inline int checkpoint_begin(Checkpointer *ck, uint64_t step, char *dir, int *lock, Message *message) {
    long process = (long)getpid();
    int code = CHECKPOINT_OK;
    *lock = -1;
    dir[0] = 0;
    if (ck->rank == 0 && !checkpoint_aside_path(dir, ck->out, step, "tmp", process)) {
        message_add(message, "the name of the output folder is too long");
        dir[0] = 0;
        code = CHECKPOINT_FAILED;
    } else if (ck->rank == 0) {
        if (!make_dirs(ck->out, message)) code = CHECKPOINT_FAILED;
        else checkpoint_clean(ck->out);
        if (code == CHECKPOINT_OK && mkdir(dir, 0777) == 0) *lock = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (code == CHECKPOINT_OK && *lock < 0) {
            message_add(message, "cannot make the folder '%s': %s", dir, strerror(errno));
            code = CHECKPOINT_FAILED;
        }
        if (*lock >= 0) flock(*lock, LOCK_EX | LOCK_NB);  // without locks leftovers are removed a little too eagerly
    }
    code = checkpoint_agree(ck, code, message, &process);
    if (code != CHECKPOINT_OK) return code;
    if (!checkpoint_aside_path(dir, ck->out, step, "tmp", process) || !path_is_dir(dir)) {
        message_add(message,
                    "it does not see '%s', which rank 0 has made\nwhy: all ranks write into one folder\n"
                    "try: --out on a file system that all hosts share, under the same path",
                    dir);
        code = CHECKPOINT_FAILED;
    }
    return checkpoint_agree(ck, code, message, NULL);
}

// Saves OUT/step_X: written beside, synced, read back, renamed. OK, or NONFINITE or FAILED with a message, on all ranks
// the same; then nothing of it stays and every earlier checkpoint is untouched. Allocates nothing. Rank 0 calls
// checkpoint_rotate() afterwards.
static inline int checkpoint_save(Checkpointer *ck, uint64_t step, Message *message) {
    char dir[SAFE_PATH_BYTES];
    int lock, code = checkpoint_begin(ck, step, dir, &lock, message);
    if (code == CHECKPOINT_OK) code = checkpoint_write_all(ck, dir, step, message);
    if (code == CHECKPOINT_OK) {
        if (ck->rank == 0 && !checkpoint_publish(ck->out, step, dir, ck->may_exchange, message))
            code = CHECKPOINT_FAILED;
        code = checkpoint_agree(ck, code, message, NULL);
    }
    if (code != CHECKPOINT_OK && ck->rank == 0 && dir[0]) remove_dir(dir);
    if (lock >= 0) close(lock);
    return code;
}

// Whether all ranks see the output folder, before the run comes to its first checkpoint: OK, or FAILED with a message.
static inline int checkpoint_try_folder(Checkpointer *ck, Message *message) {
    char dir[SAFE_PATH_BYTES];
    int lock, code = checkpoint_begin(ck, 0, dir, &lock, message);
    if (ck->rank == 0 && dir[0]) remove_dir(dir);
    if (lock >= 0) close(lock);
    return code;
}

// ----------------------------------------------------------------------------------------------------------------
// Loading

// Where a tensor's values stand in some file: `transposed` as in CheckpointTensor's file layout, else as in memory.
typedef struct {
    int fd, dtype, transposed;
    uint64_t offset;
    const char *path;
} CheckpointSource;

// One tensor from a file to memory, converted where its dtype is another float format. Refuses values that are not
// finite (a model cannot recover from them).
static inline int checkpoint_read_tensor(Checkpointer *ck, const CheckpointTensor *tensor,
                                         const CheckpointSource *source, Message *message) {
    size_t size = safetensors_dtype_bytes(tensor->dtype), source_size = safetensors_dtype_bytes(source->dtype);
    for (size_t first = 0, elems, total = tensor->rows * tensor->cols; first < total; first += elems) {
        CheckpointBlock block =
            checkpoint_block(tensor, source->transposed, first, min_size(total - first, checkpoint_block_elems(ck)));
        int now = 0;  // which buffer holds the values
        elems = block.rows * block.cols;
        if (ck->wanted && !tensor->host && !ck->wanted(ck->ctx, tensor, block.row, block.rows, block.col, block.cols))
            continue;
        if (!safe_read_at(source->fd, source->offset + first * source_size, ck->stage[0], elems * source_size,
                          source->path, message))
            return CHECKPOINT_DAMAGED;
        if (source->dtype != tensor->dtype) {
            safetensors_to_f32((float *)ck->stage[1], ck->stage[0], source->dtype, elems);
            now = 1;
            if (tensor->dtype == ST_BF16) {
                for (size_t i = 0; i < elems; i++)
                    ((uint16_t *)ck->stage[0])[i] = encode_bf16(((float *)ck->stage[1])[i]);
                now = 0;
            }
        }
        if (safetensors_first_nonfinite(ck->stage[now], tensor->dtype, elems) < elems) {
            message_add(message, "'%s': tensor %s holds NaN or infinity", source->path, tensor->name);
            return CHECKPOINT_NONFINITE;
        }
        if (source->transposed) {
            checkpoint_transpose(ck->stage[1 - now], ck->stage[now], block.cols, block.rows, size);
            now = 1 - now;
        }
        checkpoint_store(ck, tensor, &block, ck->stage[now]);
    }
    return CHECKPOINT_OK;
}

// Is what a file holds under this tensor's name what memory expects? Same shape; same dtype or one that converts.
static inline int checkpoint_check_entry(const CheckpointTensor *tensor, const SafetensorsEntry *entry,
                                         const char *path, Message *message) {
    char found[200], expected[200];
    size_t shape[2];
    int ndim = checkpoint_shape(tensor, shape), same = entry->ndim == ndim;
    int converts = safetensors_dtype_is_float(entry->dtype) && (tensor->dtype == ST_F32 || tensor->dtype == ST_BF16);
    for (int d = 0; d < ndim && same; d++) same = entry->shape[d] == shape[d];
    if (same && (entry->dtype == tensor->dtype || converts)) return CHECKPOINT_OK;
    message_add(message, "'%s': tensor %s is %s, this model needs %s", path, tensor->name,
                safetensors_shape_text(found, entry->dtype, entry->ndim, entry->shape),
                safetensors_shape_text(expected, tensor->dtype, ndim, shape));
    return CHECKPOINT_MISMATCH;
}

// Buffers that older writers keep beside the weights; nothing is lost by leaving them out.
static inline int checkpoint_ignorable(const char *name) {
    size_t n = strlen(name);
    return (n >= 10 && strcmp(name + n - 10, ".attn.bias") == 0) ||
           (n >= 17 && strcmp(name + n - 17, ".attn.masked_bias") == 0) || strcmp(name, "lm_head.weight") == 0;
}

// Every tensor of one file against the list, in both directions, before anything is read.
static inline int checkpoint_check_file(Checkpointer *ck, const SafetensorsFile *file, int which, Message *message) {
    size_t matched = 0;
    for (size_t i = 0; i < ck->count; i++) {
        const CheckpointTensor *tensor = &ck->tensors[i];
        if (tensor->file != which) continue;
        const SafetensorsEntry *entry = safetensors_find(file, tensor->name);
        if (!entry && tensor->optional) continue;
        if (!entry) {
            message_add(message, "'%s': tensor %s is missing", file->path, tensor->name);
            return CHECKPOINT_MISMATCH;
        }
        if (checkpoint_check_entry(tensor, entry, file->path, message) != CHECKPOINT_OK) return CHECKPOINT_MISMATCH;
        matched++;
    }
    if (which == CHECKPOINT_IN_STATE || matched == file->count) return CHECKPOINT_OK;
    for (size_t i = 0; i < file->count; i++) {  // some weight has no place: another depth than this model's
        size_t k = 0;
        while (k < ck->count && strcmp(ck->tensors[k].name, file->entries[i].name) != 0) k++;
        if (k < ck->count || checkpoint_ignorable(file->entries[i].name)) continue;
        message_add(message, "'%s': tensor %.120s has no place in this model (%zu layers)", file->path,
                    file->entries[i].name, ck->config.L);
        return CHECKPOINT_MISMATCH;
    }
    return CHECKPOINT_OK;
}

static inline int checkpoint_read_file(Checkpointer *ck, const SafetensorsFile *file, int which, Message *message) {
    int code = CHECKPOINT_OK;
    for (size_t i = 0; i < ck->count && code == CHECKPOINT_OK; i++) {
        const CheckpointTensor *tensor = &ck->tensors[i];
        const SafetensorsEntry *entry = tensor->file == which ? safetensors_find(file, tensor->name) : NULL;
        if (!entry) continue;
        CheckpointSource source = {file->fd, entry->dtype, tensor->transpose, file->data_start + entry->begin,
                                   file->path};
        code = checkpoint_read_tensor(ck, tensor, &source, message);
    }
    return code;
}

// Loads a complete checkpoint into the listed tensors. Names and shapes of both files are compared before anything is
// read, so on MISMATCH memory is as it was. OK, or another code with a message. The caller has verified the checksums
// (checkpoint_latest or checkpoint_verify do); here only manifest and sizes are looked at again.
static inline int checkpoint_load(Checkpointer *ck, const char *dir, Message *message) {
    static const char *const names[2] = {CHECKPOINT_MODEL, CHECKPOINT_STATE};
    SafetensorsFile files[2];
    char path[SAFE_PATH_BYTES];
    uint64_t step;
    int opened = 0, code = checkpoint_verify(dir, &step, NULL, 0, message);
    if (code != CHECKPOINT_OK) {
        message_add(message, "why: '%s' cannot be resumed from", dir);
        return code;
    }
    for (; opened < 2 && code == CHECKPOINT_OK; opened++) {
        path_join(path, dir, names[opened]);
        if (!safetensors_open(&files[opened], path, message)) {
            code = CHECKPOINT_DAMAGED;
            break;
        }
        code = checkpoint_check_file(ck, &files[opened], opened, message);
    }
    for (int i = 0; i < 2 && code == CHECKPOINT_OK; i++) code = checkpoint_read_file(ck, &files[i], i, message);
    for (int i = 0; i < opened; i++) safetensors_close(&files[i]);
    return code;
}

// checkpoint_latest() of ck->out for all ranks together, each of which reads a part of it: the same code, folder and step
// on all. Rank 0 chooses; its message says what was passed over.
static inline int checkpoint_search(Checkpointer *ck, char *dir, uint64_t *step, Message *message) {
    const CheckpointReading sizes = checkpoint_reading(NULL, 0, 0, 1);
    const CheckpointReading part = checkpoint_reading(ck->stage[0], ck->stage_bytes, ck->rank, ck->ranks);
    char name[64];
    uint64_t last = UINT64_MAX, choice[2] = {0, 0};
    int damaged = 0;
    for (;;) {
        if (ck->rank == 0) choice[0] = (uint64_t)checkpoint_newest(ck->out, last, &sizes, dir, &choice[1], message);
        if (ck->ranks > 1) {
            ck->gather(ck->gathered, choice, sizeof choice);
            memcpy(choice, ck->gathered, sizeof choice);
        }
        if (choice[0] != CHECKPOINT_OK)
            return damaged && choice[0] == CHECKPOINT_NONE ? CHECKPOINT_DAMAGED : (int)choice[0];
        Message why;
        message_clear(&why);
        checkpoint_step_name(name, choice[1]);
        path_join(dir, ck->out, name);
        int code = checkpoint_agree(ck, checkpoint_verify_reading(dir, step, &part, &why), &why, NULL);
        if (code == CHECKPOINT_OK) return code;
        message_add(message, "passed over %s: %s", name, why.text);
        dir[0] = 0;
        damaged = 1;
        if (choice[1] == 0) return CHECKPOINT_DAMAGED;
        last = choice[1] - 1;
    }
}

// The options text a checkpoint was saved with, to be freed; NULL where there is none.
static inline char *checkpoint_options(const char *dir, Message *message) {
    SafetensorsFile file;
    char path[SAFE_PATH_BYTES], *copy = NULL;
    if (!path_join(path, dir, CHECKPOINT_STATE) || !safetensors_open(&file, path, message)) return NULL;
    const char *options = safetensors_metadata(&file, "options");
    if (options) copy = checked_strdup(options);
    safetensors_close(&file);
    return copy;
}

#endif
