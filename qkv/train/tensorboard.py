"""The scalars of a run for TensorBoard, where it is installed."""

from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

SCALARS = ("loss", "rate", "norm", "score")


class Board:
    """Event files in a folder; a later part of a run hides what an earlier one wrote of the steps taken again."""

    def __init__(self, folder: Path, step: int):
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - it may be missing, and takes seconds

        self._writer = SummaryWriter(str(folder), purge_step=step + 1)

    def write(self, record: dict[str, Any]) -> None:
        """The numbers of one line of metrics; what cannot be written is left out, metrics.jsonl being the record."""
        with suppress(OSError):
            for name in SCALARS:
                if isinstance(record.get(name), float):
                    self._writer.add_scalar(name, record[name], record["step"])

    def close(self) -> None:
        """Write what is still in memory."""
        with suppress(OSError):
            self._writer.close()


def open_board(folder: Path, step: int) -> Board | None:
    """A board for the steps after `step`; None where TensorBoard is not installed."""
    if find_spec("tensorboard") is None:
        return None
    try:
        return Board(folder, step)
    except (ImportError, OSError):
        return None
