"""Formulas of code that works in chunks: polynomials of the length and of what is left over after whole chunks.

For a chunk of c, the count depends on n and on the number of chunks, floor(n / c) or ceiling(n / c), or on the tokens
in the last chunk, Mod(n, c).
"""

from collections.abc import Callable, Iterator
from itertools import product

import sympy

from qkv.cost.polynomial import Expression, evaluate, interpolate_on_grid, symbol

_COMMON_CHUNKS = (16, 32, 64, 128, 256, 512)


def periodic_formulas(function: Callable[[int], int], size: int, span: tuple[int, int]) -> Iterator[Expression]:
    """Yield formulas in n to try for code in chunks, of which a plain polynomial holds at `size` and within `span`."""
    for chunk, sign in product(_chunk_candidates(*span), (1, -1)):
        found = _interpolate(function, size, chunk, sign)
        if _holds_at_boundaries(function, found, size, chunk):
            yield found


def _chunk_candidates(start: int, end: int) -> list[int]:
    """Return chunks that could begin at `start` or end at `end`."""
    width = end - start
    common = [chunk for chunk in _COMMON_CHUNKS if chunk > width + 1 and end % chunk == 0]
    exact = [chunk for chunk in (width, width + 1) if chunk > 2 and 0 in (start % chunk, end % chunk)]
    return [*exact, *common[:1]]


def _interpolate(function: Callable[[int], int], size: int, chunk: int, sign: int) -> Expression:
    """Return the polynomial through nine lengths in three chunks; r is what the last one has (sign 1) or lacks (-1)."""
    first = max(size // chunk - 1, 2)
    axes = {"whole": [first, first + 1, first + 2], "rest": [0, chunk // 3, chunk - 1]}
    found = interpolate_on_grid(lambda at: function(at["whole"] * chunk + sign * at["rest"]), axes).expression()
    n, whole, rest = symbol("n"), symbol("whole"), symbol("rest")
    if sign > 0 and sympy.degree(found, rest) > 1:
        return sympy.expand(found.subs(whole, (n - rest) / chunk)).subs(rest, sympy.Mod(n, chunk))
    chunks = sympy.floor(n / chunk) if sign > 0 else sympy.ceiling(n / chunk)
    return sympy.expand(found.subs(rest, sign * (n - whole * chunk))).subs(whole, chunks)


def _holds_at_boundaries(function: Callable[[int], int], formula: Expression, size: int, chunk: int) -> bool:
    """Return whether the formula holds where one chunk ends and the next begins, which samples may miss."""
    end = (size // chunk + 3) * chunk
    return all(evaluate(formula, {"n": n}) == function(n) for n in (end - 1, end, end + 1))
