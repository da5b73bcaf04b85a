"""A module's cost, computed three independent ways that must agree.

declared   the module's own `cost(span)`: integers by arithmetic
derived    the module run once with symbolic lengths, if it does not branch on the length
counted    the module run on torch's meta device at several lengths, and the operations counted
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import sympy
from torch import Tensor, nn

from qkv.cost.counter import count_multiplications
from qkv.cost.input_spec import Input, size_names
from qkv.cost.memory import WeightBytes, inference_bytes, saved_bytes, weight_bytes
from qkv.cost.meta_run import DataDependentError, ForwardError, ModuleCall, count_backward, count_forward, module_mode
from qkv.cost.polynomial import Expression, Sizes, evaluate, interpolate, interpolate_near
from qkv.cost.record import Cost, Span
from qkv.cost.symbolic import DerivedFormulas, derive_formulas

CONVENTION = (
    "a multiplication is one inside a matrix product, a convolution or an einsum; FLOPs are twice as many",
    "needed: what the formula needs; executed: what the code runs, including masked halves of causal squares",
    "elementwise work (softmax, norms, activations, scales) is counted by class and not added to multiplications",
    "tied weights and layers called again count once as parameters and at each call as multiplications",
)
MAX_REAL_BYTES = 2 * 2**30
"""Bytes of meta weights above which a module that reads tensor values is not run on the CPU."""
_MAX_DEGREE = 2
_DTYPE_BYTES = {"bfloat16": 2, "float32": 4, "float64": 8}


@dataclass(frozen=True)
class Quantity:
    """A value, its formula, and the terms it is the sum of."""

    value: int | None
    formula: Expression | None = None
    terms: dict[str, "Quantity"] = field(default_factory=dict)
    holds: str = ""
    """Where the formula holds, if not everywhere, or why it is missing."""


@dataclass(frozen=True)
class CostReport:
    """Cost of one call of a module."""

    call: ModuleCall
    sizes: Sizes
    parameters: Quantity
    needed: Quantity
    executed: Quantity
    methods: dict[str, Quantity]
    """Multiplications executed: declared, derived and counted; a method without a result gives the reason."""
    modules: dict[str, int]
    """Module path -> multiplications it runs itself, without submodules."""
    by_op_class: dict[str, int]
    """Elementwise work: op class -> operations."""
    unknown: dict[str, int]
    """Operations of unknown cost -> how often they ran; if there are any, all counts are too low."""
    backward: dict[str, int | None]
    weights: WeightBytes
    memory: dict[str, Quantity]
    """Bytes: saved (for backward), peak (of inference), cache (after all tokens)."""
    cache_by_dtype: dict[str, Quantity]
    """Dtype -> bytes of the cache in that dtype."""

    @property
    def name(self) -> str:
        """Class name of the module."""
        return type(self.call.module).__name__

    @property
    def agree(self) -> bool:
        """Whether all methods with a result give the same value and formula."""
        values = {method.value for method in self.methods.values() if method.value is not None}
        formulas = {sympy.expand(method.formula) for method in self.methods.values() if method.formula is not None}
        return len(values) == 1 and len(formulas) <= 1


def analyze(
    module: nn.Module,
    inputs: Sequence[Input | Tensor | str],
    sizes: Mapping[str, int] | None = None,
    *,
    optimizer: str = "adam",
    options: Mapping[str, Any] | None = None,
) -> CostReport:
    """Return the cost of `module(*inputs, **options)`; inputs are tensors or specs such as "float[1,n,768]".

    The module runs on torch's meta device and computes nothing (on the CPU only if it reads tensor values).
    `sizes` maps the named sizes of the inputs to values.
    """
    call = ModuleCall(module, tuple(map(Input.from_value, inputs)), dict(options or {}))
    given = sizes or {}
    values = {name: given.get(name, 0) for name in size_names(call.inputs)}
    for name, size in values.items():
        if size < 1:
            raise ValueError(f"size {name!r} needs a value of at least 1, got {given.get(name)}")
    with module_mode(module, training=False):
        return _ReportBuilder(call, values, optimizer).build()


class _ReportBuilder:
    """Builder of the report of one call; each run is made once and cached."""

    def __init__(self, call: ModuleCall, sizes: Sizes, optimizer: str):
        self.call, self.sizes, self.optimizer = call, sizes, optimizer
        self.degrees = dict.fromkeys(sizes, _MAX_DEGREE)
        self.reason_for_real_run = ""
        self._counted = cache(lambda at: count_forward(self.call, dict(at)))

    def build(self) -> CostReport:
        counting = self._count(self.sizes)
        declared = self._declared(self._element_bytes())
        derived = derive_formulas(self.call, self.sizes) if self.sizes else None
        memory = self._memory(declared)
        module = self.call.module
        counted = self._sum_terms(lambda sizes: dict(self._count(sizes).by_module))
        if declared is None:
            needed, executed = self._sum_terms(self._needed_by_module), counted
        else:
            needed = self._sum_terms(_group_of(declared, "needed"), near=True)
            executed = self._sum_terms(_group_of(declared, "executed"))
        return CostReport(
            call=self.call,
            sizes=self.sizes,
            parameters=_parameters(module, None if declared is None else declared(self.sizes)),
            needed=needed,
            executed=executed,
            methods=self._methods(declared, derived, counted),
            modules={path: int(n) for path, n in counting.by_module.items() if n},
            by_op_class={name: int(n) for name, n in counting.by_op_class.items()},
            unknown=dict(counting.unknown),
            backward=self._backward(),
            weights=weight_bytes(module, self.optimizer),
            memory=memory,
            cache_by_dtype=self._cache_by_type(memory["cache"]),
        )

    def _count(self, sizes: Sizes) -> count_multiplications:
        try:
            return self._counted(tuple(sizes.items()))
        except DataDependentError as error:
            if sum(p.nbytes for p in self.call.module.parameters() if p.is_meta) > MAX_REAL_BYTES:
                raise ForwardError(self.call, sizes, error) from error
            self.call, self.reason_for_real_run = replace(self.call, real_weights=True), str(error)
            return self._counted(tuple(sizes.items()))

    def _needed_by_module(self, sizes: Sizes) -> dict[str, int]:
        counting = self._count(sizes)
        return {path: n - counting.causal_excess_doubled[path] // 2 for path, n in counting.by_module.items()}

    def _sum_terms(self, function: Callable[[Sizes], dict[str, int]], *, near: bool = False) -> Quantity:
        """Return the terms with their formulas, and their sum."""
        cached = cache(lambda at: function(dict(at)))
        values = function(self.sizes)
        terms = {name: self._quantity(_term(cached, name), value, near=near) for name, value in values.items() if value}
        formulas = [term.formula for term in terms.values() if term.formula is not None]
        complete = len(formulas) == len(terms) and bool(self.sizes)
        formula = sympy.expand(sympy.Add(*formulas)) if complete else None
        holds = next((term.holds for term in terms.values() if term.holds), "")
        return Quantity(sum(values.values()), formula, terms, holds)

    def _quantity(
        self, function: Callable[[Sizes], int], value: int, *, near: bool = True, checks: int = 2
    ) -> Quantity:
        if not self.sizes:
            return Quantity(value)
        try:
            found = interpolate(function, self.degrees, self.sizes, checks=checks)
            if found is not None:
                return Quantity(value, found)
            if not near:
                return Quantity(value, None, holds="no polynomial of the sizes")
            found = interpolate_near(function, self.degrees, self.sizes)
            return Quantity(value, found, holds="around these sizes" if found is not None else "no polynomial there")
        except ValueError as error:  # the module rejects one of the lengths tried
            return Quantity(value, None, holds=f"no formula: {error}")

    def _element_bytes(self) -> int:
        """Return the bytes of one value of the module: its narrowest floating dtype."""
        return min((p.element_size() for p in self.call.module.parameters() if p.is_floating_point()), default=4)

    def _cache_by_type(self, cache: Quantity) -> dict[str, Quantity]:
        """Return the cache in each dtype: declared again, or scaled if it was counted."""
        found = {}
        for name, element_bytes in _DTYPE_BYTES.items():
            declared = self._declared(element_bytes)
            if declared is not None and declared(self.sizes).state:
                found[name] = self._sum_terms(_group_of(declared, "state"), near=True)
            elif cache.value is not None:
                ratio = sympy.Rational(element_bytes, self._element_bytes())
                formula = None if cache.formula is None else cache.formula * ratio
                found[name] = Quantity(int(cache.value * ratio), formula, holds=cache.holds)
        return found

    def _declared(self, element_bytes: int) -> "Callable[[Sizes], Cost] | None":
        """Return sizes -> declared cost, or None if the module declares none for such inputs."""
        module: Any = self.call.module
        shapes = [given.shape for given in self.call.inputs]
        if not hasattr(module, "cost") or len(shapes) > 2 or any(len(shape) < 2 for shape in shapes):
            return None

        @cache
        def at(sizes: tuple[tuple[str, int], ...]) -> Cost:
            *source, target = (given.resolve_shape(dict(sizes)) for given in self.call.inputs)
            span = Span(
                target[0],
                target[1],
                context=source[0][1] if source else None,
                causal=bool(self.call.options.get("causal")),
                element_bytes=element_bytes,
            )
            return module.cost(span)

        return lambda sizes: at(tuple(sizes.items()))

    def _methods(
        self, declared: Callable[[Sizes], Cost] | None, derived: DerivedFormulas | None, counted: Quantity
    ) -> dict[str, Quantity]:
        """Return the multiplications executed according to each method."""
        methods = {"declared": Quantity(None, holds="the module declares no cost")}
        if declared is not None:
            total = self._sum_terms(_group_of(declared, "executed"))
            methods["declared"] = Quantity(total.value, total.formula, holds=total.holds)
        reason = "no size has a name" if derived is None else derived.reason
        methods["derived"] = Quantity(None, holds=reason)
        if derived is not None and derived.executed is not None:
            methods["derived"] = Quantity(int(evaluate(derived.executed, self.sizes)), derived.executed)
        holds = f"run for real: {self.reason_for_real_run}" if self.call.real_weights else counted.holds
        methods["counted"] = Quantity(counted.value, counted.formula, holds=holds)
        return methods

    def _backward(self) -> dict[str, int | None]:
        def count(*, input_gradients: bool) -> int | None:
            try:
                return count_backward(self.call, self.sizes, input_gradients=input_gradients)
            except Exception:  # noqa: BLE001 - some modules are not differentiable on meta, or at all
                return None

        without = count(input_gradients=False)
        differentiable = any(given.dtype.is_floating_point for given in self.call.inputs)  # tokens have no gradient
        both = count(input_gradients=True) if differentiable else without
        return {"inputs without gradient": without, "inputs with gradient": both}

    def _memory(self, declared: Callable[[Sizes], Cost] | None) -> dict[str, Quantity]:
        saved = cache(lambda at: saved_bytes(self.call, dict(at)))
        inference = cache(lambda at: inference_bytes(self.call, dict(at)))  # one run gives peak and cache
        memory = {
            "saved": self._bytes(lambda sizes: saved(tuple(sizes.items()))),
            "peak": self._bytes(lambda sizes: inference(tuple(sizes.items()))[0]),
        }
        if declared is not None and declared(self.sizes).state:
            return memory | {"cache": self._sum_terms(_group_of(declared, "state"), near=True)}
        return memory | {"cache": self._bytes(lambda sizes: inference(tuple(sizes.items()))[1])}

    def _bytes(self, measure: Callable[[Sizes], int | None]) -> Quantity:
        """Return measured bytes with their formula, or the reason why they cannot be measured."""
        try:
            value = measure(self.sizes)
            if value is None:
                return Quantity(None, holds="the module returns no cache")
            checks = 2 if self.call.real_weights else 0  # a kernel that really runs may round up its buffers
            return self._quantity(lambda sizes: measure(sizes) or 0, value, checks=checks)
        except Exception as error:  # noqa: BLE001 - a module may do anything that meta tensors cannot follow
            return Quantity(None, holds=str(error).strip().split("\n")[0][:120])


def _group_of(declared: Callable[[Sizes], Cost], group: str) -> Callable[[Sizes], dict[str, int]]:
    return lambda sizes: getattr(declared(sizes), group)


def _term(function: Callable[[tuple[tuple[str, int], ...]], dict[str, int]], name: str) -> Callable[[Sizes], int]:
    return lambda sizes: function(tuple(sizes.items())).get(name, 0)


def _parameters(module: nn.Module, declared: Cost | None) -> Quantity:
    """Return the number of parameters, each counted once, by the module that owns them."""
    counts: Counter[str] = Counter()
    for name, weight in module.named_parameters():
        counts[name.rpartition(".")[0]] += weight.numel()
    terms = dict(counts) if declared is None else declared.parameters
    total = sum(weight.numel() for weight in module.parameters())
    quantities = {name: Quantity(n, sympy.Integer(n)) for name, n in terms.items() if n}
    return Quantity(total, sympy.Integer(total), quantities)
