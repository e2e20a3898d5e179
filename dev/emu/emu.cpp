// emu.cpp: how kernels run: fibers, the scheduler of a block, collectives, tensor core twins.
//
// One OS thread (an OpenMP thread) runs one block at a time. The block's threads are fibers on stacks of their own, but
// a thread that never waits never costs a switch: it runs to its end on a stack that the next thread then takes over.
// Only a thread that waits in a collective keeps its stack, and switches to another thread of its block.
#include "cuda_runtime.h"

#include <cxxabi.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include "../../llmc/formats.h"

#ifdef _OPENMP
#include <omp.h>
#endif

#if defined(__SANITIZE_ADDRESS__)
#define EMU_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define EMU_ASAN 1
#endif
#endif
#ifdef EMU_ASAN
#include <sanitizer/common_interface_defs.h>
#define DEFAULT_STACK_KB 512
#else
#define DEFAULT_STACK_KB 96
#endif

// Initial values other than zero keep these out of .tbss, which holds the kernels' static shared memory (below).
__thread uint3 threadIdx = {1, 0, 0}, blockIdx = {1, 0, 0};
__thread dim3 blockDim = dim3(1, 1, 1), gridDim = dim3(1, 1, 1);

namespace emu {

// ----------------------------------------------------------------------------------------------------------------
// Switching stacks: callee-saved registers go on the old stack, its pointer to *save, and all is taken back from the new
// one. About two nanoseconds; the C library's swapcontext costs a system call.

extern "C" void emu_switch(void **save, void *to);
static void fiber_main();

#if defined(__x86_64__)
asm(".text\n.p2align 4\n.type emu_switch,@function\nemu_switch:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp,(%rdi)\nmovq %rsi,%rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n.size emu_switch,.-emu_switch\n");
static void *prepare_stack(char *top, char *) {
    void **sp = (void **)top;  // 16-byte aligned; entered as if called: return address (none) on top
    *--sp = nullptr;
    *--sp = (void *)fiber_main;
    return sp - 6;
}
#elif defined(__aarch64__)
asm(".text\n.p2align 4\n.type emu_switch,%function\nemu_switch:\n"
    "sub sp,sp,#160\n"
    "stp x19,x20,[sp,#0]\nstp x21,x22,[sp,#16]\nstp x23,x24,[sp,#32]\nstp x25,x26,[sp,#48]\nstp x27,x28,[sp,#64]\n"
    "stp x29,x30,[sp,#80]\nstp d8,d9,[sp,#96]\nstp d10,d11,[sp,#112]\nstp d12,d13,[sp,#128]\nstp d14,d15,[sp,#144]\n"
    "mov x9,sp\nstr x9,[x0]\nmov sp,x1\n"
    "ldp x19,x20,[sp,#0]\nldp x21,x22,[sp,#16]\nldp x23,x24,[sp,#32]\nldp x25,x26,[sp,#48]\nldp x27,x28,[sp,#64]\n"
    "ldp x29,x30,[sp,#80]\nldp d8,d9,[sp,#96]\nldp d10,d11,[sp,#112]\nldp d12,d13,[sp,#128]\nldp d14,d15,[sp,#144]\n"
    "add sp,sp,#160\nret\n.size emu_switch,.-emu_switch\n");
static void *prepare_stack(char *top, char *) {
    void **sp = (void **)(top - 160);
    sp[10] = nullptr;             // x29: the end of the chain of frames
    sp[11] = (void *)fiber_main;  // x30: where `ret` goes
    return sp;
}
#else
#include <ucontext.h>
extern "C" void emu_switch(void **save, void *to) {
    ucontext_t self;
    *save = &self;
    swapcontext(&self, (ucontext_t *)to);
}
static void *prepare_stack(char *top, char *bottom) {
    ucontext_t *context = new ucontext_t;
    getcontext(context);
    context->uc_stack.ss_sp = bottom;
    context->uc_stack.ss_size = (size_t)(top - bottom);
    makecontext(context, (void (*)())fiber_main, 0);
    return context;
}
#endif

struct Fiber {
    void *sp;
    char *stack;  // lowest address
    size_t bytes;
    void *fake_stack;  // AddressSanitizer's
};

static void switch_fiber(Fiber *from, Fiber *to) {
#ifdef EMU_ASAN
    __sanitizer_start_switch_fiber(&from->fake_stack, to->stack, to->bytes);
#endif
    emu_switch(&from->sp, to->sp);
#ifdef EMU_ASAN
    __sanitizer_finish_switch_fiber(from->fake_stack, nullptr, nullptr);
#endif
}

// ----------------------------------------------------------------------------------------------------------------
// A block and its threads

static const int MAX_THREADS = 1024, MAX_WARPS = 32;

enum Waiting { RUNS, AT_BARRIER, IN_WARP, RETURNED };

struct PendingCopy {
    char *to;
    const char *from;
    int bytes;
    unsigned group;
};

struct Thread {
    Fiber *fiber;  // NULL until it first runs
    Waiting waiting;
    uint3 index;
    Site site;  // of the collective it waits in
    WarpOperation operation;
    uint32_t mask;
    void *data;
    unsigned copy_group;
    std::vector<PendingCopy> copies;  // cp.async not waited for
};

// All that one OS thread needs to run blocks; kept from launch to launch.
struct Worker {
    const Launch *job;
    unsigned threads, warps, live;
    unsigned current;
    uint32_t ready[MAX_WARPS], in_warp[MAX_WARPS], alive[MAX_WARPS];  // a bit per lane
    uint32_t ready_warps;                                             // a bit per warp with a ready lane
    unsigned barrier_arrived, barrier_first;                          // how many came, and who was first
    uint64_t random;                                                  // 0: natural order
    Fiber main;
    std::vector<Fiber *> idle;
    void *shared;
    size_t shared_bytes;
    char *static_shared;
    size_t static_shared_bytes;
    unsigned index_of[3];  // block shape for which thread[].index holds
    bool running;
    Thread thread[MAX_THREADS];
};

// (Not static: a compiler may drop an unused part of a static variable, and its initial value with it.)
struct Local {
    Worker *worker;
    int not_zero;
};
extern __thread Local local;
__thread Local local = {nullptr, 1};

[[noreturn]] static void report(unsigned thread, const char *text);

static void mark_ready(Worker *w, unsigned warp, uint32_t lanes) {
    w->ready[warp] |= lanes;
    w->ready_warps |= 1u << warp;
}

static void take_ready(Worker *w, unsigned thread) {
    unsigned warp = thread / 32;
    w->ready[warp] &= ~(1u << thread % 32);
    if (!w->ready[warp]) w->ready_warps &= ~(1u << warp);
}

static uint64_t next_random(uint64_t *state) {  // xorshift64*
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 0x2545f4914f6cdd1dull;
}

// A random set bit of a mask that has one.
static int random_bit(uint64_t *state, uint32_t mask) {
    for (int skip = (int)(next_random(state) >> 40) % __builtin_popcount(mask); skip > 0; skip--) mask &= mask - 1;
    return __builtin_ctz(mask);
}

// The next thread to run, or -1. Natural order: the rest of this warp, then the following warps.
static int pick(Worker *w) {
    if (!w->ready_warps) return -1;
    unsigned warp = w->current / 32;
    if (w->random) {
        warp = (unsigned)random_bit(&w->random, w->ready_warps);
    } else if (!w->ready[warp]) {
        uint32_t above = w->ready_warps & ~(0xffffffffu >> (31 - warp));
        warp = (unsigned)__builtin_ctz(above ? above : w->ready_warps);
    }
    unsigned lane = (unsigned)(w->random ? random_bit(&w->random, w->ready[warp]) : __builtin_ctz(w->ready[warp]));
    take_ready(w, warp * 32 + lane);
    return (int)(warp * 32 + lane);
}

static void set_current(Worker *w, int thread) {
    w->current = (unsigned)thread;
    threadIdx = w->thread[thread].index;
}

// Stacks have a guard page below. Their tops are spread over cache sets: equal offsets in all stacks would collide.
static Fiber *take_fiber(Worker *w) {
    if (!w->idle.empty()) {
        Fiber *fiber = w->idle.back();
        w->idle.pop_back();
        return fiber;
    }
    static std::atomic<unsigned> made(0);
    static const size_t bytes = environment_number("EMU_STACK_KB", DEFAULT_STACK_KB) * 1024;
    char *memory =
        (char *)mmap(nullptr, bytes + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) kernel_error("out of memory for the stack of another thread (EMU_STACK_KB)");
    mprotect(memory, 4096, PROT_NONE);
    Fiber *fiber = new Fiber();
    fiber->stack = memory + 4096;
    fiber->bytes = bytes;
    fiber->sp = prepare_stack(fiber->stack + bytes - made++ % 61 * 192, fiber->stack);
    return fiber;
}

static void describe_stuck(Worker *w);

// The running thread waits; returns when something made it ready and its turn came.
static void suspend(Worker *w, Waiting why) {
    Thread *self = &w->thread[w->current];
    self->waiting = why;
    int next = pick(w);
    if (next < 0) describe_stuck(w);
    set_current(w, next);
    Thread *other = &w->thread[next];
    if (other == self) return;
    if (!other->fiber) other->fiber = take_fiber(w);
    switch_fiber(self->fiber, other->fiber);
}

// Runs the operation for `members` and lets them go on.
static void complete_warp(Worker *w, unsigned warp, uint32_t members) {
    void *lanes[32] = {};
    Thread *threads = &w->thread[warp * 32];
    for (uint32_t rest = members; rest; rest &= rest - 1) {
        int lane = __builtin_ctz(rest);
        lanes[lane] = threads[lane].data;
        threads[lane].waiting = RUNS;
    }
    threads[__builtin_ctz(members)].operation(lanes, members);
    w->in_warp[warp] &= ~members;
}

// The lanes that complete the collective in which `lane` waits, or 0 while some are missing.
static uint32_t complete_group(Worker *w, unsigned warp, unsigned lane) {
    const Thread *threads = &w->thread[warp * 32];
    uint32_t members = threads[lane].mask & w->alive[warp];
    if ((w->in_warp[warp] & members) != members) return 0;
    for (uint32_t rest = members; rest; rest &= rest - 1) {
        const Thread &other = threads[__builtin_ctz(rest)];
        if (other.mask != threads[lane].mask || other.operation != threads[lane].operation) return 0;
    }
    return members;
}

void warp_collective(WarpOperation operation, uint32_t mask, void *data, Site site) {
    Worker *w = local.worker;
    if (!w || !w->running) return;  // a device function called from the host
    unsigned warp = w->current / 32, lane = w->current % 32;
    Thread *self = &w->thread[w->current];
    self->operation = operation;
    self->mask = mask;
    self->data = data;
    self->site = site;
    if (!(mask >> lane & 1))
        kernel_error("%s (%s:%d): mask 0x%08x does not name the calling lane %u", site.what, site.file, site.line, mask,
                     lane);
    w->in_warp[warp] |= 1u << lane;
    uint32_t members = complete_group(w, warp, lane);
    if (!members) {
        suspend(w, IN_WARP);
        return;
    }
    complete_warp(w, warp, members);
    members &= ~(1u << lane);
    if (members) mark_ready(w, warp, members);
}

static void release_barrier(Worker *w) {
    w->barrier_arrived = 0;
    for (unsigned warp = 0; warp < w->warps; warp++) {
        for (uint32_t rest = w->alive[warp]; rest; rest &= rest - 1)
            w->thread[warp * 32 + (unsigned)__builtin_ctz(rest)].waiting = RUNS;
        if (w->alive[warp]) mark_ready(w, warp, w->alive[warp]);
    }
}

void block_barrier(Site site) {
    Worker *w = local.worker;
    Thread *self = &w->thread[w->current];
    self->site = site;
    if (w->barrier_arrived == 0) {
        w->barrier_first = w->current;
    } else {
        const Thread *first = &w->thread[w->barrier_first];
        if (first->site.line != site.line || strcmp(first->site.file, site.file))
            kernel_error(
                "comes to %s at %s:%d, while thread (%u,%u,%u) of its block waits in %s at %s:%d\n"
                "why: all threads of a block that have not returned must come to the same barrier",
                site.what, site.file, site.line, first->index.x, first->index.y, first->index.z, first->site.what,
                first->site.file, first->site.line);
    }
    if (++w->barrier_arrived < w->live) {
        suspend(w, AT_BARRIER);
    } else {
        release_barrier(w);
        take_ready(w, w->current);
    }
}

// The running thread returned: others may have waited only for it.
static void thread_returned(Worker *w) {
    unsigned warp = w->current / 32;
    w->thread[w->current].waiting = RETURNED;
    w->thread[w->current].copies.clear();
    w->alive[warp] &= ~(1u << w->current % 32);
    w->live--;
    for (uint32_t rest = w->in_warp[warp]; rest; rest &= w->in_warp[warp] & (rest - 1)) {
        uint32_t members = complete_group(w, warp, (unsigned)__builtin_ctz(rest));
        if (!members) continue;
        complete_warp(w, warp, members);
        mark_ready(w, warp, members);
        if (!w->in_warp[warp]) break;
    }
    if (w->live && w->barrier_arrived == w->live) release_barrier(w);
}

// What every stack runs: one thread after the other, for as long as they need no stack of their own.
static void fiber_main() {
#ifdef EMU_ASAN
    __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
    Worker *w = local.worker;
    for (;;) {
        w->job->run(w->job->call);
        Fiber *self = w->thread[w->current].fiber;
        thread_returned(w);
        w->thread[w->current].fiber = nullptr;
        int next = pick(w);
        if (next < 0 && w->live) describe_stuck(w);
        if (next >= 0) {
            set_current(w, next);
            if (!w->thread[next].fiber) {
                w->thread[next].fiber = self;
                continue;
            }
        }
        w->idle.push_back(self);
        switch_fiber(self, next < 0 ? &w->main : w->thread[next].fiber);
    }
}

// ----------------------------------------------------------------------------------------------------------------
// Errors of kernels: kernel, block, thread, what; then the program ends

// Name of the function at an address: the executable's own symbol table, as kernels are often static.
static std::string symbol_name(const void *address) {
    std::string name = "?";
    uintptr_t base = 0;
    dl_iterate_phdr(
        [](dl_phdr_info *info, size_t, void *out) {
            *(uintptr_t *)out = info->dlpi_addr;
            return 1;
        },
        &base);
    int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    off_t bytes = lseek(file, 0, SEEK_END);
    char *image = (char *)mmap(nullptr, (size_t)bytes, PROT_READ, MAP_PRIVATE, file, 0);
    if (image == MAP_FAILED) return name;
    const ElfW(Ehdr) *header = (const ElfW(Ehdr) *)image;
    const ElfW(Shdr) *sections = (const ElfW(Shdr) *)(image + header->e_shoff);
    for (int s = 0; s < header->e_shnum; s++) {
        if (sections[s].sh_type != SHT_SYMTAB) continue;
        const ElfW(Sym) *symbols = (const ElfW(Sym) *)(image + sections[s].sh_offset);
        const char *strings = image + sections[sections[s].sh_link].sh_offset;
        for (size_t i = 0; i < sections[s].sh_size / sizeof *symbols; i++) {
            uintptr_t start = base + symbols[i].st_value;
            if ((symbols[i].st_info & 15) != STT_FUNC || (uintptr_t)address < start ||
                (uintptr_t)address >= start + symbols[i].st_size)
                continue;
            char *plain = abi::__cxa_demangle(strings + symbols[i].st_name, nullptr, nullptr, nullptr);
            name = plain ? plain : strings + symbols[i].st_name;
            free(plain);
            return name;
        }
    }
    return name;
}

static void print_position(Worker *w, unsigned thread) {
    uint3 t = w->thread[thread].index;
    fprintf(stderr, "kernel '%s', block (%u,%u,%u), thread (%u,%u,%u): ", symbol_name(w->job->kernel).c_str(),
            blockIdx.x, blockIdx.y, blockIdx.z, t.x, t.y, t.z);
}

[[noreturn]] static void report(unsigned thread, const char *text) {
    static std::mutex once;  // never released: one report, then the end
    once.lock();
    fflush(stdout);
    fputs("error: ", stderr);
    print_position(local.worker, thread);
    for (const char *c = text; *c; c++) {
        fputc(*c, stderr);
        if (*c == '\n') fputs("  ", stderr);
    }
    fputc('\n', stderr);
    _exit(1);
}

void kernel_error(const char *fmt, ...) {
    char text[2048];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (!local.worker || !local.worker->running) {
        fprintf(stderr, "error: %s\n", text);
        _exit(1);
    }
    report(local.worker->current, text);
}

// No thread can run and some have not returned: says what the first of each kind waits for.
static void describe_stuck(Worker *w) {
    std::string text = "the block is stuck: no thread can go on";
    std::vector<const Thread *> shown;  // one of each kind
    for (unsigned i = 0; i < w->threads; i++) {
        const Thread &t = w->thread[i];
        bool known = t.waiting == RETURNED || shown.size() == 8;
        for (const Thread *other : shown)
            known |= other->site.line == t.site.line && other->waiting == t.waiting && other->mask == t.mask;
        if (known) continue;
        char line[256], mask[32] = "";
        if (t.waiting == IN_WARP) snprintf(mask, sizeof mask, ", mask 0x%08x", t.mask);
        snprintf(line, sizeof line, "\n%s thread (%u,%u,%u) waits in %s (%s:%d)%s", shown.empty() ? "why:" : "     ",
                 t.index.x, t.index.y, t.index.z, t.site.what, t.site.file, t.site.line, mask);
        text += line;
        shown.push_back(&t);
    }
    report((unsigned)(shown[0] - w->thread), text.c_str());
}

// A crash in a kernel: says where, then goes the usual way.
static void crash_handler(int signal_number) {
    signal(signal_number, SIG_DFL);
    if (local.worker && local.worker->running) {
        fputs("error: ", stderr);
        print_position(local.worker, local.worker->current);
        fputs(signal_number == SIGFPE
                  ? "arithmetic fault\n"
                  : "access to memory that is not there, or a stack that is too small (EMU_STACK_KB)\n",
              stderr);
    }
    raise(signal_number);
}

#ifdef EMU_ASAN
extern "C" void __asan_on_error() {
    if (local.worker && local.worker->running) {
        print_position(local.worker, local.worker->current);
        fputs("AddressSanitizer found:\n", stderr);
    }
}
#endif

// ----------------------------------------------------------------------------------------------------------------
// Launches

static size_t schedule_seed() {
    static const size_t seed = environment_number("EMU_SCHEDULE", 0);
    return seed;
}

// `__shared__ T x[n]` is thread-local and has no initial value, so it lies in the executable's .tbss, alone there: the
// emulator's own variables have initial values, and nothing else in this program is thread-local.
static void find_static_shared(Worker *w) {
    (void)w;
#if !(defined(EMU_ASAN) && defined(__clang__))  // clang links its sanitizer's own thread-locals into the executable
    const uintptr_t own = (uintptr_t)&local;
    dl_iterate_phdr(
        [](dl_phdr_info *info, size_t, void *out) {
            Worker *worker = (Worker *)out;
            for (int i = 0; i < info->dlpi_phnum; i++) {
                const ElfW(Phdr) &part = info->dlpi_phdr[i];
                if (part.p_type != PT_TLS || !info->dlpi_tls_data) continue;
                worker->static_shared = (char *)info->dlpi_tls_data + part.p_filesz;
                worker->static_shared_bytes = part.p_memsz - part.p_filesz;
            }
            return 1;  // the executable comes first; no other
        },
        w);
    if (own >= (uintptr_t)w->static_shared && own < (uintptr_t)w->static_shared + w->static_shared_bytes)
        kernel_error("the emulator's own variables lie among the kernels' shared memory (a fault of this build)");
#endif
}

static Worker *this_worker() {
    if (local.worker) return local.worker;
    Worker *w = local.worker = new Worker();
    find_static_shared(w);
    pthread_attr_t attributes;
    void *stack;
    pthread_getattr_np(pthread_self(), &attributes);
    pthread_attr_getstack(&attributes, &stack, &w->main.bytes);
    pthread_attr_destroy(&attributes);
    w->main.stack = (char *)stack;
#ifndef EMU_ASAN
    stack_t alternate = {};  // an overflown stack leaves none to run a handler on
    alternate.ss_size = 1 << 16;
    alternate.ss_sp = malloc(alternate.ss_size);
    sigaltstack(&alternate, nullptr);
    struct sigaction action = {};
    action.sa_handler = crash_handler;
    action.sa_flags = SA_ONSTACK;
    for (int number : {SIGSEGV, SIGBUS, SIGFPE}) sigaction(number, &action, nullptr);
#else
    (void)crash_handler;
#endif
    return w;
}

void *dynamic_shared() { return local.worker->shared; }
unsigned lane_index() { return local.worker && local.worker->running ? local.worker->current % 32 : 0; }

static uint3 position(size_t i, const unsigned size[3]) {
    return {(unsigned)(i % size[0]), (unsigned)(i / size[0] % size[1]), (unsigned)(i / size[0] / size[1])};
}

// Exactly as many bytes as asked for, so that AddressSanitizer guards both ends.
static void begin_launch(Worker *w, const Launch &job) {
    w->job = &job;
    w->threads = job.block[0] * job.block[1] * job.block[2];
    w->warps = (w->threads + 31) / 32;
    if (memcmp(w->index_of, job.block, sizeof job.block)) {
        memcpy(w->index_of, job.block, sizeof job.block);
        for (unsigned i = 0; i < w->threads; i++) w->thread[i].index = position(i, job.block);
    }
    if (!w->shared || w->shared_bytes != job.shared_bytes) {
        free(w->shared);
        w->shared_bytes = job.shared_bytes;
        if (posix_memalign(&w->shared, 1024, job.shared_bytes)) kernel_error("out of memory for shared memory");
    }
    blockDim = dim3(job.block[0], job.block[1], job.block[2]);
    gridDim = dim3(job.grid[0], job.grid[1], job.grid[2]);
}

static void run_block(Worker *w, size_t block) {
    const Launch &job = *w->job;
    blockIdx = position(block, job.grid);
    memset(w->shared, 0xff, w->shared_bytes);
    if (w->static_shared) memset(w->static_shared, 0xff, w->static_shared_bytes);
    w->live = w->threads;
    w->barrier_arrived = 0;
    w->ready_warps = 0;
    for (unsigned warp = 0; warp < w->warps; warp++) {
        unsigned lanes = w->threads - warp * 32;
        w->alive[warp] = lanes >= 32 ? 0xffffffffu : (1u << lanes) - 1;
        w->in_warp[warp] = w->ready[warp] = 0;
        mark_ready(w, warp, w->alive[warp]);
    }
    for (unsigned i = 0; i < w->threads; i++) {
        w->thread[i].waiting = RUNS;
        w->thread[i].copy_group = 0;
    }
    w->random = schedule_seed() ? (schedule_seed() + 1) * 0x9e3779b97f4a7c15ull + block * 0xbf58476d1ce4e5b9ull : 0;
    if (schedule_seed() && !w->random) w->random = 1;
    w->current = 0;
    set_current(w, pick(w));
    Fiber *fiber = w->thread[w->current].fiber = take_fiber(w);
    w->running = true;
    switch_fiber(&w->main, fiber);
    w->running = false;
}

// The blocks in a random order of the seed's, or nothing for the natural one.
static std::vector<size_t> block_order(size_t blocks) {
    std::vector<size_t> order;
    if (!schedule_seed()) return order;
    uint64_t state = schedule_seed() * 0x9e3779b97f4a7c15ull + 1;
    for (size_t i = 0; i < blocks; i++) {
        order.push_back(i);
        std::swap(order[i], order[next_random(&state) % (i + 1)]);
    }
    return order;
}

void launch_kernel(const Launch &job) {
    size_t blocks = (size_t)job.grid[0] * job.grid[1] * job.grid[2];
    std::atomic<size_t> next(0);
    const std::vector<size_t> order = block_order(blocks);
#ifdef _OPENMP
    int os_threads = omp_get_max_threads() < 16 ? omp_get_max_threads() : 16;  // each has up to 1,024 guarded stacks
    if ((size_t)os_threads > blocks) os_threads = (int)blocks;
#pragma omp parallel num_threads(os_threads) if (os_threads > 1)
#endif
    {
        Worker *w = this_worker();
        begin_launch(w, job);
        for (size_t i = next++; i < blocks; i = next++) run_block(w, order.empty() ? i : order[i]);
        w->job = nullptr;
    }
}

// ----------------------------------------------------------------------------------------------------------------
// Warp operations

void no_operation(void *const[32], uint32_t) {}

// A lane that is not there, or not in the mask, has no defined value: the result is poison.
void shuffle_operation(void *const lanes[32], uint32_t members) {
    for (uint32_t rest = members; rest; rest &= rest - 1) {
        ShuffleData *data = (ShuffleData *)lanes[__builtin_ctz(rest)];
        const ShuffleData *source = (const ShuffleData *)lanes[data->source & 31];
        data->result = source ? source->value : ~0ull;
    }
}
// ----------------------------------------------------------------------------------------------------------------
// Tensor cores

struct MmaData {
    float *d;
    const uint32_t *a, *b;
    const float *c;
};

// Whole matrices, gathered from the lanes. A row of d and of b is one vector of 8.
typedef float Row8 __attribute__((vector_size(32)));

// d = a b + d, sums in ascending k. a: 16 x K, b: K x 8.
template <int K>
static void mma_matrices(Row8 d[16], const float a[16][K], const Row8 b[K]) {
    for (int m = 0; m < 16; m++) {
        Row8 sum = d[m];
        for (int k = 0; k < K; k++) sum += a[m][k] * b[k];
        d[m] = sum;
    }
}
static void gather_c(Row8 d[16], void *const lanes[32]) {
    for (int l = 0; l < 32; l++)
        for (int i = 0; i < 4; i++) d[l / 4 + i / 2 * 8][l % 4 * 2 + i % 2] = ((MmaData *)lanes[l])->c[i];
}
static void scatter_d(void *const lanes[32], const Row8 d[16]) {
    for (int l = 0; l < 32; l++)
        for (int i = 0; i < 4; i++) ((MmaData *)lanes[l])->d[i] = d[l / 4 + i / 2 * 8][l % 4 * 2 + i % 2];
}
static void require_full_warp(uint32_t members, const char *what) {
    if (members != 0xffffffffu) kernel_error("%s: lanes 0x%08x of the warp have returned", what, ~members);
}

template <bool BF16>
static void mma_16_operation(void *const lanes[32], uint32_t members) {
    require_full_warp(members, "mma.m16n8k16");
    float a[16][16];
    Row8 b[16], d[16];
    for (int l = 0; l < 32; l++) {
        const MmaData *data = (const MmaData *)lanes[l];
        for (int i = 0; i < 8; i++) {  // a0..a7: rows alternate every two, columns advance by 8 after four
            uint16_t code = (uint16_t)(data->a[i / 2] >> (i % 2 * 16));
            a[l / 4 + i / 2 % 2 * 8][l % 4 * 2 + i % 2 + i / 4 * 8] = BF16 ? decode_bf16(code) : decode_fp16(code);
        }
        for (int i = 0; i < 4; i++) {
            uint16_t code = (uint16_t)(data->b[i / 2] >> (i % 2 * 16));
            b[l % 4 * 2 + i % 2 + i / 2 * 8][l / 4] = BF16 ? decode_bf16(code) : decode_fp16(code);
        }
    }
    gather_c(d, lanes);
    mma_matrices<16>(d, a, b);
    scatter_d(lanes, d);
}

static void mma_tf32_operation(void *const lanes[32], uint32_t members) {
    require_full_warp(members, "mma.m16n8k8");
    float a[16][8];
    Row8 b[8], d[16];
    for (int l = 0; l < 32; l++) {
        const MmaData *data = (const MmaData *)lanes[l];
        for (int i = 0; i < 4; i++) a[l / 4 + i % 2 * 8][l % 4 + i / 2 * 4] = round_tf32_rz(float_of_bits(data->a[i]));
        for (int i = 0; i < 2; i++) b[l % 4 + i * 4][l / 4] = round_tf32_rz(float_of_bits(data->b[i]));
    }
    gather_c(d, lanes);
    mma_matrices<8>(d, a, b);
    scatter_d(lanes, d);
}

static void mma(WarpOperation operation, float *d, const uint32_t *a, const uint32_t *b, const float *c, Site site) {
    MmaData data = {d, a, b, c};
    warp_collective(operation, 0xffffffffu, &data, site);
}
void mma_m16n8k16_bf16(float d[4], const uint32_t a[4], const uint32_t b[2], const float c[4], const char *file,
                       int line) {
    mma(mma_16_operation<true>, d, a, b, c, EMU_SITE("mma.m16n8k16.bf16"));
}
void mma_m16n8k16_fp16(float d[4], const uint32_t a[4], const uint32_t b[2], const float c[4], const char *file,
                       int line) {
    mma(mma_16_operation<false>, d, a, b, c, EMU_SITE("mma.m16n8k16.f16"));
}
void mma_m16n8k8_tf32(float d[4], const uint32_t a[4], const uint32_t b[2], const float c[4], const char *file,
                      int line) {
    mma(mma_tf32_operation, d, a, b, c, EMU_SITE("mma.m16n8k8.tf32"));
}

struct MatrixData {
    uint32_t *r;
    const uint16_t *row;
};
template <bool TRANSPOSED>
static void ldmatrix_operation(void *const lanes[32], uint32_t members) {
    require_full_warp(members, "ldmatrix");
    for (int matrix = 0; matrix < 4; matrix++)
        for (int l = 0; l < 32; l++)
            for (int i = 0; i < 2; i++) {
                int row = TRANSPOSED ? l % 4 * 2 + i : l / 4, col = TRANSPOSED ? l / 4 : l % 4 * 2 + i;
                uint32_t value = ((MatrixData *)lanes[matrix * 8 + row])->row[col];
                uint32_t *r = ((MatrixData *)lanes[l])->r + matrix;
                *r = i ? *r | value << 16 : value;
            }
}
static void ldmatrix(WarpOperation operation, uint32_t *r, const void *row, Site site) {
    if ((uintptr_t)row % 16)
        kernel_error("%s (%s:%d): the row's address %p is not a multiple of 16", site.what, site.file, site.line, row);
    MatrixData data = {r, (const uint16_t *)row};
    warp_collective(operation, 0xffffffffu, &data, site);
}
void ldmatrix_x4(uint32_t r[4], const void *row, const char *file, int line) {
    ldmatrix(ldmatrix_operation<false>, r, row, EMU_SITE("ldmatrix.x4"));
}
void ldmatrix_x4_trans(uint32_t r[4], const void *row, const char *file, int line) {
    ldmatrix(ldmatrix_operation<true>, r, row, EMU_SITE("ldmatrix.x4.trans"));
}

void cp_async_16(void *shared, const void *global, int bytes) {
    if ((uintptr_t)shared % 16 || (bytes && (uintptr_t)global % 16))
        kernel_error("cp.async of 16 bytes from %p to %p: not aligned to that size", global, shared);
    Thread *self = &local.worker->thread[local.worker->current];
    memset(shared, 0xff, 16);
    self->copies.push_back({(char *)shared, (const char *)global, bytes, self->copy_group});
}
void cp_async_commit() { local.worker->thread[local.worker->current].copy_group++; }
void cp_async_wait(int pending_groups) {
    Thread *self = &local.worker->thread[local.worker->current];
    size_t done = 0;
    for (; done < self->copies.size() && self->copies[done].group + (unsigned)pending_groups < self->copy_group;
         done++) {
        const PendingCopy &copy = self->copies[done];
        memcpy(copy.to, copy.from, (size_t)copy.bytes);
        memset(copy.to + copy.bytes, 0, (size_t)(16 - copy.bytes));
    }
    self->copies.erase(self->copies.begin(), self->copies.begin() + (long)done);
}

}  // namespace emu
