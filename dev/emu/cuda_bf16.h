// cuda_bf16.h: __nv_bfloat16. Conversions are llmc/formats.h's: to nearest even, NaN to 0x7fff, as on the GPU.
#ifndef EMU_CUDA_BF16_H
#define EMU_CUDA_BF16_H

#include "../../llmc/formats.h"
#include "cuda_runtime.h"
#include "emu_half.h"

EMU_HALF_TYPE(__nv_bfloat16, __nv_bfloat162, encode_bf16, decode_bf16)
typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;

static inline __nv_bfloat16 __float2bfloat16_rn(float x) { return __nv_bfloat16(x); }
static inline __nv_bfloat16 __float2bfloat16(float x) { return __nv_bfloat16(x); }
static inline __nv_bfloat16 __float2bfloat16_rz(float x) {
    __nv_bfloat16 h = __nv_bfloat16(x);
    if (x == x) h.__x = (unsigned short)(bits_of_float(x) >> 16);
    return h;
}
static inline float __bfloat162float(__nv_bfloat16 x) { return decode_bf16(x.__x); }
static inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
    return __nv_bfloat162(__nv_bfloat16(x), __nv_bfloat16(y));
}
static inline __nv_bfloat162 __float22bfloat162_rn(float2 v) { return __floats2bfloat162_rn(v.x, v.y); }
static inline __nv_bfloat162 __float2bfloat162_rn(float x) { return __floats2bfloat162_rn(x, x); }
static inline float2 __bfloat1622float2(__nv_bfloat162 v) {
    return make_float2(__bfloat162float(v.x), __bfloat162float(v.y));
}
static inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return __nv_bfloat162(x, y); }
static inline __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 x) { return __nv_bfloat162(x, x); }
static inline __nv_bfloat16 __low2bfloat16(__nv_bfloat162 v) { return v.x; }
static inline __nv_bfloat16 __high2bfloat16(__nv_bfloat162 v) { return v.y; }
static inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) { return x.__x; }
static inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) {
    __nv_bfloat16 h;
    h.__x = bits;
    return h;
}

#endif
