"""Greedy decoding: always the most probable next token.

It never backtracks: a probable first token can lead to improbable endings only, which `beam` avoids.
"""

from torch import Tensor

from qkv.decode.hypothesis import Hypothesis
from qkv.decode.limits import SearchLimits
from qkv.decode.protocol import Decodable, Inputs, S
from qkv.decode.single_path import search_single_path
from qkv.shapes import Mask


def greedy(model: Decodable[S], inputs: Inputs, mask: Mask | None, limits: SearchLimits) -> list[Hypothesis]:
    """Return one hypothesis per input, each token the most probable one; ties go to the lowest id.

    The result equals `beam` with one beam bit by bit.
    """
    return search_single_path(model, inputs, mask, limits, argmax_token)


def argmax_token(log_probabilities: Tensor, _sources: list[int], _position: int) -> Tensor:
    """Return the most probable token of each row; argmax returns the first of equal values."""
    return log_probabilities.argmax(-1)
