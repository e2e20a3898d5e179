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
//     model_gather_weights(m)                  before a sample or a report: every rank has all weights as they are stored
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

#include "trainer_checkpoints.h"
#include "trainer_setup.h"

// ----------------------------------------------------------------------------------------------------------------
// A step

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
// Forward and backward over all micro-batches; t->loss = mean loss per token of the step, gradients times the loss scale.
// A forward pass that is not finite is looked into at once: the next micro-batch overwrites its activations.
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
    int nonfinite, due = numerics_due(o->numerics_every, s->step + 1);
    int reported = due && t->parallel.rank == 0;
    double start = now_seconds(), scale = s->scaler.scale;
    t->lr = schedule_lr(&t->schedule, s->step);
    t->loss_scale = scale;
    if (due) model_gather_weights(&t->model);
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
        if (due) model_count_updates(&t->model, &hyper);
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

// An evaluation ended at a signal that all ranks know of. 0, as what was asked for is not there.
static inline int stop_for(Trainer *t, int signal) {
    t->stop = signal;
    return 0;
}

// The questions of --hellaswag; 0 where a signal came before the end.
static inline int ask_choices(Trainer *t) {
    size_t count = t->choices.count;
    int signal;
    uint64_t right = evaluate_choices(&t->model, &t->choices, &t->parallel, validation_batch(t) == 1, t->B, t->T,
                                      &t->buffers, &signal);
    end_live_line();
    if (signal) return stop_for(t, signal);
    t->accuracy = (double)right / (double)count;
    printf("step %llu  HellaSwag %llu of %zu = %.4f\n", (unsigned long long)t->state.step, (unsigned long long)right,
           count, t->accuracy);
    fflush(stdout);
    return 1;
}

// Both of what --val-every asks for; 0 where a signal came before the end.
static inline int validate(Trainer *t) {
    if (t->val_sequences) {
        int signal;
        double val_loss = evaluate(&t->model, &t->val, &t->parallel, t->val_sequences, validation_batch(t), t->T,
                                   &t->buffers, &signal);
        end_live_line();
        if (signal) return stop_for(t, signal);
        if (isfinite(val_loss)) printf("step %llu  validation loss %.4f\n", (unsigned long long)t->state.step, val_loss);
        else printf("step %llu  validation loss is not finite\n", (unsigned long long)t->state.step);
        fflush(stdout);
        t->val_loss = val_loss;
    }
    return !t->choices.count || ask_choices(t);
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
    int asked = t->val_sequences || t->choices.count, is_best = 0;
    int val_due = asked && (t->state.val_due || due(step, o->val_every, last));
    t->val_loss = t->accuracy = NAN;
    t->state.val_due = val_due && (stopping(t) || !validate(t));
    if (t->state.val_due) t->val_loss = NAN;
    if (isfinite(t->val_loss)) RUN_RECORD_SET(record, val_loss, t->val_loss);
    if (isfinite(t->accuracy)) RUN_RECORD_SET(record, hellaswag, t->accuracy);
    if (isfinite(t->val_loss) && (!t->state.has_best || t->val_loss < t->state.best_val_loss)) {
        t->state.has_best = 1;
        t->state.best_val_loss = t->val_loss;
        is_best = 1;
    }
    if (keeps_files(t)) run_log_write(&t->log, record);
    int save = due(step, o->checkpoint_every, last) || due(step, o->milestone_every, last) || step == last || is_best;
    if (has_folder(t) && step > 0 && save && !state_is_broken(t)) save_checkpoint(t, is_best);
    if (step > 0 && o->check_replicas && step % o->check_replicas == 0) model_check_replicas(&t->model);
    int sampling = t->generator.length && !stopping(t) && step > 0 && due(step, o->sample_every, last);
    if (sampling) model_gather_weights(&t->model);
    if (sampling && t->parallel.rank == 0) sample(t);
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
    setup_choices(t);
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
    t->buffers.reports = (int32_t *)checked_calloc(2 * t->parallel.ranks, sizeof(int32_t), "ranks");
    t->tensors = (CheckpointTensor *)checked_calloc(listed, sizeof *t->tensors, "the list of a checkpoint's tensors");
    size_t n = model_checkpoint_list(&t->model, t->tensors);
    n += train_state_list(t->tensors + n, &t->state);
    checkpoint_open(&t->checkpointer, has_folder(t) ? o->out : NULL, &t->config, t->tensors, n, options_json);
    checkpoint_parallel(&t->checkpointer, t->parallel.rank, t->parallel.ranks, t->launch.host, ranks_gather);
    model_checkpoint_access(&t->model, &t->checkpointer);
    if (keeps_files(t)) {
        t->folder_lock = run_folder_lock(o->out);
        run_folder_check(o->out);
    }
    int resumed = resume(t);
    try_folder(t);
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
    multiple_choice_close(&t->choices);
    if (t->has_tokenizer) tokenizer_free(&t->tokenizer);
    checkpoint_close(&t->checkpointer);
    free(t->tensors);
    free(t->buffers.inputs);
    free(t->buffers.targets);
    free(t->buffers.losses);
    free(t->buffers.sums);
    free(t->buffers.reports);
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
        launch_leave();
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
    launch_leave();
    finish(t);
    return interrupted(t) ? EXIT_INTERRUPTED : 0;
}

#endif
