"""Training steps of the same model in this program and in PyTorch on the CPU, side by side.

usage: python bench/side_by_side_cpu.py [--build build/release] [--rounds 7] [--compile]

Needs PyTorch. Each round times a few steps of ours (step_bench) and as many of PyTorch's, so that a slow
moment of the machine meets both; the ratio is taken round by round. The same shapes, tokens, threads,
optimizer and fp32 arithmetic on both sides. PyTorch runs its fused attention and fused AdamW, and
with --compile also through torch.compile, which must be able to find a C++ compiler.
"""

import argparse
import json
import math
import statistics
import subprocess
import time
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F

MODELS = {
    "6 layers x 384": {"layers": 6, "width": 384, "heads": 6},
    "4 layers x 128": {"layers": 4, "width": 128, "heads": 4},
}
VOCABULARY, LENGTH, BATCH = 2048, 256, 8


def rotate(x, cos, sin):
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)


class Block(nn.Module):
    def __init__(self, width, heads, encoding):
        super().__init__()
        self.heads, self.encoding = heads, encoding
        pairs = width // heads // 2
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.mlp_in, self.mlp_out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        theta = 10000.0 ** (-torch.arange(pairs) / pairs)
        phase = torch.arange(1, LENGTH + 1)[:, None] * theta
        self.register_buffer("cos", phase.cos())
        self.register_buffer("sin", phase.sin())
        self.register_buffer("exponents", torch.arange(pairs, dtype=torch.float32))
        if encoding == "carope":
            self.gate = nn.Linear(width, heads)
            nn.init.zeros_(self.gate.weight)
            nn.init.constant_(self.gate.bias, math.log(math.expm1(10000.0 ** (1 / pairs) - 1)))

    def forward(self, x):
        batch, length, width = x.shape
        normed = self.attention_norm(x)
        q, k, v = self.qkv(normed).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if self.encoding == "carope":
            frequency = 1 / (F.softplus(self.gate(normed)) + 1)  # [B, T, H]
            phase = torch.cumsum(frequency.transpose(1, 2)[..., None] ** self.exponents, dim=2)
            cos, sin = phase.cos(), phase.sin()
        else:
            cos, sin = self.cos, self.sin
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attention_out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp_out(F.gelu(self.mlp_in(self.mlp_norm(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, layers, width, heads, encoding):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.Sequential(*(Block(width, heads, encoding) for _ in range(layers)))
        self.final_norm = nn.LayerNorm(width)

    def forward(self, tokens, targets):
        hidden = self.final_norm(self.blocks(self.embedding(tokens)))
        logits = F.linear(hidden, self.embedding.weight)
        return F.cross_entropy(logits.view(-1, VOCABULARY), targets.view(-1))


class PyTorchTrainee:
    def __init__(self, size, encoding, compiled):
        torch.manual_seed(1)
        self.model = Gpt(**size, encoding=encoding)
        index = torch.arange(BATCH * LENGTH, dtype=torch.int64)
        self.tokens = (((index * 2654435761) % 2**32 >> 8) % VOCABULARY).view(BATCH, LENGTH)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True
        )
        self.loss = torch.compile(self.model) if compiled else self.model

    def step(self):
        self.loss(self.tokens, self.tokens).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def seconds(self, steps):
        times = []
        for _ in range(steps):
            begin = time.perf_counter()
            self.step()
            times.append(time.perf_counter() - begin)
        return statistics.median(times)


def our_seconds(build, size, encoding, steps, threads):
    arguments = [f"--{key}={value}" for key, value in size.items()]
    arguments += [f"--vocabulary={VOCABULARY}", f"--length={LENGTH}", f"--batch={BATCH}", "--json"]
    arguments += [f"--encodings={encoding}", f"--rounds={steps}", f"--threads={threads}"]
    output = subprocess.run(
        [Path(build) / "bench/step_bench", *arguments], check=True, capture_output=True, text=True
    )
    return json.loads(output.stdout)["encodings"][encoding]["seconds"]["median"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", default="build/release", help="where step_bench was built")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=5, help="steps of each side a round")
    parser.add_argument("--compile", action="store_true", help="also time torch.compile")
    options = parser.parse_args()
    threads = torch.get_num_threads()
    print(f"PyTorch {torch.__version__}, {threads} threads, {BATCH} x {LENGTH} tokens, {options.rounds} rounds")
    print(f"{'model':<16}{'encoding':<10}{'peer':<9}{'ours tok/s':>11}{'peer tok/s':>11}  ours / peer")
    for name, size in MODELS.items():
        for encoding in ("rope", "carope"):
            for peer in ("eager", "compiled") if options.compile else ("eager",):
                trainee = PyTorchTrainee(size, encoding, compiled=peer == "compiled")
                trainee.seconds(3)  # warm up, and compile
                rounds = []
                for _ in range(options.rounds):
                    ours = our_seconds(options.build, size, encoding, options.steps, threads)
                    rounds.append((ours, trainee.seconds(options.steps)))
                ratios = sorted(theirs / ours for ours, theirs in rounds)
                ours, theirs = (statistics.median(column) for column in zip(*rounds))
                tokens = BATCH * LENGTH
                print(
                    f"{name:<16}{encoding:<10}{peer:<9}{tokens / ours:>11.0f}{tokens / theirs:>11.0f}"
                    f"  {statistics.median(ratios):.2f} [{ratios[0]:.2f}, {ratios[-1]:.2f}]",
                    flush=True,
                )


if __name__ == "__main__":
    main()
