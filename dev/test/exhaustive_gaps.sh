#!/bin/sh
# How far each precision's loss is from fp32's after 200 steps, over seeds, against the limits below. `make
# test-exhaustive`; minutes. MODES="bf16 nvfp4" tests only those.
#
# The run: 2 layers, 64 channels, 4 heads, 8 x 64 bytes of this repository's text a step, AdamW (0.9, 0.95), peak rate
# 1e-3 after 20 steps, over the last 40 steps down to a tenth. Every linear layer is cast, in nvfp4 too, which by default
# keeps both blocks of so small a model high. A seed is that of the weights and of the order of the data. The gap is the
# mean over the last 20 steps of (loss less fp32's): fp32's own to double precision is below 0.0002. The limits are on the
# gap's mean, and are those of an independent emulation of each recipe, about three times what it measured.
#
# Any change of rounding sends a run elsewhere: one seed's gap wanders by some 0.005, so three seeds tell the mean to 0.003.
# A mode beyond its limit after 3 seeds may be there by chance: it gets 9, which decide with no allowance, by a mean known to
# 0.002. Both means are printed, with the standard error that the seeds show. bf16 without any master, rounded to nearest, is
# the control: it must be worse by more than 0.015 in every seed.
#
#   BUILD=build/cpu-fp32 sh dev/test/exhaustive_gaps.sh

cd "$(dirname "$0")/../.." || exit 1
dir=$(mktemp -d "${TMPDIR:-/tmp}/train_gpt_gaps.XXXXXX") || exit 1
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM
. dev/test/modes_lib.sh
. dev/test/check_lib.sh

modes=${MODES:-tf32 bf16 fp16 bf16:fp32:bf16 bf16:stochastic bf16:kahan bf16:nearest fp8-delayed fp8-current fp8-row fp8-block mxfp8 nvfp4}
limit() {
    case $1 in
        tf32 | fp16) echo 0.006 ;;
        bf16*) echo 0.008 ;;
        fp8-delayed) echo 0.012 ;;
        nvfp4) echo 0.02 ;;
        *) echo 0.010 ;;
    esac
}

options="--vocab 256 --layers 2 --heads 4 --channels 64 --seq 64 --batch 8 --steps 200 --lr 1e-3 --warmup 20 --schedule wsd
    --decay-fraction 0.2 --final-lr-fraction 0.1 --val= --sample-every 0 --checkpoint-every 0 --threads 1"

# train MODE SEED: its mean loss of the last 20 steps into $dir/MODE.SEED, unless it is there.
train() {
    [ ! -e "$dir/$1.$2" ] || return 0
    case $1 in nvfp4) every_layer="--fp8-hp-first 0 --fp8-hp-last 0" ;; *) every_layer= ;; esac
    if "$(program_of "$1")" train --train "$dir/data.bin" $options $every_layer --seed "$2" --out "$dir/out.$1.$2" >"$dir/out.$1.$2.txt" 2>&1; then
        sed -n 's/.*"loss":\([^,}]*\).*/\1/p' "$dir/out.$1.$2/run.jsonl" | tail -n 20 |
            awk '{ s += $1 } END { if (NR == 20) printf "%.6f\n", s / NR }' >"$dir/$1.$2"
    else
        tail -n 5 "$dir/out.$1.$2.txt" | sed 's/^/    /'
    fi
    rm -rf "$dir/out.$1.$2"
}
train_seeds() { for seed in $2; do two_at_once train "$1" "$seed"; done; }

# gaps MODE SEEDS: "mean error lowest within all-gaps": within is 1 where the mean is within the limit.
gaps() {
    for seed in $2; do paste -d ' ' "$dir/$1.$seed" "$dir/fp32.$seed"; done | awk -v limit="$(limit "$1")" -v wanted="$(echo $2 | wc -w)" '
        NF == 2 { n++; d[n] = $1 - $2; s += d[n]; all = all sprintf(" %+.4f", d[n]); if (n == 1 || d[n] < low) low = d[n] }
        END { if (n != wanted) exit 1
              mean = s / n; for (i = 1; i <= n; i++) q += (d[i] - mean) ^ 2
              within = (mean <= limit && mean >= -limit)
              printf "%+.4f %.4f %.4f %d%s\n", mean, sqrt(q / (n - 1) / n), low, within, all }'
}

build_all fp32 $modes
for mode in fp32 $modes; do
    [ -e "$dir/built.$mode.ok" ] || { fail "$mode: does not build"; sed 's/^/    /' "$dir/built.$mode"; }
done
[ "$failed" -eq 0 ] || summary
"$(program_of fp32)" data "$dir/data.bin" || exit 1
few="1 2 3" many="1 2 3 4 5 6 7 8 9"
for mode in fp32 $modes; do train_seeds "$mode" "$few"; done
wait
running=
for mode in $modes; do
    if ! found=$(gaps "$mode" "$few"); then fail "$mode: a run ended before its time"; continue; fi
    set -- $found
    mean=$1 error=$2 lowest=$3 within=$4
    shift 4
    text="$mode: $mean ± $error after 3 seeds ($*)"
    if [ "$mode" = bf16:nearest ]; then
        if awk "BEGIN { exit !($lowest > 0.015) }"; then ok "$text, each above 0.015: the control shows what it should"
        else fail "$text: the control must be above 0.015 in each seed"; fi
        continue
    fi
    if [ "$within" -eq 0 ]; then
        train_seeds fp32 "$many"
        train_seeds "$mode" "$many"
        wait
        running=
        if ! found=$(gaps "$mode" "$many"); then fail "$mode: a run ended before its time"; continue; fi
        set -- $found
        within=$4
        text="$text, $1 ± $2 after 9"
    fi
    if [ "$within" -eq 1 ]; then ok "$text, limit $(limit "$mode")"; else fail "$text, limit $(limit "$mode")"; fi
done
summary
