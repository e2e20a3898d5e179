// test_gpt.cu: the GPU build against the CPU build, in one precision (the one it is compiled for): kernel by kernel.
// Runs on a GPU, on dev/emu and on any other CUDA runtime, from the same source.
#include "dev/test/cuda_kernels.cuh"

int main(void) {
    const DeviceInfo *device = device_info();
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("%s, compute capability %d.%d, %d multiprocessors; precision %s\n", device->name, device->cc / 10,
           device->cc % 10, device->sm_count, build_policy().name);
    test_kernels_cuda();
    return test_summary();
}
