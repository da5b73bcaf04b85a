"""The derived road: a module run once with lengths that are letters; its multiplications come out as a formula.

Torch can carry symbols in place of sizes through fake tensors. Whatever the module multiplies then is
an expression in those symbols, whoever wrote it. It works as long as the module does not look at the
length to decide what to do; one that does is refused, for the formula would hold on one branch only.
A least or a largest length is no such decision, if the same formula comes out at what is asked for.
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
from qkv.cost.input_spec import names_of
from qkv.cost.meta_run import Play
from qkv.cost.polynomial import Expression, symbol

_HINTS = (101, 37, 23, 13, 7)
"""What stands for the letters: odd, prime, and the width of nothing, so that none is taken for another size."""


@dataclass(frozen=True)
class Derived:
    """The formulas, or why there are none."""

    executed: Expression | None
    needed: Expression | None = None
    why_not: str = ""
    bounds: tuple[Any, ...] = ()
    """Least and largest lengths that the module asked about, as relations in the letters."""


def derive(play: Play, asked: Mapping[str, int]) -> Derived:
    """Formulas of a forward pass in the named sizes of its inputs; at sizes `asked` it is known to run."""
    names = names_of(play.inputs)
    found = _derive_within(play, dict(zip(names, _HINTS, strict=False)), asked)
    below = _below(names, asked)
    return _derive_within(play, below, asked) if found.executed is None and below else found


def _below(names: Sequence[str], asked: Mapping[str, int]) -> dict[str, int]:
    """Hints no longer than asked, for a module that takes no more; nothing if there are none, or no others."""
    left, found = [*_HINTS], {}
    for name in names[: len(_HINTS)]:
        hint = next((hint for hint in left if hint <= asked[name]), None)
        if hint is None:
            return {}
        found[name] = hint
        left.remove(hint)
    return {} if [*found.values()] == [*_HINTS[: len(found)]] else found


def _derive_within(play: Play, hints: Mapping[str, int], asked: Mapping[str, int]) -> Derived:
    """The formulas at these hints; none if others come out beyond a bound that lies between hints and `asked`."""
    found = _derive(play, hints)
    there = {symbol(name): size for name, size in asked.items()}
    broken = [bound for bound in found.bounds if bound.subs(there) != sympy.true]
    if not broken:
        return found
    crossed = {str(letter) for bound in broken for letter in bound.free_symbols}
    # torch takes a length of 1 for no letter at all
    beyond = _derive(play, {name: max(asked[name], 2) if name in crossed else hint for name, hint in hints.items()})
    if (beyond.executed, beyond.needed) == (found.executed, found.needed):
        return found
    return Derived(None, why_not=f"the formula would hold only where {broken[0]}")


def _derive(play: Play, hints: Mapping[str, int]) -> Derived:
    from torch._dynamo.source import ConstantSource  # noqa: PLC0415 - it takes a second to load

    environment = _Letters(duck_shape=False)  # lengths that are equal by chance are two letters
    letters = {name: environment.create_symbol(hint, ConstantSource(name)) for name, hint in hints.items()}
    sizes = {name: environment.create_symintnode(letter, hint=hints[name]) for name, letter in letters.items()}
    fake = FakeTensorMode(shape_env=environment, allow_non_fake_inputs=True)
    try:
        with torch.no_grad(), _without_logs(), fake:
            weights = play.weights("cpu")
            tensors = [given.make(sizes, "cpu") for given in play.inputs]
            with count_multiplications() as counting:
                play.call(weights, tensors)
    except Exception as error:  # noqa: BLE001 - whatever a module does that letters cannot follow, this road ends
        tried = ", ".join(f"{name} = {hint}" for name, hint in hints.items())
        said = (str(error).strip() or "no word of why").splitlines()[0][:120]
        return Derived(None, why_not=f"tried at {tried}: {type(error).__name__}: {said}")
    asked_about = [_named(part, letters) for guard in environment.guards for part in sympy.And.make_args(guard.expr)]
    fixed = [guard for guard in asked_about if isinstance(guard, sympy.Eq)]
    if fixed or environment.replacements:
        return Derived(None, why_not=f"the module fixes a length: {fixed or environment.replacements}")
    chosen = next((guard for guard in asked_about if not _is_bound(guard)), None)
    if chosen is not None:
        return Derived(None, why_not=f"the module looks at the length to choose what it does: {chosen}")
    executed, spared = (_plain(x, letters) for x in (counting.total, sum(counting.spared_twice.values())))
    return Derived(executed, sympy.expand(executed - spared / 2), bounds=tuple(asked_about))


class _Letters(ShapeEnv):
    """Torch's letters, none asked which line of a module made it: to tell, torch would load all of its exporter."""

    def _get_user_frame(self) -> FrameType | None:
        return inspect.currentframe()


def _is_bound(relation: Any) -> bool:
    """Whether it is but a limit, such as n <= 1024 or n m > 64: one in which no length is weighed against another."""
    if not isinstance(relation, Relational):
        return False
    # a floor grows with what is under it
    difference = sympy.expand((relation.lhs - relation.rhs).replace(sympy.floor, lambda under: under))
    if not difference.is_polynomial(*difference.free_symbols):
        return False
    growing = {sympy.LC(term) > 0 for term in sympy.Add.make_args(difference) if term.free_symbols}
    return isinstance(relation, sympy.Ne) or len(growing) == 1


def _plain(count: Any, letters: Mapping[str, Any]) -> Expression:
    """Torch's count as one of our formulas."""
    if not isinstance(count, torch.SymInt):
        return sympy.Integer(count)
    return sympy.expand(_named(count.node.expr, letters))


def _named(expression: Any, letters: Mapping[str, Any]) -> Any:
    """Torch's symbols as ours: its letters by their names, its whole division as a floor."""
    expression = expression.replace(
        lambda part: type(part).__name__ in ("FloorDiv", "CleanDiv"),
        lambda part: sympy.floor(part.args[0] / part.args[1]),
    )
    return expression.subs({letter: symbol(name) for name, letter in letters.items()})


@contextmanager
def _without_logs() -> Iterator[None]:
    """Torch logs what it cannot follow; we say it ourselves."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(before)
