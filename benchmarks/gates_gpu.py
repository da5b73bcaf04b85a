"""Gates per token on a GPU: errors and equal bits of the kernels, then times with a gate and without, in turns.

    python -m benchmarks.gates_gpu --out gates_gpu.json

Kernels are compiled by several processes at a time, each of which checks one kind in one type, so that all ends within
a minute. Errors are relative RMS against the definition in float64. The file is written after each result.
"""

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus
from triton.testing import do_bench

from benchmarks.machine import about
from qkv.attention import Attention, Linear, Taylor

KINDS: dict[str, tuple[type[Attention], int]] = {"linear": (Linear, 64), "taylor": (Taylor, 16)}
"""Kind -> its class, and its key_dim."""
SHAPE = (8, 16, 8192)
"""batch, heads, tokens."""
DTYPES = ("bfloat16", "float32")
MAX_ERROR = {"bfloat16": 8e-3, "float32": 2e-6}
"""Relative RMS of outputs and of the gradients of q, k and v."""
MAX_GATE_ERROR = {"bfloat16": 3e-2, "float32": 5e-6}
"""The same of the gradient of the gate, whose sums cancel."""
ROUNDS = 5


def main() -> None:
    """Check, time, write and print; with --work, do the part of one process."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", help="internal: KIND/DTYPE to check, or KIND/gate and KIND/plain to compile")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("gates_gpu: no CUDA device found")
    # every backward in this thread: waking another one is not part of a kernel's time
    torch.autograd.set_multithreading_enabled(False)
    if given.work:
        given.out.write_text(json.dumps(_work(*given.work.split("/"))))
        return
    began = time.perf_counter()
    result: dict[str, Any] = {**about(), "command": shlex.join(["python", "-m", "benchmarks.gates_gpu", *sys.argv[1:]])}
    result |= {"shape": SHAPE, "checks": _parallel_checks(given.out)}
    result["seconds to check"] = round(time.perf_counter() - began, 1)
    _write(given.out, result)
    wrong = [check for check in result["checks"] if check.get("wrong", True)]
    result["rows"] = []
    for kind in KINDS:
        for backward in (False, True):
            result["rows"].append(_times(kind, backward=backward))
            _write(given.out, result)
    result["seconds"] = round(time.perf_counter() - began, 1)
    _write(given.out, result)
    if wrong:
        sys.exit("these results are wrong:\n" + "\n".join(map(str, wrong)))


def _write(path: Path, result: dict[str, Any]) -> None:
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result["rows"][-1] if result.get("rows") else result["checks"]), flush=True)


def _parallel_checks(out: Path) -> list[dict[str, Any]]:
    """Run all checks, and compile what is timed later, in one process each; they share Triton's cache on disk."""
    parts = [f"{kind}/{way}" for kind in KINDS for way in (*DTYPES, "gate", "plain")]
    paths = {part: out.with_suffix(f".{part.replace('/', '-')}.json") for part in parts}
    command = [sys.executable, "-m", "benchmarks.gates_gpu", "--work"]
    running = {
        part: subprocess.Popen(
            [*command, part, "--out", str(path)], env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.PIPE
        )
        for part, path in paths.items()
    }
    checks = []
    for part, process in running.items():
        printed = process.communicate()[1]
        found = {"part": part, "failed": printed.decode()[-2000:]}
        if process.returncode == 0:
            found = json.loads(paths[part].read_text())
        paths[part].unlink(missing_ok=True)
        if "compiled" not in found:
            checks.append(found)
    return checks


def _work(kind: str, way: str) -> dict[str, Any]:
    if way not in DTYPES:
        _call(kind, gated=way == "gate", backward=True)()
        _call(kind, gated=way == "gate", backward=False)()
        torch.cuda.synchronize()
        return {"compiled": f"{kind}/{way}"}
    errors = {rates: _errors(kind, way, rates) for rates in ("weak", "strong", "starts")}
    differing = _differing_runs(kind, way)
    worst = max(max(found["kernels"][:4]) for found in errors.values())
    worst_gate = max(found["kernels"][4] for found in errors.values())
    wrong = differing > 0 or not (worst <= MAX_ERROR[way] and worst_gate <= MAX_GATE_ERROR[way])
    sizes = {"worst": worst, "worst of the gate": worst_gate}
    return {"kind": kind, "dtype": way, "wrong": wrong, **sizes, "differing runs of 20": differing, "errors": errors}


def _draw(kind: str, sizes: tuple[int, int, int], dtype: torch.dtype, rates: str = "weak") -> list[Tensor]:
    """Return q, k, v, the rates and the incoming gradient; q, k and v are views of (batch, time, heads, dim)."""
    batch, heads, tokens = sizes
    key_dim = KINDS[kind][1]
    random = torch.Generator("cuda").manual_seed(tokens + key_dim)

    def normal(dim: int) -> Tensor:
        drawn = torch.randn(batch, tokens, heads, dim, generator=random, device="cuda", dtype=dtype)
        return drawn.transpose(1, 2)

    q, k, v, g = normal(key_dim), normal(key_dim), normal(64), normal(64)
    spread = torch.rand(batch, heads, tokens, generator=random, device="cuda")
    gate = 50 * spread**6 if rates == "strong" else softplus(4 * spread - 6)  # weak: 0.002 to 0.13
    return [q, k, v, gate, g]


def _errors(kind: str, dtype: str, rates: str) -> dict[str, list[float]]:
    """Return the relative RMS of the output and of the gradients of q, k, v and the gate, 1,000 tokens.

    Those of the kernels, and those of the definition in float32.
    """
    law = KINDS[kind][0]
    *inputs, g = _draw(kind, (2, 3, 1000), getattr(torch, dtype), rates)
    starts = None
    if rates == "starts":
        starts = torch.zeros(2, 1000, dtype=torch.bool, device="cuda")
        starts[:, [0, 100, 128, 256, 700, 701]] = True
    results = []
    for backend, dtype_of in (("triton", None), ("reference", torch.float32), ("reference", torch.float64)):
        given = [x.detach().to(dtype_of or x.dtype).requires_grad_() for x in inputs]
        out = law(backend=backend)(*given[:3], causal=True, decay=given[3], starts=starts)
        results.append([out.detach(), *torch.autograd.grad(out, given, g.to(out.dtype))])
    kernels, definition, exact = results
    return {"kernels": _rms(kernels, exact), "definition": _rms(definition, exact)}


def _rms(found: list[Tensor], exact: list[Tensor]) -> list[float]:
    return [float((a.double() - b).norm() / b.norm()) for a, b in zip(found, exact, strict=True)]


def _differing_runs(kind: str, dtype: str) -> int:
    """Return how many of 20 runs differ from the first in a bit of the output or of a gradient."""
    *inputs, g = _draw(kind, (2, 4, 4099), getattr(torch, dtype))
    given = [x.detach().requires_grad_() for x in inputs]
    runs = []
    for _ in range(20):
        out = KINDS[kind][0](backend="triton")(*given[:3], causal=True, decay=given[3])
        runs.append([out, *torch.autograd.grad(out, given, g)])
    return sum(not all(torch.equal(a, b) for a, b in zip(runs[0], run, strict=True)) for run in runs)


def _call(kind: str, *, gated: bool, backward: bool) -> Callable[[], object]:
    mechanism = KINDS[kind][0](backend="triton")
    *inputs, g = _draw(kind, SHAPE, torch.bfloat16)
    given = [x.detach().requires_grad_(backward) for x in (inputs if gated else inputs[:3])]

    def forward() -> Tensor:
        out: Tensor = mechanism(*given[:3], causal=True, decay=given[3] if gated else None)
        return out

    return (lambda: torch.autograd.grad(forward(), given, g)) if backward else forward


def _times(kind: str, *, backward: bool) -> dict[str, Any]:
    """Return milliseconds without and with a gate, medians of rounds that visit both."""
    calls = {way: _call(kind, gated=way == "gated", backward=backward) for way in ("ungated", "gated")}
    taken: dict[str, list[float]] = {way: [] for way in calls}
    for _ in range(ROUNDS):
        for way, call in calls.items():
            taken[way].append(float(do_bench(call, warmup=10, rep=40, return_mode="median")))
    times = {way: round(statistics.median(found), 4) for way, found in taken.items()}
    ratio = round(times["gated"] / times["ungated"], 3)
    return {"kind": kind, "pass": "with backward" if backward else "forward", **times, "ratio": ratio}


if __name__ == "__main__":
    main()
