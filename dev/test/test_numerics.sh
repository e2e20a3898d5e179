#!/bin/sh
# train_gpt --numerics-every: the file, its resume, and that looking changes nothing.

cd "$(dirname "$0")/../.." || exit 1
BUILD="${BUILD:-build/cpu-fp32}"
dir=$(mktemp -d "${TMPDIR:-/tmp}/train_gpt_numerics.XXXXXX") || exit 1
trap 'rm -rf "$dir"' EXIT

passed=0 failed=0

# ok NAME COMMAND...: succeeds.
ok() {
    name=$1
    shift
    if "$@" >"$dir/log" 2>&1; then
        passed=$((passed + 1))
        echo "ok    $name"
    else
        failed=$((failed + 1))
        echo "FAIL  $name"
        sed 's/^/    /' "$dir/log" | tail -n 20
    fi
}

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

ok "a run with reports" train seen --numerics-every 3
ok "a run without" train unseen
ok "no file without" test ! -e "$dir/unseen/numerics.jsonl"
ok "the same weights" cmp "$dir/seen/step_00000012/model.safetensors" "$dir/unseen/step_00000012/model.safetensors"
ok "reports on steps 1, 3, 6, 9, 12" test "$(sed 's/^{"step":\([0-9]*\),.*/\1/' "$dir/seen/numerics.jsonl" | uniq | tr '\n' ' ')" = "1 3 6 9 12 "
# 2 layers of 8 activations, and encoded and lnf; 16 parameter tensors, 12 of them in both layers
ok "every activation" test "$(lines '"step":6,"kind":"act"' seen)" = 18
ok "every parameter" test "$(lines '"step":6,"kind":"weight"' seen)" = 28
ok "gradients and logits" test "$(lines '"step":6,"kind":"grad","tensor":"dqkv"' seen)$(lines '"step":6,"kind":"logits"' seen)" = 21
ok "two micro-batches of 32 tokens" grep -q '"step":6,"kind":"act","tensor":"fch","layer":1,.*"elements":8192,' "$dir/seen/numerics.jsonl"

# As if killed after step 11: the last checkpoint left is that of step 6.
cp -r "$dir/seen" "$dir/resumed"
rm -r "$dir/resumed/step_00000012"
printf '{"step":12,"kind":"a' >>"$dir/resumed/numerics.jsonl"
ok "resume" train resumed --numerics-every 3 --resume
ok "the same lines, none twice" cmp "$dir/seen/numerics.jsonl" "$dir/resumed/numerics.jsonl"

cp -r "$dir/seen" "$dir/off"
rm -r "$dir/off/step_00000012"
ok "resume without reports" train off --resume
ok "what the resumed run contradicts is gone" test "$(lines '"step":6,' off)$(lines '"step":9,' off)" = "$(lines '"step":6,' seen)0"

echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
