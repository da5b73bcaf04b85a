"""Checkpoints: verified folders step-00001200/ with one safetensors file per state dict and progress.json.

    model  ema  best  optimizer (.safetensors)  progress.json  MANIFEST.json

Checkpoints of format 1 are read with the names of today, see `qkv.storage.format_1`.
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load, save

from qkv.errors import QkvError
from qkv.storage import FORMAT, is_valid_folder, latest_valid_step, list_steps, parse_json, read_folder, save_folder
from qkv.storage.format_1 import CHECKPOINT_FILES, upgrade_progress
from qkv.train.ema import Weights, to_cpu

MAX_CHECKPOINTS = 2
"""Checkpoints that are kept: the last, and one before it as a fallback."""
PROGRESS = "progress.json"


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


def load_checkpoint(parent: Path) -> Checkpoint | None:
    """Return the latest valid checkpoint, or None without any; raise if all are damaged."""
    folder, problems = latest_valid_step(parent)
    if folder is None:
        if problems:
            raise problems[0]
        return None
    files = read_folder(folder)
    if PROGRESS not in files:
        raise QkvError(f"{PROGRESS} is missing", folder)
    record = parse_json(files.pop(PROGRESS), folder / PROGRESS, upgrade_progress)
    tensors = {}
    for name, data in files.items():
        stem = Path(name).stem
        tensors[CHECKPOINT_FILES.get(stem, stem)] = load(data)
    return Checkpoint(tensors, record, problems)
