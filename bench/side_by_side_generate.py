#!/usr/bin/env python3
"""Continues a text with the same model in this program and in PyTorch, one token at a time, and compares speeds.

usage: bench/side_by_side_generate.py RUN [--carope build/cuda/carope] [--tokens 800] [--rounds 5]

RUN is a folder of carope train. PyTorch has its best chance: bf16 weights, keys and values in a cache of fixed size, the
whole step with the choice of the next token compiled into one CUDA graph, nothing that waits for the host. Both always
take the most likely token, in turns for some rounds; ratios are taken round by round. Prints how long both write the
same: rounding decides between tokens that are nearly as likely.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from peer.data import read_config, read_safetensors
from peer.model import Block, Carope, Gpt, Rope, Shape, rotate
from peer_losses import check_settings
from torch import Tensor, nn

END_OF_TEXT = 50256  # of GPT-2's tokens, which a text begins with
COMPILE_MODES = ("reduce-overhead", "max-autotune", "none")


class Decoder(nn.Module):
    """A model with what it has read, which takes one token at a time."""

    def __init__(self, gpt: Gpt, shape: Shape, longest: int, device: str) -> None:
        super().__init__()
        self.gpt, self.shape = gpt, shape
        cache = (shape.layers, 1, shape.heads, longest, 2 * shape.pairs)
        dtype = gpt.embedding.dtype
        self.register_buffer("keys", torch.zeros(cache, dtype=dtype, device=device))
        self.register_buffer("values", torch.zeros(cache, dtype=dtype, device=device))
        self.register_buffer("phases", torch.zeros(shape.layers, shape.heads, shape.pairs, device=device))
        self.register_buffer("places", torch.arange(longest, device=device))
        self.register_buffer("position", torch.zeros(1, dtype=torch.long, device=device))

    def clear(self) -> None:
        self.phases.zero_()
        self.position.zero_()

    def turns(self, layer: int, block: Block, normed: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine of this token's phases."""
        if isinstance(block.position, Rope):
            return block.position.cos[self.position], block.position.sin[self.position]
        logit = F.linear(normed, block.position.weight, block.position.bias)
        log_frequency = -torch.log1p(F.softplus(logit))  # [1, 1, H]
        self.phases[layer] += torch.exp(log_frequency[0, 0, :, None] * block.position.exponents)
        return self.phases[layer].cos(), self.phases[layer].sin()

    def attention(self, layer: int, block: Block, x: Tensor) -> Tensor:
        normed = block.attention_norm(x)
        qkv = block.qkv(normed.to(x.dtype)).view(1, 1, 3, block.heads, -1)
        q, k, v = qkv.unbind(2)  # [1, 1, H, D] each
        if isinstance(block.position, (Rope, Carope)):
            cos, sin = self.turns(layer, block, normed)
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        self.keys[layer].index_copy_(2, self.position, k.transpose(1, 2))
        self.values[layer].index_copy_(2, self.position, v.transpose(1, 2))
        seen = (self.places <= self.position)[None, None, None]
        attended = F.scaled_dot_product_attention(q.transpose(1, 2), self.keys[layer], self.values[layer], seen)
        return block.attention_out(attended.transpose(1, 2).reshape(x.shape))

    def forward(self, token: Tensor) -> Tensor:
        """The most likely token after `token` [1, 1]."""
        x = F.embedding(token, self.gpt.embedding)
        if self.gpt.position is not None:
            x = (x + self.gpt.position.table[self.position]).to(x.dtype)
        for layer, block in enumerate(self.gpt.block):
            x = x + self.attention(layer, block, x)
            x = x + block.mlp(x)
        logits = F.linear(self.gpt.final_norm(x).to(x.dtype), self.gpt.embedding)
        self.position += 1
        return logits.argmax(dim=-1)


def read_decoder(run: Path, options: argparse.Namespace) -> Decoder:
    checkpoints = sorted((run / "checkpoints").glob("step-*/model.safetensors"))
    if not checkpoints:
        raise SystemExit(f"{run} has no checkpoint; name a folder of carope train")
    config = read_config(run / "config.toml")
    check_settings(config)
    shape = Shape.of(config["model"])
    longest = options.tokens + 1
    encoding = config["position"]["encoding"]
    if encoding == "learnable" and longest > shape.length:
        raise SystemExit(f"{run} has positions for {shape.length} tokens: use --tokens {shape.length - 1} or fewer")
    # Tables of fixed positions are as long as is asked for.
    shape = shape if encoding == "learnable" else Shape(**vars(shape) | {"length": longest})
    gpt = Gpt(shape, encoding)
    gpt.load_state_dict(read_safetensors(checkpoints[-1]))
    gpt.to(options.device)
    if options.device == "cuda":
        for parameter in gpt.matrix_parameters():
            parameter.data = parameter.data.bfloat16()
    return Decoder(gpt, shape, longest, options.device).eval()


class PyTorch:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.decoder = options, read_decoder(options.run, options)
        mode = options.compile_mode
        self.step = self.decoder if mode == "none" else torch.compile(self.decoder, mode=mode, fullgraph=True)
        self.generate(min(20, options.tokens))

    @torch.inference_mode()
    def generate(self, tokens: int) -> tuple[float, list[int]]:
        """Tokens a second from the second on, and the tokens."""
        self.decoder.clear()
        token = torch.full((1, 1), END_OF_TEXT, device=self.options.device)
        written = torch.zeros(tokens, dtype=torch.long, device=self.options.device)
        begin = time.perf_counter()
        for i in range(tokens):
            token = self.step(token).clone()
            written[i] = token[0, 0]
            if i == 0:
                written[0].item()  # waits
                begin = time.perf_counter()
        ids = written.tolist()
        return (tokens - 1) / (time.perf_counter() - begin), ids


def ours(options: argparse.Namespace) -> tuple[float, bytes]:
    command = [options.carope, "generate", options.run, "--tokens", options.tokens, "--ignore-end", "--prompt", ""]
    command += ["--temperature", 0, "--device", options.device]
    done = subprocess.run([str(word) for word in command], capture_output=True)
    rate = re.search(rb"([0-9.]+)( [kM])? tokens/s\s*$", done.stderr)
    if done.returncode != 0 or rate is None:
        raise SystemExit(f"side_by_side_generate: {' '.join(map(str, command))}:\n{done.stderr.decode()[-2000:]}")
    return float(rate[1]) * {b" k": 1e3, b" M": 1e6}.get(rate[2], 1.0), done.stdout.removesuffix(b"\n")


def text_of(options: argparse.Namespace, ids: list[int]) -> bytes:
    tokenizer = read_config(options.run / "config.toml")["data"]["path"] + "/tokenizer"
    command = [options.carope, "tokenizer", "decode", "--tokenizer", tokenizer]
    return subprocess.run(command, input=" ".join(map(str, ids)).encode(), stdout=subprocess.PIPE, check=True).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", type=Path, help="folder of carope train")
    parser.add_argument("--carope", type=Path, default=Path("build/cuda/carope"), help="the program")
    parser.add_argument("--tokens", type=int, default=800, help="to write; by default 800")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--compile-mode", choices=COMPILE_MODES, default="reduce-overhead")
    options = parser.parse_args()
    pytorch = PyTorch(options)
    rates: list[tuple[float, float]] = []
    for _ in range(options.rounds):
        (our_rate, text), (their_rate, ids) = ours(options), pytorch.generate(options.tokens)
        rates.append((our_rate, their_rate))
        print(json.dumps({"carope": our_rate, "PyTorch": their_rate, "ratio": our_rate / their_rate}), flush=True)
    same = len(os.path.commonprefix([text, text_of(options, ids)]))
    middle = [statistics.median(column) for column in zip(*rates)]
    ratios = sorted(a / b for a, b in rates)
    print(
        f"carope {middle[0]:.0f}, PyTorch {middle[1]:.0f} tokens/s, ratio {statistics.median(ratios):.2f} "
        f"[{ratios[0]:.2f}, {ratios[-1]:.2f}]; the same text for {same} of {len(text)} bytes"
    )
    sys.exit(0 if same > 0 else 1)


if __name__ == "__main__":
    main()
