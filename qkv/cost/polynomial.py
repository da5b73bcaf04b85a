"""Formulas: exact polynomials in named sizes, recovered from integers and proven at sizes held out.

A cost is a function from sizes to integers. If it is a polynomial of known degree in each size, then
its values on a grid determine it: nothing is fitted, nothing rounded. Whether it is one is checked
at sizes that were not on the grid; if not, there is no formula, and that is the answer.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import product
from math import prod
from typing import Any

import sympy

Expression = Any
"""A sympy expression (sympy has no types of its own)."""
Sizes = dict[str, int]


@dataclass(frozen=True)
class _Polynomial:
    """Powers of the named sizes -> coefficient."""

    names: list[str]
    coefficients: dict[tuple[int, ...], Fraction]

    def at(self, sizes: Sizes) -> Fraction:
        values = [sizes[name] for name in self.names]
        return sum(
            (c * prod(x**p for x, p in zip(values, powers, strict=True)) for powers, c in self.coefficients.items()),
            Fraction(0),
        )

    def expression(self) -> Expression:
        letters = [symbol(name) for name in self.names]
        return sympy.Add(
            *(
                sympy.Rational(c.numerator, c.denominator)
                * sympy.Mul(*(letter**p for letter, p in zip(letters, powers, strict=True)))
                for powers, c in self.coefficients.items()
            )
        )


_GRID = (7, 11, 17, 29, 41, 47, 53)
_HELD_OUT = ((13, 31), (23, 5))


def interpolate(
    function: Callable[[Sizes], int], degrees: Mapping[str, int], asked: Sizes, *, checks: int = 2
) -> Expression | None:
    """The polynomial of at most these degrees that equals `function`, or None if there is none.

    It is checked at so many sizes off the grid and at those that are `asked` for, however far.
    """
    grid = {name: _GRID[: degree + 1] for name, degree in degrees.items()}
    held_out = [{name: pair[place % 2] for place, name in enumerate(degrees)} for pair in _HELD_OUT[:checks]]
    return _prove(function, _through(function, grid), [*held_out, asked])


def interpolate_near(function: Callable[[Sizes], int], degrees: Mapping[str, int], asked: Sizes) -> Expression | None:
    """The same for what holds around the sizes asked for, where another law holds far from them: a window."""
    down = {name: asked[name] > degree + 4 for name, degree in degrees.items()}
    near = {
        name: [asked[name] + (-step if down[name] else step) for step in range(degree + 1)]
        for name, degree in degrees.items()
    }
    beyond = [
        {name: asked[name] + (-1 if down[name] else 1) * (degree + step) for name, degree in degrees.items()}
        for step in (1, 3)
    ]
    return _prove(function, _through(function, near), beyond)


def evaluate(expression: Expression, sizes: Mapping[str, int]) -> int | Fraction:
    """The exact value."""
    value = sympy.Rational(sympy.sympify(expression).subs({symbol(name): size for name, size in sizes.items()}))
    return int(value) if value.q == 1 else Fraction(int(value.p), int(value.q))


def symbol(name: str) -> Expression:
    """A size of this name: a whole number above zero."""
    return sympy.Symbol(name, integer=True, positive=True)


def write(expression: Expression | None) -> str:
    """As `61*n**2 + 9700*n`."""
    return "none: it is no polynomial there" if expression is None else str(sympy.expand(expression))


def write_latex(expression: Expression | None) -> str:
    """As `61 n^{2} + 9700 n`."""
    return r"\text{none}" if expression is None else str(sympy.latex(sympy.expand(expression)))


def crossing(first: Expression, second: Expression, name: str = "n") -> list[Expression]:
    """The positive sizes at which two formulas are equal, exactly, smallest first; none also if they are always."""
    difference = sympy.expand(first - second)
    if not difference.has(symbol(name)):
        return []
    free = sympy.Symbol(name, real=True)
    roots = sympy.roots(sympy.Poly(difference.subs(symbol(name), free), free))
    return sorted((root for root in roots if root.is_real and root > 0), key=float)


def _prove(function: Callable[[Sizes], int], found: _Polynomial, held_out: list[Sizes]) -> Expression | None:
    if any(found.at(sizes) != function(sizes) for sizes in held_out):
        return None
    return found.expression()


def _through(function: Callable[[Sizes], int], axes: Mapping[str, Sequence[int]]) -> _Polynomial:
    """Values on a grid become coefficients, along one size after the other."""
    names = list(axes)
    numbers = {point: Fraction(function(dict(zip(names, point, strict=True)))) for point in product(*axes.values())}
    for place, name in enumerate(names):
        basis = _lagrange(tuple(axes[name]))
        turned: dict[tuple[int, ...], Fraction] = {}
        for point, number in numbers.items():
            for power, coefficient in enumerate(basis[axes[name].index(point[place])]):
                target = (*point[:place], power, *point[place + 1 :])
                turned[target] = turned.get(target, Fraction(0)) + number * coefficient
        numbers = turned
    return _Polynomial(names, {powers: number for powers, number in numbers.items() if number})


@cache
def _lagrange(places: tuple[int, ...]) -> list[list[Fraction]]:
    """For each place the coefficients, lowest first, of the polynomial that is 1 there and 0 at the others."""
    found = []
    for here in places:
        coefficients = [Fraction(1)]
        for other in places:
            if other != here:  # times (x - other) / (here - other)
                raised, held = [Fraction(0), *coefficients], [*coefficients, Fraction(0)]
                coefficients = [(up - other * low) / (here - other) for up, low in zip(raised, held, strict=True)]
        found.append(coefficients)
    return found
