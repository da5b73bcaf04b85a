"""Transformer blocks, assembled from parts that are passed in.

EncoderBlock(MultiHead(dim, 8, Taylor()), FeedForward(dim, 4 * dim), partial(NormBefore, dim))
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import nn

from qkv.cost import Cost, Span, learned
from qkv.layers.multi_head import Context, HeadsState, MultiHead
from qkv.layers.packing import Packing
from qkv.shapes import Hidden, Mask, Rows

Residual = Callable[[], nn.Module]


class EncoderBlock(nn.Module):
    """Each token sees all tokens, then thinks for itself."""

    def __init__(self, attention: MultiHead, feed_forward: nn.Module, residual: Residual):
        super().__init__()
        self.attention = attention
        self.feed_forward = feed_forward
        self.around_attention = residual()
        self.around_feed_forward = residual()

    def forward(self, x: Hidden, mask: Mask | None = None, real: Rows | None = None) -> Hidden:
        """Attention and feed-forward, each with its residual path.

        `real` are the places in the flattened rows where no padding is: only there tokens think for themselves, which
        is most of the work. What the others hold is seen by nobody.
        """
        x = self.around_attention(x, lambda h: self.attention(h, mask=mask))
        if real is None:
            return self.around_feed_forward(x, self.feed_forward)
        flat = x.flatten(0, 1)
        thought = self.around_feed_forward(flat.index_select(0, real)[None], self.feed_forward)[0]
        return flat.index_copy(0, real, thought.to(flat.dtype)).view_as(x)

    def cost(self, span: Span) -> Cost:
        """The sum of its parts."""
        return _sum_of_parts(self, attention=replace(span, causal=False), feed_forward=span)


class DecoderBlock(nn.Module):
    """Each token sees those before it and, with `cross`, another sequence; then thinks for itself."""

    def __init__(
        self, attention: MultiHead, feed_forward: nn.Module, residual: Residual, cross: MultiHead | None = None
    ):
        super().__init__()
        self.attention = attention
        self.cross = cross
        self.feed_forward = feed_forward
        self.around_attention = residual()
        self.around_cross = None if cross is None else residual()
        self.around_feed_forward = residual()

    def forward(
        self,
        x: Hidden,
        mask: Mask | None = None,
        context: Context | None = None,
        packing: Packing | None = None,
    ) -> Hidden:
        """All tokens at once; `context` comes from `remember`, `packing` keeps the documents of a row apart."""
        x = self.around_attention(x, lambda h: self.attention(h, causal=True, mask=mask, packing=packing))
        return self._finish(x, context)

    def remember(self, context: Hidden, mask: Mask | None = None) -> Context:
        """Another sequence, projected once for every token to come."""
        if self.cross is None:
            raise ValueError("this DecoderBlock has no cross attention; build it with cross=MultiHead(...)")
        return self.cross.remember(context, mask)

    def start(self, batch: int, capacity: int | None = None) -> HeadsState:
        """The state before the first token."""
        return self.attention.start(batch, capacity)

    def step(
        self, x: Hidden, state: HeadsState, mask: Mask | None = None, context: Context | None = None
    ) -> tuple[Hidden, HeadsState]:
        """The next token or tokens; equals `forward` over all of them."""
        following = state

        def attend(h: Hidden) -> Hidden:
            nonlocal following
            h, following = self.attention.step(h, state, mask=mask)
            return h

        x = self.around_attention(x, attend)
        return self._finish(x, context), following

    def cost(self, span: Span) -> Cost:
        """The sum of its parts; `span.context` tokens are looked at by the cross attention, if there is one."""
        own = replace(span, causal=True, context=None)
        crossing = {} if self.cross is None else {"cross": span}
        return _sum_of_parts(self, attention=own, feed_forward=own, **crossing)

    def _finish(self, x: Hidden, context: Context | None) -> Hidden:
        if (self.cross is None) != (context is None):
            raise ValueError(
                f"context is {'given' if context else 'missing'}, but this block has "
                f"{'no ' if self.cross is None else ''}cross attention; the two belong together"
            )
        if self.cross is not None and self.around_cross is not None and context is not None:
            x = self.around_cross(x, lambda h: self.cross.recall(h, context))
        return self.around_feed_forward(x, self.feed_forward)


def _sum_of_parts(block: nn.Module, **spans: Span) -> Cost:
    """Each part at its span; what stands around them has only learned numbers."""
    total = Cost()
    for name, part in block.named_children():
        costed: Any = part
        total += (costed.cost(spans[name]) if name in spans else learned(part)).within(name)
    return total
