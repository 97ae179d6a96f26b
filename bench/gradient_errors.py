#!/usr/bin/env python3
"""Compares every gradient of a training on real text with PyTorch's in fp64: how much does each arithmetic lose?

usage: bench/gradient_errors.py --data SHARDS [--carope build/cuda/carope] [--models small,gpt-small]
           [--encodings rope,carope] [--step 41]

Trains a model on the GPU, and takes one more step from the same weights and moments on the same batch in each
arithmetic. Gradients follow from the first moments before and after it. Prints a line a parameter, and ends with
status 1 if ours lose more than PyTorch's:
- In fp32, where each product of each system adds up in an order of its own, no parameter may lose more than three times
  what PyTorch's worst does, nor more than a limit.
- In bf16 all parameters together may lose no more than the worse of PyTorch's two ways does (bf16 weights, autocast),
  and each of them three times as much.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from peer.data import SequentialBatches, read_config, read_safetensors
from peer.model import Shape
from peer.trainer import AdamW, Method, Trainer


@dataclass(frozen=True)
class Model:
    settings: list[str]
    rows: int  # of a batch, all at once
    length: int
    fp32_of_gate: float  # the largest error of a gate's gradient in fp32

    @property
    def batch_tokens(self) -> int:
        return self.rows * self.length


SMALL = ["--model.layers", "4", "--model.heads", "4", "--model.width", "256", "--model.length", "256"]
SMALL += ["--model.vocabulary", "50304"]
FP32 = 2e-5  # of a gradient's norm
# A gate's gradient is a sum of turns that nearly cancel, since one that turned all tokens alike would change nothing. So
# it has fewer digits than what it is summed from, the fewer the longer the sequence.
MODELS = {
    "small": Model(SMALL, 8, 256, fp32_of_gate=FP32),
    "gpt-small": Model(["--config", "gpt-small"], 64, 512, fp32_of_gate=1e-4),
}
ROWS_IN_FP64 = 8  # at once
MOMENT = ".first_moment"
ALL = "all"  # parameters together

Gradients = dict[str, torch.Tensor]
Errors = dict[str, dict[str, float]]  # of a parameter in each arithmetic


class Run:
    """A training up to a step, and that step in several arithmetics."""

    def __init__(self, options: argparse.Namespace, model: Model, encoding: str, folder: Path) -> None:
        self.options, self.model, self.encoding, self.begun = options, model, encoding, folder / "begun"
        settings = [*model.settings, "--position.encoding", encoding, "--train.warmup_steps", "20"]
        settings += ["--train.micro_batch", str(model.rows), "--train.batch_tokens", str(model.batch_tokens)]
        settings += ["--train.tokens", str(options.step * model.batch_tokens), "--data.path", str(options.data)]
        settings += ["--train.validate_tokens", str(model.batch_tokens), "--data.order", "sequential"]
        settings += ["--train.checkpoint_every", str(options.step - 1), "--train.keep", "2"]
        self.train(self.begun, settings)
        self.config = read_config(self.begun / "config.toml")

    def train(self, folder: Path, extra: list[str]) -> None:
        command = [str(self.options.carope), "train", "--out", str(folder), "--device", self.options.device, *extra]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            raise SystemExit(f"gradient_errors: {' '.join(command)}:\n{done.stdout[-2000:]}")

    def checkpoint(self, folder: Path, step: int) -> Path:
        return folder / "checkpoints" / f"step-{step:08d}"

    def moments(self, folder: Path, step: int) -> Gradients:
        tensors = read_safetensors(self.checkpoint(folder, step) / "optimizer.safetensors")
        return {name.removesuffix(MOMENT): value for name, value in tensors.items() if name.endswith(MOMENT)}

    def ours(self, precision: str) -> Gradients:
        folder = self.begun.with_name(precision)
        shutil.copytree(self.begun, folder)
        shutil.rmtree(self.checkpoint(folder, self.options.step))
        self.train(folder, ["--resume", "--precision", precision])
        beta = self.config["optimizer"]["beta1"]
        before = self.moments(self.begun, self.options.step - 1)
        after = self.moments(folder, self.options.step)
        return {name: (after[name] - beta * before[name]) / (1 - beta) for name in after}

    def pytorch(self, method: Method, dtype: torch.dtype | None = None) -> Gradients:
        """Of a dtype all arithmetic may be done in, in small pieces: fp64 takes much memory."""
        batches = SequentialBatches(self.options.data, self.model.rows, self.model.length)
        weights = self.checkpoint(self.begun, self.options.step - 1) / "model.safetensors"
        adamw = AdamW(**self.config["optimizer"])
        shape = Shape.of(self.config["model"])
        trainer = Trainer(shape, self.encoding, batches, self.model.rows, method, adamw, weights)
        if dtype:
            trainer.model.to(dtype)
        batch = (trainer.to_device(part) for part in batches.batch(self.options.step - 1))
        pieces = list(zip(*(part.split(ROWS_IN_FP64 if dtype else self.model.rows) for part in batch)))
        for tokens, targets in pieces:
            with trainer.arithmetic():
                loss = trainer.loss(tokens, targets) / len(pieces)
            loss.backward()
            trainer.add_rounded_gradients()
        named = trainer.model.named_parameters()
        gradients = {name: trainer.rounded.get(value, value).grad.double().cpu() for name, value in named}
        norm = joined(gradients).norm().item()
        return {name: gradient / max(1.0, norm / adamw.clip) for name, gradient in gradients.items()}


def joined(gradients: Gradients) -> torch.Tensor:
    return torch.cat([gradients[name].flatten().double() for name in sorted(gradients)])


def error(gradient: torch.Tensor, reference: torch.Tensor) -> float:
    reference = reference.flatten().double()
    return ((gradient.flatten().double() - reference).norm() / reference.norm()).item()


def is_fp32_as_exact(errors: Errors, of_gate: float) -> bool:
    ours, theirs = (max(errors, key=lambda name: errors[name][kind]) for kind in ("fp32", "PyTorch fp32"))
    our, their = errors[ours]["fp32"], errors[theirs]["PyTorch fp32"]
    print(f"  fp32, at worst: {our:.1e} ({ours}) against {their:.1e} ({theirs})")
    within = all(by_kind["fp32"] <= (of_gate if ".position." in name else FP32) for name, by_kind in errors.items())
    return within and our <= 3 * their


def is_bf16_as_exact(errors: Errors) -> bool:
    theirs = {name: max(error["PyTorch bf16"], error["PyTorch autocast"]) for name, error in errors.items()}
    worst = max(errors, key=lambda name: errors[name]["bf16"] / theirs[name])
    print(f"  bf16, at worst: {errors[worst]['bf16']:.1e} against {theirs[worst]:.1e} ({worst})")
    return errors[worst]["bf16"] <= 3 * theirs[worst] and errors[ALL]["bf16"] <= theirs[ALL]


def compare(options: argparse.Namespace, model: str, encoding: str) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        run = Run(options, MODELS[model], encoding, Path(folder))
        fp32 = Method(options.device, fp32=True, compile_mode="none")
        reference = run.pytorch(fp32, torch.float64)
        gradients = {"fp32": run.ours("fp32"), "PyTorch fp32": run.pytorch(fp32)}
        if options.device == "cuda":
            gradients["bf16"] = run.ours("bf16")
            gradients["PyTorch bf16"] = run.pytorch(Method(weights="bf16", compile_mode="none"))
            gradients["PyTorch autocast"] = run.pytorch(Method(compile_mode="none"))
    print(f"{model}, {encoding}, step {options.step}: errors of gradients against PyTorch's in fp64")
    print("parameter".ljust(32), *[name.rjust(16) for name in gradients])
    errors = {name: {kind: error(g[name], reference[name]) for kind, g in gradients.items()} for name in reference}
    errors[ALL] = {kind: error(joined(g), joined(reference)) for kind, g in gradients.items()}
    for name, by_kind in errors.items():
        print(name.ljust(32), *[f"{value:16.1e}" for value in by_kind.values()])
    good = is_fp32_as_exact(errors, MODELS[model].fp32_of_gate)
    if options.device == "cuda":
        good = is_bf16_as_exact(errors) and good
    print(f"{model}, {encoding}: {'as exact as PyTorch' if good else 'LESS EXACT THAN PYTORCH'}", flush=True)
    return good


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of token shards")
    parser.add_argument("--carope", type=Path, default=Path("build/cuda/carope"), help="the program")
    parser.add_argument("--models", type=lambda text: text.split(","), default=[*MODELS])
    parser.add_argument("--encodings", type=lambda text: text.split(","), default=["rope", "carope"])
    parser.add_argument("--step", type=int, default=41, help="whose gradients are compared")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: fp32 alone")
    options = parser.parse_args()
    if unknown := set(options.models) - MODELS.keys():
        parser.error(f"there are no models {', '.join(sorted(unknown))}, but {' and '.join(MODELS)}")
    cases = [(model, encoding) for model in options.models for encoding in options.encodings]
    sys.exit(0 if all([compare(options, *case) for case in cases]) else 1)


if __name__ == "__main__":
    main()
