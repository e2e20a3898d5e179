// test_checkpoint_ranks.c: several ranks write and read one checkpoint together: processes that share memory in place of
// NCCL, each with its elements of every tensor alone, and files of many chunks.
#define CHECKPOINT_CHUNK_BYTES ((uint64_t)1024)

#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "checkpoint_model.h"

#define MOST_RANKS 5

// What the ranks share: a barrier, what each of them gives to a gather, and what a test wants to know of it in the end.
typedef struct {
    pthread_barrier_t barrier;
    char given[MOST_RANKS][CHECKPOINT_GATHER_BYTES];
    long results[MOST_RANKS];
    char texts[MOST_RANKS][1024];
    size_t blocks[MOST_RANKS];
} Shared;

static Shared *shared;
static size_t rank, ranks;
static long die_at = -1;  // this rank kills itself at that block it is asked for

static void gather(void *all, const void *mine, size_t bytes) {
    memcpy(shared->given[rank], mine, bytes);
    pthread_barrier_wait(&shared->barrier);
    for (size_t r = 0; r < ranks; r++) memcpy((char *)all + r * bytes, shared->given[r], bytes);
    pthread_barrier_wait(&shared->barrier);
}

// Tensors are in shards: of each run of `ranks` * 7 elements in memory a rank has 7.
static int is_mine(const CheckpointTensor *t, size_t row, size_t col) { return (row * t->cols + col) / 7 % ranks == rank; }

static void read_shards(void *ctx, const CheckpointTensor *t, size_t row, size_t rows, size_t col, size_t cols,
                        void *host) {
    static uint32_t mine[CHECKPOINT_GATHER_BYTES / 4], all[MOST_RANKS * CHECKPOINT_GATHER_BYTES / 4];
    size_t elems = rows * cols, most = CHECKPOINT_GATHER_BYTES / 4;
    (void)ctx;
    if (die_at >= 0 && die_at-- == 0) kill(getpid(), SIGKILL);
    for (size_t first = 0; first < elems; first += most) {
        size_t n = min_size(most, elems - first);
        for (size_t i = 0; i < n; i++) {
            size_t r = row + (first + i) / cols, c = col + (first + i) % cols;
            mine[i] = is_mine(t, r, c) ? ((uint32_t *)t->data)[r * t->cols + c] : 0;
        }
        gather(all, mine, n * 4);
        for (size_t i = 0; i < n && host; i++) {
            uint32_t sum = 0;
            for (size_t r = 0; r < ranks; r++) sum += all[r * n + i];
            ((uint32_t *)host)[first + i] = sum;
        }
    }
}

static void write_shards(void *ctx, const CheckpointTensor *t, size_t row, size_t rows, size_t col, size_t cols,
                         const void *host) {
    (void)ctx;
    shared->blocks[rank]++;
    for (size_t i = 0; i < rows * cols; i++)
        if (is_mine(t, row + i / cols, col + i % cols))
            ((uint32_t *)t->data)[(row + i / cols) * t->cols + col + i % cols] = ((const uint32_t *)host)[i];
}

// What is not this rank's it has never seen.
static void forget_others(TestModel *m) {
    for (size_t t = 0; t < m->count; t++)
        for (size_t i = 0; m->list[t].parameter >= 0 && i < m->list[t].rows * m->list[t].cols; i++)
            if (!is_mine(&m->list[t], i / m->list[t].cols, i % m->list[t].cols)) ((float *)m->list[t].data)[i] = NAN;
}

static size_t wrong_of_mine(TestModel *m, uint64_t step) {
    size_t wrong = m->step != step;
    TEST_EACH(m, wrong += is_mine(&m->list[t], i / m->list[t].cols, i % m->list[t].cols) && *x != test_value(step, k, e));
    return wrong;
}

static TestModel model;  // a rank's

static void join(const char *out, size_t stage_bytes, int sharded) {
    GPTConfig config = test_config(2, 24, 67);
    test_model_make(&model, &config, out);
    checkpoint_parallel(&model.ck, rank, ranks, "a-host", gather);
    model.ck.stage_bytes = stage_bytes;
    if (!sharded) return;
    model.ck.read = read_shards;
    model.ck.write = write_shards;
}

// What a rank of a test does: returns what goes to shared->results.
typedef long RankMain(const char *out);

// Starts the ranks; a rank's text is its message. Where one dies, the others are then killed.
static void start_ranks(size_t count, RankMain *body, const char *out, int one_dies) {
    pthread_barrierattr_t across;
    pid_t pids[MOST_RANKS];
    int status;
    pthread_barrierattr_init(&across);
    pthread_barrierattr_setpshared(&across, PTHREAD_PROCESS_SHARED);
    memset(shared, 0, sizeof *shared);
    pthread_barrier_init(&shared->barrier, &across, (unsigned)count);
    fflush(stdout);
    for (size_t r = 0; r < count; r++) {
        pids[r] = fork();
        if (pids[r] != 0) continue;
        alarm(10);
        rank = r;
        ranks = count;
        shared->results[r] = body(out);
        snprintf(shared->texts[r], sizeof shared->texts[r], "%.1000s", model.message.text);
        _exit(0);
    }
    if (one_dies) {
        CHECK(wait(&status) > 0 && WIFSIGNALED(status), "nobody died");
        for (size_t r = 0; r < count; r++) kill(pids[r], SIGKILL);
    }
    while (wait(&status) > 0)
        CHECK(one_dies || (WIFEXITED(status) && WEXITSTATUS(status) == 0), "a rank died with status %d", status);
}

// All ranks have come to the same `result` and, where given, to the same message with these words.
static void all_say(size_t count, long result, const char *words, const char *more) {
    for (size_t r = 0; r < count; r++) {
        CHECK(shared->results[r] == result, "rank %zu: %ld instead of %ld: %s", r, shared->results[r], result,
              shared->texts[r]);
        if (words)
            CHECK(strstr(shared->texts[r], words) && strstr(shared->texts[r], more), "rank %zu says: %s", r,
                  shared->texts[r]);
    }
}

static size_t stage_bytes = CHECKPOINT_STAGE_BYTES;
static int sharded;

static long save_two(const char *out) {
    join(out, stage_bytes, sharded);
    for (uint64_t step = 1; step <= 2; step++) {
        test_model_fill(&model, step);
        if (sharded) forget_others(&model);
        int code = checkpoint_save(&model.ck, step, &model.message);
        if (code != CHECKPOINT_OK) return code;
    }
    return CHECKPOINT_OK;
}

static long resume(const char *out) {
    char dir[SAFE_PATH_BYTES];
    uint64_t step;
    join(out, stage_bytes, sharded);
    test_model_poison(&model);
    int code = checkpoint_search(&model.ck, dir, &step, &model.message);
    if (code == CHECKPOINT_OK) code = checkpoint_load(&model.ck, dir, &model.message);
    if (code != CHECKPOINT_OK) return -code;
    if (sharded ? wrong_of_mine(&model, step) : test_model_wrong(&model, step)) return -100;
    return (long)step;
}

static void same_folder(const char *a, const char *b, size_t count) {
    static const char *const names[] = {CHECKPOINT_MODEL, CHECKPOINT_STATE, CHECKPOINT_CONFIG, CHECKPOINT_MANIFEST};
    char path[SAFE_PATH_BYTES];
    CHECK(test_entries(b, "") == 2 && test_entries(test_file(path, b, 2, NULL), "") == 4, "more than there should be");
    for (int f = 0; f < 4; f++) {
        size_t n, m;
        unsigned char *x = test_slurp(test_file(path, a, 2, names[f]), &n);
        unsigned char *y = test_slurp(test_file(path, b, 2, names[f]), &m);
        CHECK(n == m && memcmp(x, y, n) == 0, "%zu ranks, %s: %s differs", count, sharded ? "shards" : "replicas", names[f]);
        free(x);
        free(y);
    }
}

// Whatever the number of ranks, how tensors are shared out and the size of blocks: the bytes one rank writes. And any
// other number of ranks reads them.
TEST(any_number_of_ranks_writes_the_same_bytes) {
    char one[64], out[64];
    temporary_dir(one);
    start_ranks(1, save_two, one, 0);
    all_say(1, CHECKPOINT_OK, NULL, NULL);
    for (size_t count = 1; count <= MOST_RANKS; count++)
        for (int round = 0; round < 4; round++) {
            temporary_dir(out);
            sharded = round % 2;
            stage_bytes = round < 2 ? 8 * 61 : CHECKPOINT_STAGE_BYTES;  // 61 elements: parts of lines, and odd ones
            start_ranks(count, save_two, out, 0);
            all_say(count, CHECKPOINT_OK, NULL, NULL);
            same_folder(one, out, count);
            size_t readers = MOST_RANKS + 1 - count;
            start_ranks(readers, resume, out, 0);
            all_say(readers, 2, NULL, NULL);
            remove_tree(out);
        }
    remove_tree(one);
}

// ----------------------------------------------------------------------------------------------------------------
// Reading

static int wants_moments(void *ctx, const CheckpointTensor *t, size_t row, size_t rows, size_t col, size_t cols) {
    (void)ctx;
    (void)row;
    (void)rows;
    (void)col;
    (void)cols;
    return t->name[0] == (rank ? 'm' : 'v');
}

static long resume_parts(const char *out) {
    char dir[SAFE_PATH_BYTES];
    uint64_t step;
    size_t unread = 0;
    join(out, CHECKPOINT_STAGE_BYTES, 1);
    model.ck.wanted = wants_moments;
    test_model_poison(&model);
    checkpoint_search(&model.ck, dir, &step, &model.message);
    checkpoint_load(&model.ck, dir, &model.message);
    TEST_EACH(&model, unread += is_mine(&model.list[t], i / model.list[t].cols, i % model.list[t].cols) &&
                                (*x == test_value(step, k, e)) != (k == (rank ? 1 : 2)));
    return model.step == 2 && unread == 0;
}

TEST(a_rank_reads_what_it_wants) {
    char out[64];
    temporary_dir(out);
    sharded = 0;
    start_ranks(2, save_two, out, 0);
    start_ranks(2, resume_parts, out, 0);
    all_say(2, 1, NULL, NULL);
    for (int r = 0; r < 2; r++) CHECK(shared->blocks[r] == 28, "rank %d was given %zu blocks", r, shared->blocks[r]);
    remove_tree(out);
}

// One chunk is damaged, in whichever rank's part: all pass the checkpoint over.
TEST(damage_in_anybodys_part_is_found) {
    char out[64], path[SAFE_PATH_BYTES];
    size_t bytes;
    temporary_dir(out);
    sharded = 0;
    start_ranks(3, save_two, out, 0);
    for (int f = 0; f < 2; f++) {
        unsigned char *data = test_slurp(test_file(path, out, 2, f ? CHECKPOINT_STATE : CHECKPOINT_MODEL), &bytes);
        for (size_t at = 0; at < bytes; at += bytes / 7) {
            data[at] ^= 1;
            test_spill(path, data, bytes);
            start_ranks(3, resume, out, 0);
            all_say(3, 1, "passed over step_00000002", "is damaged: its checksum is");
            data[at] ^= 1;
        }
        test_spill(path, data, bytes);
        free(data);
    }
    start_ranks(3, resume, out, 0);
    all_say(3, 2, NULL, NULL);
    // Another number of checksums than the file has chunks
    char *manifest = (char *)test_slurp(test_file(path, out, 2, CHECKPOINT_MANIFEST), &bytes);
    memcpy(strstr(manifest, "\"chunk_bytes\":1024"), "\"chunk_bytes\":1020", 18);
    test_spill(path, manifest, bytes);
    start_ranks(2, resume, out, 0);
    for (int r = 0; r < 2; r++) CHECK(shared->results[r] == 1, "%ld: %s", shared->results[r], shared->texts[r]);
    free(manifest);
    remove_tree(out);
}

// ----------------------------------------------------------------------------------------------------------------
// Failures

// Step 1, then step 2 with something wrong on the last rank; then step 2 again, all well.
static int trouble;
static long save_in_trouble(const char *out) {
    int last = rank == ranks - 1;
    join(out, CHECKPOINT_STAGE_BYTES, sharded);
    test_model_fill(&model, 1);
    if (checkpoint_save(&model.ck, 1, &model.message) != CHECKPOINT_OK) return -1;
    test_model_fill(&model, 2);
    struct rlimit limit, low;
    getrlimit(RLIMIT_FSIZE, &limit);
    low = limit;
    low.rlim_cur = 20000;
    if (trouble == 0 && last) setrlimit(RLIMIT_FSIZE, &low);
    if (trouble == 1) model.arena[2][10] = INFINITY;  // wherever it lies, one rank comes to write it
    if (trouble == 2 && last) snprintf(model.ck.out, sizeof model.ck.out, "/nonexistent");
    int code = checkpoint_save(&model.ck, 2, &model.message);
    int clean = rank > 0 || test_entries(out, "") == 1;
    setrlimit(RLIMIT_FSIZE, &limit);
    snprintf(model.ck.out, sizeof model.ck.out, "%s", out);
    test_model_fill(&model, 2);
    Message ignored;
    message_clear(&ignored);
    gather(model.ck.gathered, &code, sizeof code);  // all have looked
    if (checkpoint_save(&model.ck, 2, &ignored) != CHECKPOINT_OK) return -3;
    return clean ? code : -2;
}

TEST(a_rank_that_fails) {
    static const int codes[] = {CHECKPOINT_FAILED, CHECKPOINT_NONFINITE, CHECKPOINT_FAILED};
    static const char *const says[][2] = {{"rank 2 on a-host: cannot write", "ulimit -f"},
                                          {"is not finite at row 0, column 10", "rank "},
                                          {"rank 2 on a-host: it does not see '/nonexistent/step_00000002.tmp-", "all hosts share"}};
    for (trouble = 0; trouble < 3; trouble++)
        for (sharded = 0; sharded < 2; sharded++) {
            char out[64];
            temporary_dir(out);
            start_ranks(3, save_in_trouble, out, 0);
            all_say(3, codes[trouble], says[trouble][0], says[trouble][1]);
            start_ranks(2, resume, out, 0);
            all_say(2, 2, NULL, NULL);
            remove_tree(out);
        }
}

// A rank dies at some block of the second checkpoint, and then the others, as the launcher has it.
static long block_of_death;
static size_t who_dies;
static long save_and_die(const char *out) {
    join(out, CHECKPOINT_STAGE_BYTES, 1);
    test_model_fill(&model, 1);
    if (checkpoint_save(&model.ck, 1, &model.message) != CHECKPOINT_OK) return -1;
    test_model_fill(&model, 2);
    if (rank == who_dies) die_at = block_of_death;
    checkpoint_save(&model.ck, 2, &model.message);
    pause();
    return 0;
}

TEST(a_rank_that_is_killed) {
    for (long i = 0; i < 12; i++) {
        char out[64];
        temporary_dir(out);
        who_dies = (size_t)i % 3;
        block_of_death = i * 7;
        start_ranks(3, save_and_die, out, 1);
        CHECK(test_entries(out, ".tmp-") == 1, "it was not in the middle of a save");
        sharded = 0;
        start_ranks(2, resume, out, 0);
        all_say(2, 1, NULL, NULL);
        CHECK(test_entries(out, "") == 1, "leftovers");
        remove_tree(out);
    }
}

int main(void) {
    shared = (Shared *)mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) die("no shared memory");
    RUN(any_number_of_ranks_writes_the_same_bytes);
    RUN(a_rank_reads_what_it_wants);
    RUN(damage_in_anybodys_part_is_found);
    RUN(a_rank_that_fails);
    RUN(a_rank_that_is_killed);
    return test_summary();
}
