// quantize.cuh: the CUDA twin of quantize.h: an operand of a matrix product cast to fp8 or fp4, laid out as cuBLASLt wants
// it, with its scales.
//
// Whatever way the product sums, a cast operand here is (outer, k) with k, the index that is summed over, contiguous:
// the transposed operands (w in dgrad, x and dY in wgrad) are written transposed. That is the one layout ("TN") which
// every card's fp8 and fp4 products take.
//
// Where a card has no such product (or the recipe is not one of its), the operand is *emulated*: each element is the value its
// code stands for times its block's scale, in bf16, which holds that product exactly; scales of a whole tensor are left for
// alpha in either case. A bf16 product of emulated operands is the recipe's, up to the order of its additions.
#ifndef LLMC_QUANTIZE_CUH
#define LLMC_QUANTIZE_CUH

#include "cuda_utils.cuh"
#include "quantize.h"

// How block scales lie in memory (cuBLASLt's layouts).
typedef enum {
    SCALES_SCALAR,    // tensor, delayed: one fp32, in DeviceOperand.alpha_part; emulated: none beside that
    SCALES_OUTER,     // row: fp32 (outer)
    SCALES_VEC128,    // block 1x128: fp32 [ceil(k / 128)][outer rounded up to 4]
    SCALES_BLK128,    // block 128x128: fp32 [ceil(outer / 128)][ceil(k / 128) rounded up to 4]
    SCALES_TILED_32,  // mx, and block on Blackwell: one e8m0 byte a 32 along k, in tiles of 128 x 4 (quant_tiled_scale)
    SCALES_TILED_16   // nv: the same with one ue4m3 byte a 16 along k
} QuantScaleLayout;

// One operand of a product, in device memory, ready to multiply.
typedef struct {
    void *codes;              // (outer, k): fp8 a byte each; fp4 two a byte, the even one low; emulated: bf16
    void *scales;             // of blocks, as `layout` has them, 16-byte aligned, padding zero; NULL: none
    const float *alpha_part;  // tensor, delayed: the decode scale; nv: the tensor's amax; NULL: 1
    FormatId format;          // FORMAT_BF16 where emulated
    ScalingRule scaling;
    QuantScaleLayout layout;
    size_t outer, k;  // k is padded with zeros to what products take: quant_padded_k()
} DeviceOperand;

// k as products take it: rows of codes are multiples of 16 bytes, fp4's and mx's of 32 elements. Emulated operands are
// padded alike.
static inline size_t quant_padded_k(ScalingRule scaling, size_t k) {
    return round_up(k, scaling == SCALING_MX || scaling == SCALING_NV ? 32 : 16);
}

// Bytes of `codes`, and of `scales`, for an operand whose outer and k are set.
static inline size_t quant_code_bytes(const DeviceOperand *x) {
    return format_bytes(x->format, size_mul(x->outer, x->k));
}

static inline size_t quant_scale_bytes(const DeviceOperand *x) {
    if (x->format == FORMAT_BF16) return 0;
    switch (x->layout) {
        case SCALES_OUTER: return x->outer * sizeof(float);
        case SCALES_VEC128: return ceil_div(x->k, 128) * round_up(x->outer, 4) * sizeof(float);
        case SCALES_BLK128: return ceil_div(x->outer, 128) * round_up(ceil_div(x->k, 128), 4) * sizeof(float);
        case SCALES_TILED_32: return round_up(x->outer, 128) * round_up(ceil_div(x->k, 32), 4);
        case SCALES_TILED_16: return round_up(x->outer, 128) * round_up(ceil_div(x->k, 16), 4);
        default: return 0;
    }
}

// Byte of the scale of row `row` and block `block` along k in the tiled layouts: tiles of 128 rows x 4 blocks, 512
// bytes each, in row-major order; in a tile rows 0, 32, 64 and 96 lie together.
__host__ __device__ __forceinline__ size_t quant_tiled_scale(size_t row, size_t block, size_t blocks) {
    return (row / 128 * ((blocks + 3) / 4) + block / 4) * 512 + row % 32 * 16 + row % 128 / 32 * 4 + block % 4;
}

// ----------------------------------------------------------------------------------------------------------------
// The factor a product applies once, at the end (quant_alpha() in quantize.h), for cuBLASLt's device pointer mode.

__global__ void quant_alpha_kernel(float *alpha_beta, const float *a, const float *b, int nv, int accumulate) {
    const float x = a ? *a : 1.0f, y = b ? *b : 1.0f, inverse_scales = 1.0f / 7225344.0f;
    alpha_beta[0] = nv ? x * y * inverse_scales : x * y;
    alpha_beta[1] = accumulate ? 1.0f : 0.0f;
}

// alpha_beta (2) = the alpha of a . b, and 1 or 0
static inline void quant_alpha_device(float *alpha_beta, const DeviceOperand *a, const DeviceOperand *b, int accumulate,
                                      cudaStream_t stream) {
    launch(quant_alpha_kernel, grid_1d(1), 1, 0, stream, alpha_beta, a->alpha_part, b->alpha_part,
           a->scaling == SCALING_NV, accumulate);
}

#endif
