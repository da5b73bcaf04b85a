"""Costs of torch's own layers, declared: what the costs of larger parts are summed from."""

from torch import nn

from qkv.cost.record import Cost


def learned(module: nn.Module) -> Cost:
    """Its parameters, and no multiplication: norms, tables of vectors."""
    return Cost(parameters={name: weight.numel() for name, weight in module.named_parameters()})


def linear(layer: nn.Linear, rows: int) -> Cost:
    """rows * in * out"""
    count = {"product": rows * layer.in_features * layer.out_features}
    return Cost(needed=count, executed=count) + learned(layer)


def convolution(layer: nn.Conv2d, places: int) -> Cost:
    """places * in / groups * out * height * width of the filter; a place is one of the result."""
    count = {"product": places * layer.weight.numel()}
    return Cost(needed=count, executed=count) + learned(layer)


def recurrent(layer: nn.RNNBase, rows: int) -> Cost:
    """Every weight matrix of every layer and direction meets every token once."""
    matrices = sum(weight.numel() for weight in layer.parameters() if weight.dim() == 2)
    count = {"product": rows * matrices}
    return Cost(needed=count, executed=count) + learned(layer)
