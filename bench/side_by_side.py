#!/usr/bin/env python3
"""Trains the same models on the same tokens in this program and in PyTorch or llm.c, and compares speed and memory.

usage: bench/side_by_side.py --data SHARDS [--models gpt-small] [--encodings rope,carope] [--lengths 512]
                             [--micro-batches 32,64] [--peer "" --peer "--weights bf16"] [-- OPTIONS OF CAROPE TRAIN]

SHARDS is a folder of carope data prepare. For each case every micro-batch of each system, and every --peer way of
running PyTorch (options of bench/peer_gpt.py), has a short trial. The best of each system then take turns for some
rounds, so that both meet the same clocks and heat; ratios are taken round by round. Prints a table; the measurements of
each case go to --out. With --llmc PROGRAM the other system is llm.c's train_gpt2cu, with learnable positions in any case.
"""

import argparse
import contextlib
import dataclasses
import itertools
import json
import math
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from peer.systems import Carope, Case, Failure, LlmC, MemoryWatch, PyTorch, Setup, System

Measurement = dict[str, Any]
Candidate = tuple[Case, int, str]  # of PyTorch: with so many rows at a time, and options of peer_gpt.py


class Comparison:
    """Runs cases until the time is up, and keeps all measurements."""

    def __init__(self, options: argparse.Namespace, setup: Setup) -> None:
        self.options, self.setup, self.watch = options, setup, MemoryWatch()
        self.deadline = time.monotonic() + options.seconds
        self.ready: dict[Candidate, PyTorch] = {}

    def measure(self, case: Case, phase: str, system: System, steps: int) -> Measurement:
        measured = system.measure(steps)
        say(f"{describe(case)} {phase} {system.name} [{system.choice}]: {measured['tokens_per_second']:.0f} tokens/s")
        return vars(case) | {"phase": phase, "system": system.name, "choice": system.choice} | measured

    def keep(self, lines: list[Measurement], system: System) -> None:
        """Ends a system; only then is known what it has kept of the memory between measurements."""
        resting = system.close()
        with self.options.out.open("a") as file:
            for line in lines:
                line["device_bytes"] += resting
                file.write(json.dumps(line) + "\n")

    def best(self, case: Case, makers: list[Callable[[], System]]) -> tuple[System, list[Measurement]]:
        """The fastest of some candidates, with its trial if there was one; the others are closed."""
        trials: list[tuple[Measurement, System]] = []
        for make in makers:
            try:
                system = make()
                if len(makers) == 1:
                    return system, []
                trials.append((self.measure(case, "trial", system, self.options.trial_steps), system))
            except Failure as failure:
                say(f"{describe(case)} fails:\n{failure}")
        if not trials:
            raise Failure(f"{describe(case)}: no candidate could run")
        trials.sort(key=lambda trial: trial[0]["tokens_per_second"])
        for line, system in trials[:-1]:
            self.keep([line], system)
        line, chosen = trials[-1]
        return chosen, [line]

    def candidates(self, case: Case) -> tuple[list[Callable[[], System]], list[Callable[[], System]]]:
        ours = [
            lambda rows=rows: Carope(self.setup, case, rows, self.watch) for rows in self.options.micro_batches
        ]
        if self.options.llmc:
            return ours, [
                lambda rows=rows: LlmC(self.setup, case, rows, self.options.llmc, self.watch)
                for rows in self.options.peer_micro_batches
            ]
        return ours, [lambda candidate=candidate: self.pytorch(candidate) for candidate in self.peers([case])]

    def peers(self, cases: Iterable[Case]) -> list[Candidate]:
        return list(itertools.product(cases, self.options.peer_micro_batches, self.options.peer or [""]))

    def pytorch(self, candidate: Candidate) -> PyTorch:
        """That which was compiled ahead, or a new one."""
        case, rows, way = candidate
        return self.ready.pop(candidate, None) or PyTorch(self.setup, case, rows, tuple(shlex.split(way)), self.watch)

    def compile_ahead(self, cases: Iterable[Case]) -> None:
        """Begins PyTorch's processes of all cases, several at a time; they rest until it is their turn."""

        def begin(candidate: Candidate) -> None:
            with contextlib.suppress(Failure):  # which its turn will show
                self.ready[candidate] = self.pytorch(candidate)
                case, rows, way = candidate
                say(f"{describe(case)} PyTorch [{rows} {way}]: compiled")

        with ThreadPoolExecutor(self.options.ahead) as pool:
            list(pool.map(begin, self.peers(cases)))

    def compare(self, case: Case) -> list[tuple[Measurement, Measurement]]:
        """Measurements of both systems, round by round."""
        rounds: list[tuple[Measurement, Measurement]] = []
        begun: list[tuple[System, list[Measurement]]] = []
        try:
            for makers in self.candidates(case):
                begun.append(self.best(case, makers))
            while len(rounds) < self.options.rounds and (not rounds or time.monotonic() < self.deadline):
                for system, lines in begun:
                    lines.append(self.measure(case, "round", system, self.options.steps))
                ours, theirs = (lines[-1] for _, lines in begun)
                rounds.append((ours, theirs))
        finally:
            for system, lines in begun:
                self.keep(lines, system)
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
        for system in self.ready.values():
            system.close()
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


def table_head(peer: str) -> str:
    cells = ["model", "encoding", "length"]
    cells += ["micro-batch, ours", "tokens/s, ours", "GiB, ours"]
    cells += [f"micro-batch, {peer}", f"tokens/s, {peer}", f"GiB, {peer}", f"ours / {peer}"]
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
    parser.add_argument("--peer-micro-batches", type=numbers, help="to try in the other system; by default the same")
    parser.add_argument("--peer", action="append", help="a way to run PyTorch, as options of peer_gpt.py; repeatable")
    parser.add_argument("--llmc", type=Path, help="compare with llm.c, not PyTorch: its program train_gpt2cu")
    parser.add_argument("--batch-tokens", type=int, default=524288, help="tokens an optimizer step")
    parser.add_argument("--warmup", type=int, default=3, help="steps of a fresh process that do not count")
    parser.add_argument("--trial-steps", type=int, default=3, help="measured steps of a candidate")
    parser.add_argument("--steps", type=int, default=10, help="measured steps of a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ahead", type=int, default=0, help="first begin PyTorch's processes, so many at a time")
    parser.add_argument("--quick", action="store_true", help="one round of 5 steps, trials of one")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no case or further round after this time")
    parser.add_argument("--out", type=Path, default=Path("side_by_side.jsonl"), help="all measurements, appended")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options = parser.parse_args(arguments[:split])
    for program in filter(None, (options.carope, options.llmc)):
        if not program.is_file():
            parser.error(f"{program} does not exist; build it, or name it with --carope or --llmc")
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
    print("\n".join((table_head(LlmC.name if options.llmc else PyTorch.name), *rows)))
    if not rows:
        raise SystemExit("side_by_side: nothing could be compared")


if __name__ == "__main__":
    main()
