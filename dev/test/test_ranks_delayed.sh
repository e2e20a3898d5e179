#!/bin/sh
# Delayed scaling on two and three ranks of the emulator: whatever --zero shares out and however new weights travel, the
# bits of --zero 0: weights, moments, histories, logs, samples and reports, from a start and resumed, over skipped steps.
# FULL=1 (which .ci/run sets), RANKS="2 3" and MODE=fp8-current test more than `make test` has time for.

cd "$(dirname "$0")/../.." || exit 1
. dev/test/train_lib.sh
mode=${MODE:-fp8-delayed} ranks=${RANKS:-3} launch=$PWD/scripts/launch.sh
program=build/emulated/train_gpt_$mode
[ -x $program ] || { skip "ranks with delayed scaling: no emulated programs (no C++ compiler, or sanitizers)"; summary; }
export OMP_NUM_THREADS=1
# Buckets of two layers and of one; shards that end within a layer. A step is one micro-batch of each rank, so that --zero 2
# sums in the same order.
common="--train $dir/train.bin --layers 3 --heads 2 --channels 32 --seq 8 --total-batch 48 --warmup 1 --lr 1e-2 --schedule constant
        --val-every 0 --sample-every 0 --keep 0 --bucket 0.12"
# Each at steps of its own, so that none finds what another has just gathered; --check-replicas gathers at every step.
looks="--val $dir/val.bin --val-every 4 --val-steps 1 --sample-every 3 --sample-length 6 --numerics-every 5 --checkpoint-every 7"

# go R FOLDER OPTIONS...: a training on R ranks, from what the folder has; must: that it does not end well is a failure.
go() {
    count=$1 into=$2
    shift 2
    starter="$launch $count"
    [ "$count" -gt 1 ] || starter=
    # shellcheck disable=SC2086
    $limit $starter "$program" $common --batch $((6 / count)) --out "$dir/$into" "$@" >"$dir/$into.txt" 2>&1 </dev/null
}
must() {
    go "$@" && return
    fail "$1 ranks in $2: exit code $?"
    tail -n 15 "$dir/$2.txt" | sed 's/^/    /'
}
# from A STEP B: folder B as A was when the checkpoint of that step was its newest.
from() {
    rm -rf "${dir:?}/$3"
    mkdir "$dir/$3"
    cp -r "$dir/$1/$2" "$dir/$1/run.jsonl" "$dir/$3"
}
same_state() {
    for file in model train_state; do
        "$tool" same-tensors "$dir/$1/step_$3/$file.safetensors" "$dir/$2/step_$3/$file.safetensors" || return
    done
}
same_log() { "$tool" same-log "$dir/$1/run.jsonl" "$dir/$2/run.jsonl"; }
# What the updates made; the state also counts validations.
same_training() {
    "$tool" same-tensors "$dir/$1/step_$3/model.safetensors" "$dir/$2/step_$3/model.safetensors" || return
    for kind in m. v. $([ "$mode" = fp8-delayed ] && echo fp8.delayed); do
        "$tool" same-tensors "$dir/$1/step_$3/train_state.safetensors" "$dir/$2/step_$3/train_state.safetensors" $kind || return
    done
}
samples() { grep -A1 'sample:$' "$dir/$1.txt"; }
skips() { sed -n 's/.*"skipped":\([01]\).*/\1/p' "$dir/$1/run.jsonl" | tail -n "$2" | grep -c 1; }

# From the start, the first step's scales being those of the tensors themselves
for r in $ranks; do
    for z in 0 1 2; do must $r a$r$z $looks --steps 8 --zero $z; done
    check "$r ranks: samples and validations are there" \
        equal "$(samples a${r}0 | grep -c sample:) $(grep -c val_loss "$dir/a${r}0/run.jsonl")" "3 3"
    for z in 1 2; do
        check "$r ranks, --zero $z: the state of --zero 0 at step 7" same_state a${r}0 a$r$z 00000007
        check "$r ranks, --zero $z: and at step 8" same_state a${r}0 a$r$z 00000008
        check "$r ranks, --zero $z: the same log" same_log a${r}0 a$r$z
        check "$r ranks, --zero $z: the same samples" equal "$(samples a$r$z)" "$(samples a${r}0)"
        check "$r ranks, --zero $z: the same reports" cmp "$dir/a${r}0/numerics.jsonl" "$dir/a$r$z/numerics.jsonl"
        [ -n "$FULL" ] || [ $z = 1 ] || continue
        must $r b$r$z --steps 8 --zero $z --check-replicas 1
        check "$r ranks, --zero $z: replicas agree, and looking changed nothing" same_training a${r}0 b$r$z 00000008
    done
done

# Layers kept high among others; products with padding; scales that are 1 at first, follow the last step, leave room
alike() {
    for z in 0 1; do must 3 o$z "$@" --steps 4 --zero $z; done
    check "$*: --zero 1 has the state of 0" same_state o0 o1 00000004
    rm -rf "$dir/o0" "$dir/o1"
}
alike --fp8-exclude h.1.fc,h.2.attn
[ -z "$FULL" ] || alike --recompute 2 --channels 48
if [ "$FULL-$mode" = 1-fp8-delayed ]; then
    alike --fp8-first-step te --fp8-amax most-recent
    alike --fp8-history 2 --fp8-margin 3 --reduce bf16
fi

[ -n "$FULL" ] || summary

# Skipped steps change no weight, but move the scales: so many that some follow no look. One rank fills the window that
# decides, others go on.
odd="--skip-grad-z 0.1 --max-skips 1000"
must 1 one $odd --steps 128 --checkpoint-every 128
for r in $ranks; do
    for z in 0 1 2; do
        from one step_00000128 c$r$z
        must $r c$r$z $odd $looks --steps 142 --zero $z --resume
    done
    count=$(skips c${r}0 14)
    check "$r ranks: some steps skipped, some not" [ "$count" -gt 0 -a "$count" -lt 14 ]
    for z in 1 2; do
        check "$r ranks, --zero $z: resumed from one rank, the state of --zero 0 at step 133" same_state c${r}0 c$r$z 00000133
        check "$r ranks, --zero $z: and at step 142" same_state c${r}0 c$r$z 00000142
        check "$r ranks, --zero $z: the same log over skipped steps" same_log c${r}0 c$r$z
        check "$r ranks, --zero $z: the same samples over them" equal "$(samples c$r$z)" "$(samples c${r}0)"
    done
    from c${r}1 step_00000133 d
    must $r d $odd --steps 142 --zero 2 --resume --check-replicas 1
    check "$r ranks, --zero 1 resumed as 2: the bits as if not stopped" same_training c${r}0 d 00000142
done
for z in 0 1 2; do
    from c${ranks##* }1 step_00000133 e$z
    must 2 e$z $odd --steps 138 --zero $z --resume
done
for z in 1 2; do check "2 ranks, --zero $z: resumed, too, the state of --zero 0" same_state e0 e$z 00000138; done
summary
