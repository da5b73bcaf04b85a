"""The gated delta rule, chunk by chunk, with a backward written by hand.

    S_t = exp(-decay_t) S_(t-1);    x_t = v_t - S_t' k_t;    S_t += k_t (beta_t x_t)';    o_t = scale q_t' S_t

x_t is the error of what the state predicts for k_t. Inside a chunk that starts with state S, with in-chunk running
sums d of the rates (d_C at its end) and pair(a, b)_ij = a_i.b_j exp(d_j - d_i) for j <= i:

    P = tril(pair(q, k))    A = strict_tril(pair(k, k))    B = diag(beta)    T = (I + A B)^-1
    X = T (V - K~ S)        O = Q~ S + P B X               S' = exp(-d_C) S + K^' B X
    K~ = k exp(-d)          Q~ = q exp(-d)                 K^ = k exp(d - d_C)

T is lower triangular and comes from one triangular solve. Its entries are tame, because keys have length 1, but powers
of A B are not: a series of powers loses all digits where keys are alike. The backward keeps X, and the state at the
start of each chunk. The gradient of the gate costs nothing more: it follows from those of q and k (`_gate_gradient`).
Papers: https://arxiv.org/abs/2406.06484, https://arxiv.org/abs/2412.06464.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from qkv.attention.internal.channel_pairs import channel_pairs, channel_pairs_backward
from qkv.attention.internal.double_backward import forbid_double_backward
from qkv.attention.internal.precision import no_autocast, upcast

EPS = 1e-6
"""Added to the squared length of a key or query before the root, as in other libraries."""


@dataclass(frozen=True)
class Sequence:
    """Inputs of the delta rule along time; hidden tokens are zeroed before."""

    q: Tensor
    """(batch, heads, group, time, key_dim): the queries that share a state."""
    k: Tensor
    """(batch, heads, time, key_dim)"""
    v: Tensor
    """(batch, heads, time, value_dim)"""
    decay: Tensor | None = None
    """(batch, heads, time, 1 or key_dim)"""
    beta: Tensor | None = None
    """(batch, heads, time, 1)"""
    starts: Tensor | None = None
    """(batch, 1, time, 1), bool"""

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """The fields in order."""
        return self.q, self.k, self.v, self.decay, self.beta, self.starts

    def slice(self, start: int, end: int) -> "Sequence":
        """Return the tokens from `start` to `end`."""
        return Sequence(*(None if x is None else x[..., start:end, :] for x in self.tensors))  # type: ignore[arg-type]


def delta_rule(sequence: Sequence, state: Tensor, scale: float, chunk: int) -> tuple[Tensor, Tensor]:
    """Return outputs (batch, heads, group, time, value_dim) and the last state (batch, heads, key_dim, value_dim)."""
    tensors = [x for x in (*sequence.tensors, state) if x is not None]
    needs_backward = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    if not needs_backward or torch._C._are_functorch_transforms_active():
        return _run(sequence, state, scale, chunk)
    out, last = _DeltaRule.apply(scale, chunk, state, *sequence.tensors)
    return out, last


def unit(x: Tensor) -> Tensor:
    """Return x / |x|; zero, with gradient zero, for a zero vector."""
    return x * _inverse_length(x)


def _inverse_length(x: Tensor) -> Tensor:
    squares = (x * x).sum(-1, keepdim=True)
    return torch.rsqrt(squares + EPS).masked_fill(squares == 0, 0)


def _chunks(sequence: Sequence, chunk: int) -> list[tuple[int, int]]:
    """Return (start, end) of each chunk; an empty sequence is one empty chunk, so that it has an output."""
    time = sequence.k.shape[2]
    return [(start, min(start + chunk, time)) for start in range(0, max(time, 1), chunk)]


@dataclass(frozen=True)
class _Gates:
    """Factors of a chunk's gates, all at most 1; one row per batch element and head."""

    read: Tensor
    """exp(-d): what is left of the state at each token, (rows, time, 1 or key_dim)."""
    write: Tensor
    """exp(d - d_C): what is left of each token at the end, (rows, time, 1 or key_dim)."""
    keep: Tensor
    """exp(-d_C): what is left of the state at the end, (rows, 1 or key_dim, 1)."""
    pairs: Tensor | None
    """What is left of token j at token i, zero above the diagonal; None with a gate per channel."""
    same: Tensor | None
    """Whether two tokens belong to the same document, (rows, time, time); None without starts."""


def _gates(piece: Sequence, dtype: torch.dtype) -> _Gates | None:
    """Compute the gates of a chunk; None if there are none."""
    if piece.decay is None and piece.starts is None:
        return None
    rates = piece.v.new_zeros(*piece.k.shape[:3], 1) if piece.decay is None else piece.decay
    rates = rates.flatten(0, 1)
    # differences of float32 sums would lose the digits of small rates after large ones
    sums = rates.double().cumsum(1)
    last = sums[:, -1:] if sums.shape[1] else sums.new_zeros(sums.shape[0], 1, sums.shape[2])
    read, write = (torch.exp(x.to(dtype)) for x in (-sums, sums - last))
    keep, pairs, same = torch.exp(-last.to(dtype)), None, None
    if rates.shape[2] == 1:
        differences = (sums.transpose(1, 2) - sums).to(dtype)  # d_j - d_i
        above = torch.ones(differences.shape[1:], dtype=torch.bool, device=differences.device).triu(1)
        pairs = torch.exp(differences.masked_fill(above, -torch.inf))
    if piece.starts is not None:
        documents = piece.starts.expand(*piece.k.shape[:3], 1).flatten(0, 1).cumsum(1)  # rows time 1
        end = documents[:, -1:] if documents.shape[1] else documents.new_zeros(documents.shape[0], 1, 1)
        read, write, keep = read * (documents == 0), write * (documents == end), keep * (end == 0)
        same = documents == documents.transpose(1, 2)
        pairs = None if pairs is None else pairs * same
    return _Gates(read, write, keep.transpose(1, 2), pairs, same)


@dataclass(frozen=True)
class _Chunk:
    """What forward and backward of a chunk share; `asks` are the queries of the group and then the key, as it reads."""

    asks: Tensor
    """Unit vectors, (rows, group + 1, time, key_dim)."""
    reads: Tensor
    """`asks` times the gates' `read`."""
    writes: Tensor
    """Unit keys times the gates' `write`, (rows, time, key_dim)."""
    pairs: Tensor
    """(rows, group + 1, time, time): P for each query and last A, with its diagonal."""
    inverse: Tensor
    """T = (I + A B)^-1, (rows, time, time)."""
    gates: _Gates | None

    @property
    def keys(self) -> Tensor:
        return self.asks[:, -1]


def _prepare(piece: Sequence, dtype: torch.dtype) -> _Chunk:
    """Compute what does not depend on the state."""
    q, k = unit(piece.q.to(dtype)), unit(piece.k.to(dtype))
    asks = torch.cat((q, k[:, :, None]), 2).flatten(0, 1)
    gates, keys = _gates(piece, dtype), asks[:, -1]
    if gates is not None and gates.pairs is None:
        assert piece.decay is not None
        pairs = channel_pairs(asks, keys, piece.decay.to(dtype).flatten(0, 1))
        pairs = pairs if gates.same is None else pairs * gates.same[:, None]
    else:
        pairs = torch.bmm(asks.flatten(1, 2), keys.transpose(1, 2)).unflatten(1, asks.shape[1:3])
        pairs = pairs.tril() if gates is None or gates.pairs is None else pairs * gates.pairs[:, None]
    system = pairs[:, -1]
    if piece.beta is not None:
        system = system * piece.beta.to(dtype).flatten(0, 1).transpose(1, 2)
    identity = torch.eye(keys.shape[1], dtype=dtype, device=keys.device).expand_as(system)
    inverse = torch.linalg.solve_triangular(system, identity, upper=False, unitriangular=True)
    reads, writes = (asks, keys) if gates is None else (asks * gates.read[:, None], keys * gates.write)
    return _Chunk(asks, reads, writes, pairs, inverse, gates)


def _forward(piece: Sequence, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return outputs without scale, errors X and the next state of one chunk; state (rows, key_dim, value_dim)."""
    chunk = _prepare(piece, state.dtype)
    group, time = piece.q.shape[2:4]
    found = torch.bmm(chunk.reads.flatten(1, 2), state)  # rows (group+1)*time value_dim
    expected = found[:, group * time :]
    errors = torch.bmm(chunk.inverse, piece.v.to(state.dtype).flatten(0, 1) - expected)
    updates = errors if piece.beta is None else errors * piece.beta.to(state.dtype).flatten(0, 1)
    out = torch.baddbmm(found[:, : group * time], chunk.pairs[:, :-1].flatten(1, 2), updates)
    kept = state if chunk.gates is None else state * chunk.gates.keep
    return out, errors, kept + torch.bmm(chunk.writes.transpose(1, 2), updates)


def _run(
    sequence: Sequence, state: Tensor, scale: float, chunk: int, saved: list[Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """Run the chunks in order; `saved` collects the errors of all tokens and then the state before each chunk."""
    batch, heads, group = sequence.q.shape[:3]
    value_dim = sequence.v.shape[3]
    outputs, errors = [], []
    rows = state.flatten(0, 1)
    for start, end in _chunks(sequence, chunk):
        with no_autocast(state):
            out, error, new = _forward(sequence.slice(start, end), rows)
        outputs.append((out * scale).to(sequence.q.dtype).view(batch, heads, group, end - start, value_dim))
        if saved is not None:
            saved.append(rows)
            errors.append(error)
        rows = new
    if saved is not None:
        saved.insert(0, torch.cat(errors, 1))
    return torch.cat(outputs, 3), rows.view_as(state)


class _DeltaRule(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scale: float, chunk: int, state: Tensor, *inputs: Tensor | None) -> Any:
        sequence, saved = Sequence(*inputs), []  # type: ignore[arg-type,var-annotated]
        out, last = _run(sequence, state, scale, chunk, saved)
        ctx.scale, ctx.chunk = scale, chunk
        ctx.save_for_backward(*inputs, last, *saved)
        return out, last

    @staticmethod
    @forbid_double_backward
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        *inputs, last, errors = ctx.saved_tensors[:8]
        sequence, states = Sequence(*inputs), [*ctx.saved_tensors[8:], last.flatten(0, 1)]
        state_gradient = gradients[1].flatten(0, 1).to(last.dtype)
        found: list[tuple[Tensor | None, ...]] = []
        bounds = _chunks(sequence, ctx.chunk)
        for index in reversed(range(len(bounds))):
            start, end = bounds[index]
            arriving = upcast(gradients[0][:, :, :, start:end]).flatten(0, 1) * ctx.scale
            known = _Known(errors[:, start:end], states[index], states[index + 1])
            with no_autocast(last):
                state_gradient, parts = _backward(sequence.slice(start, end), known, arriving, state_gradient)
            found.append(parts)
        merged = (_merge(parts, x) for parts, x in zip(zip(*reversed(found), strict=True), inputs, strict=False))
        return None, None, state_gradient.view_as(last), *merged, None


def _merge(parts: tuple[Tensor | None, ...], like: Tensor | None) -> Tensor | None:
    """Join the chunks of a gradient: rows become batch and heads again."""
    if like is None or parts[0] is None:
        return None
    return torch.cat([x for x in parts if x is not None], -2).view(like.shape).to(like.dtype)


@dataclass(frozen=True)
class _Known:
    """What the forward of a chunk left for its backward."""

    errors: Tensor
    before: Tensor
    after: Tensor


def _backward(
    piece: Sequence, known: _Known, arriving: Tensor, state_gradient: Tensor
) -> tuple[Tensor, tuple[Tensor | None, ...]]:
    """Return the gradients of the state before one chunk, and of its q, k, v, decay and beta."""
    dtype = known.before.dtype
    chunk, beta = _prepare(piece, dtype), piece.beta
    beta = None if beta is None else beta.to(dtype).flatten(0, 1)
    updates = known.errors if beta is None else known.errors * beta
    flat = arriving.flatten(1, 2)
    to_updates = torch.bmm(chunk.writes, state_gradient)
    to_updates = torch.baddbmm(to_updates, chunk.pairs[:, :-1].flatten(1, 2).transpose(1, 2), flat)
    to_values = torch.bmm(chunk.inverse.transpose(1, 2), to_updates if beta is None else to_updates * beta)
    below = torch.cat((flat, -to_values), 1)  # rows (group+1)*time value_dim
    to_pairs = torch.bmm(below, known.errors.transpose(1, 2)).unflatten(1, chunk.asks.shape[1:3])
    to_beta = None
    if beta is not None:
        strict = chunk.pairs[:, -1].tril(-1)
        to_beta = (known.errors * to_updates).sum(-1) + (to_pairs[:, -1] * strict).sum(1)
        to_beta, to_pairs = to_beta[..., None], to_pairs * beta.transpose(1, 2)[:, None]
    to_pairs = torch.cat((to_pairs[:, :-1].tril(), to_pairs[:, -1:].tril(-1)), 1)
    to_reads = torch.bmm(below, known.before.transpose(1, 2)).unflatten(1, chunk.asks.shape[1:3])
    to_writes = torch.bmm(updates, state_gradient.transpose(1, 2))
    before = torch.bmm(chunk.reads.flatten(1, 2).transpose(1, 2), below)
    before = before + (state_gradient if chunk.gates is None else state_gradient * chunk.gates.keep)
    to_asks, to_keys = _pair_gradients(piece, chunk, to_pairs)
    gates = chunk.gates
    to_asks = to_asks + (to_reads if gates is None else to_reads * gates.read[:, None])
    to_keys = to_keys + (to_writes if gates is None else to_writes * gates.write)
    to_decay = None
    if piece.decay is not None:
        to_decay = _gate_gradient(piece, chunk, (to_asks, to_keys), -known.after * state_gradient)
    to_k = _unit_gradient(piece.k, chunk.keys, to_asks[:, -1] + to_keys)
    to_q = _unit_gradient(piece.q, chunk.asks[:, :-1], to_asks[:, :-1])
    return before, (to_q, to_k, to_values, to_decay, to_beta)


def _pair_gradients(piece: Sequence, chunk: _Chunk, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of asks and keys through the pairs of a chunk."""
    gates, asks, keys = chunk.gates, chunk.asks, chunk.keys
    if gates is not None and gates.same is not None:
        gradient = gradient * gates.same[:, None]
    if gates is not None and gates.pairs is None:
        assert piece.decay is not None
        return channel_pairs_backward(gradient, asks, keys, piece.decay.to(keys.dtype).flatten(0, 1))
    if gates is not None:
        gradient = gradient * gates.pairs[:, None]  # type: ignore[index]
    rows = gradient.flatten(1, 2)
    to_asks = torch.bmm(rows, keys).unflatten(1, asks.shape[1:3])
    return to_asks, torch.bmm(rows.transpose(1, 2), asks.flatten(1, 2))


def _gate_gradient(
    piece: Sequence, chunk: _Chunk, gradients: tuple[Tensor, Tensor], to_state_end: Tensor
) -> Tensor | None:
    """Return the gradient of the rates.

    The running sum d_t stands in -d_t beside every reading vector of token t, and in +d_t beside its writing key. So
    its gradient is key . gradient - ask . gradient, with the state at the end for d_C. A rate is in all later sums.
    """
    to_asks, to_keys = gradients
    to_sums = chunk.keys * to_keys - (chunk.asks * to_asks).sum(1)
    to_end = to_state_end.sum(-1)[:, None]  # rows 1 key_dim
    assert piece.decay is not None
    if piece.decay.shape[-1] == 1:
        to_sums, to_end = to_sums.sum(-1, keepdim=True), to_end.sum(-1, keepdim=True)
    found = to_sums.flip(1).cumsum(1).flip(1) + to_end
    if piece.starts is not None:
        found = found.masked_fill(piece.starts.expand(*piece.k.shape[:3], 1).flatten(0, 1), 0)
    return found


def _unit_gradient(x: Tensor, direction: Tensor, gradient: Tensor) -> Tensor:
    """Return the gradient of `x` where `direction` = unit(x)."""
    inverse = _inverse_length(x.to(gradient.dtype)).flatten(0, 1)
    return (gradient - direction * (direction * gradient).sum(-1, keepdim=True)) * inverse
