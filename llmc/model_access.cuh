// model_access.cuh: how the shared loop (trainer.h) reaches what the GPU trainer keeps on its device, and on several
// ranks: tensors of a checkpoint, losses, where a pass broke, what updates do, whether replicas agree. Included by
// train_gpt.cu after it has defined its Model.
#ifndef LLMC_MODEL_ACCESS_CUH
#define LLMC_MODEL_ACCESS_CUH

#include "checkpoint.h"
#include "shards.cuh"

// Lists the tensors a checkpoint holds; returns how many: at most 4 * checkpoint_parameter_tensors() + 1.
static size_t model_checkpoint_list(Model *model, CheckpointTensor *list) {
    const GPTConfig *config = &model->config;
    int master_type = BUILD_MASTER_RULE == MASTER_RULE_FP32 ? ST_F32 : ST_BF16;
    int moment_type = BUILD_MOMENTS_RULE == MOMENTS_RULE_FP32 ? ST_F32 : ST_BF16;
    size_t n = checkpoint_parameters(list, config, model->masters, CHECKPOINT_IN_MODEL, "transformer.", master_type);
    n += checkpoint_parameters(list + n, config, model->m, CHECKPOINT_IN_STATE, "m.transformer.", moment_type);
    n += checkpoint_parameters(list + n, config, model->v, CHECKPOINT_IN_STATE, "v.transformer.", moment_type);
    if (model->linear.delayed) {
        checkpoint_array(&list[n], "fp8.delayed", ST_F32, linear_delayed_elems(&model->recipe, config->L),
                         model->linear.delayed);
        list[n].host = 0;
        list[n++].optional = 1;  // a run of another precision has none: histories start empty
    }
    if (!model->kahan) return n;
    size_t end = n + checkpoint_parameters(list + n, config, model->kahan, CHECKPOINT_IN_STATE, "c.transformer.", ST_BF16);
    for (; n < end; n++) list[n].optional = 1;  // a run that had masters has none: it starts at zero
    return n;
}

// A block of a tensor's rows and columns between the device and `host`, where it lies dense.
static void checkpoint_copy(const Model *model, const CheckpointTensor *tensor, size_t row, size_t rows, size_t col,
                            size_t cols, void *host, int to_host) {
    size_t size = safetensors_dtype_bytes(tensor->dtype), pitch = tensor->cols * size, width = cols * size;
    char *device = (char *)tensor->data + row * pitch + col * size;
    if (cols == tensor->cols) {  // whole rows lie together
        pitch = width *= rows;
        rows = 1;
    }
    if (to_host) CUDA_CHECK(cudaMemcpy2DAsync(host, width, device, pitch, width, rows, cudaMemcpyDeviceToHost, model->stream));
    else CUDA_CHECK(cudaMemcpy2DAsync(device, pitch, host, width, width, rows, cudaMemcpyHostToDevice, model->stream));
    CUDA_CHECK(cudaStreamSynchronize(model->stream));
}

// The shards that a tensor of the list is cut into; NULL where this rank has it whole.
static void *checkpoint_shard(const Model *model, const CheckpointTensor *tensor) {
    if (!shards_optimizer(&model->shards) || tensor->parameter < 0) return NULL;
    if (tensor->name[1] != '.') return MASTERS_APART ? model->masters : NULL;
    return tensor->name[0] == 'm' ? model->m : tensor->name[0] == 'v' ? model->v : model->kahan;
}

// The block of a tensor in shards, as shards_copy() wants it.
static ShardBlock checkpoint_shard_block(const Model *model, const CheckpointTensor *tensor, size_t row, size_t rows,
                                         size_t col, size_t cols) {
    const ParameterInfo *info = &model->table[tensor->parameter];
    size_t first = info->offset_elems + tensor->layer * info->rows * info->cols + row * tensor->cols + col;
    ShardBlock block = {first, rows, cols, tensor->cols}, together = {first, 1, rows * cols, rows * cols};
    return cols == tensor->cols ? together : block;
}

// A block of the arena of which each rank has its part in `shard`, dense in `host` (or NULL): every rank comes here. At
// most CHECKPOINT_STAGE_BYTES. Shards become a whole by a sum: each element's bits are one rank's, and zero on all others.
static void whole_from_shards(const Model *model, void *shard, size_t size, const ShardBlock *block, void *host) {
    size_t bytes = block->rows * block->cols * size;
    void *whole = model->work.block;
    communicator_moved();
    CUDA_CHECK(cudaMemsetAsync(whole, 0, bytes, model->stream));
    shards_copy(&model->shards, shard, size, block, whole, 1, cudaMemcpyDeviceToDevice, model->stream);
    NCCL_CHECK(ncclAllReduce(whole, whole, bytes, ncclUint8, ncclSum, all_ranks()->nccl, model->stream));
    if (host) CUDA_CHECK(cudaMemcpyAsync(host, whole, bytes, cudaMemcpyDeviceToHost, model->stream));
    CUDA_CHECK(cudaStreamSynchronize(model->stream));
}

static void checkpoint_read_device(void *context, const CheckpointTensor *tensor, size_t row, size_t rows, size_t col,
                                   size_t cols, void *host) {
    Model *model = (Model *)context;
    void *shard = checkpoint_shard(model, tensor);
    communicator_moved();
    shards_await_all(&model->shards, model->stream);
    if (!shard && host) checkpoint_copy(model, tensor, row, rows, col, cols, host, 1);
    if (!shard) return;
    const ShardBlock block = checkpoint_shard_block(model, tensor, row, rows, col, cols);
    whole_from_shards(model, shard, safetensors_dtype_bytes(tensor->dtype), &block, host);
}

static int checkpoint_wanted_device(void *context, const CheckpointTensor *tensor, size_t row, size_t rows, size_t col,
                                    size_t cols) {
    const Model *model = (const Model *)context;
    if (!checkpoint_shard(model, tensor)) return 1;
    const ShardBlock block = checkpoint_shard_block(model, tensor, row, rows, col, cols);
    return shards_copy(&model->shards, NULL, 0, &block, NULL, 0, cudaMemcpyHostToDevice, model->stream);
}

static void checkpoint_write_device(void *context, const CheckpointTensor *tensor, size_t row, size_t rows, size_t col,
                                    size_t cols, const void *host) {
    const Model *model = (const Model *)context;
    void *shard = checkpoint_shard(model, tensor);
    communicator_moved();
    if (!shard) {
        checkpoint_copy(model, tensor, row, rows, col, cols, (void *)host, 0);
        return;
    }
    const ShardBlock block = checkpoint_shard_block(model, tensor, row, rows, col, cols);
    shards_copy(&model->shards, shard, safetensors_dtype_bytes(tensor->dtype), &block, (void *)host, 0,
                cudaMemcpyHostToDevice, model->stream);
    CUDA_CHECK(cudaStreamSynchronize(model->stream));
}

// How checkpoints reach the tensors of the list.
static void model_checkpoint_access(Model *model, Checkpointer *checkpointer) {
    checkpointer->read = checkpoint_read_device;
    checkpointer->write = checkpoint_write_device;
    checkpointer->wanted = checkpoint_wanted_device;
    checkpointer->ctx = model;
}

// `bytes` of device memory on the host. The caller frees them.
static void *bytes_from_device(const Model *model, const void *data, size_t bytes) {
    void *copy = checked_calloc(bytes, 1, "a copy of a tensor");
    CUDA_CHECK(cudaMemcpyAsync(copy, data, bytes, cudaMemcpyDeviceToHost, model->stream));
    CUDA_CHECK(cudaStreamSynchronize(model->stream));
    return copy;
}

// Parameter tensor i of the arena at `data`, or of this rank's shards of it, on the host: whole. The caller frees it.
static void *parameter_from_device(const Model *model, size_t i, void *data, size_t size, int in_shards) {
    const ParameterInfo *info = &model->table[i];
    size_t elems = parameter_elems(info), most = CHECKPOINT_STAGE_BYTES / size;
    if (!data) return NULL;
    if (!in_shards) return bytes_from_device(model, (char *)data + info->offset_elems * size, elems * size);
    char *copy = (char *)checked_calloc(elems, size, "a copy of a tensor");
    for (size_t at = 0; at < elems; at += most) {
        size_t n = min_size(most, elems - at);
        const ShardBlock block = {info->offset_elems + at, 1, n, n};
        whole_from_shards(model, data, size, &block, copy + at * size);
    }
    return copy;
}

// Before model_update() with the same hyper, at a step that is reported: shows what it will do to the weights, layer by
// layer. The CPU twin counts, on copies of whole tensors, whose shards it takes all ranks to give.
static void model_count_updates(Model *model, const AdamWHyper *hyper) {
    const int sharded = shards_optimizer(&model->shards);
    if (!model->numerics && !sharded) return;
    for (size_t i = 0; i < GPT_PARAMETER_COUNT; i++) {
        const ParameterInfo *info = &model->table[i];
        AdamWHyper tensor_hyper = *hyper;
        size_t elems = info->rows * info->cols, n = parameter_elems(info);
        int in_layers = strncmp(info->hf, "h.", 2) == 0;
        tensor_hyper.weight_decay = info->decay ? hyper->weight_decay : 0.0f;
        float *rounded = floats_from_device(model, (const weight_t *)model->weights_arena.base + info->offset_elems, n);
        void *grads = sharded ? (void *)model->shards.gradients : model->grads_arena.base;
        cpu::AdamWTensor tensor = {
            parameter_from_device(model, i, model->masters, MASTER_BYTES, sharded && MASTERS_APART),
            (uint16_t *)parameter_from_device(model, i, model->kahan, sizeof *model->kahan, sharded),
            BUILD_WEIGHTS_COPIED ? rounded : NULL,
            parameter_from_device(model, i, model->m, MOMENT_BYTES, sharded),
            parameter_from_device(model, i, model->v, MOMENT_BYTES, sharded),
            (float *)parameter_from_device(model, i, grads, sizeof(float), sharded),
            n,
            (uint32_t)i};
        const float *weight = BUILD_MASTER_RULE == MASTER_RULE_FP32 ? (const float *)tensor.weight : rounded;
        for (size_t l = 0; l < info->layers && model->numerics; l++) {
            UpdateCounts counts = {0, 0, 0, 0, 0};
            cpu::adamw_count(&counts, &tensor, l * elems, (l + 1) * elems, &tensor_hyper, BUILD_MASTER_RULE,
                             BUILD_MOMENTS_RULE);
            numerics_weight(model->numerics, info->name, in_layers ? l : NUMERICS_NO_LAYER, BUILD_WEIGHT, &counts,
                            weight + l * elems, rounded + l * elems, elems);
        }
        free(tensor.weight);
        free(tensor.kahan);
        free(tensor.m);
        free(tensor.v);
        free((void *)tensor.grad);
        free(rounded);
    }
}

// Ends the run where a rank's weights are not rank 0's; with --zero 0 its moments, too.
static void model_check_replicas(Model *model) {
    const struct {
        const char *name;
        const void *data;
        size_t bytes;
        int everywhere;
    } kinds[4] = {{"weights", model->weights_arena.base, model->parameter_elems * sizeof(weight_t), 1},
                  {"masters", model->masters_arena.base, model->masters_arena.used_bytes, 0},
                  {"moments", model->moments_arena.base, model->moments_arena.used_bytes, 0},
                  {"delayed scales", model->linear.delayed,
                   linear_delayed_elems(&model->recipe, model->config.L) * sizeof(float), 1}};
    Ranks *r = all_ranks();
    uint64_t *all = (uint64_t *)checked_calloc(r->ranks, sizeof *all, "ranks");
    model_gather_weights(model);
    shards_await_all(&model->shards, model->stream);
    for (size_t i = 0; i < 4 && r->ranks > 1; i++) {
        if (!kinds[i].data || (!kinds[i].everywhere && shards_optimizer(&model->shards))) continue;
        void *copy = bytes_from_device(model, kinds[i].data, kinds[i].bytes);
        Checksum sum;
        checksum_start(&sum);
        checksum_add(&sum, copy, kinds[i].bytes);
        uint64_t mine = checksum_value(&sum);
        free(copy);
        ranks_gather(all, &mine, sizeof mine);
        if (mine != all[0]) die("--check-replicas: the %s of this rank are not those of rank 0", kinds[i].name);
    }
    free(all);
}

// The losses (B, T) of the last forward pass; a backward pass queued after it goes on meanwhile.
static void model_losses(Model *model, float *losses) {
    CUDA_CHECK(cudaEventSynchronize(model->host.losses_here));
    memcpy(losses, model->host.losses, model->B * model->T * sizeof(float));
}

template <typename E>
static int device_nonfinite(const Model *model, const E *data, size_t elems) {
    float *floats = floats_from_device(model, data, elems);
    int finite = all_finite(floats, elems);
    free(floats);
    return !finite;
}

// Where the last forward pass first left the finite numbers: writes the tensor's name and layer into `text` and returns
// 1, or returns 0 if all its activations are finite. In the order the forward pass makes them. A cast to fp4 hides what
// is not finite: then the linear layer that met it is named, be it in the backward pass.
static int model_first_nonfinite(Model *model, char *text, size_t text_bytes) {
    DeviceActivations *acts = &model->acts;
    size_t N = model->B * model->T, C = model->config.C, S = model->shape.B * model->shape.T;
    size_t wide = S * 4 * C;
    if (device_nonfinite(model, acts->encoded, N * C)) {
        snprintf(text, text_bytes, "the embedding");
        return 1;
    }
    for (size_t l = 0; l < model->config.L; l++) {
        struct {
            const char *name;
            const act_t *data;
            size_t elems;
        } stages[6] = {{"qkv", at_layer(acts->qkv, l, S * 3 * C), N * 3 * C},
                       {"attention", at_layer(acts->att, l, S * C), N * C},
                       {"residual after attention", at_layer(acts->residual2, l, S * C), N * C},
                       {"fc", at_layer(acts->fch, l, wide), N * 4 * C},
                       {"fc", at_layer(model->weights.fcb, l, 4 * C), 4 * C},  // which fch may be without
                       {"residual after the MLP", at_layer(acts->residual3, l, S * C), N * C}};
        for (size_t i = 0; i < 6; i++) {
            if (!device_nonfinite(model, stages[i].data, stages[i].elems)) continue;
            snprintf(text, text_bytes, "layer %zu, %s", l, stages[i].name);
            return 1;
        }
    }
    if (!device_nonfinite(model, acts->losses, N))
        return linear_first_nonfinite(&model->linear, model->linears, text, text_bytes);
    snprintf(text, text_bytes, "the logits");
    return 1;
}

#endif
