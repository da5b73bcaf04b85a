"""Sums over the features of keys: the state of a feature-map kind, how keys are added to it, and how queries read it.

    S = sum_j phi(k_j) v_j',    z = sum_j phi(k_j),    output_i = phi(q_i)' S / phi(q_i).z

The sums of a part of a sequence, and how much the whole part fades what came before, are all that later tokens need.
"""

from abc import abstractmethod
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from qkv.attention.base import Attention, State, expand_heads
from qkv.attention.internal.chunk_decay import fade_part
from qkv.attention.internal.chunked import Tensors, chunked_scan
from qkv.attention.internal.cost import feature_cost
from qkv.attention.internal.layout import (
    from_rows,
    group_queries,
    mask_rows,
    mask_sequence,
    row_product,
    state_rows,
    to_rows,
)
from qkv.attention.internal.masking import safe_divide
from qkv.attention.internal.nonfinite import all_finite
from qkv.attention.internal.precision import upcast, upcast_dtype
from qkv.attention.internal.validation import Modifiers
from qkv.attention.parallel.summary import Summary, SummaryOptions
from qkv.attention.recurrent_state import RecurrentState
from qkv.cost import Shape
from qkv.shapes import Beta, Bias, Decay, Features, Keys, Mask, Outputs, Queries, Starts, Values, Vectors


class KeySums(Attention):
    """A kind whose state is a sum over the features of keys."""

    scale: float | None = None
    """Factor of q; default: `default_scale`."""
    chunk: int | None = None
    """Tokens per chunk; default: chosen for speed."""

    @abstractmethod
    def features(self, x: Vectors) -> Features:
        """Return phi(x), with phi(q).phi(k) = similarity(q, k)."""

    @abstractmethod
    def feature_dim(self, key_dim: int) -> int:
        """Return the number of features of a key of this width."""

    @abstractmethod
    def default_scale(self, key_dim: int) -> float:
        """Return the scale of q that applies if none was given."""

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
        """Return the sums of these keys, faded up to their end, and the factor `fade` of the sums before them.

        A closed gate makes `fade` 0. Nothing is divided by a factor, so that strong gates lose no digits.
        """
        assert isinstance(state, RecurrentState)
        heads = state.kv_sum.shape[1]
        k, v = expand_heads(k, heads), expand_heads(v, heads)
        fading = fade_part(Modifiers(causal=True, mask=mask, decay=decay, starts=starts), k)
        sequences = (k, v, *mask_sequence(mask), *(() if fading is None else (fading.key,)))
        chunk = feature_cost.chunk_size(self, k.shape[3])
        write = partial(self._write_chunk, mask is not None)
        sums, _ = chunked_scan(write, (), self._zero_sums(k, v), sequences, chunk)
        named = dict(zip(("kv_sum", "k_sum"), sums, strict=False))
        return Summary(named if fading is None else {**named, "fade": fading.state}, k.shape[2])

    def advance(self, state: State, summaries: Sequence[Summary]) -> RecurrentState:
        """Return the state after these parts: S = fade * S + the sums of a part, one part after the other."""
        assert isinstance(state, RecurrentState)
        sums = state.sums
        for part in summaries:
            fade = part.tensors.get("fade")
            kept = sums if fade is None else tuple(x * fade for x in sums)
            added = (part.tensors[name] for name in ("kv_sum", "k_sum")[: len(sums)])
            sums = tuple(x + new for x, new in zip(kept, added, strict=True))
        return RecurrentState.from_sums(sums, state.length + sum(part.length for part in summaries))

    def attend_state(self, q: Queries, state: State, *, bias: Bias | None = None) -> Outputs:
        """Return the outputs of queries that see all keys of a state."""
        assert isinstance(state, RecurrentState)
        return self._read_all(q, state.sums)

    def summary_bytes(self, shape: Shape, options: SummaryOptions) -> dict[str, int]:
        """Return the bytes of a summary: the sums, and a factor per state (per channel with a channel gate)."""
        rows, size = state_rows(shape), max(shape.element_bytes, 4)
        sums = {"sums": rows * self.feature_dim(shape.key_dim) * (shape.value_dim + self.normalizes) * size}
        if not (shape.decay or shape.gate_heads or options.starts):
            return sums
        return {**sums, "fade": rows * (shape.key_dim if shape.channel_gate else 1) * size}

    def _scale_queries(self, q: Tensor) -> Tensor:
        return upcast(q) * (self.default_scale(q.shape[-1]) if self.scale is None else self.scale)

    def _zero_sums(self, k: Keys, v: Values) -> Tensors:
        return tuple(torch.zeros(size, dtype=upcast_dtype(k.dtype), device=k.device) for size in self._sum_shapes(k, v))

    def _sum_shapes(self, k: Keys, v: Values) -> list[tuple[int, ...]]:
        """Return the shapes of kv_sum and, if normalized, k_sum."""
        batch, heads, _, key_dim = k.shape
        rows = batch, heads, self.feature_dim(key_dim)
        return [(*rows, columns) for columns in (v.shape[3], 1)[: 1 + self.normalizes]]

    def _forward_bidirectional(self, q: Queries, k: Keys, v: Values, sums: Tensors, modifiers: Modifiers) -> Outputs:
        """Compute bidirectional attention: sum over all keys, then read for all queries."""
        chunk = feature_cost.chunk_size(self, k.shape[3])
        write = partial(self._write_chunk, modifiers.mask is not None)
        sums, _ = chunked_scan(write, (), sums, (k, v, *mask_sequence(modifiers.mask)), chunk)
        return self._read_all(q, sums)

    def _read_all(self, q: Queries, sums: Tensors) -> Outputs:
        """Return the outputs of queries that all see these sums."""
        chunk = feature_cost.chunk_size(self, q.shape[3])
        _, out = chunked_scan(self._read_chunk, (), sums, (group_queries(q, sums[0].shape[1]),), chunk)
        assert out is not None
        return out.flatten(1, 2)

    def _write_chunk(self, masked: bool, _: Tensors, sums: Tensors, pieces: Tensors) -> tuple[Tensors, None]:
        """Return the sums with one more chunk of keys and values, and of the factors of keys, if there are any."""
        k, v, *rest = pieces
        mask = rest.pop(0) if masked else None
        values, features = self._prepare_chunk(k, v, mask)[1:]
        if rest:
            features = features * rest[0].flatten(0, 1)
        return self._add_to_sums(sums, features, values), None

    def _read_chunk(self, constants: Tensors, sums: Tensors, pieces: Tensors) -> tuple[Tensors, Tensor]:
        """Return the outputs of one chunk of queries that see all keys."""
        out = self._read_sums(pieces[0], sums)
        if not all_finite(out):
            out = self._read_sums(pieces[0].double(), tuple(x.double() for x in sums)).to(out.dtype)
        return sums, out

    def _read_sums(self, q: Tensor, sums: Tensors) -> Tensor:
        query_features = self.features(to_rows(self._scale_queries(q)))
        out = torch.bmm(query_features, sums[0].flatten(0, 1))
        if self.normalizes:
            out = safe_divide(out, row_product(query_features, sums[1].flatten(0, 1)))
        return from_rows(out, q)

    def _prepare_chunk(self, k: Keys, v: Values, mask: Tensor | None = None) -> Tensors:
        """Return keys, values and key features of a chunk, one row per key head, zero where the mask hides."""
        keys, values = upcast(k).flatten(0, 1), upcast(v).flatten(0, 1)
        if mask is None:
            return keys, values, self.features(keys)
        hidden = ~mask_rows(mask, k.shape[1])
        keys, values = keys.masked_fill(hidden, 0), values.masked_fill(hidden, 0)
        # mask again after the map: the features of a zero key are not zero
        return keys, values, self.features(keys).masked_fill(hidden, 0)

    def _add_to_sums(self, sums: Tensors, features: Tensor, values: Tensor) -> Tensors:
        # not baddbmm: adding each token to a large sum would round once per token, not once per chunk
        kv_sum = sums[0] + torch.bmm(features.transpose(1, 2), values).view_as(sums[0])
        if not self.normalizes:
            return (kv_sum,)
        return kv_sum, sums[1] + features.sum(1).view_as(sums[1])
