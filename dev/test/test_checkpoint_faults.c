// test_checkpoint_faults.c: saving while the world breaks: kill -9 at random moments, full disks, leftovers.
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "checkpoint_model.h"

// The child of kill_9: saves step after step until it is killed. Never returns.
static void save_for_ever(const char *out, const GPTConfig *config, uint64_t step, int exchange) {
    TestModel m;
    test_model_make(&m, config, out);
    m.ck.may_exchange = exchange;
    for (;; step++)
        for (int again = 0; again < 2; again++) {  // every step twice: replacing is interrupted too
            if (test_model_save(&m, step) != CHECKPOINT_OK) _exit(3);
            checkpoint_rotate(out, step, 2, 5);
        }
}

// Folders with a finished checkpoint's name that are not one.
static size_t halves(const char *out) {
    CheckpointList list;
    size_t n = 0;
    checkpoint_list(&list, out);
    for (size_t i = 0; i < list.count; i++) {
        char path[SAFE_PATH_BYTES];
        uint64_t step;
        Message why;
        message_clear(&why);
        n += checkpoint_verify(test_file(path, out, list.steps[i], NULL), &step, NULL, 0, &why) != CHECKPOINT_OK;
    }
    free(list.steps);
    return n;
}

// Kills at random moments; whatever is there then, the newest complete one loads and is exactly what was saved.
TEST(kill_9_while_saving) {
    char out[64];
    TestModel m;
    long last = 0;
    size_t interrupted = 0;
    uint64_t random = 0x9E3779B97F4A7C15ull;
    temporary_dir(out);
    GPTConfig config = test_config(2, 32, 300);
    test_model_make(&m, &config, out);
    CHECK(test_model_save(&m, 1) == CHECKPOINT_OK, "%s", m.message.text);
    for (int round = 0; round < 24; round++) {
        int status;
        Message passed;
        pid_t child = fork();
        if (child == 0) save_for_ever(out, &config, (uint64_t)last + 1, round % 2);
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        usleep((useconds_t)(1000 + random % 120000));
        kill(child, SIGKILL);
        CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status), "round %d: the child left with status %d",
              round, status);
        interrupted += test_entries(out, ".tmp-") + test_entries(out, ".old-");
        long step = test_model_resume(&m, out, &passed);
        CHECK(step >= 1 && step >= last, "round %d: resumed %ld after %ld: %s%s", round, step, last, passed.text,
              m.message.text);
        CHECK(!passed.text[0], "round %d: %s", round, passed.text);
        CHECK(halves(out) == 0, "round %d: a half-removed checkpoint kept its name", round);
        CHECK(test_entries(out, ".tmp-") == 0 && test_entries(out, ".old-") == 0, "round %d: leftovers stayed", round);
        if (step > last) last = step;
    }
    CHECK(interrupted >= 6, "only %zu kills hit a save", interrupted);
    CHECK(last > 6, "only %ld steps were saved", last);
    test_model_free(&m);
    remove_tree(out);
}

// A limit on file sizes is the portable full disk: the write fails half-way.
TEST(full_disk) {
    char out[64];
    int status;
    temporary_dir(out);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        static const rlim_t limits[] = {0, 1, 1000, 5000, 20000, 30000, 50000};
        TestModel m;
        struct rlimit limit;
        size_t failed = 0, bad = 0;
        GPTConfig config = test_config(2, 16, 40);  // model 30 kB, state 60 kB
        test_model_make(&m, &config, out);
        bad += test_model_save(&m, 1) != CHECKPOINT_OK;
        getrlimit(RLIMIT_FSIZE, &limit);
        for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
            struct rlimit low = {limits[i], limit.rlim_max};
            setrlimit(RLIMIT_FSIZE, &low);
            failed += test_model_save(&m, 2) == CHECKPOINT_FAILED;
            int told = strstr(m.message.text, "cannot write") && strstr(m.message.text, "step_00000002") &&
                       strstr(m.message.text, "ulimit -f");
            setrlimit(RLIMIT_FSIZE, &limit);
            if (!told) fprintf(stderr, "message: %s\n", m.message.text);
            bad += !told || test_entries(out, "") != 1 || test_model_resume(&m, out, NULL) != 1;
        }
        bad += test_model_save(&m, 2) != CHECKPOINT_OK || test_model_resume(&m, out, NULL) != 2;  // and life goes on
        _exit(failed != 7 ? 2 : bad != 0);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status), "the child died of signal %d", WTERMSIG(status));
    CHECK(WEXITSTATUS(status) != 2, "a save succeeded under the limit");
    CHECK(WEXITSTATUS(status) == 0, "a failed save left something, lost something or said nothing");
    remove_tree(out);
}

TEST(full_tmpfs) {
    char out[64];
    TestModel m;
    uint64_t step = 1;
    temporary_dir(out);
    if (mount("tmpfs", out, "tmpfs", 0, "size=400k") != 0) {
        rmdir(out);
        SKIP("mounting a tmpfs is not allowed here (%s)", strerror(errno));
    }
    GPTConfig config = test_config(2, 16, 40);
    test_model_make(&m, &config, out);
    while (step < 20 && test_model_save(&m, step) == CHECKPOINT_OK) step++;
    CHECK(step > 1 && step < 20, "the disk was never full");
    CHECK(strstr(m.message.text, "No space left") && strstr(m.message.text, "free"), "%s", m.message.text);
    CHECK(test_entries(out, "tmp") == 0, "the temporary folder stayed");
    CHECK(test_model_resume(&m, out, NULL) == (long)step - 1, "%s", m.message.text);
    checkpoint_rotate(out, step - 1, 1, 0);
    CHECK(test_model_save(&m, step) == CHECKPOINT_OK, "after rotation: %s", m.message.text);
    test_model_free(&m);
    umount(out);
    rmdir(out);
}

TEST(folders_that_cannot_be) {
    char out[64], path[SAFE_PATH_BYTES];
    TestModel m;
    temporary_dir(out);
    GPTConfig config = test_config(1, 4, 5);
    path_join(path, out, "file");
    test_spill(path, "x", 1);
    test_model_make(&m, &config, path);
    CHECK(test_model_save(&m, 1) == CHECKPOINT_FAILED && strstr(m.message.text, "file"), "OUT is a file: %s",
          m.message.text);
    test_model_free(&m);
    path_join(path, out, "a/b//c");
    test_model_make(&m, &config, path);
    CHECK(test_model_save(&m, 1) == CHECKPOINT_OK && test_model_resume(&m, path, NULL) == 1, "made on the way: %s",
          m.message.text);
    test_model_free(&m);
    test_model_make(&m, &config, out);
    test_spill(test_file(path, out, 4, NULL), "x", 1);  // a file where the checkpoint goes
    CHECK(test_model_save(&m, 4) == CHECKPOINT_OK && test_model_resume(&m, out, NULL) == 4, "in place of a file: %s",
          m.message.text);
    CHECK(test_entries(out, "tmp") == 0 && test_entries(out, "old") == 0, "leftovers");
    char deep[SAFE_PATH_BYTES];
    memset(deep, 'd', sizeof deep);
    deep[sizeof deep - 2] = 0;
    test_model_free(&m);
    test_model_make(&m, &config, deep);
    CHECK(test_model_save(&m, 1) == CHECKPOINT_FAILED && m.message.text[0], "a name of 4000 letters");
    test_model_free(&m);
    remove_tree(out);
}

// Writes a copy of step 1 under another name.
static void copy_step(const char *out, const char *name) {
    static const char *const names[] = {CHECKPOINT_MODEL, CHECKPOINT_STATE, CHECKPOINT_CONFIG, CHECKPOINT_MANIFEST};
    char from[SAFE_PATH_BYTES], dir[SAFE_PATH_BYTES], to[SAFE_PATH_BYTES];
    size_t bytes;
    path_join(dir, out, name);
    CHECK(mkdir(dir, 0777) == 0, "mkdir %s", dir);
    for (int f = 0; f < 4; f++) {
        unsigned char *data = test_slurp(test_file(from, out, 1, names[f]), &bytes);
        path_join(to, dir, names[f]);
        test_spill(to, data, bytes);
        free(data);
    }
}

TEST(leftovers) {
    char out[64], path[SAFE_PATH_BYTES], mine[64];
    TestModel m;
    temporary_dir(out);
    GPTConfig config = test_config(1, 4, 5);
    test_model_make(&m, &config, out);
    CHECK(test_model_save(&m, 1) == CHECKPOINT_OK, "%s", m.message.text);
    copy_step(out, "step_00000009.tmp-1");  // a pid that lives, but not the one that wrote it
    snprintf(mine, sizeof mine, "step_00000002.tmp-%ld", (long)getpid());
    copy_step(out, mine);
    copy_step(out, "step_00000001.old-77");  // step 1 is there: only a leftover
    copy_step(out, "not_ours.tmp-5");
    copy_step(out, "step_00000003.tmp-88");
    int lock = open(path_join(path, out, "step_00000003.tmp-88") ? path : "", O_RDONLY | O_DIRECTORY);
    CHECK(lock >= 0 && flock(lock, LOCK_EX | LOCK_NB) == 0, "lock");
    CHECK(test_model_save(&m, 2) == CHECKPOINT_OK, "%s", m.message.text);
    CHECK(test_entries(out, "step_") == 3 && test_entries(out, "tmp-88") == 1 && test_entries(out, "not_ours") == 1,
          "%zu entries, %zu of them locked by another", test_entries(out, "step_"), test_entries(out, "tmp-88"));
    close(lock);
    CHECK(test_model_resume(&m, out, NULL) == 2 && test_entries(out, "step_") == 2, "the lock's owner died: %s",
          m.message.text);
    // Killed between the two renames of a replacement: the older one gets its name back.
    remove_tree(test_file(path, out, 2, NULL));
    char old[SAFE_PATH_BYTES];
    test_file(path, out, 1, NULL);
    path_join(old, out, "step_00000001.old-77");
    CHECK(rename(path, old) == 0, "rename");
    CHECK(test_model_resume(&m, out, NULL) == 1, "%s", m.message.text);
    test_model_free(&m);
    remove_tree(out);
}

// Somebody looks for checkpoints, and so cleans, in the middle of a save: work in progress is left alone.
static void read_and_clean(void *ctx, const CheckpointTensor *t, size_t row, size_t rows, size_t col, size_t cols,
                           void *host) {
    checkpoint_clean((const char *)ctx);
    for (size_t r = 0; r < rows; r++)
        memcpy((float *)host + r * cols, (float *)t->data + (row + r) * t->cols + col, cols * sizeof(float));
}

TEST(cleaning_spares_a_save_in_progress) {
    char out[64];
    TestModel m;
    temporary_dir(out);
    GPTConfig config = test_config(1, 4, 5);
    test_model_make(&m, &config, out);
    m.ck.read = read_and_clean;
    m.ck.ctx = out;
    CHECK(test_model_save(&m, 1) == CHECKPOINT_OK && test_model_save(&m, 1) == CHECKPOINT_OK, "%s", m.message.text);
    CHECK(test_model_resume(&m, out, NULL) == 1, "%s", m.message.text);
    test_model_free(&m);
    remove_tree(out);
}

// Removing a checkpoint removes no more than that: a link is not followed, a foreign folder inside survives.
TEST(removal_follows_no_links) {
    char out[64], path[SAFE_PATH_BYTES], precious[SAFE_PATH_BYTES];
    TestModel m;
    temporary_dir(out);
    GPTConfig config = test_config(1, 4, 5);
    test_model_make(&m, &config, out);
    path_join(precious, out, "precious");
    CHECK(mkdir(precious, 0777) == 0, "mkdir");
    path_join(precious, out, "precious/x");
    test_spill(precious, "x", 1);
    CHECK(symlink("precious", test_file(path, out, 1, NULL)) == 0, "symlink");
    checkpoint_remove(out, 1);
    CHECK(access(path, F_OK) != 0 && access(precious, F_OK) == 0, "a link was followed");
    CHECK(test_model_save(&m, 2) == CHECKPOINT_OK, "%s", m.message.text);
    CHECK(symlink("../precious", test_file(path, out, 2, "link")) == 0, "symlink");
    checkpoint_remove(out, 2);
    CHECK(access(precious, F_OK) == 0 && test_entries(out, "step_") == 0, "a link inside was followed");
    // A removal that stops half-way (here: somebody's folder inside) leaves no folder with a finished one's name.
    CHECK(test_model_save(&m, 3) == CHECKPOINT_OK, "%s", m.message.text);
    CHECK(mkdir(test_file(path, out, 3, "mine"), 0777) == 0, "mkdir");
    test_spill(test_file(path, out, 3, "mine/x"), "x", 1);
    checkpoint_remove(out, 3);
    CHECK(access(test_file(path, out, 3, NULL), F_OK) != 0 && test_entries(out, "step_00000003.tmp-") == 1,
          "half-removed");
    test_model_free(&m);
    remove_tree(out);
}

int main(void) {
    RUN(kill_9_while_saving);
    RUN(full_disk);
    RUN(full_tmpfs);
    RUN(folders_that_cannot_be);
    RUN(leftovers);
    RUN(cleaning_spares_a_save_in_progress);
    RUN(removal_follows_no_links);
    return test_summary();
}
