"""The contract of an attention mechanism, and the table of those there are.

Layout everywhere (batch, heads, time, dim), as in torch's `scaled_dot_product_attention`.
`weights` is the definition; everything else must equal it, and `qkv.attention.contract.check` proves it.
"""

import inspect
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar

import torch
from torch import Tensor, nn

from qkv.cost import Cost, Shape
from qkv.registry import Registry
from qkv.shapes import Bias, Decay, Keys, Mask, Outputs, Queries, Rows, StepBias, Values, Weights


class State(ABC):
    """What a mechanism remembers of the tokens it has seen."""

    length: int
    """Tokens seen so far."""

    @property
    @abstractmethod
    def bytes(self) -> int:
        """Bytes that the memory of those tokens takes."""

    @property
    @abstractmethod
    def reach(self) -> int:
        """How many past keys can still be addressed one by one (0 if they are folded together)."""

    @abstractmethod
    def select(self, rows: Rows) -> "State":
        """The state of these sequences of the batch, in this order: beam search reorders with it."""


class Attention(nn.Module, ABC):
    """An attention mechanism: a weighted mean (or sum) of values, weighted by queries and keys.

    `mask` is bool, True = attend: (batch, keys) hides padding. Kinds that accept "pairs" also take
    (batch or 1, heads or 1, queries, keys). `bias` is added to the scores, `decay` multiplies the
    unnormalized weight by exp(-decay * distance), one number a head.
    """

    accepts: ClassVar[frozenset[str]] = frozenset()
    """Of "pairs", "bias", "decay", "rotation": what can be combined with this kind."""
    backends: ClassVar[tuple[str, ...]] = ("reference",)
    """Implementations of `forward` that are here; "auto" chooses among them."""
    typical_key_dim: ClassVar[int] = 64
    """The width of keys that it is used with, for benchmarks and pictures."""

    backend: str = "auto"
    precision: float = 1e-12
    """How far two forms may be apart in float64, relative to the largest output."""

    @property
    def kind(self) -> str:
        """The registry name; of a kind that is in no registry, the name of its class."""
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
    ) -> Weights:
        """The definition: how much of each key's value goes into each query's output."""

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
    ) -> Outputs:
        """The fast form; equals `weights(q, k) @ v`."""

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
        """The state before the first token."""

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
    ) -> tuple[Outputs, State]:
        """One or more new tokens after those in `state`; equals the causal `forward` over all of them."""

    @abstractmethod
    def cost(self, shape: Shape) -> Cost:
        """What `forward` costs at this shape, term by term, and what the state takes after it."""

    @classmethod
    def example(cls, key_dim: int) -> "Attention":
        """A small one, to test with; a kind that has to be told something writes its own."""
        return cls()

    def extra_repr(self) -> str:
        """The options that are not the usual ones."""
        options = [x for x in inspect.signature(type(self)).parameters.values() if x.default is not x.empty]
        chosen = {x.name: getattr(self, x.name, x.default) for x in options}
        return ", ".join(f"{x.name}={chosen[x.name]!r}" for x in options if chosen[x.name] != x.default)


kinds: Registry[Attention] = Registry("attention kind", group="qkv.attention")
register = kinds.register


def check_backend(kind: str, backend: str, backends: tuple[str, ...]) -> str:
    """The name of an implementation that is here, or an error that says which are."""
    if backend != "auto" and backend not in backends:
        there = ", ".join(("auto", *backends))
        raise ValueError(f"backend {backend!r} is not there for attention kind {kind!r} (there are: {there})")
    return backend


def check_chunk(chunk: int | None) -> int | None:
    """How many tokens are taken at a time, at least one; None: as many as are fast."""
    if chunk is None:
        return None
    if check_whole("chunk", chunk) < 1:
        raise ValueError(f"chunk must be at least 1, got {chunk}")
    return chunk


def check_whole(name: str, number: int) -> int:
    """A whole number as it came; 2.0 is none, and neither is True."""
    if isinstance(number, bool) or not hasattr(number, "__index__"):
        raise TypeError(f"{name} must be a whole number, got {number!r}")
    return number


def widen(x: Tensor) -> Tensor:
    """Half precision becomes float32: sums, states and normalizers are kept in at least that."""
    return x.float() if widened(x.dtype) != x.dtype else x


def widened(dtype: torch.dtype) -> torch.dtype:
    """The type that `widen` gives."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def unnarrowed(x: Tensor) -> AbstractContextManager[object]:
    """Where products are as wide as their factors, inside of an autocast region too: it would narrow what was widened.

    A backward runs outside of the region that its forward was in; in here, both compute the same.
    """
    kind = x.device.type
    narrows = kind in NARROWS and torch.is_autocast_enabled(kind)
    return torch.autocast(kind, enabled=False) if narrows else nullcontext()  # entering a region takes ten microseconds


NARROWS = frozenset(kind for kind in ("cpu", "cuda", "mps", "xpu") if torch.amp.is_autocast_available(kind))
"""Kinds of device that autocast knows, asked once: torch.compile cannot follow the question in torch 2.11."""


def expand_heads(x: Tensor, heads: int) -> Tensor:
    """Each key head once for every query head of its group: (batch, key_heads, ...) -> (batch, heads, ...)."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)
