"""Where two costs are equal: looked for among whole lengths by the costs themselves, then solved by the laws there.

A formula may hold on one side of a length only (a window's does), and a root on the other side means nothing.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import sympy

from qkv.cost import crossing, evaluate
from qkv.cost.polynomial import Expression, interpolate_near

OCTAVE = 8
"""Lengths that are looked at from one power of two to the next; two crossings between two of them are not seen."""

Law = Callable[[int], int]
"""Length -> cost."""


@dataclass(frozen=True)
class Meeting:
    """Where two costs are equal."""

    lengths: tuple[Expression, ...]
    """Exact, smallest first; one where a law changes just there is the first whole length beyond it."""
    stretches: tuple[tuple[int, int | None], ...]
    """The first and the last of neighboring whole lengths at all of which they are equal; None: for ever."""

    @property
    def always(self) -> bool:
        """Whether there is no difference at any length."""
        return self.stretches == ((1, None),)


def meet(first: Law, second: Law, longest: int, formulas: tuple[Expression | None, Expression | None]) -> Meeting:
    """Where these costs are equal, up to a length and, if their laws stay what they are there, beyond it.

    `formulas` are tried first; where they do not hold, those of the neighborhood are.
    """

    def lead(length: int) -> int:
        difference = first(length) - second(length)
        return (difference > 0) - (difference < 0)

    leads = list(_leads(lead, longest))
    ends = [start - 1 for _, start in leads[1:]] + [longest]
    level = [(start, end) for (sign, start), end in zip(leads, ends, strict=True) if sign == 0]
    lengths = [sympy.Integer(start) for start, end in level if start == end]
    for (before, _), (after, length) in pairwise(leads):
        if before and after:
            lengths.append(_solve(first, second, length, formulas))
    lengths += _beyond(first, second, longest)
    stretches = tuple((start, None if end == longest else end) for start, end in level if start < end)
    return Meeting(tuple(sorted(lengths, key=float)), stretches)


def _leads(lead: Callable[[int], int], longest: int) -> Iterator[tuple[int, int]]:
    """The signs of the difference that follow one another, each with the length from which on it is that."""
    steps = range(OCTAVE * longest.bit_length())
    grid = sorted({min(round(2 ** (step / OCTAVE)), longest) for step in steps} | {longest})
    sign = lead(1)
    yield sign, 1
    for left, right in pairwise(grid):
        low = left
        while sign != lead(right):
            high = right
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if lead(middle) == sign else (low, middle)
            low, sign = high, lead(high)
            yield sign, high


def _solve(first: Law, second: Law, length: int, formulas: tuple[Expression | None, Expression | None]) -> Expression:
    """The root between this length and the one before, by formulas that hold at both."""
    for mine, theirs in (formulas, (_near(first, length), _near(second, length))):
        if _holds(first, mine, length) and _holds(second, theirs, length):
            for root in crossing(mine, theirs):
                if length - 1 < root < length:
                    return root
    return sympy.Integer(length)


def _beyond(first: Law, second: Law, longest: int) -> list[Expression]:
    """The roots above all lengths that were looked at, of the laws that hold at the last of them."""
    mine, theirs = _near(first, longest), _near(second, longest)
    return [] if mine is None or theirs is None else [root for root in crossing(mine, theirs) if root > longest]


def _near(law: Law, length: int) -> Expression | None:
    return interpolate_near(lambda sizes: law(sizes["n"]), {"n": 2}, {"n": length})


def _holds(law: Law, formula: Expression | None, length: int) -> bool:
    return formula is not None and all(evaluate(formula, {"n": n}) == law(n) for n in (length - 1, length))
