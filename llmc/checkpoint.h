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
// Called in the same order on every rank, so they may communicate. They do not return on failure.
typedef void CheckpointRead(void *ctx, const CheckpointTensor *tensor, size_t row, size_t rows, size_t col, size_t cols,
                            void *host);
typedef void CheckpointWrite(void *ctx, const CheckpointTensor *tensor, size_t row, size_t rows, size_t col,
                             size_t cols, const void *host);

typedef struct {
    char out[SAFE_PATH_BYTES];
    GPTConfig config;
    CheckpointTensor *tensors;  // the caller's list; must stay
    size_t count;
    // Set after checkpoint_open() where the defaults do not fit:
    CheckpointRead *read;  // NULL: tensor->data is host memory
    CheckpointWrite *write;
    void *ctx;
    int writes_files;  // 0 on ranks that only take part in the callbacks
    int may_exchange;  // 0 keeps to plain renames (for tests)
    // Its own:
    size_t stage_bytes;
    char *stage[2];
    char *header, *metadata;
    size_t header_capacity;
    SafetensorsEntry *entries;
    size_t *order;
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

// Steps `block` to the next piece of a tensor in the file's order, at most `max_elems` elements (at least one row, or
// one column where transposed); 0 after the last. Start with all zero.
static inline int checkpoint_next_block(const CheckpointTensor *tensor, size_t max_elems, CheckpointBlock *block) {
    if (tensor->rows == 0 || tensor->cols == 0) return 0;
    if (tensor->transpose || tensor->rows == 1) {
        block->col += block->cols;
        block->rows = tensor->rows;
        if (block->col >= tensor->cols) return 0;
        block->cols = min_size(max_size(max_elems / tensor->rows, 1), tensor->cols - block->col);
    } else {
        block->row += block->rows;
        block->cols = tensor->cols;
        if (block->row >= tensor->rows) return 0;
        block->rows = min_size(max_size(max_elems / tensor->cols, 1), tensor->rows - block->row);
    }
    return 1;
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
    for (size_t r = 0; r < b->rows; r++)
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
    ck->writes_files = ck->may_exchange = 1;
    ck->stage_bytes = CHECKPOINT_STAGE_BYTES;
    for (size_t i = 0; i < count; i++) {
        size_t line = tensors[i].transpose ? tensors[i].rows : tensors[i].rows == 1 ? 1 : tensors[i].cols;
        ck->stage_bytes = max_size(ck->stage_bytes, size_mul(line, 8));
    }
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
    // A file size limit (ulimit -f) must show as a failed write, which is reported, not as a deadly signal.
    if (out) signal(SIGXFSZ, SIG_IGN);
}

static inline void checkpoint_close(Checkpointer *ck) {
    for (int i = 0; i < 2; i++) free(ck->stage[i]);
    free(ck->entries);
    free(ck->order);
    free(ck->metadata);
    free(ck->header);
    memset(ck, 0, sizeof *ck);
}

// ----------------------------------------------------------------------------------------------------------------
// Saving

// One tensor to `file`. Without callbacks a failure ends it early; with them every block is still fetched, because
// other ranks are fetching it too and would wait for ever.
static inline int checkpoint_write_tensor(Checkpointer *ck, const CheckpointTensor *tensor, SafeFile *file, int code,
                                          Message *message) {
    size_t size = safetensors_dtype_bytes(tensor->dtype);
    CheckpointBlock block = {0, 0, 0, 0};
    while (checkpoint_next_block(tensor, checkpoint_block_elems(ck), &block)) {
        size_t elems = block.rows * block.cols;
        if (code != CHECKPOINT_OK && !ck->read) return code;
        checkpoint_fetch(ck, tensor, &block, ck->stage[0]);
        if (code != CHECKPOINT_OK || !ck->writes_files) continue;
        size_t bad = safetensors_first_nonfinite(ck->stage[0], tensor->dtype, elems);
        if (bad < elems) {
            message_add(message,
                        "tensor %s is not finite at row %zu, column %zu (in memory's layout): nothing was saved\n"
                        "why: the training state is broken; earlier checkpoints are kept",
                        tensor->name, block.row + bad / block.cols, block.col + bad % block.cols);
            code = CHECKPOINT_NONFINITE;
            continue;
        }
        if (tensor->transpose) checkpoint_transpose(ck->stage[1], ck->stage[0], block.rows, block.cols, size);
        safe_file_write(file, ck->stage[tensor->transpose], elems * size);
        if (file->failed) code = CHECKPOINT_FAILED;
    }
    return code;
}

// One of the two safetensors files into folder `dir`, described in *done.
static inline int checkpoint_write_file(Checkpointer *ck, const char *dir, int which, CheckpointFile *done, int code,
                                        Message *message) {
    char path[SAFE_PATH_BYTES];
    SafeFile file;
    size_t n = checkpoint_entries(ck, which);
    done->name = which == CHECKPOINT_IN_MODEL ? CHECKPOINT_MODEL : CHECKPOINT_STATE;
    memset(&file, 0, sizeof file);
    file.fd = -1;
    if (ck->writes_files && code == CHECKPOINT_OK) {
        size_t used = safetensors_header(ck->header, ck->header_capacity, ck->entries, n,
                                         which == CHECKPOINT_IN_MODEL ? "{\"format\":\"pt\"}" : ck->metadata);
        path_join(path, dir, done->name);
        safe_file_create(&file, path, message);
        safe_file_write(&file, ck->header, used - 1);
        if (file.failed) code = CHECKPOINT_FAILED;
    }
    for (size_t i = 0; i < n; i++) code = checkpoint_write_tensor(ck, &ck->tensors[ck->order[i]], &file, code, message);
    if (file.fd >= 0 && !safe_file_finish(&file) && code == CHECKPOINT_OK) code = CHECKPOINT_FAILED;
    done->bytes = file.bytes;
    done->sum = checksum_value(&file.sum);
    return code;
}

static inline int checkpoint_write_config(Checkpointer *ck, const char *dir, CheckpointFile *done, Message *message) {
    char text[2048], path[SAFE_PATH_BYTES];
    SafeFile file;
    int dtype = ST_F32;
    for (size_t i = 0; i < ck->count; i++)
        if (ck->tensors[i].file == CHECKPOINT_IN_MODEL) dtype = ck->tensors[i].dtype;
    size_t bytes = checkpoint_config_text(text, sizeof text, &ck->config, dtype);
    done->name = CHECKPOINT_CONFIG;
    path_join(path, dir, done->name);
    safe_file_create(&file, path, message);
    safe_file_write(&file, text, bytes);
    int good = safe_file_finish(&file);
    done->bytes = file.bytes;
    done->sum = checksum_value(&file.sum);
    return good ? CHECKPOINT_OK : CHECKPOINT_FAILED;
}

// Everything into the folder `dir`, then read back and compared.
static inline int checkpoint_write_all(Checkpointer *ck, const char *dir, uint64_t step, int code, Message *message) {
    CheckpointFile files[3];
    uint64_t again;
    code = checkpoint_write_file(ck, dir, CHECKPOINT_IN_MODEL, &files[0], code, message);
    code = checkpoint_write_file(ck, dir, CHECKPOINT_IN_STATE, &files[1], code, message);
    if (!ck->writes_files || code != CHECKPOINT_OK) return code;
    code = checkpoint_write_config(ck, dir, &files[2], message);
    if (code != CHECKPOINT_OK) return code;
    if (!checkpoint_write_manifest(dir, step, files, 3, message) || !sync_dir(dir, message)) return CHECKPOINT_FAILED;
    code = checkpoint_verify(dir, &again, ck->stage[0], ck->stage_bytes, message);
    if (code == CHECKPOINT_OK) return code;
    message_add(message, "why: what was written to '%s' does not read back the same: the disk is failing", dir);
    return CHECKPOINT_FAILED;
}

// Makes the locked temporary folder; its descriptor (the lock), or -1 with a message.
static inline int checkpoint_begin(Checkpointer *ck, uint64_t step, char *dir, Message *message) {
    if (!checkpoint_aside_path(dir, ck->out, step, "tmp")) {
        message_add(message, "the name of the output folder is too long");
        dir[0] = 0;
        return -1;
    }
    if (!make_dirs(ck->out, message)) return -1;
    checkpoint_clean(ck->out);
    int fd = mkdir(dir, 0777) == 0 ? open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (fd < 0) message_add(message, "cannot make the folder '%s': %s", dir, strerror(errno));
    else flock(fd, LOCK_EX | LOCK_NB);  // a file system without locks: then leftovers are removed a little too eagerly
    return fd;
}

// Saves OUT/step_X: written beside, synced, read back, renamed. OK, or NONFINITE or FAILED with a message; then nothing
// of it stays and every earlier checkpoint is untouched. Allocates nothing. Call checkpoint_rotate() afterwards.
static inline int checkpoint_save(Checkpointer *ck, uint64_t step, Message *message) {
    char dir[SAFE_PATH_BYTES];
    if (!ck->writes_files) return checkpoint_write_all(ck, "", step, CHECKPOINT_OK, message);
    int lock = checkpoint_begin(ck, step, dir, message);
    int code = checkpoint_write_all(ck, dir, step, lock < 0 ? CHECKPOINT_FAILED : CHECKPOINT_OK, message);
    if (code == CHECKPOINT_OK && !checkpoint_publish(ck->out, step, dir, ck->may_exchange, message))
        code = CHECKPOINT_FAILED;
    if (code != CHECKPOINT_OK && dir[0]) remove_dir(dir);
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
    CheckpointTensor walk = *tensor;  // blocks in the source's order
    CheckpointBlock block = {0, 0, 0, 0};
    size_t size = safetensors_dtype_bytes(tensor->dtype), source_size = safetensors_dtype_bytes(source->dtype);
    uint64_t at = source->offset;
    walk.transpose = source->transposed;
    while (checkpoint_next_block(&walk, checkpoint_block_elems(ck), &block)) {
        size_t elems = block.rows * block.cols;
        int now = 0;  // which buffer holds the values
        if (!safe_read_at(source->fd, at, ck->stage[0], elems * source_size, source->path, message))
            return CHECKPOINT_DAMAGED;
        at += elems * source_size;
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
