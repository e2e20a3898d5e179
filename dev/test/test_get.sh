#!/bin/sh
# data/get.sh with local files in place of downloads: what it accepts, what it makes, what it refuses.
#
#   BUILD=build/cpu-fp32 [SHARED=folder with data/] sh dev/test/test_get.sh

cd "$(dirname "$0")/../.." || exit 1
tokenize=${BUILD:?the folder with the built programs}/tokenize
shared=${SHARED:-../shared}
dir=$(mktemp -d "${TMPDIR:-/tmp}/train_gpt_get.XXXXXX") || exit 1
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM
passed=0 failed=0 skipped=0
OUT=$dir/out
export OUT

ok() { passed=$((passed + 1)); echo "ok    $1"; }
fail() { failed=$((failed + 1)); echo "FAIL  $*"; }
skip() { skipped=$((skipped + 1)); echo "skip  $*"; }

# gets NAME RESULT ARGS...: get.sh succeeds and RESULT is there.
gets() {
    name=$1 result=$2
    shift 2
    if sh data/get.sh "$@" >"$dir/log" 2>&1 && [ -s "$OUT/$result" ]; then ok "$name"; else fail "$name"; sed 's/^/  /' "$dir/log"; fi
}

# refuses NAME WORDS ARGS...: it fails, says WORDS, and leaves no file.
refuses() {
    name=$1 words=$2
    shift 2
    rm -rf "$OUT"
    if ! sh data/get.sh "$@" >"$dir/log" 2>&1 && grep -q -e "$words" "$dir/log" && [ -z "$(ls "$OUT" 2>/dev/null)" ]
    then ok "$name"
    else fail "$name: left over: $(ls "$OUT" 2>/dev/null)"; sed 's/^/  /' "$dir/log"; fi
}

tab=$(printf '\t')
cat >"$dir/stories" <<END

He said "hi\\there".

Second paragraph.${tab}Tab.
<|endoftext|>

<|endoftext|>
Another <|endoftext|> inside.
<|endoftext|>
Last one, é 😀.
END
gets "tinystories: a local file" tinystories.jsonl tinystories "$dir/stories"
$tokenize --val-fraction 0 --out "$dir/t" "$OUT/tinystories.jsonl" >/dev/null
$tokenize --decode --show-eot "$dir/t_train_000000.bin" >"$dir/found"
cat >"$dir/expected" <<END
He said "hi\\there".

Second paragraph.${tab}Tab.<|endoftext|>Another <|endoftext|> inside.<|endoftext|>Last one, é 😀.
END
if printf '\n' | cat "$dir/found" - | cmp - "$dir/expected"; then ok "tinystories: one document a story"; else fail "tinystories: one document a story"; cat "$dir/found"; fi

printf '%s\n' '{"ctx": "a", "endings": ["b", "c"], "label": 0}' >"$dir/questions"
gets "hellaswag: a local file" hellaswag_val.jsonl hellaswag "$dir/questions"
refuses "hellaswag: another file" 'no questions' hellaswag "$dir/stories"

printf 'some text' >"$dir/text"
printf '<!DOCTYPE html><html>' >"$dir/page"
: >"$dir/empty"
$tokenize --val-fraction 0 --out "$dir/t" "$dir/stories" >/dev/null
head -c 1100 "$dir/t_train_000000.bin" >"$dir/cut.bin"
gets "fineweb: a local shard" t_train_000000.bin fineweb "$dir/t_train_000000.bin"
if command -v curl >/dev/null 2>&1; then
    rm -rf "$OUT"
    gets "fineweb: a URL" t_train_000000.bin fineweb "file://$dir/t_train_000000.bin"
    refuses "a URL that is not there" 'cannot fetch' fineweb "file://$dir/nowhere"
else
    skip "fineweb: a URL: no curl here, which alone reads file://"
fi
refuses "fineweb: a cut shard" 'header promises' fineweb "$dir/cut.bin"
refuses "fineweb: a text" 'not a token file' fineweb "$dir/text"
refuses "tinyshakespeare: other text" 'SHA-256' tinyshakespeare "$dir/text"
refuses "tinystories: other text" 'no lines' tinystories "$dir/text"
refuses "a web page" 'web page' tinystories "$dir/page"
refuses "an empty file" 'is empty' tinyshakespeare "$dir/empty"
refuses "a missing file" 'neither a file nor a URL' tinyshakespeare "$dir/nowhere"
refuses "an unknown name" 'data/get.sh tinyshakespeare' bogus
if [ -r "$shared/data/tinyshakespeare.txt" ]; then
    gets "tinyshakespeare: a local file" tinyshakespeare.txt tinyshakespeare "$shared/data/tinyshakespeare.txt"
    gets "gpt2-vocab: a local folder" gpt2/vocab.bpe gpt2-vocab "$shared/data/gpt2"
else
    skip "tinyshakespeare and gpt2-vocab: not in $shared/data"
fi

echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ] && [ $passed -gt 0 ]
