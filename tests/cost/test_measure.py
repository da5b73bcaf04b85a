import sys
import time
from types import SimpleNamespace

import pytest
import torch

from qkv.cost import measure


def test_peak_memory_of_a_known_call():
    """Two live megabytes at once, then one."""
    x = torch.ones(2**18)

    def call():
        y = x + 1
        z = y + 1
        del y
        return z

    megabyte = 2**20
    assert 2 * megabyte <= measure(call).peak_bytes <= 2 * megabyte + 4096


def test_milliseconds_of_a_known_wait():
    assert 10 <= measure(lambda: time.sleep(0.01), repetitions=3).milliseconds < 100


@pytest.mark.parametrize(("seconds", "calls"), [(1.95, 6), (2.05, 2)])
def test_a_slow_call_is_timed_once(seconds, calls, monkeypatch):
    """By a clock of our own; one call is for memory."""
    made = []
    clock = SimpleNamespace(perf_counter=lambda: seconds * len(made))
    monkeypatch.setattr(sys.modules["qkv.cost.measure"], "time", clock)
    measure(lambda: made.append(1), repetitions=5)
    assert len(made) == calls
