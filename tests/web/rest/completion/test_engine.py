"""The thread of the batcher: it sleeps, it survives a failing step, and its listeners are called in order."""

import asyncio
import gc
import time
import weakref

import pytest

from qkv import runs
from qkv.decode import SearchLimits
from qkv.inference.batching import Batcher, Generation, Limits, QueueFullError
from qkv.web.rest.completion.engine import FAILED, MANY, Engine


class Recorder:
    def __init__(self):
        self.tokens, self.ended = [], asyncio.Event()

    def add(self, token, log_probability, extra):
        self.tokens.append(token)

    def end(self, reason):
        self.reason = reason
        self.ended.set()


@pytest.fixture
def model(text_run):
    return runs.load(text_run)[2]


def generation(tokens):
    return Generation([1, 5], SearchLimits(tokens, start=5, end=289, forbidden=(0, 1)))


def in_loop(engine, scenario):
    try:
        return asyncio.run(asyncio.wait_for(scenario(), 20))
    finally:
        engine.stop()


def test_tokens_come_in_order_and_the_thread_sleeps_afterwards(model):
    engine = Engine(lambda: Batcher(model, Limits(max_rows=2)), 3)

    async def scenario():
        recorders = [Recorder() for _ in range(3)]
        for recorder, count in zip(recorders, (7, 11, 13), strict=True):
            engine.submit(generation(count), recorder)
        with pytest.raises(QueueFullError):
            engine.submit(generation(2), Recorder())
        for recorder in recorders:
            await recorder.ended.wait()
        rounds = engine.statistics().rounds
        await asyncio.sleep(0.2)
        assert engine.statistics().rounds == rounds
        return recorders

    recorders = in_loop(engine, scenario)
    assert [len(one.tokens) for one in recorders] == [7, 11, 13]
    assert [one.reason for one in recorders] == ["length"] * 3
    assert recorders[0].tokens == recorders[2].tokens[:7]
    assert engine.active == 0


def test_a_step_that_fails_ends_what_is_in_flight_and_nothing_else(model, caplog):
    made = []

    class Failing(Batcher):
        def step(self):
            if len(made) == 1 and self.statistics().tokens >= 5:
                raise RuntimeError("broken")
            return super().step()

    def make():
        made.append(Failing(model, Limits(max_rows=2)))
        return made[-1]

    engine = Engine(make, 4)

    async def scenario():
        first, second = Recorder(), Recorder()
        engine.submit(generation(50), first)
        await first.ended.wait()
        engine.submit(generation(6), second)
        await second.ended.wait()
        return first, second

    first, second = in_loop(engine, scenario)
    assert (first.reason, second.reason) == (FAILED, "length")
    assert second.tokens == first.tokens[:6] or len(first.tokens) == 5
    assert "broken" in caplog.text


def test_an_idle_engine_is_alive_and_a_stopped_one_is_not(model):
    engine = Engine(lambda: Batcher(model, Limits()), 4)
    assert engine.is_alive

    async def scenario():
        recorder = Recorder()
        engine.submit(generation(60), recorder)
        await recorder.ended.wait()

    in_loop(engine, scenario)
    end = time.monotonic() + 5
    while engine.is_alive:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_what_has_ended_is_freed_without_the_garbage_collector(model):
    engine = Engine(lambda: Batcher(model, Limits(max_rows=2)), 3)

    async def scenario():
        recorder, asked = Recorder(), generation(3)
        engine.submit(asked, recorder)
        await recorder.ended.wait()
        return weakref.ref(asked), weakref.ref(recorder)

    gc.disable()
    try:
        assert [one() for one in in_loop(engine, scenario)] == [None, None]
    finally:
        gc.enable()


def test_memory_is_given_back_after_many_generations_at_once(model, monkeypatch):
    given_back = []
    monkeypatch.setattr("qkv.web.rest.completion.engine.give_back_memory", lambda: given_back.append(None))
    engine = Engine(lambda: Batcher(model, Limits(max_rows=MANY)), MANY)

    async def wave(count):
        recorders = [Recorder() for _ in range(count)]
        for recorder in recorders:
            engine.submit(generation(60), recorder)
        for recorder in recorders:
            await recorder.ended.wait()
        await asyncio.sleep(0.1)

    async def scenario():
        for count, expected in ((MANY - 1, 0), (MANY, 1), (1, 1)):
            await wave(count)
            assert len(given_back) == expected

    in_loop(engine, scenario)
