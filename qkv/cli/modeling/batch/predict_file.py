"""Run a batch job, show its progress and print its summary."""

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import fields
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from qkv.cli.modeling.batch.job_options import JobOptions
from qkv.cli.shared.console import console, print_json
from qkv.cli.shared.signals import ExitOnSignal
from qkv.cli.shared.stdin import warn
from qkv.cli.shared.warnings import WarningLimit

if TYPE_CHECKING:
    from torch import nn

    from qkv.inference import PredictOptions, Predictor
    from qkv.inference.jobs import BatchJob, JobSummary
    from qkv.tasks.base import Task

CONTINUE = "complete parts stay; the same command continues"
NOT_RECORDED = ("warn", "draft", "min_score")
"""Fields of `PredictOptions` that do not decide an answer to a text, or are recorded as they were typed."""


class LoadedRun(NamedTuple):
    """A run that is ready to predict."""

    predictor: "Predictor"
    task: "Task"
    model: "nn.Module"


def predict_file(
    job: JobOptions,
    load: Callable[[], LoadedRun],
    options: "PredictOptions",
    others: dict[str, Any],
    warnings: WarningLimit,
    *,
    as_json: bool,
) -> None:
    """Predict the lines of a file that have no answer yet; exit with 3 if a line of the job has none.

    `others` are options that decide the answers besides `options`; `warnings` are those of inputs with an answer.
    """
    import torch

    from qkv.inference.jobs import BatchJob, JobSettings, open_job
    from qkv.train.distributed import get_rank

    with ExitOnSignal(CONTINUE):
        torch.set_num_threads(job.threads)
        predictor, task, model = load()
        if predictor.reads_pictures:
            raise ValueError(f"--in {job.source}: this run reads pictures; name them, or their folder, as INPUT")
        if options.min_score is not None:
            raise ValueError("--min-score is for runs of task detect")
        recorded = {field.name for field in fields(options)} - {*NOT_RECORDED}
        chosen = {name.replace("_", "-"): getattr(options, name) for name in sorted(recorded)}
        settings = JobSettings(
            _checksum(task, model), {**chosen, **others, "threads": job.threads}, job.form, job.part_lines
        )
        folder, source = open_job(job.folder, job.source, settings, _conditions(model))
        with closing(folder):
            work = BatchJob(folder, source, predictor)
            _run(work, job, is_first=get_rank() == 0, as_json=as_json, warnings=warnings)


def _run(work: "BatchJob", job: JobOptions, *, is_first: bool, as_json: bool, warnings: WarningLimit) -> None:
    """Work until the job is complete; in the first process, show progress and print the summary."""
    started, lines = time.monotonic(), work.lines_complete()
    parts = len(work.folder.complete())
    with _progress(work.source.index.lines, lines, shown=is_first) as progress:
        work.run(progress)
    if warnings.suppressed:
        warn(f"{warnings.suppressed:,} more warnings are not shown")
    if not is_first:
        return
    summary = work.finish()
    seconds = time.monotonic() - started
    speed = (summary.lines - lines) / seconds
    if as_json:
        record = {"folder": str(job.folder), **summary.to_record(), "parts_before": parts}
        print_json({**record, "seconds": round(seconds, 3), "lines_per_second": round(speed, 1)})
    else:
        _print(summary, job, speed, parts)
    if summary.failed:
        raise typer.Exit(3)


def _print(summary: "JobSummary", job: JobOptions, speed: float, parts_before: int) -> None:
    others = [f"{summary.failed:,} without an answer"] if summary.failed else []
    others += [f"{summary.blank:,} blank"] if summary.blank else []
    counted = ", ".join([f"{summary.answered:,} of {summary.lines:,} lines predicted", *others])
    before = f" ({parts_before:,} before)" if parts_before else ""
    said = f"{counted}: {job.folder}; parts: {summary.parts:,}{before}, {speed:,.0f} lines/s"
    console().print(said, soft_wrap=True, markup=False)


def local_device(device: str) -> str:
    """Return the device of this process: with several processes on GPUs, each has its own."""
    rank = os.environ.get("LOCAL_RANK")
    return f"cuda:{rank}" if device == "cuda" and rank is not None else device


def _checksum(task: "Task", model: "nn.Module") -> str:
    """Return a checksum of what a run answers with: its weights, its task and its vocabulary."""
    from qkv.models.state_file import fingerprint

    described = json.dumps([task.kind, task.vocabulary()], sort_keys=True, default=str)
    return sha256(f"{fingerprint(model)} {described}".encode()).hexdigest()


def _conditions(model: "nn.Module") -> dict[str, Any]:
    """Return what the last digits of a probability depend on besides the job."""
    import torch

    from qkv.inference.seq2seq import device_of
    from qkv.train.cpu_conditions import cpu_conditions

    device = device_of(model).type
    return {"torch": torch.__version__, "device": device, **cpu_conditions()}


@contextmanager
def _progress(lines: int, before: int, *, shown: bool) -> Iterator[Callable[[int], None] | None]:
    """Show a bar with lines per second and the time left, in a terminal only."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    screen = console(stderr=True)
    if not shown or not screen.is_terminal:
        yield None
        return
    columns = (TextColumn("predicting"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[speed]}"))
    clocks = (TimeElapsedColumn(), TextColumn("remaining"), TimeRemainingColumn())
    started = time.monotonic()
    with Progress(*columns, *clocks, console=screen, redirect_stdout=False, transient=True) as bar:
        task = bar.add_task("predicting", total=lines, completed=before, speed="")

        def update(done: int) -> None:
            speed = (done - before) / max(time.monotonic() - started, 1e-9)
            bar.update(task, completed=done, speed=f"{speed:,.0f} lines/s")

        yield update
