// test_matmul.c: the linear layer's products against plain loops in double precision, over awkward sizes.
//
// Every output starts as NaN where the contract says `=`, sits between guard words, and is computed with 1, 2 and 3
// threads, which must agree bit for bit. The bound is 4 epsilon sqrt(K) times the root of the sum of squared products.
#include "../../llmc/matmul.h"
#include "test.h"

#define GUARD 32
#define GUARD_WORD 12345.678f
#define MAX_THREADS 3

// ----------------------------------------------------------------------------------------------------------------
// Buffers

static MatmulScratch scratch;
static uint32_t random_state = 1;

// Roughly uniform in [-1, 1): good enough to make every element of an operand different.
static float random_float(void) {
    random_state = random_state * 1664525u + 1013904223u;
    return (float)(int32_t)random_state / 2147483648.0f;
}

static float *buffer_new(size_t n) {
    float *x = (float *)checked_calloc(n + 2 * GUARD, sizeof(float), "a test buffer");
    for (size_t i = 0; i < GUARD; i++) x[i] = x[GUARD + n + i] = GUARD_WORD;
    return x + GUARD;
}

static float *buffer_random(size_t n) {
    float *x = buffer_new(n);
    for (size_t i = 0; i < n; i++) x[i] = random_float();
    return x;
}

static void buffer_fill(float *x, size_t n, float value) {
    for (size_t i = 0; i < n; i++) x[i] = value;
}

static void buffer_free(float *x, size_t n, const char *name) {
    for (size_t i = 0; i < GUARD; i++)
        CHECK(x[-1 - (ptrdiff_t)i] == GUARD_WORD && x[n + i] == GUARD_WORD, "guard word %zu of %s was overwritten", i,
              name);
    free(x - GUARD);
}

// ----------------------------------------------------------------------------------------------------------------
// The reference: element (i, j) of a product whose operands have any strides, and the scale of its rounding error

typedef struct {
    const float *a, *b;
    size_t a_outer, a_k, b_outer, b_k, K;
} Product;

static double product_element(const Product *p, size_t i, size_t j, double *magnitude) {
    double sum = 0, squares = 0;
    for (size_t k = 0; k < p->K; k++) {
        const double term = (double)p->a[i * p->a_outer + k * p->a_k] * p->b[j * p->b_outer + k * p->b_k];
        sum += term;
        squares += term * term;
    }
    *magnitude = sqrt(squares);
    return sum;
}

// Checks out (M, N) = alpha * product + bias + old; prints the worst element if it is out of bounds.
static void check_product(const char *what, const float *out, const Product *p, size_t M, size_t N, const float *bias,
                          const float *old, double alpha) {
    double worst = 0, worst_want = 0;
    size_t worst_i = 0, worst_j = 0;
    for (size_t i = 0; i < M; i++) {
        for (size_t j = 0; j < N; j++) {
            double magnitude;
            double want = alpha * product_element(p, i, j, &magnitude);
            if (bias) want += bias[j];
            if (old) want += old[i * N + j];
            const double bound = 4 * 1.1920929e-7 * (sqrt((double)p->K) * fabs(alpha) * magnitude + fabs(want) + 1e-30);
            const double share = fabs(out[i * N + j] - want) / bound;
            if (!(share <= worst)) {  // NaN comes here too
                worst = share;
                worst_i = i;
                worst_j = j;
                worst_want = want;
            }
            if (worst != worst) goto done;
        }
    }
done:
    CHECK(worst <= 1, "%s M=%zu N=%zu K=%zu: element (%zu, %zu) is %.9g, want %.9g: %.3g of the bound", what, M, N,
          p->K, worst_i, worst_j, (double)out[worst_i * N + worst_j], worst_want, worst);
}

// ----------------------------------------------------------------------------------------------------------------
// All operations on one shape

enum { FORWARD, FORWARD_BIAS, BACKWARD_INPUT, BACKWARD_INPUT_ADD, BACKWARD_WEIGHT, BACKWARD_WEIGHT_ADD, OPERATIONS };
static const char *const operation_names[OPERATIONS] = {"forward",           "forward with bias", "backward_input",
                                                        "backward_input +=", "backward_weight",   "backward_weight +="};

typedef struct {
    size_t N, C, OC;
    float *inp, *weight, *bias, *dout;
} Layer;

static void run_operation(int op, float *out, const Layer *l) {
    const int add = op == BACKWARD_INPUT_ADD || op == BACKWARD_WEIGHT_ADD;
    switch (op) {
        case FORWARD: matmul_forward(&scratch, out, l->inp, l->weight, NULL, l->N, l->C, l->OC); break;
        case FORWARD_BIAS: matmul_forward(&scratch, out, l->inp, l->weight, l->bias, l->N, l->C, l->OC); break;
        case BACKWARD_INPUT:
        case BACKWARD_INPUT_ADD:
            matmul_backward_input(&scratch, out, l->dout, l->weight, l->N, l->C, l->OC, add);
            break;
        default: matmul_backward_weight(&scratch, out, l->dout, l->inp, l->N, l->C, l->OC, add); break;
    }
}

static void operation_product(int op, const Layer *l, Product *p, size_t *rows, size_t *cols) {
    const Product forward = {l->inp, l->weight, l->C, 1, l->C, 1, l->C};
    const Product input = {l->dout, l->weight, l->OC, 1, 1, l->C, l->OC};
    const Product weight = {l->dout, l->inp, 1, l->OC, 1, l->C, l->N};
    *p = op <= FORWARD_BIAS ? forward : op <= BACKWARD_INPUT_ADD ? input : weight;
    *rows = op <= BACKWARD_INPUT_ADD ? l->N : l->OC;
    *cols = op <= FORWARD_BIAS ? l->OC : l->C;
}

static void check_operation(int op, const Layer *l) {
    Product product;
    size_t rows, cols;
    operation_product(op, l, &product, &rows, &cols);
    const int add = op == BACKWARD_INPUT_ADD || op == BACKWARD_WEIGHT_ADD;
    float *old = buffer_random(rows * cols), *one = buffer_new(rows * cols), *out = buffer_new(rows * cols);
    for (int threads = 1; threads <= MAX_THREADS; threads++) {
        float *result = threads == 1 ? one : out;
        set_thread_count(threads);
        if (add) memcpy(result, old, rows * cols * sizeof(float));
        else buffer_fill(result, rows * cols, NAN);
        run_operation(op, result, l);
        if (threads > 1)
            CHECK(memcmp(one, out, rows * cols * sizeof(float)) == 0,
                  "%s N=%zu C=%zu OC=%zu: %d threads give other bits than 1", operation_names[op], l->N, l->C, l->OC,
                  threads);
    }
    check_product(operation_names[op], one, &product, rows, cols, op == FORWARD_BIAS ? l->bias : NULL, add ? old : NULL,
                  1);
    buffer_free(old, rows * cols, "old");
    buffer_free(one, rows * cols, operation_names[op]);
    buffer_free(out, rows * cols, operation_names[op]);
}

static void check_bias_gradient(const Layer *l, int add) {
    float *old = buffer_random(l->OC), *one = buffer_new(l->OC), *out = buffer_new(l->OC), *ones = buffer_new(l->N);
    const Product sums = {ones, l->dout, 0, 1, 1, l->OC, l->N};
    buffer_fill(ones, l->N, 1);
    for (int threads = 1; threads <= MAX_THREADS; threads++) {
        float *result = threads == 1 ? one : out;
        set_thread_count(threads);
        buffer_fill(result, l->OC, NAN);
        if (add) memcpy(result, old, l->OC * sizeof(float));
        matmul_backward_bias(result, l->dout, l->N, l->OC, add);
        if (threads > 1)
            CHECK(memcmp(one, out, l->OC * sizeof(float)) == 0, "bias gradient: %d threads differ", threads);
    }
    check_product("bias gradient", one, &sums, 1, l->OC, NULL, add ? old : NULL, 1);
    buffer_free(old, l->OC, "old");
    buffer_free(one, l->OC, "dbias");
    buffer_free(out, l->OC, "dbias");
    buffer_free(ones, l->N, "ones");
}

static void check_matvec(const Layer *l, const float *bias) {
    float *one = buffer_new(l->OC), *out = buffer_new(l->OC);
    const Product product = {l->inp, l->weight, l->C, 1, l->C, 1, l->C};
    for (int threads = 1; threads <= MAX_THREADS; threads++) {
        float *result = threads == 1 ? one : out;
        set_thread_count(threads);
        buffer_fill(result, l->OC, NAN);
        matvec_forward(result, l->inp, l->weight, bias, l->C, l->OC);
        if (threads > 1) CHECK(memcmp(one, out, l->OC * sizeof(float)) == 0, "matvec: %d threads differ", threads);
    }
    check_product("matvec", one, &product, 1, l->OC, bias, NULL, 1);
    buffer_free(one, l->OC, "matvec");
    buffer_free(out, l->OC, "matvec");
}

static void layer_new(Layer *l, size_t N, size_t C, size_t OC) {
    Layer layer = {N, C, OC, buffer_random(N * C), buffer_random(OC * C), buffer_random(OC), buffer_random(N * OC)};
    *l = layer;
}

static void layer_free(Layer *l) {
    buffer_free(l->inp, l->N * l->C, "inp");
    buffer_free(l->weight, l->OC * l->C, "weight");
    buffer_free(l->bias, l->OC, "bias");
    buffer_free(l->dout, l->N * l->OC, "dout");
}

static void check_shape(size_t N, size_t C, size_t OC) {
    Layer l;
    layer_new(&l, N, C, OC);
    for (int op = 0; op < OPERATIONS; op++) check_operation(op, &l);
    check_bias_gradient(&l, 0);
    check_bias_gradient(&l, 1);
    check_matvec(&l, NULL);
    check_matvec(&l, l.bias);
    layer_free(&l);
}

// ----------------------------------------------------------------------------------------------------------------
// Tests

// Each size in each of the three places, the others small, so that every edge of a tile is met in every role.
TEST(every_small_size) {
    for (size_t n = 1; n <= 35; n++) {
        check_shape(n, 17, 19);
        check_shape(5, n, 33);
        check_shape(15, 3, n);
    }
}

TEST(awkward_sizes) {
    static const size_t sizes[] = {1, 2, 13, 14, 15, 31, 33, 65, 67, 127, 129, 257};
    const size_t count = sizeof sizes / sizeof *sizes;
    for (size_t i = 0; i < count; i++)
        for (size_t j = 0; j < count; j++) check_shape(sizes[i], sizes[j], sizes[(i * 5 + j * 7 + 3) % count]);
}

// More rows than one packed block, more columns than one block of sums, several chunks of K: in each operation.
TEST(beyond_one_block) {
    check_shape(GEMM_ROWS + 3, 2 * GEMM_CHUNK + 1, 35);
    check_shape(2 * GEMM_CHUNK + 1, GEMM_COLS + 37, 7);
    check_shape(9, GEMM_CHUNK + 1, GEMM_COLS + 33);
    check_shape(GEMM_CHUNK, GEMM_CHUNK, GEMM_CHUNK);
}

// A row of the result may not depend on how many rows are computed with it: validation must not change with the batch.
TEST(row_does_not_depend_on_N) {
    enum { N = 47, C = 300, OC = 70 };
    Layer l;
    layer_new(&l, N, C, OC);
    float *all = buffer_new(N * OC), *some = buffer_new(N * OC);
    float *dall = buffer_new(N * C), *dsome = buffer_new(N * C);
    matmul_forward(&scratch, all, l.inp, l.weight, l.bias, N, C, OC);
    matmul_backward_input(&scratch, dall, l.dout, l.weight, N, C, OC, 0);
    for (size_t n = 1; n < N; n++) {
        matmul_forward(&scratch, some, l.inp + (N - n) * C, l.weight, l.bias, n, C, OC);
        CHECK(memcmp(some, all + (N - n) * OC, n * OC * sizeof(float)) == 0, "forward of the last %zu rows differs", n);
        matmul_backward_input(&scratch, dsome, l.dout, l.weight, n, C, OC, 0);
        CHECK(memcmp(dsome, dall, n * C * sizeof(float)) == 0, "backward_input of the first %zu rows differs", n);
    }
    buffer_free(all, N * OC, "all");
    buffer_free(some, N * OC, "some");
    buffer_free(dall, N * C, "dall");
    buffer_free(dsome, N * C, "dsome");
    layer_free(&l);
}

// One NaN or infinity reaches its row (or column) of the result and nothing else, even against zeros.
TEST(not_finite) {
    enum { N = 33, C = 300, OC = 50 };
    static const float values[] = {NAN, INFINITY, -INFINITY};
    Layer l;
    layer_new(&l, N, C, OC);
    buffer_fill(l.weight, OC * C, 0);
    float *out = buffer_new(N * OC), *dweight = buffer_new(OC * C), *vector = buffer_new(OC);
    for (size_t v = 0; v < 3; v++) {
        const size_t row = 20, c = v == 0 ? C - 1 : 37 * v;
        const float kept = l.inp[row * C + c];
        l.inp[row * C + c] = values[v];
        matmul_forward(&scratch, out, l.inp, l.weight, NULL, N, C, OC);
        for (size_t i = 0; i < N; i++)  // 0 times NaN and 0 times infinity are NaN
            for (size_t j = 0; j < OC; j++)
                CHECK(i == row ? isnan(out[i * OC + j]) : out[i * OC + j] == 0, "forward (%zu, %zu) is %g", i, j,
                      (double)out[i * OC + j]);
        matmul_backward_weight(&scratch, dweight, l.dout, l.inp, N, C, OC, 0);
        for (size_t i = 0; i < OC * C; i++)
            CHECK((i % C == c) == !isfinite(dweight[i]), "backward_weight (%zu, %zu) is %g", i / C, i % C,
                  (double)dweight[i]);
        matvec_forward(vector, l.inp + row * C, l.weight, NULL, C, OC);
        for (size_t j = 0; j < OC; j++) CHECK(isnan(vector[j]), "matvec %zu is %g", j, (double)vector[j]);
        l.inp[row * C + c] = kept;
    }
    buffer_free(out, N * OC, "out");
    buffer_free(dweight, OC * C, "dweight");
    buffer_free(vector, OC, "vector");
    layer_free(&l);
}

// The same from the other side: a zero activation must not hide a weight that is NaN.
TEST(not_finite_weight) {
    enum { N = 20, C = 40, OC = 50 };
    Layer l;
    layer_new(&l, N, C, OC);
    float *out = buffer_new(N * OC), *dinp = buffer_new(N * C);
    buffer_fill(l.inp, N * C, 0);
    buffer_fill(l.dout, N * OC, 0);
    l.weight[7 * C + 33] = NAN;
    matmul_forward(&scratch, out, l.inp, l.weight, NULL, N, C, OC);
    matmul_backward_input(&scratch, dinp, l.dout, l.weight, N, C, OC, 0);
    for (size_t i = 0; i < N; i++) {
        for (size_t j = 0; j < OC; j++) CHECK(isnan(out[i * OC + j]) == (j == 7), "forward (%zu, %zu)", i, j);
        for (size_t j = 0; j < C; j++) CHECK(isnan(dinp[i * C + j]) == (j == 33), "backward_input (%zu, %zu)", i, j);
    }
    buffer_free(out, N * OC, "out");
    buffer_free(dinp, N * C, "dinp");
    layer_free(&l);
}

// What the low-precision modes ask of gemm(): partial sums of k_chunk products, one multiplication by alpha at the end,
// then what was there before. The same arithmetic one operation at a time must give the same bits.
TEST(chunks_and_alpha) {
    enum { M = 19, N = 37, K = 389, CHUNK = 128 };
    const float alpha = 0.37f;
    float *a = buffer_random(M * K), *b = buffer_random(N * K), *old = buffer_random(M * N), *out = buffer_new(M * N);
    for (int accumulate = 0; accumulate <= 1; accumulate++) {
        Gemm g = {M, N, K, {a, K, 1}, {b, K, 1}, out, N, NULL, alpha, CHUNK, accumulate, ROUND_GRAD};
        memcpy(out, old, M * N * sizeof(float));
        gemm(&scratch, &g);
        for (size_t i = 0; i < M; i++) {
            for (size_t j = 0; j < N; j++) {
                float sum = 0;
                for (size_t k0 = 0; k0 < K; k0 += CHUNK) {
                    vecf part = vec_zero();  // vec_fma, since fused or not depends on the target
                    for (size_t k = k0; k < K && k < k0 + CHUNK; k++)
                        part = vec_fma(vec_set1(a[i * K + k]), vec_set1(b[j * K + k]), part);
                    float lanes[VEC_WIDTH];
                    vec_store(lanes, part);
                    sum = k0 == 0 ? lanes[0] : sum + lanes[0];
                }
                const float want = accumulate ? old[i * N + j] + alpha * sum : alpha * sum;
                CHECK(out[i * N + j] == want, "accumulate=%d (%zu, %zu) is %.9g, want %.9g", accumulate, i, j,
                      (double)out[i * N + j], (double)want);
            }
        }
    }
    buffer_free(a, M * K, "a");
    buffer_free(b, N * K, "b");
    buffer_free(old, M * N, "old");
    buffer_free(out, M * N, "out");
}

// More threads than there is scratch for, or than there are tiles, or a prime number of them.
TEST(thread_counts) {
    enum { N = 40, C = 70, OC = 90 };
    Layer l;
    layer_new(&l, N, C, OC);
    float *one = buffer_new(N * OC), *out = buffer_new(N * OC);
    set_thread_count(1);
    matmul_forward(&scratch, one, l.inp, l.weight, l.bias, N, C, OC);
    void *memory = checked_calloc(matmul_scratch_bytes(13), 1, "scratch for 13 threads");
    for (int with_scratch = 1; with_scratch <= 13; with_scratch += 4) {
        MatmulScratch many = matmul_scratch(memory, with_scratch);
        for (int threads = 1; threads <= 13; threads++) {
            set_thread_count(threads);
            buffer_fill(out, N * OC, NAN);
            matmul_forward(&many, out, l.inp, l.weight, l.bias, N, C, OC);
            CHECK(memcmp(one, out, N * OC * sizeof(float)) == 0, "%d threads with scratch for %d differ", threads,
                  with_scratch);
        }
    }
    free(memory);
    buffer_free(one, N * OC, "one");
    buffer_free(out, N * OC, "out");
    layer_free(&l);
}

TEST(vectors) {
    float in[VEC_WIDTH * VEC_WIDTH], out[VEC_WIDTH + 1];
    vecf block[VEC_WIDTH];
    for (int i = 0; i < VEC_WIDTH * VEC_WIDTH; i++) in[i] = (float)i;
    for (int i = 0; i < VEC_WIDTH; i++) block[i] = vec_load(in + i * VEC_WIDTH);
    vec_transpose(block);
    for (int i = 0; i < VEC_WIDTH; i++) {
        vec_store(out, block[i]);
        for (int j = 0; j < VEC_WIDTH; j++)
            CHECK(out[j] == in[j * VEC_WIDTH + i], "transpose (%d, %d) is %g", i, j, (double)out[j]);
    }
    for (size_t n = 0; n <= VEC_WIDTH; n++) {
        for (int j = 0; j <= VEC_WIDTH; j++) out[j] = -1;
        vec_store_partial(out, vec_load_partial(in + 1, n) + vec_set1(0.5f), n);
        for (size_t j = 0; j <= VEC_WIDTH; j++)
            CHECK(out[j] == (j < n ? in[1 + j] + 0.5f : -1), "partial of %zu: lane %zu is %g", n, j, (double)out[j]);
        CHECK(vec_sum(vec_load_partial(in + 1, n)) == (float)(n * (n + 1) / 2), "sum of 1..%zu", n);
    }
}

int main(void) {
    void *memory = checked_calloc(matmul_scratch_bytes(MAX_THREADS), 1, "matmul scratch");
    scratch = matmul_scratch(memory, MAX_THREADS);
    printf("vectors: %s, tile %d x %d\n", VEC_NAME, GEMM_TILE_ROWS, GEMM_TILE_COLS);
    RUN(vectors);
    RUN(every_small_size);
    RUN(awkward_sizes);
    RUN(beyond_one_block);
    RUN(row_does_not_depend_on_N);
    RUN(not_finite);
    RUN(not_finite_weight);
    RUN(chunks_and_alpha);
    RUN(thread_counts);
    free(memory);
    return test_summary();
}
