import pytest

from tests.problems.calls import run


def test_f1_average_precision():
    answer = run("F1")
    assert answer["precision"] == pytest.approx([1, 1, 2 / 3, 1 / 2, 2 / 5, 1 / 2, 3 / 7, 1 / 2])
    assert answer["recall"] == [0.25, 0.5, 0.5, 0.5, 0.5, 0.75, 0.75, 1]
    assert answer["average precision, every step"] == pytest.approx(0.75)
    assert answer["11 points"] == pytest.approx(8.5 / 11)
    assert answer["101 points"] == pytest.approx(76 / 101)
