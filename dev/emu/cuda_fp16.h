// cuda_fp16.h: __half. Conversions are llmc/formats.h's: to nearest even, overflow to Inf, NaN to 0x7fff, as on the GPU.
#ifndef EMU_CUDA_FP16_H
#define EMU_CUDA_FP16_H

#include "emu_half.h"

EMU_HALF_TYPE(__half, __half2, encode_fp16, decode_fp16)

static inline __half __float2half_rn(float x) { return x; }
static inline float __half2float(__half x) { return x; }
static inline __half2 __floats2half2_rn(float x, float y) { return {x, y}; }

#endif
