// communicator.cuh: sums and gathers over ranks on the device, by NCCL. One communicator, one stream, one order of calls
// on all ranks; communicator.h is how ranks meet and end.
//
//     size_t rank_device = ...ranks_join(&launch, timeout, fingerprint);   // before anything else uses the GPU
//     nccl_reduce_scatter(...), nccl_all_gather(...)                       // on ranks_nccl()->stream
#ifndef LLMC_COMMUNICATOR_CUH
#define LLMC_COMMUNICATOR_CUH

#include "communicator.h"
#include "cuda_utils.cuh"

// The one place that knows whether NCCL is there: without it, several ranks are refused.
#if defined(EMU) || defined(HAVE_NCCL)
#include <nccl.h>
#define NCCL_IS_HERE 1
#else
#define NCCL_IS_HERE 0
typedef struct ncclComm *ncclComm_t;
typedef struct {
    char internal[128];
} ncclUniqueId;
typedef enum { ncclSuccess, ncclInternalError = 3, ncclRemoteError = 6 } ncclResult_t;
typedef enum { ncclSum, ncclMax = 2 } ncclRedOp_t;
typedef enum { ncclUint8 = 1, ncclFloat32 = 7, ncclBfloat16 = 9 } ncclDataType_t;
static inline const char *ncclGetErrorString(ncclResult_t) { return "built without NCCL"; }
static inline ncclResult_t ncclGetUniqueId(ncclUniqueId *) { return ncclInternalError; }
static inline ncclResult_t ncclCommInitRank(ncclComm_t *, int, ncclUniqueId, int) { return ncclInternalError; }
static inline ncclResult_t ncclCommDestroy(ncclComm_t) { return ncclSuccess; }
static inline ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t *) { return ncclInternalError; }
static inline ncclResult_t ncclAllReduce(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t,
                                         cudaStream_t) {
    return ncclInternalError;
}
static inline ncclResult_t ncclReduceScatter(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t,
                                             cudaStream_t) {
    return ncclInternalError;
}
static inline ncclResult_t ncclAllGather(const void *, void *, size_t, ncclDataType_t, ncclComm_t, cudaStream_t) {
    return ncclInternalError;
}
#endif

#define GATHER_BYTES ((size_t)1024)  // the most a rank gives to ranks_gather() at once

typedef struct {
    ncclComm_t nccl;
    size_t rank, ranks;
    cudaStream_t stream;
    char *device, *host;  // of ranks_gather(): GATHER_BYTES a rank, and as much for this rank's own
} Ranks;

// This process's; ranks 1 until ranks_join().
static inline Ranks *all_ranks(void) {
    static Ranks ranks = {NULL, 0, 1, NULL, NULL, NULL};
    return &ranks;
}

// Where a peer has gone, NCCL may notice first: its end, and whose fault it was, is rank 0's to say, who knows more.
static inline void nccl_check(ncclResult_t result, const char *statement, const char *file, int line) {
    if (result == ncclSuccess) return;
    if (result == ncclRemoteError) sleep(5);
    error_exit(1, file, line, "NCCL refused: %s\nwhy: %s", statement, ncclGetErrorString(result));
}
#define NCCL_CHECK(statement) nccl_check((statement), #statement, __FILE__, __LINE__)

// What NCCL's own threads met with since the last call, or NULL: the watchdog asks.
static inline const char *ranks_trouble(void) {
    ncclResult_t found = ncclSuccess, asked = ncclCommGetAsyncError(all_ranks()->nccl, &found);
    return asked != ncclSuccess ? ncclGetErrorString(asked) : found != ncclSuccess ? ncclGetErrorString(found) : NULL;
}

// Meets the other ranks and takes this rank's device.
static inline void ranks_join(const Launch *launch, double timeout, uint64_t fingerprint) {
    Ranks *r = all_ranks();
    ncclUniqueId id;
    int devices = 0, low, high;
    if (!NCCL_IS_HERE)
        die_usage("%s started %zu ranks, but this program was built without NCCL\n"
                  "try: libnccl-dev (Debian, Ubuntu) and a new build; or one rank",
                  launch->launcher, launch->ranks);
    memset(&id, 0, sizeof id);
    if (launch->rank == 0) NCCL_CHECK(ncclGetUniqueId(&id));
    if (cudaGetDeviceCount(&devices) != cudaSuccess) devices = 0;
    size_t device = communicator_start(launch, timeout, (size_t)devices, fingerprint, &id, sizeof id);
    CUDA_CHECK(cudaSetDevice((int)device));
    r->rank = launch->rank;
    r->ranks = launch->ranks;
    communicator_mark(0, "NCCL's start");
    NCCL_CHECK(ncclCommInitRank(&r->nccl, (int)r->ranks, id, (int)r->rank));
    communicator_watch(ranks_trouble);
    CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&low, &high));
    CUDA_CHECK(cudaStreamCreateWithPriority(&r->stream, cudaStreamNonBlocking, high));
    CUDA_CHECK(cudaMalloc((void **)&r->device, (r->ranks + 1) * GATHER_BYTES));
    CUDA_CHECK(cudaMallocHost((void **)&r->host, (r->ranks + 1) * GATHER_BYTES));
}

static inline void ranks_leave(void) {
    Ranks *r = all_ranks();
    if (r->ranks == 1) return;
    CUDA_CHECK(cudaStreamSynchronize(r->stream));  // the last step's weights may be on their way
    communicator_watch(NULL);
    communicator_stop();
    CUDA_CHECK(cudaFree(r->device));
    CUDA_CHECK(cudaFreeHost(r->host));
    CUDA_CHECK(cudaStreamDestroy(r->stream));
    NCCL_CHECK(ncclCommDestroy(r->nccl));
}

// all[k] = rank k's `bytes` bytes, in host memory: the same on every rank. Waits for them.
static inline void ranks_gather(void *all, const void *mine, size_t bytes) {
    Ranks *r = all_ranks();
    if (r->ranks == 1) {
        memcpy(all, mine, bytes);
        return;
    }
    if (bytes > GATHER_BYTES) die("%zu bytes to gather, at most %zu (a fault of this program)", bytes, GATHER_BYTES);
    char *own = r->device + r->ranks * GATHER_BYTES, *host_own = r->host + r->ranks * GATHER_BYTES;
    memcpy(host_own, mine, bytes);
    CUDA_CHECK(cudaMemcpyAsync(own, host_own, bytes, cudaMemcpyHostToDevice, r->stream));
    NCCL_CHECK(ncclAllGather(own, r->device, bytes, ncclUint8, r->nccl, r->stream));
    CUDA_CHECK(cudaMemcpyAsync(r->host, r->device, bytes * r->ranks, cudaMemcpyDeviceToHost, r->stream));
    CUDA_CHECK(cudaStreamSynchronize(r->stream));
    memcpy(all, r->host, bytes * r->ranks);
}

// data (elems) on the device = its largest values over all ranks, in `stream`'s order.
static inline void ranks_max(float *data, size_t elems, cudaStream_t stream) {
    Ranks *r = all_ranks();
    NCCL_CHECK(ncclAllReduce(data, data, elems, ncclFloat32, ncclMax, r->nccl, stream));
}

#endif
