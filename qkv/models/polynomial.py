"""Polynomial regression by least squares: a model whose capacity is one number, its degree.

    y = sum_n c_n P_n(2x - 1),   n = 0 .. degree

The basis is Legendre polynomials P_n instead of powers: the same functions, but well conditioned.
"""

import torch
from jaxtyping import Float
from torch import Tensor

Values = Float[Tensor, " points"]


class Polynomial:
    """A polynomial of this degree for inputs in about [0, 1]; `coefficients` is None before `fit`."""

    def __init__(self, degree: int):
        if degree < 0:
            raise ValueError(f"degree must be at least 0, got {degree}")
        self.degree = degree
        self.coefficients: Tensor | None = None

    def fit(self, inputs: Values, targets: Values) -> "Polynomial":
        """Set the coefficients to those of the least squared error, and return the polynomial."""
        if inputs.dim() != 1 or inputs.shape != targets.shape or len(inputs) <= self.degree:
            raise ValueError(
                f"inputs and targets must have more than degree={self.degree} values each, "
                f"got shapes {tuple(inputs.shape)} and {tuple(targets.shape)}"
            )
        self.coefficients = torch.linalg.lstsq(self._basis(inputs), targets[:, None]).solution[:, 0]
        return self

    def __call__(self, inputs: Values) -> Values:
        """Return the values at these inputs."""
        if self.coefficients is None:
            raise ValueError("the polynomial has no coefficients yet; fit it first")
        return self._basis(inputs) @ self.coefficients

    def _basis(self, inputs: Values) -> Float[Tensor, "points terms"]:
        """Return P_0 .. P_degree: (n + 1) P_(n+1) = (2n + 1) x P_n - n P_(n-1)."""
        x = 2 * inputs - 1
        terms = [torch.ones_like(x), x]
        for n in range(1, self.degree):
            terms.append(((2 * n + 1) * x * terms[n] - n * terms[n - 1]) / (n + 1))
        return torch.stack(terms[: self.degree + 1], 1)
