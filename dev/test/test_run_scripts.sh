#!/bin/sh
# Rehearses scripts/run_*.sh and scripts/slurm/*.sbatch with tiny models (REHEARSE): every option is accepted, the run
# ends, goes on, passes signals on, and queues its Slurm job again. srun and scontrol are stand-ins.
#
#   BUILD=build/cpu-fp32 sh dev/test/test_run_scripts.sh

cd "$(dirname "$0")/../.." || exit 1
. dev/test/train_lib.sh
"$tool" tokens "$dir/fineweb_train_000001.bin" 20000 67 1 && "$tool" tokens "$dir/fineweb_val_000000.bin" 3000 67 2 || exit 1
unset SLURM_JOB_ID LAUNCH RANKS BATCH ZERO
export PROGRAM="$train" DATA="$dir" GPUS=1 OMP_NUM_THREADS=1

# rehearse SCRIPT STEPS: its output in $dir/out.txt, its files in $dir/out.
rehearse() { REHEARSE=$2 RUN_OUT="$dir/out" $limit sh "$1" >"$dir/out.txt" 2>&1; }

for size in 124M 350M 774M 1558M; do
    rm -rf "$dir/out"
    rehearse scripts/run_$size.sh 8
    judge "run_$size.sh" $? 0 '^done after 8 steps' out
    check "run_$size.sh: what the model is, but for its size" grep -q '"weight-decay":0.1' "$dir/out/options.json"
    check "run_$size.sh says what it costs and reaches" eval "[ \$(grep -c '^# Costs \|^# Reaches ' scripts/run_$size.sh) -eq 2 ]"
done
rehearse scripts/run_1558M.sh 12
judge "the same command goes on" $? 0 'step_00000008' out
check "up to its end" grep -q '^done after 12 steps' "$dir/out.txt"

GPUS=3 rehearse scripts/run_124M.sh 8
judge "a number of GPUs that a step cannot be shared among" $? 1 '524288 tokens a step are not a multiple of 3 ranks x 1024' out
LAUNCH=echo rehearse scripts/run_124M.sh 8
judge "LAUNCH without RANKS" $? 1 'RANKS=n must say' out
LAUNCH=echo RANKS=64 rehearse scripts/run_124M.sh 8
judge "64 ranks: the micro-batch that is theirs" $? 0 '--total-batch 524288 --seq 1024 --batch 8 --zero 1 ' out
LAUNCH=echo RANKS=8 BATCH=16 ZERO=2 rehearse scripts/run_1558M.sh 8
judge "settings of one's own" $? 0 '--batch 16 --zero 2 ' out

# --- several ranks, on the emulator ------------------------------------------------------------------------------
emulated=$PWD/build/emulated/train_gpt_bf16
if [ -x "$emulated" ]; then
    rm -rf "$dir/out"
    PROGRAM=$emulated GPUS=2 rehearse scripts/run_350M.sh 6
    judge "two ranks" $? 0 '^done after 6 steps' out
    check "two ranks share out what --zero 1 does" grep -q '^memory of each of 2 ranks, --zero 1:' "$dir/out.txt"
    PROGRAM=$emulated GPUS=1 rehearse scripts/run_350M.sh 8
    judge "and one goes on from there" $? 0 'step_00000006' out
else
    skip "several ranks: no $emulated"
fi

# --- Slurm -------------------------------------------------------------------------------------------------------
mkdir "$dir/bin"
printf '#!/bin/sh\nshift\nexec "$@"\n' >"$dir/bin/srun"
printf '#!/bin/sh\necho "scontrol $*"\n' >"$dir/bin/scontrol"
chmod +x "$dir/bin/srun" "$dir/bin/scontrol"
export PATH="$dir/bin:$PATH" SLURM_SUBMIT_DIR="$PWD" SLURM_JOB_ID=7 SLURM_NTASKS=1
for size in 124M 350M 774M 1558M; do
    rm -rf "$dir/out"
    rehearse scripts/slurm/run_$size.sbatch 8
    judge "run_$size.sbatch" $? 0 '^done after 8 steps' out
    check "run_$size.sbatch is warned in time and may be queued again" \
        eval "[ \$(grep -c '^#SBATCH --signal=B:USR1@300\$\|^#SBATCH --requeue\$\|^# Costs \|^# Reaches ' scripts/slurm/run_$size.sbatch) -eq 4 ]"
done

# stopped SIGNAL: a job gets it after some steps; its output in out.txt, its exit code is the function's.
stopped() {
    rm -rf "$dir/out"
    REHEARSE=100000 RUN_OUT="$dir/out" sh scripts/slurm/run_124M.sbatch >"$dir/out.txt" 2>&1 &
    pid=$! tries=0
    # Any checkpoint will do: old ones are removed as new ones come.
    while [ $tries -lt 300 ] && ! ls "$dir"/out/step_* >/dev/null 2>&1; do sleep 0.1; tries=$((tries + 1)); done
    kill -"$1" $pid
    wait $pid
}
stopped USR1
judge "SIGUSR1, as before the time is up: saved" $? 3 '^stopped after [0-9]* steps' out
check "and the job is queued again" grep -q '^scontrol requeue 7$' "$dir/out.txt"
stopped TERM
judge "SIGTERM, as when the job is cancelled: saved" $? 3 '^stopped after [0-9]* steps' out
check "and not queued again" eval "! grep -q requeue '$dir/out.txt'"
summary
