"""kill -9 at random moments of a training, 60 times: `python -m benchmarks.reliability_kills`.

Every task, with data workers, with distillation, and two processes under torchrun. Each killed run is continued with
`--resume` and compared with one that was never stopped: weights, losses, learning rates and validation scores must be
equal to the last bit. Writes benchmarks/results/reliability_kills.json.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.command_process import start
from benchmarks.machine import about
from qkv.train import Run

RESULTS = Path(__file__).parent / "results" / "reliability_kills.json"
KILLS = 6
"""Kills per case."""
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "--", "qkv"]


def _settings(*settings: str) -> list[str]:
    return [part for setting in settings for part in ("--set", setting)]


COMMON = ["--device", "cpu", "--json", "--steps", "40", *_settings("train.validate_every=8", "train.warmup=4")]
SMALL = _settings("model.dim=16", "model.heads=2", "model.hidden_dim=16", "train.batch_size=8")
SEQ2SEQ = [*SMALL, *_settings("model.max_length=16", "data.target=characters")]
RECALL = [
    "recall",
    *_settings("model.dim=8", "train.batch_size=2", "data.pairs=4", "data.length=16", "data.examples=8"),
]
DETECT = [
    "detect",
    *_settings("model.hidden_dim=8", "train.batch_size=2", "data.size=32"),
    *_settings("data.train_scenes=12", "data.valid_scenes=4", "data.test_scenes=2", "data.zoom=1.2"),
]
TEXT = _settings("data.size=300", "data.length=16", "model.max_length=16", "model.layers=1")


def _cases(data: Path) -> dict[str, list[str]]:
    """Return the arguments of `qkv train` by name."""
    pairs = ["pairs", "--train-file", str(data / "pairs.tsv"), *SEQ2SEQ]
    text, images = ["--train-file", str(data / "text.txt")], ["--train-file", str(data / "images.npz")]
    return {
        "pairs": pairs,
        "pairs, 2 data workers": [*pairs, "--workers", "2"],
        "pairs, accumulation, moving average": [
            *pairs,
            *_settings("train.accumulation_steps=2", "train.ema_decay=0.9"),
        ],
        "distillation": [*pairs, *_settings(f"data.teachers={data / 'teacher'}")],
        "text": ["text", *text, *SMALL, *TEXT],
        "masked": ["masked", *text, *SMALL, *TEXT, *_settings("data.examples=8")],
        "words": ["words", *text, *_settings("model.dim=8", "data.least=1")],
        "recall": RECALL,
        "digits": ["digits", *images, *_settings("train.batch_size=8")],
        "xor": ["xor"],
        "detect, faster": DETECT,
        "detect, rcnn in three stages": [*DETECT, "--preset", "rcnn"],
        "recall, 2 processes": [*RECALL, *_settings("data.vocabulary=64")],
    }


def _write_data(folder: Path) -> None:
    draw = random.Random(1)
    words = ["".join(draw.choices("abcdefgh", k=draw.randint(2, 6))) for _ in range(200)]
    (folder / "pairs.tsv").write_text("".join(f"{word}\t{word[::-1]}\n" for word in dict.fromkeys(words)))
    sentences = [" ".join(draw.choices(words[:60], k=8)) + "." for _ in range(600)]
    (folder / "text.txt").write_text("\n\n".join(" ".join(sentences[n : n + 10]) for n in range(0, 600, 10)))
    numbers = np.random.default_rng(1)
    images, labels = numbers.integers(0, 256, (260, 28, 28), dtype=np.uint8), numbers.integers(0, 3, 260)
    np.savez(
        folder / "images.npz",
        train_images=images[:200],
        train_labels=labels[:200],
        test_images=images[200:],
        test_labels=labels[200:],
    )


class Case:
    """A training that is run whole once, then killed and resumed."""

    def __init__(self, name: str, arguments: list[str], parent: Path):
        self.name, self.parent = name, parent
        parent.mkdir()
        self.arguments = ["train", *arguments, *COMMON]
        self.distributed = "processes" in name
        started = time.monotonic()
        self.finish(parent / "whole")
        self.seconds = time.monotonic() - started
        self.expected = self.outcome(parent / "whole")

    def start(self, folder: Path) -> Any:
        """Start the training in a folder, or continue it."""
        arguments = [*self.arguments, "--run", str(folder), "--resume"]
        if not self.distributed:
            return start(arguments, self.parent / "log")
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with (self.parent / "log").open("a") as log:
            return subprocess.Popen([*TORCHRUN, *arguments], env=environment, stdout=log, stderr=log)

    def wait(self, process: Any) -> int | None:
        """Return the exit code of a process."""
        if self.distributed:
            return int(process.wait(120))
        process.join(120)
        return process.exitcode

    def finish(self, folder: Path) -> None:
        """Train to the end."""
        code = self.wait(self.start(folder))
        assert code == 0, f"{self.name}: exit code {code}\n{(self.parent / 'log').read_text()[-2000:]}"

    def outcome(self, folder: Path) -> tuple[bytes, list[Any]]:
        """Return what must be equal: the weights, and each step and validation."""
        lines = Run(folder).read_metrics()
        names = ("step", "loss", "rate", "norm", "score", "best")
        curve = [[line.get(name) for name in names] for line in lines if "loss" in line or "score" in line]
        return (folder / "model.safetensors").read_bytes(), curve

    def kill(self, folder: Path, draw: random.Random) -> str | None:
        """Kill a training at a random moment; return the stage it was in, or None if it had ended before."""
        process = self.start(folder)
        moment, steps = draw.uniform(0, self.seconds), draw.randint(1, 36)
        end = time.monotonic() + moment
        while _is_running(process) and (
            len(Run(folder).read_metrics()) < steps if self.distributed else time.monotonic() < end
        ):
            time.sleep(0.002)
        victims = _children(process.pid) if self.distributed else [process.pid]
        if not _is_running(process) or not victims:
            return None
        os.kill(draw.choice(victims), signal.SIGKILL)
        code = self.wait(process)
        stage = _stage(folder)
        return stage if code != 0 else None


def _is_running(process: Any) -> bool:
    return (process.poll() is None) if isinstance(process, subprocess.Popen) else process.is_alive()


def _children(process: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def _stage(folder: Path) -> str:
    """Return how far a killed run had come."""
    if not (folder / "config.json").exists():
        return "before the run was set up"
    if any(folder.rglob("*.tmp-*")):
        return "while a file was written"
    if (folder / "model.safetensors").exists():
        return "after training"
    return "after a checkpoint" if (folder / "checkpoints").exists() else "before the first checkpoint"


def _measure(case: Case, draw: random.Random) -> dict[str, Any]:
    stages: Counter[str] = Counter()
    identical = number = 0
    while stages.total() < KILLS:
        folder, number = case.parent / str(number), number + 1
        stage = case.kill(folder, draw)
        if stage is None:
            continue
        stages[stage] += 1
        case.finish(folder)
        identical += case.outcome(folder) == case.expected
    return {"kills": stages.total(), "identical": identical, "stages": dict(stages)}


def main() -> None:
    """Kill, resume, compare, write and print the result."""
    started, draw, found = time.monotonic(), random.Random(3), {}
    with tempfile.TemporaryDirectory() as temporary:
        data = Path(temporary)
        os.environ["QKV_CACHE"] = str(data / "cache")
        _write_data(data)
        cases = _cases(data)
        teacher = start(["train", *cases["pairs"], *COMMON, "--run", str(data / "teacher")], data / "log")
        teacher.join()
        whole = [Case(name, arguments, data / name.replace(" ", "-")) for name, arguments in cases.items()]
        for case in whole:
            found[case.name] = _measure(case, draw)
            print(case.name, json.dumps(found[case.name]), flush=True)
    total = {key: sum(case[key] for case in found.values()) for key in ("kills", "identical")}
    stages = sum((Counter(case["stages"]) for case in found.values()), Counter())
    result = {**total, "stages": dict(stages), "cases": found, "seconds": round(time.monotonic() - started)}
    command = "python -m benchmarks.reliability_kills"
    RESULTS.write_text(json.dumps({**about(), "command": command, **result}, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
