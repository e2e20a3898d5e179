#!/bin/sh
# Trains the same model on the same tokens in every precision and writes one report: compare.html (opens without a
# network) and compare.md.
#
#   sh scripts/compare_precisions.sh                          every mode, under ten minutes on two cores
#   sh scripts/compare_precisions.sh fp32 bf16 fp8-current    these; names are those of the build folders, less 'cpu-'
#   DEVICE=cuda sh scripts/compare_precisions.sh              on a GPU
#   sh scripts/compare_precisions.sh --steps 1000 -- --layers 6 --channels 192        what follows -- goes to train_gpt
#
# Options
#   --out FOLDER    runs and report (default: compare)
#   --steps N       of each run (default: 300), of --batch B sequences (8) of --seq T tokens (64)
#   --seeds N       fp32 runs, one a seed; how far they lie apart is the noise the differences are held against (3)
#   --report        no training: the report of what is there
#   --keep          keep the checkpoints of finished runs
#
# Stop it at any time: the same command goes on where it stopped. A run is made again when its program, data or options
# have changed. Besides the seeds, fp32 runs once more with its batch in two halves: the same sums in another order, so
# the smallest difference that any change of rounding makes.

cd "$(dirname "$0")/.." || exit 1

fail() { echo "error: $1" >&2; exit "${2:-1}"; }

out=compare steps=300 batch=8 seq=64 seeds=3 report_only=0 keep=0 modes=
while [ "$#" -gt 0 ]; do
    case $1 in
        --out | --steps | --batch | --seq | --seeds)
            [ "$#" -gt 1 ] || fail "$1 needs a value" 2
            case $1 in
                --out) out=$2 ;;
                --steps) steps=$2 ;;
                --batch) batch=$2 ;;
                --seq) seq=$2 ;;
                --seeds) seeds=$2 ;;
            esac
            shift ;;
        --report) report_only=1 ;;
        --keep) keep=1 ;;
        --help) sed -n '2,/^$/s/^# \{0,1\}//p' "$0"; exit 0 ;;
        --) shift; break ;;
        -*) fail "there is no option $1 (--help lists all; options of train_gpt follow a --)" 2 ;;
        *) modes="$modes $1" ;;
    esac
    shift
done
for number in "$steps" "$batch" "$seq" "$seeds"; do
    case $number in *[!0-9]* | '') fail "'$number' is not a whole number (--steps, --batch, --seq, --seeds)" 2 ;; esac
done
[ "$steps" -ge 2 ] || fail "--steps $steps: two at least" 2
[ "$batch" -ge 2 ] || fail "--batch $batch: two at least" 2
[ "$seeds" -ge 1 ] || fail "--seeds $seeds: one at least" 2

# Controls: bf16 without a master, in the three ways of rounding its updates, and moments in bf16.
all="fp32 tf32 bf16 fp16 fp8-delayed fp8-current fp8-row fp8-block mxfp8 nvfp4"
all="$all bf16-kahan bf16-stochastic bf16-nearest bf16-mbf16"
modes=${modes:-$all}
case " $modes " in *" fp32 "*) ;; *) modes="fp32 $modes" ;; esac  # what all others are compared with

# Sets precision, master and moments from a mode's name, as the Makefile puts it together.
parse_mode() {
    precision=$1 master=fp32 moments=fp32
    case $precision in *-mbf16sr) moments=bf16sr ;; *-mbf16) moments=bf16 ;; esac
    precision=${precision%-mbf16sr} precision=${precision%-mbf16}
    case $precision in *-kahan | *-stochastic | *-nearest) master=${precision##*-} precision=${precision%-*} ;; esac
}

device=${DEVICE:-cpu}
builds=${COMPARE_BUILDS:-build}  # where the programs go
case $builds in build) override= ;; *) override=1 ;; esac

# Builds a mode's program without moving the ./train_gpt link; its path in $program.
build_mode() {
    parse_mode "$1"
    program=$builds/$device-$1/train_gpt
    mkdir -p "$out"
    if ! make --no-print-directory "DEVICE=$device" "PRECISION=$precision" "MASTER=$master" "MOMENTS=$moments" \
        ${override:+"B=$builds/$device-$1"} "$program" >"$out/build.log" 2>&1; then
        sed 's/^/    /' "$out/build.log" >&2
        fail "mode '$1' does not build; the modes are: $all"
    fi
}

# The data that train_gpt's --train names, for the signature; the embedded dataset unless the options say otherwise.
data_files() {
    glob='data/self_*_000000.bin'
    for option in "$@"; do
        case $previous in --train | -i) glob=$option ;; esac
        case $option in --train=*) glob=${option#--train=} ;; esac
        previous=$option
    done
    # shellcheck disable=SC2086
    ls -d $glob 2>/dev/null
}

pid=
stop() {
    trap '' INT TERM
    [ -z "$pid" ] || { kill -TERM "$pid" 2>/dev/null; wait "$pid"; }
    echo
    echo "stopped; the same command goes on from here"
    exit 130
}
trap stop INT TERM

# run NAME PROGRAM OPTIONS...: trains into $out/runs/NAME unless that is done already.
run() {
    dir=$out/runs/$1 name=$1 program=$2
    shift 2
    # shellcheck disable=SC2046,SC2002
    signature="$(cksum <"$program") $(cat $(data_files "$@") | cksum) $*"
    if [ "$(cat "$dir/signature" 2>/dev/null)" != "$signature" ]; then
        rm -rf "${out:?}/runs/$name"
        mkdir -p "$dir" || fail "cannot make the folder '$dir'"
        printf '%s\n' "$signature" >"$dir/signature"
    fi
    if [ -e "$dir/done" ]; then
        echo "$name: done before"
        return
    fi
    printf '%s: ' "$name"
    "$program" --print-policy >"$dir/policy.txt" || fail "'$program --print-policy' failed"
    "$program" "$@" --out "$dir" --resume >"$dir/output.txt" 2>&1 </dev/null &
    pid=$!
    wait "$pid"
    code=$?
    pid=
    if [ "$code" -ne 0 ]; then
        # A mode that breaks is a result, too; anything before the first step is a mistake in the options.
        tail -n 12 "$dir/output.txt" | sed 's/^/    /'
        [ -s "$dir/run.jsonl" ] || fail "the run '$name' did not start"
        echo "$name: ended with exit code $code" >"$dir/broken"
    fi
    [ "$keep" -eq 1 ] || rm -rf "${out:?}/runs/$name"/step_*
    : >"$dir/done"
    grep '^done\|^error' "$dir/output.txt" | tail -n 1
}

if [ "$report_only" -eq 0 ]; then
    # One look per quarter; the last tenth of the steps decides, so the rate falls as in a real run.
    quarter=$(((steps + 3) / 4)) warmup=$(((steps + 14) / 15))
    set -- --layers 4 --heads 4 --channels 128 --seq "$seq" --total-batch "$((batch * seq))" --steps "$steps" --lr 1e-3 --warmup "$warmup" \
        --val-every "$quarter" --val-steps 30 --sample-every 0 --checkpoint-every 100 --keep 1 \
        --numerics-every "$(((steps + 29) / 30))" "$@"
    case " $* " in *" --train "* | *" --train="* | *" -i "*) ;; *)
        make --no-print-directory data >/dev/null || fail "cannot make the embedded dataset (make data)" ;;
    esac
    start=$(date +%s)
    for mode in $modes; do
        build_mode "$mode"
        run "$mode" "$program" --seed 1 --batch "$batch" "$@"
        [ "$mode" = fp32 ] || continue
        seed=2
        while [ "$seed" -le "$seeds" ]; do
            run "fp32.seed$seed" "$program" --seed "$seed" --batch "$batch" "$@"
            seed=$((seed + 1))
        done
        [ "$((batch % 2))" -ne 0 ] || run fp32.order "$program" --seed 1 --batch "$((batch / 2))" "$@"
    done
    echo "all runs there after $(($(date +%s) - start)) s"
fi
command -v python3 >/dev/null 2>&1 || fail "no python3: the runs are in $out/runs, the report is not written"
python3 scripts/compare_report.py "$out"
