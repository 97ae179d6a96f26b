#!/usr/bin/env bash
# The experiment of docs/results.md: trains and scores every run on a GPU, and repeats some of them in PyTorch.
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
  [ "$left" -gt 0 ] && { timeout --foreground --signal=INT --kill-after=20 "$left" "$@" || status=$?; }
  if [ "$left" -le 0 ] || [ "$status" = 124 ] || [ "$status" = 137 ]; then
    echo "The time is over; the same command goes on where this one stopped." >&2
    exit 130
  fi
  return "$status"
}

# An encoding that cannot be trained keeps nobody from training others; somebody who interrupts wants all to stop.
failures=0
reproduce() {
  local status=0
  within_time "$carope" reproduce --data.path "$data" "$@" || status=$?
  [ "$status" != 130 ] || exit 130
  [ "$status" = 0 ] || failures=$((failures + 1))
}

tiny() {
  # One seed of everything first, then two more of what the questions hang on.
  reproduce --preset tiny-short --out "$runs/tiny-short" --controls
  reproduce --preset tiny-short --out "$runs/tiny-short" --train.seed 2 --seeds 2 \
    --encodings carope,rope,learnable,sinusoidal,rope-2.08e7,carope-frozen,carope-literal,carope-embedding
}

small() { reproduce --preset small-short --out "$runs/small-short"; }

repeat() {
  [ -s "$runs/pytorch/$1-seed1.json" ] ||
    within_time "${CAROPE_PYTHON:-python3}" bench/peer_experiment.py "$runs/tiny-short/$1-seed1" --lengths "$2" \
      --out "$runs/pytorch/$1-seed1.json"
}

pytorch() {
  repeat rope 512,1024
  repeat carope 512,1024
  repeat learnable 512
}

report() {
  local size
  for size in tiny small; do
    if [ -e "$runs/$size-short/experiment.json" ]; then
      rm -rf "$runs/$size-short/parts"
      "$carope" report "$runs/$size-short" --parts
    fi
  done
  if [ -d "$runs/tiny-short/parts" ] && compgen -G "$runs/pytorch/*.json" >/dev/null; then
    python3 bench/peer_table.py "$runs/tiny-short" "$runs"/pytorch/*.json >"$runs/tiny-short/parts/pytorch.md"
  fi
}

unweighted=(--exclude=checkpoints --exclude=failed --exclude=tensorboard --exclude=parts --exclude=report.html)

# Which of some folders of runs there are.
present() {
  local each
  for each in "$@"; do
    [ ! -e "$runs/$each" ] || echo "$each"
  done
}

pack() {
  local folders
  mapfile -t folders < <(present tiny-short small-short pytorch)
  [ ${#folders[@]} -gt 0 ] || { echo "$runs has no runs to pack; name their folder with --runs." >&2; exit 1; }
  # Under its name only when it is whole.
  tar czf "$runs/records.tgz.part" "${unweighted[@]}" -C "$runs" "${folders[@]}"
  mv "$runs/records.tgz.part" "$runs/records.tgz"
  ls -l "$runs/records.tgz"
}

publish() {
  local folders folder size seed also
  mapfile -t folders < <(present tiny-short small-short)
  [ ${#folders[@]} -gt 0 ] || { echo "$runs has no runs to publish; name their folder with --runs." >&2; exit 1; }
  report
  copy=$(mktemp -d)
  trap 'rm -rf "$copy"' EXIT
  (cd "$runs" && tar c "${unweighted[@]}" "${folders[@]}") | tar x -C "$copy"
  # Where the data lay is nobody's business, what it is called may stay.
  find "$copy" -name config.toml -exec sed -i 's|^path = ".*/\([^/]*/[^/]*\)"$|path = "\1"|' {} +
  for folder in "${folders[@]}"; do
    size=${folder%-short}
    mkdir -p "$copy/results/$size"
    cp "$runs/$folder/results.json" "$runs/$folder"/parts/* "$copy/results/$size"
    for seed in 1 2 3; do
      if compgen -G "$copy/$folder/*-seed$seed" >/dev/null; then
        also=()
        [ "$seed" -gt 1 ] || also=(experiment.json)  # which says what runs there are, in which order
        # The same runs give the same bytes, so that publishing again changes only what is new.
        (cd "$copy/$folder" &&
          tar c --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -- "${also[@]}" *-seed"$seed") |
          xz -9 >"$copy/results/$size/records-seed$seed.tar.xz"
      fi
    done
  done
  if [ -d "$runs/pytorch" ]; then
    cp -r "$runs/pytorch" "$copy/results/pytorch"
  fi
  mkdir -p docs/results
  local lost
  lost=$(comm -23 <(cd docs/results && find . -type f | sort) <(cd "$copy/results" && find . -type f | sort))
  if [ -n "$lost" ]; then
    printf '%s\n' "$lost" "These are in docs/results, but not in what the runs in $runs give: unpack the records of the others there," \
      "or delete what is to go." >&2
    exit 1
  fi
  rm -rf docs/results
  cp -r "$copy/results" docs/results
  python3 scripts/fill_tables.py docs/results.md README.md
}

for step in "${steps[@]}"; do
  "$step"
done
[ "$failures" -eq 0 ]
