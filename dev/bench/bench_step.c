// bench_step.c: the whole training step of train_gpt.c as tokens a second and as a share of the machine's own peak.
//
//     bench_step                     d12 with B=4 T=64, and a 4-layer, 128-channel byte model with B=12 T=64
//     bench_step NAME B T STEPS      one named shape
//     make bench LLMC=/path/to/llm.c PYTHON=/path/to/python-with-torch   other trainers beside it (peers.sh)
//
// A step is forward, backward, gradient norm and AdamW on random tokens. Its GEMM flops are counted as 6 a parameter and
// token (tied head included, embeddings' look-ups not) plus 6 L C T a token for causal attention; the time all of them would
// take at the FMA peak measured just before is the roofline. Printed besides: peak memory against the plan.
#define TESTING
#include "../../train_gpt.c"

#include <sys/resource.h>

#include "roofline.h"

typedef struct {
    const char *name;
    GPTConfig config;
    size_t B, T;
    int steps;
} StepCase;

// Multiply-adds that a GEMM must do, in flops, for one step.
static double step_flops(const StepCase *c) {
    double N = (double)c->B * (double)c->T, C = (double)c->config.C, L = (double)c->config.L;
    double linear = 12.0 * L * C * C + (double)c->config.Vp * C;
    return N * (6.0 * linear + 6.0 * L * C * (double)c->T);
}

static double peak_bytes(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)usage.ru_maxrss * 1024.0;
}

static double planned_bytes(Model *model) {
    Arena *arenas[8] = {NULL};
    double total = 0;
    for (size_t i = 0, n = model_arenas(model, arenas); i < n; i++) total += (double)arenas[i]->used_bytes;
    return total;
}

// Seconds of the median of `steps` steps after one that is not counted.
static double time_steps(Model *model, const StepCase *c, int32_t *tokens) {
    double seconds[1000];
    size_t N = c->B * c->T;
    for (int step = 0; step <= c->steps; step++) {
        double start = now_seconds();
        int nonfinite;
        for (size_t i = 0; i <= N; i++)
            tokens[i] = (int32_t)(rand_u32(1, RAND_TEST, 0, (uint32_t)step, i) % (uint32_t)c->config.V);
        model_zero_grad(model);
        model_forward(model, tokens, tokens + 1, c->B, c->T, 1.0f / (float)N);
        model_backward(model);
        double norm = model_grad_norm(model, &nonfinite);
        AdamWHyper hyper = adamw_hyper(1e-4, 0.9, 0.95, 1e-8, 0.1, norm > 1 ? 1 / norm : 1, (uint64_t)step + 1);
        model_update(model, &hyper);
        if (step > 0) seconds[step - 1] = now_seconds() - start;
    }
    for (int i = 1; i < c->steps; i++)  // insertion sort
        for (int j = i; j > 0 && seconds[j] < seconds[j - 1]; j--) {
            double swap = seconds[j];
            seconds[j] = seconds[j - 1];
            seconds[j - 1] = swap;
        }
    return seconds[c->steps / 2];
}

static void bench(const StepCase *c) {
    static Model model;
    BatchShape shape = {c->B, c->T, 0};
    char planned[32], peak[32];
    int32_t *tokens = (int32_t *)checked_calloc(c->B * c->T + 1, sizeof(int32_t), "tokens");
    double flops_per_s = roofline_flops(thread_count(), 100);  // long enough for the scheduler to spread threads
    model_plan(&model, &c->config, &shape, 0);
    double plan = planned_bytes(&model);
    model_create(&model);
    model_init_weights(&model, 42);
    double seconds = time_steps(&model, c, tokens), ideal = step_flops(c) / flops_per_s;
    printf("%-6s B=%zu T=%zu: %8.1f ms a step  %8.0f tok/s  %5.1f %% of the FMA peak (%.0f GFLOP/s, %d threads)\n", c->name,
           c->B, c->T, seconds * 1e3, (double)(c->B * c->T) / seconds, 100 * ideal / seconds, flops_per_s * 1e-9,
           thread_count());
    printf("       memory planned %s, most in use so far %s\n", format_bytes_text(planned, plan),
           format_bytes_text(peak, peak_bytes()));
    fflush(stdout);
    model_destroy(&model);
    free(tokens);
}

static StepCase named_case(const char *name, size_t B, size_t T, int steps) {
    const NamedShape *shape = find_shape(name);
    StepCase c = {name, {0, 0, 0, 0, 0, 0}, B, T, steps};
    if (!shape) die_usage("there is no model named '%s'", name);
    c.config.L = shape->L;
    c.config.NH = shape->NH;
    c.config.C = shape->C;
    c.config.max_T = max_size(T, 1024);
    config_set_vocab(&c.config, 50257);
    return c;
}

int main(int argc, char **argv) {
    limit_thread_spinning(argv);
    if (argc == 5) {
        StepCase c = named_case(argv[1], strtoul(argv[2], NULL, 10), strtoul(argv[3], NULL, 10), atoi(argv[4]));
        if (c.steps < 1 || c.steps > 1000 || c.B < 1 || c.T < 1) die_usage("bench_step NAME B T STEPS: STEPS is 1 to 1000");
        bench(&c);
        return 0;
    }
    StepCase small = {"small", {4, 4, 128, 0, 0, 64}, 12, 64, 40};
    config_set_vocab(&small.config, 257);
    bench(&small);
    StepCase d12 = named_case("d12", 4, 64, 8);
    bench(&d12);
    return 0;
}
