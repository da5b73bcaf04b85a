"""Additive (Bahdanau) attention, from the first encoder-decoder networks with attention.

    score(q, k) = w . tanh(U q + V k),    weight = softmax of the scores over the keys

Paper: https://arxiv.org/abs/1409.0473. Its parameters U, V and w are shared by all heads, so it must be built
for a key_dim. There is no scale: w learns it.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from qkv.attention.base import check_backend, register
from qkv.attention.internal.precision import upcast
from qkv.attention.law import Law, ScoreTerms
from qkv.attention.scored import Scored, ScoreMask
from qkv.cost import Cost, Shape, causal_pairs
from qkv.shapes import Keys, Outputs, Queries, Values, Weights


@register("additive")
class Additive(Scored):
    """Attention whose scores come from a small network of query and key."""

    accepts = frozenset({"pairs", "bias"})
    backends = ("reference",)
    materializes_weights = True

    def __init__(self, key_dim: int, hidden_dim: int | None = None, *, backend: str = "auto"):
        super().__init__()
        hidden_dim = key_dim if hidden_dim is None else hidden_dim
        if key_dim < 1 or hidden_dim < 1:
            raise ValueError(f"key_dim and hidden_dim must be at least 1, got {key_dim} and {hidden_dim}")
        self.query = nn.Linear(key_dim, hidden_dim, bias=False)  # U
        self.key = nn.Linear(key_dim, hidden_dim, bias=False)  # V
        self.score = nn.Parameter(torch.empty(hidden_dim).uniform_(-1, 1) * hidden_dim**-0.5)  # w
        self.backend = check_backend("additive", backend, self.backends)

    @property
    def law(self) -> Law:
        """exp of a small network's score."""
        return replace(
            super().law,
            score=r"w \cdot \tanh(U q + V k)",
            vector_note="This kind compares U q with V k, its own projections of query and key.",
            product_note="For each key the terms of w · tanh(U q + V k). The sum over a row is the score.",
        )

    def score_terms(self, q: Tensor, k: Tensor) -> ScoreTerms:
        """Return the terms of w . tanh(U q + V k)."""
        query, keys = (x @ layer.weight.detach().to(x.dtype).T for x, layer in ((q, self.query), (k, self.key)))
        return ScoreTerms(query, keys, self.score.detach().to(q.dtype) * torch.tanh(query + keys), 1.0)

    def scores(self, q: Queries, k: Keys) -> Weights:
        """Return w . tanh(U q + V k); `k` already holds V k."""
        query = _project(self.query, q)
        hidden = torch.tanh(query[:, :, :, None] + k[:, :, None])  # batch heads queries keys hidden_dim
        return hidden @ upcast(self.score)

    def prepare_keys(self, k: Keys) -> Keys:
        """Return V k in at least float32; it needs no query, so it is computed once and cached."""
        if k.shape[3] != self.key.in_features:
            raise ValueError(f"k has key_dim {k.shape[3]}, but this Additive was built for {self.key.in_features}")
        return _project(self.key, upcast(k))

    def attend(self, q: Queries, k: Keys, v: Values, score_mask: ScoreMask) -> Outputs:
        """Compute the definition: nothing in it factors, so there is no faster form."""
        return self.reference_output(q, k, v, score_mask)

    def cost(self, shape: Shape) -> Cost:
        """Return the cost of U q, V k, w . tanh(...) and the weighted mean of the values."""
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

    def part_cost(self, shape: Shape, earlier: int) -> Cost:
        """Return the cost with V k of the keys of this part alone: once for the summary and, if causal, once more."""
        whole = self.cost(shape)
        own = shape.key_rows * shape.queries * shape.key_dim * self.score.numel()
        times = 2 if shape.causal else 1
        return replace(whole, needed={**whole.needed, "key": own}, executed={**whole.executed, "key": times * own})

    @classmethod
    def example(cls, key_dim: int) -> "Additive":
        """Build one with hidden_dim = key_dim."""
        return cls(key_dim)


def _project(layer: nn.Module, x: Tensor) -> Tensor:
    """Apply the layer in at least float32; a quantized or wrapped layer is called as it is."""
    return x @ upcast(layer.weight).T if type(layer) is nn.Linear else layer(x)
