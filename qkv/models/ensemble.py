"""An ensemble: the mean of the probabilities of several models.

Ensemble([first, second, third])      predicts and decodes like a single model
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from qkv.attention.state import RaggedState, check_joinable, join_parts, under_prefix, with_prefix
from qkv.shapes import Mask, Rows


@dataclass(frozen=True)
class EnsembleConfig:
    """Settings of an ensemble that decoding reads."""

    max_length: int
    """Longest sequence that every member accepts."""


@dataclass(frozen=True)
class EnsembleState(RaggedState):
    """The states of the members."""

    members: tuple[Any, ...]

    @property
    def rows(self) -> int:
        """Number of sequences."""
        return int(self.members[0].rows)

    @property
    def length(self) -> int:
        """Number of places, the same in every member."""
        return int(self.members[0].length)

    @property
    def padding(self) -> Rows | None:
        """Padding in front of each row, the same in every member."""
        found: Rows | None = self.members[0].padding
        return found

    @property
    def bytes(self) -> int:
        """Size of the states of all members."""
        return sum(member.bytes for member in self.members)

    def select(self, rows: Rows) -> "EnsembleState":
        """Return the state of these rows."""
        return EnsembleState(tuple(state.select(rows) for state in self.members))

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of every member."""
        named: dict[str, Tensor] = {}
        for number, member in enumerate(self.members):
            named |= with_prefix(f"members.{number}", member.tensors())
        return named

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> "EnsembleState":
        """Return a state of these tensors."""
        members = (x.with_tensors(under_prefix(f"members.{number}", tensors)) for number, x in enumerate(self.members))
        return EnsembleState(tuple(members))

    def join(self, *others: "EnsembleState") -> "EnsembleState":
        """Return one state of all rows, member by member."""
        states = (self, *others)
        check_joinable(states)
        return EnsembleState(join_parts("members", [state.members for state in states]))

    def compact(self) -> "EnsembleState":
        """Return the state without what no row needs, member by member."""
        return EnsembleState(tuple(member.compact() for member in self.members))

    def _without_places(self, count: int, padding: Rows | None) -> "EnsembleState":
        return EnsembleState(tuple(member.drop_places(count) for member in self.members))


class Ensemble(nn.Module):
    """log of the mean of p_m(token) over members m, which share a vocabulary.

    The members may be of different families with the same call signature.
    """

    def __init__(self, members: Sequence[nn.Module]):
        super().__init__()
        if not members:
            raise ValueError("members must be at least one model, got none")
        self.members = nn.ModuleList(members)
        self.config = EnsembleConfig(min(self._untyped(member).config.max_length for member in members))

    def forward(self, *inputs: Any, **options: Any) -> Tensor:
        """Return log-probabilities, which are valid logits; every member gets the same `options`."""
        return _mean([member(*inputs, **options) for member in self.members])

    def start(self, inputs: Tensor, mask: Mask | None) -> EnsembleState:
        """Return the state before the first token."""
        return EnsembleState(tuple(self._untyped(member).start(inputs, mask) for member in self.members))

    def step(self, tokens: Rows, state: EnsembleState) -> tuple[Tensor, EnsembleState]:
        """Return log-probabilities (rows, tokens) after one more token per row, and the new state."""
        pairs = zip(self.members, state.members, strict=True)
        stepped = [self._untyped(member).step(tokens, own) for member, own in pairs]
        return _mean([logits for logits, _ in stepped]), EnsembleState(tuple(after for _, after in stepped))

    @staticmethod
    def _untyped(member: nn.Module) -> Any:
        """Return a member of a ModuleList as Any: its type is not known there."""
        return member


def _mean(logits: list[Tensor]) -> Tensor:
    widths = {one.shape[-1] for one in logits}
    if len(widths) > 1:
        raise ValueError(f"members must have the same vocabulary, got logits of {sorted(widths)} tokens")
    log_probabilities = torch.stack([_upcast(one).log_softmax(-1) for one in logits])
    return log_probabilities.logsumexp(0) - math.log(len(logits))


def _upcast(logits: Tensor) -> Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()
