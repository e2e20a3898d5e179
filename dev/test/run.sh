#!/bin/sh
# Runs test programs and scripts one after another and adds up what they report.
#
#   BUILD=build/cpu-fp32 sh dev/test/run.sh PROGRAM... SCRIPT.sh...
#
# Each must end with a line "N passed, N failed" (", N skipped" may follow). One that crashes, runs past
# TEST_TIMEOUT seconds (default 300) or ends without that line counts as a failure, as does one whose exit code and
# failures disagree. A test that passed shows its summary and its skips; one that failed shows everything.
# The last line is the sum; the exit code is 1 if anything failed or nothing ran.

timeout_s=${TEST_TIMEOUT:-300}
# Threads that wait by spinning take the cores from those they wait for when the machine has other work, too: tests
# then take many times longer.
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}"
limit=
if command -v timeout >/dev/null 2>&1; then limit="timeout -k 5 $timeout_s"; fi
log=$(mktemp "${TMPDIR:-/tmp}/train_gpt_test.XXXXXX") || exit 1
trap 'rm -f "$log"' EXIT
trap 'exit 130' INT TERM

passed=0 failed=0 skipped=0

# Sets p, f and s from the last line of $log; false if that line is no summary.
read_summary() {
    p= f= s=
    last=$(tail -n 1 "$log")
    case $last in *[!0-9a-z,\ ]*) return 1 ;; esac
    set -- $last
    [ "$#" -eq 4 ] || [ "$#" -eq 6 ] || return 1
    [ "$2$4$6" = "passed,failed" ] || [ "$2$4$6" = "passed,failed,skipped" ] || return 1
    p=$1 f=$3 s=${5:-0}
    case $p$f$s in *[!0-9]*) return 1 ;; esac
}

for test in "$@"; do
    name=$(basename "$test")
    # A script runs by its own first line; without the x bit, by sh.
    case $test in
        *.sh) if [ -x "$test" ]; then run=; else run=sh; fi ;;
        *) run= ;;
    esac
    case $test in /*) ;; *) test=./$test ;; esac
    start=$(date +%s)
    $limit $run "$test" >"$log" 2>&1 </dev/null
    code=$?
    seconds=$(($(date +%s) - start))

    why=
    if ! read_summary; then
        why="no summary line, exit code $code"
        p=0 f=1 s=0
    elif [ "$code" -ne 0 ] && [ "$f" -eq 0 ]; then
        why="exit code $code, though no failure was counted"
        f=1
    elif [ "$code" -eq 0 ] && [ "$f" -ne 0 ]; then
        why="exit code 0 in spite of failures"
    elif [ "$((p + f + s))" -eq 0 ]; then
        why="nothing ran"
        f=1
    fi
    [ "$code" -ne 124 ] || why="stopped after $timeout_s seconds"

    if [ "$f" -ne 0 ]; then
        sed 's/^/    /' "$log"
        echo "FAIL  $name: $p passed, $f failed, $s skipped, ${seconds} s${why:+ ($why)}"
    else
        grep '^skip' "$log" | sed 's/^/    /'
        echo "ok    $name: $p passed$([ "$s" -eq 0 ] || echo ", $s skipped"), ${seconds} s"
    fi
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
done

echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] && [ "$((passed + skipped))" -gt 0 ]
