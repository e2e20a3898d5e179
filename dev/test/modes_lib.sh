# modes_lib.sh: builds dev/test/precision_modes.c in several precision modes, for scripts that source it from the
# repository's root after setting $dir, a temporary folder. MODE is precision[:master[:moments]].

: "${BUILD:?the folder with the built programs}"
# Spinning threads take the cores of others; and a program that found no setting would start itself again without "train".
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}"
cc=$(cut -d ' ' -f 1 "$BUILD/flags")

# Where a mode's program goes.
program_of() { echo "$dir/$(echo "$1" | tr : -)"; }

# build MODE: with the flags of $BUILD but less optimisation, as there are 13 of them. What they compute is the same.
flags="$(sed 's/^.* -std=/-std=/; s/-DPRECISION_[a-z0-9_]*//; s/-DMASTER_[a-z0-9]*//; s/-DMOMENTS_[a-z0-9]*//; s/ -O3/ -O1/; s/-Werror//' "$BUILD/flags") -DGEMM_ONE_TILE"
build() {
    precision=$(echo "$1" | cut -d : -f 1 | tr - _)
    master=$(echo "$1" | awk -F : '{ print $2 != "" ? $2 : "fp32" }')
    moments=$(echo "$1" | awk -F : '{ print $3 != "" ? $3 : "fp32" }')
    "$cc" dev/test/precision_modes.c -DPRECISION_$precision -DMASTER_$master -DMOMENTS_$moments $flags -o "$(program_of "$1")"
}

# two_at_once COMMAND...: in the background; waits first where two are running. `wait` ends the last ones.
running=
two_at_once() {
    "$@" &
    case $running in
        '') running=$! ;;
        *) wait $running; running=$! ;;
    esac
}

# build_all MODE...: messages in $dir/built.MODE; $dir/built.MODE.ok where it went well.
build_one() { build "$1" >"$dir/built.$1" 2>&1 && touch "$dir/built.$1.ok"; }
build_all() {
    for mode in "$@"; do two_at_once build_one "$mode"; done
    wait
    running=
}
