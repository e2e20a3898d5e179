// emu_runtime.cpp: the runtime calls beside kernels: device facts, memory, streams and events, launch limits.
#include "cuda_runtime.h"

#include <stdlib.h>
#include <time.h>

#include <map>

// ----------------------------------------------------------------------------------------------------------------
// Errors

static cudaError_t last_error = cudaSuccess;
static cudaError_t fail(cudaError_t error) { return last_error = error; }

const char *cudaGetErrorName(cudaError_t error) {
    switch (error) {
#define NAME(name, value, text) \
    case name: return #name;
        EMU_ERRORS(NAME)
    }
    return "unknown error";
}
const char *cudaGetErrorString(cudaError_t error) {
    switch (error) {
#define TEXT(name, value, text) \
    case name: return text;
        EMU_ERRORS(TEXT)
    }
    return "unknown error";
}
cudaError_t cudaGetLastError() {
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

// ----------------------------------------------------------------------------------------------------------------
// The device

size_t emu::environment_number(const char *name, size_t otherwise) {
    const char *text = getenv(name);
    return text && *text ? (size_t)strtoull(text, nullptr, 10) : otherwise;
}
using emu::environment_number;

struct DeviceRow {
    int cc;
    const char *name;
    int sm_count, optin_kb, sm_shared_kb;
};
// Shared memory limits: CUDA programming guide, technical specifications by compute capability.
static const DeviceRow *device_row() {
    static const DeviceRow rows[] = {{80, "Emulated A100", 108, 163, 164},
                                     {89, "Emulated RTX 4090", 128, 99, 100},
                                     {90, "Emulated H100", 132, 227, 228},
                                     {100, "Emulated B200", 148, 227, 228},
                                     {120, "Emulated RTX 5090", 170, 99, 100}};
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

int emu::compute_capability() { return device_row()->cc; }

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
    p->sharedMemPerBlockOptin = (size_t)row->optin_kb << 10;
    p->sharedMemPerMultiprocessor = (size_t)row->sm_shared_kb << 10;
    p->major = row->cc / 10;
    p->minor = row->cc % 10;
    p->multiProcessorCount = row->sm_count;
    return cudaSuccess;
}

// ----------------------------------------------------------------------------------------------------------------
// Memory. Each allocation is one of the C library's, of the size asked for, so that AddressSanitizer guards its ends.
// What is fresh is 0xff everywhere: NaN in every floating-point format.

struct Memory {
    std::map<char *, size_t> allocations;
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

bool emu::on_device(const void *p, size_t bytes) {
    auto next = memory().allocations.upper_bound((char *)p);
    if (next == memory().allocations.begin()) return false;
    --next;
    size_t offset = (size_t)((const char *)p - next->first);
    return offset <= next->second && bytes <= next->second - offset;
}

cudaError_t cudaMalloc(void **p, size_t bytes) {
    *p = nullptr;
    if (bytes == 0) return cudaSuccess;
    Memory &m = memory();
    if (bytes > memory_limit() - m.used_bytes || !(*p = poisoned(bytes))) return fail(cudaErrorMemoryAllocation);
    m.allocations[(char *)*p] = bytes;
    m.used_bytes += bytes;
    return cudaSuccess;
}
cudaError_t cudaFree(void *p) {
    if (!p) return cudaSuccess;
    auto found = memory().allocations.find((char *)p);
    if (found == memory().allocations.end()) return fail(cudaErrorInvalidValue);
    memory().used_bytes -= found->second;
    memory().allocations.erase(found);
    free(p);
    return cudaSuccess;
}
cudaError_t cudaMallocHost(void **p, size_t bytes) {
    *p = nullptr;
    return bytes && !(*p = poisoned(bytes)) ? fail(cudaErrorMemoryAllocation) : cudaSuccess;
}
cudaError_t cudaFreeHost(void *p) {
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
    bool to_device = kind != cudaMemcpyDeviceToHost, from_device = kind != cudaMemcpyHostToDevice;
    if (emu::on_device(to, to_device ? bytes : 1) != to_device ||
        emu::on_device(from, from_device ? bytes : 1) != from_device)
        return fail(cudaErrorInvalidValue);
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
    if (bytes && !emu::on_device(p, bytes)) return fail(cudaErrorInvalidValue);
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
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    if (!stream) return fail(cudaErrorInvalidResourceHandle);
    delete stream;
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
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

// ----------------------------------------------------------------------------------------------------------------
// What a launch may ask for

// Kernels whose limit of dynamic shared memory was raised. Without that it is 48 KiB less what the kernel declares; of
// which nothing is known here: taken for 1 KiB.
static std::map<const void *, size_t> &shared_limits() {
    static auto *limits = new std::map<const void *, size_t>();
    return *limits;
}
static size_t shared_limit(const void *kernel) {
    auto found = shared_limits().find(kernel);
    return found == shared_limits().end() ? 47 << 10 : found->second;
}

cudaError_t emuFuncSetAttribute(const void *kernel, cudaFuncAttribute attribute, int value) {
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 || value > device_row()->optin_kb << 10)
        return fail(cudaErrorInvalidValue);
    shared_limits()[kernel] = (size_t)value;
    return cudaSuccess;
}

cudaError_t emuLaunchKernel(const cudaLaunchConfig_t *config, const void *kernel, void (*run)(void *call), void *call) {
    dim3 grid = config->gridDim, block = config->blockDim;
    if (!kernel) return fail(cudaErrorInvalidDeviceFunction);
    if (!grid.x || !grid.y || !grid.z || grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535 || !block.x ||
        !block.y || !block.z || block.x > 1024 || block.y > 1024 || block.z > 64 || block.x * block.y * block.z > 1024)
        return fail(cudaErrorInvalidConfiguration);
    if (config->dynamicSmemBytes > shared_limit(kernel)) return fail(cudaErrorInvalidValue);
    emu::launch_kernel(
        {kernel, run, call, {grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, config->dynamicSmemBytes});
    return cudaSuccess;
}
