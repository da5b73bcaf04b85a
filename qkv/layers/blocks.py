"""Transformer blocks, assembled from parts that are passed in.

EncoderBlock(MultiHead(dim, 8, Taylor()), FeedForward(dim, 4 * dim), partial(PreNorm, dim))
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import nn

from qkv.attention.parallel.group import SequencePart
from qkv.cost import Cost, Span, parameters_only
from qkv.layers.heads import Context, HeadsState
from qkv.layers.multi_head import MultiHead
from qkv.layers.packing import Packing
from qkv.shapes import Hidden, Mask, Rows

Residual = Callable[[], nn.Module]


class EncoderBlock(nn.Module):
    """Bidirectional self-attention, then a position-wise feed-forward layer."""

    def __init__(self, attention: MultiHead, feed_forward: nn.Module, residual: Residual):
        super().__init__()
        self.attention = attention
        self.feed_forward = feed_forward
        self.around_attention = residual()
        self.around_feed_forward = residual()

    def forward(
        self,
        x: Hidden,
        mask: Mask | None = None,
        real_tokens: Rows | None = None,
        part: SequencePart | None = None,
    ) -> Hidden:
        """Apply attention and feed-forward, each with its residual connection; with `part` to one part of sequences.

        `real_tokens` are the indices, in the flattened batch, of tokens that are not padding. The feed-forward layer
        then runs only on them, which saves most of the work. The values at padding are never used.
        """
        x = self.around_attention(x, lambda h: self.attention(h, mask=mask, part=part))
        if real_tokens is None:
            return self.around_feed_forward(x, self.feed_forward)
        flat = x.flatten(0, 1)
        updated = self.around_feed_forward(flat.index_select(0, real_tokens)[None], self.feed_forward)[0]
        return flat.index_copy(0, real_tokens, updated.to(flat.dtype)).view_as(x)

    def cost(self, span: Span) -> Cost:
        """Return the sum of the parts."""
        return _sum_part_costs(self, attention=replace(span, causal=False), feed_forward=span)


class DecoderBlock(nn.Module):
    """Causal self-attention, cross-attention if `cross` is given, then a position-wise feed-forward layer."""

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
        part: SequencePart | None = None,
    ) -> Hidden:
        """Process whole sequences; `context` is from `project_context`, `packing` separates documents in a row.

        With `part` x is one part of each sequence; the other processes have the others.
        """
        if part is not None and self.cross is not None:
            raise ValueError("cross-attention reads a whole other sequence; a block with it takes no part")
        x = self.around_attention(x, lambda h: self.attention(h, causal=True, mask=mask, packing=packing, part=part))
        return self._finish(x, context)

    def project_context(self, context: Hidden, mask: Mask | None = None) -> Context:
        """Project the keys and values of another sequence once, for all decoding steps."""
        if self.cross is None:
            raise ValueError("this DecoderBlock has no cross-attention; build it with cross=MultiHead(...)")
        return self.cross.project_context(context, mask)

    def start(self, batch: int, capacity: int | None = None) -> HeadsState:
        """Return the state before the first token."""
        return self.attention.start(batch, capacity)

    def step(
        self, x: Hidden, state: HeadsState, mask: Mask | None = None, context: Context | None = None
    ) -> tuple[Hidden, HeadsState]:
        """Process the next token or tokens (decode or prefill); equals `forward` over all of them."""
        new_state = state

        def attend(h: Hidden) -> Hidden:
            nonlocal new_state
            h, new_state = self.attention.step(h, state, mask=mask)
            return h

        x = self.around_attention(x, attend)
        return self._finish(x, context), new_state

    def cost(self, span: Span) -> Cost:
        """Return the sum of the parts; cross-attention, if any, attends to `span.context` tokens."""
        own = replace(span, causal=True, context=None)
        crossing = {} if self.cross is None else {"cross": span}
        return _sum_part_costs(self, attention=own, feed_forward=own, **crossing)

    def _finish(self, x: Hidden, context: Context | None) -> Hidden:
        if (self.cross is None) != (context is None):
            raise ValueError(
                f"context is {'given' if context else 'missing'}, but this block has "
                f"{'no ' if self.cross is None else ''}cross-attention"
            )
        if self.cross is not None and self.around_cross is not None and context is not None:
            x = self.around_cross(x, lambda h: self.cross.cross_attend(h, context))
        return self.around_feed_forward(x, self.feed_forward)


def _sum_part_costs(block: nn.Module, **spans: Span) -> Cost:
    """Add the cost of each part at its span; parts without a span have only parameters."""
    total = Cost()
    for name, part in block.named_children():
        costed: Any = part
        total += (costed.cost(spans[name]) if name in spans else parameters_only(part)).within(name)
    return total
