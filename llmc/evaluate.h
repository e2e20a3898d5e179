// evaluate.h: what a run does with its model besides training it: the validation loss, questions, generated text.
//
// Included by trainer.h after the trainer has defined its Model (the contract is described there). None touches the
// optimizer, the gradients or the training data's position, so a run with and without them trains bit for bit alike.
#ifndef LLMC_EVALUATE_H
#define LLMC_EVALUATE_H

#include <math.h>
#include <signal.h>

#include "communicator.h"
#include "dataloader.h"
#include "multiple_choice.h"
#include "rand.h"
#include "sampler.h"
#include "stop_signal.h"
#include "tokenizer.h"

// --val-steps counts groups of this many sequences, so that the tokens it stands for do not depend on --batch.
#define VAL_STEP_SEQUENCES ((uint64_t)16)

// Host buffers of one micro-batch: B*T tokens each.
typedef struct {
    int32_t *inputs, *targets;
    float *losses;
    double *sums;      // evaluate_sums() of them: the losses of whole sequences
    int32_t *reports;  // 2 a rank: what ranks tell each other between two passes
} BatchBuffers;

// Ranks take runs of sequences, and tell each other what they found so many at a time.
#define EVALUATE_GATHER ((size_t)64)
static inline size_t evaluate_share(uint64_t sequences, size_t ranks) {
    return round_up(ceil_div((size_t)sequences, ranks), EVALUATE_GATHER);
}
static inline size_t evaluate_sums(uint64_t sequences, size_t ranks) {
    return (ranks + 1) * evaluate_share(sequences, ranks) + ranks * EVALUATE_GATHER;
}

// Before a pass, asked by every rank as long as any has one to make (`busy`): is there one, on any? 0 after the last, or
// when a signal came to any of them: then all see it here, as *stop.
static inline int evaluate_goes_on(const Parallel *parallel, BatchBuffers *buffers, int busy, int *stop) {
    const int32_t mine[2] = {busy, *stop_signal()}, *all = buffers->reports;
    int more = 0, signal = 0;
    ranks_gather(buffers->reports, mine, sizeof mine);
    for (size_t r = 0; r < parallel->ranks; r++) {
        more |= all[2 * r];
        if (!signal) signal = all[2 * r + 1];
    }
    if (more) *stop = signal;  // one that comes after the last pass is none of this evaluation's business
    communicator_moved();
    return more && !signal;
}

// sums[i] = sequence i's loss, summed in double, for sequences [first, end).
static inline void evaluate_part(Model *model, DataLoader *val, const Parallel *parallel, uint64_t first, uint64_t end,
                                 size_t B, size_t T, BatchBuffers *buffers, double *sums, int *stop) {
    for (size_t count, done = 0; evaluate_goes_on(parallel, buffers, first < end, stop); first += count, done += count) {
        count = (size_t)(end - first < B ? end - first : B);
        if (count == 0) continue;
        dataloader_fetch(val, first, count, buffers->inputs, buffers->targets);
        model_forward(model, buffers->inputs, buffers->targets, count, T, 0.0f);
        model_losses(model, buffers->losses);
        for (size_t b = 0; b < count; b++) {
            sums[done + b] = 0.0;
            for (size_t t = 0; t < T; t++) sums[done + b] += (double)buffers->losses[b * T + t];
        }
    }
}

// Mean loss per token over the first `sequences` sequences of `val`, at most B at a time, shared out among ranks. Each
// sequence is summed in double, sequences are added in order: the same bits whatever B and however many ranks. NaN, and
// *stop set, where a signal came before the last pass.
static inline double evaluate(Model *model, DataLoader *val, const Parallel *parallel, uint64_t sequences, size_t B,
                              size_t T, BatchBuffers *buffers, int *stop) {
    size_t ranks = parallel->ranks, share = evaluate_share(sequences, ranks);
    double total = 0.0, *mine = buffers->sums, *all = mine + share, *together = all + ranks * share;
    uint64_t first = parallel->rank * share < sequences ? parallel->rank * share : sequences;
    uint64_t end = first + share < sequences ? first + share : sequences;
    *stop = 0;
    evaluate_part(model, val, parallel, first, end, B, T, buffers, mine, stop);
    if (*stop) return NAN;
    for (size_t at = 0; at < share; at += EVALUATE_GATHER) {
        ranks_gather(together, mine + at, EVALUATE_GATHER * sizeof(double));
        for (size_t r = 0; r < ranks; r++)
            memcpy(all + r * share + at, together + r * EVALUATE_GATHER, EVALUATE_GATHER * sizeof(double));
    }
    for (uint64_t i = 0; i < sequences; i++) total += all[i];
    return total / ((double)sequences * (double)T);
}

// A pass over questions takes sequences as short as the longest needs, in whole tiles: fewer than --seq, mostly.
#define CHOICES_TILE ((size_t)64)
static inline size_t choices_seq(const MultipleChoice *m, size_t T) {
    return min_size(T, round_up(m->longest - 1, CHOICES_TILE));
}

// How many of questions [first, end) the model answers right, `rows` sequences of T tokens at most at a time. Its answer
// is the completion of the least loss a token (length-normalised accuracy), the first of several; a NaN is never right.
static inline uint64_t choices_part(Model *model, const MultipleChoice *m, const Parallel *parallel, size_t first,
                                    size_t end, size_t rows, size_t T, BatchBuffers *buffers, int *stop) {
    uint64_t right = 0;
    size_t question = first, choice = 0, answer = CHOICES_MAX;
    double least = INFINITY;
    while (evaluate_goes_on(parallel, buffers, question < end, stop)) {
        size_t n = 0;
        if (question == end) continue;
        for (size_t q = question, c = choice; n < rows && q < end; n++) {
            question_row(&m->questions[q], c, T, buffers->inputs + n * T, buffers->targets + n * T);
            if (++c == m->questions[q].completions) q++, c = 0;
        }
        model_forward(model, buffers->inputs, buffers->targets, n, T, 0.0f);
        model_losses(model, buffers->losses);
        for (size_t i = 0; i < n; i++) {
            const Question *q = &m->questions[question];
            double loss = question_loss(q, choice, T, buffers->losses + i * T);
            if (loss < least) least = loss, answer = choice;
            if (++choice < q->completions) continue;
            right += answer == q->answer;
            question++, choice = 0, answer = CHOICES_MAX, least = INFINITY;
        }
    }
    return right;
}

// The same over all questions, shared out among ranks. `one_sequence`: passes of one, whose result then depends on no
// other; else as many as B*T tokens are. UINT64_MAX, and *stop set, where a signal came before the last pass.
static inline uint64_t evaluate_choices(Model *model, const MultipleChoice *m, const Parallel *parallel, int one_sequence,
                                        size_t B, size_t T, BatchBuffers *buffers, int *stop) {
    size_t ranks = parallel->ranks, share = ceil_div(m->count, ranks), seq = choices_seq(m, T);
    size_t first = min_size(parallel->rank * share, m->count), end = min_size(first + share, m->count);
    *stop = 0;
    uint64_t right = 0, mine = choices_part(model, m, parallel, first, end, one_sequence ? 1 : B * T / seq, seq, buffers,
                                            stop);
    if (*stop) return UINT64_MAX;
    if (ranks == 1) return mine;
    uint64_t *all = (uint64_t *)checked_calloc(ranks, sizeof *all, "answers");
    ranks_gather(all, &mine, sizeof mine);
    for (size_t r = 0; r < ranks; r++) right += all[r];
    free(all);
    return right;
}

// What generating text needs, allocated once. `tokenizer` NULL: token ids are printed instead of text.
typedef struct {
    SamplerParams params;
    uint64_t seed;
    size_t length;  // tokens to generate
    const Tokenizer *tokenizer;
    int32_t *prompt;  // starts the text: the --prompt, or a single end-of-text token
    size_t prompt_tokens;
    size_t V;
    int32_t end_of_text;  // -1: none
    float *logits;
    SamplerCandidate *scratch;
} Generator;

static inline void generator_print(const Generator *g, int32_t token, FILE *out) {
    size_t bytes = 0;
    if (!g->tokenizer) {
        fprintf(out, "%d ", token);
        return;
    }
    const unsigned char *text = tokenizer_decode(g->tokenizer, token, &bytes);
    fwrite(text, 1, bytes, out);
}

// Prints the prompt and g->length tokens sampled after it (fewer if the text ends itself, or the model is broken: what
// becomes of the run is not for a sample to decide). The coins depend on the sampling seed and `step` alone, so training
// is the same whether and however much is sampled.
static inline void generate(Model *model, const Generator *g, uint64_t step, FILE *out, volatile sig_atomic_t *stop) {
    int32_t token = g->prompt[0];
    for (size_t pos = 0; pos < g->prompt_tokens + g->length; pos++) {
        if (pos > 0 || token != g->end_of_text) generator_print(g, token, out);
        if (*stop || pos + 1 == g->prompt_tokens + g->length) break;
        model_logits(model, token, pos, g->logits);
        if (pos + 1 < g->prompt_tokens) {
            token = g->prompt[pos + 1];
            continue;
        }
        if (!all_finite(g->logits, g->V)) {
            fprintf(out, "(no more: the logits are not finite)");
            break;
        }
        float coin = rand_uniform(g->seed, RAND_SAMPLE, 0, (uint32_t)step, pos);
        token = (int32_t)sample_token(g->logits, g->V, &g->params, coin, g->scratch);
        if (token == g->end_of_text) break;
    }
    fputc('\n', out);
    fflush(out);
}

#endif
