"""Attention kinds beside each other: formulas in the length, and the lengths at which one overtakes another, exactly.

Projections before and after are the same for all, so they cancel, and only the mechanisms are compared.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations

from qkv.attention import Attention, parse
from qkv.cost import Quantity, Shape, evaluate
from qkv.cost.polynomial import Expression, Sizes, interpolate, interpolate_near
from qkv.profile.crossover import CostFunction, Crossovers, find_crossovers

MAX_COMPARED_LENGTH = 2**20
"""Length up to which costs are compared as they are; beyond it the laws that they have there are taken to hold."""


@dataclass(frozen=True)
class KindCost:
    """One kind at one shape."""

    kind: str
    mechanism: Attention
    needed: Quantity
    """Multiplications."""
    executed: int
    cache: Quantity
    """Bytes held after all tokens."""
    cost_functions: dict[str, CostFunction]
    """What is "needed" and held in the "cache" at any length."""


@dataclass(frozen=True)
class KindCrossover:
    """Where two kinds cost the same."""

    first: str
    second: str
    quantity: str
    crossovers: Crossovers

    @property
    def lengths(self) -> tuple[Expression, ...]:
        """Exact; empty: one of them is cheaper at every length, or both cost the same along a stretch of lengths."""
        return self.crossovers.lengths


def compare_kinds(kinds: Sequence[str], shape: Shape) -> list[KindCost]:
    """The kinds of these names at this shape, whose number of queries is the length asked for."""
    return [_kind_cost(kind, shape) for kind in kinds]


def find_kind_crossovers(rivals: Sequence[KindCost]) -> list[KindCrossover]:
    """Every pair, for multiplications and for the cache."""
    found = []
    for first, second in combinations(rivals, 2):
        for what, name in (("needed", "multiplications"), ("cache", "cache bytes")):
            formulas = getattr(first, what).formula, getattr(second, what).formula
            meeting = find_crossovers(
                first.cost_functions[what], second.cost_functions[what], MAX_COMPARED_LENGTH, formulas
            )
            found.append(KindCrossover(first.kind, second.kind, name, meeting))
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


def _kind_cost(kind: str, shape: Shape) -> KindCost:
    mechanism = parse(kind, key_dim=shape.key_dim)
    cost = mechanism.cost(shape)

    @cache
    def at(length: int) -> dict[str, int]:
        long = mechanism.cost(replace(shape, queries=length, keys=length))
        return {"needed": sum(long.needed.values()), "cache": sum(long.state.values())}

    laws: dict[str, CostFunction] = {
        "needed": lambda length: at(length)["needed"],
        "cache": lambda length: at(length)["cache"],
    }
    needed, cached = (_quantity(laws[what], shape.queries) for what in ("needed", "cache"))
    return KindCost(kind, mechanism, needed, sum(cost.executed.values()), cached, laws)


def _quantity(law: CostFunction, length: int) -> Quantity:
    """The cost at this length, and its formula, with a word where that does not hold at every other length."""

    def at(sizes: Sizes) -> int:
        return law(sizes["n"])

    asked = {"n": length}
    found = interpolate(at, {"n": 2}, asked)
    if found is not None and evaluate(found, {"n": MAX_COMPARED_LENGTH}) == law(MAX_COMPARED_LENGTH):
        return Quantity(law(length), found)
    return Quantity(law(length), interpolate_near(at, {"n": 2}, asked), holds=f"around n = {length}")
