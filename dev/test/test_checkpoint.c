// test_checkpoint.c: saving and resuming: round trips, layout, damage, rotation, refusals. Crashes and full disks are
// in test_checkpoint_faults.c.
#include "checkpoint_model.h"

static const char *const file_names[] = {CHECKPOINT_MODEL, CHECKPOINT_STATE, CHECKPOINT_CONFIG, CHECKPOINT_MANIFEST};

TEST(round_trip_is_exact) {
    char out[64], path[SAFE_PATH_BYTES];
    TestModel m;
    temporary_dir(out);
    GPTConfig config = test_config(3, 24, 150);
    test_model_make(&m, &config, out);
    CHECK(test_model_save(&m, 7) == CHECKPOINT_OK, "%s", m.message.text);
    CHECK(test_model_resume(&m, out, NULL) == 7, "%s", m.message.text);
    // Padding rows of wte and the gaps between tensors are nobody's: loading leaves them alone.
    uint32_t bits;
    memcpy(&bits, m.arena[0] + config.V * config.C, 4);
    CHECK(bits == 0x7B7B7B7B, "a padding row was written");
    CHECK(test_entries(out, "") == 1 && test_entries(test_file(path, out, 7, NULL), "") == 4, "files beside the four");
    char *options = checkpoint_options(path, &m.message);
    CHECK(options && strcmp(options, "{\"lr\":0.001,\"train\":\"a\\\"b\"}") == 0, "options are %s",
          options ? options : "gone");
    free(options);
    GPTConfig told;
    CHECK(checkpoint_config(path, &told, &m.message) == CHECKPOINT_OK && memcmp(&told, &config, sizeof told) == 0,
          "config: %s", m.message.text);
    test_model_free(&m);
    remove_tree(out);
}

// However the tensors are cut into blocks, and whoever copies them, the files are the same bytes.
static size_t copies;
static void read_block(void *ctx, const CheckpointTensor *t, size_t row, size_t rows, size_t col, size_t cols,
                       void *host) {
    const char *far = (const char *)t->data + *(ptrdiff_t *)ctx;
    for (size_t r = 0; r < rows; r++)
        memcpy((char *)host + r * cols * 4, far + ((row + r) * t->cols + col) * 4, cols * 4);
    copies++;
}
static void write_block(void *ctx, const CheckpointTensor *t, size_t row, size_t rows, size_t col, size_t cols,
                        const void *host) {
    char *far = (char *)t->data + *(ptrdiff_t *)ctx;
    for (size_t r = 0; r < rows; r++)
        memcpy(far + ((row + r) * t->cols + col) * 4, (const char *)host + r * cols * 4, cols * 4);
    copies++;
}

TEST(blocks_and_callbacks_change_nothing) {
    char out[64], path[SAFE_PATH_BYTES];
    unsigned char *first[4], *second;
    size_t bytes[4], n;
    TestModel m;
    ptrdiff_t shift = 0;
    temporary_dir(out);
    GPTConfig config = test_config(2, 8, 19);
    test_model_make(&m, &config, out);
    CHECK(test_model_save(&m, 1) == CHECKPOINT_OK, "%s", m.message.text);
    for (int f = 0; f < 4; f++) first[f] = test_slurp(test_file(path, out, 1, file_names[f]), &bytes[f]);
    for (int round = 0; round < 3; round++) {
        m.ck.stage_bytes = round == 0   ? 32 * 8
                           : round == 1 ? 7 * 32 * 8 + 8
                                        : CHECKPOINT_STAGE_BYTES;  // 32: longest line
        m.ck.read = round ? read_block : NULL;
        m.ck.write = round ? write_block : NULL;
        m.ck.ctx = &shift;
        copies = 0;
        CHECK(test_model_save(&m, 1) == CHECKPOINT_OK, "%s", m.message.text);
        for (int f = 0; f < 4; f++) {
            second = test_slurp(test_file(path, out, 1, file_names[f]), &n);
            CHECK(n == bytes[f] && memcmp(first[f], second, n) == 0, "round %d: %s differs", round, file_names[f]);
            free(second);
        }
        CHECK(test_model_resume(&m, out, NULL) == 1, "round %d: %s", round, m.message.text);
        CHECK((copies > 0) == (round > 0), "%zu copies", copies);
    }
    for (int f = 0; f < 4; f++) free(first[f]);
    test_model_free(&m);
    remove_tree(out);
}

// Names, shapes and transposition are Hugging Face's: the fixture's formula, read with the plain reader.
static void fill_by_formula(TestModel *m) {
    test_model_fill(m, 1);
    for (size_t t = 0; t < m->count; t++) {
        const CheckpointTensor *x = &m->list[t];
        if (x->file != CHECKPOINT_IN_MODEL) continue;
        for (size_t i = 0; i < x->rows * x->cols; i++)
            ((float *)x->data)[i] = fixture_value(x->name, x->transpose ? i % x->cols * x->rows + i / x->cols : i);
    }
}

TEST(the_layout_is_hugging_faces) {
    char out[64], path[SAFE_PATH_BYTES], reference[SAFE_PATH_BYTES];
    TestModel m;
    SafetensorsFile ours, theirs;
    temporary_dir(out);
    GPTConfig config = test_config(2, 8, 19);
    test_model_make(&m, &config, out);
    fill_by_formula(&m);
    CHECK(checkpoint_save(&m.ck, 1, &m.message) == CHECKPOINT_OK, "%s", m.message.text);
    fixture_path(reference, "gpt2/model.safetensors");
    CHECK(safetensors_open(&ours, test_file(path, out, 1, CHECKPOINT_MODEL), &m.message), "%s", m.message.text);
    CHECK(safetensors_open(&theirs, reference, &m.message), "%s", m.message.text);
    CHECK(ours.count == theirs.count && ours.count == 28, "%zu tensors, transformers has %zu", ours.count,
          theirs.count);
    for (size_t i = 0; i < theirs.count; i++) {
        const SafetensorsEntry *a = &theirs.entries[i], *b = safetensors_find(&ours, a->name);
        char x[4096], y[4096];
        size_t bytes = (size_t)(a->end - a->begin);
        int same = b && b->dtype == a->dtype && b->ndim == a->ndim && memcmp(a->shape, b->shape, sizeof a->shape) == 0;
        CHECK(same && bytes <= sizeof x, "%s: shape or dtype", a->name);
        if (!same) continue;
        safetensors_read(&theirs, a, 0, x, bytes, &m.message);
        safetensors_read(&ours, b, 0, y, bytes, &m.message);
        CHECK(memcmp(x, y, bytes) == 0, "%s: values", a->name);
    }
    CHECK(strcmp(safetensors_metadata(&ours, "format"), "pt") == 0, "format");
    safetensors_close(&ours);
    safetensors_close(&theirs);
    test_model_free(&m);
    remove_tree(out);
}

TEST(transformers_opens_it) {
    char out[64], path[SAFE_PATH_BYTES], script[SAFE_PATH_BYTES], line[1024];
    TestModel m;
    const char *python = getenv("TEST_PYTHON") ? getenv("TEST_PYTHON") : "python3";
    snprintf(line, sizeof line, "'%.200s' -c 'import torch, transformers' >/dev/null 2>&1", python);
    if (system(line) != 0) SKIP("no python3 with torch and transformers (TEST_PYTHON names another)");
    temporary_dir(out);
    GPTConfig config = test_config(2, 8, 19);
    test_model_make(&m, &config, out);
    fill_by_formula(&m);
    CHECK(checkpoint_save(&m.ck, 1, &m.message) == CHECKPOINT_OK, "%s", m.message.text);
    fixture_path(script, "../checkpoint_fixtures.py");
    snprintf(line, sizeof line, "'%.200s' '%.200s' --check-hf '%.200s' >&2", python, script,
             test_file(path, out, 1, NULL));
    CHECK(system(line) == 0, "transformers refuses our checkpoint");
    test_model_free(&m);
    remove_tree(out);
}

TEST(bf16_weights_and_conversion) {
    char out[64], path[SAFE_PATH_BYTES];
    TestModel m;
    SafetensorsFile file;
    temporary_dir(out);
    GPTConfig config = test_config(1, 8, 19);
    test_model_make(&m, &config, out);
    uint16_t *halves = (uint16_t *)checked_calloc(m.elems, 2, "bf16 weights");
    size_t each = checkpoint_parameter_tensors(&config), wrong = 0;
    checkpoint_parameters(m.list, &config, halves, CHECKPOINT_IN_MODEL, "transformer.", ST_BF16);
    for (size_t e = 0; e < m.elems; e++) halves[e] = encode_bf16(test_value(3, 0, e));
    message_clear(&m.message);
    CHECK(checkpoint_save(&m.ck, 3, &m.message) == CHECKPOINT_OK, "%s", m.message.text);
    CHECK(safetensors_open(&file, test_file(path, out, 3, CHECKPOINT_MODEL), &m.message), "%s", m.message.text);
    CHECK(file.entries[0].dtype == ST_BF16, "stored as %s", safetensors_dtype_name(file.entries[0].dtype));
    safetensors_close(&file);
    test_file(path, out, 3, NULL);
    memset(halves, 0x11, m.elems * 2);
    CHECK(checkpoint_load(&m.ck, path, &m.message) == CHECKPOINT_OK, "%s", m.message.text);
    for (size_t t = 0; t < each; t++)
        for (size_t i = 0; i < m.list[t].rows * m.list[t].cols; i++) {
            uint16_t *x = (uint16_t *)m.list[t].data + i;
            wrong += *x != encode_bf16(test_value(3, 0, (size_t)(x - halves)));
        }
    CHECK(wrong == 0, "bf16 to bf16: %zu wrong", wrong);
    checkpoint_parameters(m.list, &config, m.arena[0], CHECKPOINT_IN_MODEL, "transformer.", ST_F32);  // into fp32
    CHECK(checkpoint_load(&m.ck, path, &m.message) == CHECKPOINT_OK, "%s", m.message.text);
    TEST_EACH(
        &m, if (k == 0) {
            float expected;
            uint32_t bits = (uint32_t)encode_bf16(test_value(3, 0, e)) << 16;
            memcpy(&expected, &bits, 4);
            wrong += *x != expected;
        });
    CHECK(wrong == 0, "bf16 to fp32: %zu wrong", wrong);
    free(halves);
    test_model_free(&m);
    remove_tree(out);
}

TEST(the_same_step_again_replaces) {
    for (int exchange = 0; exchange < 2; exchange++) {
        char out[64], path[SAFE_PATH_BYTES];
        TestModel m;
        temporary_dir(out);
        GPTConfig config = test_config(1, 8, 19);
        test_model_make(&m, &config, out);
        m.ck.may_exchange = exchange;
        CHECK(test_model_save(&m, 5) == CHECKPOINT_OK, "%s", m.message.text);
        CHECK(truncate(test_file(path, out, 5, CHECKPOINT_STATE), 10) == 0,
              "truncate");  // damaged or not, it is replaced as a whole
        CHECK(test_model_save(&m, 5) == CHECKPOINT_OK, "%s", m.message.text);
        CHECK(test_model_resume(&m, out, NULL) == 5 && test_entries(out, "") == 1, "exchange %d: %s", exchange,
              m.message.text);
        test_model_free(&m);
        remove_tree(out);
    }
}

// ----------------------------------------------------------------------------------------------------------------

// Steps 1 (good) and 2 (to be damaged); *m resumes.
static void two_steps(TestModel *m, char *out) {
    temporary_dir(out);
    GPTConfig config = test_config(1, 8, 19);
    test_model_make(m, &config, out);
    CHECK(test_model_save(m, 1) == CHECKPOINT_OK && test_model_save(m, 2) == CHECKPOINT_OK, "%s", m->message.text);
    CHECK(test_model_resume(m, out, NULL) == 2, "before the damage: %s", m->message.text);
}

TEST(cut_files_are_passed_over) {
    char out[64], path[SAFE_PATH_BYTES];
    TestModel m;
    Message passed;
    two_steps(&m, out);
    for (int f = 0; f < 4; f++) {
        size_t bytes;
        unsigned char *data = test_slurp(test_file(path, out, 2, file_names[f]), &bytes);
        for (size_t keep = bytes; keep-- > 0; keep -= keep > 9 ? min_size(keep - 9, bytes / 12) : 0) {
            test_spill(path, data, keep);
            CHECK(test_model_resume(&m, out, &passed) == 1, "%s cut to %zu of %zu: %s", file_names[f], keep, bytes,
                  m.message.text);
            CHECK(strstr(passed.text, "passed over step_00000002: ") && strstr(passed.text, file_names[f]), "%s",
                  passed.text);
        }
        unsigned char *longer = (unsigned char *)checked_calloc(bytes + 1, 1, "a longer file");
        memcpy(longer, data, bytes);
        test_spill(path, longer, bytes + 1);
        CHECK(test_model_resume(&m, out, &passed) == 1, "%s with a byte more", file_names[f]);
        unlink(path);
        CHECK(test_model_resume(&m, out, &passed) == 1 && strstr(passed.text, "missing"), "%s missing: %s",
              file_names[f], passed.text);
        test_spill(path, data, bytes);
        CHECK(test_model_resume(&m, out, &passed) == 2 && !passed.text[0], "%s repaired: %s", file_names[f],
              passed.text);
        free(longer);
        free(data);
    }
    test_model_free(&m);
    remove_tree(out);
}

TEST(flipped_bits_are_recognised) {
    char out[64], path[SAFE_PATH_BYTES];
    TestModel m;
    Message why;
    uint64_t step;
    static char buffer[1 << 16];
    two_steps(&m, out);
    for (int f = 0; f < 4; f++) {
        size_t bytes, accepted = 0;
        unsigned char *data = test_slurp(test_file(path, out, 2, file_names[f]), &bytes);
        FILE *file = fopen(path, "r+b");
        setvbuf(file, NULL, _IONBF, 0);
        char dir[SAFE_PATH_BYTES];
        test_file(dir, out, 2, NULL);
        for (size_t at = 0; at < bytes; at += f == 3 ? 1 : 1 + bytes / 100)
            for (int bit = 0; bit < 8; bit++) {
                unsigned char byte = (unsigned char)(data[at] ^ 1u << bit);
                fseek(file, (long)at, SEEK_SET);
                fwrite(&byte, 1, 1, file);
                message_clear(&why);
                int code = checkpoint_verify(dir, &step, buffer, sizeof buffer, &why);
                // The manifest's own number may differ in a digit's case, and in its step (the folder tells).
                int harmless =
                    f == 3 && code == CHECKPOINT_OK && (step != 2 || (data[at] >= 'a' && data[at] <= 'f' && bit == 5));
                accepted += code == CHECKPOINT_OK && !harmless;
                CHECK(code == CHECKPOINT_OK || why.text[0], "refused without a word");
                fseek(file, (long)at, SEEK_SET);
                fwrite(&data[at], 1, 1, file);
            }
        fclose(file);
        free(data);
        CHECK(accepted == 0, "%s: %zu flips were not recognised", file_names[f], accepted);
        CHECK(test_model_resume(&m, out, NULL) == 2, "after repair: %s", m.message.text);
    }
    // The step told in the manifest must be the folder's.
    size_t bytes;
    unsigned char *data = test_slurp(test_file(path, out, 2, CHECKPOINT_MANIFEST), &bytes);
    *(strstr((char *)data, "\"step\":2") + 7) = '3';
    test_spill(path, data, bytes);
    CHECK(test_model_resume(&m, out, &why) == 1 && strstr(why.text, "step 3"), "%s", why.text);
    free(data);
    test_model_free(&m);
    remove_tree(out);
}

TEST(unfinished_and_weights_only) {
    char out[64], path[SAFE_PATH_BYTES], dir[SAFE_PATH_BYTES];
    TestModel m;
    Message passed;
    uint64_t step;
    two_steps(&m, out);
    unlink(test_file(path, out, 2, CHECKPOINT_MANIFEST));
    CHECK(test_model_resume(&m, out, &passed) == 1 && strstr(passed.text, "unfinished"), "%s", passed.text);
    unlink(test_file(path, out, 2, CHECKPOINT_STATE));
    CHECK(test_model_resume(&m, out, &passed) == 1 && strstr(passed.text, "weights only") &&
              strstr(passed.text, "--init"),
          "%s", passed.text);
    remove_tree(test_file(path, out, 1, NULL));
    message_clear(&passed);
    CHECK(checkpoint_latest(out, dir, &step, &passed) == CHECKPOINT_WEIGHTS_ONLY && strstr(passed.text, "--init"), "%s",
          passed.text);
    message_clear(&m.message);
    CHECK(checkpoint_load(&m.ck, test_file(path, out, 2, NULL), &m.message) == CHECKPOINT_WEIGHTS_ONLY &&
              strstr(m.message.text, "--init"),
          "%s", m.message.text);
    remove_tree(path);
    message_clear(&passed);
    CHECK(checkpoint_latest(out, dir, &step, &passed) == CHECKPOINT_NONE && !passed.text[0], "%s", passed.text);
    CHECK(checkpoint_latest("/nonexistent/x", dir, &step, &passed) == CHECKPOINT_NONE, "a folder that is not there");
    test_model_free(&m);
    remove_tree(out);
}

// ----------------------------------------------------------------------------------------------------------------

// A model of another shape: refused by name, found and expected, before memory is touched.
TEST(other_shapes_are_refused) {
    static const struct {
        size_t L, C, V;
        const char *words[3];
    } others[] = {{2, 8, 19, {"transformer.h.1.ln_1.weight", "missing", ""}},
                  {1, 12, 19, {"transformer.wte.weight", "[19, 8]", "[19, 12]"}},
                  {1, 8, 21, {"transformer.wte.weight", "[19, 8]", "[21, 8]"}}};
    char out[64], path[SAFE_PATH_BYTES];
    TestModel m, other;
    two_steps(&m, out);
    for (size_t i = 0; i < 3; i++) {
        GPTConfig config = test_config(others[i].L, others[i].C, others[i].V);
        test_model_make(&other, &config, NULL);
        test_model_poison(&other);
        int code = checkpoint_load(&other.ck, test_file(path, out, 2, NULL), &other.message);
        CHECK(code == CHECKPOINT_MISMATCH, "case %zu: code %d", i, code);
        for (int w = 0; w < 3; w++)
            CHECK(strstr(other.message.text, others[i].words[w]), "no '%s' in: %s", others[i].words[w],
                  other.message.text);
        CHECK(test_model_touched(&other) == 0, "case %zu: memory was touched", i);
        test_model_free(&other);
    }
    GPTConfig deep = test_config(2, 8, 19), flat = test_config(1, 8, 19);
    test_model_make(&other, &deep, out);
    CHECK(test_model_save(&other, 3) == CHECKPOINT_OK, "%s", other.message.text);
    test_model_free(&other);
    test_model_make(&other, &flat, NULL);
    test_model_poison(&other);
    CHECK(checkpoint_load(&other.ck, test_file(path, out, 3, NULL), &other.message) == CHECKPOINT_MISMATCH &&
              strstr(other.message.text, "transformer.h.1.") && strstr(other.message.text, "no place"),
          "%s", other.message.text);
    CHECK(test_model_touched(&other) == 0, "memory was touched");
    test_model_free(&other);
    test_model_free(&m);
    remove_tree(out);
}

TEST(optional_state) {
    char out[64], path[SAFE_PATH_BYTES];
    TestModel m;
    uint64_t extra[2] = {41, 42};
    two_steps(&m, out);
    CheckpointTensor *list = (CheckpointTensor *)checked_calloc(m.count + 1, sizeof *list, "a list");
    memcpy(list, m.list, m.count * sizeof *list);
    checkpoint_array(&list[m.count], "state.scaler", ST_U64, 2, extra);
    m.ck.tensors = list;
    m.ck.count++;
    message_clear(&m.message);
    CHECK(checkpoint_load(&m.ck, test_file(path, out, 2, NULL), &m.message) == CHECKPOINT_MISMATCH &&
              strstr(m.message.text, "state.scaler"),
          "%s", m.message.text);
    list[m.count].optional = 1;
    CHECK(checkpoint_load(&m.ck, path, &m.message) == CHECKPOINT_OK && extra[0] == 41 && extra[1] == 42, "%s",
          m.message.text);
    list[m.count - 1].dtype = ST_I64;  // integers do not convert
    message_clear(&m.message);
    CHECK(checkpoint_load(&m.ck, path, &m.message) == CHECKPOINT_MISMATCH && strstr(m.message.text, "F64 [5]") &&
              strstr(m.message.text, "I64 [5]"),
          "%s", m.message.text);
    free(list);
    test_model_free(&m);
    remove_tree(out);
}

// NaN or infinity anywhere: not saved, named, and nothing that was there suffers.
TEST(nonfinite_is_never_saved) {
    char out[64];
    TestModel m;
    two_steps(&m, out);
    for (size_t t = 0; t < m.count; t += 5) {
        const CheckpointTensor *x = &m.list[t];
        if (!safetensors_dtype_is_float(x->dtype)) continue;
        test_model_fill(&m, 3);
        size_t last = x->rows * x->cols - 1;
        if (x->dtype == ST_F64) ((double *)x->data)[last] = (double)NAN;
        else ((float *)x->data)[last] = t % 2 ? NAN : INFINITY;
        message_clear(&m.message);
        CHECK(checkpoint_save(&m.ck, 3, &m.message) == CHECKPOINT_NONFINITE, "%s: %s", x->name, m.message.text);
        CHECK(strstr(m.message.text, x->name), "no %s in: %s", x->name, m.message.text);
        CHECK(test_entries(out, "") == 2, "something stayed in the folder");
    }
    ((float *)m.list[0].data)[m.config.V * m.config.C] = NAN;  // padding is not saved, so it does not count
    CHECK(test_model_save(&m, 3) == CHECKPOINT_OK, "%s", m.message.text);
    CHECK(test_model_resume(&m, out, NULL) == 3, "%s", m.message.text);
    test_model_free(&m);
    remove_tree(out);
}

// ----------------------------------------------------------------------------------------------------------------

// The steps that are there, as "1 2 3 " in ascending order.
static const char *steps_there(const char *out) {
    static char text[256];
    CheckpointList list;
    size_t used = 0;
    text[0] = 0;
    checkpoint_list(&list, out);
    for (size_t i = list.count; i-- > 0;)
        used += (size_t)snprintf(text + used, sizeof text - used, "%d ", (int)list.steps[i]);
    free(list.steps);
    return text;
}

TEST(rotation) {
    static const struct {
        size_t keep, milestone;
        int best;
        const char *left;
    } cases[] = {{0, 0, 0, "1 2 3 4 5 6 7 "}, {1, 0, 0, "7 "},       {2, 0, 0, "6 7 "},          {1, 3, 0, "3 6 7 "},
                 {1, 0, 2, "2 7 "},           {2, 4, 1, "1 4 6 7 "}, {9, 0, 0, "1 2 3 4 5 6 7 "}};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        char out[64], path[SAFE_PATH_BYTES];
        TestModel m;
        uint64_t best = 99;
        temporary_dir(out);
        GPTConfig config = test_config(1, 4, 5);
        test_model_make(&m, &config, out);
        CHECK(!checkpoint_best(out, &best), "a best one in an empty folder");
        for (uint64_t step = 1; step <= 7; step++) {
            CHECK(test_model_save(&m, step) == CHECKPOINT_OK, "%s", m.message.text);
            if ((int)step == cases[c].best || (cases[c].best && step == 1))
                CHECK(checkpoint_mark_best(out, step, &m.message) == CHECKPOINT_OK, "%s", m.message.text);
            checkpoint_rotate(out, step, cases[c].keep, cases[c].milestone);
        }
        CHECK(strcmp(steps_there(out), cases[c].left) == 0, "case %zu: left %s, not %s", c, steps_there(out),
              cases[c].left);
        CHECK(test_entries(out, "tmp") == 0, "temporaries stayed");
        if (cases[c].best) {
            CHECK(checkpoint_best(out, &best) && best == (uint64_t)cases[c].best, "best is %llu",
                  (unsigned long long)best);
            snprintf(path, sizeof path, "%s/best/config.json", out);
            CHECK(access(path, R_OK) == 0, "the link leads nowhere");
        }
        test_model_free(&m);
        remove_tree(out);
    }
}

// Damaged ones count for nothing and stay; ones of the future (resumed from further back) stay too.
TEST(rotation_counts_only_good_ones) {
    char out[64], path[SAFE_PATH_BYTES];
    TestModel m;
    temporary_dir(out);
    GPTConfig config = test_config(1, 4, 5);
    test_model_make(&m, &config, out);
    for (uint64_t step = 1; step <= 6; step++) CHECK(test_model_save(&m, step) == CHECKPOINT_OK, "%s", m.message.text);
    CHECK(truncate(test_file(path, out, 3, CHECKPOINT_STATE), 100) == 0, "truncate");
    unlink(test_file(path, out, 5, CHECKPOINT_MANIFEST));
    checkpoint_rotate(out, 4, 2, 0);
    CHECK(strcmp(steps_there(out), "2 3 4 5 6 ") == 0, "left %s", steps_there(out));
    checkpoint_rotate(out, 4, 1, 0);
    CHECK(strcmp(steps_there(out), "3 4 5 6 ") == 0, "left %s", steps_there(out));
    CHECK(test_model_resume(&m, out, NULL) == 6, "%s", m.message.text);
    test_model_free(&m);
    remove_tree(out);
}

TEST(names) {
    static const struct {
        const char *name;
        int good;
        uint64_t step;
        const char *rest;
    } cases[] = {{"step_00000001", 1, 1, ""},
                 {"step_123456789", 1, 123456789, ""},
                 {"step_00000001.tmp-7", 1, 1, ".tmp-7"},
                 {"step_1", 0, 0, ""},
                 {"step_000000001", 0, 0, ""},
                 {"step_", 0, 0, ""},
                 {"step_-0000001", 0, 0, ""},
                 {"step_18446744073709551615", 1, UINT64_MAX, ""},
                 {"step_18446744073709551616", 0, 0, ""},
                 {"best", 0, 0, ""}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint64_t step = 0;
        const char *rest = "";
        int good = checkpoint_parse_name(cases[i].name, &step, &rest);
        CHECK(good == cases[i].good && (!good || (step == cases[i].step && strcmp(rest, cases[i].rest) == 0)), "%s",
              cases[i].name);
    }
}

int main(void) {
    RUN(round_trip_is_exact);
    RUN(blocks_and_callbacks_change_nothing);
    RUN(the_layout_is_hugging_faces);
    RUN(transformers_opens_it);
    RUN(bf16_weights_and_conversion);
    RUN(the_same_step_again_replaces);
    RUN(cut_files_are_passed_over);
    RUN(flipped_bits_are_recognised);
    RUN(unfinished_and_weights_only);
    RUN(other_shapes_are_refused);
    RUN(optional_state);
    RUN(nonfinite_is_never_saved);
    RUN(rotation);
    RUN(rotation_counts_only_good_ones);
    RUN(names);
    return test_summary();
}
