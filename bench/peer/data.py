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

    def __init__(self, path: Path, rows: int, length: int, split: str = "train") -> None:
        files = sorted(path.glob(f"*_{split}_*.bin")) if path.is_dir() else [path]
        if not files:
            raise ValueError(f"{path} has no *_{split}_*.bin; make token shards with carope data prepare")
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

    def window(self, number: int) -> int:
        """Which window comes as number so and so."""
        return number % self.windows

    def batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The tokens of a step and the token that follows each, [rows, T] i32."""
        numbers = (self.window(step * self.rows + row) for row in range(self.rows))
        rows = [self.read(number * self.length, self.length + 1) for number in numbers]
        windows = torch.from_numpy(np.stack(rows).astype(np.int32))
        return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()


def philox(counter: np.ndarray, stream: int, seed: int) -> np.ndarray:
    """The first word of Philox 4x32-10 (Salmon et al., 2011) for each counter, u64 to u64."""
    low, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    first, second = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
    words = [np.full_like(counter, stream & 0xFFFFFFFF), np.full_like(counter, stream >> 32)]
    x = [counter & low, counter >> shift, *words]
    for round_number in range(10):
        key_0 = np.uint64((seed + round_number * 0x9E3779B9) & 0xFFFFFFFF)
        key_1 = np.uint64(((seed >> 32) + round_number * 0xBB67AE85) & 0xFFFFFFFF)
        product_0, product_1 = first * x[0], second * x[2]
        mixed = ((product_1 >> shift) ^ x[1] ^ key_0, (product_0 >> shift) ^ x[3] ^ key_1)
        x = [mixed[0], product_1 & low, mixed[1], product_0 & low]
    return x[0]


def permutation(size: int, seed: int, stream: int) -> np.ndarray:
    """The program's random order of [0, size): a Feistel network of eight rounds, walked until it is back inside."""
    half = np.uint64(max(3, ((size - 1).bit_length() + 1) // 2))
    mask = (np.uint64(1) << half) - np.uint64(1)
    numbers = np.arange(size, dtype=np.uint64)
    outside = np.ones(size, dtype=bool)
    while outside.any():
        left, right = numbers[outside] >> half, numbers[outside] & mask
        for round_number in range(8):
            mixed = left ^ (philox(np.uint64(round_number << 32) | right, stream, seed) & mask)
            left, right = right, mixed
        numbers[outside] = left << half | right
        outside = numbers >= size
    return numbers.astype(np.int64)


class ShuffledBatches(SequentialBatches):
    """The program's data.order = shuffled: an order of its own for each epoch, a function of the seed."""

    def __init__(self, path: Path, rows: int, length: int, seed: int) -> None:
        super().__init__(path, rows, length)
        self.seed = seed
        self.orders: dict[int, np.ndarray] = {}

    def window(self, number: int) -> int:
        epoch, place = divmod(number, self.windows)
        if epoch not in self.orders:
            self.orders[epoch] = permutation(self.windows, self.seed, epoch)
        return int(self.orders[epoch][place])


def training_batches(config: dict[str, Any]) -> SequentialBatches:
    """What a run of the program with this configuration trains on."""
    data, train, length = config["data"], config["train"], config["model"]["length"]
    path, rows = Path(data["path"]), train["batch_tokens"] // length
    if data["order"] == "shuffled":
        return ShuffledBatches(path, rows, length, train["seed"])
    return SequentialBatches(path, rows, length)


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
