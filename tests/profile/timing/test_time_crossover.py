import math

import pytest

from qkv.profile.timing.forecast import Forecast
from qkv.profile.timing.time_crossover import TimeCrossover, crossing_length, find_time_crossover


def test_powers_of_length_cross_where_they_are_equal():
    """n^2 / (50 n) is one at 50, wherever it was looked at."""
    assert crossing_length({n: n * n / (50 * n) for n in (16, 32, 64, 128)}) == pytest.approx(50)


def test_the_last_change_of_the_lead_counts():
    assert crossing_length({1: 0.5, 4: 2.0, 16: 0.5, 64: 2.0}) == pytest.approx(32)


@pytest.mark.parametrize(("leads", "expected"), [({8: 1.5, 16: 3.0}, 8.0), ({8: 0.5, 16: 0.9}, None), ({}, None)])
def test_ahead_from_the_start_or_never(leads, expected):
    assert crossing_length(leads) == expected


def test_predicted_and_measured():
    first = {n: Forecast({"product": 1e-9 * n * n}, 2e-9 * n * n) for n in (16, 64, 256)}
    second = {n: Forecast({"product": 60e-9 * n}, 80e-9 * n) for n in (16, 64, 256)}
    found = find_time_crossover(first, second)
    assert (found.predicted, found.measured) == pytest.approx((60, 40))
    assert found.ratio == pytest.approx(1.5)


def test_without_a_clock_there_is_no_ratio():
    first, second = {8: Forecast({"product": 2.0}, None)}, {8: Forecast({"product": 1.0}, None)}
    assert find_time_crossover(first, second) == TimeCrossover(8.0, None)
    assert math.isnan(find_time_crossover(first, second).ratio)
