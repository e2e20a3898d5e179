// trainer_checkpoints.h: a run's checkpoints: written, rotated, and found again by --resume.
//
// Part of trainer.h; the folders are checkpoint_dir.h's, the files checkpoint.h's.
#ifndef LLMC_TRAINER_CHECKPOINTS_H
#define LLMC_TRAINER_CHECKPOINTS_H

#include "trainer_setup.h"

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
    if (code != CHECKPOINT_OK) leave_it_to_rank_0(t);
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
    code = checkpoint_agree(&t->checkpointer, code, &message, NULL);
    if (code != CHECKPOINT_OK) leave_it_to_rank_0(t);
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

// Finds what --resume asks for: 1, and the checkpoint in `dir`. A folder that holds checkpoints is never written into
// without it.
static inline int find_resume(Trainer *t, char dir[SAFE_PATH_BYTES]) {
    Message message;
    uint64_t step;
    message_clear(&message);
    int code = checkpoint_search(&t->checkpointer, dir, &step, &message);
    if (t->parallel.rank > 0) return t->options.resume && code == CHECKPOINT_OK;  // what is to be said, rank 0 says
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

// 1 if a checkpoint was loaded.
static inline int resume(Trainer *t) {
    char dir[SAFE_PATH_BYTES];
    if (!has_folder(t) || !find_resume(t, dir)) return 0;
    load_checkpoint(t, dir);
    return 1;
}

// Several ranks write checkpoints together: that one does not see the folder is not found out after hours.
static inline void try_folder(Trainer *t) {
    Message message;
    message_clear(&message);
    if (t->parallel.ranks == 1 || !has_folder(t)) return;
    if (checkpoint_try_folder(&t->checkpointer, &message) == CHECKPOINT_OK) return;
    leave_it_to_rank_0(t);
    die("--out: %s", message.text);
}

#endif
