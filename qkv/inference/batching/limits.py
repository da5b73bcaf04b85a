"""Bounds of a batcher, and the refusal when it is full."""

import time
from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Bounds of a batcher."""

    max_rows: int = 64
    """Most generations that hold a state at once."""
    max_waiting: int = 256
    """Most requests that wait for a state; further ones are refused."""
    max_state_bytes: int = 2**30
    """Most bytes of all states between two rounds; each row is counted with the size that its state can grow to."""
    piece: int = 256
    """Most prompt tokens per round: of short prompts together, and of long ones (or one block of a prefix cache)."""

    def __post_init__(self) -> None:
        for name in ("max_rows", "max_state_bytes", "piece"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.max_waiting < 1:
            raise ValueError(
                f"max_waiting must be at least 1, since every request waits for a round, got {self.max_waiting}"
            )


class QueueFullError(Exception):
    """Refusal of a request: too many wait, or the batcher drains. Try again after `retry_after` seconds."""

    def __init__(self, message: str, retry_after: float):
        super().__init__(message)
        self.retry_after = retry_after


class EndRate:
    """Rate at which requests have ended lately, to tell a refused client when to try again."""

    def __init__(self, count: int = 64, longest: float = 60.0):
        self._times: deque[float] = deque(maxlen=count)
        self._longest = longest

    def record(self) -> None:
        """Note that a request has ended now."""
        self._times.append(time.monotonic())

    def seconds_for(self, requests: int) -> float:
        """Return the time in which this many requests end, between 1 s and a minute; 1 s if none has ended yet."""
        if not self._times:
            return 1.0
        per_request = (time.monotonic() - self._times[0]) / len(self._times)
        return min(max(requests * per_request, 1.0), self._longest)
