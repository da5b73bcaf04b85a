"""A run folder: configuration, metrics, checkpoints and the trained model.

    config.json  vocabulary.json  data.json  model.safetensors     sealed: MANIFEST.json has their checksums
    metrics.jsonl  checkpoints/step-00001200/  report.html
    lock (empty; locked while a process trains)  tensorboard/ (where that package is installed)

A kill at any moment leaves the last saved state readable. Nothing is pickled.
"""

import errno
import json
import math
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from safetensors.torch import save

from qkv.errors import QkvError
from qkv.storage import (
    is_sealed,
    list_steps,
    parse_json,
    read_sealed,
    remove_sealed,
    remove_stale,
    seal_files,
    sealed_names,
    set_aside,
    to_json,
    write_atomic,
    write_sealed,
)
from qkv.storage.format_1 import upgrade_config
from qkv.train.checkpoint import Checkpoint, ChooseWeights, has_checkpoint, load_checkpoint, save_checkpoint
from qkv.train.distributed import get_rank
from qkv.train.ema import Weights, to_cpu
from qkv.train.progress import Progress

try:
    import fcntl
except ImportError:  # a system without file locks
    fcntl = None  # type: ignore[assignment]

_FLOCK = "hhqqi4x"
"""Layout of the system's `struct flock`: type, whence, start, length, process."""
LOCK = "lock"
"""Name of the file that is locked while a process trains; the empty file stays."""
START = "start.safetensors"
"""Name of the weights that a training started from, if it did not start untrained; removed when it ends."""
SEALED = ("config.json", "vocabulary.json", "data.json", START)
"""Files that are sealed when a run is created; model.safetensors is sealed when training ends."""


class Run:
    """The folder of one training run."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.checkpoints = folder / "checkpoints"
        self.metrics = folder / "metrics.jsonl"
        self.weights = folder / "model.safetensors"

    def is_finished(self) -> bool:
        """Return whether the trained model is saved and sealed; a run of format 1 has no seal."""
        return self.weights.exists() and (not is_sealed(self.folder) or self.weights.name in sealed_names(self.folder))

    def seal(self) -> bool:
        """Write a manifest of what a run has when it is created, if it has none; return whether it was written."""
        names = [name for name in SEALED if (self.folder / name).exists()]
        if is_sealed(self.folder) or not names:
            return False
        seal_files(self.folder, {name: read_sealed(self.folder, name) for name in names})
        return True

    def save_checkpoint(self, step: int, tensors: dict[str, Weights], record: dict[str, Any]) -> None:
        """Save the state at this step; older checkpoints are removed after it is on disk."""
        if self.needs_checkpoint(step):
            save_checkpoint(self.checkpoints, step, tensors, record)

    def needs_checkpoint(self, step: int) -> bool:
        """Return whether there is no valid checkpoint of this step, after its metrics are on disk.

        A valid one is kept: it can only lack its validation, which resuming repeats.
        """
        self._require_own_checkpoints()
        if has_checkpoint(self.checkpoints, step):
            return False
        if self.metrics.exists():
            with self._metrics_errors(), self.metrics.open("rb") as file:
                os.fsync(file.fileno())  # metrics are never behind a checkpoint
        return True

    def load_checkpoint(self, choose: ChooseWeights | None = None) -> Checkpoint | None:
        """Return the latest valid checkpoint, or None without any; raise if all are damaged.

        With `choose`, only the state dict that it names is read and verified.
        """
        return load_checkpoint(self.checkpoints, choose)

    def _require_own_checkpoints(self) -> None:
        """Raise if checkpoints are links: saving and resuming remove files, which must never be those of others."""
        for path in (self.checkpoints, *(path for _, path in list_steps(self.checkpoints))):
            if path.is_symlink():
                name = path.relative_to(self.folder)
                raise QkvError(
                    f"{name} is a symbolic link, and training would remove files where it points to; "
                    "replace it with a folder",
                    self.folder,
                )

    def require_no_checkpoint(self) -> None:
        """Raise if there is a checkpoint to resume from."""
        for _, path in list_steps(self.checkpoints):
            raise QkvError(f"there is a checkpoint {path.name} already; resume() first", self.folder)

    def require_unfinished(self) -> None:
        """Raise if the run is finished; called where there is no checkpoint, since it would start again from step 0."""
        if self.is_finished():
            raise QkvError(
                "the run is finished and its checkpoints were removed, so it cannot be continued; "
                "--start-from makes a new run from its weights",
                self.folder,
            )

    def rewind(self, step: int, validated: int) -> int:
        """Return the folder to its state at this step, whose last validation was at `validated`.

        Half-written files and the metrics of later steps are removed. Newer checkpoints are damaged, and are renamed.
        Return the number of removed lines of metrics.
        """
        self._require_own_checkpoints()
        remove_stale(self.folder)
        remove_stale(self.checkpoints)
        for number, path in list_steps(self.checkpoints):
            if number > step:
                set_aside(path)
        if not self.metrics.exists():
            return 0
        lines = self.metrics.read_text("utf-8", errors="replace").split("\n")
        kept = [line for line in lines if _is_before(line, step, validated)]
        write_atomic(self.metrics, "".join(line + "\n" for line in kept).encode())
        return sum(map(bool, lines)) - len(kept)

    def reopen(self, steps: int) -> None:
        """Prepare a run that is stopped or finished to train to another number of steps.

        The finished model is removed: the last checkpoint has the same weights, and becomes the model until the end.
        """
        found = self.load_checkpoint()
        if found is None:
            self.require_unfinished()
        else:
            Progress.from_record(found.record["progress"]).change_length(steps, self.folder)
        remove_sealed(self.folder, self.weights.name)
        self.record_steps(steps)

    def record_steps(self, steps: int) -> None:
        """Write the number of steps to config.json, if there is one.

        A run that measured them and is killed before its first checkpoint then takes the same number of steps.
        """
        path = self.folder / "config.json"
        if path.exists():
            self.seal()
            record = parse_json(read_sealed(self.folder, path.name), path, upgrade_config)
            record["train"]["steps"] = steps
            write_sealed(self.folder, path.name, to_json(record))

    def save_weights(self, weights: Weights) -> None:
        """Save the trained model and seal it with the files that it needs; a kill in between leaves no model."""
        self.seal()
        write_sealed(self.folder, self.weights.name, save(to_cpu(weights)))
        remove_sealed(self.folder, START)

    def log(self, record: dict[str, Any]) -> None:
        """Append a line of metrics; a value that is not finite becomes null."""
        line = json.dumps({name: _finite_or_none(value) for name, value in record.items()}, allow_nan=False)
        with self._metrics_errors(), self.metrics.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def read_metrics(self) -> list[dict[str, Any]]:
        """Return the records of all complete lines."""
        text = self.metrics.read_text("utf-8", errors="replace") if self.metrics.exists() else ""
        return [record for line in text.split("\n") if (record := parse_metrics_line(line))]

    def is_training(self) -> bool:
        """Return whether another process holds the lock; it is asked for, not taken.

        Not for a process that trains in this folder itself: closing the file would release its lock.
        """
        path = self.folder / LOCK
        if fcntl is None or not path.exists():
            return False
        with path.open("rb") as file:
            asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            found = struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, asked))
        return bool(found[0] != fcntl.F_UNLCK)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Create the folder, and keep other processes from training in it; in a process group, rank 0 holds the lock.

        A training takes the lock before it writes anything else, so that two that start at once never mix.
        """
        if get_rank() > 0:
            yield
            return
        _make_folder(self.folder)
        try:
            file = (self.folder / LOCK).open("a")
        except OSError as error:
            raise QkvError(f"cannot write {LOCK} ({error.strerror})", self.folder) from error
        with file:
            _lock_file(file, self.folder)
            yield

    @contextmanager
    def _metrics_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise QkvError(f"cannot write {self.metrics.name} ({error.strerror})", self.folder) from error


def create_run(folder: Path) -> Run:
    """Create a run folder; raise if it already holds a run. In a process group, rank 0 creates it."""
    run = Run(folder)
    if get_rank() > 0:
        return run
    for path in (folder / "config.json", run.metrics, run.checkpoints, run.weights):
        if path.exists():
            raise QkvError(
                f"there is a run already ({path.name}); continue it with --resume or choose another --run", folder
            )
    _make_folder(folder)
    return run


def _make_folder(folder: Path) -> None:
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise QkvError(f"the run folder cannot be created ({error.strerror})", folder) from error


def _lock_file(file: IO[str], folder: Path) -> None:
    """Lock the file until it is closed, where the system has locks.

    A lock by `lockf` is not inherited by forked processes: a data worker that outlives a killed process for seconds
    does not block the next one.
    """
    if fcntl is None:
        return
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            raise QkvError("another process is training in this run folder; wait for it or stop it", folder) from None


def parse_metrics_line(line: str) -> dict[str, Any]:
    """Return the record of a line of metrics, or an empty one if the line is truncated."""
    try:
        record = json.loads(line)
    except ValueError:
        return {}
    return record if isinstance(record, dict) and isinstance(record.get("step"), int) else {}


def _is_before(line: str, step: int, validated: int) -> bool:
    record = parse_metrics_line(line)
    last = validated if record.get("event") == "validated" else step
    return bool(record) and record["step"] <= last


def _finite_or_none(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
