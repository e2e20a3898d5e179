// model_shards.cuh: with --zero 1 and 2, a model's tensors as this rank updates them, and how the new weights reach the
// other ranks. Included by train_gpt.cu where its Model is known.
//
// Weights go in the format that kernels read, but those of the linear layers as fp8 codes where the recipe allows
// (linear_takes_codes): half the bytes, and a rank casts its shard instead of everything. The codes' scales are those of
// the step to come, so they go when the step has ended; a skipped step moves delayed scales, too. Of a layer's weights in bf16 a
// rank then has its own shard alone until model_gather_weights().
#ifndef LLMC_MODEL_SHARDS_CUH
#define LLMC_MODEL_SHARDS_CUH

// The runs of tensors in this rank's shard of bucket `index`, as the optimizer sees them; returns how many.
static int model_adamw_shard(const Model *model, size_t index, float weight_decay, AdamWTensor *tensors) {
    const Shards *shards = &model->shards;
    const Bucket *bucket = &shards->buckets[index];
    int count = 0;
    for (int p = 0; p < bucket->count; p++) {
        const BucketPiece *piece = &bucket->pieces[p];
        size_t begin, end;
        if (!bucket_shard_run(bucket, p, shards->parallel.rank, &begin, &end)) continue;
        size_t arena = piece->arena + begin - piece->at;  // where masters are the working weights, they are all here
        size_t shard = bucket->shard_at + begin - shards->parallel.rank * bucket->shard_elems;
        AdamWTensor tensor = {(char *)model->masters + (MASTERS_APART ? shard : arena) * MASTER_BYTES,
                              model->kahan ? model->kahan + shard : NULL,
                              MASTERS_APART ? (weight_t *)model->weights_arena.base + arena : NULL,
                              (char *)model->m + shard * MOMENT_BYTES,
                              (char *)model->v + shard * MOMENT_BYTES,
                              shards->gradients + shard,
                              end - begin,
                              piece->first + begin - piece->at,
                              model->table[piece->tensor].decay ? weight_decay : 0.0f,
                              (uint32_t)piece->tensor};
        tensors[count++] = tensor;
    }
    return count;
}

// Do this step's new weights go as codes? All ranks say the same, from model_grad_norm() to model_end_step().
static int model_sends_codes(const Model *model) {
    return MASTERS_APART && shards_optimizer(&model->shards) && linear_takes_codes(&model->linear, model->linears);
}

// A bucket goes to the other ranks while the next one is updated, and on while the next forward pass begins.
static void model_update_shards(Model *model, const AdamWHyper *hyper) {
    Shards *shards = &model->shards;
    for (size_t i = shards->plan.count; i-- > 0;) {
        AdamWTensor tensors[BUCKET_PIECES];
        int count = model_adamw_shard(model, i, hyper->weight_decay, tensors);
        adamw_update_tensors(tensors, count, hyper, BUILD_MASTER_RULE, BUILD_MOMENTS_RULE, model->stream);
        if (!model_sends_codes(model)) shards_publish(shards, i, (weight_t *)model->weights_arena.base, model->stream);
    }
}

// The linear layer, of those of `layer`, whose weight is parameter tensor `tensor`; NULL: it is none's.
static const DeviceLinear *model_linear_of(const Model *model, int tensor, size_t layer) {
    static const char *const names[LINEAR_KINDS] = {"qkvw", "attprojw", "fcw", "fcprojw"};
    for (int kind = 0; kind < LINEAR_KINDS; kind++)
        if (strcmp(model->table[tensor].name, names[kind]) == 0) return linear_at(model, layer, (LinearKind)kind);
    return NULL;
}

static CodeBucket model_code_bucket(const Model *model, size_t index) {
    CodeBucket b;
    memset(&b, 0, sizeof b);
    b.bucket = model->shards.buckets[index];
    for (int p = 0; p < b.bucket.count; p++) {
        const BucketPiece *piece = &b.bucket.pieces[p];
        const size_t elems = model->table[piece->tensor].rows * model->table[piece->tensor].cols;
        const DeviceLinear *first = model_linear_of(model, piece->tensor, 0), *linear;
        if (!first) continue;
        linear = model_linear_of(model, piece->tensor, piece->first / elems);
        b.codes[p] = (uint8_t *)linear->w_fprop.codes;
        b.layer_elems[p] = elems;
        if (model->config.L > 1) b.layer_pitch[p] = (size_t)((uint8_t *)first[LINEAR_KINDS].w_fprop.codes - (uint8_t *)first->w_fprop.codes);
    }
    code_bucket_finish(&b, model->shards.parallel.ranks);
    return b;
}

// take(linear, i, weights, n) for each run of what is cast in this rank's shard of the bucket: n elements of one layer's
// weight, from element i of the bucket on.
template <typename Take>
static void model_each_code_run(const Model *model, const CodeBucket *b, Take take) {
    for (int p = 0; p < b->bucket.count; p++) {
        const BucketPiece *piece = &b->bucket.pieces[p];
        size_t begin, end, next;
        if (!b->codes[p] || !bucket_shard_run(&b->bucket, p, model->shards.parallel.rank, &begin, &end)) continue;
        for (size_t i = begin; i < end; i = next) {
            const size_t element = piece->first + i - piece->at, elems = b->layer_elems[p];
            next = min_size(end, i + elems - element % elems);
            take(model_linear_of(model, piece->tensor, element / elems), i,
                 (const weight_t *)model->weights_arena.base + piece->arena + i - piece->at, next - i);
        }
    }
}

// Current scaling: WORD_W_AMAX of each linear layer, over all ranks.
static void model_weight_amaxes(const Model *model, cudaStream_t stream) {
    const LinearContext *linear = &model->linear;
    for (size_t i = model->shards.plan.layer_buckets; i-- > 0;) {
        const CodeBucket b = model_code_bucket(model, i);
        model_each_code_run(model, &b, [&](const DeviceLinear *l, size_t, const weight_t *run, size_t n) {
            linear_amax_run(linear, l, run, n, stream);
        });
    }
    // The patterns of magnitudes order as these do.
    ranks_max((float *)linear->words + (size_t)WORD_W_AMAX * linear->layers, linear->layers, stream);
}

// The weights as the next step reads them, and the scales they are cast with, are known: they go to all ranks.
static void model_publish_codes(Model *model) {
    Shards *shards = &model->shards;
    Ranks *r = all_ranks();
    weight_t *weights = (weight_t *)model->weights_arena.base;
    linear_begin_codes(&model->linear);
    for (size_t i = shards->plan.count; i-- > shards->plan.layer_buckets;) shards_publish(shards, i, weights, model->stream);
    shards_follow(shards, model->stream);
    if (BUILD_SCALING == SCALING_TENSOR) model_weight_amaxes(model, r->stream);
    linear_codes_scales(&model->linear, r->stream);
    for (size_t i = shards->plan.layer_buckets; i-- > 0;) {
        const CodeBucket b = model_code_bucket(model, i);
        const size_t shard = r->rank * b.bucket.shard_elems;
        uint8_t *block = (uint8_t *)shards->staging + r->rank * b.block_bytes;
        model_each_code_run(model, &b, [&](const DeviceLinear *linear, size_t at, const weight_t *run, size_t n) {
            linear_cast_run(&model->linear, linear, block + at - shard, run, n, r->stream);
        });
        code_bucket_move<false>(weights, shards->staging, &b, shard, shard + b.bucket.shard_elems, r->stream);
        NCCL_CHECK(ncclAllGather(block, shards->staging, b.block_bytes, ncclUint8, r->nccl, r->stream));
        code_bucket_move<true>(weights, shards->staging, &b, 0, b.bucket.elems, r->stream);
        shards_arrive(shards, i);
    }
    model->weights_partial = 1;
}

// All of the weights in the format that is stored, on every rank; every rank comes here. Samples, reports and
// --check-replicas read them; training does not.
static void model_gather_weights(Model *model) {
    if (!model->weights_partial) return;
    for (size_t i = model->shards.plan.layer_buckets; i-- > 0;)
        shards_publish(&model->shards, i, (weight_t *)model->weights_arena.base, model->stream);
    shards_await_all(&model->shards, model->stream);
    model->weights_partial = 0;
}

#endif
