// init_weights.h: --init, a new run from given weights: a Hugging Face GPT-2 directory (or model.safetensors alone),
// one of this program's checkpoints, or a weight file of llm.c. Only weights; step, moments and data start afresh.
//
//     init_weights_open(&init, path, &message)        finds the files, checks all shapes, gives init.config
//     ... build the model from init.config, list its tensors in a Checkpointer ...
//     init_weights_load(&init, &checkpointer, &message)
//     init_weights_close(&init)
#ifndef LLMC_INIT_WEIGHTS_H
#define LLMC_INIT_WEIGHTS_H

#include "checkpoint.h"
#include "llmc_bin.h"

typedef struct {
    int is_bin;
    GPTConfig config;
    SafetensorsFile file;
    const char *prefix;  // "transformer." as GPT2LMHeadModel saves, or "" as GPT2Model
    LlmcBin bin;
    Message notes;  // what is worth telling though it went well: the head count was assumed, a tensor was left out
} InitWeights;

// "PREFIXNAME" of the file looked up; `name` is Hugging Face's without prefix.
static inline const SafetensorsEntry *init_weights_find(const InitWeights *init, const char *name) {
    char full[CHECKPOINT_NAME_BYTES + 16];
    snprintf(full, sizeof full, "%s%s", init->prefix, name);
    return safetensors_find(&init->file, full);
}

// The shape, from the tensors themselves (heads apart, which leave no trace in them).
static inline int init_weights_shape(InitWeights *init, Message *message) {
    char name[64];
    init->prefix = "transformer.";
    if (!init_weights_find(init, "wte.weight")) init->prefix = "";
    const SafetensorsEntry *wte = init_weights_find(init, "wte.weight"), *wpe = init_weights_find(init, "wpe.weight");
    if (!wte || !wpe || wte->ndim != 2 || wpe->ndim != 2) {
        message_add(message,
                    "'%s' is no GPT-2 model: it has no matrices wte.weight and wpe.weight, with or without "
                    "'transformer.' before their names",
                    init->file.path);
        return CHECKPOINT_MISMATCH;
    }
    config_set_vocab(&init->config, wte->shape[0]);
    init->config.C = wte->shape[1];
    init->config.max_T = wpe->shape[0];
    do snprintf(name, sizeof name, "h.%zu.ln_1.weight", init->config.L);
    while (init_weights_find(init, name) && ++init->config.L);
    if (init->config.L >= 1 && init->config.L <= 100000 && init->config.C >= 1 && init->config.C <= 1000000 &&
        init->config.V >= 2 && init->config.V < (size_t)1 << 31 && init->config.max_T >= 1 &&
        init->config.max_T <= (size_t)1 << 30)
        return CHECKPOINT_OK;
    message_add(message, "'%s': %zu layers, %zu channels, a vocabulary of %zu and %zu positions are no model",
                init->file.path, init->config.L, init->config.C, init->config.V, init->config.max_T);
    return CHECKPOINT_MISMATCH;
}

// The head count from DIR/config.json, which must agree with the tensors; without the file heads of 64 are assumed.
static inline int init_weights_heads(InitWeights *init, const char *dir, Message *message) {
    GPTConfig told, *found = &init->config;
    int code = checkpoint_config(dir, &told, message);
    if (code == CHECKPOINT_NONE && found->C % 64 == 0) {
        found->NH = found->C / 64;
        message_add(&init->notes, "no %s beside '%s': %zu heads of 64 channels are assumed", CHECKPOINT_CONFIG,
                    init->file.path, found->NH);
        return CHECKPOINT_OK;
    }
    if (code == CHECKPOINT_NONE) {
        message_add(message,
                    "'%s': the number of heads is unknown\nwhy: there is no %s beside it, and its %zu channels are "
                    "no multiple of 64, the usual head\ntry: put the model's %s there",
                    init->file.path, CHECKPOINT_CONFIG, found->C, CHECKPOINT_CONFIG);
        return CHECKPOINT_MISMATCH;
    }
    if (code != CHECKPOINT_OK) return code;
    found->NH = told.NH;
    if (told.L == found->L && told.C == found->C && told.V == found->V && told.max_T == found->max_T) return code;
    message_add(message,
                "'%s' and the %s beside it differ: %zu and %zu layers, %zu and %zu channels, a vocabulary of %zu "
                "and %zu, %zu and %zu positions",
                init->file.path, CHECKPOINT_CONFIG, found->L, told.L, found->C, told.C, found->V, told.V, found->max_T,
                told.max_T);
    return CHECKPOINT_MISMATCH;
}

// lm_head.weight is tied to wte here; a file in which they differ loses the former, and that is said.
static inline void init_weights_note_head(InitWeights *init, Message *message) {
    const SafetensorsEntry *head = safetensors_find(&init->file, "lm_head.weight");
    const SafetensorsEntry *wte = init_weights_find(init, "wte.weight");
    char *buffers[2];
    if (!head) return;
    int same = head->dtype == wte->dtype && head->end - head->begin == wte->end - wte->begin;
    size_t chunk = (size_t)1 << 20;
    uint64_t bytes = wte->end - wte->begin;
    for (int i = 0; i < 2; i++) buffers[i] = (char *)checked_calloc(chunk, 1, "comparing lm_head and wte");
    for (uint64_t at = 0; at < bytes && same; at += chunk) {
        size_t n = bytes - at < chunk ? (size_t)(bytes - at) : chunk;
        same = safetensors_read(&init->file, head, at, buffers[0], n, message) &&
               safetensors_read(&init->file, wte, at, buffers[1], n, message) && memcmp(buffers[0], buffers[1], n) == 0;
    }
    for (int i = 0; i < 2; i++) free(buffers[i]);
    if (!same)
        message_add(&init->notes,
                    "'%s': lm_head.weight differs from wte.weight and is left out: this program ties them",
                    init->file.path);
}

// Tensors of the file that no parameter takes: known buffers are nothing to mention, other heads are, and a part of a
// layer means that this is some other model.
static inline int init_weights_extras(InitWeights *init, const CheckpointTensor *list, size_t count, Message *message) {
    size_t prefix = strlen(init->prefix);
    for (size_t i = 0; i < init->file.count; i++) {
        const char *name = init->file.entries[i].name;
        size_t k = 0;
        if (checkpoint_ignorable(name)) continue;
        int inside = strncmp(name, init->prefix, prefix) == 0;
        while (k < count && (!inside || strcmp(list[k].name, name + prefix) != 0)) k++;
        if (k < count) continue;
        if (inside && strncmp(name + prefix, "h.", 2) == 0) {
            message_add(message, "'%s': tensor %.120s has no place in a GPT-2 of %zu layers", init->file.path, name,
                        init->config.L);
            return CHECKPOINT_MISMATCH;
        }
        message_add(&init->notes, "'%s': tensor %.120s is left out", init->file.path, name);
    }
    return CHECKPOINT_OK;
}

// Every parameter of init->config present with its shape.
static inline int init_weights_check(InitWeights *init, Message *message) {
    size_t count = checkpoint_parameter_tensors(&init->config);
    CheckpointTensor *list = (CheckpointTensor *)checked_calloc(count, sizeof *list, "a list of tensors");
    int code = CHECKPOINT_OK;
    checkpoint_parameters(list, &init->config, NULL, CHECKPOINT_IN_MODEL, "", ST_F32);
    for (size_t i = 0; i < count && code == CHECKPOINT_OK; i++) {
        const SafetensorsEntry *entry = init_weights_find(init, list[i].name);
        if (entry) code = checkpoint_check_entry(&list[i], entry, init->file.path, message);
        else {
            message_add(message, "'%s': tensor %s%s is missing", init->file.path, init->prefix, list[i].name);
            code = CHECKPOINT_MISMATCH;
        }
    }
    if (code == CHECKPOINT_OK) code = init_weights_extras(init, list, count, message);
    free(list);
    return code;
}

// A folder without model.safetensors: says what it is instead.
static inline int init_weights_no_model(const char *dir, Message *message) {
    char path[SAFE_PATH_BYTES];
    CheckpointList list;
    message_add(message, "'%s' has no %s", dir, CHECKPOINT_MODEL);
    checkpoint_list(&list, dir);
    if (list.count)
        message_add(message, "try: one of the checkpoints in it, e.g. '%s/step_%08llu'", dir,
                    (unsigned long long)list.steps[0]);
    else if (path_join(path, dir, "model.safetensors.index.json") && access(path, F_OK) == 0)
        message_add(message,
                    "why: the model is split over several files\n"
                    "try: save it again as one: save_pretrained(..., max_shard_size=\"1TB\")");
    else if (path_join(path, dir, "pytorch_model.bin") && access(path, F_OK) == 0)
        message_add(message,
                    "why: pytorch_model.bin is a pickle, which can run any code\n"
                    "try: convert it: save_pretrained(..., safe_serialization=True)");
    free(list.steps);
    return CHECKPOINT_NONE;
}

// A checkpoint of this program carries checksums: look at them before its weights are used.
static inline int init_weights_verify(const char *dir, Message *message) {
    char path[SAFE_PATH_BYTES];
    uint64_t step;
    size_t bytes = (size_t)1 << 20;
    if (!path_join(path, dir, CHECKPOINT_MANIFEST) || access(path, F_OK) != 0) return CHECKPOINT_OK;
    char *buffer = (char *)checked_calloc(bytes, 1, "reading a checkpoint");
    int code = checkpoint_verify(dir, &step, buffer, bytes, message);
    free(buffer);
    if (code != CHECKPOINT_OK) message_add(message, "why: the checkpoint '%s' is damaged", dir);
    return code;
}

static inline int init_weights_open_safetensors(InitWeights *init, const char *dir, const char *path,
                                                Message *message) {
    int code;
    if (!safetensors_open(&init->file, path, message)) return CHECKPOINT_DAMAGED;
    code = init_weights_shape(init, message);
    if (code == CHECKPOINT_OK) code = init_weights_heads(init, dir, message);
    if (code == CHECKPOINT_OK) code = init_weights_check(init, message);
    if (code == CHECKPOINT_OK) init_weights_note_head(init, message);
    return code;
}

static inline void init_weights_close(InitWeights *init) {
    safetensors_close(&init->file);
    llmc_bin_close(&init->bin);
}

// Finds and checks the weights at `path` (a folder, a .safetensors file, or a .bin file of llm.c): OK with
// init->config and perhaps init->notes, or another code with a message and nothing left open.
static inline int init_weights_open(InitWeights *init, const char *path, Message *message) {
    char file[SAFE_PATH_BYTES], dir[SAFE_PATH_BYTES];
    size_t n = strlen(path);
    int code;
    memset(init, 0, sizeof *init);
    init->file.fd = init->bin.fd = -1;
    if (n >= 4 && strcmp(path + n - 4, ".bin") == 0 && !path_is_dir(path)) {
        init->is_bin = 1;
        if (!llmc_bin_open(&init->bin, path, message)) return CHECKPOINT_DAMAGED;
        init->config = init->bin.config;
        return CHECKPOINT_OK;
    }
    snprintf(dir, sizeof dir, "%s", path);
    if (path_is_dir(path)) {
        if (!path_join(file, path, CHECKPOINT_MODEL) || access(file, F_OK) != 0)
            return init_weights_no_model(path, message);
        code = init_weights_verify(path, message);
        if (code != CHECKPOINT_OK) return code;
    } else {
        snprintf(file, sizeof file, "%s", path);
        char *slash = strrchr(dir, '/');
        if (slash) slash[slash == dir] = 0;  // "/x" is in "/"
        else strcpy(dir, ".");
    }
    code = init_weights_open_safetensors(init, dir, file, message);
    if (code != CHECKPOINT_OK) init_weights_close(init);
    return code;
}

// Is one listed tensor what the .bin file holds? (Its shapes all follow from the header.)
static inline int init_weights_check_bin(const InitWeights *init, const CheckpointTensor *tensor, Message *message) {
    ParameterInfo table[GPT_PARAMETER_COUNT];
    parameter_table(&init->config, table);
    const ParameterInfo *info = &table[tensor->parameter];
    size_t rows = tensor->parameter == 0 ? init->config.V : info->rows;
    if (tensor->rows == rows && tensor->cols == info->cols && tensor->layer < info->layers) return CHECKPOINT_OK;
    message_add(message, "'%s': tensor %s is %zu x %zu in %zu layers, this model needs %zu x %zu (layer %zu)",
                init->bin.path, info->name, rows, info->cols, info->layers, tensor->rows, tensor->cols, tensor->layer);
    return CHECKPOINT_MISMATCH;
}

// Where a listed parameter stands in the opened file, its shape checked.
static inline int init_weights_source(const InitWeights *init, const CheckpointTensor *tensor, CheckpointSource *source,
                                      Message *message) {
    memset(source, 0, sizeof *source);
    if (init->is_bin) {
        int code = init_weights_check_bin(init, tensor, message);
        if (code != CHECKPOINT_OK) return code;
        source->fd = init->bin.fd;
        source->dtype = init->bin.version == LLMC_BIN_FP32 ? ST_F32 : ST_BF16;
        source->offset = llmc_bin_offset(&init->bin, (size_t)tensor->parameter, tensor->layer);
        source->path = init->bin.path;
        return CHECKPOINT_OK;
    }
    const char *name = strncmp(tensor->name, "transformer.", 12) == 0 ? tensor->name + 12 : tensor->name;
    const SafetensorsEntry *entry = init_weights_find(init, name);
    if (!entry) {
        message_add(message, "'%s': tensor %s is missing", init->file.path, tensor->name);
        return CHECKPOINT_MISMATCH;
    }
    source->fd = init->file.fd;
    source->dtype = entry->dtype;
    source->transposed = tensor->transpose;
    source->offset = init->file.data_start + entry->begin;
    source->path = init->file.path;
    return checkpoint_check_entry(tensor, entry, init->file.path, message);
}

// Loads every parameter in the list's model file; all shapes are compared first, so a MISMATCH leaves memory alone.
// Everything else in the list (moments, counters) is not touched, nor are padding rows of wte.
static inline int init_weights_load(InitWeights *init, Checkpointer *ck, Message *message) {
    CheckpointSource source;
    if (ck->config.L != init->config.L) {
        message_add(message, "the weights have %zu layers, this model %zu", init->config.L, ck->config.L);
        return CHECKPOINT_MISMATCH;
    }
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < ck->count; i++) {
            const CheckpointTensor *tensor = &ck->tensors[i];
            if (tensor->file != CHECKPOINT_IN_MODEL || tensor->parameter < 0) continue;
            int code = init_weights_source(init, tensor, &source, message);
            if (code == CHECKPOINT_OK && pass == 1) code = checkpoint_read_tensor(ck, tensor, &source, message);
            if (code != CHECKPOINT_OK) return code;
        }
    return CHECKPOINT_OK;
}

#endif
