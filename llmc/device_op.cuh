// device_op.cuh: a name, and what it must move and compute, for everything that is queued on the device.
//
// Each host function of a kernel header opens a DeviceOp, the trainer's phases and layers a DeviceRange. Both are NVTX
// ranges (nsys and ncu show them; nothing happens without such a tool). A DeviceOp is also shown to the observer, where
// one is set: profile_gpt.cu times each with events, and sets it beside the bytes and flops told here. With `paper` set,
// nothing is launched: a whole step is then walked through on any machine, for any model, and only counted.
//
// Bytes are those the operation cannot avoid: each input read once, each output written once, from memory. What comes
// from the L2 or through scratch is not counted, so a measured rate is a lower bound of the traffic there was.
#ifndef LLMC_DEVICE_OP_CUH
#define LLMC_DEVICE_OP_CUH

#include <cuda_runtime.h>
#include <nvtx3/nvToolsExt.h>

#include "utils.h"

typedef struct {
    void (*begin)(const char *name, double bytes, double flops, cudaStream_t stream);
    void (*end)(cudaStream_t stream);
    int paper;
} DeviceOpObserver;

// The observer of this process; all zero without one.
static inline DeviceOpObserver *device_op_observer(void) {
    static DeviceOpObserver observer;
    return &observer;
}

// Open from here to the end of the scope. Not nested in one another.
struct DeviceOp {
    cudaStream_t stream;
    DeviceOp(const char *name, double bytes, double flops, cudaStream_t on) : stream(on) {
        nvtxRangePushA(name);
        if (device_op_observer()->begin) device_op_observer()->begin(name, bytes, flops, stream);
    }
    ~DeviceOp() {
        if (device_op_observer()->end) device_op_observer()->end(stream);
        nvtxRangePop();
    }
    DeviceOp(const DeviceOp &) = delete;
};

struct DeviceRange {
    explicit DeviceRange(const char *name) { nvtxRangePushA(name); }
    DeviceRange(const char *name, size_t layer) {
        char text[64];
        snprintf(text, sizeof text, "%s %zu", name, layer);
        nvtxRangePushA(text);
    }
    ~DeviceRange() { nvtxRangePop(); }
    DeviceRange(const DeviceRange &) = delete;
};

#endif
