"""Progress of a long evaluation: the evaluation reports to a listener, if there is one.

with on_progress(lambda done, total: print(done, total)):
    task.evaluate(model, "test")
"""

from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

Item = TypeVar("Item")
Listener = Callable[[int, int | None], None]
"""(items done, items in total); the total is None if it is not known."""

_listener: ContextVar[Listener | None] = ContextVar("progress listener", default=None)


@contextmanager
def on_progress(listener: Listener) -> Iterator[None]:
    """Report all that `track` iterates over inside of this context to a listener."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def track(items: Iterable[Item]) -> Iterator[Item]:
    """Yield the items; report after each of them."""
    listener = _listener.get()
    if listener is None:
        yield from items
        return
    total = len(items) if isinstance(items, Sized) else None
    for done, item in enumerate(items, 1):
        yield item
        listener(done, total)
