"""Gated delta attention on a CPU versus transformers' own torch form, and versus softmax.

    python -m benchmarks.delta_cpu

The peer is `torch_chunk_gated_delta_rule` of Qwen3-Next, which transformers runs where no kernel library is installed.
It gets its own layout (batch, time, heads, dim), so that nothing is copied for it. Both run in turns in one process.
Figures are medians, and the peak of memory beyond the inputs. Outputs and gradients are compared first. Writes
benchmarks/results/delta_cpu.json.
"""

import argparse
import json
import logging
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from torch.nn import functional
from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule

from benchmarks.machine import about
from qkv.attention import Delta
from qkv.cost import measure

RESULTS = Path(__file__).parent / "results" / "delta_cpu.json"
GATED = {"heads": 16, "tokens": 4096, "dim": 128}
SOFTMAX = {"heads": 8, "tokens": 8192, "dim": 64}
TOLERANCE = 1e-5
"""Largest difference from the peer, relative to the largest value."""

Inputs = tuple[Tensor, ...]
Call = Callable[[], object]


def draw(heads: int, tokens: int, dim: int) -> Inputs:
    """Return q, k, v, decay and beta of one sequence; rates and betas are spread as in a new model."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 1, heads, tokens, dim, generator=generator)
    decay = functional.softplus(torch.randn(1, heads, tokens, generator=generator))
    return q, k, v, decay, torch.rand(1, heads, tokens, generator=generator)


def ours(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor) -> Tensor:
    """Return our output."""
    found: Tensor = Delta()(q, k, v, causal=True, decay=decay, beta=beta)
    return found


def theirs(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor) -> Tensor:
    """Return the peer's output; inputs and output have its layout."""
    return torch_chunk_gated_delta_rule(q, k, v, g=-decay, beta=beta, use_qk_l2norm_in_kernel=True)[0]


def make_calls(run: Callable[..., Tensor], inputs: Inputs) -> dict[str, Call]:
    """Return the call without gradients and the one with all of them."""
    leaves = [x.detach().requires_grad_() for x in inputs]

    def forward() -> Tensor:
        with torch.no_grad():
            return run(*inputs)

    def backward() -> tuple[Tensor, ...]:
        return torch.autograd.grad(run(*leaves).sum(), leaves)

    return {"forward": forward, "forward and backward": backward}


def check_equal(inputs: Inputs, transposed: Inputs) -> float:
    """Return the largest relative difference of outputs and gradients; raise above the tolerance."""
    mine, other = (make_calls(run, x) for run, x in ((ours, inputs), (theirs, transposed)))
    pairs: list[tuple[Any, Any]] = [(mine["forward"](), other["forward"]())]
    pairs += zip(mine["forward and backward"](), other["forward and backward"](), strict=True)  # type: ignore[call-overload]
    worst = max(float((a - b.transpose(1, 2)).abs().max() / b.abs().max()) for a, b in pairs)
    if worst > TOLERANCE:
        raise SystemExit(f"not timed, because it is wrong: {worst:.1e} apart")
    return worst


def alternate(first: Call, second: Call, rounds: int) -> tuple[float, float]:
    """Return the median milliseconds of both, timed in turns."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds + 1):
        for call, found in zip((first, second), times, strict=True):
            started = time.perf_counter()
            call()
            found.append(1e3 * (time.perf_counter() - started))
    return statistics.median(times[0][1:]), statistics.median(times[1][1:])


def compare_gated(rounds: int) -> dict[str, Any]:
    """Measure time and memory of both gated delta rules."""
    inputs = draw(**GATED)
    transposed = tuple(x.transpose(1, 2).contiguous() for x in inputs)
    found: dict[str, Any] = {"setting": {**GATED, "dtype": "float32"}, "difference": check_equal(inputs, transposed)}
    mine, other = make_calls(ours, inputs), make_calls(theirs, transposed)
    for name in mine:
        milliseconds = alternate(mine[name], other[name], rounds)
        peaks = [measure(call, repetitions=1).peak_bytes for call in (mine[name], other[name])]
        found[name] = {
            "milliseconds": [round(x, 1) for x in milliseconds],
            "speedup": round(milliseconds[1] / milliseconds[0], 2),
            "peak_bytes": peaks,
            "memory_ratio": round(peaks[0] / peaks[1], 3),
        }
    return found


def compare_softmax(rounds: int) -> dict[str, Any]:
    """Measure the forward pass against torch's causal softmax attention."""
    inputs = draw(**SOFTMAX)
    q, k, v = inputs[:3]

    def softmax() -> Tensor:
        with torch.no_grad():
            return functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    milliseconds = alternate(make_calls(ours, inputs)["forward"], softmax, rounds)
    return {
        "setting": {**SOFTMAX, "dtype": "float32"},
        "milliseconds": [round(x, 1) for x in milliseconds],
        "speedup": round(milliseconds[1] / milliseconds[0], 2),
    }


def main() -> None:
    """Compare, write, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=7, help="timed runs of each (default: 7)")
    parser.add_argument("--result", type=Path, default=RESULTS, help="where to write")
    given = parser.parse_args()
    logging.getLogger("transformers").setLevel(logging.ERROR)  # it warns that it runs its torch form: that is meant
    result = {**about(), "command": "python -m benchmarks.delta_cpu", "transformers": transformers.__version__}
    result["gated delta rule, qkv and transformers"] = compare_gated(given.rounds)
    result["gated delta rule and softmax (SDPA), forward"] = compare_softmax(given.rounds)
    given.result.parent.mkdir(exist_ok=True)
    given.result.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
