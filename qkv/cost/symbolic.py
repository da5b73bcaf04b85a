"""Derive formulas: run a module once with symbolic lengths and read its multiplications as an expression.

Torch carries symbolic sizes through fake tensors, so the count of any module is an expression in those
symbols. A module that branches on the length is rejected, because the formula would hold on one branch
only. A minimum or maximum length is not a branch if the same formula holds at the requested sizes.
"""

import inspect
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import sympy
import torch
from sympy.core.relational import Relational
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from qkv.cost.counter import count_multiplications
from qkv.cost.input_spec import size_names
from qkv.cost.meta_run import ModuleCall, describe_error
from qkv.cost.polynomial import Expression, symbol

_HINTS = (101, 37, 23, 13, 7)
"""Example values of the symbols: odd primes that are unlikely to equal a width of the module."""


@dataclass(frozen=True)
class DerivedFormulas:
    """Formulas of a forward pass, or the reason for having no formula."""

    executed: Expression | None
    needed: Expression | None = None
    reason: str = ""
    bounds: tuple[Any, ...] = ()
    """Limits on lengths that the module tested, as relations in the symbols."""


def derive_formulas(call: ModuleCall, sizes: Mapping[str, int]) -> DerivedFormulas:
    """Return formulas of a forward pass in the named sizes of its inputs; it must run at `sizes`."""
    names = size_names(call.inputs)
    found = _derive_within_bounds(call, dict(zip(names, _HINTS, strict=False)), sizes)
    smaller = _smaller_hints(names, sizes)
    if found.executed is None and smaller:
        return _derive_within_bounds(call, smaller, sizes)
    return found


def _smaller_hints(names: Sequence[str], sizes: Mapping[str, int]) -> dict[str, int]:
    """Return hints up to the requested sizes, for a module with a maximum; {} if there are no others to try."""
    left, found = [*_HINTS], {}
    for name in names[: len(_HINTS)]:
        hint = next((hint for hint in left if hint <= sizes[name]), None)
        if hint is None:
            return {}
        found[name] = hint
        left.remove(hint)
    return {} if [*found.values()] == [*_HINTS[: len(found)]] else found


def _derive_within_bounds(call: ModuleCall, hints: Mapping[str, int], sizes: Mapping[str, int]) -> DerivedFormulas:
    """Return the formulas at these hints; none if they change at a bound between the hints and `sizes`."""
    found = _derive(call, hints)
    values = {symbol(name): size for name, size in sizes.items()}
    broken = [bound for bound in found.bounds if bound.subs(values) != sympy.true]
    if not broken:
        return found
    crossed = {str(torch_symbol) for bound in broken for torch_symbol in bound.free_symbols}
    # torch never makes a symbol of length 1
    beyond = _derive(call, {name: max(sizes[name], 2) if name in crossed else hint for name, hint in hints.items()})
    if (beyond.executed, beyond.needed) == (found.executed, found.needed):
        return found
    return DerivedFormulas(None, reason=f"the formula would hold only where {broken[0]}")


def _derive(call: ModuleCall, hints: Mapping[str, int]) -> DerivedFormulas:
    from torch._dynamo.source import ConstantSource  # noqa: PLC0415 - it takes a second to load

    environment = _SymbolicSizes(duck_shape=False)  # equal lengths remain different symbols
    symbols = {name: environment.create_symbol(hint, ConstantSource(name)) for name, hint in hints.items()}
    sizes = {
        name: environment.create_symintnode(torch_symbol, hint=hints[name]) for name, torch_symbol in symbols.items()
    }
    fake = FakeTensorMode(shape_env=environment, allow_non_fake_inputs=True)
    try:
        with torch.no_grad(), _without_logs(), fake:
            weights = call.make_weights("cpu")
            tensors = [given.make_tensor(sizes, "cpu") for given in call.inputs]
            with count_multiplications() as counting:
                call.run(weights, tensors)
    except Exception as error:  # noqa: BLE001 - a module may do anything that symbols cannot follow
        tried = ", ".join(f"{name} = {hint}" for name, hint in hints.items())
        return DerivedFormulas(None, reason=f"no symbolic run at {tried}: {describe_error(error)}")
    guards = [
        _with_our_symbols(part, symbols) for guard in environment.guards for part in sympy.And.make_args(guard.expr)
    ]
    fixed = [guard for guard in guards if isinstance(guard, sympy.Eq)]
    if fixed or environment.replacements:
        names = ", ".join(_fixed_names(fixed, environment.replacements, symbols))
        return DerivedFormulas(None, reason=f"the code reads {names} as a plain number, so it cannot be a symbol")
    chosen = next((guard for guard in guards if not _is_bound(guard)), None)
    if chosen is not None:
        return DerivedFormulas(None, reason=f"the module branches on the length: {chosen}")
    executed = _to_formula(counting.total, symbols)
    excess_doubled = _to_formula(sum(counting.causal_excess_doubled.values()), symbols)
    return DerivedFormulas(executed, sympy.expand(executed - excess_doubled / 2), bounds=tuple(guards))


def _fixed_names(equations: Sequence[Any], replacements: Mapping[Any, Any], symbols: Mapping[str, Any]) -> list[str]:
    """Return the names of the sizes that torch replaced by one value during the symbolic run."""
    fixed = {str(one) for equation in equations for one in equation.free_symbols}
    return [name for name, torch_symbol in symbols.items() if name in fixed or torch_symbol in replacements]


class _SymbolicSizes(ShapeEnv):
    """Torch's symbolic sizes without the source line of each symbol, for which torch would load its exporter."""

    def _get_user_frame(self) -> FrameType | None:
        return inspect.currentframe()


def _is_bound(relation: Any) -> bool:
    """Return whether a relation is a plain limit, such as n <= 1024 or n m > 64, and does not compare two costs."""
    if not isinstance(relation, Relational):
        return False
    # a floor is monotonic in its argument
    difference = sympy.expand((relation.lhs - relation.rhs).replace(sympy.floor, lambda argument: argument))
    if not difference.is_polynomial(*difference.free_symbols):
        return False
    growing = {sympy.LC(term) > 0 for term in sympy.Add.make_args(difference) if term.free_symbols}
    return isinstance(relation, sympy.Ne) or len(growing) == 1


def _to_formula(count: Any, symbols: Mapping[str, Any]) -> Expression:
    """Return torch's count as a formula in our symbols."""
    if not isinstance(count, torch.SymInt):
        return sympy.Integer(count)
    return sympy.expand(_with_our_symbols(count.node.expr, symbols))


def _with_our_symbols(expression: Any, symbols: Mapping[str, Any]) -> Any:
    """Return an expression with torch's symbols replaced by ours and its integer division by a floor."""
    expression = expression.replace(
        lambda part: type(part).__name__ in ("FloorDiv", "CleanDiv"),
        lambda part: sympy.floor(part.args[0] / part.args[1]),
    )
    return expression.subs({torch_symbol: symbol(name) for name, torch_symbol in symbols.items()})


@contextmanager
def _without_logs() -> Iterator[None]:
    """Silence torch's logs of what it cannot trace; `DerivedFormulas` has the reason."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(before)
