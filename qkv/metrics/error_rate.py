"""Error rates of sequences with one or several references, such as the pronunciations of a word."""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TypeVar

Reference = TypeVar("Reference", bound=Sequence[Hashable])


@dataclass(frozen=True)
class ErrorRates:
    """Error counts over a set of hypotheses, and the two rates."""

    sequences: int
    """Number of hypotheses."""
    wrong_sequences: int
    """Hypotheses that differ from all their references."""
    edits: int
    """Insertions, deletions and substitutions to the closest references."""
    reference_tokens: int
    """Tokens of those references."""

    @property
    def sequence_error_rate(self) -> float:
        """wrong_sequences / sequences; in pronunciation the word error rate."""
        return self.wrong_sequences / self.sequences

    @property
    def token_error_rate(self) -> float:
        """edits / reference_tokens; in pronunciation the phoneme error rate.

        It can exceed 1. With empty references only, it is 0 if there are no edits and infinite otherwise.
        """
        if self.reference_tokens == 0:
            return math.inf if self.edits else 0.0
        return self.edits / self.reference_tokens


def error_rates(
    hypotheses: Sequence[Sequence[Hashable]], references: Sequence[Sequence[Sequence[Hashable]]]
) -> ErrorRates:
    """Compare each hypothesis with its closest reference (one list of references per hypothesis)."""
    if len(hypotheses) != len(references) or not hypotheses:
        raise ValueError(
            f"hypotheses and references must have the same length, at least 1, "
            f"got {len(hypotheses)} hypotheses and {len(references)} lists of references"
        )
    wrong = edits = tokens = 0
    for hypothesis, allowed in zip(hypotheses, references, strict=True):
        reference = closest_reference(hypothesis, allowed)
        distance = edit_distance(hypothesis, reference)
        wrong += distance > 0
        edits += distance
        tokens += len(reference)
    return ErrorRates(len(hypotheses), wrong, edits, tokens)


def closest_reference(hypothesis: Sequence[Hashable], references: Sequence[Reference]) -> Reference:
    """Return the reference with the smallest edit distance to the hypothesis; ties go to the first."""
    if isinstance(references, str):
        raise TypeError(
            f"references must be a list of references, got the string {references!r}, whose letters would each be a "
            f"reference; pass [{references!r}]"
        )
    if not references:
        raise ValueError("references must hold at least one reference, got none")
    return min(references, key=lambda reference: edit_distance(hypothesis, reference))


def edit_distance(a: Sequence[Hashable], b: Sequence[Hashable]) -> int:
    """Return the Levenshtein distance: the fewest insertions, deletions and substitutions that turn `a` into `b`.

        d[i][j] = min(d[i-1][j] + 1, d[i][j-1] + 1, d[i-1][j-1] + (a[i] != b[j]))

    Bit-parallel: a whole column of the table at once. Neighbors differ by -1, 0 or 1, so two bits per entry suffice,
    and Python's integers are as long as `a`. Hyyro's form of Myers' algorithm: https://doi.org/10.1145/316542.316550.
    """
    if a == b:
        return 0
    if not a:
        return len(b)
    occurrences: dict[Hashable, int] = {}  # token -> bit set of its positions in a
    for i, token in enumerate(a):
        occurrences[token] = occurrences.get(token, 0) | 1 << i
    whole, last = (1 << len(a)) - 1, 1 << (len(a) - 1)
    # bit i: whether d rises or falls from i - 1 to i, in the column of the current token of b
    rises, falls, distance = whole, 0, len(a)
    for token in b:
        equal = occurrences.get(token, 0)
        level = ((equal & rises) + rises ^ rises) | equal | falls  # d[i][j] = d[i-1][j-1]
        grows = falls | ~(level | rises)  # d[i][j] = d[i][j-1] + 1
        shrinks = rises & level
        distance += bool(grows & last) - bool(shrinks & last)
        grows, shrinks = grows << 1 | 1, shrinks << 1
        rises = (shrinks | ~(level | grows)) & whole
        falls = grows & level & whole
    return distance
