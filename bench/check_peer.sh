#!/usr/bin/env bash
# Shows that bench/peer is the same model as ours: from the same weights, on the same batches, ten steps in fp32 on the
# CPU must have the same losses with every encoding but ALiBi, which it does not have.
#
# usage: bench/check_peer.sh [BUILD] [PYTHON]      by default build/release and python3, which must have PyTorch
set -euo pipefail

bench=$(cd "$(dirname "$0")" && pwd)
carope=$(realpath "${1:-$bench/../build/release}")/carope
python=${2:-python3}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
trap 'cat "$folder/log" >&2' ERR
cd "$folder"

"$carope" data synth --tokens 100k --out book.jsonl &>log
"$carope" tokenizer train --vocab 1000 --out tokenizer.json book.jsonl &>log
"$carope" data prepare --tokens 12k --tokenizer tokenizer.json --out data book.jsonl &>log

# Three layers and a batch of three parts, so that an accumulation or a layer that is left out shows; a gate that starts
# far from RoPE, so that what is wrong with it, or with how it learns, shows within ten steps. In shuffled order, and
# more windows than the text has, so that another order shows, of the second epoch too.
settings=(--data.path "$folder/data" --data.order shuffled --model.layers 3 --model.heads 4 --model.width 64
  --model.vocabulary 1024 --model.length 96 --train.batch_tokens 1728 --train.micro_batch 6 --train.warmup_steps 3)
for encoding in learnable sinusoidal rope carope none; do
  position=(--position.encoding "$encoding")
  [[ $encoding == carope ]] && position+=(--position.weight_deviation 0.2)
  "$carope" train --out "init-$encoding" "${settings[@]}" "${position[@]}" --train.tokens 1728 \
    --train.learning_rate 0 --train.final_learning_rate 0 &>log
  "$carope" train --out "run-$encoding" "${settings[@]}" "${position[@]}" --train.tokens 17280 \
    --train.learning_rate 2e-3 --train.final_learning_rate 1e-3 &>log
  "$python" "$bench/peer_losses.py" "run-$encoding" \
    --init "init-$encoding/checkpoints/step-00000001/model.safetensors" \
    --device cpu --fp32 --compile-mode none --tolerance 1e-5 >/dev/null
done
