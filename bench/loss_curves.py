#!/usr/bin/env python3
"""Trains 200 steps on real text on the CPU, on the GPU and in PyTorch, and shows that the losses are the same curve.

usage: bench/loss_curves.py --data SHARDS [--carope build/cuda/carope] [--out loss_curves.jsonl]

SHARDS is a folder of carope data prepare. A model small enough for a CPU is trained by every engine in fp32 and bf16,
gpt-small by the GPU and PyTorch in bf16; all begin with the same weights and read the same batches. Writes a line
a step, prints how far each curve is from the first of its model, and ends with status 1 if one is too far.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

STEPS = 200
# Rounding makes two trainings part slowly; a wrong gradient makes them part at once, or all in one direction.
BOUNDS = {"fp32": (1e-3, 1e-4), "bf16": (3e-2, 3e-3)}  # of a step's difference, and of their mean


@dataclass
class Engine:
    name: str
    precision: str
    carope: list[str] | None = None  # options of carope train
    pytorch: list[str] | None = None  # options of peer_losses.py


@dataclass
class Model:
    name: str
    settings: list[str]
    batch_tokens: int
    engines: list[Engine]  # the first is what the others are compared with


SMALL = ["--model.layers", "4", "--model.heads", "4", "--model.width", "256", "--model.length", "256"]
SMALL += ["--model.vocabulary", "50304", "--train.micro_batch", "8"]
MODELS = [
    Model(
        "4 layers of 256",
        SMALL,
        2048,
        [
            Engine("CPU", "fp32", carope=["--device", "cpu"]),
            Engine("GPU", "fp32", carope=["--device", "cuda", "--precision", "fp32"]),
            Engine("PyTorch", "fp32", pytorch=["--fp32", "--compile-mode", "none"]),
            Engine("GPU", "bf16", carope=["--device", "cuda", "--precision", "bf16"]),
            Engine("PyTorch", "bf16", pytorch=["--weights", "bf16", "--compile-mode", "none"]),
        ],
    ),
    Model(
        "gpt-small",
        ["--config", "gpt-small", "--train.micro_batch", "64"],
        65536,
        [
            Engine("PyTorch", "bf16", pytorch=["--weights", "bf16"]),
            Engine("GPU", "bf16", carope=["--device", "cuda", "--precision", "bf16"]),
        ],
    ),
]


class Curves:
    """Trains one model with one encoding."""

    def __init__(self, options: argparse.Namespace, model: Model, encoding: str, folder: Path) -> None:
        self.options, self.model, self.folder = options, model, folder
        self.settings = [*model.settings, "--position.encoding", encoding, "--data.path", str(options.data)]
        self.settings += ["--data.order", "sequential", "--train.batch_tokens", str(model.batch_tokens)]
        self.settings += ["--train.warmup_steps", "20", "--train.validate_tokens", str(model.batch_tokens)]

    def train(self, name: str, extra: list[str], steps: int) -> Path:
        run = self.folder / name
        tokens = ["--train.tokens", str(steps * self.model.batch_tokens)]
        command = [str(self.options.carope), "train", "--out", str(run), *self.settings, *tokens, *extra]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        return run

    def ours(self, engine: Engine) -> list[float]:
        run = self.train(f"{engine.name}-{engine.precision}", engine.carope or [], STEPS)
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        return [line["loss"] for line in lines if "loss" in line]

    def theirs(self, engine: Engine, followed: Path, init: Path) -> list[float]:
        command = [sys.executable, str(Path(__file__).with_name("peer_losses.py")), str(followed)]
        command += ["--init", str(init), *(engine.pytorch or [])]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        return [json.loads(line)["pytorch"] for line in done.stdout.splitlines()]

    def all(self) -> list[list[float]]:
        still = ["--train.learning_rate", "0", "--train.final_learning_rate", "0"]
        init = self.train("init", [*still, "--device", "cuda"], 1)
        weights = init / "checkpoints" / "step-00000001" / "model.safetensors"
        ours = {id(engine): self.ours(engine) for engine in self.model.engines if engine.carope is not None}
        # PyTorch reads what to do from the folder of one of our runs.
        first = next(engine for engine in self.model.engines if engine.carope is not None)
        followed = self.folder / f"{first.name}-{first.precision}"
        return [
            ours[id(engine)] if id(engine) in ours else self.theirs(engine, followed, weights)
            for engine in self.model.engines
        ]


def compare(model: Model, encoding: str, curves: list[list[float]]) -> bool:
    """Prints a line a curve; returns whether all are near the first."""
    near = True
    base, reference = model.engines[0], curves[0]
    for engine, curve in zip(model.engines[1:], curves[1:]):
        differences = [a - b for a, b in zip(curve, reference)]
        largest, mean = max(map(abs, differences)), sum(differences) / len(differences)
        bounds = BOUNDS["bf16" if "bf16" in (base.precision, engine.precision) else "fp32"]
        good = len(curve) == len(reference) == STEPS and largest <= bounds[0] and abs(mean) <= bounds[1]
        near = near and good
        print(
            f"{model.name}, {encoding}: {engine.name} {engine.precision} against {base.name} {base.precision}: "
            f"loss {curve[0]:.4f} to {curve[-1]:.4f}; differences: largest {largest:.1e} (at most {bounds[0]:g}), "
            f"mean {mean:+.1e} (at most {bounds[1]:g}): {'the same' if good else 'NOT THE SAME'}",
            flush=True,
        )
    return near


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of token shards")
    parser.add_argument("--carope", type=Path, default=Path("build/cuda/carope"), help="the program")
    parser.add_argument("--encodings", type=lambda text: text.split(","), default=["carope"])
    parser.add_argument("--out", type=Path, default=Path("loss_curves.jsonl"), help="all losses, a line a step")
    options = parser.parse_args()
    near = True
    with options.out.open("w") as out, tempfile.TemporaryDirectory() as folder:
        for model in MODELS:
            for encoding in options.encodings:
                try:
                    curves = Curves(options, model, encoding, Path(folder) / f"{model.name}-{encoding}").all()
                except subprocess.CalledProcessError as failure:
                    tail = failure.stderr if isinstance(failure.stderr, str) else failure.stderr.decode()
                    raise SystemExit(f"loss_curves: {' '.join(failure.cmd)}:\n{tail[-2000:]}") from None
                names = [f"{engine.name} {engine.precision}" for engine in model.engines]
                for step, losses in enumerate(zip(*curves), start=1):
                    line = {"model": model.name, "encoding": encoding, "step": step} | dict(zip(names, losses))
                    out.write(json.dumps(line) + "\n")
                near = compare(model, encoding, curves) and near
    raise SystemExit(0 if near else 1)


if __name__ == "__main__":
    main()
