"""Training steps in PyTorch as fast as it can: compiled, fused, in bf16, without waiting for the device."""

import contextlib
import math
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from peer.data import SequentialBatches, read_safetensors
from peer.model import Carope, Gpt, Shape

COMPILE_MODES = ("default", "max-autotune-no-cudagraphs", "none")
ATTENTION = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}


@dataclass(frozen=True)
class Method:
    """How PyTorch computes, as far as there is a choice."""

    device: str = "cuda"
    weights: str = "fp32"  # bf16: rounded copies of fp32 masters, and a bf16 residual
    fp32: bool = False  # all arithmetic but sums of phases in fp64, for comparisons of losses and gradients
    compile_mode: str = "default"
    attention: str = "best"  # of ATTENTION
    tf32: bool = False  # in CARoPE's gate, the only fp32 product of a bf16 model


@dataclass(frozen=True)
class AdamW:
    """The program's defaults."""

    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    decay: float = 0.1
    clip: float = 1.0


def attention_seconds(backend: SDPBackend, shape: Shape, micro_batch: int) -> float:
    """One forward and backward pass of a layer's attention, or infinity where the backend cannot."""
    size = (micro_batch, shape.length, 3, shape.heads, 2 * shape.pairs)
    qkv = torch.randn(size, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    q, k, v = (part.transpose(1, 2) for part in qkv.unbind(2))
    best = math.inf
    try:
        with sdpa_kernel(backend):
            for _ in range(5):
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record()
                out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
                out.backward(out)
                end.record()
                end.synchronize()
                best = min(best, begin.elapsed_time(end) / 1000)
    except RuntimeError:
        return math.inf
    return best


def choose_attention(method: Method, shape: Shape, micro_batch: int) -> str:
    """The fused kernel to use; or "any", PyTorch's choice, where those do not apply."""
    if method.device != "cuda" or method.fp32:
        return "any"
    if method.attention != "best":
        return method.attention
    return min(ATTENTION, key=lambda name: attention_seconds(ATTENTION[name], shape, micro_batch))


class Trainer:
    """A model, its optimizer and its data. Steps are only put on the device's queue: `mark` and `seconds` time them."""

    def __init__(
        self,
        shape: Shape,
        encoding: str,
        batches: SequentialBatches,
        micro_batch: int,
        method: Method,
        adamw: AdamW = AdamW(),
        init: Path | None = None,
        seed: int = 1,
    ) -> None:
        self.batches, self.micro_batch, self.method, self.adamw = batches, micro_batch, method, adamw
        self.micro_steps, rest = divmod(batches.rows, micro_batch)
        if rest:
            raise ValueError(f"{batches.rows} rows a step are not a multiple of the micro-batch {micro_batch}")
        torch.set_float32_matmul_precision("high" if method.tf32 else "highest")
        torch.manual_seed(seed)
        model = Gpt(shape, encoding)
        if init is not None:
            model.load_state_dict(read_safetensors(init))
        self.model = model.to(method.device)
        for module in self.model.modules():
            if isinstance(module, Carope) and method.fp32:
                module.sum_dtype = torch.float64
        self.rounded = self.round_weights() if method.weights == "bf16" else {}
        self.optimizer = self.make_optimizer()
        self.attention = choose_attention(method, shape, micro_batch)
        self.loss = self.compiled()
        self.steps_done = 0

    def round_weights(self) -> dict[nn.Parameter, Tensor]:
        """Makes matrices bf16; returns the fp32 master of each."""
        masters = {parameter: parameter.detach().clone() for parameter in self.model.matrix_parameters()}
        for parameter in masters:
            parameter.data = parameter.data.bfloat16()
        return masters

    def make_optimizer(self) -> torch.optim.AdamW:
        masters = [self.rounded.get(parameter, parameter) for parameter in self.model.parameters()]
        groups = [
            {"params": [master for master in masters if master.ndim >= 2], "weight_decay": self.adamw.decay},
            {"params": [master for master in masters if master.ndim < 2], "weight_decay": 0.0},
        ]
        betas = (self.adamw.beta1, self.adamw.beta2)
        return torch.optim.AdamW(groups, betas=betas, eps=self.adamw.epsilon, fused=True)

    def compiled(self) -> nn.Module:
        if self.method.compile_mode == "none":
            return self.model
        # The compiler's cache does not tell attention kernels apart: each needs one of its own.
        cache = Path(tempfile.gettempdir()) / f"carope-peer-{self.attention}"
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache)
        return torch.compile(self.model, mode=self.method.compile_mode, fullgraph=True, dynamic=False)

    def arithmetic(self) -> contextlib.ExitStack:
        """What a forward pass runs under."""
        stack = contextlib.ExitStack()
        if self.attention in ATTENTION:
            stack.enter_context(sdpa_kernel(ATTENTION[self.attention]))
        if not self.method.fp32 and self.method.weights == "fp32":
            stack.enter_context(torch.autocast(self.method.device, torch.bfloat16))
        return stack

    def to_device(self, tensor: Tensor) -> Tensor:
        return tensor.pin_memory().to("cuda", non_blocking=True) if self.method.device == "cuda" else tensor

    def step(self, learning_rate: float) -> Tensor:
        """One optimizer step; its mean loss stays on the device."""
        tokens, targets = (self.to_device(tensor) for tensor in self.batches.batch(self.steps_done))
        total = torch.zeros((), device=self.method.device)
        for rows in zip(tokens.split(self.micro_batch), targets.split(self.micro_batch)):
            with self.arithmetic():
                loss = self.loss(*rows) / self.micro_steps
            loss.backward()
            self.add_rounded_gradients()
            total += loss.detach()
        self.update(learning_rate)
        self.steps_done += 1
        return total

    def add_rounded_gradients(self) -> None:
        """Gradients of bf16 weights add up in fp32, in those of their masters."""
        for parameter, master in self.rounded.items():
            if master.grad is None:
                master.grad = parameter.grad.float()
            else:
                master.grad.add_(parameter.grad)
            parameter.grad = None

    def update(self, learning_rate: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        masters = [master for group in self.optimizer.param_groups for master in group["params"]]
        nn.utils.clip_grad_norm_(masters, self.adamw.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            for parameter, master in self.rounded.items():
                parameter.copy_(master)

    def mark(self) -> "torch.cuda.Event | float":
        if self.method.device != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, begin: "torch.cuda.Event | float", end: "torch.cuda.Event | float") -> float:
        if isinstance(begin, float):
            return end - begin
        end.synchronize()
        return begin.elapsed_time(end) / 1000
