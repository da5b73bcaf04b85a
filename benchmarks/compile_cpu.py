"""Compiled attention on a CPU versus eager: time of the first call and of later ones.

    python -m benchmarks.compile_cpu

Each kind is compiled once (`fullgraph=True, dynamic=True`) and called at both lengths. Compiled and eager calls run in
turns in one process. Outputs and gradients are compared first. `traced` compiles the unrolled chunks of `linear`, one
graph per length, as torch would without the operator. Writes benchmarks/results/compile_cpu.json.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.utils import counters

from benchmarks.machine import about
from qkv.attention import Attention, build

RESULTS = Path(__file__).parent / "results" / "compile_cpu.json"
KINDS = ("linear", "elu", "taylor", "delta", "softmax")
HEADS, DIM, LENGTHS = 8, 16, (1024, 4096)
TOLERANCE = 1e-5
"""Largest difference from eager mode, relative to the largest value."""

Call = Callable[..., Any]


def draw(length: int) -> list[Tensor]:
    """Return q, k and v of one sequence."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, HEADS, length, DIM, generator=generator, requires_grad=True) for _ in range(3)]


def forward(attention: Call, length: int) -> Tensor:
    """Return the outputs, without gradients."""
    with torch.no_grad():
        found: Tensor = attention(*draw(length), causal=True)
    return found


def both(attention: Call, length: int) -> tuple[Tensor, ...]:
    """Return the gradients."""
    inputs = draw(length)
    return torch.autograd.grad(attention(*inputs, causal=True).sum(), inputs)


def seconds(call: Callable[[], object]) -> float:
    """Return the seconds of one call."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def compile_anew(attention: Attention) -> Call:
    """Compile with empty caches."""
    torch.compiler.reset()
    counters.clear()
    compiled: Call = torch.compile(attention, fullgraph=True, dynamic=True)
    return compiled


def check_equal(attention: Attention, compiled: Call, length: int) -> float:
    """Return the largest relative difference of outputs and gradients; raise above the tolerance."""
    pairs = [(forward(compiled, length), forward(attention, length))]
    pairs += zip(both(compiled, length), both(attention, length), strict=True)
    worst = max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)
    if worst > TOLERANCE:
        raise SystemExit(f"not timed, because it is wrong: {worst:.1e} apart")
    return worst


def compare(kind: str, rounds: int) -> dict[str, Any]:
    """Measure one kind at both lengths."""
    attention = build(kind)
    compiled = compile_anew(attention)
    found: dict[str, Any] = {}
    for length in LENGTHS:
        first = seconds(lambda length=length: both(compiled, length))  # type: ignore[misc]
        row: dict[str, Any] = {"first call, seconds": round(first, 2)}
        row["graphs so far"] = counters["stats"]["unique_graphs"]
        row["difference"] = check_equal(attention, compiled, length)
        for name, run in (("forward", forward), ("forward and backward", both)):
            times: tuple[list[float], list[float]] = ([], [])
            for _ in range(rounds + 1):
                for call, kept in zip((compiled, attention), times, strict=True):
                    kept.append(1e3 * seconds(lambda run=run, call=call, n=length: run(call, n)))  # type: ignore[misc]
            milliseconds = [statistics.median(kept[1:]) for kept in times]
            row[name] = {
                "compiled and eager, milliseconds": [round(x, 2) for x in milliseconds],
                "ratio": round(milliseconds[0] / milliseconds[1], 3),
            }
        found[f"{length} tokens"] = row
    return found


def first_calls_traced() -> dict[str, float]:
    """Return the seconds of the first forward of `linear` at each length if its chunks are traced."""
    found = {}
    for length in LENGTHS:
        attention = build("linear", backend="chunked")
        attention.as_node = False
        compiled = compile_anew(attention)
        found[f"{length} tokens"] = round(seconds(lambda c=compiled, n=length: forward(c, n)), 2)  # type: ignore[misc]
    return found


def main() -> None:
    """Compare, write, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=9, help="timed runs of each (default: 9)")
    parser.add_argument("--result", type=Path, default=RESULTS, help="where to write")
    given = parser.parse_args()
    setting = {"heads": HEADS, "key_dim": DIM, "value_dim": DIM, "dtype": "float32", "causal": True}
    result: dict[str, Any] = {**about(), "command": "python -m benchmarks.compile_cpu", "setting": setting}
    with torch.compiler.config.patch(force_disable_caches=True):  # type: ignore[attr-defined]
        result["kinds"] = {kind: compare(kind, given.rounds) for kind in KINDS}
        result["linear, traced: first forward, seconds"] = first_calls_traced()
    given.result.parent.mkdir(exist_ok=True)
    given.result.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
