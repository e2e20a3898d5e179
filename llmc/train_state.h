// train_state.h: everything a run must remember besides its tensors, and the list of what a checkpoint holds.
#ifndef LLMC_TRAIN_STATE_H
#define LLMC_TRAIN_STATE_H

#include "checkpoint.h"
#include "grad_scaler.h"
#include "spike.h"

// Plain data. No infinity stands for "not yet": a checkpoint holds finite numbers only.
typedef struct {
    uint64_t step;              // finished steps, skipped ones included: the schedule's clock
    uint64_t adam_t;            // updates made: AdamW's t
    uint64_t samples;           // sequences taken from the training data
    uint64_t tokens;            // tokens trained on
    uint64_t skipped;           // steps without an update
    uint64_t skipped_in_row;    // of them, since the last update
    uint64_t nonfinite_in_row;  // of these, for a loss or gradient that was not finite and no loss scale's fault
    uint64_t val_due;           // a signal came before this step's validation: resuming begins with it
    uint64_t has_best;          // best_val_loss is one
    double best_val_loss;
    SpikeWindow loss_window, grad_window;
    GradScaler scaler;   // scale 1 for ever but in fp16
    uint64_t policy[3];  // what build wrote this: mode, master rule, moments rule
} TrainState;

#define TRAIN_STATE_ARRAYS 17

// An array that checkpoints of earlier versions do not have.
static inline void train_state_optional(CheckpointTensor *list, const char *name, int dtype, size_t elems, void *data) {
    checkpoint_array(list, name, dtype, elems, data);
    list->optional = 1;
}

// Lists the state's fields as arrays of the training-state file; returns how many.
static inline size_t train_state_list(CheckpointTensor *list, TrainState *s) {
    size_t n = 0;
    checkpoint_array(&list[n++], "state.step", ST_U64, 1, &s->step);
    checkpoint_array(&list[n++], "state.adam_t", ST_U64, 1, &s->adam_t);
    checkpoint_array(&list[n++], "state.samples", ST_U64, 1, &s->samples);
    checkpoint_array(&list[n++], "state.tokens", ST_U64, 1, &s->tokens);
    checkpoint_array(&list[n++], "state.skipped", ST_U64, 1, &s->skipped);
    checkpoint_array(&list[n++], "state.skipped_in_row", ST_U64, 1, &s->skipped_in_row);
    checkpoint_array(&list[n++], "state.nonfinite_in_row", ST_U64, 1, &s->nonfinite_in_row);
    checkpoint_array(&list[n++], "state.has_best", ST_U64, 1, &s->has_best);
    checkpoint_array(&list[n++], "state.best_val_loss", ST_F64, 1, &s->best_val_loss);
    checkpoint_array(&list[n++], "state.loss_window.values", ST_F64, SPIKE_WINDOW, s->loss_window.values);
    checkpoint_array(&list[n++], "state.loss_window.place", ST_U64, 2, &s->loss_window.count);  // count, next
    checkpoint_array(&list[n++], "state.grad_window.values", ST_F64, SPIKE_WINDOW, s->grad_window.values);
    checkpoint_array(&list[n++], "state.grad_window.place", ST_U64, 2, &s->grad_window.count);
    train_state_optional(&list[n++], "state.val_due", ST_U64, 1, &s->val_due);
    train_state_optional(&list[n++], "state.loss_scale", ST_F64, 1, &s->scaler.scale);
    train_state_optional(&list[n++], "state.loss_scale_counts", ST_U64, 2, &s->scaler.good_steps);  // and overflows
    train_state_optional(&list[n++], "state.policy", ST_U64, 3, s->policy);
    return n;
}

#endif
