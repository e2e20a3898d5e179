// model_stub.h: a Model and the functions llmc/trainer.h asks of a trainer, declared only. It lets check_headers.sh
// compile the loop's headers without a trainer; a change of the contract there is a change here.
#ifndef DEV_TEST_MODEL_STUB_H
#define DEV_TEST_MODEL_STUB_H

#include "../../llmc/adamw.h"
#include "../../llmc/checkpoint.h"
#include "../../llmc/launcher.h"
#include "../../llmc/linear.h"
#include "../../llmc/numerics_report.h"
#include "../../llmc/tensors.h"

#define MODEL_ON_GPU 1

typedef struct Model {
    GPTConfig config;
    size_t decode_T;
    LinearRecipe recipe;
} Model;

// C and C++ name these alike, so that a trainer of either kind could stand behind them.
#ifdef __cplusplus
extern "C" {
#endif
void model_plan(Model *model, const GPTConfig *config, const BatchShape *shape, size_t decode_T);
size_t model_arenas(Model *model, Arena *arenas[7]);
void model_set_recipe(Model *model, const LinearRecipe *recipe);
const LinearRoutes *model_linear_routes(const Model *model);
void model_set_parallel(Model *model, const Parallel *parallel);
void model_reduce_next(Model *model);
double model_exposed_ms(const Model *model);
void model_gather_weights(Model *model);
void model_check_replicas(Model *model);
void ranks_join(const Launch *launch, double timeout, uint64_t fingerprint);
void ranks_leave(void);
void ranks_gather(void *all, const void *mine, size_t bytes);
size_t model_memory_bytes(int dry_run, const char **owner);
void model_begin_step(Model *model, uint64_t step);
void model_end_step(Model *model);
void model_create(Model *model);
void model_destroy(Model *model);
void model_weights_changed(Model *model);
void model_init_weights(Model *model, uint64_t seed);
void model_forward(Model *model, const int32_t *inputs, const int32_t *targets, size_t B, size_t T, float dloss);
void model_losses(Model *model, float *losses);
void model_zero_grad(Model *model);
void model_backward(Model *model);
double model_grad_norm(Model *model, int *nonfinite);
void model_update(Model *model, const AdamWHyper *hyper);
void model_observe(Model *model, NumericsReport *report);
void model_count_updates(Model *model, const AdamWHyper *hyper);
size_t model_checkpoint_list(Model *model, CheckpointTensor *list);
void model_checkpoint_access(Model *model, Checkpointer *checkpointer);
void model_logits(Model *model, int32_t token, size_t pos, float *logits);
int model_first_nonfinite(Model *model, char *text, size_t text_bytes);
#ifdef __cplusplus
}
#endif

#endif
