import math

import pytest

from qkv.problems import AtLeast, AtMost, Between, Near, meets


@pytest.mark.parametrize(
    ("expectation", "right", "wrong"),
    [
        (Near(1.0, 0.1), 1.05, 1.2),
        (Near(1.0, 0.1), 0.95, math.nan),
        (Near([1.0, 2.0], 0.1), [1.05, 1.95], [1.05, 2.2]),
        (Near([1.0, 2.0], 0.1), [1.0, 2.0], [1.0]),
        (Near([[1.0], [2.0]], 0.1), [[1.0], [2.0]], [[1.0], 2.0]),
        (Near(1.0, 0.1), 1.0, [1.0]),
        (AtMost(2), 2, 2.5),
        (AtMost(2), [1, 2], [1, 3]),
        (AtMost(2), {"a": 1}, {"a": 3}),
        (AtMost(2), 1.0, math.nan),
        (AtLeast(2), 2, 1.5),
        (AtLeast(2), [2, 3], [1, 3]),
        (AtLeast(2), [5], []),
        (Between(2, 3), 2, 1.5),
        (Between(2, 3), [2, 3], [2, 3.5]),
        (Between(2, 3), {"a": 2.5}, {}),
        (Between(2, 3), 3.0, math.nan),
        (3, 3, 4),
        ([1, 2], [1, 2], [1, 3]),
        (True, True, False),
    ],
)
def test_expectations(expectation, right, wrong):
    assert meets({"x": right}, {"x": expectation})
    assert not meets({"x": wrong}, {"x": expectation})


def test_what_is_expected_must_be_there():
    assert not meets({"y": 3}, {"x": 3})
    assert meets({"x": 3, "y": 4}, {"x": 3})
