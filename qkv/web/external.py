"""Attention tensors of any library, as other viewers take them; the matrices need not be square."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from qkv.data.byte_level import SPACE, byte_level_text
from qkv.web.backend import Backend
from qkv.web.params import Params
from qkv.web.view_model import SiteDescription, ViewModel, WeightsCheck

Layers = Tensor | Sequence[Tensor]


class TensorViewModel(ViewModel):
    """Given matrices: their origin is unknown, so only row sums can be checked."""

    def __init__(self, layers: list[Tensor], tokens: dict[str, list[str]]):
        self.layers = layers
        self.tokens = tokens
        self.records = []
        self.notes = []
        self.code = ["# attention: the tensors given to qkv.look"]
        columns = "keys" if "keys" in tokens else "tokens"
        self.sites = [
            SiteDescription(f"layer {n}", "tokens", columns, len(layer), "given", _is_causal(layer), normalizes=True)
            for n, layer in enumerate(layers, 1)
        ]

    def weights(self, site: int, head: int) -> Tensor:
        """Return the given matrix."""
        return self.layers[site][head].float()

    def check(self, site: int, head: int, weights: Tensor) -> WeightsCheck:
        """Check nothing: only the matrix is known."""
        return WeightsCheck(None, None, {})


class TensorBackend(Backend):
    """Given attention tensors: one view model, whatever the parameters."""

    def __init__(self, layers: list[Tensor], tokens: dict[str, list[str]], name: str = "attention"):
        self.name = name
        self._view_model = TensorViewModel(layers, tokens)

    def about(self) -> dict[str, Any]:
        """Return the little that is known about given tensors."""
        return {
            "name": self.name,
            "torch": torch.__version__,
            "layers": len(self._view_model.layers),
            "text": None,
            "writes": False,
        }

    def view_model(self, params: Params) -> TensorViewModel:
        """Return the only view model."""
        return self._view_model


def read_layers(attention: Layers) -> list[Tensor]:
    """Return one (heads, queries, keys) tensor per layer; also takes (1, heads, queries, keys), or a stacked tensor."""
    given = list(attention)
    if not given:
        raise ValueError("attention must have at least one layer, got 0")
    layers = [_layer(n, layer) for n, layer in enumerate(given)]
    for n, layer in enumerate(layers):
        if layer.shape[1:] != layers[0].shape[1:]:
            raise ValueError(
                f"attention[{n}] is {tuple(layer.shape[1:])} (queries, keys), but attention[0] is "
                f"{tuple(layers[0].shape[1:])}; show them one after the other"
            )
    return layers


def read_tokens(layers: list[Tensor], tokens: Sequence[str], keys: Sequence[str] | None) -> dict[str, list[str]]:
    """Return the labels of rows and columns; `keys` may be omitted if the matrices are square."""
    queries, columns = layers[0].shape[1:]
    if keys is None and queries != columns:
        raise ValueError(f"attention is {queries} x {columns}: give keys= as well, one token per column")
    sides = {"tokens": (tokens, queries)} | ({} if keys is None else {"keys": (keys, columns)})
    for name, (given, count) in sides.items():
        if isinstance(given, str) or not all(isinstance(token, str) for token in given):
            raise TypeError(f"{name} must be a list of texts, one per token")
        if len(given) != count:
            raise ValueError(f"{name} has {len(given)} tokens, but attention has {count}")
    return {name: _readable(list(given)) for name, (given, _) in sides.items()}


def _readable(tokens: list[str]) -> list[str]:
    """Decode the tokens of a byte-level tokenizer, which writes a space as a letter."""
    is_byte_level = any(token.startswith(SPACE) for token in tokens)
    return [byte_level_text(token) for token in tokens] if is_byte_level else tokens


def _layer(number: int, layer: object) -> Tensor:
    if layer is None:
        raise TypeError(
            f"attention[{number}] is None: the model ran a fast path that returns no weights; "
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
    """Return whether no query attends ahead: such cells are shown as masked, not as weights of 0."""
    square = layer.shape[1] == layer.shape[2] > 1
    return square and not bool(layer.triu(1).any())
