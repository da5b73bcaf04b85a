"""The gated delta rule, chunk by chunk, with a backward written by hand.

    S_t = exp(-decay_t) S_(t-1);    x_t = v_t - S_t' k_t;    S_t += k_t (beta_t x_t)';    o_t = scale q_t' S_t

x_t is the error of what the state predicts for k_t. Inside a chunk that starts with state S, with in-chunk running
sums d of the rates (d_C at its end) and pair(a, b)_ij = a_i.b_j exp(d_j - d_i) for j <= i:

    P = tril(pair(q, k))    A = strict_tril(pair(k, k))    B = diag(beta)    T = (I + A B)^-1
    X = T (V - K~ S)        O = Q~ S + P B X               S' = exp(-d_C) S + K^' B X
    K~ = k exp(-d)          Q~ = q exp(-d)                 K^ = k exp(d - d_C)

T is lower triangular and comes from triangular solves. Its entries are small, because keys have length 1, but those of
powers of A B are not: a series of powers loses all digits where keys are alike. The backward keeps X, and the state at
the start of each chunk. The gradient of the gate costs nothing more: it follows from those of q and k
(`_gate_gradient`).
Papers: https://arxiv.org/abs/2406.06484, https://arxiv.org/abs/2412.06464.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from qkv.attention.internal.channel_pairs import channel_pairs, channel_pairs_backward
from qkv.attention.internal.chunked import keep_freed_memory
from qkv.attention.internal.double_backward import forbid_double_backward
from qkv.attention.internal.precision import no_autocast

EPS = 1e-6
"""Added to the squared length of a key or query before the root, as in other libraries."""

SMALLEST_HALVED = 32
"""Smallest triangular matrix that is inverted by halves."""


@dataclass(frozen=True)
class DeltaInputs:
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

    def slice(self, start: int, end: int) -> "DeltaInputs":
        """Return the tokens from `start` to `end`."""
        return DeltaInputs(*(None if x is None else x[..., start:end, :] for x in self.tensors))  # type: ignore[arg-type]


def delta_rule(sequence: DeltaInputs, state: Tensor, scale: float, chunk: int) -> tuple[Tensor, Tensor]:
    """Return outputs (batch, heads, group, time, value_dim) and the last state (batch, heads, key_dim, value_dim)."""
    tensors = [x for x in (*sequence.tensors, state) if x is not None]
    needs_backward = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    if not needs_backward or torch._C._are_functorch_transforms_active():
        return _run(sequence, state, scale, chunk)
    out, last = _DeltaRule.apply(scale, chunk, state, *sequence.tensors)
    return out, last


def unit(x: Tensor) -> Tensor:
    """Normalize the last axis to length 1. A zero vector stays zero, and its gradient is zero."""
    return x * _inverse_length((x * x).sum(-1, keepdim=True))


def _inverse_length(squares: Tensor) -> Tensor:
    return torch.rsqrt(squares + EPS).masked_fill(squares == 0, 0)


def _inverse_lengths(x: Tensor, dtype: torch.dtype) -> Tensor:
    return _inverse_length(torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=dtype).square())


def _chunks(sequence: DeltaInputs, chunk: int) -> list[tuple[int, int]]:
    """Return (start, end) of each chunk; an empty sequence is one empty chunk, so that it has an output."""
    time = sequence.k.shape[2]
    return [(start, min(start + chunk, time)) for start in range(0, max(time, 1), chunk)]


@dataclass(frozen=True)
class _Gates:
    """Factors of a chunk's gates, all at most 1; one row per batch element and head."""

    read: Tensor
    """exp(-d), factor of the state as each token reads it: (rows, time, 1 or key_dim)."""
    write: Tensor
    """exp(d - d_C), factor of each key as it is added to the state: (rows, time, 1 or key_dim)."""
    keep: Tensor
    """exp(-d_C), factor of the state at the end of the chunk: (rows, 1 or key_dim, 1)."""
    pairs: Tensor | None
    """exp(d_j - d_i), factor of query i and key j, zero above the diagonal; None with a gate per channel."""
    same: Tensor | None
    """Whether two tokens belong to the same document, (rows, time, time); None without starts."""


def _gates(piece: DeltaInputs, dtype: torch.dtype) -> _Gates | None:
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
        # above the diagonal exp may overflow, but nothing of it is kept
        pairs = torch.exp((sums.transpose(1, 2) - sums).to(dtype)).tril()
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
    """Unit queries times scale, then the unit key: (rows, group + 1, time, key_dim)."""
    products: Tensor
    """Dot products of asks and keys inside the chunk, decayed only by a gate per channel; not masked without one."""
    pairs: Tensor
    """(rows, group + 1, time, time): P B for each query, and A B with a diagonal that is not used."""
    inverse: Tensor
    """T = (I + A B)^-1, (rows, time, time)."""
    gates: _Gates | None
    beta: Tensor | None
    """(rows, time, 1)"""

    @property
    def keys(self) -> Tensor:
        return self.asks[:, -1]

    @property
    def writes(self) -> Tensor:
        """Unit keys, decayed to the end of the chunk and times beta."""
        keys = self.keys if self.gates is None else self.keys * self.gates.write
        return keys if self.beta is None else keys * self.beta

    @property
    def channel_gated(self) -> bool:
        return self.gates is not None and self.gates.pairs is None

    @property
    def reads(self) -> Tensor:
        """What multiplies the state: `asks`, decayed by a gate per channel; other gates scale the result."""
        return self.asks * self.gates.read[:, None] if self.gates is not None and self.channel_gated else self.asks

    def fade(self, x: Tensor) -> Tensor:
        """Multiply the rows (rows, (group + 1) * time, value_dim) by the gate of the state, unless `reads` has it."""
        if self.gates is None or self.channel_gated:
            return x
        return (x.unflatten(1, self.asks.shape[1:3]) * self.gates.read[:, None]).flatten(1, 2)


def _prepare(piece: DeltaInputs, scale: float, dtype: torch.dtype) -> _Chunk:
    """Compute what does not depend on the state."""
    asks = _stack_units(piece, scale, dtype)
    gates, keys = _gates(piece, dtype), asks[:, -1]
    beta = None if piece.beta is None else piece.beta.to(dtype).flatten(0, 1)
    if gates is not None and gates.pairs is None:
        assert piece.decay is not None
        products = channel_pairs(asks, keys, piece.decay.to(dtype).flatten(0, 1))
        pairs = products if gates.same is None else products * gates.same[:, None]
        pairs = pairs if beta is None else pairs * beta.transpose(1, 2)[:, None]
    else:
        products = torch.bmm(asks.flatten(1, 2), keys.transpose(1, 2)).unflatten(1, asks.shape[1:3])
        factors = None if gates is None else gates.pairs
        if beta is not None:
            factors = (torch.ones_like(products[:, 0]).tril() if factors is None else factors) * beta.transpose(1, 2)
        pairs = products.tril() if factors is None else products * factors[:, None]
    return _Chunk(asks, products, pairs, _invert(pairs[:, -1]), gates, beta)


def _stack_units(piece: DeltaInputs, scale: float, dtype: torch.dtype) -> Tensor:
    """Return the unit queries, times scale, and then the unit key of each token: (rows, group + 1, time, key_dim)."""
    q, k = piece.q, piece.k[:, :, None]
    of_q, of_k = _inverse_lengths(q, dtype) * scale, _inverse_lengths(k, dtype)
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return torch.cat((q * of_q, k * of_k), 2).flatten(0, 1)
    found = torch.empty(*q.shape[:2], q.shape[2] + 1, *q.shape[3:], dtype=dtype, device=q.device)
    torch.mul(q, of_q, out=found[:, :, :-1])
    torch.mul(k, of_k, out=found[:, :, -1:])
    return found.flatten(0, 1)


def _invert(system: Tensor) -> Tensor:
    """Return the inverse of the matrix with ones on its diagonal and `system` below.

    Halves are inverted first and then joined by two matrix products, which are faster than a large solve.
    """
    size = system.shape[1]
    if not _is_halved(size):
        identity = torch.eye(size, dtype=system.dtype, device=system.device).expand_as(system)
        return torch.linalg.solve_triangular(system, identity, upper=False, unitriangular=True)
    half = size // 2
    first, second = system[:, :half, :half], system[:, half:, half:]
    first, second = _invert(torch.cat((first, second))).chunk(2)
    corner = torch.bmm(torch.bmm(second, system[:, half:, :half]), first)
    above = functional.pad(first, (0, half))
    return torch.cat((above, torch.cat((-corner, second), 2)), 1)


def inverse_multiplications(size: int) -> int:
    """Return the multiplications that invert a triangular matrix of this size."""
    if not _is_halved(size):
        return size * (size * (size - 1) // 2)
    return 2 * inverse_multiplications(size // 2) + 2 * (size // 2) ** 3


def _is_halved(size: int) -> bool:
    return size >= SMALLEST_HALVED and size % 2 == 0


def _forward(piece: DeltaInputs, state: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return outputs, errors X and the next state of one chunk; state (rows, key_dim, value_dim)."""
    chunk = _prepare(piece, scale, state.dtype)
    queries = piece.q.shape[2] * piece.q.shape[3]
    found = chunk.fade(torch.bmm(chunk.reads.flatten(1, 2), state))
    errors = torch.bmm(chunk.inverse, piece.v.flatten(0, 1) - found[:, queries:])
    out = torch.baddbmm(found[:, :queries], chunk.pairs[:, :-1].flatten(1, 2), errors)
    kept = state if chunk.gates is None else state * chunk.gates.keep
    # not baddbmm: adding each token to a large sum would round once per token, not once per chunk
    return out, errors, kept + torch.bmm(chunk.writes.transpose(1, 2), errors)


def _run(
    sequence: DeltaInputs, state: Tensor, scale: float, chunk: int, saved: list[Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """Run the chunks in order; `saved` collects the errors of all tokens and then the state before each chunk."""
    if not torch.compiler.is_compiling():  # Dynamo warns about a cached function
        keep_freed_memory()
    q, value_dim = sequence.q, sequence.v.shape[3]
    outputs = q.new_empty(*q.shape[:4], value_dim)
    rows = state.flatten(0, 1)
    if saved is not None:
        saved.append(rows.new_empty(rows.shape[0], q.shape[3], value_dim))
    for start, end in _chunks(sequence, chunk):
        with no_autocast(state):
            out, errors, new = _forward(sequence.slice(start, end), rows, scale)
        outputs[..., start:end, :] = out.view(*q.shape[:3], end - start, value_dim)
        if saved is not None:
            saved[0][:, start:end] = errors
            saved.append(rows)
        rows = new
    return outputs, rows.view_as(state)


class _DeltaRule(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scale: float, chunk: int, state: Tensor, *inputs: Tensor | None) -> Any:
        sequence, saved = DeltaInputs(*inputs), []  # type: ignore[arg-type,var-annotated]
        out, last = _run(sequence, state, scale, chunk, saved)
        ctx.scale, ctx.chunk = scale, chunk
        ctx.save_for_backward(*inputs, last, *saved)
        return out, last

    @staticmethod
    @forbid_double_backward
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        saved = ctx.saved_tensors
        *inputs, last, errors = saved[:8]
        sequence, states = DeltaInputs(*inputs), [*saved[8:], last.flatten(0, 1)]
        state_gradient = gradients[1].flatten(0, 1)
        totals = [None if x is None else torch.empty_like(x) for x in inputs[:5]]
        bounds = _chunks(sequence, ctx.chunk)
        for index in reversed(range(len(bounds))):
            start, end = bounds[index]
            known = _Known(errors[:, start:end], states[index], states[index + 1])
            arriving = gradients[0][:, :, :, start:end].flatten(0, 1)
            with no_autocast(last):
                state_gradient, parts = _backward(
                    sequence.slice(start, end), known, (arriving, state_gradient), ctx.scale
                )
            for total, part in zip(totals, parts, strict=True):
                if total is not None and part is not None:
                    piece = total[..., start:end, :]
                    piece.copy_(part.reshape(piece.shape))
        return None, None, state_gradient.view_as(last), *totals, None


@dataclass(frozen=True)
class _Known:
    """What the forward of a chunk left for its backward."""

    errors: Tensor
    before: Tensor
    after: Tensor


def _backward(
    piece: DeltaInputs, known: _Known, arriving: tuple[Tensor, Tensor], scale: float
) -> tuple[Tensor, tuple[Tensor | None, ...]]:
    """Return the gradients of the state before one chunk, and of its q, k, v, decay and beta."""
    to_out, to_state = arriving
    chunk = _prepare(piece, scale, known.before.dtype)
    gates, sizes = chunk.gates, chunk.asks.shape[1:3]
    to_out = to_out.to(to_state.dtype).flatten(1, 2)
    # through the writes: gradient of X, then of V - K~ S, which is that of V
    to_errors = torch.bmm(chunk.writes, to_state)
    to_errors = to_errors.baddbmm_(chunk.pairs[:, :-1].flatten(1, 2).transpose(1, 2), to_out)
    to_values = torch.bmm(chunk.inverse.transpose(1, 2), to_errors)
    below = torch.cat((to_out, -to_values), 1)  # gradients of what is read: rows (group+1)*time value_dim
    to_products, to_beta = _product_gradients(chunk, torch.bmm(below, known.errors.transpose(1, 2)))
    faded = chunk.fade(below)
    to_asks = torch.bmm(faded, known.before.transpose(1, 2)).unflatten(1, sizes)
    to_keys = torch.bmm(known.errors, to_state.transpose(1, 2))
    if gates is not None:
        to_asks = to_asks.mul_(gates.read[:, None]) if chunk.channel_gated else to_asks
        to_keys = to_keys.mul_(gates.write)
    if chunk.beta is not None:
        to_beta = to_beta + (to_keys * chunk.keys).sum(-1)
        to_keys = to_keys.mul_(chunk.beta)
    _add_pair_gradients(piece, chunk, to_products, (to_asks, to_keys))
    before = torch.bmm(chunk.reads.flatten(1, 2).transpose(1, 2), faded)
    before = before.add_(to_state if gates is None else to_state * gates.keep)
    by_ask, by_key = chunk.asks * to_asks, chunk.keys * to_keys
    to_decay = None
    if piece.decay is not None:
        to_decay = _gate_gradient(piece, by_ask.sum(1), by_key, known.after * to_state)
    along = by_ask.sum(-1, keepdim=True)
    to_k = to_keys.add_(to_asks[:, -1])
    to_k = _unit_gradient(piece.k, to_k, along[:, -1] + by_key.sum(-1, keepdim=True), 1.0)
    to_q = _unit_gradient(piece.q, to_asks[:, :-1], along[:, :-1], scale)
    return before, (to_q, to_k, to_values, to_decay, None if chunk.beta is None else to_beta[..., None])


def _product_gradients(chunk: _Chunk, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of the products and, through them, of beta; `gradient` is that of P B and A B."""
    gradient = gradient.unflatten(1, chunk.asks.shape[1:3])
    if chunk.gates is None or chunk.gates.pairs is None:
        gradient = gradient.tril_()
        gradient = (
            gradient.mul_(chunk.gates.same[:, None]) if chunk.gates and chunk.gates.same is not None else gradient
        )
    else:
        gradient = gradient.mul_(chunk.gates.pairs[:, None])
    gradient[:, -1].diagonal(dim1=1, dim2=2).zero_()  # A is strictly lower triangular
    if chunk.beta is None:
        return gradient, gradient
    to_beta = (gradient * chunk.products).sum((1, 2))
    return gradient.mul_(chunk.beta.transpose(1, 2)[:, None]), to_beta


def _add_pair_gradients(piece: DeltaInputs, chunk: _Chunk, gradient: Tensor, totals: tuple[Tensor, Tensor]) -> None:
    """Add the gradients of asks and keys through the products inside a chunk."""
    to_asks, to_keys = totals
    if chunk.channel_gated:
        assert piece.decay is not None
        rates = piece.decay.to(to_keys.dtype).flatten(0, 1)
        for total, part in zip(totals, channel_pairs_backward(gradient, chunk.asks, chunk.keys, rates), strict=True):
            total.add_(part)
        return
    rows = gradient.flatten(1, 2)
    to_asks.flatten(1, 2).baddbmm_(rows, chunk.keys)
    to_keys.baddbmm_(rows.transpose(1, 2), chunk.asks.flatten(1, 2))


def _gate_gradient(piece: DeltaInputs, by_ask: Tensor, by_key: Tensor, by_state: Tensor) -> Tensor:
    """Return the gradient of the rates, from products of vectors and their gradients, channel by channel.

    The running sum d_t stands in -d_t beside every reading vector of token t, and in +d_t beside its writing key. So
    its gradient is key . gradient - ask . gradient, with the state at the end for d_C. A rate is in all later sums.
    """
    assert piece.decay is not None
    to_sums, to_end = by_key - by_ask, by_state.sum(-1)[:, None]  # rows time key_dim, rows 1 key_dim
    if piece.decay.shape[-1] == 1:
        to_sums, to_end = to_sums.sum(-1, keepdim=True), to_end.sum(-1, keepdim=True)
    found = to_sums.flip(1).cumsum(1).flip(1) - to_end
    if piece.starts is not None:
        found = found.masked_fill(piece.starts.expand(*piece.k.shape[:3], 1).flatten(0, 1), 0)
    return found


def _unit_gradient(x: Tensor, gradient: Tensor, along: Tensor, scale: float) -> Tensor:
    """Return the gradient of x, from that of y = scale unit(x) and along = y . gradient."""
    inverse = _inverse_lengths(x, gradient.dtype).flatten(0, 1)
    return gradient * (inverse * scale) - x.flatten(0, 1) * (along * inverse.square())
