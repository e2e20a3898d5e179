#!/bin/sh
# Compiles every llmc/*.h as C11 (gnu11, as the program is built) and as C++17 with each compiler that is here: alone (so it includes what it needs),
# twice in one file (so it has a guard), and in two files linked together (so it defines nothing that clashes).
# Then all of them in one file, in two linked files: no two headers may claim one name. Warnings are errors.
# The loop's headers, which a trainer includes after its Model, come after dev/test/model_stub.h here.
# Ends with "N passed, N failed"; exit code 1 if anything failed. HEADERS="a b" checks only llmc/a.h and llmc/b.h.

cd "$(dirname "$0")/../.." || exit 1
dir=$(mktemp -d "${TMPDIR:-/tmp}/train_gpt_headers.XXXXXX") || exit 1
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM

passed=0 failed=0
flags="-I. -DPRECISION_fp32 -ffp-contract=off -fno-math-errno -fno-trapping-math -Wall -Wextra -Werror"

# check NAME COMMAND...: one line and one count.
check() {
    name=$1
    shift
    if "$@" >"$dir/log" 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAIL  $name"
        sed 's/^/    /' "$dir/log" | sed -n '1,30p'
    fi
}

# build COMPILER STANDARD EXTENSION FLAGS: a.EXT and b.EXT of $dir to objects, then to one program.
build() {
    "$1" "-std=$2" $flags $4 -c "$dir/a.$3" -o "$dir/a.o" &&
        "$1" "-std=$2" $flags $4 -c "$dir/b.$3" -o "$dir/b.o" &&
        "$1" $4 "$dir/a.o" "$dir/b.o" -o "$dir/program" $libs -lm
}

# Headers that name the trainer's Model: the type and its functions must be declared before them.
prelude() {
    for header in "$@"; do
        case $header in llmc/trainer*.h | llmc/evaluate.h)
            echo '#include "dev/test/model_stub.h"'
            return ;;
        esac
    done
}

# write EXTENSION HEADER...: a includes each header twice and has main, b includes them once.
write() {
    extension=$1
    shift
    {
        prelude "$@"
        for header in "$@"; do printf '#include "%s"\n#include "%s"\n' "$header" "$header"; done
        echo 'int main(void) { return 0; }'
    } >"$dir/a.$extension"
    {
        prelude "$@"
        for header in "$@"; do printf '#include "%s"\n' "$header"; done
    } >"$dir/b.$extension"
}

if [ -n "$HEADERS" ]; then
    set --
    for name in $HEADERS; do set -- "$@" "llmc/$name.h"; done
else
    set -- llmc/*.h
fi

found=
for row in gcc:gnu11:c g++:c++17:cpp clang:gnu11:c clang++:c++17:cpp; do
    compiler=${row%%:*} rest=${row#*:}
    standard=${rest%:*} extension=${rest#*:}
    command -v "$compiler" >/dev/null 2>&1 || continue
    found="$found $compiler"
    # With what the compiler has: OpenMP and PCRE2 where it can build with them.
    echo 'int main(void) { return 0; }' >"$dir/probe.$extension"
    openmp=-Wno-unknown-pragmas libs=
    "$compiler" -fopenmp "$dir/probe.$extension" -o "$dir/program" 2>/dev/null && openmp=-fopenmp
    pcre2=
    "$compiler" "$dir/probe.$extension" -o "$dir/program" -lpcre2-8 2>/dev/null && pcre2=-DHAVE_PCRE2 libs=-lpcre2-8
    for header in "$@"; do
        write "$extension" "$header"
        check "$header ($compiler, $standard)" build "$compiler" "$standard" "$extension" "$openmp $pcre2"
    done
    write "$extension" "$@"
    check "all headers in one file ($compiler, $standard)" build "$compiler" "$standard" "$extension" "$openmp $pcre2"
    libs=
    check "all headers without OpenMP and PCRE2 ($compiler, $standard)" \
        build "$compiler" "$standard" "$extension" -Wno-unknown-pragmas
done

if [ -z "$found" ]; then
    echo "none of gcc, g++, clang and clang++ is here"
    failed=1
else
    echo "headers: $# with$found"
fi
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
