"""A draft by a small model that shares the vocabulary of the large one."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from qkv.inference.speculative.draft import Draft, Pick, Proposal


class ModelDraft(Draft):
    """Proposes what a small model predicts, token by token.

    A KV cache is taken back to the tokens that were accepted. Sums cannot be, so that the draft keeps a copy of its
    state after each proposed token.
    """

    def __init__(self, model: nn.Module):
        self.model: Any = model
        self._fed: list[int] = []
        self._state: Any = None
        self._kept: dict[int, Any] = {}  # number of tokens -> the state after them
        self._longest: int | None = getattr(getattr(model, "config", None), "max_length", None)

    def propose(self, ids: Sequence[int], count: int, pick: Pick) -> Proposal:
        """Return the tokens that the model continues `ids` with; fewer where it takes no more tokens."""
        if self._longest is not None:
            count = min(count, self._longest - len(ids) + 1)
        if count < 1:
            return Proposal()
        ids = list(ids)
        self._take_back(ids, count)
        logits = self._feed(ids[len(self._fed) :])
        tokens, weights = [], []
        for number in range(count):
            token, drawn = pick(logits, number)
            tokens.append(token)
            weights.append(drawn)
            if number < count - 1:
                if self._state.rewindable < len(self._fed):
                    self._kept[len(self._fed)] = self._state.fork()
                logits = self._feed([token])
        return Proposal(tokens, weights)

    def _take_back(self, ids: list[int], count: int) -> None:
        """Bring the state to the longest beginning of `ids` that it can be brought to, without the last token."""
        kept = min(len(self._fed), len(ids) - 1)
        lowest = max(kept - count - 1, 0)
        while kept > lowest and self._fed[:kept] != ids[:kept]:
            kept -= 1
        if self._state is None or self._fed[:kept] != ids[:kept]:
            kept = 0
        wrong = len(self._fed) - kept
        if kept and wrong <= self._state.rewindable:
            self._state = self._state.rewind(wrong) if wrong else self._state
        elif kept and wrong:
            kept = max((length for length in self._kept if length <= kept), default=0)
            self._state = self._kept.get(kept)
        if not kept:
            self._state = self.model.start(self._tensor(ids[:-1]), None)
            kept = len(ids) - 1
        self._fed, self._kept = ids[:kept], {}

    def _feed(self, tokens: list[int]) -> Tensor:
        """Continue with these tokens; return the logits [vocabulary] after the last."""
        *first, last = tokens
        if first:
            self._state = self.model.prefill(self._tensor(first), self._state)
        logits, self._state = self.model.step(self._tensor([last])[0], self._state)
        self._fed = [*self._fed, *tokens]
        return logits[0]

    def _tensor(self, tokens: list[int]) -> Tensor:
        """Return tokens as one row on the model's device."""
        device = next(self.model.parameters()).device
        return torch.tensor([tokens], dtype=torch.int64, device=device)
