#!/bin/sh
# The Makefile on machines that lack things: no OpenMP, no PCRE2, no git, no python, nothing but a compiler and the
# basic commands. Builds a small copy of the tree (a trainer and a test that stand for the real ones), so that what is
# tested is the Makefile and that a changed flag, header or compiler leaves nothing stale; then, with nothing but the
# basic commands, the real programs.

cd "$(dirname "$0")/../.." || exit 1
root=$PWD
dir=$(mktemp -d "${TMPDIR:-/tmp}/train_gpt_make.XXXXXX") || exit 1
trap 'rm -rf "$dir"' EXIT
unset MAKEFLAGS MAKEOVERRIDES MFLAGS MAKELEVEL BUILD_STAMP CC CFLAGS SANITIZE OPENMP PCRE2 TESTS GNUMAKEFLAGS

passed=0 failed=0 skipped=0

# ok NAME CODE PATTERN COMMAND...: the exit code, and a line of the output that matches.
ok() {
    name=$1 code=$2 pattern=$3
    shift 3
    "$@" >"$dir/out" 2>&1
    got=$?
    if { [ "$got" -eq "$code" ] || { [ "$code" = fails ] && [ "$got" -ne 0 ]; }; } && grep -q -e "$pattern" "$dir/out"; then
        passed=$((passed + 1))
        echo "ok    $name"
    else
        failed=$((failed + 1))
        echo "FAIL  $name: exit code $got, expected $code, and a line like: $pattern"
        sed 's/^/    /' "$dir/out" | tail -n 20
    fi
}

# The copy.
mkdir -p "$dir/tree/llmc" "$dir/tree/data" "$dir/tree/dev/test" "$dir/bin"
cp Makefile "$dir/tree"
cp dev/test/run.sh dev/test/test.h dev/test/test_finite.c "$dir/tree/dev/test"
cat >"$dir/tree/train_gpt.c" <<'END'
#include <stdio.h>
#include "llmc/answer.h"
#ifdef _OPENMP
#define OPENMP_TEXT "with OpenMP"
#else
#define OPENMP_TEXT "one thread"
#endif
#ifdef HAVE_PCRE2
#define PCRE2_TEXT "with PCRE2"
#else
#define PCRE2_TEXT "no PCRE2"
#endif
int main(void) {
    int sum = 0;
#pragma omp parallel for reduction(+ : sum)
    for (int i = 0; i < 4; i++) sum += i;
    printf("%s, %s, answer %d\n", OPENMP_TEXT, PCRE2_TEXT, ANSWER + sum - 6);
    return 0;
}
END
echo '#define ANSWER 41' >"$dir/tree/llmc/answer.h"
echo '#include <stdio.h>
int main(void) { puts("tokens"); return 0; }' >"$dir/tree/data/tokenize.c"
cd "$dir/tree" || exit 1

# A machine with nothing but a compiler, make and the basic commands: a folder of links is all of PATH. What the
# compiler itself runs (as, ld) it finds by its own means or here.
for tool in sh make cc gcc as ld ld.bfd cat mkdir ln mv rm sleep basename dirname mktemp date grep sed tail; do
    path=$(command -v "$tool") && [ -x "$path" ] && ln -s "$path" "$dir/bin/$tool"
done
[ -x "$dir/bin/gcc" ] || ln -s "$(command -v clang || command -v cc)" "$dir/bin/gcc"
bare() { env -i PATH="$dir/bin" HOME="$dir" TMPDIR="${TMPDIR:-/tmp}" "$@"; }

# How many programs `make ARGUMENTS` compiles.
compiled() { bare make "$@" | grep -c -e " -o build/" || true; }

# Compilers that lack something, told by their flags and by what is included.
wrapper() {
    printf '#!/bin/sh\nfor flag; do case $flag in %s) echo "wrapper: no $flag" >&2; exit 1 ;; esac; done\nexec gcc "$@"\n' \
        "$2" >"$dir/bin/$1"
    chmod +x "$dir/bin/$1"
}
wrapper no_openmp -fopenmp
wrapper no_pcre2 -lpcre2-8
wrapper no_native '-march=native|-mcpu=native'
wrapper no_sanitizer '-fsanitize=*'
wrapper nothing '*'

ok "plain make" 0 "^cpu-fp32: gcc " bare make
ok "make again compiles nothing" 0 "^0$" compiled
ok "./train_gpt runs" 0 "answer 41" ./train_gpt
ok "data/tokenize runs" 0 "tokens" data/tokenize
echo '#define ANSWER 42' >llmc/answer.h
touch -d '+2 seconds' llmc/answer.h 2>/dev/null || sleep 1.1
ok "a changed header is compiled" 0 " -o build/cpu-fp32/train_gpt " bare make
ok "and used" 0 "answer 42" ./train_gpt
touch llmc/answer.h train_gpt.c  # back to now: the stamp below must do the work, not the clock
bare make >/dev/null 2>&1
ok "changed flags compile" 0 " -o build/cpu-fp32/train_gpt " bare make CFLAGS=-O0
ok "the same flags do not" 0 "^0$" compiled CFLAGS=-O0
ok "back to the old flags compiles again" 0 " -o build/cpu-fp32/train_gpt " bare make

ok "no OpenMP: one line" 0 "^no OpenMP with no_openmp: one thread only" bare make CC=no_openmp
ok "no OpenMP: it runs" 0 "one thread" ./train_gpt
ok "no OpenMP: its tests run" 0 "^[0-9]* passed, 0 failed" bare make CC=no_openmp test
ok "OPENMP=0" 0 "OpenMP no" bare make OPENMP=0
ok "OPENMP=1 and missing stops" 2 "OPENMP=1, but no_openmp cannot.*apt-get install" bare make CC=no_openmp OPENMP=1
ok "no PCRE2: one line" 0 "^no PCRE2: no gpt2 tokenizer" bare make CC=no_pcre2
ok "no PCRE2: it runs" 0 "no PCRE2" ./train_gpt
ok "PCRE2=1 and missing stops" 2 "PCRE2=1, but no_pcre2 cannot.*apt-get install libpcre2-dev" \
    bare make CC=no_pcre2 PCRE2=1
ok "no -march=native" 0 "^cpu-fp32: no_native [0-9.]* -O3 [^=]*\(-mprefer[^ ]*\)*, OpenMP" bare make CC=no_native
ok "no sanitizers stops" 2 "SANITIZE=1, but no_sanitizer cannot" bare make CC=no_sanitizer SANITIZE=1
ok "no working compiler stops" 2 "the compiler CC=nothing cannot build" bare make CC=nothing
ok "no such compiler stops" 2 "the compiler CC=nowhere cannot build" bare make CC=nowhere
ok "an unknown PRECISION" 2 "PRECISION=fp31 is not one of: fp32" bare make PRECISION=fp31
ok "an unknown DEVICE" 2 "DEVICE=tpu is not one of: " bare make DEVICE=tpu
ok "two words for one" 2 "is not one of" bare make "SANITIZE=0 1"
ok "help needs no compiler" 0 "check-headers" bare make help CC=nothing
ok "no plot without python" 0 "no plot: python3 with matplotlib is not here" \
    sh -c "env -i PATH='$dir/bin' make -n run | grep 'no plot'"

# The flags: a fast-math flag slipped into CFLAGS fails the tests (spelled so that no grep for it stops here).
ok "the tests pass with the flags as they are" 0 "^[0-9]* passed, 0 failed" bare make test
ok "a finite-math flag fails them" 2 "^[0-9]* passed, [1-9][0-9]* failed" bare make test "CFLAGS=-O2 -ffinite-math-only"
ok "an unsafe-math flag fails them" 2 "^[0-9]* passed, [1-9][0-9]* failed" \
    bare make test "CFLAGS=-O2 -funsafe-math-optimizations"
ok "a warning is an error" 2 "unused" sh -c "echo 'static int unused_function(void) { return 1; }' >>train_gpt.c
    env -i PATH='$dir/bin' make"

# The real programs and one real test, in a copy without git.
cd "$root" || exit 1
mkdir -p "$dir/toolkit/bin" "$dir/toolkit/include" "$dir/toolkit/lib64"
touch "$dir/toolkit/include/cublasLt.h"
ok "programs find the libraries of a toolkit that lies anywhere" 0 "-rpath=$dir/toolkit/lib64 .*-lcublasLt" make -n DEVICE=cuda \
    PRECISION=bf16 CUDA_HOME="$dir/toolkit" NVCC="$dir/toolkit/bin/nvcc" NCCL=0 MPI=0 build/cuda-bf16/train_gpt
mkdir "$dir/real"
for name in Makefile README.md LICENSE train_gpt.c test_gpt.c llmc data dev scripts doc; do
    [ ! -e "$name" ] || cp -R "$name" "$dir/real"
done
rm -f "$dir"/real/data/*.bin
cd "$dir/real" || exit 1
if [ -f train_gpt.c ] && [ -f data/tokenize.c ]; then
    ok "the real programs build" 0 "^cpu-fp32: gcc " bare make CFLAGS=-O1
    ok "the embedded dataset" 0 "^data: " bare make data CFLAGS=-O1
    cp data/self_train_000000.bin "$dir/first.bin"
    rm -f data/self_*.bin
    ok "the embedded dataset again" 0 "^data: " bare make data CFLAGS=-O1
    rm data/self_val_000000.bin
    ok "the embedded dataset, where only its validation file is missing" 0 "^val: " bare make data CFLAGS=-O1
    ok "the embedded dataset is there: nothing is made" 1 "^0$" sh -c "env -i PATH='$dir/bin' make data CFLAGS=-O1 | grep -c '^val: '"
    ok "the same bytes again" 0 "same" sh -c "cmp '$dir/first.bin' data/self_train_000000.bin && echo same"
    ok "the real program says its version" 0 "^train_gpt .*cpu-fp32" ./train_gpt --version
else
    skipped=1
    echo "skip  the real programs: not all there"
fi

echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
