// cuda_fp16.h: __half. Conversions are llmc/formats.h's: to nearest even, overflow to Inf, NaN to 0x7fff, as on the GPU.
#ifndef EMU_CUDA_FP16_H
#define EMU_CUDA_FP16_H

#include "../../llmc/formats.h"
#include "cuda_runtime.h"
#include "emu_half.h"

EMU_HALF_TYPE(__half, __half2, encode_fp16, decode_fp16)
typedef __half half;
typedef __half2 half2;

static inline __half __float2half_rn(float x) { return __half(x); }
static inline __half __float2half(float x) { return __half(x); }
static inline float __half2float(__half x) { return decode_fp16(x.__x); }
static inline __half2 __floats2half2_rn(float x, float y) { return __half2(__half(x), __half(y)); }
static inline __half2 __float22half2_rn(float2 v) { return __floats2half2_rn(v.x, v.y); }
static inline __half2 __float2half2_rn(float x) { return __floats2half2_rn(x, x); }
static inline float2 __half22float2(__half2 v) { return make_float2(__half2float(v.x), __half2float(v.y)); }
static inline __half2 __halves2half2(__half x, __half y) { return __half2(x, y); }
static inline __half2 __half2half2(__half x) { return __half2(x, x); }
static inline __half __low2half(__half2 v) { return v.x; }
static inline __half __high2half(__half2 v) { return v.y; }
static inline unsigned short __half_as_ushort(__half x) { return x.__x; }
static inline __half __ushort_as_half(unsigned short bits) {
    __half h;
    h.__x = bits;
    return h;
}

#endif
