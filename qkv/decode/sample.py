"""Sampling: the next token is drawn, not chosen.

    p(token) ~ exp(log_probability / temperature),    of the `top_k` most probable tokens,
    and of those of the fewest that together have probability `top_p`

Each draw is a pure function of (seed, row, position): neither the rest of the batch nor the
global random state has a part in it.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from qkv.decode.hypothesis import Hypothesis
from qkv.decode.limits import Limits
from qkv.decode.protocol import Decodable, Inputs, Logits, S
from qkv.decode.single_path import Choose, follow
from qkv.decode.stepper import best_tokens
from qkv.random import derive_seed, uniforms
from qkv.shapes import Mask


def sample(
    model: Decodable[S],
    inputs: Inputs,
    mask: Mask | None,
    limits: Limits,
    *,
    seed: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> list[Hypothesis]:
    """One drawn hypothesis per input.

    Its log_probability is that of the model, whatever the temperature, so hypotheses can be compared.
    """
    choose = drawing(seed=seed, temperature=temperature, top_k=top_k, top_p=top_p)
    return follow(model, inputs, mask, limits, choose)


def drawing(
    *,
    seed: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    numbers: Sequence[int] | None = None,
) -> Choose:
    """What draws a token for each row.

    `numbers` are those of the inputs, 0, 1, ... without: who draws for one batch after another gives each input its
    own, lest the draws repeat.
    """
    _check(temperature, top_k, top_p)

    def draw(log_probabilities: Tensor, sources: list[int], position: int) -> Tensor:
        reached = _shares(log_probabilities, temperature, top_k, top_p).cumsum(-1)
        own = sources if numbers is None else [numbers[source] for source in sources]
        rows = torch.tensor(own, dtype=torch.int64, device=reached.device)
        # below the whole even after rounding, since a uniform is at most 1 - 2^-53
        aim = uniforms(derive_seed(seed, "sample", position), rows)[:, None] * reached[:, -1:]
        return torch.searchsorted(reached, aim, right=True)[:, 0]

    return draw


def _shares(log_probabilities: Logits, temperature: float, top_k: int | None, top_p: float | None) -> Tensor:
    """What each token is drawn in proportion to, in float64; 0 for those that are left out."""
    heat = log_probabilities.double()
    # the best is moved to 0 first, so that a low temperature cannot send every token to -inf
    shares = ((heat - heat.amax(-1, keepdim=True)) / temperature).exp()
    if top_k is not None:
        keep = best_tokens(shares, top_k)[1]
        shares = torch.zeros_like(shares).scatter(-1, keep, shares.gather(-1, keep))
    if top_p is not None:
        ordered, tokens = shares.sort(dim=-1, descending=True, stable=True)
        before = ordered.cumsum(-1) - ordered
        ordered = ordered.masked_fill(before >= top_p * ordered.sum(-1, keepdim=True), 0)
        shares = torch.zeros_like(shares).scatter(-1, tokens, ordered)
    return shares


def _check(temperature: float, top_k: int | None, top_p: float | None) -> None:
    if not 0 < temperature < math.inf:
        hint = "; at 0 only the most probable token is left: use greedy" if temperature <= 0 else ""
        raise ValueError(f"temperature must be a number above 0, got {temperature}{hint}")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k must be at least 1, or None for all tokens, got {top_k}")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p must be above 0 and at most 1, or None for all tokens, got {top_p}")
