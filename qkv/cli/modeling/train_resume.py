"""`qkv train --resume`: what may stand beside it is what the run has already."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qkv.runs import Config

_OPTIONS = {
    "train.steps": "--steps",
    "train.minutes": "--minutes",
    "train.seed": "--seed",
    "data.train_file": "--train-file",
    "data.test_file": "--test-file",
    "data.strict": "--strict",
}
"""Settings that have an option of their own."""


def require_same_run(
    config: "Config", folder: Path, task: str, preset: str | None, changes: dict[str, dict[str, Any]]
) -> None:
    """Refuse another task, and settings that are not those of the run; the name of its preset is not kept."""
    from qkv import tasks
    from qkv.storage import QkvError

    if task != config.task:
        raise QkvError(f"the run is of the task {config.task!r}, and {task!r} cannot go on with it", folder)
    tasks.preset(task, preset)  # one that does not exist says so
    others = [
        f"{_option(f'{group}.{name}')}{value}, where the run has {_value(config, group, name)}"
        for group, values in changes.items()
        for name, value in values.items()
        if _plain(value) != _value(config, group, name)
    ]
    if others:
        raise QkvError(f"--resume goes on with the settings of the run, and cannot take {'; '.join(others)}", folder)


def _value(config: "Config", group: str, name: str) -> Any:
    """What the run has for this setting; None without it."""
    if group == "model":
        return {**config.model, "family": config.family}.get(name)
    if group == "train":
        return asdict(config.train).get(name)
    if name == "train_file" and name not in config.data:  # a text is kept by where it is from
        name = "source"
    return config.data.get(name)


def _plain(value: Any) -> Any:
    """The value as config.json gives it back."""
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


def _option(setting: str) -> str:
    return f"{_OPTIONS[setting]} " if setting in _OPTIONS else f"--set {setting}="
