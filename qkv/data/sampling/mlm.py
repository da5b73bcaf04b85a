"""Hiding tokens for a model to fill in, as BERT's pretraining does.

Of the ordinary tokens of a row a share (15 %) is chosen, at least one; each of them becomes [MASK] (80 %), any other
token (10 %) or stays as it is (10 %), and all are to be named. Were there only masks, a model would learn nothing about
rows without them. Which ones is a function of a key and a number that each row has, so a row that comes again with
another number is hidden otherwise, and nothing has to be remembered to go on.
Paper: https://arxiv.org/abs/1810.04805, section 3.1.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from qkv.data.tokenizer import Tokenizer
from qkv.random import uniforms

MASKED, REPLACED = 0.8, 0.1
FARTHEST = 2**20
"""Tokens of the longest row: every row draws from a stretch of its own of the random numbers."""


@dataclass(frozen=True)
class Hiding:
    """Which tokens may be hidden, and by what."""

    mask: int
    ordinary: Bool[Tensor, " tokens"]
    """By id: whether a token is a text, not a sign such as [SEP]."""
    begins: Bool[Tensor, " tokens"] | None = None
    """By id: whether it begins a word; given, whole words are hidden, which is harder to undo."""
    share: float = 0.15

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise ValueError(f"share must be more than 0 and below 1, got {self.share}")

    @classmethod
    def of(cls, tokenizer: Tokenizer, share: float = 0.15, *, whole_words: bool = False) -> "Hiding":
        """For the tokens of this tokenizer."""
        if tokenizer.mask is None:
            raise ValueError("the tokenizer has no [MASK]; take wordpiece, or one of a BERT")
        ordinary = torch.ones(len(tokenizer), dtype=torch.bool)
        ordinary[list(tokenizer.special.values())] = False
        names = [tokenizer.token(number) for number in range(len(tokenizer))] if whole_words else []
        begins = torch.tensor([not name.startswith("##") for name in names]) if whole_words else None
        return cls(tokenizer.mask, ordinary, begins, share)

    def hide(
        self, rows: Int64[Tensor, "batch time"], key: int, numbers: Int64[Tensor, " batch"]
    ) -> tuple[Int64[Tensor, "batch time"], Bool[Tensor, "batch time"]]:
        """The rows as a model sees them, and where it is asked; a row without ordinary tokens is asked nothing."""
        time = rows.shape[1]
        draws = (numbers[:, None, None] * 3 + torch.arange(3)[:, None]) * FARTHEST + torch.arange(time)
        chance, fate, other = uniforms(key, draws).unbind(1)
        asked = self._choose(rows, chance)
        ids = self.ordinary.nonzero()[:, 0]
        strange = ids[(other * len(ids)).long()]
        seen = torch.where(asked & (fate < MASKED), self.mask, rows)
        return torch.where(asked & (fate >= MASKED) & (fate < MASKED + REPLACED), strange, seen), asked

    def _choose(self, rows: Tensor, chance: Tensor) -> Tensor:
        """Where the chance is among the least of its row; a word stands or falls by its first piece."""
        may = self.ordinary[rows]
        if self.begins is not None:
            places = torch.arange(rows.shape[1]).expand_as(rows)
            first = places.masked_fill(~(self.begins[rows] | ~may), 0).cummax(1).values
            chance = chance.gather(1, first)
        chance = chance.masked_fill(~may, 2.0)  # more than any
        wanted = (may.sum(1) * self.share).round().clamp(min=1).long()
        bound = chance.sort(1).values.gather(1, wanted[:, None] - 1)
        return may & (chance <= bound)
