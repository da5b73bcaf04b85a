"""Base class of linear attention, whose weight is a dot product of features: chunked form, state and step.

    similarity(q, k) = phi(q) . phi(k)
    output_i = sum_j phi(q_i).phi(k_j) v_j / sum_j phi(q_i).phi(k_j)        (the sum over j <= i if causal)

The sums over j do not depend on the query. They are a recurrent state of fixed size,
S = sum_j phi(k_j) v_j' and z = sum_j phi(k_j), so the cost is linear in length. Inside a chunk the quadratic
form is cheaper, so a sequence is processed chunk by chunk: attend inside the chunk, read the state, update it.
With decay a weight is multiplied by exp(-decay * distance), and the state by exp(-decay) at every token. A gate is
such a rate for each token, or for each token and channel.
"""

from abc import abstractmethod
from dataclasses import replace
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from qkv.attention.base import State, expand_heads
from qkv.attention.internal import graph_op
from qkv.attention.internal.chunk_decay import ChunkExtras, channel_similarity
from qkv.attention.internal.chunked import Tensors, chunked_scan
from qkv.attention.internal.cost import feature_cost
from qkv.attention.internal.gates import gated_products, pair_exponents, running_sums
from qkv.attention.internal.key_sums import KeySums
from qkv.attention.internal.layout import (
    call_shape,
    decay_factors,
    from_rows,
    group_queries,
    mask_rows,
    row_product,
    scale_rows,
    state_rows,
    to_rows,
)
from qkv.attention.internal.masking import safe_divide, visibility_mask, zero_hidden
from qkv.attention.internal.nonfinite import all_finite, attend_again
from qkv.attention.internal.precision import no_autocast, upcast, upcast_dtype
from qkv.attention.internal.validation import Modifiers, check_inputs
from qkv.attention.law import FEATURES, Law, ScoreTerms
from qkv.attention.recurrent_state import RecurrentState
from qkv.attention.triton import dispatch
from qkv.attention.triton.kinds import KernelKind
from qkv.cost import Cost, Shape
from qkv.shapes import (
    Beta,
    Bias,
    Decay,
    KernelMatrix,
    KeyRows,
    Keys,
    Mask,
    Outputs,
    Queries,
    QueryRows,
    Starts,
    StepBias,
    Values,
    Weights,
)


class FeatureMap(KeySums):
    """Linear attention: similarity(q, k) = phi(q).phi(k)."""

    accepts = frozenset({"decay", "gate"})
    backends: ClassVar[tuple[str, ...]] = ("reference", "chunked")
    triton: ClassVar[KernelKind | None] = None
    """Kernels of backend "triton"."""

    @property
    def law(self) -> Law:
        """A dot product of features."""
        return FEATURES

    def score_terms(self, q: Tensor, k: Tensor) -> ScoreTerms | None:
        """Return the products of q and k where scores are dot products of them, else of their features."""
        terms = super().score_terms(q, k)
        if terms is not None:
            return terms
        scale = self.default_scale(q.shape[-1]) if self.scale is None else self.scale
        query, keys = self.features(q[None] * scale)[0], self.features(k)
        return ScoreTerms(query, keys, query * keys, 1.0)

    @abstractmethod
    def similarity(self, q: QueryRows, k: KeyRows) -> KernelMatrix:
        """Return the unnormalized weight of each pair, (..., queries, keys); `q` is already scaled."""

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
        """Return the definition: similarity of each visible pair, decayed, divided by the row's sum."""
        modifiers = Modifiers(causal, mask, bias, decay, beta, starts)
        check_inputs(self, q, k, None, modifiers)
        with no_autocast(q):
            found = self._unrounded_weights(q, k, modifiers)
            found = found if all_finite(found) else self._unrounded_weights(q.double(), k.double(), modifiers)
            return found.to(q.dtype)

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
        """Compute weights(q, k) @ v by the backend with the fewest multiplications, or by the kernels on CUDA."""
        modifiers = Modifiers(causal, mask, bias, decay, beta, starts)
        check_inputs(self, q, k, v, modifiers)
        if graph_op.is_node(self) and not dispatch.takes(self, q, v, modifiers):
            return graph_op.forward(self, q, k, v, modifiers)
        backend = self._select_backend(q, k, v, modifiers)
        if backend == "triton":
            return dispatch.forward(self, q, k, v, modifiers)
        if backend == "reference":
            return self._forward_reference(q, k, v, modifiers)
        if decay is not None and modifiers.gate_heads in (0, q.shape[1]):
            k, v = expand_heads(k, q.shape[1]), expand_heads(v, q.shape[1])
        sums = self._zero_sums(k, v)
        if causal:
            return self._forward_causal(q, k, v, sums, modifiers)[0]
        return self._forward_bidirectional(q, k, v, sums, modifiers)

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
        k = torch.empty(batch, key_heads or heads, 0, key_dim, dtype=dtype, device=device)
        return RecurrentState.from_sums(self._zero_sums(k, k.new_empty(*k.shape[:3], value_dim)))

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

        With a decay, or a gate that has the heads of q, every query head fades on its own, so the state needs one row
        per query head: `start(..., key_heads=heads)`.
        """
        if not isinstance(state, RecurrentState):
            raise TypeError(f"state must be a RecurrentState from {self.kind}.start(), got {type(state).__name__}")
        modifiers = Modifiers(True, mask, bias, decay, beta, starts)
        check_inputs(self, q, k, v, modifiers)
        if graph_op.is_node(self) and not dispatch.takes(self, q, v, modifiers):
            return graph_op.step(self, (q, k, v), state, modifiers)
        if state.kv_sum.shape[1] == q.shape[1]:
            k, v = expand_heads(k, q.shape[1]), expand_heads(v, q.shape[1])
        expected, dtype = self._sum_shapes(k, v), upcast_dtype(k.dtype)
        if [tuple(x.shape) for x in state.sums] != expected or state.kv_sum.dtype != dtype:
            raise ValueError(
                f"state holds sums of shape {[tuple(x.shape) for x in state.sums]} and {state.kv_sum.dtype}, "
                f"but these q, k and v need {expected} and {dtype}"
            )
        if decay is not None and modifiers.gate_heads in (0, q.shape[1]) and k.shape[1] != q.shape[1]:
            raise ValueError(
                f"decay has rates for each of {q.shape[1]} query heads, but the state was started with "
                f"key_heads={k.shape[1]}; start it with key_heads={q.shape[1]}"
            )
        out, sums = self._step_sums(q, k, v, state, modifiers)
        return out, RecurrentState.from_sums(sums, state.length + k.shape[2])

    def cost(self, shape: Shape) -> Cost:
        """Return the cost of the quadratic form, or of the chunks plus reading and updating the state."""
        elements = state_rows(shape) * self.feature_dim(shape.key_dim) * (shape.value_dim + self.normalizes)
        return Cost(
            needed=feature_cost.needed(self, shape),
            executed=feature_cost.executed(self, shape, self._choose_torch_backend(shape)),
            state={"sums": elements * max(shape.element_bytes, 4)},
        )

    def part_cost(self, shape: Shape, earlier: int) -> Cost:
        """Return the cost of the chunks; a causal part writes its keys twice, to its summary and to its own state."""
        form = "chunked" if self.backend in ("auto", "reference") else self.backend
        executed = feature_cost.executed(self, shape, form)
        if shape.causal:
            executed["summary"] = feature_cost.needed(self, shape)["write"]
        return replace(self.cost(shape), executed=executed)

    def _choose_torch_backend(self, shape: Shape) -> str:
        return feature_cost.cheapest_torch_backend(self, shape) if self.backend == "auto" else self.backend

    def _select_backend(self, q: Queries, k: Keys, v: Values, modifiers: Modifiers) -> str:
        """Return the backend that runs; "auto" on CUDA dispatches to the kernels, with chunked as fallback."""
        if not dispatch.is_preferred(self, q):
            return self._choose_torch_backend(call_shape(q, k, v, modifiers))
        reason = dispatch.unsupported_reason(self, q, v, modifiers)
        if reason is None:
            return "triton"
        if self.backend == "triton":
            raise ValueError(f"backend='triton' cannot take this call of attention kind {self.kind!r}: {reason}")
        dispatch.warn_fallback(self.kind, reason)
        return "chunked"

    def _step_sums(
        self, q: Queries, k: Keys, v: Values, state: RecurrentState, modifiers: Modifiers
    ) -> tuple[Outputs, Tensors]:
        """Return outputs and new sums; the kernel updates them in place for one token in inference mode."""
        state.require_unconsumed()
        sums = state.sums
        if self._select_backend(q, k, v, modifiers) != "triton":
            return self._forward_causal(q, k, v, sums, modifiers)
        if q.shape[2] == 1 and graph_op.writes_in_place() and all(x.is_contiguous() for x in sums):
            state.consume()
            return dispatch.decode_step(self, q, k, v, sums, modifiers), sums
        return dispatch.forward_with_state(self, q, k, v, sums, modifiers)

    def _unrounded_weights(self, q: Queries, k: Keys, modifiers: Modifiers) -> Weights:
        k = upcast(expand_heads(zero_hidden(k, modifiers.mask), q.shape[1]))
        weights = self._decayed_similarity(self._scale_queries(q), k, modifiers)
        causal, mask, documents = modifiers.causal, modifiers.mask, modifiers.documents
        sizes = q.shape[2], k.shape[2]
        seen = visibility_mask(*sizes, causal=causal, mask=mask, documents=documents, device=q.device)
        if seen is not None:
            weights = weights.masked_fill(~seen, 0)
        return safe_divide(weights, weights.sum(-1, keepdim=True)) if self.normalizes else weights

    def _decayed_similarity(self, q: Queries, k: Keys, modifiers: Modifiers) -> Weights:
        """Return the similarity of each pair, decayed; q is scaled, and both have all heads."""
        if modifiers.decay is None:
            return self.similarity(q, k)
        if not modifiers.gated:
            return self.similarity(q, k) * decay_factors(modifiers.decay.to(q.dtype)[:, None, None], q.shape[2])
        sums = running_sums(modifiers.decay, modifiers.mask)
        if modifiers.channel_gated:
            return gated_products(self.features(q), self.features(k), expand_heads(sums, q.shape[1]))
        return self.similarity(q, k) * expand_heads(pair_exponents(sums).to(q.dtype).exp(), q.shape[1])

    def _forward_reference(self, q: Queries, k: Keys, v: Values, modifiers: Modifiers) -> Outputs:
        """Compute the definition; a result that is not finite is computed again."""
        values = upcast(expand_heads(zero_hidden(v, modifiers.mask), q.shape[1]))

        def attend(v: Tensor) -> Tensor:
            return self._unrounded_weights(q.to(v.dtype), k.to(v.dtype), modifiers) @ v

        with no_autocast(q):
            out = attend(values)
            return (out if all_finite(out) else attend_again(attend, q, k, values, causal=modifiers.causal)).to(q.dtype)

    def _forward_causal(
        self, q: Queries, k: Keys, v: Values, sums: Tensors, modifiers: Modifiers
    ) -> tuple[Outputs, Tensors]:
        """Compute causal attention chunk by chunk; return outputs and new sums."""
        extras, constants, more = ChunkExtras.of(modifiers, k.shape[1])
        sequences = (group_queries(q, k.shape[1]), k, v, *more)
        chunk = feature_cost.chunk_size(self, k.shape[3], channel_gate=modifiers.channel_gated)
        sums, out = chunked_scan(partial(self._causal_chunk, extras), constants, sums, sequences, chunk)
        assert out is not None
        return out.flatten(1, 2), sums

    def _causal_chunk(
        self, extras: ChunkExtras, constants: Tensors, sums: Tensors, pieces: Tensors
    ) -> tuple[Tensors, Tensor]:
        """Process one causal chunk; an output that is not finite is computed again."""
        new_sums, out = self._attend_chunk(extras, constants, sums, pieces)
        q, k, v, *rest = pieces
        # one token has no future, and without a normalizer an overflow is the true value
        if (q.shape[3] == 1 and not self.normalizes) or all_finite(out):
            return new_sums, out

        def attend(values: Tensor) -> Tensor:
            cast = q.to(values.dtype), k.to(values.dtype), values, *rest
            return self._attend_chunk(extras, constants, tuple(x.to(values.dtype) for x in sums), cast)[1]

        values = upcast(v.masked_fill(~rest[0], 0) if extras.mask else v)
        return new_sums, attend_again(attend, q, k, values, causal=True).to(q.dtype)

    def _attend_chunk(
        self, extras: ChunkExtras, constants: Tensors, sums: Tensors, pieces: Tensors
    ) -> tuple[Tensors, Tensor]:
        """Attend inside a chunk, read the past sums, update them."""
        q, k, v, *rest = pieces
        batch, key_heads, group, time, _ = q.shape
        queries = to_rows(self._scale_queries(q))
        mask, decay = extras.read(constants, rest, k)
        keys, values, features = self._prepare_chunk(k, v, mask)
        query_features, past = self.features(queries), [x.flatten(0, 1) for x in sums]
        # both are the similarity; the narrower product is cheaper
        if decay is not None and decay.sums is not None:
            weights = channel_similarity(query_features.unflatten(1, (group, time)), features, decay.sums)
        elif features.shape[-1] > keys.shape[-1]:
            weights = self.similarity(queries, keys)
        else:
            weights = torch.bmm(query_features, features.transpose(1, 2))
        weights = weights.view(batch * key_heads, group, time, time).tril()
        if decay is not None:
            weights = weights if decay.pairs is None else weights * decay.pairs[:, None]
            query_features = scale_rows(query_features, decay.query, group)
            features = features * decay.key
            sums = tuple(x * decay.state.unflatten(0, (batch, key_heads)) for x in sums)
        if mask is not None:
            weights = weights.masked_fill(~mask_rows(mask, key_heads).transpose(1, 2)[:, None], 0)
        weights = weights.flatten(1, 2)
        out = torch.baddbmm(torch.bmm(weights, values), query_features, past[0])
        if self.normalizes:
            out = safe_divide(out, weights.sum(-1, keepdim=True) + row_product(query_features, past[1]))
        return self._add_to_sums(sums, features, values), from_rows(out, q)
