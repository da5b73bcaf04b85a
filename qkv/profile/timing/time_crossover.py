"""The length at which one of two modules becomes faster than the other: predicted and measured."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qkv.cost.meta_run import ModuleCall
from qkv.profile.timing.forecast import Forecast, forecast
from qkv.profile.timing.rates import Rates

LENGTHS = (16, 32, 64, 128, 256, 512, 1024, 2048)


@dataclass(frozen=True)
class TimeCrossover:
    """The length from which the second of two modules is faster; None if it is not at the longest tried."""

    predicted: float | None
    measured: float | None

    @property
    def ratio(self) -> float:
        """predicted / measured"""
        if self.predicted is None or self.measured is None:
            return math.nan
        return self.predicted / self.measured


def forecast_lengths(call: ModuleCall, lengths: Sequence[int], rates: Rates | None = None) -> dict[int, Forecast]:
    """Return length -> forecast; the inputs name the length n."""
    return {n: forecast(call, {"n": n}, rates) for n in lengths}


def find_time_crossover(first: Mapping[int, Forecast], second: Mapping[int, Forecast]) -> TimeCrossover:
    """Return where the second becomes faster, given the forecasts of both at the same lengths."""
    predicted = {n: one.predicted / second[n].predicted for n, one in first.items()}
    times = {n: (one.measured, second[n].measured) for n, one in first.items()}
    measured = {n: one / other for n, (one, other) in times.items() if one and other}
    return TimeCrossover(crossing_length(predicted), crossing_length(measured))


def crossing_length(ratios: Mapping[int, float]) -> float | None:
    """Return the length where a ratio of times finally exceeds one, interpolated on a log-log scale.

    The shortest length if the ratio is always above one; None if it is not at the longest.
    """
    lengths = sorted(ratios)
    if not lengths or ratios[lengths[-1]] <= 1:
        return None
    behind = [n for n in lengths if ratios[n] <= 1]
    if not behind:
        return float(lengths[0])
    low = behind[-1]
    high = lengths[lengths.index(low) + 1]
    fraction = -math.log(ratios[low]) / (math.log(ratios[high]) - math.log(ratios[low]))
    return float(low * (high / low) ** fraction)
