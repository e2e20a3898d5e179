// test_quantize_cuda.cu: quantize.cuh against quantize.h, bit for bit: codes, scales and maxima of every recipe, for
// every operand as its products read it, native and emulated. On a GPU or an emulator, from the same source.
//
// The CPU's results are laid out here once more as cuBLASLt wants them, padding included, and compared as bytes.
#include <vector>

#include "../../llmc/gelu.cuh"
#include "../../llmc/layernorm.cuh"
#include "../../llmc/quantize.cuh"
#include "test.h"

typedef std::vector<float> Floats;
typedef std::vector<uint8_t> Bytes;

#define GUARD_BYTES ((size_t)256)
#define GUARD_BYTE 0x5a

// Device memory between guards, full of the guard's byte at first.
struct DeviceBytes {
    uint8_t *memory;
    size_t n;
    explicit DeviceBytes(size_t bytes) : n(bytes) {
        CUDA_CHECK(cudaMalloc((void **)&memory, n + 2 * GUARD_BYTES));
        CUDA_CHECK(cudaMemset(memory, GUARD_BYTE, n + 2 * GUARD_BYTES));
    }
    ~DeviceBytes() { CUDA_CHECK(cudaFree(memory)); }
    DeviceBytes(const DeviceBytes &) = delete;
    void *data() const { return memory + GUARD_BYTES; }
    Bytes get(const char *what) const {
        Bytes all(n + 2 * GUARD_BYTES);
        CUDA_CHECK(cudaDeviceSynchronize());
        CUDA_CHECK(cudaMemcpy(all.data(), memory, all.size(), cudaMemcpyDeviceToHost));
        int intact = 1;
        for (size_t i = 0; i < GUARD_BYTES; i++)
            intact &= all[i] == GUARD_BYTE && all[GUARD_BYTES + n + i] == GUARD_BYTE;
        CHECK(intact, "%s: wrote outside its %zu bytes", what, n);
        return Bytes(all.begin() + (long)GUARD_BYTES, all.end() - (long)GUARD_BYTES);
    }
};

// ----------------------------------------------------------------------------------------------------------------
// Operands with something in them

typedef enum {
    DATA_NORMAL,    // about 1, two channels and two tokens far larger
    DATA_ZERO,      // with -0 among them
    DATA_SPARSE,    // most blocks zero
    DATA_BINADES,   // any magnitude that bf16 has
    DATA_TINY,      // the smallest of all
    DATA_PATTERNS,  // any 16 bits: NaN and Inf among them
    DATA_NAN,       // one NaN in each row and column: at each position of a block
    DATA_INF,       // one Inf
    DATA_KINDS
} DataKind;

static uint32_t random_bits(uint64_t i) { return rand_u32(77, RAND_TEST, 0, 0, i); }

static Floats make_data(DataKind kind, size_t rows, size_t cols, uint64_t seed) {
    Floats x(rows * cols);
    for (size_t i = 0; i < x.size(); i++) {
        const size_t row = i / cols, col = i % cols;
        const uint32_t bits = random_bits(seed << 32 | i);
        float value = (float)(int32_t)bits * 0x1p-30f;
        if (kind == DATA_ZERO) value = bits & 1 ? 0.0f : -0.0f;
        if (kind == DATA_SPARSE) value = row % 48 == 5 && col % 80 == 3 ? value : 0.0f;
        if (kind == DATA_NORMAL && (col % 61 == 7 || row % 53 == 4)) value *= 300.0f;
        if (kind == DATA_BINADES) value = float_of_bits((bits & 0x7fffffffu) < 0x7f000000u ? bits : bits & 0x80ffffffu);
        if (kind == DATA_TINY) value = float_of_bits((bits & 0x80000000u) | (bits % 3) << 16);
        if (kind == DATA_PATTERNS) value = float_of_bits(bits & 0xffff0000u);
        if (kind == DATA_NAN && row % cols == col) value = NAN;
        if (kind == DATA_INF && i == x.size() / 3) value = -INFINITY;
        x[i] = round_bf16(value);
    }
    return x;
}

// ----------------------------------------------------------------------------------------------------------------
// What the CPU makes of it, laid out for the device

struct Expected {
    Bytes codes, scales;
    float amax, decode;
    uint64_t nonfinite;
};

// A cast of the CPU's: codes or values (rows, cols) and the scales of its grid.
struct CpuCast {
    size_t rows, cols;
    QuantGrid grid;
    Bytes codes, scale_codes;
    Floats values, decode;
    QuantResult result;
};

static CpuCast cast_on_cpu(const QuantSpec *spec, const Floats &in, size_t rows, size_t cols) {
    CpuCast c;
    c.rows = spec->hadamard ? round_up(rows, HADAMARD_SIZE) : rows;
    c.cols = cols;
    Floats padded = in, scratch(c.rows * cols);
    padded.resize(c.rows * cols, 0.0f);
    c.grid = quant_grid(spec, c.rows, cols);
    c.codes.resize(c.rows * cols);
    c.values.resize(c.rows * cols);
    c.scale_codes.resize(c.grid.grid_rows * c.grid.grid_cols);
    c.decode.resize(c.grid.grid_rows * c.grid.grid_cols);
    cpu::quantize_operand(c.values.data(), &c.result, padded.data(), c.rows, cols, spec);
    cpu::quantize_codes(c.codes.data(), c.decode.data(), c.scale_codes.data(), &c.result, padded.data(), c.rows, cols,
                        spec, scratch.data());
    return c;
}

static void put_float(Bytes &bytes, size_t index, float value) {
    memcpy(&bytes[index * sizeof value], &value, sizeof value);
}

// Scale of outer index o and block b of `length` along k to where the layout has it.
static void put_scale(Bytes &scales, const DeviceOperand *x, size_t o, size_t b, float decode, uint8_t code) {
    size_t blocks128 = ceil_div(x->k, 128);
    switch (x->layout) {
        case SCALES_OUTER: put_float(scales, o, decode); break;
        case SCALES_VEC128: put_float(scales, b * round_up(x->outer, 4) + o, decode); break;
        case SCALES_BLK128: put_float(scales, o / 128 * round_up(blocks128, 4) + b, decode); break;
        default: {
            size_t blocks = ceil_div(x->k, x->layout == SCALES_TILED_16 ? 16 : 32), tiles = ceil_div(blocks, 4);
            size_t repeat = x->scaling == SCALING_ROW ? blocks : x->scaling == SCALING_BLOCK ? 4 : 1;
            for (size_t small = b * repeat; small < b * repeat + repeat && small < blocks; small++)
                scales[(o / 128 * tiles + small / 4) * 512 + o % 32 * 16 + o % 128 / 32 * 4 + small % 4] =
                    repeat > 1 || x->scaling == SCALING_ROW ? encode_e8m0(decode) : code;
        }
    }
}

static Expected expected(const QuantSpec *spec, const DeviceOperand *x, const Floats &in, size_t rows, size_t cols) {
    const CpuCast c = cast_on_cpu(spec, in, rows, cols);
    const int along_rows = spec->contraction == CONTRACT_ROWS;
    Expected e = {Bytes(quant_code_bytes(x)), Bytes(quant_scale_bytes(x)), c.result.amax, c.result.decode,
                  c.result.nonfinite};
    for (size_t row = 0; row < c.rows; row++)
        for (size_t col = 0; col < c.cols; col++) {
            const size_t o = along_rows ? col : row, k = along_rows ? row : col, at = row * c.cols + col;
            const uint16_t value = encode_bf16(c.values[at]);
            if (x->format == FORMAT_BF16) memcpy(&e.codes[2 * (o * x->k + k)], &value, 2);
            else if (x->format == FORMAT_E2M1) e.codes[(o * x->k + k) / 2] |= (uint8_t)(c.codes[at] << k % 2 * 4);
            else e.codes[x->across ? k * x->outer + o : o * x->k + k] = c.codes[at];
        }
    const size_t length = spec->scaling == SCALING_BLOCK ? 128 : spec->scaling == SCALING_MX ? 32 : 16;
    for (size_t o = 0; o < x->outer && !e.scales.empty(); o++)
        for (size_t b = 0; b * length < (along_rows ? c.rows : c.cols); b++) {
            const size_t k = b * length, row = along_rows ? k : o, col = along_rows ? o : k;
            const size_t i = row / c.grid.block_rows * c.grid.grid_cols + col / c.grid.block_cols;
            if (spec->scaling != SCALING_ROW || b == 0) put_scale(e.scales, x, o, b, c.decode[i], c.scale_codes[i]);
        }
    return e;
}

// ----------------------------------------------------------------------------------------------------------------
// One tensor's casts on the device

struct Words {
    uint32_t amax, transformed_amax;
    unsigned nonfinite;
    float decode, scale;
};

static void compare_bytes(const char *what, const Bytes &got, const Bytes &want) {
    size_t wrong = 0, first = 0;
    for (size_t i = got.size(); i-- > 0;)
        if (got[i] != want[i]) wrong++, first = i;
    CHECK(wrong == 0, "%s: %zu of %zu bytes differ, first %zu: %02x, expected %02x", what, wrong, got.size(), first,
          got[first], want[first]);
}

// bf16 values: any NaN is as good as another.
static void compare_values(const char *what, const Bytes &got, const Bytes &want) {
    size_t wrong = 0, first = 0;
    for (size_t i = got.size() / 2; i-- > 0;) {
        uint16_t a, b;
        memcpy(&a, &got[2 * i], 2);
        memcpy(&b, &want[2 * i], 2);
        if (a != b && !((a & 0x7fff) > 0x7f80 && (b & 0x7fff) > 0x7f80)) wrong++, first = i;
    }
    CHECK(wrong == 0, "%s: %zu of %zu values differ, first %zu: %02x%02x, expected %02x%02x", what, wrong,
          got.size() / 2, first, got[2 * first + 1], got[2 * first], want[2 * first + 1], want[2 * first]);
}

static void quantize(const QuantCast *casts, int count, const QuantState *state, const __nv_bfloat16 *in, size_t rows,
                     size_t cols, int amax_known, uint32_t *scratch) {
    switch (casts[0].spec.scaling) {
        case SCALING_TENSOR:
        case SCALING_DELAYED:
            quantize_device<SCALING_TENSOR>(casts, count, state, in, rows, cols, amax_known, scratch, 0);
            break;
        case SCALING_ROW:
            quantize_device<SCALING_ROW>(casts, count, state, in, rows, cols, amax_known, scratch, 0);
            break;
        case SCALING_BLOCK:
            quantize_device<SCALING_BLOCK>(casts, count, state, in, rows, cols, amax_known, scratch, 0);
            break;
        case SCALING_MX:
            quantize_device<SCALING_MX>(casts, count, state, in, rows, cols, amax_known, scratch, 0);
            break;
        default: quantize_device<SCALING_NV>(casts, count, state, in, rows, cols, amax_known, scratch, 0);
    }
}

// How operands are held: as codes, as codes with 128-blocks' scales in 32-blocks' tiles, as the tensor lies where that
// will do, as bf16 values.
typedef enum { HELD_NATIVE, HELD_TILED, HELD_ACROSS, HELD_EMULATED, HELD_KINDS } Held;

static void check_casts(const char *name, const QuantSpec *specs, int count, const Floats &in, size_t rows, size_t cols,
                        Held held, float delayed_scale, int amax_known) {
    static const char *const suffixes[] = {"", ", tiled scales", ", across", ", emulated"};
    const QuantCard card = {held == HELD_TILED, held == HELD_ACROSS};
    DeviceBytes source(in.size() * 2), words(sizeof(Words)), scratch(quantize_scratch_elems(rows, cols) * 4);
    std::vector<uint16_t> bf16(in.size());
    for (size_t i = 0; i < in.size(); i++) {
        memcpy(&bf16[i], (const char *)&in[i] + 2, 2);
    }
    CUDA_CHECK(cudaMemcpy(source.data(), bf16.data(), bf16.size() * 2, cudaMemcpyHostToDevice));
    Words w = {0, 0, 0, 0, delayed_scale};
    Words *d = (Words *)words.data();
    QuantState state = {&d->amax, &d->transformed_amax, &d->nonfinite, &d->decode,
                        specs[0].scaling == SCALING_DELAYED ? &d->scale : NULL};
    DeviceOperand operands[2];
    QuantCast casts[2];
    std::vector<Expected> want;
    std::vector<DeviceBytes *> memory;
    for (int i = 0; i < count; i++) {
        casts[i].spec = specs[i];
        casts[i].spec.delayed_scale = delayed_scale;
        operands[i] = quant_operand(&specs[i], rows, cols, held == HELD_EMULATED, card);
        memory.push_back(new DeviceBytes(quant_code_bytes(&operands[i])));
        memory.push_back(new DeviceBytes(quant_scale_bytes(&operands[i])));
        operands[i].codes = memory[2 * i]->data();
        operands[i].scales = memory[2 * i + 1]->data();
        casts[i].operand = &operands[i];
        want.push_back(expected(&casts[i].spec, &operands[i], in, rows, cols));
        if (amax_known && !specs[i].hadamard) w.amax = bits_of_float(want[i].amax);
    }
    const int shared = count == 2 && quant_shared(&operands[0], &operands[1]);
    CUDA_CHECK(cudaMemcpy(d, &w, sizeof w, cudaMemcpyHostToDevice));
    quantize(casts, count, &state, (const __nv_bfloat16 *)source.data(), rows, cols, amax_known,
             (uint32_t *)scratch.data());
    const Bytes after = words.get(name);
    memcpy(&w, after.data(), sizeof w);
    scratch.get(name);
    for (int i = 0; i < count; i++) {
        char what[160];
        const Bytes codes = memory[shared ? 2 : 2 * i]->get(name);
        const int whole = specs[i].scaling == SCALING_TENSOR || specs[i].scaling == SCALING_DELAYED;
        snprintf(what, sizeof what, "%s%s, (%zu, %zu)%s, codes", name, suffixes[held], rows, cols,
                 specs[i].contraction == CONTRACT_ROWS ? " transposed" : "");
        if (held == HELD_EMULATED) compare_values(what, codes, want[i].codes);
        else compare_bytes(what, codes, want[i].codes);
        memcpy(what + strlen(what) - 5, "scales", 7);
        compare_bytes(what, memory[2 * i + 1]->get(what), want[i].scales);
        if (whole || specs[i].scaling == SCALING_NV) {
            const uint32_t amax = specs[i].hadamard ? w.transformed_amax : w.amax;
            CHECK(amax == bits_of_float(want[i].amax), "%s: amax %g, expected %g", what, float_of_bits(amax),
                  want[i].amax);
        }
        if (whole)
            CHECK(bits_of_float(w.decode) == bits_of_float(want[i].decode), "%s: decode scale %g, expected %g", what,
                  w.decode, want[i].decode);
        CHECK(w.nonfinite == want[i].nonfinite, "%s: %u not finite, expected %llu", what, w.nonfinite,
              (unsigned long long)want[i].nonfinite);
    }
    for (DeviceBytes *bytes : memory) delete bytes;
}

// ----------------------------------------------------------------------------------------------------------------
// Recipes

static const size_t shapes[][2] = {{1, 16},    {7, 48},    {16, 32},   {33, 128},
                                   {128, 144}, {130, 272}, {160, 224}, {200, 16}};
#define SHAPES (sizeof shapes / sizeof *shapes)

// x, w and dY as linear layers cast them: x for each product by itself, the other two for two products at once.
static void check_recipe(const char *name, ScalingRule scaling, const QuantOptions *options, int tiled,
                         float delayed_scale) {
    for (int kind = 0; kind < DATA_KINDS; kind++)
        for (size_t s = 0; s < SHAPES; s++) {
            const size_t rows = shapes[s][0], cols = shapes[s][1];
            const Floats in = make_data((DataKind)kind, rows, cols, (uint64_t)kind * 16 + s + 1);
            const uint32_t stream = 5 + (uint32_t)s, step = 3 + (uint32_t)kind;
            const QuantSpec x[2] = {quant_spec(scaling, QUANT_X, GEMM_FPROP, options, stream, step),
                                    quant_spec(scaling, QUANT_X, GEMM_WGRAD, options, stream, step)};
            const QuantSpec w[2] = {quant_spec(scaling, QUANT_W, GEMM_FPROP, options, stream, step),
                                    quant_spec(scaling, QUANT_W, GEMM_DGRAD, options, stream, step)};
            const QuantSpec dy[2] = {quant_spec(scaling, QUANT_DY, GEMM_DGRAD, options, stream, step),
                                     quant_spec(scaling, QUANT_DY, GEMM_WGRAD, options, stream, step)};
            for (int held = 0; held < HELD_KINDS; held++) {
                if (held == HELD_TILED && !tiled) continue;
                if (held == HELD_ACROSS && scaling != SCALING_TENSOR && scaling != SCALING_DELAYED) continue;
                if (held == HELD_EMULATED && options->block_fp32) continue;  // bf16 does not hold its values
                check_casts(name, &x[0], 1, in, rows, cols, (Held)held, delayed_scale, 0);
                check_casts(name, &x[1], 1, in, rows, cols, (Held)held, delayed_scale, !x[1].hadamard);
                check_casts(name, w, 2, in, rows, cols, (Held)held, delayed_scale, 0);
                check_casts(name, dy, 2, in, rows, cols, (Held)held, delayed_scale, 0);
            }
        }
}

TEST(tensor) {
    QuantOptions options = quant_default_options(9);
    check_recipe("tensor", SCALING_TENSOR, &options, 0, 0);
    options.tensor_pow2 = 1;
    options.hybrid = 0;
    check_recipe("tensor, powers of two, e4m3", SCALING_TENSOR, &options, 0, 0);
}

TEST(delayed) {
    const QuantOptions options = quant_default_options(9);
    check_recipe("delayed, first step", SCALING_DELAYED, &options, 0, 0);
    check_recipe("delayed", SCALING_DELAYED, &options, 0, 37.5f);
    check_recipe("delayed, largest scale", SCALING_DELAYED, &options, 0, FLT_MAX);
}

TEST(row) {
    QuantOptions options = quant_default_options(9);
    check_recipe("row", SCALING_ROW, &options, 1, 0);
    options.hybrid = 1;
    check_recipe("row, hybrid", SCALING_ROW, &options, 0, 0);
}

TEST(block) {
    QuantOptions options = quant_default_options(9);
    check_recipe("block", SCALING_BLOCK, &options, 1, 0);
    options.block_fp32 = options.hybrid = 1;
    check_recipe("block, fp32 scales, hybrid", SCALING_BLOCK, &options, 0, 0);
}

TEST(mx) {
    QuantOptions options = quant_default_options(9);
    check_recipe("mx", SCALING_MX, &options, 0, 0);
    options.mx_ocp = options.mx_square_weights = options.hybrid = 1;
    check_recipe("mx, ocp, square weights, hybrid", SCALING_MX, &options, 0, 0);
}

TEST(nv) {
    QuantOptions options = quant_default_options(0x123456789abcdefull);
    check_recipe("nv", SCALING_NV, &options, 0, 0);
    options.nv_plain = 1;
    check_recipe("nv, plain", SCALING_NV, &options, 0, 0);
}

// ----------------------------------------------------------------------------------------------------------------
// Tensors that the casts make: the bits of a kernel that stores the tensor, and a cast that reads it.

typedef __nv_bfloat16 Bf16;

static void upload_bf16(const DeviceBytes &to, const Floats &values) {
    std::vector<uint16_t> codes(values.size());
    for (size_t i = 0; i < values.size(); i++) memcpy(&codes[i], (const char *)&values[i] + 2, 2);
    CUDA_CHECK(cudaMemcpy(to.data(), codes.data(), codes.size() * 2, cudaMemcpyHostToDevice));
}

// Codes, scales, words and column sums of `source` cast for two products.
template <ScalingRule S, typename Source>
static std::vector<Bytes> cast_made(const Source &source, const QuantSpec *specs, size_t rows, size_t cols, Held held,
                                    float delayed_scale) {
    const QuantCard card = {held == HELD_TILED, held == HELD_ACROSS};
    DeviceBytes words(sizeof(Words)), scratch(quantize_scratch_elems(rows, cols) * 4), sums(cols * 4),
        partials(column_sums_scratch_elems(rows, cols) * 4);
    Words w = {0, 0, 0, 0, delayed_scale}, *d = (Words *)words.data();
    QuantState state = {&d->amax, &d->transformed_amax, &d->nonfinite, &d->decode,
                        specs[0].scaling == SCALING_DELAYED ? &d->scale : NULL};
    DeviceOperand x[2] = {quant_operand(&specs[0], rows, cols, held == HELD_EMULATED, card),
                          quant_operand(&specs[1], rows, cols, held == HELD_EMULATED, card)};
    const QuantCast casts[2] = {{specs[0], &x[0]}, {specs[1], &x[1]}};
    const QuantSums bias = {(float *)sums.data(), (float *)partials.data(), 0};
    DeviceBytes codes0(quant_code_bytes(&x[0])), codes1(quant_code_bytes(&x[1])), scales0(quant_scale_bytes(&x[0])),
        scales1(quant_scale_bytes(&x[1]));
    x[0].codes = codes0.data();
    x[1].codes = codes1.data();
    x[0].scales = scales0.data();
    x[1].scales = scales1.data();
    CUDA_CHECK(cudaMemcpy(d, &w, sizeof w, cudaMemcpyHostToDevice));
    quantize_device<S>(casts, 2, &state, source, &bias, rows, cols, 0, (uint32_t *)scratch.data(), 0);
    scratch.get("scratch");
    partials.get("partial sums");
    return {codes0.get("codes"),   codes1.get("codes"), scales0.get("scales"),
            scales1.get("scales"), words.get("words"),  sums.get("sums")};
}

template <ScalingRule S, typename Source>
static void check_made(const char *name, ScalingRule scaling, const Source &source, const Bf16 *stored, QuantRole role,
                       size_t rows, size_t cols, float delayed_scale) {
    static const char *const what[] = {"codes", "codes, transposed", "scales", "scales, transposed", "words", "sums"};
    const QuantOptions options = quant_default_options(9);
    const QuantSpec specs[2] = {quant_spec(scaling, role, role == QUANT_X ? GEMM_FPROP : GEMM_DGRAD, &options, 5, 3),
                                quant_spec(scaling, role, GEMM_WGRAD, &options, 5, 3)};
    const StoredColumns<Bf16> in_memory = {stored, cols};
    for (int held = 0; held < HELD_KINDS; held++) {
        const std::vector<Bytes> got = cast_made<S>(source, specs, rows, cols, (Held)held, delayed_scale);
        const std::vector<Bytes> want = cast_made<S>(in_memory, specs, rows, cols, (Held)held, delayed_scale);
        for (size_t i = 0; i < want.size(); i++) {
            char text[160];
            snprintf(text, sizeof text, "%s made by the cast, (%zu, %zu), held %d, %s", name, rows, cols, held, what[i]);
            if (!want[i].empty()) compare_bytes(text, got[i], want[i]);
        }
    }
}

template <typename Source>
static void check_made_by_all(const char *name, const Source &source, const Bf16 *stored, QuantRole role, size_t rows,
                              size_t cols) {
    check_made<SCALING_TENSOR>(name, SCALING_TENSOR, source, stored, role, rows, cols, 0);
    check_made<SCALING_TENSOR>(name, SCALING_DELAYED, source, stored, role, rows, cols, 0);
    check_made<SCALING_TENSOR>(name, SCALING_DELAYED, source, stored, role, rows, cols, 37.5f);
    check_made<SCALING_ROW>(name, SCALING_ROW, source, stored, role, rows, cols, 0);
    check_made<SCALING_BLOCK>(name, SCALING_BLOCK, source, stored, role, rows, cols, 0);
    check_made<SCALING_MX>(name, SCALING_MX, source, stored, role, rows, cols, 0);
}

// GELU, its gradient and layernorm; inputs with NaN and Inf among them, with and without the bias to add.
static void check_made_tensors(DataKind kind, size_t rows, size_t cols, int biased) {
    const size_t n = rows * cols, seed = 40 + kind;
    DeviceBytes inp(n * 2), dout(n * 2), out(n * 2), weight(cols * 2), bias(cols * 2), mean(rows * 4), rstd(rows * 4),
        sums(cols * 4), scratch(column_sums_scratch_elems(rows, cols) * 4);
    upload_bf16(inp, make_data(kind, rows, cols, seed));
    upload_bf16(dout, make_data(DATA_NORMAL, rows, cols, seed + 50));
    upload_bf16(weight, make_data(DATA_NORMAL, 1, cols, seed + 60));
    upload_bf16(bias, make_data(DATA_NORMAL, 1, cols, seed + 70));
    const Bf16 *x = (const Bf16 *)inp.data(), *dy = (const Bf16 *)dout.data(), *b = (const Bf16 *)bias.data();
    const Bf16 *add = biased ? b : NULL;
    Bf16 *y = (Bf16 *)out.data();
    const GeluColumns<Bf16, Bf16> gelu = {x, {add}, cols};
    gelu_forward(y, x, add, rows, cols, 0);
    check_made_by_all("GELU", gelu, y, QUANT_X, rows, cols);
    const LayernormColumns<Bf16, Bf16> norm = {x, (float *)mean.data(), (float *)rstd.data(),
                                               (const Bf16 *)weight.data(), b, cols};
    layernorm_forward(y, norm.mean, norm.rstd, x, norm.weight, b, (uint32_t *)NULL, rows, cols, 0);
    CUDA_CHECK(cudaMemset(mean.data(), 0, rows * 4));
    layernorm_forward((Bf16 *)NULL, norm.mean, norm.rstd, x, norm.weight, b, (uint32_t *)NULL, rows, cols, 0);
    check_made_by_all("layernorm", norm, y, QUANT_X, rows, cols);
    const GeluBackwardColumns<Bf16, Bf16, Bf16> dgelu = {dy, x, {add}, cols};
    gelu_backward_bias(y, (float *)sums.data(), dy, x, add, rows, cols, 0, (float *)scratch.data(), 0);
    check_made_by_all("GELU's gradient", dgelu, y, QUANT_DY, rows, cols);
    const QuantOptions options = quant_default_options(9);
    const QuantSpec specs[2] = {quant_spec(SCALING_TENSOR, QUANT_DY, GEMM_DGRAD, &options, 5, 3),
                                quant_spec(SCALING_TENSOR, QUANT_DY, GEMM_WGRAD, &options, 5, 3)};
    if (kind == DATA_NORMAL)  // NaNs' payloads are as they come
        compare_bytes("sums of a cast against those of column_sums",
                      cast_made<SCALING_TENSOR>(dgelu, specs, rows, cols, HELD_NATIVE, 0)[5], sums.get("sums"));
}

TEST(made_by_the_cast) {
    check_made_tensors(DATA_NORMAL, 1, 48, 1);
    check_made_tensors(DATA_NAN, 65, 80, 0);
    check_made_tensors(DATA_INF, 127, 144, 1);
    check_made_tensors(DATA_NORMAL, 270, 48, 0);
}

// The examples of the formats' papers and libraries that quantize.h is tested with hold through the CPU's codes; what
// is left is the device's own conversion, on patterns around every rounding boundary of 16 leading bits.
static __global__ void encode_kernel(uint16_t *codes, uint32_t low_bits) {
    const uint32_t bits = (blockIdx.x * blockDim.x + threadIdx.x) << 16 | low_bits;
    const float x = float_of_bits(bits);
    codes[bits >> 16] = (uint16_t)(quant_encode_pair<FORMAT_E4M3>(x, 0.0f) | quant_encode_pair<FORMAT_E5M2>(0.0f, x));
}

TEST(device_conversions) {
    static const uint32_t low_bits[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
    DeviceBytes codes(65536 * 2);
    for (uint32_t low : low_bits) {
        launch(encode_kernel, grid_1d(256), 256, 0, 0, (uint16_t *)codes.data(), low);
        const Bytes got = codes.get("codes");
        size_t wrong = 0;
        for (uint32_t high = 0; high < 65536; high++) {
            const float x = float_of_bits(high << 16 | low);
            wrong += got[2 * high] != format_encode(format_info(FORMAT_E4M3), x, 1);
            wrong += got[2 * high + 1] != format_encode(format_info(FORMAT_E5M2), x, 1);
        }
        CHECK(wrong == 0, "low bits %04x: %zu conversions differ from formats.h", low, wrong);
    }
}

TEST(alpha) {
    DeviceBytes memory(4 * sizeof(float));
    float values[4] = {0, 0, 3.3f, 0.7f}, *device = (float *)memory.data();
    CUDA_CHECK(cudaMemcpy(device, values, sizeof values, cudaMemcpyHostToDevice));
    DeviceOperand a, b;
    memset(&a, 0, sizeof a);
    b = a;
    QuantResult ra, rb;
    memset(&ra, 0, sizeof ra);
    rb = ra;
    for (int nv = 0; nv < 2; nv++)
        for (int parts = 0; parts < 2; parts++) {
            a.scaling = b.scaling = nv ? SCALING_NV : SCALING_TENSOR;
            a.alpha_part = parts ? device + 2 : NULL;
            b.alpha_part = parts ? device + 3 : NULL;
            ra.nv = rb.nv = nv;
            ra.amax = ra.decode = parts ? 3.3f : 1.0f;
            rb.amax = rb.decode = parts ? 0.7f : 1.0f;
            quant_alpha_device(device, &a, &b, parts, 0);
            const Bytes got = memory.get("alpha");
            memcpy(values, got.data(), sizeof values);
            CHECK(values[0] == quant_alpha(&ra, &rb) && values[1] == (float)parts, "nv %d: alpha %g, beta %g", nv,
                  values[0], values[1]);
        }
}

int main(void) {
    RUN(tensor);
    RUN(delayed);
    RUN(row);
    RUN(block);
    RUN(mx);
    RUN(nv);
    RUN(made_by_the_cast);
    RUN(device_conversions);
    RUN(alpha);
    return test_summary();
}
