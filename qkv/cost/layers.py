"""Declared costs of torch's own layers; the costs of larger modules are sums of these."""

from torch import nn

from qkv.cost.record import Cost


def parameters_only(module: nn.Module) -> Cost:
    """Return the cost of a layer with parameters and no matrix product: a norm, an embedding."""
    return Cost(parameters={name: weight.numel() for name, weight in module.named_parameters()})


def linear(layer: nn.Linear, rows: int) -> Cost:
    """Return the cost of rows * in * out multiplications."""
    count = {"product": rows * layer.in_features * layer.out_features}
    return Cost(needed=count, executed=count) + parameters_only(layer)


def convolution(layer: nn.Conv2d, positions: int) -> Cost:
    """Return the cost of positions * in / groups * out * height * width; `positions` counts output pixels."""
    count = {"product": positions * layer.weight.numel()}
    return Cost(needed=count, executed=count) + parameters_only(layer)


def recurrent(layer: nn.RNNBase, rows: int) -> Cost:
    """Return the cost of one product per token with every weight matrix of every layer and direction."""
    matrices = sum(weight.numel() for weight in layer.parameters() if weight.dim() == 2)
    count = {"product": rows * matrices}
    return Cost(needed=count, executed=count) + parameters_only(layer)
