#!/bin/sh
# Checkpoints that several ranks of the GPU trainer write together, on the emulator: files of several chunks, so that each
# rank has a part, in a precision with masters, so that weights are in shards, too. test_checkpoint_ranks.c has what can
# go wrong block by block.

cd "$(dirname "$0")/../.." || exit 1
. dev/test/train_lib.sh
[ -x build/emulated/train_gpt_bf16 ] || { skip "checkpoints of ranks: no emulated programs (no C++ compiler, or sanitizers)"; summary; }
export OMP_NUM_THREADS=1
trainer=$PWD/build/emulated/train_gpt_bf16 launch=$PWD/scripts/launch.sh
# 1.6 MB of weights, 3.3 of moments. A step is one micro-batch of each rank, so that --zero 2 sums in the same order.
common="--train $dir/train.bin --val-every 0 --seq 8 --total-batch 48 --warmup 1 --lr 1e-2 --sample-every 0 --keep 0 --bucket 0.3
        --check-replicas 1"
small="$common --layers 2 --heads 2 --channels 128"

# must R FOLDER OPTIONS...: a training on R ranks.
must() {
    count=$1 into=$2
    shift 2
    starter="$launch $count"
    [ "$count" -gt 1 ] || starter=
    # shellcheck disable=SC2086
    $limit $starter "$trainer" $small --batch $((6 / count)) --out "$dir/$into" "$@" >"$dir/$into.txt" 2>&1 </dev/null && return
    fail "$count ranks in $into: exit code $?"
    tail -n 15 "$dir/$into.txt" | sed 's/^/    /'
}
same_weights() { cmp "$dir/$1/model.safetensors" "$dir/$2/model.safetensors"; }
same_state() { same_weights "$1" "$2" && "$tool" same-tensors "$dir/$1/train_state.safetensors" "$dir/$2/train_state.safetensors"; }

# The same weights, whoever writes them: a step that changes nothing.
must 1 one --steps 2 --checkpoint-every 2
check "a checksum for each MiB" grep -q '"chunk_bytes":1048576,"xxh64":\["' "$dir/one/step_00000002/manifest.json"
for run in "3 0" "2 1"; do  # of two ranks each has a half of fcw, which a chunk ends in
    (small=$common; must "${run% *}" copy --zero "${run#* }" --init "$dir/one/step_00000002" --lr 0 --weight-decay 0 --steps 1)
    check "${run% *} ranks, --zero ${run#* }: the file that one rank wrote" same_weights copy/step_00000001 one/step_00000002
    rm -rf "$dir/copy"
done

# Whatever is shared out, the same bytes; stopped and resumed, too.
must 3 whole --zero 0 --steps 2 --checkpoint-every 1
must 3 parts --zero 2 --steps 2 --checkpoint-every 1
check "--zero 0 and 2: the same weights, moments and counters" same_state whole/step_00000002 parts/step_00000002
cp -r "$dir/parts" "$dir/other"
rm -rf "$dir/parts/step_00000002" "$dir/other/step_00000002"
must 3 parts --zero 1 --steps 2 --resume
check "--zero 2 resumed as 1" same_state whole/step_00000002 parts/step_00000002
must 1 other --steps 2 --resume
must 2 other --steps 3 --zero 2 --resume
check "and on any number of ranks" grep -q 'resumed from .*/other/step_00000002' "$dir/other.txt"

# trouble NAME WORDS COMMAND OUT: the last of three ranks does COMMAND first; they end with one message.
trouble() {
    export TROUBLE="$3"
    # shellcheck disable=SC2086,SC2016
    (cd "$dir" && $limit "$launch" 3 sh -c '[ "$RANK" != 2 ] || eval "$TROUBLE"; exec "$@"' sh \
        "$trainer" $small --batch 2 --zero 1 --steps 3 --checkpoint-every 1 --resume --out "$4") >"$dir/trouble.txt" 2>&1 </dev/null
    code=$?
    if [ $code -eq 1 ] && [ "$(grep -c '^error: ' "$dir/trouble.txt")" -eq 1 ] && grep -Eq -e "$2" "$dir/trouble.txt"; then ok "$1"; else
        fail "$1: exit code $code, expected 1, one error and: $2"
        sed 's/^/    /' "$dir/trouble.txt"
    fi
}
mkdir "$dir/elsewhere"
trouble "a rank that does not see the folder" \
    "^error: --out: rank 2 on .*: it does not see 'runs/step_00000000.tmp-[0-9]*', which rank 0 has made" 'cd elsewhere' runs
check "is found before the first step" sh -c "! grep -q 'step 1' '$dir/trouble.txt'"
# The limit is above the 3 MiB of the emulator's NCCL, and below the moments' end.
trouble "a rank that cannot write" \
    "^error: checkpoint of step 3 not saved: rank 2 on .*: cannot write 'parts/step_00000003.tmp-[0-9]*/train_state.safetensors'" \
    'ulimit -f 6300' parts
check "leaves the checkpoints before" same_state whole/step_00000002 parts/step_00000002
check "and no other" [ "$(cd "$dir/parts" && echo step_*)" = "step_00000001 step_00000002" ]

# A signal to one rank in a long validation: all leave it, and the resumed run makes up for it.
"$tool" tokens "$dir/long.bin" 40000 67 3
mkdir "$dir/pids"
# shellcheck disable=SC2086,SC2016
$limit "$launch" 3 sh -c 'echo $$ >"'"$dir/pids"'/$RANK"; exec "$@"' sh "$trainer" $small --batch 2 --zero 1 --steps 4 --resume \
    --val "$dir/long.bin" --val-every 3 --val-steps 0 --out "$dir/parts" >"$dir/long.txt" 2>&1 </dev/null &
pid=$!
wait_for "$dir/long.txt" 'step 3/4' 20
sleep 0.5
kill -TERM "$(cat "$dir/pids/2")"
before=$(date +%s)
wait $pid
check "a signal to one rank while all validate: they stop" [ $? -eq 3 ]
check "at once" [ $(($(date +%s) - before)) -le 5 ]
must 2 parts --zero 2 --steps 4 --resume --val "$dir/val.bin" --val-every 3
check "and validate when the run goes on" grep -q '^step 3  validation loss' "$dir/parts.txt"

# Killed at any moment, most likely in the middle of a checkpoint.
for pause in 0.3 0.7; do
    # shellcheck disable=SC2086,SC2016
    "$launch" 3 sh -c 'echo $$ >"'"$dir/pids"'/$RANK"; exec "$@"' sh "$trainer" $small --batch 2 --zero 1 --steps 1000 \
        --checkpoint-every 1 --resume --out "$dir/killed" >"$dir/killed.txt" 2>&1 </dev/null &
    pid=$!
    wait_for "$dir/killed.txt" '^step\|resumed' 20
    sleep $pause
    kill -KILL "$(cat "$dir/pids/1")"
    wait $pid
done
must 2 killed --resume --steps 1 --zero 1
check "what a killed rank leaves is no checkpoint" sh -c "! ls '$dir/killed' | grep tmp"
check "and the newest is sound" sh -c "grep -q 'resumed from' '$dir/killed.txt' && ! grep -q 'passed over' '$dir/killed.txt'"
summary
