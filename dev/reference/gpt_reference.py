#!/usr/bin/env python3
# /// script
# requires-python = ">=3.8"
# dependencies = ["torch", "numpy"]
# ///
"""gpt_reference.py: what PyTorch says a GPT-2 computes, written into small fixtures that test_gpt compares with.

    python3 dev/reference/gpt_reference.py            writes dev/reference/fixtures/*.safetensors again
    python3 dev/reference/gpt_reference.py --verify   computes everything again and compares with the files there
    python3 dev/reference/gpt_reference.py --float32  how far PyTorch's own float32 is from the fixtures: the
                                                      yardstick beside test_gpt's limit of 1e-5
    python3 dev/reference/gpt_reference.py --noise    the same for float64 with NOISE added to every gradient

The model below is GPT-2 in plain tensor operations over explicit weights, in the order and layout of llmc/tensors.h.
Everything is computed in float64: gradients by autograd, clipping by clip_grad_norm_, updates by torch.optim.AdamW
(decay on matrices, none on vectors). So the fixtures are exact as far as a float32 trainer can tell. PyTorch clips
by clip / (norm + 1e-6), the trainer by clip / norm: the same to 1e-6 in the gradient, and AdamW does not see it.

No weights are stored: both sides make them from an integer hash, exactly (see `uniform`). Tensors of more than
SAMPLES elements are stored as that many, at hashed positions, and all are stored with checks over every element:
the norm and PROJECTIONS sums of all elements under random signs. The root mean square difference of those sums
estimates the Frobenius norm of the difference of two whole tensors, so no element can be wrong unseen.

A fixture is a safetensors file:
    config  I64 [9]           L, NH, C, V, max_T, B, T, steps, seed
    hyper   F64 [6]           lr, beta1, beta2, eps, weight decay, clip
    tokens  I32 [steps,B,T+1] step s trains on tokens[s,:,:-1] -> tokens[s,:,1:]
    loss, norm      F64 [steps]      mean loss before each step's update, norm of its gradient before clipping
    logits, grad.<name>, final.<name>   F32: logits (B,T,V) and gradients of step 0, weights after the last step
    <the same>.check                    F64 [1 + PROJECTIONS]
Weights whose exact gradient is zero (see `without_gradient`) get sign-of-rounding-noise updates from Adam in any
finite arithmetic: they count as 0 in final.<name> on both sides.
"""
import json
import math
import os
import struct
import sys

import numpy as np
import torch
import torch.nn.functional as F

SAMPLES = 512
PROJECTIONS = 8
HERE = os.path.dirname(os.path.abspath(__file__))

# name, L, NH, C, V, max_T, B, T, weight decay, clip, eps, seed. Chosen for the edges: V padded or not, T below max_T,
# T = 1, heads of 10, 16, 17 and 72 columns, one head, one layer, C off every vector width, B*T odd and above the 256
# rows of logits the trainer holds at once; clipping at work, and idle; an eps large enough to see where it enters. Adam
# divides a gradient by its own size, so an element whose gradient happens to be almost zero is moved by that gradient's
# rounding noise: seeds are those of six tried with the least of that (--noise).
MODELS = [
    ("t65_v67_h3", 2, 3, 48, 67, 70, 1, 65, 0.1, 1.0, 1e-8, 41),
    ("c30_h3", 2, 3, 30, 50, 33, 3, 33, 0.1, 1.0, 1e-8, 42),
    ("b4_t64_v256", 2, 4, 64, 256, 64, 4, 64, 0.1, 1.0, 1e-8, 13),
    ("t1", 1, 2, 16, 5, 4, 3, 1, 0.1, 1.0, 1e-8, 44),
    ("t127_h1_c72", 1, 1, 72, 131, 128, 3, 127, 0.0, 1.0, 1e-8, 35),
    ("c51_h3_l3_v300", 3, 3, 51, 300, 20, 2, 20, 0.3, 1e9, 1e-3, 36),
]
NOISE = 5e-7  # of a gradient tensor's root mean square: several times what float32 does
STEPS, LR, BETA1, BETA2 = 10, 1e-3, 0.9, 0.95


# ---------------------------------------------------------------------------------------------------------------
# Numbers both sides make for themselves (the C side: dev/test/gpt_fixture.h)

def splitmix64(x):
    """The mixer of splitmix64 (Steele, Lea, Flood 2014) applied to x + its increment; x and result uint64 arrays."""
    with np.errstate(over="ignore"):
        z = np.asarray(x, np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def hashes(seed, stream, count):
    """hash(seed, stream, i) for i in 0..count-1."""
    start = splitmix64(np.uint64(seed * 256 + stream))
    with np.errstate(over="ignore"):
        return splitmix64(start + np.arange(count, dtype=np.uint64))


def uniform(seed, stream, count):
    """Odd multiples of 2^-16 in (-1, 1), symmetric about 0. 17 bits, so that 1 + u/4 and u/8 are exact in float."""
    top = (hashes(seed, stream, count) >> np.uint64(48)).astype(np.float64)
    return (2 * top + 1 - 65536) / 65536


# Streams: 0..15 the parameters in the table's order, the rest as named.
STREAM_TOKENS, STREAM_SIGNS, STREAM_POSITIONS = 32, 64, 128
STREAM_LOGITS = 16  # added to SIGNS or POSITIONS; a parameter adds its index


def parameter_table(c):
    """(name, shape) in the order of llmc/tensors.h, without wte's padding rows (which are zero there)."""
    L, C = c["L"], c["C"]
    return [
        ("wte", (c["V"], C)), ("wpe", (c["max_T"], C)), ("ln1w", (L, C)), ("ln1b", (L, C)),
        ("qkvw", (L, 3 * C, C)), ("qkvb", (L, 3 * C)), ("attprojw", (L, C, C)), ("attprojb", (L, C)),
        ("ln2w", (L, C)), ("ln2b", (L, C)), ("fcw", (L, 4 * C, C)), ("fcb", (L, 4 * C)),
        ("fcprojw", (L, C, 4 * C)), ("fcprojb", (L, C)), ("lnfw", (C,)), ("lnfb", (C,)),
    ]


MATRICES = {"wte", "wpe", "qkvw", "attprojw", "fcw", "fcprojw"}  # these decay


def make_parameters(c, dtype):
    """Matrices and biases u/8 (the layers' own matrices u/4), layernorm weights 1 + u/4: far from any special value."""
    params = {}
    for i, (name, shape) in enumerate(parameter_table(c)):
        u = uniform(c["seed"], i, math.prod(shape))
        if name in ("ln1w", "ln2w", "lnfw"):
            u = 1 + u / 4
        elif name in MATRICES and name not in ("wte", "wpe"):
            u = u / 4
        else:
            u = u / 8
        assert np.array_equal(u, u.astype(np.float32))
        params[name] = torch.tensor(u.reshape(shape), dtype=dtype, requires_grad=True)
    return params


def make_tokens(c):
    count = c["steps"] * c["B"] * (c["T"] + 1)
    tokens = (hashes(c["seed"], STREAM_TOKENS, count) % np.uint64(c["V"])).astype(np.int32)
    tokens[0], tokens[1] = c["V"] - 1, 0  # the vocabulary's ends occur
    return tokens.reshape(c["steps"], c["B"], c["T"] + 1)


# ---------------------------------------------------------------------------------------------------------------
# The model

def forward(p, c, inp):
    """Logits (B, T, V) of inp (B, T): pre-layernorm blocks, learned positions, tanh GELU, tied head."""
    B, T = inp.shape
    C, NH = c["C"], c["NH"]
    HS = C // NH
    mask = torch.ones(T, T, dtype=torch.bool).triu(1)
    x = p["wte"][inp] + p["wpe"][:T]
    for l in range(c["L"]):
        h = F.layer_norm(x, (C,), p["ln1w"][l], p["ln1b"][l], 1e-5)
        qkv = h @ p["qkvw"][l].T + p["qkvb"][l]
        q, k, v = (t.reshape(B, T, NH, HS).transpose(1, 2) for t in qkv.split(C, dim=-1))
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(HS)
        attention = scores.masked_fill(mask, -math.inf).softmax(-1)
        y = (attention @ v).transpose(1, 2).reshape(B, T, C)
        x = x + y @ p["attprojw"][l].T + p["attprojb"][l]
        h = F.layer_norm(x, (C,), p["ln2w"][l], p["ln2b"][l], 1e-5)
        h = F.gelu(h @ p["fcw"][l].T + p["fcb"][l], approximate="tanh")
        x = x + h @ p["fcprojw"][l].T + p["fcprojb"][l]
    return F.layer_norm(x, (C,), p["lnfw"], p["lnfb"], 1e-5) @ p["wte"].T


def train(c, dtype, noise=0.0):
    """(logits and gradients of step 0, final weights, losses, norms) of c["steps"] steps in `dtype`."""
    random = torch.Generator().manual_seed(1)
    p = make_parameters(c, dtype)
    tokens = torch.tensor(make_tokens(c), dtype=torch.int64)
    hyper = dict(lr=LR, betas=(BETA1, BETA2), eps=c["eps"])
    optimizer = torch.optim.AdamW([
        dict(params=[t for n, t in p.items() if n in MATRICES], weight_decay=c["weight_decay"], **hyper),
        dict(params=[t for n, t in p.items() if n not in MATRICES], weight_decay=0.0, **hyper)])
    first, losses, norms = {}, [], []
    for step in range(c["steps"]):
        optimizer.zero_grad()
        logits = forward(p, c, tokens[step, :, :-1])
        loss = F.cross_entropy(logits.reshape(-1, c["V"]), tokens[step, :, 1:].reshape(-1))
        loss.backward()
        for t in p.values() if noise else ():
            t.grad += noise * t.grad.square().mean().sqrt() * torch.randn(t.shape, generator=random) * (t.grad != 0)
        if step == 0:
            first["logits"] = logits.detach().clone()
            for name in p:
                first["grad." + name] = p[name].grad.clone()
        losses.append(float(loss))
        norms.append(float(torch.nn.utils.clip_grad_norm_(list(p.values()), c["clip"])))
        optimizer.step()
    final = {"final." + name: t.detach().clone() for name, t in p.items()}
    for name, t in final.items():
        without_gradient(c, name, t)
    return first, final, losses, norms


def without_gradient(c, name, t):
    """Zeroes the weights that no loss can depend on: key biases (softmax is unchanged when all of a query's scores move
    together), and queries and keys altogether where T = 1 (a softmax over one score)."""
    C = c["C"]
    first = 0 if c["T"] == 1 else C
    if name == "final.qkvb" or (name == "final.qkvw" and c["T"] == 1):
        t[:, first:2 * C] = 0


# ---------------------------------------------------------------------------------------------------------------
# Fixtures

def stored_form(c, name, t):
    """(the elements stored, the checks over all of them) of tensor `name`."""
    flat = t.detach().to(torch.float64).reshape(-1).numpy()
    names = [n for n, _ in parameter_table(c)]
    stream = STREAM_LOGITS if name == "logits" else names.index(name.split(".")[1])
    bits = hashes(c["seed"], STREAM_SIGNS + stream, flat.size)
    checks = [math.sqrt(math.fsum(flat * flat))]
    for k in range(PROJECTIONS):
        sign = 1.0 - 2.0 * ((bits >> np.uint64(k)) & np.uint64(1)).astype(np.float64)
        checks.append(math.fsum(flat * sign))
    if flat.size > SAMPLES:
        flat = flat[(hashes(c["seed"], STREAM_POSITIONS + stream, SAMPLES) % np.uint64(flat.size)).astype(np.int64)]
    return flat, np.array(checks)


def make_fixture(c, dtype=torch.float64, noise=0.0):
    first, final, losses, norms = train(c, dtype, noise)
    fixture = {
        "config": np.array([c[k] for k in "L NH C V max_T B T steps seed".split()], np.int64),
        "hyper": np.array([LR, BETA1, BETA2, c["eps"], c["weight_decay"], c["clip"]], np.float64),
        "tokens": make_tokens(c),
        "loss": np.array(losses, np.float64),
        "norm": np.array(norms, np.float64),
    }
    for name, t in {**first, **final}.items():
        elements, checks = stored_form(c, name, t)
        fixture[name] = elements.astype(np.float32)
        fixture[name + ".check"] = checks
    return fixture


KINDS = {"float64": "F64", "float32": "F32", "int64": "I64", "int32": "I32"}


def write_safetensors(path, tensors):
    """8-byte length, JSON header padded with spaces to a multiple of 8, then the data; wide types first (alignment)."""
    names = sorted(tensors, key=lambda n: -tensors[n].dtype.itemsize)
    header, offset = {}, 0
    for name in names:
        t = tensors[name]
        header[name] = {"dtype": KINDS[str(t.dtype)], "shape": list(t.shape),
                        "data_offsets": [offset, offset + t.nbytes]}
        offset += t.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for name in names:
            f.write(np.ascontiguousarray(tensors[name]).tobytes())


def read_safetensors(path):
    with open(path, "rb") as f:
        data = f.read()
    start = 8 + struct.unpack("<Q", data[:8])[0]
    kinds = {v: k for k, v in KINDS.items()}
    return {name: np.frombuffer(data[start + t["data_offsets"][0]:start + t["data_offsets"][1]],
                                kinds[t["dtype"]]).reshape(t["shape"])
            for name, t in json.loads(data[8:start]).items()}


def worst_difference(ours, theirs):
    """The largest difference over the tensors of two fixtures, relative to the tensor's largest element, and where."""
    worst = (0.0, "nowhere")
    for name in theirs:
        if name.endswith(".check"):  # element 0 is the norm, the others' root mean square difference is the error
            error = np.sqrt(np.mean((ours[name][1:] - theirs[name][1:]) ** 2)) / max(theirs[name][0], 1e-300)
        else:
            error = np.abs(ours[name].astype(np.float64) - theirs[name]).max() / max(np.abs(theirs[name]).max(), 1e-300)
        worst = max(worst, (float(error), name))
    return worst


def main():
    torch.set_num_threads(1)
    mode = sys.argv[1] if len(sys.argv) > 1 else "--write"
    if mode not in ("--write", "--verify", "--float32", "--noise"):
        sys.exit(__doc__)
    folder = os.path.join(HERE, "fixtures")
    failed = 0
    for row in MODELS:
        c = dict(zip("name L NH C V max_T B T weight_decay clip eps seed".split(), row), steps=STEPS)
        path = os.path.join(folder, c["name"] + ".safetensors")
        fixture = make_fixture(c, torch.float32 if mode == "--float32" else torch.float64,
                               NOISE if mode == "--noise" else 0.0)
        line = "%-16s loss %.6f -> %.6f  norm %.4f" % (c["name"], fixture["loss"][0], fixture["loss"][-1],
                                                       fixture["norm"][0])
        if mode == "--write":
            os.makedirs(folder, exist_ok=True)
            write_safetensors(path, fixture)
            print("%s  %d bytes" % (line, os.path.getsize(path)))
        else:
            error, name = worst_difference(fixture, read_safetensors(path))
            print("%s  worst relative difference %.2e in %s" % (line, error, name))
            failed |= mode == "--verify" and not error <= 2e-7
    sys.exit(failed)


if __name__ == "__main__":
    main()
