"""Fit tables to the width of the screen: never cut a heading or a number."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from qkv.cli.shared.console import console

if TYPE_CHECKING:
    from rich.table import Table

Item = TypeVar("Item")
MIN_WRAPPED_WIDTH = 14
"""Minimum width of a cell that may wrap, in characters."""


def table_width(table: "Table") -> int:
    """Return the width of a table in characters if nothing wraps."""
    from rich.console import Console

    return Console(width=100_000).measure(table).maximum


def split_columns(
    columns: Sequence[Item], make_table: Callable[[Sequence[Item]], "Table"], width: int
) -> list["Table"]:
    """Split a wide table: return tables with as many columns each as fit into `width`, at least one."""
    tables: list[Table] = []
    start = 0
    while start < len(columns):
        count = next(
            (
                n
                for n in _halvings(len(columns) - start)
                if table_width(make_table(columns[start : start + n])) <= width
            ),
            1,
        )
        while start + count < len(columns):
            if table_width(make_table(columns[start : start + count + 1])) > width:
                break
            count += 1
        tables.append(make_table(columns[start : start + count]))
        start += count
    return tables


def _halvings(count: int) -> list[int]:
    """Return count, count / 2, count / 4, ... 1."""
    return [count >> shift for shift in range(count.bit_length())]


def print_rows(headings: Sequence[str], rows: Sequence[Sequence[str]], *, title: str = "", wrapped: int = -1) -> None:
    """Print a table, of which only the column `wrapped` may wrap; on a narrow screen, print each row as a list."""
    from rich.markup import escape
    from rich.table import Table

    screen = console()
    wrapped %= len(headings)
    table = Table(title=escape(title) or None, title_justify="left")
    for index, heading in enumerate(headings):
        numeric = index and index != wrapped and all(row[index][:1] in "0123456789-" for row in rows)
        table.add_column(heading, no_wrap=index != wrapped, justify="right" if numeric else "left")
    for row in rows:
        table.add_row(*map(escape, row))
    longest = max((len(line) for row in rows for line in row[wrapped].splitlines()), default=0)
    if table_width(table) - max(longest - MIN_WRAPPED_WIDTH, 0) <= screen.width:
        screen.print(table)
        return
    if title:
        screen.print(title, markup=False, style="italic")
    for name, *cells in rows:
        if name:
            screen.print(name, markup=False, style="bold")
        for heading, cell in zip(headings[1:], cells, strict=True):
            if cell:
                screen.print(f"  {heading}: {cell}".replace("\n", " "), markup=False)
