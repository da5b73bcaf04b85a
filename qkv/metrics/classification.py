"""How good labels are: accuracy, and which class is taken for which."""

from collections.abc import Sequence

import torch
from torch import Tensor

Labels = Tensor | Sequence[int]


def accuracy(predicted: Labels, labels: Labels) -> float:
    """The share that is right."""
    given, right = _pair(predicted, labels)
    return float((given == right).double().mean())


def confusion_matrix(predicted: Labels, labels: Labels, classes: int | None = None) -> list[list[int]]:
    """matrix[i][j]: how many of class i were taken for j; right ones are on the diagonal."""
    given, right = _pair(predicted, labels)
    largest = int(torch.maximum(given.max(), right.max())) + 1
    classes = largest if classes is None else classes
    if largest > classes or min(int(given.min()), int(right.min())) < 0:
        raise ValueError(f"labels must be 0 to classes - 1 = {classes - 1}, got {largest - 1} or one below 0")
    return torch.bincount(right * classes + given, minlength=classes * classes).view(classes, classes).tolist()


def _whole(name: str, numbers: Labels) -> Tensor:
    """Classes as whole numbers; a probability is none, and would be cut down to class 0."""
    given = torch.as_tensor(numbers).cpu()
    odd = given[given != given.round()] if given.is_floating_point() else given[:0]
    if odd.numel():
        raise ValueError(f"{name} must be whole numbers, the classes, got {odd.flatten()[0].item():g}")
    return given.to(torch.int64)


def _pair(predicted: Labels, labels: Labels) -> tuple[Tensor, Tensor]:
    given, right = _whole("predicted", predicted), _whole("labels", labels)
    if given.dim() != 1 or given.shape != right.shape or not len(given):
        raise ValueError(
            f"predicted and labels must be as many, and at least one, "
            f"got shapes {tuple(given.shape)} and {tuple(right.shape)}"
        )
    return given, right
