"""A text as windows in which each token is to be named from those before it: what GPT learns."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from qkv.train import Objective

LENGTH = 32
"""Tokens of a window."""
SPREAD = 7919
"""Places between one window and the next, so that few of them overlap; it is prime."""


@dataclass(frozen=True)
class NextToken:
    """Windows of one text, each a function of its number."""

    text: Tensor
    """Ids, one after the other."""

    def windows(self, numbers: list[int]) -> tuple[Tensor, Tensor]:
        """(tokens, the token after each of them)."""
        starts = torch.tensor(numbers) * SPREAD % (len(self.text) - LENGTH)
        rows = self.text[starts[:, None] + torch.arange(LENGTH + 1)]
        return rows[:, :-1], rows[:, 1:]

    def task(self, model: nn.Module, batch_size: int = 32) -> Objective:
        """Fit the next tokens; nothing is held out here."""
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
        """The share of tokens that the model names rightly."""
        given, following = self.windows(list(range(windows)))
        return (model(given).argmax(-1) == following).double().mean().item()

    def constant(self, windows: int = 256) -> float:
        """The same for always saying the commonest of them."""
        following = self.windows(list(range(windows)))[1]
        return following.flatten().bincount().max().item() / following.numel()
