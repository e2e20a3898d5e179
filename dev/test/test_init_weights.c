// test_init_weights.c: --init from Hugging Face files, checkpoints and llm.c's .bin, whole and damaged.
#include "checkpoint_model.h"

static int open_weights(InitWeights *init, const char *path, Message *message) {
    message_clear(message);
    int code = init_weights_open(init, path, message);
    CHECK(code == CHECKPOINT_OK || message->text[0], "%s: refused without a word", path);
    return code;
}

// Elements that are not the fixture's formula, over the listed weights of `m`.
static size_t wrong_weights(const TestModel *m) {
    size_t wrong = 0;
    for (size_t t = 0; t < m->count; t++) {
        const CheckpointTensor *x = &m->list[t];
        if (x->file != CHECKPOINT_IN_MODEL) continue;
        for (size_t i = 0; i < x->rows * x->cols; i++)
            wrong +=
                ((float *)x->data)[i] != fixture_value(x->name, x->transpose ? i % x->cols * x->rows + i / x->cols : i);
    }
    return wrong;
}

// Opens, loads into a fresh model of the shape found, compares, closes. Notes go to `notes`.
static void check_weights(const char *path, size_t NH, Message *notes) {
    InitWeights init;
    TestModel m;
    Message message;
    message_clear(notes);
    if (open_weights(&init, path, &message) != CHECKPOINT_OK) {
        CHECK(0, "%s", message.text);
        return;
    }
    *notes = init.notes;
    GPTConfig *c = &init.config;
    CHECK(c->L == 2 && c->NH == NH && c->C == 8 && c->V == 19 && c->Vp == 128 && c->max_T == 6,
          "L %zu NH %zu C %zu V %zu Vp %zu max_T %zu", c->L, c->NH, c->C, c->V, c->Vp, c->max_T);
    test_model_make(&m, c, NULL);
    test_model_poison(&m);
    CHECK(init_weights_load(&init, &m.ck, &message) == CHECKPOINT_OK, "%s", message.text);
    CHECK(wrong_weights(&m) == 0, "%s: %zu weights are wrong", path, wrong_weights(&m));
    size_t touched = test_model_touched(&m), weights = 0;
    for (size_t t = 0; t < m.count; t++)
        if (m.list[t].file == CHECKPOINT_IN_MODEL) weights += m.list[t].rows * m.list[t].cols;
    CHECK(touched == weights, "%zu elements were written, there are %zu weights", touched, weights);
    init_weights_close(&init);
    test_model_free(&m);
}

TEST(a_hugging_face_directory) {
    char path[SAFE_PATH_BYTES];
    Message notes;
    fixture_path(path, "gpt2");
    check_weights(path, 2, &notes);
    CHECK(!notes.text[0], "%s", notes.text);
    strcat(path, "/model.safetensors");
    check_weights(path, 2, &notes);
    CHECK(!notes.text[0], "%s", notes.text);
}

// Copies a fixture to `to`.
static void copy_fixture(const char *name, const char *to) {
    char path[SAFE_PATH_BYTES];
    size_t bytes;
    fixture_path(path, name);
    unsigned char *data = test_slurp(path, &bytes);
    test_spill(to, data, bytes);
    free(data);
}

TEST(half_precision_without_prefix) {
    char dir[64], path[SAFE_PATH_BYTES], config[SAFE_PATH_BYTES];
    InitWeights init;
    Message notes;
    temporary_dir(dir);
    path_join(path, dir, "w.safetensors");
    path_join(config, dir, "config.json");
    copy_fixture("gpt2_f16.safetensors", path);
    CHECK(open_weights(&init, path, &notes) == CHECKPOINT_MISMATCH && strstr(notes.text, "heads") &&
              strstr(notes.text, "config.json"),
          "8 channels without config.json: %s", notes.text);
    copy_fixture("gpt2/config.json", config);
    check_weights(path, 2, &notes);
    CHECK(!notes.text[0], "buffers and an equal lm_head are worth no note: %s", notes.text);
    // Another lm_head: noted.
    size_t bytes;
    SafetensorsFile file;
    CHECK(safetensors_open(&file, path, &notes), "%s", notes.text);
    size_t at = (size_t)(file.data_start + safetensors_find(&file, "lm_head.weight")->begin);
    safetensors_close(&file);
    unsigned char *data = test_slurp(path, &bytes);
    data[at + 20] ^= 1;
    test_spill(path, data, bytes);
    check_weights(path, 2, &notes);
    CHECK(strstr(notes.text, "lm_head.weight differs"), "%s", notes.text);
    free(data);
    remove_tree(dir);
}

// A checkpoint of ours serves as well; damaged it is refused although the weights could be read.
TEST(a_checkpoint_of_ours) {
    char out[64], path[SAFE_PATH_BYTES], file[SAFE_PATH_BYTES];
    TestModel m, n;
    InitWeights init;
    Message message;
    temporary_dir(out);
    GPTConfig config = test_config(2, 12, 33);
    test_model_make(&m, &config, out);
    CHECK(test_model_save(&m, 4) == CHECKPOINT_OK, "%s", m.message.text);
    CHECK(open_weights(&init, out, &message) == CHECKPOINT_NONE && strstr(message.text, "step_00000004"), "%s",
          message.text);
    CHECK(open_weights(&init, test_file(path, out, 4, NULL), &message) == CHECKPOINT_OK, "%s", message.text);
    CHECK(memcmp(&init.config, &config, sizeof config) == 0, "another config");
    test_model_make(&n, &init.config, NULL);
    CHECK(init_weights_load(&init, &n.ck, &message) == CHECKPOINT_OK, "%s", message.text);
    size_t wrong = 0;
    TEST_EACH(&n, wrong += k == 0 && *x != test_value(4, 0, e));
    CHECK(wrong == 0, "%zu weights are wrong", wrong);
    test_model_free(&n);
    GPTConfig larger = test_config(2, 24, 33), deeper = test_config(3, 12, 33);
    test_model_make(&n, &larger, NULL);
    test_model_poison(&n);
    message_clear(&message);
    CHECK(init_weights_load(&init, &n.ck, &message) == CHECKPOINT_MISMATCH && strstr(message.text, "[33, 12]"), "%s",
          message.text);
    CHECK(test_model_touched(&n) == 0, "memory was touched");
    test_model_free(&n);
    test_model_make(&n, &deeper, NULL);
    message_clear(&message);
    CHECK(init_weights_load(&init, &n.ck, &message) == CHECKPOINT_MISMATCH && strstr(message.text, "2 layers"), "%s",
          message.text);
    test_model_free(&n);
    init_weights_close(&init);
    FILE *f = fopen(test_file(file, out, 4, CHECKPOINT_MODEL), "r+b");
    fseek(f, -9, SEEK_END);
    int byte = fgetc(f);
    fseek(f, -9, SEEK_END);
    fputc(byte ^ 16, f);
    fclose(f);
    CHECK(open_weights(&init, path, &message) == CHECKPOINT_DAMAGED && strstr(message.text, "checksum"), "%s",
          message.text);
    test_model_free(&m);
    remove_tree(out);
}

// A model of 128 channels without config.json: two heads of 64 are assumed, aloud.
TEST(heads_are_assumed_aloud) {
    char out[64], path[SAFE_PATH_BYTES];
    TestModel m;
    InitWeights init;
    Message message;
    temporary_dir(out);
    GPTConfig config = test_config(1, 128, 9);
    config.NH = 4;
    test_model_make(&m, &config, out);
    CHECK(test_model_save(&m, 1) == CHECKPOINT_OK, "%s", m.message.text);
    unlink(test_file(path, out, 1, CHECKPOINT_CONFIG));
    unlink(test_file(path, out, 1, CHECKPOINT_MANIFEST));
    CHECK(open_weights(&init, test_file(path, out, 1, NULL), &message) == CHECKPOINT_OK, "%s", message.text);
    CHECK(init.config.NH == 2 && strstr(init.notes.text, "2 heads of 64"), "%zu heads: %s", init.config.NH,
          init.notes.text);
    init_weights_close(&init);
    test_model_free(&m);
    remove_tree(out);
}

TEST(configs_that_do_not_fit) {
    static const struct {
        const char *from, *to, *words;
    } edits[] = {{"\"n_layer\": 2", "\"n_layer\": 3", "2 and 3 layers"},
                 {"\"n_head\": 2", "\"n_head\": 3", "does not divide"},
                 {"\"n_head\": 2", "\"n_head\": 0", "n_head"},
                 {"\"n_embd\": 8", "\"n_embd\": -8", "n_embd"},
                 {"\"n_embd\": 8", "\"n_embd\": 8.5", "n_embd"},
                 {"\"vocab_size\": 19", "\"vocab_size\": 20", "19 and 20"},
                 {"\"vocab_size\": 19", "\"vocab_size\": 99999999999999999999", "vocab_size"},
                 {"gelu_new", "relu", "activation_function"},
                 {"\"model_type\": \"gpt2\"", "\"model_type\": \"llama\"", "model_type"},
                 {"1e-05", "1e-06", "layer_norm_epsilon"},
                 {"\"scale_attn_by_inverse_layer_idx\": false", "\"scale_attn_by_inverse_layer_idx\": true",
                  "inverse_layer_idx"},
                 {"{", "[", "no JSON"},
                 {"\"n_positions\": 6", "\"n_positions\": 7", "6 and 7 positions"}};
    char dir[64], path[SAFE_PATH_BYTES], config[SAFE_PATH_BYTES];
    InitWeights init;
    Message message;
    size_t bytes;
    temporary_dir(dir);
    path_join(path, dir, CHECKPOINT_MODEL);
    copy_fixture("gpt2/model.safetensors", path);
    fixture_path(path, "gpt2/config.json");
    char *text = (char *)test_slurp(path, &bytes), edited[4096];
    path_join(config, dir, CHECKPOINT_CONFIG);
    for (size_t i = 0; i < sizeof edits / sizeof edits[0]; i++) {
        char *at = strstr(text, edits[i].from);
        CHECK(at, "no %s in config.json", edits[i].from);
        if (!at) continue;
        int n = snprintf(edited, sizeof edited, "%.*s%s%s", (int)(at - text), text, edits[i].to,
                         at + strlen(edits[i].from));
        test_spill(config, edited, (size_t)n);
        CHECK(open_weights(&init, dir, &message) != CHECKPOINT_OK && strstr(message.text, edits[i].words), "%s: %s",
              edits[i].to, message.text);
    }
    free(text);
    remove_tree(dir);
}

// Changes the first `from` in the header of the file at `path` to `to` (same length) in a copy at `out`.
static void edit_header(const char *path, const char *from, const char *to, const char *out) {
    size_t bytes, at = 8;
    unsigned char *data = test_slurp(path, &bytes);
    while (at + strlen(from) < bytes && memcmp(data + at, from, strlen(from)) != 0) at++;
    CHECK(at + strlen(from) < bytes && strlen(from) == strlen(to), "no %s in the header", from);
    memcpy(data + at, to, strlen(to));
    test_spill(out, data, bytes);
    free(data);
}

TEST(models_that_are_not_gpt2) {
    static const struct {
        const char *from, *to, *words;
    } edits[] = {{"transformer.wte.weight", "transformer.wtx.weight", "no GPT-2 model"},
                 {"transformer.h.1.mlp.c_fc.bias", "transformer.h.1.mlp.c_fx.bias",
                  "transformer.h.1.mlp.c_fc.bias is missing"},
                 {"transformer.h.1.ln_1.weight", "transformer.h.1.ln_x.weight", "1 and 2 layers"},
                 {"\"shape\":[8,24]", "\"shape\":[24,8]", "[24, 8]"}};
    char dir[64], path[SAFE_PATH_BYTES], source[SAFE_PATH_BYTES];
    InitWeights init;
    Message message;
    temporary_dir(dir);
    fixture_path(source, "gpt2/model.safetensors");
    path_join(path, dir, CHECKPOINT_CONFIG);
    copy_fixture("gpt2/config.json", path);
    path_join(path, dir, CHECKPOINT_MODEL);
    for (size_t i = 0; i < 4; i++) {
        edit_header(source, edits[i].from, edits[i].to, path);
        CHECK(open_weights(&init, dir, &message) == CHECKPOINT_MISMATCH && strstr(message.text, edits[i].words),
              "%s: %s", edits[i].to, message.text);
    }
    unlink(path);
    CHECK(open_weights(&init, dir, &message) == CHECKPOINT_NONE, "an empty folder: %s", message.text);
    path_join(source, dir, "pytorch_model.bin");
    test_spill(source, "x", 1);
    CHECK(open_weights(&init, dir, &message) == CHECKPOINT_NONE && strstr(message.text, "pickle"), "%s", message.text);
    path_join(source, dir, "model.safetensors.index.json");
    test_spill(source, "x", 1);
    CHECK(open_weights(&init, dir, &message) == CHECKPOINT_NONE && strstr(message.text, "several files"), "%s",
          message.text);
    CHECK(open_weights(&init, "/nonexistent.safetensors", &message) == CHECKPOINT_DAMAGED, "nothing there: %s",
          message.text);
    remove_tree(dir);
}

// ----------------------------------------------------------------------------------------------------------------

// llm.c's file as its train_gpt2 writes it: 256 ints, then each parameter's layers in turn, linear weights (OC, C).
static size_t write_bin(const char *path, int version, int32_t Vp) {
    static const char *const names[16] = {"wte.weight",         "wpe.weight",         "ln_1.weight",
                                          "ln_1.bias",          "attn.c_attn.weight", "attn.c_attn.bias",
                                          "attn.c_proj.weight", "attn.c_proj.bias",   "ln_2.weight",
                                          "ln_2.bias",          "mlp.c_fc.weight",    "mlp.c_fc.bias",
                                          "mlp.c_proj.weight",  "mlp.c_proj.bias",    "ln_f.weight",
                                          "ln_f.bias"};
    static const size_t shapes[16][2] = {{19, 8}, {6, 8}, {1, 8},  {1, 8},  {24, 8}, {1, 24}, {8, 8}, {1, 8},
                                         {1, 8},  {1, 8}, {32, 8}, {1, 32}, {8, 32}, {1, 8},  {1, 8}, {1, 8}};
    int32_t header[256] = {20240326, version, 6, 19, 2, 2, 8, Vp};
    FILE *f = file_open(path, "wb");
    size_t bytes = sizeof header;
    file_write(f, header, sizeof header, path);
    for (int p = 0; p < 16; p++)
        for (int l = 0; l < (p < 2 || p > 13 ? 1 : 2); l++)
            for (size_t r = 0; r < (p ? shapes[p][0] : (size_t)Vp); r++)
                for (size_t c = 0; c < shapes[p][1]; c++) {
                    char name[96];
                    int matrix = p > 1 && shapes[p][0] > 1;
                    if (p < 2 || p > 13) snprintf(name, sizeof name, "transformer.%s", names[p]);
                    else snprintf(name, sizeof name, "transformer.h.%d.%s", l, names[p]);
                    float x = fixture_value(name, matrix ? c * shapes[p][0] + r : r * shapes[p][1] + c);
                    if (p == 0 && r >= 19) x = NAN;  // padding may hold anything
                    uint16_t half = encode_bf16(x);
                    file_write(f, version == 3 ? (void *)&x : (void *)&half, version == 3 ? 4 : 2, path);
                    bytes += version == 3 ? 4 : 2;
                }
    file_close(f, path);
    return bytes;
}

TEST(llmc_fp32) {
    char dir[64], path[SAFE_PATH_BYTES];
    Message notes;
    temporary_dir(dir);
    path_join(path, dir, "gpt2.bin");
    for (int32_t Vp = 19; Vp <= 128; Vp += 109) {
        write_bin(path, 3, Vp);
        check_weights(path, 2, &notes);
    }
    remove_tree(dir);
}

TEST(llmc_bf16) {
    char dir[64], path[SAFE_PATH_BYTES];
    InitWeights init;
    TestModel m;
    Message message;
    temporary_dir(dir);
    path_join(path, dir, "gpt2.bin");
    write_bin(path, 5, 128);
    CHECK(open_weights(&init, path, &message) == CHECKPOINT_OK, "%s", message.text);
    test_model_make(&m, &init.config, NULL);
    CHECK(init_weights_load(&init, &m.ck, &message) == CHECKPOINT_OK, "%s", message.text);
    for (size_t t = 0; t < m.count; t++) {
        const CheckpointTensor *x = &m.list[t];
        for (size_t i = 0; x->file == CHECKPOINT_IN_MODEL && i < x->rows * x->cols; i++) {
            float expected = fixture_value(x->name, x->transpose ? i % x->cols * x->rows + i / x->cols : i),
                  found = ((float *)x->data)[i];
            uint32_t bits;
            memcpy(&bits, &found, 4);
            CHECK((bits & 0xFFFF) == 0 && fabsf(found - expected) <= fabsf(expected) / 256, "%s[%zu] is %g, not %g",
                  x->name, i, (double)found, (double)expected);
        }
    }
    init_weights_close(&init);
    test_model_free(&m);
    remove_tree(dir);
}

TEST(llmc_damaged) {
    static const struct {
        int place;
        int32_t value;
        const char *words;
    } edits[] = {{0, 20240520, "token file"},
                 {0, 20240327, "debug state"},
                 {0, 20240328, "tokenizer"},
                 {0, 20240527, "optimizer"},
                 {0, 7, "begins with 7"},
                 {1, 1, "version 1"},
                 {1, 4, "version 4"},
                 {1, 5, "has"},
                 {2, 7, "means"},
                 {2, 0, "max_T"},
                 {2, -1, "max_T"},
                 {2, INT32_MAX, "max_T"},
                 {3, 129, "fit each other"},
                 {4, 3, "means"},
                 {4, -2, "L = -2"},
                 {5, 3, "fit each other"},
                 {5, 0, "NH"},
                 {6, 16, "means"},
                 {6, INT32_MIN, "C = "},
                 {7, 18, "fit each other"},
                 {7, 129, "means"}};
    char dir[64], path[SAFE_PATH_BYTES];
    InitWeights init;
    Message message;
    temporary_dir(dir);
    path_join(path, dir, "gpt2.bin");
    size_t bytes = write_bin(path, 3, 128), n;
    unsigned char *data = test_slurp(path, &n);
    CHECK(n == bytes, "%zu bytes", n);
    for (size_t i = 0; i < sizeof edits / sizeof edits[0]; i++) {
        int32_t was;
        memcpy(&was, data + 4 * edits[i].place, 4);
        memcpy(data + 4 * edits[i].place, &edits[i].value, 4);
        test_spill(path, data, bytes);
        CHECK(open_weights(&init, path, &message) == CHECKPOINT_DAMAGED && strstr(message.text, edits[i].words),
              "word %d = %d: %s", edits[i].place, edits[i].value, message.text);
        memcpy(data + 4 * edits[i].place, &was, 4);
    }
    static const size_t cuts[] = {0, 3, 1023, 1024, 5000};
    for (size_t i = 0; i < 6; i++) {
        test_spill(path, data, i < 5 ? cuts[i] : bytes - 1);
        CHECK(open_weights(&init, path, &message) == CHECKPOINT_DAMAGED && strstr(message.text, "bytes"), "cut %zu: %s",
              i, message.text);
    }
    free(data);
    remove_tree(dir);
}

int main(void) {
    RUN(a_hugging_face_directory);
    RUN(half_precision_without_prefix);
    RUN(a_checkpoint_of_ours);
    RUN(heads_are_assumed_aloud);
    RUN(configs_that_do_not_fit);
    RUN(models_that_are_not_gpt2);
    RUN(llmc_fp32);
    RUN(llmc_bf16);
    RUN(llmc_damaged);
    return test_summary();
}
