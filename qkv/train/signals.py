"""SIGTERM and Ctrl-C as a request to stop at the end of the step."""

import signal
import threading
from types import FrameType
from typing import Any


class Interrupted(Exception):  # noqa: N818 - a requested stop is not an error
    """Training was stopped by `signal`, after everything was saved."""

    def __init__(self, number: int):
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.signal = number


class Interrupt:
    """Signal handler while entered: the first signal is remembered, a second one ends the process at once.

    Python handles signals in the main thread only; in another thread nothing is changed.
    """

    SIGNALS = (signal.SIGTERM, signal.SIGINT)

    def __init__(self) -> None:
        self.received = 0
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "Interrupt":
        self.received = 0
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._remember) for number in self.SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}

    def raise_if_received(self) -> None:
        """Raise `Interrupted` if this process has received a signal."""
        if self.received:
            raise Interrupted(self.received)

    def _remember(self, number: int, _: FrameType | None) -> None:
        self.received = number
        for each in self.SIGNALS:
            signal.signal(each, signal.SIG_DFL)
