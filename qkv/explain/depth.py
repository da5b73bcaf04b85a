"""Gradients through networks of many layers, by normalization and residual path."""

import torch

from qkv.explain.gradients import gradient_by_depth, gradient_norms, jacobian_norms
from qkv.layers import ScaledBranch
from qkv.models import MLP

WIDTH = 8
MAX_DEPTH = 50


def gradients_by_depth(activation: str) -> dict[str, list[float]]:
    """Return the norm of d a_L / d a_1 for L = 1 to 50, by normalization and residual path."""
    variants = {
        "": {},
        ", residual unscaled": {"residual": ScaledBranch()},
        ", layer norm": {"normalization": "layer"},
        ", batch norm": {"normalization": "batch"},
        ", residual and layer norm": {"residual": ScaledBranch(), "normalization": "layer"},
    }
    norms = {
        f"{activation}{name}": gradient_by_depth(activation, MAX_DEPTH, WIDTH, **options)  # type: ignore[arg-type]
        for name, options in variants.items()
    }
    # the scale depends on the depth, so each depth is a network of its own
    norms[f"{activation}, residual by 1/L"] = [
        gradient_by_depth(activation, depth, WIDTH, residual=ScaledBranch(1 / depth))[-1]
        for depth in range(1, MAX_DEPTH + 1)
    ]
    return norms


def first_over_last_gradient(activation: str, depth: int) -> float:
    """Return the gradient norm of layer 1 over that of layer `depth`; the layers are scaled by 1 / depth."""
    torch.manual_seed(0)
    network = MLP([WIDTH] * (depth + 2), activation, residual=ScaledBranch(1 / depth), initialization="orthogonal")
    norms = gradient_norms(network, lambda model: model(torch.randn(1, WIDTH)).sum())
    return norms[0].output / norms[depth - 1].output


def identity_gradients(depth: int, x: float, residual: ScaledBranch | None = None) -> list[float]:
    """Return the norm of d a_L / d a_1 for L = 1 to `depth`, for ReLU layers with identity weights at the input x."""
    layers = list(MLP([4] * (depth + 2), "relu", residual=residual).double().layers)[:depth]
    for layer in layers:
        layer.linear.weight.data = torch.eye(4).double()  # type: ignore[union-attr]
    return jacobian_norms(layers, torch.full((1, 4), x).double())
