"""Resume checks: what must match to continue a run, and what must match to continue it bit-exactly."""

from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from qkv.errors import QkvError
from qkv.train.objective import Objective
from qkv.train.settings import Settings

ResumeCheck = dict[str, dict[str, Any]]


def make_resume_check(objective: Objective, settings: Settings, device: torch.device, processes: int) -> ResumeCheck:
    """Return the settings, a checksum of the first batch, and the conditions that the last bits depend on."""
    digest = sha256()
    for tensor in objective.collate(objective.order(0)):
        digest.update(str((tensor.dtype, tuple(tensor.shape))).encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().tobytes())
    return {
        "settings": {name: value for name, value in asdict(settings).items() if name != "steps"},
        "data": {"first batch": digest.hexdigest()},
        "conditions": {
            "torch": torch.__version__,
            "device": device.type,
            "dtype": str(next(objective.model.parameters()).dtype),
            "threads": torch.get_num_threads(),
            "processes": processes,
        },
    }


def require_resumable(before: ResumeCheck, now: ResumeCheck, folder: Path) -> None:
    """Raise if the settings or the data differ; `steps` is compared elsewhere, since it may be measured."""
    # a setting that is newer than the run had its default
    started = {**asdict(Settings(steps=1)), **before["settings"]}
    started.pop("steps")
    for name, (old, new) in _differences(started, now["settings"]).items():
        raise QkvError(f"the run was started with {name}={old} and cannot continue with {name}={new}", folder)
    if before["data"] != now["data"]:
        raise QkvError("the first batch is not the one that the run was started with: its data have changed", folder)


def changed_conditions(before: ResumeCheck, now: ResumeCheck) -> dict[str, list[Any]]:
    """Return [before, now] of each condition that changed; with any change the last bits of the weights differ."""
    return {name: list(pair) for name, pair in _differences(before["conditions"], now["conditions"]).items()}


def _differences(before: dict[str, Any], now: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    names = [*before, *(name for name in now if name not in before)]
    return {name: (before.get(name), now.get(name)) for name in names if before.get(name) != now.get(name)}
