"""When does attention copy a token? Only when tokens are far apart, and never quite.

    x1 = d + b,  x2 = a,  x3 = c + d        a, b, c, d orthogonal, each of norm beta;  q = k = v = x, scale 1

Tokens 1 and 3 share d, so <x1, x3> is beta^2, not 0: what token 1 takes from token 3 vanishes only as beta grows.
"""

from dataclasses import dataclass

import torch

from qkv.attention import Attention

ROWS = ((0, 1, 0, 1), (1, 0, 0, 0), (0, 0, 1, 1))
"""The tokens in terms of a, b, c and d."""


@dataclass(frozen=True)
class Copying:
    """What came out for one beta, as plain numbers."""

    norms: list[float]
    scores: list[list[float]]
    weights: list[list[float]]
    errors: list[float]
    """||y - x|| / ||x|| of each token."""


def copying(beta: float, attention: Attention) -> Copying:
    """Attend over the three tokens with this mechanism; give it scale 1 for the problem as it stands."""
    x = beta * torch.tensor(ROWS, dtype=torch.float64)[None, None]
    weights = attention.weights(x, x)
    errors = (weights @ x - x).norm(dim=-1) / x.norm(dim=-1)
    return Copying(
        x.norm(dim=-1)[0, 0].tolist(), (x @ x.mT)[0, 0].tolist(), weights[0, 0].tolist(), errors[0, 0].tolist()
    )
