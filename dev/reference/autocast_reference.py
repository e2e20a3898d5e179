#!/usr/bin/env python3
# /// script
# requires-python = ">=3.8"
# dependencies = ["torch", "numpy"]
# ///
"""autocast_reference.py: a fixture of gpt_reference.py's model under PyTorch's autocast to bfloat16 on the CPU.

    python3 dev/reference/autocast_reference.py            writes fixtures/b4_t64_v256_autocast.safetensors again
    python3 dev/reference/autocast_reference.py --errors   how far autocast is from the float64 fixture, tensor by tensor

Weights and AdamW in float32, products in bfloat16 where autocast has them so, the rest as autocast leaves it. Its roundings
are not ours (it keeps the residual stream in float32, for one): the two agree to what bfloat16's own error against
float64 allows, and that is the test in dev/test/precision_modes.c.
"""
import os
import sys

import numpy as np
import torch

import gpt_reference as reference

NAME = "b4_t64_v256"


def main():
    torch.set_num_threads(1)
    row = next(m for m in reference.MODELS if m[0] == NAME)
    c = dict(zip("name L NH C V max_T B T weight_decay clip eps seed".split(), row), steps=reference.STEPS)
    plain = reference.forward

    def forward(p, config, inp):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = plain(p, config, inp)
        assert logits.dtype == torch.bfloat16, "autocast did nothing"
        return logits.float()

    reference.forward = forward
    fixture = reference.make_fixture(c, torch.float32)
    folder = os.path.join(reference.HERE, "fixtures")
    if sys.argv[1:] == ["--errors"]:
        exact = reference.read_safetensors(os.path.join(folder, NAME + ".safetensors"))
        for name in sorted(fixture):
            if name.startswith(("grad.", "logits")) and not name.endswith(".check"):
                error = np.linalg.norm(fixture[name].astype(np.float64) - exact[name]) / np.linalg.norm(exact[name])
                print("%-14s %.2e" % (name, error))
        print("loss", np.abs(fixture["loss"] - exact["loss"]).max(), "norm", np.abs(fixture["norm"] / exact["norm"] - 1).max())
        return
    keep = {n: t for n, t in fixture.items() if not n.startswith("final.")}
    path = os.path.join(folder, NAME + "_autocast.safetensors")
    reference.write_safetensors(path, keep)
    print("%s: %d bytes, loss %.6f -> %.6f" % (path, os.path.getsize(path), fixture["loss"][0], fixture["loss"][-1]))


if __name__ == "__main__":
    main()
