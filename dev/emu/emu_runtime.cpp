// emu_runtime.cpp: the runtime calls beside kernels: device facts, memory, streams and events, launch limits.
#include "cuda_runtime.h"

#include <stdlib.h>
#include <time.h>

#include <map>

// ----------------------------------------------------------------------------------------------------------------
// Errors

static cudaError_t last_error = cudaSuccess;
static cudaError_t fail(cudaError_t error) { return last_error = error; }

static const struct {
    cudaError_t error;
    const char *name, *text;
} error_table[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInitializationError, "cudaErrorInitializationError", "initialization error"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver", "driver too old for this runtime"},
    {cudaErrorInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no device"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorNoKernelImageForDevice, "cudaErrorNoKernelImageForDevice", "no kernel image for this device"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "illegal memory access"},
    {cudaErrorLaunchOutOfResources, "cudaErrorLaunchOutOfResources", "too many resources requested for launch"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "launch failure"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "not supported by the emulator"},
    {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"},
};
const char *cudaGetErrorName(cudaError_t error) {
    for (const auto &row : error_table)
        if (row.error == error) return row.name;
    return "cudaErrorUnknown";
}
const char *cudaGetErrorString(cudaError_t error) {
    for (const auto &row : error_table)
        if (row.error == error) return row.text;
    return "unknown error";
}
cudaError_t cudaPeekAtLastError() { return last_error; }
cudaError_t cudaGetLastError() {
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

// ----------------------------------------------------------------------------------------------------------------
// The device

static size_t environment_number(const char *name, size_t otherwise) {
    const char *text = getenv(name);
    return text && *text ? (size_t)strtoull(text, nullptr, 10) : otherwise;
}

struct DeviceRow {
    int cc;
    const char *name;
    int sm_count, sm_threads;
    size_t optin_bytes, sm_shared_bytes, l2_bytes;
    int bus_bits;
};
// Shared memory limits and threads of an SM: CUDA programming guide, technical specifications by compute capability.
static const DeviceRow *device_row() {
    static const DeviceRow rows[] = {{80, "Emulated A100", 108, 2048, 163 << 10, 164 << 10, 40 << 20, 5120},
                                     {89, "Emulated RTX 4090", 128, 1536, 99 << 10, 100 << 10, 72 << 20, 384},
                                     {90, "Emulated H100", 132, 2048, 227 << 10, 228 << 10, 50 << 20, 5120},
                                     {100, "Emulated B200", 148, 2048, 227 << 10, 228 << 10, 126 << 20, 8192},
                                     {120, "Emulated RTX 5090", 170, 1536, 99 << 10, 100 << 10, 96 << 20, 512}};
    static const int cc = (int)environment_number("EMU_CC", 90);
    for (const DeviceRow &row : rows)
        if (row.cc == cc) return &row;
    fprintf(stderr, "error: EMU_CC=%d is not one of 80, 89, 90, 100, 120\n", cc);
    exit(2);
}
static size_t memory_limit() {
    static const size_t bytes = environment_number("EMU_MEM_MB", 4096) << 20;
    return bytes;
}

// The compute capability as 80, 89, 90, 100 or 120, for emu_blas.cpp.
int emu_compute_capability() { return device_row()->cc; }

// A process uses one device; that there are more matters to ranks, which are told apart by theirs.
static int device_count() {
    static const int count = (int)environment_number("EMU_DEVICES", 8);
    return count;
}
static int current_device;

cudaError_t cudaGetDeviceCount(int *count) {
    *count = device_count();
    return *count > 0 ? cudaSuccess : fail(cudaErrorNoDevice);
}
cudaError_t cudaGetDevice(int *device) {
    *device = current_device;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
    if (device < 0 || device >= device_count()) return fail(cudaErrorInvalidDevice);
    current_device = device;
    return cudaSuccess;
}
cudaError_t cudaDeviceReset() { return cudaSuccess; }
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaDriverGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device) {
    if (device < 0 || device >= device_count()) return fail(cudaErrorInvalidDevice);
    const DeviceRow *row = device_row();
    memset((void *)p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "%s", row->name);
    p->totalGlobalMem = memory_limit();
    p->sharedMemPerBlock = 48 << 10;
    p->sharedMemPerBlockOptin = row->optin_bytes;
    p->sharedMemPerMultiprocessor = row->sm_shared_bytes;
    p->major = row->cc / 10;
    p->minor = row->cc % 10;
    p->multiProcessorCount = row->sm_count;
    p->warpSize = 32;
    p->maxThreadsPerBlock = 1024;
    p->maxThreadsPerMultiProcessor = row->sm_threads;
    p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
    p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = 0x7fffffff;
    p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->regsPerBlock = p->regsPerMultiprocessor = 65536;
    p->l2CacheSize = (int)row->l2_bytes;
    p->memoryBusWidth = row->bus_bits;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device) {
    cudaDeviceProp p;
    cudaError_t status = cudaGetDeviceProperties(&p, device);
    if (status != cudaSuccess) return status;
    switch (attribute) {
        case cudaDevAttrMaxThreadsPerBlock: *value = p.maxThreadsPerBlock; break;
        case cudaDevAttrMaxSharedMemoryPerBlock: *value = (int)p.sharedMemPerBlock; break;
        case cudaDevAttrWarpSize: *value = 32; break;
        case cudaDevAttrClockRate: *value = 1755000; break;
        case cudaDevAttrMultiProcessorCount: *value = p.multiProcessorCount; break;
        case cudaDevAttrMemoryClockRate: *value = 2619000; break;
        case cudaDevAttrGlobalMemoryBusWidth: *value = p.memoryBusWidth; break;
        case cudaDevAttrL2CacheSize: *value = p.l2CacheSize; break;
        case cudaDevAttrMaxThreadsPerMultiProcessor: *value = p.maxThreadsPerMultiProcessor; break;
        case cudaDevAttrComputeCapabilityMajor: *value = p.major; break;
        case cudaDevAttrComputeCapabilityMinor: *value = p.minor; break;
        case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = (int)p.sharedMemPerMultiprocessor; break;
        case cudaDevAttrMaxRegistersPerMultiprocessor: *value = p.regsPerMultiprocessor; break;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = (int)p.sharedMemPerBlockOptin; break;
        default: return fail(cudaErrorInvalidValue);
    }
    return cudaSuccess;
}

// ----------------------------------------------------------------------------------------------------------------
// Memory. Each allocation is one of the C library's, of the size asked for, so that AddressSanitizer guards its ends.
// What is fresh is 0xff everywhere: NaN in every floating-point format.

struct Memory {
    std::map<char *, size_t> device, host;
    size_t used_bytes = 0;
};
static Memory &memory() {
    static Memory *all = new Memory();  // never destroyed: programs may free at exit
    return *all;
}

static void *poisoned(size_t bytes) {
    void *p = nullptr;
    if (posix_memalign(&p, 256, bytes)) return nullptr;
    memset(p, 0xff, bytes);
    return p;
}

// Is [p, p + bytes) within one allocation of the device?
bool emu_on_device(const void *p, size_t bytes) {
    auto next = memory().device.upper_bound((char *)p);
    if (next == memory().device.begin()) return false;
    --next;
    size_t offset = (size_t)((const char *)p - next->first);
    return offset <= next->second && bytes <= next->second - offset;
}

cudaError_t cudaMalloc(void **p, size_t bytes) {
    *p = nullptr;
    if (bytes == 0) return cudaSuccess;
    Memory &m = memory();
    if (bytes > memory_limit() - m.used_bytes || !(*p = poisoned(bytes))) return fail(cudaErrorMemoryAllocation);
    m.device[(char *)*p] = bytes;
    m.used_bytes += bytes;
    return cudaSuccess;
}
cudaError_t cudaFree(void *p) {
    if (!p) return cudaSuccess;
    auto found = memory().device.find((char *)p);
    if (found == memory().device.end()) return fail(cudaErrorInvalidValue);
    memory().used_bytes -= found->second;
    memory().device.erase(found);
    free(p);
    return cudaSuccess;
}
cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned) {
    *p = nullptr;
    if (bytes && !(*p = poisoned(bytes))) return fail(cudaErrorMemoryAllocation);
    if (*p) memory().host[(char *)*p] = bytes;
    return cudaSuccess;
}
cudaError_t cudaFreeHost(void *p) {
    if (p && !memory().host.erase((char *)p)) return fail(cudaErrorInvalidValue);
    free(p);
    return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    *total_bytes = memory_limit();
    *free_bytes = memory_limit() - memory().used_bytes;
    return cudaSuccess;
}

// The side that `kind` calls device must be device memory for its whole length, the other must not be.
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind) {
    if (bytes == 0) return cudaSuccess;
    if (kind != cudaMemcpyDefault) {
        bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
        bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
        if (emu_on_device(to, to_device ? bytes : 1) != to_device ||
            emu_on_device(from, from_device ? bytes : 1) != from_device)
            return fail(cudaErrorInvalidValue);
    }
    memmove(to, from, bytes);
    return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t) {
    return cudaMemcpy(to, from, bytes, kind);
}
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t) {
    if (width > to_pitch || width > from_pitch) return fail(cudaErrorInvalidValue);
    cudaError_t status = cudaSuccess;
    for (size_t row = 0; row < height && status == cudaSuccess; row++)
        status = cudaMemcpy((char *)to + row * to_pitch, (const char *)from + row * from_pitch, width, kind);
    return status;
}
cudaError_t cudaMemset(void *p, int value, size_t bytes) {
    if (bytes && !emu_on_device(p, bytes)) return fail(cudaErrorInvalidValue);
    memset(p, value, bytes);
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t) { return cudaMemset(p, value, bytes); }

// ----------------------------------------------------------------------------------------------------------------
// Streams, events: everything was done when its call returned

struct EmuStream {
    int unused;
};
struct EmuEvent {
    double seconds;
    bool recorded;
};
static double now_seconds() {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned) {
    *stream = new EmuStream();
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int) {
    return cudaStreamCreateWithFlags(stream, flags);
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    *least = *greatest = 0;
    return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t *stream) { return cudaStreamCreateWithFlags(stream, 0); }
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    if (!stream) return fail(cudaErrorInvalidResourceHandle);
    delete stream;
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamQuery(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t event, unsigned) {
    return event ? cudaSuccess : fail(cudaErrorInvalidResourceHandle);
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned) {
    *event = new EmuEvent();
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
    if (!event) return fail(cudaErrorInvalidResourceHandle);
    event->seconds = now_seconds();
    event->recorded = true;
    return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    return event ? cudaSuccess : fail(cudaErrorInvalidResourceHandle);
}
cudaError_t cudaEventQuery(cudaEvent_t event) { return event ? cudaSuccess : fail(cudaErrorInvalidResourceHandle); }
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end) {
    if (!start || !end || !start->recorded || !end->recorded) return fail(cudaErrorInvalidResourceHandle);
    *ms = (float)((end->seconds - start->seconds) * 1e3);
    return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    if (!event) return fail(cudaErrorInvalidResourceHandle);
    delete event;
    return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) { return fail(cudaErrorNotSupported); }
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t *) { return fail(cudaErrorNotSupported); }
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *, cudaGraph_t, unsigned long long) {
    return fail(cudaErrorNotSupported);
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t) { return fail(cudaErrorNotSupported); }
cudaError_t cudaGraphDestroy(cudaGraph_t) { return fail(cudaErrorNotSupported); }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) { return fail(cudaErrorNotSupported); }

// ----------------------------------------------------------------------------------------------------------------
// What a launch may ask for

// Kernels whose limit of dynamic shared memory was raised.
static std::map<const void *, size_t> &shared_limits() {
    static auto *limits = new std::map<const void *, size_t>();
    return *limits;
}
static size_t shared_limit(const void *kernel) {
    auto found = shared_limits().find(kernel);
    return found == shared_limits().end() ? 48 << 10 : found->second;
}

cudaError_t emuFuncSetAttribute(const void *kernel, cudaFuncAttribute attribute, int value) {
    if (attribute == cudaFuncAttributePreferredSharedMemoryCarveout) return cudaSuccess;
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
        (size_t)value > device_row()->optin_bytes)
        return fail(cudaErrorInvalidValue);
    shared_limits()[kernel] = (size_t)value;
    return cudaSuccess;
}

// By threads, by dynamic shared memory (of which the system takes 1 KiB a block) and by blocks of an SM; registers and
// static shared memory are not known here.
cudaError_t emuOccupancy(int *blocks, const void *, int block_threads, size_t shared_bytes) {
    if (block_threads < 1 || block_threads > 1024 || shared_bytes > device_row()->optin_bytes)
        return fail(cudaErrorInvalidValue);
    int by_threads = device_row()->sm_threads / ((block_threads + 31) / 32 * 32);
    int by_shared = (int)(device_row()->sm_shared_bytes / (shared_bytes + 1024));
    *blocks = min(min(by_threads, by_shared), device_row()->sm_threads == 2048 ? 32 : 24);
    return cudaSuccess;
}

cudaError_t emuCheckLaunch(const cudaLaunchConfig_t *config, emu::Launch *what) {
    dim3 grid = config->gridDim, block = config->blockDim;
    if (!what->kernel) return fail(cudaErrorInvalidDeviceFunction);
    if (!grid.x || !grid.y || !grid.z || grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535 || !block.x ||
        !block.y || !block.z || block.x > 1024 || block.y > 1024 || block.z > 64 || block.x * block.y * block.z > 1024)
        return fail(cudaErrorInvalidConfiguration);
    if (config->dynamicSmemBytes > shared_limit(what->kernel)) return fail(cudaErrorInvalidValue);
    for (unsigned i = 0; i < config->numAttrs; i++)
        if (config->attrs[i].id == cudaLaunchAttributeClusterDimension &&
            (config->attrs[i].val.clusterDim.x | config->attrs[i].val.clusterDim.y |
             config->attrs[i].val.clusterDim.z) != 1)
            return fail(cudaErrorNotSupported);
    unsigned grid_array[3] = {grid.x, grid.y, grid.z}, block_array[3] = {block.x, block.y, block.z};
    memcpy(what->grid, grid_array, sizeof grid_array);
    memcpy(what->block, block_array, sizeof block_array);
    what->shared_bytes = config->dynamicSmemBytes;
    return cudaSuccess;
}
