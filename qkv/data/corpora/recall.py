"""Multi-query associative recall: read key-value pairs, then predict the value when a key comes again.

    tokens   2 8 4 7 0 0 4 0 0 0 0 0 2 0 0 0
    labels   . . . . . . 7 . . . . . 8 . . .        (. is -100, the label that torch's cross entropy ignores)

Paper: https://arxiv.org/abs/2312.04927. Published sweeps use a vocabulary of 8192; a small one makes the task easy.
"""

from dataclasses import dataclass
from math import isfinite

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from qkv.data.dataset_registry import register_dataset
from qkv.errors import unknown_name_error
from qkv.random import derive_seed, uniforms

IGNORE_INDEX = -100
"""Label that `torch.nn.functional.cross_entropy` ignores by default."""
SPLITS = ("train", "valid", "test")


@register_dataset("recall")
@dataclass(frozen=True)
class Recall:
    """Associative recall: the first 2 `pairs` tokens are key-value pairs, and each key is queried once in the rest.

    The rest is divided into slots of two tokens. Key i starts the i-th slot, which is drawn without replacement from

        P(slot) ~ slot^(power - 1),    slot = 1, 2, ...

    so with power near 0 most queries come early, and with 1 they are uniform. Keys are the ids 1 to vocabulary/2 - 1,
    values the ids vocabulary/2 and above, 0 is the filler. With `random_fillers` each filler is a random id instead,
    which may be a key or a value.
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
        """Return tokens and labels of the examples `index` to `index + count - 1` of a split.

        Each example depends on its index alone, so the stream is the same for every batch size.
        """
        if split not in SPLITS:
            raise unknown_name_error("split", split, SPLITS)
        if index < 0 or count < 0:
            raise ValueError(f"index and count must be at least 0, got {index} and {count}")

        def draw(what: str, width: int) -> Float64[Tensor, "batch width"]:
            key = derive_seed(seed, f"recall {split} {what}", self.vocabulary, self.length, self.pairs)
            counters = torch.arange(index * width, (index + count) * width)
            return uniforms(key, counters).view(count, width)

        half = self.vocabulary // 2
        keys = 1 + draw_distinct(draw("keys", self.pairs), half - 1)
        values = half + draw_distinct(draw("values", self.pairs), self.vocabulary - half)
        queries = 2 * self.pairs + 2 * self._draw_slots(draw("slots", self.length // 2 - self.pairs))
        tokens = torch.zeros(count, self.length, dtype=torch.int64)
        if self.random_fillers:
            tokens = (draw("fillers", self.length) * self.vocabulary).long()
        tokens[:, 0 : 2 * self.pairs : 2] = keys
        tokens[:, 1 : 2 * self.pairs : 2] = values
        tokens.scatter_(1, queries, keys)
        labels = torch.full_like(tokens, IGNORE_INDEX).scatter_(1, queries, values)
        return tokens, labels

    def _draw_slots(self, random: Float64[Tensor, "batch slots"]) -> Int64[Tensor, "batch pairs"]:
        """Draw slots from 0 without replacement.

        Independent exponential clocks, one per slot with its probability as rate, ring in exactly this order.
        """
        rates = torch.arange(1, random.shape[1] + 1, dtype=torch.float64) ** (self.power - 1)
        return (-torch.log1p(-random) / rates).topk(self.pairs, largest=False).indices


def draw_distinct(random: Float64[Tensor, "batch draws"], items: int) -> Int64[Tensor, "batch draws"]:
    """Draw distinct integers below `items` uniformly: the first cards of a Fisher-Yates shuffle."""
    count, draws = random.shape
    deck = torch.arange(items).repeat(count, 1)
    drawn = torch.empty(count, draws, dtype=torch.int64)
    for top in range(draws):
        chosen = top + (random[:, top, None] * (items - top)).long()
        drawn[:, top, None] = deck.gather(1, chosen)
        deck.scatter_(1, chosen, deck[:, top, None].clone())  # swap the top card with the drawn one
    return drawn
