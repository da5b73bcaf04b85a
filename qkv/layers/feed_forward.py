"""The position-wise feed-forward layer: two linear layers with an activation between them."""

from torch import nn

from qkv.cost import Cost, Span, linear
from qkv.shapes import Hidden


class FeedForward(nn.Module):
    """dim -> hidden_dim -> dim."""

    def __init__(self, dim: int, hidden_dim: int, activation: nn.Module | None = None, dropout: float = 0.0):
        super().__init__()
        self.up = nn.Linear(dim, hidden_dim)
        self.activation = nn.GELU() if activation is None else activation
        self.dropout = nn.Dropout(dropout)
        self.down = nn.Linear(hidden_dim, dim)

    def forward(self, x: Hidden) -> Hidden:
        """Return down(activation(up(x)))."""
        return self.down(self.dropout(self.activation(self.up(x))))

    def cost(self, span: Span) -> Cost:
        """Return the cost of two matrix products per token."""
        return linear(self.up, span.tokens).within("up") + linear(self.down, span.tokens).within("down")
