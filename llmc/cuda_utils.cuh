// cuda_utils.cuh: what every kernel header stands on: checked calls and launches, 16-byte vector accesses, reductions
// in a fixed order, dynamic shared memory, facts about the device.
//
// The same source compiles with nvcc and, with -DEMU, as plain C++ against the headers of dev/emu. What the two cannot
// share is behind a name here (DYNAMIC_SHARED) or in mma.cuh (inline PTX).
#ifndef LLMC_CUDA_UTILS_CUH
#define LLMC_CUDA_UTILS_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "device_op.cuh"
#include "formats.h"
#include "utils.h"

#ifdef EMU
#include "emu.h"
#endif

// ----------------------------------------------------------------------------------------------------------------
// Checks: every CUDA call's result is looked at, and an error names the statement.

static inline void cuda_check(cudaError_t status, const char *statement, const char *file, int line) {
    if (status == cudaSuccess) return;
    error_exit(1, file, line, "CUDA refused: %s\nwhy: %s (%s)%s", statement, cudaGetErrorString(status),
               cudaGetErrorName(status),
               status == cudaErrorNoKernelImageForDevice
                   ? "\ntry: build with CUDA_ARCH= set to this card's architecture"
                   : "");
}
#define CUDA_CHECK(statement) cuda_check((statement), #statement, __FILE__, __LINE__)

// launch(kernel, grid, block, shared_bytes, stream, args...): the only way a kernel is started here. Raises the limit of
// dynamic shared memory, which by default has 48 KiB together with what the kernel declares, and checks the launch. (A
// fault inside the kernel shows at the next synchronisation, as always.)
#define LAUNCH_SHARED_BYTES ((size_t)64 << 10)  // every card has as much, and more than kernels declare besides

template <typename... Params, typename... Args>
static inline void launch_checked(const char *statement, const char *file, int line, void (*kernel)(Params...),
                                  dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream, Args &&...args) {
    if (device_op_observer()->paper) return;
    if (shared_bytes > 0)
        cuda_check(cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        (int)max_size(shared_bytes, LAUNCH_SHARED_BYTES)),
                   statement, file, line);
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    cuda_check(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...), statement, file, line);
}
#define launch(...) launch_checked("launch(" #__VA_ARGS__ ")", __FILE__, __LINE__, __VA_ARGS__)

// `bytes` of device memory become zero.
static inline void device_clear(void *data, size_t bytes, cudaStream_t stream) {
    DeviceOp op("clear", (double)bytes, 0, stream);
    if (!device_op_observer()->paper) CUDA_CHECK(cudaMemsetAsync(data, 0, bytes, stream));
}

// A grid of one dimension, checked: rows and blocks go in x, whose limit is 2^31 - 1 (y and z end at 65,535).
static inline dim3 grid_1d(size_t blocks) {
    if (blocks == 0 || blocks > 0x7fffffffu) die("a grid of %zu blocks\nwhy: 1 to 2147483647 are possible", blocks);
    return dim3((unsigned)blocks, 1, 1);
}

// ----------------------------------------------------------------------------------------------------------------
// The device of this process

typedef struct {
    char name[256];
    int index, sm_count;
    int cc;                                                    // compute capability as 80, 89, 90, 100, 120
    size_t memory_bytes, shared_block_bytes, shared_sm_bytes;  // shared_block_bytes: the most one block may ask for
} DeviceInfo;

// Facts about the current device, asked for once (one process, one device). Where there is none, a Hopper's: memory can
// be planned without a GPU, and the first call that needs one fails by itself.
static inline const DeviceInfo *device_info(void) {
    static DeviceInfo info;
    static const DeviceInfo hopper = {"no device", -1, 132, 90, (size_t)80 << 30, (size_t)227 << 10, (size_t)228 << 10};
    int count = 0;
    if (info.sm_count) return &info;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
        cudaGetLastError();  // it is not to show at the next call
        return &hopper;
    }
    cudaDeviceProp properties;
    CUDA_CHECK(cudaGetDevice(&info.index));
    CUDA_CHECK(cudaGetDeviceProperties(&properties, info.index));
    snprintf(info.name, sizeof info.name, "%s", properties.name);
    info.cc = properties.major * 10 + properties.minor;
    info.memory_bytes = properties.totalGlobalMem;
    info.shared_block_bytes = properties.sharedMemPerBlockOptin;
    info.shared_sm_bytes = properties.sharedMemPerMultiprocessor;
    info.sm_count = properties.multiProcessorCount;
    return &info;
}

// ----------------------------------------------------------------------------------------------------------------
// In kernels

#define WARP_SIZE 32
#define FULL_WARP 0xffffffffu

// DYNAMIC_SHARED(T, name): `T *name` at the block's dynamic shared memory, 128-byte aligned. Once per kernel.
#ifdef EMU
#define DYNAMIC_SHARED(T, name) T *name = reinterpret_cast<T *>(emu::dynamic_shared())
#else
#define DYNAMIC_SHARED(T, name)                                            \
    extern __shared__ __align__(128) unsigned char dynamic_shared_bytes[]; \
    T *name = reinterpret_cast<T *>(dynamic_shared_bytes)
#endif

// One rounding, from fp32, to nearest even (numerics: never through a second format).
__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float to_float(__half x) { return __half2float(x); }

template <typename T>
__device__ __forceinline__ T from_float(float x);
template <>
__device__ __forceinline__ float from_float<float>(float x) {
    return x;
}
template <>
__device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
    return __float2bfloat16_rn(x);
}
template <>
__device__ __forceinline__ __half from_float<__half>(float x) {
    return __float2half_rn(x);
}

// N elements that travel in 16-byte pieces: one for 8 values of 16 bits or 4 floats, two for 8 floats. The address
// must be a multiple of 16 bytes. Kernels give a thread PACK consecutive columns whatever the type, load everything
// they need first, compute in fp32 and store once.
#define PACK 8

template <typename T, int N>
struct alignas(16) Packed {
    static_assert(sizeof(T) * N % 16 == 0, "whole 16-byte pieces");
    T v[N];
    __device__ __forceinline__ T &operator[](int i) { return v[i]; }
    __device__ __forceinline__ const T &operator[](int i) const { return v[i]; }
};

// (uint4 and a copy: the compiler then has one 16-byte access and keeps v in registers.)
template <int N = PACK, typename T>
__device__ __forceinline__ Packed<T, N> load_packed(const T *address) {
    Packed<T, N> packed;
    uint4 pieces[sizeof(packed) / 16];
#pragma unroll
    for (int i = 0; i < (int)(sizeof(packed) / 16); i++) pieces[i] = reinterpret_cast<const uint4 *>(address)[i];
    memcpy(&packed, pieces, sizeof packed);
    return packed;
}

template <int N, typename T>
__device__ __forceinline__ void store_packed(T *address, const Packed<T, N> &packed) {
    uint4 pieces[sizeof(packed) / 16];
    memcpy(pieces, &packed, sizeof packed);
#pragma unroll
    for (int i = 0; i < (int)(sizeof(packed) / 16); i++) reinterpret_cast<uint4 *>(address)[i] = pieces[i];
}

// The same with the values as floats.
template <int N = PACK, typename T>
__device__ __forceinline__ void load_floats(float (&values)[N], const T *address) {
    Packed<T, N> packed = load_packed<N>(address);
#pragma unroll
    for (int i = 0; i < N; i++) values[i] = to_float(packed[i]);
}

template <int N, typename T>
__device__ __forceinline__ void store_floats(T *address, const float (&values)[N]) {
    Packed<T, N> packed;
#pragma unroll
    for (int i = 0; i < N; i++) packed[i] = from_float<T>(values[i]);
    store_packed<N>(address, packed);
}

// Sum and maximum over a warp, in every lane: pairs at distance 16, 8, .. 1. Both partners add the same two numbers,
// so all lanes hold the same bits, every time. warp_max passes NaN over.
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int distance = WARP_SIZE / 2; distance > 0; distance /= 2) x += __shfl_xor_sync(FULL_WARP, x, distance);
    return x;
}
__device__ __forceinline__ double warp_sum(double x) {
#pragma unroll
    for (int distance = WARP_SIZE / 2; distance > 0; distance /= 2) x += __shfl_xor_sync(FULL_WARP, x, distance);
    return x;
}
__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
    for (int distance = WARP_SIZE / 2; distance > 0; distance /= 2)
        x = fmaxf(x, __shfl_xor_sync(FULL_WARP, x, distance));
    return x;
}

// Largest magnitudes as patterns of fp32, which order as magnitudes do: integers have an atomic maximum, and a maximum
// does not depend on the order. NaN counts as 0 (fmaxf drops it, too).
__device__ __forceinline__ uint32_t amax_bits(float x) {
    const uint32_t bits = bits_of_float(x) & 0x7fffffffu;
    return bits <= 0x7f800000u ? bits : 0;
}
__device__ __forceinline__ uint32_t amax_of(uint32_t a, uint32_t b) { return a > b ? a : b; }

// Of the lanes whose numbers differ in a run of bits, highest to lowest; in each of them.
__device__ __forceinline__ uint32_t amax_lanes(uint32_t amax, int highest, int lowest) {
    for (int distance = highest; distance >= lowest; distance /= 2)
        amax = amax_of(amax, __shfl_xor_sync(FULL_WARP, amax, distance));
    return amax;
}

// *to = max(*to, a warp's), in global memory. All its lanes take part; most warps find that they have nothing to add.
__device__ __forceinline__ void amax_record(uint32_t *to, uint32_t amax) {
    amax = amax_lanes(amax, WARP_SIZE / 2, 1);
    if (threadIdx.x % WARP_SIZE == 0 && amax > __ldcg(to)) atomicMax(to, amax);
}

// Over a block of WARPS full warps, in every thread; warps are added in order. `shared` holds WARPS values and is free
// again only after the caller's next __syncthreads().
template <int WARPS, typename T>
__device__ __forceinline__ T block_sum(T x, T *shared) {
    x = warp_sum(x);
    if (threadIdx.x % WARP_SIZE == 0) shared[threadIdx.x / WARP_SIZE] = x;
    __syncthreads();
    T total = shared[0];
#pragma unroll
    for (int warp = 1; warp < WARPS; warp++) total += shared[warp];
    return total;
}
template <int WARPS>
__device__ __forceinline__ float block_max(float x, float *shared) {
    x = warp_max(x);
    if (threadIdx.x % WARP_SIZE == 0) shared[threadIdx.x / WARP_SIZE] = x;
    __syncthreads();
    float largest = shared[0];
#pragma unroll
    for (int warp = 1; warp < WARPS; warp++) largest = fmaxf(largest, shared[warp]);
    return largest;
}

#endif
