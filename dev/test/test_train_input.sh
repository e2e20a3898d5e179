#!/bin/sh
# What the trainer is given: options, token files, weights to start from, named models. Each mistake has its own
# sentence and exit code (2: the command line, 1: everything else), and nothing is begun.
#
#   BUILD=build/cpu-fp32 sh dev/test/test_train_input.sh

cd "$(dirname "$0")/../.." || exit 1
. dev/test/train_lib.sh

# --- options -----------------------------------------------------------------------------------------------------
ends "an unknown option" 2 'there is no option --stps.*' --stps 3
check "an unknown option: the nearest is suggested" grep -q 'try: --steps' "$dir/e.txt"
ends "a number that is none" 2 "--batch '4x' is not a whole number" --batch 4x
ends "a negative temperature" 2 '--temperature -1 is not between' --temperature -1
ends "a temperature that is no number" 2 "--temperature 'nan' is not a number" --temperature nan
ends "a schedule that is none" 2 'try: cosine' --schedule cosin
ends "heads that do not divide the channels" 2 '--heads 3 does not divide --channels 32' --heads 3
ends "a sequence longer than the model" 2 '--seq 16 is longer than the 8 positions' --max-seq 8
ends "a step that is no whole number of micro-batches" 2 '--total-batch 100 is not a multiple' --total-batch 100
ends "a model nobody knows" 2 'try: --model gpt2' --model gpt22
ends "a sample longer than the model" 2 '--sample-length 20 after a prompt of 1 tokens is longer' --sample-every 1 --sample-length 20
ends "a prompt without a tokenizer" 2 '--prompt needs a tokenizer' --sample-every 1 --prompt hello
ends "llm.c's options" 0 '^done after 2 steps' -b 2 -t 8 -x 2 -l 1e-3 -u 1 -c 0 -v 0 -s 0 -z 0 -h 0 -n 1
ends "llm.c's option this program lacks" 2 'overriding TF32' -f 1
ends "a file after a pattern's first" 2 "try: quotes around a pattern, as --train" --train "$dir/train.bin" "$dir/val.bin"
ends "a file after a pattern's first, with llm.c's name" 2 "try: quotes around a pattern, as --val" -j "$dir/train.bin" "$dir/val.bin"
ends "a word where an option should be" 2 "'fast' is not an option: those begin with dashes" --steps 3 fast
check "a word where an option should be: nothing about patterns" eval '! grep -q pattern "$dir/e.txt"'
ends "an option without its dashes" 2 "try: --steps" steps 3
ends "more threads than make sense" 2 '--threads 4096: this machine has [0-9]* processors?, more than [0-9]* threads' --threads 4096
check "nothing is begun where the options are wrong" eval '[ ! -e "$dir/e" ]'

# --- token files -------------------------------------------------------------------------------------------------
data() { printf '%s' "$dir/$1.bin"; }
"$tool" tokens "$(data 16)" 16 67 && "$tool" tokens "$(data 17)" 17 67
ends "16 tokens for B 2, T 8" 1 "16 tokens are too few, one batch needs 17 " --train "$(data 16)" --batch 2 --seq 8
check "16 tokens: the largest that would fit is named" grep -q 'try: --batch 1 or --seq 7' "$dir/e.txt"
ends "17 tokens for B 2, T 8 train, and are read again and again" 0 '^done after 60 steps' --train "$(data 17)" --batch 2 --seq 8 --steps 60 --lr 1e-2
check "17 tokens are learned by heart" below "$(value e loss)" 1.5
"$tool" tokens "$(data bad)" 1201 67 1 0 500
ends "an id beyond the vocabulary: file, position, id, vocabulary" 1 "bad.bin': token 500 .* is id 67, the vocabulary has ids 0 to 66" --train "$(data bad)" --steps 100
"$tool" tokens "$(data unsaid)" 1201 66 && printf '\0\0\0\0' | dd of="$(data unsaid)" bs=1 seek=12 conv=notrunc 2>/dev/null
ends "an id beyond the vocabulary of --vocab" 1 "unsaid.bin': token [0-9]* .* is id 65, the vocabulary has ids 0 to 64" --train "$(data unsaid)" --vocab 65 --steps 100
ends "a larger vocabulary than the model's, as the file says itself" 1 "train.bin': the file was made with a vocabulary of 67, the model knows 65 ids" --vocab 65
ends "2-byte ids for a vocabulary above 65536" 1 '2-byte ids.*vocabulary is 70000' --vocab 70000
printf 'Once upon a time there was a text.\n' >"$(data text)"
: >"$(data empty)"
head -c 1024 "$dir/train.bin" >"$(data header)"
head -c 600 "$dir/train.bin" >"$(data half)"
{ cat "$dir/train.bin"; printf ab; } >"$(data more)"
head -c $((1024 + 2400)) "$dir/train.bin" >"$(data less)"
{ head -c 4 "$dir/train.bin"; printf '\002\000\000\000'; tail -c +9 "$dir/train.bin"; } >"$(data version)"
{ printf '\326\330\064\001'; tail -c +5 "$dir/train.bin"; } >"$(data model)"
cp "$dir/train.bin" "$(data closed)" && chmod 0 "$(data closed)"
mkdir "$(data folder)"
: >"$dir/sentences"
# wrong FILE WORDS: refused, in words that no other kind of damage gets.
wrong() {
    ends "data: $1" 1 "$2" --train "$(data "$1")"
    sed -n "s/^error: --train '[^']*': //p" "$dir/e.txt" | tr -d 0-9 >>"$dir/sentences"
}
wrong text 'this is a text file \(plain text that begins "Once upon'
wrong empty 'the file is empty \(0 bytes\)'
wrong header 'there is only a header and not one token \(the header counts 1201\)'
wrong half 'the header itself is cut short, 600 of its 1024 bytes'
wrong more 'the header counts 1201 tokens, the file holds 1202 \(2 bytes too many\)'
wrong less 'the header counts 1201 tokens, the file holds 1200 \(2 bytes missing\)'
wrong version 'token file version 2, this program reads version 1'
wrong model 'bad magic number'
wrong folder 'this is a folder, not a token file'
wrong missing 'no such file'
if [ "$(id -u)" -ne 0 ]; then wrong closed 'no permission to read'
elif command -v setpriv >/dev/null 2>&1 && chmod 755 "$dir" && setpriv --reuid 65534 --regid 65534 --clear-groups test -x "$train" 2>/dev/null; then
    setpriv --reuid 65534 --regid 65534 --clear-groups "$train" --train "$(data closed)" --val '' --out '' >"$dir/e.txt" 2>&1
    judge "data: closed" $? 1 'no permission to read' e
else skip "data without permission: this is root, and setpriv is not here"; fi
check "each kind of damage has a sentence of its own" equal "$(sort "$dir/sentences" | uniq -d)" ""
check "each kind of damage: none was missed" equal "$(wc -l <"$dir/sentences" | tr -d ' ')" 10
ends "a pattern that matches nothing says where it looked" 1 "looked from the folder '$PWD'" --train 'nothing_*.bin'

# Two tiny shards, three times over: 2 x 9 sequences of 4, 3 batches of 6 an epoch.
"$tool" tokens "$dir/shard_0.bin" 37 67 1 && "$tool" tokens "$dir/shard_1.bin" 37 67 2
mkdir "$dir/cwd"
(cd "$dir/cwd" && ends "two tiny shards, three epochs, from another folder" 0 '^done after 9 steps' \
    --train "$dir/shard_*.bin" --seq 4 --batch 6 --epochs 3; exit $failed) && passed=$((passed + 1)) || failed=$((failed + 1))
check "two shards: the plan" eval 'grep -q "^data: 2 shards, 74 tokens to train on" "$dir/e.txt" && grep -q "9 steps of 1 x 6 x 4 = 24 tokens need 216: 3.00 epochs" "$dir/e.txt"'
check "two shards: each new epoch is announced" equal "$(grep -c 'epoch [23] begins' "$dir/e.txt")" 2

"$tool" tokens "$dir/val16.bin" 16 67
ends "a validation set too small for one sequence" 1 'the validation set is too small' --val "$dir/val16.bin"
"$tool" tokens "$dir/kind7.bin" 700 67 2 7 && "$tool" tokens "$dir/kind8.bin" 1201 67 1 8
ends "training and validation of two tokenizers" 1 "--val .*kind7.* another tokenizer than --train" --train "$dir/kind8.bin" --val "$dir/kind7.bin"
ends "files of two tokenizers" 1 "kind8.bin.*made with another tokenizer" --train "$dir/kind[78].bin"
ends "a tokenizer that the data was not made with is warned of" 0 "^warning: --tokenizer 'byte' is not the one" --train "$dir/kind8.bin" --tokenizer byte --steps 1
# begins_with NAME COMMAND WORDS: a folder in which COMMAND was done first; the run ends before it writes or waits.
begins_with() {
    rm -rf "$dir/e" && mkdir "$dir/e" && (cd "$dir/e" && eval "$2")
    run e --steps 2
    judge "$1" $? 2 "$3" e
    check "$1: nothing is begun" eval '[ "$(ls "$dir/e" | wc -l)" -eq 1 ] && [ ! -s "$dir/e/run.jsonl" ] || [ -d "$dir/e/run.jsonl" ]'
}
begins_with "a pipe of the log's name" 'mkfifo run.jsonl' "e/run.jsonl' is a pipe, where the run writes"
begins_with "a folder of the log's name" 'mkdir run.jsonl' "e/run.jsonl' is a folder, where the run writes"
begins_with "a pipe of the numerics' name" 'mkfifo numerics.jsonl' "e/numerics.jsonl' is a pipe"
begins_with "a folder of the options' name" 'mkdir options.json' "e/options.json' is a folder"
begins_with "a folder where the link to the best goes" 'mkdir best' "e/best' is a folder, where the run makes a link"
begins_with "a file where the link to the best goes" ': >best' "e/best' is a file, where the run makes a link"
ends "a folder that cannot be made" 1 "cannot make the folder|Not a directory" --steps 2 --out "$dir/train.bin/x"

# Without a standard stream the first file opened would take its place, and get what is printed.
for closed in '>&-' '>&- 2>&-' '<&- >&- 2>&-'; do
    rm -rf "$dir/e"
    eval "\"\$train\" $tiny --val '' --steps 3 --out '$dir/e' $closed"
    code="$? $(grep -c '^{.*}$' "$dir/e/run.jsonl") $(wc -l <"$dir/e/run.jsonl" | tr -d ' ')"
    check "with $closed nothing that is printed lands in the log" equal "$code" "0 4 4"
done
if [ -c /dev/full ]; then
    "$train" $tiny --val '' --dry-run >/dev/full 2>"$dir/e.txt"
    judge "a plan that cannot be written" $? 1 'cannot write the plan' e
else skip "a plan that cannot be written: no /dev/full"; fi

# --- weights to start from ---------------------------------------------------------------------------------------
shape="--layers 2 --heads 2 --channels 32"
run s --steps 8
from=$dir/s/step_00000008
for kind in bin3 bin5 hf hf-bf16 nan; do
    case $kind in bin*) to=$dir/$kind.bin ;; *) to=$dir/$kind ;; esac
    "$tool" convert $kind "$from" "$to" || fail "cannot make the weights: $kind"
done
# starts NAME FOLDER WEIGHTS: a run from them, without the options of the shape.
starts() {
    rm -rf "${dir:?}/$2"
    "$train" --train "$dir/train.bin" --val '' --seq 16 --batch 4 --threads 2 --sample-every 0 --steps 5 --out "$dir/$2" --init "$3" >"$dir/$2.txt" 2>&1
    judge "$1" $? 0 '^done after 5 steps' "$2"
}
starts "--init: a checkpoint" i1 "$from"
starts "--init: llm.c's version 3" i3 "$dir/bin3.bin"
starts "--init: a Hugging Face folder" i4 "$dir/hf"
starts "--init: model.safetensors by itself" i5 "$from/model.safetensors"
starts "--init: llm.c's version 5" i6 "$dir/bin5.bin"
starts "--init: a Hugging Face folder in bf16" i7 "$dir/hf-bf16"
for other in i3 i4 i5; do check "--init: $other trains as from the checkpoint" "$tool" same-log "$dir/i1/run.jsonl" "$dir/$other/run.jsonl"; done
check "--init: both bf16 files train alike" "$tool" same-log "$dir/i6/run.jsonl" "$dir/i7/run.jsonl"
check "--init: the same weights after training" cmp "$dir/i1/step_00000005/model.safetensors" "$dir/i3/step_00000005/model.safetensors"
check "--init: begins where the other run ended" below "$(losses i1 | head -n 1)" "$(losses s | head -n 1)"
check "--init: counts its own steps" equal "$(steps_in i1)" 5
# of a checkpoint's folder, with nothing of a shape among the options
begin="--train $dir/train.bin --val= --seq 16 --batch 4 --sample-every 0 --steps 5"
bad_init() {
    name=$1 code=$2 words=$3
    shift 3
    rm -rf "$dir/e"
    "$train" $begin --out "$dir/e" "$@" >"$dir/e.txt" 2>&1
    judge "$name" $? "$code" "$words" e
    [ ! -e "$dir/e/run.jsonl" ] || fail "$name: a log was begun"
}
bad_init "--init with NaN" 1 'ln_f.bias holds NaN or infinity' --init "$dir/nan"
bad_init "--init and another shape" 2 '--layers cannot be given together with --init' --init "$dir/hf" --layers 3
"$train" --train "$dir/train.bin" --val= --batch 4 --sample-every 0 --steps 5 --threads 2 --out "$dir/i8" --init "$dir/hf" >"$dir/i8.txt" 2>&1
judge "--init: without --seq sequences are as long as the model" $? 0 "^--seq 16, as many positions as the model of --init has" i8
check "--init: without --seq it trains as with it" "$tool" same-log "$dir/i4/run.jsonl" "$dir/i8/run.jsonl"
bad_init "--init without --seq, and a step that is no whole number of micro-batches" 2 '--total-batch 72 is not a multiple of --batch 4 x --seq 16' --init "$dir/hf" --seq 16 --total-batch 72
bad_init "--init and a longer sequence than it has positions" 2 "--seq 32 is longer than the model's 16 positions" --init "$dir/hf" --seq 32
head -c 5000 "$dir/bin3.bin" >"$dir/cut.bin"
bad_init "--init: a .bin cut short" 1 'has 5000 bytes, its header .* means' --init "$dir/cut.bin"
bad_init "--init: a token file" 1 'this looks like a token file' --init "$dir/train.bin"
bad_init "--init: a folder of checkpoints" 1 "try: one of the checkpoints in it, e.g. '$dir/s/step_00000008'" --init "$dir/s"
bad_init "--init: nothing there" 1 "nowhere" --init "$dir/nowhere"
"$tool" tokens "$dir/v70.bin" 1201 70 1
bad_init "--init and data of a larger vocabulary" 1 'v70.bin.*a vocabulary of 70, the model knows 67 ids' --init "$dir/hf" --train "$dir/v70.bin"
rm -rf "$dir/r" && run r --steps 8
run r --steps 9 --resume --heads 4
judge "--resume with another number of heads, which no tensor's size shows" $? 1 'has 2 heads, the options ask for 4' r
run r --steps 9 --resume --layers 3
judge "--resume with another shape" $? 1 'tensor .*h.2.* is missing' r
check "--resume with another shape: the difference is listed first" grep -q -e '--layers 2 -> 3 (changes what is trained)' "$dir/r.txt"

run one --steps 1 --layers 1 --heads 1 --channels 8 --seq 1 --batch 1
check "one of a kind is not said in the plural" eval '! grep -E "(^|[^0-9.])1 (layers|heads|positions|steps|shards)" "$dir/one.txt" &&
    grep -q "^model: 1 layer, 8 channels, 1 head, 1 position," "$dir/one.txt" && grep -q "^done after 1 step," "$dir/one.txt"'

# --- plans -------------------------------------------------------------------------------------------------------
"$tool" tokens "$dir/gpt2.bin" 70000 50257
began=$(date +%s)
sanitized=
nm -D "$train" 2>/dev/null | grep -q __asan && sanitized=yes
for model in gpt2 gpt2-medium gpt2-large gpt2-xl d6 d12 d24 d36 d48 gpt3:125M gpt3:350M gpt3:760M gpt3:1.3B gpt3:2.7B gpt3:6.7B gpt3:13B gpt3:175B; do
    # In 300 MB of address space: a plan allocates nothing of what it plans.
    ([ "$sanitized" ] || ulimit -v 300000
        "$train" --model $model --train "$dir/gpt2.bin" --val '' --batch 64 --seq 1024 --vocab 50304 --threads 2 --dry-run --out "$dir/plan") >"$dir/plan.txt" 2>&1
    judge "--dry-run --model $model" $? 0 '^model: .* parameters$' plan
    case $model in
        gpt2) grep -q ': 124.48M parameters' "$dir/plan.txt" ;;
        gpt2-xl) grep -q ': 1.56B parameters' "$dir/plan.txt" ;;
        gpt3:175B) grep -q ': 174.60B parameters' "$dir/plan.txt" && grep -q 'activations *[0-9.]* TiB' "$dir/plan.txt" ;;
    esac || fail "--dry-run --model $model: other numbers in $(cat "$dir/plan.txt")"
done
check "17 plans take no time" below $(($(date +%s) - began)) 20
check "a plan leaves nothing behind" eval '[ ! -e "$dir/plan" ]'
check "a plan names every arena" equal "$(sed -n 's/^  \([a-zA-Z ]*[a-zA-Z]\)  *[0-9.]* [KMGT]*i*B.*/\1/p' "$dir/plan.txt" | grep -v machine | tr '\n' ,)" "weights,gradients,AdamW moments,activations,workspace,total,"
"$train" --model gpt2 --train "$dir/gpt2.bin" --val '' --batch 64 --seq 1024 --vocab 50304 --dry-run >"$dir/plan.txt" 2>&1
check "a plan counts in 64 bits: the logits of B 64, T 1024" grep -q '3296722944 logits' "$dir/plan.txt"
ends "sizes beyond 64 bits are refused in words" 1 'do not fit in 64 bits' --dry-run --batch 1073741824 --seq 1073741824 --layers 100000
"$train" --model gpt3:175B --train "$dir/gpt2.bin" --val '' --batch 64 --seq 1024 --out "$dir/e" >"$dir/plan.txt" 2>&1
judge "a run that no memory holds ends before it takes any" $? 1 'the run needs [0-9.]* TiB of memory, this machine has' plan
check "a run that no memory holds: what to do" grep -q '^  try: a smaller model or a shorter --seq (even --batch 1 is too much)$' "$dir/plan.txt"
"$train" --model d6 --train "$dir/gpt2.bin" --val '' --batch 1000000 --seq 64 --dry-run >"$dir/plan.txt" 2>&1
judge "too much memory: the largest batch that fits is named; too little data, too" $? 1 'try --batch [0-9]*, the largest that fits' plan
fits=$(sed -n 's/.*try --batch \([0-9]*\),.*/\1/p' "$dir/plan.txt")
for batch in $fits $((fits + 1)); do
    "$train" --model d6 --train "$dir/gpt2.bin" --val '' --batch $batch --seq 64 --dry-run 2>&1 | grep -c 'this machine has'
done >"$dir/fits"
check "the batch that is named fits, one more does not" equal "$(tr '\n' ' ' <"$dir/fits")" "0 1 "

summary
