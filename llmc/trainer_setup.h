// trainer_setup.h: a run's state, what its options make of it, and the plans printed before anything is allocated.
//
// Part of trainer.h, which says what it asks of a trainer; trainer_checkpoints.h and the loop itself build on it.
#ifndef LLMC_TRAINER_SETUP_H
#define LLMC_TRAINER_SETUP_H


#include <math.h>

#include "communicator.h"
#include "dataloader.h"
#include "device_plan.h"
#include "evaluate.h"
#include "init_weights.h"
#include "numerics_report.h"
#include "options.h"
#include "precision_options.h"
#include "progress.h"
#include "run_folder.h"
#include "run_log.h"
#include "schedule.h"
#include "stop_signal.h"
#include "tokenizer.h"
#include "train_state.h"

#define GPT2_VOCAB ((size_t)50257)
#define EXIT_INTERRUPTED 3      // a signal ended the run; its state was saved
#define MAX_NONFINITE_IN_ROW 3  // then the run ends: neither data nor time heals a broken forward pass

typedef struct {
    Options options;
    InitWeights init;
    GPTConfig config;
    Schedule schedule;
    GradScalerOptions scaler;  // its state is in `state`
    Parallel parallel;
    Model model;
    DataLoader train, val;
    uint64_t val_sequences;  // of a validation; 0: none
    MultipleChoice choices;  // questions asked beside it; count 0: none
    Tokenizer tokenizer;
    int has_tokenizer;
    Generator generator;
    BatchBuffers buffers;
    Launch launch;
    int stop;                    // of several ranks: the signal that some rank got, as all know it
    size_t B, T, micro_batches;  // a step is `micro_batches` passes over B sequences of T tokens, on every rank
    uint64_t total_steps;
    TrainState state;
    double seconds;  // spent in steps; the log's business, since a checkpoint must not depend on the machine's speed
    Progress progress;
    RunLog log;
    NumericsReport numerics;
    Checkpointer checkpointer;
    CheckpointTensor *tensors;
    RunRecord unfinished;  // of a step whose validation a signal prevented before this resumed run
    uint64_t saved_step;   // of the newest checkpoint
    int unrotated;         // it is not proven yet: older ones stay until the step after it was finite
    double lr;             // of the step that just ran
    double loss, norm;
    double loss_scale;  // that it ran with
    double val_loss;    // NaN: not taken at this step
    double accuracy;    // of --hellaswag, likewise
    int clipped, update_skipped;
    int overflow;      // the scaled gradients were not finite, though the loss was
    int folder_lock;   // open on --out for as long as the run goes on; 0: none yet
    char where[96];    // the first tensor of the forward pass that was not finite; empty if all were
    const char *note;  // what a person should know about the step
} Trainer;

// Has the run a folder? All ranks read it, the first one writes.
static inline int has_folder(const Trainer *t) { return t->options.out[0] != 0; }
static inline int keeps_files(const Trainer *t) { return has_folder(t) && t->parallel.rank == 0; }

// What a step takes, over all ranks.
static inline uint64_t step_sequences(const Trainer *t) {
    return (uint64_t)t->B * t->micro_batches * t->parallel.ranks;
}
static inline double step_tokens(const Trainer *t) { return (double)step_sequences(t) * (double)t->T; }

// Where rank 0 ends the run with a message, the others wait for it to end them.
static inline void leave_it_to_rank_0(const Trainer *t) {
    while (t->parallel.rank > 0) pause();
}

// The signal that ends the run, or 0. Several ranks must see it at the same point: then it is the one they agreed on.
static inline int stopping(const Trainer *t) { return t->parallel.ranks > 1 ? t->stop : (int)*stop_signal(); }

// ----------------------------------------------------------------------------------------------------------------
// What the options ask for

// The model's shape: with the weights of --init where given, else from the options; V may still be 0 (setup_data).
static inline void setup_config(Trainer *t) {
    const Options *o = &t->options;
    GPTConfig *config = &t->config;
    if (o->init[0]) {
        static const int fixed[] = {OPTION_model,    OPTION_layers, OPTION_heads,
                                    OPTION_channels, OPTION_vocab,  OPTION_max_seq};
        for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
            if (options_given(o, fixed[i]))
                die_usage("--%s cannot be given together with --init\nwhy: the shape comes with the weights",
                          option_table()[fixed[i]].name);
        Message message;
        message_clear(&message);
        if (init_weights_open(&t->init, o->init, &message) != CHECKPOINT_OK) die("--init: %s", message.text);
        if (message.text[0]) warn("--init: %s", message.text);
        *config = t->init.config;
    } else {
        config->L = o->layers;
        config->NH = o->heads;
        config->C = o->channels;
        config->max_T = o->max_seq;
        config->V = o->vocab;
    }
    if (o->seq > config->max_T && !options_given(o, OPTION_seq)) {
        printf("--seq %zu, as many positions as the model of --init has\n", config->max_T);
        options_set_seq(&t->options, config->max_T);
    }
    if (o->seq > config->max_T)  // of --init's model; options_finish() compared the options
        die_usage("--seq %zu is longer than the model's %zu positions\ntry: --seq %zu", o->seq, config->max_T,
                  config->max_T);
}

// The tokenizer that turns samples into text. Without --tokenizer: bytes where the model's ids are bytes, else none, and
// samples are printed as ids.
static inline void setup_tokenizer(Trainer *t) {
    const Options *o = &t->options;
    int given = options_given(o, OPTION_tokenizer);
    if (!o->tokenizer[0] || (!given && t->config.V != BYTE_TOKENIZER_V)) return;
    if (!tokenizer_exists(o->tokenizer)) {
        warn("--tokenizer '%s': %s: samples are printed as ids (data/README.md says where vocabularies come from)",
             o->tokenizer, strerror(errno));
        return;
    }
    tokenizer_load(&t->tokenizer, o->tokenizer);
    t->has_tokenizer = 1;
    if (t->train.fingerprint && t->train.fingerprint != t->tokenizer.fingerprint)
        warn("--tokenizer '%s' is not the one that --train '%s' was made with: samples will not read as text",
             o->tokenizer, o->train);
}

// Batch sizes: --total-batch in tokens is made of micro-batches of --batch x --seq (options_finish() checked it).
static inline void setup_batch(Trainer *t) {
    const Options *o = &t->options;
    t->B = o->batch;
    t->T = o->seq;
    t->micro_batches = o->total_batch / size_mul(size_mul(o->batch, o->seq), o->ranks);
}

// A plan for several ranks is rank 0's. With one rank there is nothing to share out.
static inline void setup_parallel(Trainer *t) {
    const Options *o = &t->options;
    Parallel *p = &t->parallel;
    p->rank = t->launch.rank;
    p->ranks = o->ranks;
    p->zero = p->ranks > 1 ? (int)o->zero : 0;
    p->reduce_bf16 = strcmp(o->reduce, "bf16") == 0;
    p->bucket_bytes = (size_t)(o->bucket * 1048576.0);
}

// Meets the other ranks, if there are any. From here on only rank 0 prints.
static inline void join_ranks(Trainer *t) {
    const Options *o = &t->options;
    if (o->dry_run) return;
    if (t->launch.problem[0]) die_usage("%s", t->launch.problem);
    if (t->launch.ranks == 1) return;
    char *options_json = options_to_json(o);
    Checksum sum;
    checksum_start(&sum);
    checksum_add(&sum, options_json, strlen(options_json));
    checksum_add(&sum, o->out, strlen(o->out));
    checksum_add(&sum, options_version(), strlen(options_version()));
    free(options_json);
    ranks_join(&t->launch, (double)o->timeout, checksum_value(&sum));
    if (t->launch.rank > 0 && !freopen("/dev/null", "w", stdout)) die("/dev/null cannot be opened");
}

static inline void setup_schedule(Trainer *t) {
    const Options *o = &t->options;
    schedule_parse(&t->schedule.kind, o->schedule);
    t->schedule.peak_lr = o->lr;
    t->schedule.warmup_steps = o->warmup;
    t->schedule.total_steps = t->total_steps;
    t->schedule.final_fraction = o->final_lr_fraction;
    t->schedule.decay_fraction = o->decay_fraction;
    schedule_check(&t->schedule);
}

// Files that note a larger vocabulary than the model has would end the run at the first of their rarer ids, hours later.
static inline void require_vocabulary(const DataLoader *dl, size_t V) {
    for (uint64_t i = 0; i < dl->num_shards; i++)
        if (dl->shards[i].note_vocabulary > V)
            die("%s '%s': the file was made with a vocabulary of %u, the model knows %zu ids\ntry: files made for this "
                "model, or a model for them (--vocab %u, or no --vocab and --init)",
                dl->option_name, dl->shards[i].path, dl->shards[i].note_vocabulary, V, dl->shards[i].note_vocabulary);
}

// Opens the data. It also settles the vocabulary where --vocab and --init do not: the one noted in the token files,
// GPT-2's where there is no note (llm.c's files have none).
static inline void setup_data(Trainer *t) {
    const Options *o = &t->options;
    uint64_t per_step = step_sequences(t);
    if (o->dry_run && !options_given(o, OPTION_train) && !dataloader_matches(o->train)) {  // memory can be planned all the same
        config_set_vocab(&t->config, t->config.V ? t->config.V : GPT2_VOCAB);
        config_check(&t->config);
        t->total_steps = max_size(1, o->steps);
        return;
    }
    dataloader_open(&t->train, o->train, t->T, o->seed, 1, t->config.V, "--train");
    if (t->train.V == 0) t->train.V = GPT2_VOCAB;
    config_set_vocab(&t->config, t->train.V);
    config_check(&t->config);
    require_vocabulary(&t->train, t->config.V);
    if (!o->dry_run) dataloader_require(&t->train, t->B, t->parallel.ranks);  // a plan of memory is of use without data, too
    double epoch_steps = (double)t->train.samples_per_epoch / (double)per_step * o->epochs;
    if (!o->steps && epoch_steps > OPTION_MAX_COUNT) die_usage("--epochs %g makes too many steps", o->epochs);
    t->total_steps = o->steps ? o->steps : (uint64_t)max_size(1, (size_t)epoch_steps);
    if (!o->val[0] || !o->val_every) return;
    dataloader_open(&t->val, o->val, t->T, o->seed, 0, t->config.V, "--val");
    if (t->val.samples_per_epoch == 0)
        die("--val '%s': the validation set is too small: no file has the %zu tokens of one sequence (--seq + 1)\n"
            "try: a smaller --seq, more validation text, or --val '' to train without",
            o->val, t->T + 1);
    require_vocabulary(&t->val, t->config.V);
    if (t->train.fingerprint && t->val.fingerprint && t->train.fingerprint != t->val.fingerprint)
        die("--val '%s' was made with another tokenizer than --train '%s'\n"
            "why: their headers note different vocabularies, so the same id means different text in them\n"
            "try: files of one run of data/tokenize for both",
            o->val, o->train);
    uint64_t wanted = o->val_steps ? o->val_steps * VAL_STEP_SEQUENCES : t->val.samples_per_epoch;
    t->val_sequences = wanted < t->val.samples_per_epoch ? wanted : t->val.samples_per_epoch;
}

// The questions of --hellaswag.
static inline void setup_choices(Trainer *t) {
    const Options *o = &t->options;
    if (!o->hellaswag[0] || !o->val_every) return;
    multiple_choice_open(&t->choices, o->hellaswag, t->config.V, "--hellaswag");
}

// What --prompt, or the end-of-text token a text begins after, is in ids.
static inline void setup_generator(Trainer *t) {
    const Options *o = &t->options;
    Generator *g = &t->generator;
    size_t bytes = strlen(o->prompt), V = t->config.V;
    g->params.temperature = (float)o->temperature;
    g->params.top_k = o->top_k;
    g->params.top_p = (float)o->top_p;
    sampler_check(&g->params);
    g->seed = o->sample_seed;
    g->length = o->sample_length;
    g->V = V;
    g->end_of_text = t->has_tokenizer && (size_t)t->tokenizer.end_of_text < V ? t->tokenizer.end_of_text : -1;
    g->tokenizer = t->has_tokenizer ? &t->tokenizer : NULL;
    if (bytes && !t->has_tokenizer)
        die_usage("--prompt needs a tokenizer to turn text into ids\ntry: --tokenizer byte, or a vocabulary's path");
    g->prompt = (int32_t *)checked_calloc(bytes + 1, sizeof *g->prompt, "the prompt");
    g->prompt[0] = g->end_of_text >= 0 ? g->end_of_text : 0;
    g->prompt_tokens = bytes ? tokenizer_encode(&t->tokenizer, NULL, o->prompt, bytes, g->prompt) : 1;
    for (size_t i = 0; i < g->prompt_tokens; i++)
        if ((size_t)g->prompt[i] >= V)
            die_usage(
                "--prompt: token %zu has id %d, the model knows %zu ids\nwhy: --tokenizer '%s' is not the one the "
                "data was made with",
                i, g->prompt[i], V, o->tokenizer);
    if (!g->length || !o->sample_every) {
        g->length = 0;
        return;
    }
    if (g->prompt_tokens + g->length > t->config.max_T && (options_given(o, OPTION_sample_length) || bytes))
        die_usage(
            "--sample-length %zu after a prompt of %zu tokens is longer than the model's %zu positions\n"
            "try: --max-seq %zu, or a shorter sample",
            g->length, g->prompt_tokens, t->config.max_T, g->prompt_tokens + g->length);
    g->length = min_size(g->length, t->config.max_T - g->prompt_tokens);
    g->logits = (float *)checked_calloc(V, sizeof *g->logits, "logits of a sample");
    g->scratch = (SamplerCandidate *)checked_calloc(sampler_scratch_bytes(V), 1, "sampling");
}

// ----------------------------------------------------------------------------------------------------------------
// Plans, printed before anything is allocated

// Bytes all arenas of the planned model would take with micro-batches of B sequences.
static inline size_t plan_bytes(const Trainer *t, size_t B) {
    static Model planned;  // large, and without memory of its own
    Arena *arenas[8];
    BatchShape shape = {B, t->T, (int)t->options.recompute};
    size_t total = 0;
    model_plan(&planned, &t->config, &shape, t->model.decode_T);
    model_set_recipe(&planned, &t->model.recipe);
    model_set_parallel(&planned, &t->parallel);
    for (size_t i = 0, n = model_arenas(&planned, arenas); i < n; i++) total += arenas[i]->used_bytes;
    return total;
}

// Says where the plan is more than there is memory, and what would fit; ends the run there unless it is a plan only.
static inline void check_memory(const Trainer *t, size_t total) {
    const char *owner;
    char need[32], have[32], fits[128] = "a smaller model or a shorter --seq (even --batch 1 is too much)";
    size_t memory = model_memory_bytes(t->options.dry_run, &owner);
    size_t low = 0, high = t->B;
    if (total <= memory) return;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (plan_bytes(t, middle) <= memory) low = middle;
        else high = middle;
    }
    if (low)
        snprintf(fits, sizeof fits, "--batch %zu, the largest that fits%s", low,
                 t->options.recompute < 2 && !t->options.gelu_fusion ? ", or --recompute 2" : "");
    format_bytes_text(need, (double)total);
    format_bytes_text(have, (double)memory);
    if (!t->options.dry_run) die("the run needs %s of memory, %s has %s\ntry: %s", need, owner, have, fits);
    printf("  %s has %s: try %s\n", owner, have, fits);
}

// The arenas of this build's model. A build for the CPU has no ranks: asked for --ranks, it plans for GPUs instead.
static inline void print_memory_plan(Trainer *t) {
    Arena *arenas[8];
    char text[32];
    size_t total = 0, n = model_arenas(&t->model, arenas);
    BatchShape shape = {t->B, t->T, (int)t->options.recompute};
    if (t->options.dry_run && options_given(&t->options, OPTION_ranks) && !MODEL_ON_GPU) {
        device_plan_print(stdout, &t->config, &shape, &t->parallel);
        return;
    }
    if (t->parallel.ranks > 1) printf("memory of each of %zu ranks, --zero %d:\n", t->parallel.ranks, t->parallel.zero);
    else printf("memory:\n");
    for (size_t i = 0; i < n; i++) {
        printf("  %-16s %12s\n", arenas[i]->name, format_bytes_text(text, (double)arenas[i]->used_bytes));
        total += arenas[i]->used_bytes;
    }
    printf("  %-16s %12s   (%d thread%s%s)\n", "total", format_bytes_text(text, (double)total), thread_count(),
           plural((uint64_t)thread_count()), thread_count_note());
    printf("  %zu logits a pass, of which at most %zu rows exist at once\n",
           size_mul(size_mul(t->B, t->T), t->config.Vp), LOGITS_CHUNK_ROWS);
    check_memory(t, total);
}

static inline void print_data_plan(const Trainer *t) {
    const Options *o = &t->options;
    char count[32], ranks[48] = "";
    double tokens_per_step = (double)o->total_batch, needed = tokens_per_step * (double)t->total_steps;
    double epoch = (double)t->train.samples_per_epoch * (double)t->T;
    size_t micro = size_mul(size_mul(t->B, t->T), o->ranks);
    if (o->ranks > 1) snprintf(ranks, sizeof ranks, "%zu ranks x ", o->ranks);
    if (!t->train.num_shards) {
        printf("data: none yet; a step is %s%zu x %zu x %zu = %zu tokens\n", ranks, o->total_batch / micro, t->B, t->T,
               o->total_batch);
        return;
    }
    printf("data: %llu shard%s, %s tokens to train on\n", (unsigned long long)t->train.num_shards,
           plural(t->train.num_shards), format_count(count, (double)t->train.total_tokens));
    printf("  %llu step%s of %s%zu x %zu x %zu = %zu tokens need %s: %.2f epochs of %.1f steps\n",
           (unsigned long long)t->total_steps, plural(t->total_steps), ranks, o->total_batch / micro, t->B, t->T, o->total_batch,
           format_count(count, needed), needed / epoch, epoch / tokens_per_step);
    if (t->choices.count)
        printf("  HellaSwag: %zu questions in sequences of %zu tokens\n", t->choices.count, choices_seq(&t->choices, t->T));
    if (t->val_sequences)
        printf("  validation over %llu sequence%s, the same %s tokens each time\n",
               (unsigned long long)t->val_sequences, plural(t->val_sequences),
               format_count(count, (double)t->val_sequences * (double)t->T));
    fflush(stdout);
    dataloader_require(&t->train, t->B, o->ranks);
}

static inline void print_plan(Trainer *t) {
    const GPTConfig *c = &t->config;
    char count[32];
    printf(
        "model: %zu layer%s, %zu channel%s, %zu head%s, %zu position%s, vocabulary %zu (padded to %zu): %s parameters\n",
        c->L, plural(c->L), c->C, plural(c->C), c->NH, plural(c->NH), c->max_T, plural(c->max_T), c->V, c->Vp,
        format_count(count, (double)parameter_count(c)));
    print_memory_plan(t);
    print_data_plan(t);
}

#endif
