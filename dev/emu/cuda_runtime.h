// cuda_runtime.h: the part of the CUDA runtime that this program uses, for g++ and the CPU (see README.md).
//
// Names, values of enumerators and argument orders are CUDA 13's; what is not here is not emulated, so that its use
// does not compile. Everything is in order and done when the call returns, whatever the stream.
#ifndef EMU_CUDA_RUNTIME_H
#define EMU_CUDA_RUNTIME_H

#include <assert.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <tuple>
#include <type_traits>
#include <utility>

#include "emu.h"

#define CUDART_VERSION 13000

// ----------------------------------------------------------------------------------------------------------------
// Qualifiers

#define __host__
#define __device__
#define __global__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
// A block runs on one OS thread from start to end: what is local to that thread is what the block shares. (Poisoned
// before each block; arrays of static shared memory are bounds-checked by UBSan where they are indexed by name.)
#define __shared__ static thread_local

// ----------------------------------------------------------------------------------------------------------------
// Types

#define EMU_VECTOR(type, name)                                              \
    struct __align__(8) name##2 {                                           \
        type x, y;                                                          \
    };                                                                      \
    struct __align__(16) name##4 {                                          \
        type x, y, z, w;                                                    \
    };                                                                      \
    static inline name##2 make_##name##2(type x, type y) { return {x, y}; } \
    static inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }
EMU_VECTOR(int, int)
EMU_VECTOR(unsigned, uint)
EMU_VECTOR(float, float)
struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

// Set for whichever thread is running; __thread, as that needs no check for a dynamic initialiser at each use.
extern __thread uint3 threadIdx, blockIdx;
extern __thread dim3 blockDim, gridDim;
constexpr int warpSize = 32;

// name, value, text
#define EMU_ERRORS(X)                                                          \
    X(cudaSuccess, 0, "no error")                                              \
    X(cudaErrorInvalidValue, 1, "invalid argument")                            \
    X(cudaErrorMemoryAllocation, 2, "out of memory")                           \
    X(cudaErrorInvalidConfiguration, 9, "invalid configuration argument")      \
    X(cudaErrorInsufficientDriver, 35, "driver too old for this runtime")      \
    X(cudaErrorInvalidDeviceFunction, 98, "invalid device function")           \
    X(cudaErrorNoDevice, 100, "no device")                                     \
    X(cudaErrorInvalidDevice, 101, "invalid device ordinal")                   \
    X(cudaErrorNoKernelImageForDevice, 209, "no kernel image for this device") \
    X(cudaErrorInvalidResourceHandle, 400, "invalid resource handle")
enum cudaError_t {
#define EMU_ERROR_VALUE(name, value, text) name = value,
    EMU_ERRORS(EMU_ERROR_VALUE)
};
typedef struct EmuStream *cudaStream_t;
typedef struct EmuEvent *cudaEvent_t;

enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2, cudaMemcpyDeviceToDevice = 3 };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
struct cudaDeviceProp {
    char name[256];
    size_t totalGlobalMem, sharedMemPerBlockOptin, sharedMemPerMultiprocessor;
    int major, minor, multiProcessorCount;
};
struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
};

#define cudaStreamNonBlocking 1
#define cudaEventDisableTiming 2

// ----------------------------------------------------------------------------------------------------------------
// Runtime calls

const char *cudaGetErrorName(cudaError_t error);
const char *cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError();

cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int device);
cudaError_t cudaDriverGetVersion(int *version);
cudaError_t cudaRuntimeGetVersion(int *version);
cudaError_t cudaDeviceSynchronize();

cudaError_t cudaMalloc(void **memory, size_t bytes);
cudaError_t cudaFree(void *memory);
cudaError_t cudaMallocHost(void **memory, size_t bytes);
cudaError_t cudaFreeHost(void *memory);
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes);
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream = nullptr);
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t stream = nullptr);
cudaError_t cudaMemset(void *memory, int value, size_t bytes);
cudaError_t cudaMemsetAsync(void *memory, int value, size_t bytes, cudaStream_t stream = nullptr);
template <typename T>
cudaError_t cudaMalloc(T **memory, size_t bytes) {
    return cudaMalloc((void **)memory, bytes);
}
template <typename T>
cudaError_t cudaMallocHost(T **memory, size_t bytes) {
    return cudaMallocHost((void **)memory, bytes);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority);
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags = 0);
cudaError_t cudaEventCreate(cudaEvent_t *event);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream = nullptr);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end);
cudaError_t cudaEventDestroy(cudaEvent_t event);

cudaError_t emuFuncSetAttribute(const void *kernel, cudaFuncAttribute attribute, int value);
template <typename T>
cudaError_t cudaFuncSetAttribute(T *kernel, cudaFuncAttribute attribute, int value) {
    return emuFuncSetAttribute((const void *)kernel, attribute, value);
}
namespace emu {
// A kernel with its arguments as the launch converted them; every GPU thread gets its own copies.
template <typename... Params>
struct Call {
    void (*kernel)(Params...);
    std::tuple<std::remove_cv_t<Params>...> arguments;
    static void run(void *self) {
        Call *call = (Call *)self;
        std::apply(call->kernel, call->arguments);
    }
};
}  // namespace emu

// `run` makes one thread's call; `kernel`, its address, gives it a name in messages.
cudaError_t emuLaunchKernel(const cudaLaunchConfig_t *config, const void *kernel, void (*run)(void *call), void *call);

template <typename... Params, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *config, void (*kernel)(Params...), Arguments &&...arguments) {
    emu::Call<Params...> call = {kernel, {std::forward<Arguments>(arguments)...}};
    return emuLaunchKernel(config, (const void *)kernel, emu::Call<Params...>::run, &call);
}

// ----------------------------------------------------------------------------------------------------------------
// Barriers, shuffles

static inline void __syncthreads(EMU_WHERE) { emu::block_barrier(EMU_SITE("__syncthreads")); }

namespace emu {
struct ShuffleData {
    uint64_t value, result;
    unsigned source;
};
void shuffle_operation(void *const lanes[32], uint32_t members);
void no_operation(void *const lanes[32], uint32_t members);
template <typename T>
T shuffle(uint32_t mask, T value, unsigned source, Site site) {
    static_assert(sizeof(T) <= 8, "shuffles move up to 8 bytes");
    ShuffleData data = {0, 0, source};
    memcpy((void *)&data.value, (const void *)&value, sizeof value);
    warp_collective(shuffle_operation, mask, &data, site);
    memcpy((void *)&value, (const void *)&data.result, sizeof value);
    return value;
}
}  // namespace emu

// Source lanes as PTX's shfl has them: within segments of `width` lanes, a source beyond the segment is the lane itself.
template <typename T>
static inline T __shfl_sync(unsigned mask, T value, int source, int width = 32, EMU_WHERE) {
    unsigned w = (unsigned)width, first = emu::lane_index() & ~(w - 1);
    return emu::shuffle(mask, value, first | ((unsigned)source & (w - 1)), EMU_SITE("__shfl_sync"));
}
template <typename T>
static inline T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32, EMU_WHERE) {
    unsigned lane = emu::lane_index(), last = lane | ((unsigned)width - 1), source = lane ^ (unsigned)lane_mask;
    return emu::shuffle(mask, value, source > last ? lane : source, EMU_SITE("__shfl_xor_sync"));
}

static inline void __syncwarp(unsigned mask = 0xffffffffu, EMU_WHERE) {
    emu::warp_collective(emu::no_operation, mask, nullptr, EMU_SITE("__syncwarp"));
}

// ----------------------------------------------------------------------------------------------------------------
// Atomics: blocks run at the same time on several OS threads

#define EMU_ATOMICS(type)                                                                                       \
    static inline type atomicAdd(type *address, type value) {                                                   \
        return __atomic_fetch_add(address, value, __ATOMIC_SEQ_CST);                                            \
    }                                                                                                           \
    static inline type atomicMax(type *address, type value) {                                                   \
        type old = __atomic_load_n(address, __ATOMIC_RELAXED);                                                  \
        while (old < value &&                                                                                   \
               !__atomic_compare_exchange_n(address, &old, value, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)) { \
        }                                                                                                       \
        return old;                                                                                             \
    }
EMU_ATOMICS(int)
EMU_ATOMICS(unsigned)

// A read that sees other blocks' atomics.
static inline unsigned __ldcg(const unsigned *address) { return __atomic_load_n(address, __ATOMIC_RELAXED); }

// ----------------------------------------------------------------------------------------------------------------
// Arithmetic

static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __fsqrt_rn(float a) { return sqrtf(a); }
static inline unsigned __float_as_uint(float a) {
    unsigned bits;
    memcpy(&bits, &a, sizeof bits);
    return bits;
}
static inline float __uint_as_float(unsigned bits) {
    float a;
    memcpy(&a, &bits, sizeof a);
    return a;
}
static inline constexpr int min(int a, int b) { return b < a ? b : a; }
static inline constexpr int max(int a, int b) { return a < b ? b : a; }
static inline constexpr unsigned min(unsigned a, unsigned b) { return b < a ? b : a; }
static inline constexpr unsigned max(unsigned a, unsigned b) { return a < b ? b : a; }

#endif
