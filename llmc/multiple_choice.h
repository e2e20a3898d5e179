// multiple_choice.h: questions with several completions of which one is right, as HellaSwag asks them.
//
// The file is llm.c's: 256 int32 (magic 20240522, version 1, number of questions, bytes of the longest one), then for
// each question uint16 numbers:
//
//     65535, bytes of this question, its index, which completion is right, number of completions,
//     n and the n ids of the context, and of each completion n and its n ids
//
// `data/tokenize --choices` writes it. evaluate_choices() of evaluate.h asks a model.
#ifndef LLMC_MULTIPLE_CHOICE_H
#define LLMC_MULTIPLE_CHOICE_H

#include "safe_file.h"

#define CHOICES_MAGIC 20240522
#define CHOICES_VERSION 1
#define CHOICES_HEADER_INTS 256
#define CHOICES_START 65535  // begins a question, so it is no id
#define CHOICES_MAX 16       // completions of a question
enum { CHOICES_HEADER_MAGIC, CHOICES_HEADER_VERSION, CHOICES_HEADER_COUNT, CHOICES_HEADER_LONGEST };
enum { QUESTION_START, QUESTION_BYTES, QUESTION_INDEX, QUESTION_ANSWER, QUESTION_COMPLETIONS, QUESTION_HEADER };

typedef struct {
    const uint16_t *context, *completion[CHOICES_MAX];
    size_t context_tokens, completion_tokens[CHOICES_MAX];
    size_t completions, answer;
} Question;

typedef struct {
    uint16_t *ids;  // of all questions
    Question *questions;
    size_t count;
    size_t longest;  // ids of the longest context with a completion of it
} MultipleChoice;

// The ids of one list at `at`, each below V; where the next begins, or NULL.
static inline const uint16_t *question_ids(const uint16_t *at, const uint16_t *end, size_t V, const uint16_t **ids,
                                           size_t *count) {
    if (at >= end || *at == 0 || *at > end - at - 1) return NULL;
    *count = *at;
    *ids = ++at;
    for (size_t i = 0; i < *count; i++)
        if (at[i] >= V) return NULL;
    return at + *count;
}

// One question at `at`; where the next begins, or NULL where this is none.
static inline const uint16_t *question_read(Question *q, const uint16_t *at, const uint16_t *end, size_t V) {
    if (end - at < QUESTION_HEADER || at[QUESTION_START] != CHOICES_START || at[QUESTION_BYTES] % 2) return NULL;
    if (at[QUESTION_BYTES] / 2 > end - at) return NULL;
    end = at + at[QUESTION_BYTES] / 2;
    q->answer = at[QUESTION_ANSWER];
    q->completions = at[QUESTION_COMPLETIONS];
    if (q->completions < 2 || q->completions > CHOICES_MAX || q->answer >= q->completions) return NULL;
    at = question_ids(at + QUESTION_HEADER, end, V, &q->context, &q->context_tokens);
    for (size_t c = 0; at && c < q->completions; c++)
        at = question_ids(at, end, V, &q->completion[c], &q->completion_tokens[c]);
    return at == end ? at : NULL;
}

// Reads `path` for a vocabulary of V ids; ends the program, naming `option`, where the file is not whole and right.
static inline void multiple_choice_open(MultipleChoice *m, const char *path, size_t V, const char *option) {
    int32_t header[CHOICES_HEADER_INTS];
    uint64_t bytes = 0;
    Message message;
    message_clear(&message);
    memset(m, 0, sizeof *m);
    int fd = safe_open_read(path, &bytes, &message);
    if (fd < 0) die("%s: %s\ntry: data/get.sh hellaswag, and data/tokenize --choices (data/README.md)", option, message.text);
    if (bytes < sizeof header || !safe_read_at(fd, 0, header, sizeof header, path, &message) ||
        header[CHOICES_HEADER_MAGIC] != CHOICES_MAGIC || header[CHOICES_HEADER_VERSION] != CHOICES_VERSION)
        die("%s '%s' is not an evaluation file: it does not begin with %d, %d\ntry: data/tokenize --choices", option, path,
            CHOICES_MAGIC, CHOICES_VERSION);
    size_t count = (size_t)header[CHOICES_HEADER_COUNT], words = (size_t)(bytes - sizeof header) / 2;
    if (header[CHOICES_HEADER_COUNT] < 1 || count > words / QUESTION_HEADER || bytes % 2)
        die("%s '%s': its header promises %d questions, %zu bytes follow\nwhy: the file is cut short, or damaged", option,
            path, header[CHOICES_HEADER_COUNT], words * 2);
    m->ids = (uint16_t *)checked_calloc(words, sizeof *m->ids, "questions");
    m->questions = (Question *)checked_calloc(count, sizeof *m->questions, "questions");
    if (!safe_read_at(fd, sizeof header, m->ids, words * 2, path, &message)) die("%s: %s", option, message.text);
    close(fd);
    const uint16_t *at = m->ids, *end = m->ids + words;
    for (m->count = 0; m->count < count; m->count++) {
        Question *q = &m->questions[m->count];
        at = question_read(q, at, end, V);
        if (!at)
            die("%s '%s': question %zu of %zu is damaged, or not made for a vocabulary of %zu ids\n"
                "try: data/tokenize --choices, with the tokenizer of the training data",
                option, path, m->count + 1, count, V);
        for (size_t c = 0; c < q->completions; c++)
            m->longest = max_size(m->longest, q->context_tokens + q->completion_tokens[c]);
    }
    if (at != end) die("%s '%s': something follows its %zu questions\nwhy: the file is damaged", option, path, count);
}

static inline void multiple_choice_close(MultipleChoice *m) {
    free(m->ids);
    free(m->questions);
    memset(m, 0, sizeof *m);
}

static inline int32_t question_id(const Question *q, size_t c, size_t i) {
    return i < q->context_tokens ? q->context[i] : q->completion[c][i - q->context_tokens];
}

// The context with completion c as one sequence: inputs and targets (T each). Of one longer than T + 1 the end is taken;
// behind a shorter one stand zeros, which a causal model does not look at.
static inline void question_row(const Question *q, size_t c, size_t T, int32_t *inputs, int32_t *targets) {
    size_t n = q->context_tokens + q->completion_tokens[c], skip = n - 1 > T ? n - 1 - T : 0;
    for (size_t t = 0; t < T; t++) {
        int inside = skip + t + 1 < n;
        inputs[t] = inside ? question_id(q, c, skip + t) : 0;
        targets[t] = inside ? question_id(q, c, skip + t + 1) : 0;
    }
}

// The loss a token of completion c, whose row of T losses this is.
static inline double question_loss(const Question *q, size_t c, size_t T, const float *losses) {
    size_t end = min_size(q->context_tokens + q->completion_tokens[c] - 1, T);
    size_t tokens = min_size(q->completion_tokens[c], end);
    double sum = 0.0;
    for (size_t t = end - tokens; t < end; t++) sum += (double)losses[t];
    return sum / (double)tokens;
}

// ----------------------------------------------------------------------------------------------------------------
// Writing

typedef struct {
    SafeFile file;
    int32_t header[CHOICES_HEADER_INTS];
    uint16_t words[CHOICES_START / 2];  // the question being made
    size_t used;
} ChoicesWriter;

// Begins the file, whose header is written at the end. `path` and `message` must outlive the writer.
static inline void choices_begin(ChoicesWriter *w, const char *path, Message *message) {
    memset(w, 0, sizeof *w);
    w->header[CHOICES_HEADER_MAGIC] = CHOICES_MAGIC;
    w->header[CHOICES_HEADER_VERSION] = CHOICES_VERSION;
    safe_file_create(&w->file, path, message);
    safe_file_write(&w->file, w->header, sizeof w->header);
}

static inline void question_begin(ChoicesWriter *w, size_t answer, size_t completions) {
    w->words[QUESTION_START] = CHOICES_START;
    w->words[QUESTION_INDEX] = (uint16_t)w->header[CHOICES_HEADER_COUNT];
    w->words[QUESTION_ANSWER] = (uint16_t)answer;
    w->words[QUESTION_COMPLETIONS] = (uint16_t)completions;
    w->used = QUESTION_HEADER;
}

// The next list of ids: the context, then each completion. 0 where it is empty, too long, or has an id over 65534.
static inline int question_add(ChoicesWriter *w, const int32_t *ids, size_t count) {
    if (count == 0 || count > sizeof w->words / 2 - 1 - w->used) return 0;
    w->words[w->used++] = (uint16_t)count;
    for (size_t i = 0; i < count; i++) {
        if (ids[i] >= CHOICES_START) return 0;
        w->words[w->used++] = (uint16_t)ids[i];
    }
    return 1;
}

static inline void question_end(ChoicesWriter *w) {
    size_t bytes = w->used * 2;
    w->words[QUESTION_BYTES] = (uint16_t)bytes;
    safe_file_write(&w->file, w->words, bytes);
    w->header[CHOICES_HEADER_COUNT]++;
    if (w->header[CHOICES_HEADER_LONGEST] < (int32_t)bytes) w->header[CHOICES_HEADER_LONGEST] = (int32_t)bytes;
}

// 1 when the file is whole and on the disk; else 0 with the message.
static inline int choices_end(ChoicesWriter *w) {
    if (!w->file.failed && pwrite(w->file.fd, w->header, sizeof w->header, 0) != (ssize_t)sizeof w->header)
        safe_file_failed(&w->file, "write");
    return safe_file_finish(&w->file);
}

#endif
