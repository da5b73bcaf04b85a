"""The report of a finished run: what every task has in common."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from torch import nn

from qkv.draw import ConfusionTable, TrainingReport

if TYPE_CHECKING:
    from qkv.tasks.base import RunSummary, Task


def make_training_report(task: "Task", model: nn.Module, summary: "RunSummary") -> TrainingReport:
    """Return metrics, losses, confusion matrix, wrong answers and settings of a run."""
    steps = [line for line in summary.metrics if line.get("loss") is not None and "event" not in line]
    validations = [line for line in summary.metrics if line.get("event") == "validated"]
    confusion = task.confusion(model, task.default_split)
    settings = {"model": summary.model, "training": asdict(summary.train), "data": summary.data}
    return TrainingReport(
        title=f"{summary.task}: {summary.family}",
        family=summary.family,
        parameters=sum(p.numel() for p in model.parameters()),
        settings={group: _given(values) for group, values in settings.items()},
        training_loss=[(line["step"], line["loss"]) for line in steps],
        validation_loss=[(line["step"], line["score"]) for line in validations],
        metrics=summary.rates,
        headline=task.headline or _first_metric(summary.rates),
        confusion=None if confusion is None else ConfusionTable(confusion.counts, confusion.classes),
        mistakes=task.mistakes(model, task.default_split),
        training_loss_extra=_label_smoothing(summary.train.label_smoothing),
    )


def _first_metric(rates: dict[str, dict[str, float]]) -> str:
    """Return the first metric that is no count."""
    return next((name for row in rates.values() for name, value in row.items() if not isinstance(value, int)), "")


def _label_smoothing(fraction: float) -> str:
    return f"label smoothing {fraction:g}" if fraction else ""


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
