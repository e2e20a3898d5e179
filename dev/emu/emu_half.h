// emu_half.h: what the two 16-bit types have in common. Arithmetic is float's, by way of the conversions.
#ifndef EMU_HALF_H
#define EMU_HALF_H

#include "../../llmc/formats.h"
#include "cuda_runtime.h"

#define EMU_HALF_TYPE(T, T2, encode, decode)           \
    struct T {                                         \
        unsigned short __x;                            \
        T() = default;                                 \
        T(float x) : __x(encode(x)) {}                 \
        operator float() const { return decode(__x); } \
    };                                                 \
    struct __align__(4) T2 {                           \
        T x, y;                                        \
    };

#endif
