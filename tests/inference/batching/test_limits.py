import time

import pytest

from qkv.inference.batching import Limits, QueueFullError
from qkv.inference.batching.limits import EndRate


@pytest.mark.parametrize("name", ["max_rows", "max_waiting", "max_state_bytes", "piece"])
def test_limits_are_positive(name):
    assert getattr(Limits(**{name: 1}), name) == 1
    with pytest.raises(ValueError, match=f"{name} must be at least 1.*got 0"):
        Limits(**{name: 0})


def test_a_refusal_says_when_to_try_again():
    error = QueueFullError("7 requests wait already", 3.5)
    assert (str(error), error.retry_after) == ("7 requests wait already", 3.5)


def test_the_time_until_requests_have_ended(monkeypatch):
    """Eight ended in the last 16 s: five more take 10 s."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    rate = EndRate()
    assert rate.seconds_for(5) == 1.0
    for _ in range(8):
        rate.record()
        now[0] += 2
    assert rate.seconds_for(5) == pytest.approx(10)
    assert rate.seconds_for(0) == 1.0
    assert rate.seconds_for(10**6) == 60.0


def test_only_the_last_ends_count(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    rate = EndRate(count=4)
    for step in (1000, 1, 1, 1, 1):
        rate.record()
        now[0] += step
    assert rate.seconds_for(9) == pytest.approx(9)
