# run_lib.sh: what the run_*.sh have in common; they source it from the repository's root.
#
# Each sets what its model asks for and calls `train OPTIONS...`. The same command again goes on where the run stopped
# (--resume). SIGTERM, SIGINT and SIGUSR1 are passed on: the ranks finish their step, save, and end with code 3. In a
# Slurm job SIGUSR1, which the batch files ask for before the time is up, also queues the job again.
#
#   GPUS=8        of this machine (default: as many as nvidia-smi lists)
#   LAUNCH="..."  what starts the ranks, with RANKS=n how many: LAUNCH="mpirun -np 16 -x MASTER_ADDR=host0 ..." RANKS=16.
#                 Default: scripts/launch.sh on this machine, srun in a Slurm job, nothing for one rank
#   PRECISION=bf16  BATCH=n  ZERO=1  RUN_OUT=log/NAME  DATA=folder of the token files  PROGRAM=built program
#   data/hellaswag_val.bin   where it is (data/README.md), its questions are asked with every validation
#   REHEARSE=8    a model of two layers for eight steps, on whatever PROGRAM (default: ./train_gpt) runs on: are all
#                 options right, is the data there?

fail() { echo "error: $*" >&2; exit 1; }

if [ "${SLURM_JOB_ID:-}" ]; then
    RANKS=${RANKS:-${SLURM_NTASKS:-1}} LAUNCH=${LAUNCH:-srun --kill-on-bad-exit=1}
elif [ -z "${LAUNCH:-}" ]; then
    GPUS=${GPUS:-$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')}
    [ "$GPUS" -gt 0 ] || GPUS=1
    RANKS=$GPUS
    [ "$RANKS" -eq 1 ] || LAUNCH="sh scripts/launch.sh $RANKS"
fi
[ "${RANKS:-}" ] || fail "LAUNCH is set: RANKS=n must say how many ranks it starts"
PRECISION=${PRECISION:-bf16}

# data SET SHARDS: DATA has so many shards of data/get.sh's SET, and GPT-2's vocabulary is there for samples.
data() {
    DATA=${DATA:-data/$1}
    [ -z "${REHEARSE:-}" ] || return 0
    [ -s data/gpt2/vocab.bpe ] || OUT=data sh data/get.sh gpt2-vocab || exit 1
    have=$(find "$DATA" -name 'fineweb_train_*.bin' 2>/dev/null | wc -l)
    [ "$have" -ge "$2" ] || OUT="$DATA" SHARDS="$2" sh data/get.sh "$1" || exit 1
}

# largest_batch TOKENS SEQ BATCH: the largest micro-batch up to BATCH, halving it, of which TOKENS a step are a multiple.
largest_batch() {
    batch=$3
    while [ "$batch" -gt 0 ] && [ $(($1 % (batch * $2 * RANKS))) -ne 0 ]; do batch=$((batch / 2)); done
    [ "$batch" -gt 0 ] || fail "$1 tokens a step are not a multiple of $RANKS ranks x $2: another number of GPUs"
    echo "$batch"
}

signalled=
pass_on() {
    signalled=$1
    [ -z "${pid:-}" ] || kill -"$1" "$pid" 2>/dev/null
}

# train NAME TOTAL_BATCH SEQ BATCH OPTIONS...: the run, until it is done (0), stopped (3) or broken.
train() {
    name=$1 total=$2 seq=$3 batch=${BATCH:-$(largest_batch "$2" "$3" "$4")} || exit 1
    shift 4
    set -- --train "$DATA/fineweb_train_*.bin" --val "$DATA/fineweb_val_*.bin" --tokenizer data/gpt2 \
        --out "${RUN_OUT:-log/$name}" --resume --total-batch "$total" --seq "$seq" --batch "$batch" \
        --zero "${ZERO:-$([ "$RANKS" -eq 1 ] && echo 0 || echo 1)}" "$@"
    if [ "${REHEARSE:-}" ]; then
        PROGRAM=${PROGRAM:-./train_gpt}
        set -- "$@" --layers 2 --heads 2 --channels 64 --max-seq 32 --seq 32 --batch 2 --total-batch "$((128 * RANKS))" \
            --steps "$REHEARSE" --warmup 2 --val-every 4 --val-steps 1 --checkpoint-every 4 --sample-every 8 --sample-length 8
    elif [ -s data/hellaswag_val.bin ]; then
        set -- "$@" --hellaswag data/hellaswag_val.bin
    fi
    if [ -z "${PROGRAM:-}" ]; then
        PROGRAM=build/cuda-$PRECISION/train_gpt
        make --no-print-directory DEVICE=cuda PRECISION="$PRECISION" "$PROGRAM" || exit 1
    fi
    for signal in TERM INT USR1; do
        # shellcheck disable=SC2064
        trap "pass_on $signal" $signal
    done
    # shellcheck disable=SC2086
    ${LAUNCH:-} "$PROGRAM" "$@" </dev/null &
    pid=$!
    wait "$pid"
    code=$?
    while [ "$code" -gt 128 ] && kill -0 "$pid" 2>/dev/null; do  # the signal interrupted the wait, not the run
        wait "$pid"
        code=$?
    done
    if [ "$signalled" = USR1 ] && [ "$code" -eq 3 ] && [ "${SLURM_JOB_ID:-}" ]; then
        echo "the time is nearly up: job $SLURM_JOB_ID is queued again"
        scontrol requeue "$SLURM_JOB_ID"
    fi
    exit "$code"
}
