"""Timing this machine: a few operations of each sort, in seconds; no more than the rates are fitted to is kept."""

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from qkv.cost.counter import Operation, count_multiplications
from qkv.cost.meta_kernels import unfused_layers
from qkv.profile.timing.fit import fit_rates
from qkv.profile.timing.op_terms import TERMS, amounts, sort_of
from qkv.profile.timing.predict import foresee
from qkv.profile.timing.python_overhead import python_calls
from qkv.profile.timing.quiet_timer import quiet_seconds, settle
from qkv.profile.timing.rates import Rates

Call = Callable[[], Any]
_ELEMENTS = (2**6, 2**12, 2**15, 2**18, 2**20, 3 * 2**20, 2**23)


@torch.no_grad()
def calibrate() -> Rates:
    """Time all of it: some ten seconds."""
    settle()
    tiny = torch.randn(2, 2)
    found = Rates(
        call=0.0,
        binding=0.0,
        view=quiet_seconds(tiny.t),
        start=quiet_seconds(lambda: torch.empty(2)),
        terms={sort: _fitted(sort) for sort in TERMS},
        moving={sort: [_moved(make, elements) for elements in _ELEMENTS] for sort, make in _MOVING.items()},
    )
    found = found.apart_from(_binding(found))
    return replace(found, call=_python(found))


def _binding(found: Rates) -> float:
    """What an operation takes less when another one calls it: torch's GRU calls hundreds."""
    layer, x = nn.GRU(8, 8), torch.randn(24, 1, 8)
    with count_multiplications(strict=False, trace=True) as counting:
        layer(x)
    trace = counting.trace or []
    more = sum(map(found.seconds, trace)) - quiet_seconds(lambda: layer(x), seconds=0.2)
    return max(more, 0.0) / len(trace)


def _python(found: Rates) -> float:
    """What is left of the time of a model too small to compute anything, for each call in Python."""
    model = nn.Transformer(16, 2, 2, 2, 32, batch_first=True).eval()
    x, y = torch.randn(1, 5, 16), torch.randn(1, 7, 16)
    with unfused_layers():
        computing = sum(foresee(lambda: model(x, y), found).values())
        left = quiet_seconds(lambda: model(x, y), seconds=0.2) - computing
        calls = python_calls(lambda: model(x, y))
        return max(left, 0.0) / (calls.python + calls.compiled)


def _fitted(sort: str) -> dict[str, float]:
    timed = [(amounts(_traced(call, sort)), quiet_seconds(call)) for call in _PRODUCTS[sort]()]
    return fit_rates([found for found, _ in timed], [seconds for _, seconds in timed])


def _traced(call: Call, sort: str) -> Operation:
    with count_multiplications(strict=False, trace=True) as counting:
        call()
    return next(operation for operation in counting.trace or [] if sort_of(operation) == sort)


def _drawn(how_many: int, most: float, **ranges: tuple[int, int]) -> Iterator[tuple[int, ...]]:
    """Shapes spread evenly in ratios, always the same, none with a product of sizes above `most`."""
    draw = random.Random(17)
    found = 0
    while found < how_many:
        sizes = tuple(round(math.exp(draw.uniform(math.log(low), math.log(high)))) for low, high in ranges.values())
        if math.prod(sizes) <= most:
            found += 1
            yield sizes


def _products() -> Iterator[Call]:
    for rows, shared, columns in _drawn(28, 2e8, rows=(1, 1100), shared=(12, 1500), columns=(12, 1500)):
        yield partial(functional.linear, torch.randn(rows, shared), torch.randn(columns, shared), torch.randn(columns))


def _batched() -> Iterator[Call]:
    """Queries with keys, weights with values, and the state of a feature map; heads are 8, 16, ... wide."""
    for copies, time, eighths in _drawn(16, 1e5, copies=(2, 64), time=(8, 700), eighths=(1, 12)):
        dim = 8 * eighths
        left, right = torch.randn(copies, time, dim), torch.randn(copies, time, dim)
        yield partial(torch.bmm, left, right.transpose(1, 2))
        yield partial(torch.bmm, torch.randn(copies, time, time), right)
        yield partial(torch.bmm, left.transpose(1, 2), torch.randn(copies, time, 24))


def _attention() -> Iterator[Call]:
    """Heads are 8, 16, ... wide, as they are chosen to be; lengths are whatever a text has."""
    shapes = _drawn(18, 2e7, heads=(1, 16), queries=(8, 900), eighths=(1, 12), keys=(8, 900))
    for place, (heads, queries, eighths, keys) in enumerate(shapes):
        dim = 8 * eighths
        q = torch.randn(1, heads, queries, dim)
        k = torch.randn(1, heads, keys, dim) if place % 3 else torch.randn_like(q)
        yield partial(functional.scaled_dot_product_attention, q, k, k, is_causal=place % 3 == 0)


def _convolutions(kernels: tuple[int, ...], *, depthwise: bool = False) -> Callable[[], Iterator[Call]]:
    def calls() -> Iterator[Call]:
        shapes = _drawn(10, 1e7, batch=(1, 40), channels=(1, 64), filters=(4, 96), side=(8, 40))
        for place, (batch, channels, filters, side) in enumerate(shapes):
            kernel, stride = kernels[place % len(kernels)], 1 + (place % 3 == 0)
            inside, outside = (1, channels) if depthwise else (channels, filters)
            x, weight = torch.randn(batch, channels, side, side), torch.randn(outside, inside, kernel, kernel)
            groups = channels if depthwise else 1
            yield partial(functional.conv2d, x, weight, stride=stride, groups=groups)

    return calls


def _recurrent() -> Iterator[Call]:
    for steps, batch, width, hidden in _drawn(
        12, 2e7, steps=(4, 250), batch=(1, 64), width=(16, 256), hidden=(16, 256)
    ):
        yield partial(nn.LSTM(width, hidden), torch.randn(steps, batch, width))


def _pooling() -> Iterator[Call]:
    for channels, side, window, stride in ((4, 8, 2, 2), (64, 64, 2, 2), (128, 64, 2, 2), (64, 64, 3, 2)):
        yield partial(functional.max_pool2d, torch.randn(1, channels, side, side), window, stride)


_PRODUCTS: dict[str, Callable[[], Iterator[Call]]] = {
    "product": _products,
    "batched product": _batched,
    "attention": _attention,
    "convolution": _convolutions((3, 3, 5)),
    "pointwise convolution": _convolutions((1,)),
    "grouped convolution": _convolutions((3,), depthwise=True),
    "recurrent layer": _recurrent,
    "pooling": _pooling,
}


def _moved(make: Callable[[Tensor], Call], elements: int) -> tuple[float, float]:
    """Bytes that an operation on so many numbers moves, and its seconds."""
    call = make(torch.randn(elements // 64, 64))
    with count_multiplications(strict=False, trace=True) as counting:
        call()
    operation = max(counting.trace or [], key=lambda operation: operation.bytes)
    return float(operation.bytes), quiet_seconds(call)


def _light(x: Tensor) -> Call:
    """As most are in attention: a part of something longer, and a number for each row."""
    heads = x.view(4, -1, 16)
    part, row = torch.cat([heads, heads[:, :1]], 1)[:, :-1], heads[..., :1]
    return lambda: part * row


def _one(function: Callable[[Tensor], Any]) -> Callable[[Tensor], Call]:
    return lambda x: lambda: function(x)


def _copied(x: Tensor) -> Call:
    """As heads are brought together."""
    parted = x.view(-1, 4, 16).transpose(0, 1)
    return lambda: parted.clone(memory_format=torch.contiguous_format)


def _masked(x: Tensor) -> Call:
    """As causal attention masks: one triangle for several heads."""
    side = math.isqrt(x.numel() // 4)
    scores, seen = x.flatten()[: 4 * side * side].view(4, side, side), torch.ones(side, side, dtype=torch.bool).tril()
    return lambda: scores.masked_fill(~seen, -math.inf)


def _gathered(x: Tensor) -> Call:
    rows = torch.randint(len(x), (len(x),))
    return lambda: x.index_select(0, rows)


_MOVING: dict[str, Callable[[Tensor], Call]] = {
    "light": _light,
    "copy": _copied,
    "sigmoid": _one(functional.silu),
    "exp": _one(torch.exp),
    "tanh": _one(torch.tanh),
    "softmax": _one(lambda x: x.softmax(-1)),
    "norm": _one(lambda x: functional.layer_norm(x, x.shape[-1:])),
    "reduce": _one(lambda x: x.sum(-1)),
    "search": _one(lambda x: x.max(-1)),
    "mask": _masked,
    "triangle": _one(torch.tril),
    "gather": _gathered,
}
