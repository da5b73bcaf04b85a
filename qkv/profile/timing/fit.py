"""Rates from timings: the seconds that each term takes, none of them below nothing."""

from collections.abc import Mapping, Sequence
from itertools import combinations

import torch
from torch import Tensor

_ROUNDS = 4
_CLOSE = 0.2  # relative error beyond which a timing is taken for disturbed, the more the larger it is


def fit_rates(amounts: Sequence[Mapping[str, float]], seconds: Sequence[float]) -> dict[str, float]:
    """Term -> seconds each, so that sum(amount * rate) / seconds is near one for every timing.

    Nonnegative least squares, exact: all sets of terms are tried, there being few. Repeated with weights that make
    twice as wrong as half, and give less to what fits badly, so that a disturbed timing counts for little.
    """
    terms = list(amounts[0])
    taken = torch.tensor(seconds, dtype=torch.float64)
    shares = torch.tensor([[row[term] for term in terms] for row in amounts], dtype=torch.float64) / taken[:, None]
    size = shares.amax(0)  # so that terms are alike in size
    weights = torch.ones_like(taken)
    rates = torch.zeros(len(terms), dtype=torch.float64)
    for _ in range(_ROUNDS):
        rates = _nonnegative(shares / size * weights[:, None], weights)
        ratio = shares / size @ rates
        misfit = (ratio.sqrt() - ratio.rsqrt()).abs()
        weights = ratio.rsqrt() * misfit.clamp(min=_CLOSE) ** -0.5
    return dict(zip(terms, (rates / size).tolist(), strict=True))


def _nonnegative(left: Tensor, right: Tensor) -> Tensor:
    """The x >= 0 of least |left x - right|."""
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
