"""Whether two lists put things into the same order: Spearman's rank correlation.

    rho = correlation of the ranks;   those that are equal share the mean of their ranks

It is 1 for the same order, -1 for the opposite one, and does not ask how far apart the values are.
"""

import math
from collections.abc import Sequence


def spearman(left: Sequence[float], right: Sequence[float]) -> float:
    """The rank correlation of two lists of at least two numbers; nan where one has all values equal."""
    if len(left) != len(right) or len(left) < 2:
        raise ValueError(f"left and right must be as many, and at least two, got {len(left)} and {len(right)}")
    if any(math.isnan(value) for value in (*left, *right)):
        raise ValueError("left and right must be numbers, got nan")
    a, b = ranks(left), ranks(right)
    middle = (len(a) + 1) / 2
    product = sum((x - middle) * (y - middle) for x, y in zip(a, b, strict=True))
    spread = sum((x - middle) ** 2 for x in a) * sum((y - middle) ** 2 for y in b)
    return product / math.sqrt(spread) if spread else math.nan


def ranks(values: Sequence[float]) -> list[float]:
    """The rank of each from 1, the smallest first; equal values share the mean of their ranks."""
    order = sorted(range(len(values)), key=lambda place: values[place])
    found, start = [0.0] * len(values), 0
    while start < len(order):
        end = start
        while end < len(order) and values[order[end]] == values[order[start]]:
            end += 1
        for place in order[start:end]:
            found[place] = (start + 1 + end) / 2
        start = end
    return found
