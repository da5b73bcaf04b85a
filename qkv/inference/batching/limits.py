"""Bounds of a batcher, and the refusal when it is full."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Bounds of a batcher."""

    max_rows: int = 64
    """Most generations that hold a state at once."""
    max_waiting: int = 256
    """Most requests that wait for a row; further ones are refused."""
    max_state_bytes: int = 2**30
    """Most bytes of the states of all rows, each counted at its full length when it is admitted."""
    piece: int = 256
    """Most prompt tokens that one round processes, so that long prompts do not stall running rows."""

    def __post_init__(self) -> None:
        for name in ("max_rows", "max_state_bytes", "piece"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.max_waiting < 0:
            raise ValueError(f"max_waiting must be at least 0, got {self.max_waiting}")


class QueueFullError(Exception):
    """As many requests wait as may wait, or the batcher is draining. Try again after `retry_after` seconds."""

    def __init__(self, message: str, retry_after: float):
        super().__init__(message)
        self.retry_after = retry_after
