#!/bin/sh
# launch.sh: starts several ranks of a program on this machine, without MPI. The first rank that fails ends all of them,
# and its exit code is this script's.
#
#     scripts/launch.sh 4 ./train_gpt --zero 1 ...        GPUs go to ranks in order (CUDA_VISIBLE_DEVICES chooses)
#
# Across machines: mpirun, srun or torchrun, whose variables the program reads as well; or this script's by hand (RANK,
# WORLD_SIZE, MASTER_ADDR: rank 0's host, MASTER_PORT).
if [ $# -lt 2 ] || [ "$1" -lt 1 ] 2>/dev/null; then
    echo "usage: scripts/launch.sh RANKS PROGRAM [ARGUMENT...]" >&2
    exit 2
fi
ranks=$1
shift
export WORLD_SIZE="$ranks" LOCAL_WORLD_SIZE="$ranks" MASTER_ADDR="${MASTER_ADDR:-127.0.0.1}"
export MASTER_PORT="${MASTER_PORT:-$((10000 + $$ % 20000))}"

pids=
end_all() { for pid in $pids; do kill -"$1" "$pid" 2>/dev/null; done; }
for signal in INT TERM USR1 HUP; do
    # shellcheck disable=SC2064
    trap "end_all $signal" $signal
done
rank=0
while [ "$rank" -lt "$ranks" ]; do
    RANK=$rank LOCAL_RANK=$rank "$@" &
    pids="$pids $!"
    rank=$((rank + 1))
done

# A rank that fails takes the others along by itself; whoever is left after that is ended here.
code=0
for pid in $pids; do
    wait "$pid"
    status=$?
    while [ $status -gt 128 ] && kill -0 "$pid" 2>/dev/null; do  # a signal of ours interrupted the wait
        wait "$pid"
        status=$?
    done
    [ $code -eq 0 ] && code=$status
done
exit $code
