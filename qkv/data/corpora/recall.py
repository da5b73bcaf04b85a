"""Multi-query associative recall: read pairs of key and value, then give the value of each key that comes again.

    tokens   2 8 4 7 0 0 4 0 0 0 0 0 2 0 0 0
    labels   . . . . . . 7 . . . . . 8 . . .        (. is -100, the label that torch's cross entropy ignores)

Paper: https://arxiv.org/abs/2312.04927. The published sweeps have a vocabulary of 8192: a small one makes it easy.
"""

from dataclasses import dataclass
from math import isfinite

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from qkv.random import derive_seed, uniforms
from qkv.registry import unknown_name_error

IGNORED = -100
SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class Recall:
    """The task: the first 2 `pairs` tokens are the pairs, and each key is asked once in the rest.

    The rest is seen as slots of two tokens; key i comes first in the i-th slot drawn, without replacement, by

        P(slot) ~ slot^(power - 1),    slot = 1, 2, ...

    so with power near 0 most questions come soon, and with 1 anywhere. Keys are the ids 1 to vocabulary/2 - 1, values
    those from there on, 0 is blank. With random fillers each blank is any id, of keys and values too.
    """

    vocabulary: int
    length: int
    pairs: int
    power: float = 0.01
    random_fillers: bool = True

    def __post_init__(self) -> None:
        if self.pairs < 1:
            raise ValueError(f"pairs must be at least 1, got {self.pairs}")
        if self.length % 2 or self.length < 4 * self.pairs:
            raise ValueError(f"length must be even and at least 4 pairs = {4 * self.pairs}, got {self.length}")
        if self.vocabulary <= self.length:
            raise ValueError(f"vocabulary must be larger than length {self.length}, got {self.vocabulary}")
        if not isfinite(self.power):
            raise ValueError(f"power must be finite, got {self.power}")

    def examples(
        self, seed: int, split: str, index: int, count: int
    ) -> tuple[Int64[Tensor, "batch time"], Int64[Tensor, "batch time"]]:
        """Tokens and labels of the examples number `index` to `index + count - 1` of a split.

        Each example depends on its own number alone: however a stream is cut into batches, it is the same stream.
        """
        if split not in SPLITS:
            raise unknown_name_error("split", split, SPLITS)
        if index < 0 or count < 0:
            raise ValueError(f"index and count must be at least 0, got {index} and {count}")

        def draw(what: str, width: int) -> Float64[Tensor, "batch width"]:
            key = derive_seed(seed, f"recall {split} {what}", self.vocabulary, self.length, self.pairs)
            numbers = torch.arange(index * width, (index + count) * width)
            return uniforms(key, numbers).view(count, width)

        half = self.vocabulary // 2
        keys = 1 + _distinct(draw("keys", self.pairs), half - 1)
        values = half + _distinct(draw("values", self.pairs), self.vocabulary - half)
        asked = 2 * self.pairs + 2 * self._slots(draw("slots", self.length // 2 - self.pairs))
        tokens = torch.zeros(count, self.length, dtype=torch.int64)
        if self.random_fillers:
            tokens = (draw("fillers", self.length) * self.vocabulary).long()
        tokens[:, 0 : 2 * self.pairs : 2] = keys
        tokens[:, 1 : 2 * self.pairs : 2] = values
        tokens.scatter_(1, asked, keys)
        labels = torch.full_like(tokens, IGNORED).scatter_(1, asked, values)
        return tokens, labels

    def _slots(self, random: Float64[Tensor, "batch slots"]) -> Int64[Tensor, "batch pairs"]:
        """Slots from 0, drawn one after the other without replacement.

        The first events of independent clocks, one for each slot, that tick at the rates of their probabilities, come
        in just that order.
        """
        rates = torch.arange(1, random.shape[1] + 1, dtype=torch.float64) ** (self.power - 1)
        return (-torch.log1p(-random) / rates).topk(self.pairs, largest=False).indices


def _distinct(random: Float64[Tensor, "batch draws"], items: int) -> Int64[Tensor, "batch draws"]:
    """Different numbers below `items`, every sequence of them equally likely: the first cards of a shuffled deck."""
    count, draws = random.shape
    deck = torch.arange(items).repeat(count, 1)
    drawn = torch.empty(count, draws, dtype=torch.int64)
    for place in range(draws):
        chosen = place + (random[:, place, None] * (items - place)).long()
        drawn[:, place, None] = deck.gather(1, chosen)
        deck.scatter_(1, chosen, deck[:, place, None].clone())  # the card on top takes the place of the drawn one
    return drawn
