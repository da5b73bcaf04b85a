"""Spearman's rank correlation: whether two lists are in the same order.

    rho = correlation of the ranks;   equal values share the mean of their ranks

It is 1 for the same order and -1 for the reverse; the distances between values do not matter.
"""

import math
from collections.abc import Sequence


def spearman(left: Sequence[float], right: Sequence[float]) -> float:
    """Return Spearman's rank correlation of two lists of at least two values; NaN if one list is constant."""
    if len(left) != len(right) or len(left) < 2:
        raise ValueError(f"left and right must have the same length, at least 2, got {len(left)} and {len(right)}")
    if any(math.isnan(value) for value in (*left, *right)):
        raise ValueError("left and right must not contain NaN")
    a, b = ranks(left), ranks(right)
    middle = (len(a) + 1) / 2
    product = sum((x - middle) * (y - middle) for x, y in zip(a, b, strict=True))
    spread = sum((x - middle) ** 2 for x in a) * sum((y - middle) ** 2 for y in b)
    return product / math.sqrt(spread) if spread else math.nan


def ranks(values: Sequence[float]) -> list[float]:
    """Return the rank of each value, 1 for the smallest; equal values share the mean of their ranks."""
    order = sorted(range(len(values)), key=lambda index: values[index])
    result, start = [0.0] * len(values), 0
    while start < len(order):
        end = start
        while end < len(order) and values[order[end]] == values[order[start]]:
            end += 1
        for index in order[start:end]:
            result[index] = (start + 1 + end) / 2
        start = end
    return result
