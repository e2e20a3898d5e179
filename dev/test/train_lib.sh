# train_lib.sh: what the tests of whole runs (test_train*.sh) share; they source it from the repository's root.
# Sets $train, $tool and a temporary folder $dir with token files in it; functions that run the trainer and judge it.

train=${BUILD:?the folder with the built programs}/train_gpt
case $train in /*) ;; *) train=$PWD/$train ;; esac
dir=$(mktemp -d "${TMPDIR:-/tmp}/train_gpt_runs.XXXXXX") || exit 1
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM
. dev/test/check_lib.sh

# run FOLDER OPTIONS...: a tiny training into $dir/FOLDER; its exit code, with what it printed in $dir/FOLDER.txt. Of
# several values of an option the last wins; a run that is not to keep anything says --out ''.
tiny="--train $dir/train.bin --layers 2 --heads 2 --channels 32 --seq 16 --batch 4 --warmup 2 --threads 2 --sample-every 0"
run() {
    into=$1
    shift
    $limit "$train" $tiny --val '' --out "$dir/$into" "$@" >"$dir/$into.txt" 2>&1 </dev/null
}

# start FOLDER OPTIONS...: the same in the background, as process $pid.
start() {
    into=$1
    shift
    rm -f "$dir/$into.txt"  # a wait for what this run prints must not find an earlier one's
    "$train" $tiny --val '' --out "$dir/$into" "$@" >"$dir/$into.txt" 2>&1 </dev/null &
    pid=$!
}

# ends NAME CODE WORDS OPTIONS...: a run ends with that exit code and says WORDS (an extended regular expression). One
# that fails says so in a single message, and not by way of a signal or a sanitizer.
ends() {
    name=$1 code=$2 words=$3
    shift 3
    rm -rf "$dir/e"
    run e "$@"
    judge "$name" $? "$code" "$words" e
}

# judge NAME FOUND CODE WORDS FOLDER
judge() {
    errors=$(grep -c '^error: ' "$dir/$5.txt")
    case $3 in 1 | 2) wanted_errors=1 ;; *) wanted_errors=0 ;; esac
    if [ "$2" -eq "$3" ] && grep -Eq -e "$4" "$dir/$5.txt" && [ "$errors" -eq $wanted_errors ]; then ok "$1"; else
        fail "$1: exit code $2 and $errors errors, expected $3, $wanted_errors and: $4"
        tail -n 25 "$dir/$5.txt" | sed 's/^/    /'
    fi
}

# same_files A B: two checkpoints of equal bytes.
same_files() { (cd "$dir/$1" && find . -type f | sort) | while read -r f; do cmp "$dir/$1/$f" "$dir/$2/$f" || echo differs; done |
    { if grep .; then false; fi; } && [ "$(ls "$dir/$1")" = "$(ls "$dir/$2")" ]; }

# same_end A B STEP: two runs with the same log, times apart, and the same last checkpoint.
same_end() {
    "$tool" same-log "$dir/$1/run.jsonl" "$dir/$2/run.jsonl" && same_files "$1/$3" "$2/$3"
}

# wait_for FILE LINE [SECONDS]: until the file has a line like that; so many seconds (10) at most, and while $pid lives.
wait_for() {
    tries=0
    until grep -aq -e "$2" "$1" 2>/dev/null; do
        tries=$((tries + 1))
        [ $tries -lt $((${3:-10} * 100)) ] && kill -0 $pid 2>/dev/null || return 1
        sleep 0.01
    done
}

# losses FOLDER: the training losses, one a line; value FOLDER KEY: the last value of a key in its log.
losses() { sed -n 's/.*"loss":\([^,}]*\).*/\1/p' "$dir/$1/run.jsonl"; }
value() { sed -n "s/.*\"$2\":\([^,}]*\).*/\1/p" "$dir/$1/run.jsonl" | tail -n 1; }
# near A B LIMIT: all losses and norms of two logs, relative to each other.
near() {
    sed -n 's/.*"loss":\([^,]*\).*"grad_norm":\([^,]*\).*/\1 \2/p' "$dir/$1/run.jsonl" >"$dir/near_a"
    sed -n 's/.*"loss":\([^,]*\).*"grad_norm":\([^,]*\).*/\1 \2/p' "$dir/$2/run.jsonl" >"$dir/near_b"
    paste -d ' ' "$dir/near_a" "$dir/near_b" | awk -v limit="$3" '
        function far(a, b) { d = (a - b) / b; return d < 0 ? -d : d }
        NF != 4 { bad = 1 } far($1, $3) > limit || far($2, $4) > limit { print; bad = 1 } END { exit bad || NR < 4 }'
}
steps_in() { (cd "$dir/$1" && echo step_* | sed 's/step_0*//g'); }
equal() { [ "$1" = "$2" ] || { echo "found    $1"; echo "expected $2"; return 1; }; }
below() { awk "BEGIN { exit !($1 < $2) }" || { echo "$1 is not below $2"; return 1; }; }

# A run that hangs is a failure, not the end of the test.
limit=
if command -v timeout >/dev/null 2>&1; then limit="timeout -k 5 120"; fi

tool=$dir/train_tool
for cc in ${CC:-} gcc clang cc; do
    command -v "$cc" >/dev/null 2>&1 && "$cc" -std=gnu11 -O1 -I. -o "$tool" dev/test/train_tool.c -lm 2>"$dir/cc" && break
done
if [ ! -x "$tool" ]; then
    cat "$dir/cc"
    echo "FAIL  no compiler builds dev/test/train_tool.c"
    echo "0 passed, 1 failed, 0 skipped"
    exit 1
fi
"$tool" tokens "$dir/train.bin" 1201 67 1 && "$tool" tokens "$dir/val.bin" 700 67 2 || exit 1
