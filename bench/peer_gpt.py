"""Trains GPT-2 in PyTorch, as fast as it can, and prints how fast that is: one JSON line a measurement.

usage: python bench/peer_gpt.py --tokens SHARDS --model gpt-small --encoding carope --micro-batch 64

SHARDS is a folder of carope data prepare, one shard of it, or a .npy of tokens. With --wait it compiles, warms up,
gives back the memory of its activations, says so in a line, and then measures as many steps as each line of standard
input asks for: so that it can take turns with another program.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from peer.data import SequentialBatches, read_config
from peer.model import ENCODINGS, Shape
from peer.trainer import ATTENTION, COMPILE_MODES, Method, Trainer

LEARNING_RATE = 1e-4


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tokens", type=Path, required=True)
    parser.add_argument("--model", default="gpt-small", help="a configuration of configs/, or a TOML file")
    parser.add_argument("--encoding", choices=ENCODINGS, default="carope")
    parser.add_argument("--length", type=int, help="tokens a row; by default the model's")
    parser.add_argument("--micro-batch", type=int, default=64, help="rows at a time")
    parser.add_argument("--batch-tokens", type=int, default=524288, help="tokens an optimizer step")
    parser.add_argument("--warmup", type=int, default=3, help="steps before the first measurement")
    parser.add_argument("--steps", type=int, default=10, help="steps to measure")
    parser.add_argument("--wait", action="store_true", help="measure what standard input asks for")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--fp32", action="store_true", help="all arithmetic in fp32")
    parser.add_argument("--weights", choices=("fp32", "bf16"), default="fp32", help="bf16: with fp32 masters")
    parser.add_argument("--compile-mode", choices=COMPILE_MODES, default="default")
    parser.add_argument("--attention", choices=("best", *ATTENTION), default="best")
    parser.add_argument("--tf32", action="store_true", help="in the product of CARoPE's gate")
    options = parser.parse_args()
    if options.fp32 and options.weights == "bf16":
        parser.error("--fp32 computes with fp32 weights; leave out --weights bf16")
    return options


def make_trainer(options: argparse.Namespace) -> Trainer:
    model = read_config(options.model)["model"]
    shape = Shape.of(model | {"length": options.length or model["length"]})
    batches = SequentialBatches(options.tokens, options.batch_tokens // shape.length, shape.length)
    method = Method(
        options.device, options.weights, options.fp32, options.compile_mode, options.attention, options.tf32
    )
    return Trainer(shape, options.encoding, batches, options.micro_batch, method)


def measure(trainer: Trainer, steps: int) -> dict[str, Any]:
    """Times steps one by one, after one that wakes the device up and takes the memory that a pause gave back."""
    cuda = trainer.method.device == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    trainer.step(LEARNING_RATE)
    marks, losses = [trainer.mark()], []
    for _ in range(steps):
        losses.append(trainer.step(LEARNING_RATE))
        marks.append(trainer.mark())
    tokens = trainer.batches.rows * trainer.batches.length
    rates = [tokens / trainer.seconds(begin, end) for begin, end in zip(marks, marks[1:])]
    return {
        "tokens_per_second": statistics.median(rates),
        "lowest": min(rates),
        "highest": max(rates),
        "allocated_bytes": torch.cuda.max_memory_allocated() if cuda else None,
        "reserved_bytes": torch.cuda.max_memory_reserved() if cuda else None,
        "first_step": trainer.steps_done - steps + 1,
        "losses": [loss.item() for loss in losses],
    }


def requests(options: argparse.Namespace) -> Iterator[int]:
    """How many steps to measure, each time."""
    if not options.wait:
        yield options.steps
        return
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        yield int(line)


def main() -> None:
    options = parse_options()
    trainer = make_trainer(options)
    for _ in range(options.warmup):
        loss = trainer.step(LEARNING_RATE)
    loss.item()
    subject = {
        "system": f"PyTorch {torch.__version__}",
        "model": options.model,
        "encoding": options.encoding,
        "length": trainer.batches.length,
        "micro_batch": options.micro_batch,
        **asdict(trainer.method),
        "attention": trainer.attention,
    }
    if options.wait and options.device == "cuda":
        torch.cuda.empty_cache()
    for steps in requests(options):
        print(json.dumps(subject | measure(trainer, steps)), flush=True)
        if options.wait and options.device == "cuda":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
