"""The delta rule on a GPU: errors of the kernels against float64, equal bits, and times.

    python -m benchmarks.delta_gpu --check --time --out FILE
    python -m benchmarks.delta_gpu --configs --out FILE       times of launch configurations, pass by pass
    python -m benchmarks.delta_gpu --time --fla FOLDER        with flash-linear-attention, unpacked in FOLDER

FILE is written after each result. A case that fails is printed, and the others go on.
"""

import argparse
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from triton.testing import do_bench

from qkv.attention import Delta
from qkv.attention.internal.delta_rule import DeltaInputs, delta_rule
from qkv.attention.triton import delta_launch
from qkv.attention.triton.delta_launch import DeltaConfig, DeltaConfigs, DeltaOperands
from qkv.attention.triton.delta_op import delta_attention

DEVICE = "cuda"
RUNS = 20
SHAPES = {"X": (8, 16, 8192), "Z": (1, 4, 131072)}
"""batch, heads, tokens."""
PASSES = ("prepare", "walk", "output", "walk_back", "grad")
BOUNDS = {torch.bfloat16: (4e-3, 6e-3), torch.float16: (1e-3, 1e-3), torch.float32: (2e-6, 2e-6)}
"""Relative errors of outputs and of gradients."""


@dataclass(frozen=True)
class CheckCase:
    """Sizes and values of one comparison with float64."""

    dtype: torch.dtype = torch.bfloat16
    batch: int = 2
    heads: int = 2
    """States per batch element."""
    key_heads: int = 2
    group: int = 1
    tokens: int = 1000
    key_dim: int = 128
    value_dim: int = 128
    rate: float | None = 0.1
    """Largest rate of the gate; None: no gate."""
    beta: float | None = 1.0
    """Largest beta; None: no beta."""
    starts: bool = False
    cosine: float = 0.0
    """Between keys."""


CHECKS = [
    *(CheckCase(dtype=dtype, key_dim=dim, value_dim=dim) for dtype in BOUNDS for dim in (64, 128)),
    *(CheckCase(dtype=dtype, rate=None, beta=None) for dtype in (torch.bfloat16, torch.float32)),
    *(CheckCase(dtype=dtype, rate=50.0, beta=2.0) for dtype in (torch.bfloat16, torch.float32)),
    *(CheckCase(dtype=dtype, beta=1.0, rate=None, cosine=0.99) for dtype in (torch.bfloat16, torch.float32)),
    *(CheckCase(dtype=dtype, starts=True, group=2, key_heads=1) for dtype in (torch.bfloat16, torch.float32)),
    *(CheckCase(dtype=dtype, key_dim=128, value_dim=256) for dtype in (torch.bfloat16, torch.float32)),
    *(CheckCase(dtype=dtype, key_dim=96, value_dim=80, tokens=77) for dtype in (torch.bfloat16, torch.float32)),
    CheckCase(key_dim=16, value_dim=32, tokens=1),
    CheckCase(batch=1, heads=4, key_heads=4, tokens=8192, key_dim=64, value_dim=64),
]


def draw(case: CheckCase, seed: int = 0) -> list[Any]:
    """Return q, k, v, decay, beta, the initial state, and starts."""
    generator = torch.Generator(DEVICE).manual_seed(seed)

    def normal(*sizes: int, dtype: torch.dtype = case.dtype) -> Tensor:
        return torch.randn(*sizes, generator=generator, device=DEVICE).to(dtype)

    def uniform(most: float) -> Tensor:
        sizes = case.batch, case.heads, case.tokens
        return torch.rand(*sizes, generator=generator, device=DEVICE) * most

    size = case.batch, case.key_heads, case.tokens
    common = normal(case.batch, case.key_heads, 1, case.key_dim, dtype=torch.float32)
    k = normal(*size, case.key_dim, dtype=torch.float32) * (1 - case.cosine) ** 0.5 + common * case.cosine**0.5
    starts = None
    if case.starts:
        starts = torch.rand(case.batch, case.tokens, generator=generator, device=DEVICE) < 0.01
    return [
        normal(case.batch, case.heads * case.group, case.tokens, case.key_dim),
        k.to(case.dtype),
        normal(*size, case.value_dim),
        None if case.rate is None else uniform(case.rate),
        None if case.beta is None else uniform(case.beta),
        normal(case.batch, case.heads, case.key_dim, case.value_dim, dtype=torch.float32) * 0.1,
        starts,
    ]


def kernels(inputs: list[Any], case: CheckCase) -> tuple[Tensor, Tensor]:
    """Return outputs and the last state by the kernels."""
    q, k, v, decay, beta, initial, starts = inputs
    return delta_attention(q, k, v, decay, beta, starts, initial, case.heads, case.key_dim**-0.5)[:2]


def chunked(inputs: list[Any], case: CheckCase) -> tuple[Tensor, Tensor]:
    """Return them by the chunked form, in the type of the inputs."""
    q, k, v, decay, beta, initial, starts = inputs
    k, v = (x.repeat_interleave(case.heads // case.key_heads, 1) for x in (k, v))
    decay, beta = (None if x is None else x[..., None] for x in (decay, beta))
    at = None if starts is None else starts[:, None, :, None]
    sequence = DeltaInputs(q.unflatten(1, (case.heads, case.group)), k, v, decay, beta, at)
    out, state = delta_rule(sequence, initial, case.key_dim**-0.5, 64)
    return out.flatten(1, 2), state


Form = Callable[[list[Any], CheckCase], tuple[Tensor, Tensor]]
NAMES = ("out", "state", "q", "k", "v", "decay", "beta", "initial")


def results(form: Form, inputs: list[Any], case: CheckCase, wide: bool) -> dict[str, Tensor]:
    """Return outputs, state and gradients."""
    leaves: list[Any] = []
    for x in inputs:
        copied = x if x is None or x.dtype == torch.bool else (x.double() if wide else x).detach().requires_grad_()
        leaves.append(copied)
    out, state = form(leaves, case)
    generator = torch.Generator(DEVICE).manual_seed(1)
    arriving = [
        torch.randn(out.shape, generator=generator, device=DEVICE).to(case.dtype).to(out.dtype),
        torch.randn(state.shape, generator=generator, device=DEVICE).to(state.dtype) * 0.1,
    ]
    wanted = [x for x in leaves if x is not None and x.requires_grad]
    gradients = iter(torch.autograd.grad([out, state], wanted, arriving))
    found = {"out": out.detach(), "state": state.detach()}
    for name, x in zip(NAMES[2:], leaves, strict=False):
        if x is not None and x.requires_grad:
            found[name] = next(gradients)
    return found


def error(actual: Tensor, expected: Tensor) -> float:
    """Return the relative error, or inf if something is not finite."""
    if not actual.isfinite().all():
        return float("inf")
    return float((actual.double() - expected.double()).norm() / expected.double().norm().clamp(min=1e-30))


def check(case: CheckCase) -> dict[str, Any]:
    """Return the errors, whether 20 runs have equal bits, and whether a row alone has those of the batch."""
    inputs = draw(case)
    found = results(kernels, inputs, case, wide=False)
    expected = results(chunked, inputs, case, wide=True)
    errors = {name: error(found[name], expected[name]) for name in expected}
    runs = [results(kernels, inputs, case, wide=False) for _ in range(RUNS)]
    equal = all(torch.equal(x, found[name]) for run in runs for name, x in run.items())
    alone = kernels([None if x is None else x[:1].contiguous() for x in inputs], replace(case, batch=1))
    in_batch = kernels(inputs, case)
    same = all(torch.equal(a, b[:1]) for a, b in zip(alone, in_batch, strict=True))
    most = BOUNDS[case.dtype]
    within = all(x <= most[name not in ("out", "state")] for name, x in errors.items())
    return {"errors": errors, "20 runs equal": equal, "alone equal": same, "within": within}


def define_inputs(name: str, dim: int) -> tuple[list[Any], CheckCase]:
    """Return the inputs of a timed shape."""
    batch, heads, tokens = SHAPES[name]
    case = CheckCase(batch=batch, heads=heads, key_heads=heads, tokens=tokens, key_dim=dim, value_dim=dim)
    return draw(case), case


def milliseconds(call: Callable[[], Any]) -> float:
    """Return the median time."""
    return float(do_bench(call, warmup=50, rep=300, return_mode="median"))


def time_shape(name: str, dim: int) -> dict[str, Any]:
    """Return times of forward, with backward, and of each pass, in ms; and of the first call, in seconds."""
    inputs, case = define_inputs(name, dim)
    q, k, v, decay, beta, _, _ = inputs
    mechanism, leaves = Delta(), [x.requires_grad_() for x in (q, k, v, decay, beta)]
    arriving = torch.randn_like(v)

    def forward() -> Tensor:
        return mechanism(q, k, v, causal=True, decay=decay, beta=beta)

    def both() -> None:
        torch.autograd.grad(forward(), leaves, arriving)

    began = time.perf_counter()
    both()
    torch.cuda.synchronize()
    found: dict[str, Any] = {"first call s": time.perf_counter() - began}
    with torch.no_grad():
        found["forward"] = milliseconds(forward)
        found["operator"] = milliseconds(lambda: kernels(inputs, case))
    torch.cuda.reset_peak_memory_stats()
    found["with backward"] = milliseconds(both)
    found["peak GiB"] = torch.cuda.max_memory_allocated() / 2**30
    with torch.no_grad():
        found["passes"] = {number: milliseconds(call) for number, call in passes(inputs, case).items()}
    return found


def passes(inputs: list[Any], case: CheckCase) -> dict[str, Callable[[], Any]]:
    """Return a call of each pass; `delta_launch.CONFIGS` may change between calls."""
    q, k, v, decay, beta, initial, starts = inputs
    x, scale = DeltaOperands(q, k, v, decay, beta, starts).contiguous_rows(), case.key_dim**-0.5
    plan = delta_launch.plan_of_operands(x, case.heads)
    out, final, saved = delta_launch.forward_passes(plan, x, initial, scale)
    found = delta_launch.backward_passes(plan, x, saved, out, None, scale)
    d_states = torch.empty_like(saved.states)
    return {
        "prepare": lambda: delta_launch.prepare(plan, x, saved),
        "walk": lambda: delta_launch.walk(plan, x, saved, initial, final),
        "output": lambda: delta_launch.read_outputs(plan, x, saved, out, scale),
        "walk_back": lambda: delta_launch.walk_back(plan, x, saved, (out, None, d_states), found),
        "grad": lambda: delta_launch.compute_gradients(plan, x, saved, (out, d_states), found, scale),
    }


def candidates(name: str, dim: int) -> Iterator[DeltaConfig]:
    """Yield the configurations of a pass that are worth a try."""
    if name == "prepare":
        for warps, registers in product((1, 2, 4), (None, 168, 128)):
            yield DeltaConfig(0, warps, 1, registers)
        return
    blocks = [block for block in (16, 32, 64, 128) if dim // 4 <= block <= dim]
    stages = (1, 2, 3) if name.startswith("walk") else (1, 2)
    for block, warps, stage in product(blocks, (4, 8), stages):
        yield DeltaConfig(block, warps, stage)


def try_configs(name: str, dim: int, number: str) -> dict[str, Any]:
    """Return the time of each configuration of one pass, the fastest first."""
    inputs, case = define_inputs(name, dim)
    call, key = passes(inputs, case)[number], (False, dim)
    usual: DeltaConfigs = delta_launch.CONFIGS[key]
    times: dict[str, float] = {}
    for config in candidates(number, dim):
        delta_launch.CONFIGS[key] = replace(usual, **{number: config})
        try:
            times[str(config)] = milliseconds(call)
        except Exception as problem:  # noqa: BLE001 too many resources, or a failure of the compiler: the others go on
            print("  ", config, type(problem).__name__, str(problem)[:100], flush=True)
        finally:
            delta_launch.CONFIGS[key] = usual
    ranked = dict(sorted(times.items(), key=lambda item: item[1]))
    for config_name in list(ranked)[:3]:
        print(f"   {ranked[config_name]:.3f} ms  {config_name}", flush=True)
    return ranked


def time_fla(folder: str, name: str, dim: int) -> dict[str, Any]:
    """Return times of flash-linear-attention on the same inputs, and errors on fewer tokens."""
    if folder not in sys.path:
        sys.path.insert(0, folder)
    chunk = import_module("fla.ops.gated_delta_rule").chunk_gated_delta_rule
    (q, k, v, decay, beta, _, _), _ = define_inputs(name, dim)
    leaves = [x.transpose(1, 2).contiguous().requires_grad_() for x in (q, k, v, -decay, beta)]
    arriving = torch.randn_like(leaves[2])

    def forward() -> Tensor:
        return chunk(*leaves, use_qk_l2norm_in_kernel=True)[0]

    began = time.perf_counter()
    torch.autograd.grad(forward(), leaves, arriving)
    torch.cuda.synchronize()
    found: dict[str, Any] = {"first call s": time.perf_counter() - began}
    with torch.no_grad():
        found["forward"] = milliseconds(forward)
    torch.cuda.reset_peak_memory_stats()
    found["with backward"] = milliseconds(lambda: torch.autograd.grad(forward(), leaves, arriving))
    found["peak GiB"] = torch.cuda.max_memory_allocated() / 2**30
    found["errors"] = fla_errors(chunk, dim)
    return found


def fla_errors(chunk: Any, dim: int) -> dict[str, float]:
    """Return the errors of flash-linear-attention against float64."""
    case = CheckCase(key_dim=dim, value_dim=dim)

    def peer(inputs: list[Any], _: CheckCase) -> tuple[Tensor, Tensor]:
        q, k, v, decay, beta, initial = inputs[:6]
        turned = (x.transpose(1, 2) for x in (q, k, v, -decay, beta))
        options = {"output_final_state": True, "use_qk_l2norm_in_kernel": True}
        out, state = chunk(*turned, initial_state=initial, **options)
        return out.transpose(1, 2), state

    inputs = draw(case)
    found, expected = results(peer, inputs, case, wide=False), results(chunked, inputs, case, wide=True)
    return {name: error(found[name], expected[name]) for name in expected}


def short(value: Any) -> str:
    """Return a result on one line."""
    if isinstance(value, dict):
        return " ".join(f"{name} {short(x)}" for name, x in value.items())
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def jobs(options: argparse.Namespace) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the name and the call of each part."""
    shapes = list(product(SHAPES, (64, 128)))
    if options.check:
        for case in CHECKS:
            yield f"check {case}", partial(check, case)
    if options.configs:
        for (name, dim), number in product(shapes if options.all_shapes else [("X", 64), ("X", 128)], PASSES):
            yield f"configs {name} {dim} {number}", partial(try_configs, name, dim, number)
    if options.time:
        for name, dim in shapes:
            yield f"time {name} {dim}", partial(time_shape, name, dim)
            if options.fla:
                yield f"fla {name} {dim}", partial(time_fla, options.fla, name, dim)


def main() -> None:
    """Run the parts that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for flag in ("--check", "--time", "--configs", "--all-shapes"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("--fla", metavar="FOLDER")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    found: dict[str, Any] = {"torch": torch.__version__, "device": torch.cuda.get_device_name()}
    problems = 0
    for name, call in jobs(options):
        try:
            found[name] = call()
            line = "" if name.startswith("configs") else short(found[name])
        except Exception as problem:  # noqa: BLE001 each part stands alone
            problems += 1
            found[name] = {"error": traceback.format_exc()}
            line = f"{type(problem).__name__}: {str(problem)[:300]}"
        print(f"{name}: {line}", flush=True)
        torch.cuda.empty_cache()
        if options.out:
            options.out.write_text(json.dumps(found, indent=1))
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
