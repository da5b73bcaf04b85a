"""One training of a comparison: its folder, and what its metrics say."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qkv.runs.data_hash import require_unchanged
from qkv.runs.load import Config, read_config, write
from qkv.storage import QkvError
from qkv.tasks.base import Task
from qkv.train import Run, create


@dataclass(frozen=True)
class Training:
    """One training: what compare.json keeps of it."""

    contestant: str
    rate: float
    seed: int
    run: str
    """Its folder, below the comparison's."""
    steps: int = 0
    seconds: float = 0.0
    tokens_per_second: float = 0.0
    """Tokens that the loss is over, while updating."""
    held_out: float | None = None
    """Its loss on held-out data where that was lowest; None: no number."""
    failed: str | None = None
    figures: dict[str, float] | None = None
    """On the test part; only where the rate was chosen."""
    decode_tokens_per_second: float | None = None


def folder_name(contestant: str, rate: float, seed: int) -> str:
    """The run folder of a training, below the comparison's."""
    name = re.sub(r"[^A-Za-z0-9._=-]+", "_", contestant).strip("_")
    return f"{name}/rate-{rate:g}-seed-{seed}"


def choose(tried: Sequence[Training]) -> Training | None:
    """The training that was best on held-out data, of equals the one in the middle; None if all failed.

    The outer rates of those that do equally well lie nearest to where the next seed would fail.
    """
    whole = sorted((training for training in tried if training.failed is None), key=lambda t: t.rate)
    scores = [math.inf if training.held_out is None else training.held_out for training in whole]
    equal = [training for training, score in zip(whole, scores, strict=True) if score == min(scores)]
    return equal[(len(equal) - 1) // 2] if equal else None


def open_run(folder: Path, config: Config, job: Task) -> tuple[Run, Config]:
    """The run folder and its configuration, new or as it was left; one of another configuration is refused."""
    if not (folder / "config.json").exists():
        run = create(folder)
        write(run, config, job)
        return run, config
    run = Run(folder)
    found = read_config(run)
    require_unchanged(folder, "choose another --out")
    if config.train.steps is None:  # measured by then, if it came so far
        config = replace(config, train=replace(config.train, steps=found.train.steps))
    before, now = (_flat(one.to_record()) for one in (found, config))
    for name in (name for name in {**before, **now} if before.get(name) != now.get(name)):
        raise QkvError(
            f"the folder has a run with {name}={before.get(name)}, and now {name}={now.get(name)} is asked for; "
            "choose another --out",
            folder,
        )
    return run, config


def _flat(record: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for group, values in record.items()
        for name, value in (
            {f"{group}.{key}": value for key, value in values.items()} if isinstance(values, dict) else {group: values}
        ).items()
    }


def learned(run: Run) -> dict[str, Any]:
    """What the metrics say of a training."""
    lines = run.read_metrics()
    updates = [line for line in lines if "tokens" in line]
    scores = [line["score"] for line in lines if line.get("event") == "validated" and line["score"] is not None]
    seconds, timed = sum(line["seconds"] for line in updates), updates[1:] or updates  # the first one warms up
    return {
        "steps": max((line["step"] for line in updates), default=0),
        "seconds": seconds,
        "tokens_per_second": sum(t["tokens"] for t in timed) / max(sum(t["seconds"] for t in timed), 1e-9),
        "held_out": min(scores, default=None),
    }
