"""Queries, keys and values before they are split into heads."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from qkv.attention.internal.precision import AUTOCAST_DEVICES
from qkv.shapes import Hidden

Projections = tuple[Tensor, Tensor, Tensor]
"""Queries, keys and values before they are split into heads: (batch, time, heads * dim)."""


def mix_projections(projections: Projections, mix: Callable[[Tensor], Tensor]) -> Projections:
    """Apply a function of (batch, time, channels) to all projections at once."""
    return split_like(mix(torch.cat(projections, -1)), projections)


def split_like(joined: Tensor, projections: Projections) -> Projections:
    """Split joined channels into tensors as wide as these projections."""
    queries, keys, values = joined.split([x.shape[-1] for x in projections], -1)
    return queries, keys, values


def split_heads(x: Hidden, heads: int) -> Tensor:
    """Return (batch, heads, time, dim)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def reference_parameter(layer: nn.Module) -> Tensor:
    """Return a floating-point parameter of the layer, for its dtype and device; a quantized layer has none."""
    return next((x for x in layer.parameters() if x.is_floating_point()), torch.empty(0))


def cast_for_autocast(x: Hidden) -> Hidden:
    """Cast `x` once under autocast, instead of once in each of three projections and their gradients."""
    device_type = x.device.type
    if x.dtype != torch.float or device_type not in AUTOCAST_DEVICES or not torch.is_autocast_enabled(device_type):
        return x
    return x.to(torch.get_autocast_dtype(device_type))
