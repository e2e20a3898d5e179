#!/bin/sh
# train_gpt --numerics-every: the file, its resume, and that looking changes nothing.

cd "$(dirname "$0")/../.." || exit 1
BUILD="${BUILD:-build/cpu-fp32}"
dir=$(mktemp -d "${TMPDIR:-/tmp}/train_gpt_numerics.XXXXXX") || exit 1
trap 'rm -rf "$dir"' EXIT

. dev/test/check_lib.sh

cat README.md Makefile llmc/utils.h >"$dir/text"
"$BUILD/tokenize" --tokenizer byte --val-fraction 0.2 --out "$dir/data" "$dir/text" >/dev/null || exit 1
train() {
    out=$1
    shift
    "$BUILD/train_gpt" --train "$dir/data_train_*.bin" --val "$dir/data_val_*.bin" --val-every 0 --sample-every 0 --layers 2 \
        --heads 2 --channels 32 --batch 2 --seq 16 --total-batch 64 --steps 12 --checkpoint-every 6 --keep 0 \
        --out "$dir/$out" "$@"
}
lines() { grep -c -- "$1" "$dir/$2/numerics.jsonl"; }

check "a run with reports" train seen --numerics-every 3
check "a run without" train unseen
check "no file without" test ! -e "$dir/unseen/numerics.jsonl"
check "the same weights" cmp "$dir/seen/step_00000012/model.safetensors" "$dir/unseen/step_00000012/model.safetensors"
check "reports on steps 1, 3, 6, 9, 12" test "$(sed 's/^{"step":\([0-9]*\),.*/\1/' "$dir/seen/numerics.jsonl" | uniq | tr '\n' ' ')" = "1 3 6 9 12 "
# 2 layers of 8 activations, and encoded and lnf; 16 parameter tensors, 12 of them in both layers
check "every activation" test "$(lines '"step":6,"kind":"act"' seen)" = 18
check "every parameter" test "$(lines '"step":6,"kind":"weight"' seen)" = 28
check "gradients and logits" test "$(lines '"step":6,"kind":"grad","tensor":"dqkv"' seen)$(lines '"step":6,"kind":"logits"' seen)" = 21
check "two micro-batches of 32 tokens" grep -q '"step":6,"kind":"act","tensor":"fch","layer":1,.*"elements":8192,' "$dir/seen/numerics.jsonl"

# As if killed after step 11: the last checkpoint left is that of step 6.
cp -r "$dir/seen" "$dir/resumed"
rm -r "$dir/resumed/step_00000012"
printf '{"step":12,"kind":"a' >>"$dir/resumed/numerics.jsonl"
check "resume" train resumed --numerics-every 3 --resume
check "the same lines, none twice" cmp "$dir/seen/numerics.jsonl" "$dir/resumed/numerics.jsonl"

cp -r "$dir/seen" "$dir/off"
rm -r "$dir/off/step_00000012"
check "resume without reports" train off --resume
check "what the resumed run contradicts is gone" test "$(lines '"step":6,' off)$(lines '"step":9,' off)" = "$(lines '"step":6,' seen)0"

summary
