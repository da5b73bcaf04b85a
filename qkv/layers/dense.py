"""A dense (fully connected) layer.

a = W x + b,     h = activation(norm(a)),     x + h with a residual path, such as ScaledBranch()
"""

from collections.abc import Callable

from torch import Tensor, nn

from qkv.cost import Cost, Span, linear, parameters_only
from qkv.errors import unknown_name_error
from qkv.layers.activation import make_activation
from qkv.layers.initialization import initialize

NORMS: dict[str, Callable[[int], nn.Module]] = {"batch": nn.BatchNorm1d, "layer": nn.LayerNorm}


class Dense(nn.Module):
    """inputs -> outputs; `linear` holds W and b, which may be set by hand.

    Batch normalization subtracts the mean, which cancels any bias: `bias=False` then loses nothing.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        activation: str = "identity",
        *,
        normalization: str | None = None,
        residual: nn.Module | None = None,
        bias: bool = True,
        initialization: str = "auto",
    ):
        super().__init__()
        if inputs < 1 or outputs < 1:
            raise ValueError(f"inputs and outputs must be at least 1, got {inputs} and {outputs}")
        if normalization is not None and normalization not in NORMS:
            raise unknown_name_error("normalization", normalization, NORMS)
        if residual is not None and not isinstance(residual, nn.Module):
            raise TypeError(f"residual must be a module such as ScaledBranch(), or None, got {residual!r}")
        if residual is not None and inputs != outputs:
            raise ValueError(f"residual needs as many outputs as inputs, got {inputs} inputs and {outputs} outputs")
        self.residual = residual
        self.linear = nn.Linear(inputs, outputs, bias=bias)
        self.norm = nn.Identity() if normalization is None else NORMS[normalization](outputs)
        self.activation = make_activation(activation)
        initialize(self.linear, initialization, activation)

    def pre_activation(self, x: Tensor) -> Tensor:
        """Return a = W x + b."""
        return self.linear(x)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the outputs: (..., inputs) -> (..., outputs)."""
        return self._branch(x) if self.residual is None else self.residual(x, self._branch)

    def _branch(self, x: Tensor) -> Tensor:
        return self.activation(self._normalize(self.pre_activation(x)))

    def _normalize(self, a: Tensor) -> Tensor:
        if a.dim() == 2 or not isinstance(self.norm, nn.BatchNorm1d):
            return self.norm(a)
        return self.norm(a.reshape(-1, a.shape[-1])).view(a.shape)  # BatchNorm1d would normalize axis 1

    def cost(self, span: Span) -> Cost:
        """Return the cost of one product per token."""
        own = linear(self.linear, span.tokens) + parameters_only(self.norm)
        return own if self.residual is None else own + parameters_only(self.residual).within("residual")
