// profile_gpt.cu: where the time of one training step goes, operation by operation, and what bounds it.
//
//     make DEVICE=cuda PRECISION=bf16 profile_gpt
//     ./profile_gpt step d12 64 1024        each operation of a step: time by CUDA events, bytes and flops a second
//     ./profile_gpt ceiling                 the best this card does: this precision's products, and copying
//     ./profile_gpt paper d48 16 1024       no GPU needed: the same operations at the limits of an H100 and an H200
//     nsys profile ./profile_gpt once d12 64 1024         one step after a warm-up, with NVTX ranges
//     ncu --nvtx --nvtx-include 'profiled step/' ./profile_gpt once d12 64 1024
//
// A model is a name or LAYERS,HEADS,CHANNELS,VOCABULARY. --gelu-fusion 1 or 2 at the end: the trainer's option of that
// name, in a bf16 or fp16 build. step and once end in one line "result: key=value ...", for
// scripts/validate_gpu.sh. MFU counts (6 N + 6 L C T) flops a token: causal attention once.
#define TESTING
#include "train_gpt.cu"

#include <algorithm>
#include <string>
#include <vector>

// ----------------------------------------------------------------------------------------------------------------
// What was seen of a step

struct OpTotal {
    std::string name;
    int calls;
    double bytes, flops, ms;
};
struct OpTime {
    size_t total;
    cudaEvent_t begin, end;
};
static std::vector<OpTotal> op_totals;  // in order of first appearance
static std::vector<OpTime> op_times;

static size_t op_count(const char *name, double bytes, double flops) {
    size_t i = 0;
    while (i < op_totals.size() && op_totals[i].name != name) i++;
    if (i == op_totals.size()) op_totals.push_back({name, 0, 0, 0, 0});
    op_totals[i].calls++;
    op_totals[i].bytes += bytes;
    op_totals[i].flops += flops;
    return i;
}
static void op_begin_counted(const char *name, double bytes, double flops, cudaStream_t) { op_count(name, bytes, flops); }
static void op_begin_timed(const char *name, double bytes, double flops, cudaStream_t stream) {
    OpTime time = {op_count(name, bytes, flops), NULL, NULL};
    CUDA_CHECK(cudaEventCreate(&time.begin));
    CUDA_CHECK(cudaEventCreate(&time.end));
    CUDA_CHECK(cudaEventRecord(time.begin, stream));
    op_times.push_back(time);
}
static void op_end_timed(cudaStream_t stream) { CUDA_CHECK(cudaEventRecord(op_times.back().end, stream)); }

static void op_times_collect(cudaStream_t stream) {
    CUDA_CHECK(cudaStreamSynchronize(stream));
    for (OpTime &time : op_times) {
        float ms;
        CUDA_CHECK(cudaEventElapsedTime(&ms, time.begin, time.end));
        op_totals[time.total].ms += ms;
        CUDA_CHECK(cudaEventDestroy(time.begin));
        CUDA_CHECK(cudaEventDestroy(time.end));
    }
    op_times.clear();
}

// ----------------------------------------------------------------------------------------------------------------
// The card's ceilings, measured here

struct Ceiling {
    double flops, bytes;  // a second
};

template <typename T>
static std::vector<T> random_elements(size_t n, uint64_t seed) {
    std::vector<float> values(n);
    std::vector<T> elements(n);
    rand_normal_fill(values.data(), n, 0, 0.5f, seed, 0);
    for (size_t i = 0; i < n; i++) elements[i] = T(values[i]);
    return elements;
}

// The best of cuBLASLt's proposals for a product of size^3, on random numbers (zeros are faster: they draw less power),
// and a device-to-device copy, of which a byte counts twice.
static Ceiling measure_ceiling(size_t size) {
    const size_t n = size * size, workspace_bytes = matmul_scratch_bytes();
    std::vector<act_t> numbers = random_elements<act_t>(n, 1);
    act_t *inp, *weight, *out;
    void *workspace;
    CUDA_CHECK(cudaMalloc((void **)&inp, n * sizeof *inp));
    CUDA_CHECK(cudaMalloc((void **)&weight, n * sizeof *weight));
    CUDA_CHECK(cudaMalloc((void **)&out, n * sizeof *out));
    CUDA_CHECK(cudaMalloc(&workspace, workspace_bytes));
    CUDA_CHECK(cudaMemcpy(inp, numbers.data(), n * sizeof *inp, cudaMemcpyHostToDevice));
    CUDA_CHECK(cudaMemcpy(weight, numbers.data(), n * sizeof *weight, cudaMemcpyHostToDevice));
    MatmulScratch *scratch = matmul_scratch(workspace, workspace_bytes);
    char choices[] = "/tmp/profile_gpt_XXXXXX";
    int fd = mkstemp(choices);
    if (fd < 0) die("mkstemp: %s", strerror(errno));
    close(fd);
    scratch->autotune = choices;
    Ceiling best = {0, 0};
    for (int pass = 0; pass < 3; pass++) {
        float ms = matmul_median_ms(
            [&] { matmul_forward(scratch, out, inp, weight, (weight_t *)NULL, size, size, size, 0); }, 0);
        best.flops = fmax(best.flops, 2e3 * (double)n * (double)size / ms);
        ms = matmul_median_ms(
            [&] { CUDA_CHECK(cudaMemcpyAsync(out, inp, n * sizeof *inp, cudaMemcpyDeviceToDevice, 0)); }, 0);
        best.bytes = fmax(best.bytes, 2e3 * (double)(n * sizeof *inp) / ms);
    }
    matmul_scratch_free(scratch);
    remove(choices);
    CUDA_CHECK(cudaFree(inp));
    CUDA_CHECK(cudaFree(weight));
    CUDA_CHECK(cudaFree(out));
    CUDA_CHECK(cudaFree(workspace));
    return best;
}

// Dense tensor core peak of a card for this build's products, from its datasheet; 0: not known. Cards for a PCIe slot
// bear the same names, and more.
static double datasheet_flops(void) {
    const struct {
        const char *name;
        double bits16;
    } cards[] = {{"H100 PCIe", 756.5e12}, {"H100 NVL", 835.5e12}, {"H200 NVL", 835.5e12}, {"H100", 989.4e12},
                 {"H200", 989.4e12},      {"GH200", 989.4e12},    {"A100", 312e12},       {"B200", 2250e12}};
    for (auto &card : cards)
        if (strstr(device_info()->name, card.name) && sizeof(act_t) == 2) return card.bits16;
    return 0;
}

// ----------------------------------------------------------------------------------------------------------------
// One model and its step

struct Run {
    GPTConfig config;
    Model model;
    size_t B, T, micro;  // sequences a step, and at once
    std::vector<int32_t> tokens;
};

static void parse_model(GPTConfig *config, const char *text, size_t T) {
    size_t vocabulary = 50257;
    memset(config, 0, sizeof *config);
    const NamedShape *shape = find_shape(text);
    if (shape) {
        config->L = shape->L;
        config->NH = shape->NH;
        config->C = shape->C;
    } else if (sscanf(text, "%zu,%zu,%zu,%zu", &config->L, &config->NH, &config->C, &vocabulary) != 4) {
        die_usage("'%s' is no model\ntry: d12, or LAYERS,HEADS,CHANNELS,VOCABULARY", text);
    }
    config->max_T = T;
    config_set_vocab(config, vocabulary);
    config_check(config);
}

static int gelu_fusion;

static void plan_model(Run *run, const BatchShape *shape) {
    model_plan(&run->model, &run->config, shape, 0);
    LinearRecipe recipe = run->model.recipe;
    recipe.gelu_fusion = gelu_fusion;
    model_set_recipe(&run->model, &recipe);
}

static size_t planned_bytes(Model *model) {
    Arena *arenas[8];
    size_t total = 0;
    for (size_t i = 0, n = model_arenas(model, arenas); i < n; i++) total += arenas[i]->used_bytes;
    return total;
}

// Plans the largest micro-batch that fits: nothing recomputed down to 16,384 tokens at once, since a larger batch is not
// worth a recomputation; then with --recompute 2, which does not go with --gelu-fusion.
static void plan_run(Run *run, size_t free_bytes) {
    for (int recompute = 0; recompute <= (gelu_fusion ? 0 : 2); recompute += 2)
        for (run->micro = run->B; run->micro > 0; run->micro = run->micro % 2 ? 0 : run->micro / 2) {
            BatchShape shape = {run->micro, run->T, recompute};
            plan_model(run, &shape);
            if (planned_bytes(&run->model) <= free_bytes) return;
            if (recompute == 0 && !gelu_fusion && run->micro * run->T <= 16384) break;
        }
    die("%zu layers of %zu channels do not fit into %.1f GB", run->config.L, run->config.C, (double)free_bytes * 1e-9);
}

static void random_tokens(Run *run, uint32_t step) {
    run->tokens.resize(run->B * run->T + 1);
    for (size_t i = 0; i < run->tokens.size(); i++)
        run->tokens[i] = (int32_t)(rand_u32(1, RAND_TEST, 0, step, i) % (uint32_t)run->config.V);
}

static void take_step(Run *run, uint32_t step) {
    Model *model = &run->model;
    std::vector<float> losses(run->micro * run->T);
    int nonfinite;
    model_begin_step(model, step);
    model_zero_grad(model);
    for (size_t b = 0; b < run->B; b += run->micro) {
        const int32_t *inputs = &run->tokens[b * run->T];
        model_forward(model, inputs, inputs + 1, run->micro, run->T, 1.0f / (float)(run->B * run->T));
        model_backward(model);
        model_losses(model, losses.data());
    }
    double norm = model_grad_norm(model, &nonfinite);
    AdamWHyper hyper = adamw_hyper(1e-4, 0.9, 0.95, 1e-8, 0.1, norm > 1 ? 1 / norm : 1, step + 1);
    if (!nonfinite) model_update(model, &hyper);
    model_end_step(model);
    CUDA_CHECK(cudaStreamSynchronize(model->stream));
}

static double model_flops(const Run *run) {
    const GPTConfig *c = &run->config;
    return (double)(run->B * run->T) *
           (6.0 * (double)parameter_count(c) + 6.0 * (double)c->L * (double)c->C * (double)run->T);
}

// ----------------------------------------------------------------------------------------------------------------

static void print_ops(double step_ms, const Ceiling &ceiling) {
    double sum = 0;
    printf("%-42s %6s %9s %7s %9s %7s %9s %7s\n", "operation", "calls", "ms", "step", "GB/s", "of copy", "TFLOP/s",
           "of best");
    for (const OpTotal &op : op_totals) {
        printf("%-42s %6d %9.3f %6.1f%% %9.1f %6.1f%%", op.name.c_str(), op.calls, op.ms, 100 * op.ms / step_ms,
               op.bytes / op.ms * 1e-6, 100e3 * op.bytes / op.ms / ceiling.bytes);
        if (op.flops > 0) printf(" %9.2f %6.1f%%", op.flops / op.ms * 1e-9, 100e3 * op.flops / op.ms / ceiling.flops);
        printf("\n");
        sum += op.ms;
    }
    printf("%-42s %6s %9.3f %6.1f%%\n", "sum (of one step whose operations were timed)", "", sum, 100 * sum / step_ms);
}

static void profile_step(const char *model_text, size_t B, size_t T, int steps, size_t ceiling_size, int once) {
    static Run run;
    size_t free_bytes, total_bytes;
    device_check();
    const Ceiling ceiling = once ? Ceiling{1, 1} : measure_ceiling(ceiling_size);
    CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
    run.B = B;
    run.T = T;
    parse_model(&run.config, model_text, T);
    plan_run(&run, free_bytes - free_bytes / 32);
    model_create(&run.model);
    model_init_weights(&run.model, 1);
    random_tokens(&run, 0);
    printf("%s, %s, %s: B=%zu (%zu at once) T=%zu, recompute %d, gelu-fusion %d\n", device_info()->name,
           build_policy().name, model_text, B, run.micro, T, run.model.shape.recompute, gelu_fusion);
    take_step(&run, 0);  // cuBLASLt's choices, first touches
    if (once) {
        DeviceRange range("profiled step");
        take_step(&run, 1);
        model_destroy(&run.model);
        return;
    }
    std::vector<double> ms;
    for (int i = 0; i < steps; i++) {
        double start = now_seconds();
        take_step(&run, (uint32_t)i + 1);
        ms.push_back(1e3 * (now_seconds() - start));
    }
    std::sort(ms.begin(), ms.end());
    const double step_ms = ms[ms.size() / 2];
    device_op_observer()->begin = op_begin_timed;
    device_op_observer()->end = op_end_timed;
    take_step(&run, (uint32_t)steps + 1);
    device_op_observer()->begin = NULL;
    device_op_observer()->end = NULL;
    op_times_collect(run.model.stream);
    print_ops(step_ms, ceiling);
    const double flops = model_flops(&run) / (step_ms * 1e-3), peak = datasheet_flops();
    printf("result: precision=%s model=%s micro=%zu recompute=%d step_ms=%.3f tokens_per_s=%.0f tflops=%.2f "
           "mfu_of_best=%.1f%% mfu_of_datasheet=%s best_tflops=%.1f copy_gb_per_s=%.0f\n",
           build_policy().name, model_text, run.micro, run.model.shape.recompute, step_ms,
           (double)(B * T) / (step_ms * 1e-3), flops * 1e-12, 100 * flops / ceiling.flops,
           peak > 0 ? (std::to_string(100 * flops / peak).substr(0, 4) + "%").c_str() : "n/a", ceiling.flops * 1e-12,
           ceiling.bytes * 1e-9);
    model_destroy(&run.model);
}

// ----------------------------------------------------------------------------------------------------------------
// On paper: each operation takes what its flops or its bytes need, whichever is longer, and they follow each other.

enum { PAPER_DATASHEET, PAPER_BEST, PAPER_ESTIMATE, PAPER_LEVELS };
static bool native_casts;  // fp8 products, not emulated ones
static size_t paper_head_size;

// peak, memory: datasheets. gemm, copy: the best measured on one H200 (8192^3, random numbers; 0.9 of its datasheet's
// bandwidth), H100 by the same ratios. sustained: estimates from whole steps of other trainers.
struct Card {
    const char *name;
    double peak, memory, gemm, copy, sustained;
};
static const Card cards[2] = {{"H100", 989.4e12, 3.35e12, 790e12, 3.0e12, 720e12},
                              {"H200", 989.4e12, 4.8e12, 788e12, 4.3e12, 765e12}};

// FlashAttention-2's rates, mma.sync, causal, T=1024, of heads of 64 and 128 (figures of the FlashAttention-3 paper),
// which nothing here has reached on a GPU yet.
static double attention_rate(int backward) {
    return (paper_head_size > 64 ? backward ? 209 : 260 : backward ? 181 : 229) * 1e12;
}

// An fp8 product's rate over a bf16 product's: 2 on the datasheet. Measured on an H200 by TransformerEngine's authors for
// C = 4096, short accumulator: 1.90; with sums moved to fp32 every 128, and with block scales, estimates from that.
static double fp8_over_bf16(const std::string &name, int level) {
    if (name.find("_cast") == std::string::npos || !native_casts) return 1;
    if (level == PAPER_DATASHEET) return 2;
    if (BUILD_SCALING == SCALING_BLOCK) return 1.60;
    return name.find("forward") != std::string::npos ? 1.90 : 1.65;
}

static double paper_ms(const OpTotal &op, const Card &card, int level) {
    const int attention = op.name == "attention_forward" ? 1 : op.name == "attention_backward" ? 2 : 0;
    double rate = card.peak, bandwidth = card.memory, gap_ms = 0;
    if (level != PAPER_DATASHEET) {
        rate = attention ? attention_rate(attention == 2) : level == PAPER_BEST ? card.gemm : card.sustained;
        bandwidth = level == PAPER_BEST ? card.copy : 0.92 * card.copy;
        gap_ms = level == PAPER_BEST ? 0 : 1e-3 * op.calls;
    }
    return 1e3 * fmax(op.flops / (rate * fp8_over_bf16(op.name, level)), op.bytes / bandwidth) + gap_ms;
}

// A step's operations, without a device: arenas that are only addresses, and no launch.
static void walk_step(Run *run) {
    Model *model = &run->model;
    Arena *arenas[8];
    BatchShape shape = {run->micro, run->T, 0};
    plan_model(run, &shape);
    model->linears = (DeviceLinear *)checked_calloc(run->config.L * LINEAR_KINDS, sizeof *model->linears, "linear layers");
    for (size_t i = 0, n = model_arenas(model, arenas); i < n; i++) {
        arenas[i]->base = (char *)((uintptr_t)(i + 1) << 44);
        arenas[i]->capacity_bytes = arenas[i]->used_bytes;
        arenas[i]->used_bytes = 0;
    }
    model_lay_out(model);
    static int no_scale_missing = 0;
    model->linear.host_missing = &no_scale_missing;
    model->linear.weights_version = 1;
    model->linear.training = 1;
    const size_t N = run->micro * run->T;
    std::vector<int32_t> plan(embedding_plan_elems(N));
    std::vector<uint32_t> counts(run->config.V + 1);
    model->B = run->micro;
    model->T = run->T;
    device_op_observer()->paper = 1;
    device_op_observer()->begin = op_begin_counted;
    linear_begin_step(&model->linear);
    model_zero_grad(model);
    for (size_t b = 0; b < run->B; b += run->micro) {
        linear_begin_pass(&model->linear);
        model->plan = embedding_plan_make(plan.data(), counts.data(), &run->tokens[b * run->T], N, run->config.V);
        layers_forward(model);
        classifier_forward_backward(model, 1.0f);
        model_backward(model);
    }
    global_norm_squared(model->work.norm, (const float *)model->grads_arena.base, model->parameter_elems,
                        model->work.nonfinite, model->work.norm + 1, 0);
    AdamWHyper hyper = adamw_hyper(1e-4, 0.9, 0.95, 1e-8, 0.1, 1, 1);
    model_update(model, &hyper);
}

// A table in Markdown: ms a step.
static void profile_paper(const char *model_text, size_t B, size_t T, size_t micro) {
    static Run run;
    double total[2][PAPER_LEVELS] = {}, flops = 0, bytes = 0;
    if (sizeof(act_t) != 2) die_usage("paper: the cards' rates here are those of 16-bit products, not of %s", build_policy().name);
    parse_model(&run.config, model_text, T);
    run.B = B;
    run.T = T;
    run.micro = micro;
    if (micro < 1 || B % micro != 0) die_usage("%zu sequences at once do not divide %zu", micro, B);
    random_tokens(&run, 0);
    walk_step(&run);
    paper_head_size = run.config.C / run.config.NH;
    native_casts = BUILD_SCALING != SCALING_NONE && !run.model.linear.routes.why;
    double casts[2] = {0, 0};
    printf("%s, %s, B=%zu (%zu at once) T=%zu, gelu-fusion %d; ms a step at datasheet / best measured rates\n\n",
           build_policy().name, model_text, B, micro, T, gelu_fusion);
    printf("| operation | calls | Tflop | GB | flop/B | H100 | H200 | share, H100 |\n|---|---|---|---|---|---|---|---|\n");
    for (const OpTotal &op : op_totals)
        for (int card = 0; card < 2; card++) {
            for (int level = 0; level < PAPER_LEVELS; level++) total[card][level] += paper_ms(op, cards[card], level);
            if (op.name.find("quantize") == 0 || op.name == "linear_add_bias")
                casts[card] += paper_ms(op, cards[card], PAPER_BEST);
        }
    for (const OpTotal &op : op_totals) {
        printf("| %s | %d | %.2f | %.2f | %.0f |", op.name.c_str(), op.calls, op.flops * 1e-12, op.bytes * 1e-9,
               op.flops / op.bytes);
        for (const Card &card : cards)
            printf(" %.2f / %.2f |", paper_ms(op, card, PAPER_DATASHEET), paper_ms(op, card, PAPER_BEST));
        printf(" %.1f %% |\n", 100 * paper_ms(op, cards[0], PAPER_BEST) / total[0][PAPER_BEST]);
        flops += op.flops;
        bytes += op.bytes;
    }
    printf("| **sum** | | %.1f | %.1f | |", flops * 1e-12, bytes * 1e-9);
    for (int card = 0; card < 2; card++)
        printf(" **%.1f / %.1f** |", total[card][PAPER_DATASHEET], total[card][PAPER_BEST]);
    printf(" |\n\n");
    const double model_tflop = model_flops(&run) * 1e-12;
    printf("(6 N + 6 L C T) flops: %.1f Tflop a step. MFU at datasheet / best / estimated rates, of 989.4 TFLOP/s:",
           model_tflop);
    for (int card = 0; card < 2; card++) {
        printf(" %s", cards[card].name);
        for (int level = 0; level < PAPER_LEVELS; level++)
            printf("%s %.1f %%", level ? " /" : "", 100 * model_tflop / 0.9894 / total[card][level]);
        printf("%s", card ? "\n" : ";");
    }
    if (BUILD_SCALING == SCALING_NONE) return;
    printf("Casts and biases of their own: %.1f %% of the step on H100, %.1f %% on H200; products %s.\n",
           100 * casts[0] / total[0][PAPER_BEST], 100 * casts[1] / total[1][PAPER_BEST],
           native_casts ? "native" : "emulated in bf16");
}

int main(int argc, char **argv) {
    if (argc > 3 && strcmp(argv[argc - 2], "--gelu-fusion") == 0) {
        gelu_fusion = atoi(argv[argc - 1]);
        argc -= 2;
        if (gelu_fusion < 1 || gelu_fusion > 2) die_usage("--gelu-fusion '%s' is neither 1 nor 2", argv[argc + 1]);
        if (BUILD_SCALING != SCALING_NONE || sizeof(act_t) != 2)
            die_usage("--gelu-fusion is for bf16 and fp16, not for %s", build_policy().name);
    }
    const char *what = argc > 1 ? argv[1] : "help";
    auto number = [&](int i, size_t otherwise) {
        size_t value = argc > i ? strtoul(argv[i], NULL, 10) : otherwise;
        if (value < 1) die_usage("'%s' is no number from 1", argv[i]);
        return value;
    };
    const char *model = argc > 2 ? argv[2] : "d12";
    if (strcmp(what, "ceiling") == 0) {
        device_check();
        const Ceiling ceiling = measure_ceiling(number(2, 8192));
        printf("result: precision=%s best_tflops=%.1f copy_gb_per_s=%.0f\n", build_policy().name, ceiling.flops * 1e-12,
               ceiling.bytes * 1e-9);
    } else if (strcmp(what, "step") == 0 || strcmp(what, "once") == 0) {
        profile_step(model, number(3, 64), number(4, 1024), (int)number(5, 10), number(6, 8192), what[0] == 'o');
    } else if (strcmp(what, "paper") == 0) {
        profile_paper(model, number(3, 64), number(4, 1024), number(5, number(3, 64)));
    } else {
        printf("profile_gpt step MODEL B T [STEPS [CEILING_SIZE]] | once MODEL B T | ceiling [SIZE] | "
               "paper MODEL B T [AT_ONCE], and [--gelu-fusion 1|2]\n");
        return strcmp(what, "help") == 0 ? 0 : 2;
    }
    return 0;
}
