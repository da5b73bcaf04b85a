"""`qkv list`: everything that is registered by name."""

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any

import typer

from qkv.cli.shared.console import Json, console, print_json
from qkv.cli.shared.plugin import Plugin, load_plugins

MIN_ROOM = 6
"""Columns that each detail of a table needs beyond its longest word."""


class ListGroup(StrEnum):
    """Groups of names."""

    attention = "attention"
    gates = "gates"
    positions = "positions"
    models = "models"
    tasks = "tasks"
    data = "data"
    metrics = "metrics"


def list_registered(
    group: Annotated[ListGroup | None, typer.Argument(help="List only this group (default: all).")] = None,
    plugin: Plugin = None,
    json: Json = False,
) -> None:
    """List attention kinds, their gates, position schemes, models, tasks and their presets, data sets and metrics."""
    load_plugins(plugin)
    groups = [group] if group else list(ListGroup)
    records = {one.value: _RECORDS[one.value]() for one in groups}
    if json:
        print_json([{"group": name, **record} for name, rows in records.items() for record in rows])
        return
    for name, rows in records.items():
        _print_group(name, rows)


def _print_group(group: str, rows: list[dict[str, Any]]) -> None:
    """Print a table, or paragraphs on a screen that is too narrow for its columns."""
    from rich.markup import escape
    from rich.padding import Padding
    from rich.table import Table

    screen = console()
    details = [key for key in rows[0] if key not in ("name", "summary")]
    table = Table(title=group, title_justify="left", title_style="bold")
    table.add_column("name", no_wrap=True)
    for heading in ("description", *details):
        table.add_column(heading)
    for row in rows:
        table.add_row(row["name"], escape(row["summary"]), *(", ".join(row[key]) for key in details))
    if screen.measure(table).minimum <= screen.width - MIN_ROOM * len(details):
        screen.print(table)
        return
    screen.print(f"[bold]{group}[/]")
    for row in rows:
        screen.print(f"\n[bold]{escape(row['name'])}[/]: {escape(row['summary'])}")
        for key in details:
            screen.print(Padding(f"{key}: {', '.join(row[key]) or '-'}", (0, 0, 0, 2)))
    screen.print()


def _attention() -> list[dict[str, Any]]:
    from qkv.attention import kinds
    from qkv.positions import schemes

    return [
        {
            "name": name,
            "summary": _summary(kinds[name]),
            "accepts": sorted(kinds[name].accepts),
            "backends": list(kinds[name].backends),
            "positions": [scheme for scheme in schemes if schemes[scheme].serves(kinds[name].accepts)],
        }
        for name in kinds
    ]


def _gates() -> list[dict[str, Any]]:
    from qkv.attention import kinds
    from qkv.layers.layer_spec import PARTS, part_options

    return [
        {
            "name": name,
            "summary": _summary(part.make),
            "options": part_options(name),
            "kinds": [kind for kind in kinds if part.needs in kinds[kind].accepts | {""}],
        }
        for name, part in PARTS.items()
    ]


def _positions() -> list[dict[str, Any]]:
    from qkv.attention import kinds
    from qkv.positions import schemes

    return [
        {
            "name": name,
            "summary": _summary(schemes[name]),
            "gives": sorted(schemes[name].gives),
            "serves": [kind for kind in kinds if schemes[name].serves(kinds[kind].accepts)],
        }
        for name in schemes
    ]


def _models() -> list[dict[str, Any]]:
    from dataclasses import fields

    from qkv.models import families, family

    return [
        {
            "name": name,
            "summary": _summary(family(name).model),
            "settings": [field.name for field in fields(family(name).config)],
        }
        for name in families
    ]


def _tasks() -> list[dict[str, Any]]:
    from qkv.tasks import tasks

    return [{"name": name, "summary": _summary(tasks[name]), "presets": list(tasks[name].presets)} for name in tasks]


def _data() -> list[dict[str, Any]]:
    from qkv.data import datasets

    return [{"name": name, "summary": entry.description} for name, entry in datasets.items()]


def _metrics() -> list[dict[str, Any]]:
    from inspect import isfunction

    from qkv import metrics

    functions = {name: value for name, value in vars(metrics).items() if isfunction(value)}
    return [{"name": name, "summary": _summary(functions[name])} for name in sorted(functions)]


_RECORDS: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "attention": _attention,
    "gates": _gates,
    "positions": _positions,
    "models": _models,
    "tasks": _tasks,
    "data": _data,
    "metrics": _metrics,
}


def _summary(documented: Any) -> str:
    """Return the first line of a docstring."""
    return (documented.__doc__ or "").strip().partition("\n")[0]
