"""A short depthwise convolution, which mixes each token with a few neighbors, channel by channel.

    y_t = sum_(w < width) filter_w * x_(t - w)            (causal; centered otherwise)

It is initialized near the identity, but not at it, so that a block sees neighbors from the first step.
Linear attention compares neighbors poorly; this adds that ability for `width` parameters per channel.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from qkv.attention.parallel.group import SequencePart
from qkv.cost import Cost, Span, parameters_only
from qkv.shapes import Hidden, Mask


class ShortConvolution(nn.Module):
    """A filter of `width` taps for each of `dim` channels."""

    def __init__(self, dim: int, width: int = 3):
        super().__init__()
        if width < 1:
            raise ValueError(f"width must be at least 1, got {width}")
        self.width = width
        taps = torch.randn(dim, 1, width) * 0.3
        taps[:, :, -1] += 1  # the last tap is the token itself
        self.taps = nn.Parameter(taps)

    def forward(
        self,
        x: Hidden,
        *,
        causal: bool,
        mask: Mask | None = None,
        part: SequencePart | None = None,
        positions: Tensor | None = None,
    ) -> Hidden:
        """Mix each token with the `width` - 1 before it or, if not causal, with those around it.

        With `part` x is one part of each sequence, and its neighbors come from the other processes. `positions` (batch,
        time) of tokens in their documents keep a causal convolution inside each document.
        """
        before = self.width - 1 if causal else self.width // 2
        after = self.width - 1 - before
        taps = self.taps if causal else self.taps.roll(-after, -1)
        x = _zero_padding(x, mask)
        if part is None or self.width == 1:
            x = functional.pad(x, (0, 0, before, after))
        else:
            x = part.extend(x, before, after)
        return self._mix(x, taps, positions)

    def start(self, batch: int) -> Tensor:
        """Return the state before the first token: `width` - 1 tokens of zeros."""
        return self.taps.new_zeros(batch, self.width - 1, self.taps.shape[0])

    def step(self, x: Hidden, state: Tensor, *, mask: Mask | None = None) -> tuple[Hidden, Tensor]:
        """Process the next tokens; return them mixed, and the last `width` - 1 inputs as the new state."""
        seen = torch.cat((state, _zero_padding(x, mask)), 1)
        return self._mix(seen, self.taps), seen[:, x.shape[1] :]

    def cost(self, span: Span) -> Cost:
        """Return no matrix products (the taps are elementwise) and a decoding state of `width` - 1 tokens."""
        carried = span.batch * (self.width - 1) * self.taps.shape[0] * span.element_bytes
        return parameters_only(self) + Cost(state={"tokens": carried})

    def _mix(self, x: Tensor, taps: Tensor, positions: Tensor | None = None) -> Tensor:
        """Add one shifted product per tap: faster than a convolution for a few taps, above all in the backward."""
        time = x.shape[1] - self.width + 1

        def shifted(tap: int) -> Tensor:
            piece = x[:, tap : tap + time]
            return piece if positions is None else piece * (positions >= self.width - 1 - tap)[..., None]

        mixed = shifted(0) * taps[:, 0, 0]
        for tap in range(1, self.width):
            mixed = torch.addcmul(mixed, shifted(tap), taps[:, 0, tap])
        return mixed


class ProjectionConvolution(nn.Module):
    """A short convolution of queries, keys and values after their projections, followed by SiLU.

    `channels` is the sum over all heads: heads * key_dim + key_heads * (key_dim + value_dim).
    """

    def __init__(self, channels: int, width: int = 4):
        super().__init__()
        if channels < 1:
            raise ValueError(f"channels must be at least 1, got {channels}")
        self.channels = channels
        self.mix = ShortConvolution(channels, width)

    @property
    def width(self) -> int:
        """Number of taps."""
        return self.mix.width

    def forward(
        self,
        x: Hidden,
        *,
        causal: bool,
        mask: Mask | None = None,
        part: SequencePart | None = None,
        positions: Tensor | None = None,
    ) -> Hidden:
        """Mix the joined projections (batch, time, channels) of each token with those of its neighbors."""
        mixed = self.mix(x, causal=causal, mask=mask, part=part, positions=positions)
        return functional.silu(mixed).to(x.dtype)  # autocast's, not that of the taps

    def start(self, batch: int) -> Tensor:
        """Return the state before the first token."""
        return self.mix.start(batch)

    def step(self, x: Hidden, state: Tensor, *, mask: Mask | None = None) -> tuple[Hidden, Tensor]:
        """Process the next tokens; return them mixed, and the new state."""
        mixed, state = self.mix.step(x, state, mask=mask)
        return functional.silu(mixed).to(x.dtype), state

    def cost(self, span: Span) -> Cost:
        """Return the cost of the convolution."""
        return self.mix.cost(span).within("mix")


def _zero_padding(x: Hidden, mask: Mask | None) -> Hidden:
    return x if mask is None else x.masked_fill(~mask[..., None], 0)
