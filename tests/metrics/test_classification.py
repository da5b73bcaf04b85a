import pytest
import torch

from qkv.metrics import accuracy, confusion_matrix


def test_by_hand():
    predicted, labels = [0, 2, 1, 1, 0, 2, 2], [0, 1, 1, 1, 2, 2, 0]
    assert accuracy(predicted, labels) == pytest.approx(4 / 7)
    assert confusion_matrix(predicted, labels) == [[1, 0, 1], [0, 2, 1], [1, 0, 1]]
    assert confusion_matrix(predicted, labels, classes=4)[3] == [0, 0, 0, 0]


def test_counts_by_a_plain_loop():
    predicted, labels = torch.randint(7, (500,)), torch.randint(7, (500,))
    expected = [[0] * 7 for _ in range(7)]
    for guess, right in zip(predicted.tolist(), labels.tolist(), strict=True):
        expected[right][guess] += 1
    assert confusion_matrix(predicted, labels, 7) == expected
    assert accuracy(predicted, labels) == sum(expected[c][c] for c in range(7)) / 500


def test_classes_are_integers():
    assert accuracy([1.0, 0.0], torch.tensor([True, True])) == 0.5
    with pytest.raises(ValueError, match="predicted must be class indices, got 0.9"):
        accuracy([0.9, 0.2], [1, 0])
    with pytest.raises(ValueError, match="labels must be class indices, got nan"):
        accuracy([1, 0], [0.0, float("nan")])


@pytest.mark.parametrize(
    ("predicted", "labels", "message"),
    [
        ([], [], r"at least 1, got shapes \(0,\)"),
        ([0, 1], [0], r"got shapes \(2,\) and \(1,\)"),
        ([0, 5], [0, 1], "labels must be 0 to classes - 1 = 2, got 5"),
        ([0, -1], [0, 1], "labels must be 0 to classes - 1 = 2"),
    ],
)
def test_bad_input(predicted, labels, message):
    with pytest.raises(ValueError, match=message):
        confusion_matrix(predicted, labels, 3)
