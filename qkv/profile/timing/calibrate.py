"""Calibrate: time a few operations of each category on this machine and fit the rates to them."""

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
from qkv.cost.meta_run import unfused_layers
from qkv.profile.timing.fit import fit_rates
from qkv.profile.timing.op_terms import TERMS, op_category, term_amounts
from qkv.profile.timing.python_overhead import count_calls
from qkv.profile.timing.rates import Rates
from qkv.profile.timing.timer import fastest_seconds, warm_allocator

Call = Callable[[], Any]
_ELEMENTS = (2**6, 2**12, 2**15, 2**18, 2**20, 3 * 2**20, 2**23)


@torch.no_grad()
def calibrate() -> Rates:
    """Measure the rates of this machine; takes about ten seconds."""
    warm_allocator()
    tiny = torch.randn(2, 2)
    rates = Rates(
        call=0.0,
        binding=0.0,
        view=fastest_seconds(tiny.t),
        start=fastest_seconds(lambda: torch.empty(2)),
        coefficients={category: _fit_coefficients(category) for category in TERMS},
        memory_bound={
            category: [_time_memory_bound(make, elements) for elements in _ELEMENTS]
            for category, make in _MEMORY_BOUND_CALLS.items()
        },
    )
    rates = rates.without_binding(_binding_seconds(rates))
    return replace(rates, call=_python_call_seconds(rates))


def _binding_seconds(rates: Rates) -> float:
    """Return the seconds an operation saves if another operation calls it; torch's GRU calls hundreds."""
    layer, x = nn.GRU(8, 8), torch.randn(24, 1, 8)
    with count_multiplications(strict=False, trace=True) as counting:
        layer(x)
    trace = counting.trace or []
    excess = sum(map(rates.seconds, trace)) - fastest_seconds(lambda: layer(x), seconds=0.2)
    return max(excess, 0.0) / len(trace)


def _python_call_seconds(rates: Rates) -> float:
    """Return the seconds per Python call: the time that the operations of a tiny model do not explain."""
    model = nn.Transformer(16, 2, 2, 2, 32, batch_first=True).eval()
    x, y = torch.randn(1, 5, 16), torch.randn(1, 7, 16)
    with unfused_layers():
        with count_multiplications(strict=False, trace=True) as counting:
            model(x, y)
        calls = count_calls(lambda: model(x, y))
        explained = sum(rates.predict(counting.trace or [], calls).values())
        rest = fastest_seconds(lambda: model(x, y), seconds=0.2) - explained
        return max(rest, 0.0) / (calls.python + calls.compiled)


def _fit_coefficients(category: str) -> dict[str, float]:
    timings = [(term_amounts(_trace(call, category)), fastest_seconds(call)) for call in _SAMPLES[category]()]
    return fit_rates([amounts for amounts, _ in timings], [seconds for _, seconds in timings])


def _trace(call: Call, category: str) -> Operation:
    """Return the operation of this category that `call` runs."""
    with count_multiplications(strict=False, trace=True) as counting:
        call()
    return next(operation for operation in counting.trace or [] if op_category(operation) == category)


def _sample_shapes(count: int, max_product: float, **ranges: tuple[int, int]) -> Iterator[tuple[int, ...]]:
    """Yield `count` log-uniform shapes, the same at each call, with a product of sizes up to `max_product`."""
    generator = random.Random(17)
    found = 0
    while found < count:
        sizes = tuple(
            round(math.exp(generator.uniform(math.log(low), math.log(high)))) for low, high in ranges.values()
        )
        if math.prod(sizes) <= max_product:
            found += 1
            yield sizes


def _products() -> Iterator[Call]:
    for rows, shared, columns in _sample_shapes(28, 2e8, rows=(1, 1100), shared=(12, 1500), columns=(12, 1500)):
        yield partial(functional.linear, torch.randn(rows, shared), torch.randn(columns, shared), torch.randn(columns))


def _batched() -> Iterator[Call]:
    """Yield products of q and k, of weights and v, and of a feature map's state; head widths are 8, 16, ..."""
    for copies, time, eighths in _sample_shapes(16, 1e5, copies=(2, 64), time=(8, 700), eighths=(1, 12)):
        dim = 8 * eighths
        left, right = torch.randn(copies, time, dim), torch.randn(copies, time, dim)
        yield partial(torch.bmm, left, right.transpose(1, 2))
        yield partial(torch.bmm, torch.randn(copies, time, time), right)
        yield partial(torch.bmm, left.transpose(1, 2), torch.randn(copies, time, 24))


def _attention() -> Iterator[Call]:
    """Yield attention calls; head widths are multiples of 8, lengths are arbitrary."""
    shapes = _sample_shapes(18, 2e7, heads=(1, 16), queries=(8, 900), eighths=(1, 12), keys=(8, 900))
    for index, (heads, queries, eighths, keys) in enumerate(shapes):
        dim = 8 * eighths
        q = torch.randn(1, heads, queries, dim)
        k = torch.randn(1, heads, keys, dim) if index % 3 else torch.randn_like(q)
        yield partial(functional.scaled_dot_product_attention, q, k, k, is_causal=index % 3 == 0)


def _convolutions(kernels: tuple[int, ...], *, depthwise: bool = False) -> Callable[[], Iterator[Call]]:
    def calls() -> Iterator[Call]:
        shapes = _sample_shapes(10, 1e7, batch=(1, 40), channels=(1, 64), filters=(4, 96), side=(8, 40))
        for index, (batch, channels, filters, side) in enumerate(shapes):
            kernel, stride = kernels[index % len(kernels)], 1 + (index % 3 == 0)
            inside, outside = (1, channels) if depthwise else (channels, filters)
            x, weight = torch.randn(batch, channels, side, side), torch.randn(outside, inside, kernel, kernel)
            groups = channels if depthwise else 1
            yield partial(functional.conv2d, x, weight, stride=stride, groups=groups)

    return calls


def _recurrent() -> Iterator[Call]:
    for steps, batch, width, hidden in _sample_shapes(
        12, 2e7, steps=(4, 250), batch=(1, 64), width=(16, 256), hidden=(16, 256)
    ):
        yield partial(nn.LSTM(width, hidden), torch.randn(steps, batch, width))


def _pooling() -> Iterator[Call]:
    for channels, side, window, stride in ((4, 8, 2, 2), (64, 64, 2, 2), (128, 64, 2, 2), (64, 64, 3, 2)):
        yield partial(functional.max_pool2d, torch.randn(1, channels, side, side), window, stride)


_SAMPLES: dict[str, Callable[[], Iterator[Call]]] = {
    "product": _products,
    "batched product": _batched,
    "attention": _attention,
    "convolution": _convolutions((3, 3, 5)),
    "pointwise convolution": _convolutions((1,)),
    "grouped convolution": _convolutions((3,), depthwise=True),
    "recurrent layer": _recurrent,
    "pooling": _pooling,
}


def _time_memory_bound(make: Callable[[Tensor], Call], elements: int) -> tuple[float, float]:
    """Return the bytes that an operation on `elements` values reads and writes, and its time in seconds."""
    call = make(torch.randn(elements // 64, 64))
    with count_multiplications(strict=False, trace=True) as counting:
        call()
    operation = max(counting.trace or [], key=lambda operation: operation.bytes)
    return float(operation.bytes), fastest_seconds(call)


def _light(x: Tensor) -> Call:
    """Return a call that multiplies a slice by one value per row, as attention often does."""
    heads = x.view(4, -1, 16)
    part, row = torch.cat([heads, heads[:, :1]], 1)[:, :-1], heads[..., :1]
    return lambda: part * row


def _unary(function: Callable[[Tensor], Any]) -> Callable[[Tensor], Call]:
    return lambda x: lambda: function(x)


def _copy(x: Tensor) -> Call:
    """Return a call that copies a transposed tensor, as merging heads does."""
    heads = x.view(-1, 4, 16).transpose(0, 1)
    return lambda: heads.clone(memory_format=torch.contiguous_format)


def _mask(x: Tensor) -> Call:
    """Return a call that applies one causal mask to the scores of several heads."""
    side = math.isqrt(x.numel() // 4)
    scores = x.flatten()[: 4 * side * side].view(4, side, side)
    visible = torch.ones(side, side, dtype=torch.bool).tril()
    return lambda: scores.masked_fill(~visible, -math.inf)


def _gather(x: Tensor) -> Call:
    rows = torch.randint(len(x), (len(x),))
    return lambda: x.index_select(0, rows)


_MEMORY_BOUND_CALLS: dict[str, Callable[[Tensor], Call]] = {
    "light": _light,
    "copy": _copy,
    "sigmoid": _unary(functional.silu),
    "exp": _unary(torch.exp),
    "tanh": _unary(torch.tanh),
    "softmax": _unary(lambda x: x.softmax(-1)),
    "norm": _unary(lambda x: functional.layer_norm(x, x.shape[-1:])),
    "reduce": _unary(lambda x: x.sum(-1)),
    "search": _unary(lambda x: x.max(-1)),
    "mask": _mask,
    "triangle": _unary(torch.tril),
    "gather": _gather,
}
