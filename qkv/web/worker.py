"""The worker thread: it computes one response at a time, and drops those that nobody waits for."""

import asyncio
import os
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Event
from typing import Any, TypeVar

import torch

from qkv.cancellation import CanceledError, cancelable

Result = TypeVar("Result")


class WorkerFullError(Exception):
    """The queue of the worker is full."""


class Worker:
    """One thread with a short queue: PyTorch is parallel within a computation, so two at a time would both be late."""

    def __init__(self, max_pending: int):
        self.max_pending = max_pending
        self.pending = 0
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="qkv", initializer=leave_a_core)
        self._stopped = Event()

    @property
    def is_full(self) -> bool:
        """Whether no further computation may be queued."""
        return self.pending >= self.max_pending

    async def run(
        self, compute: Callable[[], Result], wait_gone: Callable[[], Coroutine[Any, Any, None]], timeout: float | None
    ) -> Result:
        """Return `compute()`, called on the thread; raise WorkerFullError at once if the queue is full.

        Raise CanceledError when `wait_gone()` ends first, TimeoutError after `timeout` seconds. The computation is
        then dropped if it has not begun, and else ends at its next step; until then it is pending.
        """
        if self.is_full:
            raise WorkerFullError
        canceled = Event()

        def run_unless_canceled() -> Result:
            with cancelable(lambda: canceled.is_set() or self._stopped.is_set()):
                return compute()

        self.pending += 1
        queued = self._thread.submit(run_unless_canceled)
        result = asyncio.wrap_future(queued)
        result.add_done_callback(self._done)
        watcher = asyncio.create_task(wait_gone())
        try:
            waited: set[asyncio.Future[Any]] = {result, watcher}
            await asyncio.wait(waited, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if result.done():
                return result.result()
            raise CanceledError if watcher.done() else TimeoutError
        finally:
            watcher.cancel()
            canceled.set()
            queued.cancel()

    def stop(self) -> None:
        """Cancel all computations."""
        self._stopped.set()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _done(self, result: "asyncio.Future[Any]") -> None:
        self.pending -= 1
        with suppress(asyncio.CancelledError):
            result.exception()  # a response that no client waits for may fail silently


def leave_a_core() -> None:
    """Leave one core to the event loop; OpenMP threads that wait for a core make small operations slower."""
    torch.set_num_threads(max(1, min(torch.get_num_threads(), (os.cpu_count() or 1) - 1)))  # of this thread only
