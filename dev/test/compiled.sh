#!/bin/sh
# nvcc's code run without a GPU, by a PTX emulator: every kernel as compiled, a second opinion beside dev/emu, which
# runs the sources. test_gpt.cu and short training runs of one and two ranks, without faults, without races, and with
# the same results whatever the order of warps and however late work on streams is done; each precision as the
# architectures that have its products, and as one that has not.
#
#   make test-compiled [PTX_EMULATOR=folder]    everything, hours: all of test_gpt in every mode as a precision's home;
#                                               its quick part and training runs as the other architectures
#   make test-compiled CHECK=quick              each precision, mode and architecture once, minutes
#   make test-compiled CHECK_PRECISIONS="bf16 nvfp4" CUDA_ARCH="90 120" MODES="plain race"      only these
#
# The emulator is a folder with the programs  bin/NAME-nvcc  (nvcc, plus the flags it needs) and  bin/NAME-run PROGRAM
# ARGUMENTS..., which exits with a code of its own where the program has a fault or a race. NAME in capitals begins the
# variables it reads: NAME_CC=80|89|90|100|120 (the architecture), NAME_ORDER=1|2 (warps and blocks in other orders),
# NAME_LAZY=1|2 (work on streams is put off until something waits for it), NAME_RACE=1 (shared memory's races),
# NAME_STRICT=1. Its NCCL joins processes of one machine. Without PTX_EMULATOR it is looked for in SHARED (default
# ../shared), and a copy built here if it needs building.
#
# Environment: NVCC CXX BUILD (with tokenize) PTX_EMULATOR SHARED PRECISIONS ARCHS MODES CHECK NCCL_FLAGS NCCL_LIBS.

cd "$(dirname "$0")/../.." || exit 1
: "${CXX:=g++}" "${CHECK:=full}" "${PRECISIONS:=fp32 tf32 bf16 fp16}" "${ARCHS:=80 89 90 100 120}"
: "${MODES:=plain order1 order2 lazy1 lazy2 race}"
out=build/compiled

# build SOURCE PRECISION PROGRAM ARCH..., with what the compiler says in PROGRAM.log
build() {
    source=$1 precision=$2 program=$3 targets=
    shift 3
    for arch in "$@"; do
        case $arch in 90 | 100 | 120) arch=${arch}a ;; esac
        targets="$targets -gencode arch=compute_$arch,code=compute_$arch"
    done
    mkdir -p "$out"
    rm -f "$program"
    # shellcheck disable=SC2086
    "$compiler" -std=c++17 -O3 -I. -lineinfo -DBUILD_NAME=compiled -DPRECISION_"$(echo "$precision" | tr - _)" \
        -DMASTER_fp32 -DMOMENTS_fp32 $NCCL_FLAGS --diag-suppress 1675 -ccbin "$CXX" $targets \
        -Xcompiler=-O3,-fopenmp,-ffp-contract=off,-fno-math-errno,-fno-trapping-math -o "$program" "$source" \
        -lcublasLt $NCCL_LIBS >"$program.log" 2>&1
}

if [ "$1" = build ]; then  # this script as a process of xargs
    shift
    build "$@"
    exit 0
fi

. dev/test/train_lib.sh
missing() { skip "compiled: $*"; summary; }
fail() { failed=$((failed + 1)); echo "FAIL  $*"; sed 's/^/    /' "$dir/log" | tail -n 40; }

# Sets runner, compiler and prefix from the folder $1; false if it is no emulator.
find_tools() {
    runner=$(ls "$1"/bin/*-run 2>/dev/null | head -n 1) compiler=$(ls "$1"/bin/*-nvcc 2>/dev/null | head -n 1)
    [ -x "$runner" ] && [ -x "$compiler" ] || return 1
    prefix=$(basename "$runner" -run | tr 'a-z-' 'A-Z_')
}

[ -n "$NVCC" ] || missing "no nvcc"
PATH=$(dirname "$NVCC"):$PATH
emulator=$PTX_EMULATOR
if [ -z "$emulator" ]; then
    for tool in "${SHARED:-../shared}"/tools/*/bin/*-nvcc; do [ -x "$tool" ] && emulator=$(dirname "$tool")/..; done
fi
[ -n "$emulator" ] || missing "no PTX emulator: PTX_EMULATOR names none, nor is one in ${SHARED:-../shared}/tools"
find_tools "$emulator" || missing "$emulator has no bin/*-run and bin/*-nvcc"
if [ -f "$emulator/Makefile" ] && ! ls "$emulator"/lib/*.so* >/dev/null 2>&1; then
    mkdir -p "$out/emulator"
    cp -Rp "$emulator/." "$out/emulator/"  # with its times, so that a second run builds nothing
    make -C "$out/emulator" -j2 >"$dir/log" 2>&1 || { tail -n 3 "$dir/log"; missing "the PTX emulator does not build"; }
    emulator=$out/emulator
    find_tools "$emulator"
fi

# ----------------------------------------------------------------------------------------------------------------
# What runs where

# The architectures that have a precision's products.
native_of() {
    case $1 in
        fp8-delayed | fp8-current) echo 89 90 100 120 ;;
        fp8-row | fp8-block) echo 90 100 120 ;;
        mxfp8 | nvfp4) echo 100 120 ;;
        *) echo 80 89 90 100 120 ;;
    esac
}
# Where it goes through every mode; with CHECK=quick its only one. Every architecture is somebody's.
home_of() {
    case $1 in
        fp32 | fp8-current) echo 80 ;; # the latter emulated
        tf32 | fp8-delayed) echo 89 ;;
        bf16 | fp8-row) echo 90 ;;
        fp8-block | mxfp8) echo 100 ;;
        *) echo 120 ;;
    esac
}
is_in() { case " $2 " in *" $1 "*) true ;; *) false ;; esac; }

# Those of $ARCHS that a precision is run as.
archs_of() {
    if [ "$CHECK" = quick ]; then home_of "$1"; return; fi
    for arch in 80 89 90 100 120; do
        is_in "$arch" "$ARCHS" && is_in "$arch" "80 $(native_of "$1")" && echo "$arch"
    done
}

# Those of the modes given that are asked for.
modes() { for mode in "$@"; do if is_in "$mode" "$MODES"; then echo "$mode"; fi; done; }

# Is ARCH where a precision goes through everything: its home, or any where that is not asked for?
at_home() { [ "$2" = "$(home_of "$1")" ] || ! is_in "$(home_of "$1")" "$ARCHS"; }

# model_modes, train_modes PRECISION ARCH
all_modes() { if at_home "$@"; then echo "$MODES"; else echo "${MODES%% *}"; fi; }
model_modes() {
    case $CHECK-$1 in
        quick-bf16) echo "$MODES" ;;
        quick-*) modes race ;;
        *) all_modes "$@" ;;
    esac
}
train_modes() {
    case $CHECK-$1 in
        quick-bf16) modes plain lazy1 lazy2 ;;
        quick-fp8-delayed) modes plain ;;
        quick-*) ;;
        *) all_modes "$@" ;;
    esac
}

built() {
    [ -x "$1" ] && return
    cp "$1.log" "$dir/log"
    fail "$1 does not compile"
    return 1
}

# emulate ARCH MODE COMMAND...: its output to $dir/log
emulate() {
    case $2 in
        plain) setting= ;;
        order*) setting=${prefix}_ORDER=${2#order} ;;
        lazy*) setting=${prefix}_LAZY=${2#lazy} ;;
        race) setting=${prefix}_RACE=1 ;;
    esac
    as=${prefix}_CC=$1
    shift 2
    # shellcheck disable=SC2086
    env "$as" "${prefix}_STRICT=1" $setting "$@" >"$dir/log" 2>&1
}

# model_test PRECISION ARCH MODE PART: passes, and `quick` with the digest it has in the first mode
model_test() {
    what="test_gpt $4 in $1 as $2, $3"
    if ! emulate "$2" "$3" "$runner" "$out/test_gpt_$1" "$4" || ! grep -q ' 0 failed' "$dir/log"; then
        fail "$what"
        return
    fi
    if [ "$4" = quick ]; then
        grep digest "$dir/log" >"$dir/digest"
        [ -s "$dir/want" ] || cp "$dir/digest" "$dir/want"
        if ! cmp -s "$dir/digest" "$dir/want"; then
            fail "$what: other bits than in the first mode"
            return
        fi
    fi
    ok "$what"
}

# ----------------------------------------------------------------------------------------------------------------
# Training runs: three layers, of which the first and the last may be kept high; two micro-batches a step.

steps="--layers 3 --heads 2 --channels 64 --seq 32 --batch 1 --total-batch 64 --steps 4 --lr 1e-3 --warmup 1
       --val-every 2 --val-steps 1 --sample-every 4 --checkpoint-every 4 --seed 1 --bucket 0.1"
# training FOLDER PRECISION ARCH MODE RANKS OPTIONS...
training() {
    into=$1 precision=$2 arch=$3 mode=$4 ranks=$5 start=
    shift 5
    [ "$ranks" -eq 1 ] || start="scripts/launch.sh $ranks"
    rm -rf "${dir:?}/$into"
    # shellcheck disable=SC2086
    emulate "$arch" "$mode" $start "$runner" "$out/train_gpt_$precision" --train "$dir/text_train_*.bin" \
        --val "$dir/text_val_*.bin" $steps --out "$dir/$into" "$@"
}
same_weights() { cmp -s "$dir/$1/step_00000004/model.safetensors" "$dir/$2/step_00000004/model.safetensors"; }

# Whether the last run's products went the way of this architecture: true, or what it says of one that did not.
went() {
    emulated=$(grep -m 1 'emulated by a bf16 product' "$dir/log")
    if is_in "$2" "$(native_of "$1")"; then
        [ -z "$emulated" ] || skip "$1 as $2 is not native here:$emulated"
    else
        [ -n "$emulated" ]
    fi
}

# training_run PRECISION ARCH MODE: the weights have the bits of the first mode
training_run() {
    what="a training run in $1 as $2, $3"
    if ! training one "$1" "$2" "$3" 1 || ! went "$1" "$2"; then
        fail "$what"
        return
    fi
    [ -d "$dir/first" ] || cp -r "$dir/one" "$dir/first"
    if same_weights one first; then ok "$what"; else fail "$what: other weights than in the first mode"; fi
}

# training_ranks PRECISION ARCH MODE, after training_run: two ranks train as one does, up to the order of sums (and
# nvfp4's dice, which are a rank's own); they stay alike; and what they share out does not matter. The latter without
# the comparison of replicas, which waits for all that a missing wait would let through.
training_ranks() {
    what="two ranks in $1 as $2, $3"
    case $1 in nvfp4) limit_of=2e-2 ;; fp8-* | mxfp8) limit_of=1e-3 ;; *) limit_of=1e-4 ;; esac
    if ! training two "$1" "$2" "$3" 2 --check-replicas 1; then fail "$what"
    elif ! near two first "$limit_of" >"$dir/log"; then fail "$what: not as one rank does"
    elif ! training shared "$1" "$2" "$3" 2 --zero 2; then fail "$what, --zero 2"
    elif ! same_weights two shared; then fail "$what: other weights with --zero 2"
    else ok "$what"; fi
}

# ----------------------------------------------------------------------------------------------------------------

"$BUILD/tokenize" --tokenizer byte --val-fraction 0.2 --out "$dir/text" README.md >"$dir/log" 2>&1 || fail "tokenize"
[ -n "$NCCL_LIBS" ] || skip "compiled: two ranks: no nccl.h and -lnccl"
export NVCC CXX compiler NCCL_FLAGS NCCL_LIBS
for precision in $PRECISIONS; do
    archs=$(echo $(archs_of "$precision"))
    [ -n "$archs" ] || continue
    echo "test_gpt.cu $precision $out/test_gpt_$precision $archs"
    [ -z "$(train_modes "$precision" "${archs%% *}")" ] ||
        echo "train_gpt.cu $precision $out/train_gpt_$precision $archs"
done | xargs -P 2 -L 1 sh dev/test/compiled.sh build

# check_as PRECISION ARCH: everything that one precision is put through as one architecture
check_as() {
    rm -rf "$dir/want" "$dir/first"
    for mode in $(model_modes "$1" "$2"); do
        model_test "$1" "$2" "$mode" quick
        if [ "$CHECK" != quick ] && at_home "$1" "$2"; then model_test "$1" "$2" "$mode" all; fi
    done
    if [ "$CHECK-$1" = quick-bf16 ]; then
        for mode in $(modes race); do
            model_test "$1" "$2" "$mode" attention
            model_test "$1" "$2" "$mode" kernels
        done
    fi
    train=$(train_modes "$1" "$2")
    [ -n "$train" ] && built "$out/train_gpt_$1" || return
    for mode in $train; do
        training_run "$1" "$2" "$mode"
        [ -z "$NCCL_LIBS" ] || training_ranks "$1" "$2" "$mode"
    done
}
for precision in $PRECISIONS; do
    archs=$(archs_of "$precision")
    [ -n "$archs" ] && built "$out/test_gpt_$precision" || continue
    for arch in $archs; do check_as "$precision" "$arch"; done
done
# The casts and products of eight and four bits are what these test, in any build; fp32's do.
if [ "$CHECK" != quick ] && is_in fp32 "$PRECISIONS"; then
    for source in dev/test/test_*_cuda.cu; do
        name=$(basename "$source" .cu)
        # shellcheck disable=SC2086
        build "$source" fp32 "$out/$name" $ARCHS
        built "$out/$name" || continue
        for arch in $ARCHS; do
            for mode in $MODES; do
                what="$name as $arch, $mode"
                [ "$arch" = 90 ] || [ "$mode" = "${MODES%% *}" ] || continue
                if emulate "$arch" "$mode" "$runner" "$out/$name"; then ok "$what"; else fail "$what"; fi
            done
        done
    done
fi
summary
