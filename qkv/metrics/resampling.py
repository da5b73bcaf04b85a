"""Intervals of a corpus score by bootstrap, and the significance of a difference by approximate randomization.

A corpus score is a function of sums over examples: `counts` has a row per example, and `score` takes the sum of rows.

bootstrap       examples are drawn with replacement, as many as there are; the interval holds 95 % of the scores
randomization   each example's rows of two systems are swapped with probability 1/2; p is the share of swaps whose
                difference is at least the observed one, the observed one included: (1 + count) / (1 + trials)

Papers: https://aclanthology.org/W04-3250 and https://aclanthology.org/W05-0908.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64
from numpy import ndarray

from qkv.metrics.detection_intervals import COVERAGE

Counts = Float64[ndarray, "examples counts"]
Score = Callable[[Float64[ndarray, " counts"]], float]
ROUNDING = 1e-9
"""Differences that are closer than this are equal: sums of another order may differ in the last bits."""


@dataclass(frozen=True)
class PairedDifference:
    """The difference between two systems on the same examples."""

    difference: float
    """Score of the first minus score of the second."""
    low: float
    """Lower end of the 95 % interval of the difference."""
    high: float
    p: float
    """Probability of a difference this large between systems that are equally good."""


def bootstrap_interval(counts: Counts, score: Score, *, resamples: int = 1000, seed: int = 0) -> tuple[float, float]:
    """Return the 95 % interval of a score; the same seed draws the same examples for every score."""
    _require_examples(counts, resamples)
    return _interval([score(times @ counts) for times in _draws(len(counts), resamples, seed)])


def paired_difference(
    first: Counts, second: Counts, score: Score, *, resamples: int = 1000, seed: int = 0
) -> PairedDifference:
    """Compare two systems on the same examples: paired bootstrap for the interval, randomization for p."""
    if first.shape != second.shape:
        raise ValueError(f"first and second must have the same shape, got {first.shape} and {second.shape}")
    _require_examples(first, resamples)
    drawn = [score(times @ first) - score(times @ second) for times in _draws(len(first), resamples, seed)]
    observed = score(first.sum(0)) - score(second.sum(0))
    return PairedDifference(observed, *_interval(drawn), _randomization(first, second, score, resamples, seed))


def _randomization(first: Counts, second: Counts, score: Score, trials: int, seed: int) -> float:
    generator = np.random.default_rng(seed)
    total, change = (first.sum(0), second.sum(0)), second - first
    observed = abs(score(total[0]) - score(total[1]))
    extreme = 0
    for _ in range(trials):
        moved = generator.integers(2, size=len(first)).astype(float) @ change
        extreme += abs(score(total[0] + moved) - score(total[1] - moved)) >= observed - ROUNDING
    return (1 + extreme) / (1 + trials)


def _draws(examples: int, resamples: int, seed: int) -> Iterator[Float64[ndarray, " examples"]]:
    """Yield how often each example is drawn."""
    generator = np.random.default_rng(seed)
    for _ in range(resamples):
        drawn = generator.integers(examples, size=examples)
        yield np.bincount(drawn, minlength=examples).astype(float)


def _interval(scores: list[float]) -> tuple[float, float]:
    low, high = np.quantile(scores, [(1 - COVERAGE) / 2, (1 + COVERAGE) / 2])
    return float(low), float(high)


def _require_examples(counts: Counts, resamples: int) -> None:
    if resamples < 1 or not len(counts):
        raise ValueError(f"give examples and at least 1 resample, got {len(counts)} examples, resamples={resamples}")
