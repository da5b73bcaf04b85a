"""The progress of a training run."""

import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from qkv.errors import QkvError


@dataclass
class Progress:
    """The state of a training run besides its tensors; part of every checkpoint."""

    step: int = 0
    steps: int | None = None
    validated: int = 0
    """Step of the last validation."""
    best: float = math.inf
    """Lowest validation score."""
    best_step: int = 0
    stale: int = 0
    """Validations since the best one."""
    skipped: int = 0
    """Consecutive steps that were skipped because they were not finite."""
    times: list[float] = field(default_factory=list)
    """Seconds of each measured step, until `steps` is known."""

    def to_record(self) -> dict[str, Any]:
        """Return plain data for a checkpoint; JSON has no infinity."""
        return {**asdict(self), "best": self.best if math.isfinite(self.best) else None}

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> "Progress":
        """Return what `to_record` wrote."""
        return cls(**{**record, "best": math.inf if record["best"] is None else record["best"]})

    def change_length(self, steps: int, folder: Path) -> None:
        """Continue to another number of steps; raise if more are done. Early stopping counts again from here."""
        if steps < self.step:
            raise QkvError(f"steps={steps} is fewer than the {self.step} steps that the run has done", folder)
        self.steps, self.stale = steps, 0
