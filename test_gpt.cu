// test_gpt.cu: the GPU build against the CPU build, in one precision (the one it is compiled for): kernel by kernel, then
// whole steps. Runs on a GPU, on dev/emu and on any other CUDA runtime, from the same source.
//
//     make DEVICE=cuda PRECISION=bf16 test_gpt && ./test_gpt          all
//     ./test_gpt kernels, attention, steps, recipes or quick         some; quick: a pass and its digest, in seconds
#include "dev/test/cuda_steps.cuh"

#include "dev/test/cuda_attention.cuh"
#include "dev/test/cuda_recipes.cuh"

int main(int argc, char **argv) {
    const char *part = argc > 1 ? argv[1] : "all";
    int all = strcmp(part, "all") == 0;
    device_check();
    const DeviceInfo *device = device_info();
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("%s, compute capability %d.%d, %d multiprocessors; precision %s\n", device->name, device->cc / 10,
           device->cc % 10, device->sm_count, build_policy().name);
    match_tf32_rounding();
    const int kernels = all && BUILD_SCALING == SCALING_NONE;  // the fp8 and fp4 builds have bf16's
    if (kernels || strcmp(part, "kernels") == 0) test_kernels_cuda();
    if (kernels || strcmp(part, "attention") == 0) test_attention_cuda();
    if (all || strcmp(part, "steps") == 0) test_steps_cuda();
    if ((all && BUILD_SCALING != SCALING_NONE) || strcmp(part, "recipes") == 0) test_recipes_cuda();
    if (strcmp(part, "quick") == 0) test_steps_quick();
    return test_summary();
}
