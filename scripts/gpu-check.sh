#!/usr/bin/env bash
# Runs every test that needs a GPU, then a part of them under compute-sanitizer, then 200 steps of training on text beside
# the CPU and PyTorch, and keeps a record.
# usage: scripts/gpu-check.sh [build folder [record folder [token shards]]]
#   build folder: one with the program and the tests built; where none is given, the preset cuda is built
#   record folder: gets gpu-check.txt and loss-curves.jsonl; docs/benchmarks/raw where none is given
#   token shards: a folder of carope data prepare; where none is given, the training is left out. It needs a Python
#     with PyTorch: $CAROPE_PYTHON, or python3
set -euo pipefail
cd "$(dirname "$0")/.."

if [ $# -gt 3 ] || [[ ${1-} == -* ]]; then
  sed -n '4,8s/^# //p' "$0" >&2
  exit 2
fi
build=${1:-build/cuda}
records=${2:-docs/benchmarks/raw}
shards=${3-}

if ! command -v nvidia-smi >/dev/null || ! nvidia-smi -L >/dev/null 2>&1; then
  echo "No GPU was found (nvidia-smi -L shows none): run this on a machine that has one." >&2
  exit 1
fi
if [ $# -eq 0 ]; then
  cmake --preset cuda
  cmake --build --preset cuda --target carope_program core_test cuda_ops_test cuda_model_test cuda_token_pass_test \
    attention_through_test golden_test
fi
tests=$(realpath --relative-to=. "$build")/tests
for program in core_test cuda_ops_test cuda_model_test cuda_token_pass_test attention_through_test golden_test; do
  if [ ! -x "$tests/$program" ]; then
    echo "$tests/$program is missing: build it, or give no build folder to have it built." >&2
    exit 1
  fi
done
# A machine may have the driver alone: then only the sanitizers cannot run.
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null || true)

mkdir -p "$records"
record=$records/gpu-check.txt
log=$(mktemp)
trap 'rm -f "$log"' EXIT
failures=0
export OMP_WAIT_POLICY=passive

note() { printf '%s\n' "$@" | tee -a "$record"; }

first_line() { "$@" 2>/dev/null | head -1 || true; }

# What a log says in a few lines: the counts of tests, the sanitizer's verdict and the largest errors.
summary() {
  sed -n '/^largest relative errors/,/^\[=====/p' "$log" | sed '/^\[=====/d'
  grep 'against' "$log" || true
  grep -E '^\[(=====|  PASSED|  SKIPPED|  FAILED).*|========= .*(SUMMARY|Error|Invalid|Uninit|hazard)' "$log" |
    sort | uniq -c | sort -rn | head -40 | sed 's/^ *1 //' || true
}

# Runs a command for at most so many seconds, and notes it, its time and what came of it. Tests that find no GPU skip
# themselves, and a filter may match none: here either is a failure.
check() {
  local limit=$1 status=0 start=$SECONDS said
  shift
  said=${*//"$tests"/tests}
  note "" "\$ ${said//"$sanitizer"/compute-sanitizer}"
  timeout "$limit" "$@" >"$log" 2>&1 || status=$?
  summary | tee -a "$record"
  if grep -qE 'no GPU is present|^\[=+\] (Running )?0 tests' "$log"; then
    status=skipped
  fi
  if [ "$status" != 0 ]; then
    failures=$((failures + 1))
    tail -n 40 "$log" >&2
  fi
  case $status in
    0) note "passed in $((SECONDS - start)) s" ;;
    124) note "FAILED: not done after $limit s" ;;
    skipped) note "FAILED: no tests were run, or one found no GPU" ;;
    *) note "FAILED with exit status $status after $((SECONDS - start)) s" ;;
  esac
}

: >"$record"
note "date:     $(date -u +%Y-%m-%d)"
note "commit:   $(first_line git describe --always --dirty)"
note "device:   $(nvidia-smi --query-gpu=name,memory.total --format=csv,noheader | head -1)"
note "driver:   $(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -1)"
note "compiler: $(sed -n 's/^CMAKE_CUDA_COMPILER_VERSION:[^=]*=//p;s/^set(CMAKE_CUDA_COMPILER_VERSION "\(.*\)")/CUDA \1/p' \
  "$build"/CMakeCache.txt "$build"/CMakeFiles/*/CMakeCUDACompiler.cmake 2>/dev/null | head -1), $(first_line c++ --version)"

check 120 "$tests/core_test" --gtest_brief=1
check 900 "$tests/cuda_ops_test" --gtest_brief=1
check 600 "$tests/cuda_model_test" --gtest_brief=1
check 600 "$tests/cuda_token_pass_test" --gtest_brief=1
check 300 "$tests/attention_through_test" --gtest_brief=1
check 300 "$tests/golden_test" --gtest_brief=1 '--gtest_filter=PyTorchOnCuda/*'

if [ -z "$sanitizer" ]; then
  note "" "FAILED: compute-sanitizer was not found; it comes with the CUDA toolkit"
  failures=$((failures + 1))
else
  # Every operation at the small shapes, and attention where tiles are full.
  operations='Sweep/CudaOps.MatchesReference/*:Training/CudaOps.MatchesReference/attention_*_own_B2_T1*_H2_D64'
  # Races need more time a launch: one type is enough where kernels are the same but for it.
  races='Sweep/CudaOps.MatchesReference/*_bf16_own_*:Sweep/CudaOps.MatchesReference/attention_f32*'
  races+=':Training/CudaOps.MatchesReference/attention_bf16_own_B2_T129_H2_D64'
  # The operations' tests fill all memory with NaN; what a model leaves unwritten shows in its own memory.
  models='*/CudaModel.*/carope_documents_D*:*/CudaModel.*/learnable_D*:*/CudaDecoding.*/carope_embedding_D64_*'
  training='*/CudaTraining.GivesTheSameBitsAgain/*'
  run=("$sanitizer" --error-exitcode 1 --print-limit 20 --tool)
  check 900 "${run[@]}" memcheck "$tests/cuda_ops_test" --gtest_brief=1 "--gtest_filter=$operations"
  check 600 "${run[@]}" memcheck "$tests/cuda_model_test" --gtest_brief=1 "--gtest_filter=$models"
  check 900 "${run[@]}" racecheck "$tests/cuda_ops_test" --gtest_brief=1 "--gtest_filter=$races"
  check 600 "${run[@]}" memcheck "$tests/cuda_token_pass_test" --gtest_brief=1 '--gtest_filter=*/carope_H4_D32'
  check 600 "${run[@]}" initcheck "$tests/cuda_model_test" --gtest_brief=1 "--gtest_filter=$models:$training"
fi

if [ -z "$shards" ]; then
  note "" "loss curves: left out, no token shards were given"
else
  check 900 "${CAROPE_PYTHON:-python3}" bench/loss_curves.py --data "$shards" --carope "$build/carope" \
    --out "$records/loss-curves.jsonl"
fi

note "" "$([ "$failures" -eq 0 ] && echo "all passed" || echo "$failures commands failed")"
[ "$failures" -eq 0 ]
