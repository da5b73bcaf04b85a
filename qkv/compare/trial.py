"""One trial of a comparison: a run folder, and the results read from its metrics."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from qkv.errors import QkvError
from qkv.runs import Config, read_config, require_unchanged, save_config
from qkv.storage import is_sealed, parse_json, read_sealed, remove_sealed, sealed_names, to_json, write_sealed
from qkv.tasks import Task
from qkv.train import Run, Settings, create_run


@dataclass(frozen=True)
class Trial:
    """One training of a candidate and its results."""

    candidate: str
    learning_rate: float
    seed: int
    run: str
    """Run folder, relative to the folder of the comparison."""
    search: bool = False
    """Whether this is a short training of the learning-rate search."""
    steps: int = 0
    tokens: int = 0
    """Tokens of the loss, over all steps."""
    seconds: float = 0.0
    tokens_per_second: float = 0.0
    """Tokens of the loss per second of training."""
    held_out: float | None = None
    """Lowest validation score; None: it was never finite."""
    failed: str | None = None
    figures: dict[str, float] | None = None
    """Metrics on the test split; only with the chosen learning rate."""
    decode_tokens_per_second: float | None = None

    def to_record(self) -> dict[str, Any]:
        """Return the trial as compare.json holds it."""
        keys = {"candidate": "contestant", "learning_rate": "rate"}
        return {keys.get(name, name): value for name, value in asdict(self).items()}


def folder_name(candidate: str, learning_rate: float, seed: int, *, search: bool = False) -> str:
    """Return the run folder of a trial, relative to the folder of the comparison."""
    name = re.sub(r"[^A-Za-z0-9._=-]+", "_", candidate).strip("_")
    return f"{name}/{'search-' if search else ''}rate-{learning_rate:g}-seed-{seed}"


def shorten(settings: Settings, fraction: float) -> Settings:
    """Return settings of a training of this fraction of the length: steps or minutes, warmup, and validations."""

    def part(steps: int, least: int) -> int:
        return max(least, math.ceil(steps * fraction))

    return replace(
        settings,
        steps=None if settings.steps is None else part(settings.steps, 1),
        minutes=None if settings.minutes is None else settings.minutes * fraction,
        warmup=part(settings.warmup, 0),
        validate_every=part(settings.validate_every, 1),
    )


def choose_best(trials: Sequence[Trial]) -> Trial | None:
    """Return the trial with the lowest validation score; None if all failed.

    If several trials tie, return the one with the middle learning rate: with the highest or lowest one, another seed is
    more likely to fail.
    """
    finished = sorted((trial for trial in trials if trial.failed is None), key=lambda trial: trial.learning_rate)
    scores = [math.inf if trial.held_out is None else trial.held_out for trial in finished]
    tied = [trial for trial, score in zip(finished, scores, strict=True) if score == min(scores)]
    return tied[(len(tied) - 1) // 2] if tied else None


def open_run(folder: Path, config: Config, task: Task) -> tuple[Run, Config]:
    """Create or reopen a run folder; raise if it holds a run with another configuration."""
    if not (folder / "config.json").exists():
        run = create_run(folder)
        save_config(run, config, task)
        return run, config
    run = Run(folder)
    saved = read_config(run, resume=not run.is_finished())
    require_unchanged(folder, "choose another --out")
    if config.train.steps is None:  # the run may have measured its steps already
        config = replace(config, train=replace(config.train, steps=saved.train.steps))
    before, now = _flatten(saved.to_record()), _flatten(config.to_record())
    for name in {**before, **now}:
        if before.get(name) != now.get(name):
            raise QkvError(
                f"the folder has a run with {name}={before.get(name)}, but {name}={now.get(name)} is requested; "
                "choose another --out",
                folder,
            )
    return run, config


def _flatten(record: dict[str, Any]) -> dict[str, Any]:
    """Return {"train.steps": 3, ...} of {"train": {"steps": 3, ...}}."""
    flat: dict[str, Any] = {}
    for group, values in record.items():
        if isinstance(values, dict):
            flat |= {f"{group}.{key}": value for key, value in values.items()}
        else:
            flat[group] = values
    return flat


def read_or_compute(
    run: Run,
    name: str,
    compute: Callable[[], dict[str, Any]],
    is_current: Callable[[dict[str, Any]], bool] = lambda _: True,
) -> dict[str, Any]:
    """Return a record that is computed once and sealed with the run; a record that was changed since raises.

    A record that is missing, not sealed, or not current is computed again.
    """
    if name in sealed_names(run.folder):
        if (run.folder / name).exists():
            record = parse_json(read_sealed(run.folder, name), run.folder / name)
            if is_current(record):
                return record
        else:
            remove_sealed(run.folder, name)
    record = compute()
    if is_sealed(run.folder):
        write_sealed(run.folder, name, to_json(record))
    return record


def read_training_metrics(run: Run) -> dict[str, Any]:
    """Return steps, seconds, speed and the best validation score from the metrics of a run."""
    lines = run.read_metrics()
    updates = [line for line in lines if "tokens" in line]
    scores = [line["score"] for line in lines if line.get("event") == "validated" and line["score"] is not None]
    timed = updates[1:] or updates  # the first one is a warm-up
    return {
        "steps": max((line["step"] for line in updates), default=0),
        "tokens": sum(line["tokens"] for line in updates),
        "seconds": sum(line["seconds"] for line in updates),
        "tokens_per_second": sum(t["tokens"] for t in timed) / max(sum(t["seconds"] for t in timed), 1e-9),
        "held_out": min(scores, default=None),
    }
