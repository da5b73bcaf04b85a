"""The simple (Elman) recurrent cell; its weights can be set by hand.

h_t = activation(W x_t + U h_(t-1) + b)
"""

import torch
from torch import Tensor, nn

from qkv.layers.activation import make_activation
from qkv.shapes import Hidden


class RecurrentCell(nn.Module):
    """A recurrent layer inputs -> dim; `input.weight` is W, `state.weight` is U, `input.bias` is b."""

    def __init__(self, inputs: int, dim: int, activation: str = "tanh", *, bias: bool = True):
        super().__init__()
        if inputs < 1 or dim < 1:
            raise ValueError(f"inputs and dim must be at least 1, got {inputs} and {dim}")
        self.input = nn.Linear(inputs, dim, bias=bias)
        self.state = nn.Linear(dim, dim, bias=False)
        self.activation = make_activation(activation)

    def start(self, batch: int) -> Tensor:
        """Return h_0 = 0: (batch, dim)."""
        return self.state.weight.new_zeros(batch, self.state.out_features)

    def step(self, x: Tensor, h: Tensor) -> Tensor:
        """Return the next state: (batch, inputs) and (batch, dim) -> (batch, dim)."""
        return self.activation(self.input(x) + self.state(h))

    def forward(self, x: Hidden, h: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return all states (batch, time, dim) and the last one (batch, dim), starting from h_0 = `h`."""
        h = self.start(x.shape[0]) if h is None else h
        states = []
        for token in x.unbind(1):
            h = self.step(token, h)
            states.append(h)
        return torch.stack(states, 1) if states else h.new_zeros(*x.shape[:2], h.shape[-1]), h
