"""Training in one call, for problems whose answer has to be learned."""

from pathlib import Path
from tempfile import TemporaryDirectory

from qkv.train import Loop, Settings, Objective, create


def fit(task: Objective, settings: Settings) -> list[float]:
    """Train by the loop that all models share, in a folder that is thrown away; the loss of every update.

    The model is left with its best weights, ready to be asked.
    """
    with TemporaryDirectory() as folder:
        run = create(Path(folder) / "run")
        loop = Loop(task, settings, run)
        loop.train()
        losses = [line["loss"] for line in run.read_metrics() if "loss" in line]
    task.model.load_state_dict(loop.best)
    task.model.eval()
    return losses
