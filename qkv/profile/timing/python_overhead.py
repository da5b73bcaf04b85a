"""Count the function calls of a Python program: small models wait for the interpreter between operations."""

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class CallCounts:
    """Functions called in one run."""

    python: int = 0
    """Calls of functions written in Python."""
    compiled: int = 0
    """Calls of compiled functions, torch's operations among them; calls made by these are not visible."""


def count_calls(call: Callable[[], object]) -> CallCounts:
    """Run `call` and count the functions it calls."""
    events: Counter[str] = Counter()

    def record(_frame: Any, event: str, _argument: Any) -> None:
        events[event] += 1

    before = sys.getprofile()
    sys.setprofile(record)
    try:
        call()
    finally:
        sys.setprofile(before)
    return CallCounts(events["call"] - 1, events["c_call"] - 1)  # without `call` itself and the closing setprofile
