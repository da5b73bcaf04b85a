"""The multi-layer network, from logistic regression to fifty layers.

    h_1 = f(norm(W_1 x + b_1)),   h_l = f(norm(W_l h_(l-1) + b_l)) [+ h_(l-1)],   out = W_L h_(L-1) + b_L

The last layer gives logits: no activation, no norm. Without hidden layers it is logistic or softmax regression;
without an activation it is one linear map, however many layers it has.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod

from torch import Tensor, nn

from qkv.cost import Cost, Span
from qkv.layers import Dense, ScaledBranch
from qkv.layers.activation import make_activation
from qkv.models.registry import register
from qkv.models.validation import require_at_least


@dataclass(frozen=True)
class NetworkConfig:
    """Hidden layers of one width, and what they do."""

    hidden_dim: int = 128
    """Units of a hidden layer."""
    layers: int = 1
    """Hidden layers; 0 is logistic or softmax regression."""
    activation: str = "relu"
    """identity, sigmoid, tanh, relu, gelu or gelu_tanh."""
    residual: bool = False
    """Whether a path leads around each layer whose width does not change."""
    normalization: str | None = None
    """batch, layer or None."""
    initialization: str = "auto"
    """auto, xavier, he, lecun or orthogonal."""

    def __post_init__(self) -> None:
        require_at_least(1, self, "hidden_dim")
        require_at_least(0, self, "layers")
        make_activation(self.activation)


@register("network", NetworkConfig)
class Network(nn.Module):
    """sizes[0] -> ... -> sizes[-1]; `layers[i].linear` holds the weights of layer i, which may be set by hand.

    `residual` is the path around each hidden layer whose width does not change, such as `ScaledBranch(1 / depth)`:
    a copy each, so that no two learn the same numbers.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        activation: str = "relu",
        *,
        residual: nn.Module | None = None,
        normalization: str | None = None,
        initialization: str = "auto",
        bias: bool = True,
    ):
        super().__init__()
        if len(sizes) < 2:
            raise ValueError(f"sizes must name at least inputs and outputs, got {tuple(sizes)}")
        self.sizes = tuple(sizes)
        *hidden, last = pairwise(sizes)
        options = {"bias": bias, "initialization": initialization}
        self.layers = nn.ModuleList()
        for i, o in hidden:
            around = deepcopy(residual) if i == o else None
            self.layers.append(Dense(i, o, activation, normalization=normalization, residual=around, **options))  # type: ignore[arg-type]
        self.layers.append(Dense(*last, **options))  # type: ignore[arg-type]

    @classmethod
    def from_config(cls, config: NetworkConfig, *sizes: int) -> "Network":
        """For examples of these sizes, the last of which is the number of classes; two classes need one output."""
        *axes, classes = sizes
        outputs = 1 if classes == 2 else classes
        return cls(
            (prod(axes), *[config.hidden_dim] * config.layers, outputs),
            config.activation,
            residual=ScaledBranch() if config.residual else None,
            normalization=config.normalization,
            initialization=config.initialization,
        )

    def forward(self, x: Tensor) -> Tensor:
        """Logits (batch, outputs) of each example, whatever its axes."""
        x = x.flatten(1)
        for layer in self.layers:
            x = layer(x)
        return x

    def cost(self, span: Span) -> Cost:
        """That of its layers, for `span.batch` examples."""
        one = replace(span, time=1)
        return sum((layer.cost(one) for layer in self.layers), Cost())  # type: ignore[operator]


def logistic_regression(inputs: int) -> Network:
    """P(1 | x) = sigmoid(w.x + b); the network gives w.x + b, from weights of 0."""
    return softmax_regression(inputs, 1)


def softmax_regression(inputs: int, classes: int) -> Network:
    """P(c | x) = softmax_c(W x + b); the network gives W x + b, from weights of 0."""
    network = Network((inputs, classes))
    nn.init.zeros_(network.layers[0].linear.weight)  # type: ignore[union-attr, arg-type]
    return network
