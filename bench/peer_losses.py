"""Trains in PyTorch what a run of this program trained, from the same weights on the same batches.

usage: python bench/peer_losses.py RUN --init WEIGHTS.safetensors [--fp32] [--steps 200] [--tolerance 1e-4]

RUN is a folder of carope train: its config.toml says what to do, its metrics.jsonl has the losses. A run of one step
with --train.learning_rate 0 --train.final_learning_rate 0 and the same seed leaves the initial weights in its
checkpoint. Prints one JSON line a step with both losses, and ends with status 1 if they differ by more than the
tolerance.
"""

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

from peer.data import read_config, training_batches
from peer.model import ENCODINGS, Shape
from peer.trainer import COMPILE_MODES, AdamW, Method, Trainer

# What peer.model does. Options of an encoding that are not named here make no difference to it.
POSITION = {"base": 10000.0, "bias": True, "decay": True, "exponent_start": 0, "frozen": False}
POSITION |= {"layout": "half", "source": "hidden", "scale": 0.02 * math.sqrt(2)}


def check_settings(config: dict[str, dict[str, Any]]) -> None:
    position, data = config["position"], config["data"]
    known = sorted(POSITION.keys() & position)
    wrong = [f"position.{key} = {position[key]}" for key in known if position[key] != POSITION[key]]
    if position["encoding"] not in ENCODINGS:
        wrong.append(f"position.encoding = {position['encoding']}")
    if position.get("positions", config["model"]["length"]) != config["model"]["length"]:
        wrong.append(f"position.positions = {position['positions']}")
    if data["documents"]:
        wrong.append(f"data.documents = {data['documents']}")
    if wrong:
        raise SystemExit(f"the PyTorch model knows no {'; '.join(wrong)}; train without these settings")


def learning_rate(train: dict[str, Any], step: int, steps: int) -> float:
    """Of a step, from 0: linear up to the highest, then a cosine down to the final."""
    highest, final, warmup = train["learning_rate"], train["final_learning_rate"], train["warmup_steps"]
    if step < warmup:
        return highest * (step + 1) / warmup
    part = min((step - warmup) / max(steps - warmup - 1, 1), 1.0)
    return final + 0.5 * (1 + math.cos(math.pi * part)) * (highest - final)


def losses_of(run: Path) -> list[float]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def make_trainer(config: dict[str, dict[str, Any]], init: Path | None, method: Method) -> Trainer:
    shape, train, optimizer = Shape.of(config["model"]), config["train"], config["optimizer"]
    encoding, batches, adamw = config["position"]["encoding"], training_batches(config), AdamW(**optimizer)
    return Trainer(shape, encoding, batches, train["micro_batch"], method, adamw, init, train["seed"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", type=Path, help="folder of the run to follow")
    parser.add_argument("--init", type=Path, required=True, help="the weights that it began with")
    parser.add_argument("--steps", type=int, help="by default as many as the run has")
    parser.add_argument("--tolerance", type=float, default=math.inf, help="largest difference of losses")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--fp32", action="store_true", help="all arithmetic in fp32")
    parser.add_argument("--weights", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--compile-mode", choices=COMPILE_MODES, default="default")
    options = parser.parse_args()

    config = read_config(options.run / "config.toml")
    check_settings(config)
    train = config["train"]
    steps = math.ceil(train["tokens"] / train["batch_tokens"])
    method = Method(options.device, options.weights, options.fp32, options.compile_mode)
    trainer = make_trainer(config, options.init, method)
    differences: list[float] = []
    for step, ours in enumerate(losses_of(options.run)[: options.steps]):
        theirs = trainer.step(learning_rate(train, step, steps)).item()
        differences.append(abs(theirs - ours))
        line = {"step": step + 1, "carope": ours, "pytorch": theirs, "difference": theirs - ours}
        print(json.dumps(line), flush=True)
    if not differences:
        raise SystemExit(f"{options.run} has no losses yet: nothing could be compared")
    # A NaN is not within any tolerance.
    largest = math.nan if any(map(math.isnan, differences)) else max(differences)
    print(f"{config['position']['encoding']}: largest difference {largest:.2e}", file=sys.stderr)
    if not largest <= options.tolerance:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
