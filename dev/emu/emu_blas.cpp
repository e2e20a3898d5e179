// emu_blas.cpp: cuBLASLt's product D = epilogue(alpha op(A) op(B) + beta C), column-major, in fp32 arithmetic.
//
// It refuses what the real library refuses, by the rules of NVIDIA's documentation of cublasLtMatmul(): a program that
// passes here must not fail there for a type, a layout or an alignment. EMU_VERBOSE=1 prints each reason.
//
// Operands are converted to floats while they are packed (tf32: rounded as EMU_TF32_ROUND says, rna or rz), each times
// its decode scale where an operand has more than one; products of two 16-bit, tf32, fp8 or fp4 values are then exact
// (scales in e8m0, ue4m3 or powers of two included), and sums run in ascending k. The result is rounded once, when
// stored. FAST_ACCUM changes nothing.
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <vector>

#include "../../llmc/formats.h"
#include "../../llmc/simd.h"
#include "../../llmc/utils.h"
#include "cublasLt.h"
#include "emu.h"

struct EmuCublasLt {
    int unused;
};

// Defaults are the documentation's.
struct EmuMatmulDesc {
    int32_t compute, scale, pointer_mode = CUBLASLT_POINTER_MODE_HOST, transa = 0, transb = 0;
    uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    const void *bias = nullptr, *a_scale = nullptr, *b_scale = nullptr;
    void *aux = nullptr;  // of D's type
    int64_t aux_ld = 0;
    int32_t a_scale_mode = 0, b_scale_mode = 0;
    int8_t fast_accumulation = 0;
};
struct EmuMatrixLayout {
    uint32_t type;
    uint64_t rows, cols;
    int64_t ld;
};
struct EmuMatmulPreference {
    uint64_t workspace_bytes = 0;
    uint32_t reduction = 7, alignment[4] = {256, 256, 256, 256};
};

// ----------------------------------------------------------------------------------------------------------------
// Handles and attributes

static cublasStatus_t refuse(cublasStatus_t status, const char *why) {
    static const bool verbose = getenv("EMU_VERBOSE") && *getenv("EMU_VERBOSE") != '0';
    if (verbose) fprintf(stderr, "cuBLASLt emulation: %s: %s\n", cublasLtGetStatusName(status), why);
    return status;
}
static cublasStatus_t unsupported(const char *why) { return refuse(CUBLAS_STATUS_NOT_SUPPORTED, why); }
static cublasStatus_t invalid(const char *why) { return refuse(CUBLAS_STATUS_INVALID_VALUE, why); }

const char *cublasLtGetStatusName(cublasStatus_t status) {
    return status == CUBLAS_STATUS_SUCCESS         ? "CUBLAS_STATUS_SUCCESS"
           : status == CUBLAS_STATUS_INVALID_VALUE ? "CUBLAS_STATUS_INVALID_VALUE"
                                                   : "CUBLAS_STATUS_NOT_SUPPORTED";
}

template <typename T>
static cublasStatus_t create(T **handle) {
    *handle = new T();
    return CUBLAS_STATUS_SUCCESS;
}
template <typename T>
static cublasStatus_t destroy(T *handle) {
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) { return create(handle); }
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) { return destroy(handle); }
size_t cublasLtGetVersion() { return emu::environment_number("EMU_CUBLAS", CUBLAS_VERSION); }
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) { return destroy(desc); }
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) { return destroy(layout); }
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference) { return create(preference); }
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) { return destroy(preference); }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, cublasComputeType_t compute, cudaDataType_t scale) {
    *desc = new EmuMatmulDesc{compute, scale};
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType_t type, uint64_t rows,
                                          uint64_t cols, int64_t ld) {
    *layout = new EmuMatrixLayout{(uint32_t)type, rows, cols, ld};
    return CUBLAS_STATUS_SUCCESS;
}

// An attribute is a field; its size must be the one documented.
template <typename T>
static cublasStatus_t set_field(T *field, const void *value, size_t bytes) {
    if (!value || bytes != sizeof *field) return invalid("the attribute has another size");
    memcpy((void *)field, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}
#define ATTRIBUTE(name, field) \
    case name: return set_field(&object->field, value, bytes)

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t object, cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t bytes) {
    switch (attribute) {
        ATTRIBUTE(CUBLASLT_MATMUL_DESC_POINTER_MODE, pointer_mode);
        ATTRIBUTE(CUBLASLT_MATMUL_DESC_TRANSA, transa);
        ATTRIBUTE(CUBLASLT_MATMUL_DESC_TRANSB, transb);
        ATTRIBUTE(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
        ATTRIBUTE(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
        ATTRIBUTE(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux);
        ATTRIBUTE(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, aux_ld);
        ATTRIBUTE(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, a_scale);
        ATTRIBUTE(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, b_scale);
        ATTRIBUTE(CUBLASLT_MATMUL_DESC_FAST_ACCUM, fast_accumulation);
        ATTRIBUTE(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, a_scale_mode);
        ATTRIBUTE(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, b_scale_mode);
    }
    return invalid("unknown attribute of a product");
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t object,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void *value,
                                                    size_t bytes) {
    switch (attribute) {
        ATTRIBUTE(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes);
        ATTRIBUTE(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reduction);
        ATTRIBUTE(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment[0]);
        ATTRIBUTE(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment[1]);
        ATTRIBUTE(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment[2]);
        ATTRIBUTE(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment[3]);
    }
    return invalid("unknown attribute of a preference");
}

// ----------------------------------------------------------------------------------------------------------------
// What is refused

struct Problem {
    const EmuMatmulDesc *desc;
    const EmuMatrixLayout *a, *b, *c, *d;
    size_t m, n, k;
    int bias_type;
    bool narrow, has_bias, has_aux;  // narrow: of fp8 or fp4
};

static bool is_fp8(uint32_t type) { return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2; }
static size_t type_bytes(int type) {
    return type == CUDA_R_32F ? 4 : type == CUDA_R_16F || type == CUDA_R_16BF ? 2 : 1;
}

static cublasStatus_t check_shapes(const Problem &p) {
    if ((p.desc->transb ? p.b->cols : p.b->rows) != p.k) return invalid("op(A) and op(B) disagree about k");
    if (p.a->rows == 0 || p.a->cols == 0 || p.n == 0) return invalid("an empty matrix");
    if (p.d->rows != p.m || p.d->cols != p.n || p.c->rows != p.m || p.c->cols != p.n)
        return invalid("C or D is not m x n");
    for (const EmuMatrixLayout *layout : {p.a, p.b, p.c, p.d})
        if (layout->ld < (int64_t)layout->rows) return invalid("a leading dimension is below the number of rows");
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t check_types(const Problem &p) {
    uint32_t a = p.a->type, b = p.b->type, d = p.d->type;
    bool tf32 = p.desc->compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    if (p.desc->scale != CUDA_R_32F) return unsupported("the scale type must be fp32");
    if (p.desc->compute != CUBLAS_COMPUTE_32F && !tf32) return unsupported("the compute type must be fp32 or tf32");
    if (p.c->type != d) return unsupported("C and D differ in type");
    if (d != CUDA_R_32F && d != CUDA_R_16F && d != CUDA_R_16BF) return unsupported("the type of D");
    if (p.narrow) return CUBLAS_STATUS_SUCCESS;  // check_narrow
    if (a != b) return unsupported("A and B differ in type");
    if (a == CUDA_R_32F) return d == CUDA_R_32F ? CUBLAS_STATUS_SUCCESS : unsupported("fp32 operands need an fp32 D");
    if (a != CUDA_R_16F && a != CUDA_R_16BF) return unsupported("the type of A and B");
    if (tf32) return unsupported("tf32 products are of fp32 operands");
    if (d != a && d != CUDA_R_32F) return unsupported("D must be of the operands' type or fp32");
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t check_narrow(const Problem &p) {
    if (!p.narrow) return CUBLAS_STATUS_SUCCESS;
    const EmuMatmulDesc &desc = *p.desc;
    const uint32_t a = p.a->type, b = p.b->type, d = p.d->type;
    const int cc = emu::compute_capability();
    const bool fp4 = a == CUDA_R_4F_E2M1 || b == CUDA_R_4F_E2M1, tn = desc.transa && !desc.transb;
    if (cc < (fp4 ? 100 : 89)) return unsupported("fp8 needs compute capability 8.9, fp4 10.0");
    if (fp4 ? a != b : !is_fp8(a) || !is_fp8(b)) return unsupported("fp8 or fp4 with an operand of another kind");
    if (a == CUDA_R_8F_E5M2 && b == CUDA_R_8F_E5M2) return unsupported("e5m2 times e5m2");
    if (fp4 && d == CUDA_R_16F) return unsupported("fp4 with an fp16 D");
    if (desc.compute != CUBLAS_COMPUTE_32F) return unsupported("fp8 and fp4 need the fp32 compute type");
    if (!tn && (fp4 || cc != 100)) return unsupported("fp8 and fp4 here need A transposed and B not");
    if (fp4 && desc.fast_accumulation) return unsupported("fast accumulation with fp4");
    const size_t unit = fp4 ? 32 : 16, d_bytes = type_bytes((int)d);  // unit: elements in 16 bytes
    if (p.k % unit || p.a->rows % unit || p.b->rows % unit || p.m * d_bytes % 16)
        return unsupported("fp8 and fp4: k and contiguous dimensions must be multiples of 16 bytes");
    if ((uint64_t)p.a->ld % unit || (uint64_t)p.b->ld % unit || (uint64_t)p.c->ld * d_bytes % 16 ||
        (uint64_t)p.d->ld * d_bytes % 16)
        return unsupported("fp8 and fp4: leading dimensions must be multiples of 16 bytes");
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t check_scale_modes(const Problem &p) {
    if (!p.narrow) return CUBLAS_STATUS_SUCCESS;
    const int a = p.desc->a_scale_mode, b = p.desc->b_scale_mode, cc = emu::compute_capability();
    const bool fp4 = p.a->type == CUDA_R_4F_E2M1;
    auto either = [&](int mode) { return a == mode || b == mode; };
    auto both = [&](int mode) { return a == mode && b == mode; };
    const bool blocks =
        either(CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F) || either(CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F);
    if (a < 0 || a > 5 || b < 0 || b > 5) return invalid("a scale mode that does not exist");
    if (fp4 ? !both(CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3) : either(CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3))
        return unsupported("fp4 and VEC16_UE4M3 go together");
    if (either(CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0)) {
        if (!both(CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0)) return unsupported("VEC32_UE8M0 for one operand only");
        if (cc < 100) return unsupported("VEC32_UE8M0 needs compute capability 10.0");
        if (p.k % 32) return unsupported("VEC32_UE8M0: k must be a multiple of 32");
    }
    if (cc != 90 && (blocks || either(CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F)))
        return unsupported("OUTER_VEC_32F, VEC128_32F and BLK128x128_32F exist on compute capability 9.0 only");
    if (either(CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F) && !both(CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F))
        return unsupported("OUTER_VEC_32F for one operand only");
    if (!blocks) return CUBLAS_STATUS_SUCCESS;
    if (a < CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F || b < CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F)
        return unsupported("blocks of 128 for one operand only");
    if (both(CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F)) return unsupported("BLK128x128_32F for both operands");
    if (p.m % 4 || p.n % 4) return unsupported("blocks of 128: m and n must be multiples of 4");
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t check_epilogue(const Problem &p) {
    const EmuMatmulDesc &desc = *p.desc;
    const uint32_t known[] = {CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
                              CUBLASLT_EPILOGUE_DGELU};
    if (std::find(std::begin(known), std::end(known), desc.epilogue) == std::end(known))
        return unsupported("this epilogue (not emulated)");
    if (p.has_aux && p.narrow) return unsupported("GELU with fp8 or fp4");
    if (p.has_aux && (desc.aux_ld < (int64_t)p.m || desc.aux_ld % 8))
        return invalid("the aux leading dimension must be a multiple of 8 and at least m");
    if (!p.narrow && (desc.a_scale || desc.b_scale || desc.a_scale_mode || desc.b_scale_mode))
        return invalid("scales of A or B without fp8 or fp4");
    return CUBLAS_STATUS_SUCCESS;
}

// All that does not depend on pointers; fills in *p.
static cublasStatus_t check_problem(Problem *p, const EmuMatmulDesc *desc, const EmuMatrixLayout *a,
                                    const EmuMatrixLayout *b, const EmuMatrixLayout *c, const EmuMatrixLayout *d) {
    if (!desc || !a || !b || !c || !d) return invalid("a descriptor is missing");
    const bool narrow = is_fp8(a->type) || is_fp8(b->type) || a->type == CUDA_R_4F_E2M1 || b->type == CUDA_R_4F_E2M1;
    *p = {desc,
          a,
          b,
          c,
          d,
          desc->transa ? a->cols : a->rows,
          desc->transb ? b->rows : b->cols,
          desc->transa ? a->rows : a->cols,
          narrow && d->type == CUDA_R_32F ? CUDA_R_16BF : (int)d->type,
          narrow,
          (desc->epilogue & CUBLASLT_EPILOGUE_BIAS) != 0,
          (desc->epilogue & 128) != 0};
    for (auto check : {check_shapes, check_types, check_narrow, check_scale_modes, check_epilogue}) {
        cublasStatus_t status = check(*p);
        if (status != CUBLAS_STATUS_SUCCESS) return status;
    }
    return CUBLAS_STATUS_SUCCESS;
}

static bool aligned(const void *pointer, size_t bytes) { return (uintptr_t)pointer % bytes == 0; }

// `promised`: alignments that the algorithm was chosen for (no algorithm uses more than 16), or NULL.
static cublasStatus_t check_pointers(const Problem &p, const void *const matrices[4], const uint64_t *promised) {
    const EmuMatrixLayout *layouts[4] = {p.a, p.b, p.c, p.d};
    for (int i = 0; i < 4; i++) {
        if (!matrices[i]) continue;
        size_t need = p.narrow ? 16 : type_bytes((int)layouts[i]->type);
        if (promised && promised[i] > need) need = promised[i] < 16 ? promised[i] : 16;
        if (!aligned(matrices[i], need))
            return unsupported("a matrix is less aligned than its type, or than was promised to the heuristic");
    }
    if (!matrices[0] || !matrices[1] || !matrices[3]) return invalid("a matrix is missing");
    if (p.has_bias) {
        if (!p.desc->bias) return invalid("the bias pointer is missing");
        if (!aligned(p.desc->bias, type_bytes(p.bias_type))) return unsupported("the bias is not aligned");
    }
    if (p.has_aux && !p.desc->aux) return invalid("the aux pointer is missing");
    if (p.has_aux && !aligned(p.desc->aux, 16)) return unsupported("aux is not aligned to 16 bytes");
    const void *const scales[2] = {p.desc->a_scale, p.desc->b_scale};
    const int modes[2] = {p.desc->a_scale_mode, p.desc->b_scale_mode};
    for (int i = 0; i < 2; i++) {
        if (modes[i] && !scales[i]) return invalid("the pointer to the scales of A or B is missing");
        if (modes[i] && !aligned(scales[i], 16)) return unsupported("scales of A or B are not aligned to 16 bytes");
    }
    return CUBLAS_STATUS_SUCCESS;
}

// ----------------------------------------------------------------------------------------------------------------
// Arithmetic

static float load(const void *p, size_t i, int type) {
    switch (type) {
        case CUDA_R_32F: return ((const float *)p)[i];
        case CUDA_R_16F: return decode_fp16(((const uint16_t *)p)[i]);
        case CUDA_R_16BF: return decode_bf16(((const uint16_t *)p)[i]);
        case CUDA_R_8F_E4M3: return decode_e4m3(((const uint8_t *)p)[i]);
        case CUDA_R_4F_E2M1: return decode_e2m1(((const uint8_t *)p)[i / 2] >> (i % 2 * 4) & 15);
        default: return decode_e5m2(((const uint8_t *)p)[i]);
    }
}
static void store(void *p, size_t i, int type, float x) {
    switch (type) {
        case CUDA_R_32F: ((float *)p)[i] = x; break;
        case CUDA_R_16F: ((uint16_t *)p)[i] = encode_fp16(x); break;
        default: ((uint16_t *)p)[i] = encode_bf16(x);
    }
}

#define TILE_COLS (2 * VEC_WIDTH)                // of op(A)'s rows: contiguous in D
#define TILE_ROWS (VEC_REGISTERS == 32 ? 8 : 4)  // of op(B)'s columns

// An operand's decode scales: one for `length` elements along k of an outer index (BLK128x128: of 128 of them). Modes of
// more than a scalar; `length` is 0 for that.
struct Scales {
    const void *data;
    int mode;
    size_t outer, length, blocks;
};

static Scales operand_scales(const void *data, int mode, size_t outer, size_t k) {
    const size_t lengths[6] = {0, 16, 32, k, 128, 128};
    return {data, mode, outer, lengths[mode], lengths[mode] ? (k + lengths[mode] - 1) / lengths[mode] : 0};
}

// The scales of 128 outer indices and 4 blocks make a tile of 512 bytes; tiles of the same indices follow each other.
static size_t tiled_offset(size_t outer, size_t block, size_t blocks) {
    return (outer / 128 * ((blocks + 3) / 4) + block / 4) * 512 + outer % 32 * 16 + outer % 128 / 32 * 4 + block % 4;
}

static float decode_scale(const Scales &s, size_t outer, size_t block) {
    const float *floats = (const float *)s.data;
    const uint8_t *codes = (const uint8_t *)s.data;
    switch (s.mode) {
        case CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3: return decode_ue4m3(codes[tiled_offset(outer, block, s.blocks)]);
        case CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0: return decode_e8m0(codes[tiled_offset(outer, block, s.blocks)]);
        case CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F: return floats[outer / 128 * ((s.blocks + 3) / 4 * 4) + block];
        default: return floats[block * s.outer + outer];
    }
}

// What fills up a tile is read by the hardware, too: it must be zero.
static void check_padding(const Scales &s, const char *operand) {
    if (s.mode != CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3 && s.mode != CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0)
        return;
    for (size_t outer = 0; outer < (s.outer + 127) / 128 * 128; outer++)
        for (size_t block = 0; block < (s.blocks + 3) / 4 * 4; block++) {
            int code = ((const uint8_t *)s.data)[tiled_offset(outer, block, s.blocks)];
            if (code && (outer >= s.outer || block >= s.blocks))
                die("cuBLASLt emulation: padding in the scales of %s is 0x%02x at row %zu, block %zu, not 0", operand,
                    code, outer, block);
        }
}

// One operand as floats, in panels of `width` outer indices, each panel k rows of `width`; the last padded with zeros.
struct Packed {
    const void *data;
    const EmuMatrixLayout *layout;
    bool contiguous;  // along the outer index; else along k
    size_t outer, k, width;
    float (*round)(float);  // tf32's, or none
    Scales scales;
    std::vector<float> *panels;
};
static float no_rounding(float x) { return x; }

static void pack_panel(const Packed &o, size_t panel) {
    float *to = o.panels->data() + panel * o.width * o.k;
    const size_t first = panel * o.width, count = o.outer - first < o.width ? o.outer - first : o.width;
    const size_t ld = (size_t)o.layout->ld, outer_step = o.contiguous ? 1 : ld, k_step = o.contiguous ? ld : 1;
    const int type = (int)o.layout->type;
    for (size_t j = 0; j < o.width; j++) {
        float scale = 1.0f;
        for (size_t k = 0; k < o.k; k++) {
            if (o.scales.length && j < count && k % o.scales.length == 0)
                scale = decode_scale(o.scales, first + j, k / o.scales.length);
            to[k * o.width + j] =
                j < count ? o.round(load(o.data, (first + j) * outer_step + k * k_step, type)) * scale : 0.0f;
        }
    }
}
static void pack(const Packed &o) {
    size_t panels = (o.outer + o.width - 1) / o.width;
    o.panels->resize(panels * o.width * o.k);
#pragma omp parallel for schedule(static) if (panels * o.width * o.k > 20000)
    for (size_t panel = 0; panel < panels; panel++) pack_panel(o, panel);
}

static void multiply_tile(float out[TILE_ROWS][TILE_COLS], const float *a, const float *b, size_t k_count) {
    vecf sum[TILE_ROWS][2];
    for (int r = 0; r < TILE_ROWS; r++) sum[r][0] = sum[r][1] = vec_set1(0.0f);
    for (size_t k = 0; k < k_count; k++) {
        vecf a0 = vec_load(a + k * TILE_COLS), a1 = vec_load(a + k * TILE_COLS + VEC_WIDTH);
#pragma GCC unroll 8
        for (int r = 0; r < TILE_ROWS; r++) {
            vecf factor = vec_set1(b[k * TILE_ROWS + r]);
            sum[r][0] = vec_fma(factor, a0, sum[r][0]);
            sum[r][1] = vec_fma(factor, a1, sum[r][1]);
        }
    }
    for (int r = 0; r < TILE_ROWS; r++) {
        vec_store(out[r], sum[r][0]);
        vec_store(out[r] + VEC_WIDTH, sum[r][1]);
    }
}

// sums[j * m + i] = sum over k of op(A)(i, k) op(B)(k, j)
static void multiply(float *sums, const Packed &a, const Packed &b) {
    size_t a_panels = (a.outer + a.width - 1) / a.width, b_panels = (b.outer + b.width - 1) / b.width;
#pragma omp parallel for schedule(static) if (a.outer * b.outer * a.k > 100000)
    for (size_t task = 0; task < a_panels * b_panels; task++) {
        size_t ap = task / b_panels, bp = task % b_panels;  // neighbours share op(A)'s panel
        float tile[TILE_ROWS][TILE_COLS];
        multiply_tile(tile, a.panels->data() + ap * a.width * a.k, b.panels->data() + bp * b.width * b.k, a.k);
        size_t rows = b.outer - bp * b.width < b.width ? b.outer - bp * b.width : b.width;
        size_t cols = a.outer - ap * a.width < a.width ? a.outer - ap * a.width : a.width;
        for (size_t r = 0; r < rows; r++)
            memcpy(sums + (bp * b.width + r) * a.outer + ap * a.width, tile[r], cols * sizeof(float));
    }
}

// The tanh form, as cuBLASLt documents for its GELU.
static float gelu(float x) { return 0.5f * x * (1.0f + tanhf(0.79788456080286535588f * (x + 0.044715f * x * x * x))); }
static float gelu_derivative(float x) {
    float t = tanhf(0.79788456080286535588f * (x + 0.044715f * x * x * x));
    return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * 0.79788456080286535588f * (1.0f + 3.0f * 0.044715f * x * x);
}

// sums -> D: column j, all rows.
static void epilogue_column(const Problem &p, const void *c, void *d, const float *sums, size_t j, float alpha,
                            float beta) {
    for (size_t i = 0; i < p.m; i++) {
        float v = alpha * sums[j * p.m + i];
        if (beta != 0.0f) v = fmaf(beta, load(c, j * (size_t)p.c->ld + i, (int)p.c->type), v);
        if (p.has_bias) v += load(p.desc->bias, i, p.bias_type);
        const size_t aux_at = j * (size_t)p.desc->aux_ld + i;
        if (p.desc->epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS) {
            store(p.desc->aux, aux_at, (int)p.d->type, v);
            v = gelu(v);
        } else if (p.desc->epilogue == CUBLASLT_EPILOGUE_DGELU) {
            v *= gelu_derivative(load(p.desc->aux, aux_at, (int)p.d->type));
        }
        store(d, j * (size_t)p.d->ld + i, (int)p.d->type, v);
    }
}

static float (*tf32_rounding())(float) {
    static const char *how = getenv("EMU_TF32_ROUND");
    return how && strcmp(how, "rz") == 0 ? round_tf32_rz : round_tf32_rna;
}

static void compute(const Problem &p, const void *const matrices[4], float alpha, float beta) {
    static std::vector<float> a_panels, b_panels, sums;
    const EmuMatmulDesc &desc = *p.desc;
    float (*round)(float) = desc.compute == CUBLAS_COMPUTE_32F_FAST_TF32 ? tf32_rounding() : no_rounding;
    Packed a = {matrices[0], p.a,       !desc.transa, p.m,
                p.k,         TILE_COLS, round,        operand_scales(desc.a_scale, desc.a_scale_mode, p.m, p.k),
                &a_panels};
    Packed b = {matrices[1],
                p.b,
                desc.transb != 0,
                p.n,
                p.k,
                TILE_ROWS,
                round,
                operand_scales(desc.b_scale, desc.b_scale_mode, p.n, p.k),
                &b_panels};
    check_padding(a.scales, "A");
    check_padding(b.scales, "B");
    pack(a);
    pack(b);
    sums.resize(p.m * p.n);
    multiply(sums.data(), a, b);
    // scalars: one fp32 product, applied after the sum
    const float *a_scale = (const float *)desc.a_scale, *b_scale = (const float *)desc.b_scale;
    if (!a.scales.length && !b.scales.length) alpha *= (a_scale ? *a_scale : 1.0f) * (b_scale ? *b_scale : 1.0f);
#pragma omp parallel for schedule(static) if (p.m * p.n > 10000)
    for (size_t j = 0; j < p.n; j++) epilogue_column(p, matrices[2], (void *)matrices[3], sums.data(), j, alpha, beta);
}

// ----------------------------------------------------------------------------------------------------------------
// Calls

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t Adesc, cublasLtMatrixLayout_t Bdesc,
                                              cublasLtMatrixLayout_t Cdesc, cublasLtMatrixLayout_t Ddesc,
                                              cublasLtMatmulPreference_t preference, int requested,
                                              cublasLtMatmulHeuristicResult_t results[], int *returned) {
    Problem p;
    *returned = 0;
    if (!handle || !preference || requested < 1)
        return invalid("a handle, a preference and room for a result are needed");
    cublasStatus_t status = check_problem(&p, desc, Adesc, Bdesc, Cdesc, Ddesc);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    *returned = requested < 3 ? requested : 3;
    for (int r = 0; r < *returned; r++) {
        cublasLtMatmulHeuristicResult_t *result = &results[r];
        memset(result, 0, sizeof *result);
        result->algo.data[0] = 1;
        for (int i = 0; i < 4; i++) result->algo.data[1 + i] = preference->alignment[i];
        result->algo.data[5] = (uint64_t)r;  // so that they differ; all compute the same, the third only without beta
        result->state = CUBLAS_STATUS_SUCCESS;
        result->wavesCount = 1.0f;
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha, const void *A,
                              cublasLtMatrixLayout_t Adesc, const void *B, cublasLtMatrixLayout_t Bdesc,
                              const void *beta, const void *C, cublasLtMatrixLayout_t Cdesc, void *D,
                              cublasLtMatrixLayout_t Ddesc, const cublasLtMatmulAlgo_t *algo, void *workspace,
                              size_t workspace_bytes, cudaStream_t) {
    Problem p;
    const void *matrices[4] = {A, B, C, D};
    if (!handle || !alpha || !beta) return invalid("a handle, alpha and beta are needed");
    if (algo && algo->data[0] != 1) return invalid("the algorithm is not one of the heuristic's");
    if (workspace_bytes && !aligned(workspace, 256)) return invalid("the workspace must be aligned to 256 bytes");
    cublasStatus_t status = check_problem(&p, desc, Adesc, Bdesc, Cdesc, Ddesc);
    if (status == CUBLAS_STATUS_SUCCESS) status = check_pointers(p, matrices, algo ? algo->data + 1 : nullptr);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    float alpha_value = *(const float *)alpha, beta_value = *(const float *)beta;  // host or device: the same memory
    if (beta_value != 0.0f && !C) return invalid("C is missing");
    if (beta_value != 0.0f && algo && algo->data[5] == 2)  // what a heuristic that does not see beta may propose
        return unsupported("this algorithm does not add to D");
    compute(p, matrices, alpha_value, beta_value);
    return CUBLAS_STATUS_SUCCESS;
}
