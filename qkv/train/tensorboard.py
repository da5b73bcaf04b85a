"""Scalars of a run for TensorBoard, where it is installed."""

from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

SCALARS = ("loss", "rate", "norm", "score")
"""Metrics that are written."""


class TensorBoard:
    """Event files in a folder; resuming hides the events of steps that are repeated."""

    def __init__(self, folder: Path, step: int):
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - optional, and takes seconds to import

        self._writer = SummaryWriter(str(folder), purge_step=step + 1)

    def write(self, record: dict[str, Any]) -> None:
        """Write the scalars of one line of metrics; write errors are ignored, since metrics.jsonl has them all."""
        with suppress(OSError):
            for name in SCALARS:
                if isinstance(record.get(name), float):
                    self._writer.add_scalar(name, record[name], record["step"])

    def close(self) -> None:
        """Write buffered events."""
        with suppress(OSError):
            self._writer.close()


def open_tensorboard(folder: Path, step: int) -> TensorBoard | None:
    """Return a writer for the steps after `step`, or None where TensorBoard is not installed."""
    if find_spec("tensorboard") is None:
        return None
    try:
        return TensorBoard(folder, step)
    except (ImportError, OSError):
        return None
