"""Intervals and p against closed forms: a binomial share, and a randomization whose outcomes can be counted."""

import math

import numpy as np
import pytest

from qkv.metrics import bootstrap_interval, paired_difference


def share(total):
    return float(total[0] / total[1])


def rows(right):
    return np.array([(float(one), 1.0) for one in right])


def test_the_interval_of_a_share_is_that_of_a_binomial():
    counts = rows([True] * 300 + [False] * 700)
    low, high = bootstrap_interval(counts, share, resamples=4000)
    half = 1.96 * math.sqrt(0.3 * 0.7 / 1000)
    assert low == pytest.approx(0.3 - half, abs=0.004)
    assert high == pytest.approx(0.3 + half, abs=0.004)


def test_equal_examples_have_an_interval_of_one_point():
    assert bootstrap_interval(rows([True] * 7), share, resamples=10) == (1.0, 1.0)


def test_a_seed_draws_the_same_and_another_seed_others():
    counts = np.random.default_rng(0).random((53, 2)) + 1
    first = bootstrap_interval(counts, share, resamples=30, seed=1)
    assert bootstrap_interval(counts, share, resamples=30, seed=1) == first
    assert bootstrap_interval(counts, share, resamples=30, seed=2) != first


def test_p_is_the_share_of_swaps_with_as_large_a_difference():
    """Four examples that one system has right and the other wrong: only no swap and all swaps differ by 1, 2 of 16."""
    found = paired_difference(rows([True] * 4), rows([False] * 4), share, resamples=20_000)
    assert found.p == pytest.approx(2 / 16, abs=0.01)
    assert (found.difference, found.low, found.high) == (1.0, 1.0, 1.0)


def test_p_of_equal_systems_is_1():
    counts = rows([True, False, True])
    found = paired_difference(counts, counts, share, resamples=50)
    assert (found.difference, found.low, found.high, found.p) == (0, 0, 0, 1)


def test_p_is_never_0():
    found = paired_difference(rows([True] * 40), rows([False] * 40), share, resamples=19)
    assert found.p == 1 / 20


def test_swapping_the_systems_changes_the_sign_alone():
    first, second = rows([True, True, False, True, True]), rows([False, True, True, False, False])
    one, other = paired_difference(first, second, share), paired_difference(second, first, share)
    assert (one.difference, one.low, one.high) == pytest.approx((-other.difference, -other.high, -other.low))
    assert one.p == other.p


def test_wrong_shapes_and_counts_are_refused():
    with pytest.raises(ValueError, match=r"same shape, got \(2, 2\) and \(3, 2\)"):
        paired_difference(rows([True, True]), rows([True] * 3), share)
    with pytest.raises(ValueError, match="got 0 examples, resamples=5"):
        bootstrap_interval(np.zeros((0, 2)), share, resamples=5)
    with pytest.raises(ValueError, match="got 1 examples, resamples=0"):
        bootstrap_interval(rows([True]), share, resamples=0)
