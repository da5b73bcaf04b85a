"""Classification metrics: accuracy and confusion matrix."""

from collections.abc import Sequence

import torch
from torch import Tensor

Labels = Tensor | Sequence[int]


def accuracy(predicted: Labels, labels: Labels) -> float:
    """Return the fraction of correct predictions."""
    given, expected = _check_pair(predicted, labels)
    return float((given == expected).double().mean())


def confusion_matrix(predicted: Labels, labels: Labels, classes: int | None = None) -> list[list[int]]:
    """Return `matrix[i][j]`, how many examples of class i were predicted as j; the diagonal is correct."""
    given, expected = _check_pair(predicted, labels)
    largest = int(torch.maximum(given.max(), expected.max()))
    smallest = int(torch.minimum(given.min(), expected.min()))
    classes = largest + 1 if classes is None else classes
    if largest >= classes or smallest < 0:
        raise ValueError(
            f"labels must be 0 to classes - 1 = {classes - 1}, got {smallest if smallest < 0 else largest}"
        )
    return torch.bincount(expected * classes + given, minlength=classes * classes).view(classes, classes).tolist()


def _to_integers(name: str, values: Labels) -> Tensor:
    """Return classes as int64; raise on fractions, since a probability would be truncated to class 0."""
    given = torch.as_tensor(values).cpu()
    fractions = given[given != given.round()] if given.is_floating_point() else given[:0]
    if fractions.numel():
        raise ValueError(f"{name} must be class indices, got {fractions.flatten()[0].item():g}")
    return given.to(torch.int64)


def _check_pair(predicted: Labels, labels: Labels) -> tuple[Tensor, Tensor]:
    given, expected = _to_integers("predicted", predicted), _to_integers("labels", labels)
    if given.dim() != 1 or given.shape != expected.shape or not len(given):
        raise ValueError(
            f"predicted and labels must have the same length, at least 1, "
            f"got shapes {tuple(given.shape)} and {tuple(expected.shape)}"
        )
    return given, expected
