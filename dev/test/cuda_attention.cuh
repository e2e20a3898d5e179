// cuda_attention.cuh: attention.cuh against its CPU twin and a double-precision attention, in this build's precision.
// Included by test_gpt.cu, which calls test_attention_cuda(); with -DCUDA_ATTENTION_MAIN it is a program by itself.
//
// Against double: what the roundings of P, dS and the stores make, a few units of the storage format. Against the CPU
// twin, which rounds at the same points: fp32 differences, and a unit where one of them crosses a rounding boundary.
#ifndef DEV_CUDA_ATTENTION_CUH
#define DEV_CUDA_ATTENTION_CUH

#include "../../llmc/attention.cuh"
#include "../../llmc/attention.h"
#include "../../llmc/precision_types.cuh"
#include "compare.h"

typedef struct {
    size_t B, T, NH, HS;
} AttentionCase;

// Floats as elements of device memory and back, between guard words that are looked at on the way back.
template <typename E>
struct GuardedDevice {
    E *memory, *data;
    size_t n;
    static constexpr size_t GUARD = 64;  // elements: keeps 16-byte alignment

    // NaN everywhere, or the floats of `from` in this type
    GuardedDevice(size_t n_, const float *from) : n(n_) {
        E *host = (E *)malloc((n + 2 * GUARD) * sizeof(E));
        for (size_t i = 0; i < n + 2 * GUARD; i++) host[i] = E(NAN);
        for (size_t i = 0; i < GUARD; i++) host[i] = host[GUARD + n + i] = E(-1.5f);
        if (from)
            for (size_t i = 0; i < n; i++) host[GUARD + i] = E(from[i]);
        CUDA_CHECK(cudaMalloc((void **)&memory, (n + 2 * GUARD) * sizeof(E)));
        CUDA_CHECK(cudaMemcpy(memory, host, (n + 2 * GUARD) * sizeof(E), cudaMemcpyHostToDevice));
        free(host);
        data = memory + GUARD;
    }
    ~GuardedDevice() { cudaFree(memory); }
    GuardedDevice(const GuardedDevice &) = delete;

    float *to_host(const char *what) {
        E *host = (E *)malloc((n + 2 * GUARD) * sizeof(E));
        float *out = (float *)malloc((n ? n : 1) * sizeof(float));
        int intact = 1;
        CUDA_CHECK(cudaDeviceSynchronize());
        CUDA_CHECK(cudaMemcpy(host, memory, (n + 2 * GUARD) * sizeof(E), cudaMemcpyDeviceToHost));
        for (size_t i = 0; i < GUARD; i++) intact &= float(host[i]) == -1.5f && float(host[GUARD + n + i]) == -1.5f;
        CHECK(intact, "%s: wrote outside its %zu elements", what, n);
        for (size_t i = 0; i < n; i++) out[i] = float(host[GUARD + i]);
        free(host);
        return out;
    }
};

// out, lse and dqkv in double, the scores of one query at a time.
static void attention_double(double *out, double *lse, double *dqkv, const float *qkv, const float *dout,
                             AttentionCase s) {
    size_t C = s.NH * s.HS;
    double *p = zero_doubles(s.T), *dp = zero_doubles(s.T), scale = 1 / sqrt((double)s.HS);
    for (size_t i = 0; i < s.B * s.NH * s.T; i++) {
        size_t b = i / (s.NH * s.T), h = i / s.T % s.NH, t = i % s.T;
        size_t head = b * s.T * 3 * C + h * s.HS, o = (b * s.T + t) * C + h * s.HS, q = head + t * 3 * C;
        double max = -INFINITY, sum = 0, D = 0;
        for (size_t j = 0; j <= t; j++) {
            size_t k = head + C + j * 3 * C, v = k + C;
            p[j] = dp[j] = 0;
            for (size_t d = 0; d < s.HS; d++) {
                p[j] += (double)qkv[q + d] * qkv[k + d] * scale;
                dp[j] += (double)dout[o + d] * qkv[v + d];
            }
            max = fmax(max, p[j]);
        }
        for (size_t j = 0; j <= t; j++) sum += p[j] = exp(p[j] - max);
        lse[i] = max + log(sum);
        for (size_t j = 0; j <= t; j++) p[j] /= sum, D += p[j] * dp[j];
        for (size_t j = 0; j <= t; j++) {
            size_t k = head + C + j * 3 * C, v = k + C;
            double ds = p[j] * (dp[j] - D) * scale;
            for (size_t d = 0; d < s.HS; d++) {
                out[o + d] += p[j] * qkv[v + d];
                dqkv[v + d] += p[j] * dout[o + d];
                dqkv[q + d] += ds * qkv[k + d];
                dqkv[k + d] += ds * qkv[q + d];
            }
        }
    }
    free(p), free(dp);
}

// check_close, and a line with the worst error and its share of the limit.
static void attention_check(const char *what, AttentionCase s, const float *got, const double *want, size_t n,
                            double bound) {
    char name[96];
    double squares = 0, worst = 0;
    snprintf(name, sizeof name, "%s (B %zu T %zu NH %zu HS %zu)", what, s.B, s.T, s.NH, s.HS);
    CHECK_CLOSE(name, got, want, n, bound);
    for (size_t i = 0; i < n; i++) squares += want[i] * want[i];
    double rms = sqrt(squares / (double)n);
    for (size_t i = 0; i < n; i++) worst = fmax(worst, fabs(got[i] - want[i]) / (fabs(want[i]) + rms + DBL_MIN));
    printf("  %-44s worst %.2e, %3.0f %% of its limit\n", name, worst, 100 * worst / bound);
}

static double *attention_doubles(const float *x, size_t n) {
    double *y = zero_doubles(n);
    for (size_t i = 0; i < n; i++) y[i] = x[i];
    return y;
}

static float *attention_inputs(size_t n, float scale, uint64_t seed) {
    float *x = random_floats(n, 0.0f, scale, seed);
    for (size_t i = 0; i < n; i++) x[i] = round_act(x[i]);
    return x;
}

// Distances between fp32 results in units of fp32, plus units of the storage format where it is narrower.
static double attention_bound(double fp32_units, double format_units) {
    double narrow = BUILD_ACT == FORMAT_FP32 ? 0 : format_units * format_epsilon(BUILD_ACT);
    return fp32_units * FLT_EPSILON + narrow;
}

// splits: 0 for what attention_backward chooses, else how many blocks share a head.
static void attention_case(AttentionCase s, float scale, double condition, size_t splits) {
    size_t C = s.NH * s.HS, n = s.B * s.T * C, rows = s.B * s.NH * s.T;
    size_t scratch_elems = attention_scratch_elems<act_t>(s.B, s.T, C, s.NH);
    float *qkv = attention_inputs(3 * n, scale, s.T * 131 + s.HS), *dout = attention_inputs(n, 1.0f, s.T);
    float *got_out[2], *got_lse[2], *got_dqkv[2];
    for (int run = 0; run < 2; run++) {
        GuardedDevice<act_t> d_qkv(3 * n, qkv), d_out(n, NULL), d_dout(n, dout), d_dqkv(3 * n, NULL);
        GuardedDevice<float> d_lse(rows, NULL), d_scratch(scratch_elems, NULL);
        attention_forward(d_out.data, d_lse.data, d_qkv.data, s.B, s.T, C, s.NH, d_scratch.data, 0);
        if (splits)
            att_backward(d_dqkv.data, d_dout.data, d_qkv.data, d_out.data, d_lse.data, s.B, splits,
                         attention_shape(s.T, C, s.NH), d_scratch.data, 0);
        else
            attention_backward(d_dqkv.data, d_dout.data, d_qkv.data, d_out.data, d_lse.data, s.B, s.T, C, s.NH,
                               d_scratch.data, 0);
        got_out[run] = d_out.to_host("out"), got_lse[run] = d_lse.to_host("lse");
        got_dqkv[run] = d_dqkv.to_host("dqkv");
        free(d_scratch.to_host("scratch"));
    }
    CHECK_SAME("out, two runs", got_out[0], got_out[1], n);
    CHECK_SAME("lse, two runs", got_lse[0], got_lse[1], rows);
    CHECK_SAME("dqkv, two runs", got_dqkv[0], got_dqkv[1], 3 * n);

    double *out = zero_doubles(n), *lse = zero_doubles(rows), *dqkv = zero_doubles(3 * n);
    double fp32_units = 4 * sqrt((double)(s.HS + s.T)) * condition;
    attention_double(out, lse, dqkv, qkv, dout, s);
    attention_check("out", s, got_out[0], out, n, attention_bound(fp32_units, 2));
    attention_check("lse", s, got_lse[0], lse, rows, fp32_units * FLT_EPSILON);
    // D comes from the rounded out: an error that all keys of a query share, as large as k is
    attention_check("dqkv", s, got_dqkv[0], dqkv, 3 * n, attention_bound(2 * fp32_units, 5 * scale));

    float *cpu_out = guarded_floats(n, NAN), *cpu_lse = guarded_floats(rows, NAN),
          *cpu_dqkv = guarded_floats(3 * n, NAN);
    float *scratch = guarded_floats(cpu::attention_scratch_elems(s.T, C, s.NH, thread_count()), NAN);
    cpu::attention_forward(cpu_out, cpu_lse, qkv, s.B, s.T, C, s.NH, scratch);
    // the twin's backward pass from the GPU's forward results: one pass's differences at a time
    cpu::attention_backward(cpu_dqkv, dout, qkv, got_out[0], got_lse[0], s.B, s.T, C, s.NH, scratch);
    double *want_out = attention_doubles(cpu_out, n), *want_dqkv = attention_doubles(cpu_dqkv, 3 * n);
    attention_check("out, CPU twin", s, got_out[0], want_out, n, attention_bound(fp32_units, 1));
    attention_check("dqkv, CPU twin", s, got_dqkv[0], want_dqkv, 3 * n, attention_bound(2 * fp32_units, 1));
    for (int run = 0; run < 2; run++) free(got_out[run]), free(got_lse[run]), free(got_dqkv[run]);
    free(out), free(lse), free(dqkv), free(want_out), free(want_dqkv);
    free(cpu_out - GUARD_WORDS), free(cpu_lse - GUARD_WORDS), free(cpu_dqkv - GUARD_WORDS), free(scratch - GUARD_WORDS);
    free(qkv - GUARD_WORDS), free(dout - GUARD_WORDS);
}

// Head sizes of each width of tile (16, 24: 32; 48: 64; 72, 80: 128; 64 and 128 exactly; above 128, and no multiple of
// 8: plain), lengths around the tiles' edges, several key blocks a head.
TEST(attention_shapes_cuda) {
    static const AttentionCase cases[] = {
        {1, 1, 1, 64},  {2, 65, 3, 16},  {1, 127, 2, 64}, {2, 130, 2, 72}, {1, 200, 2, 128},
        {1, 64, 4, 80}, {1, 300, 1, 24}, {1, 129, 1, 48}, {1, 33, 3, 5},   {1, 70, 1, 136},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) attention_case(cases[i], 1.0f, 1, 0);
}

// With many heads a block owns one and adds to dQ in place; with few (above) several share a head. Both, and what lies
// between, over several key blocks.
TEST(attention_blocks_a_head_cuda) {
    static const AttentionCase cases[] = {{1, 300, 2, 64}, {1, 290, 1, 24}, {1, 280, 1, 128}, {1, 200, 1, 72}};
    CHECK(att_splits(66, 290, 8, 128) == 1, "%zu splits for 528 heads", att_splits(66, 290, 8, 128));
    CHECK(att_splits(2, 290, 3, 128) == 3, "%zu splits for 6 heads", att_splits(2, 290, 3, 128));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (size_t splits = 1; splits <= 2; splits++) attention_case(cases[i], 1.0f, 1, splits);
}

// Scores in the thousands: exp of them overflows, exp of their distance to the maximum does not.
TEST(attention_huge_scores_cuda) {
    AttentionCase s = {1, 70, 2, 64};
    attention_case(s, 40.0f, 4000, 0);
}

// No output depends on a later token, bit for bit: tokens from 65 on become huge, NaN from 100 on.
TEST(attention_is_causal_cuda) {
    AttentionCase s = {1, 129, 2, 64};
    size_t C = s.NH * s.HS, n = s.T * C;
    float *qkv = attention_inputs(3 * n, 1.0f, 7), *got[2];
    for (int run = 0; run < 2; run++) {
        GuardedDevice<act_t> d_qkv(3 * n, qkv), d_out(n, NULL);
        GuardedDevice<float> d_lse(s.NH * s.T, NULL);
        attention_forward(d_out.data, d_lse.data, d_qkv.data, s.B, s.T, C, s.NH, (float *)NULL, 0);
        got[run] = d_out.to_host("out");
        for (size_t i = 65 * 3 * C; i < 3 * n; i++) qkv[i] = 300;
    }
    CHECK_SAME("out before the change", got[0], got[1], 65 * C);
    free(got[0]), free(got[1]), free(qkv - GUARD_WORDS);
}

// One token at a time gives what the whole sequence gives; the cache holds the keys and values.
static void attention_decode_case(AttentionCase s) {
    size_t C = s.NH * s.HS, n = s.T * C;
    float *qkv = attention_inputs(3 * n, 1.0f, 11);
    GuardedDevice<act_t> d_qkv(3 * n, qkv), d_out(n, NULL), d_k(n, NULL), d_v(n, NULL), d_step(n, NULL);
    GuardedDevice<float> d_lse(s.NH * s.T, NULL);
    attention_forward(d_out.data, d_lse.data, d_qkv.data, 1, s.T, C, s.NH, (float *)NULL, 0);
    for (size_t t = 0; t < s.T; t++)
        attention_decode(d_step.data + t * C, d_qkv.data + t * 3 * C, d_k.data, d_v.data, t, C, s.NH, 0);
    float *out = d_out.to_host("out"), *step = d_step.to_host("decoded"), *k = d_k.to_host("kcache");
    float *v = d_v.to_host("vcache");
    double *want = attention_doubles(out, n);
    attention_check("decode", s, step, want, n, attention_bound(4 * sqrt((double)(s.HS + s.T)), 1));
    for (size_t i = 0; i < n; i++) {
        CHECK(k[i] == qkv[i / C * 3 * C + C + i % C], "kcache[%zu] is %g", i, (double)k[i]);
        CHECK(v[i] == qkv[i / C * 3 * C + 2 * C + i % C], "vcache[%zu] is %g", i, (double)v[i]);
    }
    free(out), free(step), free(k), free(v), free(want), free(qkv - GUARD_WORDS);
}

TEST(attention_decode_cuda) {
    AttentionCase s = {1, 70, 2, 64}, odd = {1, 5, 3, 5};
    attention_decode_case(s);
    attention_decode_case(odd);
}

static inline void test_attention_cuda(void) {
    RUN(attention_shapes_cuda);
    RUN(attention_blocks_a_head_cuda);
    RUN(attention_huge_scores_cuda);
    RUN(attention_is_causal_cuda);
    RUN(attention_decode_cuda);
}

#ifdef CUDA_ATTENTION_MAIN
int main(void) {
    test_attention_cuda();
    return test_summary();
}
#endif

#endif
