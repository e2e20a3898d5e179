// cuda_bf16.h: __nv_bfloat16. Conversions are llmc/formats.h's: to nearest even, NaN to 0x7fff, as on the GPU.
#ifndef EMU_CUDA_BF16_H
#define EMU_CUDA_BF16_H

#include "emu_half.h"

EMU_HALF_TYPE(__nv_bfloat16, __nv_bfloat162, encode_bf16, decode_bf16)

static inline __nv_bfloat16 __float2bfloat16_rn(float x) { return x; }
static inline float __bfloat162float(__nv_bfloat16 x) { return x; }
static inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {x, y}; }

#endif
