"""What an answer must be: literals from independent arithmetic, and how near to them is near enough."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Answer = dict[str, Any]
"""Named plain values: numbers, texts, lists and dicts of them."""


@dataclass(frozen=True)
class Near:
    """A number, or a list of them of any depth, each at most `within` away."""

    value: Any
    within: float

    def holds(self, found: Any) -> bool:
        """Whether every number is near, and there are as many; NaN is near to nothing."""
        return _near(found, self.value, self.within)


@dataclass(frozen=True)
class AtMost:
    """A number not above a bound, or several of them."""

    bound: float

    def holds(self, found: Any) -> bool:
        """Whether all are at most the bound, and there is one."""
        return _every(found, lambda number: number <= self.bound)


@dataclass(frozen=True)
class AtLeast:
    """A number not below a bound, or several of them."""

    bound: float

    def holds(self, found: Any) -> bool:
        """Whether all are at least the bound, and there is one."""
        return _every(found, lambda number: number >= self.bound)


@dataclass(frozen=True)
class Between:
    """A number not below one bound and not above another, or several of them."""

    low: float
    high: float

    def holds(self, found: Any) -> bool:
        """Whether all are from `low` to `high`, and there is one."""
        return _every(found, lambda number: self.low <= number <= self.high)


Expected = Mapping[str, Any]
"""Name in the answer -> Near, AtMost, AtLeast, Between, or a literal that must be equal."""


def meets(answer: Answer, expected: Expected) -> bool:
    """Whether the answer has all that is expected; it may have more."""
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
