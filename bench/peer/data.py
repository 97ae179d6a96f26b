"""The files that both systems share: token shards, configurations and checkpoints."""

import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import torch

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
SHARD_MAGIC, SHARD_VERSION, SHARD_HEADER_BYTES = 20240520, 1, 1024
SAFETENSORS_DTYPES = {"F32": np.float32, "F64": np.float64}


def read_config(name_or_file: str | Path) -> dict[str, Any]:
    """A configuration of configs/ by its name, or any TOML file."""
    preset = CONFIGS / f"{name_or_file}.toml"
    path = preset if preset.is_file() else Path(name_or_file)
    with path.open("rb") as file:
        return tomllib.load(file)


def read_shard(path: Path) -> np.ndarray:
    """The tokens of one file, not yet read from disk: a shard, or an array of NumPy's."""
    if path.suffix == ".npy":
        return np.load(path, mmap_mode="r")
    magic, version, count = np.fromfile(path, dtype="<i4", count=3)
    if (magic, version) != (SHARD_MAGIC, SHARD_VERSION):
        found = f"it begins with {magic}, {version}"
        raise ValueError(f"{path} is no token shard: {found}; make one with carope data prepare")
    return np.memmap(path, dtype="<u2", mode="r", offset=SHARD_HEADER_BYTES, shape=(int(count),))


class SequentialBatches:
    """The program's data.order = sequential: row j of step s is window (s * rows + j) mod W, W = (N - 1) / T."""

    def __init__(self, path: Path, rows: int, length: int) -> None:
        files = sorted(path.glob("*_train_*.bin")) if path.is_dir() else [path]
        if not files:
            raise ValueError(f"{path} has no *_train_*.bin; make token shards with carope data prepare")
        self.shards = [read_shard(file) for file in files]
        self.ends = np.cumsum([shard.size for shard in self.shards])
        self.rows, self.length = rows, length
        self.windows = int(self.ends[-1] - 1) // length
        if self.windows < 1:
            raise ValueError(f"{path} has {self.ends[-1]} tokens, a row needs {length + 1}; use more text")

    def read(self, begin: int, count: int) -> np.ndarray:
        parts: list[np.ndarray] = []
        while count > 0:
            shard = int(np.searchsorted(self.ends, begin, side="right"))
            left = int(self.ends[shard]) - begin
            first = self.shards[shard].size - left
            parts.append(self.shards[shard][first : first + min(count, left)])
            begin, count = begin + parts[-1].size, count - parts[-1].size
        return np.concatenate(parts)

    def batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The tokens of a step and the token that follows each, [rows, T] i32."""
        numbers = (step * self.rows + row for row in range(self.rows))
        rows = [self.read(number % self.windows * self.length, self.length + 1) for number in numbers]
        windows = torch.from_numpy(np.stack(rows).astype(np.int32))
        return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()


def read_safetensors(path: Path) -> dict[str, torch.Tensor]:
    with path.open("rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(header_bytes))
    values = np.memmap(path, dtype=np.uint8, mode="r", offset=8 + header_bytes)
    tensors: dict[str, torch.Tensor] = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            array = values[begin:end].view(SAFETENSORS_DTYPES[entry["dtype"]]).reshape(entry["shape"])
            tensors[name] = torch.from_numpy(array.copy())
    return tensors
