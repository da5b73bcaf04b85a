"""What a search finds."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Hypothesis:
    """One output, with what the model thinks of it."""

    tokens: tuple[int, ...]
    """Without START and END."""
    log_probability: float
    """Sum over all tokens, with that of END where it is finished."""
    score: float
    """log_probability / length^length_power, END counted in the length; what hypotheses are ranked by."""
    finished: bool
    """Whether it came to END; if not, it was cut at `max_length`."""


def normalize(log_probability: float, length: int, length_power: float) -> float:
    """log_probability / length^length_power: 0 ranks by probability, 1 by the mean over tokens."""
    return log_probability / length**length_power


def conclude(
    path: Sequence[int], log_probability: float, end: int, length_power: float = 0.0, before: int = 0
) -> Hypothesis:
    """The hypothesis of a path that has come to `end` or was cut, and that so many tokens were written before."""
    finished = path[-1] == end
    score = normalize(log_probability, before + len(path), length_power)
    return Hypothesis(tuple(path[: len(path) - finished]), log_probability, score, finished)
