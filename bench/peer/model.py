"""GPT-2 with the positional encodings of this program, written for torch.compile.

Parameters have the names, shapes and meaning of the program's checkpoints.
"""

import math
from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ENCODINGS = ("learnable", "sinusoidal", "rope", "carope", "none")
BASE = 10000.0
DEVIATION = 0.02


@dataclass(frozen=True)
class Shape:
    layers: int
    heads: int
    width: int
    vocabulary: int
    length: int

    @classmethod
    def of(cls, settings: dict[str, Any]) -> "Shape":
        """Of a configuration's [model], which may have more than the shape."""
        return cls(**{field.name: settings[field.name] for field in fields(cls)})

    @property
    def pairs(self) -> int:
        return self.width // self.heads // 2


def angles(length: int, pairs: int, first: int) -> Tensor:
    """position * BASE^(-p / pairs) from position `first` on, [length, pairs] in fp64."""
    frequency = BASE ** (-torch.arange(pairs, dtype=torch.float64) / pairs)
    return torch.arange(first, first + length, dtype=torch.float64)[:, None] * frequency


def at_least_fp32(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turns the pairs (p, p + P) of x [B, T, H, 2P] in fp32, which the compiler fuses into one pass."""
    first, second = at_least_fp32(x).chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1).to(x.dtype)


class Norm(nn.Module):
    """Layer norm in fp32 of any input; the caller rounds the result where it wants it rounded."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(at_least_fp32(x), self.gain.shape, self.gain, self.bias, eps=1e-5)


class Rope(nn.Module):
    """Fixed frequencies, from tables in fp32."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        phase = angles(shape.length, shape.pairs, first=1)[:, None, :]  # [T, 1, P]
        self.register_buffer("cos", phase.cos().float(), persistent=False)
        self.register_buffer("sin", phase.sin().float(), persistent=False)

    def forward(self, normed: Tensor) -> tuple[Tensor, Tensor]:
        return self.cos, self.sin


class Carope(nn.Module):
    """One frequency a token and head from a gate, its powers summed along the sequence: in fp32, which loses digits of
    phases of hundreds of radians, or, to compare with, in fp64."""

    sum_dtype = torch.float32

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(shape.heads, shape.width))
        start = math.log(math.expm1(BASE ** (1 / shape.pairs) - 1))  # equals RoPE
        self.bias = nn.Parameter(torch.full((shape.heads,), start))
        exponents = torch.arange(shape.pairs, dtype=torch.float32)
        self.register_buffer("exponents", exponents, persistent=False)

    def forward(self, normed: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast(normed.device.type, enabled=False):
            logit = F.linear(normed, self.weight, self.bias)  # [B, T, H]
            log_frequency = -torch.log1p(F.softplus(logit))
            increments = torch.exp(log_frequency[..., None] * self.exponents)  # [B, T, H, P]
            phase = torch.cumsum(increments, dim=1, dtype=self.sum_dtype)
            return phase.cos().to(increments.dtype), phase.sin().to(increments.dtype)


class Block(nn.Module):
    def __init__(self, shape: Shape, encoding: str) -> None:
        super().__init__()
        width = shape.width
        self.heads = shape.heads
        self.attention_norm, self.mlp_norm = Norm(width), Norm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.mlp_in, self.mlp_out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        rotary = {"rope": Rope, "carope": Carope}.get(encoding)
        self.position = rotary(shape) if rotary else None

    def attention(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        normed = self.attention_norm(x)
        qkv = self.qkv(normed.to(self.qkv.weight.dtype))
        q, k, v = qkv.view(batch, length, 3, self.heads, -1).unbind(2)  # [B, T, H, D] each
        if self.position is not None:
            cos, sin = self.position(normed)
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.attention_out(attended.transpose(1, 2).reshape(batch, length, width))

    def mlp(self, x: Tensor) -> Tensor:
        normed = self.mlp_norm(x).to(self.mlp_in.weight.dtype)
        return self.mlp_out(F.gelu(self.mlp_in(normed), approximate="tanh"))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)
        return x + self.mlp(x)


class AddedPosition(nn.Module):
    """A vector a position, trained or of fixed sines and cosines, added to the embedding."""

    def __init__(self, shape: Shape, trained: bool) -> None:
        super().__init__()
        if trained:
            self.table = nn.Parameter(torch.randn(shape.length, shape.width) * DEVIATION)
        else:
            phase = angles(shape.length, shape.width // 2, first=0)
            waves = torch.stack((phase.sin(), phase.cos()), dim=-1).flatten(1)
            # The root mean square of a fresh embedding.
            table = (waves * math.sqrt(2) * DEVIATION).float()
            self.register_buffer("table", table, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return (x + self.table).to(x.dtype)


class Gpt(nn.Module):
    """Maps tokens and targets [B, T] to their mean loss."""

    def __init__(self, shape: Shape, encoding: str) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.empty(shape.vocabulary, shape.width))
        added = encoding in ("learnable", "sinusoidal")
        self.position = AddedPosition(shape, encoding == "learnable") if added else None
        self.block = nn.ModuleList(Block(shape, encoding) for _ in range(shape.layers))
        self.final_norm = Norm(shape.width)
        self.initialise()

    def initialise(self) -> None:
        """The branches that add to the residual start smaller, so that their sum does not grow with depth."""
        nn.init.normal_(self.embedding, std=DEVIATION)
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                branch = name.endswith("_out")
                scale = 1 / math.sqrt(2 * len(self.block)) if branch else 1.0
                nn.init.normal_(module.weight, std=DEVIATION * scale)
                nn.init.zeros_(module.bias)

    def matrix_parameters(self) -> list[nn.Parameter]:
        """Those that bf16 weights round: the embedding and the linear layers, not norms, gates or positions."""
        linears = [module for module in self.modules() if isinstance(module, nn.Linear)]
        return [self.embedding, *(parameter for linear in linears for parameter in linear.parameters())]

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = F.embedding(tokens, self.embedding)
        if self.position is not None:
            x = self.position(x)
        for block in self.block:
            x = block(x)
        logits = F.linear(self.final_norm(x).to(self.embedding.dtype), self.embedding)
        return F.cross_entropy(at_least_fp32(logits).flatten(0, 1), targets.flatten().long())
