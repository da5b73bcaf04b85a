"""Initial weights of a layer, by name; biases start at 0.

xavier       variance 2 / (inputs + outputs)      https://proceedings.mlr.press/v9/glorot10a.html
he           variance 2 / inputs                  https://arxiv.org/abs/1502.01852
lecun        variance 1 / inputs
orthogonal   rows or columns of length 1, at right angles: spectral norm 1      https://arxiv.org/abs/1312.6120
auto         he for relu and gelu, which zero about half of their inputs, xavier for the others
"""

from collections.abc import Callable

from torch import nn

from qkv.errors import unknown_name_error

INITIALIZATIONS: dict[str, Callable[[nn.Linear], object]] = {
    "xavier": lambda linear: nn.init.xavier_normal_(linear.weight),
    "he": lambda linear: nn.init.kaiming_normal_(linear.weight, nonlinearity="relu"),
    "lecun": lambda linear: nn.init.kaiming_normal_(linear.weight, nonlinearity="linear"),
    "orthogonal": lambda linear: nn.init.orthogonal_(linear.weight),
}


def initialize(linear: nn.Linear, name: str, activation: str) -> None:
    """Set the initial weights of the layer, and its bias to 0."""
    if name == "auto":
        name = "he" if activation in ("relu", "gelu") else "xavier"
    if name not in INITIALIZATIONS:
        raise unknown_name_error("initialization", name, ["auto", *INITIALIZATIONS])
    INITIALIZATIONS[name](linear)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)
