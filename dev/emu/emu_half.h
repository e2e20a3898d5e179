// emu_half.h: what the two 16-bit types have in common: arithmetic in fp32, one rounding of each result.
#ifndef EMU_HALF_H
#define EMU_HALF_H

// clang-format off
#define EMU_HALF_TYPE(T, T2, encode, decode)                                                                         \
    struct T {                                                                                                       \
        unsigned short __x;                                                                                          \
        T() = default;                                                                                               \
        T(float x) : __x(encode(x)) {}                                                                               \
        explicit T(double x) : __x(encode((float)x)) {}                                                              \
        explicit T(int x) : __x(encode((float)x)) {}                                                                 \
        operator float() const { return decode(__x); }                                                               \
    };                                                                                                               \
    struct __align__(4) T2 {                                                                                         \
        T x, y;                                                                                                      \
        T2() = default;                                                                                              \
        T2(T a, T b) : x(a), y(b) {}                                                                                 \
    };                                                                                                               \
    static inline T operator+(T a, T b) { return T(decode(a.__x) + decode(b.__x)); }                                 \
    static inline T operator-(T a, T b) { return T(decode(a.__x) - decode(b.__x)); }                                 \
    static inline T operator*(T a, T b) { return T(decode(a.__x) * decode(b.__x)); }                                 \
    static inline T operator/(T a, T b) { return T(decode(a.__x) / decode(b.__x)); }                                 \
    static inline T operator-(T a) { a.__x ^= 0x8000u; return a; }                                                   \
    static inline T &operator+=(T &a, T b) { return a = a + b; }                                                     \
    static inline T &operator-=(T &a, T b) { return a = a - b; }                                                     \
    static inline T &operator*=(T &a, T b) { return a = a * b; }                                                     \
    static inline bool operator==(T a, T b) { return decode(a.__x) == decode(b.__x); }                               \
    static inline bool operator!=(T a, T b) { return decode(a.__x) != decode(b.__x); }                               \
    static inline bool operator<(T a, T b) { return decode(a.__x) < decode(b.__x); }                                 \
    static inline bool operator>(T a, T b) { return decode(a.__x) > decode(b.__x); }                                 \
    static inline T __hadd(T a, T b) { return a + b; }                                                               \
    static inline T __hsub(T a, T b) { return a - b; }                                                               \
    static inline T __hmul(T a, T b) { return a * b; }                                                               \
    static inline T __hmax(T a, T b) { return T(fmaxf(decode(a.__x), decode(b.__x))); }                              \
    static inline T __hmin(T a, T b) { return T(fminf(decode(a.__x), decode(b.__x))); }                              \
    static inline T __habs(T a) { a.__x &= 0x7fffu; return a; }                                                      \
    static inline bool __hisnan(T a) { float f = decode(a.__x); return f != f; }                                     \
    static inline T2 __hadd2(T2 a, T2 b) { return T2(a.x + b.x, a.y + b.y); }                                        \
    static inline T2 __hmul2(T2 a, T2 b) { return T2(a.x * b.x, a.y * b.y); }                                        \
    static inline T2 __hmax2(T2 a, T2 b) { return T2(__hmax(a.x, b.x), __hmax(a.y, b.y)); }                          \
    static inline T2 __habs2(T2 a) { return T2(__habs(a.x), __habs(a.y)); }                                          \
    static inline float __low2float(T2 v) { return decode(v.x.__x); }                                                \
    static inline float __high2float(T2 v) { return decode(v.y.__x); }
// clang-format on

#endif
