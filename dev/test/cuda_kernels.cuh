// cuda_kernels.cuh: every kernel header of the GPU build against its CPU twin, in this build's precision, on a GPU or
// an emulator. Included by test_gpt.cu, which calls test_kernels_cuda().
//
// The twins round at the same places, so they differ by the order of fp32 sums, by approximate exp2 and reciprocal, and
// by a unit of the storage format where such a difference crosses a rounding boundary. Limits are made of just that:
// one epsilon of the stored format, and fp32 epsilon times the size of the sum. What is not a sum must agree in bits.
//
// Device outputs start as NaN (or non-zero, where a kernel adds to them) between guard words, and each case runs twice:
// the second run must give the same bits. At the end each tensor's worst error over all shapes is printed.
#ifndef DEV_CUDA_KERNELS_CUH
#define DEV_CUDA_KERNELS_CUH

#include <vector>

#include "../../llmc/adamw.cuh"
#include "../../llmc/adamw.h"
#include "../../llmc/cross_entropy.cuh"
#include "../../llmc/cross_entropy.h"
#include "../../llmc/embedding.cuh"
#include "../../llmc/embedding.h"
#include "../../llmc/gelu.cuh"
#include "../../llmc/gelu.h"
#include "../../llmc/global_norm.cuh"
#include "../../llmc/global_norm.h"
#include "../../llmc/layernorm.cuh"
#include "../../llmc/layernorm.h"
#include "../../llmc/matmul.cuh"
#include "../../llmc/matmul.h"
#include "compare.h"

typedef std::vector<float> Floats;
typedef std::vector<Floats> Outputs;

// ----------------------------------------------------------------------------------------------------------------
// Device memory with guard words

#define GUARD_ELEMS ((size_t)64)  // keeps the alignment of 16 bytes

template <typename T>
struct DeviceTensor {
    T *memory, *data;
    size_t n;

    // Holds `values` (converted: they must be exact in T), or NaN throughout.
    explicit DeviceTensor(const Floats &values) : n(values.size()) { fill(values.data()); }
    explicit DeviceTensor(size_t count) : n(count) { fill(NULL); }
    ~DeviceTensor() { CUDA_CHECK(cudaFree(memory)); }
    DeviceTensor(const DeviceTensor &) = delete;

    void fill(const float *values) {
        std::vector<T> host(n + 2 * GUARD_ELEMS, T(-1.5f));
        for (size_t i = 0; i < n; i++) host[GUARD_ELEMS + i] = T(values ? values[i] : NAN);
        CUDA_CHECK(cudaMalloc((void **)&memory, host.size() * sizeof(T)));
        CUDA_CHECK(cudaMemcpy(memory, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
        data = memory + GUARD_ELEMS;
    }
    Floats get(const char *what) const {
        std::vector<T> host(n + 2 * GUARD_ELEMS);
        CUDA_CHECK(cudaDeviceSynchronize());
        CUDA_CHECK(cudaMemcpy(host.data(), memory, host.size() * sizeof(T), cudaMemcpyDeviceToHost));
        int intact = 1;
        for (size_t i = 0; i < GUARD_ELEMS; i++)
            intact &= (float)host[i] == -1.5f && (float)host[GUARD_ELEMS + n + i] == -1.5f;
        CHECK(intact, "%s: wrote outside its %zu elements", what, n);
        Floats values(n);
        for (size_t i = 0; i < n; i++) values[i] = (float)host[GUARD_ELEMS + i];
        return values;
    }
};

// Anything else: ints, doubles, structs.
template <typename T>
struct DeviceArray {
    T *data;
    size_t n;
    DeviceArray(const T *values, size_t count) : n(count) {
        CUDA_CHECK(cudaMalloc((void **)&data, (n ? n : 1) * sizeof(T)));
        CUDA_CHECK(cudaMemcpy(data, values, n * sizeof(T), cudaMemcpyHostToDevice));
    }
    ~DeviceArray() { CUDA_CHECK(cudaFree(data)); }
    DeviceArray(const DeviceArray &) = delete;
    std::vector<T> get() const {
        std::vector<T> host(n);
        CUDA_CHECK(cudaDeviceSynchronize());
        CUDA_CHECK(cudaMemcpy(host.data(), data, n * sizeof(T), cudaMemcpyDeviceToHost));
        return host;
    }
};

// ----------------------------------------------------------------------------------------------------------------
// Comparing

typedef struct {
    const char *name;
    double error, share;  // the worst |got - want|, and the worst share of its limit (not always the same element's)
    size_t cases;
} TensorError;

static TensorError tensor_errors[64];
static size_t tensor_error_count;

static TensorError *tensor_error(const char *name) {
    for (size_t i = 0; i < tensor_error_count; i++)
        if (strcmp(tensor_errors[i].name, name) == 0) return &tensor_errors[i];
    TensorError *entry = &tensor_errors[tensor_error_count++];
    entry->name = name;
    return entry;
}

// |got - want| <= relative |want| + absolute for every element; NaN must meet NaN, infinities their equals.
static void compare(const char *name, const Floats &got, const Floats &want, double relative, double absolute) {
    TensorError *entry = tensor_error(name);
    double worst = 0;
    size_t worst_ix = 0;
    for (size_t i = 0; i < want.size(); i++) {
        double error = fabs((double)got[i] - want[i]), limit = relative * fabs(want[i]) + absolute;
        if (!isfinite(want[i]) || !isfinite(got[i]))
            error = (isnan(want[i]) && isnan(got[i])) || got[i] == want[i] ? 0 : INFINITY;
        double share = error == 0 ? 0 : limit == 0 ? INFINITY : error / limit;
        if (!isfinite(want[i])) share = error == 0 ? 0 : INFINITY;
        entry->error = fmax(entry->error, error);
        if (share > worst) worst = share, worst_ix = i;
    }
    entry->share = fmax(entry->share, worst);
    entry->cases++;
    CHECK(got.size() == want.size() && worst <= 1, "%s[%zu] of %zu: %.9g, the CPU twin has %.9g: %.3g of the limit",
          name, worst_ix, want.size(), got.empty() ? NAN : (double)got[worst_ix], (double)want[worst_ix], worst);
}

// Runs `f`, which returns its outputs, twice; the outputs must be the same bits.
template <typename F>
static Outputs run_twice(const char *name, F f) {
    Outputs first = f(), second = f();
    for (size_t i = 0; i < first.size(); i++)
        CHECK(memcmp(first[i].data(), second[i].data(), first[i].size() * sizeof(float)) == 0,
              "%s: output %zu differs between two runs", name, i);
    return first;
}

static void print_tensor_errors(void) {
    printf("  tensor                           cases  worst error  share of its limit\n");
    for (size_t i = 0; i < tensor_error_count; i++) {
        const TensorError *e = &tensor_errors[i];
        printf("  %-32s %5zu  %11.3g  %6.1f %%\n", e->name, e->cases, e->error, 100 * e->share);
    }
}

// ----------------------------------------------------------------------------------------------------------------
// Inputs, exact in the formats that they are given to kernels in

typedef float (*RoundFunction)(float);
static float round_none(float x) { return x; }
static float round_act_test(float x) { return round_act(x); }
static float round_grad_test(float x) { return round_grad(x); }
static float round_weight_test(float x) { return round_weight(x); }

static Floats random_values(size_t n, float offset, float scale, uint64_t seed, RoundFunction round) {
    Floats x(n);
    fill_random(x.data(), n, offset, scale, seed);
    for (size_t i = 0; i < n; i++) x[i] = round(x[i]);
    return x;
}

static double act_epsilon(void) { return BUILD_ACT == FORMAT_FP32 ? 0 : format_info(BUILD_ACT)->epsilon; }
static double grad_epsilon(void) { return BUILD_GRAD == FORMAT_FP32 ? 0 : format_info(BUILD_GRAD)->epsilon; }
// Below its smallest normal a 16-bit format's unit is this.
static double act_tiny(void) { return BUILD_ACT == FORMAT_FP32 ? 0 : format_info(BUILD_ACT)->min_subnormal; }

#define EPS ((double)FLT_EPSILON)

// What two orders of adding K terms within +-1 in fp32 may differ by: K roundings of half an epsilon of a running sum
// of about sqrt(K / 3) leave 0.1 EPS K, and the worst of thousands of sums is 5 times that.
static double sum_error(size_t K) { return EPS * (2 + 0.5 * (double)K); }

// ----------------------------------------------------------------------------------------------------------------

typedef struct {
    size_t B, T, C;
} RowsCase;
// Odd lengths, columns off every power of two, one warp's 256 columns passed, d12's and d48's columns, block rows.
static const RowsCase rows_cases[] = {{1, 1, 48},  {1, 1, 8},   {2, 65, 72},  {1, 127, 80}, {4, 64, 64},
                                      {1, 3, 264}, {2, 5, 768}, {1, 9, 1600}, {1, 2, 2056}, {1, 1, 5120}};

TEST(cuda_embedding_forward) {
    for (const RowsCase &s : rows_cases) {
        const size_t V = 67, N = s.B * s.T;
        Floats wte = random_values(V * s.C, 0, 0.1f, 1, round_weight_test);
        Floats wpe = random_values(s.T * s.C, 0, 0.1f, 2, round_weight_test), want(N * s.C);
        std::vector<int32_t> tokens(N);
        for (size_t i = 0; i < N; i++) tokens[i] = (int32_t)(i * i * 7 % V);
        cpu::embedding_forward(want.data(), tokens.data(), wte.data(), wpe.data(), s.B, s.T, s.C);
        Outputs got = run_twice("embedding_forward", [&] {
            DeviceTensor<act_t> out(N * s.C);
            DeviceTensor<weight_t> d_wte(wte), d_wpe(wpe);
            DeviceArray<int32_t> d_tokens(tokens.data(), N);
            embedding_forward(out.data, d_tokens.data, d_wte.data, d_wpe.data, s.B, s.T, s.C, 0);
            return Outputs{out.get("embedding out")};
        });
        compare("embedding out", got[0], want, 0, 0);
    }
}

static void check_embedding_backward(size_t B, size_t T, size_t C, size_t V, size_t frequent) {
    const size_t N = B * T;
    Floats dout = random_values(N * C, 0, 1, 3, round_grad_test);
    Floats dwte = random_values(V * C, 0, 1, 4, round_none), dwpe = random_values(T * C, 0, 1, 5, round_none);
    std::vector<int32_t> tokens(N), array(embedding_plan_elems(N));
    std::vector<uint32_t> counts(V + 1);
    // `frequent` of every 10 positions have one token, whose rows need several chunks.
    for (size_t i = 0; i < N; i++) tokens[i] = (int32_t)(i % 10 < frequent ? 5 : (i * 31 + i / 7) % V);
    EmbeddingPlan plan = embedding_plan_make(array.data(), counts.data(), tokens.data(), N, V);
    CHECK(plan.elems <= array.size(), "the plan takes %zu of %zu", plan.elems, array.size());
    Outputs got = run_twice("embedding_backward", [&] {
        DeviceTensor<float> d_dwte(dwte), d_dwpe(dwpe), scratch(embedding_backward_scratch_elems(N, C));
        DeviceTensor<grad_t> d_dout(dout);
        DeviceArray<int32_t> d_array(array.data(), plan.elems);
        embedding_backward(d_dwte.data, d_dwpe.data, d_dout.data, &plan, d_array.data, B, T, C, scratch.data, 0);
        scratch.get("embedding scratch");
        return Outputs{d_dwte.get("dwte"), d_dwpe.get("dwpe")};
    });
    cpu::embedding_backward(dwte.data(), dwpe.data(), dout.data(), tokens.data(), B, T, C);
    compare("embedding dwte", got[0], dwte, EPS, sum_error(N));
    compare("embedding dwpe", got[1], dwpe, EPS, sum_error(B));
}
TEST(cuda_embedding_backward) {
    check_embedding_backward(1, 1, 48, 67, 0);
    check_embedding_backward(2, 65, 72, 67, 9);
    check_embedding_backward(3, 127, 80, 67, 5);
    check_embedding_backward(5, 64, 264, 7, 0);
    check_embedding_backward(1, 64, 8, 1, 0);
    check_embedding_backward(1, 65, 8, 1, 0);
}

// ----------------------------------------------------------------------------------------------------------------

static float amax_of_values(const Floats &x) {
    float amax = 0;
    for (float value : x) amax = fmaxf(amax, fabsf(value));
    return amax;
}

// x (rows, n) + bias (n), rounded: what a product's reader adds on its way.
static Floats with_bias(const Floats &x, const Floats &bias) {
    Floats sum(x.size());
    for (size_t i = 0; i < x.size(); i++) sum[i] = round_act(x[i] + bias[i % bias.size()]);
    return sum;
}

static void check_layernorm_forward(size_t N, size_t C) {
    Floats a = random_values(N * C, 0.5f, 2, 6, round_act_test), b = random_values(N * C, 0, 1, 7, round_act_test);
    Floats weight = random_values(C, 1, 0.3f, 8, round_weight_test),
           bias = random_values(C, 0, 0.3f, 9, round_weight_test);
    Floats inp2_bias = random_values(C, 0, 0.5f, 10, round_weight_test), biased = with_bias(b, inp2_bias);
    Floats out(N * C), mean(N), rstd(N), residual(N * C);
    // |x^| is at most about 3 here; each of its roundings and the sums' are fp32's.
    const double sum_error = EPS * (4 + sqrt((double)C) / 4);
    for (int fused = 0; fused < 3; fused++) {  // 2: with the second input's bias
        if (fused)
            cpu::fused_residual_layernorm_forward(residual.data(), out.data(), mean.data(), rstd.data(), a.data(),
                                                  fused == 2 ? biased.data() : b.data(), weight.data(), bias.data(), N, C);
        else cpu::layernorm_forward(out.data(), mean.data(), rstd.data(), a.data(), weight.data(), bias.data(), N, C);
        Outputs got = run_twice("layernorm_forward", [&] {
            DeviceTensor<act_t> d_a(a), d_b(b), d_out(N * C);
            DeviceTensor<weight_t> d_weight(weight), d_bias(bias), d_inp2_bias(inp2_bias);
            DeviceTensor<float> d_mean(N), d_rstd(N), d_amax(Floats(1, 0.0f));
            uint32_t *amax = (uint32_t *)d_amax.data;
            if (fused)  // in place, as the contract allows
                fused_residual_layernorm_forward(d_a.data, d_out.data, d_mean.data, d_rstd.data, d_a.data, d_b.data,
                                                 fused == 2 ? d_inp2_bias.data : NULL, d_weight.data, d_bias.data, amax, N, C,
                                                 0);
            else
                layernorm_forward(d_out.data, d_mean.data, d_rstd.data, d_a.data, d_weight.data, d_bias.data, amax, N, C,
                                  0);
            return Outputs{d_out.get("layernorm out"), d_mean.get("mean"), d_rstd.get("rstd"), d_a.get("residual"),
                           d_amax.get("amax")};
        });
        compare(fused ? "fused layernorm out" : "layernorm out", got[0], out, act_epsilon() + EPS, 4 * sum_error);
        compare("layernorm mean", got[1], mean, EPS, sum_error);
        compare("layernorm rstd", got[2], rstd, sum_error, 0);
        compare("layernorm residual", got[3], fused ? residual : a, 0, 0);
        compare("layernorm amax", got[4], Floats(1, amax_of_values(got[0])), 0, 0);
    }
}
TEST(cuda_layernorm_forward) {
    for (const RowsCase &s : rows_cases) check_layernorm_forward(s.B * s.T, s.C);
    check_layernorm_forward(3, 4096);
    check_layernorm_forward(65543, 8);  // more rows than grid.y and z allow
}

static void check_layernorm_backward(size_t N, size_t C) {
    Floats inp = random_values(N * C, 0.5f, 2, 10, round_act_test),
           weight = random_values(C, 1, 0.3f, 11, round_weight_test);
    Floats bias(C), out(N * C), mean(N), rstd(N), scratch(cpu::layernorm_backward_scratch_elems(N, C));
    Floats dout = random_values(N * C, 0, 1, 12, round_grad_test),
           dinp = random_values(N * C, 0, 1, 13, round_grad_test);
    Floats dweight = random_values(C, 0, 1, 14, round_none), dbias = random_values(C, 0, 1, 15, round_none);
    Floats sums = random_values(C, 0, 1, 16, round_none);
    cpu::layernorm_forward(out.data(), mean.data(), rstd.data(), inp.data(), weight.data(), bias.data(), N, C);
    Outputs got = run_twice("layernorm_backward", [&] {
        DeviceTensor<grad_t> d_dout(dout), d_dinp(dinp);
        DeviceTensor<act_t> d_inp(inp);
        DeviceTensor<weight_t> d_weight(weight);
        DeviceTensor<float> d_mean(mean), d_rstd(rstd), d_dweight(dweight), d_dbias(dbias), d_sums(sums);
        DeviceTensor<float> d_scratch(layernorm_backward_scratch_elems(N, C)), d_amax(Floats(1, 0.0f));
        layernorm_backward_sums(d_dinp.data, d_dweight.data, d_dbias.data, d_sums.data, (uint32_t *)d_amax.data,
                                d_dout.data, d_inp.data, d_weight.data, d_mean.data, d_rstd.data, N, C, d_scratch.data,
                                0);
        d_scratch.get("layernorm scratch");
        return Outputs{d_dinp.get("dinp"), d_dweight.get("dweight"), d_dbias.get("dbias"), d_sums.get("dinp sums"),
                       d_amax.get("amax")};
    });
    cpu::layernorm_backward(dinp.data(), dweight.data(), dbias.data(), dout.data(), inp.data(), weight.data(),
                            mean.data(), rstd.data(), N, C, scratch.data());
    const double row = sqrt((double)C);
    // rstd is about 0.9, or up to 1/sqrt(eps) for a row of one value; the cases have none.
    compare("layernorm dinp", got[0], dinp, grad_epsilon() + 2 * EPS, EPS * (8 + row / 4));
    compare("layernorm dweight", got[1], dweight, EPS, 2 * sum_error(N));  // |x^| < 2
    compare("layernorm dbias", got[2], dbias, EPS, sum_error(N));
    cpu::matmul_backward_bias(sums.data(), got[0].data(), N, C, 1);  // of the GPU's own dinp: rounding flips stay out
    compare("layernorm dinp sums", got[3], sums, EPS, 2 * sum_error(N));
    compare("layernorm dinp amax", got[4], Floats(1, amax_of_values(got[0])), 0, 0);
}
TEST(cuda_layernorm_backward) {
    for (const RowsCase &s : rows_cases) check_layernorm_backward(s.B * s.T, s.C);
    check_layernorm_backward(2053, 8);  // 5 rows a block, not a multiple of the 4 that are loaded together
    check_layernorm_backward(6, 1280);
    check_layernorm_backward(5, 2048);
    check_layernorm_backward(3, 4096);
    check_layernorm_backward(2, 6144);
}

// ----------------------------------------------------------------------------------------------------------------

// e^(-2u) has a relative error of about eps (2 + |2u|), which is the result's where x is far below 0.
TEST(cuda_gelu) {
    const size_t sizes[] = {8, 48 * 4, 65 * 72 * 4, 127 * 80};
    for (size_t n : sizes) {
        Floats inp = random_values(n, 0, 6, 17, round_act_test), dout = random_values(n, 0, 1, 18, round_grad_test);
        const float specials[] = {0.0f, -0.0f, INFINITY, NAN, 30.0f, -30.0f, 0.0625f, -0.0625f};
        for (size_t i = 0; i < 8; i++) inp[n - 8 + i] = specials[i];
        Floats out(n), dinp(n);
        cpu::gelu_forward(out.data(), inp.data(), n);
        cpu::gelu_backward(dinp.data(), dout.data(), inp.data(), n);
        Outputs got = run_twice("gelu", [&] {
            DeviceTensor<act_t> d_inp(inp), d_out(n);
            DeviceTensor<grad_t> d_dout(dout);
            gelu_forward(d_out.data, d_inp.data, (weight_t *)NULL, 1, n, 0);
            gelu_backward(d_dout.data, d_dout.data, d_inp.data, n, 0);  // in place, as the contract allows
            return Outputs{d_out.get("gelu out"), d_dout.get("gelu dinp")};
        });
        // 2u reaches 40 at |x| = 7, where the value is 1e-17: relative there, absolute (of fp32 at 1) elsewhere.
        compare("gelu out", got[0], out, act_epsilon() + 4 * EPS, 2 * EPS + act_tiny());
        compare("gelu dinp", got[1], dinp, grad_epsilon() + 4 * EPS, 4 * EPS + act_tiny());
    }
}

TEST(cuda_gelu_bias) {
    const size_t cases[][2] = {{1, 48}, {65, 72 * 4}, {127, 80}, {300, 264}, {8193, 8}};
    for (auto &s : cases) {
        const size_t N = s[0], OC = s[1], n = N * OC;
        Floats inp = random_values(n, 0, 3, 19, round_act_test), dout = random_values(n, 0, 1, 20, round_grad_test);
        Floats bias = random_values(OC, 0, 1, 22, round_weight_test);
        Floats out(n), dinp(n), dbias = random_values(OC, 0, 1, 21, round_none), want = dbias;
        for (int accumulate = 0; accumulate < 2; accumulate++) {  // 1: and with the bias still to add
            const Floats biased = accumulate ? with_bias(inp, bias) : inp;
            cpu::gelu_forward(out.data(), biased.data(), n);
            cpu::gelu_backward(dinp.data(), dout.data(), biased.data(), n);
            Outputs got = run_twice("gelu_backward_bias", [&] {
                DeviceTensor<act_t> d_inp(inp), d_out(n);
                DeviceTensor<weight_t> d_bias(bias);
                DeviceTensor<grad_t> d_dout(dout);
                const weight_t *add = accumulate ? d_bias.data : NULL;
                DeviceTensor<float> d_dbias(dbias), scratch(column_sums_scratch_elems(N, OC));
                gelu_forward(d_out.data, d_inp.data, add, N, OC, 0);
                gelu_backward_bias(d_dout.data, d_dbias.data, d_dout.data, d_inp.data, add, N, OC, accumulate,
                                   scratch.data, 0);
                scratch.get("gelu scratch");
                return Outputs{d_dout.get("gelu dinp"), d_dbias.get("gelu dbias"), d_out.get("gelu out")};
            });
            compare("gelu out", got[2], out, act_epsilon() + 4 * EPS, 2 * EPS + act_tiny());
            compare("gelu dinp", got[0], dinp, grad_epsilon() + 4 * EPS, 4 * EPS + act_tiny());
            want = dbias;
            cpu::matmul_backward_bias(want.data(), got[0].data(), N, OC, accumulate);
            compare("gelu dbias", got[1], want, EPS, sum_error(N));
        }
    }
}

// ----------------------------------------------------------------------------------------------------------------

static void check_classifier(size_t rows, size_t V, size_t Vp, float scale, bool specials) {
    Floats logits = random_values(rows * Vp, 0, scale, 22, round_act_test);
    std::vector<int32_t> targets(rows);
    for (size_t i = 0; i < rows; i++) {
        targets[i] = (int32_t)((i * 37 + V - 1) % V);
        for (size_t c = V; c < Vp; c++) logits[i * Vp + c] = NAN;  // padding is never to be read
    }
    if (specials) {  // rows 0..4: -inf among others, -inf at the target, NaN, +inf, all alike and far from 0
        logits[(size_t)(targets[0] + 1) % V] = -INFINITY;
        logits[Vp + (size_t)targets[1]] = -INFINITY;
        logits[2 * Vp + V / 2] = NAN;
        logits[3 * Vp + V / 2] = INFINITY;
        for (size_t c = 0; c < V; c++) logits[4 * Vp + c] = -20480.0f;
    }
    for (int backward = 0; backward < 2; backward++) {
        const float dloss = backward ? round_act(0.25f) : 0.0f;
        Floats want = logits, losses(rows);
        cpu::fused_classifier(want.data(), losses.data(), targets.data(), dloss, rows, V, Vp);
        Outputs got = run_twice("fused_classifier", [&] {
            DeviceTensor<act_t> d_logits(logits);
            DeviceTensor<float> d_losses(rows);
            DeviceArray<int32_t> d_targets(targets.data(), rows);
            fused_classifier(d_logits.data, d_losses.data, d_targets.data, dloss, rows, V, Vp, 0);
            return Outputs{d_logits.get("logits"), d_losses.get("losses")};
        });
        compare("classifier losses", got[1], losses, 4 * EPS, EPS * (4 + 2 * scale));
        if (backward)
            compare("classifier dlogits", got[0], want, grad_epsilon() + EPS * (8 + 2 * scale), act_tiny() + 1e-37);
        else compare("classifier logits kept", got[0], want, 0, 0);
    }
}
TEST(cuda_classifier) {
    check_classifier(1, 67, 128, 3, false);
    check_classifier(127, 67, 128, 10, true);
    check_classifier(5, 2, 8, 1, true);
    check_classifier(3, 5000, 5120, 10, false);
    const size_t most = ((size_t)48 << 10) / sizeof(act_t);  // of shared memory, without asking for more
    check_classifier(2, most - 5, most, 10, false);
    check_classifier(2, 60000, 60032, 10, false);   // fp32: longer than any block's shared memory
    check_classifier(1, 120001, 120064, 5, false);  // 16 bits: the same
}

TEST(cuda_loss_sum) {
    const size_t sizes[] = {1, 127, 4099};
    for (size_t n : sizes) {
        Floats losses = random_values(n, 5, 5, 23, round_none);
        double want = 3.5, start = 3.5;
        for (size_t i = 0; i < n; i++) want += losses[i];
        DeviceTensor<float> d_losses(losses);
        DeviceArray<double> total(&start, 1);
        loss_sum(total.data, d_losses.data, n, 1, 0);
        double got = total.get()[0];
        CHECK(fabs(got - want) <= 1e-13 * want, "n=%zu: %.17g, want %.17g", n, got, want);
        loss_sum(total.data, d_losses.data, n, 0, 0);
        CHECK(fabs(total.get()[0] - (want - 3.5)) <= 1e-13 * want, "n=%zu without adding: %.17g", n, total.get()[0]);
    }
}

// ----------------------------------------------------------------------------------------------------------------

static double device_norm(const Floats &x, int *nonfinite, double start) {
    DeviceTensor<float> d_x(x);
    DeviceArray<double> sum(&start, 1),
        scratch(std::vector<double>(global_norm_scratch_elems(), NAN).data(), global_norm_scratch_elems());
    DeviceArray<int> flag(nonfinite, 1);
    global_norm_squared(sum.data, d_x.data, x.size(), flag.data, scratch.data, 0);
    *nonfinite = flag.get()[0];
    return sum.get()[0];
}
TEST(cuda_global_norm) {
    const size_t sizes[] = {1, 3, 67 * 48, 4096, 4097, 100003};
    for (size_t n : sizes) {
        Floats x = random_values(n, 0, 1, 24, round_none);
        int bad = 0;
        for (int huge = 0; huge < 2; huge++) {
            if (huge) x[n / 2] = 1e30f;  // its square is beyond a float (and hides all other terms)
            int cpu_bad = 0;
            double want = cpu::global_norm_squared(x.data(), n, &cpu_bad);
            double got = device_norm(x, &bad, 2.0), again = device_norm(x, &bad, 2.0);
            CHECK(fabs(got - want - 2) <= 1e-13 * (want + 2) && !bad, "n=%zu: %.17g, want %.17g more than 2", n, got,
                  want);
            CHECK(got == again, "n=%zu: two runs differ", n);
        }
        const float specials[] = {INFINITY, -INFINITY, NAN};
        for (float special : specials) {
            x[n - 1] = special;
            bad = 0;
            double got = device_norm(x, &bad, 0);
            CHECK(bad == 1 && !isfinite(got), "n=%zu: %g went unnoticed", n, (double)special);
        }
    }
    int bad = 1;
    device_norm(Floats(5, 1.0f), &bad, 0);
    CHECK(bad == 1, "a flag that was set is kept");
}

// ----------------------------------------------------------------------------------------------------------------
// AdamW: the same bits

static const MasterRule master_rules[] = {MASTER_RULE_FP32, MASTER_RULE_KAHAN, MASTER_RULE_STOCHASTIC,
                                          MASTER_RULE_NEAREST};
static const MomentsRule moments_rules[] = {MOMENTS_RULE_FP32, MOMENTS_RULE_BF16, MOMENTS_RULE_BF16SR};

static std::vector<uint16_t> bf16_codes(const Floats &x) {
    std::vector<uint16_t> codes(x.size());
    for (size_t i = 0; i < x.size(); i++) codes[i] = encode_bf16(x[i]);
    return codes;
}

// A parameter's arrays as bytes: fp32, or bf16 codes.
static std::vector<uint8_t> stored(const Floats &x, bool in_fp32) {
    std::vector<uint16_t> codes = bf16_codes(x);
    const uint8_t *bytes = in_fp32 ? (const uint8_t *)x.data() : (const uint8_t *)codes.data();
    return std::vector<uint8_t>(bytes, bytes + x.size() * (in_fp32 ? 4 : 2));
}

static void check_adamw(size_t n, MasterRule master, MomentsRule moments) {
    const bool copied = BUILD_WEIGHTS_COPIED && master == MASTER_RULE_FP32;
    Floats grad = random_values(n, 0, 1, 25, round_none), working(n, NAN);
    std::vector<uint8_t> weight = stored(random_values(n, 0, 0.2f, 26, round_none), master == MASTER_RULE_FP32);
    std::vector<uint8_t> m = stored(random_values(n, 0, 0.1f, 27, round_none), moments == MOMENTS_RULE_FP32);
    std::vector<uint8_t> v = stored(random_values(n, 0.5f, 0.4f, 28, round_none), moments == MOMENTS_RULE_FP32);
    std::vector<uint16_t> kahan = bf16_codes(random_values(n, 0, 1e-4f, 29, round_none));
    AdamWHyper h = adamw_hyper(1e-2, 0.9, 0.95, 1e-8, 0.1, 0.75, 3);
    h.seed = 0x123456789abcdefull;
    DeviceArray<uint8_t> d_weight(weight.data(), weight.size()), d_m(m.data(), m.size()), d_v(v.data(), v.size());
    DeviceArray<uint16_t> d_kahan(kahan.data(), n);
    DeviceTensor<float> d_grad(grad);
    DeviceTensor<weight_t> d_working(n);
    // Two entries for one tensor, as a shard of it would be, and an empty one between.
    const size_t cut = n / 8 * 4, weight_bytes = weight.size() / n, moment_bytes = m.size() / n;
    AdamWTensor tensors[3] = {};
    for (int i = 0; i < 3; i++) {
        size_t at = i == 0 ? 0 : cut;
        tensors[i].weight = d_weight.data + at * weight_bytes;
        tensors[i].kahan = (__nv_bfloat16 *)(d_kahan.data + at);
        tensors[i].working = copied ? d_working.data + at : NULL;
        tensors[i].m = d_m.data + at * moment_bytes;
        tensors[i].v = d_v.data + at * moment_bytes;
        tensors[i].grad = d_grad.data + at;
        tensors[i].n = i == 0 ? cut : i == 1 ? 0 : n - cut;
        tensors[i].first = at;
        tensors[i].weight_decay = h.weight_decay;
        tensors[i].stream = 7;
    }
    adamw_update_tensors(tensors, 3, &h, master, moments, 0);
    cpu::AdamWTensor t = {weight.data(), kahan.data(), copied ? working.data() : NULL, m.data(), v.data(), grad.data(), n, 7};
    cpu::adamw_update_tensor(&t, &h, master, moments);
    CHECK(d_weight.get() == weight, "n=%zu master %d moments %d: weights differ", n, (int)master, (int)moments);
    CHECK(d_m.get() == m, "n=%zu master %d moments %d: m differs", n, (int)master, (int)moments);
    CHECK(d_v.get() == v, "n=%zu master %d moments %d: v differs", n, (int)master, (int)moments);
    CHECK(d_kahan.get() == kahan, "n=%zu master %d moments %d: compensation differs", n, (int)master, (int)moments);
    Floats got = d_working.get("working weights");
    if (copied) compare("adamw working weights", got, working, 0, 0);
}
TEST(cuda_adamw) {
    for (MasterRule master : master_rules)
        for (MomentsRule moments : moments_rules) {
            if (master != MASTER_RULE_FP32 && BUILD_WEIGHT != FORMAT_BF16) continue;
            check_adamw(8, master, moments);
            check_adamw(67 * 72, master, moments);
        }
}

TEST(cuda_adamw_refresh) {
    Floats master = random_values(67 * 72, 0, 1, 30, round_none), want(master.size());
    DeviceTensor<float> d_master(master);
    DeviceTensor<weight_t> d_working(master.size());
    adamw_refresh(d_working.data, d_master.data, master.size(), 0);
    cpu::adamw_refresh(want.data(), master.data(), master.size(), MASTER_RULE_FP32);
    compare("adamw refreshed weights", d_working.get("working"), want, 0, 0);
}

// ----------------------------------------------------------------------------------------------------------------
// Products of operands within +-1. tf32: whether the hardware cuts or rounds to 10 bits is its choice, worth 2^-10 a
// term, of random sign.

struct MatmulFixture {
    DeviceArray<uint8_t> workspace;
    MatmulScratch *scratch;
    Floats packing;
    cpu::MatmulScratch cpu_scratch;
    MatmulFixture()
        : workspace(std::vector<uint8_t>(1 << 20).data(), 1 << 20),
          scratch(matmul_scratch(workspace.data, workspace.n)),
          packing(cpu::matmul_scratch_bytes(thread_count()) / sizeof(float)),
          cpu_scratch(cpu::matmul_scratch(packing.data(), thread_count())) {}
    ~MatmulFixture() { matmul_scratch_free(scratch); }
};

static double product_error(size_t K) {
    return BUILD_OPERAND == FORMAT_TF32 ? 0x1p-10 * 2 * (1 + sqrt((double)K)) : sum_error(K);
}

static void check_matmul_forward(MatmulFixture &f, size_t N, size_t C, size_t OC) {
    Floats inp = random_values(N * C, 0, 1, 31, round_act_test),
           weight = random_values(OC * C, 0, 1, 32, round_weight_test);
    Floats bias = random_values(OC, 0, 1, 33, round_weight_test), want(N * OC), row(OC);
    for (int biased = 0; biased < 2; biased++) {
        cpu::matmul_forward(&f.cpu_scratch, want.data(), inp.data(), weight.data(), biased ? bias.data() : NULL, N, C,
                            OC);
        Outputs got = run_twice("matmul_forward", [&] {
            DeviceTensor<act_t> out(N * OC), d_row(OC), d_inp(inp);
            DeviceTensor<weight_t> d_weight(weight), d_bias(bias);
            weight_t *b = biased ? d_bias.data : NULL;
            matmul_forward(f.scratch, out.data, d_inp.data, d_weight.data, b, N, C, OC, 0);
            matvec_forward(d_row.data, d_inp.data, d_weight.data, b, C, OC, 0);
            return Outputs{out.get("matmul out"), d_row.get("matvec out")};
        });
        compare("matmul out", got[0], want, act_epsilon() + EPS, product_error(C));
        cpu::matvec_forward(row.data(), inp.data(), weight.data(), biased ? bias.data() : NULL, C, OC);
        compare("matvec out", got[1], row, act_epsilon() + EPS, product_error(C));
    }
}

// GELU in the epilogues (--gelu-fusion): bf16 and fp16.
static void check_matmul_gelu(MatmulFixture &f, size_t N, size_t C, size_t OC) {
    Floats inp = random_values(N * C, 0, 1, 31, round_act_test),
           weight = random_values(OC * C, 0, 1, 32, round_weight_test);
    Floats bias = random_values(OC, 0, 1, 33, round_weight_test), fch(N * OC), want(N * OC);
    Floats dout = random_values(N * C, 0, 1, 36, round_grad_test), back = random_values(C * OC, 0, 1, 35, round_weight_test);
    Floats dfch(N * OC);
    cpu::matmul_forward_rounding(&f.cpu_scratch, fch.data(), inp.data(), weight.data(), bias.data(), N, C, OC,
                                 cpu::ROUND_NONE);
    cpu::gelu_forward_unrounded(want.data(), fch.data(), N * OC);
    cpu::matmul_backward_input_rounding(&f.cpu_scratch, dfch.data(), dout.data(), back.data(), N, OC, C, 0,
                                        cpu::ROUND_NONE);
    Outputs got = run_twice("matmul_gelu", [&] {
        DeviceTensor<act_t> out(N * OC), d_fch(N * OC), d_inp(inp), d_given(fch);
        DeviceTensor<weight_t> d_weight(weight), d_bias(bias), d_back(back);
        DeviceTensor<grad_t> d_dout(dout), d_dfch(N * OC);
        matmul_forward_gelu(f.scratch, out.data, d_fch.data, d_inp.data, d_weight.data, d_bias.data, N, C, OC, 0);
        matmul_backward_input_gelu(f.scratch, d_dfch.data, d_given.data, d_dout.data, d_back.data, N, OC, C, 0);
        return Outputs{out.get("gelu out"), d_fch.get("fch"), d_dfch.get("dfch")};
    });
    cpu::gelu_backward(dfch.data(), dfch.data(), fch.data(), N * OC);
    compare("matmul gelu out", got[0], want, act_epsilon() + 8 * EPS, 1.2 * product_error(C));
    compare("matmul gelu fch", got[1], fch, act_epsilon() + EPS, product_error(C));
    compare("matmul gelu dfch", got[2], dfch, grad_epsilon() + 8 * EPS, 1.2 * product_error(C));
}

static void check_matmul_backward(MatmulFixture &f, size_t N, size_t C, size_t OC) {
    Floats inp = random_values(N * C, 0, 1, 34, round_act_test),
           weight = random_values(OC * C, 0, 1, 35, round_weight_test);
    Floats dout = random_values(N * OC, 0, 1, 36, round_grad_test);
    for (int accumulate = 0; accumulate < 2; accumulate++) {
        Floats dinp = random_values(N * C, 0, 1, 37, round_grad_test),
               dweight = random_values(OC * C, 0, 1, 38, round_none);
        Floats dbias = random_values(OC, 0, 1, 39, round_none);
        Outputs got = run_twice("matmul_backward", [&] {
            DeviceTensor<act_t> d_inp(inp);
            DeviceTensor<weight_t> d_weight(weight);
            DeviceTensor<grad_t> d_dout(dout), d_dinp(dinp);
            DeviceTensor<float> d_dweight(dweight), d_dbias(dbias), scratch(column_sums_scratch_elems(N, OC));
            matmul_backward_input(f.scratch, d_dinp.data, d_dout.data, d_weight.data, N, C, OC, accumulate, 0);
            matmul_backward_weight(f.scratch, d_dweight.data, d_dout.data, d_inp.data, N, C, OC, accumulate, 0);
            matmul_backward_bias(d_dbias.data, d_dout.data, N, OC, accumulate, scratch.data, 0);
            scratch.get("bias scratch");
            return Outputs{d_dinp.get("dinp"), d_dweight.get("dweight"), d_dbias.get("dbias")};
        });
        cpu::matmul_backward_input(&f.cpu_scratch, dinp.data(), dout.data(), weight.data(), N, C, OC, accumulate);
        cpu::matmul_backward_weight(&f.cpu_scratch, dweight.data(), dout.data(), inp.data(), N, C, OC, accumulate);
        cpu::matmul_backward_bias(dbias.data(), dout.data(), N, OC, accumulate);
        compare("matmul dinp", got[0], dinp, grad_epsilon() + EPS, product_error(OC));
        compare("matmul dweight", got[1], dweight, EPS, product_error(N));
        compare("matmul dbias", got[2], dbias, EPS, sum_error(N));
    }
}
TEST(cuda_matmul) {
    MatmulFixture f;
    const size_t cases[][3] = {{1, 48, 144}, {65, 72, 80}, {127, 80, 320}, {64, 320, 80}, {5, 72, 128}, {300, 8, 8}};
    for (auto &s : cases) {
        check_matmul_forward(f, s[0], s[1], s[2]);
        check_matmul_backward(f, s[0], s[1], s[2]);
        if (sizeof(act_t) == 2) check_matmul_gelu(f, s[0], s[1], s[2]);
    }
    CHECK(f.scratch->count <= 8 * 6, "%d plans for 48 kinds of products", f.scratch->count);
}

// --autotune: the same numbers, an accumulating product counted once, and a file that spares the next run the timing.
TEST(cuda_matmul_autotune) {
    const size_t N = 65, C = 72, OC = 80;
    char path[] = "/tmp/train_gpt_autotune_XXXXXX";
    int fd = mkstemp(path);
    CHECK(fd >= 0 && close(fd) == 0, "mkstemp: %s", strerror(errno));
    Floats inp = random_values(N * C, 0, 1, 34, round_act_test), dout = random_values(N * OC, 0, 1, 36, round_grad_test);
    Floats start = random_values(OC * C, 0, 1, 38, round_none), want = start;
    std::vector<cublasLtMatmulAlgo_t> chosen;
    MatmulFixture cpu_side;
    cpu::matmul_backward_weight(&cpu_side.cpu_scratch, want.data(), dout.data(), inp.data(), N, C, OC, 1);
    for (int run = 0; run < 2; run++) {
        MatmulFixture f;
        f.scratch->autotune = path;
        DeviceTensor<act_t> d_inp(inp);
        DeviceTensor<grad_t> d_dout(dout);
        DeviceTensor<float> d_dweight(start), d_fresh((size_t)OC * C);
        matmul_backward_weight(f.scratch, d_dweight.data, d_dout.data, d_inp.data, N, C, OC, 1, 0);
        matmul_backward_weight(f.scratch, d_fresh.data, d_dout.data, d_inp.data, N, C, OC, 0, 0);
        compare("matmul autotuned", d_dweight.get("dweight"), want, EPS, product_error(N));
        for (int i = 0; i < f.scratch->count; i++) chosen.push_back(f.scratch->plans[i].algo);
    }
    CHECK(chosen.size() == 4, "%zu plans for two runs of two kinds of products", chosen.size());
    CHECK(memcmp(&chosen[0], &chosen[2], 2 * sizeof chosen[0]) == 0, "the second run chose differently");
    FILE *file = fopen(path, "r");
    int lines = 0;
    for (int c; file && (c = fgetc(file)) != EOF;) lines += c == '\n';
    if (file) fclose(file);
    CHECK(lines == 2, "%d choices in the file, one for each kind of product was expected", lines);
    remove(path);
}

// ----------------------------------------------------------------------------------------------------------------
// Indices beyond 32 bits: more logits than 2^32, of which the last row is compared. Gigabytes: only when asked for.

TEST(cuda_large_index) {
    if (!getenv("TEST_LARGE")) SKIP("set TEST_LARGE=1 on a card with 20 GB free");
    const size_t V = 50257, Vp = 50304, rows = ((size_t)1 << 32) / Vp + 2;
    Floats row = random_values(Vp, 0, 3, 45, round_act_test), want = row;
    float want_loss;
    std::vector<act_t> host(Vp);
    for (size_t i = 0; i < Vp; i++) host[i] = act_t(row[i]);
    act_t *logits;
    std::vector<int32_t> targets(rows, 17);
    DeviceArray<int32_t> d_targets(targets.data(), rows);
    DeviceTensor<float> losses(rows);
    CUDA_CHECK(cudaMalloc((void **)&logits, rows * Vp * sizeof(act_t)));
    for (size_t i = 0; i < rows; i++)
        CUDA_CHECK(cudaMemcpy(logits + i * Vp, host.data(), Vp * sizeof(act_t), cudaMemcpyHostToDevice));
    cpu::fused_classifier(want.data(), &want_loss, targets.data(), 1.0f, 1, V, Vp);
    fused_classifier(logits, losses.data, d_targets.data, 1.0f, rows, V, Vp, 0);
    Floats got(Vp), got_losses = losses.get("losses");
    CUDA_CHECK(cudaMemcpy(host.data(), logits + (rows - 1) * Vp, Vp * sizeof(act_t), cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < Vp; i++) got[i] = (float)host[i];
    compare("classifier last row of 2^32", got, want, grad_epsilon() + 16 * EPS, act_tiny() + 1e-37);
    compare("classifier losses", got_losses, Floats(rows, want_loss), 4 * EPS, 10 * EPS);
    CUDA_CHECK(cudaFree(logits));
}

static void test_kernels_cuda(void) {
    RUN(cuda_embedding_forward);
    RUN(cuda_embedding_backward);
    RUN(cuda_layernorm_forward);
    RUN(cuda_layernorm_backward);
    RUN(cuda_gelu);
    RUN(cuda_gelu_bias);
    RUN(cuda_classifier);
    RUN(cuda_loss_sum);
    RUN(cuda_global_norm);
    RUN(cuda_adamw);
    RUN(cuda_adamw_refresh);
    RUN(cuda_matmul);
    RUN(cuda_matmul_autotune);
    RUN(cuda_large_index);
    print_tensor_errors();
}

#endif
