"""Time by a clock that stands still unless it is moved."""

import queue
import threading
import time

import pytest

from qkv.train.failures import pulse
from qkv.train.failures.pulse import LONG_LIMIT, PATIENCE, WARM_STEPS, WINDOW, Pulse


class Clock:
    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    found = Clock()
    monkeypatch.setattr(pulse, "time", found)
    return found


def take_step(found, clock, number, *, own=0.2, waiting=0.3):
    clock.now += own
    with found.collective():
        clock.now += waiting
    found.begin_step(number)


def start_steps(found, clock, steps, **times):
    found.begin_step(1)
    for number in range(2, steps + 2):
        take_step(found, clock, number, **times)


def test_own_time_is_without_waiting(clock):
    found = Pulse()
    start_steps(found, clock, WINDOW - 1)
    assert found.own_seconds is None
    take_step(found, clock, WINDOW + 1)
    assert (found.own_seconds, found.step_seconds) == pytest.approx((0.2, 0.5))
    assert found.step == WINDOW + 1


def test_own_time_is_without_validation(clock):
    found = Pulse()
    start_steps(found, clock, WINDOW, own=0.2)
    for number in range(WINDOW):
        with found.slow("validation"):
            clock.now += 100
            with found.collective():
                clock.now += 50
        take_step(found, clock, WINDOW + number, own=0.4)
    assert found.own_seconds == pytest.approx(0.4)


def test_limits(clock):
    """The first steps and a validation may be slow; a step may take the limit, or ten times the longest so far."""
    found = Pulse()
    start_steps(found, clock, WARM_STEPS - 1, own=100.0)
    assert found.limit(40) == LONG_LIMIT
    take_step(found, clock, WARM_STEPS + 1, own=0.1)
    assert (found.activity, found.limit(40)) == ("a step", 40)
    take_step(found, clock, 9, own=6.0, waiting=1000.0)
    assert found.limit(40) == pytest.approx(PATIENCE * 6.0)
    with found.slow("validation"):
        assert (found.activity, found.limit(40)) == ("validation", LONG_LIMIT)
    assert (found.activity, found.limit(80)) == ("a step", 80)


def test_a_change_of_limit_is_told(clock):
    found, changes = Pulse(), []
    found.on_change = lambda: changes.append(found.limit(40))
    start_steps(found, clock, WARM_STEPS + 3)
    with found.slow("saving a checkpoint"):
        pass
    assert changes == [40, LONG_LIMIT, 40]


def test_signs_of_progress_and_arrivals():
    found = Pulse()
    found.tick()
    with found.collective():
        inside = found.waiting
    assert (found.ticks, found.arrivals, inside, found.waiting) == (3, 1, True, False)


def test_place_of_this_function():
    found = Pulse().place()
    assert found.text.startswith("failures/test_pulse.py:")
    assert found.text.endswith("in test_place_of_this_function")
    assert (found.in_torch, found.in_collective) == (False, False)


def test_place_of_the_caller_of_a_library():
    """A thread that waits inside the standard library."""
    found, waiting = Pulse(), queue.Queue()

    def wait_for_work():
        waiting.get()

    thread = threading.Thread(target=wait_for_work)
    thread.start()
    found.thread = thread.ident
    end = time.monotonic() + 10
    while "wait_for_work" not in found.place().text and time.monotonic() < end:
        time.sleep(0.01)
    text = found.place().text
    waiting.put(None)
    thread.join()
    assert text.endswith("in wait_for_work")
