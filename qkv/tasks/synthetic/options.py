"""Data options that generated tasks share, and the reader of their lists of numbers."""

from dataclasses import dataclass
from typing import Any


def read_numbers(name: str, given: Any, least: int) -> tuple[int, ...]:
    """Return whole numbers that the command line gives as 40 or 40,256 and a file as a list; raise for others."""
    numbers = tuple(given) if isinstance(given, (list, tuple)) else (given,)
    for number in numbers:
        if type(number) is not int or number < least:
            raise ValueError(
                f"{name} must be whole numbers of at least {least}, such as {least},{4 * least}, got {number!r:.100}"
            )
    if not numbers or len(set(numbers)) < len(numbers):
        raise ValueError(f"{name} must be at least one number, and none twice, got {given!r:.100}")
    return numbers


def require_range(options: Any, **least: int) -> None:
    """Raise for an option that is below its least value."""
    for name, lowest in least.items():
        if getattr(options, name) < lowest:
            raise ValueError(f"{name} must be at least {lowest}, got {getattr(options, name)}")


@dataclass(frozen=True)
class SyntheticOptions:
    """Options of every generated task."""

    examples: int = 256
    """Examples of the validation split, and of the test split at each of its sizes."""
    seed: int = 0
    """Seed of the examples, not of the training."""

    def __post_init__(self) -> None:
        require_range(self, examples=1)

    def train_sizes(self) -> tuple[int, int]:
        """Return the smallest and the largest size of training examples."""
        raise NotImplementedError

    def test_sizes(self) -> tuple[int, ...]:
        """Return the sizes to test at."""
        raise NotImplementedError


@dataclass(frozen=True)
class LengthOptions(SyntheticOptions):
    """Options of a task whose examples have a length."""

    shortest: int = 3
    """Shortest training example."""
    longest: int = 40
    """Longest training example."""
    test_lengths: tuple[int, ...] = (40, 64, 128, 256)
    """Lengths to test at."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_range(self, shortest=1, longest=self.shortest)
        object.__setattr__(self, "test_lengths", read_numbers("test_lengths", self.test_lengths, 1))

    def train_sizes(self) -> tuple[int, int]:
        """Return the shortest and the longest length."""
        return self.shortest, self.longest

    def test_sizes(self) -> tuple[int, ...]:
        """Return the lengths to test at."""
        return self.test_lengths
