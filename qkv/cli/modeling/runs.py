"""`qkv runs`: list the runs in a folder."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.cli.shared.console import Json, console, print_json

if TYPE_CHECKING:
    from qkv.runs import RunStatus

_COLORS = {"running": "cyan", "finished": "green", "stopped": "yellow", "new": "dim", "damaged": "red"}


DEFAULT_FOLDER = Path("runs")


def runs(
    folder: Annotated[Path, typer.Argument(help="Folder of run folders, or one run folder.")] = DEFAULT_FOLDER,
    json: Json = False,
) -> None:
    """List runs, newest first: task, model, steps, status and best validation score (lower is better).

    A stopped run continues with `qkv train TASK --run RUN --resume`.
    """
    from qkv.runs import list_runs

    found = list_runs(folder) if folder.exists() or folder != DEFAULT_FOLDER else []
    if json:
        print_json([asdict(status) for status in found])
        return
    if not found:
        typer.echo(f"no runs in {folder}")
        return
    _print(found)


def _print(found: "list[RunStatus]") -> None:
    """Print a table, or a line per run on a screen that is too narrow for it."""
    from rich.markup import escape
    from rich.table import Table

    from qkv.cli.tables.layout import table_width

    screen = console()
    table = Table()
    for heading in ("run", "task", "model", "steps", "status", "best score", "age"):
        table.add_column(heading, no_wrap=True)
    rows = [
        (
            escape(one.folder),
            one.task or "-",
            one.family or "-",
            _format_steps(one),
            f"[{_COLORS[one.status]}]{one.status}[/]",
            "-" if one.best is None else f"{one.best:.4f}",
            _format_age(one.seconds),
        )
        for one in found
    ]
    for row in rows:
        table.add_row(*row)
    if table_width(table) <= screen.width:
        screen.print(table)
    else:
        for folder, task, model, steps, status, best, age in rows:
            screen.print(f"[bold]{folder}[/]: {status}, {task} {model}, step {steps}, best score {best}, {age} ago")
    for one in found:
        if one.problem is not None:
            screen.print(f"{one.folder}: {one.problem}", markup=False, soft_wrap=True)


def _format_steps(one: "RunStatus") -> str:
    if one.status == "damaged":
        return "-"
    return f"{one.step or 0:,} of {'?' if one.steps is None else f'{one.steps:,}'}"


def _format_age(seconds: float) -> str:
    """Return 40 s, 12 min, 3 h or 5 days."""
    for unit, size in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size * (2 if unit == "days" else 1):
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
