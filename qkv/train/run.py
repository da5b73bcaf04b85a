"""A run folder: what was asked for, what was learned, and how to go on.

    config.json  vocabulary.json  data.json  metrics.jsonl  checkpoints/step-00001200/  model.safetensors  report.html
    lock (empty; locked while a process trains)  tensorboard/ (where that package is installed)

Everything is written so that a kill at any moment leaves the last good state readable; nothing is pickled.
"""

import errno
import json
import math
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from safetensors.torch import load, save

from qkv.errors import QkvError
from qkv.storage import (
    FORMAT,
    latest_valid_step,
    read_folder,
    read_json,
    remove_stale,
    save_folder,
    verify_folder,
    write_atomic,
    write_json,
)
from qkv.train.distributed import rank
from qkv.train.ema import Weights, plain

try:
    import fcntl
except ImportError:  # a system without such locks
    fcntl = None  # type: ignore[assignment]

KEPT = 2
"""Checkpoints that stay: the last, and one before it to fall back to."""
PROGRESS = "progress.json"
LOCK = "lock"
"""The file that is locked while a process trains; it stays, empty."""

_STEP = re.compile(r"step-(\d{8,})")


@dataclass(frozen=True)
class Checkpoint:
    """All that is needed to go on."""

    tensors: dict[str, Weights]
    record: dict[str, Any]
    problems: list[QkvError]
    """What was wrong with newer ones."""


class Run:
    """The folder of one training run."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.checkpoints = folder / "checkpoints"
        self.metrics = folder / "metrics.jsonl"
        self.weights = folder / "model.safetensors"

    def save_checkpoint(self, step: int, tensors: dict[str, Weights], record: dict[str, Any]) -> None:
        """All that is needed to go on from here; older checkpoints go once this one stands.

        A good one of the same step stays: it differs at most in not knowing its validation, which is then done again.
        """
        folder = self.checkpoints / f"step-{step:08d}"
        if _is_good(folder):
            return
        if self.metrics.exists():
            with self._writing(), self.metrics.open("rb") as file:
                os.fsync(file.fileno())  # a checkpoint never knows more steps than the metrics
        files = {f"{name}.safetensors": save(plain(weights)) for name, weights in tensors.items()}
        files[PROGRESS] = json.dumps({"format": FORMAT, **record}, allow_nan=False).encode()
        save_folder(folder, files)
        older = [path for number, path in self._steps() if number < step]
        for path in older[: len(older) - (KEPT - 1)]:
            shutil.rmtree(path, ignore_errors=True)

    def load_checkpoint(self) -> Checkpoint | None:
        """The newest good checkpoint; None if there is none at all, an error if all are damaged."""
        folder, problems = latest_valid_step(self.checkpoints)
        if folder is None and problems:
            raise problems[0]
        if folder is None:
            return None
        files = read_folder(folder)
        record = read_json(folder / PROGRESS)
        tensors = {Path(name).stem: load(data) for name, data in files.items() if name != PROGRESS}
        return Checkpoint(tensors, record, problems)

    def require_new(self) -> None:
        """Refuse to start from nothing where there is something to go on from."""
        for _, path in self._steps():
            raise QkvError(f"there is a checkpoint {path.name} already; resume() first", self.folder)

    def rewind(self, step: int, validated: int) -> None:
        """Make the folder that of a run at this step, whose last validation was at `validated`.

        What a kill left half written and the lines of steps that will be taken again go; newer checkpoints, which are
        damaged, are set aside.
        """
        remove_stale(self.folder)
        remove_stale(self.checkpoints)
        for number, path in self._steps():
            if number > step:
                _set_aside(path)
        if not self.metrics.exists():
            return
        lines = self.metrics.read_text("utf-8", errors="replace").split("\n")
        kept = [line for line in lines if _stays(line, step, validated)]
        write_atomic(self.metrics, "".join(line + "\n" for line in kept).encode())

    def fix_steps(self, steps: int) -> None:
        """Write into config.json, where there is one, how many steps were found to fit into the minutes.

        A run that is killed before its first checkpoint then takes as many as it would have taken.
        """
        path = self.folder / "config.json"
        if path.exists():
            record = read_json(path)
            write_json(path, {**record, "train": {**record["train"], "steps": steps}})

    def save_weights(self, weights: Weights) -> None:
        """The model to use."""
        write_atomic(self.weights, save(plain(weights)))

    def log(self, record: dict[str, Any]) -> None:
        """One more line of metrics; a number that is not finite becomes null, for JSON has no other word for it."""
        line = json.dumps({name: _finite(value) for name, value in record.items()}, allow_nan=False)
        with self._writing(), self.metrics.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def read_metrics(self) -> list[dict[str, Any]]:
        """All whole lines."""
        text = self.metrics.read_text("utf-8", errors="replace") if self.metrics.exists() else ""
        return [record for line in text.split("\n") if (record := _record(line))]

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Meanwhile no other process trains here; of several that train together the first sees to it."""
        if rank() > 0:
            yield
            return
        try:
            file = (self.folder / LOCK).open("a")
        except OSError as error:
            raise QkvError(f"cannot write {LOCK} ({error.strerror})", self.folder) from error
        with file:
            _lock(file, self.folder)
            yield

    def _steps(self) -> list[tuple[int, Path]]:
        """Checkpoints by step, the newest last."""
        if not self.checkpoints.is_dir():
            return []
        matches = ((_STEP.fullmatch(path.name), path) for path in self.checkpoints.iterdir())
        return sorted((int(match[1]), path) for match, path in matches if match)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise QkvError(f"cannot write {self.metrics.name} ({error.strerror})", self.folder) from error


def create(folder: Path) -> Run:
    """A new run folder; one that has a run in it already is refused. Of several processes the first sees to it."""
    run = Run(folder)
    if rank() > 0:
        return run
    for there in (folder / "config.json", run.metrics, run.checkpoints, run.weights):
        if there.exists():
            raise QkvError(
                f"there is a run already ({there.name}); continue it with --resume or choose another --run", folder
            )
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise QkvError(f"the run folder cannot be made ({error.strerror})", folder) from error
    return run


def _lock(file: IO[str], folder: Path) -> None:
    """Lock the file until it is closed, for this process but not for those it forks; where there are no locks, do not.

    A worker that outlives a killed process for seconds must not keep the next one from going on.
    """
    if fcntl is None:
        return
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            raise QkvError("another process is training in this run folder; wait for it or stop it", folder) from None


def _is_good(folder: Path) -> bool:
    if not folder.exists():
        return False
    try:
        verify_folder(folder)
    except QkvError:
        return False
    return True


def _set_aside(folder: Path) -> None:
    number = 1
    while (aside := folder.with_name(f"{folder.name}.damaged-{number}")).exists():
        number += 1
    folder.rename(aside)


def _record(line: str) -> dict[str, Any]:
    """The record of a line; none of one that was cut in half."""
    try:
        record = json.loads(line)
    except ValueError:
        return {}
    return record if isinstance(record, dict) and isinstance(record.get("step"), int) else {}


def _stays(line: str, step: int, validated: int) -> bool:
    record = _record(line)
    return bool(record) and record["step"] <= (validated if record.get("event") == "validated" else step)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
