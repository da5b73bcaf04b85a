"""Several models that answer as one: the mean of their probabilities.

Ensemble([first, second, third])      predicts and decodes as any one of them does
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from qkv.shapes import Mask, Rows


@dataclass(frozen=True)
class EnsembleConfig:
    """What is asked of any model's configuration."""

    max_length: int
    """The longest sequence: that of the member that takes least."""


@dataclass(frozen=True)
class EnsembleState:
    """The states of the members."""

    members: tuple[Any, ...]

    def select(self, rows: Rows) -> "EnsembleState":
        """The state of these sequences."""
        return EnsembleState(tuple(state.select(rows) for state in self.members))


class Ensemble(nn.Module):
    """log of the mean of p_m(token) over members m, which have the same vocabulary.

    The members may be of any families that are called alike.
    """

    def __init__(self, members: Sequence[nn.Module]):
        super().__init__()
        if not members:
            raise ValueError("members must be at least one model, got none")
        self.members = nn.ModuleList(members)
        self.config = EnsembleConfig(min(self._of(member).config.max_length for member in members))

    def forward(self, *inputs: Any, **options: Any) -> Tensor:
        """Log-probabilities, which are logits too; `options` are those that every member takes."""
        return _mean([member(*inputs, **options) for member in self.members])

    def start(self, inputs: Tensor, mask: Mask | None) -> EnsembleState:
        """The states before the first token."""
        return EnsembleState(tuple(self._of(member).start(inputs, mask) for member in self.members))

    def step(self, tokens: Rows, state: EnsembleState) -> tuple[Tensor, EnsembleState]:
        """Log-probabilities (rows, tokens) after one more token each."""
        pairs = zip(self.members, state.members, strict=True)
        stepped = [self._of(member).step(tokens, own) for member, own in pairs]
        return _mean([logits for logits, _ in stepped]), EnsembleState(tuple(after for _, after in stepped))

    @staticmethod
    def _of(member: nn.Module) -> Any:
        """A module forgets what it holds."""
        return member


def _mean(logits: list[Tensor]) -> Tensor:
    widths = {one.shape[-1] for one in logits}
    if len(widths) > 1:
        raise ValueError(f"members must have the same vocabulary, got logits of {sorted(widths)} tokens")
    together = torch.stack([_wide(one).log_softmax(-1) for one in logits])
    return together.logsumexp(0) - math.log(len(logits))


def _wide(logits: Tensor) -> Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()
