"""Compare attention kinds: formulas in the length, and the exact lengths at which one becomes cheaper than another.

The projections before and after are the same for all kinds, so only the mechanisms are compared.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations

from qkv.attention import Attention, parse
from qkv.cost import Quantity, Shape
from qkv.cost.formula_range import find_formula, sample_sizes
from qkv.cost.polynomial import Expression
from qkv.profile.crossover import CostFunction, Crossovers, find_crossovers

MAX_COMPARED_LENGTH = 2**20
"""Length up to which costs are evaluated; beyond it, the formulas found there are assumed to hold."""


@dataclass(frozen=True)
class KindCost:
    """Cost of one kind at one shape."""

    kind: str
    mechanism: Attention
    needed: Quantity
    """Multiplications."""
    executed: int
    cache: Quantity
    """Bytes of state after all tokens."""
    cost_functions: dict[str, CostFunction]
    """"needed" and "cache" as functions of the length."""


@dataclass(frozen=True)
class KindCrossover:
    """Lengths at which two kinds cost the same."""

    first: str
    second: str
    quantity: str
    crossovers: Crossovers

    @property
    def lengths(self) -> tuple[Expression, ...]:
        """Exact lengths; empty if one kind is always cheaper, or if both are equal over an interval."""
        return self.crossovers.lengths


def compare_kinds(kinds: Sequence[str], shape: Shape) -> list[KindCost]:
    """Return the cost of each kind at this shape; `shape.queries` is the length."""
    return [_kind_cost(kind, shape) for kind in kinds]


def find_kind_crossovers(costs: Sequence[KindCost]) -> list[KindCrossover]:
    """Return the crossovers of every pair of kinds, in multiplications and in cache bytes."""
    found = []
    for first, second in combinations(costs, 2):
        for attribute, quantity in (("needed", "multiplications"), ("cache", "cache bytes")):
            formulas = getattr(first, attribute).formula, getattr(second, attribute).formula
            functions = first.cost_functions[attribute], second.cost_functions[attribute]
            crossovers = find_crossovers(*functions, MAX_COMPARED_LENGTH, formulas)
            found.append(KindCrossover(first.kind, second.kind, quantity, crossovers))
    return found


def _kind_cost(kind: str, shape: Shape) -> KindCost:
    mechanism = parse(kind, key_dim=shape.key_dim)

    @cache
    def at(length: int) -> dict[str, int]:
        cost = mechanism.cost(replace(shape, queries=length, keys=length))
        return {"needed": sum(cost.needed.values()), "cache": sum(cost.state.values())}

    functions: dict[str, CostFunction] = {
        "needed": lambda length: at(length)["needed"],
        "cache": lambda length: at(length)["cache"],
    }
    return KindCost(
        kind,
        mechanism,
        needed=_quantity(functions["needed"], shape.queries),
        executed=sum(mechanism.cost(shape).executed.values()),
        cache=_quantity(functions["cache"], shape.queries),
        cost_functions=functions,
    )


def _quantity(function: CostFunction, length: int) -> Quantity:
    """Return the cost at this length, its formula, and the lengths at which that was verified."""
    samples = sample_sizes(MAX_COMPARED_LENGTH)
    found = find_formula(lambda sizes: function(sizes["n"]), {"n": 2}, {"n": length}, samples=samples)
    if found is None:
        return Quantity(function(length), note="no polynomial around this length")
    return Quantity(function(length), found.expression, holds=found.holds)
