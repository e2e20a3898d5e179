#!/bin/sh
# Questions with several completions, from JSONL to an accuracy: data/tokenize --choices, --hellaswag.
#
#   BUILD=build/cpu-fp32 sh dev/test/test_choices.sh

cd "$(dirname "$0")/../.." || exit 1
. dev/test/train_lib.sh
tokenize=$BUILD/tokenize

# A text whose every word says what follows, 51 bytes over and over: windows of 32 begin at each of them. Questions about
# it; the last one is longer than --seq.
for i in 1 2 3 4 5 6 7 8 9 10; do
    for j in 1 2 3 4 5 6 7 8 9 10; do printf 'one two three four five six seven eight nine ten.  '; done
done >"$dir/counting"
questions() {
    cat <<END
{"ctx": "nine ten.  one two", "endings": ["four five", "three four", "nine", "one two"], "label": $1}
{"ctx": "three four five six", "endings": ["seven", "nine ten."], "label": $2}

{"ctx": "six seven eight nine", "endings": ["two", "three", "eight nine", "nine", "ten.  one"], "label": $3}
{"ctx": "one two three four five six seven eight", "endings": ["one", "nine ten", "six"], "label": $2}
END
}
questions 1 0 4 | sed '$s/"label": 0/"label": 1/' >"$dir/right.jsonl"
questions 0 1 1 | sed '$s/"label": 1/"label": 2/' >"$dir/wrong.jsonl"
"$tokenize" --out "$dir/text" "$dir/counting" >/dev/null
check "questions become a file" "$tokenize" --choices --out "$dir/right" "$dir/right.jsonl"
"$tokenize" --choices --out "$dir/wrong" - <"$dir/wrong.jsonl" >/dev/null

counting="--train $dir/text_train_000000.bin --steps 300 --lr 1e-2 --batch 16 --seq 32"
run r $counting --val-every 100 --hellaswag "$dir/right_val.bin"
check "a model that learned the text answers all of them" equal "$(value r hellaswag)" 1
check "it did not know before" below "$(sed -n 's/.*"step":0,.*"hellaswag":\([^,]*\).*/\1/p' "$dir/r/run.jsonl")" 1
check "it says so" grep -q '^step 300  HellaSwag 4 of 4 = 1.0000' "$dir/r.txt"
run w $counting --hellaswag "$dir/wrong_val.bin"
check "with wrong labels none is right" equal "$(value w hellaswag)" 0
check "asking changes no weight" cmp "$dir/r/step_00000300/model.safetensors" "$dir/w/step_00000300/model.safetensors"
for batch in 1 3; do
    $limit "$train" --init "$dir/r/step_00000300" --train "$dir/text_train_000000.bin" --seq 32 --steps 1 --batch $batch --sample-every 0 \
        --val '' --out '' --hellaswag "$dir/right_val.bin" >"$dir/b.txt" 2>&1
    check "--batch $batch: the same answers" grep -q '^step 0  HellaSwag 4 of 4' "$dir/b.txt"
done

# --- what cannot be ----------------------------------------------------------------------------------------------
ends "no such file: how to make it" 1 'data/get.sh hellaswag' --hellaswag "$dir/none"
ends "a token file is no question" 1 'is not an evaluation file' --hellaswag "$dir/train.bin"
ends "ids beyond the vocabulary" 1 'not made for a vocabulary of 67' --vocab 67 --hellaswag "$dir/right_val.bin"

# refuses WORDS LINE: no file is made of the line, and the message names it.
refuses() {
    printf '%s\n%s\n' '{"ctx": "a", "endings": ["b", "c"], "label": 0}' "$2" >"$dir/bad.jsonl"
    "$tokenize" --choices --out "$dir/bad" "$dir/bad.jsonl" >"$dir/bad.txt" 2>&1
    code=$?
    if [ $code -eq 1 ] && grep -q -e "bad.jsonl:2: .*$1" "$dir/bad.txt" && [ ! -e "$dir/bad_val.bin" ] && [ ! -e "$dir/bad_val.bin.tmp" ]
    then ok "refused: $1"; else fail "refused: $1: exit code $code"; cat "$dir/bad.txt"; fi
}
refuses 'no text "ctx"' '{"endings": ["b", "c"], "label": 0}'
refuses 'is empty' '{"ctx": "", "endings": ["b", "c"], "label": 0}'
refuses '"endings" of 2 to 16' '{"ctx": "a", "endings": ["b"], "label": 0}'
refuses 'an ending is not a text' '{"ctx": "a", "endings": ["b", 3], "label": 0}'
refuses 'not the number of one' '{"ctx": "a", "endings": ["b", "c"], "label": 2}'
refuses 'not the number of one' '{"ctx": "a", "endings": ["b", "c"]}'
refuses 'name is missing' '{"ctx": "a", '

summary
