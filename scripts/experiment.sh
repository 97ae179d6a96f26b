#!/usr/bin/env bash
# The experiment of docs/results.md: trains and scores every run on a GPU, and repeats two of them in PyTorch.
# usage: scripts/experiment.sh [--seconds N] [--carope PROGRAM] [--data SHARDS] [--runs FOLDER] [step ...]
#   step: tiny, small, pytorch, report, pack, or publish; by default the first four
#   --seconds: stop politely after so long; the same command goes on where it stopped
#   --carope: by default build/cuda/carope
#   --data: a folder of carope data prepare with GPT-2's tokens; by default data/edu
#   --runs: by default runs; gets tiny-short, small-short, pytorch, and what report writes
# pack writes records.tgz into the folder of the runs: all of the runs but their weights. Unpacked there on another machine,
# what is done is not done again. publish puts tables, figures and records into docs/results, and the tables into the
# documents. The step pytorch needs a Python with PyTorch: $CAROPE_PYTHON, or python3.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=0 carope=build/cuda/carope data=data/edu runs=runs steps=()
while [ $# -gt 0 ]; do
  case $1 in
    --seconds | --carope | --data | --runs)
      [ $# -ge 2 ] || { echo "$1 has no value." >&2; exit 2; }
      declare "${1#--}=$2"
      shift
      ;;
    tiny | small | pytorch | report | pack | publish) steps+=("$1") ;;
    *)
      sed -n '3,11s/^# //p' "$0" >&2
      exit 2
      ;;
  esac
  shift
done
[ ${#steps[@]} -gt 0 ] || steps=(tiny small pytorch report)
start=$SECONDS

# Runs a command for what is left of the time. Programs that are asked to stop save what they have.
within_time() {
  if [ "$seconds" -eq 0 ]; then
    "$@"
    return
  fi
  local left=$((seconds - (SECONDS - start))) status=0
  [ "$left" -gt 0 ] && { timeout --signal=INT --kill-after=20 "$left" "$@" || status=$?; }
  if [ "$left" -le 0 ] || [ "$status" = 124 ] || [ "$status" = 137 ]; then
    echo "The time is over; the same command goes on where this one stopped." >&2
    exit 130
  fi
  return "$status"
}

# An encoding that cannot be trained keeps nobody from training others.
failures=0
reproduce() { within_time "$carope" reproduce --data.path "$data" "$@" || failures=$((failures + 1)); }

tiny() {
  # One seed of everything first, then two more of what the questions hang on.
  reproduce --preset tiny-short --out "$runs/tiny-short" --controls
  reproduce --preset tiny-short --out "$runs/tiny-short" --train.seed 2 --seeds 2 \
    --encodings carope,rope,learnable,sinusoidal,rope-2.08e7,carope-frozen,carope-literal,carope-embedding
}

small() { reproduce --preset small-short --out "$runs/small-short"; }

pytorch() {
  local encoding
  for encoding in rope carope; do
    [ -s "$runs/pytorch/$encoding-seed1.json" ] ||
      within_time "${CAROPE_PYTHON:-python3}" bench/peer_experiment.py train "$runs/tiny-short/$encoding-seed1" \
        --out "$runs/pytorch/$encoding-seed1.json"
  done
}

report() {
  local size
  for size in tiny small; do
    if [ -e "$runs/$size-short/experiment.json" ]; then
      "$carope" report "$runs/$size-short" --parts
    fi
  done
  if compgen -G "$runs/pytorch/*.json" >/dev/null; then
    "${CAROPE_PYTHON:-python3}" bench/peer_experiment.py table "$runs/tiny-short" "$runs"/pytorch/*.json \
      >"$runs/tiny-short/parts/pytorch.md"
  fi
}

unweighted=(--exclude=checkpoints --exclude=failed --exclude=tensorboard --exclude=parts --exclude=report.html)

pack() {
  local folders=() each
  for each in tiny-short small-short pytorch; do
    [ ! -e "$runs/$each" ] || folders+=("$each")
  done
  tar czf "$runs/records.tgz" "${unweighted[@]}" -C "$runs" "${folders[@]}"
  ls -l "$runs/records.tgz"
}

publish() {
  local size seed published=docs/results copy
  report
  copy=$(mktemp -d)
  trap 'rm -rf "$copy"' RETURN
  (cd "$runs" && tar c "${unweighted[@]}" tiny-short small-short) | tar x -C "$copy"
  # Where the data lay is nobody's business, what it is called may stay.
  find "$copy" -name config.toml -exec sed -i 's|^path = ".*/\([^/]*/[^/]*\)"$|path = "\1"|' {} +
  rm -rf "$published"
  for size in tiny small; do
    mkdir -p "$published/$size"
    cp "$runs/$size-short/results.json" "$runs/$size-short"/parts/* "$published/$size"
    for seed in 1 2 3; do
      if compgen -G "$copy/$size-short/*-seed$seed" >/dev/null; then
        (cd "$copy/$size-short" && tar c -- *-seed"$seed") | xz -9 >"$published/$size/records-seed$seed.tar.xz"
      fi
    done
  done
  if [ -d "$runs/pytorch" ]; then
    cp -r "$runs/pytorch" "$published/pytorch"
  fi
  "${CAROPE_PYTHON:-python3}" scripts/fill_tables.py docs/results.md README.md
}

for step in "${steps[@]}"; do
  "$step"
done
[ "$failures" -eq 0 ]
