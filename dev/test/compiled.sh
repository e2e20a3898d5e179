#!/bin/sh
# nvcc's code run without a GPU, by a PTX emulator: every kernel as compiled, a second opinion beside dev/emu, which
# runs the sources. test_gpt.cu and a short training run, without faults, without races, and with the same results
# whatever the order of warps and however late work on streams is done.
#
#   make test-compiled [PTX_EMULATOR=folder]                          everything: every precision in every mode, an hour
#   make test-compiled CHECK=quick                                    each precision and each mode once, minutes
#   make test-compiled CHECK_PRECISIONS="bf16" MODES="plain race"     only these
#
# The emulator is a folder with the programs  bin/NAME-nvcc  (nvcc, plus the flags it needs) and  bin/NAME-run PROGRAM
# ARGUMENTS..., which exits with a code of its own where the program has a fault or a race. NAME in capitals begins the
# variables it reads: NAME_ORDER=1|2 (warps and blocks in other orders), NAME_LAZY=1|2 (work on streams is put off until
# something waits for it), NAME_RACE=1 (shared memory's races), NAME_STRICT=1. Without PTX_EMULATOR it is looked for in
# SHARED (default ../shared), and a copy built here if it needs building.
#
# Environment: NVCC CXX BUILD (with tokenize) PTX_EMULATOR SHARED PRECISIONS MODES CHECK.

cd "$(dirname "$0")/../.." || exit 1
: "${CXX:=g++}" "${CHECK:=full}" "${PRECISIONS:=fp32 tf32 bf16 fp16}"
: "${MODES:=plain order1 order2 lazy1 lazy2 race}"
out=build/compiled
passed=0 failed=0 skipped=0
dir=$(mktemp -d "${TMPDIR:-/tmp}/train_gpt_compiled.XXXXXX") || exit 1
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM

ok() { passed=$((passed + 1)); echo "ok    $*"; }
fail() { failed=$((failed + 1)); echo "FAIL  $*"; sed 's/^/    /' "$dir/log" | tail -n 40; }
finish() { echo "$passed passed, $failed failed, $skipped skipped"; [ "$failed" -eq 0 ]; exit; }
skip() { skipped=$((skipped + 1)); echo "skip  compiled: $*"; finish; }

# Sets runner, compiler and prefix from the folder $1; false if it is no emulator.
find_tools() {
    runner=$(ls "$1"/bin/*-run 2>/dev/null | head -n 1) compiler=$(ls "$1"/bin/*-nvcc 2>/dev/null | head -n 1)
    [ -x "$runner" ] && [ -x "$compiler" ] || return 1
    prefix=$(basename "$runner" -run | tr 'a-z-' 'A-Z_')
}

[ -n "$NVCC" ] || skip "no nvcc"
PATH=$(dirname "$NVCC"):$PATH
emulator=$PTX_EMULATOR
if [ -z "$emulator" ]; then
    for tool in "${SHARED:-../shared}"/tools/*/bin/*-nvcc; do [ -x "$tool" ] && emulator=$(dirname "$tool")/..; done
fi
[ -n "$emulator" ] || skip "no PTX emulator: PTX_EMULATOR names none, nor is one in ${SHARED:-../shared}/tools"
find_tools "$emulator" || skip "$emulator has no bin/*-run and bin/*-nvcc"
if [ -f "$emulator/Makefile" ] && ! ls "$emulator"/lib/*.so* >/dev/null 2>&1; then
    mkdir -p "$out/emulator"
    cp -Rp "$emulator/." "$out/emulator/"  # with its times, so that a second run builds nothing
    make -C "$out/emulator" -j2 >"$dir/log" 2>&1 || { tail -n 3 "$dir/log"; skip "the PTX emulator does not build"; }
    emulator=$out/emulator
    find_tools "$emulator"
fi

# build SOURCE PRECISION PROGRAM, with what the compiler says in PROGRAM.log
build() {
    mkdir -p "$out"
    rm -f "$3"
    "$compiler" -std=c++17 -O3 -I. -lineinfo -DBUILD_NAME=compiled -DPRECISION_"$(echo "$2" | tr - _)" -DMASTER_fp32 \
        -DMOMENTS_fp32 --diag-suppress 1675 -ccbin "$CXX" \
        -Xcompiler=-O3,-fopenmp,-ffp-contract=off,-fno-math-errno,-fno-trapping-math -o "$3" "$1" -lcublasLt \
        >"$3.log" 2>&1
}
built() {
    [ -x "$1" ] && return
    cp "$1.log" "$dir/log"
    fail "$1 does not compile"
    return 1
}

if [ "$1" = build ]; then  # this script as a process of xargs
    build "$2" "$3" "$4"
    exit 0
fi

# emulate MODE PROGRAM ARGUMENTS...: its output to $dir/log
emulate() {
    case $1 in
        plain) setting= ;;
        order*) setting=${prefix}_ORDER=${1#order} ;;
        lazy*) setting=${prefix}_LAZY=${1#lazy} ;;
        race) setting=${prefix}_RACE=1 ;;
    esac
    shift
    # shellcheck disable=SC2086
    env "${prefix}_STRICT=1" $setting "$runner" "$@" >"$dir/log" 2>&1
}

# model_test PRECISION MODE PART: passes, and `quick` with the digest it has in the first mode
model_test() {
    if ! emulate "$2" "$out/test_gpt_$1" "$3" || ! grep -q ' 0 failed' "$dir/log"; then
        fail "test_gpt $3 in $1, $2"
        return
    fi
    if [ "$3" = quick ]; then
        grep digest "$dir/log" >"$dir/digest"
        [ -s "$dir/want" ] || cp "$dir/digest" "$dir/want"
        if ! cmp -s "$dir/digest" "$dir/want"; then
            fail "test_gpt quick in $1, $2: other bits than in the first mode"
            return
        fi
    fi
    ok "test_gpt $3 in $1, $2"
}

# training_run PRECISION MODE: a few steps; the weights have the bits of the first mode
training_run() {
    run=$dir/run_$1_$2
    if ! emulate "$2" "$out/train_gpt_$1" --train "$dir/text_train_*.bin" --val "$dir/text_val_*.bin" --layers 2 \
        --heads 2 --channels 64 --batch 2 --seq 32 --steps 4 --val-every 2 --val-steps 1 --sample-every 4 \
        --checkpoint-every 4 --seed 1 --out "$run"; then
        fail "a training run in $1, $2"
        return
    fi
    cksum <"$run/step_00000004/model.safetensors" >"$dir/weights"
    [ -s "$dir/want_weights" ] || cp "$dir/weights" "$dir/want_weights"
    if cmp -s "$dir/weights" "$dir/want_weights"; then ok "a training run in $1, $2"
    else fail "a training run in $1, $2: other weights than in the first mode"; fi
    rm -rf "$run"
}

"$BUILD/tokenize" --tokenizer byte --val-fraction 0.2 --out "$dir/text" README.md >"$dir/log" 2>&1 || fail "tokenize"
export NVCC CXX PTX_EMULATOR="$emulator"
for precision in $PRECISIONS; do
    echo "test_gpt.cu $precision $out/test_gpt_$precision"
    [ "$CHECK" = quick ] && [ "$precision" != bf16 ] || echo "train_gpt.cu $precision $out/train_gpt_$precision"
done | xargs -P 2 -L 1 sh dev/test/compiled.sh build
for precision in $PRECISIONS; do
    rm -f "$dir/want" "$dir/want_weights"
    built "$out/test_gpt_$precision" || continue
    if [ "$CHECK" = quick ] && [ "$precision" != bf16 ]; then
        model_test "$precision" race quick
        continue
    fi
    for mode in $MODES; do
        model_test "$precision" "$mode" quick
        [ "$CHECK" = quick ] || model_test "$precision" "$mode" all
    done
    if [ "$CHECK" = quick ]; then
        model_test "$precision" race attention
        model_test "$precision" race kernels
    fi
    built "$out/train_gpt_$precision" || continue
    for mode in $MODES; do
        case $CHECK$mode in quickorder* | quickrace) continue ;; esac  # the model's test has had these
        training_run "$precision" "$mode"
    done
done
# The casts and products of eight and four bits are what these test, in any build.
if [ "$CHECK" != quick ]; then
    for source in dev/test/test_*_cuda.cu; do
        name=$(basename "$source" .cu)
        build "$source" fp32 "$out/$name"
        built "$out/$name" || continue
        for mode in $MODES; do
            if emulate "$mode" "$out/$name"; then ok "$name, $mode"; else fail "$name, $mode"; fi
        done
    done
fi
finish
