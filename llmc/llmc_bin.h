// llmc_bin.h: llm.c's GPT-2 weight files (gpt2_124M.bin, model_00005000.bin), read only.
//
//     256 int32    magic 20240326, version (3: fp32, 5: bf16), max_T, V, L, NH, C, Vp, zeros
//     parameters   wte (Vp, C), wpe (max_T, C), then ln1w, ln1b, qkvw, ... each as (L, rows, cols): the order and
//                  layout of GPT_PARAMETERS, without gaps
#ifndef LLMC_LLMC_BIN_H
#define LLMC_LLMC_BIN_H

#include "config.h"
#include "safe_file.h"
#include "tensors.h"

#define LLMC_BIN_MAGIC 20240326
#define LLMC_BIN_FP32 3
#define LLMC_BIN_BF16 5
#define LLMC_BIN_HEADER_BYTES ((size_t)1024)

typedef struct {
    int fd;
    char path[SAFE_PATH_BYTES];
    int version;
    GPTConfig config;
    size_t file_Vp;  // rows of wte in the file; config.Vp is this program's own padding
    size_t element_bytes;
} LlmcBin;

// What a file with another magic number is, for the message.
static inline const char *llmc_bin_looks_like(int32_t magic) {
    switch (magic) {
        case 20240327: return "this looks like llm.c's debug state (gpt2_*_debug_state.bin)";
        case 20240328: return "this looks like llm.c's tokenizer (gpt2_tokenizer.bin)";
        case 20240520: return "this looks like a token file: give it to --train or --val";
        case 20240801: return "this looks like a 32-bit token file: give it to --train or --val";
        case 20240522: return "this looks like an evaluation file (use it with --hellaswag)";
        case 20240527: return "this looks like llm.c's optimizer state: the weights are in model_*.bin beside it";
        default: return "it is not a weight file of llm.c";
    }
}

// Byte at which one layer of parameter `index` (of GPT_PARAMETERS) begins; index GPT_PARAMETER_COUNT: the file's size.
static inline uint64_t llmc_bin_offset(const LlmcBin *bin, size_t index, size_t layer) {
    ParameterInfo table[GPT_PARAMETER_COUNT];
    size_t elems = 0;
    parameter_table(&bin->config, table);
    table[0].rows = bin->file_Vp;
    for (size_t i = 0; i < index; i++) elems += parameter_elems(&table[i]);
    if (index < GPT_PARAMETER_COUNT) elems += layer * table[index].rows * table[index].cols;
    return LLMC_BIN_HEADER_BYTES + (uint64_t)elems * bin->element_bytes;
}

static inline int llmc_bin_read_header(LlmcBin *bin, uint64_t file_bytes, Message *message) {
    // Limits that keep every product below in 63 bits, and are far above any model llm.c can hold.
    static const char *const names[6] = {"max_T", "V", "L", "NH", "C", "Vp"};
    static const int32_t limits[6] = {1 << 24, 1 << 24, 1 << 12, 1 << 16, 1 << 16, 1 << 24};
    int32_t header[256];
    if (file_bytes < LLMC_BIN_HEADER_BYTES) {
        message_add(message, "'%s' has %llu bytes, a weight file of llm.c has more than %zu", bin->path,
                    (unsigned long long)file_bytes, LLMC_BIN_HEADER_BYTES);
        return 0;
    }
    if (!safe_read_at(bin->fd, 0, header, sizeof header, bin->path, message)) return 0;
    if (header[0] != LLMC_BIN_MAGIC) {
        message_add(message, "'%s' begins with %d, llm.c's weight files with %d\nwhy: %s", bin->path, header[0],
                    LLMC_BIN_MAGIC, llmc_bin_looks_like(header[0]));
        return 0;
    }
    if (header[1] != LLMC_BIN_FP32 && header[1] != LLMC_BIN_BF16) {
        message_add(message, "'%s' has version %d, this program reads %d (fp32) and %d (bf16)", bin->path, header[1],
                    LLMC_BIN_FP32, LLMC_BIN_BF16);
        return 0;
    }
    for (int i = 0; i < 6; i++)
        if (header[2 + i] < 1 || header[2 + i] > limits[i]) {
            message_add(message, "'%s': its header says %s = %d, not between 1 and %d", bin->path, names[i],
                        header[2 + i], limits[i]);
            return 0;
        }
    bin->version = header[1];
    bin->element_bytes = bin->version == LLMC_BIN_FP32 ? 4 : 2;
    bin->config.max_T = (size_t)header[2];
    config_set_vocab(&bin->config, (size_t)header[3]);
    bin->config.L = (size_t)header[4];
    bin->config.NH = (size_t)header[5];
    bin->config.C = (size_t)header[6];
    bin->file_Vp = (size_t)header[7];
    if (bin->file_Vp < bin->config.V || bin->config.C % bin->config.NH != 0) {
        message_add(message, "'%s': its header says V = %zu, Vp = %zu, C = %zu, NH = %zu, which do not fit each other",
                    bin->path, bin->config.V, bin->file_Vp, bin->config.C, bin->config.NH);
        return 0;
    }
    uint64_t expected = llmc_bin_offset(bin, GPT_PARAMETER_COUNT, 0);
    if (file_bytes == expected) return 1;
    message_add(message,
                "'%s' has %llu bytes, its header (version %d, max_T %zu, V %zu, L %zu, C %zu, Vp %zu) means %llu\n"
                "why: the copy or download was cut short, or the file was altered",
                bin->path, (unsigned long long)file_bytes, bin->version, bin->config.max_T, bin->config.V,
                bin->config.L, bin->config.C, bin->file_Vp, (unsigned long long)expected);
    return 0;
}

static inline void llmc_bin_close(LlmcBin *bin) {
    if (bin->fd >= 0) close(bin->fd);
    bin->fd = -1;
}

// Opens and checks header and size; 1, or 0 with a message (nothing is left open then).
static inline int llmc_bin_open(LlmcBin *bin, const char *path, Message *message) {
    uint64_t bytes = 0;
    memset(bin, 0, sizeof *bin);
    snprintf(bin->path, sizeof bin->path, "%s", path);
    bin->fd = safe_open_read(path, &bytes, message);
    if (bin->fd >= 0 && llmc_bin_read_header(bin, bytes, message)) return 1;
    llmc_bin_close(bin);
    return 0;
}

#endif
