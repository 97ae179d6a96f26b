"""Systems as processes that are measured in turn, and the device memory that each takes."""

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

BENCH = Path(__file__).resolve().parents[1]
LEARNING_RATE = 1e-4
POLL_SECONDS = 0.05


class Failure(Exception):
    """A system that could not run, e.g. for lack of memory; says what it wrote last."""


@dataclass(frozen=True)
class Case:
    model: str
    encoding: str
    length: int


@dataclass(frozen=True)
class Setup:
    """What is the same for all cases."""

    data: Path
    carope: Path
    carope_arguments: tuple[str, ...]
    device: str
    batch_tokens: int
    warmup: int


class System(Protocol):
    name: str
    choice: str  # what was chosen for it, for people

    def measure(self, steps: int) -> dict[str, Any]:
        """Rates of steps, and in device_bytes the memory that it takes beyond what it keeps between measurements."""

    def close(self) -> int:
        """Ends it; returns the memory that it kept between measurements."""


class MemoryWatch:
    """Follows the device's used memory, as nvidia-smi has it, while in use; without a device everything is 0."""

    def __init__(self) -> None:
        device = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        query = ["--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        self.command = ["nvidia-smi", f"--id={device}", *query] if shutil.which("nvidia-smi") else ["echo", "0"]
        self.peak = 0

    def level(self) -> int:
        return int(subprocess.run(self.command, check=True, capture_output=True, text=True).stdout) << 20

    def __enter__(self) -> "MemoryWatch":
        self.peak = self.level()
        interval = ["--loop-ms=100"] if self.command[0] == "nvidia-smi" else []
        self.process = subprocess.Popen([*self.command, *interval], stdout=subprocess.PIPE, text=True)
        self.thread = threading.Thread(target=self.follow)
        self.thread.start()
        return self

    def follow(self) -> None:
        for line in self.process.stdout:
            self.peak = max(self.peak, int(line) << 20)

    def __exit__(self, *error: object) -> None:
        self.process.terminate()
        self.thread.join()
        self.process.wait()


def last_lines(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-5:])


class Carope:
    """carope train, begun anew for each measurement."""

    name = "carope"

    def __init__(self, setup: Setup, case: Case, micro_batch: int, watch: MemoryWatch) -> None:
        self.setup, self.case, self.watch = setup, case, watch
        self.choice = f"{micro_batch}"
        self.settings = {
            "data.path": setup.data,
            "data.order": "sequential",
            "model.length": case.length,
            "position.encoding": case.encoding,
            "train.micro_batch": micro_batch,
            "train.batch_tokens": setup.batch_tokens,
            "train.learning_rate": LEARNING_RATE,
            "train.final_learning_rate": LEARNING_RATE,
            "train.warmup_steps": 0,
            "train.validate_every": 0,
            "train.validate_tokens": micro_batch * case.length,
            "train.checkpoint_every": 0,
        }

    def measure(self, steps: int) -> dict[str, Any]:
        before = self.watch.level()
        with tempfile.TemporaryDirectory() as folder, self.watch:
            metrics = self.train(Path(folder), self.setup.warmup + steps)[self.setup.warmup :]
        rates = [line["tokens_per_second"] for line in metrics]
        return {
            "micro_batch": self.settings["train.micro_batch"],
            "tokens_per_second": statistics.median(rates),
            "lowest": min(rates),
            "highest": max(rates),
            "device_bytes": self.watch.peak - before,
            "first_step": self.setup.warmup + 1,
            "losses": [line["loss"] for line in metrics],
        }

    def train(self, folder: Path, steps: int) -> list[dict[str, Any]]:
        """The metrics of a run's first steps. What would follow, a checkpoint of gigabytes, is not waited for."""
        run, log = folder / "run", folder / "log"
        settings = self.settings | {"train.tokens": steps * self.setup.batch_tokens}
        device = ["--device", "cuda"] if self.setup.device == "cuda" else []
        command = [self.setup.carope, "train", "--config", self.case.model, "--out", run, *device]
        command += [f"--{key}={value}" for key, value in settings.items()]
        with log.open("w") as output:
            process = subprocess.Popen([*command, *self.setup.carope_arguments], stdout=output, stderr=output)
        metrics: list[dict[str, Any]] = []
        try:
            while len(metrics) < steps:
                ended = process.poll() is not None
                metrics = self.read_metrics(run / "metrics.jsonl")
                if ended and len(metrics) < steps:
                    raise Failure(last_lines(log))
                time.sleep(POLL_SECONDS)
        finally:
            process.kill()
            process.wait()
        return metrics[:steps]

    @staticmethod
    def read_metrics(path: Path) -> list[dict[str, Any]]:
        text = path.read_text() if path.exists() else ""
        complete = text[: text.rfind("\n") + 1]
        return [line for line in map(json.loads, complete.splitlines()) if "loss" in line]

    def close(self) -> int:
        return 0


class PyTorch:
    """bench/peer_gpt.py, compiled once, which rests between measurements."""

    name = "PyTorch"

    def __init__(
        self, setup: Setup, case: Case, micro_batch: int, arguments: tuple[str, ...], watch: MemoryWatch
    ) -> None:
        self.watch = watch
        self.choice = " ".join((f"{micro_batch}", *(argument.removeprefix("--") for argument in arguments)))
        command = [sys.executable, BENCH / "peer_gpt.py", "--wait", "--tokens", setup.data, "--device", setup.device]
        command += ["--model", case.model, "--encoding", case.encoding, "--length", str(case.length), *arguments]
        command += ["--micro-batch", str(micro_batch), "--batch-tokens", str(setup.batch_tokens)]
        command += ["--warmup", str(setup.warmup)]
        self.log = tempfile.NamedTemporaryFile(suffix=".log")
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self.log, "text": True}
        self.process = subprocess.Popen(command, **pipes)
        self.answer()

    def answer(self) -> dict[str, Any]:
        line = self.process.stdout.readline()
        if not line:
            self.close()
            raise Failure(last_lines(Path(self.log.name)))
        return json.loads(line)

    def measure(self, steps: int) -> dict[str, Any]:
        before = self.watch.level()
        with self.watch:
            print(steps, file=self.process.stdin, flush=True)
            measured = self.answer()
        return measured | {"device_bytes": self.watch.peak - before}

    def close(self) -> int:
        before = self.watch.level()
        self.process.stdin.close()
        self.process.wait()
        return before - self.watch.level()


class LlmC:
    """llm.c's train_gpt2cu, begun anew for each measurement. It has learnable positions, whatever the case's are."""

    name = "llm.c"
    depths = {"gpt-small": "d12", "gpt-tiny": "d6"}  # d6 as docs/benchmarks/gpu.md says

    def __init__(self, setup: Setup, case: Case, micro_batch: int, program: Path, watch: MemoryWatch) -> None:
        if case.model not in self.depths:
            raise Failure(f"llm.c has none of this size; it can be compared with {', '.join(self.depths)}")
        self.setup, self.watch = setup, watch
        self.choice = f"{micro_batch}"
        shards = {"-i": f"{setup.data}/*_train_*.bin", "-j": f"{setup.data}/*_val_*.bin"}
        model = {"-e": self.depths[case.model], "-b": micro_batch, "-t": case.length, "-d": setup.batch_tokens}
        recipe = {"-l": LEARNING_RATE, "-c": 0.1, "-u": 0}
        nothing_else = {"-v": 10**6, "-m": 1, "-s": 10**6, "-h": 0, "-r": 0}  # validation, samples, another loader
        options = shards | model | recipe | nothing_else
        self.command = [program, *(str(word) for option in options.items() for word in option)]

    def measure(self, steps: int) -> dict[str, Any]:
        before = self.watch.level()
        with self.watch:
            command = [*self.command, "-x", str(self.setup.warmup + steps)]
            done = subprocess.run(command, capture_output=True, text=True)
        # step 4/12 | loss 9.536556 (+nanz)| norm 2.4262 (+nanz)| lr 2.40e-04 | 899.82 ms | ...
        lines = re.findall(r"^step .*?loss ([0-9.]+).*?([0-9.]+) ms", done.stdout, re.MULTILINE)[self.setup.warmup :]
        if len(lines) < steps:
            raise Failure("\n".join((done.stdout + done.stderr).splitlines()[-5:]))
        rates = [self.setup.batch_tokens / (float(milliseconds) / 1e3) for _, milliseconds in lines]
        return {
            "micro_batch": int(self.choice),
            "tokens_per_second": statistics.median(rates),
            "lowest": min(rates),
            "highest": max(rates),
            "device_bytes": self.watch.peak - before,
            "first_step": self.setup.warmup + 1,
            "losses": [float(loss) for loss, _ in lines],
        }

    def close(self) -> int:
        return 0
