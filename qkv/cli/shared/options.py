"""`--set model.dim=64`: changes to a preset, from the command line."""

from pathlib import Path
from typing import Any

from qkv.records import read_value

GROUPS = ("model", "train", "data")


def parse_changes(settings: list[str] | None) -> dict[str, dict[str, Any]]:
    """Group -> name -> value; what is not a Python literal is a text."""
    changes: dict[str, dict[str, Any]] = {}
    for setting in settings or []:
        key, equals, value = setting.partition("=")
        group, dot, name = key.strip().partition(".")
        if not equals or not dot or group not in GROUPS:
            raise ValueError(f"--set {setting!r}: expected {'|'.join(GROUPS)}.NAME=VALUE, such as model.dim=64")
        changes.setdefault(group, {})[name] = read_value(value)
    return changes


def merge(changes: dict[str, dict[str, Any]], group: str, **values: Any) -> None:
    """Options of their own, such as --steps, into a group; None was not given."""
    given = {name: value for name, value in values.items() if value is not None}
    if given:
        changes.setdefault(group, {}).update(given)


def how_long(steps: int | None, minutes: float | None) -> dict[str, Any]:
    """Both as settings; only one of them may be given."""
    if steps is not None and minutes is not None:
        raise ValueError(f"--steps {steps} and --minutes {minutes:g}: give one of them")
    return {"steps": steps, "minutes": minutes}


def from_anywhere(path: str | None) -> str | None:
    """The whole path of a file, since a run outlives the folder it was started in; what is no file stays as typed."""
    return str(Path(path).absolute()) if path and Path(path).exists() else path
