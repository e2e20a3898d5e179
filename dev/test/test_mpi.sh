#!/bin/sh
# Ranks started by a real mpirun: by its environment, and by MPI itself in a build with it. Their training has the bits
# of scripts/launch.sh's.

cd "$(dirname "$0")/../.." || exit 1
. dev/test/train_lib.sh
plain=$PWD/build/emulated/train_gpt_fp32 mpi=$PWD/build/emu-fp32-mpi/train_gpt launch=$PWD/scripts/launch.sh
[ -x "$plain" ] || { skip "mpirun: no emulated programs (no C++ compiler, or sanitizers)"; summary; }
command -v mpirun >/dev/null 2>&1 || { skip "mpirun: it is not here (Debian, Ubuntu: apt-get install openmpi-bin)"; summary; }
export OMP_NUM_THREADS=1
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_btl_base_warn_component_unused=0
unset RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT
many=
if mpirun --version 2>/dev/null | grep -q 'Open MPI'; then many="--oversubscribe"; fi
small="--train $dir/train.bin --layers 2 --heads 2 --channels 24 --seq 8 --batch 1 --total-batch 96 --warmup 1 --lr 1e-2 --steps 4
       --val-every 0 --sample-every 0 --zero 1 --check-replicas 1"

# started FOLDER COMMAND...: a training into $dir/FOLDER.
started() {
    into=$1
    shift
    # shellcheck disable=SC2086
    $limit "$@" $small --out "$dir/$into" >"$dir/$into.txt" 2>&1 </dev/null
}
ends_well() { started "$@" || { cat "$dir/$1.txt"; false; }; }

check "two ranks by scripts/launch.sh" ends_well l "$launch" 2 "$plain"
check "two ranks by mpirun's environment" ends_well e mpirun $many -n 2 "$plain"
check "train to the same bits" same_end l e step_00000004
if [ ! -x "$mpi" ]; then skip "a build with MPI: its headers are not here (Debian, Ubuntu: apt-get install libopenmpi-dev)"; summary; fi

check "two ranks by MPI" ends_well m mpirun $many -n 2 "$mpi"
check "train to the same bits, too" same_end l m step_00000004
before=$(date +%s)
started q mpirun $many -n 2 sh -c 'exec "$@" --seed "$OMPI_COMM_WORLD_RANK$PMI_RANK"' sh "$mpi" --layers 0
code=$?
check "ranks with a wrong option end" [ $code -ne 0 ]
check "soon" [ $(($(date +%s) - before)) -le 10 ]
check "with its message" grep -q '^error: --layers' "$dir/q.txt"
check "a build with MPI on its own has one rank" eval 'ends_well one "$mpi" && grep -q "12 x 1 x 8 = 96 tokens" "$dir/one.txt"'
check "started by scripts/launch.sh it goes by the environment" ends_well s "$launch" 2 "$mpi"
check "to the same bits" same_end l s step_00000004
started o env OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0 "$mpi"
code=$?
check "ranks that MPI knows nothing of" [ $code -ne 0 ]
check "are named" grep -q "OMPI_COMM_WORLD_SIZE says 2 ranks, but this program's MPI sees 1" "$dir/o.txt"
srun() {  # as it starts tasks where it has no MPI
    for r in 0 1; do
        SLURM_PROCID=$r SLURM_STEP_NUM_TASKS=2 SLURM_JOB_ID=$$ SLURM_STEP_ID=0 SLURM_STEP_NODELIST=127.0.0.1 "$@" &
        last=$!
    done
    wait $last
    code=$?
    wait
    return $code
}
limit='' check "Slurm's tasks without MPI go by its variables" ends_well u srun "$mpi"
check "to the same bits" same_end l u step_00000004

# A rank that dies, and a signal to one.
begin() {
    rm -rf "$dir/$1" "$dir/pids"
    mkdir "$dir/pids"
    # shellcheck disable=SC2086,SC2016
    mpirun $many -n 2 sh -c 'echo $$ >"'"$dir/pids"'/$OMPI_COMM_WORLD_RANK$PMI_RANK"; exec "$@"' sh "$mpi" $small --out "$dir/$1" \
        --steps 100000 >"$dir/$1.txt" 2>&1 </dev/null &
    pid=$!
    (sleep 100 && kill -KILL $pid) >/dev/null 2>&1 &  # a job that hangs is a failure, not the end of the test
    wait_for "$dir/$1/run.jsonl" '"step":2' 30
}
begin k
before=$(date +%s)
kill -KILL "$(cat "$dir/pids/1")"
wait $pid
code=$?
check "a rank that is killed ends all within 10 seconds" [ $(($(date +%s) - before)) -le 10 ]
check "with an error" [ $code -ne 0 ]
gone() { tries=0; while kill -0 "$1" 2>/dev/null; do tries=$((tries + 1)); [ $tries -lt 100 ] || return 1; sleep 0.1; done; }
check "nobody is left" gone "$(cat "$dir/pids/0")"
begin t
kill -TERM "$(cat "$dir/pids/1")"
wait $pid
code=$?
check "a signal to one rank: all save and end" [ $code -eq 3 ]
saved=$(steps_in t | awk '{ print $NF }')
check "and the run goes on from there" ends_well t mpirun $many -n 2 "$mpi" --resume --steps $((saved + 1))
begin v
kill -USR1 $pid
wait $pid
code=$?
check "SIGUSR1 to mpirun is passed on: all save and end" [ $code -eq 3 ]
check "with a checkpoint" [ "$(steps_in v | awk '{ print $NF }')" -ge 2 ]
summary
