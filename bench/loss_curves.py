#!/usr/bin/env python3
"""Trains 200 steps on real text on the CPU, on the GPU and in PyTorch, and shows that the losses are the same curve.

usage: bench/loss_curves.py --data SHARDS [--carope build/cuda/carope] [--models gpt-small] [--out loss_curves.jsonl]

SHARDS is a folder of carope data prepare. All engines begin with the same weights and read the same batches.
- A model small enough for a CPU in fp32: every engine's curve must lie on the CPU's.
- The same in bf16, where rounding soon sends every training its own way: over several seeds, the GPU's curves must be
  no farther from its fp32 curves than twice PyTorch's, and on average neither above nor below them more than PyTorch's.
- gpt-small in bf16, where batches are large enough: over the first steps of the paper's recipe, and at a learning rate that
  suits batches of an eighth of the usual, the GPU's curve must lie on PyTorch's. With such batches at the usual rate, after
  a short rise, some seeds come to a fork where a thousandth of the learning rate decides, in PyTorch, too: there the curves
  of most seeds must lie on PyTorch's.
- While the learning rate rises, trainings in bf16 are still together, and what parts them is rounding: there the small model's
  curves must be no farther from fp32 than twice PyTorch's, and gpt-small's from PyTorch's autocast than twice those of its bf16
  weights, as means of the ratios of several seeds.
Writes a line a step, prints how far each curve is, and ends with status 1 if one is too far.
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

STEPS = 200
SEEDS = range(1, 7)  # of the trainings in bf16
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
Curves = tuple[Engine, Sequence[Curve]]  # of an engine, one a seed


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

    def curves_of(self, model: Model, encoding: str, engines: list[Engine], seeds: Iterable[int]) -> list[list[Curve]]:
        with ThreadPoolExecutor(self.options.at_once) as pool:
            return list(pool.map(lambda seed: self.curves(model, encoding, engines, seed), seeds))

    def lie_on_the_first(self, model: Model, encoding: str, engines: list[Engine], largest: float, mean: float) -> None:
        base, *others = self.curves(model, encoding, engines, seed=1)
        for engine, curve in zip(engines[1:], others):
            self.lie_on(model, encoding, (engine, [curve]), (engines[0], [base]), (1,), largest, mean)

    def lie_on(
        self, model: Model, encoding: str, ours: Curves, theirs: Curves, seeds: Iterable[int], largest: float, mean: float
    ) -> None:
        """Rounding makes two trainings part slowly; a wrong gradient makes them part at once, or in one direction.
        Of several seeds the median counts."""
        (engine, curves), (base, bases) = ours, theirs
        apart = [differences(curve, origin) for curve, origin in zip(curves, bases)]
        farthest, average = [max(map(abs, each)) for each in apart], [statistics.fmean(each) for each in apart]
        for seed, far, drift in zip(seeds, farthest, average):
            print(f"  seed {seed}: {engine.name} less {base.name}: largest {far:.1e}, mean {drift:+.1e}")
        far, drift = statistics.median(farthest), statistics.median(average)
        self.say(
            f"{model.name}, {encoding}: {engine.name} against {base.name}: "
            f"loss {curves[0][0]:.4f} to {curves[0][-1]:.4f}; differences: largest {far:.1e} (at most {largest:g}), "
            f"mean {drift:+.1e} (at most {mean:g})" + (f", medians of {len(apart)} seeds" if len(apart) > 1 else ""),
            far <= largest and abs(drift) <= mean,
        )

    def lie_on_pytorch_at_a_fork(self, model: Model, encoding: str, largest: float, mean: float) -> None:
        engines = [PYTORCH_AUTOCAST, GPU_BF16, PYTORCH_BF16]
        autocast, ours, theirs = zip(*self.curves_of(model, encoding, engines, SEEDS_AT_A_FORK))
        self.lie_on(model, encoding, (GPU_BF16, ours), (PYTORCH_BF16, theirs), SEEDS_AT_A_FORK, largest, mean)
        self.round_as_pytorch_does(model, encoding, ours, (PYTORCH_BF16, theirs), (PYTORCH_AUTOCAST, autocast))

    def round_as_pytorch_does(self, model: Model, encoding: str, ours: Sequence[Curve], theirs: Curves, base: Curves) -> None:
        """How far the GPU's bf16 and PyTorch's go from the base while the learning rate rises."""
        ratios = []
        for number, (our, their, origin) in enumerate(zip(ours, theirs[1], base[1]), start=1):
            rises = [root_mean_square(differences(curve, origin)[: model.warmup_steps]) for curve in (our, their)]
            ratios.append(rises[0] / rises[1])
            print(f"  seed {number}: {rises[0]:.1e} from {base[0].name} while the rate rises, {theirs[0].name} {rises[1]:.1e}")
        ratio = statistics.geometric_mean(ratios)
        self.say(
            f"{model.name}, {encoding}, {len(ratios)} seeds: over {model.warmup_steps} steps the GPU's bf16 is {ratio:.2f} "
            f"times as far from {base[0].name} as {theirs[0].name} (at most 2)",
            ratio <= 2.0,
        )

    def part_as_pytorch_does(self, model: Model, encoding: str) -> None:
        """How far bf16 goes from fp32, ours and PyTorch's, over several seeds."""
        engines = [GPU_FP32, GPU_BF16, PYTORCH_BF16]
        all_curves = self.curves_of(model, encoding, engines, SEEDS)
        ours = [differences(curves[1], curves[0]) for curves in all_curves]
        theirs = [differences(curves[2], curves[0]) for curves in all_curves]
        for seed, our, their in zip(SEEDS, ours, theirs):
            print(f"  seed {seed}: bf16 less fp32: GPU {describe(our)}; PyTorch {describe(their)}")
        ratio = root_mean_square(sum(ours, [])) / root_mean_square(sum(theirs, []))
        gaps = [statistics.fmean(our) - statistics.fmean(their) for our, their in zip(ours, theirs)]
        gap, error = statistics.fmean(gaps), statistics.stdev(gaps) / math.sqrt(len(gaps))
        self.say(
            f"{model.name}, {encoding}, {len(ours)} seeds: the GPU's bf16 is {ratio:.2f} times as far from fp32 "
            f"as PyTorch's (at most 2); its losses less PyTorch's: {gap:+.1e}, standard error {error:.1e} "
            "(at most 3 of them)",
            ratio <= 2.0 and abs(gap) <= 3.0 * error,
        )
        exact, own, peers = zip(*all_curves)
        self.round_as_pytorch_does(model, encoding, own, (PYTORCH_BF16, peers), (GPU_FP32, exact))


def describe(apart: Curve) -> str:
    return f"root mean square {root_mean_square(apart):.1e}, mean {statistics.fmean(apart):+.1e}"


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
                comparison.part_as_pytorch_does(FOR_CPU, encoding)
            if "gpt-small" in options.models:
                compiled = [PYTORCH_COMPILED, GPU_BF16]
                comparison.lie_on_the_first(GPT_SMALL, encoding, compiled, 3e-2, 3e-3)
                comparison.lie_on_the_first(RECIPE, encoding, compiled, 3e-3, 3e-4)
                comparison.lie_on_pytorch_at_a_fork(GPT_SMALL_AT_A_FORK, encoding, 3e-2, 3e-3)
    raise SystemExit(0 if comparison.good else 1)


if __name__ == "__main__":
    main()
