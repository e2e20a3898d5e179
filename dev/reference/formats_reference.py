#!/usr/bin/env python3
"""Compares llmc/formats.h and quantize.h with ml_dtypes and numpy, which nobody here wrote.

    pip install ml_dtypes numpy;  python3 dev/reference/formats_reference.py [--cc gcc] [--samples 4000000]

Builds a small shared library from the headers and checks, on random bit patterns, all codes and the neighbourhoods of
all codes and midpoints:
  * casts to bf16, fp16, e4m3, e5m2, e2m1 and e8m0 bit for bit (NaN as "both NaN"; ml_dtypes does not saturate, so
    magnitudes beyond the format's range are clamped first, as with any reference that does not);
  * decoding of every code;
  * scales and codes of mx and nv blocks, from numpy's float32 arithmetic;
  * a linear layer in e4m3 with tensor scales, quantised by ml_dtypes, multiplied in double and rescaled.
Prints one line each and ends "N passed, N failed".
"""
import argparse
import ctypes
import os
import subprocess
import sys
import tempfile

import ml_dtypes
import numpy as np

SOURCE = r"""
#include "llmc/quantize.h"
#define CAST(name, type) \
    void cast_##name(type *out, const float *in, size_t n) { \
        for (size_t i = 0; i < n; i++) out[i] = encode_##name(in[i]); \
    } \
    void back_##name(float *out, const type *in, size_t n) { \
        for (size_t i = 0; i < n; i++) out[i] = decode_##name(in[i]); \
    }
CAST(bf16, uint16_t)
CAST(fp16, uint16_t)
CAST(e4m3, uint8_t)
CAST(e5m2, uint8_t)
CAST(e2m1, uint8_t)
CAST(e8m0, uint8_t)
// recipe 0: tensor, 1: mx, 2: nv, as fprop casts x
float operand_codes(int recipe, uint8_t *codes, uint8_t *scales, const float *in, size_t rows, size_t cols) {
    static const ScalingRule rules[] = {SCALING_TENSOR, SCALING_MX, SCALING_NV};
    QuantOptions options = quant_default_options(0);
    QuantSpec spec = quant_spec(rules[recipe], QUANT_X, GEMM_FPROP, &options, 0, 0);
    QuantResult result;
    quantize_codes(codes, NULL, scales, &result, in, rows, cols, &spec, NULL);
    return result.decode;
}
"""
# name: reference type, code type, largest magnitude kept before the reference's cast (None: it overflows as we do)
FORMATS = {
    "bf16": (ml_dtypes.bfloat16, np.uint16, None),
    "fp16": (np.float16, np.uint16, None),
    "e4m3": (ml_dtypes.float8_e4m3fn, np.uint8, 448.0),
    "e5m2": (ml_dtypes.float8_e5m2, np.uint8, 57344.0),
    "e2m1": (ml_dtypes.float4_e2m1fn, np.uint8, 6.0),
}
passed = failed = 0


def report(name, ok, detail=""):
    global passed, failed
    passed, failed = passed + ok, failed + (not ok)
    print("ok   " if ok else "FAIL ", name, detail)


def pointer(array):
    return array.ctypes.data_as(ctypes.c_void_p)


def build(cc):
    folder = tempfile.mkdtemp()
    source, library = os.path.join(folder, "formats.c"), os.path.join(folder, "formats.so")
    with open(source, "w") as f:
        f.write(SOURCE)
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    subprocess.check_call([cc, "-std=gnu11", "-I" + root, "-O2", "-ffp-contract=off", "-Wno-unknown-pragmas", "-shared",
                           "-fPIC", source, "-o", library, "-lm"])
    handle = ctypes.CDLL(library)
    handle.operand_codes.restype = ctypes.c_float
    return handle


def samples(reference, code_type, codes, count):
    """Random patterns, and each code's value and each midpoint with two neighbours on both sides."""
    rng = np.random.default_rng(1)
    random = rng.integers(0, 2**32, count, dtype=np.uint64).astype(np.uint32)
    values = np.arange(codes, dtype=code_type).view(reference).astype(np.float32)
    finite = np.sort(values[np.isfinite(values)])
    anchors = np.concatenate([finite, (finite[1:] / 2 + finite[:-1] / 2).astype(np.float32)]).view(np.uint32)
    near = (anchors[:, None] + np.arange(-2, 3, dtype=np.int64)[None, :].astype(np.uint32)).ravel()
    return np.concatenate([random, near]).view(np.float32)


def check_casts(library, count):
    for name, (reference, code_type, limit) in FORMATS.items():
        codes = 16 if name == "e2m1" else 2 ** (8 * np.dtype(code_type).itemsize)
        x = samples(reference, code_type, codes, count)
        ours = np.empty(x.size, code_type)
        getattr(library, "cast_" + name)(pointer(ours), pointer(x), ctypes.c_size_t(x.size))
        clamped = x if limit is None else np.where(np.isnan(x), x, np.clip(x, -limit, limit))
        with np.errstate(all="ignore"):
            theirs = clamped.astype(reference).view(code_type)
        nan = np.isnan(x)
        wrong = np.count_nonzero((ours != theirs) & ~nan)
        if name == "e2m1":  # no NaN: +6
            wrong += np.count_nonzero(ours[nan] != 7)
        else:
            wrong += np.count_nonzero(~np.isnan(ours[nan].view(reference).astype(np.float32)))
        report("cast to " + name, wrong == 0, f"{x.size} inputs, {wrong} differ")
        every = np.arange(codes, dtype=code_type)
        back = np.empty(codes, np.float32)
        getattr(library, "back_" + name)(pointer(back), pointer(every), ctypes.c_size_t(codes))
        expected = every.view(reference).astype(np.float32)
        same = (back.view(np.uint32) == expected.view(np.uint32)) | (np.isnan(back) & np.isnan(expected))
        report("decode " + name, same.all(), f"{codes} codes")


def check_e8m0(library):
    every = np.arange(256, dtype=np.uint8)
    back, again = np.empty(256, np.float32), np.empty(256, np.uint8)
    library.back_e8m0(pointer(back), pointer(every), ctypes.c_size_t(256))
    library.cast_e8m0(pointer(again), pointer(back), ctypes.c_size_t(256))
    expected = every.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    same = (back.view(np.uint32) == expected.view(np.uint32)) | (np.isnan(back) & np.isnan(expected))
    report("decode and encode e8m0", same.all() and (again == every).all(), "256 codes")


def operand_codes(library, recipe, x, block):
    codes, scales = np.empty(x.shape, np.uint8), np.empty((x.shape[0], max(x.shape[1] // block, 1)), np.uint8)
    decode = library.operand_codes(recipe, pointer(codes), pointer(scales), pointer(x), ctypes.c_size_t(x.shape[0]),
                                   ctypes.c_size_t(x.shape[1]))
    return codes, scales, decode


def check_blocks(library):
    """mx and nv scales and codes from numpy's float32 arithmetic."""
    rng = np.random.default_rng(3)
    f32, e4m3 = np.float32, ml_dtypes.float8_e4m3fn
    x = rng.standard_normal((256, 1024), dtype=f32) * np.exp2(rng.integers(-12, 12, (256, 1024))).astype(f32)
    blocks = x.reshape(256, 32, 32)
    amax = np.abs(blocks).max(2, keepdims=True)
    exponent = np.ceil(np.log2(amax.astype(np.float64) / 448)).astype(np.int64)
    expected = (blocks * np.exp2(-exponent).astype(f32)).astype(e4m3).view(np.uint8).reshape(x.shape)
    codes, scales, _ = operand_codes(library, 1, x, 32)
    equal = (codes == expected).all() and (scales == exponent[:, :, 0] + 127).all()
    report("mx blocks", equal, f"{scales.size} blocks")
    blocks = x.reshape(256, 64, 16)
    amax = np.abs(blocks).max(2, keepdims=True)
    tensor = f32(2688) / np.abs(x).max()
    scale = np.minimum(amax * (tensor * (f32(1) / f32(6))), f32(448)).astype(e4m3)
    with np.errstate(divide="ignore"):
        encode = np.minimum(f32(1) / (scale.astype(f32) * (f32(1) / tensor)), np.finfo(f32).max)
    with np.errstate(over="ignore"):
        expected = np.clip(blocks * encode, -6, 6).astype(ml_dtypes.float4_e2m1fn).view(np.uint8).reshape(x.shape)
    codes, scales, _ = operand_codes(library, 2, x, 16)
    equal = (codes == expected).all() and (scales == scale.view(np.uint8)[:, :, 0]).all()
    report("nv blocks", equal, f"{scales.size} blocks")


def check_linear(library):
    rng = np.random.default_rng(2)
    operands = [rng.standard_normal((96, 1024), dtype=np.float32), rng.standard_normal((64, 1024), dtype=np.float32)]
    ours, theirs, codes_equal = [], [], True
    for x in operands:
        codes, _, decode = operand_codes(library, 0, x, x.shape[1])
        ours.append(codes.view(ml_dtypes.float8_e4m3fn).astype(np.float64) * decode)
        scale = np.float32(448) / np.abs(x).max()
        cast = np.clip(x * scale, -448, 448).astype(ml_dtypes.float8_e4m3fn)
        codes_equal &= bool((cast.view(np.uint8) == codes).all())
        theirs.append(cast.astype(np.float64) / np.float64(scale))
    exact, a, b = (p[0].astype(np.float64) @ p[1].astype(np.float64).T for p in (operands, ours, theirs))
    error, between = (np.linalg.norm(v) / np.linalg.norm(exact) for v in (a - exact, a - b))
    report("e4m3 linear layer", codes_equal and 0.035 < error < 0.040 and between < 1e-6,
           f"codes equal: {codes_equal}, error {error:.4f}, between the two {between:.1e}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cc", default="gcc")
    parser.add_argument("--samples", type=int, default=4000000)
    options = parser.parse_args()
    library = build(options.cc)
    check_casts(library, options.samples)
    check_e8m0(library)
    check_blocks(library)
    check_linear(library)
    print(f"{passed} passed, {failed} failed")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
