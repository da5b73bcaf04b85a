"""Figures of a model as a table."""

from collections.abc import Sequence

from qkv.cli.shared.console import console


def print_figures(rates: dict[str, dict[str, float]]) -> None:
    """A row for each way they were measured."""
    from rich.markup import escape
    from rich.table import Table

    names = list(next(iter(rates.values())))
    table = Table("", *map(escape, names))
    for row, figures in rates.items():
        table.add_row(escape(row), *(f"{v:,}" if isinstance(v, int) else f"{v:.4f}" for v in figures.values()))
    console().print(table)


def print_confusion(matrix: list[list[int]], classes: Sequence[str]) -> None:
    """Which class was taken for which; the right ones in bold."""
    from rich.markup import escape
    from rich.table import Table

    table = Table("right \\ answered", *map(escape, classes), title="what is taken for what", title_justify="left")
    for row, name in enumerate(classes):
        cells = [f"[bold]{count}[/]" if row == column else str(count) for column, count in enumerate(matrix[row])]
        table.add_row(escape(name), *(cell if cell != "0" else "." for cell in cells))
    console().print(table)
