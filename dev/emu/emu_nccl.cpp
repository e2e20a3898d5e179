// emu_nccl.cpp: NCCL among processes of one machine. They map one file; each has a record in it and a slot for data.
//
// A collective goes in pieces: every rank copies its part into its slot, waits for the others, and takes what it needs
// from their slots. Checked: that all ranks make the same call (else the program ends with both), that buffers are
// device memory, that peers live (else ncclRemoteError, as when EMU_NCCL_TIMEOUT seconds pass).
#include "nccl.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

#include "cuda_bf16.h"

#define SLOT_BYTES ((size_t)1 << 20)

enum Operation { NOTHING, ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER };
static const char *const operation_names[] = {"no call", "AllReduce", "ReduceScatter", "AllGather"};
static const char *type_name(int type) { return type == ncclUint8 ? "uint8" : type == ncclFloat32 ? "fp32" : "bf16"; }
static size_t type_bytes(int type) { return type == ncclUint8 ? 1 : type == ncclFloat32 ? 4 : 2; }

struct Call {
    int operation, type, op;
    size_t count;
};

struct Record {
    alignas(64) std::atomic<uint64_t> phase;  // barriers this rank has come to
    std::atomic<int> pid;
    Call call;
};

struct ncclComm {
    int rank, ranks;
    Record *records;
    char *slots;
    size_t bytes;
    uint64_t phase, calls;
    ncclResult_t error;
};

static char *slot(const ncclComm *comm, int rank) { return comm->slots + (size_t)rank * SLOT_BYTES; }

// ----------------------------------------------------------------------------------------------------------------
// Waiting

static double seconds_now() {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// A process that has ended but was not waited for still has its number: the system's state letter tells.
static bool alive(int pid) {
    char path[64], text[512] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    ssize_t bytes = read(fd, text, sizeof text - 1);
    close(fd);
    const char *state = bytes > 0 ? strrchr(text, ')') : nullptr;
    return state && state[1] && state[2] != 'Z' && state[2] != 'X';
}

// Until all ranks have come here.
static ncclResult_t barrier(ncclComm *comm) {
    uint64_t wanted = ++comm->phase;
    const char *seconds = getenv("EMU_NCCL_TIMEOUT");
    const double timeout = seconds && *seconds ? atof(seconds) : 600;
    double start = seconds_now(), next_look = start + 0.05;
    comm->records[comm->rank].phase.store(wanted, std::memory_order_release);
    for (int rank = 0, turns = 0; rank < comm->ranks;) {
        Record *peer = &comm->records[rank];
        if (peer->phase.load(std::memory_order_acquire) >= wanted) {
            rank++;
            continue;
        }
        if (turns++ < 100) sched_yield();
        else usleep(100);
        if (seconds_now() < next_look) continue;
        next_look = seconds_now() + 0.05;
        int pid = peer->pid.load();
        if ((pid && !alive(pid) && peer->phase.load() < wanted) || seconds_now() - start > timeout)
            return comm->error = ncclRemoteError;
    }
    return ncclSuccess;
}

// ----------------------------------------------------------------------------------------------------------------
// Start and end

const char *ncclGetErrorString(ncclResult_t result) {
    switch (result) {
        case ncclSuccess: return "no error";
        case ncclSystemError: return "unhandled system error";
        case ncclInvalidArgument: return "invalid argument";
        default: return "remote process exited or there was a network error";
    }
}

// The name of the file that the ranks will share.
ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    static int counter;
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "%s/emu-nccl-%d-%llx-%d",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp", getpid(),
             (unsigned long long)t.tv_sec * 1000000000ull + (unsigned long long)t.tv_nsec, counter++);
    return ncclSuccess;
}

// A new file is zeros, so whoever comes first finds it as it must be. It loses its name when all have it.
ncclResult_t ncclCommInitRank(ncclComm_t *result, int ranks, ncclUniqueId id, int rank) {
    size_t records_bytes = ((size_t)ranks * sizeof(Record) + 4095) / 4096 * 4096;
    size_t bytes = records_bytes + (size_t)ranks * SLOT_BYTES;
    if (!result || ranks < 1 || rank < 0 || rank >= ranks || strncmp(id.internal, "/", 1) != 0)
        return ncclInvalidArgument;
    int fd = open(id.internal, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) return ncclSystemError;
    void *base =
        ftruncate(fd, (off_t)bytes) == 0 ? mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    close(fd);
    if (base == MAP_FAILED) return ncclSystemError;
    ncclComm *comm = new ncclComm();
    comm->rank = rank;
    comm->ranks = ranks;
    comm->records = (Record *)base;
    comm->slots = (char *)base + records_bytes;
    comm->bytes = bytes;
    comm->records[rank].pid.store(getpid());
    *result = comm;
    ncclResult_t status = barrier(comm);
    if (rank == 0) unlink(id.internal);
    return status;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    if (!comm) return ncclInvalidArgument;
    munmap((void *)comm->records, comm->bytes);
    delete comm;
    return ncclSuccess;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error) {
    if (!comm || !error) return ncclInvalidArgument;
    const char *broken = getenv("EMU_NCCL_BROKEN");
    *error = broken && atoi(broken) == comm->rank ? ncclSystemError : comm->error;
    return ncclSuccess;
}

// ----------------------------------------------------------------------------------------------------------------
// Sums

// out = the ranks' values `offset` bytes into their slots, combined in the order of ranks.
template <typename T>
static void reduce_typed(const ncclComm *comm, char *out, size_t offset, size_t count, int op) {
    for (size_t i = 0; i < count; i++) {
        T sum = ((const T *)(slot(comm, 0) + offset))[i];
        for (int rank = 1; rank < comm->ranks; rank++) {
            const T value = ((const T *)(slot(comm, rank) + offset))[i];
            sum = op == ncclSum ? (T)(sum + value) : value > sum ? value : sum;
        }
        ((T *)out)[i] = sum;
    }
}
static void reduce(const ncclComm *comm, char *out, size_t offset, size_t count, int type, int op) {
    if (type == ncclUint8) reduce_typed<uint8_t>(comm, out, offset, count, op);
    else if (type == ncclFloat32) reduce_typed<float>(comm, out, offset, count, op);
    else reduce_typed<__nv_bfloat16>(comm, out, offset, count, op);
}

// ----------------------------------------------------------------------------------------------------------------
// Collectives

static void print_call(const ncclComm *comm, int rank) {
    const Call *call = &comm->records[rank].call;
    fprintf(stderr, "  rank %d: call %llu, %s of %zu %s, operation %d\n", rank, (unsigned long long)comm->calls,
            operation_names[call->operation], call->count, type_name(call->type), call->op);
}

// Announces this rank's call and compares it with the others'. A GPU would hang or mix up data.
static ncclResult_t same_call(ncclComm *comm, const Call *call) {
    comm->calls++;
    comm->records[comm->rank].call = *call;
    ncclResult_t status = barrier(comm);
    for (int rank = 0; status == ncclSuccess && rank < comm->ranks; rank++) {
        const Call *other = &comm->records[rank].call;
        if (other->operation == call->operation && other->type == call->type && other->op == call->op &&
            other->count == call->count)
            continue;
        fprintf(stderr, "error: NCCL ranks make different calls\n");
        print_call(comm, comm->rank);
        print_call(comm, rank);
        usleep(200000);  // the others are to see it, too, before this one is dead
        _exit(1);
    }
    return status;
}

// What every collective is: a rank gives `sent` parts of `count` elements and gets `received`.
static ncclResult_t collective(const void *send, void *receive, const Call *call, ncclComm *comm) {
    size_t size, ranks, count = call->count;
    if (!comm) return ncclInvalidArgument;
    if (comm->error) return comm->error;
    size = type_bytes(call->type);
    ranks = (size_t)comm->ranks;
    size_t sent = call->operation == REDUCE_SCATTER ? ranks : 1, received = call->operation == ALL_GATHER ? ranks : 1;
    if (count && (!emu::on_device(send, sent * count * size) || !emu::on_device(receive, received * count * size)))
        return ncclInvalidArgument;
    ncclResult_t status = same_call(comm, call);
    size_t step = SLOT_BYTES / sent / 16 * 16 / size;
    if (count == 0 && status == ncclSuccess) status = barrier(comm);  // all have compared: the records are free again
    for (size_t at = 0; at < count && status == ncclSuccess; at += step) {
        size_t n = count - at < step ? count - at : step;
        for (size_t part = 0; part < sent; part++)
            memcpy(slot(comm, comm->rank) + part * n * size, (const char *)send + (part * count + at) * size, n * size);
        if ((status = barrier(comm)) != ncclSuccess) break;
        char *out = (char *)receive + at * size;
        switch (call->operation) {
            case ALL_REDUCE: reduce(comm, out, 0, n, call->type, call->op); break;
            case REDUCE_SCATTER: reduce(comm, out, (size_t)comm->rank * n * size, n, call->type, call->op); break;
            default:
                for (int rank = 0; rank < comm->ranks; rank++)
                    memcpy(out + (size_t)rank * count * size, slot(comm, rank), n * size);
        }
        status = barrier(comm);  // all have read: the slots are free again
    }
    return status;
}

ncclResult_t ncclAllReduce(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t) {
    Call call = {ALL_REDUCE, type, op, count};
    return collective(send, receive, &call, comm);
}
ncclResult_t ncclReduceScatter(const void *send, void *receive, size_t receive_count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t) {
    Call call = {REDUCE_SCATTER, type, op, receive_count};
    return collective(send, receive, &call, comm);
}
ncclResult_t ncclAllGather(const void *send, void *receive, size_t send_count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t) {
    Call call = {ALL_GATHER, type, ncclSum, send_count};
    return collective(send, receive, &call, comm);
}
