"""How much Python is in a call: between the operations of a model there is a program, and small models wait for it."""

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Calls:
    """How many functions a program called in one run."""

    python: int = 0
    """Those written in Python."""
    compiled: int = 0
    """Those that are not, torch's operations among them; what these call in turn is not seen."""


def python_calls(call: Callable[[], object]) -> Calls:
    """Run it, and count."""
    seen: Counter[str] = Counter()

    def note(_frame: Any, event: str, _argument: Any) -> None:
        seen[event] += 1

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return Calls(seen["call"] - 1, seen["c_call"] - 1)  # without `call` itself, and the one that ends it
