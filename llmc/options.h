// options.h: the command line. One table row an option; the struct, the parser, --help, options.json and the
// comparison at resume are all made from it and cannot drift apart.
//
//     Options options;
//     options_parse(&options, argc, argv, ranks);             // --help and --version print and exit 0
//     if (options.dry_run) ...   if (options_given(&options, OPTION_steps)) ...
//
// --name value, --name=value, --flag, --no-flag (also --flag=0, --flag 1), and llm.c's short names, of which a flag
// takes a 0 or 1 too (-y 1). The last of several wins. A wrong option or value ends the program with exit code 2
// before anything else has happened. One table serves every build: an option without effect in this build is refused
// (precision_options.h).
#ifndef LLMC_OPTIONS_H
#define LLMC_OPTIONS_H

#include <math.h>

#include "config.h"
#include "json.h"
#include "precision.h"

#define TRAIN_GPT_VERSION "0.1"

// Whole numbers end at 2^53, so that each is exact in a double and in every JSON reader.
#define OPTION_MAX_COUNT 9007199254740992.0
#define HELLASWAG_FILE "data/hellaswag_val.bin"

// What a value may be: lowest and highest (both allowed), or words.
#define ANY 0, 0, NULL
#define RANGE(lo, hi) lo, hi, NULL
#define CHOICES(words) 0, 0, words

// THIS_CALL: about one call of the program, neither recorded nor compared. BESIDE: changes what is printed, measured or
// kept, but no weight. WEIGHTS: another value trains another model, so a resumed run is not the one that was begun.
//
// clang-format off
//    group       name, llm.c's name          type   field               default, limits, effect, value's name, help
#define OPTIONS(X)                                                                                                     \
    X(DATA,       "train", "i",               TEXT,  train,              "data/self_train_*.bin", ANY, WEIGHTS,        \
      "GLOB", "token files to train on")                                                                               \
    X(DATA,       "val", "j",                 TEXT,  val,                "data/self_val_*.bin", ANY, BESIDE,           \
      "GLOB", "token files to validate on; '' is none")                                                                \
    X(DATA,       "tokenizer", NULL,          TEXT,  tokenizer,          "byte", ANY, BESIDE,                          \
      "PATH", "for samples and --prompt: byte, or a vocabulary's path")                                                \
    X(MODEL,      "model", NULL,              TEXT,  model,              "", ANY, WEIGHTS,                             \
      "NAME", "gpt2, d12, gpt3:125M ...: sets the four below unless given")                                            \
    X(MODEL,      "layers", NULL,             COUNT, layers,             4, RANGE(1, 100000), WEIGHTS,                 \
      "L", "transformer blocks")                                                                                       \
    X(MODEL,      "heads", NULL,              COUNT, heads,              4, RANGE(1, 100000), WEIGHTS,                 \
      "NH", "attention heads; divides --channels")                                                                     \
    X(MODEL,      "channels", NULL,           COUNT, channels,           128, RANGE(1, 1000000), WEIGHTS,              \
      "C", "width of the residual stream")                                                                             \
    X(MODEL,      "max-seq", NULL,            COUNT, max_seq,            0, RANGE(0, 1073741824), WEIGHTS,             \
      "T", "positions the model has; 0: as many as --seq")                                                             \
    X(MODEL,      "vocab", NULL,              COUNT, vocab,              0, RANGE(0, 2147483520), WEIGHTS,             \
      "V", "vocabulary; 0: as the token files say, or 50257")                                                          \
    X(MODEL,      "init", "e",                TEXT,  init,               "", ANY, WEIGHTS,                             \
      "PATH", "start from these weights: a safetensors folder or llm.c .bin")                                          \
    X(MODEL,      "seed", NULL,               COUNT, seed,               42, RANGE(0, OPTION_MAX_COUNT), WEIGHTS,      \
      "N", "of the initial weights and the order of the data")                                                         \
    X(BATCH,      "batch", "b",               COUNT, batch,              12, RANGE(1, 1073741824), WEIGHTS,            \
      "B", "sequences computed at once (a micro-batch)")                                                               \
    X(BATCH,      "seq", "t",                 COUNT, seq,                64, RANGE(1, 1073741824), WEIGHTS,            \
      "T", "tokens a sequence")                                                                                        \
    X(BATCH,      "total-batch", "d",         COUNT, total_batch,        0, RANGE(0, OPTION_MAX_COUNT), WEIGHTS,       \
      "TOKENS", "tokens a step, over micro-batches and ranks; 0: one of each")                                           \
    X(BATCH,      "steps", "x",               COUNT, steps,              0, RANGE(0, OPTION_MAX_COUNT), WEIGHTS,       \
      "N", "optimizer steps; 0: as --epochs says")                                                                     \
    X(BATCH,      "epochs", NULL,             REAL,  epochs,             1, RANGE(1e-9, 1e9), WEIGHTS,                 \
      "X", "passes over the training data")                                                                            \
    X(OPTIMIZER,  "lr", "l",                  REAL,  lr,                 1e-3, RANGE(0, 1e6), WEIGHTS,                 \
      "X", "peak learning rate")                                                                                       \
    X(OPTIMIZER,  "schedule", "k",            TEXT,  schedule,           "cosine",                                     \
      CHOICES("cosine|linear|constant|wsd"), WEIGHTS, "NAME", "how the rate falls after the warm-up")                  \
    X(OPTIMIZER,  "warmup", "u",              COUNT, warmup,             50, RANGE(0, OPTION_MAX_COUNT), WEIGHTS,      \
      "STEPS", "steps over which the rate rises to its peak")                                                          \
    X(OPTIMIZER,  "final-lr-fraction", "q",   REAL,  final_lr_fraction,  0.1, RANGE(0, 1), WEIGHTS,                    \
      "X", "the last step's rate as a share of the peak")                                                              \
    X(OPTIMIZER,  "decay-fraction", NULL,     REAL,  decay_fraction,     0.2, RANGE(0, 1), WEIGHTS,                    \
      "X", "wsd: the share of all steps in which the rate falls")                                                      \
    X(OPTIMIZER,  "weight-decay", "c",        REAL,  weight_decay,       0.1, RANGE(0, 1e6), WEIGHTS,                  \
      "X", "AdamW's, on matrices only")                                                                                \
    X(OPTIMIZER,  "beta1", NULL,              REAL,  beta1,              0.9, RANGE(0, 0.9999999), WEIGHTS,            \
      "X", "AdamW's first moment")                                                                                     \
    X(OPTIMIZER,  "beta2", NULL,              REAL,  beta2,              0.95, RANGE(0, 0.9999999), WEIGHTS,           \
      "X", "AdamW's second moment")                                                                                    \
    X(OPTIMIZER,  "eps", NULL,                REAL,  eps,                1e-8, RANGE(1e-30, 1), WEIGHTS,               \
      "X", "AdamW's")                                                                                                  \
    X(OPTIMIZER,  "grad-clip", NULL,          REAL,  grad_clip,          1.0, RANGE(0, 1e30), WEIGHTS,                 \
      "NORM", "scale gradients down to this norm; 0: never")                                                           \
    X(OPTIMIZER,  "skip-loss-z", "sl",        REAL,  skip_loss_z,        0, RANGE(0, 1e6), WEIGHTS,                    \
      "Z", "skip a step whose loss is so many deviations high; 0: never")                                              \
    X(OPTIMIZER,  "skip-grad-z", "sg",        REAL,  skip_grad_z,        0, RANGE(0, 1e6), WEIGHTS,                    \
      "Z", "the same for the gradient norm")                                                                           \
    X(PRECISION,  "loss-scale", NULL,         TEXT,  loss_scale,         "dynamic", ANY, WEIGHTS,                      \
      "S", "fp16: dynamic, or a fixed power of two")                                                                   \
    X(PRECISION,  "loss-scale-start", NULL,   REAL,  loss_scale_start,   65536, RANGE(1e-30, 1e30), WEIGHTS,           \
      "S", "fp16: what dynamic scaling starts with")                                                                   \
    X(PRECISION,  "loss-scale-interval", NULL, COUNT, loss_scale_interval, 2000, RANGE(1, OPTION_MAX_COUNT), WEIGHTS,  \
      "STEPS", "fp16: good steps in a row before the scale doubles")                                                   \
    X(PRECISION,  "loss-scale-min", NULL,     REAL,  loss_scale_min,     1, RANGE(1e-30, 1e30), WEIGHTS,               \
      "S", "fp16: dynamic scaling's floor")                                                                            \
    X(PRECISION,  "loss-scale-max", NULL,     REAL,  loss_scale_max,     16777216, RANGE(1e-30, 1e30), WEIGHTS,        \
      "S", "fp16: dynamic scaling's ceiling")                                                                          \
    X(PRECISION,  "max-skips", NULL,          COUNT, max_skips,          50, RANGE(1, OPTION_MAX_COUNT), BESIDE,       \
      "N", "the run ends after so many skipped steps in a row")                                                        \
    X(PRECISION,  "fp8-format", NULL,         TEXT,  fp8_format,         "recipe",                                     \
      CHOICES("recipe|e4m3|hybrid"), WEIGHTS, "NAME", "fp8: gradients in e4m3, or in e5m2 (hybrid)")                   \
    X(PRECISION,  "fp8-exclude", NULL,        TEXT,  fp8_exclude,        "", ANY, WEIGHTS,                             \
      "A,B", "fp8, fp4: keep layers high whose name (h.0.fc) holds one of these")                                      \
    X(PRECISION,  "fp8-hp-first", NULL,       COUNT, fp8_hp_first,       0, RANGE(0, 100000), WEIGHTS,                 \
      "N", "fp8, fp4: keep the first N blocks high (nvfp4 unless given: 1)")                                           \
    X(PRECISION,  "fp8-hp-last", NULL,        COUNT, fp8_hp_last,        0, RANGE(0, 100000), WEIGHTS,                 \
      "N", "fp8, fp4: and the last N (nvfp4 unless given: 15 %)")                                                      \
    X(PRECISION,  "fp8-pow2", NULL,           FLAG,  fp8_pow2,           0, ANY, WEIGHTS,                              \
      NULL, "fp8-current: scales are powers of two")                                                                   \
    X(PRECISION,  "fp8-history", NULL,        COUNT, fp8_history,        16, RANGE(1, 65536), WEIGHTS,                 \
      "STEPS", "fp8-delayed: steps a scale looks back on")                                                             \
    X(PRECISION,  "fp8-margin", NULL,         COUNT, fp8_margin,         0, RANGE(0, 16), WEIGHTS,                     \
      "N", "fp8-delayed: leave a factor 2^N free above the history")                                                   \
    X(PRECISION,  "fp8-amax", NULL,           TEXT,  fp8_amax,           "max",                                        \
      CHOICES("max|most-recent"), WEIGHTS, "HOW", "fp8-delayed: what of the history decides")                          \
    X(PRECISION,  "fp8-first-step", NULL,     TEXT,  fp8_first_step,     "current",                                    \
      CHOICES("current|te"), WEIGHTS, "HOW", "fp8-delayed: scale by the tensor itself, or 1")                          \
    X(PRECISION,  "fp8-wgrad-hp", NULL,       FLAG,  fp8_wgrad_hp,       0, ANY, WEIGHTS,                              \
      NULL, "fp8-row: weight gradients in bf16")                                                                       \
    X(PRECISION,  "block-scale", NULL,        TEXT,  block_scale,        "pow2",                                       \
      CHOICES("pow2|fp32"), WEIGHTS, "HOW", "fp8-block: scales are powers of two, or any")                             \
    X(PRECISION,  "mx-scale", NULL,           TEXT,  mx_scale,           "up",                                         \
      CHOICES("up|ocp"), WEIGHTS, "HOW", "mxfp8: scales rounded up, or OCP's, which saturates")                        \
    X(PRECISION,  "mx-square-weights", NULL,  FLAG,  mx_square_weights,  0, ANY, WEIGHTS,                              \
      NULL, "mxfp8: one scale for 32x32 of a weight")                                                                  \
    X(PRECISION,  "fp4-plain", NULL,          FLAG,  fp4_plain,          0, ANY, WEIGHTS,                              \
      NULL, "nvfp4: nearest rounding, 1x16 weights, no Hadamard transform")                                            \
    X(PRECISION,  "fp4-switch-step", NULL,    COUNT, fp4_switch_step,    0, RANGE(0, 4294967295.0), WEIGHTS,           \
      "STEP", "nvfp4: forward products in bf16 from this step on; 0: never")                                           \
    X(PRECISION,  "acc", NULL,                TEXT,  acc,                "fp32",                                       \
      CHOICES("fp32|exact|h14"), WEIGHTS, "MODEL", "fp8, fp4: how products add up; h14: as Hopper (slow)")             \
    X(PRECISION,  "promote", NULL,            TEXT,  promote,            "recipe",                                     \
      CHOICES("recipe|128|0"), WEIGHTS, "N", "h14: move sums to fp32 every 128 products, or never")                    \
    X(PRECISION,  "tf32-round", NULL,         TEXT,  tf32_round,         "rna",                                        \
      CHOICES("rna|rz"), WEIGHTS, "HOW", "tf32: products read operands to nearest, or cut")                            \
    X(PRECISION,  "gelu-fusion", "ge",        COUNT, gelu_fusion,        0, RANGE(0, 2), WEIGHTS,                      \
      "LEVEL", "bf16, fp16: GELU within products: 1 forward, 2 backward too")                                          \
    X(EVALUATION, "val-every", "v",           COUNT, val_every,          100, RANGE(0, OPTION_MAX_COUNT), BESIDE,      \
      "STEPS", "validate this often, and at the end; 0: never")                                                        \
    X(EVALUATION, "val-steps", "m",           COUNT, val_steps,          20, RANGE(0, OPTION_MAX_COUNT), BESIDE,       \
      "N", "validate on at most N x 16 sequences; 0: on all there are")                                                \
    X(EVALUATION, "hellaswag", NULL,          TEXT,  hellaswag,          "", ANY, BESIDE,                              \
      "FILE", "questions to ask when validating (data/README.md); '' is none")                                         \
    X(EVALUATION, "sample-every", "s",        COUNT, sample_every,       500, RANGE(0, OPTION_MAX_COUNT), BESIDE,      \
      "STEPS", "write a sample this often, and at the end; 0: never")                                                  \
    X(EVALUATION, "sample-length", "g",       COUNT, sample_length,      256, RANGE(0, 1073741824), BESIDE,            \
      "TOKENS", "length of a sample; 0: none")                                                                         \
    X(EVALUATION, "prompt", NULL,             TEXT,  prompt,             "", ANY, BESIDE,                              \
      "TEXT", "what a sample begins with")                                                                             \
    X(EVALUATION, "temperature", NULL,        REAL,  temperature,        0.8, RANGE(0, 1e6), BESIDE,                   \
      "X", "0: always the likeliest token")                                                                            \
    X(EVALUATION, "top-k", NULL,              COUNT, top_k,              0, RANGE(0, 2147483647), BESIDE,              \
      "K", "choose among the K likeliest; 0: among all")                                                               \
    X(EVALUATION, "top-p", NULL,              REAL,  top_p,              1.0, RANGE(1e-9, 1), BESIDE,                  \
      "P", "choose among the likeliest that make up P; 1: among all")                                                  \
    X(EVALUATION, "sample-seed", NULL,        COUNT, sample_seed,        1337, RANGE(0, OPTION_MAX_COUNT), BESIDE,     \
      "N", "of the samples, apart from the training's random numbers")                                                 \
    X(CHECKPOINTS, "out", "o",                TEXT,  out,                "log", ANY, THIS_CALL,                        \
      "FOLDER", "log and checkpoints; '' keeps nothing")                                                               \
    X(CHECKPOINTS, "checkpoint-every", "n",   COUNT, checkpoint_every,   500, RANGE(0, OPTION_MAX_COUNT), BESIDE,      \
      "STEPS", "save this often, and at the end; 0: only at the end")                                                  \
    X(CHECKPOINTS, "keep", "nk",              COUNT, keep,               2, RANGE(0, OPTION_MAX_COUNT), BESIDE,        \
      "N", "checkpoints kept besides milestones and the best; 0: all")                                                 \
    X(CHECKPOINTS, "milestone-every", "nm",   COUNT, milestone_every,    0, RANGE(0, OPTION_MAX_COUNT), BESIDE,        \
      "STEPS", "checkpoints at multiples of this stay for good; 0: none")                                              \
    X(CHECKPOINTS, "resume", "y",             FLAG,  resume,             0, ANY, THIS_CALL,                            \
      NULL, "go on from the newest complete checkpoint in --out, if any")                                              \
    X(DEVICES,    "threads", NULL,            COUNT, threads,            0, RANGE(0, 4096), THIS_CALL,                 \
      "N", "0: what OpenMP finds; any number gives the same bits")                                                     \
    X(DEVICES,    "recompute", "r",           COUNT, recompute,          0, RANGE(0, 2), BESIDE,                       \
      "LEVEL", "to save memory: 1 GELU, 2 layernorm too; same bits")                                                   \
    X(DEVICES,    "autotune", NULL,           TEXT,  autotune,           "", ANY, BESIDE,                              \
      "FILE", "GPU: time each product's algorithms once; FILE keeps the choices")                                      \
    X(DEVICES,    "zero", "z",                COUNT, zero,               0, RANGE(0, 2), BESIDE,                       \
      "LEVEL", "several ranks share out: 1 masters and moments, 2 gradients too")                                      \
    X(DEVICES,    "reduce", NULL,             TEXT,  reduce,             "fp32",                                       \
      CHOICES("fp32|bf16"), WEIGHTS, "FORMAT", "in which gradients are summed over ranks")                             \
    X(DEVICES,    "bucket", NULL,             REAL,  bucket,             64, RANGE(0.001, 65536), BESIDE,              \
      "MIB", "gradients reduced at once while the backward pass goes on")                                              \
    X(DEVICES,    "ranks", NULL,              COUNT, ranks,              0, RANGE(0, 65536), THIS_CALL,                \
      "R", "--dry-run: plan for so many; otherwise mpirun, srun, torchrun start them")                                 \
    X(DEVICES,    "timeout", NULL,            COUNT, timeout,            600, RANGE(0, 1000000), THIS_CALL,            \
      "SECONDS", "a rank that does not move for so long ends the run; 0: never")                                       \
    X(DEBUGGING,  "numerics-every", NULL,     COUNT, numerics_every,     0, RANGE(0, OPTION_MAX_COUNT), BESIDE,        \
      "STEPS", "report what number formats do this often (numerics.jsonl); 0: never")                                  \
    X(DEBUGGING,  "check-replicas", NULL,     COUNT, check_replicas,     0, RANGE(0, OPTION_MAX_COUNT), BESIDE,        \
      "STEPS", "compare the weights of all ranks this often; 0: never")                                                \
    X(DEBUGGING,  "overfit", "a",             FLAG,  overfit,            0, ANY, WEIGHTS,                              \
      NULL, "train on the first batch over and over")                                                                  \
    X(DEBUGGING,  "dry-run", NULL,            FLAG,  dry_run,            0, ANY, THIS_CALL,                            \
      NULL, "print the plan of memory and data, then stop")                                                            \
    X(DEBUGGING,  "print-policy", NULL,       FLAG,  print_policy,       0, ANY, THIS_CALL,                            \
      NULL, "print which tensor has which format in this build and stop")                                              \
    X(DEBUGGING,  "version", NULL,            FLAG,  version,            0, ANY, THIS_CALL,                            \
      NULL, "print the version and stop")                                                                              \
    X(DEBUGGING,  "help", NULL,               FLAG,  help,               0, ANY, THIS_CALL,                            \
      NULL, "print this and stop")
// clang-format on

// OPTION_train, OPTION_val, ...: what options_given() asks about; OPTION_COUNT is how many there are.
// clang-format off
enum {
#define X(group, name, alias, type, field, ...) OPTION_##field,
    OPTIONS(X)
#undef X
    OPTION_COUNT
};
// clang-format on

typedef const char *OptionFieldTEXT;
typedef size_t OptionFieldCOUNT;
typedef double OptionFieldREAL;
typedef int OptionFieldFLAG;

typedef struct {
#define X(group, name, alias, type, field, ...) OptionField##type field;
    OPTIONS(X)
#undef X
    unsigned char given[OPTION_COUNT];  // 1: on the command line
} Options;

// ----------------------------------------------------------------------------------------------------------------
// The table as data

typedef enum { OPTION_TEXT_TYPE, OPTION_COUNT_TYPE, OPTION_REAL_TYPE, OPTION_FLAG_TYPE } OptionType;
enum { OPTION_THIS_CALL, OPTION_BESIDE, OPTION_WEIGHTS };
// clang-format off
enum { GROUP_DATA, GROUP_MODEL, GROUP_BATCH, GROUP_OPTIMIZER, GROUP_PRECISION, GROUP_EVALUATION, GROUP_CHECKPOINTS,
       GROUP_DEVICES, GROUP_DEBUGGING, GROUP_COUNT };
// clang-format on

typedef struct {
    int group;
    const char *name, *alias;  // without dashes; alias may be NULL
    OptionType type;
    size_t offset;        // of the field in Options
    double lo, hi;        // COUNT and REAL
    const char *choices;  // TEXT: "a|b|c", or NULL for any text
    int effect;
    const char *value, *help;  // the value's name in --help, and what the option does
} OptionInfo;

static inline const OptionInfo *option_table(void) {
    static const OptionInfo table[OPTION_COUNT] = {
#define X(group, name, alias, type, field, initial, limits, effect, value, help) \
    {GROUP_##group, name, alias, OPTION_##type##_TYPE, offsetof(Options, field), limits, OPTION_##effect, value, help},
        OPTIONS(X)
#undef X
    };
    return table;
}
#undef ANY
#undef RANGE
#undef CHOICES

static inline void options_defaults(Options *o) {
    memset(o, 0, sizeof *o);
#define X(group, name, alias, type, field, initial, ...) o->field = initial;
    OPTIONS(X)
#undef X
}

static inline int options_given(const Options *o, int option) { return o->given[option]; }

// Shortest decimal that reads back as the same double.
static inline void format_real(char text[32], double value) {
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(text, 32, "%.*g", digits, value);
        if (strtod(text, NULL) == value) return;
    }
}

// The value of an option as the command line would say it; `scratch` holds numbers.
static inline const char *option_text(const Options *o, const OptionInfo *info, char scratch[32]) {
    const char *field = (const char *)o + info->offset;
    switch (info->type) {
        case OPTION_TEXT_TYPE: return *(const char *const *)field;
        case OPTION_COUNT_TYPE: snprintf(scratch, 32, "%zu", *(const size_t *)field); break;
        case OPTION_REAL_TYPE: format_real(scratch, *(const double *)field); break;
        case OPTION_FLAG_TYPE: return *(const int *)field ? "1" : "0";
    }
    return scratch;
}

// ----------------------------------------------------------------------------------------------------------------
// Suggestions

// Insertions, deletions, replacements and swaps of neighbours that lead from `a` to `b`; names up to 63 bytes.
static inline size_t edit_distance(const char *a, const char *b) {
    size_t rows[3][64], n = strlen(a), m = strlen(b);
    if (n > 63 || m > 63) return SIZE_MAX;
    for (size_t j = 0; j <= m; j++) rows[0][j] = j;
    for (size_t i = 1; i <= n; i++) {
        size_t *row = rows[i % 3], *above = rows[(i + 2) % 3], *above2 = rows[(i + 1) % 3];
        row[0] = i;
        for (size_t j = 1; j <= m; j++) {
            size_t best = min_size(min_size(above[j], row[j - 1]) + 1, above[j - 1] + (a[i - 1] != b[j - 1]));
            int swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
            row[j] = swapped ? min_size(best, above2[j - 2] + 1) : best;
        }
    }
    return rows[n % 3][m];
}

// Keeps `candidate` as *best if it is nearer to `word` than what was there. Starts from *distance = the farthest
// that is still worth suggesting, plus 1.
static inline void suggest(const char *word, const char *candidate, const char **best, size_t *distance) {
    size_t d = *word && strncmp(candidate, word, strlen(word)) == 0 ? 1 : edit_distance(word, candidate);  // --bat
    if (d < *distance) {
        *distance = d;
        *best = candidate;
    }
}

// A third of the word may be wrong, and one letter of the shortest.
static inline size_t suggest_limit(const char *word) { return strlen(word) / 3 + 2; }

static inline void option_unknown(const char *arg) __attribute__((noreturn));
static inline void option_unknown(const char *arg) {
    const char *word = arg, *best = NULL;
    while (*word == '-') word++;
    int negated = strncmp(word, "no-", 3) == 0;
    if (negated) word += 3;
    size_t distance = suggest_limit(word);
    for (int i = 0; i < OPTION_COUNT; i++) {
        const OptionInfo *info = &option_table()[i];
        if (!negated || info->type == OPTION_FLAG_TYPE) suggest(word, info->name, &best, &distance);
    }
    if (best) die_usage("there is no option %s\ntry: --%s%s (--help lists all)", arg, negated ? "no-" : "", best);
    die_usage("there is no option %s\ntry: --help, which lists all", arg);
}

// ----------------------------------------------------------------------------------------------------------------
// Values. `label` is the option as it was written.

static inline void option_set_count(const OptionInfo *info, size_t *field, const char *label, const char *text) {
    const char *digits = text + (*text == '-');
    size_t length = strspn(digits, "0123456789");
    if (!length || digits[length]) die_usage("%s '%s' is not a whole number", label, text);
    errno = 0;
    unsigned long long value = strtoull(digits, NULL, 10);
    int negative = *text == '-' && value != 0;
    if (negative || errno || (double)value < info->lo || value > (unsigned long long)info->hi)
        die_usage("%s %s is not between %.0f and %.0f", label, text, info->lo, info->hi);
    *field = (size_t)value;
}

static inline void option_set_real(const OptionInfo *info, double *field, const char *label, const char *text) {
    char *end, lo[32], hi[32];
    // strtod alone would take " 1", "inf", "nan" and "0x1p3" too.
    if (!*text || text[strspn(text, "+-.0123456789eE")]) die_usage("%s '%s' is not a number", label, text);
    double value = strtod(text, &end);
    if (end == text || *end) die_usage("%s '%s' is not a number", label, text);
    if (!(value >= info->lo && value <= info->hi)) {
        format_real(lo, info->lo);
        format_real(hi, info->hi);
        die_usage("%s %s is not between %s and %s", label, text, lo, hi);
    }
    *field = value;
}

// 1 where `word` is one of "a|b|c"; `suggestion` (or NULL) gets the nearest otherwise.
static inline int choice_find(const char *choices, const char *word, char suggestion[64]) {
    size_t distance = suggest_limit(word);
    suggestion[0] = 0;
    for (const char *c = choices; *c;) {
        char choice[64];
        size_t length = min_size(strcspn(c, "|"), sizeof choice - 1);
        const char *best = NULL;
        memcpy(choice, c, length);
        choice[length] = 0;
        if (strcmp(choice, word) == 0) return 1;
        suggest(word, choice, &best, &distance);
        if (best) memcpy(suggestion, choice, length + 1);
        c += length + (c[length] == '|');
    }
    return 0;
}

static inline void option_set_text(const OptionInfo *info, const char **field, const char *label, const char *text) {
    char near_word[64];
    if (info->choices && !choice_find(info->choices, text, near_word)) {
        if (near_word[0]) die_usage("%s '%s' is not one of %s\ntry: %s", label, text, info->choices, near_word);
        die_usage("%s '%s' is not one of %s", label, text, info->choices);
    }
    *field = text;
}

static inline void option_set_flag(int *field, const char *label, const char *text) {
    if (strcmp(text, "0") != 0 && strcmp(text, "1") != 0) die_usage("%s '%s' is neither 0 nor 1", label, text);
    *field = text[0] == '1';
}

static inline void option_set(Options *o, const OptionInfo *info, const char *label, const char *text) {
    char *field = (char *)o + info->offset;
    switch (info->type) {
        case OPTION_TEXT_TYPE: option_set_text(info, (const char **)field, label, text); break;
        case OPTION_COUNT_TYPE: option_set_count(info, (size_t *)field, label, text); break;
        case OPTION_REAL_TYPE: option_set_real(info, (double *)field, label, text); break;
        case OPTION_FLAG_TYPE: option_set_flag((int *)field, label, text); break;
    }
    o->given[info - option_table()] = 1;
}

// ----------------------------------------------------------------------------------------------------------------
// Options of llm.c that this version cannot honour. The value that asks for nothing is let through; any other is
// refused, as a request that is dropped in silence is worse than one that is turned down.

typedef struct {
    const char *alias, *harmless, *what;
} ForeignOption;

#define TOLD_BY_LAUNCHER "telling several ranks by options (mpirun, srun and torchrun do without)"

static inline const ForeignOption *foreign_option(const char *alias) {
    static const ForeignOption options[] = {
        {"f", "0", "overriding TF32"},
        {"w", "1", "dropping the fp32 master weights"},
        {"lg", "-1", "logging the GPU's state"},
        {"pn", "1", TOLD_BY_LAUNCHER},
        {"pr", "0", TOLD_BY_LAUNCHER},
        {"pg", "1", TOLD_BY_LAUNCHER},
        {"pi", "mpi", TOLD_BY_LAUNCHER},
        {"ps", "", TOLD_BY_LAUNCHER},
        {"pf", "", TOLD_BY_LAUNCHER},
    };
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++)
        if (strcmp(alias, options[i].alias) == 0) return &options[i];
    return NULL;
}

static inline void foreign_option_check(const ForeignOption *foreign, const char *value) {
    if (!value) die_usage("-%s needs a value", foreign->alias);
    if (strcmp(value, foreign->harmless) != 0)
        die_usage("-%s %s: %s is not part of this version\ntry: leave -%s out", foreign->alias, value, foreign->what,
                  foreign->alias);
}

// ----------------------------------------------------------------------------------------------------------------
// --help and --version

static inline void options_help(FILE *out, const char *program) {
    static const char *const titles[GROUP_COUNT] = {"Data",       "Model",       "Batch",   "Optimizer", "Precision",
                                                    "Evaluation", "Checkpoints", "Devices", "Debugging"};
    Options defaults;
    options_defaults(&defaults);
    fprintf(out, "Usage: %s [options]     trains a GPT on token files (data/tokenize makes them)\n", program);
    for (int group = 0, i = 0; group < GROUP_COUNT; group++) {
        fprintf(out, "\n%s\n", titles[group]);
        for (; i < OPTION_COUNT && option_table()[i].group == group; i++) {
            const OptionInfo *info = &option_table()[i];
            char alias[8] = "", left[64], scratch[32];
            if (info->alias) snprintf(alias, sizeof alias, "-%s,", info->alias);
            snprintf(left, sizeof left, "  %-4s --%s %s", alias, info->name, info->value ? info->value : "");
            fprintf(out, "%-33s %s", left, info->help);
            if (info->choices) fprintf(out, ": %s", info->choices);
            const char *value = option_text(&defaults, info, scratch);
            if (info->type != OPTION_FLAG_TYPE && *value) fprintf(out, " [%s]", value);
            fputc('\n', out);
        }
    }
    fprintf(out, "\n[default]. --name=value works too; --no-NAME turns a flag off; the last of several wins.\n");
}

#define OPTION_QUOTE_(x) #x
#define OPTION_QUOTE(x) OPTION_QUOTE_(x)
#ifndef BUILD_NAME
#define BUILD_NAME unnamed
#endif

static inline void print_build_policy(void) {
    PrecisionPolicy policy = build_policy();
    precision_print(stdout, &policy);
}

// "train_gpt 0.1 (cpu-fp32)": the version, and the configuration the Makefile built.
static inline const char *options_version(void) {
    return "train_gpt " TRAIN_GPT_VERSION " (" OPTION_QUOTE(BUILD_NAME) ")";
}

// ----------------------------------------------------------------------------------------------------------------
// Parsing

// The row an argument names, or NULL. `word` is the argument without dashes and "=value", `length` its bytes;
// *negated is set for --no-flag.
static inline const OptionInfo *option_find(const char *word, size_t length, int is_long, int *negated) {
    *negated = 0;
    for (int i = 0; i < OPTION_COUNT; i++) {
        const OptionInfo *info = &option_table()[i];
        const char *name = is_long ? info->name : info->alias;
        if (name && strlen(name) == length && memcmp(word, name, length) == 0) return info;
        if (is_long && info->type == OPTION_FLAG_TYPE && length == strlen(name) + 3 && memcmp(word, "no-", 3) == 0 &&
            memcmp(word + 3, name, length - 3) == 0) {
            *negated = 1;
            return info;
        }
    }
    return NULL;
}

// Does `arg` name an option, rather than being a value that happens to begin with a dash ("-1", "- a list")?
static inline int option_like(const char *arg) {
    int negated;
    if (arg[0] != '-') return 0;
    if (arg[1] == '-') return option_find(arg + 2, strcspn(arg + 2, "="), 1, &negated) != NULL;
    return option_find(arg + 1, strlen(arg + 1), 0, &negated) || foreign_option(arg + 1);
}

static inline void option_show_and_exit(const OptionInfo *info, const char *program) {
    int row = (int)(info - option_table());
    if (row == OPTION_help) options_help(stdout, program);
    else if (row == OPTION_version) puts(options_version());
    else if (row == OPTION_print_policy) print_build_policy();
    else return;
    exit(fflush(stdout) == 0 ? 0 : 1);
}

// A word without dashes. Behind the value of a pattern it is most likely the second file that matches.
static inline void option_not_one(char **argv, int i) __attribute__((noreturn));
static inline void option_not_one(char **argv, int i) {
    const char *word = argv[i], *before = i >= 3 && argv[i - 2][0] == '-' ? argv[i - 2] : "";
    int is_long = before[0] && before[1] == '-', negated;
    const OptionInfo *info =
        *before ? option_find(before + 1 + is_long, strlen(before + 1 + is_long), is_long, &negated) : NULL;
    if (info == &option_table()[OPTION_train] || info == &option_table()[OPTION_val])
        die_usage(
            "'%s' is not an option\ntry: quotes around a pattern, as --%s 'data/my_%s_*.bin', or the shell makes "
            "several words of it",
            word, info->name, info->name);
    if (*word && option_find(word, strcspn(word, "="), 1, &negated))
        die_usage("'%s' is not an option\ntry: --%s", word, word);
    die_usage("'%s' is not an option: those begin with dashes\ntry: --help, which lists all", word);
}

// -h is help to everyone but llm.c's scripts, which say -h 1 for what data/README.md makes of HellaSwag.
static inline void option_help_or_hellaswag(Options *o, const char *value, const char *program) {
    if (!value || value[0] == '-') option_show_and_exit(&option_table()[OPTION_help], program);
    if (strcmp(value, "0") != 0 && strcmp(value, "1") != 0)
        die_usage("-h %s: -h shows the help, and as in llm.c -h 1 asks the questions of %s\ntry: --hellaswag FILE", value,
                  HELLASWAG_FILE);
    option_set(o, &option_table()[OPTION_hellaswag], "-h", value[0] == '1' ? HELLASWAG_FILE : "");
}

// Takes argv[*i] and, where it has one, its value; *i ends on the last argument taken.
static inline void option_parse_one(Options *o, int argc, char **argv, int *i) {
    const char *arg = argv[*i], *next = *i + 1 < argc ? argv[*i + 1] : NULL;
    if (arg[0] != '-' || !arg[1]) option_not_one(argv, *i);
    int is_long = arg[1] == '-', negated = 0;
    const char *word = arg + 1 + is_long, *equals = is_long ? strchr(word, '=') : NULL;
    size_t length = equals ? (size_t)(equals - word) : strlen(word);
    const ForeignOption *foreign = is_long ? NULL : foreign_option(word);
    if (!is_long && strcmp(word, "h") == 0) {
        option_help_or_hellaswag(o, next, argv[0]);
        ++*i;
        return;
    }
    if (foreign) {
        foreign_option_check(foreign, next);
        ++*i;
        return;
    }
    const OptionInfo *info = option_find(word, length, is_long, &negated);
    if (!info) {
        char name[64];
        snprintf(name, sizeof name, "%.*s", (int)min_size(length + 1 + (size_t)is_long, 60), arg);
        option_unknown(name);
    }
    option_show_and_exit(info, argv[0]);
    char label[96];
    if (is_long) snprintf(label, sizeof label, "--%.*s", (int)length, word);
    else snprintf(label, sizeof label, "-%s (--%s)", word, info->name);

    if (negated) {
        if (equals) die_usage("%s takes no value\ntry: --%s=0 or --%s=1", label, info->name, info->name);
        option_set(o, info, label, "0");
    } else if (equals) {
        option_set(o, info, label, equals + 1);
    } else if (info->type == OPTION_FLAG_TYPE) {
        int takes = next && (strcmp(next, "0") == 0 || strcmp(next, "1") == 0);
        option_set(o, info, label, takes ? next : "1");
        *i += takes;
    } else {
        if (!next) die_usage("%s needs a value: %s", label, info->value);
        if (option_like(next))
            die_usage("%s needs a value (%s), but %s follows\ntry: --%s=%s if that is the value", label, info->value,
                      next, info->name, next);
        option_set(o, info, label, next);
        ++*i;
    }
}

// ----------------------------------------------------------------------------------------------------------------
// What follows from several options together

static inline void options_apply_model(Options *o) {
    // llm.c's -e takes a file or a shape's name. Its shapes come with GPT-2's vocabulary.
    if (*o->init && find_shape(o->init)) {
        if (*o->model && strcmp(o->model, o->init) != 0)
            die_usage("--init %s and --model %s name two shapes\ntry: --model alone", o->init, o->model);
        o->model = o->init;
        o->init = "";
        if (!o->given[OPTION_vocab]) o->vocab = 50257;
    }
    if (!*o->model) return;
    const NamedShape *shape = find_shape(o->model);
    if (!shape) {
        const char *best = NULL;
        size_t distance = suggest_limit(o->model);
        char names[1024];
        size_t used = 0;
        for (size_t i = 0; i < NAMED_SHAPE_COUNT; i++) {
            suggest(o->model, named_shapes()[i].name, &best, &distance);
            used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "", named_shapes()[i].name);
        }
        die_usage(
            "--model '%s' is not a known shape\nwhy: the names are %s\ntry: --model %s, or --layers, --heads and "
            "--channels",
            o->model, names, best ? best : "gpt2");
    }
    if (!o->given[OPTION_layers]) o->layers = shape->L;
    if (!o->given[OPTION_heads]) o->heads = shape->NH;
    if (!o->given[OPTION_channels]) o->channels = shape->C;
    if (!o->given[OPTION_max_seq]) o->max_seq = shape->max_T;
}

// Once --batch, --seq and --ranks are known.
static inline void options_finish_batch(Options *o) {
    size_t micro = size_mul(size_mul(o->batch, o->seq), o->ranks);
    char ranks_text[48] = "";
    if (o->ranks > 1) snprintf(ranks_text, sizeof ranks_text, " x %zu ranks", o->ranks);
    if (!o->total_batch) o->total_batch = micro;
    if (o->total_batch % micro != 0) {
        size_t nearest = max_size(o->total_batch / micro, 1) * micro;
        die_usage(
            "--total-batch %zu is not a multiple of --batch %zu x --seq %zu%s = %zu tokens\n"
            "why: a step is a whole number of micro-batches\ntry: --total-batch %zu, or another --batch",
            o->total_batch, o->batch, o->seq, ranks_text, micro, nearest);
    }
}

// Another --seq than the default, where the command line named none and the model of --init has fewer positions.
static inline void options_set_seq(Options *o, size_t seq) {
    o->seq = o->max_seq = seq;
    if (!options_given(o, OPTION_total_batch)) o->total_batch = 0;
    options_finish_batch(o);
}

// Resolves the zeros that stand for another option's value, and refuses what does not go together. The parts check
// what only they know: the vocabulary, the data, the folder. `ranks`: of this run, as its launcher says.
static inline void options_finish(Options *o, size_t ranks) {
    options_apply_model(o);
    if (!o->max_seq) o->max_seq = o->seq;
    if (o->seq > o->max_seq)
        die_usage("--seq %zu is longer than the %zu positions of the model\ntry: --seq %zu, or --max-seq %zu", o->seq,
                  o->max_seq, o->max_seq, o->seq);
    if (o->channels % o->heads != 0)
        die_usage("--heads %zu does not divide --channels %zu\nwhy: each head gets channels / heads columns", o->heads,
                  o->channels);
    if (o->ranks && o->ranks != ranks && !o->dry_run)
        die_usage("--ranks %zu, but this run has %zu\nwhy: the launcher starts the ranks; the option is for plans\n"
                  "try: --dry-run, or mpirun -np %zu, srun -n %zu, scripts/launch.sh %zu",
                  o->ranks, ranks, o->ranks, o->ranks, o->ranks);
    if (!o->ranks) o->ranks = ranks;
    options_finish_batch(o);
    if (o->steps && o->given[OPTION_epochs])
        die_usage("--steps %zu and --epochs both say how long to train\ntry: only one of them", o->steps);
}

// Fills *o from the command line (texts point into argv), resolved and checked, for a run of `ranks` ranks.
static inline void options_parse(Options *o, int argc, char **argv, size_t ranks) {
    options_defaults(o);
    for (int i = 1; i < argc; i++) option_parse_one(o, argc, argv, &i);
    options_finish(o, ranks);
}

// ----------------------------------------------------------------------------------------------------------------
// Recording and comparing

// One JSON object of every option that is not about this call alone, one a line, by long name. The caller frees it.
static inline char *options_to_json(const Options *o) {
    char *json = NULL;
    size_t capacity = 0;
    for (int pass = 0; pass < 2; pass++) {  // the first measures
        JsonWriter w;
        json_writer(&w, json, capacity);
        json_begin(&w, '{');
        for (int i = 0; i < OPTION_COUNT; i++) {
            const OptionInfo *info = &option_table()[i];
            char scratch[32];
            if (info->effect == OPTION_THIS_CALL) continue;
            const char *text = option_text(o, info, scratch);
            json_put_space(&w, "\n  ");
            json_put_key(&w, info->name);
            if (info->type == OPTION_TEXT_TYPE) json_put_string(&w, text);
            else if (info->type == OPTION_FLAG_TYPE) json_put_raw(&w, *text == '1' ? "true" : "false");
            else json_put_raw(&w, text);
        }
        json_put_bytes(&w, "\n", 1);
        json_end(&w, '}');
        if (pass == 0) {
            capacity = w.used + 1;
            json = (char *)checked_calloc(capacity, 1, "the options as JSON");
        }
    }
    return json;
}

// The recorded value as option_text() would say it; NULL where it is missing or of another type.
static inline const char *option_recorded_text(const OptionInfo *info, const JsonNode *node, char scratch[32]) {
    uint64_t count;
    double real;
    if (!node) return NULL;
    switch (info->type) {
        case OPTION_TEXT_TYPE: return json_string(node);
        case OPTION_FLAG_TYPE: return node->type == JSON_TRUE ? "1" : node->type == JSON_FALSE ? "0" : NULL;
        case OPTION_COUNT_TYPE:
            if (!json_u64(node, &count)) return NULL;
            snprintf(scratch, 32, "%llu", (unsigned long long)count);
            return scratch;
        case OPTION_REAL_TYPE:
            if (!json_double(node, &real)) return NULL;
            format_real(scratch, real);
            return scratch;
    }
    return NULL;
}

// Prints to `out` a line for each option whose recorded value (an options_to_json() text) is not today's:
//
//       --lr 0.001 -> 0.0003 (changes what is trained)
//
// Returns how many of them change what is trained. A text that is no JSON is one such difference, not an error: a
// run can be resumed without it.
static inline size_t options_diff(const char *recorded, const Options *now, FILE *out) {
    size_t changing = 0;
    Json json;
    if (!json_parse(&json, recorded, strlen(recorded)) || json_root(&json)->type != JSON_OBJECT) {
        fprintf(out, "  the recorded options cannot be read%s%s\n", json.error[0] ? ": " : "", json.error);
        json_free(&json);
        return 1;
    }
    for (int i = 0; i < OPTION_COUNT; i++) {
        const OptionInfo *info = &option_table()[i];
        if (info->effect == OPTION_THIS_CALL) continue;
        char scratch_before[32], scratch_after[32];
        const char *after = option_text(now, info, scratch_after);
        const char *before = option_recorded_text(info, json_get(&json, json_root(&json), info->name), scratch_before);
        if (before && strcmp(before, after) == 0) continue;
        if (!before) before = "(not recorded)";
        int changes = info->effect == OPTION_WEIGHTS;
        changing += (size_t)changes;
        fprintf(out, "  --%s %s -> %s%s\n", info->name, *before ? before : "''", *after ? after : "''",
                changes ? " (changes what is trained)" : "");
    }
    json_free(&json);
    return changing;
}

#endif
