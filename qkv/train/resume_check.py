"""Resume checks: what must match to continue a run, and what must match to continue it bit-exactly."""

from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from qkv.errors import QkvError
from qkv.storage import parse_json, read_sealed
from qkv.storage.format_1 import upgrade_config
from qkv.train.checkpoint import Checkpoint
from qkv.train.cpu_conditions import cpu_conditions
from qkv.train.objective import Objective
from qkv.train.parallel.mesh import Mesh
from qkv.train.run import Run
from qkv.train.settings import Settings

ResumeCheck = dict[str, dict[str, Any]]
PARTS = ("model", "ema", "best", "optimizer")
"""State dicts that a checkpoint must have."""


def make_resume_check(
    objective: Objective, settings: Settings, device: torch.device, mesh: Mesh, run: Run
) -> ResumeCheck:
    """Return settings, run, a checksum of the first batch, and the conditions that the last bits depend on."""
    digest = sha256()
    for tensor in objective.collate(objective.order(0)):
        digest.update(str((tensor.dtype, tuple(tensor.shape))).encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().tobytes())
    return {
        "settings": {name: value for name, value in asdict(settings).items() if name != "steps"},
        "run": describe_run(run),
        "data": {"first batch": digest.hexdigest()},
        "conditions": {
            "torch": torch.__version__,
            "device": device.type,
            "dtype": str(next(objective.model.parameters()).dtype),
            "threads": torch.get_num_threads(),
            "processes": mesh.processes,
            **({} if mesh.parameter_shards == 1 else {"mesh": str(mesh)}),
            **cpu_conditions(),
        },
    }


def describe_run(run: Run) -> dict[str, Any]:
    """Return what binds a checkpoint to its run: the settings in config.json, and checksums of the other files.

    Settings of training are compared by themselves. Without config.json there is nothing to be bound to.
    """
    if not (run.folder / "config.json").exists():
        return {}
    record = _read_config(run, read_sealed(run.folder, "config.json"))
    names = [name for name in ("vocabulary.json", "data.json") if (run.folder / name).exists()]
    files = {name: sha256(read_sealed(run.folder, name)).hexdigest() for name in names}
    return {**{name: value for name, value in record.items() if not name.startswith("train.")}, **files}


def changed_settings(run: Run) -> dict[str, tuple[Any, Any]]:
    """Return (before, now) of each setting in config.json that is not the one of the last checkpoint."""
    found = run.load_checkpoint()
    if found is None:
        return {}
    check = found.record.get("resume_check", {"settings": {}})
    before = {**check.get("run", {}), **{f"train.{name}": value for name, value in check["settings"].items()}}
    now = _read_config(run, (run.folder / "config.json").read_bytes())
    settings = {name: value for name, value in before.items() if not name.endswith(".json")}
    return _differences(settings, {name: now.get(name) for name in settings})


def _read_config(run: Run, data: bytes) -> dict[str, Any]:
    """Return {"task": ..., "model.dropout": ...} of the contents of config.json."""
    record = parse_json(data, run.folder / "config.json", upgrade_config)
    groups = {group: values for group, values in record.items() if isinstance(values, dict)}
    inner = {f"{group}.{name}": value for group, values in groups.items() for name, value in values.items()}
    return {**{name: value for name, value in record.items() if name not in groups}, **inner}


def require_resumable(found: Checkpoint, now: ResumeCheck, folder: Path) -> None:
    """Raise if a part is missing, or if settings, run or data differ; `steps` is compared elsewhere."""
    before = found.record.get("resume_check", {})
    for name in ("settings", "data", "conditions"):
        if not isinstance(before.get(name), dict):
            raise QkvError(f"progress.json of the checkpoint has no {name!r}, so resuming cannot be checked", folder)
    for name in PARTS:
        if name not in found.tensors:
            raise QkvError(f"the checkpoint has no {name}.safetensors", folder)
    # a setting that is newer than the run had its default
    started = {**asdict(Settings(steps=1)), **before["settings"]}
    started.pop("steps")
    for name, (old, new) in _differences(started, now["settings"]).items():
        raise QkvError(f"the run was started with {name}={old} and cannot continue with {name}={new}", folder)
    for name, (old, new) in _differences(before.get("run", now["run"]), now["run"]).items():
        raise QkvError(f"the checkpoint is of another run: {_describe_difference(name, old, new)}", folder)
    if before["data"] != now["data"]:
        raise QkvError("the first batch is not the one that the run was started with: its data have changed", folder)


def changed_conditions(found: Checkpoint, now: ResumeCheck) -> dict[str, list[Any]]:
    """Return [before, now] of each condition that changed; with any change the last bits of the weights differ."""
    before = found.record["resume_check"]["conditions"]
    return {name: list(pair) for name, pair in _differences(before, now["conditions"]).items()}


def _describe_difference(name: str, before: Any, now: Any) -> str:
    if name.endswith(".json"):
        return f"{name} is not the one that it was saved with"
    return f"it was saved with {name}={before}, but config.json has {name}={now}"


def _differences(before: dict[str, Any], now: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    names = [*before, *(name for name in now if name not in before)]
    return {name: (before.get(name), now.get(name)) for name in names if before.get(name) != now.get(name)}
