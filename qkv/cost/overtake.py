"""From which length on one of two is the faster: where their times cross, predicted and measured."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from qkv.cost.forecast import forecast
from qkv.cost.rates import Rates
from qkv.cost.rehearse import Play

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


def overtaking(
    first: Play, second: Play, known: Rates | None = None, lengths: Sequence[int] = LENGTHS, symbol: str = "n"
) -> Overtaking:
    """Both are forecast and timed at every length."""
    times = {n: (forecast(first, {symbol: n}, known), forecast(second, {symbol: n}, known)) for n in lengths}

    def lead(time: Callable[..., float | None]) -> float | None:
        pairs = {n: (time(one), time(other)) for n, (one, other) in times.items()}
        return crossing_length({n: one / other for n, (one, other) in pairs.items() if one and other})

    return Overtaking(lead(lambda found: found.predicted), lead(lambda found: found.measured))


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
