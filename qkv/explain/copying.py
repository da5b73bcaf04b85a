"""The copying problem: attention copies a token only if tokens are far apart, and never exactly.

    x1 = d + b,  x2 = a,  x3 = c + d        a, b, c, d orthogonal, each of norm beta;  q = k = v = x, scale 1

Tokens 1 and 3 share d, so <x1, x3> is beta^2, not 0: the weight of token 3 for token 1 vanishes only as beta grows.
"""

from dataclasses import dataclass

import torch

from qkv.attention import Attention

TOKENS = ((0, 1, 0, 1), (1, 0, 0, 0), (0, 0, 1, 1))
"""Coefficients of the tokens in terms of a, b, c and d."""


@dataclass(frozen=True)
class CopyingResult:
    """Results for one beta, as plain floats."""

    norms: list[float]
    scores: list[list[float]]
    weights: list[list[float]]
    errors: list[float]
    """||y - x|| / ||x|| of each token."""


def copying(beta: float, attention: Attention) -> CopyingResult:
    """Attend over the three tokens with this mechanism; the problem is stated for scale 1."""
    x = beta * torch.tensor(TOKENS, dtype=torch.float64)[None, None]
    weights = attention.weights(x, x)
    errors = (weights @ x - x).norm(dim=-1) / x.norm(dim=-1)
    return CopyingResult(
        norms=x.norm(dim=-1)[0, 0].tolist(),
        scores=(x @ x.mT)[0, 0].tolist(),
        weights=weights[0, 0].tolist(),
        errors=errors[0, 0].tolist(),
    )
