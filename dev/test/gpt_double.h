// gpt_double.h: GPT-2's forward and backward pass in double precision, written to be obviously right and nothing else.
//
// The yardstick inside test_gpt: its own gradients are checked by finite differences (every parameter and every
// activation, see double_loss and the nudge below), its results by PyTorch's fixtures, and then every tensor of the
// float trainer is compared with the tensor of the same name here. Plain loops, one thread, one tensor per value.
//
// A gradient dx is the derivative of the mean loss by x with everything after x following; for the residual stream
// (encoded, residual2, residual3) that is the total over both ways.
#ifndef DEV_TEST_GPT_DOUBLE_H
#define DEV_TEST_GPT_DOUBLE_H

#include <math.h>

#include "../../llmc/tensors.h"

// Activations in the order in which the forward pass completes them. N = B*T rows.
// clang-format off
//    name       layers  elements of one layer
#define DOUBLE_ACTIVATIONS(X)                                                                  \
    X(encoded,   1, N * C)      /* wte[token] + wpe[position] */                                  \
    X(ln1,       L, N * C)                                                                     \
    X(qkv,       L, N * 3 * C)                                                                 \
    X(prob,      L, N * NH * T) /* softmax(q k / sqrt(HS)), row (b, head, t), 0 beyond t */    \
    X(att,       L, N * C)      /* prob . v */                                                 \
    X(attproj,   L, N * C)                                                                     \
    X(residual2, L, N * C)      /* block input + attproj */                                    \
    X(ln2,       L, N * C)                                                                     \
    X(fch,       L, N * 4 * C)                                                                 \
    X(fch_gelu,  L, N * 4 * C)                                                                 \
    X(fcproj,    L, N * C)                                                                     \
    X(residual3, L, N * C)      /* residual2 + fcproj */                                       \
    X(lnf,       1, N * C)                                                                     \
    X(logits,    1, N * Vp)     /* padding columns too, though no loss depends on them */
// clang-format on

enum {
#define X(name, layers, elems) ACT_##name,
    DOUBLE_ACTIVATIONS(X)
#undef X
        DOUBLE_ACTIVATION_COUNT
};

typedef struct {
    const char *name;
    size_t layers, elems;  // elems: of one layer
    double *value, *grad;
} DoubleActivation;

typedef struct {
#define X(name, ...) double *name;
    GPT_PARAMETERS(X)
#undef X
} DoubleParameters;

typedef struct {
    GPTConfig config;
    size_t B, T;
    ParameterInfo table[GPT_PARAMETER_COUNT];
    size_t parameter_elems;  // of one arena, laid out as the trainer's
    double *parameter_base, *gradient_base;
    DoubleParameters params, grads;
    DoubleActivation act[DOUBLE_ACTIVATION_COUNT];
    // For finite differences: `nudge` is added to element `nudge_index` (layers counted through) of activation
    // `nudge_act` as soon as the forward pass has computed it; nudge_act -1: none.
    int nudge_act;
    size_t nudge_index;
    double nudge;
} DoubleGPT;

static inline void double_parameters_point(DoubleParameters *parameters, double *base, const ParameterInfo *table) {
    size_t i = 0;
#define X(name, ...) parameters->name = base + table[i++].offset_elems;
    GPT_PARAMETERS(X)
#undef X
}

// Allocates everything, zero-filled. The caller sets params, then calls double_forward and double_backward.
static inline void double_create(DoubleGPT *gpt, const GPTConfig *config, size_t B, size_t T) {
    const size_t N = B * T, C = config->C, L = config->L, NH = config->NH, Vp = config->Vp;
    memset(gpt, 0, sizeof *gpt);
    gpt->config = *config;
    gpt->B = B;
    gpt->T = T;
    gpt->nudge_act = -1;
    gpt->parameter_elems = parameter_table(config, gpt->table);
    gpt->parameter_base = (double *)checked_calloc(gpt->parameter_elems, sizeof(double), "double parameters");
    gpt->gradient_base = (double *)checked_calloc(gpt->parameter_elems, sizeof(double), "double gradients");
    double_parameters_point(&gpt->params, gpt->parameter_base, gpt->table);
    double_parameters_point(&gpt->grads, gpt->gradient_base, gpt->table);
#define X(act_name, act_layers, act_elems)                                                       \
    {                                                                                            \
        DoubleActivation *a = &gpt->act[ACT_##act_name];                                         \
        a->name = #act_name;                                                                     \
        a->layers = act_layers;                                                                  \
        a->elems = act_elems;                                                                    \
        a->value = (double *)checked_calloc(a->layers * a->elems, sizeof(double), #act_name);    \
        a->grad = (double *)checked_calloc(a->layers * a->elems, sizeof(double), "d" #act_name); \
    }
    DOUBLE_ACTIVATIONS(X)
#undef X
}

static inline void double_destroy(DoubleGPT *gpt) {
    free(gpt->parameter_base);
    free(gpt->gradient_base);
    for (int i = 0; i < DOUBLE_ACTIVATION_COUNT; i++) {
        free(gpt->act[i].value);
        free(gpt->act[i].grad);
    }
}

// Layer l of activation ACT_name: its values and its gradient.
#define VALUE(name, l) (gpt->act[ACT_##name].value + (l)*gpt->act[ACT_##name].elems)
#define GRAD(name, l) (gpt->act[ACT_##name].grad + (l)*gpt->act[ACT_##name].elems)

// ----------------------------------------------------------------------------------------------------------------
// Layers. Forward functions set their output, backward functions add to every output.

// out (N, OC) = inp (N, C) . weight (OC, C)^T + bias
static inline void double_linear(double *out, const double *inp, const double *weight, const double *bias, size_t N,
                                 size_t C, size_t OC) {
    for (size_t n = 0; n < N; n++)
        for (size_t o = 0; o < OC; o++) {
            double sum = bias ? bias[o] : 0;
            for (size_t c = 0; c < C; c++) sum += inp[n * C + c] * weight[o * C + c];
            out[n * OC + o] = sum;
        }
}

static inline void double_linear_backward(double *dinp, double *dweight, double *dbias, const double *dout,
                                          const double *inp, const double *weight, size_t N, size_t C, size_t OC) {
    for (size_t n = 0; n < N; n++)
        for (size_t o = 0; o < OC; o++) {
            double d = dout[n * OC + o];
            if (dbias) dbias[o] += d;
            for (size_t c = 0; c < C; c++) {
                dinp[n * C + c] += d * weight[o * C + c];
                dweight[o * C + c] += d * inp[n * C + c];
            }
        }
}

// Mean and 1 / sqrt(variance + 1e-5) of one row.
static inline void double_row_statistics(const double *row, size_t C, double *mean, double *rstd) {
    double sum = 0, squares = 0;
    for (size_t c = 0; c < C; c++) sum += row[c];
    *mean = sum / (double)C;
    for (size_t c = 0; c < C; c++) squares += (row[c] - *mean) * (row[c] - *mean);
    *rstd = 1 / sqrt(squares / (double)C + 1e-5);
}

static inline void double_layernorm(double *out, const double *inp, const double *weight, const double *bias, size_t N,
                                    size_t C) {
    for (size_t n = 0; n < N; n++) {
        double mean, rstd;
        double_row_statistics(inp + n * C, C, &mean, &rstd);
        for (size_t c = 0; c < C; c++) out[n * C + c] = (inp[n * C + c] - mean) * rstd * weight[c] + bias[c];
    }
}

// With x^ the normalised row and g = dout * weight:  dinp += rstd * (g - mean(g) - x^ * mean(g * x^))
static inline void double_layernorm_backward(double *dinp, double *dweight, double *dbias, const double *dout,
                                             const double *inp, const double *weight, size_t N, size_t C) {
    for (size_t n = 0; n < N; n++) {
        double mean, rstd, mean_g = 0, mean_gx = 0;
        double_row_statistics(inp + n * C, C, &mean, &rstd);
        for (size_t c = 0; c < C; c++) {
            double x = (inp[n * C + c] - mean) * rstd, g = dout[n * C + c] * weight[c];
            mean_g += g / (double)C;
            mean_gx += g * x / (double)C;
            dweight[c] += dout[n * C + c] * x;
            dbias[c] += dout[n * C + c];
        }
        for (size_t c = 0; c < C; c++) {
            double x = (inp[n * C + c] - mean) * rstd, g = dout[n * C + c] * weight[c];
            dinp[n * C + c] += rstd * (g - mean_g - x * mean_gx);
        }
    }
}

// prob (B, NH, T, T) and out = prob . v need separate steps, so that prob can be nudged between them.
static inline void double_attention_softmax(double *prob, const double *qkv, size_t B, size_t T, size_t C, size_t NH) {
    const size_t HS = C / NH;
    for (size_t b = 0; b < B; b++)
        for (size_t h = 0; h < NH; h++)
            for (size_t t = 0; t < T; t++) {
                const double *q = qkv + (b * T + t) * 3 * C + h * HS;
                double *row = prob + ((b * NH + h) * T + t) * T, largest = -INFINITY, sum = 0;
                for (size_t u = 0; u <= t; u++) {
                    const double *k = qkv + (b * T + u) * 3 * C + C + h * HS;
                    double score = 0;
                    for (size_t i = 0; i < HS; i++) score += q[i] * k[i];
                    row[u] = score / sqrt((double)HS);
                    if (row[u] > largest) largest = row[u];
                }
                for (size_t u = 0; u <= t; u++) sum += row[u] = exp(row[u] - largest);
                for (size_t u = 0; u < T; u++) row[u] = u <= t ? row[u] / sum : 0;
            }
}

static inline void double_attention_values(double *out, const double *prob, const double *qkv, size_t B, size_t T,
                                           size_t C, size_t NH) {
    const size_t HS = C / NH;
    for (size_t b = 0; b < B; b++)
        for (size_t h = 0; h < NH; h++)
            for (size_t t = 0; t < T; t++)
                for (size_t i = 0; i < HS; i++) {
                    double sum = 0;
                    for (size_t u = 0; u <= t; u++)
                        sum += prob[((b * NH + h) * T + t) * T + u] * qkv[(b * T + u) * 3 * C + 2 * C + h * HS + i];
                    out[(b * T + t) * C + h * HS + i] = sum;
                }
}

// dprob += dout . v and dv += prob^T . dout; then through the softmax,
// dscore_u = prob_u (dprob_u - sum_w prob_w dprob_w), into dq and dk.
static inline void double_attention_backward(double *dqkv, double *dprob, const double *dout, const double *prob,
                                             const double *qkv, size_t B, size_t T, size_t C, size_t NH) {
    const size_t HS = C / NH;
    for (size_t b = 0; b < B; b++)
        for (size_t h = 0; h < NH; h++)
            for (size_t t = 0; t < T; t++) {
                const size_t head = h * HS, q = (b * T + t) * 3 * C + head, row = ((b * NH + h) * T + t) * T;
                double dot = 0;
                for (size_t u = 0; u <= t; u++) {
                    const size_t v = (b * T + u) * 3 * C + 2 * C + head;
                    for (size_t i = 0; i < HS; i++) {
                        dprob[row + u] += dout[(b * T + t) * C + head + i] * qkv[v + i];
                        dqkv[v + i] += dout[(b * T + t) * C + head + i] * prob[row + u];
                    }
                    dot += prob[row + u] * dprob[row + u];
                }
                for (size_t u = 0; u <= t; u++) {
                    const size_t k = (b * T + u) * 3 * C + C + head;
                    double dscore = prob[row + u] * (dprob[row + u] - dot) / sqrt((double)HS);
                    for (size_t i = 0; i < HS; i++) {
                        dqkv[q + i] += dscore * qkv[k + i];
                        dqkv[k + i] += dscore * qkv[q + i];
                    }
                }
            }
}

// GELU, tanh form (Hendrycks and Gimpel 2016): x/2 (1 + tanh(z)), z = sqrt(2/pi) (x + 0.044715 x^3).
static inline double double_gelu(double x) { return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }

static inline double double_gelu_slope(double x) {
    double t = tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

static inline void double_add(double *out, const double *a, const double *b, size_t n) {
    for (size_t i = 0; i < n; i++) out[i] = a[i] + b[i];
}

// ----------------------------------------------------------------------------------------------------------------
// The model

// Applies the nudge if it belongs to layer l of activation `act`, which has just been computed.
static inline void double_nudge(DoubleGPT *gpt, int act, size_t l) {
    const DoubleActivation *a = &gpt->act[act];
    if (gpt->nudge_act == act && gpt->nudge_index / a->elems == l) a->value[gpt->nudge_index] += gpt->nudge;
}
#define NUDGE(name, l) double_nudge(gpt, ACT_##name, l)

// Block l: residual3 of l from `x`, the residual stream that enters it.
static inline void double_block_forward(DoubleGPT *gpt, size_t l, const double *x) {
    const size_t B = gpt->B, T = gpt->T, N = B * T, C = gpt->config.C, NH = gpt->config.NH;
    const DoubleParameters *p = &gpt->params;
    double_layernorm(VALUE(ln1, l), x, p->ln1w + l * C, p->ln1b + l * C, N, C);
    NUDGE(ln1, l);
    double_linear(VALUE(qkv, l), VALUE(ln1, l), p->qkvw + l * 3 * C * C, p->qkvb + l * 3 * C, N, C, 3 * C);
    NUDGE(qkv, l);
    double_attention_softmax(VALUE(prob, l), VALUE(qkv, l), B, T, C, NH);
    NUDGE(prob, l);
    double_attention_values(VALUE(att, l), VALUE(prob, l), VALUE(qkv, l), B, T, C, NH);
    NUDGE(att, l);
    double_linear(VALUE(attproj, l), VALUE(att, l), p->attprojw + l * C * C, p->attprojb + l * C, N, C, C);
    NUDGE(attproj, l);
    double_add(VALUE(residual2, l), x, VALUE(attproj, l), N * C);
    NUDGE(residual2, l);
    double_layernorm(VALUE(ln2, l), VALUE(residual2, l), p->ln2w + l * C, p->ln2b + l * C, N, C);
    NUDGE(ln2, l);
    double_linear(VALUE(fch, l), VALUE(ln2, l), p->fcw + l * 4 * C * C, p->fcb + l * 4 * C, N, C, 4 * C);
    NUDGE(fch, l);
    for (size_t i = 0; i < N * 4 * C; i++) VALUE(fch_gelu, l)[i] = double_gelu(VALUE(fch, l)[i]);
    NUDGE(fch_gelu, l);
    double_linear(VALUE(fcproj, l), VALUE(fch_gelu, l), p->fcprojw + l * 4 * C * C, p->fcprojb + l * C, N, 4 * C, C);
    NUDGE(fcproj, l);
    double_add(VALUE(residual3, l), VALUE(residual2, l), VALUE(fcproj, l), N * C);
    NUDGE(residual3, l);
}

// The mean of -log softmax(logits over V)[target] over all rows.
static inline double double_loss(const DoubleGPT *gpt, const int32_t *tgt) {
    const size_t N = gpt->B * gpt->T, V = gpt->config.V, Vp = gpt->config.Vp;
    double loss = 0;
    for (size_t n = 0; n < N; n++) {
        const double *row = VALUE(logits, 0) + n * Vp;
        double largest = row[0], sum = 0;
        for (size_t v = 0; v < V; v++) largest = fmax(largest, row[v]);
        for (size_t v = 0; v < V; v++) sum += exp(row[v] - largest);
        loss += (log(sum) + largest - row[tgt[n]]) / (double)N;
    }
    return loss;
}

// Fills every activation from inp (B, T); returns the mean loss against tgt (B, T).
static inline double double_forward(DoubleGPT *gpt, const int32_t *inp, const int32_t *tgt) {
    const size_t T = gpt->T, N = gpt->B * T, C = gpt->config.C, L = gpt->config.L;
    const DoubleParameters *p = &gpt->params;
    for (size_t n = 0; n < N; n++)
        double_add(VALUE(encoded, 0) + n * C, p->wte + (size_t)inp[n] * C, p->wpe + n % T * C, C);
    NUDGE(encoded, 0);
    for (size_t l = 0; l < L; l++) double_block_forward(gpt, l, l ? VALUE(residual3, l - 1) : VALUE(encoded, 0));
    double_layernorm(VALUE(lnf, 0), VALUE(residual3, L - 1), p->lnfw, p->lnfb, N, C);
    NUDGE(lnf, 0);
    double_linear(VALUE(logits, 0), VALUE(lnf, 0), p->wte, NULL, N, C, gpt->config.Vp);
    NUDGE(logits, 0);
    return double_loss(gpt, tgt);
}

// From dresidual3 of block l to the gradient of the residual stream that entered it: added to dx.
static inline void double_block_backward(DoubleGPT *gpt, size_t l, const double *x, double *dx) {
    const size_t B = gpt->B, T = gpt->T, N = B * T, C = gpt->config.C, NH = gpt->config.NH;
    const DoubleParameters *p = &gpt->params, *g = &gpt->grads;
    double_add(GRAD(fcproj, l), GRAD(fcproj, l), GRAD(residual3, l), N * C);
    double_add(GRAD(residual2, l), GRAD(residual2, l), GRAD(residual3, l), N * C);
    double_linear_backward(GRAD(fch_gelu, l), g->fcprojw + l * 4 * C * C, g->fcprojb + l * C, GRAD(fcproj, l),
                           VALUE(fch_gelu, l), p->fcprojw + l * 4 * C * C, N, 4 * C, C);
    for (size_t i = 0; i < N * 4 * C; i++)
        GRAD(fch, l)[i] += GRAD(fch_gelu, l)[i] * double_gelu_slope(VALUE(fch, l)[i]);
    double_linear_backward(GRAD(ln2, l), g->fcw + l * 4 * C * C, g->fcb + l * 4 * C, GRAD(fch, l), VALUE(ln2, l),
                           p->fcw + l * 4 * C * C, N, C, 4 * C);
    double_layernorm_backward(GRAD(residual2, l), g->ln2w + l * C, g->ln2b + l * C, GRAD(ln2, l), VALUE(residual2, l),
                              p->ln2w + l * C, N, C);
    double_add(GRAD(attproj, l), GRAD(attproj, l), GRAD(residual2, l), N * C);
    double_add(dx, dx, GRAD(residual2, l), N * C);
    double_linear_backward(GRAD(att, l), g->attprojw + l * C * C, g->attprojb + l * C, GRAD(attproj, l), VALUE(att, l),
                           p->attprojw + l * C * C, N, C, C);
    double_attention_backward(GRAD(qkv, l), GRAD(prob, l), GRAD(att, l), VALUE(prob, l), VALUE(qkv, l), B, T, C, NH);
    double_linear_backward(GRAD(ln1, l), g->qkvw + l * 3 * C * C, g->qkvb + l * 3 * C, GRAD(qkv, l), VALUE(ln1, l),
                           p->qkvw + l * 3 * C * C, N, C, 3 * C);
    double_layernorm_backward(dx, g->ln1w + l * C, g->ln1b + l * C, GRAD(ln1, l), x, p->ln1w + l * C, N, C);
}

// Gradients of the mean loss by every parameter and activation, after a forward pass on the same tokens.
static inline void double_backward(DoubleGPT *gpt, const int32_t *inp, const int32_t *tgt) {
    const size_t T = gpt->T, N = gpt->B * T, C = gpt->config.C, L = gpt->config.L;
    const size_t V = gpt->config.V, Vp = gpt->config.Vp;
    const DoubleParameters *p = &gpt->params, *g = &gpt->grads;
    memset(gpt->gradient_base, 0, gpt->parameter_elems * sizeof(double));
    for (int i = 0; i < DOUBLE_ACTIVATION_COUNT; i++)
        memset(gpt->act[i].grad, 0, gpt->act[i].layers * gpt->act[i].elems * sizeof(double));
    for (size_t n = 0; n < N; n++) {
        const double *row = VALUE(logits, 0) + n * Vp;
        double largest = row[0], sum = 0;
        for (size_t v = 0; v < V; v++) largest = fmax(largest, row[v]);
        for (size_t v = 0; v < V; v++) sum += exp(row[v] - largest);
        for (size_t v = 0; v < V; v++)
            GRAD(logits, 0)[n * Vp + v] = (exp(row[v] - largest) / sum - (v == (size_t)tgt[n])) / (double)N;
    }
    double_linear_backward(GRAD(lnf, 0), g->wte, NULL, GRAD(logits, 0), VALUE(lnf, 0), p->wte, N, C, Vp);
    double_layernorm_backward(GRAD(residual3, L - 1), g->lnfw, g->lnfb, GRAD(lnf, 0), VALUE(residual3, L - 1), p->lnfw,
                              N, C);
    for (size_t l = L; l-- > 0;)
        double_block_backward(gpt, l, l ? VALUE(residual3, l - 1) : VALUE(encoded, 0),
                              l ? GRAD(residual3, l - 1) : GRAD(encoded, 0));
    for (size_t n = 0; n < N; n++) {
        double *dwte = g->wte + (size_t)inp[n] * C, *dwpe = g->wpe + n % T * C;
        double_add(dwte, dwte, GRAD(encoded, 0) + n * C, C);
        double_add(dwpe, dwpe, GRAD(encoded, 0) + n * C, C);
    }
}

#undef NUDGE

#endif
