"""After `qkv train`: evaluate the model, write report.html, print both."""

from typing import TYPE_CHECKING

from qkv.cli.shared.command import command_name
from qkv.cli.shared.console import console, print_json
from qkv.cli.tables.metrics import print_confusion, print_metrics

if TYPE_CHECKING:
    from torch import nn

    from qkv.runs import Config
    from qkv.tasks import Sample, Task
    from qkv.train import Run

SPLITS = {"valid": "validation"}
"""Splits whose name is short."""


def report_training(run: "Run", config: "Config", task: "Task", model: "nn.Module", as_json: bool) -> None:
    """Evaluate the model, write the report, print both."""
    from qkv.cli.shared.progress import evaluation_progress

    split = task.default_split
    console(stderr=True).print(f"training done; evaluating on the {SPLITS.get(split, split)} split")
    with evaluation_progress():
        metrics = {
            f"{split} {name}".strip(): task.evaluate(model, split, **search) for name, search in task.searches.items()
        }
        _write_report(run, config, task, model, metrics)
        confusion = task.confusion(model, split)
    if as_json:
        parameters = sum(p.numel() for p in model.parameters())
        print_json({"run": str(run.folder), "parameters": parameters, "figures": metrics})
        return
    print_metrics(metrics)
    if confusion is not None:
        print_confusion(confusion.counts, confusion.classes)
    _print_samples(task.samples(model))
    console().print(f"report:     {run.folder / 'report.html'}", soft_wrap=True)
    if task.reads_tokens():
        console().print(f"inspect it: {command_name()} serve {run.folder}", soft_wrap=True)
    console().print(f"run folder: {run.folder}", soft_wrap=True)


def _write_report(
    run: "Run", config: "Config", task: "Task", model: "nn.Module", metrics: dict[str, dict[str, float]]
) -> None:
    """Write report.html."""
    from qkv.draw import report_page
    from qkv.storage import write_atomic
    from qkv.tasks import RunSummary

    summary = RunSummary(
        config.task, config.family, config.model, config.train, config.data, run.read_metrics(), metrics
    )
    write_atomic(run.folder / "report.html", report_page(task.report(model, summary)).encode())


def _print_samples(samples: "list[Sample]") -> None:
    from rich.markup import escape
    from rich.table import Table

    if not samples:
        return
    table = Table("unseen", "answers and their probabilities", "right", "written while attending to")
    for sample in samples:
        answers = "\n".join(f"{text}  {probability:.2f}" for text, probability in sample.answers)
        cells = (sample.source, answers, "\n".join(sample.right), sample.attended)
        table.add_row(*map(escape, cells), end_section=True)
    console().print(table)
