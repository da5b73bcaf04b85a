"""Forecast the time of a forward pass on this CPU from its operations and the machine's rates; and measure it.

seconds = sum over operations, over terms, of (amount * seconds per unit), plus one rate per Python call
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from qkv.cost.counter import count_multiplications
from qkv.cost.meta_run import ModuleCall, dry_run, module_mode, unfused_layers
from qkv.profile.timing.python_overhead import count_calls
from qkv.profile.timing.rates import Rates
from qkv.profile.timing.rates_cache import machine_rates
from qkv.profile.timing.timer import fastest_seconds, warm_allocator

MAX_MEASURED_BYTES = 2 * 2**30
"""Bytes of weights above which a module is predicted but not measured."""


@dataclass(frozen=True)
class Forecast:
    """Seconds of one forward pass."""

    parts: dict[str, float]
    """Operation category -> predicted seconds; "python" is the program between the operations."""
    measured: float | None
    """None: too large to run here, or in half precision, which is not run on a CPU."""

    @property
    def predicted(self) -> float:
        """Sum of the parts."""
        return sum(self.parts.values())

    @property
    def ratio(self) -> float:
        """predicted / measured"""
        return float("nan") if self.measured is None else self.predicted / self.measured


def forecast(call: ModuleCall, sizes: Mapping[str, int], rates: Rates | None = None) -> Forecast:
    """Predict from the rates (default: of this machine) and measure; a module too large is only predicted."""
    rates = rates or machine_rates()
    module = _with_real_weights(call.module)
    if module is None:
        return Forecast(_predict_on_meta(call, sizes, rates), None)
    tensors = [given.make_tensor(sizes, "cpu") for given in call.inputs]
    tensors = [torch.randn_like(x) if x.is_floating_point() else x for x in tensors]
    with module_mode(module, training=False), torch.no_grad(), unfused_layers():
        parts = predict_call(lambda: module(*tensors, **call.options), rates)
        warm_allocator()
        measured = fastest_seconds(lambda: module(*tensors, **call.options), seconds=0.3)
    return Forecast(parts, measured)


def predict_call(call: Callable[[], object], rates: Rates) -> dict[str, float]:
    """Return operation category -> predicted seconds; `call` runs, but is not timed."""
    with count_multiplications(strict=False, trace=True) as counting:
        call()
    return rates.predict(counting.trace or [], count_calls(call))


def _predict_on_meta(call: ModuleCall, sizes: Mapping[str, int], rates: Rates) -> dict[str, float]:
    counting = count_multiplications(strict=False, trace=True)
    with (
        module_mode(call.module, training=False),
        dry_run(call, sizes) as (weights, tensors),
        torch.no_grad(),
        counting,
    ):
        call.run(weights, tensors)
    return rates.predict(counting.trace or [])


def _with_real_weights(module: nn.Module) -> nn.Module | None:
    """Return the module, with random weights if it is on meta; None if it is too large or in half precision."""
    weights = [p for p in (*module.parameters(), *module.buffers()) if p.is_floating_point()]
    if sum(p.nbytes for p in weights) > MAX_MEASURED_BYTES or any(p.element_size() < 4 for p in weights):
        return None
    if not any(p.is_meta for p in weights):
        return module
    module = copy.deepcopy(module).to_empty(device="cpu")
    for weight in module.parameters():
        nn.init.normal_(weight, std=0.02)
    for buffer in module.buffers():
        buffer.zero_()  # a valid index, too
    return module
