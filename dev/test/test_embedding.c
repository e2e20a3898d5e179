// embedding.h: sums of rows, repeated tokens, untouched rows, thread counts.
#include "../../llmc/embedding.h"

#include "compare.h"

typedef struct {
    size_t B, T, C, V;
} Shape;

static const Shape shapes[] = {{1, 1, 1, 2}, {1, 65, 48, 67}, {3, 7, 72, 5}, {2, 127, 80, 300}, {4, 16, 130, 67}};
#define SHAPES (sizeof shapes / sizeof shapes[0])

// Ids that repeat a lot, and never the last one.
static int32_t *random_ids(size_t n, size_t V, uint64_t seed) {
    int32_t *ids = (int32_t *)malloc(n * sizeof *ids);
    uint64_t state = test_seed(seed);
    for (size_t i = 0; ids && i < n; i++) {
        double u = test_uniform(&state);
        ids[i] = (int32_t)(u * u * (double)(V - 1));
    }
    return ids;
}

TEST(forward_adds_the_two_rows) {
    for (size_t k = 0; k < SHAPES; k++) {
        Shape s = shapes[k];
        size_t n = s.B * s.T * s.C;
        int32_t *ids = random_ids(s.B * s.T, s.V, k);
        float *wte = random_floats(s.V * s.C, 0.0f, 1.0f, 1), *wpe = random_floats(s.T * s.C, 0.0f, 1.0f, 2);
        float *out = guarded_floats(n, NAN), *want = guarded_floats(n, NAN);
        for (size_t i = 0; i < n; i++)
            want[i] = wte[(size_t)ids[i / s.C] * s.C + i % s.C] + wpe[i / s.C % s.T * s.C + i % s.C];
        embedding_forward(out, ids, wte, wpe, s.B, s.T, s.C);
        CHECK_SAME("out", out, want, n);
        guarded_free("out", out, n), guarded_free("want", want, n);
        guarded_free("wte", wte, s.V * s.C), guarded_free("wpe", wpe, s.T * s.C);
        free(ids);
    }
}

static void check_backward(Shape s, int threads) {
    size_t n = s.B * s.T * s.C, te = s.V * s.C, pe = (s.T + 3) * s.C;  // three positions beyond T
    int32_t *ids = random_ids(s.B * s.T, s.V, s.C);
    float *dout = random_floats(n, 0.0f, 1.0f, 3), *dwte = random_floats(te, 2.0f, 1.0f, 4);
    float *dwpe = random_floats(pe, 2.0f, 1.0f, 5), *te_start = random_floats(te, 2.0f, 1.0f, 4);
    float *te_serial = random_floats(te, 2.0f, 1.0f, 4), *pe_start = random_floats(pe, 2.0f, 1.0f, 5);
    double *te_want = zero_doubles(te), *pe_want = zero_doubles(pe);
    for (size_t i = 0; i < te; i++) te_want[i] = (double)dwte[i];
    for (size_t i = 0; i < pe; i++) pe_want[i] = (double)dwpe[i];
    for (size_t i = 0; i < n; i++) {
        te_want[(size_t)ids[i / s.C] * s.C + i % s.C] += (double)dout[i];
        te_serial[(size_t)ids[i / s.C] * s.C + i % s.C] += dout[i];
        pe_want[i / s.C % s.T * s.C + i % s.C] += (double)dout[i];
    }
    set_thread_count(threads);
    embedding_backward(dwte, dwpe, dout, ids, s.B, s.T, s.C);
    CHECK_CLOSE("dwte", dwte, te_want, te, FLT_EPSILON * sqrt((double)(s.B * s.T)));
    CHECK_CLOSE("dwpe", dwpe, pe_want, pe, FLT_EPSILON * sqrt((double)s.B));
    CHECK_SAME("dwte in row order", dwte, te_serial, te);
    CHECK_SAME("dwte of an absent token", dwte + te - s.C, te_start + te - s.C, s.C);
    CHECK_SAME("dwpe beyond T", dwpe + s.T * s.C, pe_start + s.T * s.C, 3 * s.C);
    free(te_want), free(pe_want), free(ids);
    guarded_free("dout", dout, n), guarded_free("dwte", dwte, te), guarded_free("dwpe", dwpe, pe);
    guarded_free("start", te_start, te), guarded_free("start", pe_start, pe), guarded_free("serial", te_serial, te);
}

TEST(backward_sums_in_row_order_for_any_thread_count) {
    int threads = thread_count();
    for (size_t k = 0; k < SHAPES; k++)
        for (int t = 1; t <= 7; t++) check_backward(shapes[k], t);
    set_thread_count(threads);
}

int main(void) {
    RUN(forward_adds_the_two_rows);
    RUN(backward_sums_in_row_order_for_any_thread_count);
    return test_summary();
}
