"""What every attention mechanism must obey, as functions: mechanism, case -> error.

`qkv check` runs them on a fixed grid and `tests/contract` on thousands of drawn cases. An error is a
largest difference relative to the largest value, or a count of violations where none is allowed.
"""

from collections.abc import Callable, Iterable, Sequence
from copy import copy, deepcopy
from dataclasses import replace
from math import isnan
from typing import Any

import torch
from torch import Tensor

from qkv.attention.base import Attention, State
from qkv.attention.contract.cases import Case, Inputs, draw
from qkv.attention.internal.masking import blank
from qkv.cost import count_multiplications

Outputs = Callable[[Attention, Inputs], Tensor]


def distance(actual: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Largest difference, relative to the largest expected value of all; NaN or inf is infinitely far."""
    if [a.shape for a in actual] != [e.shape for e in expected]:
        return float("inf")
    pairs = [(a.detach().double(), e.detach().double()) for a, e in zip(actual, expected, strict=True) if e.numel()]
    if not pairs:
        return 0.0
    largest = _largest(e for _, e in pairs)
    error = _largest(a - e for a, e in pairs) / largest if largest else _largest(a for a, _ in pairs)
    return float(error.nan_to_num(nan=float("inf")))


def _largest(tensors: Iterable[Tensor]) -> Tensor:
    """Of all numbers, by torch: Python's `max` passes over a NaN that does not come first."""
    return torch.stack([x.abs().max() for x in tensors]).max()


def worst(errors: Sequence[float]) -> float:
    """The largest, NaN being worse than any number."""
    return max(errors, key=lambda error: (isnan(error), error))


def cast(mechanism: Attention, dtype: torch.dtype) -> Attention:
    """A copy whose own weights, if any, have this type."""
    return deepcopy(mechanism).to(dtype)


def variants(mechanism: Attention, chunks: Iterable[int] = (1, 3, 64)) -> list[Attention]:
    """The mechanism by each of its backends that a CPU has and, where it works in chunks, by each of these sizes."""
    found = []
    for backend in (name for name in mechanism.backends if name != "triton"):
        sizes: Sequence[int | None] = tuple(chunks) if backend == "chunked" and hasattr(mechanism, "chunk") else (None,)
        for size in sizes:
            variant = copy(mechanism)
            variant.backend = backend
            if size is not None:
                variant.chunk = size  # type: ignore[assignment]
            found.append(variant)
    return found


def defined(mechanism: Attention, x: Inputs) -> Tensor:
    """weights @ v, the law."""
    values = blank(x.v, x.mask).repeat_interleave(x.q.shape[1] // x.v.shape[1], 1)
    return mechanism.weights(x.q, x.k, **x.extras) @ values


def fast(mechanism: Attention, x: Inputs) -> Tensor:
    """forward."""
    return mechanism(x.q, x.k, x.v, **x.extras)


def stepped(lengths: Sequence[int]) -> Outputs:
    """step, with so many tokens at a time."""

    def run(mechanism: Attention, x: Inputs) -> Tensor:
        state = begin(mechanism, x)
        outputs, start = [x.q.new_empty(*x.q.shape[:2], 0, x.v.shape[3])], 0
        for length in lengths:
            out, state = advance(mechanism, x, state, start, start + length)
            outputs.append(out)
            start += length
        return torch.cat(outputs, 2)

    return run


def begin(mechanism: Attention, x: Inputs, capacity: int | None = None) -> State:
    """The state for these inputs before the first token."""
    batch, heads, _, key_dim = x.q.shape
    return mechanism.start(
        batch,
        heads,
        key_dim,
        x.v.shape[3],
        key_heads=x.k.shape[1] if x.decay is None else heads,
        capacity=capacity,
        dtype=x.q.dtype,
        device=x.q.device,
    )


def advance(mechanism: Attention, x: Inputs, state: State, start: int, end: int) -> tuple[Tensor, State]:
    """Tokens `start` to `end` through `step`."""
    now = slice(start, end)
    return mechanism.step(
        x.q[:, :, now],
        x.k[:, :, now],
        x.v[:, :, now],
        state,
        mask=None if x.mask is None else x.mask[:, now],
        bias=None if x.bias is None else x.bias[:, :, now, start - state.reach : end],
        decay=x.decay,
    )


def all_forms(mechanism: Attention, case: Case) -> float:
    """Distance of `forward` by each backend and several chunk sizes from the definition."""
    return max(same(variant, case, fast) for variant in variants(mechanism))


def token_by_token(mechanism: Attention, case: Case) -> float:
    """Distance of single steps from the definition."""
    return same(mechanism, case, stepped((1,) * case.keys))


def split_anywhere(mechanism: Attention, case: Case) -> float:
    """Distance of two steps, split at several places, from the definition."""
    return max(same(mechanism, case, stepped((n, case.keys - n))) for n in (0, case.keys // 3, case.keys))


def same(mechanism: Attention, case: Case, form: Outputs, reference: Outputs = defined) -> float:
    """Distance of two forms: outputs, and the gradients of q, k, v, bias and decay."""
    x = draw(case, mechanism)
    actual, expected = form(mechanism, x), reference(mechanism, x)
    arriving = torch.randn(expected.shape, generator=torch.Generator().manual_seed(case.seed + 1), dtype=expected.dtype)
    gradients = [_gradients(out, x, arriving) for out in (actual, expected)]
    return max(distance([actual], [expected]), distance(*gradients))


def _gradients(out: Tensor, x: Inputs, arriving: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(out, x.numbers, arriving, allow_unused=True, materialize_grads=True)


def looks_ahead(mechanism: Attention, case: Case) -> float:
    """How many outputs before a token change when that token does; exactly none may."""
    case = replace(case, causal=True, queries=case.keys)
    x, other = draw(case, mechanism), draw(replace(case, seed=case.seed + 1), mechanism)
    place = case.keys // 2
    changed = [
        torch.cat((a[:, :, :place], b[:, :, place:]), 2) for a, b in ((x.q, other.q), (x.k, other.k), (x.v, other.v))
    ]
    before = fast(mechanism, x)[:, :, :place]
    after = fast(mechanism, replace(x, q=changed[0], k=changed[1], v=changed[2]))[:, :, :place]
    return float((before != after).sum())


def hidden_influence(mechanism: Attention, case: Case) -> float:
    """How many outputs or gradients differ when hidden keys and values hold NaN, inf or 1e30 instead of zeros."""
    return sum(_influence_of(poison, mechanism, case) for poison in (float("nan"), float("inf"), 1e30))


def _influence_of(poison: float, mechanism: Attention, case: Case) -> float:
    x = draw(replace(case, masked=True), mechanism)
    assert x.mask is not None
    hidden = ~x.mask[:, None, :, None]
    results = []
    for content in (0.0, poison):
        k = x.k.detach().masked_fill(hidden, content).requires_grad_()
        v = x.v.detach().masked_fill(hidden, content).requires_grad_()
        out = fast(mechanism, replace(x, k=k, v=v))
        results.append([out, *torch.autograd.grad(out.sum(), (x.q, k, v))])
    return float(sum((a != b).sum() for a, b in zip(*results, strict=True)))


def sees_nothing(mechanism: Attention, case: Case) -> float:
    """Outputs of a query that sees no key must be zero, its gradients finite: what is neither, counted."""
    x = draw(replace(case, masked=True), mechanism)
    assert x.mask is not None
    out = fast(mechanism, replace(x, mask=torch.zeros_like(x.mask)))
    gradients = torch.autograd.grad(out.sum(), (x.q, x.k, x.v))
    return float((out != 0).sum() + sum((~g.isfinite()).sum() for g in gradients))


def faded(mechanism: Attention, case: Case) -> float:
    """Outputs and gradients that are not finite where all that a query sees has faded to almost nothing, counted.

    Only the first key is seen, and fades by exp(-8) a token: through all numbers that are too small for an inverse.
    """
    x = draw(replace(case, masked=True), mechanism)
    assert x.mask is not None
    assert x.decay is not None
    first = torch.arange(case.keys, device=x.mask.device) == 0
    x = replace(x, mask=first.expand_as(x.mask), decay=torch.full_like(x.decay, 8.0).requires_grad_())
    out = fast(mechanism, x)
    return float(sum((~y.isfinite()).sum() for y in (out, *torch.autograd.grad(out.sum(), x.numbers))))


def not_finite(mechanism: Attention, case: Case) -> float:
    """How many outputs and gradients are NaN or inf where the true value can be written in their type."""
    x = draw(case, mechanism)
    wide = _widened(x)
    results = [fast(mechanism, x), defined(cast(mechanism, torch.float64), wide)]
    actual, truth = (
        [out, *torch.autograd.grad(out.double().sum(), y.numbers[:3])]
        for out, y in zip(results, (x, wide), strict=True)
    )
    largest = torch.finfo(case.dtype).max
    return float(sum((~a.isfinite() & (t.abs() < largest)).sum() for a, t in zip(actual, truth, strict=True)))


def dropped_keys(mechanism: Attention, case: Case) -> float:
    """Distance between hiding keys and not having them (no order, one sequence)."""
    x = draw(replace(case, batch=1, causal=False, masked=True, extra=None), mechanism)
    assert x.mask is not None
    kept = x.mask[0]
    shorter = replace(x, k=x.k[:, :, kept], v=x.v[:, :, kept], mask=None)
    return distance([fast(mechanism, x)], [fast(mechanism, shorter)])


def grouped_heads(mechanism: Attention, case: Case) -> float:
    """Distance between sharing a key head and repeating it."""
    x = draw(case, mechanism)
    repeated = replace(x, **{n: getattr(x, n).repeat_interleave(case.heads // case.key_heads, 1) for n in "kv"})
    return distance([fast(mechanism, x)], [fast(mechanism, repeated)])


def reordered_state(mechanism: Attention, case: Case) -> float:
    """Distance between reordering the state in mid-sequence and reordering the inputs from the start."""
    case = replace(case, causal=True, queries=case.keys, batch=3)
    x, rows, middle = draw(case, mechanism), torch.tensor([2, 0, 0, 1]), case.keys // 2
    _, state = advance(mechanism, x, begin(mechanism, x), 0, middle)
    chosen = replace(x, q=x.q[rows], k=x.k[rows], v=x.v[rows], mask=None if x.mask is None else x.mask[rows])
    after, _ = advance(mechanism, chosen, state.select(rows), middle, case.keys)
    return distance([after], [fast(mechanism, chosen)[:, :, middle:]])


def miscounted(mechanism: Attention, case: Case) -> float:
    """Multiplications counted while `forward` ran, minus those that `cost` says it executes."""
    x = draw(case, mechanism)
    with torch.no_grad(), count_multiplications() as counted:
        fast(mechanism, x)
    return float(abs(counted.total - sum(mechanism.cost(case.shape).executed.values())))


def state_bytes(mechanism: Attention, case: Case) -> float:
    """Bytes of the state after all tokens, minus those that `cost` says."""
    case = replace(case, causal=True, queries=case.keys)
    x = draw(case, mechanism)
    _, state = advance(mechanism, x, begin(mechanism, x), 0, case.keys)
    return float(abs(state.bytes - sum(mechanism.cost(case.shape).state.values())))


def rounding(mechanism: Attention, case: Case, seeds: int) -> float:
    """RMS error of the form in this case's type over that of the definition, both against float64."""
    squares = dict.fromkeys((fast, defined), 0.0)
    for seed in range(seeds):
        x = draw(replace(case, seed=seed), mechanism)
        truth = _truth(mechanism, x)
        for form in squares:
            squares[form] += float((form(mechanism, x) - truth).detach().square().mean())
    return (squares[fast] / max(squares[defined], 1e-300)) ** 0.5


def rounded_once(mechanism: Attention, case: Case) -> float:
    """Distance of the outputs from the float64 definition on the same inputs."""
    x = draw(case, mechanism)
    return distance([fast(mechanism, x)], [_truth(mechanism, x)])


def _truth(mechanism: Attention, x: Inputs) -> Tensor:
    return defined(cast(mechanism, torch.float64), _widened(x))


def _widened(x: Inputs) -> Inputs:
    """The same inputs, as they were rounded, in float64."""
    names = ("q", "k", "v", "bias", "decay")
    wide: dict[str, Any] = {n: y.detach().double().requires_grad_() for n in names if (y := getattr(x, n)) is not None}
    return replace(x, **wide)
