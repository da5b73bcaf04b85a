"""What a run is: what must be as it was to go on, and what must be as it was to go on to the last bit."""

from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from qkv.errors import QkvError
from qkv.train.objective import Objective
from qkv.train.settings import Settings

Identity = dict[str, dict[str, Any]]


def identify(task: Objective, settings: Settings, device: torch.device, processes: int) -> Identity:
    """The settings, a digest of the first batch, and the conditions on which the last bits depend."""
    digest = sha256()
    for tensor in task.collate(task.order(0)):
        digest.update(
            str((tensor.dtype, tuple(tensor.shape))).encode() + tensor.flatten().view(torch.uint8).numpy().tobytes()
        )
    return {
        "settings": {name: value for name, value in asdict(settings).items() if name != "steps"},
        "data": {"first batch": digest.hexdigest()},
        "conditions": {
            "torch": torch.__version__,
            "device": device.type,
            "dtype": str(next(task.model.parameters()).dtype),
            "threads": torch.get_num_threads(),
            "processes": processes,
        },
    }


def require_same(before: Identity, now: Identity, folder: Path) -> None:
    """Refuse to go on with other settings or other data; `steps` is compared elsewhere, since it may be measured."""
    for name, (was, is_now) in _differences(before["settings"], now["settings"]).items():
        raise QkvError(f"the run was started with {name}={was} and cannot go on with {name}={is_now}", folder)
    if before["data"] != now["data"]:
        raise QkvError("the first batch is not the one that the run was started with: its data have changed", folder)


def changed_conditions(before: Identity, now: Identity) -> dict[str, list[Any]]:
    """[before, now] of each condition that changed; if any did, the last bits of the weights will differ."""
    return {name: list(pair) for name, pair in _differences(before["conditions"], now["conditions"]).items()}


def _differences(before: dict[str, Any], now: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    names = [*before, *(name for name in now if name not in before)]
    return {name: (before.get(name), now.get(name)) for name in names if before.get(name) != now.get(name)}
