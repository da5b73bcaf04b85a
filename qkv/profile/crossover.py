"""Lengths at which two costs are equal: found on integer lengths from the costs, then solved with local formulas.

A formula may hold on one side of a length only (under a sliding window it does); its roots on the other side are
meaningless.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import sympy

from qkv.cost import crossings, evaluate
from qkv.cost.polynomial import Expression, interpolate_near

SAMPLES_PER_OCTAVE = 8
"""Lengths sampled between powers of two; two crossovers between neighboring samples are missed."""

CostFunction = Callable[[int], int]
"""Length -> cost."""


@dataclass(frozen=True)
class Crossovers:
    """Lengths at which two costs are equal."""

    lengths: tuple[Expression, ...]
    """Exact lengths in increasing order; where a formula changes, the first integer length after it."""
    intervals: tuple[tuple[int, int | None], ...]
    """First and last of adjacent integer lengths with equal costs; None: without end."""

    @property
    def always(self) -> bool:
        """Whether the costs are equal at every length."""
        return self.intervals == ((1, None),)


def find_crossovers(
    first: CostFunction,
    second: CostFunction,
    max_length: int,
    formulas: tuple[Expression | None, Expression | None],
) -> Crossovers:
    """Return where two costs are equal, up to `max_length` and beyond it if their formulas there continue to hold.

    `formulas` are tried first; where they do not hold, local ones are interpolated.
    """

    def sign(length: int) -> int:
        difference = first(length) - second(length)
        return (difference > 0) - (difference < 0)

    runs = list(_runs_of_equal_sign(sign, max_length))
    ends = [start - 1 for _, start in runs[1:]] + [max_length]
    equal = [(start, end) for (value, start), end in zip(runs, ends, strict=True) if value == 0]
    lengths = [sympy.Integer(start) for start, end in equal if start == end]
    for (before, _), (after, length) in pairwise(runs):
        if before and after:
            lengths.append(_solve(first, second, length, formulas))
    lengths += _roots_beyond(first, second, max_length)
    intervals = tuple((start, None if end == max_length else end) for start, end in equal if start < end)
    return Crossovers(tuple(sorted(lengths, key=float)), intervals)


def _runs_of_equal_sign(sign: Callable[[int], int], max_length: int) -> Iterator[tuple[int, int]]:
    """Yield the successive signs of the difference, each with the first length that has it."""
    steps = range(SAMPLES_PER_OCTAVE * max_length.bit_length())
    grid = sorted({min(round(2 ** (step / SAMPLES_PER_OCTAVE)), max_length) for step in steps} | {max_length})
    current = sign(1)
    yield current, 1
    for left, right in pairwise(grid):
        low = left
        while current != sign(right):
            high = right
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if sign(middle) == current else (low, middle)
            low, current = high, sign(high)
            yield current, high


def _solve(
    first: CostFunction,
    second: CostFunction,
    length: int,
    formulas: tuple[Expression | None, Expression | None],
) -> Expression:
    """Return the root between `length - 1` and `length`, from formulas that hold at both."""
    local = _local_formula(first, length), _local_formula(second, length)
    for one, other in (formulas, local):
        if _holds(first, one, length) and _holds(second, other, length):
            for root in crossings(one, other):
                if length - 1 < root < length:
                    return root
    return sympy.Integer(length)


def _roots_beyond(first: CostFunction, second: CostFunction, max_length: int) -> list[Expression]:
    """Return the roots above `max_length` of the formulas that hold there."""
    one, other = _local_formula(first, max_length), _local_formula(second, max_length)
    if one is None or other is None:
        return []
    return [root for root in crossings(one, other) if root > max_length]


def _local_formula(function: CostFunction, length: int) -> Expression | None:
    return interpolate_near(lambda sizes: function(sizes["n"]), {"n": 2}, {"n": length})


def _holds(function: CostFunction, formula: Expression | None, length: int) -> bool:
    return formula is not None and all(evaluate(formula, {"n": n}) == function(n) for n in (length - 1, length))
