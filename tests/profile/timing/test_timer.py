import pytest
import torch

from qkv.profile.timing.timer import fastest_seconds


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


class Clock:
    """A clock of processor time and one of the wall, moved by hand."""

    def __init__(self):
        self.processor = self.wall = 0.0

    def process_time(self):
        return self.processor

    def perf_counter(self):
        return self.wall


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr("qkv.profile.timing.timer.time", made)
    return made


def work(clock, waits):
    """Calls that compute for 2 ms and then wait, each as long as it says."""
    left = iter(waits)

    def call():
        clock.processor += 0.002
        clock.wall += 0.002 + next(left)

    return call


WAITS = [0.0, 0.0, 0.05, 0.01, 0.03, 0.05, 0.05]  # the first two are not counted


def test_with_one_thread_waiting_does_not_count(threads, clock):
    threads(1)
    assert fastest_seconds(work(clock, WAITS), seconds=0, min_repeats=5) == pytest.approx(0.002)


def test_with_more_it_is_the_clock_and_the_fastest_counts(threads, clock):
    threads(2)
    assert fastest_seconds(work(clock, WAITS), seconds=0, min_repeats=5) == pytest.approx(0.012)


def test_short_calls_are_timed_by_the_batch(threads, clock):
    """Nine in 0.1 ms, each taking a little more than a tenth of it."""
    threads(1)
    calls = []

    def call():
        calls.append(1)
        clock.processor += 1e-5
        clock.wall += 1.001e-5

    assert fastest_seconds(call, seconds=0, min_repeats=3) == pytest.approx(1e-5)
    assert len(calls) == 2 + 3 * 9
