#!/bin/sh
# scripts/plot_runs.py on made-up runs: what it reads, what it draws, what it says when there is nothing to draw.

cd "$(dirname "$0")/../.." || exit 1
plot=scripts/plot_runs.py
dir=$(mktemp -d "${TMPDIR:-/tmp}/train_gpt_plot.XXXXXX") || exit 1
trap 'rm -rf "$dir"' EXIT
export PYTHONDONTWRITEBYTECODE=1

if ! command -v python3 >/dev/null 2>&1; then
    echo "skip  plot_runs.py: no python3"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
fi

passed=0 failed=0 skipped=0

# ok NAME CODE PATTERN COMMAND...: the exit code, and a line of stdout or stderr that matches.
ok() {
    name=$1 code=$2 pattern=$3
    shift 3
    "$@" >"$dir/out" 2>&1
    got=$?
    if [ "$got" -eq "$code" ] && grep -q -- "$pattern" "$dir/out"; then
        passed=$((passed + 1))
        echo "ok    $name"
    else
        failed=$((failed + 1))
        echo "FAIL  $name: exit code $got, expected $code, and a line like: $pattern"
        sed 's/^/    /' "$dir/out"
    fi
}

python3 - "$dir" <<'END'
import json, math, os, sys
for name, steps in ("a", 300), ("b", 200):
    os.makedirs(f"{sys.argv[1]}/{name}")
    with open(f"{sys.argv[1]}/{name}/run.jsonl", "w") as file:
        for step in range(1, steps + 1):
            row = {"step": step, "tokens": step * 768, "loss": 2 + 3 * math.exp(-step / 50), "val_loss": None,
                   "lr": 1e-3, "grad_norm": 1.0, "skipped": 0}
            if step % 100 == 0:
                row["val_loss"] = 2.5
            if step == 50:
                row["loss"] = row["grad_norm"] = None
            file.write(json.dumps(row) + "\n")
        file.write('{"step": 150, "loss": 7.25}\n')  # written again after a resume
        file.write('not json\n[1, 2]\n{"loss": 1}\n{"step": null}\n\n{"step": 301, "lo')  # five lines to leave out
END
mkdir "$dir/empty" "$dir/nulls" "$dir/fake"
: >"$dir/empty/run.jsonl"
echo '{"step": 1, "loss": null, "lr": null}' >"$dir/nulls/run.jsonl"
echo '{"step": 1, "loss": 2.5, "lr": 0.1}' >"$dir/one.jsonl"
echo 'raise ImportError("a stand-in that is not there")' >"$dir/fake/matplotlib.py"

ok "no such folder" 1 "there is no run '$dir/nowhere'" python3 $plot "$dir/nowhere"
ok "a folder without a log" 1 "cannot read '$dir/fake/run.jsonl'" python3 $plot "$dir/fake"
ok "an empty log" 1 "holds no step with a number in it" python3 $plot "$dir/empty"
ok "nothing but nulls" 1 "holds no step with a number in it" python3 $plot "$dir/nulls"
ok "no runs named" 2 "required" python3 $plot
ok "labels that do not match" 1 "3 labels for 2 runs" python3 $plot "$dir/a" "$dir/b" --labels x y z
ok "no matplotlib" 1 "try: uv run scripts/plot_runs.py" env PYTHONPATH="$dir/fake" python3 $plot "$dir/a"
ok "torn lines are counted" 1 "a: 5 lines left out" env PYTHONPATH="$dir/fake" python3 $plot "$dir/a"

ok "what is read" 0 "^fine" python3 - "$dir" <<'END'
import sys
sys.path.insert(0, "scripts")
import plot_runs
series, torn = plot_runs.read_run(sys.argv[1] + "/a")
steps, losses = series["loss"]
assert torn == 5 and steps == [s for s in range(1, 301) if s != 50], (torn, steps)
assert losses[steps.index(150)] == 7.25 and abs(losses[0] - 4.9405960) < 1e-6, losses[:3]
assert series["val_loss"] == ([100, 200, 300], [2.5] * 3), series["val_loss"]
assert series["grad_norm"][0] == steps
# Smoothing against its definition.
values = [3.0, -1.0, 4.0, 1.0, -5.0, 9.0]
for window in 1, 2.5, 7:
    decay = 1 - 1 / window
    for i, got in enumerate(plot_runs.smoothed(values, window)):
        weights = [decay ** abs(i - j) for j in range(len(values))]
        expected = sum(w * v for w, v in zip(weights, values)) / sum(weights)
        assert abs(got - expected) < 1e-12, (window, i, got, expected)
assert plot_runs.smoothed([], 5) == []
assert plot_runs.run_labels(["x/log", "y/log"]) == ["x/log", "y/log"] and plot_runs.run_labels(["p/q"]) == ["q"]
same = plot_runs.run_labels(["log", "log"])
assert len(set(same)) == 2 and same[1].endswith("log (2)"), same
print("fine")
END

if python3 -c 'import matplotlib' >/dev/null 2>&1; then
    ok "a picture beside the log" 0 "^$dir/a/loss.png" python3 $plot "$dir/a"
    ok "it is a PNG of a readable size" 0 "^fine" python3 - "$dir/a/loss.png" <<'END'
import struct, sys
data = open(sys.argv[1], "rb").read()
width, height = struct.unpack(">II", data[16:24])
assert data[:8] == b"\x89PNG\r\n\x1a\n" and width >= 1000 and height >= 700, (data[:8], width, height)
print("fine")
END
    ok "two runs as SVG" 0 "^$dir/two.svg" python3 $plot "$dir/a" "$dir/b" --out "$dir/two.svg"
    cp "$dir/two.svg" "$dir/first.svg"
    ok "the same again" 0 "^$dir/two.svg" python3 $plot "$dir/a" "$dir/b" --out "$dir/two.svg"
    ok "the same bytes again" 0 "^$" sh -c "cmp '$dir/first.svg' '$dir/two.svg' && echo"
    here=$PWD
    ok "two runs without --out: beside neither, but here" 0 "^compare.png" sh -c "cd '$dir' && python3 '$here/$plot' a b"
    ok "it is here, and the first run's picture is not touched" 0 "^fine" sh -c \
        "test -s '$dir/compare.png' && ! test '$dir/a/loss.png' -nt '$dir/two.svg' && ! test -e '$dir/b/loss.png' && echo fine"
    ok "a single point" 0 "one.png" python3 $plot "$dir/one.jsonl" --out "$dir/one.png"
    ok "a logarithmic axis" 0 "log.pdf" python3 $plot "$dir/a" --log --smooth 5 --labels "my run" --out "$dir/log.pdf"
    ok "a format that does not exist" 1 "cannot write" python3 $plot "$dir/a" --out "$dir/x.xyz"
    ok "a folder that does not exist" 1 "cannot write" python3 $plot "$dir/a" --out "$dir/nowhere/x.png"
else
    skipped=1
    echo "skip  pictures: no matplotlib"
fi

echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
