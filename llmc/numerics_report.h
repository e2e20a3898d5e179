// numerics_report.h: what number formats do to a run, in numbers and in words: numerics.jsonl and warnings.
//
// On a step that is reported (--numerics-every) the trainer shows every stored tensor, every cast operand and every
// update to a NumericsReport; at its end each becomes a line:
//
//     {"step":30,"kind":"operand","tensor":"fc.x.fprop","role":"x","layer":1,"format":"e4m3","scaling":"tensor",
//      "elements":65536,"amax":4.1,"rms":0.98,"scale_min":109,"scale_max":109,"nonfinite":0,"underflow_frac":0.0002,
//      "saturated_frac":0,"bits":3.99}
//
//     kind            what                                                  keys of its own
//     act, grad       activations and their gradients, as stored            underflow_frac, bits
//     logits          before the softmax
//     operand         what a linear layer's product reads, cast             scale_*, underflow_frac, saturated_frac, bits
//     weight          parameters, at their update                           updates, lost_frac, lost_stored_frac,
//                                                                           underflow_frac, v_frozen_frac
//
// underflow_frac    share of the non-zeros that became zero. Stored tensors are rounded inside kernels, so there it is
//                   the share of zeros; it is given in fp16 only (bf16 has fp32's range) and where an exact zero is no
//                   ordinary result: not after GELU, nor in the residual stream, where two terms may cancel.
// saturated_frac    share of scaled magnitudes beyond what rounds to the largest value
// bits              effective bits: how many significant bits of a non-zero came through, at most those the format has
//                   (e2m1 2, e5m2 3, e4m3 4, bf16 8, fp16 11), on average over the tensor. Measured for operands, by the
//                   relative error; for stored tensors the bits of the element's binade, 0 for what became zero
// lost_frac         share of the non-zero updates that would leave a 16-bit weight as it is (fp16's in fp16, else
//                   bf16's), rounding to nearest; lost_stored_frac: in the format the weight is kept in
// v_frozen_frac     share of v that its update leaves as it is, where moments are in bf16 to nearest
//
// Looking changes no number of the run. Off, it costs a test of a pointer at each tensor. The sums do not depend on the
// number of threads.
//
// Warnings name the symptom, its likely cause and what to change; each rule's threshold stands beside it in
// numerics_rules(). One that stays true is repeated after 1, 2, 4, 8 ... further reports.
#ifndef LLMC_NUMERICS_REPORT_H
#define LLMC_NUMERICS_REPORT_H

#include <math.h>

#include "adamw.h"
#include "linear.h"
#include "quantize.h"
#include "run_log.h"

typedef enum { NUMERICS_ACT, NUMERICS_GRAD, NUMERICS_LOGITS, NUMERICS_OPERAND, NUMERICS_WEIGHT } NumericsKind;

#define NUMERICS_NO_LAYER SIZE_MAX
#define NUMERICS_NAME_BYTES 32

// Sums over the elements of one tensor.
typedef struct {
    uint64_t elements, nonzero, nonfinite;
    uint32_t amax_bits;
    uint64_t bits;   // significant bits that came through
    double squares;  // of the elements
} NumericsSums;

// One tensor: what it is, and what this report has seen of it (all micro-batches).
typedef struct {
    NumericsKind kind;
    char tensor[NUMERICS_NAME_BYTES];
    const char *role;  // "x", "w", "dy" of an operand, else NULL
    size_t layer;      // or NUMERICS_NO_LAYER
    FormatId format;
    ScalingRule scaling;
    NumericsSums sums;
    uint64_t underflow, saturated;
    int has_underflow, has_bits;
    float scale_min, scale_max;
    float history_amax;  // delayed: the largest amax of earlier steps; 0: none
    int history_length;
    uint64_t updates, lost, lost_stored, v_frozen, v_elements;
    // Kept from report to report: how long a delayed scale has stood, and the amax it stood at first.
    float still_scale, still_amax;
    uint64_t still_since;
} NumericsEntry;

typedef enum {
    RULE_NONFINITE,
    RULE_SKIPS,
    RULE_CLIP_SCALED,
    RULE_GRAD_UNDERFLOW,
    RULE_LOST_UPDATES,
    RULE_V_FROZEN,
    RULE_SATURATED,
    RULE_AMAX_JUMP,
    RULE_SCALE_STILL,
    RULE_UNDERFLOW,
    RULE_OUTLIERS,
    RULE_LOGITS,
    RULE_TREND,
    RULE_COUNT
} NumericsRule;

#define NUMERICS_TREND_STEPS 1000

typedef struct {
    uint64_t every;  // 0: off
    uint64_t step;   // being reported
    NumericsEntry *entries;
    size_t count, capacity, next;  // next: where the search for an entry begins; tensors come in the same order
    RunLog log;                    // file NULL: nothing is written
    int quiet;                     // warnings only into the file (tests)
    MasterRule master_rule;
    uint64_t reports, warn_at[RULE_COUNT], wait[RULE_COUNT];
    uint64_t warnings;             // given so far
    uint64_t scaled_norm_steps;    // in a row with a gradient norm about as large as the loss scale
    uint64_t window_step, window_skips;  // where the last 1000 steps' count of skips began
    uint64_t trend_step;                 // where the amax of the MLP's hidden layer was taken
    float trend_amax;
} NumericsReport;

// ----------------------------------------------------------------------------------------------------------------
// Looking at tensors

#define NUMERICS_BLOCK ((size_t)1024)
#define NUMERICS_GROUPS ((size_t)128)  // partial sums; how elements fall into them depends on their number alone

static inline void numerics_add(NumericsSums *to, const NumericsSums *from) {
    to->elements += from->elements;
    to->nonzero += from->nonzero;
    to->nonfinite += from->nonfinite;
    if (from->amax_bits > to->amax_bits) to->amax_bits = from->amax_bits;
    to->bits += from->bits;
    to->squares += from->squares;
}

#define NUMERICS_LANES 16

// Sum of squares of the finite ones among NUMERICS_BLOCK elements. By lanes, so that it vectorises.
static inline double numerics_block_squares(const float *RESTRICT x) {
    float squares[NUMERICS_LANES] = {0};
    double sum = 0;
    for (size_t i = 0; i < NUMERICS_BLOCK; i += NUMERICS_LANES)
        for (size_t j = 0; j < NUMERICS_LANES; j++) {
            uint32_t bits = bits_of_float(x[i + j]) & 0x7fffffffu;
            float value = float_of_bits(bits & (0u - (uint32_t)(bits < 0x7f800000u)));
            squares[j] += value * value;
        }
    for (size_t j = 0; j < NUMERICS_LANES; j++) sum += (double)squares[j];
    return sum;
}

// One block of a stored tensor. A normal number has all of the format's significant bits, a subnormal one fewer for each
// binade below the smallest normal, whose exponent field as a float is min_field.
static inline NumericsSums numerics_stored_block(const float *RESTRICT x, int mantissa_bits, uint32_t min_field) {
    const int32_t all = mantissa_bits + 1, offset = all - (int32_t)min_field;
    uint32_t nonzero = 0, bad = 0, kept = 0, amax = 0;
    for (size_t i = 0; i < NUMERICS_BLOCK; i++) {
        uint32_t bits = bits_of_float(x[i]) & 0x7fffffffu, finite = bits < 0x7f800000u;
        int32_t significant = (int32_t)(bits >> 23) + offset;
        significant = significant < all ? significant : all;
        significant = significant > 0 ? significant : 0;
        nonzero += bits != 0;
        bad += !finite;
        bits &= 0u - finite;
        kept += (uint32_t)significant & (0u - (uint32_t)(bits != 0));
        amax = bits > amax ? bits : amax;
    }
    NumericsSums sums = {0, nonzero, bad, amax, kept, numerics_block_squares(x)};
    return sums;
}

// One block of an operand and what it was cast to, `decode` making values of what the product reads. An error of at most
// 2^-k of the element leaves k bits.
static inline NumericsSums numerics_cast_block(const float *RESTRICT x, const float *RESTRICT cast, float decode,
                                               int mantissa_bits) {
    const int32_t all = mantissa_bits + 1;
    uint32_t kept = 0;
    for (size_t i = 0; i < NUMERICS_BLOCK; i++) {
        uint32_t bits = bits_of_float(x[i]) & 0x7fffffffu;
        uint32_t counts = (uint32_t)(bits != 0) & (uint32_t)(bits < 0x7f800000u);
        uint32_t error = bits_of_float((cast[i] * decode - x[i]) / x[i]) & 0x7fffffffu;
        int32_t significant = 127 - (int32_t)((error + 0x7fffffu) >> 23);  // + : the exponent rounded up
        significant = significant < all ? significant : all;
        significant = significant > 0 ? significant : 0;
        kept += (uint32_t)significant & (0u - counts);
    }
    NumericsSums sums = {0, 0, 0, 0, kept, numerics_block_squares(x)};
    return sums;
}

// Block `at` of a tensor that ends at `end`; a last one that is not whole is filled up with zeros, which count nowhere.
static inline NumericsSums numerics_block(const float *x, const float *cast, size_t at, size_t end, const Format *f,
                                          float decode) {
    float x_copy[NUMERICS_BLOCK], cast_copy[NUMERICS_BLOCK];
    size_t n = min_size(NUMERICS_BLOCK, end - at);
    x += at;
    if (cast) cast += at;
    if (n < NUMERICS_BLOCK) {
        memset(x_copy, 0, sizeof x_copy);
        memset(cast_copy, 0, sizeof cast_copy);
        memcpy(x_copy, x, n * sizeof *x);
        if (cast) memcpy(cast_copy, cast, n * sizeof *cast);
        x = x_copy;
        if (cast) cast = cast_copy;
    }
    NumericsSums sums = cast ? numerics_cast_block(x, cast, decode, f->mantissa_bits)
                             : numerics_stored_block(x, f->mantissa_bits, (uint32_t)(128 - f->bias));
    sums.elements = n;
    return sums;
}

// All of a tensor; with `cast` what it became, else as stored in `format`.
static inline NumericsSums numerics_sums(const float *x, const float *cast, size_t n, FormatId format, float decode) {
    size_t group_elems = round_up(max_size(ceil_div(n, NUMERICS_GROUPS), 1), NUMERICS_BLOCK);
    size_t groups = ceil_div(n, group_elems);
    NumericsSums partial[NUMERICS_GROUPS], total = {0, 0, 0, 0, 0, 0};
    const Format *f = format_info(format);
#pragma omp parallel for schedule(static) if (n >= QUANT_SERIAL)
    for (size_t group = 0; group < groups; group++) {
        NumericsSums sums = {0, 0, 0, 0, 0, 0};
        size_t end = min_size((group + 1) * group_elems, n);
        for (size_t i = group * group_elems; i < end; i += NUMERICS_BLOCK) {
            NumericsSums block = numerics_block(x, cast, i, end, f, decode);
            numerics_add(&sums, &block);
        }
        partial[group] = sums;
    }
    for (size_t group = 0; group < groups; group++) numerics_add(&total, &partial[group]);
    return total;
}

// The entry of a tensor, made on first sight.
static inline NumericsEntry *numerics_entry(NumericsReport *r, NumericsKind kind, const char *tensor, size_t layer) {
    for (size_t i = 0; i < r->count; i++) {
        NumericsEntry *e = &r->entries[(r->next + i) % r->count];
        if (e->kind != kind || e->layer != layer || strcmp(e->tensor, tensor) != 0) continue;
        r->next = (r->next + i + 1) % r->count;
        return e;
    }
    if (r->count == r->capacity) {
        size_t capacity = max_size(256, 2 * r->capacity);
        NumericsEntry *entries = (NumericsEntry *)checked_calloc(capacity, sizeof *entries, "the numerics report");
        if (r->count) memcpy(entries, r->entries, r->count * sizeof *entries);
        free(r->entries);
        r->entries = entries;
        r->capacity = capacity;
    }
    NumericsEntry *e = &r->entries[r->count++];
    memset(e, 0, sizeof *e);
    e->kind = kind;
    e->layer = layer;
    snprintf(e->tensor, sizeof e->tensor, "%s", tensor);
    r->next = 0;
    return e;
}

// Tensors with zeros that fp32 would have, too: where GELU is flat, and where two stored terms cancel.
static inline int numerics_has_genuine_zeros(const char *tensor) {
    static const char *const names[] = {"fch_gelu", "dfch", "encoded", "residual2", "residual3", "dencoded", "dresidual2",
                                        "dresidual3"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(tensor, names[i]) == 0) return 1;
    return 0;
}

// A stored activation, gradient or the logits: x (n) as kernels left it in `format`. genuine_zeros: elements that are
// zero in any format.
static inline void numerics_stored(NumericsReport *r, NumericsKind kind, const char *tensor, size_t layer, FormatId format,
                                   const float *x, size_t n, size_t genuine_zeros) {
    NumericsEntry *e = numerics_entry(r, kind, tensor, layer);
    NumericsSums sums = numerics_sums(x, NULL, n, format, 1.0f);
    e->format = format;
    if (format == FORMAT_FP16 && kind != NUMERICS_LOGITS && !numerics_has_genuine_zeros(tensor)) {
        uint64_t zeros = n - sums.nonzero;
        zeros -= zeros < genuine_zeros ? zeros : genuine_zeros;
        e->underflow += zeros;
        sums.nonzero += zeros;  // what was stored as zero was something
        e->has_underflow = 1;
    }
    e->has_bits = format != FORMAT_FP32;
    numerics_add(&e->sums, &sums);
}

// An operand: in (n) was cast to values (n). `delayed` or NULL: history of its scale, `length` amaxes, [0] this step's.
static inline void numerics_operand(NumericsReport *r, const char *tensor, const char *role, size_t layer,
                                    const QuantSpec *spec, const QuantResult *result, const float *in, const float *values,
                                    size_t n, const float *history, int length) {
    NumericsEntry *e = numerics_entry(r, NUMERICS_OPERAND, tensor, layer);
    NumericsSums sums = {n, 0, 0, 0, 0, 0};
    // After the Hadamard transform there is nothing to compare element by element
    if (!spec->hadamard) sums = numerics_sums(in, values, n, spec->format, result->nv ? 1.0f / result->scale : result->decode);
    sums.nonzero = result->nonzero;
    sums.nonfinite = result->nonfinite;
    sums.amax_bits = bits_of_float(result->amax);
    e->role = role;
    e->format = spec->format;
    e->scaling = spec->scaling;
    e->has_underflow = 1;
    e->has_bits = !spec->hadamard;
    e->underflow += result->underflow;
    e->saturated += result->saturated;
    if (e->scale_max == 0.0f || result->scale_min < e->scale_min) e->scale_min = result->scale_min;
    if (result->scale_max > e->scale_max) e->scale_max = result->scale_max;
    e->history_length = history ? length : 0;
    e->history_amax = 0.0f;
    for (int i = 1; history && i < length; i++) e->history_amax = fmaxf(e->history_amax, history[i]);
    numerics_add(&e->sums, &sums);
}

// The same, as linear layers call it (LinearContext.observe): `report` is the NumericsReport.
static inline void numerics_cast(void *report, const Linear *l, QuantRole role, QuantGemm gemm, const QuantSpec *spec,
                                 const QuantResult *result, const float *in, const float *values, size_t n) {
    static const char *const roles[] = {"x", "w", "dy"}, *const gemms[] = {"fprop", "dgrad", "wgrad"};
    const DelayedScale *delayed = spec->scaling == SCALING_DELAYED ? &l->delayed[role] : NULL;
    char name[NUMERICS_NAME_BYTES];
    snprintf(name, sizeof name, "%s.%s.%s", linear_kind_name(l->kind), roles[role], gemms[gemm]);
    numerics_operand((NumericsReport *)report, name, roles[role], l->layer, spec, result, in, values, n,
                     delayed ? delayed->history : NULL, delayed ? delayed->length : 0);
}

// A parameter tensor's layer: weight (n) the authoritative values, working (n) what kernels read (the same where there is
// one copy).
static inline void numerics_weight(NumericsReport *r, const char *tensor, size_t layer, FormatId format,
                                   const UpdateCounts *updates, const float *weight, const float *working, size_t n) {
    NumericsEntry *e = numerics_entry(r, NUMERICS_WEIGHT, tensor, layer);
    NumericsSums sums = numerics_sums(weight, NULL, n, FORMAT_FP32, 1.0f);
    e->format = format;
    uint64_t underflow = 0;
    e->has_underflow = weight != working;
#pragma omp parallel for schedule(static) reduction(+ : underflow) if (n >= QUANT_SERIAL)
    for (size_t i = 0; i < (weight != working ? n : 0); i++) underflow += weight[i] != 0.0f && working[i] == 0.0f;
    e->underflow += underflow;
    numerics_add(&e->sums, &sums);
    e->updates += updates->updates;
    e->lost += updates->lost;
    e->lost_stored += updates->lost_stored;
    e->v_frozen += updates->v_frozen;
    e->v_elements += updates->v_elements;
}

// ----------------------------------------------------------------------------------------------------------------
// Lines

static inline double numerics_share(uint64_t part, uint64_t whole) { return whole ? (double)part / (double)whole : 0.0; }
static inline float numerics_amax(const NumericsEntry *e) { return float_of_bits(e->sums.amax_bits); }
static inline double numerics_rms(const NumericsEntry *e) {
    uint64_t finite = e->sums.elements - e->sums.nonfinite;
    return finite ? sqrt(e->sums.squares / (double)finite) : 0.0;
}
static inline double numerics_underflow(const NumericsEntry *e) { return numerics_share(e->underflow, e->sums.nonzero); }
static inline double numerics_saturated(const NumericsEntry *e) { return numerics_share(e->saturated, e->sums.elements); }

// Effective bits.
static inline double numerics_bits(const NumericsEntry *e) { return numerics_share(e->sums.bits, e->sums.nonzero); }

static inline const char *numerics_kind_name(NumericsKind kind) {
    static const char *const names[] = {"act", "grad", "logits", "operand", "weight"};
    return names[kind];
}

typedef struct {
    char text[1024];
    size_t used;
} NumericsLine;

static inline void numerics_put(NumericsLine *line, const char *fmt, ...) PRINTF_LIKE(2, 3);
static inline void numerics_put(NumericsLine *line, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    int bytes = vsnprintf(line->text + line->used, sizeof line->text - line->used, fmt, args);
    va_end(args);
    line->used = min_size(line->used + (size_t)bytes, sizeof line->text - 1);
}

static inline void numerics_put_number(NumericsLine *line, const char *key, double value) {
    if (isfinite(value)) numerics_put(line, ",\"%s\":%.6g", key, value);
    else numerics_put(line, ",\"%s\":null", key);
}

// The entry as one JSON object with its newline.
static inline void numerics_format(NumericsLine *line, const NumericsEntry *e, uint64_t step) {
    line->used = 0;
    numerics_put(line, "{\"step\":%llu,\"kind\":\"%s\",\"tensor\":\"%s\"", (unsigned long long)step,
                 numerics_kind_name(e->kind), e->tensor);
    if (e->role) numerics_put(line, ",\"role\":\"%s\"", e->role);
    if (e->layer != NUMERICS_NO_LAYER) numerics_put(line, ",\"layer\":%zu", e->layer);
    numerics_put(line, ",\"format\":\"%s\"", format_name(e->format));
    if (e->scaling != SCALING_NONE) numerics_put(line, ",\"scaling\":\"%s\"", scaling_name(e->scaling));
    numerics_put(line, ",\"elements\":%llu", (unsigned long long)e->sums.elements);
    numerics_put_number(line, "amax", (double)numerics_amax(e));
    if (e->sums.squares > 0) numerics_put_number(line, "rms", numerics_rms(e));
    if (e->kind == NUMERICS_OPERAND) {
        numerics_put_number(line, "scale_min", (double)e->scale_min);
        numerics_put_number(line, "scale_max", (double)e->scale_max);
    }
    numerics_put(line, ",\"nonfinite\":%llu", (unsigned long long)e->sums.nonfinite);
    if (e->has_underflow) numerics_put_number(line, "underflow_frac", numerics_underflow(e));
    if (e->kind == NUMERICS_OPERAND) numerics_put_number(line, "saturated_frac", numerics_saturated(e));
    if (e->has_bits && e->sums.nonzero) numerics_put_number(line, "bits", numerics_bits(e));
    if (e->kind == NUMERICS_WEIGHT) {
        numerics_put(line, ",\"updates\":%llu", (unsigned long long)e->updates);
        numerics_put_number(line, "lost_frac", numerics_share(e->lost, e->updates));
        numerics_put_number(line, "lost_stored_frac", numerics_share(e->lost_stored, e->updates));
    }
    if (e->v_elements) numerics_put_number(line, "v_frozen_frac", numerics_share(e->v_frozen, e->v_elements));
    numerics_put(line, "}\n");
}

static inline void numerics_write(NumericsReport *r, const NumericsLine *line) {
    if (r->log.file && fwrite(line->text, 1, line->used, r->log.file) != line->used)
        die("cannot write to '%s': %s", r->log.path, strerror(errno));
}

// ----------------------------------------------------------------------------------------------------------------
// Warnings

typedef struct {
    const char *cause, *change;
} NumericsAdvice;

static inline NumericsAdvice numerics_advice(NumericsRule rule) {
    static const NumericsAdvice advice[RULE_COUNT] = {
        {"an overflow, or a broken forward pass", "a lower --lr or a longer --warmup; in fp16 look at the loss scale"},
        {"the loss scale is above what the gradients bear, or activations exceed 65504",
         "a lower --loss-scale-start; a lower --lr; bf16"},
        {"gradients were clipped before they were unscaled", "unscale first: this is a fault of the program"},
        {"the loss scale is too small for gradients of this size", "--loss-scale dynamic, or a larger --loss-scale"},
        {"updates below half a spacing of a bf16 weight round away, and no master remembers them",
         "make MASTER=fp32, kahan or stochastic"},
        {"1 - beta2 is below bf16's half spacing: v cannot follow, the steps shrink or grow unseen",
         "make MOMENTS=bf16sr or fp32, or --beta2 0.95"},
        {"the scale is older than the values: the amax jumped", "a shorter --fp8-history, --fp8-margin 1, or PRECISION=fp8-current"},
        {"activations or gradients grew faster than the history of their amax", "--fp8-margin 1, or PRECISION=fp8-current"},
        {"a large amax in the history, or nothing recorded since", "a shorter --fp8-history"},
        {"values too far below the scale's largest: outliers", "PRECISION=fp8-block or mxfp8; exclude the layer with --fp8-exclude"},
        {"outliers take the format's range", "PRECISION=fp8-block or mxfp8; exclude the layer with --fp8-exclude"},
        {"logits drift; bf16 steps by 0.5 there, above 256 by 2", "a lower --lr, or more --weight-decay"},
        {"outliers that grow over a long run", "watch the loss against a bf16 run; PRECISION=fp8-block or mxfp8"},
    };
    return advice[rule];
}

// Gives the warning of `rule` unless it was given lately: on stderr, and as a line of its own.
static inline void numerics_warn(NumericsReport *r, NumericsRule rule, const char *fmt, ...) PRINTF_LIKE(3, 4);
static inline void numerics_warn(NumericsReport *r, NumericsRule rule, const char *fmt, ...) {
    char symptom[256];
    NumericsLine line;
    NumericsAdvice advice = numerics_advice(rule);
    va_list args;
    if (r->reports < r->warn_at[rule]) return;
    r->wait[rule] = r->wait[rule] ? 2 * r->wait[rule] : 1;
    r->warn_at[rule] = r->reports + r->wait[rule] + 1;
    r->warnings++;
    va_start(args, fmt);
    vsnprintf(symptom, sizeof symptom, fmt, args);
    va_end(args);
    if (!r->quiet)
        warn("step %llu: %s\n  likely cause: %s\n  try: %s", (unsigned long long)r->step, symptom, advice.cause, advice.change);
    line.used = 0;
    numerics_put(&line, "{\"step\":%llu,\"rule\":%d,\"warning\":\"%s. Likely cause: %s. Try: %s.\"}\n",
                 (unsigned long long)r->step, (int)rule, symptom, advice.cause, advice.change);
    numerics_write(r, &line);
}

// "dqkv of layer 3"
static inline const char *numerics_where(char text[64], const NumericsEntry *e) {
    if (e->layer == NUMERICS_NO_LAYER) snprintf(text, 64, "%s", e->tensor);
    else snprintf(text, 64, "%s of layer %zu", e->tensor, e->layer);
    return text;
}

// The entry with the largest value above `threshold`, by a rule's measure; NULL: none.
static inline const NumericsEntry *numerics_worst(const NumericsReport *r, double (*measure)(const NumericsEntry *),
                                                  double *value) {
    const NumericsEntry *worst = NULL;
    *value = 0;
    for (size_t i = 0; i < r->count; i++) {
        double here = r->entries[i].sums.elements ? measure(&r->entries[i]) : 0.0;
        if (here > 1.0 && (!worst || here > *value)) {
            worst = &r->entries[i];
            *value = here;
        }
    }
    return worst;
}

// Measures: how many times its threshold a tensor is at. Thresholds depend on the format where they must: a block scale
// of fp4 is itself rounded, so that some elements saturate and some vanish in a healthy run.
static inline double numerics_measure_nonfinite(const NumericsEntry *e) { return 2.0 * (double)e->sums.nonfinite; }
static inline double numerics_measure_grad_underflow(const NumericsEntry *e) {
    return e->kind == NUMERICS_GRAD ? numerics_underflow(e) / 0.01 : 0.0;
}
static inline double numerics_measure_underflow(const NumericsEntry *e) {
    return e->kind == NUMERICS_OPERAND ? numerics_underflow(e) / (e->scaling == SCALING_NV ? 0.15 : 0.01) : 0.0;
}
static inline double numerics_measure_saturated(const NumericsEntry *e) {
    return e->kind == NUMERICS_OPERAND ? numerics_saturated(e) / (e->scaling == SCALING_NV ? 0.08 : 1e-3) : 0.0;
}
static inline double numerics_measure_outliers(const NumericsEntry *e) {
    int whole = e->scaling == SCALING_TENSOR || e->scaling == SCALING_DELAYED;
    double rms = numerics_rms(e);
    return e->kind == NUMERICS_OPERAND && whole && rms > 0 ? (double)numerics_amax(e) / rms / 1e3 : 0.0;
}
static inline double numerics_measure_jump(const NumericsEntry *e) {
    return e->history_amax > 0 ? (double)(numerics_amax(e) / e->history_amax) / 2.0 : 0.0;
}
static inline double numerics_measure_v(const NumericsEntry *e) { return numerics_share(e->v_frozen, e->v_elements) / 0.2; }
static inline double numerics_measure_logits(const NumericsEntry *e) {
    return e->kind == NUMERICS_LOGITS && e->format != FORMAT_FP32 ? (double)numerics_amax(e) / 100.0 : 0.0;
}

// A delayed scale that has stood for a whole history while the amax moved by a factor of 2.
static inline void numerics_rule_still(NumericsReport *r, NumericsEntry *e) {
    float amax = numerics_amax(e);
    char where[64];
    if (e->history_length == 0 || e->sums.elements == 0 || amax == 0.0f) return;
    if (e->scale_max != e->still_scale) {
        e->still_scale = e->scale_max;
        e->still_amax = amax;
        e->still_since = r->step;
        return;
    }
    float ratio = amax > e->still_amax ? amax / e->still_amax : e->still_amax / amax;
    if (r->step - e->still_since > (uint64_t)e->history_length && ratio >= 2.0f)
        numerics_warn(r, RULE_SCALE_STILL, "the scale of %s has been %g for %llu steps while the amax changed by a factor of %.1f",
                      numerics_where(where, e), (double)e->scale_max, (unsigned long long)(r->step - e->still_since),
                      (double)ratio);
}

static inline void numerics_rule_lost(NumericsReport *r) {
    uint64_t updates = 0, lost = 0;
    for (size_t i = 0; i < r->count; i++) updates += r->entries[i].updates, lost += r->entries[i].lost_stored;
    if (r->master_rule == MASTER_RULE_NEAREST && numerics_share(lost, updates) > 0.3)
        numerics_warn(r, RULE_LOST_UPDATES, "%.0f%% of the updates round away", 100 * numerics_share(lost, updates));
}

// The largest input of the MLP's second layer: doubling over 1000 steps is how late instabilities begin.
static inline void numerics_rule_trend(NumericsReport *r) {
    float amax = 0;
    for (size_t i = 0; i < r->count; i++)
        if (strcmp(r->entries[i].tensor, "fch_gelu") == 0) amax = fmaxf(amax, numerics_amax(&r->entries[i]));
    if (amax == 0.0f || (r->trend_amax > 0 && r->step < r->trend_step + NUMERICS_TREND_STEPS)) return;
    if (r->trend_amax > 0 && amax >= 2.0f * r->trend_amax)
        numerics_warn(r, RULE_TREND, "the largest input of fcproj grew from %.3g at step %llu to %.3g", (double)r->trend_amax,
                      (unsigned long long)r->trend_step, (double)amax);
    r->trend_step = r->step;
    r->trend_amax = amax;
}

static inline void numerics_rules(NumericsReport *r) {
    const NumericsEntry *e;
    char where[64];
    double times;
    if ((e = numerics_worst(r, numerics_measure_nonfinite, &times)) != NULL)
        numerics_warn(r, RULE_NONFINITE, "%llu numbers of %s are not finite", (unsigned long long)e->sums.nonfinite,
                      numerics_where(where, e));
    if ((e = numerics_worst(r, numerics_measure_grad_underflow, &times)) != NULL)
        numerics_warn(r, RULE_GRAD_UNDERFLOW, "%.1f%% of the gradient %s became zero in %s", times, numerics_where(where, e),
                      format_name(e->format));
    if ((e = numerics_worst(r, numerics_measure_saturated, &times)) != NULL)
        numerics_warn(r, RULE_SATURATED, "%.2f%% of %s saturate in %s", 100 * numerics_saturated(e), numerics_where(where, e),
                      format_name(e->format));
    if ((e = numerics_worst(r, numerics_measure_jump, &times)) != NULL)
        numerics_warn(r, RULE_AMAX_JUMP, "the amax of %s jumped to %.1f times its history", numerics_where(where, e), 2 * times);
    if ((e = numerics_worst(r, numerics_measure_underflow, &times)) != NULL)
        numerics_warn(r, RULE_UNDERFLOW, "%.1f%% of %s became zero in %s", 100 * numerics_underflow(e), numerics_where(where, e),
                      format_name(e->format));
    if ((e = numerics_worst(r, numerics_measure_outliers, &times)) != NULL)
        numerics_warn(r, RULE_OUTLIERS, "the largest of %s is %.0f times their root mean square", numerics_where(where, e),
                      1e3 * times);
    if ((e = numerics_worst(r, numerics_measure_v, &times)) != NULL)
        numerics_warn(r, RULE_V_FROZEN, "%.0f%% of AdamW's v of %s does not move", 20 * times, numerics_where(where, e));
    if ((e = numerics_worst(r, numerics_measure_logits, &times)) != NULL)
        numerics_warn(r, RULE_LOGITS, "the largest logit is %.0f", 100 * times);
    numerics_rule_lost(r);
    numerics_rule_trend(r);
    for (size_t i = 0; i < r->count; i++) numerics_rule_still(r, &r->entries[i]);
}

// ----------------------------------------------------------------------------------------------------------------
// A run

// Starts a report file at `path` (NULL: none), or continues the one of a run resumed after `resumed_step`, whose later
// lines go. With every 0 only what a resumed run would contradict is removed.
static inline void numerics_open(NumericsReport *r, const char *path, uint64_t every, MasterRule master_rule, int resumed,
                                 uint64_t resumed_step) {
    memset(r, 0, sizeof *r);
    r->every = every;
    r->master_rule = master_rule;
    if (!path) return;
    if (resumed && (every || access(path, F_OK) == 0)) run_log_resume(&r->log, path, resumed_step);
    else if (every) run_log_open(&r->log, path);
    else if (!resumed) unlink(path);
    if (!every && r->log.file) run_log_close(&r->log);
}

static inline void numerics_close(NumericsReport *r) {
    if (r->log.file) run_log_close(&r->log);
    free(r->entries);
    r->entries = NULL;
    r->count = r->capacity = 0;
}

// Whether the step that makes `step` finished ones is to be reported; the first and those that `every` divides are.
static inline int numerics_due(uint64_t every, uint64_t step) {
    return every != 0 && (step == 1 || step % every == 0);
}

static inline void numerics_begin(NumericsReport *r, uint64_t step) {
    NumericsSums empty = {0, 0, 0, 0, 0, 0};
    r->step = step;
    for (size_t i = 0; i < r->count; i++) {
        NumericsEntry *e = &r->entries[i];
        e->sums = empty;
        e->underflow = e->saturated = 0;
        e->scale_min = e->scale_max = e->history_amax = 0.0f;
        e->updates = e->lost = e->lost_stored = e->v_frozen = e->v_elements = 0;
    }
}

// Writes what was seen since numerics_begin(), then what there is to warn of.
static inline void numerics_end(NumericsReport *r) {
    NumericsLine line;
    for (size_t i = 0; i < r->count; i++) {
        if (r->entries[i].sums.elements == 0) continue;
        numerics_format(&line, &r->entries[i], r->step);
        numerics_write(r, &line);
    }
    numerics_rules(r);
    r->reports++;
    if (r->log.file && fflush(r->log.file) != 0) die("cannot write to '%s': %s", r->log.path, strerror(errno));
}

// Every step, reported or not, where reports are on: what only shows over steps. norm: of the unscaled gradients, before
// clipping; skips: of the whole run, and in a row.
static inline void numerics_step(NumericsReport *r, uint64_t step, double norm, double loss_scale, uint64_t skips,
                                 uint64_t skips_in_row) {
    if (r->every == 0) return;
    r->step = step;
    int about = loss_scale >= 1024 && norm / loss_scale > 0.125 && norm / loss_scale < 8;
    r->scaled_norm_steps = about ? r->scaled_norm_steps + 1 : 0;
    if (r->scaled_norm_steps >= 10)
        numerics_warn(r, RULE_CLIP_SCALED, "the gradient norm has been about the loss scale for %llu steps: %.0f",
                      (unsigned long long)r->scaled_norm_steps, norm);
    if (skips_in_row >= 5)
        numerics_warn(r, RULE_SKIPS, "%llu steps in a row were skipped", (unsigned long long)skips_in_row);
    if (step < r->window_step + 1000) return;
    if (r->window_step && skips - r->window_skips > 10)
        numerics_warn(r, RULE_SKIPS, "%llu of the last %llu steps were skipped", (unsigned long long)(skips - r->window_skips),
                      (unsigned long long)(step - r->window_step));
    r->window_step = step;
    r->window_skips = skips;
}

#endif
