"""`qkv check`: check the identities of every attention kind on this machine."""

import time
from ast import literal_eval
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli.shared.completion import complete_kind
from qkv.cli.shared.console import Json, console, print_json
from qkv.cli.shared.plugin import Plugin, load_plugins
from qkv.cli.tables.layout import split_columns

if TYPE_CHECKING:
    from qkv.attention import Attention, Result


IDENTITY_WRAP = 20
"""Columns by which the names of identities may wrap."""


def check(
    kind: Annotated[
        list[str] | None,
        typer.Option("--kind", metavar="KIND", help="Only this kind. Repeatable.", autocompletion=complete_kind),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Option of the kind, such as order=4. Repeatable.", metavar="NAME=VALUE"),
    ] = None,
    plugin: Plugin = None,
    json: Json = False,
) -> None:
    """Check that the fast forms equal the definition: every identity of every kind, with its error."""
    load_plugins(plugin)
    started = time.perf_counter()
    results = _run(_mechanisms(kind, set_))
    failed = [result for result in results if not result.ok]
    if json:
        keys = ("kind", "identity", "error", "bound", "ok")
        print_json([{key: getattr(result, key) for key in keys} for result in results])
    else:
        _print_table(results)
        seconds = time.perf_counter() - started
        summary = f"{len(results) - len(failed)} of {len(results)} hold, in {seconds:.0f} s"
        console().print(f"[green]{summary}[/]" if not failed else f"[red]{summary}[/]")
        for result in failed:
            console().print(f"[red]{result.kind}: {result.identity}: {result.error:.1e} exceeds {result.bound:.1e}[/]")
    if failed:
        raise typer.Exit(3)


def _mechanisms(names: list[str] | None, settings: list[str] | None) -> list["Attention"]:
    from qkv.attention import build, kinds

    chosen = names or list(kinds)
    if settings and not names:
        raise ValueError("--set needs --kind: options belong to one kind")
    options = dict(_parse_option(setting) for setting in settings or [])
    return [build(name, **options) if options else kinds[name].example(key_dim=5) for name in chosen]


def _parse_option(setting: str) -> tuple[str, Any]:
    name, equals, value = setting.partition("=")
    try:
        return name.strip(), literal_eval(value)
    except (ValueError, SyntaxError):
        if equals:
            return name.strip(), value
        raise ValueError(f"--set {setting!r}: expected NAME=VALUE, such as order=4") from None


def _run(mechanisms: list["Attention"]) -> list["Result"]:
    from rich.progress import track

    from qkv.attention import check as check_identities

    progress = track(mechanisms, "checking", console=console(stderr=True), transient=True)
    return [result for mechanism in progress for result in check_identities(mechanism)]


def _print_table(results: list["Result"]) -> None:
    """Print a table of identities by kinds; several on a narrow screen."""
    from rich.table import Table

    identities = list(dict.fromkeys(result.identity for result in results))
    cells = {(result.identity, result.kind): result for result in results}
    kinds = list(dict.fromkeys(result.kind for result in results))

    def make_table(chosen: Sequence[str]) -> Table:
        table = Table("identity", title="largest error of each identity", title_justify="left")
        for heading in ("allowed", *chosen):
            table.add_column(heading, no_wrap=True)
        for identity in identities:
            found = [cells[identity, kind] for kind in kinds if (identity, kind) in cells]
            bound = "\n".join(dict.fromkeys(f"{result.bound:.3g}" for result in found))
            table.add_row(identity, bound, *(_cell(cells.get((identity, kind))) for kind in chosen))
        return table

    screen = console()
    for table in split_columns(kinds, make_table, screen.width + IDENTITY_WRAP):
        screen.print(table)


def _cell(result: "Result | None") -> str:
    if result is None:
        return "-"
    error = _format_error(result.error)
    return f"[green]{error}[/]" if result.ok else f"[red bold]{error} ✗[/]"


def _format_error(error: float) -> str:
    if error == 0:
        return "0"
    return f"{error:.1e}" if error < 0.01 else f"{error:.2f}"
