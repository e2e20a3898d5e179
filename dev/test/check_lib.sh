# check_lib.sh: how a shell test counts and reports, for scripts that source it from the repository's root after setting
# $dir, a temporary folder. `summary` ends the script.

passed=0 failed=0 skipped=0

ok() { passed=$((passed + 1)); echo "ok    $1"; }
fail() { failed=$((failed + 1)); echo "FAIL  $*"; }
skip() { skipped=$((skipped + 1)); echo "skip  $*"; }
summary() { echo "$passed passed, $failed failed, $skipped skipped"; [ "$failed" -eq 0 ]; exit $?; }

# check NAME COMMAND...: the command succeeds. What it printed is shown where it does not.
check() {
    name=$1
    shift
    if "$@" >"$dir/check.out" 2>&1; then ok "$name"; else
        fail "$name: $* gives $?"
        tail -n 25 "$dir/check.out" | sed 's/^/    /'
    fi
}
