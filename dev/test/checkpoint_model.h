// checkpoint_model.h: a tiny model's memory and tensor list for the checkpoint tests.
#ifndef DEV_TEST_CHECKPOINT_MODEL_H
#define DEV_TEST_CHECKPOINT_MODEL_H

#include "../../llmc/init_weights.h"
#include "checkpoint_test.h"

typedef struct {
    GPTConfig config;
    size_t elems, count;
    float *arena[3];  // weights, m, v
    uint64_t step, counters[3];
    double window[5];
    CheckpointTensor *list;
    Checkpointer ck;
    Message message;
} TestModel;

static inline GPTConfig test_config(size_t L, size_t C, size_t V) {
    GPTConfig config = {L, 2, C, 0, 0, 6};
    config_set_vocab(&config, V);
    return config;
}

// As above, with a list of weights, moments and a few state arrays; saves go to `out`.
static inline void test_model_make(TestModel *m, const GPTConfig *config, const char *out) {
    ParameterInfo table[GPT_PARAMETER_COUNT];
    size_t each = checkpoint_parameter_tensors(config), n = 0;
    memset(m, 0, sizeof *m);
    m->config = *config;
    m->elems = parameter_table(config, table);
    for (int k = 0; k < 3; k++) m->arena[k] = (float *)checked_calloc(m->elems, sizeof(float), "a test model");
    m->list = (CheckpointTensor *)checked_calloc(3 * each + 3, sizeof *m->list, "a test list");
    n += checkpoint_parameters(m->list, config, m->arena[0], CHECKPOINT_IN_MODEL, "transformer.", ST_F32);
    checkpoint_array(&m->list[n++], "state.step", ST_U64, 1, &m->step);
    n += checkpoint_parameters(m->list + n, config, m->arena[1], CHECKPOINT_IN_STATE, "m.transformer.", ST_F32);
    n += checkpoint_parameters(m->list + n, config, m->arena[2], CHECKPOINT_IN_STATE, "v.transformer.", ST_F32);
    checkpoint_array(&m->list[n++], "state.counters", ST_U64, 3, m->counters);
    checkpoint_array(&m->list[n++], "state.window", ST_F64, 5, m->window);
    m->count = n;
    checkpoint_open(&m->ck, out, config, m->list, n, "{\"lr\":0.001,\"train\":\"a\\\"b\"}");
}

static inline void test_model_free(TestModel *m) {
    checkpoint_close(&m->ck);
    for (int k = 0; k < 3; k++) free(m->arena[k]);
    free(m->list);
}

static inline float test_value(uint64_t step, size_t which, size_t index) {
    uint64_t h = (step * 1000003 + which * 7919 + index) * 0x9E3779B97F4A7C15ull;
    return (float)(int32_t)(h >> 32) * 0x1p-31f;
}

// Calls body with the float `x`, a listed element's place: tensor t, arena k, offset e in the arena.
#define TEST_EACH(m, body)                                                       \
    for (size_t t = 0; t < (m)->count; t++)                                      \
        for (size_t k = 0; k < 3 && (m)->list[t].parameter >= 0; k++)            \
            for (size_t i = 0; i < (m)->list[t].rows * (m)->list[t].cols; i++) { \
                float *x = (float *)(m)->list[t].data + i;                       \
                if (x < (m)->arena[k] || x >= (m)->arena[k] + (m)->elems) break; \
                size_t e = (size_t)(x - (m)->arena[k]);                          \
                body;                                                            \
            }

// Everything a function of the step (padding and gaps stay as they are).
static inline void test_model_fill(TestModel *m, uint64_t step) {
    TEST_EACH(m, *x = test_value(step, k, e));
    m->step = step;
    for (int i = 0; i < 3; i++) m->counters[i] = step * 10 + (uint64_t)i;
    for (int i = 0; i < 5; i++) m->window[i] = (double)step / (i + 3);
}

// Every byte of memory to a pattern, padding included.
static inline void test_model_poison(TestModel *m) {
    for (int k = 0; k < 3; k++) memset(m->arena[k], 0x7B, m->elems * sizeof(float));
    m->step = 12345;
    memset(m->counters, 0x7B, sizeof m->counters);
    memset(m->window, 0x7B, sizeof m->window);
}

// Elements that are not what test_model_fill(step) makes.
static inline size_t test_model_wrong(TestModel *m, uint64_t step) {
    size_t wrong = m->step != step;
    TEST_EACH(m, wrong += *x != test_value(step, k, e));
    for (int i = 0; i < 3; i++) wrong += m->counters[i] != step * 10 + (uint64_t)i;
    for (int i = 0; i < 5; i++) wrong += m->window[i] != (double)step / (i + 3);
    return wrong;
}

// Elements that test_model_poison() did not leave, of all arenas.
static inline size_t test_model_touched(const TestModel *m) {
    uint32_t pattern = 0x7B7B7B7B, bits;
    size_t touched = m->step != 12345;
    for (int k = 0; k < 3; k++)
        for (size_t e = 0; e < m->elems; e++) {
            memcpy(&bits, &m->arena[k][e], 4);
            touched += bits != pattern;
        }
    return touched;
}

// fill + save; the code, with m->message fresh.
static inline int test_model_save(TestModel *m, uint64_t step) {
    test_model_fill(m, step);
    message_clear(&m->message);
    return checkpoint_save(&m->ck, step, &m->message);
}

// latest + load + compare: the step, or -1 with m->message. `passed` (may be NULL) gets what was passed over.
static inline long test_model_resume(TestModel *m, const char *out, Message *passed) {
    char dir[SAFE_PATH_BYTES];
    uint64_t step = 0;
    Message scratch;
    if (!passed) passed = &scratch;
    message_clear(passed);
    message_clear(&m->message);
    if (checkpoint_latest(out, dir, &step, passed) != CHECKPOINT_OK) return -1;
    test_model_poison(m);
    if (checkpoint_load(&m->ck, dir, &m->message) != CHECKPOINT_OK) return -1;
    size_t wrong = test_model_wrong(m, step);
    if (wrong) message_add(&m->message, "%zu elements of step %llu are wrong", wrong, (unsigned long long)step);
    return wrong ? -1 : (long)step;
}

// Entries of a folder whose name contains `part`.
static inline size_t test_entries(const char *path, const char *part) {
    size_t n = 0;
    DIR *dir = opendir(path);
    for (struct dirent *e; dir && (e = readdir(dir));) n += e->d_name[0] != '.' && strstr(e->d_name, part) != NULL;
    if (dir) closedir(dir);
    return n;
}

// "OUT/step_X/NAME" ("OUT/step_X" where name is NULL) into `path`; returns it.
static inline char *test_file(char *path, const char *out, uint64_t step, const char *name) {
    snprintf(path, SAFE_PATH_BYTES, "%.80s/step_%08llu%s%s", out, (unsigned long long)step, name ? "/" : "",
             name ? name : "");
    return path;
}

// A whole file; free it.
static inline unsigned char *test_slurp(const char *path, size_t *bytes) {
    FILE *f = file_open(path, "rb");
    fseek(f, 0, SEEK_END);
    *bytes = (size_t)ftell(f);
    rewind(f);
    unsigned char *data = (unsigned char *)checked_calloc(*bytes + 1, 1, path);
    file_read(f, data, *bytes, path);
    file_close(f, path);
    return data;
}

static inline void test_spill(const char *path, const void *data, size_t bytes) {
    unlink(path);
    FILE *f = file_open(path, "wb");
    file_write(f, data, bytes, path);
    file_close(f, path);
}

#endif
