"""SIGTERM and Ctrl-C, turned into a wish to stop that is granted at the next safe place."""

import signal
import threading
from types import FrameType
from typing import Any


class Interrupted(Exception):  # noqa: N818 - a wish that was granted is no error
    """Training was asked to stop; all is saved. `signal` says by which signal."""

    def __init__(self, number: int):
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.signal = number


class Interrupt:
    """While entered, the first signal is remembered and a second one ends the process at once.

    Only a main thread can be told of signals; in another nothing is changed.
    """

    SIGNALS = (signal.SIGTERM, signal.SIGINT)

    def __init__(self) -> None:
        self.received = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Interrupt":
        self.received = 0
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._remember) for number in self.SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def raise_if_received(self) -> None:
        """A safe place of this process alone."""
        if self.received:
            raise Interrupted(self.received)

    def _remember(self, number: int, _: FrameType | None) -> None:
        self.received = number
        for each in self.SIGNALS:
            signal.signal(each, signal.SIG_DFL)
