"""Activations by name."""

from collections.abc import Callable
from functools import partial

from torch import nn

from qkv.errors import unknown_name_error

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "identity": nn.Identity,
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "gelu_tanh": partial(nn.GELU, approximate="tanh"),
}


def make_activation(name: str) -> nn.Module:
    """Build the activation of this name."""
    if name not in ACTIVATIONS:
        raise unknown_name_error("activation", name, ACTIVATIONS)
    return ACTIVATIONS[name]()
