"""`qkv train --resume`: options given with it must equal the settings of the run; only `--steps` may change."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qkv.runs import Config

_OPTIONS = {
    "train.minutes": "--minutes",
    "train.seed": "--seed",
    "train.learning_rate": "--lr",
    "train.batch_size": "--batch-size",
    "model.attention": "--attention",
    "data.train_file": "--train-file",
    "data.test_file": "--test-file",
    "data.strict": "--strict",
}
"""Options of settings that do not need `--set`."""


def require_same_run(
    config: "Config", folder: Path, task: str, preset: str | None, changes: dict[str, dict[str, Any]]
) -> None:
    """Raise for another task or preset, and for settings that differ from the run's."""
    from qkv import runs
    from qkv.errors import QkvError

    if task != config.task:
        raise QkvError(f"the run has task {config.task!r} and cannot be resumed as {task!r}", folder)
    runs.preset(task, preset)  # raises if there is no such preset
    if preset is not None and config.preset not in (None, preset):
        raise QkvError(f"the run was started with --preset {config.preset} and cannot continue with {preset}", folder)
    differing = [
        f"{_option(f'{group}.{name}')}{value}, where the run has {_recorded_value(config, group, name)}"
        for group, values in changes.items()
        for name, value in values.items()
        if (group, name) != ("train", "steps") and _as_json(value) != _recorded_value(config, group, name)
    ]
    if differing:
        raise QkvError(
            f"--resume continues with the settings of the run and cannot change {'; '.join(differing)}", folder
        )


def require_same_start(config: "Config", folder: Path, start_from: Path | None) -> None:
    """Raise if --start-from is not the folder that config.json records; that folder may be gone."""
    from qkv.errors import QkvError

    recorded = None if config.start is None else config.start.get("path")
    if start_from is not None and str(start_from.absolute()) != recorded:
        before = "with untrained weights" if recorded is None else f"with --start-from {recorded}"
        raise QkvError(f"the run was started {before} and cannot continue with --start-from {start_from}", folder)


def _recorded_value(config: "Config", group: str, name: str) -> Any:
    """Return the run's value of a setting; None if it has none."""
    if group == "model":
        return {**config.model, "family": config.family}.get(name)
    if group == "train":
        return asdict(config.train).get(name)
    if name == "train_file" and name not in config.data:  # tasks on texts record it as source
        name = "source"
    return config.data.get(name)


def _as_json(value: Any) -> Any:
    """Return the value as config.json stores it: tuples become lists."""
    return [_as_json(one) for one in value] if isinstance(value, list | tuple) else value


def _option(setting: str) -> str:
    return f"{_OPTIONS[setting]} " if setting in _OPTIONS else f"--set {setting}="
