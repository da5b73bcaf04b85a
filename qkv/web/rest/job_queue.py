"""Requests that wait for the worker thread, computed in batches: those with the same key share one."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from qkv.cancellation import CanceledError
from qkv.web.rest.errors import ApiError, busy, too_late
from qkv.web.worker import Worker

Input = TypeVar("Input")
Output = TypeVar("Output")


@dataclass(eq=False)
class Job(Generic[Input, Output]):
    """The inputs of one request, and the outputs so far."""

    key: Hashable
    inputs: Sequence[Input]
    answer: "asyncio.Future[list[Output]]"
    outputs: list[Output] = field(default_factory=list)

    @property
    def rest(self) -> Sequence[Input]:
        """Inputs without an output."""
        return self.inputs[len(self.outputs) :]


@dataclass(frozen=True)
class Share(Generic[Input, Output]):
    """The inputs of one job in a batch, and the index of the first."""

    job: Job[Input, Output]
    start: int
    inputs: Sequence[Input]


class JobQueue(Generic[Input, Output]):
    """Waiting jobs, at most `max_waiting`; `compute(key, inputs, indices)` runs on the worker thread.

    A job with more inputs than a batch takes its turn again after the others.
    """

    def __init__(
        self,
        worker: Worker,
        compute: Callable[[Any, list[Input], list[int]], list[Output]],
        batch_size: Callable[[Any], int],
        max_waiting: int,
    ):
        self.worker, self.compute, self.batch_size, self.max_waiting = worker, compute, batch_size, max_waiting
        self._waiting: deque[Job[Input, Output]] = deque()
        self._running: list[Job[Input, Output]] = []
        self._runner: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """Jobs that wait."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Jobs in the batch that is computed."""
        return len(self._running)

    @property
    def is_full(self) -> bool:
        """Whether no further job is accepted."""
        return len(self._waiting) >= self.max_waiting and bool(self._waiting or self._running)

    async def run(
        self, key: Hashable, inputs: Sequence[Input], wait_gone: Coroutine[Any, Any, None], timeout: float
    ) -> list[Output]:
        """Return the outputs; raise CanceledError when `wait_gone` ends first, and 429 at once if there is no room."""
        watcher = asyncio.ensure_future(wait_gone)
        try:
            if self.is_full:
                raise busy()
            job: Job[Input, Output] = Job(key, inputs, asyncio.get_running_loop().create_future())
            self._waiting.append(job)
            if self._runner is None or self._runner.done():
                self._runner = asyncio.create_task(self._run())
            watcher.add_done_callback(lambda _: job.answer.cancel())
            try:
                async with asyncio.timeout(timeout):
                    return await job.answer
            except TimeoutError:
                raise too_late(timeout) from None
            except asyncio.CancelledError:
                if watcher.done():
                    raise CanceledError from None
                raise
            finally:
                job.answer.cancel()
        finally:
            watcher.cancel()

    def end_all(self, error: ApiError) -> None:
        """End what is still in flight with this error."""
        for job in (*self._waiting, *self._running):
            if not job.answer.done():
                job.answer.set_exception(error)

    async def _run(self) -> None:
        while shares := self._next_batch():
            self._running = [share.job for share in shares]
            await self._compute(shares)
            self._running = []

    def _next_batch(self) -> list[Share[Input, Output]]:
        """Take the first job and others with its key, up to a batch; those that nobody waits for are left out."""
        self._waiting = deque(job for job in self._waiting if not job.answer.done())
        shares: list[Share[Input, Output]] = []
        if not self._waiting:
            return shares
        key, others = self._waiting[0].key, deque[Job[Input, Output]]()
        room = self.batch_size(key)
        while self._waiting:
            job = self._waiting.popleft()
            if job.key != key or not room:
                others.append(job)
                continue
            taken = job.rest[:room]
            room -= len(taken)
            shares.append(Share(job, len(job.outputs), taken))
        self._waiting = others
        return shares

    async def _compute(self, shares: list[Share[Input, Output]]) -> None:
        """Compute a batch; if that fails, each of its jobs alone, so that only the guilty one fails."""
        inputs = [one for share in shares for one in share.inputs]
        indices = [share.start + number for share in shares for number in range(len(share.inputs))]
        jobs, key = [share.job for share in shares], shares[0].job.key
        try:
            found = await self.worker.run(lambda: self.compute(key, inputs, indices), lambda: _all_done(jobs), None)
        except CanceledError:
            return  # nobody waits for any of them
        except Exception as error:  # noqa: BLE001 - it belongs to a request, which reports it
            if len(shares) == 1:
                self._fail(jobs[0], error)
                return
            for share in shares:
                await self._compute([share])
            return
        for share in shares:
            share.job.outputs += found[: len(share.inputs)]
            found = found[len(share.inputs) :]
            self._hand_out(share.job)

    def _hand_out(self, job: Job[Input, Output]) -> None:
        if job.answer.done():
            return
        if job.rest:
            self._waiting.append(job)
        else:
            job.answer.set_result(job.outputs)

    @staticmethod
    def _fail(job: Job[Input, Output], error: Exception) -> None:
        if not job.answer.done():
            job.answer.set_exception(error)


async def _all_done(jobs: Sequence[Job[Any, Any]]) -> None:
    """Wait until nobody waits for any of these jobs."""
    with suppress(asyncio.CancelledError):
        await asyncio.wait([job.answer for job in jobs])
