"""Squares of integers, as an example of a data set."""

import torch
from torch import Tensor

from qkv.data.dataset_registry import register_dataset


@register_dataset("squares")
def squares(count: int = 5) -> Tensor:
    """Return the first squares."""
    return torch.arange(count) ** 2
