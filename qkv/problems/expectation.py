"""Expected answers: literals from independent arithmetic, with tolerances."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Answer = dict[str, Any]
"""Named plain values: numbers, strings, and lists and dicts of them."""


@dataclass(frozen=True)
class Near:
    """A number, or a nested list of numbers, each at most `within` away."""

    value: Any
    within: float

    def holds(self, found: Any) -> bool:
        """Return whether the shape matches and every number is near; NaN never is."""
        return _near(found, self.value, self.within)


@dataclass(frozen=True)
class AtMost:
    """One or more numbers not above a bound."""

    bound: float

    def holds(self, found: Any) -> bool:
        """Return whether there is a number and all are at most the bound."""
        return _every(found, lambda number: number <= self.bound)


@dataclass(frozen=True)
class AtLeast:
    """One or more numbers not below a bound."""

    bound: float

    def holds(self, found: Any) -> bool:
        """Return whether there is a number and all are at least the bound."""
        return _every(found, lambda number: number >= self.bound)


@dataclass(frozen=True)
class Between:
    """One or more numbers between two bounds, inclusive."""

    low: float
    high: float

    def holds(self, found: Any) -> bool:
        """Return whether there is a number and all are from `low` to `high`."""
        return _every(found, lambda number: self.low <= number <= self.high)


Expected = Mapping[str, Any]
"""Name in the answer -> Near, AtMost, AtLeast, Between, or a literal that must be equal."""


def meets(answer: Answer, expected: Expected) -> bool:
    """Return whether the answer has all expected values; it may have more."""
    return all(name in answer and _holds(answer[name], wanted) for name, wanted in expected.items())


def _holds(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, Near | AtMost | AtLeast | Between):
        return wanted.holds(found)
    return bool(found == wanted)


def _near(found: Any, wanted: Any, within: float) -> bool:
    if isinstance(wanted, Sequence):
        same = isinstance(found, Sequence) and len(found) == len(wanted)
        return same and all(_near(f, w, within) for f, w in zip(found, wanted, strict=True))
    return not isinstance(found, Sequence) and bool(abs(found - wanted) <= within)


def _every(found: Any, test: Any) -> bool:
    numbers = list(found.values()) if isinstance(found, Mapping) else found
    numbers = numbers if isinstance(numbers, Sequence) else [numbers]
    return bool(numbers) and all(test(number) for number in numbers)
