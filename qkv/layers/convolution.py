"""A short depthwise convolution: each token mixed with a few neighbors, channel by channel.

    y_t = sum_(w < width) filter_w * x_(t - w)            (causal; centered otherwise)

It starts near the identity, but not at it: a block has to see its neighbors from the start. Linear
attention kinds cannot compare neighbors well by themselves, and this gives it to them for 3 numbers
a channel.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from qkv.cost import Cost, Span, learned
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

    def forward(self, x: Hidden, *, causal: bool, mask: Mask | None = None) -> Hidden:
        """Mix each token with the `width` - 1 before it or, without an order, with those around it."""
        before = self.width - 1 if causal else self.width // 2
        after = self.width - 1 - before
        taps = self.taps if causal else self.taps.roll(-after, -1)
        return self._mix(functional.pad(_blank(x, mask), (0, 0, before, after)), taps)

    def start(self, batch: int) -> Tensor:
        """The last `width` - 1 tokens, before there were any."""
        return self.taps.new_zeros(batch, self.width - 1, self.taps.shape[0])

    def step(self, x: Hidden, state: Tensor, *, mask: Mask | None = None) -> tuple[Hidden, Tensor]:
        """The next tokens, and the last `width` - 1 after them."""
        seen = torch.cat((state, _blank(x, mask)), 1)
        return self._mix(seen, self.taps), seen[:, x.shape[1] :]

    def cost(self, span: Span) -> Cost:
        """No matrix product: the taps are elementwise. While decoding it carries `width` - 1 tokens."""
        carried = span.batch * (self.width - 1) * self.taps.shape[0] * span.element_bytes
        return learned(self) + Cost(state={"tokens": carried})

    def _mix(self, x: Tensor, taps: Tensor) -> Tensor:
        """One shifted product per tap: for a few taps faster than a convolution, backward above all."""
        time = x.shape[1] - self.width + 1
        mixed = x[:, :time] * taps[:, 0, 0]
        for tap in range(1, self.width):
            mixed = torch.addcmul(mixed, x[:, tap : tap + time], taps[:, 0, tap])
        return mixed


def _blank(x: Hidden, mask: Mask | None) -> Hidden:
    return x if mask is None else x.masked_fill(~mask[..., None], 0)
