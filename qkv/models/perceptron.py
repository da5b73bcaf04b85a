"""The perceptron: a linear classifier that learns from its mistakes.

    prediction = 1 if w.x + b > 0 else 0;     after a mistake:  w += (label - prediction) x,   b += label - prediction

If a line separates the classes, it finds one after finitely many mistakes; if none does, it never converges.
Paper: https://doi.org/10.1037/h0042519.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from qkv.cost import Cost, Span, parameters_only
from qkv.models.registry import register

Points = Float[Tensor, "points inputs"]
Labels = Int[Tensor, " points"]


@dataclass(frozen=True)
class PerceptronConfig:
    """Settings of a perceptron: only its initial weights."""

    spread: float = 0.0
    """Standard deviation of the initial weights; 0: all weights are 0."""

    def __post_init__(self) -> None:
        if not 0 <= self.spread < float("inf"):
            raise ValueError(f"spread must be 0 or more, got {self.spread}")


@register("perceptron", PerceptronConfig)
class Perceptron(nn.Module):
    """Linear classifier: a point x has class 1 if w.x + b > 0, else class 0."""

    def __init__(self, inputs: int, spread: float = 0.0):
        super().__init__()
        if inputs < 1:
            raise ValueError(f"inputs must be at least 1, got {inputs}")
        self.weight = nn.Parameter(spread * torch.randn(inputs))
        self.bias = nn.Parameter(torch.zeros(()))

    @classmethod
    def from_config(cls, config: PerceptronConfig, *sizes: int) -> "Perceptron":
        """Return a perceptron for examples of these sizes, the last of which is the number of classes."""
        *axes, classes = sizes
        if classes != 2:
            raise ValueError(f"a perceptron separates 2 classes, got {classes}; use the family network")
        return cls(torch.Size(axes).numel(), config.spread)

    def scores(self, points: Tensor) -> Tensor:
        """Return w.x + b of each point: (points,)."""
        return points.flatten(1) @ self.weight + self.bias

    def forward(self, points: Tensor) -> Labels:
        """Return the predicted classes, 0 or 1; a point on the plane is a 0."""
        return (self.scores(points) > 0).long()

    def loss(self, points: Tensor, labels: Labels) -> Tensor:
        """Return the sum of (prediction - label)(w.x + b), whose gradient is the perceptron rule over all points.

        Only mistakes contribute. With all weights 0 the loss is 0 too: a small loss does not mean few mistakes.
        """
        scores = self.scores(points)
        return (((scores > 0).long() - labels) * scores).sum()

    def cost(self, span: Span) -> Cost:
        """Return the cost of one dot product for each of `span.batch` points."""
        count = {"product": span.batch * self.weight.numel()}
        return Cost(needed=count, executed=count) + parameters_only(self)

    @torch.no_grad()
    def fit(self, points: Points, labels: Labels, epochs: int = 100) -> list[int]:
        """Train by the perceptron rule until an epoch has no mistake; return the number of mistakes in each epoch."""
        require_labels(points, labels)
        if epochs < 1:
            raise ValueError(f"epochs must be at least 1, got {epochs}")
        mistakes = []
        for _ in range(epochs):
            mistakes.append(0)
            for point, label in zip(points, labels, strict=True):
                error = int(label) - int(self.scores(point[None]) > 0)
                mistakes[-1] += error != 0
                self.weight.add_(point, alpha=error)
                self.bias.add_(error)
            if mistakes[-1] == 0:
                break
        return mistakes


def require_labels(points: Tensor, labels: Tensor) -> None:
    """Raise unless there is a label of 0 or 1 for each point."""
    if points.dim() != 2 or labels.shape != points.shape[:1]:
        raise ValueError(
            f"points must be (points, inputs) and labels (points,), "
            f"got shapes {tuple(points.shape)} and {tuple(labels.shape)}"
        )
    invalid = sorted({*labels.tolist()} - {0, 1})
    if invalid:
        raise ValueError(f"labels must be 0 or 1, got {invalid[0]:g}")
