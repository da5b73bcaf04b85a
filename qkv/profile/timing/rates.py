"""How fast a machine is: the seconds of every term of every sort of operation."""

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, replace

from qkv.cost.counter import Operation
from qkv.profile.timing.op_terms import TERMS, amounts, sort_of


@dataclass(frozen=True)
class Rates:
    """What this machine takes."""

    call: float
    """Seconds that a model's own program takes for each function that it calls."""
    binding: float
    """Seconds from Python into an operation and back."""
    view: float
    """Seconds of an operation that only looks at its tensor in another way."""
    start: float
    """Seconds of one that does next to nothing."""
    terms: Mapping[str, Mapping[str, float]]
    """Sort of operation -> term -> seconds each."""
    moving: Mapping[str, list[tuple[float, float]]]
    """Sort of operation -> (bytes moved, seconds), rising."""

    def apart_from(self, binding: float) -> "Rates":
        """The same where every operation was timed from Python, and this is what the way there and back took."""

        def less(seconds: float) -> float:
            return max(seconds - binding, 0.1 * seconds)

        terms = {sort: {**each, "start": less(each["start"])} for sort, each in self.terms.items()}
        moving = {sort: [(size, less(seconds)) for size, seconds in points] for sort, points in self.moving.items()}
        return replace(self, binding=binding, view=less(self.view), start=less(self.start), terms=terms, moving=moving)

    def seconds(self, operation: Operation) -> float:
        """What the operation takes."""
        sort = sort_of(operation)
        if sort == "view":
            return self.view
        if sort == "start":
            return self.start
        if sort in TERMS:
            return sum(self.terms[sort][term] * amount for term, amount in amounts(operation).items())
        if sort == "gather":  # what is not looked up does not move
            return self.moved(sort, 2 * operation.elements * 4)
        return self.moved(sort, operation.bytes)

    def moved(self, sort: str, size: float) -> float:
        """Seconds for an operation of this sort that reads and writes so many bytes.

        Between two sizes that were timed, time goes with a power of size; beyond the largest, in proportion.
        """
        points = self.moving[sort]
        if size >= points[-1][0]:
            return points[-1][1] * size / points[-1][0]
        place = max(bisect_left(points, (size, 0.0)), 1)
        (low, first), (high, second) = points[place - 1 : place + 1]
        share = math.log(max(size, low) / low) / math.log(high / low)
        return math.exp((1 - share) * math.log(first) + share * math.log(second))
