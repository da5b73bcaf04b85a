"""Attention kinds beside each other: formulas in the length, and the lengths at which one overtakes another, exactly.

Projections before and after are the same for all, so they cancel, and only the mechanisms are compared.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from qkv.attention import Additive, Attention, parse
from qkv.cost import Quantity, Shape, crossing
from qkv.cost.formula import Expression, Sizes, interpolate, interpolate_near


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


@dataclass(frozen=True)
class Crossover:
    """Where two kinds cost the same: below the length the first is cheaper, above it the second, or never."""

    first: str
    second: str
    what: str
    lengths: tuple[Expression, ...]
    """Exact; empty: one of them is cheaper at every length."""


def compete(kinds: Sequence[str], shape: Shape) -> list[Rival]:
    """The kinds of these names at this shape, whose number of queries is the length asked for."""
    return [_enter(kind, shape) for kind in kinds]


def crossovers(rivals: Sequence[Rival]) -> list[Crossover]:
    """Every pair, for multiplications and for the cache."""
    found = []
    for first, second in combinations(rivals, 2):
        for what in ("needed", "cache"):
            mine, theirs = getattr(first, what).formula, getattr(second, what).formula
            if mine is not None and theirs is not None:
                name = "multiplications" if what == "needed" else "cache bytes"
                found.append(Crossover(first.kind, second.kind, name, tuple(crossing(mine, theirs))))
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

    def quantity(ledger: str) -> Quantity:
        def at(sizes: Sizes) -> int:
            longer = replace(shape, queries=sizes["n"], keys=sizes["n"])
            return sum(getattr(mechanism.cost(longer), ledger).values())

        asked = {"n": shape.queries}
        found, holds = interpolate(at, {"n": 2}, asked), ""
        if found is None:
            found, holds = interpolate_near(at, {"n": 2}, asked), f"around n = {shape.queries}"
        return Quantity(sum(getattr(cost, ledger).values()), found, holds=holds)

    return Rival(kind, mechanism, quantity("needed"), sum(cost.executed.values()), quantity("state"))
