// precision_types.cuh: the C++ type in which the GPU stores each kind of tensor, from precision.h's table.
//
// On the CPU a format is applied by rounding; on the GPU by the type a value is stored in. Kernels are templates over
// the storage type, or take act_t, grad_t and weight_t; nothing else here or there depends on the precision flag.
#ifndef LLMC_PRECISION_TYPES_CUH
#define LLMC_PRECISION_TYPES_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <library_types.h>

#include "precision.h"

template <FormatId F>
struct FormatType;
template <>
struct FormatType<FORMAT_FP32> {
    using type = float;
};
template <>
struct FormatType<FORMAT_FP16> {
    using type = __half;
};
template <>
struct FormatType<FORMAT_BF16> {
    using type = __nv_bfloat16;
};

using act_t = FormatType<BUILD_ACT>::type;        // saved activations, logits
using grad_t = FormatType<BUILD_GRAD>::type;      // activation gradients
using weight_t = FormatType<BUILD_WEIGHT>::type;  // working weights

// The way back: cuBLAS's name of a storage type, and ours.
template <typename T>
struct TypeFormat;
template <>
struct TypeFormat<float> {
    static constexpr FormatId format = FORMAT_FP32;
    static constexpr cudaDataType_t cuda = CUDA_R_32F;
};
template <>
struct TypeFormat<__half> {
    static constexpr FormatId format = FORMAT_FP16;
    static constexpr cudaDataType_t cuda = CUDA_R_16F;
};
template <>
struct TypeFormat<__nv_bfloat16> {
    static constexpr FormatId format = FORMAT_BF16;
    static constexpr cudaDataType_t cuda = CUDA_R_16BF;
};

#endif
