"""Bias-variance decomposition of a fitting procedure, estimated from resampled training sets.

    expected error = (mean prediction - truth)^2 + variance of the prediction + noise        (means over the inputs)

A model that is too simple makes the same error every time: bias. One that is too flexible fits the noise of each set:
variance. The expected error is measured independently, on targets that no fit has seen.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.data.corpora.noisy_sine import NoisySample as NoisySample

Predictor = Callable[[Tensor], Tensor]
Fit = Callable[[Tensor, Tensor], Predictor]


@dataclass(frozen=True)
class BiasVariance:
    """Components of the expected squared error, and the error itself as measured."""

    bias_squared: float
    variance: float
    noise: float
    expected_error: float

    @property
    def total(self) -> float:
        """bias^2 + variance + noise, which should equal the expected error."""
        return self.bias_squared + self.variance + self.noise


def bias_variance(
    fit: Fit, draw: Callable[[int], NoisySample], inputs: Tensor, truth: Tensor, resamples: int = 200
) -> BiasVariance:
    """Fit to the sets 0, 1, ..., `resamples` - 1 and evaluate at `inputs`, where `truth` is the noise-free target."""
    if resamples < 2:
        raise ValueError(f"resamples must be at least 2 to estimate a variance, got {resamples}")
    samples = [draw(index) for index in range(resamples)]
    predictions = torch.stack([fit(sample.inputs, sample.targets)(inputs) for sample in samples])  # [resamples, inputs]
    fresh = torch.stack([sample.fresh_targets for sample in samples])
    if predictions.shape != fresh.shape or predictions.shape[1:] != truth.shape:
        raise ValueError(
            f"predictions, fresh targets and truth must have the same shape, got {tuple(predictions.shape[1:])}, "
            f"{tuple(fresh.shape[1:])} and {tuple(truth.shape)}"
        )
    return BiasVariance(
        bias_squared=float((predictions.mean(0) - truth).square().mean()),
        variance=float(predictions.var(0, correction=0).mean()),
        noise=float((fresh - truth).square().mean()),
        expected_error=float((fresh - predictions).square().mean()),
    )
