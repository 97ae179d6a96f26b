#!/usr/bin/env python3
"""Trains 200 steps on real text on the CPU, on the GPU and in PyTorch, and shows that the losses are the same curve.

usage: bench/loss_curves.py --data SHARDS [--carope build/cuda/carope] [--models gpt-small] [--out loss_curves.jsonl]

SHARDS is a folder of carope data prepare. All engines begin with the same weights and read the same batches.
- A model small enough for a CPU in fp32: every engine's curve must lie on the CPU's.
- The same in bf16, where rounding soon sends every training its own way. Over several seeds, the GPU's curves must be no
  farther from its fp32 curves than twice PyTorch's, neither while the learning rate rises, when trainings are still
  together, nor over all steps; and on average neither above nor below PyTorch's by more than chance.
- gpt-small in bf16, where batches are large enough: over the first steps of the paper's recipe, and at a learning rate that
  suits batches of an eighth of the usual, the GPU's curve must lie on PyTorch's. With such batches at the usual rate, after
  a short rise, some seeds come to a fork where a thousandth of the learning rate decides, in PyTorch, too. There, while the
  rate rises, the GPU's curves must be no farther from those of PyTorch's autocast than twice PyTorch's with bf16 weights,
  and on average over all steps neither above nor below these by more than chance.
Writes a line a step, prints how far each curve is, and ends with status 1 if one is too far.
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

STEPS = 200
SEEDS = range(1, 7)  # of the small model in bf16
SEEDS_AT_A_FORK = range(1, 6)


@dataclass(frozen=True)
class Model:
    name: str
    settings: list[str]
    batch_tokens: int
    warmup_steps: int
    steps: int = STEPS


@dataclass(frozen=True)
class Engine:
    name: str
    carope: list[str] | None = None  # options of carope train
    pytorch: list[str] | None = None  # options of peer_losses.py


SMALL = ["--model.layers", "4", "--model.heads", "4", "--model.width", "256", "--model.length", "256"]
SMALL += ["--model.vocabulary", "50304", "--train.micro_batch", "8"]
FOR_CPU = Model("4 layers of 256", SMALL, 2048, 20)
GENTLY = ["--train.micro_batch", "64", "--train.learning_rate", "2e-4", "--train.final_learning_rate", "2e-5"]
STEEPLY = ["--train.micro_batch", "32", "--train.learning_rate", "6e-4", "--train.final_learning_rate", "6e-4"]
GPT_SMALL = Model("gpt-small at 2e-4", ["--config", "gpt-small", *GENTLY], 65536, 100)
GPT_SMALL_AT_A_FORK = Model("gpt-small at 6e-4", ["--config", "gpt-small", *STEEPLY], 65536, 20, steps=40)
RECIPE = Model("gpt-small by the recipe", ["--config", "paper-small", "--train.micro_batch", "64"], 524288, 750, steps=40)

CPU = Engine("CPU fp32", carope=["--device", "cpu"])
GPU_FP32 = Engine("GPU fp32", carope=["--device", "cuda", "--precision", "fp32"])
GPU_BF16 = Engine("GPU bf16", carope=["--device", "cuda", "--precision", "bf16"])
PYTORCH_FP32 = Engine("PyTorch fp32", pytorch=["--fp32", "--compile-mode", "none"])
PYTORCH_BF16 = Engine("PyTorch bf16", pytorch=["--weights", "bf16", "--compile-mode", "none"])
PYTORCH_AUTOCAST = Engine("PyTorch autocast", pytorch=["--compile-mode", "none"])
PYTORCH_COMPILED = Engine("PyTorch bf16", pytorch=["--weights", "bf16"])

Curve = list[float]


class Trainings:
    """Trainings of one model with one encoding and seed, in a folder of their own."""

    def __init__(self, options: argparse.Namespace, model: Model, encoding: str, seed: int, folder: Path) -> None:
        self.carope, self.model, self.folder = options.carope, model, folder
        self.settings = [*model.settings, "--position.encoding", encoding, "--data.path", str(options.data)]
        self.settings += ["--data.order", "sequential", "--train.batch_tokens", str(model.batch_tokens)]
        self.settings += ["--train.warmup_steps", str(model.warmup_steps), "--train.seed", str(seed)]
        self.settings += ["--train.validate_tokens", str(model.batch_tokens)]

    def train(self, name: str, extra: list[str], steps: int) -> Path:
        run = self.folder / name.replace(" ", "-")
        tokens = ["--train.tokens", str(steps * self.model.batch_tokens)]
        command = [str(self.carope), "train", "--out", str(run), *self.settings, *tokens, *extra]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        return run

    def curves(self, engines: list[Engine]) -> list[Curve]:
        """The losses of each; PyTorch reads what to do from the folder of one of ours."""
        still = ["--train.learning_rate", "0", "--train.final_learning_rate", "0", "--device", "cuda"]
        init = self.train("init", still, 1) / "checkpoints" / "step-00000001" / "model.safetensors"
        runs = {engine.name: self.train(engine.name, engine.carope, self.model.steps) for engine in engines if engine.carope}
        followed = next(iter(runs.values()))
        return [
            read_losses(runs[engine.name]) if engine.carope else follow(followed, init, engine.pytorch or [])
            for engine in engines
        ]


def read_losses(run: Path) -> Curve:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def follow(run: Path, init: Path, options: list[str]) -> Curve:
    """The losses of PyTorch, which repeats a run."""
    command = [sys.executable, str(Path(__file__).with_name("peer_losses.py")), str(run), "--init", str(init), *options]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return [json.loads(line)["pytorch"] for line in done.stdout.splitlines()]


def differences(curve: Curve, base: Curve) -> Curve:
    return [a - b for a, b in zip(curve, base, strict=True)]


def root_mean_square(values: list[float]) -> float:
    return math.sqrt(statistics.fmean(value * value for value in values))


class Comparison:
    """Trains, keeps all losses and says what is not as it should be."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options, self.folder, self.good = options, folder, True
        self.writing = Lock()  # seeds that end together write one after the other

    def curves(self, model: Model, encoding: str, engines: list[Engine], seed: int) -> list[Curve]:
        folder = self.folder / f"{model.name}-{encoding}-{seed}-{engines[0].name}"
        try:
            curves = Trainings(self.options, model, encoding, seed, folder).curves(engines)
        except subprocess.CalledProcessError as failure:
            raise SystemExit(f"loss_curves: {' '.join(failure.cmd)}:\n{failure.stderr[-2000:]}") from None
        for engine, curve in zip(engines, curves):
            if len(curve) != model.steps or not all(map(math.isfinite, curve)):
                raise SystemExit(f"loss_curves: {engine.name}: not {model.steps} finite losses: {curve}")
        with self.writing, self.options.out.open("a") as out:
            for step, losses in enumerate(zip(*curves), start=1):
                line = {"model": model.name, "encoding": encoding, "seed": seed, "step": step}
                out.write(json.dumps(line | {engine.name: round(loss, 6) for engine, loss in zip(engines, losses)}) + "\n")
        return curves

    def say(self, what: str, good: bool) -> None:
        self.good = self.good and good
        print(f"{what}: {'the same' if good else 'NOT THE SAME'}", flush=True)

    def lie_on_the_first(self, model: Model, encoding: str, engines: list[Engine], largest: float, mean: float) -> None:
        """Rounding makes two trainings part slowly; a wrong gradient makes them part at once, or in one direction."""
        base, *others = self.curves(model, encoding, engines, seed=1)
        for engine, curve in zip(engines[1:], others):
            apart = differences(curve, base)
            far, drift = max(map(abs, apart)), statistics.fmean(apart)
            self.say(
                f"{model.name}, {encoding}: {engine.name} against {engines[0].name}: "
                f"loss {curve[0]:.4f} to {curve[-1]:.4f}; differences: largest {far:.1e} (at most {largest:g}), "
                f"mean {drift:+.1e} (at most {mean:g})",
                far <= largest and abs(drift) <= mean,
            )

    def part_as_pytorch_does(
        self, model: Model, encoding: str, base: Engine, peer: Engine, seeds: range, spans: tuple[int, ...]
    ) -> None:
        """How far the GPU's bf16 and PyTorch's go from the base over the first steps, and whether one lies above the other
        over all: of several seeds, since each parts at a time of its own."""
        engines = [base, GPU_BF16, peer]
        with ThreadPoolExecutor(self.options.at_once) as pool:
            all_curves = list(pool.map(lambda seed: self.curves(model, encoding, engines, seed), seeds))
        gaps = [statistics.fmean(differences(ours, theirs)) for _, ours, theirs in all_curves]
        ratios = {}
        for span in spans:
            apart = [
                [root_mean_square(differences(curve, origin)[:span]) for curve in (ours, theirs)]
                for origin, ours, theirs in all_curves
            ]
            for seed, (ours, theirs), gap in zip(seeds, apart, gaps):
                print(f"  seed {seed}, {span} steps: GPU {ours:.1e}, {peer.name} {theirs:.1e} from {base.name}; mean gap {gap:+.1e}")
            ratios[span] = statistics.geometric_mean(ours / theirs for ours, theirs in apart)
        gap, error = statistics.fmean(gaps), statistics.stdev(gaps) / math.sqrt(len(gaps))
        times = ", ".join(f"{ratio:.2f} over {span} steps" for span, ratio in ratios.items())
        self.say(
            f"{model.name}, {encoding}, {len(gaps)} seeds: {GPU_BF16.name} is as many times as far from {base.name} as "
            f"{peer.name}: {times} (at most 2); its losses less {peer.name}'s over all steps: {gap:+.1e}, standard error "
            f"{error:.1e} (at most 3 of them)",
            max(ratios.values()) <= 2.0 and abs(gap) <= 3.0 * error,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of token shards")
    parser.add_argument("--carope", type=Path, default=Path("build/cuda/carope"), help="the program")
    parser.add_argument("--encodings", type=lambda text: text.split(","), default=["carope"])
    parser.add_argument("--models", type=lambda text: text.split(","), default=["small", "gpt-small"])
    parser.add_argument("--at-once", type=int, default=6, help="seeds that are trained at once; by default 6")
    parser.add_argument("--out", type=Path, default=Path("loss_curves.jsonl"), help="all losses, a line a step")
    options = parser.parse_args()
    if unknown := set(options.models) - {"small", "gpt-small"}:
        parser.error(f"there are no models {', '.join(sorted(unknown))}, but small and gpt-small")
    options.out.write_text("")
    with tempfile.TemporaryDirectory() as folder:
        comparison = Comparison(options, Path(folder))
        for encoding in options.encodings:
            if "small" in options.models:
                fp32 = [CPU, GPU_FP32, PYTORCH_FP32]
                comparison.lie_on_the_first(FOR_CPU, encoding, fp32, 1e-3, 1e-4)
                comparison.part_as_pytorch_does(FOR_CPU, encoding, GPU_FP32, PYTORCH_BF16, SEEDS, (20, STEPS))
            if "gpt-small" in options.models:
                compiled = [PYTORCH_COMPILED, GPU_BF16]
                comparison.lie_on_the_first(GPT_SMALL, encoding, compiled, 3e-2, 3e-3)
                comparison.lie_on_the_first(RECIPE, encoding, compiled, 3e-3, 3e-4)
                ways = PYTORCH_AUTOCAST, PYTORCH_BF16
                comparison.part_as_pytorch_does(GPT_SMALL_AT_A_FORK, encoding, *ways, SEEDS_AT_A_FORK, (20,))
    raise SystemExit(0 if comparison.good else 1)


if __name__ == "__main__":
    main()
