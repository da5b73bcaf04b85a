"""The decoder of DETR: queries that look for objects, each at its own box, which every layer refines.

A query is a content vector and a box. Its position enters twice: as waves of the box, and, where the kind of cross
attention accepts a bias, as a Gaussian around the box, which each head moves and widens (Gao et al., 2021).
"""

import math
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from qkv.attention import Softmax
from qkv.attention.internal.precision import upcast
from qkv.layers import FeedForward, MultiHead, PreNorm
from qkv.models.builders import HeadNorm, make_attention

TEMPERATURE = 20.0
"""Ratio of the longest to the shortest wave, as in DAB-DETR."""
FIRST_SIZE = 0.2
"""Width and height of the initial boxes, as a share of the picture."""
MIN_SPREAD = 0.02
"""Smallest standard deviation of a head's Gaussian, as a share of the picture."""
MAX_LOG_SPREAD = 2.0
EPSILON = 1e-4

Coordinates = Float[Tensor, "*rows axes"]


class Tokens(NamedTuple):
    """The feature map as a sequence."""

    values: Float[Tensor, "batch tokens dim"]
    rows: Float[Tensor, "batch rows"]
    """Center of each row of tokens as a share of the picture's height."""
    columns: Float[Tensor, "batch columns"]
    """Center of each column as a share of the picture's width."""
    is_real: Bool[Tensor, "batch tokens"]
    """False in the padding."""


def waves(coordinates: Coordinates, dim: int) -> Float[Tensor, "*rows features"]:
    """Return sines and cosines of coordinates in 0..1: `dim` features of each axis, one axis after the other."""
    exponent = torch.arange(dim // 2, device=coordinates.device) / max(dim // 2 - 1, 1)
    angle = upcast(coordinates)[..., None] * (2 * math.pi * TEMPERATURE**exponent)
    return torch.cat([angle.sin(), angle.cos()], -1).flatten(-2)


def spread_points(count: int) -> Float[Tensor, "count 2"]:
    """Return points that cover the unit square evenly for any count (the R2 sequence)."""
    steps = torch.tensor([0.7548776662466927, 0.5698402909980532], dtype=torch.double)
    return ((0.5 + torch.arange(count, dtype=torch.double)[:, None] * steps) % 1).float()


def inverse_sigmoid(x: Tensor) -> Tensor:
    """Return log(x / (1 - x)), with x kept from 0 and 1."""
    return torch.logit(x, EPSILON)


class QueryBlock(nn.Module):
    """Self-attention among the queries of a picture, cross attention to its tokens, feed-forward."""

    def __init__(self, dim: int, heads: int, hidden_dim: int, cross: str, dropout: float = 0.0):
        super().__init__()
        residual = partial(PreNorm, dim, dropout)
        kind = make_attention(cross, dim // heads)
        self.attention = MultiHead(dim, heads, Softmax())
        self.cross = MultiHead(dim, heads, kind, output_norm=None if kind.normalizes else HeadNorm(dim // heads))
        self.feed_forward = FeedForward(dim, hidden_dim, dropout=dropout)
        self.around_attention, self.around_cross, self.around_feed_forward = residual(), residual(), residual()
        self.focus = nn.Linear(dim, 4 * heads) if "bias" in kind.accepts else None
        if self.focus is not None:
            nn.init.zeros_(self.focus.weight)
            turn = torch.arange(heads) / heads * 2 * math.pi  # heads look around the center of the box
            with torch.no_grad():
                self.focus.bias.copy_(torch.stack([turn.cos(), turn.sin(), 0 * turn, 0 * turn], 1).flatten() / 2)

    def forward(
        self, x: Float[Tensor, "batch queries dim"], place: Tensor, boxes: Tensor, tokens: Tokens, groups: int
    ) -> Float[Tensor, "batch queries dim"]:
        """Return the content after one layer; queries of different groups do not see each other."""

        def among_queries(h: Tensor) -> Tensor:
            grouped = (h + place).unflatten(1, (groups, -1)).flatten(0, 1)
            return self.attention(grouped).unflatten(0, (-1, groups)).flatten(1, 2)

        def to_tokens(h: Tensor) -> Tensor:
            context = self.cross.project_context(tokens.values, tokens.is_real)
            return self.cross.cross_attend(h + place, context, self._bias(h, boxes, tokens))

        x = self.around_attention(x, among_queries)
        x = self.around_cross(x, to_tokens)
        return self.around_feed_forward(x, self.feed_forward)

    def _bias(self, x: Tensor, boxes: Tensor, tokens: Tokens) -> Tensor | None:
        """Return the log of a Gaussian around each query's box, (batch, heads, queries, tokens)."""
        if self.focus is None:
            return None
        shift, log_spread = upcast(self.focus(x)).unflatten(-1, (-1, 4)).transpose(1, 2).split(2, -1)
        half = boxes[:, None, :, 2:] / 2
        center = boxes[:, None, :, :2] + shift * half
        spread = half * log_spread.clamp(-MAX_LOG_SPREAD, MAX_LOG_SPREAD).exp() + MIN_SPREAD
        across, down = (
            ((line[:, None, None] - center[..., axis, None]) / spread[..., axis, None]).square() / 2
            for axis, line in enumerate((tokens.columns, tokens.rows))
        )
        return -(down[..., None] + across[..., None, :]).flatten(-2)


class Predictions(NamedTuple):
    """Class logits and boxes (center x, center y, width, height, as shares of the picture) of every layer."""

    logits: Float[Tensor, "layers batch queries classes"]
    boxes: Float[Tensor, "layers batch queries 4"]


class QueryDecoder(nn.Module):
    """Learned queries, the blocks that refine them, and the heads for classes and boxes."""

    def __init__(self, blocks: list[QueryBlock], dim: int, queries: int, groups: int, classes: int):
        super().__init__()
        self.dim, self.queries = dim, queries
        self.content = nn.Parameter(torch.randn(groups * queries, dim) * 0.02)
        centers = spread_points(groups * queries)
        self.anchors = nn.Parameter(inverse_sigmoid(torch.cat([centers, torch.full_like(centers, FIRST_SIZE)], 1)))
        """Boxes before the first layer, as logits."""
        self.place = nn.Sequential(nn.Linear(2 * dim, dim), nn.ReLU(), nn.Linear(dim, dim))
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(dim)
        self.classes = nn.Linear(dim, classes)
        self.offsets = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, 4))
        nn.init.constant_(self.classes.bias, -math.log(99))  # 1 % at first: most queries find nothing
        last = self.offsets[-1]
        assert isinstance(last, nn.Linear)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)

    def forward(self, tokens: Tokens, groups: int = 1) -> Predictions:
        """Return the predictions of the first `groups` groups of queries after every layer."""
        batch, count = len(tokens.values), groups * self.queries
        x = self.content[:count].expand(batch, -1, -1)
        boxes = upcast(self.anchors[:count]).sigmoid().expand(batch, -1, -1)
        all_logits, all_boxes = [], []
        for block in self.blocks:
            place = self.place(waves(boxes, self.dim // 2).to(x.dtype))
            x = block(x, place, boxes, tokens, groups)
            out = self.norm(x)
            refined = (inverse_sigmoid(boxes) + upcast(self.offsets(out))).sigmoid()
            all_logits.append(upcast(self.classes(out)))
            all_boxes.append(refined)
            boxes = refined.detach()
        return Predictions(torch.stack(all_logits), torch.stack(all_boxes))
