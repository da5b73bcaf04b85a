"""`qkv list`: what there is."""

from enum import StrEnum
from typing import Annotated, Any

import typer

from qkv.cli.shared.console import Json, console, print_json
from qkv.cli.shared.plugin import Plugin, load


class Group(StrEnum):
    """What can be listed."""

    attention = "attention"
    positions = "positions"
    models = "models"
    tasks = "tasks"


def list_registered(
    group: Annotated[Group | None, typer.Argument(help="Only these.")] = None,
    plugin: Plugin = None,
    json: Json = False,
) -> None:
    """List the attention kinds and position schemes, and which go together; models; tasks and their presets."""
    load(plugin)
    records = [r for name, rows in _records().items() if group in (None, name) for r in rows]
    if json:
        print_json(records)
        return
    from rich.table import Table

    for name in [group.value] if group else list(Group):
        rows = [r for r in records if r["group"] == name]
        table = Table("name", "what it is", *_DETAILS[name], title=name, title_justify="left", title_style="bold")
        for row in rows:
            table.add_row(row["name"], row["summary"], *(", ".join(row[key]) for key in _DETAILS[name]))
        console().print(table)


_DETAILS: dict[str, tuple[str, ...]] = {
    "attention": ("accepts", "backends", "positions"),
    "positions": ("gives", "serves"),
    "models": ("settings",),
    "tasks": ("presets",),
}


def _records() -> dict[str, list[dict[str, Any]]]:
    from qkv.attention import kinds
    from qkv.positions import schemes

    attention = [
        {
            "group": "attention",
            "name": name,
            "summary": _summary(kinds[name]),
            "accepts": sorted(kinds[name].accepts),
            "backends": list(kinds[name].backends),
            "positions": [s for s in schemes if schemes[s].serves(kinds[name].accepts)],
        }
        for name in kinds
    ]
    positions = [
        {
            "group": "positions",
            "name": name,
            "summary": _summary(schemes[name]),
            "gives": sorted(schemes[name].gives),
            "serves": [k for k in kinds if schemes[name].serves(kinds[k].accepts)],
        }
        for name in schemes
    ]
    return {"attention": attention, "positions": positions, "models": _models(), "tasks": _tasks()}


def _models() -> list[dict[str, Any]]:
    from dataclasses import fields

    from qkv.models import families

    return [
        {
            "group": "models",
            "name": name,
            "summary": _summary(family.model),
            "settings": [field.name for field in fields(family.config)],
        }
        for name, family in families.items()
    ]


def _tasks() -> list[dict[str, Any]]:
    from qkv.tasks import tasks

    return [
        {"group": "tasks", "name": name, "summary": _summary(tasks[name]), "presets": list(tasks[name].presets)}
        for name in tasks
    ]


def _summary(cls: type) -> str:
    return (cls.__doc__ or "").strip().split("\n")[0]
