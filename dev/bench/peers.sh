#!/bin/sh
# Other trainers on bench_step's shapes, to be read beside its lines in the same run. What is not here is skipped by name.
#
#   LLMC=/path/to/llm.c    its train_gpt2.c, built with clang -Ofast -march=native -fopenmp in a scratch folder, on random
#                          weights and tokens (d12 with B=4 T=64 is built into it)
#   PYTHON=python3         PyTorch, eager and, from version 2 on, compiled; needs torch
#
# `make bench` runs this after the programs of dev/bench.
set -u
here=$(cd "$(dirname "$0")" && pwd)
threads=${OMP_NUM_THREADS:-$(nproc 2>/dev/null || echo 1)}
python=${PYTHON:-python3}

llmc() {
    [ -n "${LLMC:-}" ] || { echo "skip  llm.c: LLMC=/path/to/llm.c is not given"; return; }
    [ -f "$LLMC/train_gpt2.c" ] || { echo "skip  llm.c: no train_gpt2.c in '$LLMC'"; return; }
    command -v clang >/dev/null && command -v python3 >/dev/null || { echo "skip  llm.c: needs clang and python3"; return; }
    scratch=$(mktemp -d) || return
    ( cd "$LLMC" && clang -Ofast -march=native -fopenmp train_gpt2.c -lm -o "$scratch/train_gpt2" ) ||
        { echo "skip  llm.c: does not build"; rm -rf "$scratch"; return; }
    mkdir -p "$scratch/dev/data/tinyshakespeare"
    ( cd "$scratch" && python3 - <<'PY'
import array, random
random.seed(0)
def header(*values):
    return array.array("i", list(values) + [0] * (256 - len(values)))
L, C, V, Vp, T = 12, 768, 50257, 50304, 1024
count = Vp * C + T * C + L * (12 * C * C + 13 * C) + 2 * C
block = array.array("f", (random.gauss(0, 0.02) for _ in range(1 << 16)))
with open("gpt2_124M.bin", "wb") as f:
    header(20240326, 3, T, V, L, 12, C, Vp).tofile(f)
    for start in range(0, count, len(block)):
        block[: min(len(block), count - start)].tofile(f)
tokens = array.array("H", (random.randrange(V) for _ in range(1 << 15)))
for split in ("train", "val"):
    with open(f"dev/data/tinyshakespeare/tiny_shakespeare_{split}.bin", "wb") as f:
        header(20240520, 1, len(tokens)).tofile(f)
        tokens.tofile(f)
PY
    )
    # Its first validation and step warm up; the median of the next three counts. Stopped then: it would train 40 steps.
    (
        cd "$scratch" || exit
        OMP_NUM_THREADS=$threads stdbuf -oL ./train_gpt2 >log 2>&1 &
        while kill -0 $! 2>/dev/null && [ "$(grep -c '^step' log)" -lt 4 ]; do sleep 1; done
        kill $! 2>/dev/null
        sed -n 's/^step [1-3]:.*took \([0-9.]*\) ms.*/\1/p' log | sort -n | sed -n 2p | grep . | sed 's/^/d12 llm.c /' ||
            { echo "skip  llm.c: printed no three steps:"; tail -n 3 log; }
    )
    rm -rf "$scratch"
}

echo "peers, milliseconds a step with $threads threads:"
llmc
if "$python" -c 'import torch' 2>/dev/null; then
    "$python" "$here/peers.py" "$threads"
else
    echo "skip  PyTorch: no torch for $python (PYTHON= names another)"
fi
