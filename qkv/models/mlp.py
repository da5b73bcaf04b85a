"""The multi-layer perceptron (MLP), from logistic regression to fifty layers.

    h_1 = f(norm(W_1 x + b_1)),   h_l = f(norm(W_l h_(l-1) + b_l)) [+ h_(l-1)],   out = W_L h_(L-1) + b_L

The last layer gives logits: no activation, no norm. Without hidden layers it is logistic or softmax regression.
Without an activation it is one linear map, whatever its depth.
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
class MLPConfig:
    """Settings of an MLP whose hidden layers have one width."""

    hidden_dim: int = 128
    """Units per hidden layer."""
    layers: int = 1
    """Number of hidden layers; 0: logistic or softmax regression."""
    activation: str = "relu"
    """Activation: identity, sigmoid, tanh, relu, gelu or gelu_tanh."""
    residual: bool = False
    """Whether layers whose width does not change have a residual connection."""
    normalization: str | None = None
    """Normalization: batch, layer or None."""
    initialization: str = "auto"
    """Initialization: auto, xavier, he, lecun or orthogonal."""

    def __post_init__(self) -> None:
        require_at_least(1, self, "hidden_dim")
        require_at_least(0, self, "layers")
        make_activation(self.activation)


@register("network", MLPConfig)
class MLP(nn.Module):
    """sizes[0] -> ... -> sizes[-1]; `layers[i].linear` holds the weights of layer i.

    `residual` is the connection around hidden layers whose width does not change, such as `ScaledBranch(1 / depth)`;
    each layer gets its own copy.
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
        for inputs, outputs in hidden:
            branch = deepcopy(residual) if inputs == outputs else None
            layer = Dense(inputs, outputs, activation, normalization=normalization, residual=branch, **options)  # type: ignore[arg-type]
            self.layers.append(layer)
        self.layers.append(Dense(*last, **options))  # type: ignore[arg-type]

    @classmethod
    def from_config(cls, config: MLPConfig, *sizes: int) -> "MLP":
        """Return an MLP for examples of these sizes; the last is the number of classes (2 need only 1 output)."""
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
        """Return logits (batch, outputs); the axes of an example are flattened."""
        x = x.flatten(1)
        for layer in self.layers:
            x = layer(x)
        return x

    def cost(self, span: Span) -> Cost:
        """Return the cost of all layers, for `span.batch` examples."""
        per_example = replace(span, time=1)
        return sum((layer.cost(per_example) for layer in self.layers), Cost())  # type: ignore[operator]


def logistic_regression(inputs: int) -> MLP:
    """Return an MLP with P(1 | x) = sigmoid(w.x + b); its output is w.x + b, its initial weights are 0."""
    return softmax_regression(inputs, 1)


def softmax_regression(inputs: int, classes: int) -> MLP:
    """Return an MLP with P(c | x) = softmax_c(W x + b); its output is W x + b, its initial weights are 0."""
    network = MLP((inputs, classes))
    nn.init.zeros_(network.layers[0].linear.weight)  # type: ignore[union-attr, arg-type]
    return network
