#!/bin/sh
# scripts/compare_precisions.sh in small: two modes, a few steps, one interrupted; and its report on made-up runs.

cd "$(dirname "$0")/../.." || exit 1
dir=$(mktemp -d "${TMPDIR:-/tmp}/train_gpt_compare.XXXXXX") || exit 1
trap 'rm -rf "$dir"' EXIT
export PYTHONDONTWRITEBYTECODE=1

if ! command -v python3 >/dev/null 2>&1; then
    echo "skip  compare_precisions.sh: no python3"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
fi

. dev/test/check_lib.sh

# refuses NAME CODE PATTERN COMMAND...: the exit code, and a line that matches.
refuses() {
    name=$1 code=$2 pattern=$3
    shift 3
    "$@" >"$dir/log" 2>&1
    got=$?
    check "$name" test "$got:$(grep -c -- "$pattern" "$dir/log")" = "$code:1"
}

# ---------------------------------------------------------------------------------------------------------------
# The report on made-up runs, with numbers that are known

python3 - "$dir" <<'END'
import json, os, sys
def run(name, loss, steps=100, time=0.1, policy="16", numerics=(), **more):
    path = f"{sys.argv[1]}/made/runs/{name}"
    os.makedirs(path)
    with open(path + "/run.jsonl", "w") as file:
        for step in range(steps + 1):
            row = {"step": step, "tokens": 512 * step, "time_s": time * step}
            if step: row.update(loss=loss(step), skipped=int(step in more.get("skips", ())))
            if "scale" in more and step: row["loss_scale"] = more["scale"](step)
            if step in (50, 100) and loss(step): row["val_loss"] = loss(step) + 0.125
            file.write(json.dumps(row) + "\n")
        file.write('{"step": 101, "lo')
    with open(path + "/numerics.jsonl", "w") as file:
        for row in numerics: file.write(json.dumps(row) + "\n")
    open(path + "/policy.txt", "w").write(f"  bytes per parameter: working 2 + master 4 = {policy}\n  (activations)\n")
    open(path + ("/broken" if "broken" in more else "/done"), "w").write(more.get("broken", ""))
curve = lambda s: 6 - 0.01 * s
run("fp32", curve)
run("fp32.seed2", lambda s: curve(s) + 0.01)
run("fp32.seed3", lambda s: curve(s) - 0.01)
run("fp32.order", lambda s: curve(s) + 0.0005)
run("bf16", lambda s: curve(s) + 0.0004, time=0.2, policy="18", numerics=[
    {"step": 10, "kind": "weight", "tensor": "fcw", "layer": 0, "updates": 300, "lost_frac": 0.5},
    {"step": 10, "kind": "weight", "tensor": "qkvw", "layer": 0, "updates": 100, "lost_frac": 0.1}])
run("bf16-nearest", lambda s: curve(s) + 0.0625, policy="14")
run("fp16", lambda s: curve(s) - 0.015, policy="18", skips=(3, 4), scale=lambda s: 65536 / 4 ** (s > 4))
run("fp8-current", curve, policy="20", numerics=[
    {"step": 10, "kind": "operand", "role": "dy", "tensor": "qkv.dy.dgrad", "layer": 1, "scale_min": 4.0, "scale_max": 8.0,
     "underflow_frac": 0.25, "saturated_frac": 0.125},
    {"step": 20, "warning": "25% <of> it"}])
run("nvfp4", lambda s: curve(s) if s < 60 else None, broken="nvfp4: ended with exit code 1")
END

check_made() {
    python3 - "$dir/made" <<'END'
import html.parser, re, sys
folder = sys.argv[1]
md = open(folder + "/compare.md").read()
table = md.split("## Curves")[0]
rows = {line.split(" | ")[0][2:]: line.strip("| \n").split(" | ") for line in table.splitlines() if line.startswith("| ")}
def expect(mode, column, value):
    assert rows[mode][column] == value, (mode, column, rows[mode][column], value)
expect("fp32", 1, "5.0450"); expect("fp32", 13, "the reference"); expect("fp32", 4, "5.1250")
expect("bf16", 2, "+0.0004"); expect("bf16", 13, "no different"); expect("bf16", 7, "0.50"); expect("bf16", 6, "2,560")
expect("bf16", 8, "18"); expect("bf16", 12, "0.40")
expect("bf16-nearest", 2, "+0.0625"); expect("bf16-nearest", 13, "worse, by more than another seed")
expect("fp16", 13, "better, by less than another seed"); expect("fp16", 9, "2")
expect("fp8-current", 10, "0.25"); expect("fp8-current", 11, "0.12"); expect("fp8-current", 13, "no different")
expect("nvfp4", 13, "broke off"); expect("nvfp4", 1, "–")
assert "fp32.seed2" not in rows and "Deviation of fp32's loss at the end over seeds: 0.0100." in md
assert "* fp8-current: step 20: 25% <of> it" in md
page = open(folder + "/compare.html").read()
assert not re.search(r"(src|href)\s*=|https?://|@import|url\(", page), "the page wants the network"
class Reader(html.parser.HTMLParser):
    stack, counts = [], {}
    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "line", "rect", "polyline", "polygon", "circle", "path"): self.stack.append(tag)
        self.counts[tag] = self.counts.get(tag, 0) + 1
    handle_startendtag = lambda self, tag, attrs: self.counts.__setitem__(tag, self.counts.get(tag, 0) + 1)
    def handle_endtag(self, tag):
        if tag not in ("line", "rect", "polyline", "polygon", "circle", "path"):
            assert self.stack and self.stack.pop() == tag, f"</{tag}> closes nothing"
reader = Reader(); reader.feed(page)
assert not reader.stack, reader.stack
assert reader.counts["polygon"] == 2, "the noise band"
assert reader.counts["svg"] >= 8 and "25% &lt;of&gt; it" in page and "qkv.dy.dgrad, step 10: 0.25 became zero" in page
assert not re.search(r"\bnan\b|\binf\b", page), "a number that is none"
END
}
check "a report of made-up runs" python3 scripts/compare_report.py "$dir/made"
check "what it says" check_made
refuses "a report of nothing" 1 "there are no runs in" python3 scripts/compare_report.py "$dir/nowhere"
mkdir -p "$dir/empty/runs/bf16"
refuses "a report without fp32" 1 "has no run 'fp32'" python3 scripts/compare_report.py "$dir/empty"

# ---------------------------------------------------------------------------------------------------------------
# The runs

compare() { sh scripts/compare_precisions.sh --out "$dir/out" "$@" >"$dir/said" 2>&1 || { code=$?; cat "$dir/said"; return "$code"; }; }
refuses "an option that does not exist" 2 "there is no option --step" compare --step 3
refuses "an option without a value" 2 "--steps needs a value" compare --steps
refuses "steps that are none" 2 "'many' is not a whole number" compare --steps many

# What this make was told is not for the builds below.
unset MAKEFLAGS MFLAGS PRECISION MASTER MOMENTS SANITIZE
export COMPARE_BUILDS="$dir/build" CFLAGS=-O1 DEVICE=cpu
export BUILD="${BUILD:-build/cpu-fp32}"
cat README.md Makefile llmc/utils.h >"$dir/text"
"$BUILD/tokenize" --tokenizer byte --val-fraction 0.2 --out "$dir/data" "$dir/text" >/dev/null || exit 1
rehearse() {
    compare --steps 12 --seeds 2 --batch 2 --seq 16 bf16 -- --layers 1 --heads 2 --channels 32 --val-steps 1 \
        --train "$dir/data_train_*.bin" --val "$dir/data_val_*.bin" --threads 1 "$@"
}
check "two modes, two seeds" rehearse
check "all runs are there" test "$(cd "$dir/out/runs" && echo *)" = "bf16 fp32 fp32.order fp32.seed2"
check "both reports" test -s "$dir/out/compare.html" -a -s "$dir/out/compare.md"
check "finished runs keep no checkpoints" sh -c "! ls -d '$dir'/out/runs/*/step_*"
check "bf16 has 12 steps and reports" sh -c "grep -q '\"step\":12,' '$dir/out/runs/bf16/run.jsonl' &&
    grep -q '\"lost_frac\"' '$dir/out/runs/bf16/numerics.jsonl'"
check "the other order is another sum" sh -c "! cmp -s '$dir/out/runs/fp32/run.jsonl' '$dir/out/runs/fp32.order/run.jsonl'"
check "no program is linked to" sh -c "! readlink train_gpt | grep -q '$dir'"

# Killed in the middle of a run: the same command goes on, and makes only what is missing.
cp "$dir/out/runs/fp32/run.jsonl" "$dir/before"
check "other options" rehearse --lr 2e-3
check "all is made again" sh -c "! grep 'done before' '$dir/said' && ! cmp -s '$dir/before' '$dir/out/runs/fp32/run.jsonl'"
long() {
    exec sh scripts/compare_precisions.sh --out "$dir/long" --steps 800 --seeds 1 --batch 2 --seq 16 fp32 -- --layers 1 \
        --heads 2 --channels 32 --train "$dir/data_train_*.bin" --val "$dir/data_val_*.bin" --val-every 0 --threads 1
}
(long) >"$dir/said" 2>&1 &
pid=$!
tries=0
while [ "$(grep -c . "$dir/long/runs/fp32/run.jsonl" 2>/dev/null || echo 0)" -lt 20 ] && [ "$tries" -lt 600 ]; do
    tries=$((tries + 1))
    sleep 0.05
done
kill -TERM "$pid"
wait "$pid"
check "it says that it stopped" test "$?:$(grep -c '^stopped; the same command goes on' "$dir/said")" = 130:1
head -n 10 "$dir/long/runs/fp32/run.jsonl" >"$dir/before"
check "not as if it were done" test ! -e "$dir/long/runs/fp32/done"
(long) >"$dir/said" 2>&1
check "and comes to the end" test "$?:$(grep -c '"step":800,' "$dir/long/runs/fp32/run.jsonl")" = 0:1
head -n 10 "$dir/long/runs/fp32/run.jsonl" >"$dir/after"
check "from where it was" cmp "$dir/before" "$dir/after"
check "no step twice" test "$(grep -c . "$dir/long/runs/fp32/run.jsonl")" = 801
(long) >"$dir/said" 2>&1
check "once more makes nothing" test "$(grep -c 'done before' "$dir/said")" = 2

summary
