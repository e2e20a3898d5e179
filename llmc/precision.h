// precision.h: which format each kind of tensor has. The only file that mentions the compile-time precision flag.
//
// The CPU build holds every tensor in float. A format is applied by rounding where the GPU would store the value or
// feed it to a tensor core, so kernels call these functions at exactly those points; in fp32 they are the identity.
#ifndef LLMC_PRECISION_H
#define LLMC_PRECISION_H

// A saved activation (layernorm, GELU, attention, matmul outputs, the residual stream, logits, softmax's P).
static inline float round_act(float x) { return x; }

// An activation gradient (every d-tensor that flows from layer to layer).
static inline float round_grad(float x) { return x; }

// An operand as a linear layer's GEMM reads it (differs from the stored value only in tf32).
static inline float round_operand(float x) { return x; }

#endif
