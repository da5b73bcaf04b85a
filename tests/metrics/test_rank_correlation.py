import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import rankdata, spearmanr

from qkv.metrics import spearman
from qkv.metrics.rank_correlation import ranks

PAIRS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=2, max_size=40)


def test_by_hand():
    """Without ties 1 - 6 sum d^2 / n (n^2 - 1): here d = 0, 1, -1, 1, -1."""
    assert spearman([1, 2, 3, 4, 5], [10, 30, 20, 50, 40]) == pytest.approx(1 - 6 * 4 / (5 * 24))
    assert spearman([1, 2, 3], [0.1, 7, 1e9]) == 1
    assert spearman([1, 2, 3], [3, 2, 1]) == -1


@given(PAIRS)
def test_ties_as_scipy(pairs):
    left, right = zip(*pairs, strict=True)
    assert ranks(left) == rankdata(left).tolist()
    varied = len(set(left)) > 1 and len(set(right)) > 1
    expected = spearmanr(left, right).statistic if varied else math.nan
    assert spearman(left, right) == pytest.approx(expected, abs=1e-12, nan_ok=True)


@pytest.mark.parametrize(
    ("left", "right", "message"),
    [
        ([1, 2], [1], "left and right must have the same length, at least 2, got 2 and 1"),
        ([1], [1], "got 1 and 1"),
        ([1, math.nan], [1, 2], "left and right must not contain NaN"),
    ],
)
def test_bad_input(left, right, message):
    with pytest.raises(ValueError, match=message):
        spearman(left, right)
