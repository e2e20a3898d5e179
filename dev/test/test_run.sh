#!/bin/sh
# dev/test/run.sh itself: does a failing, crashing, hanging, silent or lying test make the whole run fail? Do several run
# at once, and does nothing run on when it is interrupted?

cd "$(dirname "$0")/../.." || exit 1
dir=$(mktemp -d "${TMPDIR:-/tmp}/train_gpt_run.XXXXXX") || exit 1
trap 'rm -rf "$dir"' EXIT

. dev/test/check_lib.sh

# make_test NAME BODY: a test program that does BODY.
make_test() {
    printf '#!/bin/sh\n%s\n' "$2" >"$dir/$1"
    chmod +x "$dir/$1"
}

# expect NAME CODE LAST_LINE PATTERN TESTS...: exit code, last line (* stands for anything), and a line that matches
# PATTERN somewhere.
expect() {
    name=$1 code=$2 last=$3 pattern=$4
    shift 4
    for test in "$@"; do set -- "$@" "$dir/$test"; shift; done
    TEST_TIMEOUT=2 sh dev/test/run.sh "$@" >"$dir/out" 2>&1
    got=$?
    case $(tail -n 1 "$dir/out") in $last) sum=right ;; *) sum=wrong ;; esac
    if [ "$got" -eq "$code" ] && [ "$sum" = right ] && grep -q "$pattern" "$dir/out"; then
        ok "$name"
    else
        fail "$name: exit code $got, expected $code; last line expected: $last; a line like: $pattern"
        sed 's/^/    /' "$dir/out"
    fi
}

make_test good 'echo ok one; echo "2 passed, 0 failed, 0 skipped"'
make_test two 'echo "3 passed, 0 failed"'
make_test skips 'echo "skip  gpu: no such device"; echo "1 passed, 0 failed, 1 skipped"'
make_test bad 'echo "FAIL  something"; echo "4 passed, 2 failed, 0 skipped"; exit 1'
make_test crash 'echo ok one; kill -SEGV $$'
make_test crash_after 'echo "2 passed, 0 failed, 0 skipped"; kill -ABRT $$'
make_test silent 'exit 0'
make_test liar 'echo "1 passed, 1 failed, 0 skipped"; exit 0'
make_test empty 'echo "0 passed, 0 failed, 0 skipped"'
make_test talks_on 'echo "2 passed, 0 failed"; echo "leak found"; exit 1'
make_test garbled 'echo "2 passed, 0 failed, 1 skipped, 3 forgotten"'
make_test hang 'sleep 60'
make_test no_x.sh 'echo "1 passed, 0 failed"'
chmod -x "$dir/no_x.sh"

expect "sums add up" 0 "6 passed, 0 failed, 1 skipped" "^    skip  gpu: no such device" good two skips
expect "a failing test" 1 "6 passed, 2 failed, 0 skipped" "^    FAIL  something" good bad
expect "a crashing test" 1 "2 passed, 1 failed, 0 skipped" "no summary line, exit code 139" good crash
expect "a crash after the summary" 1 "* passed, 1 failed, 0 skipped" "exit code 134" good crash_after
expect "a silent test" 1 "2 passed, 1 failed, 0 skipped" "no summary line, exit code 0" good silent
expect "exit code 0 with failures" 1 "1 passed, 1 failed, 0 skipped" "in spite of failures" liar
expect "a test that runs nothing" 1 "0 passed, 1 failed, 0 skipped" "nothing ran" empty
expect "a summary that is not last" 1 "0 passed, 1 failed, 0 skipped" "^    leak found" talks_on
expect "a summary with too much in it" 1 "0 passed, 1 failed, 0 skipped" "no summary line" garbled
expect "a program that is not there" 1 "0 passed, 1 failed, 0 skipped" "no summary line, exit code 12[67]" missing
expect "a script without the x bit" 0 "1 passed, 0 failed, 0 skipped" "^ok    no_x.sh" no_x.sh
expect "no tests at all" 1 "0 passed, 0 failed, 0 skipped" "passed"
if command -v timeout >/dev/null 2>&1; then
    expect "a hanging test" 1 "2 passed, 1 failed, 0 skipped" "stopped after 2 seconds" good hang
    TEST_JOBS=3 expect "failing, crashing and hanging side by side" 1 "6 passed, 4 failed, 0 skipped" "stopped after 2 seconds" \
        bad hang crash good
else
    skip "a hanging test: no timeout command"
fi

# Each of these two waits for the other.
for side in left right; do
    make_test $side ": >'$dir/$side.here'; n=0
        until [ -e '$dir/left.here' ] && [ -e '$dir/right.here' ]; do sleep 0.1; n=\$((n + 1)); [ \$n -lt 15 ] || exit 1; done
        echo '1 passed, 0 failed'"
done
TEST_JOBS=2 expect "two at once" 0 "2 passed, 0 failed, 0 skipped" "^ok    left" left right
rm "$dir"/*.here
TEST_JOBS=1 expect "one at a time" 1 "1 passed, 1 failed, 0 skipped" "^FAIL  left" left right
make_test slow 'sleep 0.5; echo "1 passed, 0 failed"'
TEST_JOBS=4 expect "more at once than there are tests" 0 "3 passed, 0 failed, 0 skipped" "^ok    good" slow good
check "what is shown is in the order of the arguments" sh -c 'grep -n "^ok " "$1" | tr "\n" " " | grep -q "slow.*good"' - "$dir/out"

# Interrupted: it ends at once, and so do the tests.
for side in one other; do make_test $side "echo \$\$ >'$dir/$side.pid'; exec sleep 60"; done
mkdir "$dir/tmp"
TMPDIR=$dir/tmp TEST_JOBS=2 sh dev/test/run.sh "$dir/one" "$dir/other" >"$dir/out" 2>&1 &
pid=$! tries=0
until [ -s "$dir/one.pid" ] && [ -s "$dir/other.pid" ] || [ $tries -ge 50 ]; do sleep 0.1; tries=$((tries + 1)); done
kill -TERM $pid
wait $pid
check "interrupted: exit code 130" [ $? -eq 130 ]
check "interrupted: no test runs on" sh -c '! kill -0 "$1" && ! kill -0 "$2"' - "$(cat "$dir/one.pid")" "$(cat "$dir/other.pid")"
check "interrupted: nothing is left behind" rmdir "$dir/tmp"
summary
