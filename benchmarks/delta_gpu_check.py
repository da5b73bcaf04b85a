"""Errors of the delta rule's kernels against float64, and equal bits: the checks of `delta_gpu`."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from qkv.attention import Delta, RecurrentState
from qkv.attention.internal.delta_rule import DeltaInputs, delta_rule
from qkv.attention.triton.delta_op import delta_attention

DEVICE = "cuda"
RUNS = 20
BOUNDS = {torch.bfloat16: (4e-3, 6e-3), torch.float16: (1e-3, 1e-3), torch.float32: (2e-6, 2e-6)}
"""Relative errors of outputs and of gradients; three times that where keys are alike."""


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
    *(CheckCase(dtype=dtype, key_dim=128, value_dim=16, tokens=77) for dtype in BOUNDS),
    *(CheckCase(dtype=dtype, key_dim=32, value_dim=32, tokens=300) for dtype in BOUNDS),
    *(CheckCase(dtype=torch.float16, rate=None, beta=beta) for beta in (None, 1.0)),
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
    needs_backward = any(x is not None and x.requires_grad for x in inputs)
    return delta_attention(
        q, k, v, decay, beta, starts, initial, case.heads, case.key_dim**-0.5, needs_backward
    )[:2]  # fmt: skip


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
    del expected
    runs = [results(kernels, inputs, case, wide=False) for _ in range(RUNS)]
    equal = all(torch.equal(x, found[name]) for run in runs for name, x in run.items())
    alone = kernels([None if x is None else x[:1].contiguous() for x in inputs], replace(case, batch=1))
    in_batch = kernels(inputs, case)
    same = all(torch.equal(a, b[:1]) for a, b in zip(alone, in_batch, strict=True))
    without = error(in_batch[0], found["out"])  # a kernel of its own, which may round differently
    most = [bound * (3 if case.cosine else 1) for bound in BOUNDS[case.dtype]]
    within = all(x <= most[name not in ("out", "state")] for name, x in errors.items())
    return {
        "errors": errors,
        "20 runs equal": equal,
        "alone equal": same,
        "without backward": without,
        "within": within,
    }


def check_steps() -> dict[str, Any]:
    """Return the errors of a step per token in place."""
    case = CheckCase(dtype=torch.float32, tokens=16, key_heads=1, rate=1.0, beta=2.0, starts=True)
    inputs = draw(case)
    q, k, v, decay, beta, initial, starts = inputs
    mechanism, state, pieces = Delta(), RecurrentState(initial.clone()), []
    for t in range(case.tokens):
        now = slice(t, t + 1)
        rates = {"decay": decay[..., now], "beta": beta[..., now], "starts": starts[..., now]}
        with torch.inference_mode():
            out, state = mechanism.step(q[:, :, now], k[:, :, now], v[:, :, now], state, **rates)
        pieces.append(out)
    expected, last = chunked([x.double() if x.is_floating_point() else x for x in inputs], case)
    errors = {"out": error(torch.cat(pieces, 2), expected), "state": error(state.kv_sum, last)}
    return {"errors": errors, "within": max(errors.values()) <= max(BOUNDS[torch.float32])}
