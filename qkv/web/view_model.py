"""An input and the attention matrices about it, wherever they come from: a model of ours, or anybody's tensors."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.attention import Attention, FeatureMap
from qkv.attention.base import widen
from qkv.explain import Call, Look


@dataclass(frozen=True)
class Place:
    """Where heads attend, and what they attend to."""

    name: str
    rows: str
    """Whose tokens ask; a key of `Scene.tokens`."""
    columns: str
    """Whose tokens are looked at."""
    heads: int
    kind: str
    causal: bool
    averages: bool
    """Whether each row should sum to 1."""
    placed: bool = False
    """Whether positions add to the scores, or fade the weights."""


@dataclass(frozen=True)
class Proof:
    """How a matrix was checked."""

    against_fast: float | None
    """max |weights @ v - what the model's fast form gave|; None where only the matrix is known."""
    scale: float | None
    """With q and k: score = scale q.k; None where scores are no scaled dot product."""
    vectors: dict[str, Tensor]
    """q and k of this head, for the scores; empty where they are not known."""


class Scene(ABC):
    """An input and all that is to be seen of it."""

    tokens: dict[str, list[str]]
    """What is written at the axes: a list for each side."""
    places: list[Place]
    notes: list[str]
    """What a reader should know about the input, in words."""
    code: list[str]
    """Lines of Python after which `look` is the list of places and `observe` was called."""

    @abstractmethod
    def weights(self, place: int, head: int) -> Tensor:
        """(queries, keys) of one head."""

    @abstractmethod
    def prove(self, place: int, head: int, weights: Tensor) -> Proof:
        """What can be checked about these weights."""

    def mean(self, place: int) -> Tensor:
        """The mean over the heads of a place; one matrix at a time is held beside it."""
        heads = self.places[place].heads
        total = self.weights(place, 0)
        for head in range(1, heads):
            total = total + self.weights(place, head)
        return total / heads


class ModelScene(Scene):
    """A pass of a model."""

    def __init__(self, looks: list[Look], tokens: dict[str, list[str]], notes: list[str], code: list[str]):
        self.looks = looks
        self.tokens = tokens
        self.notes = notes
        self.code = code
        self.places = [_place(look) for look in looks]

    def weights(self, place: int, head: int) -> Tensor:
        """By the definition, from the q and k of the pass."""
        with torch.no_grad():
            return self.looks[place].head(head).weights()[0, 0]

    def prove(self, place: int, head: int, weights: Tensor) -> Proof:
        """weights @ v against the fast form, and the vectors that the scores come from."""
        call = self.looks[place].head(head)
        error = float((widen(weights) @ widen(call.v[0, 0]) - widen(call.output[0, 0])).abs().max())
        scale = scale_of(call)
        vectors = {} if scale is None else {"q": call.q[0, 0], "k": call.k[0, 0]}
        return Proof(error, scale, vectors)


def averages(attention: Attention) -> bool:
    """Whether the weights of a query sum to 1."""
    return bool(getattr(attention, "normalizes", True))


def scale_of(call: Call) -> float | None:
    """What multiplies q.k where the score is that; None for kinds whose score is something else."""
    attention, key_dim = call.attention, call.q.shape[-1]
    if attention.kind not in ("softmax", "taylor", "linear"):
        return None
    given = getattr(attention, "scale", None)
    if isinstance(given, float | int):
        return float(given)
    return attention.default_scale(key_dim) if isinstance(attention, FeatureMap) else key_dim**-0.5


def _place(look: Look) -> Place:
    attention = look.site.attention
    options = look.call.options
    return Place(
        look.site.name,
        look.site.rows,
        look.site.columns,
        look.heads,
        attention.kind,
        causal=bool(options.get("causal", False)),
        averages=averages(attention),
        placed=any(options.get(name) is not None for name in ("bias", "decay")),
    )
