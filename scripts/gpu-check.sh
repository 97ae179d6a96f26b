#!/usr/bin/env bash
# Runs every test that needs a GPU, then a part of them under compute-sanitizer, then compares gradients and 200 steps of
# training on text with the CPU's and PyTorch's, and keeps a record.
# usage: scripts/gpu-check.sh [--only parts] [build folder [record folder [token shards]]]
#   parts: of tests,memcheck,racecheck,initcheck,curves; without tests they are added to the record
#   build folder: one with the program and the tests built; where none is given, the preset cuda is built
#   record folder: gets gpu-check.txt and loss-curves-*.jsonl; docs/benchmarks/raw where none is given
#   token shards: a folder of carope data prepare; where none is given, the training is left out. It needs a Python
#     with PyTorch: $CAROPE_PYTHON, or python3
set -euo pipefail
cd "$(dirname "$0")/.."

parts='tests memcheck racecheck initcheck curves'
only=$parts
if [ "${1-}" = --only ]; then
  only=${2-}
  only=${only//,/ }
  shift $(($# < 2 ? $# : 2))
fi
unknown=$(tr -s ' ' '\n' <<<"$only" | grep -vxE "${parts// /|}" || true)
if [ $# -gt 3 ] || [[ ${1-} == -* ]] || [ -z "$only" ] || [ -n "$unknown" ]; then
  sed -n '4,9s/^# //p' "$0" >&2
  exit 2
fi
has() { [[ " $only " == *" $1 "* ]]; }
build=${1:-build/cuda}
records=${2:-docs/benchmarks/raw}
shards=${3-}

if ! command -v nvidia-smi >/dev/null || ! nvidia-smi -L >/dev/null 2>&1; then
  echo "No GPU was found (nvidia-smi -L shows none): run this on a machine that has one." >&2
  exit 1
fi
programs=(core_test cuda_ops_test cuda_model_test cuda_pick_test cuda_training_test
  cuda_commands_test attention_rotates_test attention_through_test golden_test train_test dist_test)
if [ $# -eq 0 ]; then
  cmake --preset cuda
  cmake --build --preset cuda --target carope_program "${programs[@]}"
fi
tests=$(realpath --relative-to=. "$build")/tests
for program in "${programs[@]}"; do
  if [ ! -x "$tests/$program" ]; then
    echo "$tests/$program is missing: build it, or give no build folder to have it built." >&2
    exit 1
  fi
done
# A machine may have the driver alone: then only the sanitizers cannot run.
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null || true)

mkdir -p "$records"
record=$records/gpu-check.txt
# What each command has to say, in the order of the commands; they run several at once, since most of their time is the
# CPU's. One that runs has a file besides, and one that failed leaves one.
said=$(mktemp -d)
keep_record() {
  local running entry
  running=$(jobs -rp | paste -sd,)
  [ -z "$running" ] || pkill -P "$running" || true  # their time limits, which end all that they started
  for entry in "$said"/???.runs; do
    [ ! -e "$entry" ] || echo "FAILED: not done when the whole check was ended" >>"${entry%.runs}"
  done
  cat "$said"/??? >>"$record"
  rm -rf "$said"
}
trap keep_record EXIT
trap 'trap "" TERM INT; exit 143' TERM INT  # a second signal must not end what keeps the record
count=0
at_once=$(($(nproc) / 4 + 1))
operations=nothing
export OMP_WAIT_POLICY=passive

next() { count=$((count + 1)) && entry=$said/$(printf %03d "$count"); }

note() { next && printf '%s\n' "$@" | tee "$entry"; }

failed() { : >"$entry.failed" && printf 'FAILED: %s\n' "$1"; }

first_line() { "$@" 2>/dev/null | head -1 || true; }

# What a log says in a few lines: the counts of tests, the sanitizer's verdict and the largest errors.
summary() {
  sed -n '/^largest relative errors/,/^\[=====/{/^\[=====/d;/^largest/d;/^operation/d;p}' "$log" |
    awk '!($1 in f) || $2 + 0 > f[$1] + 0 { f[$1] = $2 } !($1 in g) || $3 + 0 > g[$1] + 0 { g[$1] = $3 }
      END { for (name in f) printf "%-28s%12s%12s\n", name, f[name], g[name] }' | sort |
    sed '1i largest relative errors: operation, forward, gradient'
  grep -E 'against|^all |seed|: as exact|LESS EXACT|^OWN RACE' "$log" || true
  grep -E '^\[(=====|  PASSED|  SKIPPED|  FAILED).*|========= .*(SUMMARY|Error|Invalid|Uninit|hazard)' "$log" |
    sort | uniq -c | sort -rn | head -40 | sed 's/^ *1 //' || true
}

# Runs a command's tests in so many processes at once: what the GPU is compared with is computed on the CPU.
in_shards() {
  local count=$1 status=0 of=() shard
  shift
  export OMP_NUM_THREADS=$((($(nproc) + count - 1) / count)) GTEST_TOTAL_SHARDS=$count
  for ((shard = 0; shard < count; ++shard)); do
    GTEST_SHARD_INDEX=$shard "$@" >"$log.$shard" 2>&1 &
    of+=($!)
  done
  for shard in "${!of[@]}"; do
    wait "${of[shard]}" || status=$?
    cat "$log.$shard"
  done
  return "$status"
}
export -f in_shards

# Which patterns of a command's filter no test of its program has: a case that is called otherwise would drop out unseen. Of a
# case in fp32 and in bf16 one is enough, since not every operation has both.
unmatched() {
  local word program='' filter='' names pattern regex
  for word in "$@"; do
    case $word in
      "$tests"/*) program=$word ;;
      --gtest_filter=*) filter=${word#*=} ;;
    esac
  done
  [ -n "$filter" ] || return 0
  names=$("$program" --gtest_list_tests | awk '/^[^ ]/ { suite = $1; next } { print suite $1 }')
  while read -r pattern; do
    regex=$(sed -E 's/[.+]/\\&/g; s/\*/.*/g; s/\?/./g; s/_(f32|bf16)_own_/_(f32|bf16)_own_/' <<<"$pattern")
    grep -qxE -- "$regex" <<<"$names" || echo "  $pattern"
  done < <(tr : '\n' <<<"$filter")
}

# Runs a command for at most so many seconds, and notes it, its time and what came of it. Tests that find no GPU or NCCL skip
# themselves, and a pattern of a filter may match none: here either is a failure.
check() {
  while [ "$(jobs -rp | wc -l)" -ge "$at_once" ]; do
    wait -n || true
  done
  next
  echo "begins: $(shown "${@:3}")" >&2
  : >"$entry.runs"
  { check_now "$@" >"$entry" 2>&1; rm -f "$entry.runs"; cat "$entry"; } &
}

# A command as the record has it.
shown() {
  local command=${*//"$tests"/tests}
  command=${command//"$operations"/<a case or two of every operation>}
  command=${command//" $build/"/ build/}
  command=${command//" $records/"/ records/}
  command=${command//" $shards "/ shards }
  command=${command/#"${python:-nothing} "/python3 }
  echo "${command//"$sanitizer"/compute-sanitizer}"
}

check_now() {
  local limit=$1 processes=$2 status=0 start=$SECONDS missing
  shift 2
  export log=$entry.log
  printf '\n$ %s (%s processes)\n' "$(shown "$@")" "$processes"
  timeout "$limit" bash -c 'in_shards "$@"' - "$processes" "$@" >"$log" 2>&1 || status=$?
  summary
  if grep -qE 'no GPU is present|built without NCCL|^\[=+\] (Running )?0 tests' "$log"; then
    status=skipped
  fi
  missing=$(unmatched "$@")
  if [ -n "$missing" ] && [ "$status" = 0 ]; then
    status=missing
  fi
  case $status in
    0) echo "passed in $((SECONDS - start)) s" ;;
    124) failed "not done after $limit s" ;;
    skipped) failed "no tests were run, or one found no GPU or no NCCL" ;;
    missing) failed "no test is called
$missing" ;;
    *) failed "exit status $status after $((SECONDS - start)) s" ;;
  esac
  if [ "$status" != 0 ]; then
    tail -n 40 "$log"
  fi
}

if has tests; then
  : >"$record"
fi
note "" "parts:    $only"
note "date:     $(date -u +%Y-%m-%d)"
note "commit:   $(first_line git describe --always --dirty)"
note "device:   $(nvidia-smi --query-gpu=name,memory.total --format=csv,noheader | head -1)"
note "driver:   $(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -1)"
note "compiler: $(sed -n 's/^CMAKE_CUDA_COMPILER_VERSION:[^=]*=//p;s/^set(CMAKE_CUDA_COMPILER_VERSION "\(.*\)")/CUDA \1/p' \
  "$build"/CMakeCache.txt "$build"/CMakeFiles/*/CMakeCUDACompiler.cmake 2>/dev/null | head -1), $(first_line c++ --version)"

if has tests; then
  # It asks for all of the GPU's memory, so the others begin after it.
  check 180 1 "$tests/train_test" --gtest_brief=1 --gtest_filter=TrainingOnGpu.SaysWhatWouldFit
  wait
fi

if [ "$only" = curves ] && [ -z "$shards" ]; then
  echo "The part curves needs token shards: name their folder as the third argument." >&2
  exit 2
elif has curves && [ -z "$shards" ]; then
  note "" "loss curves: left out, no token shards were given"
  only=${only/curves/}
elif has curves; then
  python=${CAROPE_PYTHON:-python3}
  for model in small gpt-small; do
    same=(--data "$shards" --carope "$build/carope" --models "$model")
    check 600 1 "$python" bench/gradient_errors.py "${same[@]}"
    seeds=6
    if [ "$model" = gpt-small ]; then
      seeds=3  # PyTorch takes up to 28 GiB for each, and 42 for gradients in fp64 beside them
    fi
    check 900 1 "$python" bench/loss_curves.py "${same[@]}" --at-once "$seeds" --out "$records/loss-curves-$model.jsonl"
  done
fi

if has tests; then
  check 300 1 "$tests/core_test" --gtest_brief=1
  check 900 4 "$tests/cuda_ops_test" --gtest_brief=1
  check 600 4 "$tests/cuda_model_test" --gtest_brief=1
  check 300 1 "$tests/cuda_pick_test" --gtest_brief=1
  check 300 4 "$tests/cuda_training_test" --gtest_brief=1
  check 300 4 "$tests/attention_rotates_test" --gtest_brief=1
  check 300 4 "$tests/attention_through_test" --gtest_brief=1
  check 300 1 "$tests/golden_test" --gtest_brief=1 '--gtest_filter=PyTorchOnCuda/*'
  check 300 1 "$tests/train_test" --gtest_brief=1 '--gtest_filter=TrainingOnGpu.GoesOn*'
  check 300 1 "$tests/cuda_commands_test" --gtest_brief=1
  check 300 1 "$tests/dist_test" --gtest_brief=1 '--gtest_filter=OneGpu.*'
fi

# Runs racecheck, which also takes how cuBLASLt's kernels hand on tiles for races: those in other kernels are failures.
own_races() {
  local found own status=0
  found=$(mktemp "$log.XXXX")
  "$@" >"$found" 2>&1 || status=$?
  cat "$found"
  own=$(grep 'Race reported' "$found" | grep -vE ' at (nvjet_|cutlass|void cutlass)' || true)
  if [ -n "$own" ]; then
    sed 's/^/OWN RACE: /' <<<"$own"
    status=1
  fi
  return "$status"
}
export -f own_races

# A tool's run of some tests.
sanitize() {
  local tool=$1 limit=$2 processes=$3 program=$4 filter=$5 run=("$sanitizer" --error-exitcode 1 --print-limit 20)
  if [ "$tool" = racecheck ]; then
    run=(own_races "$sanitizer" --print-limit 100000)  # all of them: one of ours may be the last
  fi
  check "$limit" "$processes" "${run[@]}" --tool "$tool" "$tests/$program" --gtest_brief=1 "--gtest_filter=$filter"
}

if [ -z "$sanitizer" ] && [[ $only == *check* ]]; then
  note "" "FAILED: compute-sanitizer was not found; it comes with the CUDA toolkit"
  : >"$entry.failed"
  for part in memcheck racecheck initcheck; do
    only=${only/$part/}
  done
elif [[ $only == *check* ]]; then
  note "sanitizer: $("$sanitizer" --version | grep -i version | head -1)"
fi

# A case or two of every operation, in fp32 and in bf16, so that each kernel runs; joined into a filter below.
some_of_all='
  Sweep linear rows65_in33_out130 rows1_in72_out37 rows19_in21_out32_by_row rows2_in8_out8201_no_bias
  Sweep mlp rows70_width12_hidden70_scale1 rows70_width13_hidden71_scale1_by_row
  Sweep gelu rows70_*
  Sweep layer_norm rows130_width33 rows17_width24 rows9_width1000
  Sweep residual_norm rows130_in5_width33 rows17_in32_width24_accumulate rows4_in24_width64_by_row
  Sweep gated_norm rows7_width40_heads12 rows8_width40_heads20 rows8_width40_heads40
  Sweep embedding B3_T65_*
  Sweep add_positions B2_T17_documents_*_positions20
  Sweep add_sinusoid B2_T17_documents_*_width10
  Sweep cross_entropy rows65_*
  Sweep classifier rows130_* rows10_width6_classes19_chunk4_ignore3_accumulate
  Sweep rotary B1_T20_documents_0_9_H2_P32_* B2_T17_H3_P5_base100
  Sweep carope B1_T20_documents_0_9_H2_P32_*exponent0 B1_T65_H3_P9_chunk7_exponent1 B1_T130_H1_P32_chunk64_exponent0
  Sweep carope_pieces B3_T30_H2_P5_chunk7_*
  Sweep attention B2_T65_H3_D5 B2_T65_H3_D5_slopes B1_T70_H2_D16_scale4 B2_T200_documents_* B2_T9_H2_D64
  Sweep attention_cached B2_T130_H3_D6_pieces_* B2_T17_H3_D6_slopes_pieces_9_1_1_6
  Sweep gate rows17_in20_out9_no_bias rows300_in7_out2_by_row rows4_in700_out3_no_bias
  Sweep scores rows17_in20_out9_no_bias rows19_in21_out33_no_bias_by_row
  Sweep adamw 40003_* 100_*
  Sweep gradient_norm 5_40003_*
  Sweep sum *
  Training attention B2_T128_H2_D64 B2_T129_H2_D64 B2_T130_H2_D128
  Training attention_cached B2_T544_H3_D64_* B2_T603_H3_D128_*
  Training mlp rows256_* rows512_* rows1024_*
  Training classifier rows512_width512_*
  Training gated_norm rows100_width768_heads12
  Training gate rows700_in768_out19
'
operations=''
while read -r suite operation cases; do
  read -ra cases <<<"$cases"
  for case in "${cases[@]}"; do
    operations+=:$suite/CudaOps.MatchesReference/${operation}_f32_own_$case
    operations+=:$suite/CudaOps.MatchesReference/${operation}_bf16_own_$case
  done
done < <(sed '/^$/d' <<<"$some_of_all")
operations=${operations#:}
# The attention that rotates, with every input it takes, where blocks use each place in shared memory again.
rotates='*/RotatesOnGpu.*StepByStep/B3_T384_H1:*/RotatesOnGpu.*StepByStep/B23_T256_H12'
through='*/ThroughOnGpu.*StepByStep/B3_T384_H1:*/ThroughOnGpu.*StepByStep/B12_T128_H12'
picks='CudaPick.G*:CudaPick.Names*'
whole_tiles='*/WholeTiles.L*/carope_B2_T512_H8'
step='*/TrainingStep.GivesTheSameBitsAgain/carope_B4_T128_H4'
models='*/CudaModel.L*/carope_documents_D*:*/CudaModel.L*/learnable_D*'

# The longest first, so that all end together.
if has racecheck; then
  sanitize racecheck 420 4 cuda_ops_test "$operations"
  sanitize racecheck 240 1 cuda_training_test "$step"
  sanitize racecheck 240 2 attention_rotates_test "$rotates"
  sanitize racecheck 240 2 attention_through_test "$through"
fi
if has initcheck; then
  # The operations' tests fill all memory with NaN; what a model leaves unwritten shows in its own memory. In fp32
  # alone: of products in bf16 the tool does not see what their tiles' copies to memory write, up to CUDA 13.0
  # (CudaModel.ReadsOnlyWhatItHasWritten is about both).
  note "" "initcheck: models in fp32 alone; it does not see what cuBLASLt's products in bf16 write (copies of tiles)"
  sanitize initcheck 240 2 attention_rotates_test "$rotates"
  sanitize initcheck 240 2 attention_through_test "$through"
  sanitize initcheck 420 4 cuda_model_test \
    '*/CudaModel.L*/carope_documents_D*_f32:*/CudaModel.L*/learnable_D*_f32:*/CudaDecoding.P*/carope_embedding_D64_f32'
fi
if has memcheck; then
  sanitize memcheck 300 4 cuda_ops_test "$operations"
  sanitize memcheck 120 2 attention_rotates_test "$rotates"
  sanitize memcheck 120 2 attention_through_test "$through"
  sanitize memcheck 240 4 cuda_model_test "$models:*/CudaDecoding.PiecesEqual*/carope_embedding_D64_*"
  sanitize memcheck 240 1 cuda_pick_test "$picks"
  sanitize memcheck 240 2 cuda_training_test "$whole_tiles:$step"
fi

not_run=''
for part in $parts; do
  has "$part" || not_run+=" $part"
done
wait
failures=$(find "$said" -name '*.failed' | wc -l)
if [ "$failures" -gt 0 ]; then
  note "" "$failures commands failed${not_run:+; NOT RUN:$not_run}"
elif [ -n "$not_run" ]; then
  note "" "what was run has passed; NOT RUN:$not_run"
else
  note "" "all passed"
fi
[ "$failures" -eq 0 ]
