#!/bin/sh
# scripts/validate_gpu.sh rehearsed on the emulator: every step of the day there is a GPU has run before it. Then what
# must not be taken for success: a step that fails, hangs, or finds no time left.
#
#   make test TESTS=validate                        in one precision of each kind
#   make test TESTS=validate VALIDATE_MODES=all     in all of them

cd "$(dirname "$0")/../.." || exit 1
dir=$(mktemp -d "${TMPDIR:-/tmp}/train_gpt_validate.XXXXXX") || exit 1
trap 'rm -rf "$dir"' EXIT
. dev/test/check_lib.sh

case $BUILD in *-sanitize*) skip "the rehearsal: run by the build without sanitizers"; summary ;; esac
ls build/emulated/profile_gpt_* >/dev/null 2>&1 || { skip "the rehearsal: no emulated programs (no C++ compiler)"; summary; }

# What stands in for llm.c: its make target and the last words of its step line.
mkdir "$dir/llm.c" "$dir/hangs"
printf 'train_gpt2cu:\n\t@true\n' | tee "$dir/llm.c/Makefile" >"$dir/hangs/Makefile"
printf '#!/bin/sh\necho "step   12/12 | loss 5.1 | 140.11 ms | 38.0%% bf16 MFU | 467775 tok/s"\n' >"$dir/llm.c/train_gpt2cu"
printf '#!/bin/sh\nsleep 100\n' >"$dir/hangs/train_gpt2cu"
chmod +x "$dir/llm.c/train_gpt2cu" "$dir/hangs/train_gpt2cu"

report=$dir/out/gpu_report.md
check "the rehearsal passes" scripts/validate_gpu.sh --rehearse --out "$dir/out" --llmc "$dir/llm.c" \
    --modes "${REHEARSED:=bf16}"
for mode in $REHEARSED; do
    check "$mode: tested, and a step profiled" grep -q "^| test_$mode | ok" "$report"
    check "$mode: a row of the table" grep -Eq "^\| $mode \| [0-9,]+ \| [0-9]+ \| [02] \| [0-9.]+ \| [0-9]+ \|" "$report"
done
check "and one with GELU within its products" \
    grep -Eq '^\| [a-z0-9]+, GELU within products \| [0-9,]+ \| [0-9]+ \| 0 \| [0-9.]+ \| [0-9]+ \|' "$report"
check "whose operations say so" grep -Eq '^ *matmul_backward_input_gelu [0-9x]+ over [0-9]+ +[0-9]+ +[0-9.]+' "$report"
check "each operation has its time and bandwidth" grep -Eq '^ *adamw +1 +[0-9.]+ +[0-9.]+% +[0-9.]+ ' "$report"
check "llm.c's speed stands beside" grep -q '^| llm.c bf16 | d12 | 4 | | | 467775 |' "$report"

check "without --modes it is every precision" \
    sh -c 'make -s --no-print-directory gpu-precisions | grep -q "^fp32 tf32 bf16 fp16 fp8-delayed .*nvfp4$"'

# What the trainer warns of (fp8_pays_from_channels) is what bytes and flops say: delayed scaling gains 3 % from C=512 on.
paper_ms() { mode=$1 model=$2; shift 2; "build/emulated/profile_gpt_$mode" paper "$model" 16 1024 "$@" | sed -n 's/^| \*\*sum.* \*\*[0-9.]* \/ \([0-9.]*\)\*\* | \*\*.*/\1/p'; }
gains() { awk -v a="$(paper_ms bf16 "$1")" -v b="$(paper_ms fp8-delayed "$1")" 'BEGIN { exit !(a > 0 && b > 0 && a > 1.03 * b) }'; }
loses() { awk -v a="$(paper_ms bf16 "$1")" -v b="$(paper_ms fp8-delayed "$1")" 'BEGIN { exit !(a > 0 && b > 0 && a <= 1.03 * b) }'; }
fused_gains() { awk -v a="$(paper_ms bf16 d12)" -v b="$(paper_ms bf16 d12 --gelu-fusion 2)" 'BEGIN { exit !(b > 0 && a > 1.03 * b) }'; }
[ ! -x build/emulated/profile_gpt_bf16 ] || check "on paper GELU within products gains at d12" fused_gains
if [ -x build/emulated/profile_gpt_fp8-delayed ]; then
    check "on paper fp8-delayed gains at 512 channels" gains 12,8,512,50257
    check "on paper it does not at 384" loses 12,6,384,50257
fi

# A Blackwell has fp4 products, but for the cuBLAS whose results are known to be wrong.
fp4_products() { EMU_CC=120 EMU_CUBLAS=$1 build/emulated/profile_gpt_nvfp4 paper 2,4,64,67 4 64 | grep -q "products $2"; }
if [ -x build/emulated/profile_gpt_nvfp4 ]; then
    check "fp4 products are native" fp4_products 130401 native
    check "with cuBLAS 13.4.0 they are emulated" fp4_products 130400 emulated
fi

fails() { scripts/validate_gpu.sh --rehearse "$@" >"$dir/fails.out" 2>&1; [ $? -eq 1 ]; }
check "a precision that does not build fails" fails --out "$dir/out" --modes "bf16 fp7"
check "and it is named, with the rest untouched" \
    sh -c 'grep -q "^| build_fp7 | FAILED" "$1" && grep -q "^| test_fp7 | FAILED" "$1" && grep -q "^| two_runs | ok" "$1"' - "$report"
check "what has passed is not run again" sh -c '! grep -q "^ok    " "$1"' - "$dir/fails.out"
rm -f "$dir"/out/steps/llmc*
check "a step that hangs is stopped" fails --out "$dir/out" --modes bf16 --llmc "$dir/hangs" --budget 4
check "and it is named" grep -q '^| llmc_d12 | FAILED: time limit' "$report"
check "no time left is no success" fails --out "$dir/late" --modes bf16 --budget 1
check "and it is named, step by step" grep -q '^| two_runs | not run: budget' "$dir/late/gpu_report.md"
summary
