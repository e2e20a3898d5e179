// test_emu_blas.cu: cuBLASLt's products against plain loops in double, and what must be refused. The same source also
// compiles with nvcc and the real library.
#include <cublasLt.h>

#include <vector>

#include "../../llmc/cuda_utils.cuh"
#include "../../llmc/formats.h"
#include "../test/test.h"

static uint32_t random_state = 1;
static float random_float() {
    random_state = random_state * 1664525u + 1013904223u;
    return (float)(int)(random_state >> 8) * 0x1p-23f - 1.0f;
}

static size_t type_bytes(cudaDataType_t type) {
    return type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : type == CUDA_R_16F || type == CUDA_R_16BF ? 2 : 1;
}
static float type_epsilon(cudaDataType_t type) {
    return type == CUDA_R_16F ? 0x1p-10f : type == CUDA_R_16BF ? 0x1p-7f : 0x1p-23f;
}
static const char *type_name(cudaDataType_t type) {
    return type == CUDA_R_32F ? "fp32" : type == CUDA_R_16F ? "fp16" : type == CUDA_R_16BF ? "bf16" : "fp8";
}
static float get(const char *p, size_t i, cudaDataType_t type) {
    if (type == CUDA_R_32F) return ((const float *)(const void *)p)[i];
    if (type == CUDA_R_8F_E4M3) return decode_e4m3((uint8_t)p[i]);
    if (type == CUDA_R_8F_E5M2) return decode_e5m2((uint8_t)p[i]);
    uint16_t code = ((const uint16_t *)(const void *)p)[i];
    return type == CUDA_R_16F ? decode_fp16(code) : decode_bf16(code);
}
static void put(char *p, size_t i, cudaDataType_t type, float x) {
    if (type == CUDA_R_32F) ((float *)(void *)p)[i] = x;
    else if (type == CUDA_R_64F) ((double *)(void *)p)[i] = x;
    else if (type == CUDA_R_8F_E4M3) p[i] = (char)encode_e4m3(x);
    else if (type == CUDA_R_8F_E5M2) p[i] = (char)encode_e5m2(x);
    else ((uint16_t *)(void *)p)[i] = type == CUDA_R_16F ? encode_fp16(x) : encode_bf16(x);
}

// A matrix with random values, on both sides; `extra` bytes before it on the device (misaligned on purpose).
struct Matrix {
    cudaDataType_t type;
    size_t count, extra;
    std::vector<char> host;
    char *device;
    Matrix(cudaDataType_t t, size_t n, size_t before = 0) : type(t), count(n), extra(before), host(n * type_bytes(t)) {
        for (size_t i = 0; i < n; i++) put(host.data(), i, t, random_float());
        CUDA_CHECK(cudaMalloc(&device, host.size() + extra));
        device += extra;
        up();
    }
    Matrix(const Matrix &) = delete;
    ~Matrix() { cudaFree(device - extra); }
    void up() { CUDA_CHECK(cudaMemcpy(device, host.data(), host.size(), cudaMemcpyHostToDevice)); }
    void down() { CUDA_CHECK(cudaMemcpy(host.data(), device, host.size(), cudaMemcpyDeviceToHost)); }
    float operator[](size_t i) const { return get(host.data(), i, type); }
};

struct Case {
    cudaDataType_t ab, d;
    int transa, transb;
    size_t m, n, k;
    uint32_t epilogue;
    float alpha, beta;
    int batches;
    int tf32;
    // for refusals: deviations from what is right
    cudaDataType_t b_type;  // else as ab (only if set_b)
    int set_b;
    size_t a_offset_bytes;
    int64_t aux_ld;  // 0: as needed
    int bias_type;   // -1: default
    int ld_extra;
    int no_aux;
};
static Case plain_case(cudaDataType_t ab, cudaDataType_t d) {
    return {ab, d, 1, 0, 32, 16, 32, CUBLASLT_EPILOGUE_DEFAULT, 1.0f, 0.0f, 1, 0, ab, 0, 0, 0, -1, 0, 0};
}

static cublasLtHandle_t handle;

// Runs a case; *status is the first refusal. With `compare`, results are checked.
static void run_case(const Case &c, cublasStatus_t *status, bool compare) {
    cudaDataType_t bt = c.set_b ? c.b_type : c.ab;
    size_t rows_a = c.transa ? c.k : c.m, cols_a = c.transa ? c.m : c.k, rows_b = c.transb ? c.n : c.k,
           cols_b = c.transb ? c.k : c.n;
    size_t lda = rows_a + (size_t)c.ld_extra, ldb = rows_b + (size_t)c.ld_extra, ldd = c.m + (size_t)c.ld_extra;
    size_t batches = (size_t)c.batches;
    int64_t aux_ld = c.aux_ld ? c.aux_ld : (int64_t)((c.m + 7) / 8 * 8);
    Matrix A(c.ab, lda * cols_a * batches, c.a_offset_bytes), B(bt, ldb * cols_b * batches),
        D(c.d, ldd * c.n * batches);
    cudaDataType_t bias_type = (int)c.ab >= (int)CUDA_R_8F_E4M3 && c.d == CUDA_R_32F ? CUDA_R_16BF : c.d;
    Matrix bias(bias_type, c.m > c.n ? c.m : c.n), aux(c.d, (size_t)aux_ld * c.n + 16);
    std::vector<char> d_before = D.host, aux_before = aux.host;

    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t la, lb, ld;
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t result;
    int32_t transa = c.transa ? CUBLAS_OP_T : CUBLAS_OP_N, transb = c.transb ? CUBLAS_OP_T : CUBLAS_OP_N,
            bias_choice = c.bias_type;
    int returned = 0;
    void *bias_pointer = bias.device, *aux_pointer = c.no_aux ? NULL : aux.device, *workspace = NULL;
    size_t workspace_bytes = 1 << 20;
    uint32_t epilogue = c.epilogue, reduction = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    cublasLtMatmulDescCreate(&desc, c.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F);
    cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSA, &transa, sizeof transa);
    cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSB, &transb, sizeof transb);
    cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    if (epilogue != CUBLASLT_EPILOGUE_DEFAULT)
        cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias_pointer, sizeof bias_pointer);
    if (c.bias_type >= 0)
        cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &bias_choice, sizeof bias_choice);
    if (epilogue & 128) {
        cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &aux_pointer,
                                       sizeof aux_pointer);
        cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &aux_ld, sizeof aux_ld);
    }
    cublasLtMatrixLayoutCreate(&la, c.ab, rows_a, cols_a, (int64_t)lda);
    cublasLtMatrixLayoutCreate(&lb, bt, rows_b, cols_b, (int64_t)ldb);
    cublasLtMatrixLayoutCreate(&ld, c.d, c.m, c.n, (int64_t)ldd);
    const cublasLtMatrixLayout_t layouts[3] = {la, lb, ld};
    const int64_t strides[3] = {(int64_t)(lda * cols_a), (int64_t)(ldb * cols_b), (int64_t)(ldd * c.n)};
    for (int i = 0; i < 3 && c.batches > 1; i++) {
        cublasLtMatrixLayoutSetAttribute(layouts[i], CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &c.batches, sizeof c.batches);
        cublasLtMatrixLayoutSetAttribute(layouts[i], CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &strides[i],
                                         sizeof strides[i]);
    }
    cublasLtMatmulPreferenceCreate(&preference);
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes,
                                         sizeof workspace_bytes);
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reduction,
                                         sizeof reduction);
    CUDA_CHECK(cudaMalloc(&workspace, workspace_bytes));
    *status = cublasLtMatmulAlgoGetHeuristic(handle, desc, la, lb, ld, ld, preference, 1, &result, &returned);
    if (*status == CUBLAS_STATUS_SUCCESS && returned == 0) *status = CUBLAS_STATUS_NOT_SUPPORTED;
    if (*status == CUBLAS_STATUS_SUCCESS)
        *status = cublasLtMatmul(handle, desc, &c.alpha, A.device, la, B.device, lb, &c.beta, D.device, ld, D.device,
                                 ld, &result.algo, workspace, workspace_bytes, 0);
    CUDA_CHECK(cudaDeviceSynchronize());
    CUDA_CHECK(cudaFree(workspace));
    cublasLtMatmulPreferenceDestroy(preference);
    cublasLtMatrixLayoutDestroy(la);
    cublasLtMatrixLayoutDestroy(lb);
    cublasLtMatrixLayoutDestroy(ld);
    cublasLtMatmulDescDestroy(desc);
    if (!compare || *status != CUBLAS_STATUS_SUCCESS) return;

    D.down(), bias.down(), aux.down();
    double worst = 0;
    size_t worst_at = 0;
    auto judge = [&](double got, double want, double magnitude, double epsilon, size_t where) {
        double limit = epsilon * (fabs(want) + 1e-3) + magnitude * sqrt((double)c.k) * (c.tf32 ? 0x1p-11 : 0x1p-23);
        double share = fabs(got - want) / limit;
        if (!(share <= worst)) worst = got == got ? share : 1e30, worst_at = where;
    };
    std::vector<double> bias_grad(c.m);
    for (size_t batch = 0; batch < batches; batch++)
        for (size_t j = 0; j < c.n; j++)
            for (size_t i = 0; i < c.m; i++) {
                double sum = 0, magnitude = 0;
                for (size_t k = 0; k < c.k; k++) {
                    double a = A[batch * lda * cols_a + (c.transa ? i * lda + k : k * lda + i)];
                    double b = B[batch * ldb * cols_b + (c.transb ? k * ldb + j : j * ldb + k)];
                    sum += a * b;
                    magnitude += fabs(a * b);
                }
                size_t at = batch * ldd * c.n + j * ldd + i, aux_at = j * (size_t)aux_ld + i;
                double v = c.alpha * sum + c.beta * get(d_before.data(), at, c.d);
                if (epilogue & 4) v += bias[i];
                if (epilogue & 32) {
                    if (epilogue & 128) judge(aux[aux_at], v, magnitude, type_epsilon(c.d), at);
                    v = 0.5 * v * (1 + tanh(sqrt(2 / M_PI) * (v + 0.044715 * v * v * v)));
                }
                if (epilogue & 64) {
                    double x = get(aux_before.data(), aux_at, c.d),
                           t = tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
                    v *= 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
                }
                bias_grad[i] += v;
                judge(D[at], v, magnitude, type_epsilon(c.d), at);
            }
    if (epilogue & 16)
        for (size_t i = 0; i < c.m; i++) judge(bias[i], bias_grad[i], sqrt((double)(c.n * c.k)), type_epsilon(c.d), i);
    for (size_t i = 0; i < c.m && epilogue == CUBLASLT_EPILOGUE_BGRADA; i++) {
        double sum = 0;
        for (size_t k = 0; k < c.k; k++) sum += A[c.transa ? i * lda + k : k * lda + i];
        judge(bias[i], sum, 1, type_epsilon(c.d), i);
    }
    for (size_t j = 0; j < c.n && epilogue == CUBLASLT_EPILOGUE_BGRADB; j++) {
        double sum = 0;
        for (size_t k = 0; k < c.k; k++) sum += B[c.transb ? k * ldb + j : j * ldb + k];
        judge(bias[j], sum, 1, type_epsilon(c.d), j);
    }
    for (size_t i = 0; i < D.count; i++)  // rows between m and the leading dimension stay as they were
        if (i % ldd >= c.m) CHECK(D[i] == get(d_before.data(), i, c.d), "padding row changed at %zu", i);
    CHECK(
        worst <= 1,
        "%s -> %s, trans %d %d, %zu x %zu x %zu, epilogue %u, beta %g, batches %d: element %zu is off by %.3g of the limit",
        type_name(c.ab), type_name(c.d), c.transa, c.transb, c.m, c.n, c.k, c.epilogue, (double)c.beta, c.batches,
        worst_at, worst);
}

static const cudaDataType_t type_pairs[5][2] = {{CUDA_R_32F, CUDA_R_32F},
                                                {CUDA_R_16BF, CUDA_R_16BF},
                                                {CUDA_R_16BF, CUDA_R_32F},
                                                {CUDA_R_16F, CUDA_R_16F},
                                                {CUDA_R_16F, CUDA_R_32F}};

static void must_run(const Case &c) {
    cublasStatus_t status;
    run_case(c, &status, true);
    CHECK(status == CUBLAS_STATUS_SUCCESS, "%s -> %s epilogue %u: refused with %d", type_name(c.ab), type_name(c.d),
          c.epilogue, (int)status);
}
static void must_refuse(const Case &c, const char *what) {
    cublasStatus_t status;
    run_case(c, &status, false);
    CHECK(status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE, "%s: accepted (%d)", what,
          (int)status);
}

TEST(shapes_and_types) {
    const size_t shapes[][3] = {{1, 1, 1}, {64, 32, 16}, {72, 67, 80}, {33, 130, 48}, {200, 7, 129}};
    for (const auto &types : type_pairs)
        for (const auto &shape : shapes)
            for (int trans = 0; trans < 4; trans++) {
                Case c = plain_case(types[0], types[1]);
                c.m = shape[0], c.n = shape[1], c.k = shape[2], c.transa = trans & 1, c.transb = trans >> 1;
                must_run(c);
            }
}

TEST(alpha_beta_leading_dimensions) {
    for (const auto &types : type_pairs)
        for (int trans = 0; trans < 4; trans++) {
            Case c = plain_case(types[0], types[1]);
            c.m = 40, c.n = 24, c.k = 56, c.alpha = 0.5f, c.beta = -1.5f, c.ld_extra = 8, c.transa = trans & 1,
            c.transb = trans >> 1;
            must_run(c);
        }
}

// beta = 0 means that D is not read: NaN in it does not spread (fresh memory is full of it).
TEST(beta_zero_reads_nothing) {
    Case c = plain_case(CUDA_R_32F, CUDA_R_32F);
    must_run(c);  // D holds numbers
    Matrix nan(CUDA_R_32F, 1);
    CHECK(nan[0] == nan[0], "a number");
    c.m = c.n = c.k = 8;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t layout;
    Matrix A(CUDA_R_32F, 64);
    float *D, host[64], one = 1, zero = 0;
    CUDA_CHECK(cudaMalloc(&D, 256));
    CUDA_CHECK(cudaMemset(D, 0xff, 256));
    cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    cublasLtMatrixLayoutCreate(&layout, CUDA_R_32F, 8, 8, 8);
    cublasStatus_t status = cublasLtMatmul(handle, desc, &one, A.device, layout, A.device, layout, &zero, D, layout, D,
                                           layout, NULL, NULL, 0, 0);
    CUDA_CHECK(cudaMemcpy(host, D, 256, cudaMemcpyDeviceToHost));
    CHECK(status == CUBLAS_STATUS_SUCCESS && host[0] == host[0] && host[63] == host[63], "status %d, %g %g",
          (int)status, host[0], host[63]);
    cublasLtMatrixLayoutDestroy(layout);
    cublasLtMatmulDescDestroy(desc);
    CUDA_CHECK(cudaFree(D));
}

TEST(epilogues) {
    const uint32_t epilogues[] = {CUBLASLT_EPILOGUE_BIAS,          CUBLASLT_EPILOGUE_GELU,
                                  CUBLASLT_EPILOGUE_GELU_BIAS,     CUBLASLT_EPILOGUE_GELU_AUX,
                                  CUBLASLT_EPILOGUE_GELU_AUX_BIAS, CUBLASLT_EPILOGUE_DGELU,
                                  CUBLASLT_EPILOGUE_DGELU_BGRAD,   CUBLASLT_EPILOGUE_BGRADA,
                                  CUBLASLT_EPILOGUE_BGRADB};
    for (const auto &types : type_pairs)
        for (uint32_t epilogue : epilogues)
            for (int trans = 0; trans < 4; trans++) {
                Case c = plain_case(types[0], types[1]);
                c.m = 48, c.n = 65, c.k = 40, c.epilogue = epilogue, c.transa = trans & 1, c.transb = trans >> 1;
                must_run(c);
            }
}

TEST(batches) {
    for (const auto &types : type_pairs) {
        Case c = plain_case(types[0], types[1]);
        c.m = 24, c.n = 17, c.k = 31, c.batches = 3, c.transa = 0, c.beta = 1;
        must_run(c);
    }
}

// tf32 operands have 11 significant bits: 1 + 2^-12 counts as 1, whichever way they are rounded; 1 + 2^-10 stays.
TEST(tf32) {
    Case c = plain_case(CUDA_R_32F, CUDA_R_32F);
    c.tf32 = 1, c.m = 64, c.n = 48, c.k = 96;
    must_run(c);
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t layout;
    Matrix A(CUDA_R_32F, 64), B(CUDA_R_32F, 64), D(CUDA_R_32F, 64);
    for (size_t i = 0; i < 64; i++) {
        put(A.host.data(), i, CUDA_R_32F, i % 8 == i / 8 ? (i % 16 ? 1.0f + 0x1p-12f : 1.0f + 0x1p-10f) : 0.0f);
        put(B.host.data(), i, CUDA_R_32F, i % 8 == i / 8 ? 1.0f : 0.0f);
    }
    A.up(), B.up();
    float one = 1, zero = 0;
    cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F_FAST_TF32, CUDA_R_32F);
    cublasLtMatrixLayoutCreate(&layout, CUDA_R_32F, 8, 8, 8);
    cublasStatus_t status = cublasLtMatmul(handle, desc, &one, A.device, layout, B.device, layout, &zero, D.device,
                                           layout, D.device, layout, NULL, NULL, 0, 0);
    D.down();
    CHECK(status == CUBLAS_STATUS_SUCCESS, "status %d", (int)status);
    for (size_t i = 0; i < 8; i++)
        CHECK(D[9 * i] == (9 * i % 16 ? 1.0f : 1.0f + 0x1p-10f), "element %zu: %a", i, D[9 * i]);
    cublasLtMatrixLayoutDestroy(layout);
    cublasLtMatmulDescDestroy(desc);
}

TEST(fp8) {
    const cudaDataType_t e4m3 = CUDA_R_8F_E4M3, e5m2 = CUDA_R_8F_E5M2;
    for (cudaDataType_t d : {CUDA_R_16BF, CUDA_R_32F, CUDA_R_16F})
        for (int mixed = 0; mixed < 3; mixed++) {
            Case c = plain_case(mixed == 2 ? e5m2 : e4m3, d);
            c.m = 64, c.n = 32, c.k = 96, c.set_b = 1, c.b_type = mixed == 1 ? e5m2 : e4m3;
            must_run(c);
            if (mixed) continue;
            c.epilogue = CUBLASLT_EPILOGUE_BIAS;
            must_run(c);
        }
    Case c = plain_case(e4m3, CUDA_R_16BF);
    c.ab = e5m2;
    must_refuse(c, "e5m2 x e5m2");
    c = plain_case(e4m3, CUDA_R_16BF), c.transa = 0;
    must_refuse(c, "fp8 with A not transposed");
    c = plain_case(e4m3, CUDA_R_16BF), c.transb = 1;
    must_refuse(c, "fp8 with B transposed");
    c = plain_case(e4m3, CUDA_R_16BF), c.k = 40;
    must_refuse(c, "fp8 with k = 40");
    c = plain_case(e4m3, CUDA_R_16BF), c.m = 36;
    must_refuse(c, "fp8 with 36 rows");
    c = plain_case(e4m3, CUDA_R_16BF), c.ld_extra = 8;
    must_refuse(c, "fp8 with a leading dimension of 40");
    c = plain_case(e4m3, CUDA_R_16BF), c.a_offset_bytes = 8;
    must_refuse(c, "fp8 with A aligned to 8 bytes");
    c = plain_case(e4m3, CUDA_R_16BF), c.epilogue = CUBLASLT_EPILOGUE_DGELU;
    must_refuse(c, "fp8 with dGELU");
    c = plain_case(e4m3, CUDA_R_16BF), c.epilogue = CUBLASLT_EPILOGUE_BIAS, c.bias_type = CUDA_R_32F;
    must_refuse(c, "fp8 with an fp32 bias");
    c = plain_case(e4m3, CUDA_R_16BF), c.set_b = 1, c.b_type = CUDA_R_16BF;
    must_refuse(c, "fp8 times bf16");
}

TEST(refusals) {
    Case c = plain_case(CUDA_R_32F, CUDA_R_16BF);
    must_refuse(c, "fp32 operands, bf16 result");
    c = plain_case(CUDA_R_16F, CUDA_R_16BF);
    must_refuse(c, "fp16 operands, bf16 result");
    c = plain_case(CUDA_R_16BF, CUDA_R_16BF), c.set_b = 1, c.b_type = CUDA_R_16F;
    must_refuse(c, "bf16 times fp16");
    c = plain_case(CUDA_R_16BF, CUDA_R_16BF), c.epilogue = CUBLASLT_EPILOGUE_GELU_AUX, c.aux_ld = 36;
    must_refuse(c, "an aux leading dimension of 36");
    c = plain_case(CUDA_R_16BF, CUDA_R_16BF), c.epilogue = CUBLASLT_EPILOGUE_GELU_AUX, c.aux_ld = 24;
    must_refuse(c, "an aux leading dimension below m");
    c = plain_case(CUDA_R_16BF, CUDA_R_16BF), c.epilogue = CUBLASLT_EPILOGUE_BIAS, c.bias_type = CUDA_R_16F;
    must_refuse(c, "an fp16 bias with bf16");
    c = plain_case(CUDA_R_16BF, CUDA_R_32F), c.epilogue = CUBLASLT_EPILOGUE_BIAS, c.bias_type = CUDA_R_16F;
    must_refuse(c, "an fp16 bias with an fp32 result");
    c = plain_case(CUDA_R_16BF, CUDA_R_16BF), c.epilogue = 77;
    must_refuse(c, "an epilogue that does not exist");
    c = plain_case(CUDA_R_64F, CUDA_R_32F);
    must_refuse(c, "fp64 operands");
#ifdef EMU
    c = plain_case(CUDA_R_16BF, CUDA_R_16BF), c.a_offset_bytes = 2;
    must_refuse(c, "an algorithm chosen for aligned matrices, A aligned to 2 bytes");
    c = plain_case(CUDA_R_16BF, CUDA_R_16BF), c.tf32 = 1;
    must_refuse(c, "bf16 with the tf32 compute type");
#endif
    c = plain_case(CUDA_R_16BF, CUDA_R_16BF), c.epilogue = CUBLASLT_EPILOGUE_GELU_AUX, c.no_aux = 1;
    must_refuse(c, "no aux pointer");
    cublasLtMatmulDesc_t desc;
    int64_t eight_bytes = CUBLAS_OP_T;
    cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    CHECK(cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSA, &eight_bytes, sizeof eight_bytes) ==
              CUBLAS_STATUS_INVALID_VALUE,
          "an attribute of the wrong size");
    cublasLtMatmulDescDestroy(desc);
}

int main() {
    if (cublasLtCreate(&handle) != CUBLAS_STATUS_SUCCESS) return 1;
    RUN(shapes_and_types);
    RUN(alpha_beta_leading_dimensions);
    RUN(beta_zero_reads_nothing);
    RUN(epilogues);
    RUN(batches);
    RUN(tf32);
    RUN(fp8);
    RUN(refusals);
    cublasLtDestroy(handle);
    return test_summary();
}
