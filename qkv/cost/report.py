"""A module's cost, computed three independent ways that must agree.

declared   the module's own `cost(span)`: integers by arithmetic
derived    the module run once with symbolic lengths, if it does not branch on the length
counted    the module run on torch's meta device at several lengths, and the operations counted
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations, product
from typing import Any, TypeVar

import sympy
from torch import Tensor, nn

from qkv.cost.counter import count_multiplications
from qkv.cost.formula_range import CountFunction, Holds, TooLongError, find_formula, sample_sizes, verify_formula
from qkv.cost.input_spec import Input, size_names
from qkv.cost.memory import WeightBytes, inference_bytes, saved_bytes, weight_bytes
from qkv.cost.meta_run import (
    DataDependentError,
    ForwardError,
    ModuleCall,
    count_backward,
    count_forward,
    describe_error,
    module_mode,
)
from qkv.cost.polynomial import Expression, Sizes, evaluate
from qkv.cost.record import Cost
from qkv.cost.symbolic import DerivedFormulas, derive_formulas

CONVENTION = (
    "a multiplication is one inside a matrix product, a convolution or an einsum; FLOPs are twice as many",
    "needed: what the formula needs; executed: what the code runs, including masked halves of causal squares",
    "elementwise work (softmax, norms, activations, scales) is counted by class and not added to multiplications",
    "tied weights and layers called again count once as parameters and at each call as multiplications",
)
Result = TypeVar("Result")
MAX_REAL_BYTES = 2 * 2**30
"""Bytes of meta weights above which a module that reads tensor values is not run on the CPU."""
MAX_OPERATIONS = 1_500
"""Operations in one run above which formulas are not verified at larger sizes; a loop over tokens runs many.

A run of the requested size with more than a quarter of that many raises the limit to four times its own.
"""
MANY_OPERATIONS = 60
"""Operations in one run above which formulas are verified at fewer sizes."""
VERY_MANY_OPERATIONS = 600
"""Operations in one run above which formulas are verified at the fewest sizes."""
_MAX_DEGREE = 2
_DTYPE_BYTES = {"bfloat16": 2, "float32": 4, "float64": 8}


@dataclass(frozen=True)
class Quantity:
    """A value, its formula, and the terms it is the sum of."""

    value: int | None
    formula: Expression | None = None
    terms: dict[str, "Quantity"] = field(default_factory=dict)
    holds: Holds | None = None
    """Size name -> first and last size at which the formula was verified; None: there is no formula."""
    note: str = ""
    """Why the value or the formula is missing, or how the value was found."""


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
        """Whether all methods with a result give the same value, and their formulas the same values where they hold."""
        found = [method for method in self.methods.values() if method.value is not None]
        return len({method.value for method in found}) == 1 and all(
            _formulas_agree(one, other) for one, other in combinations(found, 2)
        )


def _formulas_agree(first: Quantity, second: Quantity) -> bool:
    """Return whether two formulas are equal at the ends of the range in which both hold."""
    if first.holds is None or second.holds is None:
        return True
    shared = {
        name: (max(start, second.holds[name][0]), min(end, second.holds[name][1]))
        for name, (start, end) in first.holds.items()
    }
    corners = [dict(zip(shared, corner, strict=True)) for corner in product(*shared.values())]
    return all(evaluate(first.formula, at) == evaluate(second.formula, at) for at in corners)


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
            came = f"got {given[name]}" if name in given else "but has none"
            raise ValueError(f"size {name!r} of the input needs a value of at least 1, {came}")
    with module_mode(module, training=False):
        return _ReportBuilder(call, values, optimizer).build()


class _ReportBuilder:
    """Builder of the report of one call; each run is made once and cached."""

    def __init__(self, call: ModuleCall, sizes: Sizes, optimizer: str):
        self.call, self.sizes, self.optimizer = call, sizes, optimizer
        self.degrees = dict.fromkeys(sizes, _MAX_DEGREE)
        self.reason_for_real_run = ""
        self._counted = _once_per_size(lambda sizes: count_forward(self.call, sizes))

    def build(self) -> CostReport:
        counting = self._count(self.sizes)
        declared = self._declared(self._element_bytes())
        derived = derive_formulas(self.call, self.sizes) if self.sizes else None
        memory = self._memory(declared)
        module = self.call.module
        counted = self._sum_terms(self._counted_by_module)
        if declared is None:
            needed, executed = self._sum_terms(self._needed_by_module), counted
        else:
            needed = self._sum_declared(declared, "needed")
            executed = self._sum_declared(declared, "executed")
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
            return self._counted(sizes)
        except DataDependentError as error:
            if sum(p.nbytes for p in self.call.module.parameters() if p.is_meta) > MAX_REAL_BYTES:
                raise ForwardError(self.call, sizes, error) from error
            self.call, self.reason_for_real_run = replace(self.call, real_weights=True), str(error)
            return self._counted(sizes)

    def _counted_by_module(self, sizes: Sizes) -> dict[str, int]:
        self._require_short(sizes)
        return dict(self._count(sizes).by_module)

    def _needed_by_module(self, sizes: Sizes) -> dict[str, int]:
        self._require_short(sizes)
        counting = self._count(sizes)
        return {path: n - counting.causal_excess_doubled[path] // 2 for path, n in counting.by_module.items()}

    def _sum_terms(self, function: Callable[[Sizes], dict[str, int]]) -> Quantity:
        """Return the terms and their sum, each with its formula."""
        at = _once_per_size(function)
        values = at(self.sizes)
        terms = {name: self._quantity(_term(at, name), value) for name, value in values.items() if value}
        total = self._quantity(lambda sizes: sum(at(sizes).values()), sum(values.values()))
        return replace(total, terms=terms)

    def _quantity(self, function: CountFunction, value: int) -> Quantity:
        if not self.sizes:
            return Quantity(value)
        found = find_formula(function, self.degrees, self.sizes, samples=self._samples)
        if found is None:
            return Quantity(value, note="no polynomial around these sizes")
        return Quantity(value, found.expression, holds=found.holds)

    def _require_short(self, sizes: Sizes) -> None:
        """Raise if a run at larger sizes than the requested ones takes too long."""
        if all(sizes[name] <= requested for name, requested in self.sizes.items()):
            return
        if self.call.real_weights or self._count(sizes).dispatched > max(
            MAX_OPERATIONS, 4 * self._count(self.sizes).dispatched
        ):
            raise TooLongError

    def _element_bytes(self) -> int:
        """Return the bytes of one value of the module: its narrowest floating dtype."""
        return min((p.element_size() for p in self.call.module.parameters() if p.is_floating_point()), default=4)

    def _cache_by_type(self, cache: Quantity) -> dict[str, Quantity]:
        """Return the cache in each dtype: declared again, or scaled if it was counted."""
        found = {}
        for name, element_bytes in _DTYPE_BYTES.items():
            declared = self._declared(element_bytes)
            if declared is not None and declared(self.sizes).state:
                found[name] = self._sum_declared(declared, "state")
            elif cache.value is not None:
                ratio = sympy.Rational(element_bytes, self._element_bytes())
                formula = None if cache.formula is None else cache.formula * ratio
                found[name] = replace(cache, value=int(cache.value * ratio), formula=formula)
        return found

    def _declared(self, element_bytes: int) -> "Callable[[Sizes], Cost] | None":
        """Return sizes -> declared cost, or None if the module declares none for such inputs."""
        if not self.call.declares_cost:
            return None
        return _once_per_size(lambda sizes: self.call.declared_cost(sizes, element_bytes))

    def _methods(
        self, declared: Callable[[Sizes], Cost] | None, derived: DerivedFormulas | None, counted: Quantity
    ) -> dict[str, Quantity]:
        """Return the multiplications executed according to each method."""
        methods = {"declared": Quantity(None, note="the module declares no cost")}
        if declared is not None:
            methods["declared"] = replace(self._sum_declared(declared, "executed"), terms={})
        reason = "no size has a name" if derived is None else derived.reason
        methods["derived"] = Quantity(None, note=reason)
        if derived is not None and derived.executed is not None:
            total = lambda sizes: sum(self._counted_by_module(sizes).values())  # noqa: E731
            holds = verify_formula(total, derived.executed, self.sizes, samples=self._samples)
            methods["derived"] = Quantity(int(evaluate(derived.executed, self.sizes)), derived.executed, holds=holds)
        note = f"run for real: {self.reason_for_real_run}" if self.call.real_weights else counted.note
        methods["counted"] = replace(counted, terms={}, note=note)
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
        inference = _once_per_size(lambda sizes: inference_bytes(self.call, sizes))  # one run gives peak and cache
        memory = {
            "saved": self._bytes(_once_per_size(lambda sizes: saved_bytes(self.call, sizes))),
            "peak": self._bytes(lambda sizes: inference(sizes)[0]),
        }
        if declared is not None and declared(self.sizes).state:
            return memory | {"cache": self._sum_declared(declared, "state")}
        return memory | {"cache": self._bytes(lambda sizes: inference(sizes)[1])}

    @cached_property
    def _samples(self) -> list[int]:
        """Sizes at which formulas are verified; fewer for a large module."""
        operations = self._count(self.sizes).dispatched
        if operations > VERY_MANY_OPERATIONS:
            return sample_sizes(every=0)
        return sample_sizes(every=4 if len(self.sizes) > 1 or operations > MANY_OPERATIONS else 1)

    @cached_property
    def _accepted(self) -> Holds:
        """The range of each size at which the module runs, as far as was tried."""

        def zero(sizes: Sizes) -> int:
            return 0 * len(self._counted_by_module(sizes))

        return verify_formula(zero, sympy.Integer(0), self.sizes, samples=self._samples)

    def _sum_declared(self, declared: Callable[[Sizes], Cost], group: str) -> Quantity:
        """Return a group of declared terms; formulas are restricted to sizes that the module accepts."""
        total = self._sum_terms(lambda sizes: getattr(declared(sizes), group))
        terms = {name: _restrict(term, self._accepted) for name, term in total.terms.items()}
        return replace(_restrict(total, self._accepted), terms=terms)

    def _bytes(self, measure: Callable[[Sizes], int | None]) -> Quantity:
        """Return measured bytes with their formula, or the reason why they cannot be measured."""
        try:
            value = measure(self.sizes)
        except Exception as error:  # noqa: BLE001 - a module may do anything that meta tensors cannot follow
            return Quantity(None, note=f"cannot be measured: {describe_error(error)}")
        if value is None:
            return Quantity(None, note="the module returns no cache")
        if self.call.real_weights:  # a kernel that really runs may round up its buffers
            return Quantity(value, note="measured in a run on the CPU")

        def at(sizes: Sizes) -> int:
            self._require_short(sizes)
            try:
                return measure(sizes) or 0
            except Exception as error:
                raise ValueError(f"the module rejects {sizes}") from error

        return self._quantity(at, value)


def _restrict(quantity: Quantity, accepted: Holds) -> Quantity:
    """Return the quantity with its range limited to the sizes that the module accepts."""
    if not quantity.holds:
        return quantity
    spans = {
        name: (max(start, accepted[name][0]), min(end, accepted[name][1]))
        for name, (start, end) in quantity.holds.items()
    }
    return replace(quantity, holds=spans)


def _term(function: Callable[[Sizes], dict[str, int]], name: str) -> Callable[[Sizes], int]:
    return lambda sizes: function(sizes).get(name, 0)


def _once_per_size(function: Callable[[Sizes], Result]) -> Callable[[Sizes], Result]:
    """Cache results by sizes, and rejections too: the ValueError is raised again."""
    results: dict[tuple[tuple[str, int], ...], Result] = {}
    rejections: dict[tuple[tuple[str, int], ...], ValueError] = {}

    def at(sizes: Sizes) -> Result:
        key = tuple(sorted(sizes.items()))
        if key in rejections:
            raise rejections[key]
        if key not in results:
            try:
                results[key] = function(sizes)
            except ValueError as error:
                rejections[key] = error
                raise
        return results[key]

    return at


def _parameters(module: nn.Module, declared: Cost | None) -> Quantity:
    """Return the number of parameters, each counted once, by the module that owns them."""
    counts: Counter[str] = Counter()
    for name, weight in module.named_parameters():
        counts[name.rpartition(".")[0]] += weight.numel()
    terms = dict(counts) if declared is None else declared.parameters
    total = sum(weight.numel() for weight in module.parameters())
    quantities = {name: Quantity(n, sympy.Integer(n), holds={}) for name, n in terms.items() if n}
    return Quantity(total, sympy.Integer(total), quantities, holds={})
