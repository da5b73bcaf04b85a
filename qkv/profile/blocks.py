"""Blocks by their sizes: what `qkv cost` counts when it is given widths instead of a module.

A block is built at any sizes on torch's meta device, and its declared cost is then a polynomial in
all of them: `d_k*n**2 + d_v*n**2 + d_in*(2*d_k + d_v)*n`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from qkv.attention import Attention, Softmax, parse
from qkv.cost import Cost, Shape, Span, interpolate, linear
from qkv.cost.polynomial import Expression, Sizes, symbol
from qkv.layers import DecoderBlock, EncoderBlock, FeedForward, Heads, MultiHead, NormBefore
from qkv.registry import unknown_name_error

NEEDS = {
    "attention": ("d_in", "d_k", "d_v"),
    "multi_head": ("d_model",),
    "feed_forward": ("d_model", "d_ff"),
    "encoder": ("d_model", "d_ff"),
    "decoder": ("d_model", "d_ff"),
}
"""Block -> the widths that it cannot be without."""


class SelfAttention(nn.Module):
    """The attention of a sequence to itself as textbooks have it: one head, three projections, no output layer."""

    def __init__(self, dim: int, key_dim: int, value_dim: int, mechanism: Attention, *, bias: bool = False):
        super().__init__()
        self.query = nn.Linear(dim, key_dim, bias=bias)
        self.key = nn.Linear(dim, key_dim, bias=bias)
        self.value = nn.Linear(dim, value_dim, bias=bias)
        self.attention = mechanism

    def forward(self, x: Tensor, *, causal: bool = False) -> Tensor:
        """attention(query(x), key(x), value(x))"""
        q, k, v = (layer(x)[:, None] for layer in (self.query, self.key, self.value))
        return self.attention(q, k, v, causal=causal)[:, 0]

    def cost(self, span: Span) -> Cost:
        """Three projections and the mechanism."""
        sizes = span.batch, 1, span.time, span.time, self.key.out_features, self.value.out_features
        shape = Shape(*sizes, causal=span.causal, element_bytes=span.element_bytes)
        total = linear(self.query, span.tokens).within("query") + linear(self.key, span.tokens).within("key")
        return total + linear(self.value, span.tokens).within("value") + self.attention.cost(shape).within("attention")


@dataclass(frozen=True)
class Block:
    """A kind of block and all that decides it but the lengths."""

    kind: str
    widths: Sizes
    heads: int = 1
    key_heads: int | None = None
    mechanism: str = "softmax"
    """The attention kind, such as taylor(order=4)."""
    causal: bool = False
    bias: bool = False

    def __post_init__(self) -> None:
        if self.kind not in NEEDS:
            raise unknown_name_error("block", self.kind, NEEDS)
        for name in NEEDS[self.kind]:
            if self.widths.get(name, 0) < 1:
                raise ValueError(f"{self.kind} needs --{name.replace('_', '-')} of at least 1")

    @property
    def width(self) -> int:
        """Of the input."""
        return self.widths[NEEDS[self.kind][0]]

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments of its forward."""
        return {"causal": self.causal} if self.kind in ("attention", "multi_head") else {}

    def build(self) -> nn.Module:
        """The module, without memory for its weights."""
        with torch.device("meta"):
            return self._makers()[self.kind]()

    def attention(self) -> Attention:
        """The mechanism; softmax by its definition, so that nothing is padded and the textbook's number comes out."""
        found = parse(self.mechanism)
        return Softmax(backend="reference") if self.mechanism == "softmax" and self.kind == "attention" else found

    def formulas(self, length: int) -> tuple[dict[str, Expression | None], dict[str, Expression | None]]:
        """Needed multiplications and parameters, term by term, in all widths and the length."""
        names = [name for name in self.widths if name in NEEDS[self.kind]]
        step = {name: self.heads if name == "d_model" else 1 for name in names}  # heads have to divide it
        high = getattr(self.attention(), "order", 1) + 1
        degrees = {name: high if name in ("d_k", "d_model") else 2 for name in names} | {"n": 2}
        asked = {name: self.widths[name] // step[name] for name in names} | {"n": length}

        @cache
        def at(point: tuple[tuple[str, int], ...]) -> Cost:
            sizes = dict(point)
            block = replace(self, widths={name: sizes[name] * step[name] for name in names})
            module: Any = block.build()
            return module.cost(Span(1, sizes["n"], causal=self.causal))

        def formula(ledger: str, term: str) -> Expression | None:
            found = interpolate(lambda s: getattr(at(tuple(s.items())), ledger).get(term, 0), degrees, asked)
            by_step = {symbol(name): symbol(name) / step[name] for name in names}
            return None if found is None else found.subs(by_step, simultaneous=True).expand()

        here = at(tuple(asked.items()))
        return (
            {term: formula("needed", term) for term in here.needed},
            {term: formula("parameters", term) for term in here.parameters},
        )

    def _makers(self) -> Mapping[str, Callable[[], nn.Module]]:
        return {
            "attention": self._self_attention,
            "multi_head": self._multi_head,
            "feed_forward": self._feed_forward,
            "encoder": lambda: EncoderBlock(self._multi_head(), self._feed_forward(), self._residual()),
            "decoder": lambda: DecoderBlock(self._multi_head(), self._feed_forward(), self._residual()),
        }

    def _self_attention(self) -> SelfAttention:
        dim, key_dim, value_dim = (self.widths[name] for name in NEEDS["attention"])
        return SelfAttention(dim, key_dim, value_dim, self.attention(), bias=self.bias)

    def _multi_head(self) -> MultiHead:
        heads = Heads(self.heads, self.key_heads, self.widths.get("d_k"), self.widths.get("d_v"))
        return MultiHead(self.widths["d_model"], heads, self.attention(), bias=self.bias)

    def _feed_forward(self) -> FeedForward:
        return FeedForward(self.widths["d_model"], self.widths["d_ff"])

    def _residual(self) -> Callable[[], nn.Module]:
        return partial(NormBefore, self.widths["d_model"])
