#!/bin/sh
# Runs test programs and scripts, as many at once as there are cores, and adds up what they report.
#
#   BUILD=build/cpu-fp32 sh dev/test/run.sh PROGRAM... SCRIPT.sh...
#
# Each must end with a line "N passed, N failed" (", N skipped" may follow). One that crashes, runs past
# TEST_TIMEOUT seconds (default 300) or ends without that line counts as a failure, as does one whose exit code and
# failures disagree. A test that passed shows its summary and its skips; one that failed shows everything. What is shown
# is in the order of the arguments. The last line is the sum; the exit code is 1 if anything failed or nothing ran.
# TEST_JOBS=1 runs one after another.

jobs=${TEST_JOBS:-$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)}
timeout_s=${TEST_TIMEOUT:-300}
# Threads that wait by spinning take the cores from those they wait for when the machine has other work, too: tests
# then take many times longer.
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}"
limit=
if command -v timeout >/dev/null 2>&1; then limit="timeout -k 5 $timeout_s"; fi
# For test number N: N.taken a worker has it, N.out what it printed, N.ended its exit code and seconds.
dir=$(mktemp -d "${TMPDIR:-/tmp}/train_gpt_test.XXXXXX") || exit 1
workers=
trap 'rm -rf "$dir"' EXIT
trap 'for pid in $workers; do kill "$pid" 2>/dev/null; done; wait; exit 130' INT TERM HUP PIPE

# Runs test $2 as number $1. In the background, as a shell that waits for a command in the foreground hears no signal.
run_test() {
    test=$2
    # A script runs by its own first line; without the x bit, by sh.
    case $test in
        *.sh) if [ -x "$test" ]; then run=; else run=sh; fi ;;
        *) run= ;;
    esac
    case $test in /*) ;; *) test=./$test ;; esac
    start=$(date +%s)
    $limit $run "$test" >"$dir/$1.out" 2>&1 </dev/null &
    child=$!
    wait "$child"
    echo "$? $(($(date +%s) - start))" >"$dir/$1.part"
    mv "$dir/$1.part" "$dir/$1.ended"
}

# worker TEST...: runs, in their order, those that no other worker has taken.
worker() {
    child=
    trap '[ -z "$child" ] || kill "$child" 2>/dev/null; exit' TERM
    number=0
    for test; do
        number=$((number + 1))
        mkdir "$dir/$number.taken" 2>/dev/null && run_test "$number" "$test"
    done
}

# Sets p, f and s from the last line of file $1; false if that line is no summary.
read_summary() {
    p= f= s=
    last=$(tail -n 1 "$1")
    case $last in *[!0-9a-z,\ ]*) return 1 ;; esac
    set -- $last
    [ "$#" -eq 4 ] || [ "$#" -eq 6 ] || return 1
    [ "$2$4$6" = "passed,failed" ] || [ "$2$4$6" = "passed,failed,skipped" ] || return 1
    p=$1 f=$3 s=${5:-0}
    case $p$f$s in *[!0-9]*) return 1 ;; esac
}

# report NAME LOG CODE SECONDS
report() {
    why=
    if ! read_summary "$2"; then
        why="no summary line, exit code $3"
        p=0 f=1 s=0
    elif [ "$3" -ne 0 ] && [ "$f" -eq 0 ]; then
        why="exit code $3, though no failure was counted"
        f=1
    elif [ "$3" -eq 0 ] && [ "$f" -ne 0 ]; then
        why="exit code 0 in spite of failures"
    elif [ "$((p + f + s))" -eq 0 ]; then
        why="nothing ran"
        f=1
    fi
    [ "$3" -ne 124 ] || why="stopped after $timeout_s seconds"

    if [ "$f" -ne 0 ]; then
        sed 's/^/    /' "$2"
        echo "FAIL  $1: $p passed, $f failed, $s skipped, $4 s${why:+ ($why)}"
    else
        grep '^skip' "$2" | sed 's/^/    /'
        echo "ok    $1: $p passed$([ "$s" -eq 0 ] || echo ", $s skipped"), $4 s"
    fi
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
}

while [ "$jobs" -gt 0 ]; do
    jobs=$((jobs - 1))
    worker "$@" &
    workers="$workers $!"
done
passed=0 failed=0 skipped=0 number=0
for test; do
    number=$((number + 1))
    until [ -e "$dir/$number.ended" ]; do sleep 0.1 2>/dev/null || sleep 1; done
    read -r code seconds <"$dir/$number.ended"
    report "$(basename "$test")" "$dir/$number.out" "$code" "$seconds"
done
wait

echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] && [ "$((passed + skipped))" -gt 0 ]
