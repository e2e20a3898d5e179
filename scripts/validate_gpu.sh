#!/usr/bin/env bash
# Everything that can only be known on a GPU, in under eight minutes on one card: does it build, is it right, are two
# runs the same bits, how fast is it and what bounds it. Writes gpu_report.md and ends with its table.
#
#   scripts/validate_gpu.sh [--out FOLDER] [--budget SECONDS] [--modes "bf16 fp32"] [--llmc PATH] [--rehearse]
#
#   --out FOLDER   logs and the report (default gpu_report); a second call with the same folder runs only what has not
#                  passed yet, so what the budget (480) cut off is made up for
#   --modes        precisions; default: all that the GPU trainer has (make gpu-precisions)
#   --llmc PATH    a checkout of llm.c: built there and run beside ours on d12
#   --rehearse     the same steps on dev/emu, on tiny shapes: no GPU, no nvcc; part of make test
#
# Each step has a time limit of its own; one that fails is reported and the next runs. Exit code 1 if any failed or the
# budget left one out. Without nvcc, programs already in build/cuda-* are used.
set -u
cd "$(dirname "$0")/.." || exit 1
out=gpu_report budget=480 modes='' llmc='' rehearse=0
while [ $# -gt 0 ]; do
    case $1 in
        --out) out=${2:?a folder}; shift ;;
        --budget) budget=${2:?seconds}; shift ;;
        --modes) modes=${2:?precisions}; shift ;;
        --llmc) llmc=${2:?a path}; shift ;;
        --rehearse) rehearse=1 ;;
        *) sed -n '2,/^set/p' "$0" | sed '$d; s/^# \{0,1\}//'; [ "$1" = --help ]; exit ;;
    esac
    shift
done
PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin  # compute-sanitizer lies beside nvcc
unset MAKEFLAGS MAKEOVERRIDES MAKELEVEL  # a test run by make builds as anyone would
MAKE=${MAKE:-make}
jobs=$(nproc 2>/dev/null || echo 2)
[ -n "$modes" ] || modes=$($MAKE -s --no-print-directory gpu-precisions) || exit 1
case " $modes " in *" bf16 "*) main=bf16 ;; *) main=${modes%% *} ;; esac
case $main in bf16 | fp16) fused=${main}_gelu ;; *) fused= ;; esac  # it with --gelu-fusion 2: profiled, too
mkdir -p "$out/steps" || exit 1
out=$(cd "$out" && pwd)
rm -f "$out"/steps/*.late

if [ "$rehearse" = 1 ]; then
    test_part=quick small=2,4,64,67 large=2,2,32,67 B=4 T=64 large_B=4 timed=1 ceiling=64
    run_options="--layers 2 --heads 2 --channels 32 --batch 2 --seq 32 --steps 3"
    program() { echo "build/emulated/$1_$2"; }
    sanitizer() { "$@"; }  # the emulator's poison and checks; AddressSanitizer has its own tests
else
    test_part=all small=d12 large=d48 B=64 T=1024 large_B=64 timed=10 ceiling=8192
    run_options="--layers 6 --heads 6 --channels 384 --batch 8 --seq 256 --steps 12"
    program() { echo "build/cuda-$2/$1"; }
    sanitizer() { compute-sanitizer --tool memcheck --error-exitcode 9 "$@"; }
fi

# step NAME LIMIT COMMAND...: the command's output in steps/NAME.log, its exit code and seconds beside it. Not run again
# once it has passed, nor when the budget is spent.
step() {
    local name=$1 limit=$2 left=$((budget - SECONDS)) start=$SECONDS code
    local base=$out/steps/$name
    shift 2
    [ "$(cat "$base.code" 2>/dev/null)" = 0 ] && return 0
    if [ "$left" -lt 3 ]; then
        echo "late  $name: the budget of $budget s is spent"
        : >"$base.late"
        return 1
    fi
    [ "$limit" -lt "$left" ] || limit=$left
    # A function's children are stopped with it: timeout wants a program, so the shell runs itself.
    export -f program sanitizer build run_test two_runs machine facts llmc_run
    export rehearse out main llmc B T jobs test_part run_options MAKE
    timeout -k 5 "$limit" bash -c '"$@"' step "$@" >"$base.log" 2>&1 </dev/null
    code=$?
    echo "$code" >"$base.code"
    echo "$((SECONDS - start))" >"$base.seconds"
    case $code in
        0) echo "ok    $name, $((SECONDS - start)) s" ;;
        124 | 137) echo "FAIL  $name: stopped after $limit s" ;;
        *) echo "FAIL  $name: exit code $code"; tail -n 5 "$base.log" | sed 's/^/      /' ;;
    esac
    return $code
}

# ----------------------------------------------------------------------------------------------------------------
# What the steps do

facts() {
    if [ "$rehearse" = 1 ]; then echo "emulated on $(uname -m), a rehearsal: no time here means anything"; else
        nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm,power.limit --format=csv,noheader || return
    fi
}
machine() {
    facts || return
    git log -1 --format='commit %h of %cs' 2>/dev/null
    [ "$rehearse" = 1 ] || nvcc --version 2>/dev/null | grep release
    true
}

# The test and the profile of a precision; of the main one the trainer, too.
build() {
    local mode=$1 programs="test_gpt profile_gpt" targets='' program
    [ "$mode" = "$main" ] && programs="$programs train_gpt"
    if [ "$rehearse" = 0 ] && ! command -v nvcc >/dev/null; then
        for program in $programs; do
            [ -x "$(program "$program" "$mode")" ] || { echo "no nvcc, and no $(program "$program" "$mode")"; return 1; }
        done
        echo "no nvcc: using the programs that are here"
        return
    fi
    for program in $programs; do targets="$targets $(program "$program" "$mode")"; done
    if [ "$rehearse" = 1 ]; then set --; else set -- DEVICE=cuda "PRECISION=$mode"; fi
    # shellcheck disable=SC2086
    $MAKE -j3 "$@" $targets
}

run_test() { OMP_NUM_THREADS=$(((jobs + 3) / 4)) "$(program test_gpt "$1")" "$test_part"; }  # most of it is its CPU half

# The same run twice: weights, moments and log of the last step must be the same bytes.
two_runs() {
    local trainer run
    trainer=$(program train_gpt "$main")
    $MAKE -s --no-print-directory DEVICE=cpu data || return
    for run in a b; do
        rm -rf "$out/run_$run"
        # shellcheck disable=SC2086
        "$trainer" $run_options --val '' --sample-every 0 --warmup 2 --checkpoint-every 1000 --out "$out/run_$run" || return
    done
    local last=("$out"/run_a/step_*)
    last=${last[-1]##*/}
    for file in model.safetensors train_state.safetensors; do
        cmp "$out/run_a/$last/$file" "$out/run_b/$last/$file" || return
    done
    echo "two runs: the same bytes at $last"
    rm -rf "$out/run_a" "$out/run_b"
}

# llm.c's bf16 trainer on the same shape and token files.
llmc_run() {
    local data=$PWD/data
    $MAKE -s --no-print-directory DEVICE=cpu data || return
    cd "$llmc" || return
    $MAKE train_gpt2cu PRECISION=BF16 || return
    ./train_gpt2cu -e d12 -i "$data/self_train_*.bin" -j "$data/self_train_*.bin" -b "$B" -t "$T" -d $((B * T)) \
        -x 12 -v 0 -s 0 -n 0 -h 0 -r 0 -z 0
}

# ----------------------------------------------------------------------------------------------------------------

step machine 20 machine
# side_by_side COUNT PREFIX COMMAND: "COMMAND MODE" as step PREFIX_MODE for all other precisions, so many at a time.
side_by_side() {
    local count=$1 prefix=$2 command=$3 mode running=0
    for mode in $others; do
        if [ "$running" -ge "$count" ]; then wait -n; else running=$((running + 1)); fi
        step "${prefix}_$mode" 240 "$command" "$mode" &
    done
    wait
}

step build_$main 200 build "$main"
others=
for mode in $modes; do [ "$mode" = "$main" ] || others="$others $mode"; done
# The other precisions build while the first is tested; nothing is timed meanwhile.
side_by_side $((jobs / 2 + 1)) build build &  # of the two programs one takes twice as long
builds=$!
step test_$main 150 run_test "$main"
step sanitizer 120 sanitizer "$(program test_gpt "$main")" quick
step two_runs 60 two_runs
wait "$builds"
side_by_side 4 test run_test
profiler() { program profile_gpt "${1%_gelu}"; }
fusion() { case $1 in *_gelu) echo --gelu-fusion 2 ;; esac; }
for mode in $main $fused $others; do
    # shellcheck disable=SC2046
    step "${mode}_d12" 60 "$(profiler "$mode")" step $small $B $T $timed $ceiling $(fusion "$mode")
done
[ -z "$llmc" ] || step llmc_d12 120 llmc_run
for mode in $main $fused $others; do
    case $mode in  # CUDA cores alone take twelve seconds for a step of 64 sequences
        fp32) step "${mode}_1.5B" 90 "$(profiler "$mode")" step $large $((large_B / 16 + 1)) $T 1 $ceiling ;;
        # shellcheck disable=SC2046
        *) step "${mode}_1.5B" 90 "$(profiler "$mode")" step $large $large_B $T $(((timed + 2) / 3)) $ceiling $(fusion "$mode") ;;
    esac
done
step paper 20 "$(program profile_gpt "$main")" paper $small $B $T

# ----------------------------------------------------------------------------------------------------------------
# The report

field() { sed -n "s/^result:.* $2=\([^ ]*\).*/\1/p" "$1" 2>/dev/null | tail -n 1; }
result_of() {
    local base=$1
    if [ -e "$base.late" ]; then echo "not run: budget"; else
        case $(cat "$base.code" 2>/dev/null) in
            0) echo ok ;;
            124 | 137) echo "FAILED: time limit" ;;
            *) echo "FAILED: exit code $(cat "$base.code" 2>/dev/null)" ;;
        esac
    fi
}
note_of() {
    case $1 in
        *_d12 | *_1.5B) grep -o '[0-9]* tok/s' "$2.log" 2>/dev/null | tail -n 1 ;;
        test_* | sanitizer) grep -E '^[0-9]+ passed|ERROR SUMMARY' "$2.log" 2>/dev/null | tail -n 1 ;;
        two_runs | machine) tail -n 1 "$2.log" 2>/dev/null ;;
    esac
}

failed=0
steps="machine build_$main test_$main sanitizer two_runs"
for mode in $others; do steps="$steps build_$mode test_$mode"; done
for mode in $main $fused $others; do steps="$steps ${mode}_d12"; done
steps="$steps${llmc:+ llmc_d12}"
for mode in $main $fused $others; do steps="$steps ${mode}_1.5B"; done
steps="$steps paper"

table() {
    echo "| step | result | s | |"
    echo "|---|---|---|---|"
    for name in $steps; do
        echo "| $name | $(result_of "$out/steps/$name") | $(cat "$out/steps/$name.seconds" 2>/dev/null) | $(note_of "$name" "$out/steps/$name") |"
    done
    echo
    echo "| precision | model | sequences at once | recompute | ms a step | tokens/s | TFLOP/s | MFU of the best product here | of the datasheet | best TFLOP/s | copy GB/s |"
    echo "|---|---|---|---|---|---|---|---|---|---|---|"
    for size in d12 1.5B; do
        for mode in $main $fused $others; do
            log=$out/steps/${mode}_$size.log
            [ -n "$(field "$log" step_ms)" ] || continue
            row="| ${mode/_gelu/, GELU within products} |"
            for key in model micro recompute step_ms tokens_per_s tflops mfu_of_best mfu_of_datasheet best_tflops copy_gb_per_s; do
                row="$row $(field "$log" $key) |"
            done
            echo "$row"
        done
        if [ $size = d12 ] && [ -n "$llmc" ]; then
            echo "| llm.c bf16 | d12 | $B | | | $(grep -o '[0-9]* tok/s' "$out/steps/llmc_d12.log" | tail -n 1 | cut -d' ' -f1) | | | | | |"
        fi
    done
}
for name in $steps; do [ "$(result_of "$out/steps/$name")" = ok ] || failed=$((failed + 1)); done
{
    echo "# GPU report of $(date -u '+%Y-%m-%d %H:%M') UTC"
    echo
    sed 's/^/    /' "$out/steps/machine.log" 2>/dev/null
    echo
    table
    for name in $steps; do
        log=$out/steps/$name.log
        case $name in *_d12 | *_1.5B | paper) ;; *) [ "$(result_of "$out/steps/$name")" = ok ] && continue ;; esac
        printf '\n## %s: %s\n\n' "$name" "$(result_of "$out/steps/$name")"
        tail -n 60 "$log" 2>/dev/null | sed 's/^/    /'
    done
} >"$out/gpu_report.md"
echo
table
echo
echo "$out/gpu_report.md: $failed of $(echo "$steps" | wc -w) steps failed or were left out, $SECONDS s"
[ "$failed" -eq 0 ]
