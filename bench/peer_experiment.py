"""Trains in PyTorch what a run of this program trained, from weights of its own, and measures its perplexity.

usage: python bench/peer_experiment.py RUN --out FILE.json [--lengths 512,1024]

RUN is a folder of carope train or reproduce: its config.toml says what to train on which tokens in which order, its
evaluation.json on which tokens to measure. Model, initial weights, optimizer and evaluation are PyTorch's and this
folder's, none of the program's. bench/peer_table.py puts its results beside the program's.
"""

import argparse
import json
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from peer.data import SequentialBatches, read_config
from peer.model import Gpt, Shape
from peer.trainer import COMPILE_MODES, Method, Trainer
from peer_losses import check_settings, learning_rate, make_trainer

TOKENS_AT_ONCE = 16384
LOG_EVERY = 50  # steps; reading a loss waits for the device


def train(trainer: Trainer, settings: dict[str, Any]) -> list[list[float]]:
    """Runs all steps; returns some [step, loss]."""
    steps = math.ceil(settings["tokens"] / settings["batch_tokens"])
    losses, begin = [], time.perf_counter()
    for step in range(steps):
        loss = trainer.step(learning_rate(settings, step, steps))
        if (step + 1) % LOG_EVERY == 0 or step + 1 == steps:
            losses.append([step + 1, loss.item()])
            print(f"step {step + 1}/{steps}  loss {losses[-1][1]:.4f}  {time.perf_counter() - begin:.0f} s", flush=True)
    return losses


@torch.no_grad()
def mean_loss(trainer: Trainer, shape: Shape, encoding: str, data: Path, targets: int) -> float:
    """Over the first targets of the validation split, in windows side by side that begin without context."""
    model = Gpt(shape, encoding)
    model.load_state_dict(trainer.model.state_dict())
    model.to(trainer.method.device).eval()
    windows, rest = divmod(targets, shape.length)
    if rest:
        raise ValueError(f"{targets} targets are no multiple of the length {shape.length}")
    rows = math.gcd(windows, max(TOKENS_AT_ONCE // shape.length, 1))
    batches = SequentialBatches(data, rows, shape.length, split="val")
    total = 0.0
    for step in range(windows // rows):
        tokens, targets_of = (tensor.to(trainer.method.device) for tensor in batches.batch(step))
        with torch.autocast(trainer.method.device, torch.bfloat16, enabled=not trainer.method.fp32):
            total += model(tokens, targets_of).item()
    return total / (windows // rows)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", type=Path, help="folder of the run to repeat")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--lengths", default="512,1024")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--fp32", action="store_true", help="all arithmetic in fp32")
    parser.add_argument("--compile-mode", choices=COMPILE_MODES, default="default")
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    config = read_config(options.run / "config.toml")
    check_settings(config)
    if config["position"].get("weight_deviation", 0) != 0:
        raise SystemExit("PyTorch's gate starts at 0; train without position.weight_deviation")
    evaluation = json.loads((options.run / "evaluation.json").read_text())
    method = Method(options.device, fp32=options.fp32, compile_mode=options.compile_mode)
    trainer = make_trainer(config, None, method)
    encoding, data = config["position"]["encoding"], Path(config["data"]["path"])
    begin = time.perf_counter()
    losses = train(trainer, config["train"])
    seconds = time.perf_counter() - begin
    lengths = [int(length) for length in options.lengths.split(",")]
    shape = Shape.of(config["model"])
    loss = {
        str(length): mean_loss(trainer, replace(shape, length=length), encoding, data, evaluation["tokens"])
        for length in lengths
    }
    result = {
        "system": f"PyTorch {torch.__version__}",
        "device": torch.cuda.get_device_name() if options.device == "cuda" else "CPU",
        "precision": "fp32" if options.fp32 else "bf16 autocast",
        "encoding": encoding,
        "seed": config["train"]["seed"],
        "tokens": evaluation["tokens"],
        "loss": loss,
        "perplexity": {length: math.exp(value) for length, value in loss.items()},
        "seconds": seconds,
        "training": losses,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    ours = {str(each["length"]): each["perplexity"] for each in evaluation["lengths"]}
    for length, perplexity in result["perplexity"].items():
        print(f"{encoding} @{length}: PyTorch {perplexity:.3f}, carope {ours.get(length) or math.nan:.3f}")


if __name__ == "__main__":
    main()
