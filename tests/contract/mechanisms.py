"""Mechanisms under test: every registered kind, an external one, and options that change the code path."""

import examples.relu_kind  # noqa: F401 - registers a kind from outside the package
from qkv.attention import Attention, Softmax, Taylor, kinds


def mechanisms() -> dict[str, type | object]:
    """Map names to functions from key_dim to a mechanism."""
    found = {name: kinds[name].example for name in kinds}
    found["softmax, window 4"] = lambda key_dim: Softmax(window=4)
    found["softmax, reference"] = lambda key_dim: Softmax(backend="reference", scale=0.3)
    found["taylor, order 4"] = lambda key_dim: Taylor(order=4)
    found["taylor, scaled"] = lambda key_dim: Taylor(scale=0.7)
    return found


MECHANISMS = mechanisms()


def make(name: str, key_dim: int) -> Attention:
    """Build the mechanism of that name in float64."""
    return MECHANISMS[name](key_dim).double()
