#!/usr/bin/env bash
# Compares the weights that this program and an older one make: builds both, trains the demonstration's four runs with
# each, and compares every checkpoint's weights and optimizer state byte by byte.
# usage: scripts/same-bits.sh [COMMIT]     COMMIT: the older program, by default the commit before the working tree's
# Takes about two builds and two demonstrations. Keeps everything in build/same-bits.
set -euo pipefail
cd "$(dirname "$0")/.."
commit=$(git rev-parse --short "${1:-HEAD^}")
folder=$PWD/build/same-bits
old=$folder/$commit

mkdir -p "$folder"
if [ ! -d "$old" ]; then
  git clone --quiet . "$old"
  git -C "$old" checkout --quiet "$commit"
fi
for tree in "$old" "$PWD"; do
  echo "== Building $tree"
  (cd "$tree" && cmake --preset release -DCAROPE_CUDA=OFF -DCAROPE_TESTS=OFF -DCAROPE_BENCH=OFF -B "$folder/build-$(basename "$tree")" >/dev/null)
  cmake --build "$folder/build-$(basename "$tree")" --target carope_program
done

for tree in "$old" "$PWD"; do
  name=$(basename "$tree")
  rm -rf "$folder/runs-$name"
  echo "== Training with $name"
  "$folder/build-$name/carope" reproduce --out "$folder/runs-$name"
done

echo "== Comparing"
status=0
files=$(cd "$folder/runs-$commit" && find . -name '*.safetensors' | sort)
if [ -z "$files" ] || [ "$files" != "$(cd "$folder/runs-$(basename "$PWD")" && find . -name '*.safetensors' | sort)" ]; then
  echo "The two programs did not leave the same checkpoints, or left none." >&2
  exit 1
fi
while IFS= read -r file; do
  if cmp --quiet "$folder/runs-$commit/$file" "$folder/runs-$(basename "$PWD")/$file"; then
    echo "same bits    $file"
  else
    echo "OTHER BITS   $file"
    status=1
  fi
done <<<"$files"
exit $status
