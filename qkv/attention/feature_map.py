"""What mechanisms share whose weight is a dot product of features: the chunked form, the state, the step.

    similarity(q, k) = phi(q) . phi(k)
    output_i = sum_j phi(q_i).phi(k_j) v_j / sum_j phi(q_i).phi(k_j)        (the sum over j <= i if causal)

The sums over j do not depend on the query, so they are kept as a memory of fixed size,
sum_j phi(k_j) v_j' and sum_j phi(k_j): linear in length. Inside a chunk the quadratic form is
cheaper, so a sequence is walked chunk by chunk: attend inside, read the memory, write to it.
With decay a weight fades by exp(-decay * distance), and so does the memory, at every token.
"""

from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from qkv.attention.base import Attention, State, expand_heads, unnarrowed, widen, widened
from qkv.attention.chunked import Tensors, scan
from qkv.attention.internal.masking import blank, safe_divide, visible
from qkv.attention.internal.validation import Extras, check_inputs
from qkv.attention.recurrent_state import Memory
from qkv.attention.triton import dispatch as kernels
from qkv.cost import Cost, Shape
from qkv.shapes import (
    Answering,
    Asking,
    Bias,
    Decay,
    Features,
    Keys,
    Mask,
    Outputs,
    Queries,
    Similarities,
    StepBias,
    Values,
    Vectors,
    Weights,
)


class FeatureMap(Attention):
    """Attention whose similarity is a dot product of features."""

    accepts = frozenset({"decay"})
    backends: ClassVar[tuple[str, ...]] = ("reference", "chunked")
    normalizes: ClassVar[bool] = True
    """Whether the weights of a query are divided by their sum."""

    scale: float | None = None
    """What q is multiplied by; None: `default_scale`."""
    chunk: int | None = None
    """How many tokens are taken at a time; None: as many as are fast."""

    @abstractmethod
    def similarity(self, q: Asking, k: Answering) -> Similarities:
        """The law: the unnormalized weight of each pair, (..., queries, keys); `q` is scaled."""

    @abstractmethod
    def features(self, x: Vectors) -> Features:
        """phi, with phi(q).phi(k) = similarity(q, k)."""

    @abstractmethod
    def feature_dim(self, key_dim: int) -> int:
        """How many features a key of this width has."""

    @abstractmethod
    def default_scale(self, key_dim: int) -> float:
        """What q is multiplied by when no scale was given."""

    def weights(
        self,
        q: Queries,
        k: Keys,
        *,
        causal: bool = False,
        mask: Mask | None = None,
        bias: Bias | None = None,
        decay: Decay | None = None,
    ) -> Weights:
        """The definition: similarity of each visible pair, faded by distance, divided by the row's sum."""
        extras = Extras(causal, mask, bias, decay)
        check_inputs(self, q, k, None, extras)
        with unnarrowed(q):
            return self._weigh(q, k, extras).to(q.dtype)

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
    ) -> Outputs:
        """weights(q, k) @ v, by the form that takes fewer multiplications."""
        extras = Extras(causal, mask, bias, decay)
        check_inputs(self, q, k, v, extras)
        backend = self._backend_for(q, v, _shape_of(q, k, v, extras))
        if backend == "triton":
            return kernels.attend(self, q, k, v, extras)
        if backend == "reference":
            values = widen(expand_heads(blank(v, mask), q.shape[1]))
            with unnarrowed(q):
                return (self._weigh(q, k, extras) @ values).to(q.dtype)
        if decay is not None:
            k, v = expand_heads(k, q.shape[1]), expand_heads(v, q.shape[1])
        nothing = self._nothing(k, v)
        return self._walk(q, k, v, nothing, extras)[0] if causal else self._sweep(q, k, v, nothing, extras)

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
    ) -> Memory:
        """An empty memory; `capacity` is not needed, it never grows."""
        k = torch.empty(batch, key_heads or heads, 0, key_dim, dtype=dtype, device=device)
        return Memory(self._nothing(k, k.new_empty(*k.shape[:3], value_dim)))

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
    ) -> tuple[Outputs, Memory]:
        """Walk the new tokens from where the memory stands.

        With decay every query head fades at its own rate, so the memory must be kept per query head:
        `start(..., key_heads=heads)`.
        """
        if not isinstance(state, Memory):
            raise TypeError(f"state must be a Memory from {self.kind}.start(), got {type(state).__name__}")
        extras = Extras(True, mask, bias, decay)
        check_inputs(self, q, k, v, extras)
        if state.sums[0].shape[1] == q.shape[1]:
            k, v = expand_heads(k, q.shape[1]), expand_heads(v, q.shape[1])
        expected, dtype = self._sizes(k, v), widened(k.dtype)
        if [tuple(x.shape) for x in state.sums] != expected or state.sums[0].dtype != dtype:
            raise ValueError(
                f"state holds sums of shape {[tuple(x.shape) for x in state.sums]} and {state.sums[0].dtype}, "
                f"but these q, k and v need {expected} and {dtype}"
            )
        if decay is not None and k.shape[1] != q.shape[1]:
            raise ValueError(
                f"decay has a rate for each of {q.shape[1]} query heads, but the state was started with "
                f"key_heads={k.shape[1]}; start it with key_heads={q.shape[1]}"
            )
        out, sums = self._continue(q, k, v, state, extras)
        return out, Memory(sums, state.length + k.shape[2])

    def cost(self, shape: Shape) -> Cost:
        """The quadratic form's two products, or the chunks' plus reading and writing the memory."""
        features = self.feature_dim(shape.key_dim)
        columns = shape.value_dim + self.normalizes
        numbers = _memory_rows(shape) * features
        return Cost(
            needed=self._needed(shape, features),
            executed=self._executed(shape, self._choose(shape)),
            state={"sums": numbers * columns * max(shape.element_bytes, 4)},
        )

    def _needed(self, shape: Shape, features: int) -> dict[str, int]:
        """Token by token: write each key once, read for each query."""
        return {
            "write": _memory_rows(shape) * shape.keys * features * shape.value_dim,
            "read": shape.rows * shape.queries * features * (shape.value_dim + self.normalizes),
        }

    def _executed(self, shape: Shape, backend: str) -> dict[str, int]:
        if backend == "triton":
            return kernels.multiplications(self, shape)
        inside = shape.queries * shape.keys
        if backend == "chunked":
            chunk = self._chunk(shape.key_dim)
            # torch.compile knows no divmod of a length
            whole, rest = shape.queries // chunk, shape.queries % chunk
            inside = (whole * chunk**2 + rest**2) if shape.causal else 0
        scores = {
            "scores": shape.rows * inside * shape.key_dim,
            "values": shape.rows * inside * shape.value_dim,
        }
        if backend == "reference":
            return scores
        return {**scores, **self._needed(shape, self.feature_dim(shape.key_dim))}

    def _choose(self, shape: Shape) -> str:
        if self.backend != "auto":
            return self.backend
        quadratic, chunked = (sum(self._executed(shape, form).values()) for form in ("reference", "chunked"))
        return "reference" if quadratic <= chunked else "chunked"

    def _backend_for(self, q: Queries, v: Values, shape: Shape) -> str:
        """The form that is asked for, if it can take this call; "auto" on CUDA is the kernels, if it has some."""
        if self.backend != "triton" and not (self.backend == "auto" and q.is_cuda and "triton" in self.backends):
            return self._choose(shape)
        refused = kernels.refusal(self, q, v)
        if refused is None:
            return "triton"
        if self.backend == "triton":
            raise ValueError(f"backend='triton' cannot take this call of attention kind {self.kind!r}: {refused}")
        kernels.warn_once(self.kind, refused)
        return "chunked"

    def _continue(self, q: Queries, k: Keys, v: Values, state: Memory, extras: Extras) -> tuple[Outputs, Tensors]:
        """Outputs of the new tokens and the sums with them; one token a call is written in place in inference."""
        sums = state.opened()
        if self._backend_for(q, v, _shape_of(q, k, v, extras)) != "triton":
            return self._walk(q, k, v, sums, extras)
        if q.shape[2] == 1 and torch.is_inference_mode_enabled() and all(x.is_contiguous() for x in sums):
            state.close()
            return kernels.advance(self, q, k, v, sums, extras), sums
        return kernels.walk(self, q, k, v, sums, extras)

    def _chunk(self, key_dim: int) -> int:
        """Small enough that a chunk's features stay in a CPU's cache, larger when reading the memory costs more."""
        if self.chunk is not None:
            return self.chunk
        return 128 if self.feature_dim(key_dim) <= 256 else 256

    def _scaled(self, q: Tensor) -> Tensor:
        return widen(q) * (self.default_scale(q.shape[-1]) if self.scale is None else self.scale)

    def _weigh(self, q: Queries, k: Keys, extras: Extras) -> Weights:
        k = widen(expand_heads(blank(k, extras.mask), q.shape[1]))
        weights = self.similarity(self._scaled(q), k)
        if extras.decay is not None:
            weights = weights * _fading(extras.decay.to(weights.dtype)[:, None, None], q.shape[2])
        seen = visible(q.shape[2], k.shape[2], causal=extras.causal, mask=extras.mask, device=q.device)
        if seen is not None:
            weights = weights.masked_fill(~seen, 0)
        return safe_divide(weights, weights.sum(-1, keepdim=True)) if self.normalizes else weights

    def _nothing(self, k: Keys, v: Values) -> Tensors:
        return tuple(torch.zeros(size, dtype=widened(k.dtype), device=k.device) for size in self._sizes(k, v))

    def _sizes(self, k: Keys, v: Values) -> list[tuple[int, ...]]:
        """Of the sums: features with values, and features alone."""
        batch, heads, _, key_dim = k.shape
        return [
            (batch, heads, self.feature_dim(key_dim), columns) for columns in (v.shape[3], 1)[: 1 + self.normalizes]
        ]

    def _walk(self, q: Queries, k: Keys, v: Values, sums: Tensors, extras: Extras) -> tuple[Outputs, Tensors]:
        """Causal: chunk after chunk."""
        constants = () if extras.decay is None else (extras.decay,)
        sequences = (_grouped(q, k.shape[1]), k, v, *_as_sequence(extras.mask))
        sums, out = scan(self._advance, constants, sums, sequences, self._chunk(k.shape[3]))
        assert out is not None
        return out.flatten(1, 2), sums

    def _sweep(self, q: Queries, k: Keys, v: Values, sums: Tensors, extras: Extras) -> Outputs:
        """Bidirectional: write all keys, then read for all queries."""
        chunk = self._chunk(k.shape[3])
        sums, _ = scan(self._write_chunk, (), sums, (k, v, *_as_sequence(extras.mask)), chunk)
        _, out = scan(self._read_chunk, (), sums, (_grouped(q, k.shape[1]),), chunk)
        assert out is not None
        return out.flatten(1, 2)

    def _advance(self, constants: Tensors, sums: Tensors, pieces: Tensors) -> tuple[Tensors, Tensor]:
        """One causal chunk: attend inside it, read the past, write it to the memory."""
        q, k, v, *mask = pieces
        batch, key_heads, group, time, _ = q.shape
        asked = _in_rows(self._scaled(q))
        keys, values, features = self._prepared(k, v, *mask)
        reading, past = self.features(asked), [x.flatten(0, 1) for x in sums]
        # both are the similarity; the narrower product is the cheaper one
        wide = features.shape[-1] > keys.shape[-1]
        weights = self.similarity(asked, keys) if wide else torch.bmm(reading, features.transpose(1, 2))
        weights = weights.view(batch * key_heads, group, time, time).tril()
        if constants:
            rate = constants[0].to(keys.dtype).repeat(batch)[:, None, None]
            age = torch.arange(1, time + 1, device=q.device, dtype=rate.dtype)
            weights = weights * _fading(rate, time)[:, None]
            reading = reading * torch.exp(-rate * age[:, None])
            features = features * torch.exp(-rate * (time - age)[:, None])
            sums = tuple(x * torch.exp(-rate * time).view(batch, key_heads, 1, 1) for x in sums)
        if mask:
            weights = weights.masked_fill(~_rows(mask[0], key_heads).transpose(1, 2)[:, None], 0)
        weights = weights.flatten(1, 2)
        out = torch.baddbmm(torch.bmm(weights, values), reading, past[0])
        if self.normalizes:
            out = safe_divide(out, weights.sum(-1, keepdim=True) + _row_product(reading, past[1]))
        return self._written(sums, features, values), _out_of_rows(out, q)

    def _write_chunk(self, _: Tensors, sums: Tensors, pieces: Tensors) -> tuple[Tensors, None]:
        """The memory with one more chunk of keys and values in it."""
        values, features = self._prepared(*pieces)[1:]
        return self._written(sums, features, values), None

    def _read_chunk(self, constants: Tensors, sums: Tensors, pieces: Tensors) -> tuple[Tensors, Tensor]:
        """The outputs of one chunk of queries that see the whole memory."""
        (q,) = pieces
        reading = self.features(_in_rows(self._scaled(q)))
        out = torch.bmm(reading, sums[0].flatten(0, 1))
        if self.normalizes:
            out = safe_divide(out, _row_product(reading, sums[1].flatten(0, 1)))
        return sums, _out_of_rows(out, q)

    def _prepared(self, k: Keys, v: Values, mask: Tensor | None = None) -> Tensors:
        """Keys, values and features of a chunk, one row per key head, nothing where the mask hides."""
        key_heads = k.shape[1]
        keys, values = widen(k).flatten(0, 1), widen(v).flatten(0, 1)
        if mask is None:
            return keys, values, self.features(keys)
        hidden = ~_rows(mask, key_heads)
        keys, values = keys.masked_fill(hidden, 0), values.masked_fill(hidden, 0)
        # again after the map: the features of a zero key are not zero
        return keys, values, self.features(keys).masked_fill(hidden, 0)

    def _written(self, sums: Tensors, features: Tensor, values: Tensor) -> Tensors:
        read = features.transpose(1, 2)
        total = torch.baddbmm(sums[0].flatten(0, 1), read, values).view_as(sums[0])
        return (total, sums[1] + features.sum(1).view_as(sums[1])) if self.normalizes else (total,)


def _shape_of(q: Queries, k: Keys, v: Values, extras: Extras) -> Shape:
    batch, heads, queries, key_dim = q.shape
    sizes = batch, heads, queries, k.shape[2], key_dim, v.shape[3], k.shape[1]
    return Shape(*sizes, causal=extras.causal, decay=extras.decay is not None, element_bytes=q.element_size())


def _memory_rows(shape: Shape) -> int:
    """One memory for each key head; with decay one for each query head, since each fades at its own rate."""
    return shape.rows if shape.decay else shape.key_rows


def _grouped(q: Queries, key_heads: int) -> Tensor:
    return q.unflatten(1, (key_heads, -1))  # batch key_heads group queries key_dim


def _in_rows(q: Tensor) -> Tensor:
    """One row per key head, its group of queries one after the other: (batch*key_heads, group*time, key_dim)."""
    batch, key_heads, group, time, key_dim = q.shape
    return q.reshape(batch * key_heads, group * time, key_dim)


def _out_of_rows(out: Tensor, q: Tensor) -> Tensor:
    """The way back, rounded to the type of the queries."""
    return out.view(*q.shape[:4], out.shape[-1]).to(q.dtype)


def _as_sequence(mask: Mask | None) -> Tensors:
    return () if mask is None else (mask[:, None, :, None],)  # batch 1 keys 1


def _rows(mask: Tensor, key_heads: int) -> Tensor:
    return mask.expand(-1, key_heads, -1, -1).flatten(0, 1)  # batch*key_heads time 1


def _row_product(reading: Tensor, column: Tensor) -> Tensor:
    """reading @ column, turned round: BLAS is several times faster with the vector on the left."""
    return torch.bmm(column.transpose(1, 2), reading.transpose(1, 2)).transpose(1, 2)


def _fading(rate: Tensor, time: int) -> Tensor:
    """exp(-rate * (i - j)) for j <= i, and 1 above the diagonal, which is masked anyway."""
    position = torch.arange(time, device=rate.device, dtype=rate.dtype)
    distance = (position[:, None] - position).clamp(min=0)
    return torch.exp(-rate * distance)
