"""`qkv compare`: quality, cost, speed and memory of several models on one task, as a table and a chart."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.cli.shared.console import Json, console, print_json
from qkv.cli.shared.device import choose_device
from qkv.cli.shared.options import absolute_path, merge_options, parse_changes, training_length
from qkv.cli.shared.parameters import Device, Preset, Set, TaskName, TestFile, TrainFile
from qkv.cli.shared.plugin import Plugin, load_plugins
from qkv.cli.tables.comparison import make_rates_tables, make_tables

if TYPE_CHECKING:
    from qkv.compare.comparison import Comparison, ComparisonStatus, StatusCallback

Kinds = Annotated[
    str | None,
    typer.Option(
        help="Attention kinds, separated by commas, such as softmax,taylor(order=4),taylor:key_dim=16.",
        metavar="KIND,...",
    ),
]
Schemes = Annotated[
    str | None, typer.Option(help="Position schemes; each is combined with each kind.", metavar="SCHEME,...")
]
Sizes = Annotated[
    str | None,
    typer.Option(
        help="Sizes of the model, such as dim=64,dim=128;heads=4; each is combined with the above.", metavar="SIZES,..."
    ),
]
Search = Annotated[
    float,
    typer.Option(help="Length of the trainings that choose a rate, as a part of the whole; 1: whole trainings."),
]
Models = Annotated[
    str | None,
    typer.Option(help="Model families instead of kinds: recurrent:attention=none;dim=192,...", metavar="MODEL,..."),
]


def compare(
    task: TaskName,
    attention: Kinds = None,
    positions: Schemes = None,
    sizes: Sizes = None,
    models: Models = None,
    seeds: Annotated[int, typer.Option(help="Number of seeds to train each candidate with.")] = 3,
    rates: Annotated[
        str | None,
        typer.Option(help="Learning rates to choose from (default: multiples of the preset's, chosen by the task)."),
    ] = None,
    search: Search = 0.25,
    preset: Preset = None,
    set_: Set = None,
    steps: Annotated[int | None, typer.Option(help="Optimizer steps per training run.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Minutes per training run, instead of --steps.")] = None,
    train_file: TrainFile = None,
    test_file: TestFile = None,
    device: Device = None,
    out: Annotated[Path | None, typer.Option(help="Output folder (default: runs/compare-TASK-DATE).")] = None,
    plugin: Plugin = None,
    json: Json = False,
) -> None:
    """Train every candidate with its best learning rate and compare quality and cost.

    The same command with the same --out skips what is finished and resumes the rest.
    """
    from qkv.compare.candidates import Grid, make_candidates
    from qkv.compare.comparison import Comparison, ComparisonSettings
    from qkv.tasks import tasks

    load_plugins(plugin)
    changes = parse_changes(set_)
    merge_options(changes, "train", **training_length(steps, minutes))
    merge_options(changes, "data", train_file=absolute_path(train_file), test_file=absolute_path(test_file))
    candidates = make_candidates(task, preset, changes, Grid(attention, positions, models, sizes))
    settings = ComparisonSettings(seeds, _parse_rates(rates), choose_device(device), search_fraction=search)
    loaded = tasks[task].load(candidates[0].config.data)
    folder = out or Path("runs") / f"compare-{task}-{datetime.now():%Y%m%d-%H%M%S}"
    with _progress() as on_status:
        comparison = Comparison(loaded, candidates, folder, settings, on_status)
        _run(comparison)
    if json:
        print_json(comparison.records)
    else:
        _print(comparison)
    if not any(record["figures"] for record in comparison.records):
        raise typer.Exit(2)


def _print(comparison: "Comparison") -> None:
    screen = console()
    tables = make_tables(comparison.records, screen.width) + make_rates_tables(comparison.records, screen.width)
    for table in tables:
        screen.print(table)
    for record in comparison.records:
        reasons = [f"refused: {record['refused']}"] if record["refused"] else record["failed"]
        for reason in reasons:
            screen.print(f"{record['contestant']}: {reason}", markup=False, soft_wrap=True)
    for sentence in comparison.rules():
        screen.print(sentence, markup=False, soft_wrap=True)
    if comparison.caveat:
        screen.print(comparison.caveat)
    screen.print(f"all trainings: {comparison.folder / 'compare.json'}", soft_wrap=True)
    screen.print(f"picture:       {comparison.folder / 'compare.svg'}", soft_wrap=True)


def _run(comparison: "Comparison") -> None:
    """Run the comparison; exit with 128 + signal if it is interrupted."""
    from qkv.train import Interrupted

    try:
        comparison.run()
    except (Interrupted, KeyboardInterrupt) as stopped:
        number = getattr(stopped, "signal", 2)
        console(stderr=True).print(
            f"stopped; what was finished is in {comparison.folder / 'compare.json'}; "
            f"resume with the same command and --out {comparison.folder}",
            soft_wrap=True,
        )
        raise SystemExit(128 + number) from None


def _parse_rates(text: str | None) -> tuple[float, ...]:
    if text is None:
        return ()
    try:
        return tuple(float(rate) for rate in text.split(","))
    except ValueError:
        raise ValueError(f"--rates {text!r}: expected numbers separated by commas, such as 0.001,0.003,0.01") from None


@contextmanager
def _progress() -> "Iterator[StatusCallback]":
    """Show a progress bar over all trials, or print a line per trial if stderr is not a terminal."""
    screen = console(stderr=True)
    if not screen.is_terminal:
        yield _TrialLines(lambda line: screen.print(line, markup=False, soft_wrap=True))
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("comparing"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.description}", markup=False), console=screen, transient=True) as bar:
        row = bar.add_task("", total=None)
        yield lambda status: bar.update(
            row, completed=status.done, total=status.total or None, description=status.description
        )


class _TrialLines:
    """Prints a line when a trial begins."""

    def __init__(self, print_line: Callable[[str], None]):
        self.print_line = print_line
        self.last = ""

    def __call__(self, status: "ComparisonStatus") -> None:
        if status.description != self.last:
            self.last = status.description
            number = f"{int(status.done) + 1} of {status.total}: " if status.total else ""
            self.print_line(f"{number}{status.description}")
