"""Base class of mechanisms that apply a softmax to scores: masks, biases, the KV cache and the decoding step."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from qkv.attention.base import Attention, State, expand_heads
from qkv.attention.internal import graph_op
from qkv.attention.internal.gates import SUM_BYTES, pair_exponents, running_sums
from qkv.attention.internal.masking import visibility_mask, zero_hidden, zero_hidden_pair
from qkv.attention.internal.nonfinite import all_finite, keep_past_finite
from qkv.attention.internal.precision import no_autocast, upcast
from qkv.attention.internal.validation import Modifiers, check_inputs
from qkv.attention.kv_cache import PLACE_AXES, KVCache
from qkv.attention.law import Law
from qkv.attention.parallel.summary import Summary, SummaryOptions
from qkv.cost import Cost, Shape
from qkv.shapes import Beta, Bias, Decay, Keys, Mask, Outputs, Queries, Starts, StepBias, Values, Weights


@dataclass(frozen=True)
class ScoreMask:
    """Visible pairs of query and key, and what is added to their scores."""

    causal: bool = False
    window: int | None = None
    mask: Tensor | None = None
    bias: Tensor | None = None
    sums: Tensor | None = None
    """Sums of a gate's rates up to each key: (batch, heads, keys)."""
    documents: Tensor | None = None
    """Index of each key's document: (batch, keys)."""

    def visible_pairs(self, q: Queries, k: Keys) -> Tensor | None:
        """Return True where a query may attend to a key; None if everywhere."""
        return visibility_mask(
            *(q.shape[2], k.shape[2]),
            causal=self.causal,
            window=self.window,
            mask=self.mask,
            documents=self.documents,
            device=q.device,
        )

    def score_bias(self, q: Queries) -> Tensor | None:
        """Return what is added to the scores of these queries, the last ones: the bias and the exponents of a gate."""
        bias = None if self.bias is None else self.bias.to(q.dtype)
        if self.sums is None:
            return bias
        gate = expand_heads(pair_exponents(self.sums, q.shape[2]).to(q.dtype), q.shape[1])
        return gate if bias is None else gate + bias

    @property
    def unmodified(self) -> bool:
        """Whether nothing but causality and a window applies."""
        return self.mask is None and self.bias is None and self.sums is None and self.documents is None

    def block(self, queries: slice, keys: slice) -> "ScoreMask":
        """Return the part for these queries and keys; the queries must be the last of the keys."""
        mask, bias = self.mask, self.bias
        if mask is not None:
            mask = mask[:, keys] if mask.dim() == 2 else mask[:, :, queries, keys]
        return ScoreMask(
            self.causal,
            self.window,
            mask,
            None if bias is None else bias[:, :, queries, keys],
            None if self.sums is None else self.sums[:, :, keys],
            None if self.documents is None else self.documents[:, keys],
        )


class Scored(Attention):
    """weights = softmax(scores(q, k) + bias) over the visible keys; a query that sees none gets zeros."""

    accepts: ClassVar[frozenset[str]] = frozenset({"pairs", "bias"})
    window: int | None = None

    @property
    def law(self) -> Law:
        """exp of the score."""
        note = "exp of each score. The largest score is subtracted first, so that exp cannot overflow."
        return Law("exp", r"\exp(s)", note, exponential=True)

    def weigh_scores(self, scores: Tensor) -> Tensor:
        """Return exp(scores)."""
        return scores.exp()

    @abstractmethod
    def scores(self, q: Queries, k: Tensor) -> Weights:
        """Return the score of each pair of query and key; `k` is prepared and has a head for every query head."""

    @abstractmethod
    def prepare_keys(self, k: Keys) -> Tensor:
        """Return what the KV cache stores for each key: all work on it that needs no query."""

    @abstractmethod
    def attend(self, q: Queries, k: Tensor, v: Values, score_mask: ScoreMask) -> Outputs:
        """Compute the outputs by the chosen backend; `k` is prepared."""

    def depends_on_length(self, modifiers: Modifiers) -> bool:
        """Return whether the operations of a call depend on its length, so that a traced graph would fit only one."""
        return False

    def prepared_weights(self, q: Queries, k: Tensor, score_mask: ScoreMask) -> Weights:
        """Compute the definition in at least float32; `k` is prepared."""
        q, k = upcast(q), upcast(expand_heads(k, q.shape[1]))
        scores = self.scores(q, k)
        seen = score_mask.visible_pairs(q, k)
        bias = score_mask.score_bias(scores)
        scores = scores if bias is None else scores + bias
        if score_mask.bias is not None:
            possible = score_mask.bias != -torch.inf  # a NaN stays visible and propagates, as in torch's kernels
            seen = possible if seen is None else seen & possible
        if seen is None:
            return scores.softmax(-1)
        # the lowest finite score instead of -inf: a row of -inf gives NaN in softmax and its gradient
        hidden = ~seen
        lowest = torch.finfo(scores.dtype).min
        return scores.masked_fill(hidden, lowest).softmax(-1).masked_fill(hidden, 0)

    def reference_output(self, q: Queries, k: Tensor, v: Values, score_mask: ScoreMask) -> Outputs:
        """Compute weights @ v by the definition, rounded once."""
        return (self.prepared_weights(q, k, score_mask) @ upcast(expand_heads(v, q.shape[1]))).to(q.dtype)

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
        """Return the softmax of the scores over the visible keys: the definition."""
        modifiers = Modifiers(causal, mask, bias, decay, beta, starts)
        check_inputs(self, q, k, None, modifiers)
        score_mask = self._score_mask(modifiers)
        with no_autocast(q):
            return self.prepared_weights(q, self.prepare_keys(zero_hidden(k, mask)), score_mask).to(q.dtype)

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
        """Compute weights(q, k) @ v."""
        modifiers = Modifiers(causal, mask, bias, decay, beta, starts)
        check_inputs(self, q, k, v, modifiers)
        score_mask = self._score_mask(modifiers)
        if self.depends_on_length(modifiers) and graph_op.is_node(self):
            return graph_op.forward(self, q, k, v, modifiers)
        k, v = zero_hidden_pair(k, v, mask)
        with no_autocast(q):
            return self._attend_past(q, self.prepare_keys(k), v, score_mask)

    def forward_masked(self, q: Queries, k: Keys, v: Values, mask: Mask, bias: Bias | None = None) -> Outputs:
        """Compute `forward` for a mask of pairs in which each token sees itself and no later token.

        The mask is then causal already and hides no key from every query. This saves two passes over all pairs: the
        causal triangle and the search for keys to zero. A window is applied in addition.
        """
        windowed = self.window is not None
        check_inputs(self, q, k, v, Modifiers(windowed, mask, bias))
        with no_autocast(q):
            return self.attend(q, self.prepare_keys(k), v, ScoreMask(windowed, self.window, mask, bias))

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
    ) -> KVCache:
        """Return an empty KV cache with preallocated room for `capacity` tokens.

        `dtype` and `device` are a guess: the cache adopts those of its first tokens.
        """
        k = torch.empty(batch, key_heads or heads, 0, key_dim, dtype=dtype, device=device)
        with no_autocast(k):
            keys = self.prepare_keys(k)
        return KVCache(keys, k.new_empty(*k.shape[:3], value_dim), capacity=capacity or 0)

    def state_heads(self, heads: int, key_heads: int, decay_heads: int = 0) -> int:
        """Return `key_heads`: cached keys do not fade, only their weights do."""
        return key_heads

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
    ) -> tuple[Outputs, KVCache]:
        """Append the new keys and values to the KV cache, then attend to all cached ones (prefill or decode)."""
        if not isinstance(state, KVCache):
            raise TypeError(f"state must be a KVCache from {self.kind}.start(), got {type(state).__name__}")
        check_inputs(self, q, k, v, Modifiers(True, mask, bias, decay, beta, starts), past=state.addressable_keys)
        if mask is not None and mask.dim() != 2:
            raise ValueError(f"in step, mask must have shape (batch, new tokens), got {tuple(mask.shape)}")
        k, v = zero_hidden_pair(k, v, mask)
        with no_autocast(q):
            k = self.prepare_keys(k)
        state.adopt_dtype(k, v)
        for name, held, new in (("keys", state.keys, k), ("values", state.values, v)):
            sizes = held.shape[:2] == new.shape[:2] and held.shape[3] == new.shape[3]
            if not sizes or held.dtype != new.dtype or held.device != new.device:
                raise ValueError(
                    f"state holds {name} of shape {tuple(held.shape)} and {held.dtype} on {held.device}, "
                    f"but the new tokens have {tuple(new.shape)} and {new.dtype} on {new.device}"
                )
        state = state.append(k, v, mask, decay, starts)
        score_mask = ScoreMask(True, self.window, state.mask, bias, state.decay_sums, state.documents)
        with no_autocast(q):
            out = self._attend_past(q, state.keys, state.values, score_mask)
        return out, state.trim(self.window)

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
        """Return the KV cache of these tokens alone: all of them, or the last `window`."""
        k, v = zero_hidden_pair(k, v, mask)
        with no_autocast(k):
            k = self.prepare_keys(k)
        cache = KVCache.of_tokens(k, v, mask, decay, starts).trim(self.window)
        tensors = {name: x for name, x in cache.tensors().items() if name in PLACE_AXES}
        return Summary(tensors, cache.length, PLACE_AXES)

    def advance(self, state: State, summaries: Sequence[Summary]) -> KVCache:
        """Return the KV cache with the tokens of these parts appended."""
        assert isinstance(state, KVCache)
        parts = [state.with_tensors({**x.tensors, "length": torch.tensor(x.length)}) for x in summaries]
        if parts:
            state.adopt_dtype(parts[0].keys, parts[0].values)
        return state.followed_by(parts).trim(self.window)

    def attend_state(self, q: Queries, state: State, *, bias: Bias | None = None) -> Outputs:
        """Return the outputs of queries that see all cached keys."""
        assert isinstance(state, KVCache)
        with no_autocast(q):
            return self.attend(q, state.keys, state.values, ScoreMask(mask=state.mask, bias=bias))

    def past_keys(self, length: int) -> int:
        """Return `length`, or the window if that is less."""
        return length if self.window is None else min(length, self.window)

    def part_cost(self, shape: Shape, earlier: int) -> Cost:
        """Return the cost of attending to all keys of this shape."""
        return self.cost(shape)

    def summary_bytes(self, shape: Shape, options: SummaryOptions) -> dict[str, int]:
        """Return the bytes of the KV cache of these keys, and a mask and an index of documents if they are given."""
        tokens = shape.batch * self.past_keys(shape.keys)
        mask, documents = tokens * options.mask, tokens * options.starts * SUM_BYTES
        return {**self.cost(shape).state, "mask": mask, "documents": documents}

    def _attend_past(self, q: Queries, k: Tensor, v: Values, score_mask: ScoreMask) -> Outputs:
        """Call `attend`; if causal, NaN and inf of a future token reach no earlier output."""
        out = self.attend(q, k, v, score_mask)
        if not score_mask.causal or q.shape[2] == 1 or all_finite(out):
            return out
        return keep_past_finite(lambda keys, values: self.attend(q, keys, values, score_mask), k, v)

    def _score_mask(self, modifiers: Modifiers) -> ScoreMask:
        """Return what applies to the scores of whole sequences."""
        if self.window is not None and not modifiers.causal:
            raise ValueError(f"window={self.window} ends at each query's own position, so it needs causal=True")
        return ScoreMask(
            modifiers.causal,
            self.window,
            modifiers.mask,
            modifiers.bias,
            None if modifiers.decay is None else running_sums(modifiers.decay, modifiers.mask),
            modifiers.documents,
        )
