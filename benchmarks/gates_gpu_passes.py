"""Gates per token on a GPU, launch by launch: times with a gate and without, and times of launch configurations.

    python -m benchmarks.gates_gpu_passes --out gates_gpu_passes.json
    python -m benchmarks.gates_gpu_passes --configs --out gates_gpu_passes.json

The launches of a call are recorded, and each is timed alone. A whole call is timed three ways: from Python, in a CUDA
graph (the GPU alone), and on one short row, where all that remains is the time to launch. Kernels are compiled by
several processes before anything is timed.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from triton.testing import do_bench, do_bench_cudagraph

from benchmarks.gates_gpu import KINDS, SHAPE, _draw
from qkv.attention.triton import launch_cache, plan
from qkv.attention.triton.configs import KernelConfig
from qkv.attention.triton.launch_cache import CachedKernel

SHORT = (1, 16, 1024)
"""batch, heads, tokens of a call that the GPU computes faster than Python launches it."""
WAYS = ("ungated", "gated")
NAMES = {"chunk_state": ("state", "grad_state"), "output": ("output", "grad_v"), "grad_qk": ("grad_q", "grad_k")}
"""Kernel -> its pass, and that of the backward."""
Launch = tuple[CachedKernel, tuple[Any, ...]]
_LINEAR_OUTPUT = (
    (64, 4, 1, 128), (64, 4, 1, 168), (64, 4, 1, 96), (64, 4, 2, 128), (64, 4, 1, 128, 32), (64, 4, 3, 128, 32),
    (64, 4, 3, 168, 32), (64, 8, 1, None), (128, 8, 1, 128), (128, 8, 1, None, 32), (128, 4, 1, None),
)  # fmt: skip
_LINEAR_STATE = (
    (64, 4, 3, 168), (64, 4, 3, 128), (64, 4, 3, None), (64, 4, 2, 168), (64, 4, 2, 128), (64, 4, 4, 168),
    (32, 4, 4, 128), (128, 4, 2, 168), (64, 8, 3, None), (128, 8, 2, None),
)  # fmt: skip
_TAYLOR_OUTPUT = (
    (128, 4, 3, 168, 32), (128, 4, 3, 168, 16), (128, 4, 3, None, 32), (128, 4, 2, 168, 32), (128, 4, 2, None, 64),
    (64, 4, 3, 168, 32), (64, 4, 3, 128, 32), (64, 4, 2, 128, 32), (64, 4, 2, 168, 64), (128, 8, 3, 128, 32),
    (128, 8, 2, 128, 64), (128, 4, 3, 168, 32, 16), (128, 4, 3, None, 32, 64),
)  # fmt: skip
_TAYLOR_STATE = (
    (64, 4, 3, 168), (64, 4, 3, None), (64, 4, 2, 168), (64, 4, 4, 168), (128, 4, 2, 168), (128, 4, 2, None),
    (64, 4, 3, 128), (64, 8, 3, None), (128, 8, 2, None),
)  # fmt: skip
CANDIDATES: dict[str, dict[str, tuple[tuple[Any, ...], ...]]] = {
    "linear": {"state": _LINEAR_STATE, "output": _LINEAR_OUTPUT, "grad_q": _LINEAR_OUTPUT, "grad_state": _LINEAR_STATE,
               "grad_k": _LINEAR_OUTPUT, "grad_v": _LINEAR_OUTPUT},
    "taylor": {"state": _TAYLOR_STATE, "output": _TAYLOR_OUTPUT, "grad_q": _TAYLOR_OUTPUT, "grad_state": _TAYLOR_STATE,
               "grad_k": _TAYLOR_OUTPUT, "grad_v": _TAYLOR_OUTPUT},
}  # fmt: skip
"""Kind -> pass -> arguments of `KernelConfig` that are worth a try with a gate."""


def main() -> None:
    """Compile, time, write and print; with --work, compile the part of one process."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--configs", action="store_true", help="time launch configurations, too")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--workers", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=90, help="nothing starts after that")
    parser.add_argument("--work", type=int, help="internal: the number of this process")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("gates_gpu_passes: no CUDA device found")
    torch.autograd.set_multithreading_enabled(False)
    deadline = time.monotonic() + given.seconds
    if given.work is not None:
        _compile(given.kinds, given.configs, given.work, given.workers)
        return
    command = [sys.executable, "-m", "benchmarks.gates_gpu_passes", *sys.argv[1:], "--work"]
    running = [subprocess.Popen([*command, str(number)]) for number in range(given.workers)]
    for process in running:
        process.wait()
    found: dict[str, Any] = {"seconds to compile": round(time.monotonic() + given.seconds - deadline, 1)}
    print(found, flush=True)
    for name, part in _parts(given.kinds, given.configs):
        if time.monotonic() > deadline:
            print("no time left:", name, flush=True)
            continue
        found[name] = part()
        torch.cuda.empty_cache()
        if given.out:
            given.out.write_text(json.dumps(found, indent=1) + "\n")


def _parts(kinds: list[str], configs: bool) -> Iterator[tuple[str, Callable[[], Any]]]:
    for kind in kinds:
        for way in WAYS:
            yield f"{kind} {way} calls", partial(_time_calls, kind, way)
            yield f"{kind} {way} launches", partial(_time_launches, kind, way)
    for kind in kinds if configs else ():
        for name in CANDIDATES[kind]:
            yield f"{kind} configs {name}", partial(_time_configs, kind, name)


def _name(launch: Launch) -> str:
    """Return the pass of a launch."""
    kernel, (_, _, _, constants) = launch
    name: str = kernel.kernel.fn.__name__
    return NAMES[name][bool(constants.values["FLAGS"].REVERSE.value)] if name in NAMES else name


@contextmanager
def _recorded(chosen: str | None = None) -> Iterator[list[Launch]]:
    """Record the launches of each kernel; launch only those of one pass, if it is given."""
    found: list[Launch] = []
    usual = CachedKernel.__call__

    def record(self: CachedKernel, *arguments: Any) -> None:
        found.append((self, arguments))
        if chosen is None or _name(found[-1]) == chosen:
            usual(self, *arguments)

    with mock.patch.object(CachedKernel, "__call__", record):
        yield found


@contextmanager
def _configured(name: str, arguments: tuple[Any, ...]) -> Iterator[None]:
    """Launch one pass with a gate in another way."""
    usual = plan.Plan.configs.func  # type: ignore[attr-defined]
    config = KernelConfig(*arguments[:6])
    plan.plan_of.cache_clear()

    def changed(self: plan.Plan) -> Any:
        found = usual(self)
        return replace(found, gated=replace(found.gated or found, **{name: config}))

    with mock.patch.object(plan.Plan, "configs", property(changed)):
        yield
    plan.plan_of.cache_clear()


def _calls(kind: str, way: str, shape: tuple[int, int, int]) -> dict[str, Callable[[], object]]:
    """Return a forward without a graph, and one with its backward."""
    mechanism = KINDS[kind][0](backend="triton")
    *inputs, g = _draw(kind, shape, torch.bfloat16)
    given = [x.requires_grad_() for x in (inputs if way == "gated" else inputs[:3])]

    def forward() -> Tensor:
        out: Tensor = mechanism(*given[:3], causal=True, decay=given[3] if way == "gated" else None)
        return out

    def alone() -> Tensor:
        with torch.no_grad():
            return forward()

    return {"forward": alone, "with backward": lambda: torch.autograd.grad(forward(), given, g)}


def _compile(kinds: list[str], configs: bool, number: int, workers: int) -> None:
    """Compile each kernel whose turn it is into the cache on disk."""
    tasks: list[tuple[str, str, str, tuple[Any, ...] | None]] = [
        (kind, way, name, None) for kind in kinds for way in WAYS for name in CANDIDATES[kind]
    ]
    if configs:
        tasks += [(kind, "gated", name, x) for kind in kinds for name, all_ in CANDIDATES[kind].items() for x in all_]
    calls: dict[Any, Any] = {}
    for kind, way, name, arguments in tasks[number::workers]:
        calls.setdefault((kind, way), _calls(kind, way, SHAPE)["with backward"])
        try:
            with _recorded(name):
                if arguments is None:
                    calls[kind, way]()
                else:
                    with _configured(name, arguments):
                        calls[kind, way]()
            torch.cuda.synchronize()
        except Exception as problem:  # noqa: BLE001 it is reported where the launch is timed
            print(kind, name, arguments, type(problem).__name__, flush=True)


def _milliseconds(call: Callable[[], Any]) -> float:
    return round(float(do_bench(call, warmup=6, rep=20, return_mode="median")), 4)


def _time_calls(kind: str, way: str) -> dict[str, dict[str, float]]:
    """Return milliseconds of a call from Python, in a CUDA graph, and of launching it."""
    found: dict[str, dict[str, float]] = {}
    calls, short = _calls(kind, way, SHAPE), _calls(kind, way, SHORT)
    for name, call in calls.items():
        call()
        times = {"called": _milliseconds(call)}
        times["graph"] = round(float(do_bench_cudagraph(call, rep=20, return_mode="median")), 4)
        short[name]()
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(50):
            short[name]()
        times["host"] = round((time.perf_counter() - began) * 20, 4)
        torch.cuda.synchronize()
        found[name] = times
        print(kind, way, name, times, flush=True)
    return found


def _time_launches(kind: str, way: str) -> list[dict[str, Any]]:
    """Return milliseconds of each launch alone, its resources, and the GB of all tensors that it takes."""
    with _recorded() as launches:
        _calls(kind, way, SHAPE)["with backward"]()
    rows, total = [], 0.0
    for kernel, arguments in launches:
        compiled = kernel._launch_first(arguments[0], _named(kernel, arguments), arguments[3])
        time_ms = _milliseconds(partial(kernel, *arguments))
        total += time_ms
        tensors = {x.data_ptr(): x.numel() * x.element_size() for x in arguments[1] if x is not None}
        row = {
            "pass": _name((kernel, arguments)), "ms": time_ms, "GB": round(sum(tensors.values()) / 1e9, 3),
            "grid": arguments[0], "registers": compiled.n_regs, "spills": compiled.n_spills,
            "shared": compiled.metadata.shared,
        }  # fmt: skip
        rows.append(row)
        print(kind, way, *row.values(), flush=True)
    print(kind, way, "sum", round(total, 4), flush=True)
    return rows


def _named(kernel: CachedKernel, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(map(launch_cache._named, kernel.groups, (arguments[1], *arguments[2])))


def _time_configs(kind: str, name: str) -> dict[str, float]:
    """Return milliseconds of each configuration of one pass with a gate, the fastest first."""
    call, times = _calls(kind, "gated", SHAPE)["with backward"], {}
    for arguments in CANDIDATES[kind][name]:
        try:
            with _configured(name, arguments), _recorded() as launches:
                call()
            torch.cuda.synchronize()
            (chosen,) = [launch for launch in launches if _name(launch) == name]
            times[str(arguments)] = _milliseconds(partial(chosen[0], *chosen[1]))
        except Exception as problem:  # noqa: BLE001 too many resources, or a failure of the compiler: the others go on
            times[f"{arguments} {type(problem).__name__}"] = 9.0
    times = dict(sorted(times.items(), key=lambda item: item[1]))
    print(kind, name, times, flush=True)
    return times


if __name__ == "__main__":
    main()
