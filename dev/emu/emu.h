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

enum BarrierResult { BARRIER_ONLY, BARRIER_COUNT, BARRIER_AND, BARRIER_OR };
// Waits for all threads of the block that have not returned.
int block_barrier(BarrierResult result, int predicate, Site site);

// One block's dynamic shared memory, 1024-byte aligned, of exactly the size the launch asked for.
void *dynamic_shared();

// Ends the program with the kernel, the block and the thread that is running.
[[noreturn]] void kernel_error(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

unsigned lane_index();
uint32_t live_lanes();

// ----------------------------------------------------------------------------------------------------------------
// Twins of PTX instructions. Fragment layouts as in the PTX ISA (and at the top of llmc/mma.cuh). Sums are fp32, in
// ascending k; the hardware's own order is not documented.

void mma_m16n8k16_bf16(float d[4], const uint32_t a[4], const uint32_t b[2], const float c[4], EMU_WHERE);
void mma_m16n8k16_fp16(float d[4], const uint32_t a[4], const uint32_t b[2], const float c[4], EMU_WHERE);
// Operands are fp32 patterns of which the tensor core reads the upper 19 bits.
void mma_m16n8k8_tf32(float d[4], const uint32_t a[4], const uint32_t b[2], const float c[4], EMU_WHERE);

// `matrices` 8 x 8 matrices of 16-bit values; lane l names row l % 8 of matrix l / 8 (further lanes' rows are unused).
void ldmatrix(uint32_t *r, const void *row, int matrices, bool transposed, Site site);
inline void ldmatrix_x1(uint32_t r[1], const void *row, EMU_WHERE) {
    ldmatrix(r, row, 1, false, EMU_SITE("ldmatrix.x1"));
}
inline void ldmatrix_x2(uint32_t r[2], const void *row, EMU_WHERE) {
    ldmatrix(r, row, 2, false, EMU_SITE("ldmatrix.x2"));
}
inline void ldmatrix_x4(uint32_t r[4], const void *row, EMU_WHERE) {
    ldmatrix(r, row, 4, false, EMU_SITE("ldmatrix.x4"));
}
inline void ldmatrix_x1_trans(uint32_t r[1], const void *row, EMU_WHERE) {
    ldmatrix(r, row, 1, true, EMU_SITE("ldmatrix.x1.trans"));
}
inline void ldmatrix_x2_trans(uint32_t r[2], const void *row, EMU_WHERE) {
    ldmatrix(r, row, 2, true, EMU_SITE("ldmatrix.x2.trans"));
}
inline void ldmatrix_x4_trans(uint32_t r[4], const void *row, EMU_WHERE) {
    ldmatrix(r, row, 4, true, EMU_SITE("ldmatrix.x4.trans"));
}

// cp.async of 4, 8 or 16 bytes, of which `bytes` come from global memory and the rest are zero. What is written stays
// poison until the copying thread waits for the group, so that a missing wait shows.
void cp_async(void *shared, const void *global, int size, int bytes);
inline void cp_async_16(void *shared, const void *global, int bytes) { cp_async(shared, global, 16, bytes); }
void cp_async_commit();
void cp_async_wait(int pending_groups);
template <int PENDING>
void cp_async_wait() {
    cp_async_wait(PENDING);
}

// ----------------------------------------------------------------------------------------------------------------
// Launches: filled in by cudaLaunchKernelEx's template

struct Launch {
    const void *kernel;  // its address, for its name in messages
    void (*run)(void *call);
    void *call;  // kernel and arguments; `run` makes one thread's call
    unsigned grid[3], block[3];
    size_t shared_bytes;
};
int launch_kernel(const Launch &what);  // a cudaError_t

}  // namespace emu

#endif
