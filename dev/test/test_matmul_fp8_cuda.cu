// test_matmul_fp8_cuda.cu: products of cast operands (matmul_fp8.cuh) of every recipe, against the CPU's casts multiplied
// in double: cast on the device as a linear layer casts them, native where this card has the product and emulated
// everywhere. On a GPU or an emulator, from the same source.
#include <vector>

#include "../../llmc/matmul_fp8.cuh"
#include "other_cards.h"
#include "test.h"

typedef std::vector<float> Floats;

struct DeviceMemory {
    char *memory;
    explicit DeviceMemory(size_t bytes, int fill = 0xff) {
        CUDA_CHECK(cudaMalloc((void **)&memory, bytes + 256));
        CUDA_CHECK(cudaMemset(memory, fill, bytes + 256));
    }
    ~DeviceMemory() { CUDA_CHECK(cudaFree(memory)); }
    DeviceMemory(const DeviceMemory &) = delete;
};

static MatmulScratch *scratch;  // of one recipe: it keeps each kind of product

// About 1, with channels and tokens that are far larger.
static Floats make_data(size_t rows, size_t cols, uint32_t stream) {
    Floats x(rows * cols);
    for (size_t i = 0; i < x.size(); i++) {
        x[i] = (float)(int32_t)rand_u32(77, RAND_TEST, stream, 0, i) * 0x1p-30f;
        if (i % cols % 61 == 7 || i / cols % 53 == 4) x[i] *= 50.0f;
        x[i] = round_bf16(x[i]);
    }
    return x;
}

// ----------------------------------------------------------------------------------------------------------------
// One operand: cast on the device, and what the CPU makes of it as (outer, k)

struct Operand {
    QuantSpec spec;
    DeviceOperand device;
    DeviceMemory *codes, *scales, *words;
    Floats values;
    QuantResult result;

    Operand(ScalingRule scaling, QuantRole role, QuantGemm gemm, const QuantOptions *options, const Floats &in,
            size_t rows, size_t cols, int emulated) {
        spec = quant_spec(scaling, role, gemm, options, 5, 3);
        device = quant_operand(&spec, rows, cols, emulated, quant_card());
        codes = new DeviceMemory(quant_code_bytes(&device));
        scales = new DeviceMemory(quant_scale_bytes(&device));
        words = new DeviceMemory((16 + rows + cols) * 4, 0);
        device.codes = codes->memory;
        device.scales = scales->memory;
        cast_on_device(in, rows, cols);
        cast_on_cpu(in, rows, cols);
    }
    ~Operand() { delete codes, delete scales, delete words; }
    Operand(const Operand &) = delete;

    void cast_on_device(const Floats &in, size_t rows, size_t cols) {
        std::vector<uint16_t> bf16(in.size());
        for (size_t i = 0; i < in.size(); i++) bf16[i] = encode_bf16(in[i]);
        DeviceMemory source(in.size() * 2);
        CUDA_CHECK(cudaMemcpy(source.memory, bf16.data(), in.size() * 2, cudaMemcpyHostToDevice));
        uint32_t *word = (uint32_t *)words->memory;
        const QuantState state = {word, word + 1, word + 2, (float *)word + 3, NULL};
        const QuantCast cast = {spec, &device};
        const __nv_bfloat16 *x = (const __nv_bfloat16 *)source.memory;
        switch (spec.scaling) {
            case SCALING_ROW: quantize_device<SCALING_ROW>(&cast, 1, &state, x, rows, cols, 0, word + 16, 0); break;
            case SCALING_BLOCK: quantize_device<SCALING_BLOCK>(&cast, 1, &state, x, rows, cols, 0, NULL, 0); break;
            case SCALING_MX: quantize_device<SCALING_MX>(&cast, 1, &state, x, rows, cols, 0, NULL, 0); break;
            case SCALING_NV: quantize_device<SCALING_NV>(&cast, 1, &state, x, rows, cols, 0, NULL, 0); break;
            default: quantize_device<SCALING_TENSOR>(&cast, 1, &state, x, rows, cols, 0, NULL, 0);
        }
        CUDA_CHECK(cudaDeviceSynchronize());
    }

    void cast_on_cpu(Floats in, size_t rows, size_t cols) {
        if (spec.hadamard) rows = round_up(rows, HADAMARD_SIZE);
        in.resize(rows * cols, 0.0f);
        Floats flat(rows * cols);
        cpu::quantize_operand(flat.data(), &result, in.data(), rows, cols, &spec);
        values.assign(device.outer * device.k, 0.0f);
        for (size_t row = 0; row < rows; row++)
            for (size_t col = 0; col < cols; col++) {
                const size_t to = spec.contraction == CONTRACT_ROWS ? col * device.k + row : row * device.k + col;
                values[to] = flat[row * cols + col];
            }
    }
};

// ----------------------------------------------------------------------------------------------------------------
// One product

// What the library is expected to have.
static int has_product(ScalingRule scaling) {
    const int cc = device_info()->cc;
    switch (scaling) {
        case SCALING_ROW:
        case SCALING_BLOCK: return cc == 90 || cc >= 100;
        case SCALING_MX:
        case SCALING_NV: return cc >= 100;
        default: return cc >= 89;
    }
}

// out (b.outer, a.outer) after `product` on the device; it holds `before` at first.
template <typename Product>
static Floats run(Product product, const Floats &before, int bf16) {
    DeviceMemory out(before.size() * 4);
    Floats result(before.size());
    std::vector<uint16_t> codes(before.size());
    if (!bf16) CUDA_CHECK(cudaMemcpy(out.memory, before.data(), before.size() * 4, cudaMemcpyHostToDevice));
    product(out.memory);
    CUDA_CHECK(cudaDeviceSynchronize());
    CUDA_CHECK(cudaMemcpy(bf16 ? (void *)codes.data() : (void *)result.data(), out.memory,
                          before.size() * (bf16 ? 2 : 4), cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < result.size() && bf16; i++) result[i] = decode_bf16(codes[i]);
    return result;
}

static void check_against_cpu(const char *what, const Floats &got, const Floats &before, const Operand &a,
                              const Operand &b, int accumulate, int bf16) {
    const double alpha = quant_alpha(&a.result, &b.result);
    const size_t k = a.device.k, columns = a.device.outer;
    double worst = 0;
    size_t worst_at = 0;
    for (size_t i = 0; i < got.size(); i++) {
        const float *x = &a.values[i % columns * k], *y = &b.values[i / columns * k];
        double sum = 0, magnitude = 0;
        for (size_t j = 0; j < k; j++) {
            sum += (double)x[j] * y[j];
            magnitude += fabs((double)x[j] * y[j]);
        }
        const double want = alpha * sum + (accumulate ? before[i] : 0.0);
        const double limit = fabs(want) * (bf16 ? 0x1.01p-8 : 0x1p-22) + alpha * magnitude * sqrt((double)k) * 0x1p-23;
        const double share = fabs(got[i] - want) / (limit + 1e-30);
        if (!(share <= worst)) worst = share == share ? share : 1e30, worst_at = i;
    }
    CHECK(worst <= 1, "%s: element %zu is off by %.3g of the limit: %g", what, worst_at, worst, got[worst_at]);
}

static void check_product(const char *name, ScalingRule scaling, const QuantOptions *options, QuantGemm gemm, size_t N,
                          size_t C, size_t OC, int emulated) {
    static const char *const products[] = {"fprop", "dgrad", "wgrad"};
    char what[160];
    snprintf(what, sizeof what, "%s, %s, N=%zu C=%zu OC=%zu%s", name, products[gemm], N, C, OC,
             emulated ? ", emulated" : "");
    const QuantRole a_role = gemm == GEMM_WGRAD ? QUANT_X : QUANT_W, b_role = gemm == GEMM_FPROP ? QUANT_X : QUANT_DY;
    const Floats x = make_data(N, C, 1), w = make_data(OC, C, 2), dout = make_data(N, OC, 3);
    Operand a(scaling, a_role, gemm, options, a_role == QUANT_X ? x : w, a_role == QUANT_X ? N : OC, C, emulated);
    Operand b(scaling, b_role, gemm, options, b_role == QUANT_X ? x : dout, N, b_role == QUANT_X ? C : OC, emulated);
    const int32_t out_type = gemm == GEMM_WGRAD ? CUDA_R_32F : CUDA_R_16BF;
    const cublasStatus_t status = matmul_cast_query(scratch, out_type, &a.device, &b.device, gemm == GEMM_FPROP);
    const int expected = emulated || has_product(scaling);
    // cuBLASLt wants blocks of 128 to come in four columns at least
    const int refused =
        !emulated && a.device.layout >= SCALES_VEC128 && a.device.layout <= SCALES_BLK128 && b.device.outer % 4 != 0;
    CHECK((status == CUBLAS_STATUS_SUCCESS) == (expected && !refused), "%s: cuBLASLt says %s", what,
          cublasLtGetStatusName(status));
    if (status != CUBLAS_STATUS_SUCCESS) return;
    const size_t elems = a.device.outer * b.device.outer;
    Floats before(elems);
    for (size_t i = 0; i < elems; i++) before[i] = 0.1f * (float)(i % 7);
    for (int accumulate = 0; accumulate <= (gemm == GEMM_WGRAD); accumulate++) {
        const Floats out = run(
            [&](void *d) {
                if (gemm == GEMM_FPROP) matmul_forward_cast(scratch, (__nv_bfloat16 *)d, &b.device, &a.device, 1, 0);
                else if (gemm == GEMM_DGRAD)
                    matmul_backward_input_cast(scratch, (__nv_bfloat16 *)d, &b.device, &a.device, 0);
                else matmul_backward_weight_cast(scratch, (float *)d, &b.device, &a.device, accumulate, 0);
            },
            before, gemm != GEMM_WGRAD);
        check_against_cpu(what, out, before, a, b, accumulate, gemm != GEMM_WGRAD);
    }
}

// Tokens of whole blocks and not, features that blocks of 128 divide and not.
static const size_t shapes[][3] = {{37, 48, 144}, {100, 288, 144}, {96, 64, 160}};  // the last one's may lie across
static int native_only;

static void check_recipe(const char *name, ScalingRule scaling, const QuantOptions *options) {
    DeviceMemory workspace(matmul_scratch_bytes());
    scratch = matmul_scratch(workspace.memory, matmul_scratch_bytes());
    for (const auto &shape : shapes)
        for (int gemm = GEMM_FPROP; gemm <= GEMM_WGRAD; gemm++)
            for (int emulated = 0; emulated < 2 - native_only; emulated++) {
                if (emulated && options->block_fp32) continue;  // bf16 does not hold its values
                check_product(name, scaling, options, (QuantGemm)gemm, shape[0], shape[1], shape[2], emulated);
            }
    matmul_scratch_free(scratch);
}

TEST(tensor) {
    QuantOptions options = quant_default_options(9);
    check_recipe("tensor", SCALING_TENSOR, &options);
    options.hybrid = 0;
    check_recipe("tensor, e4m3", SCALING_TENSOR, &options);
}

TEST(row) {
    QuantOptions options = quant_default_options(9);
    check_recipe("row", SCALING_ROW, &options);
    options.hybrid = 1;
    check_recipe("row, hybrid", SCALING_ROW, &options);
}

TEST(block) {
    QuantOptions options = quant_default_options(9);
    check_recipe("block", SCALING_BLOCK, &options);
    options.block_fp32 = options.hybrid = 1;
    if (device_info()->cc == 90) check_recipe("block, fp32 scales, hybrid", SCALING_BLOCK, &options);
}

TEST(mx) {
    QuantOptions options = quant_default_options(9);
    check_recipe("mx", SCALING_MX, &options);
    options.mx_square_weights = options.hybrid = 1;
    check_recipe("mx, square weights, hybrid", SCALING_MX, &options);
}

TEST(nv) {
    QuantOptions options = quant_default_options(9);
    check_recipe("nv", SCALING_NV, &options);
    options.nv_plain = 1;
    check_recipe("nv, plain", SCALING_NV, &options);
}

#ifdef EMU
static const char *program;

TEST(other_architectures) {
    check_other_cards(program, "native");
}
#endif

int main(int argc, char **argv) {
    native_only = argc > 1;
    RUN(tensor);
    RUN(row);
    RUN(block);
    RUN(mx);
    RUN(nv);
#ifdef EMU
    program = argv[0];
    if (!native_only) RUN(other_architectures);
#else
    (void)argv;
#endif
    return test_summary();
}
