"""All that a module costs, by three roads that must agree.

declared   the module says it itself: `cost(span)`, integers by arithmetic
derived    the module run once with letters for lengths: any module that does not look at its length
counted    the module run on torch's meta device at several lengths, and what was multiplied there
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import sympy
from torch import Tensor, nn

from qkv.cost.input_spec import Input, names_of
from qkv.cost.memory import Weights, inference_bytes, saved_bytes, weigh
from qkv.cost.meta_run import ForwardError, NotOnMeta, Play, count, count_backward, mode
from qkv.cost.polynomial import Expression, Sizes, evaluate, interpolate, interpolate_near
from qkv.cost.record import Cost, Span
from qkv.cost.symbolic import Derived, derive

CONVENTION = (
    "a multiplication is one inside a matrix product, a convolution or an einsum; FLOPs are twice as many",
    "needed: what the formula asks for; executed: what the code runs, useless halves of causal squares too",
    "elementwise work (softmax, norms, activations, scales) stands in ledgers of its own and is added to nothing",
    "tied weights and layers that are called again count once as parameters, each time as multiplications",
)
_DEGREE = 2
_WIDTHS = {"bfloat16": 2, "float32": 4, "float64": 8}


@dataclass(frozen=True)
class Quantity:
    """A value with its formula, and what it is the sum of."""

    value: int | None
    formula: Expression | None = None
    terms: dict[str, "Quantity"] = field(default_factory=dict)
    holds: str = ""
    """Where the formula holds, if not everywhere; or why there is none."""


@dataclass(frozen=True)
class Report:
    """What one module costs at one call."""

    play: Play
    """The module and its call."""
    sizes: Sizes
    parameters: Quantity
    needed: Quantity
    executed: Quantity
    roads: dict[str, Quantity]
    """Multiplications executed by declared, derived and counted; a road that could not be gone says why."""
    modules: dict[str, int]
    """Path of each module -> multiplications that it ran itself."""
    ledgers: dict[str, int]
    unknown: dict[str, int]
    """Operations that stand in no table, and how often they ran. If there are any, no number here is whole."""
    backward: dict[str, int | None]
    weights: Weights
    memory: dict[str, Quantity]
    """saved (for the backward pass), peak (of inference), cache (after all tokens)."""
    cache_by_type: dict[str, Quantity]
    """The cache if its numbers were of this type."""

    @property
    def name(self) -> str:
        """The class of the module."""
        return type(self.play.module).__name__

    @property
    def agree(self) -> bool:
        """Whether all roads that could be gone lead to the same number and formula."""
        values = {road.value for road in self.roads.values() if road.value is not None}
        formulas = {sympy.expand(road.formula) for road in self.roads.values() if road.formula is not None}
        return len(values) == 1 and len(formulas) <= 1


def of(
    module: nn.Module,
    inputs: Sequence[Input | Tensor | str],
    sizes: Mapping[str, int] | None = None,
    *,
    optimizer: str = "adam",
    options: Mapping[str, Any] | None = None,
) -> Report:
    """What `module(*inputs, **options)` costs; inputs are tensors or words such as "float[1,n,768]".

    Nothing is computed: the module runs on torch's meta device (for real only if it must look at
    numbers). `sizes` gives the named sizes of the inputs values.
    """
    play = Play(module, tuple(map(Input.of, inputs)), dict(options or {}))
    asked = {name: (sizes or {}).get(name, 0) for name in names_of(play.inputs)}
    for name, size in asked.items():
        if size < 1:
            raise ValueError(f"size {name!r} needs a value of at least 1, got {(sizes or {}).get(name)}")
    with mode(module, training=False):
        return _Inquiry(play, asked, optimizer).report()


class _Inquiry:
    """One module and one call, asked from all sides; every run is made once."""

    def __init__(self, play: Play, asked: Sizes, optimizer: str):
        self.play, self.asked, self.optimizer = play, asked, optimizer
        self.degrees = dict.fromkeys(asked, _DEGREE)
        self.why_real = ""
        self._counted = cache(lambda at: count(self.play, dict(at)))

    def report(self) -> Report:
        counting = self._count(self.asked)
        declared, derived = self._declared(self._width()), derive(self.play, self.asked) if self.asked else None
        memory = self._memory(declared)
        module, own = self.play.module, {path: int(n) for path, n in counting.by_module.items() if n}
        executed = self._sum(lambda sizes: dict(self._count(sizes).by_module))
        needed = (
            self._sum(self._needed_by_module) if declared is None else self._sum(_in(declared, "needed"), near=True)
        )
        return Report(
            play=self.play,
            sizes=self.asked,
            parameters=_parameters(module, None if declared is None else declared(self.asked)),
            needed=needed,
            executed=executed if declared is None else self._sum(_in(declared, "executed")),
            roads=self._roads(declared, derived, executed),
            modules=own,
            ledgers={name: int(n) for name, n in counting.ledgers.items()},
            unknown=dict(counting.unknown),
            backward=self._backward(),
            weights=weigh(module, self.optimizer),
            memory=memory,
            cache_by_type=self._cache_by_type(memory["cache"]),
        )

    def _count(self, sizes: Sizes) -> Any:
        try:
            return self._counted(tuple(sizes.items()))
        except NotOnMeta as error:
            if any(p.is_meta for p in self.play.module.parameters()):
                raise ForwardError(self.play, sizes, error) from error
            self.play, self.why_real = replace(self.play, real=True), str(error)
            return self._counted(tuple(sizes.items()))

    def _needed_by_module(self, sizes: Sizes) -> dict[str, int]:
        counting = self._count(sizes)
        return {path: n - counting.spared_twice[path] // 2 for path, n in counting.by_module.items()}

    def _sum(self, function: Callable[[Sizes], dict[str, int]], *, near: bool = False) -> Quantity:
        """Terms with their formulas, and the sum of both."""
        remembered = cache(lambda at: function(dict(at)))
        here = function(self.asked)
        terms = {name: self._quantity(_term(remembered, name), here[name], near=near) for name in here if here[name]}
        formulas = [term.formula for term in terms.values() if term.formula is not None]
        whole = len(formulas) == len(terms) and bool(self.asked)
        formula = sympy.expand(sympy.Add(*formulas)) if whole else None
        holds = next((term.holds for term in terms.values() if term.holds), "")
        return Quantity(sum(here.values()), formula, terms, holds)

    def _quantity(
        self, function: Callable[[Sizes], int], value: int, *, near: bool = True, checks: int = 2
    ) -> Quantity:
        if not self.asked:
            return Quantity(value)
        try:
            found = interpolate(function, self.degrees, self.asked, checks=checks)
            if found is not None or not near:
                return Quantity(value, found, holds="" if found is not None else "no polynomial of the sizes")
            found = interpolate_near(function, self.degrees, self.asked)
            return Quantity(value, found, holds="around these sizes" if found is not None else "no polynomial there")
        except ValueError as error:  # the module refuses one of the lengths tried
            return Quantity(value, None, holds=f"no formula: {error}")

    def _width(self) -> int:
        """Bytes of one number of the module."""
        return min((p.element_size() for p in self.play.module.parameters() if p.is_floating_point()), default=4)

    def _cache_by_type(self, cache: Quantity) -> dict[str, Quantity]:
        """Declared again at each width; what was counted is proportional to it."""
        found = {}
        for name, width in _WIDTHS.items():
            declared = self._declared(width)
            if declared is not None and declared(self.asked).state:
                found[name] = self._sum(_in(declared, "state"), near=True)
            elif cache.value is not None:
                share = sympy.Rational(width, self._width())
                formula = None if cache.formula is None else cache.formula * share
                found[name] = Quantity(int(cache.value * share), formula, holds=cache.holds)
        return found

    def _declared(self, width: int) -> "Callable[[Sizes], Cost] | None":
        module: Any = self.play.module
        shapes = [given.shape for given in self.play.inputs]
        if not hasattr(module, "cost") or len(shapes) > 2 or any(len(shape) < 2 for shape in shapes):
            return None

        @cache
        def at(sizes: tuple[tuple[str, int], ...]) -> Cost:
            *source, target = (given.sizes(dict(sizes)) for given in self.play.inputs)
            span = Span(
                target[0],
                target[1],
                context=source[0][1] if source else None,
                causal=bool(self.play.options.get("causal")),
                element_bytes=width,
            )
            return module.cost(span)

        return lambda sizes: at(tuple(sizes.items()))

    def _roads(
        self, declared: Callable[[Sizes], Cost] | None, derived: Derived | None, executed: Quantity
    ) -> dict[str, Quantity]:
        roads = {"declared": Quantity(None, holds="the module declares no cost")}
        if declared is not None:
            told = self._sum(_in(declared, "executed"))
            roads["declared"] = Quantity(told.value, told.formula, holds=told.holds)
        why = "no size has a name" if derived is None else derived.why_not
        roads["derived"] = Quantity(None, holds=why)
        if derived is not None and derived.executed is not None:
            roads["derived"] = Quantity(int(evaluate(derived.executed, self.asked)), derived.executed)
        holds = f"run for real: {self.why_real}" if self.play.real else executed.holds
        roads["counted"] = Quantity(executed.value, executed.formula, holds=holds)
        return roads

    def _backward(self) -> dict[str, int | None]:
        def counted(*, inputs_learn: bool) -> int | None:
            try:
                return count_backward(self.play, self.asked, inputs_learn=inputs_learn)
            except Exception:  # noqa: BLE001 - some modules cannot be differentiated on meta, or at all
                return None

        alone = counted(inputs_learn=False)
        able = any(given.dtype.is_floating_point for given in self.play.inputs)  # tokens have no gradient
        both = counted(inputs_learn=True) if able else alone
        return {"inputs without gradient": alone, "inputs with gradient": both}

    def _memory(self, declared: Callable[[Sizes], Cost] | None) -> dict[str, Quantity]:
        def held(measure: Callable[[Play, Mapping[str, int]], int | None]) -> Quantity:
            try:
                once = cache(lambda at: measure(self.play, dict(at)))
                value = once(tuple(self.asked.items()))
                if value is None:
                    return Quantity(None, holds="the module hands out no cache")
                checks = 2 if self.play.real else 0  # a kernel that really runs may round up what it keeps
                return self._quantity(lambda sizes: once(tuple(sizes.items())) or 0, value, checks=checks)
            except Exception as error:  # noqa: BLE001 - what fake tensors cannot follow has no figure, and says so
                return Quantity(None, holds=str(error).strip().split("\n")[0][:120])

        inference = cache(lambda at: inference_bytes(self.play, dict(at)))  # one run tells both
        peak, kept = (lambda _, at, place=place: inference(tuple(at.items()))[place] for place in (0, 1))
        memory = {"saved": held(saved_bytes), "peak": held(peak)}
        if declared is not None and declared(self.asked).state:
            return memory | {"cache": self._sum(_in(declared, "state"), near=True)}
        return memory | {"cache": held(kept)}


def _in(declared: Callable[[Sizes], Cost], ledger: str) -> Callable[[Sizes], dict[str, int]]:
    return lambda sizes: getattr(declared(sizes), ledger)


def _term(function: Callable[[tuple[tuple[str, int], ...]], dict[str, int]], name: str) -> Callable[[Sizes], int]:
    return lambda sizes: function(tuple(sizes.items())).get(name, 0)


def _parameters(module: nn.Module, declared: Cost | None) -> Quantity:
    """Each once; by the module that owns them."""
    counts: Counter[str] = Counter()
    for name, weight in module.named_parameters():
        counts[name.rpartition(".")[0]] += weight.numel()
    terms = dict(counts) if declared is None else declared.parameters
    total = sum(weight.numel() for weight in module.parameters())
    return Quantity(
        total, sympy.Integer(total), {name: Quantity(n, sympy.Integer(n)) for name, n in terms.items() if n}
    )
