// cuda_fp8.h: conversions to fp8. They are llmc/formats.h's, from fp32 directly, saturating.
#ifndef EMU_CUDA_FP8_H
#define EMU_CUDA_FP8_H

#include "../../llmc/formats.h"
#include "cuda_bf16.h"
#include "cuda_fp16.h"

typedef unsigned char __nv_fp8_storage_t;
typedef unsigned short __nv_fp8x2_storage_t;
typedef enum { __NV_SATFINITE = 1 } __nv_saturation_t;
typedef enum { __NV_E4M3, __NV_E5M2 } __nv_fp8_interpretation_t;

static inline __nv_fp8_storage_t __nv_cvt_float_to_fp8(float x, __nv_saturation_t, __nv_fp8_interpretation_t kind) {
    return kind == __NV_E4M3 ? encode_e4m3(x) : encode_e5m2(x);
}
// x in the low byte.
static inline __nv_fp8x2_storage_t __nv_cvt_float2_to_fp8x2(float2 v, __nv_saturation_t saturation,
                                                            __nv_fp8_interpretation_t kind) {
    unsigned low = __nv_cvt_float_to_fp8(v.x, saturation, kind), high = __nv_cvt_float_to_fp8(v.y, saturation, kind);
    return (__nv_fp8x2_storage_t)(high << 8 | low);
}

#endif
