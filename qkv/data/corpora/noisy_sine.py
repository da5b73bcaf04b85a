"""One period of a sine plus Gaussian noise: regression sets with a known true function, as many as needed.

    target = sin(2 pi x) + noise,     x in [0, 1)

Each set has `count` points, one at a random position in each of `count` equal intervals, so no set leaves a gap.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from qkv.data.dataset_registry import register_dataset
from qkv.random import derive_seed, generator, uniforms

Values = Float64[Tensor, " points"]


@dataclass(frozen=True)
class NoisySample:
    """A training set, and new noisy targets at the evaluation inputs."""

    inputs: Tensor
    targets: Tensor
    fresh_targets: Tensor


@register_dataset("noisy_sine")
@dataclass(frozen=True)
class NoisySine:
    """Noisy points of a sine; each set is a pure function of the seed and its index."""

    count: int = 40
    """Points per set."""
    noise: float = 0.3
    """Standard deviation of the noise."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"count must be at least 1, got {self.count}")
        if not 0 <= self.noise < math.inf:
            raise ValueError(f"noise must be 0 or more, got {self.noise}")

    def truth(self, inputs: Values) -> Values:
        """Return sin(2 pi x)."""
        return (2 * math.pi * inputs).sin()

    def draw(self, index: int, at: Values) -> NoisySample:
        """Return set `index`, with new noisy targets at the inputs `at` to evaluate a fit on."""
        intervals = torch.arange(self.count)
        offsets = uniforms(derive_seed(self.seed, "inputs of the sine", index), intervals)
        inputs = (intervals + offsets) / self.count
        random = generator(self.seed, "noise of the sine", index)
        return NoisySample(inputs, self._add_noise(inputs, random), self._add_noise(at, random))

    def _add_noise(self, inputs: Values, random: torch.Generator) -> Values:
        return self.truth(inputs) + self.noise * torch.randn(len(inputs), generator=random, dtype=torch.float64)
