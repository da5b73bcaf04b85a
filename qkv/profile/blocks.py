"""Blocks described by their widths, for `qkv cost attention --d-in 100 ...`.

A block is built at any widths on torch's meta device, so its declared cost becomes a polynomial in
all of them: `d_k*n**2 + d_v*n**2 + d_in*(2*d_k + d_v)*n`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from qkv.attention import Attention, build, parse
from qkv.cost import Cost, Shape, Span, interpolate, linear
from qkv.cost.polynomial import Expression, Sizes, symbol
from qkv.errors import unknown_name_error
from qkv.layers import DecoderBlock, EncoderBlock, FeedForward, Heads, MultiHead, PreNorm

REQUIRED_WIDTHS = {
    "attention": ("d_in", "d_k", "d_v"),
    "multi_head": ("d_model",),
    "feed_forward": ("d_model", "d_ff"),
    "encoder": ("d_model", "d_ff"),
    "decoder": ("d_model", "d_ff"),
}
"""Block -> widths that must be given."""


class SelfAttention(nn.Module):
    """Self-attention as in textbooks: one head, three projections, no output layer."""

    def __init__(self, dim: int, key_dim: int, value_dim: int, mechanism: Attention, *, bias: bool = False):
        super().__init__()
        self.query = nn.Linear(dim, key_dim, bias=bias)
        self.key = nn.Linear(dim, key_dim, bias=bias)
        self.value = nn.Linear(dim, value_dim, bias=bias)
        self.attention = mechanism

    def forward(self, x: Tensor, *, causal: bool = False) -> Tensor:
        """Return attention(query(x), key(x), value(x))."""
        q, k, v = (layer(x)[:, None] for layer in (self.query, self.key, self.value))
        return self.attention(q, k, v, causal=causal)[:, 0]

    def cost(self, span: Span) -> Cost:
        """Return the cost of three projections and the mechanism."""
        sizes = span.batch, 1, span.time, span.time, self.key.out_features, self.value.out_features
        shape = Shape(*sizes, causal=span.causal, element_bytes=span.element_bytes)
        total = linear(self.query, span.tokens).within("query") + linear(self.key, span.tokens).within("key")
        return total + linear(self.value, span.tokens).within("value") + self.attention.cost(shape).within("attention")


@dataclass(frozen=True)
class BlockSpec:
    """A block and all its settings except the lengths."""

    kind: str
    widths: Sizes
    heads: int = 1
    key_heads: int | None = None
    mechanism: str = "softmax"
    """Attention kind, such as taylor(order=4)."""
    causal: bool = False
    bias: bool = False

    def __post_init__(self) -> None:
        if self.kind not in REQUIRED_WIDTHS:
            raise unknown_name_error("block", self.kind, REQUIRED_WIDTHS)
        for name in REQUIRED_WIDTHS[self.kind]:
            if self.widths.get(name, 0) < 1:
                raise ValueError(f"{self.kind} needs --{name.replace('_', '-')} of at least 1")

    @property
    def input_width(self) -> int:
        """Width of the input."""
        return self.widths[REQUIRED_WIDTHS[self.kind][0]]

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments of its forward."""
        return {"causal": self.causal} if self.kind in ("attention", "multi_head") else {}

    def build(self) -> nn.Module:
        """Build the module on meta: no memory is allocated for its weights."""
        with torch.device("meta"):
            return self._factories()[self.kind]()

    def attention(self) -> Attention:
        """Build the mechanism; not with torch's fused kernel for the block `attention`: it pads k or v to one width."""
        mechanism = parse(self.mechanism)
        default_options = not mechanism.extra_repr()
        if self.kind == "attention" and default_options and "sdpa" in mechanism.backends:
            return build(mechanism.kind, backend="reference")
        return mechanism

    def formulas(self, length: int) -> tuple[dict[str, Expression | None], dict[str, Expression | None]]:
        """Return the formulas of needed multiplications and of parameters, by term, in all widths and the length."""
        names = [name for name in self.widths if name in REQUIRED_WIDTHS[self.kind]]
        step = {name: self.heads if name == "d_model" else 1 for name in names}  # heads must divide it
        key_degree = getattr(self.attention(), "order", 1) + 1
        degrees = {name: key_degree if name in ("d_k", "d_model") else 2 for name in names} | {"n": 2}
        sizes = {name: self.widths[name] // step[name] for name in names} | {"n": length}

        @cache
        def at(point: tuple[tuple[str, int], ...]) -> Cost:
            values = dict(point)
            block = replace(self, widths={name: values[name] * step[name] for name in names})
            module: Any = block.build()
            return module.cost(Span(1, values["n"], causal=self.causal))

        def formula(group: str, term: str) -> Expression | None:
            found = interpolate(lambda s: getattr(at(tuple(s.items())), group).get(term, 0), degrees, sizes)
            by_step = {symbol(name): symbol(name) / step[name] for name in names}
            return None if found is None else found.subs(by_step, simultaneous=True).expand()

        here = at(tuple(sizes.items()))
        return (
            {term: formula("needed", term) for term in here.needed},
            {term: formula("parameters", term) for term in here.parameters},
        )

    def _factories(self) -> Mapping[str, Callable[[], nn.Module]]:
        return {
            "attention": self._self_attention,
            "multi_head": self._multi_head,
            "feed_forward": self._feed_forward,
            "encoder": lambda: EncoderBlock(self._multi_head(), self._feed_forward(), self._residual()),
            "decoder": lambda: DecoderBlock(self._multi_head(), self._feed_forward(), self._residual()),
        }

    def _self_attention(self) -> SelfAttention:
        dim, key_dim, value_dim = (self.widths[name] for name in REQUIRED_WIDTHS["attention"])
        return SelfAttention(dim, key_dim, value_dim, self.attention(), bias=self.bias)

    def _multi_head(self) -> MultiHead:
        heads = Heads(self.heads, self.key_heads, self.widths.get("d_k"), self.widths.get("d_v"))
        return MultiHead(self.widths["d_model"], heads, self.attention(), bias=self.bias)

    def _feed_forward(self) -> FeedForward:
        return FeedForward(self.widths["d_model"], self.widths["d_ff"])

    def _residual(self) -> Callable[[], nn.Module]:
        return partial(PreNorm, self.widths["d_model"])
