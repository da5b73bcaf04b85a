"""`qkv compare`: quality, cost, speed and memory of several models on one task, in one table and a picture."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.cli.shared.console import Json, console, print_json
from qkv.cli.shared.device import choose_device
from qkv.cli.shared.options import absolute_path, merge_options, parse_changes, training_length
from qkv.cli.shared.plugin import Plugin, load_plugins
from qkv.cli.tables.comparison import make_rates_table, make_tables

if TYPE_CHECKING:
    from qkv.compare.comparison import Comparison, ComparisonStatus, StatusCallback


def compare(
    task: Annotated[str, typer.Argument(help="What to learn: qkv list tasks.")],
    attention: Annotated[
        str | None,
        typer.Option(
            help="Such as softmax or taylor(order=4) or taylor:key_dim=16, with commas between.", metavar="KIND,..."
        ),
    ] = None,
    positions: Annotated[str | None, typer.Option(help="Each with each kind.", metavar="SCHEME,...")] = None,
    models: Annotated[
        str | None, typer.Option(help="Families instead: recurrent:attention=none;dim=192,...", metavar="MODEL,...")
    ] = None,
    seeds: Annotated[int, typer.Option(help="How often each is trained with its best rate.")] = 1,
    rates: Annotated[
        str | None, typer.Option(help="Learning rates to choose from; without, the preset's times 1/3, 1 and 3.")
    ] = None,
    preset: Annotated[str | None, typer.Option(help="A named way to do it; the first one without.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="For all, such as model.dim=64.", metavar="GROUP.NAME=VALUE")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Updates of each training.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Instead of steps.")] = None,
    train_file: Annotated[
        str | None,
        typer.Option(
            help="What to train on: TSV of pairs, CSV of points, .npz or IDX pictures, .txt or a folder of them."
        ),
    ] = None,
    test_file: Annotated[str | None, typer.Option(help="The same to evaluate on.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; cuda if it is there.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder; runs/compare-TASK-DATE without.")] = None,
    plugin: Plugin = None,
    json: Json = False,
) -> None:
    """Train every contestant with its best learning rate and lay quality beside cost.

    The same --out again skips what is finished and goes on with the rest.
    """
    from qkv.compare.candidates import Grid, make_candidates
    from qkv.compare.comparison import Comparison, ComparisonSettings
    from qkv.tasks import tasks

    load_plugins(plugin)
    changes = parse_changes(set_)
    merge_options(changes, "train", **training_length(steps, minutes))
    merge_options(changes, "data", train_file=absolute_path(train_file), test_file=absolute_path(test_file))
    contestants = make_candidates(task, preset, changes, Grid(attention, positions, models))
    rules = ComparisonSettings(seeds, _rates(rates), choose_device(device))
    job = tasks[task].load(contestants[0].config.data)
    folder = out or Path("runs") / f"compare-{task}-{datetime.now():%Y%m%d-%H%M%S}"
    with _progress() as report:
        comparison = Comparison(job, contestants, folder, rules, report)
        _compete(comparison)
    if json:
        print_json(comparison.records)
    else:
        _print(comparison)
    if not any(record["figures"] for record in comparison.records):
        raise typer.Exit(2)


def _print(comparison: "Comparison") -> None:
    screen = console()
    for table in make_tables(comparison.records, screen.width):
        screen.print(table)
    if (rates := make_rates_table(comparison.records)) is not None:
        screen.print(rates)
    for record in comparison.records:
        for why in [f"refused: {record['refused']}"] if record["refused"] else record["failed"]:
            screen.print(f"{record['contestant']}: {why}", markup=False, soft_wrap=True)
    if comparison.caveat:
        screen.print(comparison.caveat)
    screen.print(f"all trainings: {comparison.folder / 'compare.json'}", soft_wrap=True)
    screen.print(f"picture:       {comparison.folder / 'compare.svg'}", soft_wrap=True)


def _compete(comparison: "Comparison") -> None:
    from qkv.train import Interrupted

    try:
        comparison.run()
    except (Interrupted, KeyboardInterrupt) as stopped:
        number = getattr(stopped, "signal", 2)
        console(stderr=True).print(
            f"stopped; what was finished is in {comparison.folder / 'compare.json'}, "
            f"and the same command with --out {comparison.folder} goes on",
            soft_wrap=True,
        )
        raise SystemExit(128 + number) from None


def _rates(text: str | None) -> tuple[float, ...]:
    try:
        return tuple(float(rate) for rate in text.split(",")) if text is not None else ()
    except ValueError:
        raise ValueError(f"--rates {text!r}: expected numbers separated by commas, such as 0.001,0.003,0.01") from None


@contextmanager
def _progress() -> "Iterator[StatusCallback]":
    """A bar over all trainings, or a line for each when nobody watches."""
    screen = console(stderr=True)
    if not screen.is_terminal:
        yield _Lines(lambda line: screen.print(line, markup=False, soft_wrap=True))
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("comparing"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.description}", markup=False), console=screen, transient=True) as bar:
        shown = bar.add_task("", total=None)
        yield lambda standing: bar.update(
            shown, completed=standing.done, total=standing.total or None, description=standing.description
        )


class _Lines:
    """Prints a line when another training begins."""

    def __init__(self, print_line: Callable[[str], None]):
        self.print_line = print_line
        self.last = ""

    def __call__(self, standing: "ComparisonStatus") -> None:
        if standing.description != self.last:
            self.last = standing.description
            number = f"{int(standing.done) + 1} of {standing.total}: " if standing.total else ""
            self.print_line(f"{number}{standing.description}")
