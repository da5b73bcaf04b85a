"""Formulas with the range of sizes in which they were verified.

A module may run another form beyond some length (a window, chunks, a cheaper order of products). So a formula is
compared with the count at further sizes, about one per power of two. Between a size where both are equal and one
where they differ, bisection finds where the form changes. The formula is stated for the sizes before that only.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import sympy

from qkv.cost.periodic import periodic_formulas
from qkv.cost.polynomial import Expression, Sizes, evaluate, interpolate, interpolate_near, symbol

MAX_VERIFIED_SIZE = 2**14
"""Largest size at which formulas are compared with counts, unless a larger one is requested."""
MAX_CHUNK = 512
"""Largest chunk that is looked for where a form holds for a short range."""
MIN_VALUES = 5
"""Minimum number of values in the range of a formula: 3 determine a polynomial of degree 2, the others verify it."""

CountFunction = Callable[[Sizes], int]
"""Sizes -> count; raises ValueError where the module rejects the sizes."""
Holds = dict[str, tuple[int, int]]
"""Size name -> first and last size at which a formula was verified; {}: it depends on no size."""


class TooLongError(Exception):
    """Counting at these sizes takes too long, so nothing is known about them."""


@dataclass(frozen=True)
class VerifiedFormula:
    """A formula and where it holds."""

    expression: Expression
    holds: Holds


def sample_sizes(last: int = MAX_VERIFIED_SIZE, *, every: int = 1) -> list[int]:
    """Return sizes to verify a formula at, even and odd: about one for `every` power of two; 0: the fewest."""
    found = {1, 33, 257, last // 16 + 1, last}
    if not every:
        return sorted(sample for sample in found if sample <= last)
    found |= {2, 65, 129}
    for power in range(0, last.bit_length(), every):
        found.add((2**power, 2**power + 1, 3 * 2 ** (power - 1) - 1 if power else 1)[power % 3])
    return sorted(sample for sample in found if sample <= last)


def find_formula(
    function: CountFunction, degrees: Mapping[str, int], sizes: Sizes, *, samples: Sequence[int]
) -> VerifiedFormula | None:
    """Return the polynomial of at most these degrees that holds at `sizes` and around them; None: there is none."""
    attempts: tuple[Callable[[], Expression | None], ...] = (
        lambda: interpolate(function, degrees, sizes, checks=0),
        lambda: interpolate_near(function, degrees, sizes),
        lambda: interpolate_near(function, degrees, sizes, upward=True),
    )
    for attempt in attempts:
        try:
            found = attempt()
        except (ValueError, TooLongError):  # the module rejects one of the sizes
            continue
        if found is None:
            continue
        holds = verify_formula(function, found, sizes, samples=samples)
        if all(end - start + 1 >= MIN_VALUES for start, end in holds.values()):
            found, holds = _widen(function, sizes, VerifiedFormula(found, holds), samples)
            return VerifiedFormula(found, _verified_together(function, found, sizes, holds))
    return None


def _widen(
    function: CountFunction, sizes: Sizes, found: VerifiedFormula, samples: Sequence[int]
) -> tuple[Expression, Holds]:
    """Return the formula, or one in chunks of a size if that holds in a wider range."""
    name, *others = found.holds
    start, end = found.holds[name]
    if others or end >= samples[-1] or end - start >= MAX_CHUNK:
        return found.expression, found.holds
    try:
        for in_n in periodic_formulas(lambda size: function({name: size}), sizes[name], (start, end)):
            formula = in_n.subs(symbol("n"), symbol(name))
            holds = verify_formula(function, formula, sizes, samples=samples)
            if holds[name][0] <= start and holds[name][1] > end:
                return formula, holds
    except (ValueError, TooLongError):  # the module rejects one of the sizes
        pass
    return found.expression, found.holds


def verify_formula(function: CountFunction, formula: Expression, sizes: Sizes, *, samples: Sequence[int]) -> Holds:
    """Return the range of each size in which `formula` equals `function`, the other sizes being as requested."""
    fits = _comparison(function, formula, sizes)
    return {name: _verified_range(_along(fits, sizes, name), size, samples) for name, size in sizes.items()}


def format_holds(holds: Holds) -> str:
    """Return a range as text, such as `n = 1 to 256`."""
    return ", ".join(
        f"{name} = {start:,}" if start == end else f"{name} = {start:,} to {end:,}"
        for name, (start, end) in holds.items()
    )


def is_within(sizes: Mapping[str, int], holds: Holds) -> bool:
    """Return whether every size is in its range."""
    return all(start <= sizes[name] <= end for name, (start, end) in holds.items())


def _comparison(function: CountFunction, formula: Expression, sizes: Sizes) -> Callable[[Sizes], bool]:
    value = _evaluator(formula, list(sizes))

    def fits(at: Sizes) -> bool:
        try:
            return bool(value(at) == function(at))
        except ValueError:
            return False

    return fits


def _evaluator(formula: Expression, names: list[str]) -> Callable[[Sizes], object]:
    """Return the formula as a fast function; a formula with a floor is evaluated by sympy."""
    symbols = [symbol(name) for name in names]
    if not symbols or not formula.is_polynomial(*symbols):
        return lambda at: evaluate(formula, at)
    terms = sympy.Poly(formula, *symbols).terms()

    def value(at: Sizes) -> object:
        total = sympy.Integer(0)
        for powers, coefficient in terms:
            monomial = 1
            for name, power in zip(names, powers, strict=True):
                monomial *= at[name] ** power
            total += coefficient * monomial
        return total

    return value


def _along(fits: Callable[[Sizes], bool], sizes: Sizes, name: str) -> Callable[[int], bool]:
    return lambda size: fits({**sizes, name: size})


def _verified_range(fits: Callable[[int], bool], size: int, samples: Sequence[int]) -> tuple[int, int]:
    """Return the first and last size around `size` between which `fits` holds wherever it is tried."""
    last = max(samples[-1], size)
    above = [size + 1, *(sample for sample in samples if sample > size + 1)]
    below = [size - 1, *(sample for sample in reversed(samples) if sample < size - 1)]
    start = _last_that_fits(fits, size, [sample for sample in below if sample >= 1])
    end = _last_that_fits(fits, size, [sample for sample in above if sample <= last])
    if start > 1:
        start = _last_that_fits(fits, size, _inside(size, start))
    if end < last:
        end = _last_that_fits(fits, size, _inside(size, end))
    return start, end


def _inside(size: int, end: int) -> list[int]:
    """Return sizes from `size` to `end`, to notice a form that changes more than once between two samples."""
    return list(dict.fromkeys(size + (end - size) * step // 4 for step in range(1, 5)))


def _last_that_fits(fits: Callable[[int], bool], size: int, samples: Iterable[int]) -> int:
    """Return the last size that fits on the way from `size`, which does, along the samples."""
    good = size
    for sample in samples:
        try:
            if not fits(sample):
                return _bisect(fits, good, sample)
        except TooLongError:
            return good
        good = sample
    return good


def _bisect(fits: Callable[[int], bool], good: int, bad: int) -> int:
    while abs(bad - good) > 1:
        middle = (good + bad) // 2
        try:
            good, bad = (middle, bad) if fits(middle) else (good, middle)
        except TooLongError:
            bad = middle
    return good


def _verified_together(function: CountFunction, formula: Expression, sizes: Sizes, holds: Holds) -> Holds:
    """Return the ranges if the formula also holds at their corners; otherwise only the first size may change."""
    if len(holds) < 2:
        return holds
    fits = _comparison(function, formula, sizes)
    corners = [dict(zip(holds, corner, strict=True)) for corner in product(*holds.values())]
    middle = {name: (start + end) // 2 for name, (start, end) in holds.items()}
    try:
        if all(fits(at) for at in (*corners, middle)):
            return holds
    except TooLongError:
        pass
    first = next(iter(holds))
    return {name: span if name == first else (sizes[name], sizes[name]) for name, span in holds.items()}
