"""Additive attention: the one of the classic encoder-decoder networks.

    score(q, k) = w . tanh(U q + V k),    weight = softmax of the scores over the keys

Paper: https://arxiv.org/abs/1409.0473. It has weights of its own, shared by all heads, so it is
built, not named. There is no scale: w learns it.
"""

import torch
from torch import Tensor, nn

from qkv.attention.base import check_backend, register, widen
from qkv.attention.scored import Pairs, Scored
from qkv.cost import Cost, Shape, causal_pairs
from qkv.shapes import Keys, Outputs, Queries, Values, Weights


@register("additive")
class Additive(Scored):
    """Attention scored by a small network of query and key."""

    accepts = frozenset({"pairs", "bias"})
    backends = ("reference",)

    def __init__(self, key_dim: int, hidden_dim: int | None = None, *, backend: str = "auto"):
        super().__init__()
        hidden_dim = key_dim if hidden_dim is None else hidden_dim
        if key_dim < 1 or hidden_dim < 1:
            raise ValueError(f"key_dim and hidden_dim must be at least 1, got {key_dim} and {hidden_dim}")
        self.query = nn.Linear(key_dim, hidden_dim, bias=False)  # U
        self.key = nn.Linear(key_dim, hidden_dim, bias=False)  # V
        self.score = nn.Parameter(torch.empty(hidden_dim).uniform_(-1, 1) * hidden_dim**-0.5)  # w
        self.backend = check_backend("additive", backend, self.backends)

    def scores(self, q: Queries, k: Keys) -> Weights:
        """w . tanh(U q + V k); `k` holds V k already."""
        asked = _project(self.query, q)
        hidden = torch.tanh(asked[:, :, :, None] + k[:, :, None])  # batch heads queries keys hidden_dim
        return hidden @ widen(self.score)

    def prepare(self, k: Keys) -> Keys:
        """V k: no query is needed for it, so it is done once and remembered, in at least float32."""
        if k.shape[3] != self.key.in_features:
            raise ValueError(f"k has key_dim {k.shape[3]}, but this Additive was built for {self.key.in_features}")
        return _project(self.key, widen(k))

    def attend(self, q: Queries, k: Keys, v: Values, pairs: Pairs) -> Outputs:
        """The definition is the only form: nothing in it factors."""
        return self.average(q, k, v, pairs)

    def cost(self, shape: Shape) -> Cost:
        """U q, V k, w . tanh(...), and the mean of the values."""
        hidden, pairs = self.score.numel(), shape.queries * shape.keys
        seen = causal_pairs(shape.queries, shape.keys) if shape.causal else pairs
        project = {
            "query": shape.rows * shape.queries * shape.key_dim * hidden,
            "key": shape.key_rows * shape.keys * shape.key_dim * hidden,
        }
        held = shape.keys * shape.key_rows
        return Cost(
            needed={**project, "scores": shape.rows * seen * hidden, "values": shape.rows * seen * shape.value_dim},
            executed={**project, "scores": shape.rows * pairs * hidden, "values": shape.rows * pairs * shape.value_dim},
            parameters={"query": self.query.weight.numel(), "key": self.key.weight.numel(), "score": hidden},
            state={
                "keys": held * hidden * max(shape.element_bytes, 4),
                "values": held * shape.value_dim * shape.element_bytes,
            },
        )

    @classmethod
    def example(cls, key_dim: int) -> "Additive":
        """As wide inside as the keys."""
        return cls(key_dim)


def _project(layer: nn.Module, x: Tensor) -> Tensor:
    """The layer's product in at least float32; one that was quantized or wrapped has its own way."""
    return x @ widen(layer.weight).T if type(layer) is nn.Linear else layer(x)
