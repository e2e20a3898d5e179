// Tests of llmc/dataloader.h: each kind of damage, the plan for tiny data, and the order of samples as properties.
#include <sys/resource.h>

#include "../../llmc/dataloader.h"
#include "dies.h"

static char folder[512];

static const char *in_folder(const char *name) {
    static char paths[4][600];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

// Removes every file of the test folder.
static void clear_folder(void) {
    glob_t found;
    if (glob(in_folder("*"), 0, NULL, &found) != 0) return;
    for (size_t i = 0; i < found.gl_pathc; i++)
        if (unlink(found.gl_pathv[i]) != 0) rmdir(found.gl_pathv[i]);
    globfree(&found);
}

// A token file with header (magic, version, count) and `tokens` tokens first, first+1, ... of `token_bytes` bytes.
static void write_tokens(const char *name, uint32_t magic, uint32_t version, uint32_t count, size_t tokens,
                         int token_bytes, uint32_t first) {
    const char *path = in_folder(name);
    uint32_t header[TOKENS_HEADER_INTS] = {magic, version, count};
    FILE *file = file_open(path, "w");
    file_write(file, header, sizeof header, path);
    for (size_t i = 0; i < tokens; i++) {
        uint32_t id = first + (uint32_t)i;  // little-endian, so its first two bytes are its uint16
        file_write(file, &id, (size_t)token_bytes, path);
    }
    file_close(file, path);
}

// Puts a note of data/tokenize into a file's header.
static void write_note(const char *name, int word, uint32_t value) {
    int fd = open(in_folder(name), O_RDWR);
    CHECK(pwrite(fd, &value, sizeof value, 4 * word) == 4, "cannot write");
    close(fd);
}

static void write_good(const char *name, size_t tokens, int token_bytes, uint32_t first) {
    int wide = token_bytes == 4;
    write_tokens(name, wide ? TOKENS_MAGIC_UINT32 : TOKENS_MAGIC_UINT16,
                 wide ? TOKENS_VERSION_UINT32 : TOKENS_VERSION_UINT16, (uint32_t)tokens, tokens, token_bytes, first);
}

static void write_bytes(const char *name, const void *data, size_t bytes) {
    const char *path = in_folder(name);
    FILE *file = file_open(path, "w");
    file_write(file, data, bytes, path);
    file_close(file, path);
}

static void open_one(const char *name, size_t V) {
    DataLoader dl;
    dataloader_open(&dl, in_folder(name), 8, 1, 1, V, "--train");
    dataloader_close(&dl);
}

// ----------------------------------------------------------------------------------------------------------------
// Damage

static char seen[32][200];
static int seen_count;

// The last message must name option and file and differ from all before it by more than the file's name.
static void check_own_sentence(const char *name) {
    char *sentence = strstr(died_text, "': ");
    CHECK(strstr(died_text, "--train '") && strstr(died_text, name), "no option and file: %s", died_text);
    if (!sentence) return;
    for (int i = 0; i < seen_count; i++)
        CHECK(strncmp(seen[i], sentence, 24) != 0, "%s is told like another: %s", name, sentence);
    snprintf(seen[seen_count++], sizeof seen[0], "%.190s", sentence);
}

TEST(each_damage_has_its_sentence) {
    const char text[] = "First Citizen:\nBefore we proceed any further, hear me speak.\n";
    uint32_t swapped[TOKENS_HEADER_INTS] = {__builtin_bswap32(TOKENS_MAGIC_UINT16)};
    seen_count = 0;
    write_bytes("text", text, sizeof text - 1);
    CHECK_DIES(1, "begins \"First Citizen: Before we proceed", open_one("text", 256));
    CHECK(strstr(died_text, "data/tokenize") != NULL, "no way out: %s", died_text);
    check_own_sentence("text");
    write_bytes("empty", text, 0);
    CHECK_DIES(1, "empty (0 bytes)", open_one("empty", 256));
    check_own_sentence("empty");
    write_good("header-only", 0, 2, 0);
    CHECK_DIES(1, "only a header", open_one("header-only", 256));
    check_own_sentence("header-only");
    write_tokens("count+1", TOKENS_MAGIC_UINT16, 1, 101, 100, 2, 0);
    CHECK_DIES(1, "counts 101 tokens, the file holds 100 (2 bytes missing)", open_one("count+1", 256));
    check_own_sentence("count+1");
    mkdir(in_folder("directory"), 0777);
    CHECK_DIES(1, "this is a folder", open_one("directory", 256));
    check_own_sentence("directory");
    write_tokens("magic", 12345678, 1, 100, 100, 2, 0);
    CHECK_DIES(1, "bad magic number 12345678", open_one("magic", 256));
    CHECK(strstr(died_text, "20240520") != NULL, "the right magic is not named: %s", died_text);
    check_own_sentence("magic");
    write_tokens("version", TOKENS_MAGIC_UINT16, 2, 100, 100, 2, 0);
    CHECK_DIES(1, "version 2, this program reads version 1", open_one("version", 256));
    check_own_sentence("version");
    write_bytes("swapped", swapped, sizeof swapped);
    CHECK_DIES(1, "reverse order", open_one("swapped", 256));
    check_own_sentence("swapped");
    swapped[0] = TOKENS_MAGIC_UINT16;
    write_bytes("half-header", swapped, 1000);
    CHECK_DIES(1, "1000 of its 1024 bytes", open_one("half-header", 256));
    check_own_sentence("half-header");
    CHECK_DIES(1, "no such file", open_one("missing-*", 256));
    check_own_sentence("missing-*");
    if (mkfifo(in_folder("pipe"), 0666) == 0) {
        CHECK_DIES(1, "pipe or device", open_one("pipe", 256));
        check_own_sentence("pipe");
    }
    write_good("two-bytes", 100, 2, 0);
    CHECK_DIES(1, "2-byte ids, which end at 65535, but the vocabulary is 65537", open_one("two-bytes", 65537));
    check_own_sentence("two-bytes");
    open_one("two-bytes", 65536);
    CHECK_DIES(1, "two-bytes/x.bin': Not a directory", open_one("two-bytes/x.bin", 256));
    clear_folder();
}

TEST(counts_off_by_one) {
    write_tokens("less", TOKENS_MAGIC_UINT16, 1, 99, 100, 2, 0);
    CHECK_DIES(1, "counts 99 tokens, the file holds 100 (2 bytes too many)", open_one("less", 256));
    write_tokens("less4", TOKENS_MAGIC_UINT32, 7, 99, 100, 4, 0);
    CHECK_DIES(1, "counts 99 tokens, the file holds 100 (4 bytes too many)", open_one("less4", 256));
    write_tokens("more4", TOKENS_MAGIC_UINT32, 7, 101, 100, 4, 0);
    CHECK_DIES(1, "counts 101 tokens, the file holds 100 (4 bytes missing)", open_one("more4", 256));
    write_good("cut", 100, 2, 0);
    CHECK(truncate(in_folder("cut"), 1024 + 199) == 0, "truncate");
    CHECK_DIES(1, "counts 100 tokens, the file holds 99 and part of one more (1 bytes missing)", open_one("cut", 256));
    write_tokens("cut-to-header", TOKENS_MAGIC_UINT16, 1, 100, 0, 2, 0);
    CHECK_DIES(1, "only a header and not one token (the header counts 100)", open_one("cut-to-header", 256));
    clear_folder();
}

TEST(no_permission) {
    write_good("locked", 100, 2, 0);
    chmod(in_folder("locked"), 0);
    chmod(folder, 0755);
    int rc = test_fork();
    if (rc == 0) {
        if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0)) _exit(77);
        open_one("locked", 256);
        _exit(99);
    }
    if (rc - 1 == 77) {
        clear_folder();
        SKIP("root reads everything here and cannot become another user");
    }
    CHECK(rc - 1 == 1 && strstr(died_text, "no permission to read"), "exit code %d: %s", rc - 1, died_text);
    clear_folder();
}

// Other formats are called by their names.
TEST(looks_like) {
    struct {
        uint32_t magic;
        const char *words;
    } rows[] = {{20240326, "model checkpoint"}, {20240327, "debug state"},   {20240328, "tokenizer file"},
                {20240522, "evaluation file"},  {20240527, "optimizer state"}, {20240803, "Llama 3"},
                {0x04034b50, "PyTorch file"},   {0x00088b1f, "gzip"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        write_tokens("other", rows[i].magic, 3, 100, 100, 2, 0);
        CHECK_DIES(1, rows[i].words, open_one("other", 256));
        CHECK(strstr(died_text, "this looks like ") != NULL, "%s", died_text);
    }
    write_bytes("other", "\x40\1\0\0\0\0\0\0{\"wte.weight\":{}}\0\0", 28);
    CHECK_DIES(1, "safetensors", open_one("other", 256));
    write_bytes("other", "{\"text\": \"hello\"}\n", 18);
    CHECK_DIES(1, "JSON text", open_one("other", 256));
    write_bytes("other", "<!DOCTYPE html>\n<html>", 22);
    CHECK_DIES(1, "HTML", open_one("other", 256));
    write_bytes("other", "version https://git-lfs.github.com/spec/v1\n", 43);
    CHECK_DIES(1, "git-lfs", open_one("other", 256));
    write_bytes("other", "a", 1);
    CHECK_DIES(1, "text file", open_one("other", 256));
    write_bytes("other", "\0", 1);
    CHECK_DIES(1, "bad magic number 0", open_one("other", 256));
    write_bytes("other", "0123456789012345678901234567890\xc3\xa9t\xc3\xa9", 36);  // e-acute across the cut at 32 bytes
    CHECK_DIES(1, "begins \"0123456789012345678901234567890\")", open_one("other", 256));
    clear_folder();
}

TEST(one_bad_file_among_many) {
    write_good("s_0.bin", 100, 2, 0);
    write_tokens("s_1.bin", TOKENS_MAGIC_UINT16, 1, 101, 100, 2, 0);
    CHECK_DIES(1, "s_1.bin': the header counts", open_one("s_*.bin", 256));
    CHECK_DIES(1, "no such file\n", open_one("t_*.bin", 256));
    clear_folder();
}

static void fetch_all(const char *name, size_t T, size_t V) {
    DataLoader dl;
    static int32_t inp[4096], tgt[4096];
    dataloader_open(&dl, in_folder(name), T, 1, 0, V, "--val");
    dataloader_fetch(&dl, 0, dl.samples_per_epoch, inp, tgt);
    dataloader_close(&dl);
}

// Ids 0..99: every vocabulary of 100 or more passes; below it, the first id that is too large is named with its place.
TEST(ids_beyond_the_vocabulary) {
    for (int token_bytes = 2; token_bytes <= 4; token_bytes += 2) {
        write_good("ids.bin", 97, token_bytes, 3);
        fetch_all("ids.bin", 8, 100);
        CHECK_DIES(1, "token 96 (counted from 0) is id 99, the vocabulary has ids 0 to 98",
                   fetch_all("ids.bin", 8, 99));
        CHECK(strstr(died_text, "--val '") && strstr(died_text, "ids.bin"), "%s", died_text);
        CHECK_DIES(1, "token 62 (counted from 0) is id 65, the vocabulary has ids 0 to 64",
                   fetch_all("ids.bin", 8, 65));
        CHECK_DIES(1, "token 62", fetch_all("ids.bin", 96, 65));
        CHECK_DIES(1, "token 0 ", fetch_all("ids.bin", 96, 2));
    }
    write_good("ids.bin", 9, 4, 0x7ffffffe);  // 0x80000000 and up must not pass as negative
    CHECK_DIES(1, "id 2147483648", fetch_all("ids.bin", 4, (size_t)1 << 31));
    clear_folder();
}

// V = 0 asks for the vocabulary the files note; files that note different tokenizers are refused.
TEST(notes_of_the_tokenizer) {
    DataLoader dl;
    write_good("n_0.bin", 30, 2, 0);
    write_good("n_1.bin", 30, 2, 0);
    dataloader_open(&dl, in_folder("n_*.bin"), 8, 1, 1, 0, "--train");
    CHECK(dl.V == 0 && dl.fingerprint == 0 && dl.tokenizer_kind == 0, "a note where there is none");
    dataloader_close(&dl);
    CHECK_DIES(1, "no vocabulary", fetch_all("n_0.bin", 8, 0));
    write_note("n_1.bin", TOKENS_NOTE_VOCABULARY, 257);
    write_note("n_1.bin", TOKENS_NOTE_TOKENIZER, 1);
    write_note("n_1.bin", TOKENS_NOTE_FINGERPRINT, 0xabcdef01);
    dataloader_open(&dl, in_folder("n_*.bin"), 8, 1, 1, 0, "--train");
    CHECK(dl.V == 257 && dl.fingerprint == 0xabcdef01 && dl.tokenizer_kind == 1, "V is %d", (int)dl.V);
    dataloader_close(&dl);
    dataloader_open(&dl, in_folder("n_*.bin"), 8, 1, 1, 100, "--train");
    CHECK(dl.V == 100, "the note wins over the vocabulary asked for");
    dataloader_close(&dl);
    fetch_all("n_1.bin", 8, 0);
    write_note("n_1.bin", TOKENS_NOTE_VOCABULARY, 20);
    CHECK_DIES(1, "is id 20, the vocabulary has ids 0 to 19", fetch_all("n_1.bin", 8, 0));
    write_note("n_0.bin", TOKENS_NOTE_FINGERPRINT, 0xabcdef02);
    CHECK_DIES(1, "another tokenizer (20 ids)", open_one("n_*.bin", 256));
    clear_folder();
}

static void shrink_while_open(void) {
    DataLoader dl;
    int32_t inp[8], tgt[8];
    dataloader_open(&dl, in_folder("s.bin"), 8, 1, 0, 256, "--train");
    dataloader_fetch(&dl, 0, 1, inp, tgt);
    if (truncate(in_folder("s.bin"), 1100) != 0) return;
    dataloader_fetch(&dl, 10, 1, inp, tgt);
}

TEST(file_shrinks_while_open) {
    write_good("s.bin", 200, 2, 0);
    CHECK_DIES(1, "shorter since the start", shrink_while_open());
    clear_folder();
}

// ----------------------------------------------------------------------------------------------------------------
// Too little data

static void require(const char *name, size_t B, size_t T, size_t ranks) {
    DataLoader dl;
    dataloader_open(&dl, in_folder(name), T, 1, 1, 256, "--train");
    dataloader_require(&dl, B, ranks);
    dataloader_close(&dl);
}

TEST(sixteen_tokens_are_too_few) {
    write_good("t16.bin", 16, 2, 0);
    write_good("t17.bin", 17, 2, 0);
    CHECK_DIES(1, "16 tokens are too few, one batch needs 17 (--batch 2 x --seq 8 + 1)", require("t16.bin", 2, 8, 1));
    CHECK(strstr(died_text, "t16.bin") && strstr(died_text, "--batch 1 or --seq 7"), "%s", died_text);
    require("t16.bin", 1, 8, 1);
    require("t16.bin", 2, 7, 1);
    require("t17.bin", 2, 8, 1);
    CHECK_DIES(1, "needs 33 (--batch 2 x --seq 8 x 2 ranks + 1)", require("t17.bin", 2, 8, 2));
    CHECK(strstr(died_text, "--batch 1 or --seq 4"), "%s", died_text);
    require("t17.bin", 1, 8, 2);
    require("t17.bin", 2, 4, 2);
    CHECK_DIES(1, "--seq 15, or more text", require("t16.bin", 1, 100, 1));
    CHECK_DIES(1, "too little for any --seq at --batch 20", require("t16.bin", 20, 100, 1));
    write_good("t1.bin", 1, 2, 0);
    CHECK_DIES(1, "1 tokens are too few", require("t1.bin", 1, 1, 1));
    CHECK_DIES(1, "1 tokens are too few", fetch_all("t1.bin", 1, 256));
    CHECK_DIES(1, "3 files make 3 samples", require("t*.bin", 4, 8, 1));
    clear_folder();
}

// The suggestions are the largest: they pass, one more does not. All small cases.
TEST(suggestions_are_the_largest) {
    DataLoader dl;
    write_good("a_0.bin", 40, 2, 0);
    write_good("a_1.bin", 7, 2, 0);
    write_good("a_2.bin", 23, 2, 0);
    for (size_t T = 1; T < 50; T++) {
        dataloader_open(&dl, in_folder("a_*.bin"), T, 1, 1, 256, "--train");
        CHECK(dl.samples_per_epoch == dataloader_samples_at(&dl, T), "T %d", (int)T);
        for (uint64_t samples = 1; samples < 70; samples++) {
            size_t fit = dataloader_largest_seq(&dl, samples);
            CHECK(fit == 0 || dataloader_samples_at(&dl, fit) >= samples, "T %d does not fit", (int)fit);
            CHECK(fit == T || dataloader_samples_at(&dl, fit + 1) < samples, "T %d fits too", (int)fit + 1);
        }
        dataloader_close(&dl);
    }
    clear_folder();
}

TEST(seventeen_tokens_train_and_repeat) {
    DataLoader dl;
    int32_t inp[16], tgt[16];
    write_good("t17.bin", 17, 2, 100);
    dataloader_open(&dl, in_folder("t17.bin"), 8, 1, 1, 256, "--train");
    CHECK(dl.samples_per_epoch == 2 && dl.total_tokens == 17 && dl.num_shards == 1, "facts");
    for (uint64_t step = 0; step < 20; step++) {
        dataloader_fetch(&dl, 2 * step, 2, inp, tgt);
        CHECK(inp[0] + inp[8] == 100 + 108 && inp[0] != inp[8], "step %d begins %d, %d", (int)step, inp[0], inp[8]);
        for (int i = 0; i < 16; i++) CHECK(tgt[i] == inp[i] + 1, "target %d", i);
    }
    dataloader_close(&dl);
    clear_folder();
}

// ----------------------------------------------------------------------------------------------------------------
// Order

// Every epoch's order is a bijection, for every small n, sizes around powers, and (sampled) huge ones.
TEST(permutation_is_a_bijection) {
    static unsigned char hit[70000];
    const uint64_t sizes[] = {255, 256, 257, 1000, 1023, 1024, 1025, 4095, 4097, 16385, 65535, 65536, 65537};
    for (uint64_t row = 1; row < 140 + 13; row++) {
        uint64_t n = row < 140 ? row : sizes[row - 140];
        for (uint64_t epoch = 0; epoch < 3; epoch++) {
            memset(hit, 0, sizeof hit);
            for (uint64_t i = 0; i < n; i++) {
                uint64_t to = dataloader_permute(i, n, 17, epoch);
                CHECK(to < n && !hit[to < n ? to : 0], "n %d: %d goes to %d", (int)n, (int)i, (int)to);
                if (to < n) hit[to] = 1;
            }
        }
    }
    const uint64_t huge[] = {((uint64_t)1 << 40) + 12345, ((uint64_t)1 << 62) + 1, UINT64_MAX};
    for (int h = 0; h < 3; h++) {
        double mean = 0;
        for (uint64_t i = 0; i < 1000; i++) {
            uint64_t to = dataloader_permute(huge[h] - 1 - i * (huge[h] / 1000), huge[h], 17, 1);
            CHECK(to < huge[h], "beyond n");
            mean += (double)to / (double)huge[h] / 1000;
        }
        CHECK(fabs(mean - 0.5) < 0.04, "n 2^%d: mean position %g", h, mean);
    }
}

// Over epochs each (first, second) pair of a 5-element order is equally frequent: 20 outcomes, 19 degrees of freedom
// (mean 19, deviation 6.2). Where the first element of a 1000-element order comes from: 10 bins.
TEST(permutation_is_fair) {
    enum { EPOCHS = 20000 };
    int pairs[25] = {0}, bins[10] = {0};
    double chi_square = 0;
    for (uint64_t epoch = 0; epoch < EPOCHS; epoch++) {
        pairs[5 * dataloader_permute(0, 5, 3, epoch) + dataloader_permute(1, 5, 3, epoch)]++;
        bins[dataloader_permute(0, 1000, 3, epoch) / 100]++;
    }
    for (int i = 0; i < 25; i++)
        if (i % 6) chi_square += pow(pairs[i] - EPOCHS / 20.0, 2) / (EPOCHS / 20.0);
    CHECK(chi_square < 45, "pairs: chi-square %.1f", chi_square);
    chi_square = 0;
    for (int i = 0; i < 10; i++) chi_square += pow(bins[i] - EPOCHS / 10.0, 2) / (EPOCHS / 10.0);
    CHECK(chi_square < 30, "positions: chi-square %.1f", chi_square);
}

// Five shards with 4-byte ids, each id different: a sample's first id tells its place.
static const size_t shard_tokens[5] = {50, 1, 17, 33, 8};
static const uint32_t shard_first[5] = {100000, 200000, 300000, 400000, 500000};

static void write_five(void) {
    for (int i = 0; i < 5; i++) {
        char name[32];
        snprintf(name, sizeof name, "f_%d.bin", i);
        write_good(name, shard_tokens[i], 4, shard_first[i]);
    }
}

static void open_five(DataLoader *dl, size_t T, uint64_t seed, int shuffle) {
    dataloader_open(dl, in_folder("f_*.bin"), T, seed, shuffle, 600000, "--train");
}

// Number in file order of the sample whose first id is `id`; checks that the whole sample is what the files hold.
static int place(const int32_t *inp, const int32_t *tgt, size_t T) {
    int before = 0;
    for (int i = 0; i < 5; i++) {
        int samples = (int)((shard_tokens[i] - 1) / T);
        int64_t at = (int64_t)inp[0] - shard_first[i];
        if (at >= 0 && at < (int64_t)shard_tokens[i]) {
            CHECK(at % (int64_t)T == 0 && at / (int64_t)T < samples, "a sample at token %d of shard %d", (int)at, i);
            for (size_t t = 0; t < T; t++)
                CHECK(inp[t] == inp[0] + (int)t && tgt[t] == inp[t] + 1, "token %d of a sample", (int)t);
            return before + (int)(at / (int64_t)T);
        }
        before += samples;
    }
    CHECK(0, "id %d is in no file", inp[0]);
    return 0;
}

// Over each epoch all ranks together read every sample exactly once, for any T, ranks and batch, with epoch borders
// anywhere in a batch.
TEST(ranks_are_disjoint_and_cover) {
    enum { EPOCHS = 3 };
    static int32_t inp[4096], tgt[4096];
    static int times[EPOCHS + 1][128];
    write_five();
    for (size_t T = 1; T <= 40; T += T < 9 ? 1 : 7)
        for (size_t ranks = 1; ranks <= 3; ranks++)
            for (size_t B = 1; B <= 5; B += 2) {
                DataLoader dl;
                open_five(&dl, T, 77, 1);
                uint64_t n = dl.samples_per_epoch;
                memset(times, 0, sizeof times);
                for (uint64_t step = 0; step * ranks * B < EPOCHS * n; step++)
                    for (size_t rank = 0; rank < ranks; rank++) {
                        uint64_t first = (step * ranks + rank) * B;
                        dataloader_fetch(&dl, first, B, inp, tgt);
                        for (size_t b = 0; b < B; b++) {
                            uint64_t epoch = dataloader_epoch(&dl, first + b);
                            if (epoch < EPOCHS) times[epoch][place(inp + b * T, tgt + b * T, T)]++;
                        }
                    }
                for (int epoch = 0; epoch < EPOCHS; epoch++)
                    for (uint64_t i = 0; i < n; i++)
                        CHECK(times[epoch][i] == 1, "T %d, %d ranks, B %d: sample %d of epoch %d came %d times", (int)T,
                              (int)ranks, (int)B, (int)i, epoch, times[epoch][i]);
                dataloader_close(&dl);
            }
    clear_folder();
}

// A pure function of (seed, g): however it is asked for, and by a loader opened anew.
TEST(random_access_equals_sequential) {
    enum { T = 3, N = 100 };
    static int32_t inp[N * T], tgt[N * T], inp2[N * T], tgt2[N * T];
    DataLoader dl, again;
    write_five();
    open_five(&dl, T, 5, 1);
    open_five(&again, T, 5, 1);
    dataloader_fetch(&dl, 0, N, inp, tgt);
    for (uint64_t i = 0; i < 300; i++) {
        uint64_t first = rand_u32(1, RAND_TEST, 0, 0, i) % N, count = rand_u32(2, RAND_TEST, 0, 0, i) % (N + 1 - first);
        dataloader_fetch(&again, first, count, inp2, tgt2);
        CHECK(memcmp(inp + first * T, inp2, count * T * sizeof(int32_t)) == 0, "%d from %d", (int)count, (int)first);
        CHECK(memcmp(tgt + first * T, tgt2, count * T * sizeof(int32_t)) == 0, "%d from %d", (int)count, (int)first);
    }
    dataloader_close(&dl);
    dataloader_close(&again);
    clear_folder();
}

TEST(order_depends_on_seed_and_epoch) {
    DataLoader dl, other;
    int same_epoch = 0, same_seed = 0, same_file = 0, high_bits = 0;
    write_five();
    open_five(&dl, 1, 5, 1);
    open_five(&other, 1, 6, 1);
    uint64_t n = dl.samples_per_epoch;
    for (uint64_t i = 0; i < n; i++) {
        uint64_t sample = dataloader_sample(&dl, i);
        same_epoch += sample == dataloader_sample(&dl, n + i);
        same_seed += sample == dataloader_sample(&other, i);
        same_file += sample == i;
        high_bits += sample == dataloader_permute(i, n, 5 + ((uint64_t)1 << 32), 0);
    }
    // Two independent orders agree in 1 place on average.
    CHECK(same_epoch < 8 && same_seed < 8 && same_file < 8 && high_bits < 8, "equal places: %d %d %d %d of %d",
          same_epoch, same_seed, same_file, high_bits, (int)n);
    dataloader_close(&dl);
    dataloader_close(&other);
    clear_folder();
}

TEST(unshuffled_is_file_order) {
    enum { T = 3 };
    DataLoader dl;
    int32_t inp[T], tgt[T];
    write_five();
    open_five(&dl, T, 5, 0);
    CHECK(dl.num_shards == 5 && dl.total_tokens == 109 && dl.samples_per_epoch == 16 + 0 + 5 + 10 + 2, "facts");
    for (uint64_t g = 0; g < 3 * dl.samples_per_epoch; g++) {
        dataloader_fetch(&dl, g, 1, inp, tgt);
        CHECK(place(inp, tgt, T) == (int)(g % dl.samples_per_epoch), "sample %d", (int)g);
    }
    dataloader_close(&dl);
    clear_folder();
}

// Files by the bytes of their names, not by the locale and not by when they were made; lists in the order given;
// a name with brackets taken as it is; both widths side by side.
TEST(files_and_their_order) {
    DataLoader dl;
    int32_t inp[5], tgt[5];
    const int32_t want[] = {0, 8, 10, 20, 40};  // B.bin, a[1].bin, a_10.bin, a_9.bin, b.bin
    write_good("b.bin", 2, 2, 40);
    write_good("a_10.bin", 2, 4, 10);
    write_good("a_9.bin", 2, 2, 20);
    write_good("B.bin", 2, 4, 0);
    write_good("a[1].bin", 2, 2, 8);
    dataloader_open(&dl, in_folder("*.bin"), 1, 1, 0, 256, "--train");
    dataloader_fetch(&dl, 0, 5, inp, tgt);
    for (int i = 0; i < 5; i++) CHECK(inp[i] == want[i], "file %d begins with %d", i, inp[i]);
    dataloader_close(&dl);
    dataloader_open(&dl, in_folder("a[1].bin"), 1, 1, 0, 256, "--train");
    CHECK(dl.num_shards == 1, "%d files match the name with brackets", (int)dl.num_shards);
    dataloader_close(&dl);
    char first[600], second[600];
    snprintf(first, sizeof first, "%s/b.bin", folder);
    snprintf(second, sizeof second, "%s/a_9.bin", folder);
    char *list[2] = {first, second};
    dataloader_open_paths(&dl, list, 2, 1, 1, 0, 256, "--train");
    dataloader_fetch(&dl, 0, 2, inp, tgt);
    CHECK(inp[0] == 40 && inp[1] == 20, "a list's order: %d %d", inp[0], inp[1]);
    dataloader_close(&dl);
    clear_folder();
}

// ----------------------------------------------------------------------------------------------------------------
// Sizes

// More files than are kept open, and fewer descriptors than files.
TEST(many_shards) {
    enum { SHARDS = 200 };
    DataLoader dl;
    struct rlimit before, few;
    static int times[SHARDS];
    int32_t inp[2], tgt[2];
    for (int i = 0; i < SHARDS; i++) {
        char name[32];
        snprintf(name, sizeof name, "m_%03d.bin", i);
        write_good(name, 3, 2, (uint32_t)(3 * i));
    }
    getrlimit(RLIMIT_NOFILE, &before);
    few = before;
    few.rlim_cur = DATALOADER_OPEN_FILES + 16;
    setrlimit(RLIMIT_NOFILE, &few);
    dataloader_open(&dl, in_folder("m_*.bin"), 2, 4, 1, 1000, "--train");
    for (uint64_t g = 0; g < 3 * SHARDS; g++) {
        dataloader_fetch(&dl, g, 1, inp, tgt);
        CHECK(inp[0] % 3 == 0 && inp[1] == inp[0] + 1 && tgt[1] == inp[0] + 2, "sample %d", (int)g);
        times[inp[0] / 3]++;
    }
    for (int i = 0; i < SHARDS; i++) CHECK(times[i] == 3, "shard %d came %d times", i, times[i]);
    dataloader_close(&dl);
    setrlimit(RLIMIT_NOFILE, &before);
    clear_folder();
}

// Tokens beyond 2^31 and bytes beyond 2^32: a file with a hole, so it takes no room.
TEST(large_file) {
    const uint64_t tokens = 3000000001ull;
    DataLoader dl;
    int32_t inp[1000], tgt[1000];
    write_tokens("large.bin", TOKENS_MAGIC_UINT16, 1, (uint32_t)tokens, 0, 2, 0);
    int fd = open(in_folder("large.bin"), O_RDWR);
    uint16_t marks[2] = {777, 888};
    off_t end = (off_t)(1024 + 2 * tokens);
    int made = ftruncate(fd, end) == 0 && pwrite(fd, marks, 4, end - 4) == 4;
    close(fd);
    if (!made) {
        clear_folder();
        SKIP("no room for a 6 GB file with a hole in %s", folder);
    }
    dataloader_open(&dl, in_folder("large.bin"), 1000, 1, 0, 1000, "--train");
    CHECK(dl.total_tokens == tokens && dl.samples_per_epoch == 3000000, "%llu tokens",
          (unsigned long long)dl.total_tokens);
    dataloader_fetch(&dl, dl.samples_per_epoch - 1, 1, inp, tgt);
    CHECK(inp[999] == 777 && tgt[999] == 888 && tgt[998] == 777 && inp[998] == 0, "the last tokens are %d %d",
          inp[999], tgt[999]);
    dataloader_close(&dl);
    clear_folder();
}

int main(void) {
    const char *base = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/train_gpt_data_XXXXXX", base ? base : "/tmp");
    if (!mkdtemp(folder)) die("cannot make a folder '%s': %s", folder, strerror(errno));
    RUN(each_damage_has_its_sentence);
    RUN(counts_off_by_one);
    RUN(no_permission);
    RUN(looks_like);
    RUN(one_bad_file_among_many);
    RUN(ids_beyond_the_vocabulary);
    RUN(notes_of_the_tokenizer);
    RUN(file_shrinks_while_open);
    RUN(sixteen_tokens_are_too_few);
    RUN(suggestions_are_the_largest);
    RUN(seventeen_tokens_train_and_repeat);
    RUN(permutation_is_a_bijection);
    RUN(permutation_is_fair);
    RUN(ranks_are_disjoint_and_cover);
    RUN(random_access_equals_sequential);
    RUN(order_depends_on_seed_and_epoch);
    RUN(unshuffled_is_file_order);
    RUN(files_and_their_order);
    RUN(many_shards);
    RUN(large_file);
    if (rmdir(folder) != 0) {
        printf("FAIL  files are left in %s\n", folder);
        test_state.failed++;
    }
    return test_summary();
}
