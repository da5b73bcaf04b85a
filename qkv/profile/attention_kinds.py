"""Attention kinds beside each other: formulas in the length, and the lengths at which one overtakes another, exactly.

Projections before and after are the same for all, so they cancel, and only the mechanisms are compared.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations

from qkv.attention import Additive, Attention, parse
from qkv.cost import Quantity, Shape, evaluate
from qkv.cost.polynomial import Expression, Sizes, interpolate, interpolate_near
from qkv.profile.crossover import Law, Meeting, meet

LONGEST = 2**20
"""Length up to which costs are compared as they are; beyond it the laws that they have there are taken to hold."""


@dataclass(frozen=True)
class Rival:
    """One kind at one shape."""

    kind: str
    mechanism: Attention
    needed: Quantity
    """Multiplications."""
    executed: int
    cache: Quantity
    """Bytes held after all tokens."""
    laws: dict[str, Law]
    """What is "needed" and held in the "cache" at any length."""


@dataclass(frozen=True)
class Crossover:
    """Where two kinds cost the same."""

    first: str
    second: str
    what: str
    meeting: Meeting

    @property
    def lengths(self) -> tuple[Expression, ...]:
        """Exact; empty: one of them is cheaper at every length, or both cost the same along a stretch of lengths."""
        return self.meeting.lengths


def compete(kinds: Sequence[str], shape: Shape) -> list[Rival]:
    """The kinds of these names at this shape, whose number of queries is the length asked for."""
    return [_enter(kind, shape) for kind in kinds]


def crossovers(rivals: Sequence[Rival]) -> list[Crossover]:
    """Every pair, for multiplications and for the cache."""
    found = []
    for first, second in combinations(rivals, 2):
        for what, name in (("needed", "multiplications"), ("cache", "cache bytes")):
            formulas = getattr(first, what).formula, getattr(second, what).formula
            meeting = meet(first.laws[what], second.laws[what], LONGEST, formulas)
            found.append(Crossover(first.kind, second.kind, name, meeting))
    return found


def split_kinds(text: str) -> list[str]:
    """`softmax,taylor(order=4,chunk=64)` at the commas that stand outside of brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def _enter(kind: str, shape: Shape) -> Rival:
    mechanism = Additive(shape.key_dim) if kind == "additive" else parse(kind)
    cost = mechanism.cost(shape)

    @cache
    def at(length: int) -> dict[str, int]:
        long = mechanism.cost(replace(shape, queries=length, keys=length))
        return {"needed": sum(long.needed.values()), "cache": sum(long.state.values())}

    laws: dict[str, Law] = {"needed": lambda length: at(length)["needed"], "cache": lambda length: at(length)["cache"]}
    needed, cached = (_quantity(laws[what], shape.queries) for what in ("needed", "cache"))
    return Rival(kind, mechanism, needed, sum(cost.executed.values()), cached, laws)


def _quantity(law: Law, length: int) -> Quantity:
    """The cost at this length, and its formula, with a word where that does not hold at every other length."""

    def at(sizes: Sizes) -> int:
        return law(sizes["n"])

    asked = {"n": length}
    found = interpolate(at, {"n": 2}, asked)
    if found is not None and evaluate(found, {"n": LONGEST}) == law(LONGEST):
        return Quantity(law(length), found)
    return Quantity(law(length), interpolate_near(at, {"n": 2}, asked), holds=f"around n = {length}")
