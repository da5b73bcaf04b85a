"""Cancel a computation from another thread: it ends at its next step.

    with cancelable(event.is_set):
        search_tree(...)                 # raises CanceledError at the next decoding step after event.set()

Loops that may take seconds call `check_canceled` once per step; outside of a `cancelable` block it does nothing.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_is_canceled: ContextVar[Callable[[], bool] | None] = ContextVar("is_canceled", default=None)


class CanceledError(Exception):
    """Nobody waits for the result of this computation any more."""


@contextmanager
def cancelable(is_canceled: Callable[[], bool]) -> Iterator[None]:
    """Let `check_canceled` raise inside the block once `is_canceled()` is True."""
    before = _is_canceled.set(is_canceled)
    try:
        yield
    finally:
        _is_canceled.reset(before)


def check_canceled() -> None:
    """Raise CanceledError if the computation around this call was canceled."""
    is_canceled = _is_canceled.get()
    if is_canceled is not None and is_canceled():
        raise CanceledError
