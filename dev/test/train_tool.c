// train_tool.c: what the tests of whole runs need besides a shell: makes token files and weight files, compares logs and
// checkpoints. dev/test/train_lib.sh builds it.
//
//     train_tool tokens FILE COUNT V [SEED [FINGERPRINT [BAD_AT]]]   a learnable walk through V ids, with another rule
//                                          for each hundred of SEED; BAD_AT: the id V stands there
//     train_tool same-log A B [KEY...]         run.jsonl equal apart from times, or in KEYs alone; steps 0, 1, 2, ...
//     train_tool same-tensors A B [PREFIX]     two .safetensors: every tensor (of these names) equal, metadata apart
//     train_tool json FILE                     one whole JSON value
//     train_tool peak COMMAND...               runs it; the most memory it had, in KiB, as the last line
//     train_tool convert KIND CHECKPOINT OUT   its weights as bin3, bin5 (llm.c), hf, hf-bf16 or nan (folders); steep,
//                                          loud: the last id is like no other
#include "llmc/init_weights.h"
#include "llmc/run_log.h"

#include <sys/resource.h>
#include <sys/wait.h>

static uint32_t next_random(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

static void write_tokens(char **argv, int argc) {
    size_t count = strtoull(argv[1], NULL, 10), V = strtoull(argv[2], NULL, 10);
    uint64_t random = argc > 3 ? strtoull(argv[3], NULL, 10) : 1;
    uint32_t rule = 5 + 2 * (uint32_t)(random / 100);
    int32_t header[256] = {20240520, 1, (int32_t)count, (int32_t)V};
    long bad_at = argc > 5 ? atol(argv[5]) : -1;
    uint32_t id = 0;
    header[5] = argc > 4 ? atoi(argv[4]) : 0;
    FILE *file = file_open(argv[0], "w");
    file_write(file, header, sizeof header, argv[0]);
    for (size_t i = 0; i < count; i++) {
        uint32_t r = next_random(&random);
        uint16_t word;
        id = r % 8 == 0 ? (r >> 3) % (uint32_t)V : (id * rule + 1) % (uint32_t)V;  // mostly a fixed successor
        word = (uint16_t)((long)i == bad_at ? (uint32_t)V : id);
        file_write(file, &word, sizeof word, argv[0]);
    }
    file_close(file, argv[0]);
}

// ----------------------------------------------------------------------------------------------------------------
// Comparing

static char *read_all(const char *path, size_t *bytes) {
    Message message;
    message_clear(&message);
    char *text = safe_read_text(path, (size_t)1 << 30, bytes, &message);
    if (!text) die("%s", message.text);
    return text;
}

// The next line of a log, its newline gone; NULL after the last.
static char *next_line(char **at) {
    char *line = *at, *end = line ? strchr(line, '\n') : NULL;
    if (!line || !*line) return NULL;
    if (!end) die("a torn line: %s", line);
    *end = 0;
    *at = end + 1;
    return line;
}

static int wanted(const char *name, char **keys, int count) {
    for (int i = 0; i < count; i++)
        if (strcmp(keys[i], name) == 0) return 1;
    return count == 0 && strcmp(name, "time_s") != 0 && strcmp(name, "tokens_per_s") != 0 && strcmp(name, "exposed_ms") != 0;
}

// Numbers bit by bit: a log writes each in the digits that bring it back.
static void same_log(char **argv, int argc) {
    size_t bytes;
    char *a_at = read_all(argv[0], &bytes), *b_at = read_all(argv[1], &bytes);
    for (uint64_t step = 0;; step++) {
        char *a_line = next_line(&a_at), *b_line = next_line(&b_at);
        if (!a_line && !b_line && step > 0) return;
        if (!a_line || !b_line) die("'%s' ends before step %llu", a_line ? argv[1] : argv[0], (unsigned long long)step);
        RunRecord a = run_log_line_values(a_line, strlen(a_line)), b = run_log_line_values(b_line, strlen(b_line));
        if (a.step != step || b.step != step || a.tokens != b.tokens)
            die("line %llu is not of that step in both:\n%s\n%s", (unsigned long long)step, a_line, b_line);
#define X(name)                                                                                           \
    if (wanted(#name, argv + 2, argc - 2) &&                                                              \
        (a.has_##name != b.has_##name || (a.has_##name && memcmp(&a.name, &b.name, sizeof a.name) != 0))) \
        die("step %llu: %s differs:\n%s\n%s", (unsigned long long)step, #name, a_line, b_line);
        RUN_LOG_VALUES(X)
#undef X
    }
}

static void open_safetensors(SafetensorsFile *file, const char *path) {
    Message message;
    message_clear(&message);
    if (!safetensors_open(file, path, &message)) die("%s", message.text);
}

static void *tensor_bytes(const SafetensorsFile *file, const SafetensorsEntry *entry) {
    Message message;
    message_clear(&message);
    size_t bytes = (size_t)(entry->end - entry->begin);
    void *data = checked_calloc(bytes, 1, "a tensor");
    if (!safetensors_read(file, entry, 0, data, bytes, &message)) die("%s", message.text);
    return data;
}

static void same_tensors(char **argv, int argc) {
    SafetensorsFile a, b;
    const char *prefix = argc > 2 ? argv[2] : "";
    size_t compared = 0;
    open_safetensors(&a, argv[0]);
    open_safetensors(&b, argv[1]);
    if (a.count != b.count) die("%zu and %zu tensors", a.count, b.count);
    for (size_t i = 0; i < a.count; i++) {
        const SafetensorsEntry *x = &a.entries[i], *y = safetensors_find(&b, x->name);
        if (strncmp(x->name, prefix, strlen(prefix)) != 0) continue;
        if (!y || y->end - y->begin != x->end - x->begin) die("tensor %s is in one only, or of two sizes", x->name);
        void *p = tensor_bytes(&a, x), *q = tensor_bytes(&b, y);
        if (memcmp(p, q, (size_t)(x->end - x->begin)) != 0) die("tensor %s differs", x->name);
        free(p);
        free(q);
        compared++;
    }
    if (!compared) die("no tensor is called %s...", prefix);
}

static void check_json(const char *path) {
    size_t bytes;
    Json json;
    char *text = read_all(path, &bytes);
    if (!json_parse(&json, text, bytes)) die("'%s': %s", path, json.error);
    if (json_root(&json)->type != JSON_OBJECT) die("'%s' is no object", path);
}

// ----------------------------------------------------------------------------------------------------------------
// Weight files of other programs, from a checkpoint

typedef struct {
    GPTConfig config;
    ParameterInfo table[GPT_PARAMETER_COUNT];
    float *weights;
} Weights;

static void load_weights(Weights *w, const char *dir) {
    InitWeights init;
    Checkpointer ck;
    Message message;
    message_clear(&message);
    if (init_weights_open(&init, dir, &message) != CHECKPOINT_OK) die("%s", message.text);
    w->config = init.config;
    w->weights = (float *)checked_calloc(parameter_table(&w->config, w->table), sizeof(float), "weights");
    CheckpointTensor *list =
        (CheckpointTensor *)checked_calloc(checkpoint_parameter_tensors(&w->config), sizeof *list, "a list");
    size_t n = checkpoint_parameters(list, &w->config, w->weights, CHECKPOINT_IN_MODEL, "transformer.", ST_F32);
    checkpoint_open(&ck, NULL, &w->config, list, n, NULL);
    if (init_weights_load(&init, &ck, &message) != CHECKPOINT_OK) die("%s", message.text);
}

static void put_float(FILE *file, float value, int as_bf16, const char *path) {
    uint16_t half = encode_bf16(value);
    if (as_bf16) file_write(file, &half, sizeof half, path);
    else file_write(file, &value, sizeof value, path);
}

// llm.c's file: the parameters one after another, wte with its padding rows.
static void write_bin(const Weights *w, const char *path, int version) {
    int32_t header[256] = {20240326,
                           version,
                           (int32_t)w->config.max_T,
                           (int32_t)w->config.V,
                           (int32_t)w->config.L,
                           (int32_t)w->config.NH,
                           (int32_t)w->config.C,
                           (int32_t)w->config.Vp};
    FILE *file = file_open(path, "w");
    file_write(file, header, sizeof header, path);
    for (size_t i = 0; i < GPT_PARAMETER_COUNT; i++)
        for (size_t e = 0; e < parameter_elems(&w->table[i]); e++)
            put_float(file, w->weights[w->table[i].offset_elems + e], version == 5, path);
    file_close(file, path);
}

// A folder as GPT2Model.save_pretrained() leaves it: names without "transformer.", the buffer of the causal mask beside
// the weights, and no training state. `nan_at` breaks the last tensor.
static void write_hf(const Weights *w, const char *dir, int as_bf16, int with_nan) {
    char path[SAFE_PATH_BYTES], text[2048], header[65536];
    size_t listed = checkpoint_parameter_tensors(&w->config), size = as_bf16 ? 2 : 4, used, at = 0;
    CheckpointTensor *list = (CheckpointTensor *)checked_calloc(listed, sizeof *list, "a list");
    Message message;
    message_clear(&message);
    checkpoint_parameters(list, &w->config, w->weights, CHECKPOINT_IN_MODEL, "", ST_F32);
    if (!make_dirs(dir, &message)) die("%s", message.text);
    path_join(path, dir, CHECKPOINT_CONFIG);
    FILE *file = file_open(path, "w");
    file_write(file, text, checkpoint_config_text(text, sizeof text, &w->config, as_bf16 ? ST_BF16 : ST_F32), path);
    file_close(file, path);

    used = (size_t)snprintf(header, sizeof header, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (size_t i = 0; i < listed; i++) {
        size_t shape[2], bytes = list[i].rows * list[i].cols * size;
        int ndim = checkpoint_shape(&list[i], shape);
        used += (size_t)snprintf(header + used, sizeof header - used, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[%zu",
                                 list[i].name, as_bf16 ? "BF16" : "F32", shape[0]);
        if (ndim == 2) used += (size_t)snprintf(header + used, sizeof header - used, ",%zu", shape[1]);
        used += (size_t)snprintf(header + used, sizeof header - used, "],\"data_offsets\":[%zu,%zu]}", at, at + bytes);
        at += bytes;
    }
    used += (size_t)snprintf(header + used, sizeof header - used,
                             ",\"h.0.attn.bias\":{\"dtype\":\"U8\",\"shape\":[1,1,2,2],\"data_offsets\":[%zu,%zu]}}",
                             at, at + 4);
    while (used % 8) header[used++] = ' ';
    uint64_t header_bytes = used;
    path_join(path, dir, CHECKPOINT_MODEL);
    file = file_open(path, "w");
    file_write(file, &header_bytes, sizeof header_bytes, path);
    file_write(file, header, used, path);
    for (size_t i = 0; i < listed; i++)
        for (size_t e = 0; e < list[i].rows * list[i].cols; e++) {
            size_t from = list[i].transpose ? e % list[i].rows * list[i].cols + e / list[i].rows : e;
            float value = ((const float *)list[i].data)[from];
            put_float(file, with_nan && i + 1 == listed && e == 3 ? NAN : value, as_bf16, path);
        }
    file_write(file, "\1\0\1\1", 4, path);
    file_close(file, path);
}

// Steep: nothing of the last id enters the model, nor of any position, so that its gradient is divided by next to nothing
// in the first layernorm, and others' by more than usual. Loud: one channel of it drowns the rest, which gives the first
// layernorm's largest output.
static void make_odd(Weights *w, int steep) {
    float *wte = w->weights + w->table[0].offset_elems, *wpe = w->weights + w->table[1].offset_elems;
    size_t C = w->config.C, last = (w->config.V - 1) * C;
    for (size_t i = 0; steep && i < last; i++) wte[i] *= 10.0f;
    for (size_t i = 0; steep && i < w->config.max_T * C; i++) wpe[i] = 0.0f;
    for (size_t i = 0; i < C; i++) wte[last + i] = !steep && i == 0 ? 100.0f : 0.0f;
}

static void convert(const char *kind, const char *from, const char *to) {
    Weights w;
    load_weights(&w, from);
    if (strcmp(kind, "steep") == 0 || strcmp(kind, "loud") == 0) make_odd(&w, strcmp(kind, "steep") == 0);
    if (strcmp(kind, "bin3") == 0) write_bin(&w, to, 3);
    else if (strcmp(kind, "bin5") == 0) write_bin(&w, to, 5);
    else write_hf(&w, to, strcmp(kind, "hf-bf16") == 0, strcmp(kind, "nan") == 0);
}

// The exit code is the command's.
static int peak(char **command) {
    struct rusage usage;
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        execvp(command[0], command);
        die("cannot run '%s': %s", command[0], strerror(errno));
    }
    if (child < 0 || wait4(child, &status, 0, &usage) != child) die("no process: %s", strerror(errno));
    printf("%ld\n", usage.ru_maxrss);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

int main(int argc, char **argv) {
    const char *verb = argc > 1 ? argv[1] : "";
    if (strcmp(verb, "tokens") == 0 && argc >= 5) write_tokens(argv + 2, argc - 2);
    else if (strcmp(verb, "same-log") == 0 && argc >= 4) same_log(argv + 2, argc - 2);
    else if (strcmp(verb, "same-tensors") == 0 && argc >= 4) same_tensors(argv + 2, argc - 2);
    else if (strcmp(verb, "peak") == 0 && argc >= 3) return peak(argv + 2);
    else if (strcmp(verb, "json") == 0 && argc == 3) check_json(argv[2]);
    else if (strcmp(verb, "convert") == 0 && argc == 5) convert(argv[2], argv[3], argv[4]);
    else die_usage("see the head of dev/test/train_tool.c");
    return 0;
}
