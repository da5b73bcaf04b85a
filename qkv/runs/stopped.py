"""The weights of a run that is not finished, from its newest valid checkpoint."""

import warnings
from typing import Any

from qkv.errors import QkvError, QkvWarning
from qkv.runs.config import Config
from qkv.train import Progress, Run
from qkv.train.ema import Weights
from qkv.train.resume_check import describe_run


def read_stopped(run: Run, config: Config) -> Weights:
    """Return the best weights so far, or the latest if none were validated yet; a `QkvWarning` says which."""

    def choose(record: dict[str, Any]) -> str:
        if Progress.from_record(record["progress"]).best_step:
            return "best"
        return "ema" if config.train.ema_decay else "model"

    found = run.load_checkpoint(choose)
    if found is None:
        raise QkvError("the run has no model yet: it has no checkpoint; continue it with --resume", run.folder)
    if found.record.get("resume_check", {}).get("run") not in (None, describe_run(run)):
        raise QkvError("the checkpoint is of another run", run.folder)
    progress = Progress.from_record(found.record["progress"])
    which = f"the best weights, of step {progress.best_step}"
    if not progress.best_step:
        which = "its weights, which were not validated yet"
    total = "" if progress.steps is None else f" of {progress.steps}"
    message = f"training is not finished in {run.folder}: the last checkpoint is of step {progress.step}{total}"
    warnings.warn(f"{message}; using {which}", QkvWarning, stacklevel=2)
    return found.tensors[choose(found.record)]
