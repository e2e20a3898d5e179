// quantize.cuh: the CUDA twin of quantize.h: an operand of a matrix product cast to fp8 or fp4, laid out as cuBLASLt
// wants it, with its scales.
//
// Whatever way the product sums, a cast operand here is (outer, k) with k, the index that is summed over, contiguous:
// the transposed operands (w in dgrad, x and dY in wgrad) are written transposed. That is the one layout ("TN") which
// every card's fp8 and fp4 products take. Compute capability 10.x takes fp8 in any: with one scale for the tensor the
// codes are the same whichever way it is read, and are written once, as the tensor lies (DeviceOperand.across).
//
// Where a card has no such product (or the recipe is not one of its), the operand is *emulated*: each element is the
// value its code stands for times its block's scale, in bf16, which holds that product exactly (but for block scales
// in fp32, and at the very ends of the range); scales of a whole tensor are left for alpha in either case. A bf16
// product of emulated operands is the recipe's, up to the order of its additions.
//
// A tensor that two products read is cast for both in one read: quantize_device() takes up to two casts. Nor need it be
// in memory: what a kernel would store only for a cast to read (layernorm, GELU and its gradient) the cast makes itself, of
// what that is made of (column_sums.cuh says how tensors are described), and takes column sums along. A block of threads
// has a tile of 128 x 128 in shared memory, a thread 16 consecutive k of one outer index at a time. Recipes
// whose scales depend on more than a tile (tensor, row, nv) read the tensor once more, before, for the amax; delayed
// scaling does not. Codes and scales are those of quantize_codes() in quantize.h, bit for bit: maxima and counts do not
// depend on the order, everything else is a thread's own.
#ifndef LLMC_QUANTIZE_CUH
#define LLMC_QUANTIZE_CUH

#include <cuda_fp8.h>

#include "column_sums.cuh"
#include "quantize.h"

// How block scales lie in memory (cuBLASLt's layouts).
typedef enum {
    SCALES_SCALAR,    // tensor, delayed: one fp32, in DeviceOperand.alpha_part
    SCALES_OUTER,     // row: fp32 (outer)
    SCALES_VEC128,    // block 1x128: fp32 [ceil(k / 128)][outer rounded up to 4]
    SCALES_BLK128,    // block 128x128: fp32 [ceil(outer / 128)][ceil(k / 128) rounded up to 4]
    SCALES_TILED_32,  // mx; row and block on Blackwell: one e8m0 byte a 32 along k, tiles of 128 x 4 (quant_tiled_scale)
    SCALES_TILED_16   // nv: the same with one ue4m3 byte a 16 along k
} QuantScaleLayout;

// One operand of a product, in device memory, ready to multiply.
typedef struct {
    void *codes;              // (outer, k): fp8 a byte each; fp4 two a byte, the even one low; emulated: bf16
    void *scales;             // of blocks, as `layout` has them, 16-byte aligned, padding zero; NULL: none
    const float *alpha_part;  // tensor, delayed: the decode scale; nv: the tensor's amax; NULL: 1
    FormatId format;          // FORMAT_BF16 where emulated
    ScalingRule scaling;
    QuantScaleLayout layout;
    size_t outer, k;  // k is padded with zeros to what products take: quant_padded_k()
    int across;       // 1: the codes lie (k, outer), neither padded
} DeviceOperand;

// k as products take it: rows of codes are multiples of 16 bytes, and fp4 and 32-element scales want multiples of 32
// elements. One rule for all, emulated operands too: any two operands of one product then agree.
static inline size_t quant_padded_k(size_t k) { return round_up(k, 32); }

// What a card's native products take beside Ada's and Hopper's operands.
typedef struct {
    int tiled_blocks;  // scales of 32-blocks only: those of rows and 128-blocks (powers of two) go there
    int any_layout;    // fp8 codes (k, outer), too
} QuantCard;

static inline QuantCard quant_card(void) {
    const int cc = device_info()->cc;
    QuantCard card = {cc >= 100, cc >= 100 && cc < 110};
    return card;
}

// The operand that casting (rows, cols) as `spec` says gives: all but its memory.
static inline DeviceOperand quant_operand(const QuantSpec *spec, size_t rows, size_t cols, int emulated,
                                          QuantCard card) {
    const int tiled_blocks = card.tiled_blocks;
    DeviceOperand x;
    memset(&x, 0, sizeof x);
    int along_rows = spec->contraction == CONTRACT_ROWS;
    x.format = emulated ? FORMAT_BF16 : spec->format;
    x.scaling = spec->scaling;
    x.layout = spec->scaling == SCALING_ROW     ? tiled_blocks ? SCALES_TILED_32 : SCALES_OUTER
               : spec->scaling == SCALING_BLOCK ? tiled_blocks   ? SCALES_TILED_32
                                                  : spec->square ? SCALES_BLK128
                                                                 : SCALES_VEC128
               : spec->scaling == SCALING_MX    ? SCALES_TILED_32
               : spec->scaling == SCALING_NV    ? SCALES_TILED_16
                                                : SCALES_SCALAR;
    x.outer = along_rows ? cols : rows;
    x.k = quant_padded_k(along_rows ? rows : cols);
    x.across = along_rows && card.any_layout && !emulated && x.layout == SCALES_SCALAR && x.k == rows &&
               quant_padded_k(cols) == cols;
    return x;
}

// Do two products read the same codes of a tensor?
static inline int quant_shared(const DeviceOperand *first, const DeviceOperand *second) {
    return second->across && !first->across && first->layout == SCALES_SCALAR && first->format == second->format;
}

// Bytes of `codes`, and of `scales`, for an operand whose outer and k are set.
static inline size_t quant_code_bytes(const DeviceOperand *x) {
    return format_bytes(x->format, size_mul(x->outer, x->k));
}

static inline size_t quant_scale_bytes(const DeviceOperand *x) {
    if (x->format == FORMAT_BF16) return 0;
    switch (x->layout) {
        case SCALES_OUTER: return x->outer * sizeof(float);
        case SCALES_VEC128: return ceil_div(x->k, 128) * round_up(x->outer, 4) * sizeof(float);
        case SCALES_BLK128: return ceil_div(x->outer, 128) * round_up(ceil_div(x->k, 128), 4) * sizeof(float);
        case SCALES_TILED_32: return round_up(x->outer, 128) * round_up(ceil_div(x->k, 32), 4);
        case SCALES_TILED_16: return round_up(x->outer, 128) * round_up(ceil_div(x->k, 16), 4);
        default: return 0;
    }
}

// Byte of the scale of row `row` and block `block` along k in the tiled layouts: tiles of 128 rows x 4 blocks, 512
// bytes each, in row-major order; in a tile rows 0, 32, 64 and 96 lie together.
__host__ __device__ __forceinline__ size_t quant_tiled_scale(size_t row, size_t block, size_t blocks) {
    return (row / 128 * ((blocks + 3) / 4) + block / 4) * 512 + row % 32 * 16 + row % 128 / 32 * 4 + block % 4;
}

// ----------------------------------------------------------------------------------------------------------------
// The factor a product applies once, at the end (quant_alpha() in quantize.h), for cuBLASLt's device pointer mode.

static __global__ void quant_alpha_kernel(float *alpha_beta, const float *a, const float *b, int nv, int accumulate) {
    const float x = a ? *a : 1.0f, y = b ? *b : 1.0f, inverse_scales = 1.0f / 7225344.0f;
    alpha_beta[0] = nv ? x * y * inverse_scales : x * y;
    alpha_beta[1] = accumulate ? 1.0f : 0.0f;
}

// alpha_beta (2) = the alpha of a . b, and 1 or 0
static inline void quant_alpha_device(float *alpha_beta, const DeviceOperand *a, const DeviceOperand *b, int accumulate,
                                      cudaStream_t stream) {
    launch(quant_alpha_kernel, grid_1d(1), 1, 0, stream, alpha_beta, a->alpha_part, b->alpha_part,
           a->scaling == SCALING_NV, accumulate);
}

// ----------------------------------------------------------------------------------------------------------------
// What kernels share

// Words in device memory that belong to one tensor. Patterns of magnitudes order as the magnitudes do.
typedef struct {
    uint32_t *amax;              // = max(what is there, amax): the caller zeroes it before the tensor's first cast
    uint32_t *transformed_amax;  // nv: the same for the Hadamard transform
    unsigned *nonfinite;         // += NaNs and Infs, once a cast
    float *decode;               // tensor, delayed: = 1 / scale
    const float *scale;          // delayed: what is in force, 0: none yet; else NULL
} QuantState;

// One way a tensor is cast: an operand, and what kernels need of its QuantSpec.
typedef struct {
    void *codes;
    uint8_t *scales;       // of whatever layout; NULL where emulated
    const uint32_t *amax;  // nv: the tensor's; row: one for each outer index
    size_t outer, k;
    QuantScaleLayout layout;
    int along_rows, square, pow2, mx_ocp, stochastic, hadamard;
    uint32_t stream;
} QuantSide;

typedef struct {
    size_t rows, cols;
    float *partials;  // (tiles down, cols): sums of each tile's columns; NULL: not wanted
    QuantState state;
    int count;
    QuantSide sides[2];
    uint64_t seed;
    uint32_t step;
} QuantTask;

#define QUANT_TILE 128
#define QUANT_TILE_PITCH (QUANT_TILE + 8)  // 16-byte aligned, and neighbouring rows begin at other banks
#define QUANT_THREADS 256
#define QUANT_GROUP 16                                                 // consecutive k that a thread casts at once
#define QUANT_PIECES (QUANT_TILE * QUANT_TILE / PACK / QUANT_THREADS)  // of the tile, a thread
#define QUANT_ROUNDS (QUANT_TILE * QUANT_TILE / QUANT_GROUP / QUANT_THREADS)  // groups a thread casts

typedef Packed<__nv_bfloat16, PACK> QuantPiece;

__device__ __forceinline__ uint32_t quant_bits(__nv_bfloat16 x) {
    uint16_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

__device__ __forceinline__ uint32_t quant_piece_amax(const QuantPiece &piece, unsigned &nonfinite) {
    uint32_t amax = 0;
#pragma unroll
    for (int j = 0; j < PACK; j++) {
        const uint32_t magnitude = quant_bits(piece[j]) & 0x7fffu;
        amax = amax_of(amax, magnitude <= 0x7f80u ? magnitude << 16 : 0);
        nonfinite += magnitude >= 0x7f80u;
    }
    return amax;
}

// Is a tensor made by the kernel that casts it? Two blocks on a multiprocessor then have the registers for that, with 64 KB
// under way; of tensors in memory three have 96 KB.
template <typename Source>
constexpr bool quant_makes = true;
template <typename T>
constexpr bool quant_makes<StoredColumns<T>> = false;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000  // where ptxas spills for three
#define QUANT_BOUNDS(Source) __launch_bounds__(QUANT_THREADS, 2)
#else
#define QUANT_BOUNDS(Source) __launch_bounds__(QUANT_THREADS, quant_makes<Source> ? 2 : 3)
#endif

// take(i, piece) for each of the thread's pieces of the tile at (row0, col0) that lie in the tensor: rows
// threadIdx.x / 16 + 16 i, 8 columns from threadIdx.x % 16 * 8.
template <typename Source, typename Take>
__device__ __forceinline__ void quant_each_piece(const QuantTask &task, const Source &source, size_t row0, size_t col0,
                                                 Take take) {
    constexpr int TOGETHER = sizeof(typename Source::Raw) > sizeof(QuantPiece) ? QUANT_PIECES / 2 : QUANT_PIECES;
    const size_t col = col0 + threadIdx.x % 16 * PACK, row = row0 + threadIdx.x / 16;
    if (col >= task.cols) return;
    const typename Source::Columns columns = source.columns(col);
#pragma unroll
    for (int first = 0; first < QUANT_PIECES; first += TOGETHER) {
        typename Source::Raw raw[TOGETHER];
#pragma unroll
        for (int i = 0; i < TOGETHER; i++)
            if (row + 16 * (first + i) < task.rows) raw[i] = source.load(row + 16 * (first + i), col);
#pragma unroll
        for (int i = 0; i < TOGETHER; i++)
            if (row + 16 * (first + i) < task.rows) take(first + i, source.finish(raw[i], columns));
    }
}

// All of them, zero outside the tensor.
template <typename Source>
__device__ __forceinline__ void quant_load_pieces(QuantPiece (&pieces)[QUANT_PIECES], const QuantTask &task,
                                                  const Source &source, size_t row0, size_t col0) {
    memset(pieces, 0, sizeof pieces);
    quant_each_piece(task, source, row0, col0, [&](int i, const QuantPiece &piece) { pieces[i] = piece; });
}

// Maxima of a tile's rows and columns, into shared memory that starts at zero.
__device__ __forceinline__ void quant_line_maxima(uint32_t *row_amax, uint32_t *col_amax,
                                                  const QuantPiece (&pieces)[QUANT_PIECES], unsigned &nonfinite) {
    uint32_t columns[PACK] = {0};
#pragma unroll
    for (int i = 0; i < QUANT_PIECES; i++) {
        const uint32_t amax = amax_lanes(quant_piece_amax(pieces[i], nonfinite), 8, 1);
        if (threadIdx.x % 16 == 0) row_amax[threadIdx.x / 16 + 16 * i] = amax;
#pragma unroll
        for (int j = 0; j < PACK; j++) columns[j] = amax_of(columns[j], amax_bits(to_float(pieces[i][j])));
    }
#pragma unroll
    for (int j = 0; j < PACK; j++) {
        const uint32_t amax = amax_lanes(columns[j], 16, 16);
        if (threadIdx.x % WARP_SIZE < 16) atomicMax(&col_amax[threadIdx.x % 16 * PACK + j], amax);
    }
}

// 16 numbers: signs, butterflies of stride 1, 2, 4, 8, a quarter of that, in bf16 (hadamard_rows() in quantize.h).
__device__ __forceinline__ void quant_hadamard(float (&x)[QUANT_GROUP]) {
#pragma unroll
    for (int i = 0; i < QUANT_GROUP; i++) x[i] = HADAMARD_SIGNS >> i & 1 ? -x[i] : x[i];
#pragma unroll
    for (int h = 1; h < QUANT_GROUP; h *= 2)
#pragma unroll
        for (int i = 0; i < QUANT_GROUP; i++) {
            if (i & h) continue;
            const float a = x[i], b = x[i + h];
            x[i] = a + b;
            x[i + h] = a - b;
        }
#pragma unroll
    for (int i = 0; i < QUANT_GROUP; i++) x[i] = round_bf16(x[i] * 0.25f);
}

// ----------------------------------------------------------------------------------------------------------------
// Maxima that must be known before the first element is cast

// state.amax of the whole tensor; nothing where a delayed scale is in force.
template <typename Source>
__global__ void QUANT_BOUNDS(Source) quant_amax_kernel(QuantTask task, Source source) {
    if (task.state.scale && *task.state.scale != 0.0f) return;
    const size_t across = (task.cols + QUANT_TILE - 1) / QUANT_TILE;
    uint32_t amax = 0;
    unsigned ignored = 0;
    quant_each_piece(task, source, blockIdx.x / across * QUANT_TILE, blockIdx.x % across * QUANT_TILE,
                     [&](int, const QuantPiece &piece) { amax = amax_of(amax, quant_piece_amax(piece, ignored)); });
    amax_record(task.state.amax, amax);
}

// state.transformed_amax, of groups of 16 rows, and state.amax. A thread has two columns of a group.
template <typename Source>
__global__ void __launch_bounds__(QUANT_THREADS) quant_hadamard_amax_kernel(QuantTask task, Source source) {
    const size_t pairs = task.cols / 2, items = (task.rows + QUANT_GROUP - 1) / QUANT_GROUP * pairs;
    uint32_t amax = 0, transformed = 0;
    for (size_t i = (size_t)blockIdx.x * QUANT_THREADS + threadIdx.x; i < items;
         i += (size_t)gridDim.x * QUANT_THREADS) {
        const size_t row0 = i / pairs * QUANT_GROUP, col = i % pairs * 2;
        float x[2][QUANT_GROUP];
#pragma unroll
        for (int r = 0; r < QUANT_GROUP; r++) {
            uint32_t both = 0;
            if (row0 + r < task.rows)
                both = *reinterpret_cast<const uint32_t *>(source.data + (row0 + r) * task.cols + col);
            x[0][r] = float_of_bits(both << 16);
            x[1][r] = float_of_bits(both & 0xffff0000u);
        }
#pragma unroll
        for (int column = 0; column < 2; column++) {
#pragma unroll
            for (int r = 0; r < QUANT_GROUP; r++) amax = amax_of(amax, amax_bits(x[column][r]));
            quant_hadamard(x[column]);
#pragma unroll
            for (int r = 0; r < QUANT_GROUP; r++) transformed = amax_of(transformed, amax_bits(x[column][r]));
        }
    }
    amax_record(task.state.amax, amax);
    amax_record(task.state.transformed_amax, transformed);
}

// row_amax (rows) and col_amax (cols), which start at zero; one of them may be NULL.
template <typename Source>
__global__ void __launch_bounds__(QUANT_THREADS, quant_makes<Source> ? 1 : 3)  // which keeps all pieces
    quant_line_amax_kernel(QuantTask task, Source source, uint32_t *row_amax, uint32_t *col_amax) {
    __shared__ uint32_t tile_rows[QUANT_TILE], tile_cols[QUANT_TILE];
    const size_t across = (task.cols + QUANT_TILE - 1) / QUANT_TILE;
    const size_t row0 = blockIdx.x / across * QUANT_TILE, col0 = blockIdx.x % across * QUANT_TILE;
    QuantPiece pieces[QUANT_PIECES];
    unsigned ignored = 0;
    if (threadIdx.x < QUANT_TILE) tile_cols[threadIdx.x] = 0;
    quant_load_pieces(pieces, task, source, row0, col0);
    __syncthreads();
    quant_line_maxima(tile_rows, tile_cols, pieces, ignored);
    __syncthreads();
    const int i = threadIdx.x % QUANT_TILE;
    if (threadIdx.x < QUANT_TILE) {
        if (row_amax && row0 + i < task.rows) atomicMax(&row_amax[row0 + i], tile_rows[i]);
    } else if (col_amax && col0 + i < task.cols) {
        atomicMax(&col_amax[col0 + i], tile_cols[i]);
    }
}

// ----------------------------------------------------------------------------------------------------------------
// Casting

// Two codes of 8 bits, a low. The hardware's conversion is formats.h's for every input.
template <FormatId F>
__device__ __forceinline__ uint32_t quant_encode_pair(float a, float b) {
    static_assert(F == FORMAT_E4M3 || F == FORMAT_E5M2, "fp8");
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 890  // no such instruction; the header's own way there is slow
    return F == FORMAT_E4M3 ? encode_e4m3(a) | (uint32_t)encode_e4m3(b) << 8
                            : encode_e5m2(a) | (uint32_t)encode_e5m2(b) << 8;
#else
    return __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, F == FORMAT_E4M3 ? __NV_E4M3 : __NV_E5M2);
#endif
}

// Stores a group as codes.
template <FormatId F>
__device__ __forceinline__ void quant_store_codes(void *codes, size_t element, const float (&x)[QUANT_GROUP],
                                                  float encode, const uint8_t (&random)[QUANT_GROUP], bool stochastic) {
    if constexpr (F == FORMAT_E2M1) {
        uint32_t words[2] = {0, 0};
#pragma unroll
        for (int i = 0; i < QUANT_GROUP; i++) {
            const float scaled = x[i] * encode;
            words[i / 8] |= (uint32_t)(stochastic ? sr_e2m1(scaled, random[i]) : encode_e2m1(scaled)) << i % 8 * 4;
        }
        *reinterpret_cast<uint2 *>((uint8_t *)codes + element / 2) = make_uint2(words[0], words[1]);
    } else {
        uint32_t words[4] = {0, 0, 0, 0};
#pragma unroll
        for (int i = 0; i < QUANT_GROUP; i += 2)
            words[i / 4] |= quant_encode_pair<F>(x[i] * encode, x[i + 1] * encode) << i % 4 * 8;
        *reinterpret_cast<uint4 *>((uint8_t *)codes + element) = make_uint4(words[0], words[1], words[2], words[3]);
    }
}

// Stores a group as what its codes stand for, in bf16.
template <FormatId F>
__device__ __forceinline__ void quant_store_values(void *values, size_t element, const float (&x)[QUANT_GROUP],
                                                   float encode, float decode, const uint8_t (&random)[QUANT_GROUP],
                                                   bool stochastic) {
    float y[QUANT_GROUP];
#pragma unroll
    for (int i = 0; i < QUANT_GROUP; i++) {
        const float scaled = x[i] * encode;
        const bool by_chance = F == FORMAT_E2M1 && stochastic;
        y[i] = (by_chance ? decode_e2m1(sr_e2m1(scaled, random[i])) : format_round(F, scaled)) * decode;
    }
    store_floats((__nv_bfloat16 *)values + element, y);
}

// 8 random bits for each element of a thread's group, by its place in the tensor (quant_random() in quantize.h).
// One Philox block serves 4 neighbouring columns, so down a column four threads share theirs. All lanes take part.
template <bool ALONG_ROWS>
__device__ __forceinline__ void quant_group_random(uint8_t (&random)[QUANT_GROUP], const QuantTask &task,
                                                   uint32_t stream, size_t row, size_t col) {
#pragma unroll
    for (int i = 0; i < QUANT_GROUP / 4; i++) {
        const int column = threadIdx.x / 2 % 4;  // of four neighbours (ALONG_ROWS): lanes 2 apart
        const size_t element = ALONG_ROWS ? (row + 4 * i + column) * task.cols + col : row * task.cols + col + 4 * i;
        const RandBlock block = rand_block(task.seed, RAND_ROUND_GRAD_FP4, stream, task.step, element / 4);
        if constexpr (ALONG_ROWS) {
            uint32_t bytes = 0;
#pragma unroll
            for (int j = 0; j < 4; j++) bytes |= (block.word[j] & 0xffu) << 8 * j;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const uint32_t theirs =
                    __shfl_sync(FULL_WARP, bytes, (threadIdx.x % WARP_SIZE & ~6u) | (unsigned)j << 1);
                random[4 * i + j] = (uint8_t)(theirs >> 8 * column);
            }
        } else {
#pragma unroll
            for (int j = 0; j < 4; j++) random[4 * i + j] = (uint8_t)block.word[j];
        }
    }
}

// What a block's elements are multiplied by, and what their codes are.
struct QuantScale {
    float encode, decode;
    uint8_t code;  // mx: e8m0, nv: ue4m3
};

template <ScalingRule S, FormatId F>
__device__ __forceinline__ QuantScale quant_scale_of(const QuantSide &side, uint32_t amax_bits) {
    const float amax = float_of_bits(amax_bits);
    constexpr float max = F == FORMAT_E4M3 ? 448.0f : F == FORMAT_E5M2 ? 57344.0f : 6.0f;
    QuantScale s = {1.0f, 1.0f, 0};
    if constexpr (S == SCALING_NV) {
        const float tensor = quant_scale_nv_tensor(float_of_bits(*side.amax));
        s.code = quant_scale_nv_block(amax, tensor);
        s.encode = quant_encode_nv_block(s.code, 1.0f / tensor);
        s.decode = decode_ue4m3(s.code);
    } else if constexpr (S == SCALING_MX) {
        s.code = quant_scale_mx(amax, max, side.mx_ocp);
        s.encode = encode_scale_e8m0(s.code);
        s.decode = decode_e8m0(s.code);
    } else {
        s.encode = S == SCALING_ROW ? quant_scale_row(amax, max) : quant_scale_tensor(amax, max, side.pow2);
        s.decode = 1.0f / s.encode;
    }
    return s;
}

// The scale of one 128-block, or of one outer index, to where the layout has it: thread 2 i has outer index `outer` =
// outer0 + i.
__device__ __forceinline__ void quant_store_scale(const QuantSide &side, size_t outer, size_t k0, float decode) {
    const bool inside = outer < side.outer;
    const size_t blocks = (side.k + QUANT_TILE - 1) / QUANT_TILE, block = k0 / QUANT_TILE;
    float *scales = (float *)side.scales;
    if (side.layout == SCALES_OUTER) {
        if (inside && k0 == 0) scales[outer] = decode;
    } else if (side.layout == SCALES_VEC128) {
        const size_t pitch = (side.outer + 3) / 4 * 4;
        if (outer < pitch) scales[block * pitch + outer] = inside ? decode : 0.0f;
    } else if (side.layout == SCALES_BLK128) {
        const size_t pitch = (blocks + 3) / 4 * 4;
        if (outer % QUANT_TILE != 0) return;
        scales[outer / QUANT_TILE * pitch + block] = decode;
        for (size_t pad = block + 1; block + 1 == blocks && pad < pitch; pad++)
            scales[outer / QUANT_TILE * pitch + pad] = 0.0f;
    } else {  // a power of two, again for each 32 of it
        const size_t small_blocks = (side.k + 31) / 32, first = k0 / 32;
        for (int i = 0; i < 4; i++)
            side.scales[quant_tiled_scale(outer, first + i, small_blocks)] =
                inside && first + i < small_blocks ? encode_e8m0(decode) : 0;
    }
}

// The tile at (row0, col0) cast in one direction. line_amax: maxima of its rows, or columns, and square_amax those of
// squares of it, for the recipes that have these; `whole`: the scale of the whole tensor, for the recipes with one.
template <ScalingRule S, FormatId F, bool EMULATED, bool ALONG_ROWS>
__device__ __forceinline__ void quant_cast_side(const __nv_bfloat16 *tile, const QuantTask &task, const QuantSide &side,
                                                size_t row0, size_t col0, const uint32_t *line_amax,
                                                const uint32_t *square_amax, float whole) {
    const int line = threadIdx.x / 2;
    const size_t outer = (ALONG_ROWS ? col0 : row0) + line, k0 = ALONG_ROWS ? row0 : col0;
    QuantScale scale = {whole, 1.0f, 0};
    if constexpr (S == SCALING_ROW || S == SCALING_BLOCK) {
        uint32_t amax = S == SCALING_ROW ? outer < side.outer ? side.amax[outer] : 0
                        : side.square    ? square_amax[0]
                                         : line_amax[line];
        scale = quant_scale_of<S, F>(side, amax);
        if (!EMULATED && threadIdx.x % 2 == 0) quant_store_scale(side, outer, k0, scale.decode);
    }
#pragma unroll 1
    for (int round = 0; round < QUANT_ROUNDS; round++) {
        const int group = 2 * round + (int)(threadIdx.x % 2);
        const size_t k = k0 + group * QUANT_GROUP;
        float x[QUANT_GROUP];
        uint8_t random[QUANT_GROUP] = {0};
        if constexpr (ALONG_ROWS) {
#pragma unroll
            for (int i = 0; i < QUANT_GROUP; i++)
                x[i] = to_float(tile[(group * QUANT_GROUP + i) * QUANT_TILE_PITCH + line]);
        } else {
            load_floats(x, tile + line * QUANT_TILE_PITCH + group * QUANT_GROUP);
        }
        if constexpr (S == SCALING_NV) {
            if (ALONG_ROWS && side.hadamard) quant_hadamard(x);
            if (side.stochastic)
                quant_group_random<ALONG_ROWS>(random, task, side.stream, ALONG_ROWS ? k : outer,
                                               ALONG_ROWS ? outer : k);
        }
        if constexpr (S == SCALING_MX || S == SCALING_NV) {
            uint32_t amax = 0;
#pragma unroll
            for (int i = 0; i < QUANT_GROUP; i++) amax = amax_of(amax, amax_bits(x[i]));
            if (S == SCALING_MX) amax = amax_lanes(amax, 1, 1);  // the other half of 32
            if (S == SCALING_NV && side.square) amax = amax_lanes(amax, 16, 2);
            if (S == SCALING_MX && side.square) {
                const int i = line / 32, j = group / 2;  // of the square: along outer, along k
                amax = square_amax[ALONG_ROWS ? j * 4 + i : i * 4 + j];
            }
            scale = quant_scale_of<S, F>(side, amax);
            const size_t length = S == SCALING_MX ? 32 : 16, blocks = (side.k + length - 1) / length,
                         block = k / length;
            if (!EMULATED && (S == SCALING_NV || threadIdx.x % 2 == 0) && block < (blocks + 3) / 4 * 4)
                side.scales[quant_tiled_scale(outer, block, blocks)] =
                    outer < side.outer && block < blocks ? scale.code : 0;
        }
        if (outer >= side.outer || k >= side.k) continue;
        const size_t element = outer * side.k + k;
        if constexpr (EMULATED)
            quant_store_values<F>(side.codes, element, x, scale.encode, scale.decode, random, side.stochastic);
        else quant_store_codes<F>(side.codes, element, x, scale.encode, random, side.stochastic);
    }
}

// The scale of the whole tensor, and its inverse to where the product finds it.
template <FormatId F>
__device__ __forceinline__ float quant_whole_scale(const QuantTask &task) {
    float scale = task.state.scale ? *task.state.scale : 0.0f;
    if (scale == 0.0f) scale = quant_scale_of<SCALING_TENSOR, F>(task.sides[0], *task.state.amax).encode;
    if (blockIdx.x == 0 && threadIdx.x == 0) *task.state.decode = 1.0f / scale;
    return scale;
}

// The sums of the tile's columns in the order of column_sums_kernel(): rows that are 8 apart, then those eight.
__device__ __forceinline__ void quant_column_sums(const __nv_bfloat16 *tile, const QuantTask &task, size_t row0,
                                                  size_t col0) {
    static_assert(QUANT_TILE == COLUMN_SUMS_ROWS && QUANT_THREADS == 2 * QUANT_TILE && COLUMN_SUMS_WARPS == 8, "");
    __shared__ float others[4][QUANT_TILE];
    const int column = threadIdx.x % QUANT_TILE, first = threadIdx.x / QUANT_TILE * 4;
    float sums[4] = {0, 0, 0, 0};
#pragma unroll 4
    for (int row = first; row < QUANT_TILE; row += 8)
#pragma unroll
        for (int i = 0; i < 4; i++) sums[i] += to_float(tile[(row + i) * QUANT_TILE_PITCH + column]);
    if (first)
        for (int i = 0; i < 4; i++) others[i][column] = sums[i];
    __syncthreads();
    if (first || col0 + column >= task.cols) return;
    float total = 0;
    for (int i = 0; i < 8; i++) total += i < 4 ? sums[i % 4] : others[i % 4][column];
    task.partials[row0 / QUANT_TILE * task.cols + col0 + column] = total;
}

template <ScalingRule S, FormatId F, bool EMULATED, typename Source>
__global__ void QUANT_BOUNDS(Source) quant_cast_kernel(QuantTask task, Source source) {
    constexpr bool WHOLE = S == SCALING_TENSOR, LINES = S == SCALING_BLOCK;
    __shared__ __align__(16) __nv_bfloat16 tile[QUANT_TILE * QUANT_TILE_PITCH];
    __shared__ uint32_t row_amax[LINES ? QUANT_TILE : 1], col_amax[LINES ? QUANT_TILE : 1], square_amax[16];
    const size_t across = (task.cols + QUANT_TILE - 1) / QUANT_TILE;
    const size_t row0 = blockIdx.x / across * QUANT_TILE, col0 = blockIdx.x % across * QUANT_TILE;
    QuantPiece pieces[QUANT_PIECES];
    if (LINES && threadIdx.x < QUANT_TILE) col_amax[threadIdx.x] = 0;
    if (threadIdx.x < 16) square_amax[threadIdx.x] = 0;
    quant_load_pieces(pieces, task, source, row0, col0);
    __syncthreads();
    unsigned nonfinite = 0;
    uint32_t amax = 0;
#pragma unroll
    for (int i = 0; i < QUANT_PIECES; i++) {
        const int row = threadIdx.x / 16 + 16 * i, col = threadIdx.x % 16 * PACK;
        const uint32_t piece_amax = quant_piece_amax(pieces[i], nonfinite);
        amax = amax_of(amax, piece_amax);
        store_packed(tile + row * QUANT_TILE_PITCH + col, pieces[i]);
        if (S == SCALING_MX && task.sides[0].square) atomicMax(&square_amax[row / 32 * 4 + col / 32], piece_amax);
    }
    if (nonfinite) atomicAdd(task.state.nonfinite, nonfinite);
    if constexpr (LINES) {
        quant_line_maxima(row_amax, col_amax, pieces, nonfinite);
        amax = amax_lanes(amax, 16, 1);
        if (threadIdx.x % WARP_SIZE == 0) atomicMax(&square_amax[0], amax);
    }
    const float whole = WHOLE ? quant_whole_scale<F>(task) : 1.0f;
    if (WHOLE && task.state.scale) amax_record(task.state.amax, amax);  // delayed: for later steps
    __syncthreads();
#pragma unroll 1
    for (int i = 0; i < task.count; i++) {
        const QuantSide &side = task.sides[i];
        if (side.along_rows)
            quant_cast_side<S, F, EMULATED, true>(tile, task, side, row0, col0, col_amax, square_amax, whole);
        else quant_cast_side<S, F, EMULATED, false>(tile, task, side, row0, col0, row_amax, square_amax, whole);
    }
    if (task.partials) quant_column_sums(tile, task, row0, col0);
}

// ----------------------------------------------------------------------------------------------------------------
// The casts

// One cast: how, and the operand that it fills.
typedef struct {
    QuantSpec spec;
    DeviceOperand *operand;
} QuantCast;

static inline QuantSide quant_side(const QuantCast *cast) {
    const QuantSpec *spec = &cast->spec;
    const DeviceOperand *x = cast->operand;
    QuantSide side = {x->codes,
                      x->format == FORMAT_BF16 ? NULL : (uint8_t *)x->scales,
                      NULL,
                      x->across ? x->k : x->outer,
                      x->across ? x->outer : x->k,
                      x->layout,
                      spec->contraction == CONTRACT_ROWS && !x->across,
                      spec->square,
                      spec->pow2,
                      spec->mx_ocp,
                      spec->stochastic,
                      spec->hadamard,
                      spec->stream};
    return side;
}

// Finds the maxima that the casts need beforehand, and tells each side and operand where they are.
template <ScalingRule S, typename Source>
static inline void quant_find_amax(QuantTask *task, const Source &source, const QuantCast *casts, int amax_known,
                                   uint32_t *scratch, cudaStream_t stream) {
    int plain = 0, transformed = 0;
    const size_t tiles = ceil_div(task->rows, QUANT_TILE) * ceil_div(task->cols, QUANT_TILE);
    uint32_t *row_amax = NULL, *col_amax = NULL;
    for (int i = 0; i < task->count; i++) {
        QuantSide *side = &task->sides[i];
        side->amax = side->hadamard ? task->state.transformed_amax : task->state.amax;
        *(side->hadamard ? &transformed : &plain) = 1;
        if (S == SCALING_TENSOR) casts[i].operand->alpha_part = task->state.decode;
        if (S == SCALING_NV) casts[i].operand->alpha_part = (const float *)side->amax;
        if (S == SCALING_ROW) {
            if (side->along_rows) side->amax = col_amax = scratch + task->rows;
            else side->amax = row_amax = scratch;
        }
    }
    const double bytes = (double)task->rows * (double)task->cols * Source::BYTES;
    if constexpr (S == SCALING_ROW) {
        device_clear(scratch, (task->rows + task->cols) * sizeof *scratch, stream);
        DeviceOp op("quantize: amax of rows, columns", bytes, 0, stream);
        launch(quant_line_amax_kernel<Source>, grid_1d(tiles), QUANT_THREADS, 0, stream, *task, source, row_amax,
               col_amax);
        return;
    }
    if constexpr (S == SCALING_NV) {
        if (transformed) {
            DeviceOp op("quantize: amax, transformed", bytes, 0, stream);
            launch(quant_hadamard_amax_kernel<Source>, grid_1d(tiles), QUANT_THREADS, 0, stream, *task, source);
            return;
        }
    }
    if constexpr (S == SCALING_NV || S == SCALING_TENSOR) {
        if (!plain || amax_known) return;
        DeviceOp op("quantize: amax", bytes, 0, stream);
        launch(quant_amax_kernel<Source>, grid_1d(tiles), QUANT_THREADS, 0, stream, *task, source);
    }
}

// Column sums of a tensor that is cast, for a bias's gradient.
typedef struct {
    float *out;      // (cols) = or, with accumulate, += the sums, bit for bit those of column_sums()
    float *scratch;  // column_sums_scratch_elems(rows, cols); out NULL: no sums are wanted
    int accumulate;
} QuantSums;

// quantize_device: each cast's operand, whose memory is set, = a tensor cast as its spec says
//   S: the specs' scaling, SCALING_TENSOR for delayed, too      count: 1 or 2 casts, of one format
//   source (rows, cols): the tensor, as column_sums.cuh describes tensors, of bf16; cols % 16 == 0; for SCALING_NV one in
//   memory      state: see there
//   amax_known: state.amax holds this tensor's amax already, or (delayed) a scale is known to be in force
//   scratch: quantize_scratch_elems(), for SCALING_ROW; else NULL
//   Of two casts that share their codes (quant_shared) these are written once, to the second's memory.
//   Codes and scales are those of quantize_codes() on the same numbers, with spec.delayed_scale = *state.scale.
static inline size_t quantize_scratch_elems(size_t rows, size_t cols) { return rows + cols; }

template <ScalingRule S, typename Source>
static inline void quantize_device(const QuantCast *casts, int count, const QuantState *state, const Source &source,
                                   const QuantSums *sums, size_t rows, size_t cols, int amax_known, uint32_t *scratch,
                                   cudaStream_t stream) {
    const QuantSpec *spec = &casts[0].spec;
    const bool emulated = casts[0].operand->format == FORMAT_BF16;
    if (count == 2 && quant_shared(casts[0].operand, casts[1].operand)) {
        casts[0].operand->codes = casts[1].operand->codes;
        quantize_device<S>(casts, 1, state, source, sums, rows, cols, amax_known, scratch, stream);
        casts[1].operand->alpha_part = casts[0].operand->alpha_part;
        return;
    }
    if (cols % QUANT_GROUP != 0) die("quantize: %zu columns are no multiple of 16 (a fault of this program)", cols);
    QuantTask task = {rows, cols, sums->out ? sums->scratch : NULL, *state, count, {}, spec->seed, spec->step};
    for (int i = 0; i < count; i++) task.sides[i] = quant_side(&casts[i]);
    quant_find_amax<S>(&task, source, casts, amax_known, scratch, stream);
    const dim3 grid = grid_1d(ceil_div(rows, QUANT_TILE) * ceil_div(cols, QUANT_TILE));
    double bytes = (double)rows * (double)cols * Source::BYTES;
    for (int i = 0; i < count; i++)
        bytes += (double)(quant_code_bytes(casts[i].operand) + quant_scale_bytes(casts[i].operand));
    char name[64];
    snprintf(name, sizeof name, "%s%s", Source::cast_name(), count == 2 ? ", both ways" : "");
    DeviceOp op(name, bytes, 0, stream);
#define QUANT_LAUNCH(format)                                                                                          \
    if (emulated) launch((quant_cast_kernel<S, format, true, Source>), grid, QUANT_THREADS, 0, stream, task, source); \
    else launch((quant_cast_kernel<S, format, false, Source>), grid, QUANT_THREADS, 0, stream, task, source)
    if constexpr (S == SCALING_NV) {
        QUANT_LAUNCH(FORMAT_E2M1);
    } else if (spec->format == FORMAT_E5M2) {
        QUANT_LAUNCH(FORMAT_E5M2);
    } else {
        QUANT_LAUNCH(FORMAT_E4M3);
    }
#undef QUANT_LAUNCH
    if (sums->out)
        sum_partials(sums->out, sums->scratch, ceil_div(rows, QUANT_TILE), cols, cols, sums->accumulate, stream);
}

// The same of a tensor in memory, without sums.
template <ScalingRule S>
static inline void quantize_device(const QuantCast *casts, int count, const QuantState *state, const __nv_bfloat16 *in,
                                   size_t rows, size_t cols, int amax_known, uint32_t *scratch, cudaStream_t stream) {
    const StoredColumns<__nv_bfloat16> source = {in, cols};
    const QuantSums none = {NULL, NULL, 0};
    quantize_device<S>(casts, count, state, source, &none, rows, cols, amax_known, scratch, stream);
}

#endif
