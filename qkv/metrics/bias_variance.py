"""Bias and variance of a way to fit, by fitting it again and again to resampled sets.

    expected error = (mean prediction - truth)^2 + variance of the prediction + noise        (means over the inputs)

A model that is too simple is wrong in the same way every time: bias. One that is too rich follows each set's noise:
variance. The expected error is measured by itself, on targets that no fit has seen.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.data.corpora.noisy_sine import Draw as Draw

Predictor = Callable[[Tensor], Tensor]
Fit = Callable[[Tensor, Tensor], Predictor]


@dataclass(frozen=True)
class BiasVariance:
    """What the expected squared error is made of, and the error itself as it was measured."""

    bias_squared: float
    variance: float
    noise: float
    expected_error: float

    @property
    def total(self) -> float:
        """bias^2 + variance + noise, which the expected error should be."""
        return self.bias_squared + self.variance + self.noise


def bias_variance(
    fit: Fit, draw: Callable[[int], Draw], inputs: Tensor, truth: Tensor, resamples: int = 200
) -> BiasVariance:
    """Fit to set number 0, 1, ..., `resamples` - 1 and judge at `inputs`, where `truth` is right but for the noise."""
    if resamples < 2:
        raise ValueError(f"resamples must be at least 2, or there is no variance; got {resamples}")
    draws = [draw(number) for number in range(resamples)]
    predictions = torch.stack([fit(one.inputs, one.targets)(inputs) for one in draws])  # resamples, inputs
    fresh = torch.stack([one.fresh for one in draws])
    if predictions.shape != fresh.shape or predictions.shape[1:] != truth.shape:
        raise ValueError(
            f"predictions, fresh targets and truth must be alike, got shapes {tuple(predictions.shape[1:])}, "
            f"{tuple(fresh.shape[1:])} and {tuple(truth.shape)}"
        )
    return BiasVariance(
        bias_squared=float((predictions.mean(0) - truth).square().mean()),
        variance=float(predictions.var(0, correction=0).mean()),
        noise=float((fresh - truth).square().mean()),
        expected_error=float((fresh - predictions).square().mean()),
    )
