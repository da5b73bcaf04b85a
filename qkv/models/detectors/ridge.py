"""Ridge regression in closed form, from examples that arrive in batches."""

import torch
import torch.distributed as dist
from jaxtyping import Float, Int64
from torch import Tensor, nn


class RidgeRegression(nn.Module):
    """One linear map per class: the minimum of |x w - y|^2 + penalty |w|^2 over all examples of the class.

    The sums x'x and x'y are buffers. So a checkpoint holds all that was seen, and resuming is exact.
    """

    weights: Tensor
    """(classes, inputs + 1, outputs); the last row is the bias."""
    squares: Tensor
    """Sum of x'x: (classes, inputs + 1, inputs + 1)."""
    products: Tensor
    """Sum of x'y: (classes, inputs + 1, outputs)."""

    def __init__(self, classes: int, inputs: int, outputs: int, penalty: float):
        super().__init__()
        self.penalty = penalty
        self.register_buffer("weights", torch.zeros(classes, inputs + 1, outputs))
        self.register_buffer("squares", torch.zeros(classes, inputs + 1, inputs + 1, dtype=torch.double))
        self.register_buffer("products", torch.zeros(classes, inputs + 1, outputs, dtype=torch.double))
        # a loss needs a gradient to go through the training loop; this one has no numbers to change
        self.nothing = nn.Parameter(torch.zeros(0))

    def forward(self, x: Float[Tensor, "*rows inputs"]) -> Float[Tensor, "*rows classes outputs"]:
        """Return the prediction of each class."""
        return torch.einsum("...i,cio->...co", x.to(self.weights.dtype), self.weights[:, :-1]) + self.weights[:, -1]

    def add(
        self, x: Float[Tensor, "rows inputs"], y: Float[Tensor, "rows outputs"], classes: Int64[Tensor, " rows"]
    ) -> Float[Tensor, ""]:
        """Add examples and solve; return the summed squared error of the weights before."""
        with torch.no_grad():
            predicted = self(x)[torch.arange(len(x), device=x.device), classes]
            error = (predicted - y).square().sum()
            self._add_sums(x, y, classes)
            self._solve()
        return error + self.nothing.sum()

    def _add_sums(self, x: Tensor, y: Tensor, classes: Tensor) -> None:
        finite = x.isfinite().all(-1) & y.isfinite().all(-1)
        x = torch.cat([x, torch.ones_like(x[:, :1])], 1).double()
        squares, products = torch.zeros_like(self.squares), torch.zeros_like(self.products)
        for label in range(len(self.weights)):
            own = finite & (classes == label)
            squares[label], products[label] = x[own].T @ x[own], x[own].T @ y[own].double()
        if dist.is_available() and dist.is_initialized():
            dist.all_reduce(squares)
            dist.all_reduce(products)
        self.squares += squares
        self.products += products

    def _solve(self) -> None:
        penalty = self.penalty * torch.eye(self.squares.shape[-1], dtype=torch.double, device=self.squares.device)
        penalty[-1, -1] = 1e-6  # the bias is free
        self.weights.copy_(torch.linalg.solve(self.squares + penalty, self.products))
