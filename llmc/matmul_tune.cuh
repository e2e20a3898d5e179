// matmul_tune.cuh: which of the algorithms that cuBLASLt proposes for a kind of product is the fastest here, found by
// timing them, and a file that remembers it (--autotune FILE).
//
// Algorithms sum in different orders, so a choice made by a clock would give two runs different bits. Hence the file:
// what it knows is taken from it, what it does not know is timed once and added. Runs with the same file, card and
// cuBLAS give the same bits; without --autotune it is the library's first proposal, always.
//
//     # comments
//     NVIDIA H200|130100|<the product, hex>|<the algorithm, hex>|m=3072 n=65536 k=768
#ifndef LLMC_MATMUL_TUNE_CUH
#define LLMC_MATMUL_TUNE_CUH

#include <cublasLt.h>

#include "cuda_utils.cuh"

#define MATMUL_CANDIDATES 12
#define MATMUL_TIMED_RUNS 7
#define MATMUL_WORTHWHILE 0.99f  // a later proposal must be so much faster than the best before it: clocks are noisy

// `run()` queues the product once; its median time on `stream`, after one run that warms up.
template <typename Run>
static inline float matmul_median_ms(Run run, cudaStream_t stream) {
    float ms[MATMUL_TIMED_RUNS];
    cudaEvent_t begin, end;
    CUDA_CHECK(cudaEventCreate(&begin));
    CUDA_CHECK(cudaEventCreate(&end));
    run();
    for (int i = 0; i < MATMUL_TIMED_RUNS; i++) {
        CUDA_CHECK(cudaEventRecord(begin, stream));
        run();
        CUDA_CHECK(cudaEventRecord(end, stream));
        CUDA_CHECK(cudaEventSynchronize(end));
        float time;
        CUDA_CHECK(cudaEventElapsedTime(&time, begin, end));
        int at = i;
        for (; at > 0 && ms[at - 1] > time; at--) ms[at] = ms[at - 1];
        ms[at] = time;
    }
    CUDA_CHECK(cudaEventDestroy(begin));
    CUDA_CHECK(cudaEventDestroy(end));
    return ms[MATMUL_TIMED_RUNS / 2];
}

static inline void matmul_hex(char *text, const void *data, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) snprintf(text + 2 * i, 3, "%02x", ((const unsigned char *)data)[i]);
}

// What a line of the file begins with, up to the algorithm. Other cards and versions have other algorithms.
static inline void matmul_tune_prefix(char *text, size_t text_bytes, const void *key, size_t key_bytes) {
    char hex[512];
    if (2 * key_bytes >= sizeof hex) die("a product's key of %zu bytes", key_bytes);
    matmul_hex(hex, key, key_bytes);
    snprintf(text, text_bytes, "%s|%zu|%s|", device_info()->name, cublasLtGetVersion(), hex);
}

// 1 and *algo if the file knows this product. The last line wins. A file that is not there knows nothing.
static inline int matmul_tune_recall(const char *path, const void *key, size_t key_bytes, cublasLtMatmulAlgo_t *algo) {
    char prefix[1024], line[2048];
    int found = 0;
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    matmul_tune_prefix(prefix, sizeof prefix, key, key_bytes);
    while (fgets(line, sizeof line, file)) {
        const char *hex = line + strlen(prefix);
        cublasLtMatmulAlgo_t read;
        size_t i = 0;
        if (strncmp(line, prefix, strlen(prefix)) != 0) continue;
        for (; i < sizeof read; i++) {
            unsigned byte;
            if (sscanf(hex + 2 * i, "%2x", &byte) != 1) break;
            ((unsigned char *)&read)[i] = (unsigned char)byte;
        }
        if (i < sizeof read || hex[2 * i] != '|') continue;  // cut off: timed again
        *algo = read;
        found = 1;
    }
    fclose(file);
    return found;
}

// Adds a line. A file that cannot be written would silently cost the next run its bits: the program ends.
static inline void matmul_tune_remember(const char *path, const void *key, size_t key_bytes,
                                        const cublasLtMatmulAlgo_t *algo, const char *comment) {
    char prefix[1024], hex[2 * sizeof *algo + 1];
    matmul_tune_prefix(prefix, sizeof prefix, key, key_bytes);
    matmul_hex(hex, algo, sizeof *algo);
    FILE *file = fopen(path, "a");
    if (!file || fprintf(file, "%s%s|%s\n", prefix, hex, comment) < 0 || fclose(file) != 0)
        die("--autotune: cannot write '%s'\nwhy: %s", path, strerror(errno));
}

#endif
