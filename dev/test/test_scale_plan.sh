#!/bin/sh
# Plans for several ranks: --dry-run --ranks, by numbers worked out by hand, and scripts/scale_plan.py, whose bytes must
# be those of --dry-run and whose tables must be the ones in doc/scale.md.
#
#   BUILD=build/cpu-fp32 sh dev/test/test_scale_plan.sh

cd "$(dirname "$0")/../.." || exit 1
. dev/test/train_lib.sh
export PYTHONDONTWRITEBYTECODE=1

# --- data: 1201 tokens are 75 sequences of 16 ---------------------------------------------------------------------
run plan --dry-run --ranks 2 --batch 4 --total-batch 256
check "2 ranks: a step, and the steps of an epoch" \
    grep -q '^  4 steps of 2 ranks x 2 x 4 x 16 = 256 tokens need 1.0k: 0.85 epochs of 4.7 steps$' "$dir/plan.txt"
run plan --dry-run --ranks 4 --batch 4 --steps 10
check "4 ranks: without --total-batch one micro-batch each" \
    grep -q '^  10 steps of 4 ranks x 1 x 4 x 16 = 256 tokens need 2.6k: 2.13 epochs of 4.7 steps$' "$dir/plan.txt"
ends "a step that the ranks cannot share" 2 '--batch 4 x --seq 16 x 3 ranks = 192 tokens' --dry-run --ranks 3 --total-batch 256
ends "more sequences at once than there are" 1 '1201 tokens are too few, .*--seq 16 x 32 ranks' --dry-run --ranks 32
ends "--ranks is for plans" 2 'this run has 1' --ranks 2
check "a plan leaves nothing behind" eval '[ ! -e "$dir/plan" ]'
(cd "$dir" && "$train" --dry-run --model gpt2 >plan.txt 2>&1)
judge "a plan without data" $? 0 'vocabulary 50257 .*: 124.44M parameters' plan
(cd "$dir" && "$train" --dry-run --model gpt2 --train 'missing_*.bin' >plan.txt 2>&1)
judge "a plan with data that is not there" $? 1 "'missing_\*.bin': no such file" plan

# --- memory ------------------------------------------------------------------------------------------------------
if ! command -v python3 >/dev/null 2>&1; then
    skip "scripts/scale_plan.py: no python3"
    summary
fi
plan="python3 scripts/scale_plan.py"
"$tool" tokens "$dir/gpt2.bin" 70000 50257
# same MODEL RANKS ZERO BATCH RECOMPUTE: the lines of --dry-run are those of the script.
same() {
    "$train" --model "$1" --train "$dir/gpt2.bin" --val '' --vocab 50257 --dry-run --ranks "$2" --zero "$3" --batch "$4" --seq 1024 \
        --recompute "$5" >"$dir/plan.txt" 2>&1
    for precision in fp32 bf16 fp8; do
        # shellcheck disable=SC2086
        line=$($plan --bytes "$1" --precision $precision --ranks "$2" --zero "$3" --batch "$4" --seq 1024 --recompute "$5")
        grep -qF -e "$line  $precision" "$dir/plan.txt" || { echo "expected $line $precision"; cat "$dir/plan.txt"; return 1; }
    done
}
if "$train" --print-policy | grep -q 'master fp32, moments fp32'; then
    check "gpt2 on 1" same gpt2 1 0 64 0
    check "gpt2-xl on 8, ZeRO 1" same gpt2-xl 8 1 16 2
    check "gpt2-medium on 3, ZeRO 2" same gpt2-medium 3 2 1 1
    check "gpt3:6.7B on 64, ZeRO 1" same gpt3:6.7B 64 1 2 0
else
    skip "bytes of --dry-run: this build keeps masters or moments otherwise"
fi
check "the tables of doc/scale.md are the script's" $plan --check doc/scale.md
sed 's/^| gpt2 | bf16 | 0.12 | 2.2 |/| gpt2 | bf16 | 0.12 | 2.3 |/' doc/scale.md >"$dir/scale.md"
check "a changed number is found" eval "! $plan --check '$dir/scale.md' 2>/dev/null"
$plan --update "$dir/scale.md" && check "--update mends it" cmp "$dir/scale.md" doc/scale.md
summary
