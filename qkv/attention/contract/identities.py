"""Identities that every attention mechanism must satisfy, as functions (mechanism, case) -> error.

`qkv check` runs them on a fixed grid and `tests/contract` on thousands of drawn cases. An error is the
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
from qkv.attention.contract.cases import Case, Inputs, draw_inputs
from qkv.attention.internal.masking import zero_hidden
from qkv.cost import count_multiplications

Outputs = Callable[[Attention, Inputs], Tensor]


def distance(actual: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Return the largest difference relative to the largest expected value; inf if any is NaN or inf."""
    if [a.shape for a in actual] != [e.shape for e in expected]:
        return float("inf")
    pairs = [(a.detach().double(), e.detach().double()) for a, e in zip(actual, expected, strict=True) if e.numel()]
    if not pairs:
        return 0.0
    largest = _largest(e for _, e in pairs)
    error = _largest(a - e for a, e in pairs) / largest if largest else _largest(a for a, _ in pairs)
    return float(error.nan_to_num(nan=float("inf")))


def _largest(tensors: Iterable[Tensor]) -> Tensor:
    """Return the largest absolute value, by torch: Python's `max` skips a NaN that does not come first."""
    return torch.stack([x.abs().max() for x in tensors]).max()


def largest_error(errors: Sequence[float]) -> float:
    """Return the largest error; NaN counts as the largest of all."""
    return max(errors, key=lambda error: (isnan(error), error))


def cast(mechanism: Attention, dtype: torch.dtype) -> Attention:
    """Return a copy whose parameters, if any, have this dtype."""
    return deepcopy(mechanism).to(dtype)


def variants(mechanism: Attention, chunks: Iterable[int] = (1, 3, 64)) -> list[Attention]:
    """Return a copy for each backend that runs on a CPU and, for "chunked", for each of these chunk sizes."""
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


def definition_output(mechanism: Attention, x: Inputs) -> Tensor:
    """Compute weights @ v, the definition."""
    values = zero_hidden(x.v, x.mask).repeat_interleave(x.q.shape[1] // x.v.shape[1], 1)
    return mechanism.weights(x.q, x.k, **x.modifiers) @ values


def forward_output(mechanism: Attention, x: Inputs) -> Tensor:
    """Compute `forward`."""
    return mechanism(x.q, x.k, x.v, **x.modifiers)


def step_output(lengths: Sequence[int]) -> Outputs:
    """Return a function that computes the outputs by `step`, with these token counts per call."""

    def run(mechanism: Attention, x: Inputs) -> Tensor:
        state = start_state(mechanism, x)
        outputs, start = [x.q.new_empty(*x.q.shape[:2], 0, x.v.shape[3])], 0
        for length in lengths:
            out, state = step_range(mechanism, x, state, start, start + length)
            outputs.append(out)
            start += length
        return torch.cat(outputs, 2)

    return run


def start_state(mechanism: Attention, x: Inputs, capacity: int | None = None) -> State:
    """Return the state for these inputs before the first token."""
    batch, heads, _, key_dim = x.q.shape
    decay_heads = 0 if x.decay is None else x.decay.shape[1] if x.gated else heads
    return mechanism.start(
        batch,
        heads,
        key_dim,
        x.v.shape[3],
        key_heads=mechanism.state_heads(heads, x.k.shape[1], decay_heads),
        capacity=capacity,
        dtype=x.q.dtype,
        device=x.q.device,
    )


def step_range(mechanism: Attention, x: Inputs, state: State, start: int, end: int) -> tuple[Tensor, State]:
    """Process tokens `start` to `end` by `step`."""
    now = x.tokens(slice(start, end))
    modifiers = {name: value for name, value in now.modifiers.items() if name != "causal"}
    if x.bias is not None:
        modifiers["bias"] = x.bias[:, :, start:end, start - state.addressable_keys : end]
    return mechanism.step(now.q, now.k, now.v, state, **modifiers)


def backend_error(mechanism: Attention, case: Case) -> float:
    """Return the distance of `forward` from the definition, for each backend and several chunk sizes."""
    return max(form_error(variant, case, forward_output) for variant in variants(mechanism))


def step_error(mechanism: Attention, case: Case) -> float:
    """Return the distance of one-token steps from the definition."""
    return form_error(mechanism, case, step_output((1,) * case.keys))


def split_error(mechanism: Attention, case: Case) -> float:
    """Return the distance of two steps, split at several positions, from the definition."""
    return max(form_error(mechanism, case, step_output((n, case.keys - n))) for n in (0, case.keys // 3, case.keys))


def form_error(mechanism: Attention, case: Case, form: Outputs, reference: Outputs = definition_output) -> float:
    """Return the distance between two forms: of outputs, and of gradients of all floating-point inputs."""
    x = draw_inputs(case, mechanism)
    actual, expected = form(mechanism, x), reference(mechanism, x)
    arriving = torch.randn(expected.shape, generator=torch.Generator().manual_seed(case.seed + 1), dtype=expected.dtype)
    gradients = [_gradients(out, x, arriving) for out in (actual, expected)]
    return max(distance([actual], [expected]), distance(*gradients))


def _gradients(out: Tensor, x: Inputs, arriving: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(out, x.differentiable, arriving, allow_unused=True, materialize_grads=True)


def future_influence(mechanism: Attention, case: Case) -> float:
    """Count the outputs before a token that change when that token does."""
    case = replace(case, causal=True, queries=case.keys)
    x, other = draw_inputs(case, mechanism), draw_inputs(replace(case, seed=case.seed + 1), mechanism)
    position = case.keys // 2
    before = forward_output(mechanism, x)[:, :, :position]
    after = forward_output(mechanism, x.continue_with(other, position))[:, :, :position]
    return float((before != after).sum())


def future_nonfinite_influence(mechanism: Attention, case: Case) -> float:
    """Count the outputs before a token that change when its query, key or value holds NaN or inf, also in steps."""
    case = replace(case, causal=True, queries=case.keys)
    x, position = draw_inputs(case, mechanism), case.keys // 2
    forms: list[tuple[Attention, Outputs]] = [(variant, forward_output) for variant in variants(mechanism, (3, 64))]
    forms.append((mechanism, step_output((position // 2, case.keys - position // 2))))
    changed = 0.0
    for name, poison in (("q", float("nan")), ("k", float("nan")), ("v", float("nan")), ("v", float("inf"))):
        poisoned = getattr(x, name).detach().clone()
        poisoned[:, :, position : position + 1] = poison
        other = replace(x, **{name: poisoned})
        for variant, form in forms:
            before, after = (form(variant, inputs)[:, :, :position] for inputs in (x, other))
            changed += float((before != after).sum())
    return changed


def hidden_influence(mechanism: Attention, case: Case) -> float:
    """Count the outputs and gradients that differ if hidden tokens hold NaN, inf or 1e30 instead of zeros.

    That is in keys, values, gates and beta.
    """
    return sum(_influence_of(poison, mechanism, case) for poison in (float("nan"), float("inf"), 1e30))


def _influence_of(poison: float, mechanism: Attention, case: Case) -> float:
    x = draw_inputs(replace(case, masked=True), mechanism)
    assert x.mask is not None
    hidden = ~x.mask[:, None, :, None]
    results = []
    for content in (0.0, poison):
        y = x.hide(hidden, content)
        out = forward_output(mechanism, y)
        results.append([out, *_gradients(out, y, torch.ones_like(out))])
    return float(sum((a != b).sum() for a, b in zip(*results, strict=True)))


def empty_row_violations(mechanism: Attention, case: Case) -> float:
    """Count the nonzero outputs and nonfinite gradients of queries that see no key."""
    x = draw_inputs(replace(case, masked=True), mechanism)
    assert x.mask is not None
    out = forward_output(mechanism, replace(x, mask=torch.zeros_like(x.mask)))
    gradients = torch.autograd.grad(out.sum(), (x.q, x.k, x.v))
    return float((out != 0).sum() + sum((~g.isfinite()).sum() for g in gradients))


def faded_nonfinite(mechanism: Attention, case: Case) -> float:
    """Count the nonfinite outputs and gradients where the weights of all visible keys have decayed to almost 0.

    Only the first key is visible. It decays by exp(-8) per token, so its weight passes through all values too small to
    invert.
    """
    x = draw_inputs(replace(case, masked=True), mechanism)
    assert x.mask is not None
    assert x.decay is not None
    first = torch.arange(case.keys, device=x.mask.device) == 0
    x = replace(x, mask=first.expand_as(x.mask), decay=torch.full_like(x.decay, 8.0).requires_grad_())
    out = forward_output(mechanism, x)
    return float(sum((~y.isfinite()).sum() for y in (out, *torch.autograd.grad(out.sum(), x.differentiable))))


def gate_nonfinite(mechanism: Attention, case: Case) -> float:
    """Count the nonfinite outputs and gradients with a gate."""
    x = draw_inputs(case, mechanism)
    out = forward_output(mechanism, x)
    return float(sum((~y.isfinite()).sum() for y in (out, *torch.autograd.grad(out.sum(), x.differentiable))))


def special_gate_error(mechanism: Attention, case: Case) -> float:
    """Return the distance of a gate of zeros from no gate, and of a constant gate from that decay by distance."""
    x = draw_inputs(replace(case, masked=False), mechanism)
    assert x.decay is not None
    zeros = replace(x, decay=torch.zeros_like(x.decay))
    pairs = [(zeros, replace(x, decay=None))]
    if "decay" in mechanism.accepts:
        rates = torch.linspace(0, 1, case.key_heads, dtype=x.decay.dtype)
        by_head = rates.repeat_interleave(case.heads // case.key_heads)
        gate = (rates if case.key_head_gate else by_head)[:, None]
        constant = (gate[..., None] if x.decay.dim() > 3 else gate).expand_as(x.decay)
        pairs.append((replace(x, decay=constant), replace(x, decay=by_head)))
    return max(distance(*([forward_output(mechanism, y)] for y in pair)) for pair in pairs)


def closed_gate_error(mechanism: Attention, case: Case) -> float:
    """Return the distance of a gate that closes at two tokens from documents that start there."""
    x = draw_inputs(replace(case, masked=False, documents=False), mechanism)
    assert x.decay is not None
    first = torch.zeros(case.batch, case.keys, dtype=torch.bool)
    first[:, [case.keys // 3, case.keys // 2]] = True
    closed = x.decay.detach().clone()
    closed[:, :, first[0]] = torch.inf
    outputs = [forward_output(mechanism, y) for y in (replace(x, decay=closed), replace(x, starts=first))]
    return distance([outputs[0]], [outputs[1]])


def fresh_start_error(mechanism: Attention, case: Case) -> float:
    """Return the distance of a document's outputs from those of its tokens alone."""
    x, first = draw_inputs(case, mechanism), case.keys // 2
    assert x.starts is not None
    x.starts[:, first] = True
    alone = forward_output(mechanism, x.tokens(slice(first, None)))
    return distance([forward_output(mechanism, x)[:, :, first:]], [alone])


def idle_token_error(mechanism: Attention, case: Case) -> float:
    """Return the distance between tokens with beta 0 and rate 0, and the same sequence without them."""
    x = draw_inputs(replace(case, documents=False), mechanism)
    idle = torch.arange(case.keys) % 3 == 1
    gates = {"beta": x.beta, "decay": x.decay if x.gated else None}
    changed: dict[str, Any] = {name: y.detach().clone() for name, y in gates.items() if y is not None}
    for y in changed.values():
        y[:, :, idle] = 0
    x = replace(x, **changed)
    shorter = x.tokens((~idle).nonzero()[:, 0])
    return distance([forward_output(mechanism, x)[:, :, ~idle]], [forward_output(mechanism, shorter)])


def overwritten_error(mechanism: Attention, case: Case) -> float:
    """Return the distance between keys that are written twice and only the second time, read by the same keys."""
    # orthogonal, and long, so that an epsilon under a root is nothing
    keys = 1e6 * torch.eye(case.key_dim, dtype=case.dtype).expand(case.batch, 1, -1, -1)
    again, values = keys.flip(2), draw_inputs(replace(case, key_heads=1), mechanism).v.detach()
    first, second = (values.repeat(1, 1, case.key_dim, 1)[:, :, n : n + case.key_dim] for n in (0, 1))
    k, v = torch.cat((keys, again), 2), torch.cat((first, second), 2)
    twice = mechanism(k, k, v, causal=True)[:, :, case.key_dim :]
    return distance([twice], [mechanism(again, again, second, causal=True)])


def extreme_nonfinite(mechanism: Attention, case: Case) -> float:
    """Count the outputs and gradients that are NaN or inf where the true value fits their dtype."""
    x = draw_inputs(case, mechanism)
    wide = to_float64(x)
    results = [forward_output(mechanism, x), definition_output(cast(mechanism, torch.float64), wide)]
    actual, truth = (
        [out, *torch.autograd.grad(out.double().sum(), y.differentiable[:3])]
        for out, y in zip(results, (x, wide), strict=True)
    )
    largest = torch.finfo(case.dtype).max
    return float(sum((~a.isfinite() & (t.abs() < largest)).sum() for a, t in zip(actual, truth, strict=True)))


def dropped_keys_error(mechanism: Attention, case: Case) -> float:
    """Return the distance between masking keys and removing them (bidirectional, one sequence)."""
    x = draw_inputs(replace(case, batch=1, causal=False, masked=True, modifier=None), mechanism)
    assert x.mask is not None
    kept = x.mask[0]
    shorter = replace(x, k=x.k[:, :, kept], v=x.v[:, :, kept], mask=None)
    return distance([forward_output(mechanism, x)], [forward_output(mechanism, shorter)])


def grouped_heads_error(mechanism: Attention, case: Case) -> float:
    """Return the distance between sharing a key head and repeating it."""
    x = draw_inputs(case, mechanism)
    repeated = x.repeat_heads(case.heads)
    return distance([forward_output(mechanism, x)], [forward_output(mechanism, repeated)])


def reordered_state_error(mechanism: Attention, case: Case) -> float:
    """Return the distance between reordering the state mid-sequence and reordering the inputs from the start."""
    case = replace(case, causal=True, queries=case.keys, batch=3)
    x, rows, middle = draw_inputs(case, mechanism), torch.tensor([2, 0, 0, 1]), case.keys // 2
    _, state = step_range(mechanism, x, start_state(mechanism, x), 0, middle)
    chosen = x.rows(rows)
    after, _ = step_range(mechanism, chosen, state.select(rows), middle, case.keys)
    return distance([after], [forward_output(mechanism, chosen)[:, :, middle:]])


def joined_state_error(mechanism: Attention, case: Case) -> float:
    """Return the distance between rows that share a joined state, of which some began later, and the same rows alone.

    The joined state is also taken apart into tensors and put together again, as a file would.
    """
    case = replace(case, causal=True, queries=case.keys)
    x, late, middle = draw_inputs(case, mechanism), case.keys // 3, case.keys // 2
    starts = 0, late
    states = [step_range(mechanism, x, start_state(mechanism, x), start, middle)[1] for start in starts]
    joined = states[0].join(states[1])
    joined = joined.with_tensors(joined.tensors())
    twice = x.rows(torch.arange(case.batch).repeat(2))
    after, last = step_range(mechanism, twice, joined, middle, middle + 1)
    # the rows that began at the start leave: what is padding in all others is dropped
    rest = last.select(torch.arange(case.batch, 2 * case.batch)).drop_places(late)
    later, _ = step_range(mechanism, x, rest, middle + 1, case.keys)
    alone = [step_range(mechanism, x, state, middle, middle + 1) for state in states]
    expected, _ = step_range(mechanism, x, alone[1][1], middle + 1, case.keys)
    return distance([after, later], [torch.cat([out for out, _ in alone]), expected])


def multiplication_error(mechanism: Attention, case: Case) -> float:
    """Return the difference between the multiplications counted in `forward` and those that `cost` declares."""
    x = draw_inputs(case, mechanism)
    with torch.no_grad(), count_multiplications() as counted:
        forward_output(mechanism, x)
    return float(abs(counted.total - sum(mechanism.cost(case.accepted_by(mechanism).shape).executed.values())))


def state_bytes_error(mechanism: Attention, case: Case) -> float:
    """Return the difference between the bytes of the state after all tokens and those that `cost` declares."""
    case = replace(case, causal=True, queries=case.keys)
    x = draw_inputs(case, mechanism)
    _, state = step_range(mechanism, x, start_state(mechanism, x), 0, case.keys)
    return float(abs(state.bytes - sum(mechanism.cost(case.accepted_by(mechanism).shape).state.values())))


def rounding_ratio(mechanism: Attention, case: Case, seeds: int) -> float:
    """Return the RMS error of `forward` over that of the definition, both against float64."""
    squares = dict.fromkeys((forward_output, definition_output), 0.0)
    for seed in range(seeds):
        x = draw_inputs(replace(case, seed=seed), mechanism)
        truth = _float64_definition(mechanism, x)
        for form in squares:
            squares[form] += float((form(mechanism, x) - truth).detach().square().mean())
    return (squares[forward_output] / max(squares[definition_output], 1e-300)) ** 0.5


def rounding_error(mechanism: Attention, case: Case) -> float:
    """Return the distance of the outputs from the float64 definition on the same inputs."""
    x = draw_inputs(case, mechanism)
    return distance([forward_output(mechanism, x)], [_float64_definition(mechanism, x)])


def _float64_definition(mechanism: Attention, x: Inputs) -> Tensor:
    return definition_output(cast(mechanism, torch.float64), to_float64(x))


def to_float64(x: Inputs) -> Inputs:
    """Convert the rounded inputs to float64."""
    names = ("q", "k", "v", "bias", "decay", "beta")
    wide: dict[str, Any] = {n: y.detach().double().requires_grad_() for n in names if (y := getattr(x, n)) is not None}
    return replace(x, **wide)
