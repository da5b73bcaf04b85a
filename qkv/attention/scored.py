"""What mechanisms share that put a softmax over scores: masks, biases, the cache, the step."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from qkv.attention.base import Attention, State, expand_heads, unnarrowed, widen
from qkv.attention.internal.masking import blank, blank_both, visible
from qkv.attention.internal.validation import Extras, check_inputs
from qkv.attention.kv_cache import KeyValues
from qkv.shapes import Bias, Decay, Keys, Mask, Outputs, Queries, StepBias, Values, Weights


@dataclass(frozen=True)
class Pairs:
    """Which pairs of query and key count, and what is added to their scores."""

    causal: bool = False
    window: int | None = None
    mask: Tensor | None = None
    bias: Tensor | None = None

    def visible(self, q: Queries, k: Keys) -> Tensor | None:
        """True where a query may see a key; None if everywhere."""
        return visible(q.shape[2], k.shape[2], causal=self.causal, window=self.window, mask=self.mask, device=q.device)


class Scored(Attention):
    """weights = softmax(scores(q, k) + bias) over the visible keys; a query that sees none gets zeros."""

    accepts: ClassVar[frozenset[str]] = frozenset({"pairs", "bias"})
    window: int | None = None

    @abstractmethod
    def scores(self, q: Queries, k: Tensor) -> Weights:
        """How well each key answers each query; `k` is prepared and has a head for every query head."""

    @abstractmethod
    def prepare(self, k: Keys) -> Tensor:
        """What is remembered of a key: all work on it that no query is needed for."""

    @abstractmethod
    def attend(self, q: Queries, k: Tensor, v: Values, pairs: Pairs) -> Outputs:
        """The outputs, by the fastest way there is; `k` is prepared."""

    def weigh(self, q: Queries, k: Tensor, pairs: Pairs) -> Weights:
        """The definition, in at least float32; `k` is prepared."""
        q, k = widen(q), widen(expand_heads(k, q.shape[1]))
        scores = self.scores(q, k)
        seen = pairs.visible(q, k)
        if pairs.bias is not None:
            scores = scores + pairs.bias.to(scores.dtype)
            possible = pairs.bias != -torch.inf  # and a NaN is a NaN, here as in torch's kernels
            seen = possible if seen is None else seen & possible
        if seen is None:
            return scores.softmax(-1)
        # the lowest finite score instead of -inf: a row of -inf has no softmax and no gradient
        hidden = ~seen
        lowest = torch.finfo(scores.dtype).min
        return scores.masked_fill(hidden, lowest).softmax(-1).masked_fill(hidden, 0)

    def average(self, q: Queries, k: Tensor, v: Values, pairs: Pairs) -> Outputs:
        """weights @ v, rounded once."""
        return (self.weigh(q, k, pairs) @ widen(expand_heads(v, q.shape[1]))).to(q.dtype)

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
        """The definition: softmax of the scores over the visible keys."""
        check_inputs(self, q, k, None, Extras(causal, mask, bias, decay))
        self._check_window(causal)
        pairs = Pairs(causal, self.window, mask, bias)
        with unnarrowed(q):
            return self.weigh(q, self.prepare(blank(k, mask)), pairs).to(q.dtype)

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
        """weights(q, k) @ v."""
        check_inputs(self, q, k, v, Extras(causal, mask, bias, decay))
        self._check_window(causal)
        pairs = Pairs(causal, self.window, mask, bias)
        k, v = blank_both(k, v, mask)
        with unnarrowed(q):
            return self.attend(q, self.prepare(k), v, pairs)

    def forward_seen(self, q: Queries, k: Keys, v: Values, mask: Mask, bias: Bias | None = None) -> Outputs:
        """`forward` under a mask of pairs by which each token sees itself, and none that comes after it.

        So no key is hidden from all, and `causal` is in the mask: the search for keys to blank and the triangle, both
        over all pairs, are spared. Under a window the mask need not know of it.
        """
        windowed = self.window is not None
        check_inputs(self, q, k, v, Extras(windowed, mask, bias))
        with unnarrowed(q):
            return self.attend(q, self.prepare(k), v, Pairs(windowed, self.window, mask, bias))

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
    ) -> KeyValues:
        """An empty cache; `capacity` is how many tokens to make room for at once.

        `dtype` and `device` are a guess: the cache takes those of its first tokens.
        """
        none = torch.empty(batch, key_heads or heads, 0, key_dim, dtype=dtype, device=device)
        with unnarrowed(none):
            prepared = self.prepare(none)
        return KeyValues(prepared, none.new_empty(*none.shape[:3], value_dim), capacity=capacity or 0)

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
    ) -> tuple[Outputs, KeyValues]:
        """Append the new keys and values, then attend to all that are held."""
        if not isinstance(state, KeyValues):
            raise TypeError(f"state must be a KeyValues from {self.kind}.start(), got {type(state).__name__}")
        check_inputs(self, q, k, v, Extras(True, mask, bias, decay), past=state.reach)
        if mask is not None and mask.dim() != 2:
            raise ValueError(f"in step, mask must have shape (batch, new tokens), got {tuple(mask.shape)}")
        k, v = blank_both(k, v, mask)
        with unnarrowed(q):
            k = self.prepare(k)
        state.follow(k, v)
        for name, held, new in (("keys", state.keys, k), ("values", state.values, v)):
            sizes = held.shape[:2] == new.shape[:2] and held.shape[3] == new.shape[3]
            if not sizes or held.dtype != new.dtype or held.device != new.device:
                raise ValueError(
                    f"state holds {name} of shape {tuple(held.shape)} and {held.dtype} on {held.device}, "
                    f"which cannot be continued by {tuple(new.shape)} and {new.dtype} on {new.device}"
                )
        state = state.append(k, v, mask)
        pairs = Pairs(True, self.window, state.mask, bias)
        with unnarrowed(q):
            out = self.attend(q, state.keys, state.values, pairs)
        return out, state.trim(self.window)

    def _check_window(self, causal: bool) -> None:
        if self.window is not None and not causal:
            raise ValueError(f"window={self.window} looks back from each position, so it needs causal=True")
