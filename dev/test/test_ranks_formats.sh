#!/bin/sh
# Several ranks in narrow formats, on the emulator: near to what one rank does, and everything that ranks must decide
# alike decided alike: skipped steps, loss scales, delayed scales, random roundings.

cd "$(dirname "$0")/../.." || exit 1
. dev/test/train_lib.sh
[ -x build/emulated/train_gpt_bf16 ] || { skip "ranks in narrow formats: no emulated programs (no C++ compiler, or sanitizers)"; summary; }
export OMP_NUM_THREADS=1
launch=$PWD/scripts/launch.sh
# A step is 12 sequences, one a micro-batch. --check-replicas: all ranks have the same weights, moments and scales.
common="--train $dir/train.bin --seq 8 --batch 1 --total-batch 96 --warmup 1 --val-every 0 --sample-every 0 --keep 0 --bucket 0.01
        --check-replicas 1"
shape="--layers 1 --heads 2 --channels 32"

# must R MODE FOLDER OPTIONS...: a training on R ranks; that it does not end well is a failure.
must() {
    count=$1 program=build/emulated/train_gpt_$2 into=$3
    shift 3
    starter="$launch $count"
    [ "$count" -gt 1 ] || starter=
    rm -rf "${dir:?}/$into"
    # shellcheck disable=SC2086
    $limit $starter "$program" $common --out "$dir/$into" "$@" >"$dir/$into.txt" 2>&1 </dev/null && return
    fail "$count ranks in $into: exit code $?"
    tail -n 15 "$dir/$into.txt" | sed 's/^/    /'
}
same_state() {
    for file in model train_state; do
        "$tool" same-tensors "$dir/$1/step_$3/$file.safetensors" "$dir/$2/step_$3/$file.safetensors" || return
    done
}
skips() { sed -n 's/.*"skipped":\([01]\).*/\1/p' "$dir/$1/run.jsonl" | tr '\n' ' '; }
# loss_near A B LIMIT: the loss of the last step.
loss_near() {
    awk "BEGIN { d = $(value "$1" loss) - $(value "$2" loss); exit !(d <= $3 && -d <= $3) }" ||
        { echo "$(value "$1" loss), $(value "$2" loss)"; return 1; }
}

# As many sequences a step on any number of ranks: the loss after ten steps. With --zero 1 the bits of --zero 0, and the
# same reports, though no rank has all that they count.
for mode in bf16 fp16 fp8-delayed bf16-stochastic; do
    case $mode in fp8-delayed) limit_of_mode=0.01 ;; *) limit_of_mode=0.002 ;; esac
    must 1 $mode r1 $shape --steps 10 --lr 1e-3
    for r in 2 3 4; do
        reports=
        [ $r -ne 3 ] || reports="--numerics-every 5"
        must $r $mode r$r $shape --steps 10 --lr 1e-3 $reports
        check "$mode: $r ranks come near to one" loss_near r$r r1 $limit_of_mode
    done
    must 3 $mode z3 $shape --steps 10 --lr 1e-3 --numerics-every 5 --zero 1
    check "$mode: replicas agree, --zero 0 and 1, the same bits" same_state r3 z3 00000010
    check "$mode: and the same reports" cmp "$dir/r3/numerics.jsonl" "$dir/z3/numerics.jsonl"
    check "$mode: which count updates" grep -q '"step":10,"kind":"weight","tensor":"qkvw","layer":0,.*"updates":[1-9]' "$dir/z3/numerics.jsonl"
done

# One sequence of the data overflows fp16, in the fourth step: on one rank of three.
"$tool" tokens "$dir/train.bin" 1201 67 1
must 1 bf16 start $shape --vocab 68 --steps 1
"$tool" convert steep "$dir/start/step_00000001" "$dir/steep" && "$tool" convert loud "$dir/start/step_00000001" "$dir/loud"
"$tool" tokens "$dir/train.bin" 1201 67 1 0 100
for run in "1 0" "3 0" "3 1"; do
    must ${run% *} fp16 "f${run% *}${run#* }" --init "$dir/steep" --steps 6 --loss-scale-start 524288 --zero ${run#* }
    check "fp16: ${run% *} ranks, --zero ${run#* }: all skip the step that overflows on one" \
        equal "$(skips "f${run% *}${run#* }")" "0 0 0 1 0 0 "
done
check "fp16: and lower their scale alike" "$tool" same-tensors "$dir/f10/step_00000006/train_state.safetensors" \
    "$dir/f30/step_00000006/train_state.safetensors" state.loss_scale
check "fp16: --zero 0 and 1, the same bits after it" same_state f30 f31 00000006

# Delayed scaling: a step that is the whole data, one of whose sequences has by far the largest input of the first linear
# layer. Its rank, whichever it is, sets the scale of all: the histories are those of one rank that sees everything.
for at in 3 36 70; do
    "$tool" tokens "$dir/train.bin" 98 67 1 0 $at
    must 1 fp8-delayed d1 --init "$dir/loud" --steps 1 --lr 1e-3
    must 3 fp8-delayed d3 --init "$dir/loud" --steps 1 --lr 1e-3
    check "fp8-delayed: the largest amax at token $at is every rank's" "$tool" same-tensors \
        "$dir/d1/step_00000001/train_state.safetensors" "$dir/d3/step_00000001/train_state.safetensors" fp8.delayed
done
"$tool" tokens "$dir/train.bin" 98 67 1
must 1 fp8-delayed d0 --init "$dir/loud" --steps 1 --lr 1e-3
check "fp8-delayed: and it is that token's" sh -c "! '$tool' same-tensors '$dir/d0/step_00000001/train_state.safetensors' \
    '$dir/d1/step_00000001/train_state.safetensors' fp8.delayed 2>/dev/null"
summary
