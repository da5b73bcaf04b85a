"""One period of a sine with noise: a function that is known, drawn as often as one likes.

    target = sin(2 pi x) + noise,     x in [0, 1)

Set number n has `count` points, one somewhere in each of `count` equal pieces, so that no set leaves a gap.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from qkv.random import derive_seed, generator, uniforms

Values = Float64[Tensor, " points"]


@dataclass(frozen=True)
class Draw:
    """One resampled set, and fresh noisy targets at the inputs that fits are judged at."""

    inputs: Tensor
    targets: Tensor
    fresh: Tensor


@dataclass(frozen=True)
class NoisySine:
    """Sets of noisy points of the sine; each is a function of the seed and its number."""

    count: int = 40
    """Points of a set."""
    noise: float = 0.3
    """Standard deviation."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"count must be at least 1, got {self.count}")
        if not 0 <= self.noise < math.inf:
            raise ValueError(f"noise must be 0 or more, got {self.noise}")

    def truth(self, inputs: Values) -> Values:
        """sin(2 pi x)"""
        return (2 * math.pi * inputs).sin()

    def draw(self, number: int, at: Values) -> Draw:
        """Set number `number`, with fresh targets at `at` for judging what is fitted to it."""
        places = torch.arange(self.count)
        inputs = (places + uniforms(derive_seed(self.seed, "inputs of the sine", number), places)) / self.count
        random = generator(self.seed, "noise of the sine", number)
        return Draw(inputs, self._noisy(inputs, random), self._noisy(at, random))

    def _noisy(self, inputs: Values, random: torch.Generator) -> Values:
        return self.truth(inputs) + self.noise * torch.randn(len(inputs), generator=random, dtype=torch.float64)
