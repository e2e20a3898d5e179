#!/bin/sh
# Runs that end before their time: signals, kill -9, full disks, numbers that are no longer finite. What is left is
# always whole, and going on from it gives the run that was never interrupted. And which checkpoints are kept.
#
#   BUILD=build/cpu-fp32 sh dev/test/test_train_stop.sh

cd "$(dirname "$0")/../.." || exit 1
. dev/test/train_lib.sh

# A pause of 0 to $1 milliseconds, from a generator of its own.
seed=1
pause() {
    seed=$(((seed * 1103515245 + 12345) % 2147483648))
    sleep "$(awk "BEGIN { print $seed / 65536 % $1 / 1000 }")"
}

# --- signals -----------------------------------------------------------------------------------------------------
# Validation takes most of the time, so that most signals come in one.
slow="--layers 1 --steps 40 --val $dir/val.bin --val-every 4 --val-steps 0 --total-batch 1024 --checkpoint-every 15"
run whole $slow
for signal in INT TERM USR1 HUP USR1 INT; do
    rm -rf "$dir/s"
    start s $slow
    wait_for "$dir/s.txt" '^step *2/' && pause 100
    kill -$signal $pid
    wait $pid
    code=$?
    if grep -q '^done' "$dir/s.txt"; then skip "SIG$signal: the run was over before it came"; continue; fi
    step=$(sed -n 's/^stopped after \([0-9]*\) steps.*/\1/p' "$dir/s.txt")
    judge "SIG$signal after step $step: exit code 3, saved" $code 3 "checkpoint .*/s/step_0*$step\$" s
    run s $slow --resume
    check "SIG$signal after step $step: the resumed run ends as the whole one" same_end whole s step_00000040
done

# A second run in the folder of one that goes on, begun or resumed: it would take away the first one's log.
rm -rf "$dir/s"
start s --steps 1000000 --checkpoint-every 5
wait_for "$dir/s/run.jsonl" '"step":20,'
$limit "$train" $tiny --val '' --steps 500 --out "$dir/s" --resume >"$dir/second.txt" 2>&1
judge "a second run in the same folder is refused" $? 1 'is in use by another run' second
kill -TERM $pid
wait $pid
judge "the first run goes on" $? 3 '^stopped after' s
step=$(sed -n 's/^stopped after \([0-9]*\) steps.*/\1/p' "$dir/s.txt")
check "the log of the first run is whole" equal "$(tail -n 1 "$dir/s/run.jsonl" | cut -d , -f 1)" "{\"step\":$step"
check "once it has ended the folder is free" run s --steps $((step + 1)) --resume

# In a validation for certain, and again in the validation that the resumed run begins with; then once in a sample.
many="--threads 1 --steps 4 --val $dir/big.bin --val-every 2 --val-steps 0 --batch 1 --total-batch 16"
stopped_in_validation() {
    if [ "$2" -eq 0 ] || ! grep -q 'stopped after 2 steps' "$dir/s2.txt"; then skip "$1: the validation was over before"
    else judge "$1" "$2" 3 'stopped after 2 steps' s2; fi
}
"$tool" tokens "$dir/big.bin" 48000 67 3
run whole2 $many
start s2 $many
wait_for "$dir/s2.txt" '^step 2/4' && sleep 0.02
kill -TERM $pid
wait $pid
stopped_in_validation "SIGTERM in a validation: exit code 3" $?
for again in 1 2; do
    start s2 $many --resume
    wait_for "$dir/s2.txt" '^resumed' && sleep 0.02
    kill -TERM $pid
    wait $pid
    stopped_in_validation "SIGTERM in the validation made up for: exit code 3" $?
done
run s2 $many --resume
check "the validation is made up for, and nothing else is different" same_end whole2 s2 step_00000004
text="--threads 1 --steps 3 --layers 4 --channels 128 --max-seq 2000 --sample-every 2 --sample-length 1900 --temperature 1e6"
start s3 $text
wait_for "$dir/s3.txt" 'step 2  sample' && sleep 0.05
kill -USR1 $pid
wait $pid
judge "SIGUSR1 in a sample: exit code 3" $? 3 'stopped after 2 steps' s3
check "the sample ends there" below "$(wc -w <"$dir/s3.txt")" 1900

# In the last sample everything is done: no reason to go on with anything.
rm -rf "$dir/s3"
start s3 $text --max-seq 2500 --sample-length 2400 --sample-every 3
wait_for "$dir/s3.txt" 'step 3  sample' && sleep 0.02
kill -TERM $pid
wait $pid
code=$?
if [ "$(wc -w <"$dir/s3.txt")" -ge 2400 ]; then skip "SIGTERM after the last step: the sample was over before"
else judge "SIGTERM after the last step: the run is complete" $code 0 '^done after 3 steps' s3; fi

# --- nobody who reads --------------------------------------------------------------------------------------------
# The reader takes one line and goes; a step takes longer than that.
read_one_line() { rm -rf "$dir/p" && { "$@" "$train" $tiny --val= --steps 12 --total-batch 8192 --checkpoint-every 0 --out "$dir/p" 2>"$dir/p.txt"; echo $? >"$dir/p.code"; } | head -n 1 >"$dir/p.head"; }
read_one_line env
judge "standard output with no reader: exit code 3, and it is said" "$(cat "$dir/p.code")" 3 '^warning: nobody reads standard output any more: stopped after [0-9]* steps?, --resume goes on' p
step=$(sed -n 's/.*stopped after \([0-9]*\) step.*/\1/p' "$dir/p.txt")
check "standard output with no reader: it stops early" below "$step" 12
check "standard output with no reader: the state is saved" test -f "$dir/p/step_$(printf %08d "$step")/manifest.json"
run p --steps 12 --total-batch 8192 --checkpoint-every 0 --resume
run p2 --steps 12 --total-batch 8192 --checkpoint-every 0
check "standard output with no reader: the resumed run ends as the whole one" same_end p2 p step_00000012
read_one_line env sh -c 'trap "" PIPE; exec "$@"' sh
check "where the caller ignores SIGPIPE the run goes on" equal "$(cat "$dir/p.code") $(wc -l <"$dir/p/run.jsonl" | tr -d ' ')" "0 13"

# The first signal waits for a step that takes long; a second SIGINT does not.
start s4 --steps 2 --total-batch 4000000
wait_for "$dir/s4.txt" '^data' && sleep 0.1
kill -INT $pid
sleep 0.1
check "a signal waits for the end of the step" kill -0 $pid
kill -INT $pid
wait $pid
check "a second SIGINT leaves at once, with 130" equal $? 130
check "leaving at once saves nothing" eval '! ls -d "$dir"/s4/step_* 2>/dev/null'

# --- kill -9 -----------------------------------------------------------------------------------------------------
every="--layers 1 --steps 60 --val $dir/val.bin --val-every 7 --val-steps 1 --checkpoint-every 1 --keep 2"
run whole3 $every
kills=0 lives=0 unsound=
while [ $kills -lt 20 ] && [ $lives -lt 200 ]; do
    lives=$((lives + 1))
    start k $every --resume
    wait_for "$dir/k.txt" '^model' && pause 200
    kill -KILL $pid 2>/dev/null
    { wait $pid; } 2>/dev/null
    [ $? -ne 137 ] || kills=$((kills + 1))
    grep -q -e '^error' -e '^warning' "$dir/k.txt" && unsound="$unsound $(cat "$dir/k.txt")"
    # Over before it was killed: compared, and begun again.
    [ ! -e "$dir/k/step_00000060/manifest.json" ] || { same_end whole3 k step_00000060 || unsound="$unsound end"; rm -rf "$dir/k"; } >"$dir/k.cmp" 2>&1
done
check "20 times kill -9 and resumed: they were 20" equal $kills 20
run k $every --resume
check "20 times kill -9 and resumed: nothing to complain of on the way" equal "$unsound" ""
check "20 times kill -9 and resumed: the end of the run that was not killed" same_end whole3 k step_00000060
check "20 times kill -9 and resumed: no temporary files left" equal "$(steps_in k)" "59 60"

# --- full disk ---------------------------------------------------------------------------------------------------
big="--steps 30 --checkpoint-every 10 --channels 64"
run f $big
rm -r "$dir/f/step_00000020" "$dir/f/step_00000030"
# In 512-byte or 1024-byte blocks, as the shell has it: both are less than the 1.5 MB of a checkpoint's state.
(ulimit -f 400 && run g $big --checkpoint-every 10 --keep 0)
judge "a limit on file sizes: one message" $? 1 'File too large' g
check "a limit on file sizes: no half checkpoint" equal "$(steps_in g)" '*'
mount_point=$dir/full
mkdir "$mount_point"
if mount -t tmpfs -o size=2500k tmpfs "$mount_point" 2>/dev/null; then
    trap 'umount "$mount_point" 2>/dev/null; rm -rf "$dir"' EXIT
    run full $big --keep 0
    judge "a full disk: one message that names the last good checkpoint" $? 1 'the last good one: .*/full/step_00000010$' full
    check "a full disk: the message says so" grep -q 'No space left on device' "$dir/full.txt"
    check "a full disk: nothing half-written stays" equal "$(steps_in full)" 10
    rm -rf "$dir/full2" && cp -r "$mount_point" "$dir/full2" && run full2 $big --keep 0 --resume
    run f2 $big --keep 0
    check "after a full disk: the last good checkpoint leads to the same end" same_end f2 full2 step_00000030
    rm -r "$mount_point"/*
    start full $big --steps 100000 --checkpoint-every 10 --keep 1 --batch 1
    wait_for "$dir/full.txt" '^step *1[0-9]/'
    head -c 4000000 /dev/zero >"$mount_point/filler" 2>/dev/null
    wait $pid
    judge "a disk too full for the log: the last good checkpoint is named" $? 1 'last good (checkpoint is|one: .*)step_[0-9]*' full
    umount "$mount_point"
else
    skip "a small file system: no permission to mount a tmpfs"
fi

# --- damage ------------------------------------------------------------------------------------------------------
run d --steps 30 --checkpoint-every 10 --keep 0
damage() { rm -rf "$dir/dd" && cp -r "$dir/d" "$dir/dd" && eval "$1" && run dd --steps 30 --checkpoint-every 10 --keep 0 --resume; }
newest=$dir/dd/step_00000030
for how in 'truncate -s -1 $newest/model.safetensors' 'printf x | dd of=$newest/train_state.safetensors bs=1 seek=9000 conv=notrunc' \
    'rm $newest/manifest.json' 'rm $newest/config.json' 'rm $newest/train_state.safetensors $newest/manifest.json'; do
    damage "$how 2>/dev/null"
    judge "damaged ($how): passed over, and why" $? 0 'warning: passed over step_00000030: .' dd
    check "damaged ($how): resumed from the one before, to the same end" eval 'grep -q "resumed from .*step_00000020" "$dir/dd.txt" && same_end d dd step_00000030'
done
damage 'for s in 10 20 30; do truncate -s -1 "$dir/dd/step_000000$s/config.json"; done'
judge "all damaged: not resumed from, not begun anew" $? 1 'why: passed over step_00000030: config.json has' dd
damage 'rm "$dir"/dd/step_*/manifest.json "$dir"/dd/step_*/train_state.safetensors'
judge "weights only: not resumed from, but --init is named" $? 1 "try: --init '.*/dd/step_00000010'" dd
mkdir "$dir/w" && cp "$dir/d/step_00000010/model.safetensors" "$dir/d/step_00000010/config.json" "$dir/w/"
run w --steps 3 --resume
judge "a folder of weights: not resumed from, but --init is named" $? 1 "try: --init '$dir/w' with another --out" w

# --- which checkpoints are kept ----------------------------------------------------------------------------------
run keep --steps 40 --checkpoint-every 4 --keep 3 --milestone-every 10
check "the last 3 and each tenth are kept" equal "$(steps_in keep)" "10 20 30 32 36 40"
run keep0 --steps 20 --checkpoint-every 5 --keep 0
check "--keep 0 keeps all" equal "$(steps_in keep0)" "5 10 15 20"
run keep1 --steps 7 --checkpoint-every 0
check "--checkpoint-every 0 saves at the end" equal "$(steps_in keep1)" 7
# The rate is too high after the warm-up: validation gets worse again, and the best stays.
run best --steps 40 --lr 3 --warmup 300 --val "$dir/val.bin" --val-every 2 --val-steps 1 --checkpoint-every 0 --keep 1
check "the best and the last are kept, where validation gets worse" eval 'best=$(readlink "$dir/best/best" | sed "s/step_0*//");
    [ "$(steps_in best)" = "$best 40" ] && grep -q "^step $best  validation loss $(sed -n "s/^step [1-9].*validation loss //p" "$dir/best.txt" | sort -n | head -n 1)" "$dir/best.txt"'
run keep --steps 40
judge "a folder with a run is not written into" $? 2 'already holds a run, its newest checkpoint is .*step_00000040' keep
check "a folder with a run is as it was" equal "$(steps_in keep)" "10 20 30 32 36 40"

# A run that saved nothing leaves a log. Whoever starts again in its folder, with and without --resume, loses none of it.
killed_early() {
    start early --steps 100000 --checkpoint-every 0 --numerics-every 1
    wait_for "$dir/early/run.jsonl" '"step":3,'
    kill -KILL $pid
    { wait $pid; } 2>/dev/null
    cp "$dir/early/run.jsonl" "$dir/early.log$1" && cp "$dir/early/options.json" "$dir/early.options$1"
}
killed_early 1
run early --steps 2 --lr 7e-4 --checkpoint-every 0 --keep 1
judge "the log of a run that saved nothing: another run says where it is" $? 0 "which saved no checkpoint, is now $dir/early/run.jsonl.1" early
check "the log of a run that saved nothing: kept" cmp "$dir/early/run.jsonl.1" "$dir/early.log1"
check "the log of a run that saved nothing: its options, too" cmp "$dir/early/options.json.1" "$dir/early.options1"
check "the log of a run that saved nothing: its numerics, too" grep -q '"step":2,' "$dir/early/numerics.jsonl.1"
check "the log of a run that saved nothing: the new one is by itself" equal "$(sed 's/,.*//' "$dir/early/run.jsonl" | tr -d '\n')" '{"step":0{"step":1{"step":2'
rm -r "$dir"/early/step_*
killed_early 2
run early --steps 2 --resume
check "the log of a run that saved nothing: kept with --resume, beside the others" eval 'cmp "$dir/early/run.jsonl.3" "$dir/early.log2" &&
    cmp "$dir/early/run.jsonl.1" "$dir/early.log1" && grep -q "\"lr\": *0.0007" "$dir/early/options.json.2"'

# options.json is replaced in one step: who has the old one open, here as a second name, reads it whole.
ln "$dir/early/options.json" "$dir/options.before" && cp "$dir/early/options.json" "$dir/options.copy"
run early --steps 3 --resume --lr 5e-4
check "options.json: the new one" grep -q '"lr": *0.0005' "$dir/early/options.json"
check "options.json: the old one is replaced, not written into" cmp "$dir/options.before" "$dir/options.copy"
check "options.json: nothing is left beside it" eval '! ls "$dir"/early/*.tmp 2>/dev/null'

# --- not finite --------------------------------------------------------------------------------------------------
# Decay multiplies the weights by -100000 a step until they, or what is computed from them, overflow.
# With --keep 1, too: the newest checkpoint is finite, but what is computed from it is not.
for keep in 2 1; do
    rm -rf "$dir/nan" "$dir/n"
    run nan --steps 100 --lr 1e6 --weight-decay 1 --checkpoint-every 1 --keep $keep \
        --sample-every 1 --sample-length 2
    judge "not finite, keeping $keep: the run fails" $? 1 'not finite' nan
    last=$(sed -n 's/.*last good [a-z]*: //p' "$dir/nan.txt")
    check "not finite, keeping $keep: the last good checkpoint is named, and is there" test -f "$last/manifest.json"
    for saved in "$dir"/nan/step_*; do
        check "not finite, keeping $keep: $(basename "$saved") is finite throughout" "$tool" convert bin3 "$saved" "$dir/nan.bin"
    done
    mkdir "$dir/n" && cp -r "$last" "$dir/n/"
    run n --steps $(($(basename "$last" | sed 's/step_0*//') + 1)) --lr 1e-3 --resume
    judge "not finite, keeping $keep: one can go on from it with a lower rate" $? 0 '^done' n
done
rm -rf "$dir/nan"
run nan --steps 100 --lr 1e6 --weight-decay 1 --checkpoint-every 0
judge "not finite before anything was saved: the run fails" $? 1 'last good checkpoint: none' nan
run nan --steps 4 --lr 1e6 --weight-decay 1 --checkpoint-every 0
judge "not finite in the last step: the run fails, and saves nothing" $? 1 'the run ends with a loss or gradients that are not finite' nan
check "not finite in the last step: nothing is there" equal "$(steps_in nan)" '*'

# --- spikes ------------------------------------------------------------------------------------------------------
# 130 steps fill the window of losses; then comes data in which the ids follow each other differently.
"$tool" tokens "$dir/other.bin" 1201 67 109
usual="--lr 1e-2 --schedule constant --skip-loss-z 4 --layers 1"
run z --steps 130 $usual
state() { echo "$dir/z/step_00000$1/$2"; }

run z --steps 132 $usual --resume --train "$dir/other.bin"
judge "a spike is skipped, and that is said" $? 0 'skipped: loss spike' z
check "a spike is in the log as skipped" equal "$(value z skipped)" 1
check "a skipped step changes no weight" cmp "$(state 130 model.safetensors)" "$(state 132 model.safetensors)"
for array in m. v. state.loss_window state.grad_window state.adam_t; do
    check "a skipped step leaves $array" "$tool" same-tensors "$(state 130 train_state.safetensors)" "$(state 132 train_state.safetensors)" $array
done
check "a skipped step counts as a step" eval '! "$tool" same-tensors "$(state 130 train_state.safetensors)" "$(state 132 train_state.safetensors)" state.step'

run z --steps 140 $usual --resume
judge "after a spike training goes on" $? 0 '^done after 140 steps.* 2 updates skipped' z
check "after a spike steps are not skipped" equal "$(value z skipped)" 0
run z --steps 400 $usual --resume --train "$dir/other.bin" --max-skips 20
judge "spikes without end end the run" $? 1 '20 steps in a row were skipped as spikes' z

summary
