"""One layer of a network: every output unit sees every input.

a = W x + b,     h = activation(norm(a)),     x + h with a residual path, such as ScaledBranch()
"""

from collections.abc import Callable

from torch import Tensor, nn

from qkv.cost import Cost, Span, learned, linear
from qkv.layers.activation import make_activation
from qkv.layers.initialization import initialize
from qkv.registry import unknown_name_error

NORMS: dict[str, Callable[[int], nn.Module]] = {"batch": nn.BatchNorm1d, "layer": nn.LayerNorm}


class Dense(nn.Module):
    """inputs -> outputs; `linear` holds W and b, which may be set by hand.

    Batch normalization takes the mean away, and with it whatever a bias adds: `bias=False` loses nothing beside it.
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
            raise TypeError(
                f"residual must be a path around the layer such as ScaledBranch(), or None; got {residual!r}"
            )
        if residual is not None and inputs != outputs:
            raise ValueError(f"a residual path needs as many outputs as inputs, got {inputs} and {outputs}")
        self.residual = residual
        self.linear = nn.Linear(inputs, outputs, bias=bias)
        self.norm = nn.Identity() if normalization is None else NORMS[normalization](outputs)
        self.activation = make_activation(activation)
        initialize(self.linear, initialization, activation)

    def pre_activation(self, x: Tensor) -> Tensor:
        """a = W x + b, before anything else is done with it."""
        return self.linear(x)

    def forward(self, x: Tensor) -> Tensor:
        """The outputs: (..., inputs) -> (..., outputs)."""
        return self._branch(x) if self.residual is None else self.residual(x, self._branch)

    def _branch(self, x: Tensor) -> Tensor:
        return self.activation(self._normed(self.pre_activation(x)))

    def _normed(self, a: Tensor) -> Tensor:
        if a.dim() == 2 or not isinstance(self.norm, nn.BatchNorm1d):
            return self.norm(a)
        return self.norm(a.reshape(-1, a.shape[-1])).view(a.shape)  # torch would take the second axis for the units

    def cost(self, span: Span) -> Cost:
        """One product a token."""
        own = linear(self.linear, span.tokens) + learned(self.norm)
        return own if self.residual is None else own + learned(self.residual).within("residual")
