#!/bin/sh
# The d12 step (B=4 T=64) in every precision, as a ratio to fp32's in the same run: fp32 is timed again before each mode,
# so that what else the machine does falls on both.
#
#   MODES="bf16 mxfp8"   only these
#
# `make bench` runs this after the programs of dev/bench. The ratios' limits are those of the precision pages: 1.15 for
# bf16, 1.3 with one FP8 scale a tensor, 1.5 with one a row or block, 2 for mxfp8 and nvfp4.
set -u
cd "$(dirname "$0")/../.." || exit 1
make=${MAKE:-make}
modes=${MODES:-tf32 bf16 fp16 fp8-delayed fp8-current fp8-row fp8-block mxfp8 nvfp4}

limit() {
    case $1 in
        tf32 | bf16 | fp16) echo 1.15 ;;
        fp8-delayed | fp8-current) echo 1.3 ;;
        fp8-row | fp8-block) echo 1.5 ;;
        *) echo 2 ;;
    esac
}

# Milliseconds of the median step.
step_ms() {
    "build/cpu-$1/bench_step" d12 4 64 6 | sed -n 's/.*: *\([0-9.]*\) ms a step.*/\1/p'
}

for mode in fp32 $modes; do
    "$make" -s DEVICE=cpu PRECISION="$mode" "build/cpu-$mode/bench_step" >/dev/null || exit 1
done
echo "d12 B=4 T=64 by precision, milliseconds a step:"
for mode in $modes; do
    fp32=$(step_ms fp32) this=$(step_ms "$mode")
    awk -v mode="$mode" -v a="$fp32" -v b="$this" -v limit="$(limit "$mode")" 'BEGIN {
        printf "%-12s %7.1f, fp32 %7.1f: ratio %.2f, limit %s%s\n", mode, b, a, b / a, limit, (b > limit * a ? "  OVER" : "") }'
done
