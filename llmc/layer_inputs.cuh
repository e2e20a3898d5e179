// layer_inputs.cuh: what the linear layers of a block of train_gpt.cu read, forward and backward, and what that is made of.
// Included by train_gpt.cu where its Model is known.
#ifndef LLMC_LAYER_INPUTS_CUH
#define LLMC_LAYER_INPUTS_CUH

// What layer l reads: the residual stream.
static const act_t *layer_input(const Model *model, size_t l) {
    size_t block = model->shape.B * model->shape.T * model->config.C;
    return l == 0 ? model->acts.encoded : at_layer(model->acts.residual3, l - 1, block);
}

// The inputs of the linear layers of layer l. Where a cast makes one of them, what that keeps for the backward pass lies in
// the room that the tensor itself would take; attention's output, which attention needs as it is, has the end of GELU's.
typedef LinearInput<LayernormColumns<act_t, weight_t>> NormInput;
typedef LinearInput<GeluColumns<act_t, weight_t>> GeluInput;
typedef LinearInput<StoredColumns<act_t>> StoredInput;
typedef LinearGradient<GeluBackwardColumns<grad_t, act_t, weight_t>> GeluGradient;
typedef LinearGradient<StoredColumns<grad_t>> StoredGradient;

static NormInput norm_input(const Model *model, size_t l, LinearKind reader, act_t *out, float *mean, float *rstd,
                            const act_t *inp, const weight_t *weight, const weight_t *bias) {
    size_t C = model->config.C, S = model->shape.B * model->shape.T;
    int kept = model->shape.recompute < 2;
    out = at_layer(out, kept ? l : 0, S * C);
    NormInput x = {out,
                   {inp, at_layer(mean, l, S), at_layer(rstd, l, S), at_layer(weight, l, C), at_layer(bias, l, C), C},
                   linear_amax_word(&model->linear, linear_at(model, l, reader), QUANT_X) != NULL,
                   kept ? out : NULL,
                   S * C * sizeof *out};
    return x;
}

static NormInput ln1_input(const Model *model, size_t l) {
    const DeviceActivations *acts = &model->acts;
    return norm_input(model, l, LINEAR_QKV, acts->ln1, acts->ln1_mean, acts->ln1_rstd, layer_input(model, l),
                      model->weights.ln1w, model->weights.ln1b);
}

static NormInput ln2_input(const Model *model, size_t l) {
    const DeviceActivations *acts = &model->acts;
    size_t block = model->shape.B * model->shape.T * model->config.C;
    return norm_input(model, l, LINEAR_FC, acts->ln2, acts->ln2_mean, acts->ln2_rstd,
                      at_layer(acts->residual2, l, block), model->weights.ln2w, model->weights.ln2b);
}

// 1: GELU's room has attention's cast at its end: codes of a byte leave half of it.
static int gelu_room_shared(const Model *model, size_t l) {
    return model->shape.recompute < 1 && linear_makes_input(&model->linear, linear_at(model, l, LINEAR_FCPROJ)) &&
           !model->linear.routes.why;
}

static GeluInput gelu_input(const Model *model, size_t l) {
    size_t C = model->config.C, block = model->shape.B * model->shape.T * C;
    int kept = model->shape.recompute < 1;
    act_t *out = at_layer(model->acts.fch_gelu, kept ? l : 0, 4 * block);
    GeluInput x = {out,
                   {at_layer(model->acts.fch, l, 4 * block),
                    {linear_bias_left(&model->linear, linear_at(model, l, LINEAR_FC))},
                    4 * C},
                   0,
                   kept ? out : NULL,
                   (gelu_room_shared(model, l) ? 3 : 4) * block * sizeof *out};
    return x;
}

static StoredInput att_input(const Model *model, size_t l) {
    size_t C = model->config.C, block = model->shape.B * model->shape.T * C;
    act_t *att = at_layer(model->acts.att, l, block);
    StoredInput x = {att, {att, C}, 0, NULL, 0};
    if (!gelu_room_shared(model, l)) return x;
    x.room = at_layer(model->acts.fch_gelu, l, 4 * block) + 3 * block;
    x.room_bytes = block * sizeof *att;
    return x;
}

// The gradient of the residual stream, as the projection `reader` that was added to it reads it.
static StoredGradient residual_gradient(const Model *model, const DeviceLinear *reader) {
    StoredGradient dy = {model->acts.dresidual, {model->acts.dresidual, model->config.C},
                         linear_amax_word(&model->linear, reader, QUANT_DY) != NULL, {NULL, NULL, 0}};
    return dy;
}

#endif
