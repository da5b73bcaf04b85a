"""Greedy decoding: always the most probable next token.

It never looks back: a good first token can lead where every ending is poor, which `beam` repairs.
"""

from torch import Tensor

from qkv.decode.hypothesis import Hypothesis
from qkv.decode.limits import Limits
from qkv.decode.protocol import Decodable, Inputs, S
from qkv.decode.single_path import follow
from qkv.shapes import Mask


def greedy(model: Decodable[S], inputs: Inputs, mask: Mask | None, limits: Limits) -> list[Hypothesis]:
    """One hypothesis per input, each token the most probable one; of equals, the lowest id.

    Equals `beam` with one beam exactly, to the last bit.
    """
    return follow(model, inputs, mask, limits, likeliest)


def likeliest(log_probabilities: Tensor, _sources: list[int], _position: int) -> Tensor:
    """The most probable token of each row; argmax gives the first of equals."""
    return log_probabilities.argmax(-1)
