// matmul.cuh: the CUDA twin of matmul.h: every matrix product through cuBLASLt, and our own column sums (bias gradient)
// and matrix-vector product (sampling).
//
// For each distinct product (shape, types, epilogue, accumulation) descriptors and algorithm are made at its first use
// and kept: asking cuBLASLt costs about 10 us, and a cached algorithm gives the same bits from call to call. With
// --autotune the first use also times the library's proposals (matmul_tune.cuh).
// Accumulators are fp32 everywhere; split-K may reduce in fp32 only (never in the 16-bit output type, which the
// library's default allows). Row-major matrices are column-major ones transposed, which is how they are described here.
#ifndef LLMC_MATMUL_CUH
#define LLMC_MATMUL_CUH

#include <cublasLt.h>
#include <float.h>

#include "column_sums.cuh"
#include "matmul_tune.cuh"
#include "mma.cuh"
#include "precision_types.cuh"

#if !defined(EMU) && CUBLAS_VER_MAJOR * 100 + CUBLAS_VER_MINOR < 1209
#error "CUDA 12.9 or newer is needed (CUDA_HOME=...): older cuBLAS knows no scales of rows and 128-blocks"
#endif

static inline void cublas_check(cublasStatus_t status, const char *statement, const char *file, int line) {
    if (status != CUBLAS_STATUS_SUCCESS)
        error_exit(1, file, line, "cuBLAS refused: %s\nwhy: %s (status %d)", statement, cublasLtGetStatusName(status),
                   (int)status);
}
#define CUBLAS_CHECK(statement) cublas_check((statement), #statement, __FILE__, __LINE__)

// What the product does to its sums before the only rounding. GELU_BIAS: D = GELU(sums + bias), and sums + bias to aux;
// DGELU: D = sums . GELU'(aux). aux (m x n) is of D's type, without gaps.
typedef enum { MATMUL_PLAIN, MATMUL_BIAS, MATMUL_GELU_BIAS, MATMUL_DGELU } MatmulEpilogue;

// FAST: fp8's short accumulator all along k. DEVICE_ALPHA: the factors of the product and of D are read on the device.
enum { MATMUL_FAST = 1, MATMUL_DEVICE_ALPHA = 2 };

// One kind of product: D (m x n) = op(A) (m x k) . op(B) (k x n) [+ D], column-major. Compared as bytes: no padding.
typedef struct {
    uint64_t m, n, k;
    int32_t transpose_a, transpose_b, a_type, b_type, out_type, accumulate, epilogue, flags;
    int32_t a_scales, b_scales;  // cuBLASLt's scale modes, of fp8 and fp4 operands
} MatmulKey;

// Of two operands of one type.
static inline MatmulKey matmul_key(size_t m, size_t n, size_t k, int transpose_a, int transpose_b, int32_t type,
                                   int32_t out_type, int accumulate, MatmulEpilogue epilogue) {
    MatmulKey key = {m, n, k, transpose_a, transpose_b, type, type, out_type, accumulate != 0, epilogue, 0, 0, 0};
    return key;
}

static inline double matmul_type_bytes(int32_t type) {
    return type == CUDA_R_32F ? 4 : type == CUDA_R_16F || type == CUDA_R_16BF ? 2 : type == CUDA_R_4F_E2M1 ? 0.5 : 1;
}

// What a call gives beside its matrices.
typedef struct {
    const char *name;                 // of the product, for profiles
    const void *bias;                 // MATMUL_BIAS, MATMUL_GELU_BIAS; else NULL
    const void *aux;                  // MATMUL_GELU_BIAS, which writes it, and MATMUL_DGELU; else NULL
    const void *a_scales, *b_scales;  // of fp8 and fp4 operands; else NULL
    const float *alpha_beta;          // MATMUL_DEVICE_ALPHA: both factors; else NULL
} MatmulExtras;

typedef struct {
    MatmulKey key;
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algo;
} MatmulPlan;

#define MATMUL_MAX_PLANS 64

// cuBLASLt's handle, the plans, and the workspace. One per stream: two products that share a workspace corrupt each
// other.
typedef struct {
    cublasLtHandle_t handle;
    void *workspace;
    size_t workspace_bytes;
    float *alpha_beta;     // device memory for the call that is being made
    const char *autotune;  // the file of choices; "": the library's first proposal is taken
    int count;
    MatmulPlan plans[MATMUL_MAX_PLANS];
} MatmulScratch;

#define MATMUL_ALPHA_BYTES ((size_t)256)

// What to give as workspace: Hopper and later want room for split-K (d12's attention projection: 16.5 MB of partial
// sums). The last bytes are alpha_beta's.
static inline size_t matmul_scratch_bytes(void) {
    return ((size_t)(device_info()->cc >= 90 ? 32 : 4) << 20) + MATMUL_ALPHA_BYTES;
}

// `workspace`: device memory, 256-byte aligned.
static inline MatmulScratch *matmul_scratch(void *workspace, size_t workspace_bytes) {
    MatmulScratch *scratch = (MatmulScratch *)checked_calloc(1, sizeof *scratch, "cuBLASLt's plans");
    CUBLAS_CHECK(cublasLtCreate(&scratch->handle));
    scratch->workspace = workspace;
    scratch->autotune = "";
    scratch->workspace_bytes = workspace_bytes - MATMUL_ALPHA_BYTES;
    scratch->alpha_beta = (float *)((char *)workspace + scratch->workspace_bytes);
    return scratch;
}

static inline void matmul_plan_destroy(MatmulPlan *plan) {
    CUBLAS_CHECK(cublasLtMatmulDescDestroy(plan->operation));
    CUBLAS_CHECK(cublasLtMatrixLayoutDestroy(plan->a));
    CUBLAS_CHECK(cublasLtMatrixLayoutDestroy(plan->b));
    CUBLAS_CHECK(cublasLtMatrixLayoutDestroy(plan->d));
}

static inline void matmul_scratch_free(MatmulScratch *scratch) {
    for (int i = 0; i < scratch->count; i++) matmul_plan_destroy(&scratch->plans[i]);
    CUBLAS_CHECK(cublasLtDestroy(scratch->handle));
    free(scratch);
}

// ----------------------------------------------------------------------------------------------------------------
// Plans

#define MATMUL_SET(desc, attribute, value) \
    CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(desc, attribute, &(value), sizeof(value)))

static inline void matmul_describe(MatmulPlan *plan) {
    static const cublasLtEpilogue_t epilogues[] = {CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_BIAS,
                                                   CUBLASLT_EPILOGUE_GELU_AUX_BIAS, CUBLASLT_EPILOGUE_DGELU};
    const MatmulKey *key = &plan->key;
    // fp32 stays fp32 unless the policy's operands are tf32. The default permits no tf32.
    const cublasComputeType_t compute =
        key->a_type == CUDA_R_32F && BUILD_OPERAND == FORMAT_TF32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    const cublasOperation_t transpose_a = key->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t transpose_b = key->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    CUBLAS_CHECK(cublasLtMatmulDescCreate(&plan->operation, compute, CUDA_R_32F));
    MATMUL_SET(plan->operation, CUBLASLT_MATMUL_DESC_TRANSA, transpose_a);
    MATMUL_SET(plan->operation, CUBLASLT_MATMUL_DESC_TRANSB, transpose_b);
    MATMUL_SET(plan->operation, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogues[key->epilogue]);
    const int64_t aux_ld = (int64_t)key->m;
    if (key->epilogue >= MATMUL_GELU_BIAS)
        MATMUL_SET(plan->operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, aux_ld);
    if (key->a_scales || key->b_scales) {
        MATMUL_SET(plan->operation, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, key->a_scales);
        MATMUL_SET(plan->operation, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, key->b_scales);
    }
    const int8_t fast = 1;
    if (key->flags & MATMUL_FAST) MATMUL_SET(plan->operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, fast);
    const int32_t on_device = CUBLASLT_POINTER_MODE_DEVICE;
    if (key->flags & MATMUL_DEVICE_ALPHA) MATMUL_SET(plan->operation, CUBLASLT_MATMUL_DESC_POINTER_MODE, on_device);
    // Leading dimensions are the rows of the stored matrix: no gaps anywhere.
    const uint64_t a_rows = key->transpose_a ? key->k : key->m, a_cols = key->transpose_a ? key->m : key->k;
    const uint64_t b_rows = key->transpose_b ? key->n : key->k, b_cols = key->transpose_b ? key->k : key->n;
    CUBLAS_CHECK(cublasLtMatrixLayoutCreate(&plan->a, (cudaDataType_t)key->a_type, a_rows, a_cols, (int64_t)a_rows));
    CUBLAS_CHECK(cublasLtMatrixLayoutCreate(&plan->b, (cudaDataType_t)key->b_type, b_rows, b_cols, (int64_t)b_rows));
    CUBLAS_CHECK(cublasLtMatrixLayoutCreate(&plan->d, (cudaDataType_t)key->out_type, key->m, key->n, (int64_t)key->m));
}

// Pointers belong to the call, not to the plan; they are part of what the library's choice looks at.
static inline void matmul_set_pointers(MatmulPlan *plan, const MatmulExtras *extras) {
    if (extras->bias) MATMUL_SET(plan->operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, extras->bias);
    if (extras->aux) MATMUL_SET(plan->operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, extras->aux);
    if (extras->a_scales) MATMUL_SET(plan->operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, extras->a_scales);
    if (extras->b_scales) MATMUL_SET(plan->operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, extras->b_scales);
}

// The library's proposals, best first as it thinks, within the workspace and for pointers of 16-byte alignment (the
// default assumes 256, which a layer's slice of an arena need not have). Reductions in COMPUTE_TYPE: fp32, in a fixed
// order. *found = how many; none: the status says why.
static inline cublasStatus_t matmul_propose(MatmulScratch *scratch, const MatmulPlan *plan,
                                            cublasLtMatmulHeuristicResult_t *results, int wanted, int *found) {
    const uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, alignment = 16;
    cublasLtMatmulPreference_t preference;
    *found = 0;
    CUBLAS_CHECK(cublasLtMatmulPreferenceCreate(&preference));
#define SET(attribute, value) \
    CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &(value), sizeof(value)))
    SET(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, scratch->workspace_bytes);
    SET(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reduction);
    SET(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment);
    SET(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment);
    SET(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment);
    SET(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment);
#undef SET
    cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(scratch->handle, plan->operation, plan->a, plan->b, plan->d,
                                                           plan->d, preference, wanted, results, found);
    CUBLAS_CHECK(cublasLtMatmulPreferenceDestroy(preference));
    return status == CUBLAS_STATUS_SUCCESS && *found == 0 ? CUBLAS_STATUS_NOT_SUPPORTED : status;
}

// Would there be an algorithm for such a product? Nothing is kept.
static inline cublasStatus_t matmul_query(MatmulScratch *scratch, const MatmulKey *key) {
    const int bias = key->epilogue == MATMUL_BIAS || key->epilogue == MATMUL_GELU_BIAS;
    void *const anywhere = scratch->workspace;
    const MatmulExtras extras = {"query", bias ? anywhere : NULL, key->epilogue >= MATMUL_GELU_BIAS ? anywhere : NULL,
                                 key->a_scales ? anywhere : NULL, key->b_scales ? anywhere : NULL, NULL};
    cublasLtMatmulHeuristicResult_t first;
    MatmulPlan plan;
    int found;
    plan.key = *key;
    matmul_describe(&plan);
    matmul_set_pointers(&plan, &extras);
    cublasStatus_t status = matmul_propose(scratch, &plan, &first, 1, &found);
    matmul_plan_destroy(&plan);
    return status;
}

static inline cublasStatus_t matmul_launch(MatmulScratch *scratch, const MatmulPlan *plan,
                                           const cublasLtMatmulAlgo_t *algo, void *d, const void *a, const void *b,
                                           const float *device_alpha_beta, cudaStream_t stream) {
    const float host_alpha_beta[2] = {1.0f, plan->key.accumulate ? 1.0f : 0.0f};
    const float *factors = device_alpha_beta ? device_alpha_beta : host_alpha_beta;
    return cublasLtMatmul(scratch->handle, plan->operation, &factors[0], a, plan->a, b, plan->b, &factors[1], d,
                          plan->d, d, plan->d, algo, scratch->workspace, scratch->workspace_bytes, stream);
}

// The fastest proposal for the operands of a plan's first call: their own values, the real epilogue and beta, since all
// three change the time. D is as before afterwards if the product adds to it; otherwise the call overwrites it anyway.
static inline void matmul_autotune(MatmulScratch *scratch, MatmulPlan *plan, void *d, const void *a, const void *b,
                                   const float *device_alpha_beta, cudaStream_t stream) {
    const MatmulKey *key = &plan->key;
    const size_t d_bytes = (size_t)(key->m * key->n) * (key->out_type == CUDA_R_32F ? 4 : 2);
    cublasLtMatmulHeuristicResult_t results[MATMUL_CANDIDATES];
    char comment[96];
    int found;
    void *kept = NULL;
    float best_ms = FLT_MAX;
    if (matmul_tune_recall(scratch->autotune, key, sizeof *key, &plan->algo)) return;
    if (key->accumulate && cudaMalloc(&kept, d_bytes) != cudaSuccess) {
        cudaGetLastError();  // it is not to show at the next call
        warn("--autotune: no memory to try a product of m=%llu n=%llu k=%llu: cuBLASLt's first proposal is taken",
             (unsigned long long)key->m, (unsigned long long)key->n, (unsigned long long)key->k);
        return;
    }
    if (kept) CUDA_CHECK(cudaMemcpyAsync(kept, d, d_bytes, cudaMemcpyDeviceToDevice, stream));
    CUBLAS_CHECK(matmul_propose(scratch, plan, results, MATMUL_CANDIDATES, &found));
    for (int i = 0; i < found; i++) {
        // The library has not seen beta yet, nor the matrices: it may still refuse.
        if (results[i].state != CUBLAS_STATUS_SUCCESS ||
            matmul_launch(scratch, plan, &results[i].algo, d, a, b, device_alpha_beta, stream) != CUBLAS_STATUS_SUCCESS)
            continue;
        const float ms = matmul_median_ms(
            [&] { CUBLAS_CHECK(matmul_launch(scratch, plan, &results[i].algo, d, a, b, device_alpha_beta, stream)); },
            stream);
        if (ms >= MATMUL_WORTHWHILE * best_ms) continue;
        best_ms = ms;
        plan->algo = results[i].algo;
    }
    if (kept) CUDA_CHECK(cudaMemcpyAsync(d, kept, d_bytes, cudaMemcpyDeviceToDevice, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    if (kept) CUDA_CHECK(cudaFree(kept));
    snprintf(comment, sizeof comment, "m=%llu n=%llu k=%llu", (unsigned long long)key->m, (unsigned long long)key->n,
             (unsigned long long)key->k);
    matmul_tune_remember(scratch->autotune, key, sizeof *key, &plan->algo, comment);
}

// The plan of this kind of product; *made = 1 if this is its first use.
static inline MatmulPlan *matmul_plan(MatmulScratch *scratch, const MatmulKey *key, const MatmulExtras *extras,
                                      int *made) {
    for (int i = 0; i < scratch->count; i++)
        if (memcmp(&scratch->plans[i].key, key, sizeof *key) == 0) {
            matmul_set_pointers(&scratch->plans[i], extras);
            return &scratch->plans[i];
        }
    if (scratch->count == MATMUL_MAX_PLANS) die("more than %d kinds of matrix products", MATMUL_MAX_PLANS);
    MatmulPlan *plan = &scratch->plans[scratch->count++];
    cublasLtMatmulHeuristicResult_t first;
    plan->key = *key;
    matmul_describe(plan);
    matmul_set_pointers(plan, extras);
    int found;
    cublasStatus_t status = matmul_propose(scratch, plan, &first, 1, &found);
    if (status != CUBLAS_STATUS_SUCCESS)
        die("cuBLASLt has no algorithm for a product of m=%llu n=%llu k=%llu, op(A)=%c op(B)=%c, types %d and %d to %d, "
            "scales %d and %d, epilogue %d%s\nwhy: %s (status %d)",
            (unsigned long long)key->m, (unsigned long long)key->n, (unsigned long long)key->k,
            key->transpose_a ? 'T' : 'N', key->transpose_b ? 'T' : 'N', key->a_type, key->b_type, key->out_type,
            key->a_scales, key->b_scales, key->epilogue, key->accumulate ? ", accumulating" : "",
            cublasLtGetStatusName(status), (int)status);
    plan->algo = first.algo;
    *made = 1;
    return plan;
}

static inline void matmul_run(MatmulScratch *scratch, const MatmulKey *key, void *d, const void *a, const void *b,
                              const MatmulExtras *extras, cudaStream_t stream) {
    const double m = (double)key->m, n = (double)key->n, k = (double)key->k, d_bytes = matmul_type_bytes(key->out_type);
    char name[80];
    snprintf(name, sizeof name, "matmul_%s %.0fx%.0f over %.0f", extras->name, n, m, k);
    DeviceOp op(name,
                m * k * matmul_type_bytes(key->a_type) + k * n * matmul_type_bytes(key->b_type) +
                    m * n * d_bytes * (key->accumulate || key->epilogue >= MATMUL_GELU_BIAS ? 2 : 1),
                2 * m * n * k, stream);
    if (device_op_observer()->paper) return;
    int made = 0;
    MatmulPlan *plan = matmul_plan(scratch, key, extras, &made);
    if (made && scratch->autotune[0]) matmul_autotune(scratch, plan, d, a, b, extras->alpha_beta, stream);
    CUBLAS_CHECK(matmul_launch(scratch, plan, &plan->algo, d, a, b, extras->alpha_beta, stream));
}

// ----------------------------------------------------------------------------------------------------------------
// The linear layer: see matmul.h. T: act_t, grad_t or weight_t, which one product's operands share.

// out (N, OC) = inp (N, C) . weight (OC, C)^T + bias (OC) or NULL; rounded once, after the bias
template <typename T>
static inline void matmul_forward(MatmulScratch *scratch, T *out, const T *inp, const T *weight, const T *bias,
                                  size_t N, size_t C, size_t OC, cudaStream_t stream) {
    const int32_t type = TypeFormat<T>::cuda;
    const MatmulKey key = matmul_key(OC, N, C, 1, 0, type, type, 0, bias ? MATMUL_BIAS : MATMUL_PLAIN);
    const MatmulExtras extras = {"forward", bias, NULL, NULL, NULL, NULL};
    matmul_run(scratch, &key, out, weight, inp, &extras, stream);
}

// out (N, OC) = gelu(fch), fch (N, OC) = inp (N, C) . weight (OC, C)^T + bias (OC); both rounded once, from fp32
template <typename T>
static inline void matmul_forward_gelu(MatmulScratch *scratch, T *out, T *fch, const T *inp, const T *weight,
                                       const T *bias, size_t N, size_t C, size_t OC, cudaStream_t stream) {
    const int32_t type = TypeFormat<T>::cuda;
    const MatmulKey key = matmul_key(OC, N, C, 1, 0, type, type, 0, MATMUL_GELU_BIAS);
    const MatmulExtras extras = {"forward_gelu", bias, fch, NULL, NULL, NULL};
    matmul_run(scratch, &key, out, weight, inp, &extras, stream);
}

// dinp (N, C) = dout (N, OC) . weight (OC, C), or += with accumulate; rounded once
template <typename T>
static inline void matmul_backward_input(MatmulScratch *scratch, T *dinp, const T *dout, const T *weight, size_t N,
                                         size_t C, size_t OC, int accumulate, cudaStream_t stream) {
    const int32_t type = TypeFormat<T>::cuda;
    const MatmulKey key = matmul_key(C, N, OC, 0, 0, type, type, accumulate, MATMUL_PLAIN);
    const MatmulExtras extras = {"backward_input", NULL, NULL, NULL, NULL, NULL};
    matmul_run(scratch, &key, dinp, weight, dout, &extras, stream);
}

// dfch (N, C) = gelu'(fch (N, C)) . (dout (N, OC) . weight (OC, C)); rounded once
template <typename T>
static inline void matmul_backward_input_gelu(MatmulScratch *scratch, T *dfch, const T *fch, const T *dout,
                                              const T *weight, size_t N, size_t C, size_t OC, cudaStream_t stream) {
    const int32_t type = TypeFormat<T>::cuda;
    const MatmulKey key = matmul_key(C, N, OC, 0, 0, type, type, 0, MATMUL_DGELU);
    const MatmulExtras extras = {"backward_input_gelu", NULL, fch, NULL, NULL, NULL};
    matmul_run(scratch, &key, dfch, weight, dout, &extras, stream);
}

// dweight (OC, C) f32 = dout (N, OC)^T . inp (N, C), or += with accumulate; never rounded
template <typename T>
static inline void matmul_backward_weight(MatmulScratch *scratch, float *dweight, const T *dout, const T *inp, size_t N,
                                          size_t C, size_t OC, int accumulate, cudaStream_t stream) {
    const MatmulKey key = matmul_key(C, OC, N, 0, 1, TypeFormat<T>::cuda, CUDA_R_32F, accumulate, MATMUL_PLAIN);
    const MatmulExtras extras = {"backward_weight", NULL, NULL, NULL, NULL, NULL};
    matmul_run(scratch, &key, dweight, inp, dout, &extras, stream);
}

// ----------------------------------------------------------------------------------------------------------------

// dbias (OC) f32 = column sums of dout (N, OC), or += with accumulate; OC % 8 == 0; scratch:
// column_sums_scratch_elems(N, OC) floats. Where a kernel that makes dout can take the sums along
// (layernorm_backward_sums, gelu_backward_bias), use that.
template <typename T>
static inline void matmul_backward_bias(float *dbias, const T *dout, size_t N, size_t OC, int accumulate,
                                        float *scratch, cudaStream_t stream) {
    StoredColumns<T> columns = {dout, OC};
    DeviceOp op("matmul_backward_bias", (double)(N * OC) * sizeof(T), 0, stream);
    column_sums(dbias, columns, (T *)NULL, N, OC, accumulate, scratch, stream);
}

#define MATVEC_WARPS 8

// An operand as the policy's products read it.
template <typename T>
__device__ __forceinline__ float matvec_operand(T x) {
    return to_float(x);
}
template <>
__device__ __forceinline__ float matvec_operand<float>(float x) {
    if (BUILD_OPERAND != FORMAT_TF32) return x;
    return __uint_as_float(float_to_tf32(x));
}

// One warp an output.
template <typename T>
__global__ void __launch_bounds__(WARP_SIZE *MATVEC_WARPS)
    matvec_forward_kernel(T *out, const T *inp, const T *weight, const T *bias, int C, size_t OC) {
    const size_t row = (size_t)blockIdx.x * MATVEC_WARPS + threadIdx.x / WARP_SIZE;
    if (row >= OC) return;
    float sum = 0;
#pragma unroll 4
    for (int c = threadIdx.x % WARP_SIZE * PACK; c < C; c += WARP_SIZE * PACK) {
        Packed<T, PACK> w = load_packed(weight + row * C + c), x = load_packed(inp + c);
#pragma unroll
        for (int j = 0; j < PACK; j++) sum = fmaf(matvec_operand(w[j]), matvec_operand(x[j]), sum);
    }
    sum = warp_sum(sum);
    if (threadIdx.x % WARP_SIZE == 0) out[row] = from_float<T>(bias ? sum + to_float(bias[row]) : sum);
}

// matvec_forward: see matmul.h: out (OC) = weight (OC, C) . inp (C) + bias (OC) or NULL; C % 8 == 0
template <typename T>
static inline void matvec_forward(T *out, const T *inp, const T *weight, const T *bias, size_t C, size_t OC,
                                  cudaStream_t stream) {
    DeviceOp op("matvec_forward", (double)(C * OC) * sizeof(T), 0, stream);
    launch(matvec_forward_kernel<T>, grid_1d(ceil_div(OC, MATVEC_WARPS)), WARP_SIZE * MATVEC_WARPS, 0, stream, out, inp,
           weight, bias, (int)C, OC);
}

#endif
