"""How much Python is in a call: between the operations of a model there is a program, and small models wait for it."""

import sys
from collections.abc import Callable
from typing import Any


def python_calls(call: Callable[[], object]) -> int:
    """How many functions are called in one run, those written in Python and those in C, but not those inside of C."""
    calls = 0

    def note(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return calls - 2  # its own, and the one that ends it
