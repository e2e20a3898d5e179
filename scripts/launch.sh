#!/bin/sh
# launch.sh: starts several ranks of a program on this machine, without MPI. A rank that fails ends all of them; its exit
# code is this script's. INT, TERM, USR1 and HUP are passed on to the ranks.
#
#     scripts/launch.sh 4 ./train_gpt --zero 1 ...        GPUs go to ranks in order (CUDA_VISIBLE_DEVICES chooses)
#
# Across machines: mpirun, srun or torchrun, whose variables the program reads as well.
case $1 in '' | *[!0-9]* | 0) set -- ;; esac
if [ $# -lt 2 ]; then
    echo "usage: scripts/launch.sh RANKS PROGRAM [ARGUMENT...]" >&2
    exit 2
fi
ranks=$1
shift
export WORLD_SIZE="$ranks" LOCAL_WORLD_SIZE="$ranks" MASTER_ADDR="${MASTER_ADDR:-127.0.0.1}"
export MASTER_PORT="${MASTER_PORT:-$((10000 + $$ % 20000))}"
dir=$(mktemp -d "${TMPDIR:-/tmp}/launch.XXXXXX") || exit 1
trap 'rm -rf "$dir"' EXIT

tell_all() { for file in "$dir"/pid.*; do kill -"$1" "$(cat "$file")" 2>/dev/null; done; }
for signal in INT TERM USR1 HUP; do
    # shellcheck disable=SC2064
    trap "tell_all $signal" $signal
done
rank=0
while [ "$rank" -lt "$ranks" ]; do
    {
        trap '' INT TERM USR1 HUP
        (
            trap - INT TERM USR1 HUP
            export RANK=$rank LOCAL_RANK=$rank
            exec "$@"
        ) &
        echo $! >"$dir/pid.$rank"
        wait $!
        echo $? >"$dir/code.$rank"
    } &
    rank=$((rank + 1))
done

# A rank that fails takes the others along by itself; one that cannot even do that is ended here, 10 seconds later.
code=0 grace=100 ended=0
while [ "$ended" -lt "$ranks" ]; do
    sleep 0.1
    ended=0
    for file in "$dir"/code.*; do
        [ -s "$file" ] || continue
        ended=$((ended + 1))
        [ $code -eq 0 ] && code=$(cat "$file")
    done
    [ "$code" -eq 0 ] && continue
    grace=$((grace - 1))
    [ $grace -eq 0 ] && tell_all KILL
done
exit "$code"
