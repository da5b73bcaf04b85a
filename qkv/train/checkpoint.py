"""Checkpoints: verified folders step-00001200/ of safetensors files and progress.json.

    model  ema  best  optimizer (.safetensors)  progress.json  MANIFEST.json

A sharded training writes shard-00001-model-00001-of-00001.safetensors ... instead, one file per process; see
`qkv.train.parallel.shard_files`.

Checkpoints of format 1 are read with the names of today, see `qkv.storage.format_1`.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save

from qkv.errors import QkvError
from qkv.storage import FORMAT, is_valid_folder, list_steps, parse_json, read_folder, save_folder
from qkv.storage.format_1 import CHECKPOINT_FILES, upgrade_progress
from qkv.train.ema import Weights, to_cpu
from qkv.train.parallel.shard_files import is_sharded, read_shards

MAX_CHECKPOINTS = 2
"""Checkpoints that are kept: the last, and one before it as a fallback."""
PROGRESS = "progress.json"
ChooseWeights = Callable[[dict[str, Any]], str]
"""Contents of progress.json -> name of a state dict."""
ReadTensors = Callable[[Path, str | None], dict[str, Weights]]
"""Folder, name of one state dict or None -> state dicts by name."""


@dataclass(frozen=True)
class Checkpoint:
    """The state of a training run at one step."""

    tensors: dict[str, Weights]
    """State dicts by name: model, ema, best, optimizer."""
    record: dict[str, Any]
    """Contents of progress.json."""
    problems: list[QkvError]
    """Errors of newer checkpoints, which are damaged."""


def checkpoint_folder(parent: Path, step: int) -> Path:
    """Return the folder of the checkpoint of this step."""
    return parent / f"step-{step:08d}"


def has_checkpoint(parent: Path, step: int) -> bool:
    """Return whether there is a valid checkpoint of this step."""
    return is_valid_folder(checkpoint_folder(parent, step))


def save_checkpoint(parent: Path, step: int, tensors: dict[str, Weights], record: dict[str, Any]) -> None:
    """Save a checkpoint, then remove all older ones but the last."""
    files = {f"{name}.safetensors": save(to_cpu(weights)) for name, weights in tensors.items()}
    files[PROGRESS] = progress_bytes(record)
    save_folder(checkpoint_folder(parent, step), files)
    remove_older(parent, step)


def progress_bytes(record: dict[str, Any]) -> bytes:
    """Return the contents of progress.json."""
    return json.dumps({"format": FORMAT, **record}, allow_nan=False).encode()


def remove_older(parent: Path, step: int) -> None:
    """Remove all checkpoints before this one but the last."""
    older = [path for number, path in list_steps(parent) if number < step]
    for path in older[: len(older) - (MAX_CHECKPOINTS - 1)]:
        shutil.rmtree(path, ignore_errors=True)


def load_checkpoint(
    parent: Path, choose: ChooseWeights | None = None, read: ReadTensors | None = None
) -> Checkpoint | None:
    """Return the latest valid checkpoint, or None without any; raise if all are damaged.

    With `choose`, only the state dict that it names is read and verified. `read` replaces how tensors are read.
    """
    problems: list[QkvError] = []
    for step, folder in reversed(list_steps(parent)):
        try:
            record = _read_progress(step, folder)
            chosen = None if choose is None else choose(record)
            tensors = (read or read_tensors)(folder, chosen)
        except QkvError as error:
            problems.append(error)
        else:
            return Checkpoint(tensors, record, problems)
    if problems:
        raise problems[0]
    return None


def _read_progress(step: int, folder: Path) -> dict[str, Any]:
    """Return the contents of progress.json; raise if no training can leave them at this step."""
    files = read_folder(folder, lambda name: name == PROGRESS)
    if PROGRESS not in files:
        raise QkvError(f"{PROGRESS} is missing", folder)
    record = parse_json(files[PROGRESS], folder / PROGRESS, upgrade_progress)
    _require_possible(record, step, folder)
    return record


def read_tensors(folder: Path, chosen: str | None = None) -> dict[str, Weights]:
    """Return the complete state dicts of a checkpoint, or the chosen one; raise if a file is damaged."""
    tensors = read_shards(folder, chosen) if is_sharded(folder) else _read_whole(folder, chosen)
    for name, weights in tensors.items():
        require_no_nan(weights, name, folder)
    if chosen is not None and chosen not in tensors:
        raise QkvError(f"{chosen}.safetensors is missing", folder)
    return tensors


def _read_whole(folder: Path, chosen: str | None) -> dict[str, Weights]:
    tensors = {}
    for name, data in read_folder(folder, lambda name: name != PROGRESS and chosen in (None, _kind(name))).items():
        try:
            tensors[_kind(name)] = load(data)
        except SafetensorError as error:
            raise QkvError(f"{name} is damaged: {error}", folder) from None
    return tensors


def _kind(name: str) -> str:
    """Return which state dict a file holds; format 1 had other names."""
    stem = Path(name).stem
    return CHECKPOINT_FILES.get(stem, stem)


def require_no_nan(weights: Weights, name: str, folder: Path) -> None:
    """Raise if a state dict has NaN."""
    for key, value in weights.items():
        if value.is_floating_point() and bool(value.isnan().any()):
            raise QkvError(f"{name}.safetensors has NaN in {key}", folder)


def _require_possible(record: dict[str, Any], step: int, folder: Path) -> None:
    """Raise unless the recorded steps are those of a checkpoint of this step."""
    match record.get("progress"):
        case {"step": int(recorded), **others}:
            if recorded != step:
                raise QkvError(f"{PROGRESS} has step {recorded}, but the folder is of step {step}", folder)
            for name, value in others.items():
                if name in ("validated", "best_step") and not (type(value) is int and 0 <= value <= step):
                    raise QkvError(f"{PROGRESS} has {name}={value!r}, which must be from 0 to {step}", folder)
            steps = others.get("steps")
            if steps is not None and not (type(steps) is int and steps >= step):
                raise QkvError(f"{PROGRESS} has steps={steps!r}, which must be at least {step}", folder)
        case _:
            raise QkvError(f"{PROGRESS} has no step", folder)
