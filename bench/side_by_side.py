#!/usr/bin/env python3
"""Trains the same models on the same tokens in this program and in PyTorch, and compares speed and memory.

usage: bench/side_by_side.py --data SHARDS [--models gpt-small] [--encodings rope,carope] [--lengths 512]
                             [--micro-batches 32,64] [--peer "" --peer "--weights bf16"] [-- OPTIONS OF CAROPE TRAIN]

SHARDS is a folder of carope data prepare. For each case every micro-batch of each system, and every --peer way of
running PyTorch (options of bench/peer_gpt.py), has a short trial. The best of each system then take turns for some
rounds, so that both meet the same clocks and heat; ratios are taken round by round. Prints a table; every measurement
goes to --out as it is made.
"""

import argparse
import contextlib
import dataclasses
import itertools
import json
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from peer.systems import Carope, Case, Failure, MemoryWatch, PyTorch, Setup, System

Measurement = dict[str, Any]


class Comparison:
    """Runs cases until the time is up, and keeps all measurements."""

    def __init__(self, options: argparse.Namespace, setup: Setup) -> None:
        self.options, self.setup, self.watch = options, setup, MemoryWatch()
        self.deadline = time.monotonic() + options.seconds

    def record(self, case: Case, phase: str, system: System, steps: int) -> Measurement:
        measured = system.measure(steps)
        line = vars(case) | {"phase": phase, "system": system.name, "choice": system.choice} | measured
        with self.options.out.open("a") as file:
            file.write(json.dumps(line) + "\n")
        say(f"{describe(case)} {phase} {system.name} [{system.choice}]: {measured['tokens_per_second']:.0f} tokens/s")
        return line

    def best(self, case: Case, makers: list[Callable[[], System]], stack: contextlib.ExitStack) -> System:
        """The fastest of some candidates; the others are closed."""
        trials: list[tuple[float, System]] = []
        for make in makers:
            try:
                system = make()
                stack.callback(system.close)
                if len(makers) == 1:
                    return system
                rate = self.record(case, "trial", system, self.options.trial_steps)["tokens_per_second"]
                trials.append((rate, system))
            except Failure as failure:
                say(f"{describe(case)} fails:\n{failure}")
        if not trials:
            raise Failure(f"{describe(case)}: no candidate could run")
        chosen = max(trials, key=lambda trial: trial[0])[1]
        for _, system in trials:
            if system is not chosen:
                system.close()
        return chosen

    def candidates(self, case: Case) -> tuple[list[Callable[[], System]], list[Callable[[], System]]]:
        ours = [
            lambda rows=rows: Carope(self.setup, case, rows, self.watch) for rows in self.options.micro_batches
        ]
        theirs = [
            lambda rows=rows, way=way: PyTorch(self.setup, case, rows, tuple(shlex.split(way)), self.watch)
            for way, rows in itertools.product(self.options.peer or [""], self.options.peer_micro_batches)
        ]
        return ours, theirs

    def compile_ahead(self, cases: Iterable[Case]) -> None:
        """Fills the cache of PyTorch's compiler with the models of all cases, several at a time."""

        def compile_one(case: Case, rows: int, way: str) -> None:
            setup = dataclasses.replace(self.setup, batch_tokens=rows * case.length, warmup=1)
            with contextlib.suppress(Failure):  # which its turn will show
                PyTorch(setup, case, rows, tuple(shlex.split(way)), self.watch).close()
                say(f"{describe(case)} PyTorch [{rows} {way}]: compiled")

        ways = itertools.product(cases, self.options.peer_micro_batches, self.options.peer or [""])
        with ThreadPoolExecutor(self.options.ahead) as pool:
            list(pool.map(compile_one, *zip(*ways)))

    def compare(self, case: Case) -> list[tuple[Measurement, Measurement]]:
        """Measurements of both systems, round by round."""
        rounds: list[tuple[Measurement, Measurement]] = []
        with contextlib.ExitStack() as stack:
            ours, theirs = (self.best(case, makers, stack) for makers in self.candidates(case))
            while len(rounds) < self.options.rounds and (not rounds or time.monotonic() < self.deadline):
                steps = self.options.steps
                rounds.append((self.record(case, "round", ours, steps), self.record(case, "round", theirs, steps)))
        return rounds

    def run(self, cases: list[Case]) -> list[str]:
        """The table's rows."""
        if self.options.ahead:
            self.compile_ahead(cases)
        rows: list[str] = []
        for case in cases:
            if time.monotonic() >= self.deadline:
                say(f"{describe(case)}: not begun, the time is up")
                continue
            try:
                rows.append(table_row(case, self.compare(case)))
            except Failure as failure:
                say(str(failure))
        return rows


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def describe(case: Case) -> str:
    return f"{case.model} {case.encoding} @{case.length}"


def system_cells(measurements: Iterable[Measurement]) -> str:
    """Micro-batch and choices, tokens/s as the median of rounds and the range of steps, memory."""
    lines = list(measurements)
    rate = statistics.median(line["tokens_per_second"] for line in lines)
    low, high = min(line["lowest"] for line in lines), max(line["highest"] for line in lines)
    memory = max(line["device_bytes"] for line in lines) / 2**30
    return f"{lines[0]['choice']} | {rate / 1e3:.1f} k [{low / 1e3:.1f}, {high / 1e3:.1f}] | {memory:.1f}"


def table_head() -> str:
    cells = ["model", "encoding", "length"]
    cells += ["micro-batch, ours", "tokens/s, ours", "GiB, ours"]
    cells += ["micro-batch, PyTorch", "tokens/s, PyTorch", "GiB, PyTorch", "ours / PyTorch"]
    return f"| {' | '.join(cells)} |\n|{'---|' * len(cells)}"


def table_row(case: Case, rounds: list[tuple[Measurement, Measurement]]) -> str:
    ratios = [ours["tokens_per_second"] / theirs["tokens_per_second"] for ours, theirs in rounds]
    ours, theirs = (system_cells(lines) for lines in zip(*rounds))
    ratio = f"{statistics.median(ratios):.3f} [{min(ratios):.3f}, {max(ratios):.3f}]"
    return f"| {case.model} | {case.encoding} | {case.length} | {ours} | {theirs} | {ratio} |"


def parse_options() -> argparse.Namespace:
    def names(text: str) -> list[str]:
        return text.split(",")

    def numbers(text: str) -> list[int]:
        return [int(part) for part in text.split(",")]

    arguments = sys.argv[1:]
    split = arguments.index("--") if "--" in arguments else len(arguments)
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of token shards")
    parser.add_argument("--carope", type=Path, default=Path("build/cuda/carope"), help="the program")
    parser.add_argument("--models", type=names, default=["gpt-small"], help="configurations of configs/")
    parser.add_argument("--encodings", type=names, default=["rope", "carope"])
    parser.add_argument("--lengths", type=numbers, default=[512])
    parser.add_argument("--micro-batches", type=numbers, default=[64], help="to try in this program")
    parser.add_argument("--peer-micro-batches", type=numbers, help="to try in PyTorch; by default the same")
    parser.add_argument("--peer", action="append", help="a way to run PyTorch, as options of peer_gpt.py; repeatable")
    parser.add_argument("--batch-tokens", type=int, default=524288, help="tokens an optimizer step")
    parser.add_argument("--warmup", type=int, default=3, help="steps of a fresh process that do not count")
    parser.add_argument("--trial-steps", type=int, default=3, help="measured steps of a candidate")
    parser.add_argument("--steps", type=int, default=10, help="measured steps of a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ahead", type=int, default=0, help="first compile so many of PyTorch's models at a time")
    parser.add_argument("--quick", action="store_true", help="one round of 5 steps, trials of one")
    parser.add_argument("--seconds", type=float, default=540, help="begin no case or further round after this time")
    parser.add_argument("--out", type=Path, default=Path("side_by_side.jsonl"), help="all measurements, appended")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options = parser.parse_args(arguments[:split])
    options.carope_arguments = tuple(arguments[split + 1 :])
    options.peer_micro_batches = options.peer_micro_batches or options.micro_batches
    if options.quick:
        options.rounds, options.steps, options.trial_steps = 1, 5, 1
    return options


def main() -> None:
    options = parse_options()
    setup = Setup(
        data=options.data,
        carope=options.carope,
        carope_arguments=options.carope_arguments,
        device=options.device,
        batch_tokens=options.batch_tokens,
        warmup=options.warmup,
    )
    cases = [Case(*case) for case in itertools.product(options.models, options.encodings, options.lengths)]
    rows = Comparison(options, setup).run(cases)
    print("\n".join((table_head(), *rows)))
    if not rows:
        raise SystemExit("side_by_side: nothing could be compared")


if __name__ == "__main__":
    main()
