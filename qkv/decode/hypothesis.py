"""Results of a search."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Hypothesis:
    """An output sequence with its log-probability and score."""

    tokens: tuple[int, ...]
    """Token ids without START and END."""
    log_probability: float
    """Sum over all tokens, including END if finished."""
    score: float
    """log_probability / length^length_penalty, END counted in the length; hypotheses are ranked by it."""
    finished: bool
    """Whether it reached END; otherwise it was truncated at `max_length`."""


def length_normalize(log_probability: float, length: int, length_penalty: float) -> float:
    """Return log_probability / length^length_penalty: 0 ranks by probability, 1 by the mean over tokens."""
    return log_probability / length**length_penalty


def make_hypothesis(
    path: Sequence[int], log_probability: float, end: int, length_penalty: float = 0.0, prefix_length: int = 0
) -> Hypothesis:
    """Return the hypothesis of a path that ended or was truncated, after `prefix_length` tokens written earlier."""
    finished = path[-1] == end
    score = length_normalize(log_probability, prefix_length + len(path), length_penalty)
    return Hypothesis(tuple(path[: len(path) - finished]), log_probability, score, finished)
