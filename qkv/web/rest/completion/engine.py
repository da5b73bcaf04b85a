"""The thread that runs a batcher: it steps while there is work, and sleeps otherwise.

What a step produced is handed to the event loop in one call, however many streams there are.
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from qkv.inference.batching import Batcher, BatcherStatistics, Generation, QueueFullError
from qkv.inference.batching.limits import EndRate
from qkv.web.rest.native_memory import give_back_memory
from qkv.web.worker import leave_a_core

FAILED = "error: the generation failed; the log of the server has the reason"
MAX_UNDELIVERED = 4
"""Rounds whose tokens may wait for the event loop: a slow one slows generation down instead of filling the memory."""
MANY = 32
"""Generations at once after which memory is given back; that takes some milliseconds."""
Event = tuple[Callable[..., None], tuple[Any, ...]]
_log = logging.getLogger(__name__)


class TokenListener(Protocol):
    """What is called on the event loop for each token of a generation, and once at its end."""

    def add(self, token: int, log_probability: float, extra: Any) -> None:
        """Take a token."""
        ...

    def end(self, reason: str) -> None:
        """Take the reason of the end, as `Generation.on_end` gives it."""
        ...


class Engine:
    """Generations in flight, at most `capacity`; their listeners are called on the event loop."""

    def __init__(self, make_batcher: Callable[[], Batcher], capacity: int):
        self.capacity = capacity
        self._make_batcher = make_batcher
        self._batcher = make_batcher()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._events: list[Event] = []
        self._active: dict[Generation, TokenListener] = {}
        self._ends = EndRate()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._most_active = 0  # since memory was given back
        self._room = threading.Semaphore(MAX_UNDELIVERED)
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="qkv-engine", daemon=True)

    @property
    def active(self) -> int:
        """Generations that were accepted and have not ended."""
        return len(self._active)

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs, or has not been needed yet."""
        return self._loop is None or self._thread.is_alive()

    @property
    def retry_after(self) -> float:
        """Seconds until another generation is likely to have ended."""
        return self._ends.seconds_for(1)

    def has_room(self, count: int = 1) -> bool:
        """Return whether so many more generations would be accepted."""
        return len(self._active) + count <= self.capacity

    def submit(self, generation: Generation, listener: TokenListener, extra: Callable[[], Any] = lambda: None) -> None:
        """Accept a generation, or raise as `Batcher.submit` does; call this on the event loop.

        `extra()` is called on the thread after each token is chosen; the listener gets its result.
        """
        if not self.has_room():
            raise QueueFullError(f"{len(self._active)} generations are in flight, the limit", self.retry_after)
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._thread.start()

        def on_token(token: int, log_probability: float) -> None:
            self._events.append((listener.add, (token, log_probability, extra())))

        def on_end(reason: str) -> None:
            self._end(generation, reason)

        generation.on_token, generation.on_end = on_token, on_end
        with self._lock:
            self._active[generation] = listener
            self._most_active = max(self._most_active, len(self._active))
            try:
                self._batcher.submit(generation)
            except BaseException:
                del self._active[generation]
                raise
        self._wake.set()

    def wake(self) -> None:
        """Let the thread notice generations that were canceled."""
        self._wake.set()

    def statistics(self) -> BatcherStatistics:
        """Return what the batcher holds and has done."""
        return self._batcher.statistics()

    def drain(self) -> None:
        """Refuse new generations; those that were accepted go on."""
        self._batcher.drain()

    def halt(self) -> None:
        """Let the thread end after its current step; what is in flight stays unfinished."""
        self._stopped = True
        self._wake.set()

    def stop(self) -> None:
        """End the thread after its current step, and wait for it for a moment."""
        self.halt()
        if self._thread.is_alive():
            self._thread.join(0.5)  # a step of a large model may take longer; the thread is a daemon

    def _run(self) -> None:
        leave_a_core()
        while not self._stopped:
            self._wake.clear()
            try:
                has_work = self._batcher.step()
            except Exception:  # noqa: BLE001 - whatever it was, the streams must end and the server go on
                _log.exception("a decoding step failed; the generations in flight end")
                self._replace_batcher()
                has_work = False
            self._hand_over()
            if not has_work:
                self._give_back()
                self._wake.wait()

    def _give_back(self) -> None:
        """Give memory back after many generations at once, whose states would else leave gaps for the next ones."""
        if self._most_active >= MANY:
            self._most_active = 0
            give_back_memory()

    def _end(self, generation: Generation, reason: str) -> None:
        listener = self._active.pop(generation, None)
        generation.on_token = generation.on_end = None  # they refer to it: as a cycle it would stay for a while
        if listener is not None:
            self._ends.record()
            self._events.append((listener.end, (reason,)))

    def _replace_batcher(self) -> None:
        """Go on with an empty batcher, since nobody knows what the failed one holds."""
        with self._lock:
            self._batcher = self._make_batcher()
            failed = list(self._active)
        for generation in failed:
            self._end(generation, FAILED)

    def _hand_over(self) -> None:
        """Pass the events of a round to the event loop; wait if it has not heard those of several rounds."""
        events, self._events = self._events, []
        if not events or self._loop is None:
            return
        while not self._room.acquire(timeout=0.5):
            if self._stopped:
                return
        with suppress(RuntimeError):  # the loop is closed: nobody listens any more
            self._loop.call_soon_threadsafe(self._deliver, events)

    def _deliver(self, events: list[Event]) -> None:
        """Call the listeners, on the event loop."""
        self._room.release()
        for listen, arguments in events:
            listen(*arguments)
