"""Fit rates to timings: nonnegative seconds per unit of each term."""

from collections.abc import Mapping, Sequence
from itertools import combinations

import torch
from torch import Tensor

_ROUNDS = 4
_TOLERANCE = 0.2  # a timing with a larger relative error gets less weight


def fit_rates(amounts: Sequence[Mapping[str, float]], seconds: Sequence[float]) -> dict[str, float]:
    """Return term -> seconds per unit, so that sum(amount * rate) / seconds is near one for every timing.

    Exact nonnegative least squares: every subset of the few terms is tried. It is reweighted so that twice and half
    the time are equally wrong, and so that a timing that fits badly (a disturbed one) counts less.
    """
    terms = list(amounts[0])
    times = torch.tensor(seconds, dtype=torch.float64)
    shares = torch.tensor([[row[term] for term in terms] for row in amounts], dtype=torch.float64) / times[:, None]
    scale = shares.amax(0)  # brings the terms to similar magnitude
    weights = torch.ones_like(times)
    rates = torch.zeros(len(terms), dtype=torch.float64)
    for _ in range(_ROUNDS):
        rates = _nonnegative(shares / scale * weights[:, None], weights)
        ratio = shares / scale @ rates
        misfit = (ratio.sqrt() - ratio.rsqrt()).abs()
        weights = ratio.rsqrt() * misfit.clamp(min=_TOLERANCE) ** -0.5
    return dict(zip(terms, (rates / scale).tolist(), strict=True))


def _nonnegative(left: Tensor, right: Tensor) -> Tensor:
    """Return the x >= 0 that minimizes |left x - right|."""
    columns = range(left.shape[1])
    best, least = torch.zeros(left.shape[1], dtype=left.dtype), float(right.square().sum())
    for count in range(1, len(columns) + 1):
        for chosen in combinations(columns, count):
            part = left[:, list(chosen)]
            found = torch.linalg.lstsq(part, right[:, None]).solution[:, 0]
            misfit = float((part @ found - right).square().sum())
            if bool((found >= 0).all()) and misfit < least:
                best, least = torch.zeros_like(best), misfit
                best[list(chosen)] = found
    return best
