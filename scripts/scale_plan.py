#!/usr/bin/env python3
"""What a run takes on 1 to 1024 GPUs, on paper: memory a rank, time a step, exposed communication, GPU-hours.

    python3 scripts/scale_plan.py                            every table
    python3 scripts/scale_plan.py plan gpt3:13B              one table, some models
    python3 scripts/scale_plan.py --update doc/scale.md      writes the tables anew where the document has them
    python3 scripts/scale_plan.py --check doc/scale.md       fails where it has others
    python3 scripts/scale_plan.py --bytes gpt2-xl --precision bf16 --ranks 8 --zero 1 --batch 16 --seq 1024
                                                             a rank's memory, as the line of --dry-run has it

Bytes are those of llmc/tensors.h and llmc/precision.h, and are tested against --dry-run. Times are estimates from the
rates below: nobody has run this program on these machines. Standard library only.
"""

import argparse
import math
import re
import sys

# ---------------------------------------------------------------------------------------------------------------------
# Models: layers, channels, heads, positions, and the batch in tokens and the rate its authors used (GPT-2 and GPT-3:
# Brown et al. 2020, table 2.1). 30B has OPT-30B's shape (Zhang et al. 2022); 70B is 86 layers of the width that 70B
# models have.

MODELS = {
    "gpt2": (12, 768, 12, 1024, 2**19), "gpt2-medium": (24, 1024, 16, 1024, 2**19),
    "gpt2-large": (36, 1280, 20, 1024, 2**19), "gpt2-xl": (48, 1600, 25, 1024, 2**20),
    "gpt3:2.7B": (32, 2560, 32, 2048, 2**20), "gpt3:6.7B": (32, 4096, 32, 2048, 2**21),
    "gpt3:13B": (40, 5120, 40, 2048, 2**21), "30B": (48, 7168, 56, 2048, 2**22), "70B": (86, 8192, 64, 2048, 2**22),
}
VOCAB = 50257
RANKS = (1, 8, 64, 256, 1024)

# ---------------------------------------------------------------------------------------------------------------------
# Bytes. The same sums as llmc/tensors.h, llmc/precision.h and llmc/device_plan.h, written again from their words.

# Bytes an element: working weight, master, gradient, both moments, activation; a linear layer's casts, both ways.
PRECISIONS = {
    "fp32": (4, 0, 4, 8, 4, 0), "bf16": (2, 4, 4, 8, 2, 0), "fp8": (2, 4, 4, 8, 2, 2),
    "bf16-stochastic": (2, 0, 4, 8, 2, 0), "bf16-stochastic-mbf16": (2, 0, 4, 4, 2, 0),
}
LOGITS_ROWS = 8192  # of the GPU trainer's LOGITS_CHUNK_ROWS


def round_up(n, multiple):
    return -(-n // multiple) * multiple


def parameters(L, C, positions, V=VOCAB):
    """Elements of one copy of all parameters as it lies in memory: each of the 16 tensors in steps of 256 bytes."""
    tensors = [round_up(V, 128) * C, positions * C, C, C]
    tensors += [L * n for n in (C, C, 3 * C * C, 3 * C, C * C, C, C, C, 4 * C * C, 4 * C, 4 * C * C, C)]
    return sum(round_up(n, 64) for n in tensors)


def buckets(L, C, positions, bucket_bytes, V=VOCAB):
    """(elements of each bucket, how many are of layers, layers in one): in the order in which the backward pass completes them, whole
    layers from the last (with the final layernorm) to the first, then the embeddings in equal parts."""
    room, layer, embeddings = max(int(bucket_bytes / 4), 1), 12 * C * C + 13 * C, (round_up(V, 128) + positions) * C
    each = min(max(room // layer, 1), L)
    sizes = [layer * min(each, L - begin) for begin in range(0, L, each)]
    sizes[0] += 2 * C
    part = round_up(-(-embeddings // -(-embeddings // room)), 64)
    return sizes + [min(part, embeddings - begin) for begin in range(0, embeddings, part)], len(sizes), each


def state_bytes(L, C, positions, precision, ranks, zero, V=VOCAB, bucket_mib=64):
    """Bytes a rank: weights, masters, moments, gradients, casts, the buffer of one bucket."""
    weight, master, gradient, moments, _, cast = PRECISIONS[precision]
    P = parameters(L, C, positions, V)
    shards, gradient_elems = [0], P
    if ranks > 1:
        sizes, _, each = buckets(L, C, positions, bucket_mib * 2**20, V)
        shards = [round_up(-(-n // ranks), 64) for n in sizes]
        gradient_elems = parameters(2 * each, C, positions, V) if zero >= 2 else P  # of the layers in work alone
    shard = sum(shards)
    optimizer = shard if ranks > 1 and zero >= 1 else P
    return dict(weights=weight * P, masters=master * optimizer, moments=moments * optimizer,
                gradients=gradient * gradient_elems + 4 * shard, casts=cast * 12 * L * C * C,
                buffer=4 * ranks * max(shards))


def activation_bytes(L, C, NH, B, T, precision, recompute=0, V=VOCAB):
    """Bytes of a micro-batch of B sequences; llmc/tensors.h has the list."""
    N, wide = B * T, PRECISIONS[precision][4]
    kept = lambda level: L if recompute < level else 1
    rows = [(1, N * C, wide), (kept(2), N * C, wide), (L, N, 4), (L, N, 4), (L, 3 * N * C, wide), (L, N * C, wide),
            (L, N * NH, 4), (L, N * C, wide), (kept(2), N * C, wide), (L, N, 4), (L, N, 4), (L, 4 * N * C, wide),
            (kept(1), 4 * N * C, wide), (L, N * C, wide), (1, N * C, wide), (1, N, 4), (1, N, 4), (1, N * C, wide),
            (1, min(N, LOGITS_ROWS) * round_up(V, 128), wide), (1, N, 4), (1, N * C, wide), (1, N * C, wide),
            (1, 4 * N * C, wide)]
    return sum(round_up(layers * elems * size, 256) for layers, elems, size in rows)


# ---------------------------------------------------------------------------------------------------------------------
# Time, H100 SXM. Rates are what such kernels sustain within a step: GEMM 640 TFLOP/s (680 where channels >= 2048) of
# 989, flash attention in the style of FlashAttention-2, copies at 92 % of 3.0 TB/s. Bytes and flops a token:

GEMM, GEMM_WIDE, FP8_OVER_BF16 = 640e12, 680e12, 1.65
ATTENTION = {64: (229e12, 181e12), 128: (260e12, 209e12)}  # head size: forward, backward
COPY = 0.92 * 3.0e12
PEAK = 989.4e12
GPU_BYTES, RESERVED = 80e9, 4e9  # CUDA, NCCL, cuBLAS and kernels' workspaces


def step_seconds(model, tokens, precision, shards):
    """Seconds of one GPU for a step of `tokens` of its own, in (forward and backward, optimizer); no communication."""
    L, C, NH, T, _ = MODELS[model]
    rate = GEMM if C < 2048 else GEMM_WIDE
    forward, backward = ATTENTION[64 if C // NH <= 80 else 128]
    fp8 = precision == "fp8"
    blocks = 6 * 12 * L * C * C / (rate * (FP8_OVER_BF16 if fp8 else 1))
    head = 6 * round_up(VOCAB, 128) * C / rate
    attention = L * C * T * (2 / forward + 5 / backward)  # the causal half; 2.5 times as much backward
    # Residual + layernorm and their backward passes 36 C, softmax and dlogits 4 V; fp8: casts in both orientations.
    memory = (L * C * (36 + (46 if fp8 else 0)) + 4 * VOCAB) / COPY
    optimizer = 34 * parameters(L, C, T) / shards / COPY
    return tokens * (blocks + head + attention + memory), optimizer


def counted_flops(model):
    """Flops a token that MFU counts: 6 a parameter, attention's causal half once."""
    L, C, _, T, _ = MODELS[model]
    return 6 * parameters(L, C, T) + 6 * L * C * T


# Links. Bus bandwidth as nccl-tests counts it, bytes a second: within a node of 8 (NVLink), and over nodes with a
# 400 Gb/s NIC a GPU (nccl-tests issues 212 and 309: 370 and 369 GB/s measured). Reduce-scatters and gathers go round a
# ring of all ranks; its latency a hop within and between nodes is as NCCL's own cost model has it for long messages.
NVLINK, NETWORK = 370e9, 350e9
HOP_NODE, HOP_NETWORK = 3.4e-6, 14e-6
CONTENTION = 0.10  # how much computing slows down while NCCL has some of the SMs


def ring_seconds(elems, element_bytes, ranks):
    """Of a reduce-scatter or a gather of one bucket."""
    nodes = -(-ranks // 8)
    latency = (ranks - nodes) * HOP_NODE + (nodes * HOP_NETWORK if nodes > 1 else 0)
    return latency + (ranks - 1) / ranks * elems * element_bytes / (NVLINK if nodes == 1 else NETWORK)


def communication(model, ranks, zero, micro_batches, backward, precision, reduce_bytes=4):
    """(seconds on the wire, exposed seconds, MiB a bucket) of a step whose last backward pass takes `backward` seconds.
    Exposed are the last bucket of layers and the tied embedding, which are complete only at the end, what does not fit
    beside the backward pass, and the slower computing meanwhile. Of ZeRO's gather of the weights, which goes on while the
    next forward pass, half as long, begins: the embeddings and the first bucket of layers, and what does not fit. ZeRO 0
    sends the sums back bucket by bucket; ZeRO 2 reduces in every micro-batch."""
    if ranks == 1:
        return 0.0, 0.0, 0
    L, C, _, T, _ = MODELS[model]
    rounds = micro_batches if zero == 2 else 1
    best = None
    for mib in (16, 32, 64, 128, 256, 512, 1024, 2048):
        sizes, of_layers, _ = buckets(L, C, T, mib * 2**20)
        times = [(2 if zero == 0 else 1) * ring_seconds(n, reduce_bytes, ranks) for n in sizes]
        early, last = sum(times[:of_layers - 1]), sum(times[of_layers - 1:])
        layer_bytes = 1 if precision == "fp8" else 2  # codes, of fp8-delayed and fp8-current
        gathers = [0.0 if zero == 0 else ring_seconds(n, layer_bytes if i < of_layers else 2, ranks)
                   for i, n in enumerate(sizes)]
        gather, forward = sum(gathers), backward / 2
        late = sum(gathers[:of_layers - 1])  # needed after the first bucket
        exposed = rounds * (max(early - backward, 0) + last + CONTENTION * min(early, backward))
        exposed += gather - late + max(late - forward, 0) + CONTENTION * min(late, forward)
        if best is None or exposed < 0.98 * best[1]:  # smaller buckets unless larger ones gain
            best = rounds * (early + last) + gather, exposed, mib
    return best


# ---------------------------------------------------------------------------------------------------------------------
# The plan of one model on R GPUs


def plan(model, ranks, precision="bf16"):
    """The fastest settings that fit, or None. The batch is its authors', or one sequence a rank where that is more."""
    L, C, NH, T, batch = MODELS[model]
    per_rank = max(batch // ranks, T)
    best = None
    for zero in (0,) if ranks == 1 else (0, 1, 2):
        for recompute in (0, 2):
            for B in (64, 32, 16, 8, 4, 2, 1):
                if per_rank % (B * T):
                    continue
                micro_batches = per_rank // (B * T)
                compute, optimizer = step_seconds(model, per_rank, precision, ranks if zero else 1)
                if B * T < 16384:  # GEMMs with few rows: 8 % slower at 4,096 tokens
                    compute *= 1 + 0.04 * math.log2(16384 / (B * T))
                if recompute:
                    compute *= 1.04
                wire, exposed, bucket = communication(model, ranks, zero, micro_batches, compute / micro_batches * 2 / 3, precision)
                state = sum(state_bytes(L, C, T, precision, ranks, zero, bucket_mib=bucket).values())
                activations = activation_bytes(L, C, NH, B, T, precision, recompute)
                if state + activations + RESERVED > GPU_BYTES:
                    continue
                step = compute + optimizer + exposed
                if best is None or step < best["step"]:
                    best = dict(zero=zero, B=B, A=micro_batches, recompute=recompute, state=state, bucket=bucket,
                                activations=activations, step=step, wire=wire, exposed=exposed, ranks=ranks,
                                tokens=per_rank * ranks, enlarged=per_rank * ranks > batch,
                                mfu=counted_flops(model) * per_rank / step / PEAK)
    return best


# What the run scripts ask for: model, tokens, batch; the loss is estimate() or published (doc/scale.md has the source).
RECIPES = {"124M": ("gpt2", 19560, 2**19), "350M": ("gpt2-medium", 60000, 2**19), "774M": ("gpt2-large", 60000, 2**19),
           "1558M": ("gpt2-xl", 32000, 2**20)}
ANCHORS = ((124439808, 19560 * 2**19, 3.2722), (354823168, 60000 * 2**19, 2.9282))  # parameters, tokens, loss


def estimate_loss(parameter_count, tokens):
    """Chinchilla's law as fitted again by Besiroglu et al. (2024), moved by a constant through the published losses."""
    law = lambda n, d: 482.01 / n**0.3478 + 2085.43 / d**0.3658
    constant = sum(loss - law(n, d) for n, d, loss in ANCHORS) / len(ANCHORS)
    return constant + law(parameter_count, tokens)


# ---------------------------------------------------------------------------------------------------------------------
# Tables


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]


def gigabytes(n):
    return f"{n / 1e9:.1f}" if n < 99.95e9 else f"{n / 1e9:.0f}"


def memory_table(models):
    rows = []
    for precision in ("bf16", "fp8"):
        for model in models:
            L, C, _, T, _ = MODELS[model]
            cells = [sum(state_bytes(L, C, T, precision, R, Z).values())
                     for R, Z in ((1, 0), (8, 1), (64, 1), (8, 2), (64, 2), (1024, 2))]
            rows.append([model, precision, f"{parameters(L, C, T) / 1e9:.2f}"] + [gigabytes(n) for n in cells])
    return table(["model", "precision", "10^9 parameters", "ZeRO 0", "1, 8 GPUs", "1, 64", "2, 8", "2, 64", "2, 1024"],
                 rows)


def activation_table(models):
    rows = []
    for model in models:
        L, C, NH, T, _ = MODELS[model]
        cells = [activation_bytes(L, C, NH, B, T, "bf16", r) for B, r in ((1, 0), (1, 2), (16, 0), (16, 2))]
        rows.append([model, T] + [gigabytes(n) for n in cells])
    return table(["model", "T", "B = 1", "B = 1, recompute 2", "B = 16", "B = 16, recompute 2"], rows)


def plan_table(models, precision="bf16"):
    rows = []
    for model in models:
        plans = [(ranks, plan(model, ranks, precision)) for ranks in RANKS]
        too_few = [ranks for ranks, p in plans if p is None]
        if too_few:
            rows.append([model, f"to {too_few[-1]}" if too_few[-1] > 1 else 1, "does not fit"] + ["-"] * 9)
        for ranks, p in plans[len(too_few):]:
            rows.append([model, ranks, p["zero"], f"{p['tokens'] / 2**20:g} M" + ("*" if p["enlarged"] else ""),
                         f"{p['B']} x {p['A']}" + (" r2" if p["recompute"] else ""),
                         f"{gigabytes(p['state'])} + {gigabytes(p['activations'])}", p["bucket"] or "-",
                         f"{1e3 * p['step']:.0f}", f"{1e3 * p['wire']:.1f}", f"{1e3 * p['exposed']:.1f}",
                         f"{100 * p['exposed'] / p['step']:.1f} %", f"{100 * p['mfu']:.0f} %"])
    return table(["model", "GPUs", "ZeRO", "tokens a step", "B x micro-batches", "GB: state + activations",
                  "--bucket MiB", "step ms", "on the wire ms", "exposed ms", "exposed", "MFU"], rows)


def recipe_table(_):
    rows = []
    for name, (model, steps, batch) in RECIPES.items():
        L, C, _, T, _ = MODELS[model]
        count = parameters(L, C, T) - (round_up(VOCAB, 128) - VOCAB) * C
        hours = {}
        for precision in ("bf16", "fp8"):
            p = plan(model, 8, precision)
            hours[precision] = 8 * p["step"] * batch / p["tokens"] * steps / 3600
        rows.append([name, steps, f"{steps * batch / 1e9:.1f}", f"{hours['bf16']:.0f}", f"{hours['bf16'] / 8:.1f}",
                     f"{hours['fp8']:.0f}", f"{estimate_loss(count, steps * batch):.2f}"])
    return table(["recipe", "steps", "10^9 tokens", "H100 hours, bf16", "hours on 8", "H100 hours, fp8",
                  "validation loss, estimate"], rows)


def limit_table(_):
    """The largest models that the state alone leaves room for, with 10 GB a GPU for activations and the rest."""
    rows = []
    for name, room in (("80 GB (H100)", 70e9), ("141 GB (H200)", 131e9), ("192 GB (B200)", 182e9)):
        for precision, (w, master, gradient, moments, _, cast) in (("bf16", PRECISIONS["bf16"]),
                                                                   ("fp8", PRECISIONS["fp8"])):
            cells = []
            for ranks, zero in ((1, 0), (8, 1), (64, 1), (8, 2), (64, 2), (1024, 2)):
                per = w + cast + (master + moments) / (ranks if zero else 1) + (gradient if zero < 2 else 0)
                per += gradient / ranks if ranks > 1 else 0
                cells.append(f"{room / per / 1e9:.1f}")
            rows.append([name, precision] + cells)
    return table(["GPU", "precision", "ZeRO 0", "1, 8 GPUs", "1, 64", "2, 8", "2, 64", "2, 1024"], rows)


TABLES = {"memory": memory_table, "activations": activation_table, "plan": plan_table,
          "plan-fp8": lambda models: plan_table(models, "fp8"), "limits": limit_table, "recipes": recipe_table}


def replace_tables(text):
    """The document with each table between its markers made anew."""
    def fresh(match):
        name, models = match.group(1), match.group(2).split() or list(MODELS)
        return "\n".join([match.group(0).split("\n", 1)[0]] + TABLES[name](models) + ["<!-- end -->"])
    return re.sub(r"<!-- scale_plan\.py ([a-z0-9-]+)((?: [\w:.-]+)*) -->\n.*?<!-- end -->", fresh, text, flags=re.S)


def bytes_text(n):
    unit = 0
    while n >= 1024:
        n, unit = n / 1024, unit + 1
    return f"{n:.2f} {('', 'KiB', 'MiB', 'GiB', 'TiB')[unit]}" if unit else f"{n} B"


def print_bytes(o):
    L, C, NH, T = MODELS[o.bytes][:4] if o.bytes in MODELS else map(int, o.bytes.split(","))
    bytes_of = state_bytes(L, C, T, o.precision, o.ranks, o.zero, o.vocab)
    kinds = [bytes_of[kind] for kind in ("weights", "masters", "casts", "gradients", "moments", "buffer")]
    kinds.append(activation_bytes(L, C, NH, o.batch, o.seq or T, o.precision, o.recompute, o.vocab))
    print(" ".join(f"{bytes_text(n) if n else '-':>11}" for n in kinds + [sum(kinds)]))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("table", nargs="?", choices=sorted(TABLES), help="default: all")
    p.add_argument("models", nargs="*", help="default: all of " + ", ".join(MODELS))
    p.add_argument("--update", metavar="FILE")
    p.add_argument("--check", metavar="FILE")
    p.add_argument("--bytes", metavar="MODEL", help="or L,C,heads,positions")
    p.add_argument("--precision", choices=list(PRECISIONS), default="bf16")
    p.add_argument("--ranks", type=int, default=1)
    p.add_argument("--zero", type=int, default=0, choices=(0, 1, 2))
    p.add_argument("--batch", type=int, default=1)
    p.add_argument("--seq", type=int, default=0)
    p.add_argument("--recompute", type=int, default=0, choices=(0, 1, 2))
    p.add_argument("--vocab", type=int, default=VOCAB)
    o = p.parse_args()
    unknown = [name for name in o.models if name not in MODELS]
    if unknown:
        sys.exit(f"error: no model '{unknown[0]}'; there are {', '.join(MODELS)}")
    if o.bytes:
        print_bytes(o)
    elif o.update or o.check:
        with open(o.update or o.check, encoding="utf-8") as file:
            text = file.read()
        fresh = replace_tables(text)
        if o.update:
            with open(o.update, "w", encoding="utf-8") as file:
                file.write(fresh)
        elif fresh != text:
            sys.exit(f"error: the tables of '{o.check}' are not this script's\ntry: python3 scripts/scale_plan.py --update {o.check}")
    else:
        for name in [o.table] if o.table else TABLES:
            print("\n".join([f"{name}:"] + TABLES[name](o.models or list(MODELS)) + [""]))


if __name__ == "__main__":
    main()
