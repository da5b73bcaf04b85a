"""The interface of an attention mechanism, and the registry of kinds.

Every tensor has layout (batch, heads, time, dim), as in torch's `scaled_dot_product_attention`.
`weights` is the definition. All other forms must equal it; `qkv.attention.contract.check` checks that, to 1e-12.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from qkv.attention.law import Law, ScoreTerms
from qkv.attention.parallel.summary import Summary, SummaryOptions
from qkv.attention.state import Same, StateValue
from qkv.cost import Cost, Shape
from qkv.registry import Registry
from qkv.shapes import Beta, Bias, Decay, Keys, Mask, Outputs, Queries, Starts, StepBias, Values, Weights

MODULE_ATTRIBUTES = frozenset(vars(nn.Module()))
"""Attributes of every module."""


class State(StateValue):
    """Decoding state of a mechanism after some tokens: a KV cache or a recurrent state."""

    length: int
    """Number of tokens processed so far, padding included."""

    @property
    @abstractmethod
    def bytes(self) -> int:
        """Bytes held for those tokens."""

    @property
    @abstractmethod
    def addressable_keys(self) -> int:
        """Number of past keys that can still be attended to one by one (0 if they are summed)."""

    def preserved(self: Same) -> Same:
        """Return this state as it is now, for use after a step has continued it; default: a copy."""
        return self.fork()


class Attention(nn.Module, ABC):
    """An attention mechanism: a weighted mean (or sum) of values, weighted by queries and keys.

    `mask` is bool, True = attend: (batch, keys) hides padding. Kinds that accept "pairs" also take
    (batch or 1, heads or 1, queries, keys). `bias` is added to the scores.

    `decay` holds rates of at least 0. One per head, (heads,), multiplies the unnormalized weight by
    exp(-decay * distance). One per token, (batch, heads, keys), is a gate: it multiplies the weight by exp(-sum of the
    rates of the tokens after the key, up to the query). A gate per channel, (batch, heads, keys, key_dim), does so
    inside the sum over channels. The heads of a gate are those of q or those of k. A hidden token has no rate: it
    neither writes nor forgets. `beta` (batch, heads, keys), in 0..2, is the write strength of the delta rule.
    `starts` (batch, keys), bool, is True at the first token of a document: tokens see nothing before it. All of
    these need causal=True.

    Names and the letters of the papers: `heads` = h, `key_heads` = number of KV heads in grouped-query
    attention, `key_dim` = d_k, `value_dim` = d_v, a model's `dim` = d_model, `queries` and `keys` = lengths
    n and m, `scale` = 1/sqrt(d_k), `weights` = A, the output = A V, `features` = phi,
    `RecurrentState.kv_sum` = S = sum phi(k) v', `RecurrentState.k_sum` = z = sum phi(k).
    """

    accepts: ClassVar[frozenset[str]] = frozenset()
    """What can be combined with this kind: a subset of "pairs" (masks), "bias", "rotation", "decay" (a rate per head),
    "gate" (a rate per token), "channel_gate" (a rate per token and channel) and "beta"."""
    causal_only: ClassVar[bool] = False
    """Whether this kind needs causal=True."""
    backends: ClassVar[tuple[str, ...]] = ("reference",)
    """Implementations of `forward`; backend="auto" chooses among them."""
    typical_key_dim: ClassVar[int] = 64
    """Usual key_dim of this kind, for benchmarks and charts."""
    materializes_weights: ClassVar[bool] = False
    """Whether the fastest backend holds the whole attention matrix: memory quadratic in length."""
    normalizes: ClassVar[bool] = True
    """Whether the weights of a query are divided by their sum."""
    variants: ClassVar[tuple[str, ...]] = ()
    """Further specs of this kind that are worth comparing, as `parse` reads them."""
    options: ClassVar[tuple[str, ...]] = ()
    """Names of the constructor's arguments, set for each class."""

    as_node: bool = True
    """Whether `torch.compile` and `torch.export` may put a call into the graph as one operator, `qkv::attention`."""
    backend: str = "auto"
    precision: float = 1e-12
    """Largest allowed difference between two forms in float64, relative to the largest output."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        unnamed = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        cls.options = tuple(name for name, p in inspect.signature(cls).parameters.items() if p.kind not in unnamed)

    def is_built_by_its_options(self) -> bool:
        """Return whether the registry would build an equal mechanism from the options that this object has now."""
        known = [name for name in self.options if hasattr(self, name)]
        if len(known) < len(self.options) or any(True for _ in (*self.parameters(), *self.buffers(), *self.children())):
            return False
        if not kinds.holds(self.kind, type(self)):
            return False
        built = vars(type(self)(**{name: getattr(self, name) for name in known}))
        state = {name: x for name, x in vars(self).items() if name in built or not name.startswith("_")}
        changed = [x for name, x in state.items() if name not in MODULE_ATTRIBUTES and not _is_same(x, built.get(name))]
        return not changed and built.keys() == state.keys()

    # what torch.compiler.assume_constant_result sets; calling that imports torch._dynamo, which takes a second
    is_built_by_its_options._dynamo_marked_constant = True  # type: ignore[attr-defined]

    @property
    def kind(self) -> str:
        """Registry name, or the class name of a kind that is not registered."""
        return type(self).__name__

    @abstractmethod
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
        """Return the attention matrix, which defines this kind: the weight of each key's value in each output."""

    @abstractmethod
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
        """Compute `weights(q, k) @ v` by the fastest backend."""

    @abstractmethod
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
    ) -> State:
        """Return the state before the first token."""

    def state_heads(self, heads: int, key_heads: int, decay_heads: int = 0) -> int:
        """Return the `key_heads` to `start` with, if `decay` has rates for `decay_heads` heads (0: no decay).

        A kind that sums keys needs a sum for every head that fades on its own.
        """
        return max(key_heads, decay_heads)

    @abstractmethod
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
    ) -> tuple[Outputs, State]:
        """Process new tokens after those in `state`: a whole prompt (prefill) or the next token (decode).

        The outputs equal those of the causal `forward` over all tokens.
        """

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
        """Return what later tokens need of these; `state` is only read for its sizes.

        With `advance` it obeys one law: `advance(state, [summarize(k, v, state)])` is the state after
        `step(q, k, v, state)`, whatever the state.
        """
        raise self._unsplittable()

    def advance(self, state: State, summaries: Sequence[Summary]) -> State:
        """Return the state after these parts of a sequence, from the state before them."""
        raise self._unsplittable()

    def attend_state(self, q: Queries, state: State, *, bias: Bias | None = None) -> Outputs:
        """Return the outputs of queries that see everything in a state: bidirectional attention."""
        raise self._unsplittable()

    def past_keys(self, length: int) -> int:
        """Return how many of the last `length` keys can still be attended to one by one; 0 if they are summed."""
        return 0

    def part_cost(self, shape: Shape, earlier: int) -> Cost:
        """Return the cost of one part of a sequence: its summary, `advance` over `earlier` parts, and its outputs.

        `shape.queries` are its tokens, `shape.keys` those and the past keys that a state can attend to one by one.
        """
        raise self._unsplittable()

    def summary_bytes(self, shape: Shape, options: SummaryOptions) -> dict[str, int]:
        """Return the bytes of the summary of the keys of this shape, by what they hold."""
        raise self._unsplittable()

    @property
    def splits_sequences(self) -> bool:
        """Whether a sequence can be split over processes: the kind has `summarize`, `advance` and `attend_state`."""
        return type(self).summarize is not Attention.summarize

    def _unsplittable(self) -> ValueError:
        others = ", ".join(sorted(name for name in kinds if kinds[name].summarize is not Attention.summarize))
        return ValueError(
            f"attention kind {self.kind!r} cannot split a sequence over processes, because it has no `summarize`; "
            f"use {others}"
        )

    @abstractmethod
    def cost(self, shape: Shape) -> Cost:
        """Return the cost of `forward` at this shape, term by term, and the size of the state after it."""

    @property
    def law(self) -> Law:
        """Formula of the unnormalized weight of a pair, as data to print."""
        return Law("weight", "w(q, k)", "This kind gives each pair of query and key its weight directly.", score=None)

    def score_scale(self, key_dim: int) -> float | None:
        """Return the factor of q.k in a score; None if scores are not scaled dot products."""
        return None

    def score_terms(self, q: Tensor, k: Tensor) -> ScoreTerms | None:
        """Return the scores of one query q (key_dim,) with keys k (keys, key_dim); None if there are no terms."""
        scale = self.score_scale(q.shape[-1])
        return None if scale is None else ScoreTerms(q, k, q * k, scale)

    def weigh_scores(self, scores: Tensor) -> Tensor:
        """Return the unnormalized weights of these scores."""
        return scores

    @classmethod
    def example(cls, key_dim: int) -> "Attention":
        """Build a small instance for tests; a kind whose constructor needs arguments overrides this."""
        return cls()

    def extra_repr(self) -> str:
        """Return the options that differ from their defaults."""
        options = [x for x in inspect.signature(type(self)).parameters.values() if x.default is not x.empty]
        chosen = {x.name: getattr(self, x.name, x.default) for x in options}
        return ", ".join(f"{x.name}={chosen[x.name]!r}" for x in options if chosen[x.name] != x.default)


def _is_same(x: object, y: object) -> bool:
    """Return whether both are the same literal."""
    return (x is None or type(x) in (bool, int, float, str)) and type(x) is type(y) and x == y


kinds: Registry[Attention] = Registry("attention kind", group="qkv.attention")
register = kinds.register


def check_backend(kind: str, backend: str, backends: tuple[str, ...]) -> str:
    """Return `backend`, or raise an error that lists those of this kind."""
    if backend != "auto" and backend not in backends:
        available = ", ".join(("auto", *backends))
        raise ValueError(f"attention kind {kind!r} has no backend {backend!r} (available: {available})")
    return backend


def check_chunk(chunk: int | None) -> int | None:
    """Return a valid chunk size in tokens; None lets the kind choose."""
    if chunk is None:
        return None
    if check_integer("chunk", chunk) < 1:
        raise ValueError(f"chunk must be at least 1, got {chunk}")
    return chunk


def check_integer(name: str, value: int) -> int:
    """Return `value` if it is an integer; 2.0 and True are not."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    return value


def expand_heads(x: Tensor, heads: int) -> Tensor:
    """Repeat each key head for every query head of its group: (batch, key_heads, ...) -> (batch, heads, ...)."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)
