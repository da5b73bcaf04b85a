import pytest

from qkv.profile.timing.fit import fit_rates

SHAPES = [(1, 1, 1), (2, 30, 7), (50, 3, 11), (9, 90, 2), (40, 60, 80), (3, 200, 5)]
TRUE = {"start": 2e-6, "multiplications": 1e-9, "left": 3e-8}


def rows():
    return [{"start": 1.0, "multiplications": m * k * n, "left": m * k} for m, k, n in SHAPES]


def seconds(rates):
    return [sum(rates[term] * amount for term, amount in row.items()) for row in rows()]


def test_rates_that_made_the_times_are_found():
    assert fit_rates(rows(), seconds(TRUE)) == pytest.approx(TRUE, rel=1e-9)


def test_no_rate_is_negative():
    """Times that fall with one amount: its rate is 0, not negative."""
    made = seconds(TRUE | {"left": -2e-10})
    found = fit_rates(rows(), made)
    assert found["left"] == 0
    assert found["start"] > 0


def test_one_disturbed_timing_moves_the_others_little():
    taken = seconds(TRUE)
    taken[2] *= 10
    found = fit_rates(rows(), taken)
    fitted = [sum(found[term] * amount for term, amount in row.items()) for row in rows()]
    undisturbed = [
        fit / true for index, (fit, true) in enumerate(zip(fitted, seconds(TRUE), strict=True)) if index != 2
    ]
    assert undisturbed == pytest.approx([1.0] * 5, rel=0.35)
