#!/bin/sh
# Several ranks of the GPU trainer on the emulator, started by scripts/launch.sh: the same training as with one, whatever
# is shared out; resuming on another number; and how all of them end when one does.

cd "$(dirname "$0")/../.." || exit 1
. dev/test/train_lib.sh
[ -x build/emulated/train_gpt_fp32 ] || { skip "ranks: no emulated programs (no C++ compiler, or sanitizers)"; summary; }
export OMP_NUM_THREADS=1
fp32=$PWD/build/emulated/train_gpt_fp32 launch=$PWD/scripts/launch.sh
# Buckets of less than a layer; sizes that no number of ranks divides. A step is 12 sequences, one a micro-batch.
small="--train $dir/train.bin --val $dir/val.bin --layers 2 --heads 2 --channels 24 --seq 8 --batch 1 --total-batch 96 --warmup 1
       --lr 1e-2 --steps 4 --val-every 4 --val-steps 1 --sample-every 0 --checkpoint-every 2 --keep 0 --bucket 0.01 --check-replicas 1"

# ranks R FOLDER PROGRAM OPTIONS...: a training on R ranks (1: without a launcher).
ranks() {
    count=$1 into=$2 program=$3
    shift 3
    # shellcheck disable=SC2086
    if [ "$count" -eq 1 ]; then $limit "$program" $small --out "$dir/$into" "$@" >"$dir/$into.txt" 2>&1 </dev/null
    else $limit "$launch" "$count" "$program" $small --out "$dir/$into" "$@" >"$dir/$into.txt" 2>&1 </dev/null; fi
}
# must R FOLDER ...: the same; that it ends well is not worth a test of its own, that it does not is a failure.
must() {
    ranks "$@" && return
    fail "$1 ranks in $2: exit code $?"
    tail -n 15 "$dir/$2.txt" | sed 's/^/    /'
}
same_state() {
    "$tool" same-tensors "$dir/$1/$3/model.safetensors" "$dir/$2/$3/model.safetensors" &&
        "$tool" same-tensors "$dir/$1/$3/train_state.safetensors" "$dir/$2/$3/train_state.safetensors"
}
same_losses() { "$tool" same-log "$dir/$1/run.jsonl" "$dir/$2/run.jsonl" loss grad_norm val_loss skipped; }
first_val() { sed -n 's/.*"val_loss":\([^,]*\).*/\1/p' "$dir/$1/run.jsonl" | head -n 1; }

# One training on any number of ranks
must 1 r1 "$fp32"
for r in 2 3 4; do
    must $r r$r "$fp32"
    check "$r ranks train as one does, up to the order of sums" near r$r r1 2e-6
    check "$r ranks validate to the same bits" equal "$(first_val r$r)" "$(first_val r1)"
    must $r z$r "$fp32" --zero 1
    check "$r ranks: --zero 0 and 1, the same bits" same_state r$r z$r step_00000004
    check "$r ranks: --zero 0 and 1, the same log" same_losses r$r z$r
done
# One micro-batch a step, so that --zero 2 sums in the same order; three layers in two halves of one bucket each
for z in 0 1 2; do must 3 y$z "$fp32" --zero $z --batch 4 --layers 5 --bucket 0.06; done
check "--zero 2: the same bits as 0" same_state y0 y2 step_00000004
check "--zero 1: the same bits as 0, in five layers" same_state y0 y1 step_00000004
must 2 y2 "$fp32" --zero 2 --steps 6 --out "$dir/many"
must 2 y2 "$fp32" --zero 0 --steps 6 --out "$dir/many0"
check "--zero 2 over six micro-batches, up to the order of sums" near many many0 2e-6
must 3 b3 "$fp32" --reduce bf16
check "gradients reduced in bf16 are near" near b3 r3 0.02
check "and not the same" sh -c "! cmp -s $dir/b3/step_00000004/model.safetensors $dir/r3/step_00000004/model.safetensors"

# Resuming
part() { rm -rf "$dir/$3"; cp -r "$dir/$2" "$dir/$3"; rm -rf "$dir/$3/step_00000004"; ranks "$1" "$3" "$fp32" --resume $4; }
check "3 ranks stopped at step 2 and resumed, --zero 1" part 3 z3 p33 "--zero 1"
check "have the same bits as not stopped" same_state p33 z3 step_00000004
for change in "1 r2" "2 r1" "2 z3" "3 r2"; do
    check "a run resumed on another number of ranks ($change)" part $change p1
    check "goes on as if it had always had it" near p1 r1 2e-6
done

# What cannot start. says NAME CODE WORDS COMMAND...
says() {
    name=$1 wanted=$2 words=$3
    shift 3
    $limit "$@" >"$dir/says.txt" 2>&1 </dev/null
    found=$?
    if [ $found -eq "$wanted" ] && grep -Eq -e "$words" "$dir/says.txt"; then ok "$name"; else
        fail "$name: exit code $found, expected $wanted and: $words"
        sed 's/^/    /' "$dir/says.txt"
    fi
}
says "ranks without a number" 2 'WORLD_SIZE says 2 ranks, but RANK is not set' env WORLD_SIZE=2 "$fp32" $small --out ''
says "Slurm's tasks without srun" 2 'SLURM_NTASKS says 4 tasks' env SLURM_NTASKS=4 "$fp32" $small --out ''
says "more ranks than devices" 2 'host .*: 3 ranks, 2 devices' env EMU_DEVICES=2 "$launch" 3 "$fp32" $small --out ''
says "a rank with other options" 2 'rank 1 on .* was started with other options' "$launch" 2 sh -c \
    "exec $fp32 $(echo $small) --out '' --seed \$RANK"
says "the CPU trainer" 2 'started 2 ranks, the CPU trainer has one' "$launch" 2 "$train" $small --out ''
says "Open MPI's variables" 0 'of 2 ranks x' sh -c "for r in 0 1; do OMPI_COMM_WORLD_RANK=\$r OMPI_COMM_WORLD_SIZE=2 \
    OMPI_COMM_WORLD_LOCAL_SIZE=2 $fp32 $(echo $small) --steps 1 --out '' & done; wait"

# How they end. begin FOLDER OPTIONS...: three ranks in the background, until the first has taken two steps.
begin() {
    into=$1
    shift
    rm -rf "$dir/$into" "$dir/pids"
    mkdir "$dir/pids"
    # shellcheck disable=SC2086,SC2016
    "$launch" 3 sh -c 'echo $$ >"'"$dir/pids"'/$RANK"; exec "$@"' sh "$fp32" $small --out "$dir/$into" --steps 100000 \
        --val '' "$@" >"$dir/$into.txt" 2>&1 </dev/null &
    pid=$!
    wait_for "$dir/$into/run.jsonl" '"step":2' 30
}
seconds() { date +%s; }

begin k
before=$(seconds)
kill -KILL "$(cat "$dir/pids/1")"
wait $pid
code=$?
check "a rank that is killed ends all within 10 seconds" [ $(($(seconds) - before)) -le 10 ]
check "with an error" [ $code -ne 0 ]
check "and is named, with its host" grep -q "error: rank 1 of 3 on .* ended the run at step .*: it died without a word" "$dir/k.txt"
check "nobody is left" sh -c "! kill -0 $(cat "$dir/pids/0") 2>/dev/null && ! kill -0 $(cat "$dir/pids/2") 2>/dev/null"

begin w --timeout 3
kill -STOP "$(cat "$dir/pids/2")"
wait $pid
check "a rank that hangs is found" grep -q "no rank has moved for 3 s" "$dir/w.txt"
check "with every rank's place" grep -q "rank 2 on .*: step [0-9]*, .*, for" "$dir/w.txt"

before=$(seconds)
says "a network that breaks under NCCL ends all" 1 'rank 1 of 2 on .* its collectives broke: unhandled system error' \
    env EMU_NCCL_BROKEN=1 "$launch" 2 "$fp32" $small --steps 100000 --val '' --out ''
says "rank 0's, too" 1 'rank 0 of 2 on .* its collectives broke: unhandled system error' \
    env EMU_NCCL_BROKEN=0 "$launch" 2 "$fp32" $small --steps 100000 --val '' --out ''
check "within 10 seconds each" [ $(($(seconds) - before)) -le 20 ]

begin t
kill -TERM "$(cat "$dir/pids/2")"
wait $pid
code=$?
check "a signal to one rank: all save and end" [ $code -eq 3 ]
saved=$(steps_in t | awk '{ print $NF }')
check "and the run goes on from there" ranks 2 t "$fp32" --resume --val '' --steps $((saved + 1))
summary
