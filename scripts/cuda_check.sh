#!/bin/sh
# Compiles every .cu file with nvcc, warnings as errors, for each architecture (SASS and PTX), links it against cuBLASLt
# and, where it is found, NCCL, and lists what each kernel takes. Needs no GPU. Local memory in a hot kernel (one of a
# training step's) is a failure: spills, and a stack frame, as for an array or a parameter that is indexed by pointer.
#
#   make cuda-check                             the trainer in every precision for every architecture: CUDA_ARCH, or
#                                               80 89 90a 100a 120a; the other programs once
#   make cuda-check CHECK=quick                 bf16 for every architecture, the other precisions for one each
#   make cuda-check CHECK_PRECISIONS="bf16"     only these
#
# Environment: NVCC CXX CUDA_ARCHS PRECISIONS CHECK CHECK_JOBS (at a time: 2), and what to compile and link optional
# libraries with: PCRE2_FLAGS PCRE2_LIBS NCCL_FLAGS NCCL_LIBS.

cd "$(dirname "$0")/.." || exit 1
: "${CXX:=g++}" "${CUDA_ARCHS:=80 89 90a 100a 120a}" "${PRECISIONS:=fp32 tf32 bf16 fp16}" "${CHECK:=full}"
export CXX
[ -n "$NVCC" ] || { echo "no nvcc: set NVCC or CUDA_HOME"; exit 1; }
dir=$(mktemp -d "${TMPDIR:-/tmp}/train_gpt_cuda.XXXXXX") || exit 1
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM

# Kernels that a step spends its time in; what the emulators' own tests bring along is not among them.
hot='embedding_.*_kernel|layernorm_.*_kernel|attention_(forward|backward|dkv|dq|stats)|gelu_.*_kernel|column_sums'
hot="$hot|sum_partials|fused_classifier|global_norm|adamw_|matvec|quant_|linear_|bucket_|shard_"
# Of rows of more than 5,120 columns, where 1,024 threads leave 64 registers each: a few words of a thread are spilled.
cold='layernorm_backward_kernel<.*,_1024,_1>'

# compile SOURCE PRECISION ARCH
compile() {
    # shellcheck disable=SC2086
    "$NVCC" -std=c++17 -O3 -I. -DBUILD_NAME=cuda-check -DPRECISION_"$(echo "$2" | tr - _)" -DMASTER_fp32 \
        -DMOMENTS_fp32 $PCRE2_FLAGS $NCCL_FLAGS -Werror all-warnings --diag-suppress 1675 \
        -Xcompiler=-fopenmp,-ffp-contract=off,-fno-math-errno -ccbin "$CXX" -gencode "arch=compute_$3,code=sm_$3" \
        -gencode "arch=compute_$3,code=compute_$3" -Xptxas -v -o "$dir/program" "$1" -lcublasLt $NCCL_LIBS \
        $PCRE2_LIBS >"$dir/log" 2>&1
}

demangle() {
    for tool in cu++filt "$(dirname "$NVCC")/cu++filt" c++filt; do
        command -v "$tool" >/dev/null 2>&1 && exec "$tool" -p
    done
    exec cat
}

# ptxas's lines as: arch kernel registers shared stack spill-stores spill-loads
resources() {
    (demangle <"$dir/log") 2>/dev/null | awk '
        /Compiling entry function/ {
            match($0, /for .sm_[0-9a-z]+/); arch = substr($0, RSTART + 5, RLENGTH - 5)
            sub(/^[^\x27]*\x27/, ""); sub(/\x27 for .*/, ""); sub(/\(.*/, ""); gsub(/[ \t]+/, "_"); kernel = $0
        }
        /bytes stack frame/ { stack = stores = loads = 0
            for (i = 1; i < NF; i++) {
                if ($(i + 2) ~ /stack/) stack = $i
                if ($(i + 2) ~ /spill/ && $(i + 3) ~ /stores/) stores = $i
                if ($(i + 2) ~ /spill/ && $(i + 3) ~ /loads/) loads = $i } }
        /Used [0-9]+ registers/ { registers = shared = 0
            for (i = 1; i < NF; i++) {
                if ($(i + 1) ~ /^registers/) registers = $i
                if ($(i + 1) == "bytes" && $(i + 2) ~ /^smem/) shared = $i }
            print arch, kernel, registers, shared, stack, stores, loads }'
}

# check SOURCE PRECISION ARCH, whether spills matter: hot or any
check() {
    if ! compile "$1" "$2" "$3"; then
        echo "FAIL  $1 in $2 for $3"
        grep -E 'error|warning' "$dir/log" | head -n 20
        return
    fi
    resources >"$dir/table"
    printf '%-8s %9s %8s %6s %7s  %s\n' arch registers shared stack spills kernel
    awk '{ printf "%-8s %9d %8d %6d %7d  %s\n", $1, $3, $4, $5, $6 + $7, $2 }' "$dir/table" | sort -u
    memory=$(awk -v hot="$hot" -v cold="$cold" '$5 + $6 + $7 > 0 && $2 ~ hot && $2 !~ cold {
        print "    " $1, $2 ": " $5 " bytes of stack, spills: " $6 " stored, " $7 " loaded" }' "$dir/table" | sort -u)
    if [ -n "$memory" ] && [ "$4" = hot ]; then
        echo "FAIL  $1 in $2 for $3: local memory in hot kernels"
        echo "$memory"
    elif [ ! -s "$dir/table" ] && grep -q 'Compiling entry' "$dir/log"; then
        echo "FAIL  $1 in $2: nothing understood of what ptxas says"
    else
        echo "ok    $1 in $2 for $3: $(wc -l <"$dir/table") kernels"
    fi
}

# The architecture a precision is checked for when it is for one only: where its products are native.
home_of() {
    case $1 in
        fp8-row | fp8-delayed) home=90a ;;
        fp8-current | fp8-block | mxfp8) home=100a ;;
        nvfp4) home=120a ;;
        fp16) home=89 ;;
        *) home=80 ;;
    esac
    case " $CUDA_ARCHS " in *" $home "*) ;; *) home=${CUDA_ARCHS%% *} ;; esac
}

cases() {
    for precision in $PRECISIONS; do
        home_of "$precision"
        archs=$CUDA_ARCHS
        [ "$CHECK" = quick ] && [ "$precision" != bf16 ] && archs=$home
        for arch in $archs; do echo "train_gpt.cu $precision $arch hot"; done
        # The tests' kernels are the trainer's and other types of them: that they build is what counts.
        [ "$CHECK" = quick ] || echo "test_gpt.cu $precision $home any"
    done
    home_of bf16
    [ "$CHECK" != quick ] || echo "test_gpt.cu bf16 $home any"
    [ ! -e profile_gpt.cu ] || echo "profile_gpt.cu bf16 $home any"
    for source in dev/emu/test_*.cu dev/test/test_*.cu; do
        [ "$source" = dev/emu/test_emu_nccl.cu ] && [ -z "$NCCL_LIBS" ] && continue
        echo "$source fp32 $home any"
    done
}

# Cases run in processes of their own, CHECK_JOBS at a time; each shows its lines when it is done.
if [ "$1" = case ]; then
    check "$2" "$3" "$4" "$5" >"$dir/report"
    cat "$dir/report"
    exit
fi
export NVCC CUDA_ARCHS PRECISIONS CHECK PCRE2_FLAGS PCRE2_LIBS NCCL_FLAGS NCCL_LIBS
cases | xargs -P "${CHECK_JOBS:-2}" -L 1 sh scripts/cuda_check.sh case >"$dir/all"
cat "$dir/all"
wanted=$(cases | wc -l)
passed=$(grep -c '^ok ' "$dir/all")
echo "$passed passed, $((wanted - passed)) failed"
[ "$passed" -eq "$wanted" ]
