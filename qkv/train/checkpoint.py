"""Checkpoints: verified folders step-00001200/ with one safetensors file per state dict and progress.json.

    model  ema  best  optimizer (.safetensors)  progress.json  MANIFEST.json

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

MAX_CHECKPOINTS = 2
"""Checkpoints that are kept: the last, and one before it as a fallback."""
PROGRESS = "progress.json"
ChooseWeights = Callable[[dict[str, Any]], str]
"""Contents of progress.json -> name of a state dict."""


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
    files[PROGRESS] = json.dumps({"format": FORMAT, **record}, allow_nan=False).encode()
    save_folder(checkpoint_folder(parent, step), files)
    older = [path for number, path in list_steps(parent) if number < step]
    for path in older[: len(older) - (MAX_CHECKPOINTS - 1)]:
        shutil.rmtree(path, ignore_errors=True)


def load_checkpoint(parent: Path, choose: ChooseWeights | None = None) -> Checkpoint | None:
    """Return the latest valid checkpoint, or None without any; raise if all are damaged.

    With `choose`, only the state dict that it names is read and verified.
    """
    problems: list[QkvError] = []
    for step, folder in reversed(list_steps(parent)):
        try:
            tensors, record = _read_checkpoint(step, folder, choose)
        except QkvError as error:
            problems.append(error)
        else:
            return Checkpoint(tensors, record, problems)
    if problems:
        raise problems[0]
    return None


def _read_checkpoint(
    step: int, folder: Path, choose: ChooseWeights | None
) -> tuple[dict[str, Weights], dict[str, Any]]:
    """Return tensors and progress of a checkpoint; raise if a file is damaged or holds what no training can leave."""
    files = read_folder(folder, lambda name: name == PROGRESS)
    if PROGRESS not in files:
        raise QkvError(f"{PROGRESS} is missing", folder)
    record = parse_json(files[PROGRESS], folder / PROGRESS, upgrade_progress)
    _require_possible(record, step, folder)
    chosen = None if choose is None else choose(record)
    tensors = {}
    for name, data in read_folder(folder, lambda name: name != PROGRESS and chosen in (None, _kind(name))).items():
        try:
            weights = load(data)
        except SafetensorError as error:
            raise QkvError(f"{name} is damaged: {error}", folder) from None
        _require_no_nan(weights, name, folder)
        tensors[_kind(name)] = weights
    if chosen is not None and chosen not in tensors:
        raise QkvError(f"{chosen}.safetensors is missing", folder)
    return tensors, record


def _kind(name: str) -> str:
    """Return which state dict a file holds; format 1 had other names."""
    stem = Path(name).stem
    return CHECKPOINT_FILES.get(stem, stem)


def _require_no_nan(weights: Weights, name: str, folder: Path) -> None:
    for key, value in weights.items():
        if value.is_floating_point() and bool(value.isnan().any()):
            raise QkvError(f"{name} has NaN in {key}", folder)


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
