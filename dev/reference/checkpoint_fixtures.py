#!/usr/bin/env python3
# /// script
# requires-python = ">=3.8"
# dependencies = ["torch", "transformers", "safetensors<0.6", "numpy"]
# ///
"""checkpoint_fixtures.py: files written by the safetensors and transformers packages, for this program to read.

    python3 dev/reference/checkpoint_fixtures.py                 writes dev/reference/checkpoint/ again
    python3 dev/reference/checkpoint_fixtures.py --check FILE..  opens safetensors files of ours with the package
    python3 dev/reference/checkpoint_fixtures.py --check-hf DIR  loads a directory of ours with transformers, compares
                                                                 every weight, runs it

    dtypes.safetensors   one tensor of each dtype, odd names, metadata
    gpt2/                GPT2LMHeadModel.save_pretrained() of a tiny model
    gpt2_f16.safetensors GPT2Model (names without "transformer."), half precision, with the buffers old versions kept

Weight i of tensor NAME (in the file's layout) is ((sum of NAME's bytes + i) % 2039 - 1019) / 1024; the tests compute
the same. Written with torch 1.13, transformers 4.38.2, safetensors 0.4.
"""
import os
import sys

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "checkpoint")


def values(name, count):
    import numpy

    start = sum(name.encode())
    return (((numpy.arange(count) + start) % 2039) - 1019).astype(numpy.float32) / 1024


def tiny_model(kind):
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, GPT2Model

    config = GPT2Config(vocab_size=19, n_positions=6, n_embd=8, n_layer=2, n_head=2, bos_token_id=18, eos_token_id=18)
    model = (GPT2LMHeadModel if kind == "lm" else GPT2Model)(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            full = name if name.startswith("transformer.") else "transformer." + name
            parameter.copy_(torch.from_numpy(values(full, parameter.numel())).reshape(parameter.shape))
    return model


def write_dtypes():
    import numpy
    import safetensors

    kinds = {"bool": "?", "uint8": "u1", "int8": "i1", "int16": "i2", "uint16": "u2", "int32": "i4", "uint32": "u4",
             "int64": "i8", "uint64": "u8", "float16": "f2", "float32": "f4", "float64": "f8"}
    tensors = {}
    for i, (name, kind) in enumerate(kinds.items()):
        data = (numpy.arange(6) % 2 if kind == "?" else numpy.arange(6) + i).astype(kind).reshape(2, 3)
        tensors["a." + name] = {"dtype": name, "shape": [2, 3], "data": data.tobytes()}
    halves = (values("bf16", 5).view("u4") >> 16).astype("u2")
    tensors["bf16"] = {"dtype": "bfloat16", "shape": [5], "data": halves.tobytes()}
    tensors["scalar"] = {"dtype": "float32", "shape": [], "data": numpy.float32(2.5).tobytes()}
    tensors["empty"] = {"dtype": "float32", "shape": [0, 7], "data": b""}
    tensors['n\u00e4me "\\\n\U0001f600'] = {"dtype": "uint8", "shape": [1], "data": b"\x2a"}
    with open(os.path.join(HERE, "dtypes.safetensors"), "wb") as f:
        f.write(safetensors.serialize(tensors, {"format": "pt", "k\u00e9y": 'v"\\\u2028'}))


def write_models():
    import torch
    from safetensors.torch import save_file

    tiny_model("lm").save_pretrained(os.path.join(HERE, "gpt2"), safe_serialization=True)
    generation = os.path.join(HERE, "gpt2", "generation_config.json")
    if os.path.exists(generation):
        os.remove(generation)
    state = {k: v.half() for k, v in tiny_model("base").state_dict().items()}
    for layer in range(2):
        state["h.%d.attn.bias" % layer] = torch.tril(torch.ones(6, 6)).to(torch.uint8).reshape(1, 1, 6, 6)
        state["h.%d.attn.masked_bias" % layer] = torch.tensor(-1e4)
    state["lm_head.weight"] = state["wte.weight"].clone()
    save_file(state, os.path.join(HERE, "gpt2_f16.safetensors"), {"format": "pt"})


def check(paths):
    """Prints one line a tensor: name, dtype, shape, sum of its bytes weighted by position (the test compares)."""
    from safetensors import deserialize

    for path in paths:
        with open(path, "rb") as f:
            for name, tensor in sorted(deserialize(f.read())):
                total = sum((i % 251 + 1) * b for i, b in enumerate(bytes(tensor["data"])))
                print(name, tensor["dtype"], "x".join(map(str, tensor["shape"])), total)


def check_hf(directory):
    import torch
    from transformers import GPT2LMHeadModel

    model, info = GPT2LMHeadModel.from_pretrained(directory, output_loading_info=True)
    # torch 1.13 era: attn.bias buffers are not parameters; anything missing or unexpected is a wrong name
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], info
    for name, parameter in model.named_parameters():
        expected = torch.from_numpy(values(name, parameter.numel())).reshape(parameter.shape)
        assert parameter.dtype == torch.float32 and torch.equal(parameter, expected), name
    logits = model(torch.tensor([[1, 2, 3]])).logits
    assert logits.shape == (1, 3, model.config.vocab_size) and torch.isfinite(logits).all()
    print("transformers reads", directory)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--check"]:
        check(sys.argv[2:])
    elif sys.argv[1:2] == ["--check-hf"]:
        check_hf(sys.argv[2])
    else:
        os.makedirs(HERE, exist_ok=True)
        write_dtypes()
        write_models()
