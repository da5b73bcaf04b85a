"""The gated delta rule of flash-linear-attention, on the inputs of `delta_gpu`: times, and errors against float64.

    python -m benchmarks.delta_gpu_peer FOLDER DIM      FOLDER has the unpacked wheels of fla-core and einops

What was measured so far is printed as one line of JSON after each step: a caller may end the process. The backward
stands alone, since the library refuses to run it on some GPUs.
"""

import json
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from benchmarks.delta_gpu import define_inputs, milliseconds
from benchmarks.delta_gpu_check import CheckCase, chunked, draw, error, results

Chunk = Callable[..., tuple[Tensor, Tensor]]


def forward_errors(chunk: Chunk, dim: int) -> dict[str, float]:
    """Return the errors of outputs and state on fewer tokens."""
    case = CheckCase(key_dim=dim, value_dim=dim)
    inputs = draw(case)
    q, k, v, decay, beta, initial = inputs[:6]
    turned = (x.transpose(1, 2).contiguous() for x in (q, k, v, -decay, beta))
    with torch.no_grad():
        out, state = chunk(*turned, initial_state=initial, output_final_state=True, use_qk_l2norm_in_kernel=True)
    expected = results(chunked, inputs, case, wide=True)
    return {"out": error(out.transpose(1, 2), expected["out"]), "state": error(state, expected["state"])}


def main() -> None:
    """Measure the forward, then with backward."""
    folder, dim = sys.argv[1], int(sys.argv[2])
    sys.path.insert(0, folder)
    found: dict[str, Any] = {}

    def note(name: str, value: Any) -> None:
        found[name] = value
        print(json.dumps(found), flush=True)

    chunk: Chunk = import_module("fla.ops.gated_delta_rule").chunk_gated_delta_rule
    (q, k, v, decay, beta, *_), _ = define_inputs("X", dim)
    leaves = [x.transpose(1, 2).contiguous().requires_grad_() for x in (q, k, v, -decay, beta)]

    def forward() -> Tensor:
        return chunk(*leaves, use_qk_l2norm_in_kernel=True)[0]

    with torch.no_grad():
        began = time.perf_counter()
        forward()
        torch.cuda.synchronize()
        note("first forward s", time.perf_counter() - began)
        note("forward", milliseconds(forward))
    note("errors", forward_errors(chunk, dim))
    arriving = torch.randn_like(leaves[2])
    try:
        torch.autograd.grad(forward(), leaves, arriving)
        torch.cuda.reset_peak_memory_stats()
        note("with backward", milliseconds(lambda: torch.autograd.grad(forward(), leaves, arriving)))
        note("peak GiB", torch.cuda.max_memory_allocated() / 2**30)
    except Exception as problem:  # noqa: BLE001 whatever it is, it is the result
        note("with backward", f"{type(problem).__name__}: {str(problem)[:400]}")


if __name__ == "__main__":
    main()
