"""Fit tables to the width of the screen: never cut a heading or a number."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.table import Table

Item = TypeVar("Item")


def table_width(table: "Table") -> int:
    """Return the columns of the screen that a table needs if nothing wraps."""
    from rich.console import Console

    return Console(width=100_000).measure(table).maximum


def split_columns(
    columns: Sequence[Item], make_table: Callable[[Sequence[Item]], "Table"], width: int
) -> list["Table"]:
    """Return tables of successive columns, each as many as fit into `width`, at least one."""
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
