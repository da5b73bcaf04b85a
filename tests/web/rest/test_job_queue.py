"""Jobs that wait share batches; what one of them does wrong harms no other."""

import asyncio
import threading

import pytest

from qkv.cancellation import CanceledError, check_canceled
from qkv.web.rest.errors import ApiError, shutting_down
from qkv.web.rest.job_queue import JobQueue
from qkv.web.worker import Worker


class Bench:
    """A queue that squares numbers, in batches of three; the first batch waits until `release` is set."""

    def __init__(self, max_waiting=20):
        self.batches, self.release = [], threading.Event()
        self.worker = Worker(100)
        self.queue = JobQueue(self.worker, self.compute, lambda key: 3, max_waiting)

    def compute(self, key, inputs, indices):
        self.batches.append((key, inputs, indices))
        self.release.wait(20)
        if -1 in inputs:
            raise ValueError("no root")
        check_canceled()
        return [one * one for one in inputs]

    def ask(self, inputs, key="a", gone=None, timeout=20.0):
        return asyncio.create_task(self.queue.run(key, inputs, (gone or asyncio.Event()).wait(), timeout))

    def run(self, scenario):
        try:
            asyncio.run(asyncio.wait_for(scenario(), 20))
        finally:
            self.release.set()
            self.worker.stop()


async def until(condition):
    while not condition():
        await asyncio.sleep(0.005)


def test_waiting_jobs_share_batches_by_key():
    bench = Bench()

    async def scenario():
        first = bench.ask([1])
        await until(lambda: bench.batches)
        others = [bench.ask([2]), bench.ask([3, 4, 5, 6]), bench.ask([7], key="b"), bench.ask([8])]
        await until(lambda: bench.queue.waiting == 4)
        bench.release.set()
        assert [await one for one in (first, *others)] == [[1], [4], [9, 16, 25, 36], [49], [64]]

    bench.run(scenario)
    assert bench.batches == [
        ("a", [1], [0]),
        ("a", [2, 3, 4], [0, 0, 1]),
        ("b", [7], [0]),
        ("a", [8, 5, 6], [0, 2, 3]),  # a long job takes its turn again
    ]


def test_only_the_guilty_job_fails():
    bench = Bench()

    async def scenario():
        first = bench.ask([1])
        await until(lambda: bench.batches)
        good, bad = bench.ask([2]), bench.ask([-1])
        await until(lambda: bench.queue.waiting == 2)
        bench.release.set()
        assert (await first, await good) == ([1], [4])
        with pytest.raises(ValueError, match="no root"):
            await bad

    bench.run(scenario)


def test_a_full_queue_refuses_at_once():
    bench = Bench(max_waiting=1)

    async def scenario():
        first = bench.ask([1])
        await until(lambda: bench.batches)
        second = bench.ask([2])
        await until(lambda: bench.queue.is_full)
        with pytest.raises(ApiError) as found:
            await bench.ask([3])
        assert (found.value.status, found.value.headers) == (429, {"retry-after": "1"})
        bench.release.set()
        assert (await first, await second) == ([1], [4])

    bench.run(scenario)


def test_jobs_that_nobody_waits_for_are_left_out():
    bench = Bench()

    async def scenario():
        first, gone = bench.ask([1]), asyncio.Event()
        await until(lambda: bench.batches)
        left, kept = bench.ask([2], gone=gone), bench.ask([3])
        late = bench.ask([4], timeout=0.05)
        await until(lambda: bench.queue.waiting == 3)
        gone.set()
        with pytest.raises(CanceledError):
            await left
        with pytest.raises(ApiError, match=r"no complete response after 0\.05 seconds"):
            await late
        bench.release.set()
        assert (await first, await kept) == ([1], [9])

    bench.run(scenario)
    assert [inputs for _, inputs, _ in bench.batches] == [[1], [3]]


def test_what_is_in_flight_can_be_ended():
    bench = Bench()

    async def scenario():
        jobs = [bench.ask([1])]
        await until(lambda: bench.batches)
        jobs.append(bench.ask([2]))
        await until(lambda: bench.queue.waiting == 1)
        bench.queue.end_all(shutting_down())
        for job in jobs:
            with pytest.raises(ApiError, match="shutting down"):
                await job

    bench.run(scenario)
