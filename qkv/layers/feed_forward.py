"""The feed-forward layer: two linear maps with an activation between, for each token by itself."""

from torch import nn

from qkv.cost import Cost, Span, linear
from qkv.shapes import Hidden


class FeedForward(nn.Module):
    """dim -> hidden_dim -> dim."""

    def __init__(self, dim: int, hidden_dim: int, activation: nn.Module | None = None, dropout: float = 0.0):
        super().__init__()
        self.enter = nn.Linear(dim, hidden_dim)
        self.activation = nn.GELU() if activation is None else activation
        self.dropout = nn.Dropout(dropout)
        self.leave = nn.Linear(hidden_dim, dim)

    def forward(self, x: Hidden) -> Hidden:
        """leave(activation(enter(x)))"""
        return self.leave(self.dropout(self.activation(self.enter(x))))

    def cost(self, span: Span) -> Cost:
        """Two products a token."""
        return linear(self.enter, span.tokens).within("enter") + linear(self.leave, span.tokens).within("leave")
