import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.draw.ticks import format_tick, linear_ticks, log_ticks


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (0.3, 4.1, [0, 1, 2, 3, 4, 5]),
        (-7, 12, [-10, -5, 0, 5, 10, 15]),
        (0, 100_000, [0, 20_000, 40_000, 60_000, 80_000, 100_000]),
        (0.1, 0.3, [0.1, 0.15, 0.2, 0.25, 0.3]),
        (2.0, 2.5, [2, 2.1, 2.2, 2.3, 2.4, 2.5]),
    ],
)
def test_linear_ticks_are_round_and_enclose(low, high, expected):
    assert linear_ticks(low, high) == expected


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.02, 40.0, [0.01, 0.1, 1, 10, 100]),
        (0.02, 4.0, [0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5]),
        (1, 1000, [1, 10, 100, 1000]),
        (0.3, 4.0, [0.2, 0.5, 1, 2, 5]),
        (0.7, 70, [0.5, 1, 2, 5, 10, 20, 50, 100]),
        (2.0, 2.5, [2, 2.1, 2.2, 2.3, 2.4, 2.5]),
        (0.1, 0.45, [0.1, 0.2, 0.5]),
    ],
)
def test_log_ticks_are_round_and_enclose(low, high, expected):
    assert log_ticks(low, high) == pytest.approx(expected, rel=1e-12)


@given(st.floats(1e-200, 1e188), st.floats(1.000001, 1e12))
def test_ticks_enclose_any_range(low, ratio):
    high = low * ratio
    for ticks in (linear_ticks(low, high), log_ticks(low, high)):
        assert ticks[0] <= low * (1 + 1e-6)
        assert ticks[-1] >= high * (1 - 1e-6)
        assert ticks == sorted(set(ticks))
        assert 2 <= len(ticks) <= 12
    assert log_ticks(low, high)[0] > 0


def test_many_powers_are_left_out_evenly():
    ticks = log_ticks(1e-20, 1e20)
    assert len(ticks) <= 10
    assert ticks[0] <= 1e-20 * 1.001
    assert ticks[-1] >= 1e20 * 0.999


@pytest.mark.parametrize(
    ("value", "text"), [(1500, "1,500"), (0.1 + 0.2, "0.3"), (0, "0"), (-2, "-2"), (1e-6, "1e-06"), (1e7, "1e+07")]
)
def test_labels(value, text):
    assert format_tick(value) == text


def test_bad_input():
    with pytest.raises(ValueError, match="low must be below high, got 2 and 2"):
        linear_ticks(2, 2)
    with pytest.raises(ValueError, match="positive and in order, got 0 and 2"):
        log_ticks(0, 2)
