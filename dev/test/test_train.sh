#!/bin/sh
# The trainer as a program: what must not change its numbers (interruption, threads, recomputation, sampling,
# validation, another --batch), and what its log, its samples and its output are.
#
#   BUILD=build/cpu-fp32 sh dev/test/test_train.sh

cd "$(dirname "$0")/../.." || exit 1
. dev/test/train_lib.sh

"$train" --version | sed 's/.*(\(.*\))/\1/' >"$dir/build"

# --- the same numbers --------------------------------------------------------------------------------------------
# An epoch of train.bin is 75 sequences; 8 a step, so that 14 steps end in the second epoch, and the cut at step 9 lies
# just before its border. A step is two micro-batches.
whole="--total-batch 128 --steps 14 --val $dir/val.bin --val-every 3 --val-steps 1 --checkpoint-every 9 --keep 0"
run a $whole
check "a run of 14 steps" grep -q 'done after 14 steps' "$dir/a.txt"
check "a run says where a new epoch begins" grep -q '^step 10  epoch 2 begins' "$dir/a.txt"
check "a run says how many epochs it will read" grep -q '14 steps of 2 x 4 x 16 = 128 tokens need 1.8k: 1.49 epochs' "$dir/a.txt"
run b $whole
check "the same seed gives the same bytes" same_end a b step_00000014
rm -rf "$dir/b" && run b $whole --seed 43
check "another seed gives another run" eval '! "$tool" same-log "$dir/a/run.jsonl" "$dir/b/run.jsonl" loss'

cut_at_9() {
    mkdir "$dir/$1" && cp -r "$dir/a/step_00000009" "$dir/$1/" && head -n 12 "$dir/a/run.jsonl" >"$dir/$1/run.jsonl" &&
        printf '{"step":12,"tokens":15' >>"$dir/$1/run.jsonl"
}
cut_at_9 c && run c $whole --resume
check "9 steps, then 5 in a resumed run, equal 14" same_end a c step_00000014
check "a resumed run says from where" grep -q "resumed from $dir/c/step_00000009: step 9, 1152 tokens" "$dir/c.txt"
check "nothing differs, nothing is listed" eval '! grep -q -e "->" "$dir/c.txt"'
run c $whole --resume
check "a finished run has nothing to resume" same_end a c step_00000014
for threads in 1 3; do
    rm -rf "$dir/c" && cut_at_9 c && run c $whole --resume --threads $threads
    check "resumed with $threads threads it is the same" same_end a c step_00000014
done
for level in 1 2; do
    rm -rf "$dir/r" && run r $whole --recompute $level
    check "--recompute $level: the same log" "$tool" same-log "$dir/a/run.jsonl" "$dir/r/run.jsonl"
    check "--recompute $level: the same weights" cmp "$dir/a/step_00000014/model.safetensors" "$dir/r/step_00000014/model.safetensors"
    rm -rf "$dir/c" && cut_at_9 c && run c $whole --resume --recompute $level
    check "--recompute $level from step 9 on: the same weights" cmp "$dir/a/step_00000014/model.safetensors" "$dir/c/step_00000014/model.safetensors"
    check "--recompute $level from step 9 on: it says so" grep -q -e '--recompute 0 -> [12]$' "$dir/c.txt"
done
rm -rf "$dir/c" && cut_at_9 c && run c $whole --resume --lr 2e-3 --seed 7
check "changed options are listed, with what they do" eval 'grep -q -e "--lr 0.001 -> 0.002 (changes what is trained)" "$dir/c.txt" &&
    grep -q -e "--seed 42 -> 7 (changes what is trained)" "$dir/c.txt" && ! grep -q -e "--out.*->" "$dir/c.txt"'

run t1 --steps 50 --threads 1
for threads in 2 3; do
    rm -rf "$dir/t" && run t --steps 50 --threads $threads
    check "50 losses, weights and state are the same with $threads threads as with 1" same_end t1 t step_00000050
done

# --- what is done besides training -----------------------------------------------------------------------------
run v --steps 12 --val "$dir/val.bin" --val-every 2 --val-steps 0 --sample-every 3 --sample-length 9
run w --steps 12
check "losses are the same with samples and validation" "$tool" same-log "$dir/v/run.jsonl" "$dir/w/run.jsonl" loss grad_norm lr
check "weights are the same with samples and validation" cmp "$dir/v/step_00000012/model.safetensors" "$dir/w/step_00000012/model.safetensors"
for moment in m. v.; do
    check "moments $moment are the same with samples and validation" "$tool" same-tensors "$dir/v/step_00000012/train_state.safetensors" \
        "$dir/w/step_00000012/train_state.safetensors" $moment
done
check "a sample is drawn every 3 steps" equal "$(grep -c '^step .*  sample:' "$dir/v.txt")" 4
run x --steps 1 --lr 0 --val "$dir/val.bin" --val-every 1 --val-steps 0
for batch in 1 3 7; do
    run y --steps 1 --lr 0 --val "$dir/val.bin" --val-every 1 --val-steps 0 --batch $batch --out ''
    check "the validation loss is the same with --batch $batch" equal "$(grep validation.loss "$dir/y.txt")" "$(grep validation.loss "$dir/x.txt")"
    rm -rf "$dir/y" && run y --steps 1 --lr 0 --val "$dir/val.bin" --val-every 1 --val-steps 0 --batch $batch
    check "the validation loss has the same bits with --batch $batch" equal "$(value y val_loss)" "$(value x val_loss)"
done

# Two micro-batches of 4 are one batch of 8, to rounding.
run p --steps 6 --batch 8 && run q --steps 6 --batch 4 --total-batch 128
for step in 1 6; do
    check "batch 8 and 2 x 4: loss of step $step to 1e-6" awk -v a="$(losses p | sed -n ${step}p)" -v b="$(losses q | sed -n ${step}p)" \
        'BEGIN { d = (a - b) / a; exit !(d < 1e-6 && d > -1e-6) }'
done

run o --steps 150 --overfit --lr 1e-2 --batch 2 --grad-clip 0
check "one batch over and over is learned by heart" below "$(value o loss)" 0.05
run o2 --steps 150 --lr 1e-2
check "the data's rule is learned: far below the loss of guessing" below "$(value o2 loss)" 2.2

# --- samples -----------------------------------------------------------------------------------------------------
sample_lines() { grep -E -e '  sample:$' -e '^[0-9]' "$dir/$1.txt"; }
for how in "--temperature 0" "--top-k 1" "--top-p 1e-9"; do
    run g --steps 3 --sample-every 3 --sample-length 12 --out '' $how
    sample_lines g >"$dir/greedy.$(echo $how | tr -d ' ')"
done
run g --steps 3 --sample-every 3 --sample-length 12 --out '' --temperature 0 --sample-seed 99
sample_lines g >"$dir/greedy.again"
check "greedy: 12 ids" equal "$(wc -w <"$dir/greedy.again" | tr -d ' ')" 16
check "greedy samples need no luck: seed" cmp "$dir/greedy.--temperature0" "$dir/greedy.again"
check "--top-k 1 is greedy" cmp "$dir/greedy.--temperature0" "$dir/greedy.--top-k1"
check "--top-p 1e-9 is greedy" cmp "$dir/greedy.--temperature0" "$dir/greedy.--top-p1e-9"
run g1 --steps 3 --sample-every 1 --sample-length 15 --out '' --temperature 1e6
run g2 --steps 3 --sample-every 1 --sample-length 15 --out '' --temperature 1e6
run g3 --steps 3 --sample-every 1 --sample-length 15 --out '' --temperature 1e6 --sample-seed 5
check "samples of one seed repeat" equal "$(sample_lines g1)" "$(sample_lines g2)"
check "samples of two seeds differ" eval '[ "$(sample_lines g1)" != "$(sample_lines g3)" ]'
check "even at a temperature of a million no id is of the padding" eval \
    'sed -n "/  sample:/{n;p;}" "$dir"/g[13].txt | awk "{ for (i = 1; i <= NF; i++) { n++; bad += \$i >= 67 } } END { exit bad || n < 90 }"'

# --- bytes in, text out ------------------------------------------------------------------------------------------
"$BUILD/tokenize" --tokenizer byte --val-fraction 0.1 --out "$dir/text" README.md llmc/trainer.h >/dev/null 2>&1
text="--train $dir/text_train_*.bin --val $dir/text_val_*.bin --val-steps 1"
run h $text --steps 3 --sample-every 3 --sample-length 5 --prompt 'static int' --temperature 0 --max-seq 32
check "--prompt begins the sample" eval 'sed -n "/  sample:/{n;p;}" "$dir/h.txt" | grep -aq "^static int"'
mkdir "$dir/elsewhere"
(cd "$dir/elsewhere" && run h $text --steps 3 --sample-every 3 --sample-length 5 --tokenizer nowhere/vocab.bpe --out '')
check "a tokenizer that is not there: one line, and ids instead of text" eval 'grep -q "^warning: --tokenizer .nowhere/vocab.bpe.: No such file" "$dir/h.txt" &&
    sed -n "/  sample:/{n;p;}" "$dir/h.txt" | grep -Eq "^[0-9]+ [0-9 ]*$" && grep -q "^done" "$dir/h.txt"'

# --- log and output ----------------------------------------------------------------------------------------------
check "options.json is JSON" "$tool" json "$dir/a/options.json"
check "config.json is JSON" "$tool" json "$dir/a/step_00000014/config.json"
check "manifest.json is JSON" "$tool" json "$dir/a/step_00000014/manifest.json"
check "each line of run.jsonl is JSON" eval 'while read -r line; do printf %s "$line" >"$dir/line"; "$tool" json "$dir/line" || exit 1; done <"$dir/a/run.jsonl"'
check "redirected output has plain lines only" eval '! grep -q "$(printf "[\033\r]")" "$dir/a.txt" && [ "$(grep -c "^step *[0-9]*/14 loss" "$dir/a.txt")" -eq 14 ]'
run l --steps 1000 --layers 1 --seq 2 --batch 1 --channels 2 --out ''
check "1000 steps print about 100 lines" eval 'n=$(grep -c "^step *[0-9]*/1000 loss" "$dir/l.txt"); [ $n -ge 100 ] && [ $n -le 102 ]'
if script -qec true /dev/null >/dev/null 2>&1; then
    for columns in 60 100; do
        script -qec "stty cols $columns; $train --train $dir/train.bin --val '' --layers 1 --heads 1 --channels 8 --seq 4 --steps 40 --sample-every 0 --out ''" \
            /dev/null >"$dir/tty" 2>&1 </dev/null
        check "a terminal of $columns columns: one live line" eval 'tr "\r" "\n" <"$dir/tty" | grep -a "^.\[Kstep" >"$dir/live";
            [ "$(wc -l <"$dir/live")" -eq 40 ] && [ "$(grep -ac "^step.*/40" "$dir/tty")" -le 2 ] && ! grep -aq "^...$(printf "%$columns""s" | tr " " .)" "$dir/live"'
    done
    check "a terminal has a progress bar" grep -aq 'step 20/40 \[==*>  *\] loss' "$dir/tty"
else
    skip "the live line on a terminal: no command script (util-linux)"
fi

# No step allocates: ten steps more make no more calls of malloc and its kin. Counted in front of the C library.
cat >"$dir/count.c" <<'END'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
static unsigned long calls;
void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
void *malloc(size_t n) { __atomic_add_fetch(&calls, 1, 0); return __libc_malloc(n); }
void *calloc(size_t n, size_t s) { __atomic_add_fetch(&calls, 1, 0); return __libc_calloc(n, s); }
void *realloc(void *p, size_t n) { __atomic_add_fetch(&calls, 1, 0); return __libc_realloc(p, n); }
__attribute__((destructor)) static void tell(void) { fprintf(stderr, "%lu allocations\n", calls); }
END
if nm -D "$train" 2>/dev/null | grep -q __asan; then skip "no step allocates: the sanitizer has its own allocator"
elif ! gcc -shared -fPIC -O1 -o "$dir/count.so" "$dir/count.c" 2>/dev/null || ! LD_PRELOAD="$dir/count.so" true 2>/dev/null; then
    skip "no step allocates: malloc cannot be counted here"
else
    export LD_PRELOAD="$dir/count.so"
    counted="--total-batch 128 --val $dir/val.bin --val-every 1 --val-steps 1 --sample-every 1 --sample-length 5 --keep 0"
    "$train" --train "$dir/train.bin" $counted --steps 20 --layers 1 --heads 2 --channels 32 --seq 16 --batch 4 --out '' >"$dir/n1.txt" 2>&1
    "$train" --train "$dir/train.bin" $counted --steps 50 --layers 1 --heads 2 --channels 32 --seq 16 --batch 4 --out '' >"$dir/n2.txt" 2>&1
    unset LD_PRELOAD
    check "no step, validation or sample allocates" equal "$(grep allocations "$dir/n2.txt")" "$(grep allocations "$dir/n1.txt")"
fi

# Memory: 16 bytes a parameter (weight, gradient, two moments) and the activations the plan prints. Here in a model of
# 14 million; bench_step measures d12.
if nm -D "$train" 2>/dev/null | grep -q __asan; then skip "memory: the sanitizer has its own"
elif ! grep -q '^cpu-fp32$' "$dir/build"; then skip "memory: 16 bytes a parameter are fp32's, this is $(cat "$dir/build")"
else
    "$tool" tokens "$dir/gpt2.bin" 3000 50257
    "$tool" peak "$train" --train "$dir/gpt2.bin" --val '' --layers 2 --heads 4 --channels 256 --seq 64 --batch 4 --steps 2 \
        --threads 2 --sample-every 0 --out '' >"$dir/m.txt" 2>&1
    planned=$(awk '$1 == "weights" { w = $2 } $1 == "activations" { print 1024 * (4 * w + $2) }' "$dir/m.txt")
    check "memory: $(tail -n 1 "$dir/m.txt") KiB, planned $planned" below "$(tail -n 1 "$dir/m.txt")" "$planned * 1.05"
    check "memory: the plan is not too large either" below "$planned" "$(tail -n 1 "$dir/m.txt") * 1.05"
fi

summary
