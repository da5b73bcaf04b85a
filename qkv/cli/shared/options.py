"""Options that change a preset, such as `--set model.dim=64`."""

from pathlib import Path
from typing import Any

from qkv.records import read_value

GROUPS = ("model", "train", "data")
MAX_ANSWERS = 1000
"""Maximum number of answers per input, and maximum beam width."""


def parse_changes(settings: list[str] | None) -> dict[str, dict[str, Any]]:
    """Return {group: {name: value}}; a value that is not a Python literal is a string."""
    changes: dict[str, dict[str, Any]] = {}
    for setting in settings or []:
        key, equals, value = setting.partition("=")
        group, dot, name = key.strip().partition(".")
        if not equals or not dot or group not in GROUPS:
            raise ValueError(f"--set {setting!r}: expected {'|'.join(GROUPS)}.NAME=VALUE, such as model.dim=64")
        changes.setdefault(group, {})[name] = read_value(value)
    return changes


def merge_options(changes: dict[str, dict[str, Any]], group: str, **values: Any) -> None:
    """Merge options such as --steps into a group; None means not given."""
    given = {name: value for name, value in values.items() if value is not None}
    if given:
        changes.setdefault(group, {}).update(given)


def training_length(steps: int | None, minutes: float | None) -> dict[str, Any]:
    """Return --steps and --minutes as settings; raise if both are given."""
    if steps is not None and minutes is not None:
        raise ValueError(f"--steps {steps} and --minutes {minutes:g}: give one of them")
    return {"steps": steps, "minutes": minutes}


def require_count(option: str, value: int) -> None:
    """Raise unless a number of answers or of beams is from 1 to `MAX_ANSWERS`: a search holds that many states."""
    if value < 1:
        raise ValueError(f"{option} must be at least 1, got {value}")
    if value > MAX_ANSWERS:
        raise ValueError(f"{option} must be at most {MAX_ANSWERS:,}, got {value:,}")


def require_no_epochs(epochs: float | None) -> None:
    """Raise if --epochs is given, with the option to use instead."""
    if epochs is not None:
        raise ValueError(
            f"--epochs {epochs:g}: the length is counted in optimizer steps; give --steps (an epoch is examples / "
            "train.batch_size steps; --dry-run prints both)"
        )


def absolute_path(path: str | None) -> str | None:
    """Return the absolute path of an existing file, since a run may be resumed elsewhere; else the text as typed."""
    return str(Path(path).absolute()) if path and Path(path).exists() else path
