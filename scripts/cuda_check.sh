#!/bin/sh
# Compiles every .cu file with nvcc, warnings as errors, for each architecture (SASS) and PTX, links it against cuBLASLt
# and, where it is found, NCCL, and lists what each kernel takes. Needs no GPU. A spill in a hot kernel (one of a training step's) is a failure.
#
#   make cuda-check                     all of CUDA_ARCH, else 80 89 90a 100a 120a; precisions bf16 and fp32 in full,
#   CHECK_PRECISIONS="bf16" make cuda-check      fp16 and tf32 for one architecture
#
# Environment: NVCC CXX CUDA_ARCHS PCRE2_FLAGS PCRE2_LIBS NCCL_FLAGS NCCL_LIBS CHECK_PRECISIONS.

cd "$(dirname "$0")/.." || exit 1
dir=$(mktemp -d "${TMPDIR:-/tmp}/train_gpt_cuda.XXXXXX") || exit 1
trap 'rm -rf "$dir"' EXIT
passed=0 failed=0
: "${CXX:=g++}" "${CUDA_ARCHS:=80 89 90a 100a 120a}" "${CHECK_PRECISIONS:=bf16 fp32 fp16 tf32}"
[ -n "$NVCC" ] || { echo "no nvcc: set NVCC or CUDA_HOME"; exit 1; }

# Kernels that a step spends its time in; what the emulators' own tests bring along is not among them.
hot='embedding_.*_kernel|layernorm_.*_kernel|attention_(forward|backward|dkv|dq|stats)|att_|gelu_.*_kernel|column_sums|sum_partials|fused_classifier|global_norm|adamw_kernel|matvec'

# compile SOURCE PRECISION ARCHS PROGRAM
compile() {
    targets=
    for arch in $3; do targets="$targets -gencode arch=compute_$arch,code=sm_$arch"; done
    first=${3%% *}
    # shellcheck disable=SC2086
    "$NVCC" -std=c++17 -O3 -I. -DBUILD_NAME=cuda-check -DPRECISION_"$2" -DMASTER_fp32 -DMOMENTS_fp32 $PCRE2_FLAGS $NCCL_FLAGS \
        -Werror all-warnings --diag-suppress 1675 -Xcompiler=-fopenmp,-ffp-contract=off,-fno-math-errno -ccbin "$CXX" \
        $targets -gencode "arch=compute_$first,code=compute_$first" -Xptxas -v -t 0 -o "$4" "$1" -lcublasLt \
        $NCCL_LIBS $PCRE2_LIBS >"$dir/log" 2>&1
}

# ptxas's lines as: arch kernel registers shared stack spill-stores spill-loads
resources() {
    (command -v cu++filt >/dev/null && cu++filt -p <"$dir/log" || "$(dirname "$NVCC")/cu++filt" -p <"$dir/log" || c++filt -p <"$dir/log") 2>/dev/null |
        awk '
        /Compiling entry function/ {
            match($0, /for .sm_[0-9a-z]+/); arch = substr($0, RSTART + 5, RLENGTH - 5)
            sub(/^[^\x27]*\x27/, ""); sub(/\x27 for .*/, ""); sub(/\(.*/, ""); gsub(/[ \t]+/, "_"); kernel = $0
        }
        /bytes stack frame/ { stack = stores = loads = 0
            for (i = 1; i < NF; i++) { if ($(i + 2) ~ /stack/) stack = $i; if ($(i + 2) ~ /spill/ && $(i + 3) ~ /stores/) stores = $i
                if ($(i + 2) ~ /spill/ && $(i + 3) ~ /loads/) loads = $i } }
        /Used [0-9]+ registers/ { registers = shared = 0
            for (i = 1; i < NF; i++) { if ($(i + 1) ~ /^registers/) registers = $i; if ($(i + 1) == "bytes" && $(i + 2) ~ /^smem/) shared = $i }
            print arch, kernel, registers, shared, stack, stores, loads }'
}

check() {
    program=$dir/$(basename "$1" .cu)_$2
    if compile "$1" "$2" "$3" "$program"; then
        resources >"$dir/table"
        printf '%-8s %9s %8s %6s %7s  %s\n' arch registers shared stack spills kernel
        awk '{ printf "%-8s %9d %8d %6d %7d  %s\n", $1, $3, $4, $5, $6 + $7, $2 }' "$dir/table" | sort -u
        spills=$(awk -v hot="$hot" '$6 + $7 > 0 && $2 ~ hot { print "    " $1, $2 ": " $6 " bytes stored, " $7 " loaded" }' "$dir/table" | sort -u)
        if [ -n "$spills" ] && [ "$4" = hot ]; then
            failed=$((failed + 1))
            echo "FAIL  $1 in $2 for $3: spills in hot kernels"
            echo "$spills"
        elif [ ! -s "$dir/table" ] && grep -q 'Compiling entry' "$dir/log"; then
            failed=$((failed + 1))
            echo "FAIL  $1 in $2: nothing understood of what ptxas says"
        else
            passed=$((passed + 1))
            echo "ok    $1 in $2 for $3: $(wc -l <"$dir/table") kernels"
        fi
    else
        failed=$((failed + 1))
        echo "FAIL  $1 in $2 for $3"
        grep -E 'error|warning' "$dir/log" | head -n 20
    fi
    rm -f "$program"
}

for precision in $CHECK_PRECISIONS; do
    archs=$CUDA_ARCHS
    case $precision in fp16 | tf32) archs=${CUDA_ARCHS##* } ;; esac
    check train_gpt.cu "$precision" "$archs" hot
    # The test's kernels are the trainer's and other types of them: that it builds is what counts.
    check test_gpt.cu "$precision" "${archs%% *}" all
done
check profile_gpt.cu "${CHECK_PRECISIONS%% *}" "${CUDA_ARCHS%% *}" all
for source in dev/emu/test_*.cu dev/test/test_*.cu; do
    [ "$source" = dev/emu/test_emu_nccl.cu ] && [ -z "$NCCL_LIBS" ] && continue
    check "$source" fp32 "${CUDA_ARCHS%% *}" all
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
