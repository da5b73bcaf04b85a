"""Token masking for masked language modeling, as in BERT's pretraining.

A fraction (15 %) of the ordinary tokens of a row is selected, at least one. Each selected token becomes [MASK] (80 %),
a random token (10 %) or stays unchanged (10 %), and the model predicts all of them. With masks only, a model would
learn nothing about rows without masks. The selection is a function of a key and a row id, so a row with another id
is masked differently, and resuming needs no state. Paper: https://arxiv.org/abs/1810.04805, section 3.1.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from qkv.data.tokenizer import Tokenizer
from qkv.random import uniforms

MASK_FRACTION, RANDOM_FRACTION = 0.8, 0.1
"""Fractions of the selected tokens that become [MASK], and a random token."""
MAX_ROW_LENGTH = 2**20
"""Tokens of the longest row: every row has its own range of this many random counters."""


@dataclass(frozen=True)
class Masking:
    """Rule that selects tokens to predict and replaces them."""

    mask: int
    """Id of [MASK]."""
    maskable: Bool[Tensor, " tokens"]
    """By id: whether a token may be masked; False for special tokens such as [SEP]."""
    word_starts: Bool[Tensor, " tokens"] | None = None
    """By id: whether a token starts a word; if given, whole words are masked, which is harder to predict."""
    fraction: float = 0.15
    """Fraction of the maskable tokens of a row that is selected."""

    def __post_init__(self) -> None:
        if not 0 < self.fraction < 1:
            raise ValueError(f"fraction must be above 0 and below 1, got {self.fraction}")

    @classmethod
    def for_tokenizer(cls, tokenizer: Tokenizer, fraction: float = 0.15, *, whole_words: bool = False) -> "Masking":
        """Return the masking for the tokens of a tokenizer."""
        if tokenizer.mask is None:
            raise ValueError("the tokenizer has no [MASK]; use wordpiece or the tokenizer of a BERT model")
        maskable = torch.ones(len(tokenizer), dtype=torch.bool)
        maskable[list(tokenizer.special.values())] = False
        if not whole_words:
            return cls(tokenizer.mask, maskable, None, fraction)
        names = [tokenizer.id_to_token(number) for number in range(len(tokenizer))]
        word_starts = torch.tensor([not name.startswith("##") for name in names])
        return cls(tokenizer.mask, maskable, word_starts, fraction)

    def apply(
        self, rows: Int64[Tensor, "batch time"], key: int, row_ids: Int64[Tensor, " batch"]
    ) -> tuple[Int64[Tensor, "batch time"], Bool[Tensor, "batch time"]]:
        """Return the masked rows, and a mask of the tokens to predict; a row without maskable tokens has none."""
        time = rows.shape[1]
        counters = (row_ids[:, None, None] * 3 + torch.arange(3)[:, None]) * MAX_ROW_LENGTH + torch.arange(time)
        priority, action, choice = uniforms(key, counters).unbind(1)
        selected = self._select(rows, priority)
        ids = self.maskable.nonzero()[:, 0]
        random_tokens = ids[(choice * len(ids)).long()]
        becomes_mask = selected & (action < MASK_FRACTION)
        becomes_random = selected & (action >= MASK_FRACTION) & (action < MASK_FRACTION + RANDOM_FRACTION)
        masked = torch.where(becomes_mask, self.mask, rows)
        return torch.where(becomes_random, random_tokens, masked), selected

    def _select(self, rows: Tensor, priority: Tensor) -> Tensor:
        """Select the tokens of lowest priority in each row; all pieces of a word share that of its first piece."""
        may = self.maskable[rows]
        if self.word_starts is not None:
            positions = torch.arange(rows.shape[1]).expand_as(rows)
            first_piece = positions.masked_fill(~(self.word_starts[rows] | ~may), 0).cummax(1).values
            priority = priority.gather(1, first_piece)
        priority = priority.masked_fill(~may, 2.0)  # above every random value
        count = (may.sum(1) * self.fraction).round().clamp(min=1).long()
        threshold = priority.sort(1).values.gather(1, count[:, None] - 1)
        return may & (priority <= threshold)
