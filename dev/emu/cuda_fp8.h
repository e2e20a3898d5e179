// cuda_fp8.h: __nv_fp8_e4m3 and __nv_fp8_e5m2. Conversions are llmc/formats.h's, from fp32 directly, saturating unless
// __NV_NOSAT is asked for.
#ifndef EMU_CUDA_FP8_H
#define EMU_CUDA_FP8_H

#include "../../llmc/formats.h"
#include "cuda_bf16.h"
#include "cuda_fp16.h"

typedef unsigned char __nv_fp8_storage_t;
typedef unsigned short __nv_fp8x2_storage_t;
typedef enum { __NV_NOSAT, __NV_SATFINITE } __nv_saturation_t;
typedef enum { __NV_E4M3, __NV_E5M2 } __nv_fp8_interpretation_t;

static inline __nv_fp8_storage_t __nv_cvt_float_to_fp8(float x, __nv_saturation_t saturation,
                                                       __nv_fp8_interpretation_t kind) {
    if (saturation == __NV_NOSAT)
        return (__nv_fp8_storage_t)format_encode(format_info(kind == __NV_E4M3 ? FORMAT_E4M3 : FORMAT_E5M2), x, 0);
    return kind == __NV_E4M3 ? encode_e4m3(x) : encode_e5m2(x);
}
// x in the low byte.
static inline __nv_fp8x2_storage_t __nv_cvt_float2_to_fp8x2(float2 v, __nv_saturation_t saturation,
                                                            __nv_fp8_interpretation_t kind) {
    unsigned low = __nv_cvt_float_to_fp8(v.x, saturation, kind), high = __nv_cvt_float_to_fp8(v.y, saturation, kind);
    return (__nv_fp8x2_storage_t)(high << 8 | low);
}

#define EMU_FP8_TYPE(T, encode, decode)                         \
    struct T {                                                  \
        __nv_fp8_storage_t __x;                                 \
        T() = default;                                          \
        explicit T(float x) : __x(encode(x)) {}                 \
        explicit operator float() const { return decode(__x); } \
    };
EMU_FP8_TYPE(__nv_fp8_e4m3, encode_e4m3, decode_e4m3)
EMU_FP8_TYPE(__nv_fp8_e5m2, encode_e5m2, decode_e5m2)

#endif
