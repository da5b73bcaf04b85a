"""Figures of a model as a table."""

from qkv.cli.output import console


def print_figures(rates: dict[str, dict[str, float]]) -> None:
    """A row for each way they were measured."""
    from rich.table import Table

    names = list(next(iter(rates.values())))
    table = Table("", *names)
    for row, figures in rates.items():
        table.add_row(row, *(f"{v:,}" if isinstance(v, int) else f"{v:.4f}" for v in figures.values()))
    console().print(table)
