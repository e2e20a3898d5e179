#!/bin/sh
# Every precision build: precision_modes.c's tests; 30 steps from the same start that must stay near fp32's; a run cut at
# awkward steps and resumed that must end with the same bytes; the options and start-up lists of each.
#
# Builds each mode's test program under build/test/, with the compiler that built $BUILD and -O1: a fifth of -O3's time, and
# the runs are tiny. MODES="bf16 fp16" tests only those. Under sanitizers only one mode of a kind is built.

cd "$(dirname "$0")/../.." || exit 1
dir=$(mktemp -d "${TMPDIR:-/tmp}/train_gpt_modes.XXXXXX") || exit 1
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM
. dev/test/modes_lib.sh
passed=0 failed=0 skipped=0
ok() { passed=$((passed + 1)); echo "ok    $1"; }
fail() { failed=$((failed + 1)); echo "FAIL  $*"; }

all="tf32 bf16 fp16 fp8-delayed fp8-current fp8-row fp8-block mxfp8 nvfp4
                bf16:kahan bf16:stochastic:bf16sr bf16:nearest:bf16"
case $BUILD in *-sanitize) all="bf16:kahan fp16 fp8-delayed nvfp4" ;; esac
modes=${MODES:-fp32 $all}

# mean_loss FOLDER: the mean loss of the last ten of a run's steps.
mean_loss() { sed -n 's/.*"loss":\([0-9.]*\),.*/\1/p' "$1/run.jsonl" | tail -n 10 | awk '{ s += $1 } END { printf "%.6f", s / NR }'; }

# limit MODE: how far from fp32's mean loss of steps 21 to 30 it may be. Ten steps of one seed: chaos has not grown yet.
limit() {
    case $1 in
        tf32 | fp16) echo 0.0003 ;;
        bf16 | bf16:kahan) echo 0.002 ;;
        fp8-* | mxfp8) echo 0.003 ;;
        nvfp4) echo 0.02 ;;
        *) echo 0.006 ;;
    esac
}

tiny="--vocab 256 --layers 2 --heads 4 --channels 64 --seq 64 --batch 4 --warmup 10 --val= --sample-every 0 --threads 2 --lr 5e-4"

# options MODE: what makes its short runs show something: every layer cast; a loss scale that overflows and grows.
options() {
    case $1 in
        nvfp4) echo "--fp8-hp-first 0 --fp8-hp-last 0" ;;
        fp8-delayed) echo "--fp8-history 5" ;;
        *) : ;;
    esac
}
scaler="--loss-scale-start 268435456 --loss-scale-max 1099511627776 --loss-scale-interval 3"

# resume_test MODE: 12 steps at once, and cut at each of four steps.
resume_test() {
    extra=$(options "$1")
    [ "$1" = fp16 ] && extra="$extra $scaler"
    rm -rf "$work/whole" "$work/cut"
    # A checkpoint of every step; the cut runs begin with a copy of one of them.
    "$2" train --train "$dir/data.bin" $tiny $extra --steps 12 --checkpoint-every 1 --keep 0 --out "$work/whole" \
        >"$work/whole.txt" 2>&1 || { fail "$1: 12 steps"; tail -n 5 "$work/whole.txt"; return; }
    if [ "$1" = fp16 ]; then
        skips=$(grep -c '"skipped":1' "$work/whole/run.jsonl")
        scales=$(sed -n 's/.*"loss_scale":\([0-9.e+]*\),.*/\1/p' "$work/whole/run.jsonl" | sort -u | wc -l)
        if [ "$skips" -ge 2 ] && [ "$scales" -ge 3 ]; then ok "fp16: the resumed run has $skips skips and $scales scales"; else
            fail "fp16: $skips skips and $scales scales: the run shows nothing of resuming around them"; fi
    fi
    for at in 1 5 7 10; do
        rm -rf "$work/cut"
        mkdir "$work/cut"
        cp -r "$work/whole/step_000000$(printf %02d $at)" "$work/cut"
        "$2" train --train "$dir/data.bin" $tiny $extra --steps 12 --checkpoint-every 0 --resume --out "$work/cut" \
            >"$work/cut.txt" 2>&1 || { fail "$1: resumed at $at"; tail -n 5 "$work/cut.txt"; return; }
        for file in model.safetensors train_state.safetensors; do
            # The options recorded in the state file differ by --checkpoint-every alone: compare what follows its header.
            if ! cmp -s "$work/whole/step_00000012/$file" "$work/cut/step_00000012/$file" &&
                ! same_data "$work/whole/step_00000012/$file" "$work/cut/step_00000012/$file"; then
                fail "$1: resumed at step $at, $file is another"
                return
            fi
        done
        grep -q "precision" "$work/cut.txt" && { fail "$1: resuming says the precision changed"; return; }
    done
    ok "$1: cut at four steps and resumed, the same bytes"
}

# validation_test MODE: the validation loss of the weights that 30 steps made has the same digits whatever --batch is.
validation_test() {
    for batch in 4 3 1; do
        rm -rf "$work/val"
        "$2" train --train "$dir/data.bin" --val "$dir/data.bin" --val-steps 1 --steps 1 --sample-every 0 --threads 2 --batch $batch $(options "$1") \
            --init "$work/short/step_00000030" --out "$work/val" >"$work/val.txt" 2>&1 || tail -n 5 "$work/val.txt"
        sed -n 's/^{"step":0,.*"val_loss":\([0-9.]*\).*/\1/p' "$work/val/run.jsonl"
    done >"$work/val.losses"
    if [ "$(wc -l <"$work/val.losses")" -eq 3 ] && [ "$(sort -u "$work/val.losses" | wc -l)" -eq 1 ]; then
        ok "$1: the same validation loss with --batch 4, 3 and 1"
    else
        fail "$1: validation losses with --batch 4, 3 and 1: $(tr '\n' ' ' <"$work/val.losses")"
    fi
}

# The tensors of two safetensors files, their headers left out.
same_data() {
    for f in "$1" "$2"; do
        n=$(od -An -tu8 -N8 "$f" | tr -d ' ')
        tail -c +$((n + 9)) "$f" | cksum
    done | uniq | wc -l | grep -qx 1
}

"$BUILD/train_gpt" --version >/dev/null || { echo "no $BUILD/train_gpt"; exit 1; }
build_all $modes

# check_mode MODE: all of the above of one build, in a folder of its own.
check_mode() {
    mode=$1 program=$(program_of "$1") work=$dir/work.$1
    mkdir "$work"
    [ -s "$dir/data.bin" ] || "$program" data "$dir/data.bin"
    "$program" >"$work/unit" 2>&1
    code=$?
    summary=$(tail -n 1 "$work/unit")
    if [ $code -eq 0 ]; then
        ok "$mode: $summary"
        sed -n 's/^    \([a-z0-9-]* .*fprop.*\)/      \1/p' "$work/unit"
    else
        fail "$mode: precision_modes: $summary"
        grep -v '^ok' "$work/unit" | sed 's/^/    /' | tail -n 40
    fi
    if "$program" train --train "$dir/data.bin" $tiny $(options "$mode") --steps 30 --out "$work/short" >"$work/short.txt" 2>&1; then
        loss=$(mean_loss "$work/short")
        [ -s "$dir/reference" ] || echo "$loss" >"$dir/reference"
        gap=$(awk -v a="$loss" -v b="$(cat "$dir/reference")" 'BEGIN { d = a - b; printf "%+.5f", d }')
        if awk -v g="$gap" -v l="$(limit "$mode")" 'BEGIN { exit !(g <= l && g >= -l) }'; then ok "$mode: 30 steps, loss $loss, fp32 $gap"; else
            fail "$mode: 30 steps end at loss $loss, fp32's by $gap, allowed $(limit "$mode")"; fi
    else
        fail "$mode: 30 steps"
        tail -n 5 "$work/short.txt" | sed 's/^/    /'
    fi
    resume_test "$mode" "$program"
    validation_test "$mode" "$program"
    rm -rf "$work"
}

# The first makes the data and the loss that the others are compared with; these two at once, as each is mostly one thread.
check_into() (check_mode "$1" >"$dir/checked.$1" 2>&1)
first=
for mode in $modes; do
    [ -e "$dir/built.$mode.ok" ] || continue
    if [ -z "$first" ]; then first=$mode; check_into "$mode"; else two_at_once check_into "$mode"; fi
done
wait
running=
for mode in $modes; do
    if ! [ -e "$dir/built.$mode.ok" ]; then fail "$mode: does not build"; cat "$dir/built.$mode"; continue; fi
    cat "$dir/checked.$mode"
    passed=$((passed + $(grep -c '^ok ' "$dir/checked.$mode"))) failed=$((failed + $(grep -c '^FAIL ' "$dir/checked.$mode")))
done

# A checkpoint of one build goes on in another, which says so; with another history the scales in force stay.
go_on() {
    name=$1 from=$2 to=$3 words=$4
    shift 4
    rm -rf "$dir/go"
    "$(program_of "$from")" train --train "$dir/data.bin" $tiny --steps 6 --out "$dir/go" >"$dir/go.txt" 2>&1 &&
        "$(program_of "$to")" train --train "$dir/data.bin" $tiny --steps 9 --resume --out "$dir/go" "$@" >"$dir/go.txt" 2>&1
    got=$?
    if [ $got -eq 0 ] && grep -q -e "$words" "$dir/go.txt" && [ -d "$dir/go/step_00000009" ]; then ok "$name"; else
        fail "$name: exit code $got, expected 0 and: $words"
        tail -n 8 "$dir/go.txt" | sed 's/^/    /'
    fi
}
both() { case " $(echo $modes) " in *" $1 "*) case " $(echo $modes) " in *" $2 "*) return 0 ;; esac ;; esac; return 1; }
both fp16 fp16 && both fp32 fp32 && go_on "fp32's run in fp16" fp32 fp16 "precision fp32 (master fp32, moments fp32) -> fp16"
both bf16 bf16 && go_on "bf16's run with GELU within products" bf16 bf16 "gelu-fusion 0 -> 2 (changes what is trained)" -ge 2
both fp8-delayed bf16 && go_on "bf16's run in fp8" bf16 fp8-delayed "precision bf16 .* -> fp8-delayed"
both bf16 bf16:kahan && go_on "bf16's run without masters" bf16 bf16:kahan "-> bf16 (kahan, fp32)"
both bf16 bf16:kahan && go_on "and back" bf16:kahan bf16 "(master kahan, moments fp32) -> bf16 (fp32, fp32)"
both fp8-delayed fp8-delayed && go_on "a longer history" fp8-delayed fp8-delayed "fp8-history 16 -> 40" --fp8-history 40 &&
    go_on "a shorter history" fp8-delayed fp8-delayed "fp8-history 16 -> 3" --fp8-history 3

# says NAME CODE WORDS PROGRAM OPTIONS...: exit code and a line of the output.
says() {
    name=$1 code=$2 words=$3
    shift 3
    "$@" >"$dir/says" 2>&1
    got=$?
    if [ $got -eq "$code" ] && grep -q -e "$words" "$dir/says"; then ok "$name"; else
        fail "$name: exit code $got, expected $code and: $words"
        sed 's/^/    /' "$dir/says" | tail -n 8
    fi
}
run_of() { p=$(program_of "$1"); shift; echo "$p train --train $dir/data.bin --vocab 256 --val= --out= --sample-every 0 $*"; }
has() { case " $(echo $modes) " in *" $1 "*) return 0 ;; esac; return 1; }

if has fp32; then
    says "an option without effect is refused" 2 "MODE one of: fp8-delayed" $(run_of fp32 --fp8-history 3)
    says "the loss scale too" 2 "one of: fp16" $(run_of fp32 --loss-scale 8)
    says "GELU within products" 2 "one of: bf16, fp16" $(run_of fp32 --gelu-fusion 1)
    says "but llm.c's -ge 0" 0 "step 1/1" $(run_of fp32 -ge 0 --layers 1 --channels 32 --batch 1 --seq 16 --steps 1)
    says "the policy" 0 "= 16" $(run_of fp32 --print-policy)
fi
if has fp16; then
    says "a loss scale that is no power of two" 2 "power of two" $(run_of fp16 --loss-scale 3)
    says "a loss scale of 0" 2 "neither dynamic nor a power of two" $(run_of fp16 --loss-scale 0)
    says "fp16's bytes" 0 "= 18" $(run_of fp16 --print-policy)
    says "GELU within products leaves nothing to make it of again" 2 "needs --recompute 0" \
        $(run_of fp16 --gelu-fusion 1 --recompute 1)
fi
if has bf16; then
    says "a plan that is too large, with --recompute 2 as a way out" 1 "the largest that fits, or --recompute 2$" \
        $(run_of bf16 --dry-run --batch 100000 --seq 1024 --channels 256)
    says "which GELU within products does not leave" 1 "the largest that fits$" \
        $(run_of bf16 --dry-run --batch 100000 --seq 1024 --channels 256 --gelu-fusion 1)
fi
for mode in fp8-delayed mxfp8 nvfp4; do
    has $mode && says "GELU within products, $mode" 2 "one of: bf16, fp16$" $(run_of $mode --gelu-fusion 2)
done
if has fp8-delayed; then
    says "fp8's bytes" 0 "= 20" $(run_of fp8-delayed --print-policy)
    says "features that 16 does not divide" 0 "h.0-1.qkv .*bf16: in-features 72 are no multiple of 16" \
        $(run_of fp8-delayed --layers 2 --channels 72 --heads 4 --seq 50 --batch 1 --steps 2)
    says "tokens that 16 does not divide" 0 "h.0-1.fc .*fprop: fp8-delayed, in-features 80 padded to 96; dgrad: fp8-delayed; wgrad: fp8-delayed, tokens 50 padded to 64" \
        $(run_of fp8-delayed --layers 2 --channels 80 --heads 4 --seq 50 --batch 1 --steps 2)
    says "a layer left out by name" 0 "h.1.fc .*bf16: --fp8-exclude h.1.fc$" \
        $(run_of fp8-delayed --layers 2 --steps 2 --fp8-exclude h.1.fc)
    says "Hopper's accumulator" 0 "step 2/2" $(run_of fp8-delayed --layers 1 --channels 32 --batch 1 --seq 32 --steps 2 --acc h14)
    says "--promote without its model" 2 "no effect without --acc h14" $(run_of fp8-delayed --promote 0)
fi
if has nvfp4; then
    says "nvfp4's bytes" 0 "= 19.1" $(run_of nvfp4 --print-policy)
    says "layers kept high at both ends" 0 "h.1-2.fc .*all three: nvfp4$" $(run_of nvfp4 --layers 4 --steps 2)
    says "tokens that 16 does not divide, fp4" 0 "h.1-2.fc .*fprop, dgrad: nvfp4; wgrad: nvfp4, tokens 50 padded to 64" \
        $(run_of nvfp4 --layers 4 --channels 64 --seq 50 --batch 1 --steps 2)
fi
has mxfp8 && says "mxfp8's bytes" 0 "= 20.06" $(run_of mxfp8 --print-policy)
has bf16:kahan && says "Kahan's bytes" 0 "= 16" $(run_of bf16:kahan --print-policy)
has bf16:stochastic:bf16sr && says "the smallest state" 0 "= 10" $(run_of bf16:stochastic:bf16sr --print-policy)
has bf16:nearest:bf16 &&
    says "a ratchet is refused" 2 "make MOMENTS=bf16sr" $(run_of bf16:nearest:bf16 --beta2 0.999)

echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
