"""From which length on one of two is the faster: where their times cross, predicted and measured."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qkv.cost.meta_run import Play
from qkv.profile.timing.forecast import Forecast, forecast
from qkv.profile.timing.rates import Rates

LENGTHS = (16, 32, 64, 128, 256, 512, 1024, 2048)


@dataclass(frozen=True)
class Overtaking:
    """The length from which on the second of two is the faster; None if it is not so by the longest tried."""

    predicted: float | None
    measured: float | None

    @property
    def ratio(self) -> float:
        """predicted / measured"""
        if self.predicted is None or self.measured is None:
            return math.nan
        return self.predicted / self.measured


def along(play: Play, lengths: Sequence[int], known: Rates | None = None) -> dict[int, Forecast]:
    """Length -> forecast and time there; the inputs call it n."""
    return {n: forecast(play, {"n": n}, known) for n in lengths}


def overtaking(first: Mapping[int, Forecast], second: Mapping[int, Forecast]) -> Overtaking:
    """From their times at the same lengths."""
    predicted = {n: one.predicted / second[n].predicted for n, one in first.items()}
    clocked = {n: (one.measured, second[n].measured) for n, one in first.items()}
    measured = {n: one / other for n, (one, other) in clocked.items() if one and other}
    return Overtaking(crossing_length(predicted), crossing_length(measured))


def crossing_length(leads: Mapping[int, float]) -> float | None:
    """Where a ratio of times that is given at some lengths passes one for good, in between by powers of length.

    The shortest length if it is above one from the start, None if it is not at the end.
    """
    lengths = sorted(leads)
    if not lengths or leads[lengths[-1]] <= 1:
        return None
    behind = [n for n in lengths if leads[n] <= 1]
    if not behind:
        return float(lengths[0])
    low = behind[-1]
    high = lengths[lengths.index(low) + 1]
    share = -math.log(leads[low]) / (math.log(leads[high]) - math.log(leads[low]))
    return float(low * (high / low) ** share)
