"""The speed of a machine: seconds per unit of every term of every operation category."""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from qkv.cost.counter import Operation
from qkv.profile.timing.op_terms import TERMS, op_category, term_amounts
from qkv.profile.timing.python_overhead import CallCounts


@dataclass(frozen=True)
class Rates:
    """Measured times of this machine, in seconds."""

    call: float
    """Seconds per function call of the Python program."""
    binding: float
    """Seconds from Python into an operation and back."""
    view: float
    """Seconds of an operation that returns a view."""
    start: float
    """Seconds of an operation that does almost nothing."""
    coefficients: Mapping[str, Mapping[str, float]]
    """Operation category -> term -> seconds per unit."""
    memory_bound: Mapping[str, list[tuple[float, float]]]
    """Operation category -> (bytes moved, seconds), in increasing order."""

    def without_binding(self, binding: float) -> "Rates":
        """Return these rates less the `binding` seconds, if every operation was timed from Python."""

        def less(seconds: float) -> float:
            return max(seconds - binding, 0.1 * seconds)

        coefficients = {
            category: {**terms, "start": less(terms["start"])} for category, terms in self.coefficients.items()
        }
        memory_bound = {
            category: [(size, less(seconds)) for size, seconds in points]
            for category, points in self.memory_bound.items()
        }
        return replace(
            self,
            binding=binding,
            view=less(self.view),
            start=less(self.start),
            coefficients=coefficients,
            memory_bound=memory_bound,
        )

    def predict(self, trace: Sequence[Operation], calls: CallCounts | None = None) -> dict[str, float]:
        """Return category -> predicted seconds, largest first; "python" is the program between the operations.

        Python pays for each of its calls and for the binding of each operation that it calls itself.
        """
        parts = {}
        if calls is not None:
            bound = min(len(trace), calls.compiled)  # the other operations are called by operations
            parts["python"] = (calls.python + calls.compiled) * self.call + bound * self.binding
        for operation in trace:
            category = op_category(operation)
            parts[category] = parts.get(category, 0.0) + self.seconds(operation)
        return dict(sorted(parts.items(), key=lambda part: -part[1]))

    def seconds(self, operation: Operation) -> float:
        """Return the predicted seconds of one operation."""
        category = op_category(operation)
        if category == "view":
            return self.view
        if category == "start":
            return self.start
        if category in TERMS:
            return sum(self.coefficients[category][term] * n for term, n in term_amounts(operation).items())
        if category == "gather":  # only the rows that are looked up move
            return self.memory_seconds(category, 2 * operation.elements * 4)
        return self.memory_seconds(category, operation.bytes)

    def memory_seconds(self, category: str, size: float) -> float:
        """Return the seconds of a memory-bound operation that reads and writes `size` bytes.

        Between two measured sizes, time is a power of the size; beyond the largest it is proportional.
        """
        points = self.memory_bound[category]
        if size >= points[-1][0]:
            return points[-1][1] * size / points[-1][0]
        index = max(bisect_left(points, (size, 0.0)), 1)
        (low, first), (high, second) = points[index - 1 : index + 1]
        fraction = math.log(max(size, low) / low) / math.log(high / low)
        return math.exp((1 - fraction) * math.log(first) + fraction * math.log(second))
