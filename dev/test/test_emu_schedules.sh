#!/bin/sh
# The GPU trainer on the emulator with the threads of a block, and blocks, in other orders: a forward and backward pass
# must be right and have the same bits in each. Also as other GPUs, and with a GPU that is too small.
#
#   make test-emu        builds what this runs

cd "$(dirname "$0")/../.." || exit 1
passed=0 failed=0 skipped=0
dir=$(mktemp -d "${TMPDIR:-/tmp}/train_gpt_emu.XXXXXX") || exit 1
trap 'rm -rf "$dir"' EXIT

result() {
    if [ "$1" -eq 0 ]; then
        passed=$((passed + 1))
        echo "ok    $2"
    else
        failed=$((failed + 1))
        echo "FAIL  $2"
        sed 's/^/    /' "$dir/out"
    fi
}

case $BUILD in *-sanitize*) # there the models' tests are themselves sanitized
    echo "skip  schedules: run by the build without sanitizers"
    echo "0 passed, 0 failed, 1 skipped"
    exit ;;
esac
for precision in bf16 nvfp4; do
    if [ -x build/emulated/test_gpt_$precision-sanitize ]; then
        build/emulated/test_gpt_$precision-sanitize quick >"$dir/out" 2>&1
        result $? "$precision with sanitizers"
    else
        skipped=$((skipped + 1))
        echo "skip  sanitizers: build/emulated/test_gpt_$precision-sanitize is not built"
    fi
done
# The ways that products of cast operands go on other cards than the default, a Hopper.
for run in fp8-delayed/80 fp8-delayed/89 fp8-delayed/100 fp8-row/100 fp8-block/80 fp8-block/100 mxfp8/100 nvfp4/120; do
    program=build/emulated/test_gpt_${run%/*}
    [ -x "$program" ] || continue
    EMU_CC=${run#*/} "$program" quick >"$dir/out" 2>&1
    result $? "${run%/*} as compute capability ${run#*/}"
done
for precision in bf16 fp32 fp8-block; do
    program=build/emulated/test_gpt_$precision
    if [ ! -x "$program" ]; then
        skipped=$((skipped + 1))
        echo "skip  $program is not built (no C++ compiler, or a build with sanitizers)"
        continue
    fi
    EMU_SCHEDULE=0 "$program" quick >"$dir/first" 2>&1
    cp "$dir/first" "$dir/out"
    result $? "$precision in ascending order"
    grep digest "$dir/first" >"$dir/want"
    for seed in 1 2 3 4 5; do
        EMU_SCHEDULE=$seed "$program" quick >"$dir/out" 2>&1 && grep digest "$dir/out" | cmp -s - "$dir/want"
        result $? "$precision with schedule $seed: right, and the same bits"
    done
    EMU_CC=120 "$program" quick >"$dir/out" 2>&1
    result $? "$precision as compute capability 12.0, whose blocks have less shared memory"
    EMU_MEM_MB=1 "$program" quick >"$dir/out" 2>&1
    [ $? -eq 1 ] && grep -q "out of GPU memory: the arena '" "$dir/out" && grep -q 'more than is free' "$dir/out"
    result $? "$precision with 1 MB of device memory: the arena and what is missing are named"
done

# plan MB: what a run says that needs some 150 MB of a card that has so many.
plan() { (cd "$dir" && EMU_MEM_MB=$1 "$train" --layers 4 --heads 4 --channels 256 --batch 8 --seq 256 --vocab 1000 --dry-run >out 2>&1); }
train=$PWD/build/emulated/train_gpt_bf16
if [ -x "$train" ]; then
    plan 4096 && ! grep -q 'try --batch' "$dir/out" && need=$(sed -n 's/^  total *\([0-9]*\).* MiB.*/\1/p' "$dir/out")
    plan $((need + 2)) && grep -q 'the GPU .* has .* MiB: try --batch [67],' "$dir/out"
    result $? "a card that the arenas would fill: something is left to libraries"
    plan $((need * 32 / 31 + 2)) && ! grep -q 'try --batch' "$dir/out"
    result $? "a thirty-second is enough"
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
