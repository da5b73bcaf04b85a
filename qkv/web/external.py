"""Anybody's attention tensors, as a scene: what other viewers take, and matrices that are not square."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from qkv.web.backend import Bench
from qkv.web.view_model import Place, Proof, Scene

Layers = Tensor | Sequence[Tensor]


class TensorScene(Scene):
    """Matrices that came from outside: what made them is not known, so only row sums can be checked."""

    def __init__(self, layers: list[Tensor], tokens: dict[str, list[str]]):
        self.layers = layers
        self.tokens = tokens
        self.notes = []
        self.code = ["# attention: what was given to qkv.look"]
        columns = "keys" if "keys" in tokens else "tokens"
        self.places = [
            Place(f"layer {n}", "tokens", columns, len(layer), "given", _is_causal(layer), averages=True)
            for n, layer in enumerate(layers, 1)
        ]

    def weights(self, place: int, head: int) -> Tensor:
        """As they were given."""
        return self.layers[place][head].float()

    def prove(self, place: int, head: int, weights: Tensor) -> Proof:
        """Nothing but the matrix is known."""
        return Proof(None, None, {})


class TensorBench(Bench):
    """One scene, whatever is asked."""

    screens = ("atlas",)

    def __init__(self, layers: list[Tensor], tokens: dict[str, list[str]], name: str = "attention"):
        self.name = name
        self._scene = TensorScene(layers, tokens)

    def about(self) -> dict[str, Any]:
        """What is known of tensors from outside."""
        return {
            "name": self.name,
            "torch": torch.__version__,
            "layers": len(self._scene.layers),
            "text": None,
            "writes": False,
        }

    def scene(self, asked: Mapping[str, Any]) -> TensorScene:
        """The only one."""
        return self._scene


def read_layers(attention: Layers) -> list[Tensor]:
    """One (heads, queries, keys) tensor a layer, from a list of those or of (1, heads, queries, keys), or a stack."""
    given = list(attention)
    if not given:
        raise ValueError("attention must have at least one layer, got none")
    layers = [_layer(n, layer) for n, layer in enumerate(given)]
    for n, layer in enumerate(layers):
        if layer.shape[1:] != layers[0].shape[1:]:
            raise ValueError(
                f"attention[{n}] is {tuple(layer.shape[1:])} (queries, keys), but attention[0] is "
                f"{tuple(layers[0].shape[1:])}; look at them one after the other"
            )
    return layers


def read_tokens(layers: list[Tensor], tokens: Sequence[str], keys: Sequence[str] | None) -> dict[str, list[str]]:
    """Labels of rows and columns, as many as there are; `keys` may be left out where the matrices are square."""
    queries, columns = layers[0].shape[1:]
    if keys is None and queries != columns:
        raise ValueError(f"attention is {queries} x {columns}: give keys= as well, a token for each column")
    sides = {"tokens": (tokens, queries)} | ({} if keys is None else {"keys": (keys, columns)})
    for name, (given, count) in sides.items():
        if isinstance(given, str) or not all(isinstance(token, str) for token in given):
            raise TypeError(f"{name} must be a list of texts, one for each token")
        if len(given) != count:
            raise ValueError(f"{name} has {len(given)} tokens, but attention has {count}")
    return {name: list(given) for name, (given, _) in sides.items()}


def _layer(number: int, layer: object) -> Tensor:
    if layer is None:
        raise TypeError(
            f"attention[{number}] is None: the model ran a fast path that keeps no weights; "
            'with transformers, load it with attn_implementation="eager"'
        )
    if not isinstance(layer, Tensor):
        raise TypeError(f"attention[{number}] must be a tensor, got a {type(layer).__name__}")
    if layer.dim() == 4 and layer.shape[0] == 1:
        layer = layer[0]
    if layer.dim() != 3 or not layer.numel():
        raise ValueError(
            f"attention[{number}] must be (1, heads, queries, keys) or (heads, queries, keys), not empty, "
            f"got {tuple(layer.shape)}"
        )
    return layer.detach().cpu()


def _is_causal(layer: Tensor) -> bool:
    """Whether nothing ever looks ahead: then those cells were hidden, not weighed."""
    square = layer.shape[1] == layer.shape[2] > 1
    return square and not bool(layer.triu(1).any())
