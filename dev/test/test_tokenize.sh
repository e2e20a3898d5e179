#!/bin/sh
# data/tokenize as a program: round trips, splits, threads, JSONL, and every complaint it has.
#
#   BUILD=build/cpu-fp32 [SHARED=folder with data/] sh dev/test/test_tokenize.sh

cd "$(dirname "$0")/../.." || exit 1
tokenize=${BUILD:?the folder with the built programs}/tokenize
shared=${SHARED:-../shared}
tiny=dev/test/data/tiny
torture=dev/test/data/torture.txt
dir=$(mktemp -d "${TMPDIR:-/tmp}/train_gpt_tokenize.XXXXXX") || exit 1
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM
passed=0 failed=0 skipped=0

ok() { passed=$((passed + 1)); echo "ok    $1"; }
fail() { failed=$((failed + 1)); echo "FAIL  $*"; }
skip() { skipped=$((skipped + 1)); echo "skip  $*"; }

# check NAME COMMAND...: the command succeeds.
check() {
    name=$1
    shift
    if "$@" >"$dir/out" 2>&1; then ok "$name"; else fail "$name: $* gives $?"; sed 's/^/  /' "$dir/out"; fi
}

# refuses NAME CODE WORDS COMMAND...: it ends with CODE, says WORDS on stderr, and leaves no file of prefix $dir/r.
refuses() {
    name=$1 code=$2 words=$3
    shift 3
    "$@" >"$dir/out" 2>"$dir/err" </dev/null
    got=$?
    left=$(ls "$dir" | grep '^r_')
    if [ $got -eq "$code" ] && grep -q -e "$words" "$dir/err" && [ -z "$left" ] && [ "$(grep -c '^error' "$dir/err")" -eq 1 ]
    then ok "$name"
    else
        fail "$name: exit code $got, expected $code and \"$words\"; left over: $left"
        sed 's/^/  /' "$dir/err"
        rm -f "$dir"/r_*
    fi
}

# round_trip FILE OPTIONS...: encoded and decoded it is the same bytes.
round_trip() {
    file=$1
    shift
    rm -f "$dir"/t_*
    $tokenize --val-fraction 0 --format text --out "$dir/t" "$@" "$file" >/dev/null || return 1
    [ ! -e "$dir/t_val_000000.bin" ] || return 1
    # The vocabulary again for decoding; the other options are for encoding only.
    case " $* " in *" --vocab "*) vocab="--vocab $tiny" ;; *) vocab= ;; esac
    $tokenize --decode $vocab "$dir"/t_train_*.bin | cmp - "$file"
}

# ids FILE.bin: its ids on one line (2-byte files).
ids() { od -An -v -tu2 -j1024 "$1" | tr -s ' \n' ' ' | sed 's/^ //; s/ $//'; }
words() { od -An -v -td4 -N24 "$1" | tr -s ' \n' ' ' | sed 's/^ //; s/ $//'; }
equal() { [ "$1" = "$2" ] || { echo "found    $1"; echo "expected $2"; return 1; }; }

if $tokenize --vocab $tiny --val-fraction 0 --out "$dir/p" $torture >"$dir/probe" 2>&1; then pcre2=yes
elif grep -q 'install libpcre2-dev' "$dir/probe"; then pcre2=
else pcre2=yes; fi

# --- round trips -------------------------------------------------------------------------------------------------
printf 'plain\r\n\000NUL\000\377\376 \303\050 \355\240\200 \360\237\230\200 caf\303\251\r\r\n<|endoftext|> \364\220\200\200\300\257 ' >"$dir/nasty"
printf '\377' >"$dir/one"
check "bytes: nasty bytes come back" round_trip "$dir/nasty"
check "bytes: one byte comes back" round_trip "$dir/one"
check "bytes: a program comes back, in many shards" round_trip "$tokenize" --shard-tokens 1000
check "bytes: what the ids are" equal "$(printf 'A\000\377<' >"$dir/four"; round_trip "$dir/four" && ids "$dir/t_train_000000.bin")" "256 65 0 255 60"
check "bytes: the header" equal "$(words "$dir/t_train_000000.bin")" "20240520 1 5 257 1 1"
check "bytes: standard input" equal "$(printf 'ab' | $tokenize --val-fraction 0 --out "$dir/t" - >/dev/null && ids "$dir/t_train_000000.bin")" "256 97 98"

if [ "$pcre2" ]; then
    check "bpe: nasty bytes come back" round_trip "$dir/nasty" --vocab $tiny
    check "bpe: one byte comes back" round_trip "$dir/one" --vocab $tiny
    check "bpe: a program comes back, in many shards" round_trip "$tokenize" --vocab $tiny --shard-tokens 5000
    check "bpe: torture text comes back" round_trip $torture --vocab $tiny
    tail -c +1027 "$dir/t_train_000000.bin" >"$dir/ids"
    check "bpe: torture text has tiktoken's ids" cmp "$dir/ids" dev/test/data/torture.tiny.ids
    check "bpe: the header" equal "$(words "$dir/t_train_000000.bin" | cut -d' ' -f1-5)" "20240520 1 14866 700 2"
    if [ -r "$shared/data/gpt2/vocab.bpe" ]; then
        $tokenize --tokenizer gpt2 --vocab "$shared/data/gpt2" --val-fraction 0 --out "$dir/t" $torture >/dev/null
        tail -c +1027 "$dir/t_train_000000.bin" >"$dir/ids"
        check "gpt2: torture text has tiktoken's ids" cmp "$dir/ids" dev/test/data/torture.gpt2.ids
    else
        skip "gpt2: torture text has tiktoken's ids: no GPT-2 vocabulary in $shared/data/gpt2"
    fi

    # Several megabytes: cut into chunks as a text, one piece as a JSONL document; ids and threads must not care.
    tr -d '\000-\011\013-\037"\\\177' <$torture >"$dir/clean"
    for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do cat "$dir/clean" "$dir/clean"; printf '%s' "$i"; cat "$dir/clean" "$dir/clean"; done >"$dir/big16"
    cat "$dir/big16" "$dir/one" "$dir/big16" >"$dir/big"
    awk 'BEGIN { printf "{\"text\": \"" } { printf "%s%s", n++ ? "\\n" : "", $0 } END { print "\"}" }' "$dir/big16" >"$dir/big.jsonl"
    $tokenize --vocab $tiny --val-fraction 0 --out "$dir/t" "$dir/big16" >/dev/null
    $tokenize --vocab $tiny --val-fraction 0 --out "$dir/j" "$dir/big.jsonl" >/dev/null
    check "bpe: chunks of a long text change no id" cmp "$dir/t_train_000000.bin" "$dir/j_train_000000.bin"
    for n in 1 2 3; do
        $tokenize --vocab $tiny --threads $n --shard-tokens 300000 --out "$dir/n$n" "$dir/big" "$dir/big.jsonl" "$torture" --val-fraction 0.4 >/dev/null
    done
    check "bpe: the same files with 2 threads as with 1" cmp "$dir/n1_train_000001.bin" "$dir/n2_train_000001.bin"
    same=yes
    for file in "$dir"/n1_*; do
        for n in 2 3; do cmp "$file" "$dir/n$n${file#"$dir/n1"}" || same=; done
    done
    check "bpe: all shards equal for 1, 2 and 3 threads" [ "$same" ]
    check "literal <|endoftext|> is ordinary text" equal "$(printf '<|endoftext|>' >"$dir/e"; $tokenize --vocab $tiny --val-fraction 0 --out "$dir/t" "$dir/e" >/dev/null; ids "$dir/t_train_000000.bin" | tr ' ' '\n' | grep -c '^699$')" 1

    # A vocabulary that needs 4 bytes an id: tiny's, and "zzzz" as number 70000.
    { cat $tiny/tiny.tiktoken; echo 'enp6eg== 70000'; } >"$dir/wide.tiktoken"
    printf 'a zzzz' >"$dir/z"
    printf 'zzzz' >"$dir/zz"
    $tokenize --vocab "$dir/wide.tiktoken" --val-fraction 0 --out "$dir/t" "$dir/zz" >/dev/null
    check "4-byte ids: the header" equal "$(words "$dir/t_train_000000.bin" | cut -d' ' -f1-5)" "20240801 7 2 70002 2"
    check "4-byte ids: the ids" equal "$(od -An -tu4 -j1024 "$dir/t_train_000000.bin" | tr -s ' ')" " 70001 70000"
    check "4-byte ids: decoded" equal "$($tokenize --decode --vocab "$dir/wide.tiktoken" "$dir/t_train_000000.bin")" zzzz
    refuses "an id that does not fit 2 bytes" 1 'id 7000[01] does not fit the 2 bytes' $tokenize --token-bytes 2 --vocab "$dir/wide.tiktoken" --val-fraction 0 --out "$dir/r" "$dir/zz"
    refuses "decoding with another vocabulary" 1 'made with another vocabulary' $tokenize --decode --vocab $tiny "$dir/t_train_000000.bin"
else
    check "gpt2 without PCRE2 says what is missing" grep -q "install libpcre2-dev" "$dir/probe"
    skip "the gpt2 tokenizer: this build has no PCRE2 (libpcre2-dev)"
fi

# --- documents, splits, JSONL ------------------------------------------------------------------------------------
cat >"$dir/d.jsonl" <<'END'
{"id": 7, "meta": {"text": "not this", "x": [1, 2.5e3, null, true]}, "text": "h\u00e9\ud83d\ude00\n\"\\\/\b\f\r\tA"}

{"text": ""}
{"text": "\u0000z", "n": -0.5}
END
$tokenize --val-fraction 0 --out "$dir/t" "$dir/d.jsonl" >/dev/null
check "JSONL: escapes, surrogate pairs, blank lines, empty texts" equal "$(ids "$dir/t_train_000000.bin")" \
    "256 104 195 169 240 159 152 128 10 34 92 47 8 12 13 9 65 256 256 0 122"
check "--show-eot" equal "$($tokenize --decode --show-eot "$dir/t_train_000000.bin" | tail -c 28 | tr -d '\000')" "<|endoftext|><|endoftext|>z"
check "JSONL: another field" equal "$(echo '{"body": "x"}' | $tokenize --format jsonl --field body --val-fraction 0 --out "$dir/t" - >/dev/null; ids "$dir/t_train_000000.bin")" "256 120"
awk 'BEGIN { for (i = 0; i < 20; i++) printf "{\"text\": \"%c\"}\n", 65 + i }' >"$dir/m.jsonl"
$tokenize --val-fraction 0.1 --out "$dir/t" "$dir/m.jsonl" >/dev/null
check "split: every tenth document is for validation" equal "$(ids "$dir/t_val_000000.bin")" "256 74 256 84"
check "split: the others are for training" equal "$(ids "$dir/t_train_000000.bin" | wc -w | tr -d ' ')" 36
seq 1 1000 >"$dir/lines"
$tokenize --val-fraction 0.1 --out "$dir/t" "$dir/lines" >/dev/null
$tokenize --decode "$dir/t_train_000000.bin" >"$dir/a"
$tokenize --decode "$dir/t_val_000000.bin" >"$dir/b"
cat "$dir/a" "$dir/b" >"$dir/c"
check "split: a lone text gives its last part, at a line" [ "$(head -n 1 "$dir/b")" -gt 880 ] && cmp "$dir/c" "$dir/lines"
check "split: each of a few texts gives its last part" $tokenize --val-fraction 0.1 --out "$dir/t" "$dir/lines" "$dir/lines"
check "split: two documents in validation" equal "$(ids "$dir/t_val_000000.bin" | tr ' ' '\n' | grep -c '^256$')" 2
$tokenize --val-fraction 0 --shard-tokens 100 --out "$dir/s" "$dir/lines" >/dev/null
$tokenize --val-fraction 0 --shard-tokens 2000 --out "$dir/s" "$dir/lines" >"$dir/said"
check "shards of an earlier run go" [ "$(ls "$dir" | grep -c '^s_')" -eq 2 ]
check "and it is said" grep -q 'removed .*s_train_000038.bin' "$dir/said"

if ( ulimit -v 400000 && $tokenize --help ) >/dev/null 2>&1; then
    i=0
    while [ $i -lt 1150 ]; do cat "$dir/lines" "$dir/lines" "$dir/lines" "$dir/lines" "$dir/lines" "$dir/lines" "$dir/lines" "$dir/lines" "$dir/lines" "$dir/lines"; i=$((i + 1)); done >"$dir/huge"
    # Held as a whole, text and ids would take 225 MB; in chunks everything takes about 60 MB.
    memory() { ( ulimit -v 160000 && $tokenize --threads 2 --val-fraction 0 --out "$dir/t" "$dir/huge" ) }
    check "memory does not grow with the input" memory
    rm -f "$dir/huge" "$dir"/t_*
else
    skip "memory does not grow with the input: address space cannot be limited here (sanitizer?)"
fi

# --- complaints --------------------------------------------------------------------------------------------------
t="$tokenize --out $dir/r"
: >"$dir/empty"
printf '\n\n' >"$dir/blank.jsonl"
printf '{"text": "a"}\n\n{"text": "b"\n' >"$dir/bad1.jsonl"
printf '{"text": "a"}\n{"texts": "b"}\n' >"$dir/bad2.jsonl"
printf '{"text": 5}\n' >"$dir/bad3.jsonl"
printf '{"text": "\\x"}\n' >"$dir/bad4.jsonl"
printf '[1]\n' >"$dir/bad5.jsonl"
printf '{"text": "a"} {"text": "b"}\n' >"$dir/bad6.jsonl"
refuses "missing file" 1 "nowhere.txt': No such file" $t "$dir/lines" "$dir/nowhere.txt"
refuses "folder" 1 'is a directory' $t "$dir"
refuses "empty file" 1 'is empty' $t "$dir/empty"
refuses "only blank lines" 1 'only empty lines' $t "$dir/blank.jsonl"
refuses "one byte and validation" 1 'nothing is left for validation' $t "$dir/one"
refuses "too few documents for validation" 1 'nothing is left for validation' $t --val-fraction 0.02 "$dir/m.jsonl"
refuses "validation from a pipe" 2 'length is not known' $t -
refuses "JSONL: cut object" 1 'bad1.jsonl:3: ' $t "$dir/bad1.jsonl"
refuses "JSONL: no text field" 1 'bad2.jsonl:2: the object has no field "text"' $t "$dir/bad2.jsonl"
refuses "JSONL: text is a number" 1 'bad3.jsonl:1: the field "text" is not a string' $t "$dir/bad3.jsonl"
refuses "JSONL: unknown escape" 1 'bad4.jsonl:1: unknown escape' $t "$dir/bad4.jsonl"
refuses "JSONL: an array" 1 'bad5.jsonl:1: the line is not an object' $t "$dir/bad5.jsonl"
refuses "JSONL: two objects" 1 'bad6.jsonl:1: something follows' $t "$dir/bad6.jsonl"
refuses "no file named" 2 'no input file' $t
refuses "no --out" 2 'out is missing' $tokenize "$dir/lines"
refuses "unknown option" 2 "unknown option '--bogus'" $t --bogus "$dir/lines"
refuses "option without value" 2 'needs a value' $t "$dir/lines" --threads
refuses "not a number" 2 "'4x' is not a whole number" $t --threads 4x "$dir/lines"
refuses "fraction of 1" 2 'from 0 to below 1' $t --val-fraction 1 "$dir/lines"
refuses "fraction NaN" 2 'from 0 to below 1' $t --val-fraction nan "$dir/lines"
refuses "shards of nothing" 2 'not a whole number from 1' $t --shard-tokens 0 "$dir/lines"
refuses "unknown tokenizer" 2 "'bpe' is none of: byte, gpt2" $t --tokenizer bpe "$dir/lines"
refuses "gpt2 without a vocabulary" 2 'needs --vocab' $t --tokenizer gpt2 "$dir/lines"
refuses "missing vocabulary" 1 "nowhere': No such file" $t --vocab "$dir/nowhere" "$dir/lines"
refuses "a device" 1 "'/dev/null': it is a device, neither a file nor a pipe" $t /dev/null
refuses "a text as a vocabulary" 1 "^error: vocabulary '$dir/lines': line 1 is not a token in base64" $t --vocab "$dir/lines" "$dir/lines"
cp "$dir/lines" "$dir/lines.txt"
refuses "a .txt as a vocabulary" 1 "^error: vocabulary '$dir/lines.txt': line 1 is not a token in base64" $t --vocab "$dir/lines.txt" "$dir/lines"
refuses "more threads than make sense" 2 'more than [0-9]* threads make no sense' $t --threads 4096 "$dir/lines"
refuses "folder of --out is missing" 1 'No such file' $tokenize --out "$dir/no/r" "$dir/lines"
refuses "decoding a text" 1 'text file' $tokenize --decode "$dir/lines"
refuses "decoding nothing" 1 'empty' $tokenize --decode "$dir/empty"
if [ "$(id -u)" -ne 0 ]; then
    cp "$dir/lines" "$dir/secret" && chmod 000 "$dir/secret"
    refuses "no permission" 1 'Permission denied' $t "$dir/secret"
else
    skip "no permission: root may read everything"
fi
$tokenize --val-fraction 0 --out "$dir/t" "$dir/lines" >/dev/null
head -c 1500 "$dir/t_train_000000.bin" >"$dir/cut.bin"
refuses "decoding a cut file" 1 'the file holds 238' $tokenize --decode "$dir/cut.bin"
{ head -c 1028 "$dir/t_train_000000.bin"; printf '\001\001'; tail -c +1031 "$dir/t_train_000000.bin"; } >"$dir/big_id.bin"
refuses "decoding an id beyond the vocabulary" 1 'id 257 at position 2 ' $tokenize --decode "$dir/big_id.bin"
{ head -c 12 "$dir/t_train_000000.bin"; head -c 1012 /dev/zero; tail -c +1025 "$dir/t_train_000000.bin"; } >"$dir/foreign.bin"
refuses "decoding a file that names no tokenizer" 2 'does not say which tokenizer' $tokenize --decode "$dir/foreign.bin"
check "unless told" equal "$($tokenize --decode --tokenizer byte "$dir/foreign.bin" | cmp - "$dir/lines" && echo same)" same

# A disk that is full: half-way in shard 2 of 4, and at once; nothing may be left. (512-byte or 1-KiB blocks.)
full() { ( ulimit -f "$1" && $t --val-fraction 0.3 --shard-tokens 2000000 "$dir/mb" ); }
i=0
while [ $i -lt 60 ]; do cat "$dir/lines" "$dir/lines" "$dir/lines" "$dir/lines" "$dir/lines"; i=$((i + 1)); done >"$dir/mb"
refuses "full disk" 1 'cannot write to .*r_train_000000.bin.tmp' full 400
refuses "full disk at once" 1 'cannot \(finish writing\|write to\)' full 1
if [ -w /dev/full ]; then
    to_full() { $tokenize --decode "$dir/t_train_000000.bin" >/dev/full; }
    refuses "decoding to a full disk" 1 'cannot write to standard output' to_full
fi

# Ended while it waits for input, with two shards complete and one open: all temporaries go.
mkfifo "$dir/pipe"
$t --threads 1 --val-fraction 0 --shard-tokens 1500000 - <"$dir/pipe" >/dev/null 2>&1 &
pid=$!
exec 9>"$dir/pipe"
cat "$dir/mb" "$dir/mb" "$dir/mb" "$dir/mb" "$dir/mb" >&9
i=0
while [ $i -lt 50 ] && [ ! -e "$dir/r_train_000002.bin.tmp" ]; do sleep 0.1 2>/dev/null || sleep 1; i=$((i + 1)); done
if [ -e "$dir/r_train_000002.bin.tmp" ]; then
    kill -TERM $pid 2>/dev/null
    wait $pid
    check "ended by a signal: exit code 143" [ $? -eq 143 ]
    check "ended by a signal: nothing is left" [ -z "$(ls "$dir" | grep '^r_')" ]
else
    fail "ended by a signal: no third shard within 5 s"
    kill -TERM $pid 2>/dev/null
fi
exec 9>&-

echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ] && [ $passed -gt 0 ]
