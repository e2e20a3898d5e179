// bench_matmul.c: the linear layer's products as shares of the machine's own peak, measured in the same run.
//
//     bench_matmul             the shapes of d12 (256 tokens) and of a 128-channel model (768 tokens), 1..all threads
//     bench_matmul N C OC      one shape
//
// With -DBENCH_BLAS and -lopenblas (or any CBLAS) each product is also run through that library: "x BLAS" is its time
// over ours. Weights come from memory, not from cache: products go round a ring of weights of RING_BYTES in all.
#include "../../llmc/matmul.h"
#include "roofline.h"

#ifdef BENCH_BLAS
#include <cblas.h>
void openblas_set_num_threads(int threads);
#endif

#define RING_BYTES ((size_t)160 << 20)
#define SECONDS_A_POINT 0.15  // of each measurement

typedef enum { FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, OPERATIONS } Operation;
static const char *const operation_names[OPERATIONS] = {"forward", "dinp", "dweight +="};

typedef struct {
    size_t N, C, OC, ring;  // ring: how many weight (and weight gradient) matrices there are
    float *inp, *out, *dout, *dinp, *bias, *weights, *dweights;
    MatmulScratch scratch;
} Case;

static void run_ours(Case *c, Operation op, size_t turn) {
    float *weight = c->weights + turn % c->ring * c->C * c->OC, *dweight = c->dweights + turn % c->ring * c->C * c->OC;
    if (op == FORWARD) matmul_forward(&c->scratch, c->out, c->inp, weight, c->bias, c->N, c->C, c->OC);
    if (op == BACKWARD_INPUT) matmul_backward_input(&c->scratch, c->dinp, c->dout, weight, c->N, c->C, c->OC, 0);
    if (op == BACKWARD_WEIGHT) matmul_backward_weight(&c->scratch, dweight, c->dout, c->inp, c->N, c->C, c->OC, 1);
}

#ifdef BENCH_BLAS
static void run_blas(Case *c, Operation op, size_t turn) {
    float *weight = c->weights + turn % c->ring * c->C * c->OC, *dweight = c->dweights + turn % c->ring * c->C * c->OC;
    const int N = (int)c->N, C = (int)c->C, OC = (int)c->OC;
    if (op == FORWARD)
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, N, OC, C, 1, c->inp, C, weight, C, 0, c->out, OC);
    if (op == BACKWARD_INPUT)
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, N, C, OC, 1, c->dout, OC, weight, C, 0, c->dinp, C);
    if (op == BACKWARD_WEIGHT)
        cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, OC, C, N, 1, c->dout, OC, c->inp, C, 1, dweight, C);
}
#endif

// Seconds of one call: the best of as many as fit, since anything else on the machine only ever adds.
static double time_best(void (*run)(Case *, Operation, size_t), Case *c, Operation op) {
    const double begin = now_seconds();
    double best = 1e30;
    for (size_t turn = 0; turn < 3 || now_seconds() - begin < SECONDS_A_POINT; turn++) {
        const double start = now_seconds();
        run(c, op, turn);
        const double time = now_seconds() - start;
        if (turn > 0 && time < best) best = time;  // the first call touches new memory
    }
    return best;
}

static float *take_filled(Arena *arena, size_t n) {
    float *x = (float *)arena_take(arena, n, sizeof(float));
    for (size_t i = 0; i < n && arena->base; i++) x[i] = (float)(i % 1000) * 0.001f - 0.5f;
    return x;
}

static void take_buffers(Case *c, Arena *arena, int threads) {
    c->inp = take_filled(arena, c->N * c->C);
    c->dinp = take_filled(arena, c->N * c->C);
    c->out = take_filled(arena, c->N * c->OC);
    c->dout = take_filled(arena, c->N * c->OC);
    c->bias = take_filled(arena, c->OC);
    c->weights = take_filled(arena, c->ring * c->C * c->OC);
    c->dweights = take_filled(arena, c->ring * c->C * c->OC);
    c->scratch = matmul_scratch(arena_take(arena, matmul_scratch_bytes(threads), 1), threads);
}

// FMA peak with this many threads: the best seen in the whole run, since a neighbour on the machine can only lower it.
static double peak_flops(int threads) {
    static double best[1024];
    double *peak = &best[threads < 1024 ? threads : 0];
    const double now = roofline_flops(threads, 8);
    if (now > *peak) *peak = now;
    return *peak;
}

static void bench_products(Case *c, int threads) {
    for (int op = 0; op < OPERATIONS; op++) {
        const double flops = 2.0 * (double)c->N * (double)c->C * (double)c->OC;
        const double ours = flops / time_best(run_ours, c, (Operation)op), peak = peak_flops(threads);
        printf("%7d %5zu %5zu %6zu  %-11s %8.1f %8.1f %6.1f %%", threads, c->N, c->C, c->OC, operation_names[op],
               ours * 1e-9, peak * 1e-9, 100 * ours / peak);
#ifdef BENCH_BLAS
        openblas_set_num_threads(threads);
        printf(" %8.2f", ours * time_best(run_blas, c, (Operation)op) / flops);
#endif
        printf("\n");
        fflush(stdout);
    }
}

// The two memory-bound ones: bytes that must be read at least, over the time, as a share of the read bandwidth.
static void bench_vectors(Case *c, int threads, double bandwidth) {
    double matvec = 1e30, bias = 1e30;
    for (size_t turn = 0; turn < 4 * c->ring && turn < 400; turn++) {
        const double start = now_seconds();
        matvec_forward(c->out, c->inp, c->weights + turn % c->ring * c->C * c->OC, c->bias, c->C, c->OC);
        const double middle = now_seconds();
        matmul_backward_bias(c->bias, c->dout, c->N, c->OC, 1);
        const double end = now_seconds();
        if (turn > 0 && middle - start < matvec) matvec = middle - start;
        if (turn > 0 && end - middle < bias) bias = end - middle;
    }
    const double matvec_rate = (double)(c->C * c->OC * sizeof(float)) / matvec;
    printf("%7d %5d %5zu %6zu  %-11s %6.1f GB/s of %.1f (%.0f %%)\n", threads, 1, c->C, c->OC, "matvec",
           matvec_rate * 1e-9, bandwidth * 1e-9, 100 * matvec_rate / bandwidth);
    printf("%7d %5zu %5s %6zu  %-11s %6.1f GB/s (dout may be in cache)\n", threads, c->N, "", c->OC, "dbias",
           (double)(c->N * c->OC * sizeof(float)) / bias * 1e-9);
}

static void bench_shape(size_t N, size_t C, size_t OC, int max_threads) {
    Case c;
    memset(&c, 0, sizeof c);
    c.N = N;
    c.C = C;
    c.OC = OC;
    c.ring = max_size(1, min_size(400, RING_BYTES / (C * OC * sizeof(float))));
    Arena arena = {"bench", NULL, 0, 0};
    take_buffers(&c, &arena, max_threads);
    arena_allocate(&arena);
    take_buffers(&c, &arena, max_threads);
    for (int threads = 1; threads <= max_threads; threads *= 2) {
        set_thread_count(threads);
        bench_products(&c, threads);
        if (C * OC * sizeof(float) * c.ring >= RING_BYTES / 2)
            bench_vectors(&c, threads, roofline_bandwidth(threads, RING_BYTES, 4).read);
    }
    arena_free(&arena);
}

int main(int argc, char **argv) {
    static const size_t shapes[][3] = {{256, 768, 2304}, {256, 768, 768},   {256, 768, 3072},
                                       {256, 3072, 768}, {256, 768, 50304}, {768, 128, 384},
                                       {768, 128, 128},  {768, 128, 512},   {768, 512, 128}};
    const int max_threads = thread_count();
    for (int threads = 1; threads <= max_threads; threads *= 2) {
        const RooflineBandwidth b = roofline_bandwidth(threads, RING_BYTES, 4);
        printf("%s, %d thread%s: %.1f GFLOP/s of FMA, memory %.1f GB/s read, %.1f GB/s copied\n", VEC_NAME, threads,
               threads > 1 ? "s" : "", peak_flops(threads) * 1e-9, b.read * 1e-9, b.copy * 1e-9);
    }
    printf("threads     N     C     OC  product      GFLOP/s     peak    share%s\n",
#ifdef BENCH_BLAS
           "   x BLAS"
#else
           ""
#endif
    );
    if (argc == 4) {
        bench_shape(strtoul(argv[1], NULL, 10), strtoul(argv[2], NULL, 10), strtoul(argv[3], NULL, 10), max_threads);
        return 0;
    }
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        bench_shape(shapes[i][0], shapes[i][1], shapes[i][2], max_threads);
    return 0;
}
