"""How long a forward pass will take on this CPU: every operation at the rates of its sort; and how long it takes.

seconds = sum over operations of sum over terms of (amount * seconds each), and one rate for every call in Python
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from qkv.cost.counter import count_multiplications
from qkv.cost.meta_kernels import rehearsing, unfused_layers
from qkv.cost.meta_run import Play, mode
from qkv.profile.timing.predict import foresee, predict
from qkv.profile.timing.quiet_timer import quiet_seconds, settle
from qkv.profile.timing.rates import Rates
from qkv.profile.timing.rates_cache import rates

LARGEST = 2 * 2**30
"""Bytes of weights above which nothing is measured."""


@dataclass(frozen=True)
class Forecast:
    """Seconds of one forward pass."""

    parts: dict[str, float]
    """Sort of operation -> seconds predicted for all of that sort; "python" is the program between them."""
    measured: float | None
    """None: too large to be run here, or in half precision, which is not run on a CPU."""

    @property
    def predicted(self) -> float:
        """The sum of the parts."""
        return sum(self.parts.values())

    @property
    def ratio(self) -> float:
        """predicted / measured"""
        return float("nan") if self.measured is None else self.predicted / self.measured


def forecast(play: Play, sizes: Mapping[str, int], known: Rates | None = None) -> Forecast:
    """Predicted from this machine's rates, and measured; a module that cannot be run here is only predicted."""
    known = known or rates()
    module = _runnable(play.module)
    if module is None:
        counting = count_multiplications(strict=False, trace=True)
        with (
            mode(play.module, training=False),
            rehearsing(play, sizes) as (weights, tensors),
            torch.no_grad(),
            counting,
        ):
            play.call(weights, tensors)
        return Forecast(predict(counting.trace or [], known), None)
    tensors = [given.make(sizes, "cpu") for given in play.inputs]
    tensors = [torch.randn_like(x) if x.is_floating_point() else x for x in tensors]
    with mode(module, training=False), torch.no_grad(), unfused_layers():
        parts = foresee(lambda: module(*tensors, **play.options), known)
        settle()
        measured = quiet_seconds(lambda: module(*tensors, **play.options), seconds=0.3)
    return Forecast(parts, measured)


def _runnable(module: nn.Module) -> nn.Module | None:
    """The module with real weights, drawn at random if it has none; None if it is too much for here."""
    weights = [p for p in (*module.parameters(), *module.buffers()) if p.is_floating_point()]
    if sum(p.nbytes for p in weights) > LARGEST or any(p.element_size() < 4 for p in weights):
        return None
    if not any(p.is_meta for p in weights):
        return module
    module = copy.deepcopy(module).to_empty(device="cpu")
    for weight in module.parameters():
        nn.init.normal_(weight, std=0.02)
    return module
