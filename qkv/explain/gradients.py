"""Norms of the gradient at each layer.

    d loss / d a_l  =  J_(l+1)' ... J_L' d loss / d a_L,      J_l = d a_l / d a_(l-1)

Back-propagation multiplies one factor per layer. The derivative of a sigmoid is at most 1/4, so behind weights of
spectral norm 1 the factors of L layers are at most 4^-(L-1) together; relu's is exactly 1 where it is active.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.functional import jacobian

from qkv.layers import Dense
from qkv.layers.initialization import initialize
from qkv.models import MLP


@dataclass(frozen=True)
class LayerGradient:
    """Gradient norms at one layer."""

    layer: str
    output: float
    """||d loss / d output||"""
    weight: float
    """||d loss / d weights||, all weights of the layer together."""


def gradient_norms(model: nn.Module, loss: Callable[[nn.Module], Tensor]) -> list[LayerGradient]:
    """Return the gradient of `loss(model)` at each layer, in execution order; the model is left unchanged.

    Layers are the `Dense` ones of a network; in another model every module that directly holds a matrix.
    """
    outputs: list[tuple[str, nn.Module, Tensor]] = []

    def record(name: str, module: nn.Module, _: Any, output: Tensor) -> None:
        outputs.append((name, module, output))

    hooks = [module.register_forward_hook(partial(record, name)) for name, module in _layers(model)]
    try:
        with torch.enable_grad():
            value = loss(model)
    finally:
        for hook in hooks:
            hook.remove()
    if not outputs:
        raise ValueError(f"loss(model) ran no layer of the {type(model).__name__}")
    found = []
    for name, module, output in outputs:
        weights = [p for p in module.parameters() if p.requires_grad]
        grads = torch.autograd.grad(value, [output, *weights], retain_graph=True, allow_unused=True)
        found.append(LayerGradient(name, _norm(grads[:1]), _norm(grads[1:])))
    return found


def jacobian_norms(layers: Sequence[nn.Module], inputs: Tensor) -> list[float]:
    """Return the spectral norms ||d a_l / d a_1|| for l = 1, 2, ..., with a_l the output of layer l; the first is 1.

    A batch is treated as one vector, because batch normalization mixes its examples. Otherwise this is the largest
    norm among them.
    """
    norms = []
    with torch.no_grad():
        a = layers[0](inputs)
    product = torch.eye(a.numel(), dtype=a.dtype)
    norms.append(1.0)
    for layer in layers[1:]:
        factor = jacobian(layer, a, vectorize=True).reshape(-1, a.numel())
        product = factor @ product
        norms.append(float(torch.linalg.matrix_norm(product, 2)))
        with torch.no_grad():
            a = layer(a)
    return norms


def gradient_by_depth(
    activation: str,
    depth: int = 50,
    width: int = 16,
    *,
    residual: nn.Module | None = None,
    normalization: str | None = None,
    initialization: str = "orthogonal",
    seed: int = 0,
) -> list[float]:
    """Return ||d a_L / d a_1|| of a network for each depth L = 1 to `depth`, on 8 normal examples in float64.

    Orthogonal weights have spectral norm 1, so the norms show the effect of the activation alone. These are the first
    L layers of one network: if a layer depends on the depth, as with `residual=ScaledBranch(1 / depth)`, only the
    last norm is that of a network of that depth.
    """
    if depth < 1:
        raise ValueError(f"depth must be at least 1, got {depth}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        options = {"residual": residual, "normalization": normalization, "initialization": initialization}
        network = MLP([width] * (depth + 2), activation, **options).double()  # type: ignore[arg-type]
        layers = [layer for layer in network.layers if isinstance(layer, Dense)][:depth]
        for layer in layers:
            initialize(layer.linear, initialization, activation)  # again in float64: norms are 1 within 1e-15
        inputs = torch.randn(8, width, dtype=torch.float64)
        return jacobian_norms(layers, inputs)


def _layers(model: nn.Module) -> list[tuple[str, nn.Module]]:
    modules = list(model.named_modules())
    dense = [pair for pair in modules if isinstance(pair[1], Dense)]
    return dense or [pair for pair in modules if any(p.dim() > 1 for p in pair[1].parameters(recurse=False))]


def _norm(gradients: Sequence[Tensor | None]) -> float:
    return float(sum((g.double().square().sum() for g in gradients if g is not None), torch.zeros(())) ** 0.5)
