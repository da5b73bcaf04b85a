"""XOR: the smallest classification problem that no linear model solves."""

import torch

from qkv.data.dataset_registry import register_dataset
from qkv.data.files.points import Points
from qkv.data.labeled import LabeledExamples


@register_dataset("xor")
def xor() -> Points:
    """Return the four corners of the unit square; the class is 1 where the coordinates differ."""
    corners = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    return Points(LabeledExamples(corners, torch.tensor([0, 1, 1, 0])), ("0", "1"))
