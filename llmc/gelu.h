// gelu.h: GPT-2's activation, the tanh form: 0.5 x (1 + tanh(u)) with u = sqrt(2/pi) (x + 0.044715 x^3)
// (Hendrycks & Gimpel 2016).
//
// Computed as x s with s = 1 / (1 + exp(-2u)), which is the same function: 1 + tanh(u) loses every digit for x < -4,
// this form loses none, and it needs one exp. The GPU twin uses it too.
#ifndef LLMC_GELU_H
#define LLMC_GELU_H

#include "precision.h"
#include "utils.h"
#include "vmath.h"

CPU_TWIN_BEGIN

// -2 sqrt(2/pi), and that times 0.044715: -2u = x (GELU_LINEAR + GELU_CUBIC x^2).
#define GELU_LINEAR (-1.5957691216057308f)
#define GELU_CUBIC (-0.07135481282553705f)

// Below this many elements a parallel region costs more than it saves.
#define GELU_PARALLEL_ELEMS ((size_t)4096)

static inline float gelu_value(float x) { return x / (1.0f + vexpf(x * fmaf(GELU_CUBIC, x * x, GELU_LINEAR))); }

// d gelu / dx = s + x s (1 - s) 2u', and s (1 - s) = e s s with e = exp(-2u), which does not cancel. Outside +-10 the
// derivative is 0 or 1 to 1e-35; holding x there keeps e finite, so that no inf * 0 makes a NaN of a good value.
static inline float gelu_derivative(float x) {
    x = fabsf(x) > 10.0f ? copysignf(10.0f, x) : x;
    float e = vexpf(x * fmaf(GELU_CUBIC, x * x, GELU_LINEAR));
    float s = 1.0f / (1.0f + e);
    float minus_2du = fmaf(3.0f * GELU_CUBIC, x * x, GELU_LINEAR);
    return fmaf(-x * minus_2du, e * s * s, s);
}

// gelu_forward: out = gelu(inp), n elements
//   out (n) act =      inp (n) act      out may be inp; rounds once, at the store; NaN stays NaN, -inf gives NaN
static inline void gelu_forward(float *out, const float *inp, size_t n) {
#pragma omp parallel for schedule(static) if (n >= GELU_PARALLEL_ELEMS)
    for (size_t i = 0; i < n; i++) out[i] = round_act(gelu_value(inp[i]));
}

// gelu_forward_unrounded: the same of what has not been rounded yet: out = round_act(gelu(inp)), inp = round_act(inp), as
// a product's epilogue does it (--gelu-fusion)
static inline void gelu_forward_unrounded(float *out, float *inp, size_t n) {
#pragma omp parallel for schedule(static) if (n >= GELU_PARALLEL_ELEMS)
    for (size_t i = 0; i < n; i++) {
        out[i] = round_act(gelu_value(inp[i]));
        inp[i] = round_act(inp[i]);
    }
}

// gelu_backward: dinp = dout * gelu'(inp), n elements
//   dinp (n) grad =      dout (n) grad, or unrounded      inp (n) act, the forward input      dinp may be dout
static inline void gelu_backward(float *dinp, const float *dout, const float *inp, size_t n) {
#pragma omp parallel for schedule(static) if (n >= GELU_PARALLEL_ELEMS)
    for (size_t i = 0; i < n; i++) dinp[i] = round_grad(dout[i] * gelu_derivative(inp[i]));
}

CPU_TWIN_END
#endif
