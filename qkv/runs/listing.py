"""Status of run folders, also of damaged ones."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qkv.errors import QkvError
from qkv.runs.config import read_config
from qkv.runs.huggingface import model_type
from qkv.train import Run
from qkv.train.run import parse_metrics_line

TAIL_BYTES = 2**18
"""Bytes at the end of metrics.jsonl that are read."""


@dataclass(frozen=True)
class RunStatus:
    """Status and progress of a run folder."""

    folder: str
    status: str
    """running, finished, stopped, new (no step logged yet) or damaged."""
    task: str | None = None
    family: str | None = None
    step: int | None = None
    """Last step in the metrics."""
    steps: int | None = None
    """Number of steps to train; None: not fixed yet."""
    best: float | None = None
    """Best validation score, lower is better."""
    seconds: float = 0.0
    """Seconds since the folder last changed."""
    problem: str | None = None
    """Error message of a damaged run."""


def list_runs(folder: Path) -> list[RunStatus]:
    """Return the status of each run in a folder, newest first; the folder may be a run itself."""
    if not folder.is_dir():
        raise QkvError("there is no such folder", folder)
    folders = [folder] if (folder / "config.json").exists() else sorted(folder.iterdir())
    runs = [path for path in folders if (path / "config.json").exists() and model_type(path) is None]
    return sorted((run_status(path) for path in runs), key=lambda status: status.seconds)


def run_status(folder: Path) -> RunStatus:
    """Return the status of a run folder. A damaged folder raises no error: its status is `damaged`."""
    run = Run(folder)
    seconds = _age(run)
    try:
        config = read_config(run)
        lines = _last_metrics(run.metrics)
        status = _status(run, lines)
    except (QkvError, ValueError, OSError) as error:
        return RunStatus(str(folder), "damaged", seconds=seconds, problem=str(error))
    validated = [line["best"] for line in lines if line.get("event") == "validated" and "best" in line]
    step = lines[-1]["step"] if lines else None
    best = validated[-1] if validated else None
    return RunStatus(str(folder), status, config.task, config.family, step, config.train.steps, best, seconds)


def _status(run: Run, lines: list[dict[str, Any]]) -> str:
    if run.is_training():
        return "running"
    if run.is_finished():
        return "finished"
    return "stopped" if lines else "new"


def _last_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the records of the complete lines at the end of a file of metrics."""
    if not path.exists():
        return []
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL_BYTES))
        text = file.read().decode("utf-8", "replace")
    return [record for line in text.split("\n") if (record := parse_metrics_line(line))]


def _age(run: Run) -> float:
    paths = [path for path in (run.folder / "config.json", run.metrics, run.weights) if path.exists()]
    return max(0.0, time.time() - max((path.stat().st_mtime for path in paths), default=time.time()))
