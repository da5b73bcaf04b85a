"""Formulas: exact polynomials in named sizes, interpolated from integers and checked at held-out sizes.

A cost is a function from sizes to integers. If it is a polynomial of known degree in each size, its
values on a grid determine it: nothing is fitted, nothing rounded. Sizes off the grid check that it is
one; otherwise there is no formula.
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
    """A polynomial: powers of the named sizes -> coefficient."""

    names: list[str]
    coefficients: dict[tuple[int, ...], Fraction]

    def at(self, sizes: Sizes) -> Fraction:
        values = [sizes[name] for name in self.names]
        total = Fraction(0)
        for powers, coefficient in self.coefficients.items():
            total += coefficient * prod(x**power for x, power in zip(values, powers, strict=True))
        return total

    def expression(self) -> Expression:
        symbols = [symbol(name) for name in self.names]
        terms = []
        for powers, coefficient in self.coefficients.items():
            monomial = sympy.Mul(*(x**power for x, power in zip(symbols, powers, strict=True)))
            terms.append(sympy.Rational(coefficient.numerator, coefficient.denominator) * monomial)
        return sympy.Add(*terms)


_GRID = (7, 11, 17, 29, 41, 47, 53)
_HELD_OUT = ((13, 31), (23, 5))


def interpolate(
    function: Callable[[Sizes], int], degrees: Mapping[str, int], sizes: Sizes, *, checks: int = 2
) -> Expression | None:
    """Return the polynomial of at most these degrees that equals `function`; None: no such polynomial.

    It is checked at `checks` sizes off the grid and at the requested `sizes`.
    """
    grid = {name: _GRID[: degree + 1] for name, degree in degrees.items()}
    held_out = [{name: pair[index % 2] for index, name in enumerate(degrees)} for pair in _HELD_OUT[:checks]]
    return _check(function, interpolate_on_grid(function, grid), [*held_out, sizes])


def interpolate_near(
    function: Callable[[Sizes], int], degrees: Mapping[str, int], sizes: Sizes, *, upward: bool = False
) -> Expression | None:
    """Return the polynomial that holds around `sizes`, where another one may hold far away (a sliding window).

    It is found from `sizes` and smaller ones; with `upward`, from larger ones.
    """
    direction = {name: -1 if sizes[name] > degree + 4 and not upward else 1 for name, degree in degrees.items()}
    grid = {
        name: [sizes[name] + direction[name] * step for step in range(degree + 1)] for name, degree in degrees.items()
    }
    held_out = [
        {name: sizes[name] + direction[name] * (degree + step) for name, degree in degrees.items()} for step in (1, 3)
    ]
    return _check(function, interpolate_on_grid(function, grid), held_out)


def evaluate(expression: Expression, sizes: Mapping[str, int]) -> int | Fraction:
    """Return the exact value of a formula."""
    value = sympy.Rational(sympy.sympify(expression).subs({symbol(name): size for name, size in sizes.items()}))
    return int(value) if value.q == 1 else Fraction(int(value.p), int(value.q))


def symbol(name: str) -> Expression:
    """Return the sympy symbol of a size: a positive integer."""
    return sympy.Symbol(name, integer=True, positive=True)


def format_formula(expression: Expression | None) -> str:
    """Return a formula as text, such as `61*n**2 + 9700*n`."""
    return "none: not a polynomial there" if expression is None else str(sympy.expand(expression))


def format_latex(expression: Expression | None) -> str:
    """Return a formula as LaTeX, such as `61 n^{2} + 9700 n`."""
    return r"\text{none}" if expression is None else str(sympy.latex(sympy.expand(expression)))


def crossings(first: Expression, second: Expression, name: str = "n") -> list[Expression]:
    """Return the exact positive sizes where two formulas are equal, smallest first; [] if they are identical."""
    difference = sympy.expand(first - second)
    if not difference.has(symbol(name)):
        return []
    free = sympy.Symbol(name, real=True)
    roots = sympy.roots(sympy.Poly(difference.subs(symbol(name), free), free))
    return sorted((root for root in roots if root.is_real and root > 0), key=float)


def _check(function: Callable[[Sizes], int], found: _Polynomial, held_out: list[Sizes]) -> Expression | None:
    if any(found.at(sizes) != function(sizes) for sizes in held_out):
        return None
    return found.expression()


def interpolate_on_grid(function: Callable[[Sizes], int], axes: Mapping[str, Sequence[int]]) -> _Polynomial:
    """Return the polynomial through the values on a grid, solved along one size after the other."""
    names = list(axes)
    values = {point: Fraction(function(dict(zip(names, point, strict=True)))) for point in product(*axes.values())}
    for axis, name in enumerate(names):
        basis = _lagrange(tuple(axes[name]))
        solved: dict[tuple[int, ...], Fraction] = {}
        for point, value in values.items():
            for power, coefficient in enumerate(basis[axes[name].index(point[axis])]):
                target = (*point[:axis], power, *point[axis + 1 :])
                solved[target] = solved.get(target, Fraction(0)) + value * coefficient
        values = solved
    return _Polynomial(names, {powers: value for powers, value in values.items() if value})


@cache
def _lagrange(nodes: tuple[int, ...]) -> list[list[Fraction]]:
    """Return the Lagrange basis: per node, the coefficients (lowest first) of a polynomial 1 there and 0 at others."""
    basis = []
    for node in nodes:
        coefficients = [Fraction(1)]
        for other in nodes:
            if other != node:  # times (x - other) / (node - other)
                shifted, padded = [Fraction(0), *coefficients], [*coefficients, Fraction(0)]
                coefficients = [(up - other * low) / (node - other) for up, low in zip(shifted, padded, strict=True)]
        basis.append(coefficients)
    return basis
