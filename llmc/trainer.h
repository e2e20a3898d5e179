// trainer.h: the run around a model: options -> data -> steps -> evaluation, samples, checkpoints, log.
//
// Written once for every trainer. train_gpt.c (and a GPU twin) define `Model` and these functions, then include this
// header and call trainer_main():
//
//     model_plan(m, config, shape, decode_T)   work out every arena, allocate nothing
//     model_arenas(m, arenas)                  the arenas, for the memory plan
//     model_set_recipe(m, recipe)              what linear layers do, before the memory plan is looked at
//     model_linear_routes(m)                   which products a GPU emulates, and why; NULL: not a GPU's
//     model_set_parallel(m, parallel)          ranks and what they share out, likewise
//     model_reduce_next(m)                     the next backward pass is the step's last: gradients go to the other ranks
//     model_exposed_ms(m)                      how long the last step waited for them after its backward pass
//     model_check_replicas(m)                  ends the run where ranks hold different numbers
//     ranks_join(launch, timeout, fingerprint), ranks_leave()   meet the other ranks, and part
//     ranks_gather(all, mine, bytes)           all[rank] = each rank's bytes, on every rank
//     model_memory_bytes(dry_run, &owner)      what the arenas may take together, and of whom
//     model_create(m), model_destroy(m)        allocate, free
//     model_init_weights(m, seed)              GPT-2's random start
//     model_weights_changed(m)                 weights were loaded: working copies follow
//     model_forward(m, inputs, targets, B, T, dloss)   losses; with dloss != 0 model_backward(m) must follow
//     model_losses(m, losses)                  the (B, T) losses of that pass
//     model_begin_step(m, step)                random roundings depend on the step
//     model_zero_grad(m)                       the next backward pass starts a new sum
//     model_grad_norm(m, &nonfinite)           norm of the accumulated gradients
//     model_update(m, hyper)                   one AdamW step
//     model_observe(m, report)                 from now on show every tensor of a training pass; NULL: no more
//     model_count_updates(m, hyper)            while observed, before model_update: show what it will do
//     model_end_step(m)                        after the update or its omission: delayed scales move
//     model_checkpoint_list(m, list)           the tensors a checkpoint holds
//     model_checkpoint_access(m, checkpointer) how it reaches them, where they are not in host memory
//     model_logits(m, token, pos, logits)      one token of text generation
//     model_first_nonfinite(m, text, bytes)    where a forward pass broke
//     MODEL_ON_GPU                             1: its memory is a GPU's, and there may be several ranks
#ifndef LLMC_TRAINER_H
#define LLMC_TRAINER_H

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
    if (p->zero && o->numerics_every)
        die_usage("--numerics-every needs --zero 0\nwhy: a rank that has only a part of the weights cannot count them");
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
                 t->options.recompute < 2 ? ", or --recompute 2" : "");
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

// ----------------------------------------------------------------------------------------------------------------
// Checkpoints

// The last step's loss or gradients were not finite: its state is not one to go back to.
static inline int state_is_broken(const Trainer *t) { return t->state.nonfinite_in_row > 0; }

// Removes checkpoints that are no longer wanted. Called when a step from the newest one has been finite: weights can be
// finite and every pass through them not, and then the older ones are the last good ones.
static inline void rotate_checkpoints(Trainer *t) {
    if (t->unrotated) checkpoint_rotate(t->options.out, t->saved_step, t->options.keep, t->options.milestone_every);
    t->unrotated = 0;
}

// Remembers which checkpoint is the newest, and has a failing log say so.
static inline void note_saved(Trainer *t) {
    t->saved_step = t->state.step;
    snprintf(t->log.hint, sizeof t->log.hint,
             "\nwhy: the run ends, since nothing more could be saved\n"
             "the last good checkpoint is step_%08llu, beside the log",
             (unsigned long long)t->saved_step);
}

// Saves the state after the current step and marks the best. A checkpoint that cannot be written ends the run: going on
// would only lose more work. Earlier checkpoints stay.
static inline void save_checkpoint(Trainer *t, int is_best) {
    Message message;
    message_clear(&message);
    communicator_mark(t->state.step, "checkpoint");
    int code = checkpoint_save(&t->checkpointer, t->state.step, &message);
    if (code == CHECKPOINT_OK && is_best && keeps_files(t)) code = checkpoint_mark_best(t->options.out, t->state.step, &message);
    if (code != CHECKPOINT_OK) {
        char dir[SAFE_PATH_BYTES], last[SAFE_PATH_BYTES + 64] = "none";
        uint64_t step;
        Message ignored;
        message_clear(&ignored);
        if (checkpoint_latest(t->options.out, dir, &step, &ignored) == CHECKPOINT_OK)
            snprintf(last, sizeof last, "%s", dir);
        die("checkpoint of step %llu not saved: %s\nthe last good one: %s", (unsigned long long)t->state.step,
            message.text, last);
    }
    note_saved(t);
    t->unrotated = 1;
}

// Says what becomes of a checkpoint that another build wrote. Weights are converted from its authoritative ones.
static inline void resume_policy(Trainer *t) {
    uint64_t *saved = t->state.policy, now[3] = {BUILD_MODE, BUILD_MASTER_RULE, BUILD_MOMENTS_RULE};
    if (memcmp(saved, now, sizeof now) == 0) return;
    if (saved[0] < PRECISION_MODE_COUNT && saved[1] <= MASTER_RULE_NEAREST && saved[2] <= MOMENTS_RULE_BF16SR)
        printf(
            "  precision %s (master %s, moments %s) -> %s (%s, %s): weights and moments converted (changes what is "
            "trained)\n",
            precision_policy((PrecisionMode)saved[0], MASTER_RULE_FP32, MOMENTS_RULE_FP32).name,
            master_rule_name((MasterRule)saved[1]), moments_rule_name((MomentsRule)saved[2]), build_policy().name,
            master_rule_name(BUILD_MASTER_RULE), moments_rule_name(BUILD_MOMENTS_RULE));
    memcpy(saved, now, sizeof now);
    if (!BUILD_LOSS_SCALING || t->state.scaler.scale < t->scaler.floor || t->state.scaler.scale > t->scaler.ceiling)
        t->state.scaler = precision_options_scaler(&t->options, &t->scaler);
}

// Elements of tensor `name` in the training state of checkpoint `dir`; 0 without.
static inline size_t saved_elems(const char *dir, const char *name) {
    SafetensorsFile file;
    char path[SAFE_PATH_BYTES];
    size_t elems = 0;
    Message ignored;
    message_clear(&ignored);
    if (!path_join(path, dir, CHECKPOINT_STATE) || !safetensors_open(&file, path, &ignored)) return 0;
    const SafetensorsEntry *entry = safetensors_find(&file, name);
    if (entry && entry->ndim == 1) elems = entry->shape[0];
    safetensors_close(&file);
    return elems;
}

// checkpoint_load(), also where --fp8-history has changed: the histories are read as they are, then cut or extended.
static inline int load_tensors(Trainer *t, const char *dir, Message *message) {
    CheckpointTensor *history = NULL;
    for (size_t i = 0; i < t->checkpointer.count; i++)
        if (strcmp(t->tensors[i].name, "fp8.delayed") == 0) history = &t->tensors[i];
    size_t elems = history ? history->cols : 0, saved = history ? saved_elems(dir, "fp8.delayed") : 0;
    if (saved == 0 || saved == elems) return checkpoint_load(&t->checkpointer, dir, message);
    const CheckpointTensor in_memory = *history;
    float *as_saved = (float *)checked_calloc(saved, sizeof(float), "amax histories");
    float *resized = (float *)checked_calloc(elems, sizeof(float), "amax histories");
    history->data = as_saved;
    history->cols = saved;
    history->host = 1;
    int code = checkpoint_load(&t->checkpointer, dir, message);
    *history = in_memory;
    if (code == CHECKPOINT_OK && !linear_delayed_resize(resized, elems, as_saved, saved, t->config.L)) {
        message_add(message, "'%s': fp8.delayed has %zu values, no whole number of histories", dir, saved);
        code = CHECKPOINT_MISMATCH;
    }
    const CheckpointBlock all = {0, 1, 0, elems};
    if (code == CHECKPOINT_OK) checkpoint_store(&t->checkpointer, history, &all, resized);
    free(as_saved);
    free(resized);
    return code;
}

// Loads `dir` into the model and the state, and says what differs between its options and today's.
static inline void load_checkpoint(Trainer *t, const char *dir) {
    Message message;
    message_clear(&message);
    GPTConfig told;
    char *recorded = checkpoint_options(dir, &message);
    int code = checkpoint_config(dir, &told, &message);
    if (code == CHECKPOINT_OK && told.NH != t->config.NH) {  // the one number of the shape that no tensor's size shows
        message_add(&message, "'%s' has %zu heads, the options ask for %zu", dir, told.NH, t->config.NH);
        code = CHECKPOINT_MISMATCH;
    }
    if (code == CHECKPOINT_OK) code = load_tensors(t, dir, &message);
    if (code == CHECKPOINT_OK)
        printf("resumed from %s: step %llu, %llu tokens\n", dir, (unsigned long long)t->state.step,
               (unsigned long long)t->state.tokens);
    if (recorded) options_diff(recorded, &t->options, stdout);
    free(recorded);
    if (code == CHECKPOINT_OK) resume_policy(t);
    fflush(stdout);
    if (code != CHECKPOINT_OK)
        die("--resume: %s%s", message.text,
            code == CHECKPOINT_MISMATCH ? "\ntry: the model options of the run that wrote it" : "");
}

// Finds what --resume asks for: 1, and the checkpoint in `dir` and *step. A folder that holds checkpoints is never
// written into without it.
static inline int find_resume(const Trainer *t, char dir[SAFE_PATH_BYTES], uint64_t *step) {
    Message message;
    message_clear(&message);
    int code = checkpoint_latest(t->options.out, dir, step, &message);
    if (!t->options.resume) {
        if (code == CHECKPOINT_OK)
            die_usage(
                "--out '%s' already holds a run, its newest checkpoint is %s\ntry: --resume to go on with it, or "
                "another --out",
                t->options.out, dir);
        if (code != CHECKPOINT_NONE)
            die_usage("--out '%s' already holds checkpoints, though none to go on from\nwhy: %s\ntry: another --out",
                      t->options.out, message.text);
        return 0;
    }
    if (code == CHECKPOINT_NONE && path_join(dir, t->options.out, CHECKPOINT_MODEL) && access(dir, F_OK) == 0)
        die("--resume: '%s' has weights only, no optimizer state to go on with\ntry: --init '%s' with another --out "
            "starts a new run from these weights",
            t->options.out, t->options.out);
    if (code == CHECKPOINT_NONE) {
        printf("no checkpoint in '%s': starting from the beginning\n", t->options.out);
        return 0;
    }
    if (code != CHECKPOINT_OK)
        die("--resume: no checkpoint in '%s' can be resumed from\nwhy: %s\ntry: another --out for a new run%s",
            t->options.out, message.text, code == CHECKPOINT_WEIGHTS_ONLY ? ", with --init for the weights" : "");
    if (message.text[0]) warn("%s", message.text);
    return 1;
}

// 1 if a checkpoint was loaded. Rank 0 chooses; all ranks load the same one, whatever else they see in the folder.
static inline int resume(Trainer *t) {
    char dir[SAFE_PATH_BYTES], name[64];
    uint64_t choice[2] = {0, 0}, *all;
    if (!has_folder(t)) return 0;
    if (keeps_files(t)) choice[0] = (uint64_t)find_resume(t, dir, &choice[1]);
    all = (uint64_t *)checked_calloc(t->parallel.ranks, sizeof choice, "ranks");
    ranks_gather(all, choice, sizeof choice);
    memcpy(choice, all, sizeof choice);
    free(all);
    if (!choice[0]) return 0;
    checkpoint_step_name(name, choice[1]);
    path_join(dir, t->options.out, name);
    load_checkpoint(t, dir);
    return 1;
}

// ----------------------------------------------------------------------------------------------------------------
// A step

// Forward and backward over all micro-batches; t->loss = mean loss per token of the step, gradients times the loss scale.
// A forward pass that is not finite is looked into at once: the next micro-batch overwrites its activations.
// What a rank tells the others of its part of a step.
typedef struct {
    double loss_sum;
    int64_t signal;
    char where[96];
} StepReport;

// All ranks' sums, added in their order, so that each of them decides alike.
static inline double gather_step(Trainer *t, double sum) {
    size_t ranks = t->parallel.ranks;
    StepReport mine;
    if (ranks == 1) return sum;
    memset(&mine, 0, sizeof mine);
    mine.loss_sum = sum;
    mine.signal = *stop_signal();
    memcpy(mine.where, t->where, sizeof mine.where);
    StepReport *all = (StepReport *)checked_calloc(ranks, sizeof *all, "ranks");
    ranks_gather(all, &mine, sizeof mine);
    sum = 0.0;
    for (size_t i = 0; i < ranks; i++) {
        sum += all[i].loss_sum;
        if (!t->stop) t->stop = (int)all[i].signal;
        if (!t->where[0]) memcpy(t->where, all[i].where, sizeof t->where);
    }
    free(all);
    return sum;
}

// Sequences go to micro-batches, and within them to ranks, in the order of the data.
static inline void accumulate_gradients(Trainer *t) {
    double sum = 0.0, tokens = step_tokens(t);
    float dloss = (float)(t->state.scaler.scale / tokens);
    t->where[0] = 0;
    model_begin_step(&t->model, t->state.step);
    model_zero_grad(&t->model);
    for (size_t i = 0; i < t->micro_batches; i++) {
        uint64_t first = t->options.overfit ? 0 : t->state.samples;
        first += ((uint64_t)i * t->parallel.ranks + t->parallel.rank) * t->B;
        communicator_mark(t->state.step, "forward and backward");
        dataloader_fetch(&t->train, first, t->B, t->buffers.inputs, t->buffers.targets);
        model_forward(&t->model, t->buffers.inputs, t->buffers.targets, t->B, t->T, dloss);
        if (i + 1 == t->micro_batches) model_reduce_next(&t->model);
        model_backward(&t->model);
        model_losses(&t->model, t->buffers.losses);
        for (size_t k = 0; k < t->B * t->T; k++) sum += (double)t->buffers.losses[k];
        if (!isfinite(sum) && !t->where[0]) model_first_nonfinite(&t->model, t->where, sizeof t->where);
    }
    t->loss = gather_step(t, sum) / tokens;
}

// Ends a run that has stopped learning, naming where to go back to.
static inline void give_up(Trainer *t, const char *what) {
    leave_it_to_rank_0(t);
    // The weights have not changed since the first step that went wrong: a checkpoint made just before it has them too.
    uint64_t step, broken_at = t->state.step - t->state.nonfinite_in_row;
    int saved_broken = state_is_broken(t) && t->saved_step > 0 && t->saved_step == broken_at;
    char dir[SAFE_PATH_BYTES] = "", remove[160] = "";
    Message message;
    message_clear(&message);
    if (keeps_files(t))
        checkpoint_latest_until(t->options.out, saved_broken ? broken_at - 1 : UINT64_MAX, dir, &step, &message);
    if (saved_broken)
        snprintf(remove, sizeof remove,
                 "\nstep_%08llu, saved just before it broke, leads here again: remove it to "
                 "--resume from an earlier one",
                 (unsigned long long)t->saved_step);
    die("step %llu: %s%s%s\nlast good checkpoint: %s%s\ntry: a lower --lr, a longer --warmup, or other data from there",
        (unsigned long long)t->state.step, what, t->where[0] ? ", first in " : "", t->where, dir[0] ? dir : "none",
        remove);
}

// The run ends where skipping cannot help any more.
static inline void give_up_if_stuck(Trainer *t) {
    const TrainState *s = &t->state;
    char what[160];
    if (s->nonfinite_in_row >= MAX_NONFINITE_IN_ROW)
        give_up(t, isfinite(t->loss) ? "the gradients are not finite" : "the forward pass is not finite");
    if (s->skipped_in_row < t->options.max_skips) return;
    if (t->overflow)
        snprintf(what, sizeof what,
                 "the gradients overflowed %llu steps in a row, down to a loss scale of %g: a smaller "
                 "scale cannot cure that",
                 (unsigned long long)s->skipped_in_row, s->scaler.scale);
    else
        snprintf(what, sizeof what, "%llu steps in a row were skipped as spikes: the loss has moved for good",
                 (unsigned long long)s->skipped_in_row);
    give_up(t, what);
}

// Whether the step is applied. A loss or gradient that is not finite never is; a spike is not where the options say so.
// Tests are written so that a NaN fails them. Gradients that overflowed under a loss scale are that scale's fault, which
// grad_scaler_update() mends; any other non-finite number is counted against MAX_NONFINITE_IN_ROW.
static inline void decide_skip(Trainer *t, int nonfinite) {
    TrainState *s = &t->state;
    int broken = nonfinite || !isfinite(t->loss);
    t->note = NULL;
    t->overflow = BUILD_LOSS_SCALING && nonfinite && isfinite(t->loss);
    if (nonfinite && !t->overflow && !t->where[0]) model_first_nonfinite(&t->model, t->where, sizeof t->where);
    if (t->overflow) t->note = "skipped: gradients overflow at this loss scale";
    else if (!isfinite(t->loss)) t->note = "skipped: the forward pass is not finite";
    else if (nonfinite) t->note = "skipped: gradients not finite";
    else if (spike_detected(&s->loss_window, t->loss, t->options.skip_loss_z)) t->note = "skipped: loss spike";
    else if (spike_detected(&s->grad_window, t->norm, t->options.skip_grad_z)) t->note = "skipped: gradient spike";
    t->update_skipped = t->note != NULL;
    s->nonfinite_in_row = broken && !t->overflow ? s->nonfinite_in_row + 1 : 0;
    s->skipped_in_row = t->update_skipped ? s->skipped_in_row + 1 : 0;
    s->skipped += (uint64_t)t->update_skipped;
}

// One optimizer step: gradients (times the loss scale), finite test and norm (unscaled), clip, update or skip, the next
// loss scale. The scale used in the backward pass is the one divided out again; being a power of two it changes no bit on
// the way, so that dividing is left to AdamW's grad_scale. A skipped step leaves weights, moments and AdamW's t as they
// were; the schedule and the data go on.
static inline void train_step(Trainer *t) {
    const Options *o = &t->options;
    TrainState *s = &t->state;
    int nonfinite, reported = numerics_due(&t->numerics, s->step + 1);
    double start = now_seconds(), scale = s->scaler.scale;
    t->lr = schedule_lr(&t->schedule, s->step);
    t->loss_scale = scale;
    if (reported) {
        numerics_begin(&t->numerics, s->step + 1);
        model_observe(&t->model, &t->numerics);
    }
    accumulate_gradients(t);
    communicator_mark(s->step, "gradient norm");
    t->norm = model_grad_norm(&t->model, &nonfinite) / scale;
    decide_skip(t, nonfinite);
    t->clipped = !t->update_skipped && o->grad_clip > 0 && t->norm > o->grad_clip;
    if (!t->update_skipped) {
        double clip = t->clipped ? o->grad_clip / t->norm : 1.0;
        AdamWHyper hyper = adamw_hyper(t->lr, o->beta1, o->beta2, o->eps, o->weight_decay, clip / scale, ++s->adam_t);
        hyper.seed = o->seed;
        if (reported) model_count_updates(&t->model, &hyper);
        communicator_mark(s->step, "update");
        model_update(&t->model, &hyper);
        spike_accept(&s->loss_window, t->loss);
        spike_accept(&s->grad_window, t->norm);
    }
    model_end_step(&t->model);
    if (grad_scaler_update(&s->scaler, &t->scaler, BUILD_LOSS_SCALING && nonfinite))
        warn("the loss scale is at its floor, --loss-scale-min %g, and the gradients still overflow", t->scaler.floor);
    s->step++;
    s->samples += step_sequences(t);
    s->tokens += step_sequences(t) * t->T;
    if (reported) {
        model_observe(&t->model, NULL);
        numerics_end(&t->numerics);
    }
    numerics_step(&t->numerics, s->step, t->norm, scale, s->skipped, s->skipped_in_row);
    double seconds = now_seconds() - start;
    t->seconds += seconds;
    progress_step(&t->progress, t->loss, seconds);
    progress_show(&t->progress, s->step, t->loss, t->norm, t->lr, t->note);
    give_up_if_stuck(t);
}

// ----------------------------------------------------------------------------------------------------------------
// Between steps

static inline int due(uint64_t step, uint64_t every, uint64_t last) {
    return every != 0 && (step % every == 0 || step == last);
}

// Sequences in a validation pass. Where one scale serves a tensor, what a token becomes depends on which others are in the
// pass: one sequence at a time then, so that the validation loss does not depend on --batch.
static inline size_t validation_batch(const Trainer *t) { return scaling_sees_whole_tensor(BUILD_SCALING) ? 1 : t->B; }

static inline void validate(Trainer *t) {
    double val_loss = evaluate(&t->model, &t->val, &t->parallel, t->val_sequences, validation_batch(t), t->T,
                               &t->buffers, stop_signal());
    end_live_line();
    if (!isfinite(val_loss)) {  // stopped half-way, or a broken model: neither is a validation loss
        if (!stopping(t)) printf("step %llu  validation loss is not finite\n", (unsigned long long)t->state.step);
        return;
    }
    t->val_loss = val_loss;
    printf("step %llu  validation loss %.4f\n", (unsigned long long)t->state.step, val_loss);
    fflush(stdout);
}

static inline void sample(Trainer *t) {
    end_live_line();
    printf("step %llu  sample:\n", (unsigned long long)t->state.step);
    generate(&t->model, &t->generator, t->state.step, stdout, stop_signal());
}

// What the log says of the step just taken, its validation apart.
static inline RunRecord step_record(const Trainer *t) {
    RunRecord r = run_record(t->state.step, t->state.tokens);
    if (t->state.step > 0) {
        RUN_RECORD_SET(&r, loss, t->loss);
        RUN_RECORD_SET(&r, lr, t->lr);
        RUN_RECORD_SET(&r, grad_norm, t->norm);
        RUN_RECORD_SET(&r, clipped, t->clipped);
        RUN_RECORD_SET(&r, skipped, t->update_skipped);
        if (BUILD_LOSS_SCALING) RUN_RECORD_SET(&r, loss_scale, t->loss_scale);
        RUN_RECORD_SET(&r, tokens_per_s, progress_tokens_per_s(&t->progress));
        if (t->parallel.ranks > 1) RUN_RECORD_SET(&r, exposed_ms, model_exposed_ms(&t->model));
    }
    RUN_RECORD_SET(&r, time_s, t->seconds);
    return r;
}

// Says when the data starts over: where that happens often, at about every twentieth of the run.
static inline void announce_epoch(const Trainer *t) {
    uint64_t per_step = step_sequences(t), per_epoch = t->train.samples_per_epoch;
    uint64_t before = (t->state.samples - per_step) / per_epoch, now = t->state.samples / per_epoch;
    uint64_t every = max_size(1, (size_t)(t->total_steps * per_step / per_epoch / 20));
    if (t->options.overfit || t->state.step == t->total_steps || before / every == now / every) return;
    end_live_line();
    printf("step %llu  epoch %llu begins: the same data in another order\n", (unsigned long long)t->state.step,
           (unsigned long long)now + 1);
}

// Whatever is due after the step that `record` tells of. The log line goes first, so that a checkpoint never knows a
// step that the log does not. A signal that comes before the validation leaves it to the resumed run.
static inline void finish_step(Trainer *t, RunRecord *record) {
    const Options *o = &t->options;
    uint64_t step = t->state.step, last = t->total_steps;
    int is_best = 0, val_due = t->val_sequences && (t->state.val_due || due(step, o->val_every, last));
    t->val_loss = NAN;
    if (val_due && !stopping(t)) validate(t);
    t->state.val_due = val_due && stopping(t) && !isfinite(t->val_loss);
    if (isfinite(t->val_loss)) RUN_RECORD_SET(record, val_loss, t->val_loss);
    if (isfinite(t->val_loss) && (!t->state.has_best || t->val_loss < t->state.best_val_loss)) {
        t->state.has_best = 1;
        t->state.best_val_loss = t->val_loss;
        is_best = 1;
    }
    if (keeps_files(t)) run_log_write(&t->log, record);
    int save = due(step, o->checkpoint_every, last) || due(step, o->milestone_every, last) || step == last || is_best;
    if (has_folder(t) && step > 0 && save && !state_is_broken(t)) save_checkpoint(t, is_best);
    if (step > 0 && o->check_replicas && step % o->check_replicas == 0) model_check_replicas(&t->model);
    if (t->parallel.rank == 0 && t->generator.length && !stopping(t) && step > 0 && due(step, o->sample_every, last)) sample(t);
}

static inline void between_steps(Trainer *t) {
    RunRecord record = step_record(t);
    if (keeps_files(t) && !state_is_broken(t)) rotate_checkpoints(t);
    if (t->state.step > 0) announce_epoch(t);
    finish_step(t, &record);
}

// ----------------------------------------------------------------------------------------------------------------
// The run

static inline void setup(Trainer *t, int argc, char **argv) {
    memset(t, 0, sizeof *t);
    t->launch = launch_detect();
    options_parse(&t->options, argc, argv, t->launch.ranks);
    const Options *o = &t->options;
    if (o->threads) set_thread_count((int)o->threads);
    precision_options_apply(o);
    t->state.scaler = precision_options_scaler(o, &t->scaler);
    t->state.policy[0] = BUILD_MODE;
    t->state.policy[1] = BUILD_MASTER_RULE;
    t->state.policy[2] = BUILD_MOMENTS_RULE;
    setup_parallel(t);
    join_ranks(t);
    setup_config(t);
    setup_batch(t);
    setup_data(t);
    setup_tokenizer(t);
    setup_schedule(t);
    setup_generator(t);
    BatchShape shape = {t->B, t->T, (int)o->recompute};
    model_plan(&t->model, &t->config, &shape,
               t->generator.length ? t->generator.prompt_tokens + t->generator.length : 0);
    LinearRecipe recipe = precision_options_recipe(o, t->config.L);
    model_set_recipe(&t->model, &recipe);
    if (MODEL_ON_GPU || !o->dry_run) model_set_parallel(&t->model, &t->parallel);
    print_plan(t);
    print_linear_plan(stdout, &recipe, t->config.L, t->config.C, t->B * t->T, model_linear_routes(&t->model));
    if (MODEL_ON_GPU) warn_linear_speed(&recipe, t->config.C);
    fflush(stdout);
}

static inline void start_log(Trainer *t, const char *options_json, int resumed) {
    char path[SAFE_PATH_BYTES];
    Message message;
    message_clear(&message);
    if (!make_dirs(t->options.out, &message)) die("--out: %s", message.text);
    if (!t->folder_lock) t->folder_lock = run_folder_lock(t->options.out);
    if (!resumed) run_folder_set_aside(t->options.out);
    run_folder_path(path, t->options.out, RUN_LOG_FILE);
    t->unfinished = run_record(t->state.step, t->state.tokens);
    if (resumed) run_log_resume_step(&t->log, path, t->state.step, t->state.val_due ? &t->unfinished : NULL);
    else run_log_open(&t->log, path);
    t->seconds = t->log.seconds;
    run_folder_path(path, t->options.out, RUN_NUMERICS_FILE);
    numerics_open(&t->numerics, path, t->options.numerics_every, BUILD_MASTER_RULE, resumed, t->state.step);
    run_folder_write_options(t->options.out, options_json);
}

static inline void start_weights(Trainer *t) {
    Message message;
    message_clear(&message);
    if (!t->options.init[0]) model_init_weights(&t->model, t->options.seed);
    else if (init_weights_load(&t->init, &t->checkpointer, &message) != CHECKPOINT_OK) die("--init: %s", message.text);
}

// Memory, weights (fresh, --init, or --resume), log.
static inline void start(Trainer *t) {
    const Options *o = &t->options;
    size_t batch = size_mul(t->B, t->T), listed = 4 * checkpoint_parameter_tensors(&t->config) + 1 + TRAIN_STATE_ARRAYS;
    char *options_json = options_to_json(o);
    model_create(&t->model);
    t->buffers.inputs = (int32_t *)checked_calloc(batch, sizeof(int32_t), "a batch");
    t->buffers.targets = (int32_t *)checked_calloc(batch, sizeof(int32_t), "a batch");
    t->buffers.losses = (float *)checked_calloc(batch, sizeof(float), "a batch");
    t->buffers.sums = (double *)checked_calloc(evaluate_sums(t->val_sequences, t->parallel.ranks), sizeof(double), "sums");
    t->tensors = (CheckpointTensor *)checked_calloc(listed, sizeof *t->tensors, "the list of a checkpoint's tensors");
    size_t n = model_checkpoint_list(&t->model, t->tensors);
    n += train_state_list(t->tensors + n, &t->state);
    checkpoint_open(&t->checkpointer, has_folder(t) ? o->out : NULL, &t->config, t->tensors, n, options_json);
    t->checkpointer.writes_files = keeps_files(t);
    model_checkpoint_access(&t->model, &t->checkpointer);
    if (keeps_files(t)) {
        t->folder_lock = run_folder_lock(o->out);
        run_folder_check(o->out);
    }
    int resumed = resume(t);
    if (!resumed) start_weights(t);
    model_weights_changed(&t->model);
    if (t->state.step > 0) model_begin_step(&t->model, t->state.step - 1);  // as a run that was not cut would be
    if (keeps_files(t)) start_log(t, options_json, resumed);
    else numerics_open(&t->numerics, NULL, t->parallel.rank ? 0 : o->numerics_every, BUILD_MASTER_RULE, 0, 0);  // warnings
    if (resumed) note_saved(t);
    progress_start(&t->progress, t->state.step, t->total_steps, step_tokens(t));
    free(options_json);
}

static inline void finish(Trainer *t) {
    model_destroy(&t->model);
    if (t->folder_lock) close(t->folder_lock);
    numerics_close(&t->numerics);
    if (t->options.init[0]) init_weights_close(&t->init);
    dataloader_close(&t->train);
    if (t->val_sequences) dataloader_close(&t->val);
    if (t->has_tokenizer) tokenizer_free(&t->tokenizer);
    checkpoint_close(&t->checkpointer);
    free(t->tensors);
    free(t->buffers.inputs);
    free(t->buffers.targets);
    free(t->buffers.losses);
    free(t->buffers.sums);
    free(t->generator.prompt);
    free(t->generator.logits);
    free(t->generator.scratch);
}

// Did a signal leave something to do for a resumed run? One that came after the last step and its validation did not.
static inline int interrupted(const Trainer *t) {
    return stopping(t) && (t->state.step < t->total_steps || t->state.val_due);
}

// What a finished or interrupted run left where.
static inline void print_outputs(const Trainer *t) {
    char name[64], seconds[32];
    end_live_line();
    if (interrupted(t) && stopping(t) == SIGPIPE)
        warn("nobody reads standard output any more: stopped after %llu step%s%s", (unsigned long long)t->state.step,
             plural(t->state.step), keeps_files(t) ? ", --resume goes on" : "");
    printf("%s after %llu step%s, %s in steps", interrupted(t) ? "stopped" : "done", (unsigned long long)t->state.step,
           plural(t->state.step), format_duration(seconds, t->seconds));
    if (t->state.skipped)
        printf(", %llu update%s skipped", (unsigned long long)t->state.skipped, plural(t->state.skipped));
    printf("\n");
    if (!keeps_files(t)) return;
    checkpoint_step_name(name, t->saved_step);
    printf("  log         %s/run.jsonl\n", t->options.out);
    if (t->saved_step) printf("  checkpoint  %s/%s\n", t->options.out, name);
    if (interrupted(t)) printf("  go on with  --resume\n");
    else printf("  loss plot   python3 scripts/plot_runs.py %s\n", t->options.out);
}

static inline int trainer_main(int argc, char **argv) {
    static Trainer trainer;  // zero, and too large for a stack
    Trainer *t = &trainer;
    open_standard_streams();
    limit_thread_spinning(argv);
    setup(t, argc, argv);
    if (t->options.dry_run) {
        if (fflush(stdout) != 0 || ferror(stdout)) die("cannot write the plan to standard output");
        return 0;
    }
    install_signals();
    start(t);
    if (t->state.step == 0) between_steps(t);
    else if (t->state.val_due) finish_step(t, &t->unfinished);
    while (t->state.step < t->total_steps && !stopping(t)) {
        train_step(t);
        between_steps(t);
    }
    if (state_is_broken(t)) give_up(t, "the run ends with a loss or gradients that are not finite");
    if (has_folder(t) && t->saved_step != t->state.step) save_checkpoint(t, 0);  // a signal came
    if (keeps_files(t)) rotate_checkpoints(t);
    print_outputs(t);
    if (keeps_files(t)) run_log_close(&t->log);
    ranks_leave();
    finish(t);
    return interrupted(t) ? EXIT_INTERRUPTED : 0;
}

#endif
