// code_buckets.cuh: a bucket of new weights (buckets.h) as ranks exchange it where each casts the weights of its own shard:
// fp8 codes, a byte an element, and what is not cast as it is stored. The codes are those that a cast of the whole tensor
// gives: a delayed scale is known before, and current scaling takes the maximum of the ranks' amaxes first.
//
// A rank's block of the staging buffer: a byte for each element of its shard, idle where its tensor is not cast, then the
// elements of those tensors. All ranks' blocks have one size.
#ifndef LLMC_CODE_BUCKETS_CUH
#define LLMC_CODE_BUCKETS_CUH

#include "buckets.cuh"
#include "quantize.cuh"

typedef struct {
    Bucket bucket;
    uint8_t *codes[BUCKET_PIECES];      // of a piece's first element; NULL: its tensor is not cast
    size_t layer_elems[BUCKET_PIECES];  // of a layer of the piece, and bytes from one layer's codes to the next's
    size_t layer_pitch[BUCKET_PIECES];
    size_t block_bytes;
} CodeBucket;

// Elements of [begin, end) of the bucket that travel as they are stored.
__host__ __device__ __forceinline__ size_t code_bucket_uncast(const CodeBucket &b, size_t begin, size_t end) {
    size_t n = 0;
    for (int p = 0; p < b.bucket.count; p++) {
        const BucketPiece &piece = b.bucket.pieces[p];
        const size_t from = piece.at > begin ? piece.at : begin;
        const size_t to = piece.at + piece.elems < end ? piece.at + piece.elems : end;
        if (!b.codes[p] && from < to) n += to - from;
    }
    return n;
}

// The staging buffer for `ranks` ranks has room: a block has at most 3 bytes an element, where fp32 takes 4.
static inline void code_bucket_finish(CodeBucket *b, size_t ranks) {
    const size_t elems = b->bucket.shard_elems;
    size_t most = 0;
    for (size_t r = 0; r < ranks; r++) most = max_size(most, code_bucket_uncast(*b, r * elems, (r + 1) * elems));
    b->block_bytes = round_up(elems + most * sizeof(weight_t), SHARD_MULTIPLE);
}

// A tensor's scale: the delayed one in force, or that of its amax.
__host__ __device__ __forceinline__ float code_scale(const float *delayed, const uint32_t *amax, int pow2) {
    return delayed ? *delayed : quant_scale_tensor(float_of_bits(*amax), 448.0f, pow2);
}

// *to = max(what is there, the largest magnitude of in (n))
static __global__ void __launch_bounds__(BUCKET_THREADS)
    code_amax_kernel(uint32_t *to, const __nv_bfloat16 *in, size_t n) {
    const size_t i = ((size_t)blockIdx.x * BUCKET_THREADS + threadIdx.x) * PACK;
    unsigned ignored = 0;
    amax_record(to, i < n ? quant_piece_amax(load_packed(in + i), ignored) : 0);
}

// codes (n) = in (n) cast to e4m3; what is not finite, and the amax for later delayed scales, recorded as casts do.
static __global__ void __launch_bounds__(BUCKET_THREADS)
    code_run_kernel(uint8_t *codes, const __nv_bfloat16 *in, size_t n, QuantState state, int pow2) {
    const size_t i = ((size_t)blockIdx.x * BUCKET_THREADS + threadIdx.x) * PACK;
    uint32_t amax = 0;
    if (i < n) {
        const QuantPiece piece = load_packed(in + i);
        const float encode = code_scale(state.scale, state.amax, pow2);
        unsigned nonfinite = 0;
        uint32_t words[2] = {0, 0};
        amax = quant_piece_amax(piece, nonfinite);
        if (nonfinite) atomicAdd(state.nonfinite, nonfinite);
#pragma unroll
        for (int j = 0; j < PACK; j += 2)
            words[j / 4] |= quant_encode_pair<FORMAT_E4M3>(to_float(piece[j]) * encode, to_float(piece[j + 1]) * encode)
                            << j % 4 * 8;
        *reinterpret_cast<uint2 *>(codes + i) = make_uint2(words[0], words[1]);
    }
    if (state.scale) amax_record(state.amax, amax);
}

// Elements [first, end) of the bucket between the arena, the codes and the blocks in `staging`. UNPACK: from there to both;
// else what is not cast to there.
template <bool UNPACK, typename W>
static __global__ void __launch_bounds__(BUCKET_THREADS)
    code_bucket_kernel(W *weights, uint8_t *staging, const CodeBucket b, size_t first, size_t end) {
    const size_t i = first + ((size_t)blockIdx.x * BUCKET_THREADS + threadIdx.x) * PACK;
    if (i >= end) return;
    const size_t begin = i / b.bucket.shard_elems * b.bucket.shard_elems;
    uint8_t *block = staging + i / b.bucket.shard_elems * b.block_bytes;
    for (int p = 0; p < b.bucket.count; p++) {
        const size_t at = i - b.bucket.pieces[p].at;
        if (at >= b.bucket.pieces[p].elems) continue;  // unsigned: both limits
        if (b.codes[p]) {
            uint8_t *codes = b.codes[p] + at / b.layer_elems[p] * b.layer_pitch[p] + at % b.layer_elems[p];
            if (UNPACK) *reinterpret_cast<uint2 *>(codes) = *reinterpret_cast<const uint2 *>(block + i - begin);
            return;
        }
        W *stored = weights + b.bucket.pieces[p].arena + at;
        W *packed = (W *)(block + b.bucket.shard_elems) + code_bucket_uncast(b, begin, i);
        if (UNPACK) store_packed(stored, load_packed(packed));
        else store_packed(packed, load_packed(stored));
        return;
    }
}

template <bool UNPACK, typename W>
static inline void code_bucket_move(W *weights, void *staging, const CodeBucket *b, size_t first, size_t end,
                                    cudaStream_t stream) {
    end = min_size(end, b->bucket.elems);
    if (first >= end) return;
    launch((code_bucket_kernel<UNPACK, W>), grid_1d(ceil_div(end - first, BUCKET_THREADS * PACK)), BUCKET_THREADS, 0,
           stream, weights, (uint8_t *)staging, *b, first, end);
}

// ----------------------------------------------------------------------------------------------------------------
// The other orientation

#define CODE_TILE 64

// out (cols, rows) = in (rows, cols) transposed; 16 bytes a thread, both ways through a tile in shared memory.
static __global__ void __launch_bounds__(256) code_transpose_kernel(uint8_t *out, const uint8_t *in, size_t rows, size_t cols) {
    __shared__ __align__(16) uint8_t tile[CODE_TILE][CODE_TILE + 16];
    const size_t across = (cols + CODE_TILE - 1) / CODE_TILE;
    const size_t row0 = blockIdx.x / across * CODE_TILE, col0 = blockIdx.x % across * CODE_TILE;
    const int line = threadIdx.x / 4, part = threadIdx.x % 4 * 16;
    if (row0 + line < rows && col0 + part < cols)
        *reinterpret_cast<uint4 *>(&tile[line][part]) =
            *reinterpret_cast<const uint4 *>(in + (row0 + line) * cols + col0 + part);
    __syncthreads();
    if (col0 + line >= cols || row0 + part >= rows) return;
    uint32_t words[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < 16; i++) words[i / 4] |= (uint32_t)tile[part + i][line] << i % 4 * 8;
    *reinterpret_cast<uint4 *>(out + (col0 + line) * rows + row0 + part) =
        make_uint4(words[0], words[1], words[2], words[3]);
}

// rows % 16 == 0, cols % 16 == 0
static inline void code_transpose(void *out, const void *in, size_t rows, size_t cols, cudaStream_t stream) {
    DeviceOp op("quantize: codes transposed", 2.0 * (double)rows * (double)cols, 0, stream);
    launch(code_transpose_kernel, grid_1d(ceil_div(rows, CODE_TILE) * ceil_div(cols, CODE_TILE)), 256, 0, stream,
           (uint8_t *)out, (const uint8_t *)in, rows, cols);
}

#endif
