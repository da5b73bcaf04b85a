"""The most probable tokens at one place of a text: what a model says there."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

BEST = 5
"""Tokens that are listed."""


@dataclass(frozen=True)
class Candidates:
    """Tokens that a model puts at one place, best first."""

    place: str
    """Such as "next token"."""
    tokens: list[str]
    probabilities: list[float]
    """One per token; empty if the token is an answer without its probability."""


def top_candidates(place: str, logits: Tensor, name: Callable[[int], str]) -> Candidates:
    """Return the most probable tokens of one row of logits."""
    found = logits.float().softmax(-1).topk(min(BEST, logits.shape[-1]))
    return Candidates(place, [name(index) for index in found.indices.tolist()], found.values.tolist())


def next_candidates(model: nn.Module, ids: Sequence[int], name: Callable[[int], str]) -> Candidates:
    """Return the most probable next tokens of a decoder after these ids."""
    device = next(model.parameters()).device
    with torch.inference_mode():
        logits = model(torch.tensor([list(ids)], device=device))[0, -1]
    return top_candidates("next token", logits, name)
