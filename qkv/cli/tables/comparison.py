"""The table of a comparison: a row per candidate, a column per metric and cost, the best of each in bold."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qkv.cli.tables.layout import split_columns, table_width

if TYPE_CHECKING:
    from rich.table import Table

Record = dict[str, Any]
Better = Callable[[list[float]], float]


@dataclass(frozen=True)
class Column:
    """A column: how to read, format and rank its values."""

    title: str
    read: Callable[[Record], float | None]
    format: Callable[[Record], str]
    better: Better | None = None

    def best(self, records: list[Record]) -> float | None:
        """Return the best value if there are several."""
        values = [value for record in records if (value := self.read(record)) is not None]
        return self.better(values) if self.better and len(values) > 1 else None

    def cell(self, record: Record, best: float | None) -> str:
        """Return the cell of this record."""
        value = self.read(record)
        if value is None:
            return "-"
        return f"[bold]{self.format(record)}[/]" if value == best else self.format(record)


def make_tables(records: list[Record], width: int) -> list["Table"]:
    """Return one table, or some of metrics and some of costs if a single one would be too wide."""
    figures, costs = _shown(_figures(records), records), _shown(_costs(records[0].get("unit", "tokens")), records)
    title = f"{records[0]['split']} metrics, mean over seeds (worst to best)"
    whole = _make_table(records, [*figures, *costs], title)
    if table_width(whole) <= width:
        return [whole]
    return [
        *split_columns(figures, lambda chosen: _make_table(records, chosen, title), width),
        *split_columns(costs, lambda chosen: _make_table(records, chosen, "costs"), width),
    ]


def make_rates_tables(records: list[Record], width: int) -> list["Table"]:
    """Return the validation score of each candidate by learning rate; nothing if only one rate was tried."""
    rates = sorted({one["rate"] for record in records for one in record["rates"]})
    if len(rates) < 2:
        return []
    return split_columns(rates, lambda chosen: _make_rates_table(records, chosen), width)


def _make_rates_table(records: list[Record], rates: Sequence[float]) -> "Table":
    from rich.markup import escape
    from rich.table import Table

    table = Table("candidate", title="held-out score (lower is better) by learning rate", title_justify="left")
    for rate in rates:
        table.add_column(f"{rate:g}", justify="right", no_wrap=True)
    for record in records:
        found = {one["rate"]: one["held_out"] for one in record["rates"]}
        cells = ["-" if found.get(rate) is None else f"{found[rate]:.4f}" for rate in rates]
        cells = [
            f"[bold]{cell}[/]" if rate == record["rate"] else cell for rate, cell in zip(rates, cells, strict=True)
        ]
        table.add_row(escape(record["contestant"]), *cells)
    return table


def _make_table(records: list[Record], columns: Sequence[Column], title: str) -> "Table":
    from rich.markup import escape
    from rich.table import Table

    table = Table("candidate", title=title, title_justify="left")
    for column in columns:
        table.add_column(column.title, justify="right", no_wrap=True)
    best = [column.best(records) for column in columns]
    for record in records:
        cells = [column.cell(record, top) for column, top in zip(columns, best, strict=True)]
        table.add_row(escape(record["contestant"]) + _outcome(record), *cells)
    return table


def _shown(columns: list[Column], records: list[Record]) -> list[Column]:
    """Return the columns that have a value."""
    return [column for column in columns if any(column.read(record) is not None for record in records)]


def _figures(records: list[Record]) -> list[Column]:
    from qkv.compare.comparison import lower_is_better
    from qkv.metrics.display import format_metric

    metrics = dict.fromkeys(metric for record in records for metric in record["figures"])
    chance = Column("chance", lambda record: record["chance"], lambda record: format_metric("chance", record["chance"]))
    return [*(_figure(metric, min if lower_is_better(metric) else max) for metric in metrics), chance]


def _figure(metric: str, better: Better) -> Column:
    from qkv.metrics.display import format_metric, metric_title

    worst, top = ("high", "low") if better is min else ("low", "high")

    def format_spread(record: Record) -> str:
        spread = record["figures"][metric]
        mean, first, last = (format_metric(metric, spread[key]) for key in ("mean", worst, top))
        return f"{mean}\n{first} to {last}" if len(record["seeds"]) > 1 else mean

    title = metric_title(metric).replace(" ", "\n")
    return Column(title, lambda r: r["figures"].get(metric, {}).get("mean"), format_spread, better)


def _costs(unit: str) -> list[Column]:
    return [
        Column("learning\nrate", lambda record: record["rate"], lambda record: f"{record['rate']:g}"),
        _number("parameters", "parameters", min),
        _number("bytes\nof state", "state_bytes", min),
        _number("multipli-\ncations", "multiplications", min),
        _number(f"trained\n{unit}/s", "train_tokens_per_second", max),
        _number("decoded\ntokens/s", "decode_tokens_per_second", max),
        _number("minutes of\ntraining", "seconds", min, lambda seconds: f"{seconds / 60:,.1f}"),
        _number("peak\nmemory", "peak_bytes", min, lambda count: f"{count / 2**20:,.1f} MiB"),
    ]


def _number(title: str, key: str, better: Better, format_value: Callable[[float], str] = "{:,.0f}".format) -> Column:
    return Column(title, lambda record: record[key], lambda record: format_value(record[key]), better)


def _outcome(record: Record) -> str:
    """Return the line below the name of a candidate without metrics."""
    if record["figures"]:
        return ""
    return "\n[red]refused[/]" if record["refused"] else "\n[red]failed[/]"
