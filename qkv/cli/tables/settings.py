"""The table of settings, for `qkv show` and `qkv train --dry-run`."""

from typing import TYPE_CHECKING

from qkv.cli.shared.console import console

if TYPE_CHECKING:
    from qkv.runs import Setting

TABLE_WIDTH = 100
"""Columns below which the settings are printed as paragraphs."""


def print_settings(settings: "list[Setting]") -> None:
    """Print a row per setting; values that differ from the default are bold."""
    from rich.markup import escape
    from rich.padding import Padding
    from rich.table import Table

    screen = console()
    table = Table()
    for heading in ("setting", "value", "default", "type"):
        table.add_column(heading, overflow="fold")
    table.add_column("meaning", min_width=30)
    for one in settings:
        value, default = escape(str(one.value)), escape(str(one.default))
        value = f"[bold]{value}[/]" if one.value != one.default else value
        if screen.width >= TABLE_WIDTH:
            table.add_row(one.name, value, default, one.type, escape(one.meaning))
        else:
            screen.print(f"[bold]{one.name}[/] = {value}  ({one.type}, default: {default})", soft_wrap=True)
            screen.print(Padding(escape(one.meaning), (0, 0, 0, 4)))
    if screen.width >= TABLE_WIDTH:
        screen.print(table)
