// Tests of llmc/multiple_choice.h: the file's words, rows and losses worked out by hand, and files that are damaged.
#include "../../llmc/multiple_choice.h"
#include "dies.h"

static char path[64];

// Two questions: 5 6 7 | 8, 9 10; and 1 | 2 3, 4, 11.
static void write_file(void) {
    static const int32_t lists[][3] = {{5, 6, 7}, {8}, {9, 10}, {1}, {2, 3}, {4}, {11}};
    static const size_t counts[] = {3, 1, 2, 1, 2, 1, 1};
    static ChoicesWriter w;
    Message message;
    message_clear(&message);
    choices_begin(&w, path, &message);
    question_begin(&w, 1, 2);
    for (int i = 0; i < 3; i++) CHECK(question_add(&w, lists[i], counts[i]), "list %d", i);
    question_end(&w);
    question_begin(&w, 0, 3);
    for (int i = 3; i < 7; i++) CHECK(question_add(&w, lists[i], counts[i]), "list %d", i);
    question_end(&w);
    CHECK(choices_end(&w), "%s", message.text);
}

// The words that llm.c's reader expects.
TEST(the_file_is_llmc_s) {
    static const uint16_t want[] = {65535, 28, 0, 1, 2, 3, 5, 6, 7, 1, 8, 2, 9, 10, 65535, 28, 1, 0, 3, 1, 1, 2, 2, 3, 1, 4, 1, 11};
    int32_t header[CHOICES_HEADER_INTS];
    uint16_t words[64];
    write_file();
    FILE *file = file_open(path, "rb");
    file_read(file, header, sizeof header, path);
    size_t n = fread(words, 2, 64, file);
    file_close(file, path);
    CHECK(header[0] == 20240522 && header[1] == 1 && header[2] == 2 && header[3] == 28, "header %d %d %d %d", header[0],
          header[1], header[2], header[3]);
    CHECK(n == sizeof want / 2 && memcmp(words, want, sizeof want) == 0, "%zu words", n);
}

static MultipleChoice opened(void) {
    MultipleChoice m;
    write_file();
    multiple_choice_open(&m, path, 12, "--hellaswag");
    return m;
}

TEST(what_is_written_is_read) {
    MultipleChoice m = opened();
    CHECK(m.count == 2 && m.longest == 5, "%zu questions of up to %zu ids", m.count, m.longest);
    CHECK(m.questions[0].answer == 1 && m.questions[0].completions == 2 && m.questions[1].completions == 3, "answers");
    CHECK(m.questions[1].completion_tokens[0] == 2 && m.questions[1].completion[2][0] == 11, "ids");
    multiple_choice_close(&m);
}

// 5 6 7 9 10 is inputs 5 6 7 9, targets 6 7 9 10; the completion's losses are those of targets 9 and 10.
TEST(rows_and_losses) {
    MultipleChoice m = opened();
    const Question *q = &m.questions[0];
    static const int32_t in6[] = {5, 6, 7, 9, 0, 0}, out6[] = {6, 7, 9, 10, 0, 0}, in3[] = {6, 7, 9}, out3[] = {7, 9, 10};
    static const float losses[] = {1, 2, 4, 8, 16, 32};
    int32_t in[6], out[6];
    question_row(q, 1, 6, in, out);
    CHECK(memcmp(in, in6, sizeof in6) == 0 && memcmp(out, out6, sizeof out6) == 0, "T = 6");
    CHECK(question_loss(q, 1, 6, losses) == 6 && question_loss(q, 0, 6, losses) == 4, "losses of 6");
    question_row(q, 1, 3, in, out);  // too long: the end of it
    CHECK(memcmp(in, in3, sizeof in3) == 0 && memcmp(out, out3, sizeof out3) == 0, "T = 3");
    CHECK(question_loss(q, 1, 3, losses) == 3, "losses of 3");
    question_row(q, 1, 1, in, out);  // of the completion itself only the end fits
    CHECK(in[0] == 9 && out[0] == 10 && question_loss(q, 1, 1, losses) == 1, "T = 1");
    multiple_choice_close(&m);
}

TEST(what_does_not_fit_is_refused) {
    static ChoicesWriter w;
    static int32_t ids[40000];
    question_begin(&w, 0, 2);
    CHECK(!question_add(&w, ids, 0), "an empty list");
    CHECK(!question_add(&w, ids, 33000), "a list longer than a question's bytes can say");
    ids[1] = 65535;
    CHECK(!question_add(&w, ids, 2), "an id that begins a question");
}

static void open_it(void) {
    MultipleChoice m;
    multiple_choice_open(&m, path, 12, "--hellaswag");
}

// `word` behind the header (from 1; 0: none) becomes 60000; `bytes` are left of the file (0: all).
static void check_damaged(size_t word, size_t bytes, const char *says) {
    uint16_t wrong = 60000;
    write_file();
    if (word) {
        FILE *file = file_open(path, "r+b");
        fseek(file, (long)(CHOICES_HEADER_INTS * 4 + (word - 1) * 2), SEEK_SET);
        file_write(file, &wrong, 2, path);
        file_close(file, path);
    }
    if (bytes && truncate(path, (off_t)bytes) != 0) die("cannot truncate");
    CHECK_DIES(1, says, open_it());
}

// Whatever word of a question is wrong, and wherever the file ends, is noticed; but ids, index and answer that are in
// range are anybody's guess.
TEST(damaged_files_are_refused) {
    for (size_t word = 1; word <= 28; word++)
        if (word != 3 && word != 17) check_damaged(word, 0, "is damaged");
    check_damaged(0, 1024 + 56 - 2, "is damaged");
    check_damaged(0, 1024 + 56 - 1, "cut short");
    check_damaged(0, 1024 + 10, "cut short");
    check_damaged(0, 1000, "not an evaluation file");
    write_file();
    FILE *file = file_open(path, "ab");
    file_write(file, "ab", 2, path);
    file_close(file, path);
    CHECK_DIES(1, "something follows", open_it());
    unlink(path);
    CHECK_DIES(1, "data/get.sh hellaswag", open_it());
}

int main(void) {
    snprintf(path, sizeof path, "/tmp/train_gpt_choices.%d", (int)getpid());
    RUN(the_file_is_llmc_s);
    RUN(what_is_written_is_read);
    RUN(rows_and_losses);
    RUN(what_does_not_fit_is_refused);
    RUN(damaged_files_are_refused);
    unlink(path);
    return test_summary();
}
