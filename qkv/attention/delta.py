r"""Delta attention: linear attention that overwrites what a key held, instead of adding to it.

    S_t = exp(-decay_t) S_(t-1);    S_t += k_t (beta_t (v_t - S_t' k_t))';    o_t = scale q_t' S_t

`linear` adds k v' to its state, so that two values under the same key are both read. The delta rule writes only the
difference between v and what the state already returns for k. As a matrix, with unit q and k, D the running sum of the
rates and pair(a, b)_ij = a_i.b_j exp(D_j - D_i) for j <= i:

    weights = scale tril(pair(q, k)) (I + B strict_tril(pair(k, k)))^-1 B,    B = diag(beta),    scale = key_dim^-0.5

Without decay it is DeltaNet, with a gate per token Gated DeltaNet, with a gate per channel KDA. beta above 1 gives
negative eigenvalues. Nothing is normalized: training needs a norm on the output.
Papers: https://arxiv.org/abs/2406.06484, https://arxiv.org/abs/2412.06464, https://arxiv.org/abs/2510.26692,
https://arxiv.org/abs/2411.12537.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from qkv.attention.base import Attention, State, check_backend, check_chunk, expand_heads, register
from qkv.attention.internal import graph_op
from qkv.attention.internal.cost import delta_cost
from qkv.attention.internal.delta_rule import DeltaInputs, delta_rule, unit
from qkv.attention.internal.gates import (
    CLOSED,
    document_index,
    gated_products,
    pair_exponents,
    running_sums,
    visible_rates,
)
from qkv.attention.internal.layout import group_queries, state_rows
from qkv.attention.internal.masking import hidden_keys, zero_hidden
from qkv.attention.internal.nonfinite import all_finite, keep_past_finite
from qkv.attention.internal.precision import no_autocast, upcast, upcast_dtype
from qkv.attention.internal.validation import Modifiers, check_inputs
from qkv.attention.law import Law
from qkv.attention.parallel.summary import Summary, SummaryOptions
from qkv.attention.recurrent_state import RecurrentState
from qkv.attention.triton import dispatch
from qkv.cost import Cost, Shape
from qkv.shapes import Beta, Bias, Decay, Keys, Mask, Outputs, Queries, Starts, StepBias, Values, Weights


@register("delta")
class Delta(Attention):
    """Attention by the delta rule: a state that overwrites, with unit queries and keys."""

    accepts = frozenset({"decay", "gate", "channel_gate", "beta", "rotation"})
    causal_only = True
    backends: ClassVar[tuple[str, ...]] = ("reference", "chunked", "triton")
    normalizes = False

    def __init__(self, *, scale: float | None = None, chunk: int | None = None, backend: str = "auto"):
        super().__init__()
        self.scale = scale
        self.chunk = check_chunk(chunk)
        self.backend = check_backend("delta", backend, self.backends)

    @property
    def law(self) -> Law:
        """The matrix that defines the kind."""
        return Law(
            "delta rule",
            r"(P (I + B A)^{-1} B)_{ij}",
            "This kind overwrites: the weight of a key shrinks where later keys are like it. P holds q · k and A holds "
            "k · k of past keys, with unit vectors. B is the diagonal matrix of beta.",
            score=None,
            decay_note="A decay acts inside: each entry of P and A fades by the rates of the tokens between the two. ",
        )

    def weights(
        self,
        q: Queries,
        k: Keys,
        *,
        causal: bool = False,
        mask: Mask | None = None,
        bias: Bias | None = None,
        decay: Decay | None = None,
        beta: Beta | None = None,
        starts: Starts | None = None,
    ) -> Weights:
        """Return the definition: scale tril(pair(q, k)) (I + B strict_tril(pair(k, k)))^-1 B."""
        modifiers = Modifiers(causal, mask, bias, decay, beta, starts)
        check_inputs(self, q, k, None, modifiers)
        with no_autocast(q):
            return self._unrounded_weights(_repair_hidden(q, mask), zero_hidden(k, mask), modifiers).to(q.dtype)

    def forward(
        self,
        q: Queries,
        k: Keys,
        v: Values,
        *,
        causal: bool = False,
        mask: Mask | None = None,
        bias: Bias | None = None,
        decay: Decay | None = None,
        beta: Beta | None = None,
        starts: Starts | None = None,
    ) -> Outputs:
        """Compute weights(q, k) @ v chunk by chunk: in torch, or with backend="triton" by the kernels."""
        modifiers = Modifiers(causal, mask, bias, decay, beta, starts)
        check_inputs(self, q, k, v, modifiers)
        if graph_op.is_node(self):
            return graph_op.forward(self, q, k, v, modifiers)
        q, k, v = _repair_hidden(q, mask), zero_hidden(k, mask), zero_hidden(v, mask)
        if self.backend != "reference":
            return self._run(q, k, v, None, modifiers)[0]

        def attend(k: Tensor, v: Tensor) -> Tensor:
            return self._unrounded_weights(q, k, modifiers) @ upcast(expand_heads(v, q.shape[1]))

        with no_autocast(q):
            out = attend(k, v)
            return (out if all_finite(out) else keep_past_finite(attend, k, v)).to(q.dtype)

    def start(
        self,
        batch: int,
        heads: int,
        key_dim: int,
        value_dim: int,
        *,
        key_heads: int | None = None,
        capacity: int | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> RecurrentState:
        """Return a state of zeros; `capacity` is not needed, because the state never grows."""
        sizes = batch, key_heads or heads, key_dim, value_dim
        return RecurrentState(torch.zeros(sizes, dtype=upcast_dtype(dtype), device=device))

    def step(
        self,
        q: Queries,
        k: Keys,
        v: Values,
        state: State,
        *,
        mask: Mask | None = None,
        bias: StepBias | None = None,
        decay: Decay | None = None,
        beta: Beta | None = None,
        starts: Starts | None = None,
    ) -> tuple[Outputs, RecurrentState]:
        """Process the new tokens from this state (prefill or decode).

        If decay or beta differ between query heads that share a key head, the state needs one row per query head:
        `start(..., key_heads=heads)`.
        """
        if not isinstance(state, RecurrentState):
            raise TypeError(f"state must be a RecurrentState from {self.kind}.start(), got {type(state).__name__}")
        modifiers = Modifiers(True, mask, bias, decay, beta, starts)
        check_inputs(self, q, k, v, modifiers)
        if graph_op.is_node(self):
            return graph_op.step(self, (q, k, v), state, modifiers)
        rows, held = _state_heads(q, k, modifiers), state.kv_sum.shape[1]
        if rows > k.shape[1] and held == k.shape[1]:
            raise ValueError(
                f"decay or beta differs between {rows} query heads, but the state was started with "
                f"key_heads={held}; start it with key_heads={rows}"
            )
        rows = held if held == q.shape[1] else rows
        expected, dtype = (q.shape[0], rows, q.shape[3], v.shape[3]), upcast_dtype(k.dtype)
        if tuple(state.kv_sum.shape) != expected or state.k_sum is not None or state.kv_sum.dtype != dtype:
            raise ValueError(
                f"state holds sums of shape {[tuple(x.shape) for x in state.sums]} and {state.kv_sum.dtype}, "
                f"but these q, k and v need {[expected]} and {dtype}"
            )
        state.require_unconsumed()
        q, k, v = _repair_hidden(q, mask), zero_hidden(k, mask), zero_hidden(v, mask)
        new, length = state.kv_sum, state.length + k.shape[2]
        if self._steps_in_place(q, v, new, modifiers):
            state.consume()
            out = dispatch.delta_decode_step((q, k, v), new, modifiers, self._factor(q.shape[3]))
        else:
            out, new = self._run(q, k, v, new, modifiers)
        return out, RecurrentState(new, length=length)

    def summarize(
        self,
        k: Keys,
        v: Values,
        state: State,
        *,
        mask: Mask | None = None,
        decay: Decay | None = None,
        beta: Beta | None = None,
        starts: Starts | None = None,
    ) -> Summary:
        """Return the affine map of these tokens, S -> carried S + written; its size does not depend on their number.

        `written` is the state after them from zeros. `carried`, the product of their transitions, is the state after
        them from the identity if every value is 0. One run of the delta rule on values [v, 0] gives both.
        """
        assert isinstance(state, RecurrentState)
        k, v = zero_hidden(k, mask), zero_hidden(v, mask)
        batch, heads, key_dim, value_dim = state.kv_sum.shape
        values = functional.pad(expand_heads(v, heads), (0, key_dim))
        identity = torch.eye(key_dim, dtype=state.kv_sum.dtype, device=k.device).expand(batch, heads, -1, -1)
        first = torch.cat((torch.zeros_like(state.kv_sum), identity), 3)
        modifiers = Modifiers(True, mask, None, decay, beta, starts)
        queries = k.new_empty(batch, heads, 0, *k.shape[2:])
        sequence = self._delta_inputs(queries, k, values, heads, modifiers)
        _, last = delta_rule(sequence, first, self._factor(key_dim), self._chunk_size())
        written, carried = last.split((value_dim, key_dim), 3)
        return Summary({"written": written, "carried": carried}, k.shape[2])

    def advance(self, state: State, summaries: Sequence[Summary]) -> RecurrentState:
        """Return the state after these parts: S = carried S + written, one part after the other."""
        assert isinstance(state, RecurrentState)
        found = state.kv_sum
        with no_autocast(found):
            for part in summaries:
                found = part.tensors["carried"] @ found + part.tensors["written"]
        return RecurrentState(found, length=state.length + sum(part.length for part in summaries))

    def part_cost(self, shape: Shape, earlier: int) -> Cost:
        """Return the cost of the chunks, of those of the summary, and of `advance`: one product per earlier part."""
        whole = self.cost(shape)
        parts = {
            "summary": delta_cost.summary(shape, self._chunk_size()),
            "advance": earlier * state_rows(shape) * shape.key_dim**2 * shape.value_dim,
        }
        form = delta_cost.chunked(shape, self._chunk_size()) if self.backend == "reference" else whole.executed
        return replace(whole, executed={**form, **parts})

    def summary_bytes(self, shape: Shape, options: SummaryOptions) -> dict[str, int]:
        """Return the bytes of a summary: a state and a square matrix of key_dim."""
        line = state_rows(shape) * shape.key_dim * max(shape.element_bytes, 4)
        return {"written": line * shape.value_dim, "carried": line * shape.key_dim}

    def cost(self, shape: Shape) -> Cost:
        """Return the cost of the chunks: pairs and triangular solve inside, state between them."""
        rows, size = state_rows(shape), shape.key_dim * shape.value_dim
        needed = delta_cost.needed(shape)
        if self.backend == "reference":
            executed = delta_cost.reference(shape)
        elif self.backend == "triton":
            executed = dispatch.delta_multiplications(shape, rows // shape.batch)
        else:
            executed = delta_cost.chunked(shape, self._chunk_size())
        return Cost(needed=needed, executed=executed, state={"sums": rows * size * max(shape.element_bytes, 4)})

    def _chunk_size(self) -> int:
        return 64 if self.chunk is None else self.chunk

    def _factor(self, key_dim: int) -> float:
        return key_dim**-0.5 if self.scale is None else float(self.scale)

    def _unrounded_weights(self, q: Queries, k: Keys, modifiers: Modifiers) -> Weights:
        """Compute the definition; hidden keys are zero."""
        heads = q.shape[1]
        q, k = unit(upcast(q)), unit(upcast(expand_heads(k, heads)))
        scores, system = self._pair(q, k, modifiers), self._pair(k, k, modifiers)
        if modifiers.beta is None:
            return torch.linalg.solve_triangular(system, scores, upper=False, left=False, unitriangular=True) * (
                self._factor(q.shape[3])
            )
        beta = expand_heads(zero_hidden(modifiers.beta[..., None], modifiers.mask), heads).to(q.dtype)
        found = torch.linalg.solve_triangular(beta * system, scores, upper=False, left=False, unitriangular=True)
        return found * beta.transpose(2, 3) * self._factor(q.shape[3])

    def _pair(self, a: Tensor, b: Tensor, modifiers: Modifiers) -> Tensor:
        """Return pair(a, b), zero above the diagonal."""
        heads, decay = a.shape[1], modifiers.decay
        if decay is None:
            pairs = a @ b.transpose(2, 3)
        elif modifiers.channel_gated:
            pairs = gated_products(a, b, expand_heads(running_sums(decay, modifiers.mask), heads))
        else:
            sums = running_sums(decay, modifiers.mask) if modifiers.gated else _distances(decay, a)
            pairs = a @ b.transpose(2, 3) * torch.exp(pair_exponents(expand_heads(sums, heads)).to(a.dtype))
        if modifiers.starts is not None:
            documents = document_index(modifiers.starts)
            pairs = pairs.masked_fill((documents[:, :, None] != documents[:, None])[:, None], 0)
        return pairs.tril()

    def _start(self, q: Queries, k: Keys, v: Values, modifiers: Modifiers) -> Tensor:
        sizes = q.shape[0], _state_heads(q, k, modifiers), q.shape[3], v.shape[3]
        return torch.zeros(sizes, dtype=upcast_dtype(k.dtype), device=k.device)

    def _run(
        self, q: Queries, k: Keys, v: Values, first: Tensor | None, modifiers: Modifiers
    ) -> tuple[Outputs, Tensor]:
        """Run the chunks from a state, or from zeros; hidden keys and values are zero. Return outputs and state."""
        heads = _state_heads(q, k, modifiers) if first is None else first.shape[1]
        if self._select_backend(q, v, modifiers) == "triton":
            return dispatch.delta_forward((q, k, v), first, heads, modifiers, self._factor(q.shape[3]))
        state = self._start(q, k, v, modifiers) if first is None else first
        queries, scale = group_queries(q, heads), self._factor(q.shape[3])

        def attend(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            sequence = self._delta_inputs(queries, k, v, heads, modifiers)
            out, new = delta_rule(sequence, state, scale, self._chunk_size())
            return out.flatten(1, 2), new

        out, new = attend(k, v)
        # one token has no future
        if q.shape[2] > 1 and not all_finite(out):
            out = keep_past_finite(lambda k, v: attend(k, v)[0], k, v)
        return out, new

    def _delta_inputs(self, queries: Tensor, k: Keys, v: Values, heads: int, modifiers: Modifiers) -> DeltaInputs:
        """Return the inputs of the delta rule with this many states per batch element; hidden tokens write nothing."""
        decay, beta, starts = _rates(k, modifiers), modifiers.beta, modifiers.starts
        return DeltaInputs(
            queries,
            expand_heads(k, heads),
            expand_heads(v, heads),
            None if decay is None else expand_heads(decay, heads),
            None if beta is None else expand_heads(zero_hidden(beta[..., None], modifiers.mask), heads),
            None if starts is None else starts[:, None, :, None],
        )

    def _select_backend(self, q: Queries, v: Values, modifiers: Modifiers) -> str:
        """Return the backend that runs; "auto" on CUDA dispatches to the kernels, with chunked as fallback."""
        if not dispatch.is_preferred(self, q):
            return "chunked"
        reason = dispatch.unsupported_delta_reason(q, v, self.scale, modifiers)
        if reason is None:
            return "triton"
        if self.backend == "triton":
            raise ValueError(f"backend='triton' cannot take this call of attention kind {self.kind!r}: {reason}")
        dispatch.warn_fallback(self.kind, reason)
        return "chunked"

    def _steps_in_place(self, q: Queries, v: Values, state: Tensor, modifiers: Modifiers) -> bool:
        """Return whether the kernel of one token takes this step: in inference mode, as it updates the state."""
        if q.shape[2] != 1 or not torch.is_inference_mode_enabled() or not state.is_contiguous():
            return False
        return self._select_backend(q, v, modifiers) == "triton"

    @classmethod
    def example(cls, key_dim: int) -> "Delta":
        """Build one with short chunks, so that short sequences have several."""
        return cls(chunk=5)


def _repair_hidden(q: Queries, mask: Mask | None) -> Queries:
    """Replace NaN and inf in the queries of hidden tokens: their products with a gradient of 0 would be NaN."""
    return q if mask is None else q.masked_fill(hidden_keys(mask) & ~q.isfinite(), 0)


def _state_heads(q: Queries, k: Keys, modifiers: Modifiers) -> int:
    """Return the rows of the state: one per key head, or one per query head if these have rates of their own."""
    decay, beta = modifiers.decay, modifiers.beta
    of_decay = 0 if decay is None else q.shape[1] if decay.dim() == 1 else decay.shape[1]
    return max(k.shape[1], of_decay, 0 if beta is None else beta.shape[1])


def _distances(decay: Tensor, x: Tensor) -> Tensor:
    """Return the running sums of a rate per head: (1, heads, keys)."""
    position = torch.arange(x.shape[2], device=x.device)
    return (decay.to(visible_rates(decay[:0]).dtype).clamp(max=CLOSED)[:, None] * position)[None]


def _rates(k: Keys, modifiers: Modifiers) -> Tensor | None:
    """Return the rates per token: (batch, heads, keys, 1 or key_dim)."""
    decay = modifiers.decay
    if decay is None:
        return None
    if not modifiers.gated:  # a rate per head counts every place, hidden or not
        return visible_rates(decay)[None, :, None, None].expand(k.shape[0], -1, k.shape[2], 1)
    rates = visible_rates(decay, modifiers.mask)
    return rates if modifiers.channel_gated else rates[..., None]
