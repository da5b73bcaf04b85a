"""The perceptron: one unit that says yes or no, and learns from its mistakes alone.

    answer = 1 if w.x + b > 0 else 0;     after a mistake:  w += (label - answer) x,   b += label - answer

If a line separates the classes, it finds one after finitely many mistakes; if none does, it never settles.
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
    """A perceptron has nothing to choose but where it begins."""

    spread: float = 0.0
    """Standard deviation of the first weights; 0 begins at nothing."""

    def __post_init__(self) -> None:
        if not 0 <= self.spread < float("inf"):
            raise ValueError(f"spread must be 0 or more, got {self.spread}")


@register("perceptron", PerceptronConfig)
class Perceptron(nn.Module):
    """0 or 1 by the side of a plane on which a point lies; `weight` and `bias` may be set by hand."""

    def __init__(self, inputs: int, spread: float = 0.0):
        super().__init__()
        if inputs < 1:
            raise ValueError(f"inputs must be at least 1, got {inputs}")
        self.weight = nn.Parameter(spread * torch.randn(inputs))
        self.bias = nn.Parameter(torch.zeros(()))

    @classmethod
    def from_config(cls, config: PerceptronConfig, *sizes: int) -> "Perceptron":
        """For examples of these sizes, the last of which is the number of classes."""
        *axes, classes = sizes
        if classes != 2:
            raise ValueError(f"a perceptron tells 2 classes apart, got {classes}; take the family network")
        return cls(torch.Size(axes).numel(), config.spread)

    def scores(self, points: Tensor) -> Tensor:
        """w.x + b of each point: (points,)."""
        return points.flatten(1) @ self.weight + self.bias

    def forward(self, points: Tensor) -> Labels:
        """The answers, 0 or 1; a point on the plane itself is a 0."""
        return (self.scores(points) > 0).long()

    def loss(self, points: Tensor, labels: Labels) -> Tensor:
        """sum of (answer - label)(w.x + b): 0 but for mistakes, and its gradient is the rule, over all of them at once.

        It is 0, too, where all weights are: a small loss is no sign of few mistakes.
        """
        scores = self.scores(points)
        return (((scores > 0).long() - labels) * scores).sum()

    def cost(self, span: Span) -> Cost:
        """One product of two vectors for each of `span.batch` points."""
        count = {"product": span.batch * self.weight.numel()}
        return Cost(needed=count, executed=count) + parameters_only(self)

    @torch.no_grad()
    def fit(self, points: Points, labels: Labels, epochs: int = 100) -> list[int]:
        """Learn by the perceptron's rule, point by point; the mistakes of each epoch, up to the first without any."""
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
    """Refuse labels that are not a 0 or a 1 for each point."""
    if points.dim() != 2 or labels.shape != points.shape[:1]:
        raise ValueError(
            f"points must be (points, inputs) and labels (points,), "
            f"got shapes {tuple(points.shape)} and {tuple(labels.shape)}"
        )
    strange = sorted({*labels.tolist()} - {0, 1})
    if strange:
        raise ValueError(f"labels must be 0 or 1, got {strange[0]:g}")
