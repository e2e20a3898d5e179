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
#define __constant__ static
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
// A block runs on one OS thread from start to end: what is local to that thread is what the block shares. (Poisoned
// before each block; arrays of static shared memory are bounds-checked by UBSan where they are indexed by name.)
#define __shared__ static thread_local

// ----------------------------------------------------------------------------------------------------------------
// Types

// clang-format off
#define EMU_VECTOR(type, name, alignment2, alignment4)                                                             \
    struct name##1 { type x; };                                                                                    \
    struct __align__(alignment2) name##2 { type x, y; };                                                           \
    struct name##3 { type x, y, z; };                                                                              \
    struct __align__(alignment4) name##4 { type x, y, z, w; };                                                     \
    static inline name##1 make_##name##1(type x) { name##1 v = {x}; return v; }                                    \
    static inline name##2 make_##name##2(type x, type y) { name##2 v = {x, y}; return v; }                         \
    static inline name##3 make_##name##3(type x, type y, type z) { name##3 v = {x, y, z}; return v; }              \
    static inline name##4 make_##name##4(type x, type y, type z, type w) { name##4 v = {x, y, z, w}; return v; }
// clang-format on
EMU_VECTOR(signed char, char, 2, 4)
EMU_VECTOR(unsigned char, uchar, 2, 4)
EMU_VECTOR(short, short, 4, 8)
EMU_VECTOR(unsigned short, ushort, 4, 8)
EMU_VECTOR(int, int, 8, 16)
EMU_VECTOR(unsigned, uint, 8, 16)
EMU_VECTOR(long long, longlong, 16, 16)
EMU_VECTOR(unsigned long long, ulonglong, 16, 16)
EMU_VECTOR(float, float, 8, 16)
EMU_VECTOR(double, double, 16, 16)

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

// Set for whichever thread is running; __thread, as that needs no check for a dynamic initialiser at each use.
extern __thread uint3 threadIdx, blockIdx;
extern __thread dim3 blockDim, gridDim;
constexpr int warpSize = 32;

enum cudaError_t {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInitializationError = 3,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorInsufficientDriver = 35,
    cudaErrorInvalidDeviceFunction = 98,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
    cudaErrorNoKernelImageForDevice = 209,
    cudaErrorInvalidResourceHandle = 400,
    cudaErrorNotReady = 600,
    cudaErrorIllegalAddress = 700,
    cudaErrorLaunchOutOfResources = 701,
    cudaErrorLaunchFailure = 719,
    cudaErrorNotSupported = 801,
    cudaErrorUnknown = 999
};
typedef cudaError_t cudaError;
typedef struct EmuStream *cudaStream_t;
typedef struct EmuEvent *cudaEvent_t;
typedef struct EmuGraph *cudaGraph_t;
typedef struct EmuGraphExec *cudaGraphExec_t;

enum cudaMemcpyKind {
    cudaMemcpyHostToHost = 0,
    cudaMemcpyHostToDevice = 1,
    cudaMemcpyDeviceToHost = 2,
    cudaMemcpyDeviceToDevice = 3,
    cudaMemcpyDefault = 4
};
enum cudaFuncAttribute {
    cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
    cudaFuncAttributePreferredSharedMemoryCarveout = 9
};
enum cudaDeviceAttr {
    cudaDevAttrMaxThreadsPerBlock = 1,
    cudaDevAttrMaxSharedMemoryPerBlock = 8,
    cudaDevAttrWarpSize = 10,
    cudaDevAttrClockRate = 13,
    cudaDevAttrMultiProcessorCount = 16,
    cudaDevAttrMemoryClockRate = 36,
    cudaDevAttrGlobalMemoryBusWidth = 37,
    cudaDevAttrL2CacheSize = 38,
    cudaDevAttrMaxThreadsPerMultiProcessor = 39,
    cudaDevAttrComputeCapabilityMajor = 75,
    cudaDevAttrComputeCapabilityMinor = 76,
    cudaDevAttrMaxSharedMemoryPerMultiprocessor = 81,
    cudaDevAttrMaxRegistersPerMultiprocessor = 82,
    cudaDevAttrMaxSharedMemoryPerBlockOptin = 97
};
struct cudaDeviceProp {
    char name[256];
    size_t totalGlobalMem, sharedMemPerBlock, sharedMemPerBlockOptin, sharedMemPerMultiprocessor;
    int major, minor, multiProcessorCount, warpSize, maxThreadsPerBlock, maxThreadsPerMultiProcessor;
    int maxThreadsDim[3], maxGridSize[3];
    int regsPerBlock, regsPerMultiprocessor, l2CacheSize, memoryBusWidth, ECCEnabled;
    int pciBusID, pciDeviceID, pciDomainID;
};
enum cudaLaunchAttributeID {
    cudaLaunchAttributeClusterDimension = 4,
    cudaLaunchAttributeProgrammaticStreamSerialization = 6
};
struct cudaLaunchAttribute {
    cudaLaunchAttributeID id;
    struct {
        struct {
            unsigned x, y, z;
        } clusterDim;
        int programmaticStreamSerializationAllowed;
    } val;
};
struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    cudaLaunchAttribute *attrs;
    unsigned numAttrs;
};
enum cudaStreamCaptureMode {
    cudaStreamCaptureModeGlobal,
    cudaStreamCaptureModeThreadLocal,
    cudaStreamCaptureModeRelaxed
};

#define cudaStreamDefault 0
#define cudaStreamNonBlocking 1
#define cudaEventDefault 0
#define cudaEventDisableTiming 2
#define cudaHostAllocDefault 0
#define cudaHostAllocMapped 2

// ----------------------------------------------------------------------------------------------------------------
// Runtime calls

const char *cudaGetErrorName(cudaError_t error);
const char *cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError();
cudaError_t cudaPeekAtLastError();

cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int device);
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device);
cudaError_t cudaDriverGetVersion(int *version);
cudaError_t cudaRuntimeGetVersion(int *version);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaDeviceReset();

cudaError_t cudaMalloc(void **memory, size_t bytes);
cudaError_t cudaFree(void *memory);
cudaError_t cudaHostAlloc(void **memory, size_t bytes, unsigned flags);
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
cudaError_t cudaHostAlloc(T **memory, size_t bytes, unsigned flags) {
    return cudaHostAlloc((void **)memory, bytes, flags);
}
template <typename T>
cudaError_t cudaMallocHost(T **memory, size_t bytes, unsigned flags = 0) {
    return cudaHostAlloc((void **)memory, bytes, flags);
}

cudaError_t cudaStreamCreate(cudaStream_t *stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority);
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags = 0);
cudaError_t cudaEventCreate(cudaEvent_t *event);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream = nullptr);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end);
cudaError_t cudaEventDestroy(cudaEvent_t event);

// Capture is refused at its start; callers then go without.
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags = 0);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);

cudaError_t emuFuncSetAttribute(const void *kernel, cudaFuncAttribute attribute, int value);
cudaError_t emuOccupancy(int *blocks, const void *kernel, int block_threads, size_t shared_bytes);
template <typename T>
cudaError_t cudaFuncSetAttribute(T *kernel, cudaFuncAttribute attribute, int value) {
    return emuFuncSetAttribute((const void *)kernel, attribute, value);
}
template <typename T>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, T *kernel, int block_threads,
                                                          size_t shared_bytes) {
    return emuOccupancy(blocks, (const void *)kernel, block_threads, shared_bytes);
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

cudaError_t emuCheckLaunch(const cudaLaunchConfig_t *config, emu::Launch *what);

template <typename... Params, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *config, void (*kernel)(Params...), Arguments &&...arguments) {
    emu::Call<Params...> call = {kernel, {std::forward<Arguments>(arguments)...}};
    emu::Launch what = {};
    what.kernel = (const void *)kernel;
    what.run = emu::Call<Params...>::run;
    what.call = &call;
    cudaError_t status = emuCheckLaunch(config, &what);
    return status != cudaSuccess ? status : (cudaError_t)emu::launch_kernel(what);
}

// ----------------------------------------------------------------------------------------------------------------
// Barriers and warp collectives

static inline void __syncthreads(EMU_WHERE) { emu::block_barrier(emu::BARRIER_ONLY, 0, EMU_SITE("__syncthreads")); }
static inline int __syncthreads_count(int predicate, EMU_WHERE) {
    return emu::block_barrier(emu::BARRIER_COUNT, predicate, EMU_SITE("__syncthreads_count"));
}
static inline int __syncthreads_and(int predicate, EMU_WHERE) {
    return emu::block_barrier(emu::BARRIER_AND, predicate, EMU_SITE("__syncthreads_and"));
}
static inline int __syncthreads_or(int predicate, EMU_WHERE) {
    return emu::block_barrier(emu::BARRIER_OR, predicate, EMU_SITE("__syncthreads_or"));
}

namespace emu {
struct ShuffleData {
    uint64_t value, result;
    unsigned source;
};
struct VoteData {
    uint32_t value, result;
};
void shuffle_operation(void *const lanes[32], uint32_t members);
void no_operation(void *const lanes[32], uint32_t members);
void ballot_operation(void *const lanes[32], uint32_t members);
void match_operation(void *const lanes[32], uint32_t members);
template <typename T, typename Combine>
void reduce_operation(void *const lanes[32], uint32_t members) {
    bool first = true;
    T sum = 0;
    for (int i = 0; i < 32; i++)
        if (members >> i & 1) {
            T value = (T)((VoteData *)lanes[i])->value;
            sum = first ? value : Combine()(sum, value);
            first = false;
        }
    for (int i = 0; i < 32; i++)
        if (members >> i & 1) ((VoteData *)lanes[i])->result = (uint32_t)sum;
}

template <typename T>
T shuffle(uint32_t mask, T value, unsigned source, Site site) {
    static_assert(sizeof(T) <= 8, "shuffles move up to 8 bytes");
    ShuffleData data = {0, 0, source};
    memcpy((void *)&data.value, (const void *)&value, sizeof value);
    warp_collective(shuffle_operation, mask, &data, site);
    memcpy((void *)&value, (const void *)&data.result, sizeof value);
    return value;
}
inline uint32_t vote(WarpOperation operation, uint32_t mask, uint32_t value, Site site) {
    VoteData data = {value, 0};
    warp_collective(operation, mask, &data, site);
    return data.result;
}
}  // namespace emu

// Source lanes as PTX's shfl has them: within segments of `width` lanes, a source beyond the segment is the lane itself.
template <typename T>
static inline T __shfl_sync(unsigned mask, T value, int source, int width = 32, EMU_WHERE) {
    unsigned w = (unsigned)width, first = emu::lane_index() & ~(w - 1);
    return emu::shuffle(mask, value, first | ((unsigned)source & (w - 1)), EMU_SITE("__shfl_sync"));
}
template <typename T>
static inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, EMU_WHERE) {
    unsigned lane = emu::lane_index(), first = lane & ~((unsigned)width - 1);
    return emu::shuffle(mask, value, lane < first + delta ? lane : lane - delta, EMU_SITE("__shfl_up_sync"));
}
template <typename T>
static inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, EMU_WHERE) {
    unsigned lane = emu::lane_index(), last = lane | ((unsigned)width - 1);
    return emu::shuffle(mask, value, lane + delta > last ? lane : lane + delta, EMU_SITE("__shfl_down_sync"));
}
template <typename T>
static inline T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32, EMU_WHERE) {
    unsigned lane = emu::lane_index(), last = lane | ((unsigned)width - 1), source = lane ^ (unsigned)lane_mask;
    return emu::shuffle(mask, value, source > last ? lane : source, EMU_SITE("__shfl_xor_sync"));
}

static inline void __syncwarp(unsigned mask = 0xffffffffu, EMU_WHERE) {
    emu::warp_collective(emu::no_operation, mask, nullptr, EMU_SITE("__syncwarp"));
}
static inline unsigned __ballot_sync(unsigned mask, int predicate, EMU_WHERE) {
    return emu::vote(emu::ballot_operation, mask, predicate != 0, EMU_SITE("__ballot_sync"));
}
static inline int __any_sync(unsigned mask, int predicate, EMU_WHERE) {
    return emu::vote(emu::ballot_operation, mask, predicate != 0, EMU_SITE("__any_sync")) != 0;
}
static inline int __all_sync(unsigned mask, int predicate, EMU_WHERE) {
    return emu::vote(emu::ballot_operation, mask, predicate == 0, EMU_SITE("__all_sync")) == 0;
}
static inline unsigned __match_any_sync(unsigned mask, unsigned value, EMU_WHERE) {
    return emu::vote(emu::match_operation, mask, value, EMU_SITE("__match_any_sync"));
}
// Lanes that have not returned. Which lanes run together has no meaning here: do not build masks from it in branches.
static inline unsigned __activemask() { return emu::live_lanes(); }

#define EMU_REDUCE(name, type, expression)                                                          \
    namespace emu {                                                                                 \
    struct name##type {                                                                             \
        type operator()(type a, type b) const { return expression; }                                \
    };                                                                                              \
    }                                                                                               \
    static inline type __reduce_##name##_sync(unsigned mask, type value, EMU_WHERE) {               \
        return (type)emu::vote(emu::reduce_operation<type, emu::name##type>, mask, (uint32_t)value, \
                               EMU_SITE("__reduce_" #name "_sync"));                                \
    }
EMU_REDUCE(add, unsigned, a + b)
EMU_REDUCE(add, int, (int)((unsigned)a + (unsigned)b))
EMU_REDUCE(min, unsigned, a < b ? a : b)
EMU_REDUCE(min, int, a < b ? a : b)
EMU_REDUCE(max, unsigned, a > b ? a : b)
EMU_REDUCE(max, int, a > b ? a : b)
EMU_REDUCE(and, unsigned, a &b)
EMU_REDUCE(or, unsigned, a | b)
EMU_REDUCE(xor, unsigned, a ^ b)

static inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __threadfence_block() {}
static inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
[[noreturn]] static inline void __trap() { emu::kernel_error("__trap()"); }

// ----------------------------------------------------------------------------------------------------------------
// Atomics: blocks run at the same time on several OS threads

namespace emu {
template <typename T, typename F>
static inline T atomic_update(T *address, F update) {
    T old, next;
    __atomic_load(address, &old, __ATOMIC_RELAXED);
    do next = update(old);
    while (!__atomic_compare_exchange(address, &old, &next, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED));
    return old;
}
}  // namespace emu
#define EMU_ATOMIC(name, type, expression)                                                \
    static inline type name(type *address, type value) {                                  \
        return emu::atomic_update(address, [=](type old) -> type { return expression; }); \
    }
#define EMU_ATOMIC_INTEGERS(name, expression) \
    EMU_ATOMIC(name, int, expression)         \
    EMU_ATOMIC(name, unsigned, expression) EMU_ATOMIC(name, unsigned long long, expression)
EMU_ATOMIC(atomicAdd, float, old + value)
EMU_ATOMIC(atomicAdd, double, old + value)
EMU_ATOMIC(atomicExch, float, ((void)old, value))
EMU_ATOMIC(atomicAdd, int, (int)((unsigned)old + (unsigned)value))
EMU_ATOMIC(atomicAdd, unsigned, old + value)
EMU_ATOMIC(atomicAdd, unsigned long long, old + value)
EMU_ATOMIC_INTEGERS(atomicMin, old < value ? old : value)
EMU_ATOMIC_INTEGERS(atomicMax, old > value ? old : value)
EMU_ATOMIC_INTEGERS(atomicAnd, old &value)
EMU_ATOMIC_INTEGERS(atomicOr, old | value)
EMU_ATOMIC_INTEGERS(atomicXor, old ^ value)
EMU_ATOMIC_INTEGERS(atomicExch, ((void)old, value))
#define EMU_CAS(type)                                                                               \
    static inline type atomicCAS(type *address, type compare, type value) {                         \
        return emu::atomic_update(address, [=](type old) { return old == compare ? value : old; }); \
    }
EMU_CAS(int)
EMU_CAS(unsigned)
EMU_CAS(unsigned long long)

// ----------------------------------------------------------------------------------------------------------------
// Memory access hints: plain accesses. (UBSan checks the alignment of the vector types.)

template <typename T>
static inline T __ldg(const T *p) {
    return *p;
}
template <typename T>
static inline T __ldcs(const T *p) {
    return *p;
}
template <typename T>
static inline T __ldcg(const T *p) {
    return *p;
}
template <typename T>
static inline T __ldca(const T *p) {
    return *p;
}
template <typename T>
static inline void __stcs(T *p, T value) {
    *p = value;
}
template <typename T>
static inline void __stcg(T *p, T value) {
    *p = value;
}
template <typename T>
static inline void __stwb(T *p, T value) {
    *p = value;
}
template <typename T>
static inline void __stwt(T *p, T value) {
    *p = value;
}

// ----------------------------------------------------------------------------------------------------------------
// Arithmetic. The approximate functions are the exact ones here: compare with a tolerance.

static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __frcp_rn(float a) { return 1.0f / a; }
static inline float __fsqrt_rn(float a) { return sqrtf(a); }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
static inline float rsqrtf(float a) { return (float)(1.0 / sqrt((double)a)); }
static inline float __frsqrt_rn(float a) { return (float)(1.0 / sqrt((double)a)); }
#define __expf(a) expf(a)  // macros: the C library has functions of these names
#define __logf(a) logf(a)
static inline float __fdividef(float a, float b) { return a / b; }
static inline float __saturatef(float a) { return a > 0.0f ? (a < 1.0f ? a : 1.0f) : 0.0f; }

template <typename To, typename From>
static inline To emu_bit_cast(From from) {
    static_assert(sizeof(To) == sizeof(From), "same size");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
static inline unsigned __float_as_uint(float a) { return emu_bit_cast<unsigned>(a); }
static inline int __float_as_int(float a) { return emu_bit_cast<int>(a); }
static inline float __uint_as_float(unsigned a) { return emu_bit_cast<float>(a); }
static inline float __int_as_float(int a) { return emu_bit_cast<float>(a); }
static inline long long __double_as_longlong(double a) { return emu_bit_cast<long long>(a); }
static inline double __longlong_as_double(long long a) { return emu_bit_cast<double>(a); }
static inline float __int2float_rn(int a) { return (float)a; }
static inline float __uint2float_rn(unsigned a) { return (float)a; }
static inline float __double2float_rn(double a) { return (float)a; }
// Conversions to integers saturate on the GPU and turn NaN into 0.
static inline int emu_float2int(float a) {
    return a != a ? 0 : a >= 0x1p31f ? 0x7fffffff : a < -0x1p31f ? -0x7fffffff - 1 : (int)a;
}
static inline int __float2int_rn(float a) { return emu_float2int(rintf(a)); }
static inline int __float2int_rz(float a) { return emu_float2int(truncf(a)); }
static inline int __float2int_rd(float a) { return emu_float2int(floorf(a)); }

static inline int __popc(unsigned a) { return __builtin_popcount(a); }
static inline int __popcll(unsigned long long a) { return __builtin_popcountll(a); }
static inline int __clz(int a) { return a ? __builtin_clz((unsigned)a) : 32; }
static inline int __ffs(int a) { return __builtin_ffs(a); }
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }
static inline int __mulhi(int a, int b) { return (int)((int64_t)a * b >> 32); }
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    uint64_t both = (uint64_t)y << 32 | x;
    unsigned result = 0;
    for (int i = 0; i < 4; i++) result |= (unsigned)(both >> (selector >> (4 * i) & 7) * 8 & 0xff) << (8 * i);
    return result;
}

#define EMU_MIN_MAX(type)                                                      \
    static inline constexpr type min(type a, type b) { return b < a ? b : a; } \
    static inline constexpr type max(type a, type b) { return a < b ? b : a; }
EMU_MIN_MAX(int)
EMU_MIN_MAX(unsigned)
EMU_MIN_MAX(long)
EMU_MIN_MAX(unsigned long)
EMU_MIN_MAX(long long)
EMU_MIN_MAX(unsigned long long)
static inline float min(float a, float b) { return fminf(a, b); }
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline double min(double a, double b) { return fmin(a, b); }
static inline double max(double a, double b) { return fmax(a, b); }

#endif
