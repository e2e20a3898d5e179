// test_emu_nccl.cu: NCCL among the processes this program forks, against sums in the order of ranks.
#include <nccl.h>
#include <signal.h>
#include <sys/wait.h>

#include <vector>

#include "../../llmc/cuda_utils.cuh"
#include "../test/test.h"

static ncclUniqueId id;
static int rank, ranks;
static ncclComm_t comm;

#define MUST(condition)                                                              \
    do {                                                                             \
        if (!(condition)) {                                                          \
            printf("  rank %d of %d: line %d: %s\n", rank, ranks, __LINE__, #condition); \
            exit(1);                                                                 \
        }                                                                            \
    } while (0)

// Runs `body` in `n` processes that share a communicator; returns how many of them exit with `code`. What they say on
// stderr goes to `errors` where given.
static int run_ranks(int n, void (*body)(), int code, FILE *errors) {
    pid_t children[8];
    int good = 0;
    fflush(stdout);
    ncclGetUniqueId(&id);
    for (int r = 0; r < n; r++) {
        if ((children[r] = fork()) != 0) continue;
        if (errors) dup2(fileno(errors), 2);
        rank = r;
        ranks = n;
        MUST(ncclCommInitRank(&comm, n, id, r) == ncclSuccess);
        body();
        ncclCommDestroy(comm);
        exit(0);
    }
    for (int r = 0; r < n; r++) {
        int status = 0;
        waitpid(children[r], &status, 0);
        good += WIFEXITED(status) && WEXITSTATUS(status) == code;
    }
    return good;
}

// Values whose fp32 and bf16 sums depend on the order.
static float value(int r, size_t i) { return (float)((i * 2654435761u + (size_t)r * 40503u) % 1000) * (r % 2 ? -1e-3f : 1.7f); }

static void *device_bytes(size_t bytes) {
    void *p;
    CUDA_CHECK(cudaMalloc(&p, bytes + 16));
    return p;
}

// All operations with elements of type T, out of place and in place.
template <typename T>
static void check_type(ncclDataType_t type, T (*make)(float), T (*add)(T, T), size_t n) {
    size_t R = (size_t)ranks, r = (size_t)rank;
    T *in = (T *)device_bytes(n * R * sizeof(T)), *out = (T *)device_bytes(n * R * sizeof(T));
    std::vector<T> sum(n * R), own(n * R);
    for (size_t i = 0; i < n * R; i++) {
        in[i] = own[i] = make(value(rank, i));
        sum[i] = make(value(0, i));
        for (int k = 1; k < ranks; k++) sum[i] = add(sum[i], make(value(k, i)));
    }
    MUST(ncclAllReduce(in, out, n * R, type, ncclSum, comm, 0) == ncclSuccess);
    MUST(memcmp(out, sum.data(), n * R * sizeof(T)) == 0);
    MUST(ncclReduceScatter(in, out, n, type, ncclSum, comm, 0) == ncclSuccess);
    MUST(memcmp(out, sum.data() + r * n, n * sizeof(T)) == 0);
    memset(out, 0, n * R * sizeof(T));
    MUST(ncclAllGather(in, out, n, type, comm, 0) == ncclSuccess);
    for (size_t k = 0; k < R; k++)
        for (size_t i = 0; i < n; i++) {
            T expected = make(value((int)k, i));
            MUST(memcmp(&out[k * n + i], &expected, sizeof(T)) == 0);
        }
    // In place: a part of a buffer that is both.
    MUST(ncclReduceScatter(in, in + r * n, n, type, ncclSum, comm, 0) == ncclSuccess);
    MUST(memcmp(in + r * n, sum.data() + r * n, n * sizeof(T)) == 0);
    for (size_t i = 0; i < n * R; i++) MUST(i / n == r || memcmp(&in[i], &own[i], sizeof(T)) == 0);
    MUST(ncclAllGather(in + r * n, in, n, type, comm, 0) == ncclSuccess);
    MUST(memcmp(in, sum.data(), n * R * sizeof(T)) == 0);
    MUST(ncclAllReduce(in, in, n, type, ncclMax, comm, 0) == ncclSuccess);
    MUST(memcmp(in, sum.data(), n * sizeof(T)) == 0);
    cudaFree(in);
    cudaFree(out);
}

static void all_operations() {
    const size_t sizes[] = {1, 7, 300001};  // the last in several pieces
    for (size_t n : sizes) {
        check_type<float>(ncclFloat32, [](float x) { return x; }, [](float a, float b) { return a + b; }, n);
        check_type<uint8_t>(ncclUint8, [](float x) { return (uint8_t)fabsf(x); },
                            [](uint8_t a, uint8_t b) { return (uint8_t)(a + b); }, n);
        check_type<__nv_bfloat16>(ncclBfloat16, [](float x) { return __float2bfloat16_rn(x); },
                                  [](__nv_bfloat16 a, __nv_bfloat16 b) {
                                      return __float2bfloat16_rn(__bfloat162float(a) + __bfloat162float(b));
                                  },
                                  n);
    }
}

TEST(every_operation_and_type_on_1_to_4_ranks) {
    for (int n = 1; n <= 4; n++) CHECK(run_ranks(n, all_operations, 0, NULL) == n, "%d ranks", n);
}

static void many_small_calls() {
    float *x = (float *)device_bytes(sizeof(float));
    for (int i = 0; i < 500; i++) {
        *x = (float)(rank + i);
        MUST(ncclAllReduce(x, x, 1, ncclFloat32, ncclSum, comm, 0) == ncclSuccess);
        MUST(ncclAllReduce(x, x, 0, ncclFloat32, ncclSum, comm, 0) == ncclSuccess);
        MUST(*x == (float)(ranks * (ranks - 1) / 2 + ranks * i));
    }
}

TEST(calls_follow_each_other) { CHECK(run_ranks(3, many_small_calls, 0, NULL) == 3, "3 ranks"); }

static void another_count() {
    float *x = (float *)device_bytes(64);
    ncclAllReduce(x, x, rank == 1 ? 3 : 4, ncclFloat32, ncclSum, comm, 0);
}
static void another_call() {
    float *x = (float *)device_bytes(64);
    if (rank == 2) ncclAllGather(x, x, 4, ncclFloat32, comm, 0);
    else ncclAllReduce(x, x, 4, ncclFloat32, ncclSum, comm, 0);
}

TEST(different_calls_end_the_program) {
    void (*const bodies[])() = {another_count, another_call};
    const char *const words[] = {"rank 1: call 1, AllReduce of 3 fp32", "rank 2: call 1, AllGather of 4 fp32"};
    for (int i = 0; i < 2; i++) {
        char text[4096] = "";
        FILE *errors = tmpfile();
        CHECK(run_ranks(3, bodies[i], 1, errors) == 3, "all are to end with 1");
        rewind(errors);
        text[fread(text, 1, sizeof text - 1, errors)] = 0;
        CHECK(strstr(text, words[i]), "'%s' is not in: %s", words[i], text);
        fclose(errors);
    }
}

// Rank 1 leaves in the way `leave` says; the others must learn of it in time.
static void (*leave)();
static void one_leaves() {
    float *x = (float *)device_bytes(64);
    MUST(ncclAllReduce(x, x, 4, ncclFloat32, ncclSum, comm, 0) == ncclSuccess);
    if (rank == 1) leave();
    double start = now_seconds();
    MUST(ncclAllReduce(x, x, 4, ncclFloat32, ncclSum, comm, 0) == ncclRemoteError);
    MUST(now_seconds() - start < 5);
    ncclResult_t error = ncclSuccess;
    MUST(ncclCommGetAsyncError(comm, &error) == ncclSuccess && error == ncclRemoteError);
    MUST(ncclAllReduce(x, x, 4, ncclFloat32, ncclSum, comm, 0) == ncclRemoteError);
}

TEST(a_rank_that_is_gone_is_noticed) {
    leave = [] { raise(SIGKILL); };
    CHECK(run_ranks(3, one_leaves, 0, NULL) == 2, "killed");
    setenv("EMU_NCCL_TIMEOUT", "0.5", 1);
    leave = [] { sleep(2), exit(0); };
    CHECK(run_ranks(3, one_leaves, 0, NULL) == 3, "absent");
    unsetenv("EMU_NCCL_TIMEOUT");
}

static void wrong_arguments() {
    float host[4] = {0}, *x = (float *)device_bytes(16);
    MUST(ncclAllReduce(host, host, 4, ncclFloat32, ncclSum, comm, 0) == ncclInvalidArgument);
    MUST(ncclAllGather(x, x, 1000, ncclFloat32, comm, 0) == ncclInvalidArgument);
    MUST(ncclCommInitRank(&comm, 2, id, 2) == ncclInvalidArgument);
}

TEST(wrong_arguments_are_refused) { CHECK(run_ranks(2, wrong_arguments, 0, NULL) == 2, "2 ranks"); }

int main(void) {
    RUN(every_operation_and_type_on_1_to_4_ranks);
    RUN(calls_follow_each_other);
    RUN(different_calls_end_the_program);
    RUN(a_rank_that_is_gone_is_noticed);
    RUN(wrong_arguments_are_refused);
    return test_summary();
}
