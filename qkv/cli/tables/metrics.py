"""Tables of the metrics of a model."""

from collections.abc import Sequence

from qkv.cli.shared.console import console


def print_metrics(metrics: dict[str, dict[str, float]]) -> None:
    """Print a row per evaluation, a column per metric."""
    from rich.markup import escape
    from rich.table import Table

    names = list(next(iter(metrics.values())))
    table = Table("", *map(escape, names))
    for row, values in metrics.items():
        table.add_row(escape(row), *(f"{v:,}" if isinstance(v, int) else f"{v:.4f}" for v in values.values()))
    console().print(table)


def print_confusion(matrix: list[list[int]], classes: Sequence[str]) -> None:
    """Print the confusion matrix, correct predictions in bold."""
    from rich.markup import escape
    from rich.table import Table

    table = Table("true \\ predicted", *map(escape, classes), title="confusion matrix", title_justify="left")
    for row, name in enumerate(classes):
        cells = [f"[bold]{count}[/]" if row == column else str(count) for column, count in enumerate(matrix[row])]
        table.add_row(escape(name), *(cell if cell != "0" else "." for cell in cells))
    console().print(table)
