"""SIGTERM and Ctrl-C in the parts of a command that have nothing to save: one sentence, exit code 128 + signal."""

import os
import signal
import sys
import threading
from types import FrameType
from typing import Any


class ExitOnSignal:
    """Signal handler while entered; `sentence` says what the signal ended, and may be changed on the way.

    In a process group, rank 0 prints. Python handles signals in the main thread only; in another nothing is changed.
    """

    def __init__(self, sentence: str):
        self.sentence = sentence
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "ExitOnSignal":
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._exit) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}

    def _exit(self, number: int, _: FrameType | None) -> None:
        if os.environ.get("RANK", "0") == "0":
            sys.stderr.write(f"qkv: stopped by {signal.Signals(number).name}: {self.sentence}\n")
        raise SystemExit(128 + number)
