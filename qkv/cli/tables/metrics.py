"""Tables of the metrics of a model."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from qkv.cli.shared.console import console
from qkv.cli.tables.layout import split_columns, table_width

if TYPE_CHECKING:
    from rich.table import Table

MEANING_WIDTH = 24
"""Columns that the meaning of a metric needs; on a narrower screen it is left out."""


def print_metrics(metrics: dict[str, dict[str, float]]) -> None:
    """Print a row per metric and a column per evaluation; a table per evaluation if they do not fit side by side."""
    screen = console()
    groups = [metrics]
    if table_width(_make_table(metrics)) > screen.width:
        groups = [{name: values} for name, values in metrics.items()]
    for group in groups:
        bare = _make_table(group)
        has_room = table_width(bare) + MEANING_WIDTH <= screen.width
        screen.print(_make_table(group, meaning=True) if has_room else bare)


def _make_table(metrics: dict[str, dict[str, float]], *, meaning: bool = False) -> "Table":
    """Return the table; only the meaning of a metric may wrap."""
    from rich.markup import escape
    from rich.table import Table

    from qkv.metrics.display import format_metric, metric_meaning, metric_title

    table = Table()
    table.add_column("metric", no_wrap=True)
    for evaluation in metrics:
        table.add_column(escape(evaluation).replace(" ", "\n", 1), justify="right", no_wrap=True)
    if meaning:
        table.add_column("meaning")
    for name in dict.fromkeys(name for values in metrics.values() for name in values):
        cells = [format_metric(name, values.get(name)) for values in metrics.values()]
        table.add_row(escape(metric_title(name)), *cells, *([metric_meaning(name)] if meaning else []))
    return table


def print_confusion(matrix: list[list[int]], classes: Sequence[str]) -> None:
    """Print the confusion matrix, correct predictions in bold; in parts if the screen is too narrow for all columns."""
    from rich.markup import escape
    from rich.table import Table

    def make_table(columns: Sequence[int]) -> Table:
        table = Table(title="confusion matrix", title_justify="left")
        table.add_column("true \\ predicted", no_wrap=True)
        for column in columns:
            table.add_column(escape(classes[column]), justify="right", no_wrap=True)
        for row, name in enumerate(classes):
            cells = [_count_cell(matrix[row][column], right=row == column) for column in columns]
            table.add_row(escape(name), *cells)
        return table

    screen = console()
    for table in split_columns(range(len(classes)), make_table, screen.width):
        screen.print(table)


def _count_cell(count: int, *, right: bool) -> str:
    return f"[bold]{count}[/]" if right and count else str(count or ".")
