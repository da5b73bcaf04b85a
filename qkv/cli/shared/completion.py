"""Names that the shell completes: tasks, presets, attention kinds, run folders.

They are read from source files and metadata: importing torch would take seconds at every Tab.
"""

import ast
import os
from collections.abc import Iterable
from importlib.metadata import entry_points
from pathlib import Path
from typing import NamedTuple

_LINE_VARIABLES = ("COMP_WORDS", "_TYPER_COMPLETE_ARGS")
"""Environment variables in which shells pass the command line."""
_PACKAGE = Path(__file__).parent.parent.parent


class _Class(NamedTuple):
    """A class, read from source code without importing it."""

    bases: tuple[str, ...]
    name: str | None
    """Registered name; None: not registered."""
    presets: tuple[str, ...]


def complete_task(incomplete: str) -> list[str]:
    """Return the tasks that begin like this."""
    return _matching([*task_presets(), *_plugins("qkv.tasks")], incomplete)


def complete_task_or_preset(incomplete: str) -> list[str]:
    """Return the tasks, or after a colon the presets of a task, that begin like this."""
    task, colon, _ = incomplete.partition(":")
    if not colon:
        return complete_task(incomplete)
    return _matching([f"{task}:{preset}" for preset in task_presets().get(task, ())], incomplete)


def complete_preset(incomplete: str) -> list[str]:
    """Return the presets of the task on the command line that begin like this."""
    words = [word for name in _LINE_VARIABLES for word in os.environ.get(name, "").split()]
    presets = task_presets()
    return _matching([preset for word in words for preset in presets.get(word, ())], incomplete)


def complete_kind(incomplete: str) -> list[str]:
    """Return the attention kinds that begin like this."""
    names = [one.name for one in _classes(_PACKAGE.glob("attention/*.py")).values() if one.name is not None]
    return _matching([*names, *_plugins("qkv.attention")], incomplete)


def complete_run(incomplete: str) -> list[str]:
    """Return the run folders that begin like this, below the current folder and in runs/."""
    given = Path(incomplete)
    parent = given if incomplete.endswith("/") else given.parent
    found = [*_folders(parent), *_folders(Path("runs"))]
    shown = [f"{folder}" if (folder / "config.json").is_file() else f"{folder}/" for folder in found]
    return _matching(list(dict.fromkeys(shown)), incomplete)


def task_presets() -> dict[str, tuple[str, ...]]:
    """Return {task: names of its presets} of this package."""
    classes = _classes(_PACKAGE.glob("tasks/**/*.py"))
    return {one.name: _presets(one, classes) for one in classes.values() if one.name is not None}


def _presets(one: _Class, classes: dict[str, _Class]) -> tuple[str, ...]:
    """Return the presets of a class, or else of its nearest base."""
    inherited = (_presets(classes[base], classes) for base in one.bases if base in classes)
    return one.presets or next(filter(None, inherited), ())


def _classes(files: Iterable[Path]) -> dict[str, _Class]:
    nodes = [
        node
        for path in sorted(files)
        for node in ast.parse(path.read_text("utf-8")).body
        if isinstance(node, ast.ClassDef)
    ]
    return {node.name: _read_class(node) for node in nodes}


def _read_class(node: ast.ClassDef) -> _Class:
    bases = tuple(base.id for base in node.bases if isinstance(base, ast.Name))
    names = [
        call.args[0].value
        for call in node.decorator_list
        if isinstance(call, ast.Call) and call.args and isinstance(call.args[0], ast.Constant)
    ]
    presets = [
        key.value
        for line in node.body
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and line.target.id == "presets"
        if isinstance(line.value, ast.Dict)
        for key in line.value.keys
        if isinstance(key, ast.Constant)
    ]
    return _Class(bases, str(names[0]) if names else None, tuple(map(str, presets)))


def _plugins(group: str) -> list[str]:
    return [point.name for point in entry_points(group=group)]


def _folders(parent: Path) -> list[Path]:
    try:
        return sorted(path for path in parent.iterdir() if path.is_dir() and not path.name.startswith("."))
    except OSError:
        return []


def _matching(names: list[str], incomplete: str) -> list[str]:
    return [name for name in dict.fromkeys(names) if name.startswith(incomplete)]
