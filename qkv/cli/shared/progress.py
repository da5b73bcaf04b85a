"""Progress of training and evaluation on stderr.

Training has a bar with loss, speed and time left, or plain lines without a terminal. Evaluation has a bar or nothing.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from qkv.cli.shared.console import console
from qkv.train.loop import Report

REPORT_SECONDS = 10


@contextmanager
def evaluation_progress() -> Iterator[None]:
    """Show a bar for each part of an evaluation, in a terminal only."""
    from qkv.inference.progress import on_progress

    screen = console(stderr=True)
    if not screen.is_terminal:
        yield
        return
    columns = (TextColumn("evaluating"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=screen, transient=True) as bar:
        task = bar.add_task("evaluating", total=None)
        with on_progress(lambda done, total: bar.update(task, completed=done, total=total)):
            yield


@contextmanager
def pieces_progress() -> Iterator[Callable[[int, int], None]]:
    """Provide a function of pieces done and in total; it shows a bar, in a terminal only."""
    screen = console(stderr=True)
    if not screen.is_terminal:
        yield lambda done, total: None
        return
    columns = (TextColumn("tokenizing"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=screen, transient=True) as bar:
        task = bar.add_task("tokenizing", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def training_progress(unit: str) -> Iterator[Report]:
    """Provide the function that the training loop reports to; `unit` is what its speed counts, such as tokens."""
    screen = console(stderr=True)
    if not screen.is_terminal:
        yield _TrainingLines(unit, lambda line: screen.print(line, markup=False))
        return
    columns = (TextColumn("training"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[about]}"))
    clocks = (TextColumn("elapsed"), TimeElapsedColumn(), TextColumn("remaining"), TimeRemainingColumn())
    with Progress(*columns, *clocks, console=screen) as bar:
        task = bar.add_task("training", total=None, about="")

        def report(record: dict[str, Any]) -> None:
            if "event" in record:
                bar.console.print(_describe_event(record), markup=False)
            else:
                bar.update(task, completed=record["step"], total=record["steps"], about=_describe_step(record, unit))

        yield report


class _TrainingLines:
    """Prints events, and the state of training every few seconds."""

    def __init__(self, unit: str, print_line: Any):
        self.unit, self.print_line = unit, print_line
        self.last = 0.0

    def __call__(self, record: dict[str, Any]) -> None:
        if "event" in record:
            self.print_line(_describe_event(record))
        elif time.monotonic() - self.last > REPORT_SECONDS:
            self.last = time.monotonic()
            self.print_line(f"step {record['step']} of {record['steps'] or '?'}: {_describe_step(record, self.unit)}")


def _describe_step(record: dict[str, Any], unit: str) -> str:
    loss = record.get("loss")
    speed = record.get("tokens", 0) / max(record.get("seconds", 0), 1e-9)
    return f"loss {'-' if loss is None else f'{loss:.3f}'}, {speed:,.0f} {unit}/s"


def _describe_event(record: dict[str, Any]) -> str:
    known = {
        "steps": "step {step}: speed measured, {steps} steps in total",
        "validated": "step {step}: held-out loss {score:.4f}, best {best:.4f}",
        "resumed": "resuming at step {step}{lost}",
        "restarted": "no checkpoint is there: starting again from step 0{lost}",
        "length_changed": "the run had {before} steps and is trained to {steps} now",
        "checkpoints_removed": "step {step}: the folder checkpoints/ was removed; saving a new one",
        "not_finite": "step {step}: {message}; the ids of its examples are in metrics.jsonl",
        "straggler": "step {step}: rank {rank} is slow: {own_seconds:.3g} s per step, others {others_seconds:.3g}",
        "sealed": "MANIFEST.json was missing; a new one is written",
        "damaged_checkpoint": "skipping a damaged checkpoint: {message}",
    }
    stops = "; no improvement for train.patience validations, so training ends" if record.get("stops") else ""
    count = record.get("dropped", 0)
    lost = f"; {count:,} lines of metrics.jsonl after it are dropped" if count else ""
    return known.get(record["event"], "{event} at step {step}").format(**record, lost=lost) + stops
