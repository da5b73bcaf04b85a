"""Train in one call, for problems whose answer is learned."""

from pathlib import Path
from tempfile import TemporaryDirectory

from qkv.train import Loop, Objective, Settings, create_run


def fit(objective: Objective, settings: Settings) -> list[float]:
    """Train with the common loop in a temporary folder; return the loss of every update.

    The model is left with its best weights, in evaluation mode.
    """
    with TemporaryDirectory() as folder:
        run = create_run(Path(folder) / "run")
        loop = Loop(objective, settings, run)
        loop.train()
        losses = [line["loss"] for line in run.read_metrics() if "loss" in line]
    objective.model.load_state_dict(loop.best)
    objective.model.eval()
    return losses
