// test_emu_blas.cu: cuBLASLt's products against plain loops in double, and what must be refused. The same source also
// compiles with nvcc and the real library.
#include <cublasLt.h>

#include <vector>

#include "../../llmc/cuda_utils.cuh"
#include "../../llmc/formats.h"
#include "../test/dies.h"
#include "../test/other_cards.h"

static uint32_t random_state = 1;
static float random_float() {
    random_state = random_state * 1664525u + 1013904223u;
    return (float)(int)(random_state >> 8) * 0x1p-23f - 1.0f;
}

static size_t type_bits(cudaDataType_t type) {
    switch (type) {
        case CUDA_R_32F: return 32;
        case CUDA_R_16F:
        case CUDA_R_16BF: return 16;
        case CUDA_R_4F_E2M1: return 4;
        default: return 8;
    }
}
static float type_epsilon(cudaDataType_t type) {
    return type == CUDA_R_16F ? 0x1p-10f : type == CUDA_R_16BF ? 0x1p-7f : 0x1p-23f;
}
static const char *type_name(cudaDataType_t type) {
    return type == CUDA_R_32F       ? "fp32"
           : type == CUDA_R_16F     ? "fp16"
           : type == CUDA_R_16BF    ? "bf16"
           : type == CUDA_R_4F_E2M1 ? "fp4"
                                    : "fp8";
}
static float get(const char *p, size_t i, cudaDataType_t type) {
    if (type == CUDA_R_32F) return ((const float *)(const void *)p)[i];
    if (type == CUDA_R_8F_E4M3) return decode_e4m3((uint8_t)p[i]);
    if (type == CUDA_R_8F_E5M2) return decode_e5m2((uint8_t)p[i]);
    if (type == CUDA_R_4F_E2M1) return decode_e2m1((uint8_t)(i % 2 ? (uint8_t)p[i / 2] >> 4 : p[i / 2] & 15));
    uint16_t code = ((const uint16_t *)(const void *)p)[i];
    return type == CUDA_R_16F ? decode_fp16(code) : decode_bf16(code);
}
static void put(char *p, size_t i, cudaDataType_t type, float x) {
    if (type == CUDA_R_32F) ((float *)(void *)p)[i] = x;
    else if (type == CUDA_R_8F_E4M3) p[i] = (char)encode_e4m3(x);
    else if (type == CUDA_R_8F_E5M2) p[i] = (char)encode_e5m2(x);
    else if (type == CUDA_R_4F_E2M1) p[i / 2] = (char)(p[i / 2] | encode_e2m1(8 * x) << (i % 2 * 4));  // once only
    else ((uint16_t *)(void *)p)[i] = type == CUDA_R_16F ? encode_fp16(x) : encode_bf16(x);
}

// A matrix with random values, on both sides; `extra` bytes before it on the device (misaligned on purpose).
struct Matrix {
    cudaDataType_t type;
    size_t count, extra;
    std::vector<char> host;
    char *device;
    Matrix(cudaDataType_t t, size_t n, size_t before = 0)
        : type(t), count(n), extra(before), host((n * type_bits(t) + 7) / 8) {
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

// ----------------------------------------------------------------------------------------------------------------
// Decode scales, by the text of the documentation. Logically a matrix: outer index (rows of op(A), columns of op(B)) by
// block of k.

enum { SCALAR, VEC16, VEC32, OUTER, VEC128, BLK128 };  // CUBLASLT_MATMUL_MATRIX_SCALE_...

struct Scales {
    int mode;
    size_t outer, k, length, blocks;
    std::vector<float> values;  // [outer][blocks]
    std::vector<char> bytes;
    char *device = NULL;
    Scales(int scale_mode, size_t outer_count, size_t k_count) : mode(scale_mode), outer(outer_count), k(k_count) {
        length = mode == VEC16 ? 16 : mode == VEC32 ? 32 : mode == VEC128 || mode == BLK128 ? 128 : k;
        blocks = (k + length - 1) / length;
        values.resize(outer * blocks);
        if (mode == VEC16 || mode == VEC32) lay_out_tiles();
        else lay_out_floats();
        CUDA_CHECK(cudaMalloc(&device, bytes.size()));
        up();
    }
    Scales(const Scales &) = delete;
    ~Scales() { cudaFree(device); }
    void up() { CUDA_CHECK(cudaMemcpy(device, bytes.data(), bytes.size(), cudaMemcpyHostToDevice)); }
    void lay_out_floats() {
        size_t stride = mode == BLK128 ? (blocks + 3) / 4 * 4 : outer;
        size_t rows = mode == BLK128 ? (outer + 127) / 128 : blocks;
        std::vector<float> floats(mode == SCALAR ? 1 : stride * rows, NAN);  // what is between is not read
        for (size_t o = 0; o < outer; o++)
            for (size_t b = 0; b < blocks; b++) {
                float &at = floats[mode == SCALAR ? 0 : mode == BLK128 ? o / 128 * stride + b : b * stride + o];
                if (!(at == at))
                    at = mode == VEC128 || mode == BLK128 ? exp2f(floorf(8 * random_float())) : random_float();
                values[o * blocks + b] = at;
            }
        bytes.assign((char *)floats.data(), (char *)(floats.data() + floats.size()));
    }
    // Tiles of 128 x 4: within one, 32 lines of 16 bytes; a line has 4 blocks of index 0, then of 32, 64 and 96.
    void lay_out_tiles() {
        bytes.assign((outer + 127) / 128 * 128 * ((blocks + 3) / 4 * 4), 0);
        size_t at = 0;
        for (size_t first = 0; first < outer; first += 128)
            for (size_t block = 0; block < blocks; block += 4)
                for (size_t line = 0; line < 32; line++)
                    for (size_t group = 0; group < 4; group++)
                        for (size_t b = block; b < block + 4; b++, at++) {
                            size_t o = first + group * 32 + line;
                            if (o >= outer || b >= blocks) continue;
                            uint8_t code = mode == VEC32 ? encode_e8m0(exp2f(floorf(8 * random_float())))
                                                         : encode_ue4m3(fabsf(random_float()) * 4 + 0.01f);
                            bytes[at] = (char)code;
                            values[o * blocks + b] = mode == VEC32 ? ldexpf(1.0f, code - 127) : decode_ue4m3(code);
                        }
    }
    double at(size_t o, size_t element) const { return values[o * blocks + element / length]; }
};

struct Case {
    cudaDataType_t ab, d;
    int transa, transb;
    size_t m, n, k;
    uint32_t epilogue;
    float alpha, beta;
    int tf32;
    // for refusals: deviations from what is right
    cudaDataType_t b_type;  // else as ab (only if set_b)
    int set_b;
    size_t a_offset_bytes;
    int ld_extra;
    int64_t aux_ld;  // 0: as needed
    size_t aux_offset_bytes;
    int no_aux;
    // fp8 and fp4
    int scale_a, scale_b, no_scales, fast;
    size_t bad_padding;  // 1 + the byte of A's scales that is set
};
static Case plain_case(cudaDataType_t ab, cudaDataType_t d) {
    return {ab, d, 1,      0,      32, 16, 32, CUBLASLT_EPILOGUE_DEFAULT, 1.0f, 0.0f, 0, ab, 0, 0, 0, 0, 0, 0,
            SCALAR, SCALAR, 0, 0, 0};
}

static cublasLtHandle_t handle;

// Runs a case; *status is the first refusal. With `compare`, results are checked.
static void run_case(const Case &c, cublasStatus_t *status, bool compare) {
    cudaDataType_t bt = c.set_b ? c.b_type : c.ab;
    size_t rows_a = c.transa ? c.k : c.m, cols_a = c.transa ? c.m : c.k, rows_b = c.transb ? c.n : c.k,
           cols_b = c.transb ? c.k : c.n;
    size_t lda = rows_a + (size_t)c.ld_extra, ldb = rows_b + (size_t)c.ld_extra, ldd = c.m + (size_t)c.ld_extra;
    Matrix A(c.ab, lda * cols_a, c.a_offset_bytes), B(bt, ldb * cols_b), D(c.d, ldd * c.n);
    const bool narrow = (int)c.ab >= (int)CUDA_R_8F_E4M3;
    Scales scales_a(c.scale_a, c.m, c.k), scales_b(c.scale_b, c.n, c.k);
    if (c.bad_padding) scales_a.bytes[c.bad_padding - 1] = 1, scales_a.up();
    cudaDataType_t bias_type = narrow && c.d == CUDA_R_32F ? CUDA_R_16BF : c.d;
    int64_t aux_ld = c.aux_ld ? c.aux_ld : (int64_t)((c.m + 7) / 8 * 8);
    Matrix bias(bias_type, c.m), aux(c.d, (size_t)aux_ld * c.n + 16, c.aux_offset_bytes);
    std::vector<char> d_before = D.host, aux_before = aux.host;

    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t la, lb, ld;
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t result;
    int32_t transa = c.transa ? CUBLAS_OP_T : CUBLAS_OP_N, transb = c.transb ? CUBLAS_OP_T : CUBLAS_OP_N;
    int returned = 0;
    void *bias_pointer = bias.device, *aux_pointer = c.no_aux ? NULL : aux.device, *workspace = NULL;
    size_t workspace_bytes = 1 << 20;
    uint32_t epilogue = c.epilogue, reduction = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    cublasLtMatmulDescCreate(&desc, c.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F);
    cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSA, &transa, sizeof transa);
    cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSB, &transb, sizeof transb);
    cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    if (epilogue & CUBLASLT_EPILOGUE_BIAS)
        cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias_pointer, sizeof bias_pointer);
    if (epilogue & 128) {
        cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &aux_pointer, sizeof aux_pointer);
        cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &aux_ld, sizeof aux_ld);
    }
    cublasLtMatrixLayoutCreate(&la, c.ab, rows_a, cols_a, (int64_t)lda);
    cublasLtMatrixLayoutCreate(&lb, bt, rows_b, cols_b, (int64_t)ldb);
    cublasLtMatrixLayoutCreate(&ld, c.d, c.m, c.n, (int64_t)ldd);
    if (narrow && !c.no_scales) {
        const void *a_pointer = scales_a.device, *b_pointer = scales_b.device;
        cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &a_pointer, sizeof a_pointer);
        cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &b_pointer, sizeof b_pointer);
    }
    const int8_t fast = (int8_t)c.fast;
    if (fast) cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof fast);
    cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &c.scale_a, sizeof c.scale_a);
    cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &c.scale_b, sizeof c.scale_b);
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
    for (size_t j = 0; j < c.n; j++)
        for (size_t i = 0; i < c.m; i++) {
            double sum = 0, magnitude = 0;
            for (size_t k = 0; k < c.k; k++) {
                double a = A[c.transa ? i * lda + k : k * lda + i], b = B[c.transb ? k * ldb + j : j * ldb + k];
                if (narrow) a *= scales_a.at(i, k), b *= scales_b.at(j, k);
                sum += a * b;
                magnitude += fabs(a * b);
            }
            size_t at = j * ldd + i, aux_at = j * (size_t)aux_ld + i;
            double v = c.alpha * sum + c.beta * get(d_before.data(), at, c.d);
            if (epilogue & CUBLASLT_EPILOGUE_BIAS) v += bias[i];
            if (epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS) {
                judge(aux[aux_at], v, magnitude, type_epsilon(c.d), at);
                v = 0.5 * v * (1 + tanh(sqrt(2 / M_PI) * (v + 0.044715 * v * v * v)));
            } else if (epilogue == CUBLASLT_EPILOGUE_DGELU) {
                double x = get(aux_before.data(), aux_at, c.d), t = tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
                v *= 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
            }
            judge(D[at], v, magnitude, type_epsilon(c.d), at);
        }
    for (size_t i = 0; i < aux.count; i++)  // only GELU writes aux, and between its columns nothing does
        if (epilogue != CUBLASLT_EPILOGUE_GELU_AUX_BIAS || i % (size_t)aux_ld >= c.m || i / (size_t)aux_ld >= c.n)
            CHECK(aux[i] == get(aux_before.data(), i, c.d), "aux changed at %zu", i);
    for (size_t i = 0; i < D.count; i++)  // rows between m and the leading dimension stay as they were
        if (i % ldd >= c.m) CHECK(D[i] == get(d_before.data(), i, c.d), "padding row changed at %zu", i);
    CHECK(
        worst <= 1,
        "%s -> %s, trans %d %d, %zu x %zu x %zu, epilogue %u, beta %g, scales %d %d: element %zu is off by %.3g of the limit",
        type_name(c.ab), type_name(c.d), c.transa, c.transb, c.m, c.n, c.k, c.epilogue, (double)c.beta, c.scale_a,
        c.scale_b, worst_at, worst);
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
    const uint32_t epilogues[] = {CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_GELU_AUX_BIAS, CUBLASLT_EPILOGUE_DGELU};
    for (const auto &types : type_pairs)
        for (uint32_t epilogue : epilogues)
            for (int trans = 0; trans < 4; trans++) {
                Case c = plain_case(types[0], types[1]);
                c.m = 48, c.n = 65, c.k = 40, c.epilogue = epilogue, c.transa = trans & 1, c.transb = trans >> 1;
                must_run(c);
                c.m = 45, c.aux_ld = 56;
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

// ----------------------------------------------------------------------------------------------------------------
// fp8 and fp4: what runs and what is refused depends on the compute capability.

static Case narrow_case(cudaDataType_t ab, cudaDataType_t d, int scale_a = SCALAR, int scale_b = SCALAR) {
    Case c = plain_case(ab, d);
    c.m = 64, c.n = 32, c.k = 96, c.scale_a = scale_a, c.scale_b = scale_b;
    return c;
}
static void check_case(const Case &c, bool runs, const char *what) {
    if (runs) must_run(c);
    else must_refuse(c, what);
}

TEST(scalar_scales) {
    const cudaDataType_t e4m3 = CUDA_R_8F_E4M3, e5m2 = CUDA_R_8F_E5M2;
    const int cc = device_info()->cc;
    for (cudaDataType_t d : {CUDA_R_16BF, CUDA_R_32F, CUDA_R_16F})
        for (int mixed = 0; mixed < 3; mixed++) {
            Case c = narrow_case(mixed == 2 ? e5m2 : e4m3, d);
            c.set_b = 1, c.b_type = mixed == 1 ? e5m2 : e4m3;
            check_case(c, cc >= 89, "fp8");
            c.n = 37, c.beta = 1, c.fast = 1;
            check_case(c, cc >= 89, "fp8, fast accumulation, an odd number of columns");
            must_refuse(narrow_case(e5m2, d), "e5m2 x e5m2");
        }
    for (int trans = 0; trans < 4; trans++) {
        Case c = narrow_case(e4m3, CUDA_R_16BF);
        c.transa = trans & 1, c.transb = trans >> 1;
        check_case(c, cc == 100 || cc == 103 || (cc >= 89 && trans == 1), "fp8 with other than A transposed");
    }
    Case c = narrow_case(e4m3, CUDA_R_32F);
    c.epilogue = CUBLASLT_EPILOGUE_BIAS;
    check_case(c, cc >= 89, "fp8 with a bias");
    c = narrow_case(e4m3, CUDA_R_16BF), c.k = 40;
    must_refuse(c, "fp8 with k = 40");
    c.transa = 0, c.transb = 1;
    must_refuse(c, "fp8 with k = 40, not contiguous");
    c = narrow_case(e4m3, CUDA_R_16BF), c.m = 36;
    must_refuse(c, "fp8 with 36 rows");
    c = narrow_case(e4m3, CUDA_R_16BF), c.ld_extra = 8;
    must_refuse(c, "fp8 with a leading dimension of 104");
    c = narrow_case(e4m3, CUDA_R_16BF), c.a_offset_bytes = 8;
    must_refuse(c, "fp8 with A aligned to 8 bytes");
    for (uint32_t epilogue : {CUBLASLT_EPILOGUE_GELU_AUX_BIAS, CUBLASLT_EPILOGUE_DGELU}) {
        c = narrow_case(e4m3, CUDA_R_16BF), c.epilogue = epilogue;
        must_refuse(c, "fp8 with GELU");
    }
    c = narrow_case(e4m3, CUDA_R_16BF), c.set_b = 1, c.b_type = CUDA_R_16BF;
    must_refuse(c, "fp8 times bf16");
}

// One scale a row; blocks of 128 along k, with a k of 1, 2 and 5 blocks, the last one cut short. 90 only.
TEST(float_scales) {
    const cudaDataType_t e4m3 = CUDA_R_8F_E4M3;
    const bool has = device_info()->cc == 90;
    const int modes[4][2] = {{OUTER, OUTER}, {VEC128, VEC128}, {BLK128, VEC128}, {VEC128, BLK128}};
    for (const auto &mode : modes) {
        for (size_t k : {96, 256, 544}) {
            Case c = narrow_case(e4m3, CUDA_R_16BF, mode[0], mode[1]);
            c.m = 272, c.n = 140, c.k = k;
            check_case(c, has, "scales that only 90 has");
            c.d = CUDA_R_32F, c.beta = 1, c.set_b = 1, c.b_type = CUDA_R_8F_E5M2;
            check_case(c, has, "scales that only 90 has");
        }
        Case c = narrow_case(e4m3, CUDA_R_16BF, mode[0], mode[1]);
        c.no_scales = 1;
        must_refuse(c, "no pointers to scales");
        c = narrow_case(e4m3, CUDA_R_16BF, mode[0], mode[1]), c.n = 30;
        check_case(c, has && mode[0] == OUTER, "blocks of 128 with 30 columns");
    }
    must_refuse(narrow_case(e4m3, CUDA_R_16BF, BLK128, BLK128), "BLK128x128 for both operands");
    for (int mode : {OUTER, VEC128, BLK128}) {
        must_refuse(narrow_case(e4m3, CUDA_R_16BF, mode, SCALAR), "a scalar for B only");
        must_refuse(narrow_case(e4m3, CUDA_R_16BF, SCALAR, mode), "a scalar for A only");
    }
}

// e8m0 and ue4m3 scales in tiles of 128 x 4: less than one, several, and parts of them.
TEST(tiled_scales) {
    const cudaDataType_t e4m3 = CUDA_R_8F_E4M3, e2m1 = CUDA_R_4F_E2M1;
    const int cc = device_info()->cc;
    const bool has = cc >= 100;
    const size_t shapes[3][3] = {{64, 32, 96}, {272, 33, 544}, {128, 300, 128}};
    for (const auto &shape : shapes)
        for (cudaDataType_t ab : {e4m3, e2m1})
            for (cudaDataType_t d : {CUDA_R_16BF, CUDA_R_32F}) {
                int mode = ab == e2m1 ? VEC16 : VEC32;
                Case c = narrow_case(ab, d, mode, mode);
                c.m = shape[0], c.n = shape[1], c.k = shape[2], c.beta = d == CUDA_R_32F, c.alpha = 0.25f;
                check_case(c, has, "scales that only 100 and 120 have");
                c.transa = 0, c.n = 48;
                check_case(c, ab == e4m3 && (cc == 100 || cc == 103), "A not transposed");
            }
    Case c = narrow_case(e4m3, CUDA_R_16BF, VEC32, VEC32);
    c.k = 48;
    must_refuse(c, "VEC32 with k = 48");
    c = narrow_case(e2m1, CUDA_R_16BF, VEC16, VEC16), c.k = 48;
    must_refuse(c, "fp4 with k = 48");
    must_refuse(narrow_case(e4m3, CUDA_R_16BF, VEC32, SCALAR), "VEC32 for A only");
    must_refuse(narrow_case(e4m3, CUDA_R_16BF, VEC16, VEC16), "VEC16 with fp8");
    must_refuse(narrow_case(e2m1, CUDA_R_16BF), "fp4 with one scale");
    must_refuse(narrow_case(e2m1, CUDA_R_16F, VEC16, VEC16), "fp4 with an fp16 result");
    c = narrow_case(e2m1, CUDA_R_16BF, VEC16, VEC16), c.fast = 1;
    must_refuse(c, "fp4 with fast accumulation");
    c = narrow_case(e2m1, CUDA_R_16BF, VEC16, VEC16), c.set_b = 1, c.b_type = e4m3;
    must_refuse(c, "fp4 times fp8");
#ifdef EMU
    if (!has) return;
    cublasStatus_t status;
    c = narrow_case(e4m3, CUDA_R_16BF, VEC32, VEC32);
    c.n = 16;  // little enough for one thread: the child has no others
    c.bad_padding = 1 + 3;  // row 0 has blocks 0 to 2
    CHECK_DIES(1, "row 0, block 3", run_case(c, &status, false));
    c.bad_padding = 1 + 8;  // row 64 of 64
    CHECK_DIES(1, "row 64, block 0", run_case(c, &status, false));
#endif
}

TEST(refusals) {
    Case c = plain_case(CUDA_R_32F, CUDA_R_16BF);
    must_refuse(c, "fp32 operands, bf16 result");
    c = plain_case(CUDA_R_16F, CUDA_R_16BF);
    must_refuse(c, "fp16 operands, bf16 result");
    c = plain_case(CUDA_R_16BF, CUDA_R_16BF), c.set_b = 1, c.b_type = CUDA_R_16F;
    must_refuse(c, "bf16 times fp16");
    for (uint32_t epilogue : {CUBLASLT_EPILOGUE_GELU_AUX_BIAS, CUBLASLT_EPILOGUE_DGELU}) {
        Case fused = plain_case(CUDA_R_16BF, CUDA_R_16BF);
        fused.epilogue = epilogue;
        c = fused, c.aux_ld = 36;
        must_refuse(c, "an aux leading dimension of 36");
        c = fused, c.aux_ld = 24;
        must_refuse(c, "an aux leading dimension below m");
        c = fused, c.no_aux = 1;
        must_refuse(c, "no aux pointer");
        c = fused, c.aux_offset_bytes = 8;
        must_refuse(c, "aux aligned to 8 bytes");
    }
    c = plain_case(CUDA_R_16BF, CUDA_R_16BF), c.epilogue = 77;
    must_refuse(c, "an epilogue that does not exist");
#ifdef EMU
    c = plain_case(CUDA_R_16BF, CUDA_R_16BF), c.a_offset_bytes = 2;
    must_refuse(c, "an algorithm chosen for aligned matrices, A aligned to 2 bytes");
    c = plain_case(CUDA_R_16BF, CUDA_R_16BF), c.tf32 = 1;
    must_refuse(c, "bf16 with the tf32 compute type");
#endif
    cublasLtMatmulDesc_t desc;
    int64_t eight_bytes = CUBLAS_OP_T;
    cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    CHECK(cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSA, &eight_bytes, sizeof eight_bytes) ==
              CUBLAS_STATUS_INVALID_VALUE,
          "an attribute of the wrong size");
    cublasLtMatmulDescDestroy(desc);
}

#ifdef EMU
static const char *program;

TEST(other_architectures) {
    check_other_cards(program, "narrow");
}
#endif

int main(int argc, char **argv) {
    if (cublasLtCreate(&handle) != CUBLAS_STATUS_SUCCESS) return 1;
    if (argc == 1) {
        RUN(shapes_and_types);
        RUN(alpha_beta_leading_dimensions);
        RUN(beta_zero_reads_nothing);
        RUN(epilogues);
        RUN(tf32);
        RUN(refusals);
    }
    RUN(scalar_scales);
    RUN(float_scales);
    RUN(tiled_scales);
    cublasLtDestroy(handle);
#ifdef EMU
    program = argv[0];
    if (argc == 1) RUN(other_architectures);
#endif
    return test_summary();
}
