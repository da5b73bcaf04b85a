"""Sampling: the next token is drawn at random.

    p(token) ~ exp(log_probability / temperature)

among the `top_k` most probable tokens, and among the smallest set of those with total probability `top_p`. Each draw is
a pure function of (seed, row, position): it depends neither on the rest of the batch nor on the global random state.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.decode.hypothesis import Hypothesis
from qkv.decode.limits import SearchLimits
from qkv.decode.protocol import Decodable, Inputs, Logits, S
from qkv.decode.single_path import search_single_path
from qkv.decode.stepper import best_tokens
from qkv.random import derive_seed, uniforms
from qkv.shapes import Mask


def sample(
    model: Decodable[S],
    inputs: Inputs,
    mask: Mask | None,
    limits: SearchLimits,
    *,
    seed: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> list[Hypothesis]:
    """Return one sampled hypothesis per input.

    Its log_probability is the model's, independent of the temperature, so hypotheses can be compared.
    """
    choose = sampler(seed=seed, temperature=temperature, top_k=top_k, top_p=top_p)
    return search_single_path(model, inputs, mask, limits, choose)


@dataclass(frozen=True)
class Sampler:
    """A `TokenChooser` that draws each token from the model's distribution, sharpened and cut off."""

    seed: int
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    row_ids: Sequence[int] | None = None

    def __post_init__(self) -> None:
        check_sampling(self.temperature, self.top_k, self.top_p)

    def __call__(self, log_probabilities: Tensor, sources: list[int], position: int) -> Tensor:
        """Return a token for each row."""
        shares = self.uniforms("sample", sources, position, log_probabilities.device)
        return draw_tokens(self.weights(log_probabilities), shares)

    def uniforms(self, purpose: str, sources: list[int], position: int, device: torch.device) -> Tensor:
        """Return a number in [0, 1) for each row, a function of (seed, purpose, row, position)."""
        ids = sources if self.row_ids is None else [self.row_ids[source] for source in sources]
        rows = torch.tensor(ids, dtype=torch.int64, device=device)
        return uniforms(derive_seed(self.seed, purpose, position), rows)

    def weights(self, log_probabilities: Logits) -> Tensor:
        """Return unnormalized probabilities in float64; 0 for excluded tokens."""
        logits = log_probabilities.double()
        # subtract the maximum first, or a low temperature could send every token to -inf
        weights = ((logits - logits.amax(-1, keepdim=True)) / self.temperature).exp()
        if self.top_k is not None:
            keep = best_tokens(weights, self.top_k)[1]
            weights = torch.zeros_like(weights).scatter(-1, keep, weights.gather(-1, keep))
        if self.top_p is not None:
            ordered, tokens = weights.sort(dim=-1, descending=True, stable=True)
            before = ordered.cumsum(-1) - ordered
            ordered = ordered.masked_fill(before >= self.top_p * ordered.sum(-1, keepdim=True), 0)
            weights = torch.zeros_like(weights).scatter(-1, tokens, ordered)
        return weights


def sampler(
    *,
    seed: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    row_ids: Sequence[int] | None = None,
) -> Sampler:
    """Return a function that samples a token for each row.

    `row_ids` identify the inputs (default: 0, 1, ...). With several batches, pass distinct ids, or the draws repeat.
    """
    return Sampler(seed, temperature, top_k, top_p, row_ids)


def draw_tokens(weights: Tensor, shares: Tensor) -> Tensor:
    """Return the token of each row at this share, in [0, 1), of its unnormalized probabilities."""
    cumulative = weights.cumsum(-1)
    # below the total even after rounding, since a uniform is at most 1 - 2^-53
    return torch.searchsorted(cumulative, shares[:, None] * cumulative[:, -1:], right=True)[:, 0]


def check_sampling(temperature: float, top_k: int | None, top_p: float | None) -> None:
    """Raise ValueError for a value that is out of range."""
    if not 0 < temperature < math.inf:
        hint = "; use greedy for the limit 0" if temperature <= 0 else ""
        raise ValueError(f"temperature must be finite and above 0, got {temperature}{hint}")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k must be at least 1, or None for all tokens, got {top_k}")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p must be above 0 and at most 1, or None for all tokens, got {top_p}")
