"""How long a forward pass will take on this CPU: every operation at the rate of its sort; and how long it takes.

seconds = sum over operations of (Python's call + start + multiplications / rate, or bytes / rate)
"""

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from qkv.cost.count import Operation, count_multiplications
from qkv.cost.kernels import rehearsing
from qkv.cost.operations import FREE
from qkv.cost.rates import Rates, quiet_seconds, rates
from qkv.cost.rehearse import Play, mode

LARGEST = 2 * 2**30
"""Bytes of weights above which nothing is measured."""
_SORTS = {
    "gelu": "gelu",
    "exp": "exp tanh sigmoid silu elu softplus exp2 expm1 log sin cos pow erf log1p",
    "softmax": "_softmax _safe_softmax _log_softmax logsumexp",
    "norm": "native_layer_norm native_batch_norm native_group_norm _fused_rms_norm",
    "reduce": "sum mean max min amax amin cumsum argmax var any all linalg_vector_norm max_pool2d_with_indices",
    "gather": "embedding index_select gather index",
    "copy": "clone copy cat stack _to_copy contiguous constant_pad_nd repeat tril triu",
}
_SORT = {name: sort for sort, names in _SORTS.items() for name in names.split()}
"""Operation -> the sort whose rate it is forecast by; all others are "light"."""


@dataclass(frozen=True)
class Forecast:
    """Seconds of one forward pass."""

    predicted: float
    measured: float | None
    """None: too large to be run here, or in half precision, which is not run on a CPU."""

    @property
    def ratio(self) -> float:
        """predicted / measured"""
        return float("nan") if self.measured is None else self.predicted / self.measured


def forecast(play: Play, sizes: Mapping[str, int], known: Rates | None = None) -> Forecast:
    """Predicted from this machine's rates, and measured; a module that cannot be run here is only predicted."""
    known = known or rates()
    module = _runnable(play.module)
    counting = count_multiplications(strict=False, trace=True)
    if module is None:
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
    with mode(module, training=False), torch.no_grad():
        with counting:
            module(*tensors, **play.options)
        measured = quiet_seconds(lambda: module(*tensors, **play.options), seconds=0.3)
    return Forecast(predict(counting.trace or [], known), measured)


def predict(trace: Iterable[Operation], known: Rates) -> float:
    """The sum over all operations of what their sort takes."""
    return sum(_seconds(operation, known) for operation in trace)


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


def _seconds(operation: Operation, known: Rates) -> float:
    if operation.name == "view":
        return known.start
    if operation.product:
        return (
            known.call + known.start + operation.multiplications * known.grids[_grid(operation)].at(operation.product)
        )
    if operation.name in FREE and operation.name not in _SORT:
        return known.call + known.start
    return known.call + known.moved(_SORT.get(operation.name, "light"), operation.bytes)


def _grid(operation: Operation) -> str:
    for word in ("attention", "convolution", "rnn"):
        if word in operation.name:
            return word
    return "batched" if operation.product[3] > 1 else "linear"
