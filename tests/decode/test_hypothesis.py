import pytest

from qkv.decode import Hypothesis
from qkv.decode.hypothesis import make_hypothesis


def test_a_finished_path_loses_its_end_but_counts_it():
    assert make_hypothesis([5, 6, 2], -6.0, end=2, length_penalty=1.0) == Hypothesis((5, 6), -6.0, -2.0, True)
    assert make_hypothesis([2], -6.0, end=2, length_penalty=1.0) == Hypothesis((), -6.0, -6.0, True)


def test_a_truncated_path_keeps_all_its_tokens():
    assert make_hypothesis([5, 6, 7], -6.0, end=2, length_penalty=0.0) == Hypothesis((5, 6, 7), -6.0, -6.0, False)


def test_a_length_penalty_of_one_half():
    assert make_hypothesis([5, 5, 5, 5], -6.0, end=2, length_penalty=0.5).score == pytest.approx(-3.0)
