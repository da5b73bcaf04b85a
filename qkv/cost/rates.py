"""How fast this machine is, measured once and kept: what an operation takes at a few sizes of each sort.

Products are timed on a grid of shapes, everything else on a row of sizes. Between them time is
interpolated in ratios (log to log), beyond them the nearest rate holds.
"""

import hashlib
import json
import math
import os
import platform
import statistics
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from qkv.cost.count import count_multiplications

_AXES: dict[str, tuple[tuple[int, ...], ...]] = {
    "linear": ((1, 16, 128, 1024), (16, 128, 1024), (16, 128, 1024), (1,)),
    "batched": ((1, 16, 128, 512), (16, 64, 256), (16, 128, 512), (1, 8, 64)),
    "attention": ((16, 128, 1024), (16, 64), (16, 128, 1024), (1, 12)),
    "convolution": ((64, 1024, 16384), (9, 144, 576), (8, 64), (1,)),
    "rnn": ((1, 16), (32, 256), (128, 1024), (8, 64)),
}
"""Rows, shared width, columns and copies at which each sort of product is timed."""
_ELEMENTS = (2**6, 2**11, 2**14, 2**17, 2**20, 2**22)
_MOST = 3 * 10**8  # multiplications of one timed product


@dataclass(frozen=True)
class Grid:
    """Seconds per multiplication at every corner of a grid of shapes."""

    axes: tuple[tuple[int, ...], ...]
    rates: dict[str, float]
    """Corner as text -> seconds per multiplication, beyond what any operation takes to start."""

    def at(self, shape: Sequence[int]) -> float:
        """Interpolated along every axis, in ratios."""
        spots = [_between(axis, size) for axis, size in zip(self.axes, shape, strict=True)]
        total = 0.0
        for corner in product(*spots):
            share = math.prod(weight for _, weight in corner)
            total += share * math.log(self.rates[_key(size for size, _ in corner)]) if share else 0.0
        return math.exp(total)


@dataclass(frozen=True)
class Rates:
    """What this machine takes."""

    start: float
    """Seconds that the smallest operation takes."""
    call: float
    """Seconds that Python adds to each operation inside a module."""
    grids: dict[str, Grid]
    """Sort of product -> its rates."""
    moving: dict[str, list[tuple[float, float]]]
    """Sort of operation -> (bytes moved, seconds), rising."""

    def moved(self, sort: str, size: float) -> float:
        """Seconds for an operation of this sort that reads and writes so many bytes."""
        points = self.moving[sort]
        sizes = [point[0] for point in points]
        if size >= sizes[-1]:
            return points[-1][1] * size / sizes[-1]
        (low, first), (high, second) = ((x, points[sizes.index(x)][1]) for x, _ in _pair(sizes, size))
        share = 0.0 if low == high else math.log(max(size, low) / low) / math.log(high / low)
        return math.exp((1 - share) * math.log(first) + share * math.log(second))


def rates(*, again: bool = False) -> Rates:
    """Those of this machine, from the cache folder if they were measured before with this torch and thread count."""
    path = _folder() / f"rates-{_machine()}.json"
    if path.exists() and not again:
        with suppress(ValueError, KeyError, TypeError):  # damaged or of another version: measured again
            return _read(json.loads(path.read_text()))
    found = calibrate()
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(f".{os.getpid()}")
    beside.write_text(json.dumps({"format": 1, **asdict(found)}))
    beside.replace(path)
    return found


def quiet_seconds(call: Callable[[], object], least: int = 5, seconds: float = 0.05) -> float:
    """The time of a call when nothing else disturbs it: the median of the faster half of its repetitions."""
    call()
    times: list[float] = []
    while len(times) < least or (sum(times) < seconds and len(times) < 200):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return statistics.median(sorted(times)[: (len(times) + 1) // 2])


@torch.no_grad()
def calibrate() -> Rates:
    """Time all of it: half a minute on one core."""
    tiny = torch.randn(4)
    start = quiet_seconds(lambda: tiny.mul(tiny), 50)
    found = Rates(
        start,
        0.0,
        {sort: _grid(_AXES[sort], start, make) for sort, make in _PRODUCTS.items()},
        moving={sort: [_moved(make, elements) for elements in _ELEMENTS] for sort, make in _SORTS.items()},
    )
    return Rates(**(vars(found) | {"call": _python_overhead(found)}))


def _python_overhead(found: Rates) -> float:
    layers = [layer for _ in range(8) for layer in (nn.Linear(16, 16), nn.Tanh())]
    model, x = nn.Sequential(*layers), torch.randn(16, 16)
    known = 8 * (found.start + 16**3 * found.grids["linear"].at((16, 16, 16, 1)) + found.moved("exp", 2048))
    return max(quiet_seconds(lambda: model(x), 50) - known, 0.0) / 16


def _grid(axes: tuple[tuple[int, ...], ...], start: float, make: Callable[..., Callable[[], Any]]) -> Grid:
    found = {}
    for shape in product(*axes):
        copies = max(1, min(shape[3], _MOST * shape[3] // math.prod(shape)))  # fewer of the same, where it takes long
        run = make(*shape[:3], copies)
        with count_multiplications() as counting:
            run()
        taken = quiet_seconds(run)
        found[_key(shape)] = max(taken - start, 0.1 * taken) / counting.total
    return Grid(axes, found)


def _linear(rows: int, shared: int, columns: int, _: int) -> Callable[[], Tensor]:
    x, weight = torch.randn(rows, shared), torch.randn(columns, shared)
    return lambda: functional.linear(x, weight)


def _batched(rows: int, shared: int, columns: int, copies: int) -> Callable[[], Tensor]:
    left, right = torch.randn(copies, rows, shared), torch.randn(copies, shared, columns)
    return lambda: torch.bmm(left, right)


def _attend(queries: int, dim: int, keys: int, copies: int) -> Callable[[], Tensor]:
    q, k = torch.randn(1, copies, queries, dim), torch.randn(1, copies, keys, dim)
    return lambda: functional.scaled_dot_product_attention(q, k, k)


def _convolve(places: int, shared: int, columns: int, _: int) -> Callable[[], Tensor]:
    side = math.isqrt(places) + 2
    x, weight = torch.randn(1, shared // 9, side, side), torch.randn(columns, shared // 9, 3, 3)
    return lambda: functional.conv2d(x, weight)


def _recur(batch: int, width: int, gates: int, steps: int) -> Callable[[], Any]:
    layer, x = nn.LSTM(width, gates // 4), torch.randn(steps, batch, width)
    return lambda: layer(x)


_PRODUCTS: dict[str, Callable[[int, int, int, int], Callable[[], Any]]] = {
    "linear": _linear,
    "batched": _batched,
    "attention": _attend,
    "convolution": _convolve,
    "rnn": _recur,
}


def _moved(make: Callable[[int], tuple[Callable[[], Tensor], int]], elements: int) -> tuple[float, float]:
    run, moved = make(elements)
    return float(moved), quiet_seconds(run)


def _light(n: int) -> tuple[Callable[[], Tensor], int]:
    x, y = torch.randn(n), torch.randn(n)
    return lambda: x * y, 12 * n


def _copy(n: int) -> tuple[Callable[[], Tensor], int]:
    x = torch.randn(8, n // 64, 8).transpose(0, 1)
    return x.contiguous, 8 * n


def _pointwise(function: Callable[[Tensor], Tensor]) -> Callable[[int], tuple[Callable[[], Tensor], int]]:
    def make(n: int) -> tuple[Callable[[], Tensor], int]:
        x = torch.randn(n // 64, 64)
        return lambda: function(x), 8 * n

    return make


def _gather(n: int) -> tuple[Callable[[], Tensor], int]:
    x, rows = torch.randn(n // 64, 64), torch.randint(n // 64, (n // 64,))
    return lambda: x.index_select(0, rows), 8 * n


_SORTS: dict[str, Callable[[int], tuple[Callable[[], Tensor], int]]] = {
    "light": _light,
    "copy": _copy,
    "exp": _pointwise(torch.exp),
    "gelu": _pointwise(functional.gelu),
    "softmax": _pointwise(lambda x: x.softmax(-1)),
    "norm": _pointwise(lambda x: functional.layer_norm(x, (64,))),
    "reduce": _pointwise(lambda x: x.sum(-1)),
    "gather": _gather,
}


def _between(axis: Sequence[int], size: float) -> list[tuple[int, float]]:
    """The two marks around a size, and the share of each."""
    (low, _), (high, _) = _pair(axis, size)
    inside = min(max(size, axis[0]), axis[-1])
    share = 0.0 if low == high else math.log(inside / low) / math.log(high / low)
    return [(int(low), 1 - share), (int(high), share)]


def _pair(axis: Sequence[float], size: float) -> list[tuple[float, int]]:
    place = bisect_right(list(axis), size)
    low, high = max(place - 1, 0), min(place, len(axis) - 1)
    return [(axis[low], low), (axis[high], high)]


def _key(shape: Any) -> str:
    return "x".join(str(int(size)) for size in shape)


def _folder() -> Path:
    """`QKV_CACHE`, or the usual place."""
    usual = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "qkv"
    return Path(os.environ.get("QKV_CACHE") or usual)


def _machine() -> str:
    """A word for this processor, torch and number of threads."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    processor = next((line for line in lines if line.startswith("model name")), platform.processor())
    told = f"{processor} {platform.node()} {torch.__version__} {torch.get_num_threads()}"
    return hashlib.sha256(told.encode()).hexdigest()[:12]


def _read(record: dict[str, Any]) -> Rates:
    grids = {sort: Grid(tuple(map(tuple, grid["axes"])), grid["rates"]) for sort, grid in record["grids"].items()}
    moving = {sort: [(float(a), float(b)) for a, b in points] for sort, points in record["moving"].items()}
    if set(moving) != set(_SORTS) or {sort: grid.axes for sort, grid in grids.items()} != _AXES:
        raise KeyError("rates of other sorts")
    return Rates(float(record["start"]), float(record["call"]), grids, moving)
