// emu.h: what kernels do among each other (collectives, barriers, shared memory, tensor cores), as calls into emu.cpp.
//
// A GPU thread is a fiber: it runs like any function until it meets a collective, gives its data and waits there; the
// last of those that must come computes the result for all. cuda_runtime.h wraps this in CUDA's names, llmc/mma.cuh
// in its own. README.md says what is checked.
#ifndef EMU_H
#define EMU_H

#ifndef EMU
#define EMU 1
#endif

#include <stddef.h>
#include <stdint.h>

namespace emu {

// Where a collective stands in the source and its name, for messages.
struct Site {
    const char *what, *file;
    int line;
};
// As last parameters: there __builtin_LINE is the caller's line. (Inside a braced default it is not, with gcc.)
#define EMU_WHERE const char *file = __builtin_FILE(), int line = __builtin_LINE()
#define EMU_SITE(name) \
    emu::Site { name, file, line }

// Called once by the last arrival with every member's data: lanes[i] is NULL unless bit i of `members` is set.
typedef void (*WarpOperation)(void *const lanes[32], uint32_t members);

// Waits for all lanes of `mask` that have not returned, runs `operation` once for them.
void warp_collective(WarpOperation operation, uint32_t mask, void *data, Site site);

// Waits for all threads of the block that have not returned.
void block_barrier(Site site);

// One block's dynamic shared memory, 1024-byte aligned, of exactly the size the launch asked for.
void *dynamic_shared();

// Ends the program with the kernel, the block and the thread that is running.
[[noreturn]] void kernel_error(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

unsigned lane_index();

// ----------------------------------------------------------------------------------------------------------------
// Twins of PTX instructions. Fragment layouts as in the PTX ISA (and at the top of llmc/mma.cuh). Sums are fp32, in
// ascending k; the hardware's own order is not documented.

void mma_m16n8k16_bf16(float d[4], const uint32_t a[4], const uint32_t b[2], const float c[4], EMU_WHERE);
void mma_m16n8k16_fp16(float d[4], const uint32_t a[4], const uint32_t b[2], const float c[4], EMU_WHERE);
// Operands are fp32 patterns of which the tensor core reads the upper 19 bits.
void mma_m16n8k8_tf32(float d[4], const uint32_t a[4], const uint32_t b[2], const float c[4], EMU_WHERE);

// Four 8 x 8 matrices of 16-bit values; lane l names row l % 8 of matrix l / 8. .trans: of their transposes.
void ldmatrix_x4(uint32_t r[4], const void *row, EMU_WHERE);
void ldmatrix_x4_trans(uint32_t r[4], const void *row, EMU_WHERE);

// cp.async of 16 bytes, of which `bytes` come from global memory and the rest are zero. What is written stays poison
// until the copying thread waits for the group, so that a missing wait shows.
void cp_async_16(void *shared, const void *global, int bytes);
void cp_async_commit();
void cp_async_wait(int pending_groups);

// ----------------------------------------------------------------------------------------------------------------
// What the sources of the emulator have in common

size_t environment_number(const char *name, size_t otherwise);
int compute_capability();                          // 80, 89, 90, 100 or 120
bool on_device(const void *memory, size_t bytes);  // all of it within one allocation of the device?

// A launch that was found possible.
struct Launch {
    const void *kernel;
    void (*run)(void *call);
    void *call;
    unsigned grid[3], block[3];
    size_t shared_bytes;
};
void launch_kernel(const Launch &what);

}  // namespace emu

#endif
