// matmul_fp8.cuh: the three products of a linear layer whose operands are cast to fp8 or fp4 (quantize.cuh), through
// matmul.cuh's plans.
//
// A cast operand lies (outer, k), whichever product reads it, so each of them is the same: out (b.outer, a.outer) =
// alpha b . a^T, in cuBLASLt's terms A transposed and B not, the only way in which Ada and Hopper multiply fp8. An
// operand that lies across is read across.
//
//     product  out                  a                   b            alpha, and scales
//     fprop    out (N, OC) bf16     w (OC, C)           x            tensor, delayed: two scalars that cuBLASLt reads
//     dgrad    dinp (N, C) bf16     w^T (C, OC)         dout         row, block, mx: none, scales lie with the operands
//     wgrad    dweight (OC, C) f32  x^T (C, N)          dout^T       nv: in device memory, of both tensors' amaxes
//
// Emulated operands are bf16 and have their block scales multiplied in already; what is left for alpha then comes from
// device memory, too. Nothing waits for the host. Sums are fp32; fprop may keep fp8's short accumulator where the recipe
// says so and the card has one (Ada, Hopper), the other two never do.
#ifndef LLMC_MATMUL_FP8_CUH
#define LLMC_MATMUL_FP8_CUH

#include "matmul.cuh"
#include "quantize.cuh"

static inline int32_t matmul_operand_type(FormatId format) {
    switch (format) {
        case FORMAT_E4M3: return CUDA_R_8F_E4M3;
        case FORMAT_E5M2: return CUDA_R_8F_E5M2;
        case FORMAT_E2M1: return CUDA_R_4F_E2M1;
        default: return CUDA_R_16BF;
    }
}

static inline int32_t matmul_scale_mode(const DeviceOperand *x) {
    if (x->format == FORMAT_BF16) return CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
    switch (x->layout) {
        case SCALES_OUTER: return CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
        case SCALES_VEC128: return CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
        case SCALES_BLK128: return CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
        case SCALES_TILED_32: return CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0;
        case SCALES_TILED_16: return CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3;
        default: return CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
    }
}

// The short accumulator is Ada's and Hopper's; later cards have none, and fp4 products refuse to hear of it.
static inline MatmulKey matmul_cast_key(int32_t out_type, const DeviceOperand *a, const DeviceOperand *b,
                                        int accumulate, int fast) {
    const int native = a->format != FORMAT_BF16;
    const int scalars = a->layout == SCALES_SCALAR || b->layout == SCALES_SCALAR;
    if (a->k != b->k || native != (b->format != FORMAT_BF16))
        die("operands cast for different products are multiplied: k %zu and %zu (a fault of this program)", a->k, b->k);
    MatmulKey key =
        matmul_key(a->outer, b->outer, a->k, !a->across, b->across, matmul_operand_type(a->format), out_type,
                   accumulate, MATMUL_PLAIN);
    key.b_type = matmul_operand_type(b->format);
    key.a_scales = matmul_scale_mode(a);
    key.b_scales = matmul_scale_mode(b);
    if (fast && native && device_info()->cc < 100) key.flags |= MATMUL_FAST;
    if (a->scaling == SCALING_NV || (scalars && !native)) key.flags |= MATMUL_DEVICE_ALPHA;
    return key;
}

// Is there such a product on this card? The operands need no memory yet.
static inline cublasStatus_t matmul_cast_query(MatmulScratch *scratch, int32_t out_type, const DeviceOperand *a,
                                               const DeviceOperand *b, int fast) {
    MatmulKey key = matmul_cast_key(out_type, a, b, 0, fast);
    return matmul_query(scratch, &key);
}

static inline void matmul_cast(MatmulScratch *scratch, const char *name, void *out, int32_t out_type,
                               const DeviceOperand *a, const DeviceOperand *b, int accumulate, int fast,
                               cudaStream_t stream) {
    const MatmulKey key = matmul_cast_key(out_type, a, b, accumulate, fast);
    MatmulExtras extras = {name, NULL, NULL, NULL, NULL, NULL};
    if (key.flags & MATMUL_DEVICE_ALPHA && !device_op_observer()->paper) {
        extras.alpha_beta = scratch->alpha_beta;
        quant_alpha_device(scratch->alpha_beta, a, b, accumulate, stream);
    }
    if (a->format != FORMAT_BF16) {
        extras.a_scales = a->layout == SCALES_SCALAR ? a->alpha_part : a->scales;
        extras.b_scales = b->layout == SCALES_SCALAR ? b->alpha_part : b->scales;
    }
    matmul_run(scratch, &key, out, a->codes, b->codes, &extras, stream);
}

// out (N, OC) = x (N, C) . w (OC, C)^T, rounded once; fast: the short accumulator will do
static inline void matmul_forward_cast(MatmulScratch *scratch, __nv_bfloat16 *out, const DeviceOperand *x,
                                       const DeviceOperand *w, int fast, cudaStream_t stream) {
    matmul_cast(scratch, "forward_cast", out, CUDA_R_16BF, w, x, 0, fast, stream);
}

// dinp (N, C) = dout (N, OC) . w (OC, C), rounded once; w as cast for dgrad: (C, OC)
static inline void matmul_backward_input_cast(MatmulScratch *scratch, __nv_bfloat16 *dinp, const DeviceOperand *dout,
                                              const DeviceOperand *w, cudaStream_t stream) {
    matmul_cast(scratch, "backward_input_cast", dinp, CUDA_R_16BF, w, dout, 0, 0, stream);
}

// dweight (OC, C) f32 = dout (N, OC)^T . x (N, C), or += with accumulate, never rounded; both as cast for wgrad
static inline void matmul_backward_weight_cast(MatmulScratch *scratch, float *dweight, const DeviceOperand *dout,
                                               const DeviceOperand *x, int accumulate, cudaStream_t stream) {
    matmul_cast(scratch, "backward_weight_cast", dweight, CUDA_R_32F, x, dout, accumulate, 0, stream);
}

#endif
