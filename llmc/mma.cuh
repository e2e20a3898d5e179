// mma.cuh: the instructions that C++ cannot say, one function each: tensor core products, matrix loads from shared
// memory, asynchronous copies, approximate exp2 and reciprocal. Each has its twin for the emulator beside it.
//
// Fragments of mma.m16n8k16 (16-bit), lane l of the warp, r = l / 4, c = 2 (l % 4); x, x+1 share a register:
//     A (16 x 16, row)  a0: (r, c)  a1: (r + 8, c)  a2: (r, c + 8)  a3: (r + 8, c + 8)
//     B (16 x 8, col)   b0: (c, r)  b1: (c + 8, r)           (k, n): consecutive k share a register
//     C, D (16 x 8)     d0, d1: (r, c), (r, c + 1)   d2, d3: (r + 8, c), (r + 8, c + 1)
// and of mma.m16n8k8 (tf32), k = l % 4:
//     A (16 x 8)  a0: (r, k)  a1: (r + 8, k)  a2: (r, k + 4)  a3: (r + 8, k + 4)       B  b0: (k, r)  b1: (k + 4, r)
// ldmatrix.x4 reads four 8 x 8 matrices of 16-bit values: lane l gives the address of row l % 8 of matrix l / 8, and
// receives from each the pair at (r, c) (trans: of the transpose). Four of them in the order (0,0) (8,0) (0,8) (8,8)
// are A. (PTX ISA, "Matrix fragments for mma.m16n8k16 / m16n8k8", "ldmatrix".)
#ifndef LLMC_MMA_CUH
#define LLMC_MMA_CUH

#include "cuda_utils.cuh"

#ifdef EMU

// d = a b + c, fp32 sums
__device__ __forceinline__ void mma_m16n8k16_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                                                  const float (&c)[4]) {
    emu::mma_m16n8k16_bf16(d, a, b, c);
}
__device__ __forceinline__ void mma_m16n8k16_fp16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                                                  const float (&c)[4]) {
    emu::mma_m16n8k16_fp16(d, a, b, c);
}
__device__ __forceinline__ void mma_m16n8k8_tf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                                                 const float (&c)[4]) {
    emu::mma_m16n8k8_tf32(d, a, b, c);
}
// r[i]: this lane's pair of matrix i; `row`: this lane's 16-byte row in shared memory
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], const void *row) { emu::ldmatrix_x4(r, row); }
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], const void *row) { emu::ldmatrix_x4_trans(r, row); }
// 16 bytes from global to shared memory, through L2 only; zeros where not `valid` (`global` is then not read)
__device__ __forceinline__ void cp_async_16(void *shared, const void *global, bool valid = true) {
    emu::cp_async_16(shared, global, valid ? 16 : 0);
}
__device__ __forceinline__ void cp_async_commit() { emu::cp_async_commit(); }
// Waits until at most PENDING of this thread's latest groups are under way. Others' copies need a __syncthreads() too.
template <int PENDING>
__device__ __forceinline__ void cp_async_wait() {
    emu::cp_async_wait(PENDING);
}
__device__ __forceinline__ float exp2_approx(float x) { return exp2f(x); }
__device__ __forceinline__ float reciprocal_approx(float x) { return 1.0f / x; }
// A float as tf32, to nearest, ties away
__device__ __forceinline__ uint32_t float_to_tf32(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (bits & 0x7fffffffu) > 0x7f800000u ? 0x7fffe000u : (bits + 0x1000u) & 0xffffe000u;
}

#else

#define MMA_M16N8K16_ASM(type)                                                                               \
    asm("mma.sync.aligned.m16n8k16.row.col.f32." type "." type                                               \
        ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "                                                       \
        "{%10,%11,%12,%13};"                                                                                 \
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])                                                     \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]), "f"(c[2]), \
          "f"(c[3]))

__device__ __forceinline__ void mma_m16n8k16_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                                                  const float (&c)[4]) {
    MMA_M16N8K16_ASM("bf16");
}
__device__ __forceinline__ void mma_m16n8k16_fp16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                                                  const float (&c)[4]) {
    MMA_M16N8K16_ASM("f16");
}
#undef MMA_M16N8K16_ASM
__device__ __forceinline__ void mma_m16n8k8_tf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                                                 const float (&c)[4]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}

// The loads and copies are volatile with a memory clobber: they must stay between the barriers they stand between.
__device__ __forceinline__ uint32_t shared_address(const void *pointer) {
    return (uint32_t)__cvta_generic_to_shared(pointer);
}
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}
__device__ __forceinline__ void cp_async_16(void *shared, const void *global, bool valid = true) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global),
                 "r"(valid ? 16 : 0)
                 : "memory");
}
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING>
__device__ __forceinline__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
__device__ __forceinline__ float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float reciprocal_approx(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ uint32_t float_to_tf32(float x) {
    uint32_t bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
    return bits;
}

#endif

// By element type: mma_m16n8k16<__half>(d, a, b, c).
template <typename T>
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                                             const float (&c)[4]);
template <>
__device__ __forceinline__ void mma_m16n8k16<__nv_bfloat16>(float (&d)[4], const uint32_t (&a)[4],
                                                            const uint32_t (&b)[2], const float (&c)[4]) {
    mma_m16n8k16_bf16(d, a, b, c);
}
template <>
__device__ __forceinline__ void mma_m16n8k16<__half>(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                                                     const float (&c)[4]) {
    mma_m16n8k16_fp16(d, a, b, c);
}

// Two floats rounded to nearest even in one register, `low` in the low half: an accumulator pair as an operand pair.
template <typename T>
__device__ __forceinline__ uint32_t pack_pair(float low, float high);
template <>
__device__ __forceinline__ uint32_t pack_pair<__nv_bfloat16>(float low, float high) {
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    uint32_t bits;
    memcpy(&bits, &pair, sizeof bits);
    return bits;
}
template <>
__device__ __forceinline__ uint32_t pack_pair<__half>(float low, float high) {
    __half2 pair = __floats2half2_rn(low, high);
    uint32_t bits;
    memcpy(&bits, &pair, sizeof bits);
    return bits;
}

#endif
