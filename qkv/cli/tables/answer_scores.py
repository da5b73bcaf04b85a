"""`qkv eval --metrics`: scores of written texts with their intervals, and the comparison with another run."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkv.cli.shared.console import console, print_json

if TYPE_CHECKING:
    from torch import nn

    from qkv.metrics import Answers, AnswerScore, PairedDifference
    from qkv.tasks import Task

MAX_RESAMPLES = 100_000
_OF_100 = ("bleu", "chrf")
"""Metrics from 0 to 100; the others are shares, printed in percent."""


@dataclass(frozen=True)
class Scoring:
    """What to measure, and how often to resample."""

    names: tuple[str, ...]
    resamples: int
    seed: int

    @property
    def options(self) -> dict[str, int]:
        """Options of the resampling."""
        return {"resamples": self.resamples, "seed": self.seed}


@dataclass(frozen=True)
class Rival:
    """The run to compare with."""

    run: Path
    task: "Task"
    model: "nn.Module"


def read_scoring(metrics: str | None, against: Path | None, resamples: int, seed: int, *, int8: bool) -> Scoring | None:
    """Return what --metrics and --against ask for (--against alone: all metrics); None: nothing."""
    if metrics is None and against is None:
        return None
    from qkv.metrics import ANSWER_METRICS, require_metrics

    names = ANSWER_METRICS if metrics is None else tuple(name.strip() for name in metrics.split(",") if name.strip())
    require_metrics(names)
    if not 1 <= resamples <= MAX_RESAMPLES:
        raise ValueError(f"--resamples must be from 1 to {MAX_RESAMPLES:,}, got {resamples:,}")
    if seed < 0:
        raise ValueError(f"--seed must be 0 or more, got {seed}")
    if int8:
        raise ValueError("--int8 is for perplexity, of runs of task text; --metrics and --against do not measure it")
    return Scoring(names, resamples, seed)


def require_none(scoring: Scoring | None, run: Path) -> None:
    """Raise if metrics are asked of a pronouncer."""
    if scoring is not None:
        raise ValueError(
            f"--metrics and --against are for runs that answer with texts, such as pairs; {run} is a pronouncer, whose "
            "word error rate has its interval without them"
        )


def print_evaluation(
    run: Path,
    measured: tuple["Task", "nn.Module"],
    rival: Rival | None,
    split: str,
    search: dict[str, Any],
    scoring: Scoring,
    as_json: bool,
) -> None:
    """Measure a run, compare it with the rival, and print."""
    from qkv.metrics import compare_answers, score_answers

    answers = _answers(*measured, run, split, search)
    other = None if rival is None else _answers(rival.task, rival.model, rival.run, split, search)
    differences = {} if other is None else compare_answers(answers, other, scoring.names, **scoring.options)
    scores = score_answers(answers, scoring.names, **scoring.options)
    others = {} if other is None else score_answers(other, scoring.names, **scoring.options)
    if as_json:
        compared = None if rival is None else _comparison(rival.run, others, differences)
        about = {"run": str(run), "split": split, **search, "examples": len(answers.texts), **scoring.options}
        print_json({**about, "metrics": {name: asdict(one) for name, one in scores.items()}, "against": compared})
        return
    _print_scores(scores, others, differences)
    for name, one in scores.items():
        if one.signature:
            console().print(f"{name}: {one.signature}", markup=False, soft_wrap=True)
    console().print(_explanation(len(answers.texts), scoring, rival), markup=False, soft_wrap=True)


def _answers(task: "Task", model: "nn.Module", run: Path, split: str, search: dict[str, Any]) -> "Answers":
    from qkv.cli.shared.progress import evaluation_progress

    with evaluation_progress():
        found = task.answers(model, split, **search)
    if found is None:
        raise ValueError(
            f"--metrics and --against are for runs that answer with texts, such as pairs; {run} is not one"
        )
    return found


def _comparison(
    run: Path, others: "dict[str, AnswerScore]", differences: "dict[str, PairedDifference]"
) -> dict[str, Any]:
    found = {name: {"value": others[name].value, **asdict(one)} for name, one in differences.items()}
    return {"run": str(run), "test": "approximate randomization", "interval": "paired bootstrap", "metrics": found}


def _print_scores(
    scores: "dict[str, AnswerScore]",
    others: "dict[str, AnswerScore]",
    differences: "dict[str, PairedDifference]",
) -> None:
    from rich.table import Table

    table = Table("metric")
    columns = ("value", "95 % interval", *(("other run", "difference", "95 % interval", "p") if others else ()))
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for name, one in scores.items():
        cells = [_text(name, one.value), _range(name, one.low, one.high)]
        if others:
            difference = differences[name]
            cells += [_text(name, others[name].value), _text(name, difference.difference, "+")]
            cells += [_range(name, difference.low, difference.high, "+"), f"{difference.p:.4f}"]
        table.add_row(name, *cells)
    console().print(table)


def _text(name: str, value: float, sign: str = "") -> str:
    return f"{value:{sign}.2f}" if name in _OF_100 else f"{value:{sign}.2%}"


def _range(name: str, low: float, high: float, sign: str = "") -> str:
    return f"{_text(name, low, sign)} to {_text(name, high, sign)}"


def _explanation(examples: int, scoring: Scoring, rival: Rival | None) -> str:
    text = (
        f"{examples:,} examples; intervals by bootstrap over examples, {scoring.resamples:,} resamples, "
        f"seed {scoring.seed}"
    )
    if rival is None:
        return text
    return f"{text}; difference to {rival.run}: paired bootstrap, p by approximate randomization"
