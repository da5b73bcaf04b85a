"""Windows of a text whose tokens are predicted from those before: the objective of GPT."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from qkv.train import Objective

WINDOW_LENGTH = 32
"""Tokens per window."""
STRIDE = 7919
"""Tokens between the starts of windows, a prime, so that few overlap."""


@dataclass(frozen=True)
class NextTokenWindows:
    """Windows of one text, each a function of its index."""

    text: Tensor
    """Token ids."""

    def windows(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        """Return (tokens, the token after each of them)."""
        starts = torch.tensor(indices) * STRIDE % (len(self.text) - WINDOW_LENGTH)
        rows = self.text[starts[:, None] + torch.arange(WINDOW_LENGTH + 1)]
        return rows[:, :-1], rows[:, 1:]

    def objective(self, model: nn.Module, batch_size: int = 32) -> Objective:
        """Return the objective of predicting next tokens, without validation."""
        return Objective(
            model=model,
            order=lambda step: list(range(batch_size * step, batch_size * (step + 1))),
            collate=self.windows,
            count=lambda batch: batch[1].numel(),
            loss=lambda model, batch: cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten(), reduction="sum"),
            validate=lambda model, may_stop: 0.0,
        )

    @torch.no_grad()
    def accuracy(self, model: nn.Module, windows: int = 256) -> float:
        """Return the fraction of tokens that the model predicts correctly."""
        given, following = self.windows(list(range(windows)))
        return (model(given).argmax(-1) == following).double().mean().item()

    def constant_accuracy(self, windows: int = 256) -> float:
        """Return the accuracy of always predicting the most frequent token."""
        following = self.windows(list(range(windows)))[1]
        return following.flatten().bincount().max().item() / following.numel()
