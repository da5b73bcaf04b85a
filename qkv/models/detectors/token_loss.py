"""A second loss of DETR for training: every token near the center of an object finds it, too.

Queries alone teach the backbone little, since only one of them learns from each object. Many tokens learn from it here,
as in detectors with a dense head. Nothing of this is used after training.
"""

import math

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from qkv.attention.internal.precision import upcast
from qkv.models.detectors.query_decoder import FIRST_SIZE, Tokens, inverse_sigmoid
from qkv.models.detectors.set_loss import Given, Targets, given_loss

NEAR = 0.5
"""Part of an object's box, around its center, whose tokens are positive."""
MIN_CELLS = 0.75
"""Least distance from the center, in tokens, at which a token is positive: each object has at least one."""


class TokenHead(nn.Module):
    """Class logits and a box for each token of the encoder."""

    def __init__(self, dim: int, classes: int):
        super().__init__()
        self.classes = nn.Linear(dim, classes)
        self.offsets = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, 4))
        nn.init.constant_(self.classes.bias, -math.log(99))

    def loss(self, tokens: Tokens, targets: Targets) -> Float[Tensor, ""]:
        """Return the loss per positive token, times the objects of each picture, summed over pictures."""
        places = token_places(tokens)
        anchors = torch.cat([places, torch.full_like(places, FIRST_SIZE)], -1)
        boxes = (inverse_sigmoid(anchors) + upcast(self.offsets(tokens.values))).sigmoid()
        matched, which = nearest_objects(tokens, places, targets)
        given = Given.from_objects(targets, matched, which)
        losses = given_loss(upcast(self.classes(tokens.values)), boxes, given).masked_fill(~tokens.is_real, 0)
        share = targets.counts.sum(1).clamp_min(1) / given.positive.sum(1).clamp_min(1)
        return (losses.sum(1) * share).sum()


def token_places(tokens: Tokens) -> Float[Tensor, "batch tokens 2"]:
    """Return the center (x, y) of each token."""
    rows, columns = tokens.rows.shape[1], tokens.columns.shape[1]
    x, y = tokens.columns[:, None].expand(-1, rows, -1), tokens.rows[..., None].expand(-1, -1, columns)
    return torch.stack([x, y], -1).flatten(1, 2)


def nearest_objects(
    tokens: Tokens, places: Float[Tensor, "batch tokens 2"], targets: Targets
) -> tuple[Bool[Tensor, "batch tokens"], Int64[Tensor, "batch tokens"]]:
    """Return whether each token is near the center of an object, and the smallest such object."""
    cell = 2 * torch.stack([tokens.columns[:, 0], tokens.rows[:, 0]], -1)  # the first center is half a cell from 0
    reach = torch.maximum(targets.boxes[..., 2:] / 2 * NEAR, MIN_CELLS * cell[:, None])
    distance = (places[:, :, None] - targets.boxes[:, None, :, :2]).abs()
    near = (distance < reach[:, None]).all(-1) & targets.is_object[:, None]  # [batch, tokens, objects]
    area = targets.boxes[..., 2:].prod(-1)[:, None].masked_fill(~near, torch.inf)
    return near.any(2), area.argmin(2)
