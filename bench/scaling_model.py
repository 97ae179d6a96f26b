#!/usr/bin/env python3
"""Computes the tables of docs/scaling.md: bytes and time of a data-parallel step, on paper, from steps of one GPU.

usage: bench/scaling_model.py [FOLDER]    writes FOLDER/*.md, by default docs/scaling; then run
                                          scripts/fill_tables.py docs/scaling.md

Everything that is assumed stands in the first lines.
"""

import argparse
from dataclasses import dataclass
from math import ceil, log2
from pathlib import Path

LENGTH, VOCABULARY = 512, 50_304
BATCH_TOKENS = 524_288
MOST_ROWS = 128  # of a micro-batch, and those of a GPU in weak scaling
BUCKET_BYTES, BUCKET_BYTES_A_RANK = 16 << 20, 1 << 20  # of fp32 gradients: at least the larger, for all ranks
GPUS_A_NODE = 8
COUNTS = (1, 2, 8, 64, 512)

NVLINK = 450e9  # bytes/s of a GPU in one direction
NETWORK = 400e9 / 8  # of each GPU's card
REACHED = 0.8  # of either, by large operations
HOP_INSIDE, HOP_OUTSIDE = 1.5e-6, 6e-6  # s: one step of a ring within a machine, between two
LAUNCH = 10e-6  # s: from the end of a kernel to the begin of an operation that waits for it
MEMORY = 4.2e12  # bytes/s of a GPU's memory
ADAMW_BYTES = 34  # a parameter: reads g twice, w, m, v; writes w, m, v and the bf16 copy


@dataclass
class Model:
    name: str
    layers: int
    width: int
    rate: float  # tokens/s of one GPU with micro-batches of `rows`, docs/benchmarks/gpu.md
    rows: int
    smaller: tuple[tuple[int, float], tuple[int, float]]  # rows and tokens/s, raw/gpu-train.txt, "The first run"

    @property
    def embedding(self) -> int:
        return VOCABULARY * self.width

    @property
    def block(self) -> int:
        return 12 * self.width**2 + 9 * self.width  # what rounds to bf16

    @property
    def plain(self) -> int:
        return self.layers * 4 * self.width + 2 * self.width  # norms: fp32

    @property
    def parameters(self) -> int:
        return self.embedding + self.layers * self.block + self.plain

    def fixed(self) -> float:
        """Seconds of a micro-batch that do not depend on its rows: of two sizes, what a line leaves at none."""
        (a, rate_a), (b, rate_b) = self.smaller
        time_a, time_b = a * LENGTH / rate_a, b * LENGTH / rate_b
        return time_a - a * (time_b - time_a) / (b - a)

    def micro_step(self, rows: float) -> float:
        whole = self.rows * LENGTH / self.rate
        return self.fixed() + (whole - self.fixed()) * rows / self.rows

    def buckets(self, gpus: int) -> list[tuple[int, int]]:
        """(blocks, parameters) in the order of the backward pass; those with 0 blocks come at its end."""
        each = ceil(max(BUCKET_BYTES, BUCKET_BYTES_A_RANK * gpus) / 4 / self.block)
        blocks = [min(each, self.layers - i) for i in range(0, self.layers, each)]
        return [(n, n * self.block) for n in blocks] + [(0, self.embedding), (0, self.plain)]

    def blocks_backward(self) -> float:
        """The part of a micro-step in which the blocks' gradients are made, by the operations that it takes."""
        blocks = self.layers * (12 * self.width**2 + self.width * (LENGTH + 1))
        return 2 / 3 * blocks / (blocks + self.embedding)


MODELS = (
    Model("gpt-tiny", 6, 512, 1_855.9e3, 256, ((64, 1_503.7e3), (128, 1_542.4e3))),
    Model("gpt-small", 12, 768, 694.0e3, 128, ((32, 545.8e3), (128, 591.5e3))),
)


@dataclass
class Network:
    name: str
    gpus_a_node: int

    def ring(self, gpus: int, size: float) -> float:
        """Seconds of a reduce-scatter or an all-gather of `size` bytes."""
        if gpus == 1:
            return 0.0
        # Every card of a machine carries a ring of its own, so together they carry what one GPU sends.
        inside = min(gpus, self.gpus_a_node)
        bandwidth = NVLINK if gpus <= self.gpus_a_node else min(NVLINK, NETWORK * inside)
        nodes = ceil(gpus / self.gpus_a_node)
        outside = 0 if nodes == 1 else nodes - 1
        hops = (gpus - 1 - outside) * HOP_INSIDE + outside * HOP_OUTSIDE  # what each piece passes through
        return LAUNCH + hops + size * (gpus - 1) / gpus / (bandwidth * REACHED)

    def tree(self, gpus: int) -> float:
        """Seconds of the all-reduce of one number."""
        nodes = ceil(gpus / self.gpus_a_node)
        depth_inside = log2(min(gpus, self.gpus_a_node))
        return 0.0 if gpus == 1 else LAUNCH + 2 * (depth_inside * HOP_INSIDE + log2(nodes) * HOP_OUTSIDE)


BOXES = Network("machines of 8", GPUS_A_NODE)
SINGLES = Network("one GPU a machine", 1)


@dataclass
class Step:
    compute: float
    scatter: float
    exposed: float
    gather: float
    rest: float

    @property
    def seconds(self) -> float:
        return self.compute + self.exposed + self.gather + self.rest


def step(model: Model, network: Network, gpus: int, rows: int, overlap: bool = True) -> Step:
    """One GPU's step of `rows`."""
    micro_steps = ceil(rows / MOST_ROWS)
    micro = model.micro_step(rows / micro_steps)
    adamw = ADAMW_BYTES * model.parameters / MEMORY
    compute = micro_steps * micro - adamw  # which the measured times include
    # The last micro-batch: blocks finish one after another, what is not of a block when all are done.
    block_time = micro * model.blocks_backward() / model.layers
    begin = -model.layers * block_time if overlap else 0.0
    done, scatter, free = 0, 0.0, float("-inf")
    for blocks, size in model.buckets(gpus):
        done += blocks
        ready = 0.0 if blocks == 0 else begin + done * block_time
        duration = network.ring(gpus, 4 * size)
        free = max(free, ready if overlap else 0.0) + duration
        scatter += duration
    gather = sum(network.ring(gpus, (4 if size == model.plain else 2) * size) for _, size in model.buckets(gpus))
    rest = adamw / gpus + network.tree(gpus)
    return Step(compute, scatter, max(free, 0.0) if gpus > 1 else 0.0, gather, rest)


def table(model: Model, network: Network, rows_of) -> str:
    lines = [
        "| GPUs | tokens a GPU | compute | gradients, of it seen | weights | norm, AdamW | step | tokens/s | of ideal |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    alone = None
    for gpus in COUNTS:
        rows = rows_of(gpus)
        found = step(model, network, gpus, rows)
        rate = gpus * rows * LENGTH / found.seconds
        alone = alone or rate
        ms = lambda seconds: f"{1e3 * seconds:.1f}" if seconds < 0.0995 else f"{1e3 * seconds:.0f}"
        lines.append(
            f"| {gpus} | {rows * LENGTH:,} | {ms(found.compute)} ms | {ms(found.scatter)}, {ms(found.exposed)} | "
            f"{ms(found.gather)} | {ms(found.rest)} | {ms(found.seconds)} ms | {rate / 1e6:.2f} M | "
            f"{100 * rate / alone / gpus:.0f} % |".replace(",", " ", 1)
        )
    return "\n".join(lines) + "\n"


def bytes_table() -> str:
    lines = [
        "| model | parameters | buckets | GPUs | sent: gradients | sent: weights | kept for a parameter | kept in all |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for model in MODELS:
        for gpus in COUNTS:
            part = (gpus - 1) / gpus
            kept = 2 + 4 + 12 / gpus
            lines.append(
                f"| {model.name} | {model.parameters / 1e6:.1f} M | {len(model.buckets(gpus))} | {gpus} | "
                f"{4 * model.parameters * part / 1e6:.0f} MB | {2 * model.parameters * part / 1e6:.0f} MB | "
                f"{kept:.1f} B | {kept * model.parameters / 1e9:.2f} GB |"
            )
    return "\n".join(lines) + "\n"


def overlap_table() -> str:
    lines = [
        "| model | GPUs | exchange of gradients | seen, beside the backward pass | seen, after it |",
        "|---|---|---|---|---|",
    ]
    for model in MODELS:
        for gpus in COUNTS[1:]:
            rows = BATCH_TOKENS // LENGTH // gpus
            beside = step(model, BOXES, gpus, rows)
            after = step(model, BOXES, gpus, rows, overlap=False)
            lines.append(
                f"| {model.name} | {gpus} | {1e3 * beside.scatter:.2f} ms | {1e3 * beside.exposed:.2f} ms | "
                f"{1e3 * after.exposed:.2f} ms |"
            )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    published = Path(__file__).parent.parent / "docs" / "scaling"
    parser.add_argument("folder", type=Path, nargs="?", default=published, help="by default docs/scaling")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    fixed = lambda gpus: BATCH_TOKENS // LENGTH // gpus
    weak = lambda gpus: MOST_ROWS
    (folder / "bytes.md").write_text(bytes_table())
    (folder / "overlap.md").write_text(overlap_table())
    for model in MODELS:
        (folder / f"{model.name}-fixed.md").write_text(table(model, BOXES, fixed))
        (folder / f"{model.name}-weak.md").write_text(table(model, BOXES, weak))
        (folder / f"{model.name}-singles.md").write_text(table(model, SINGLES, fixed))


if __name__ == "__main__":
    main()
