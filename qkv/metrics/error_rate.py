"""Error rates of sequences that may have several right answers, such as the pronunciations of a word."""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TypeVar

Reference = TypeVar("Reference", bound=Sequence[Hashable])


@dataclass(frozen=True)
class ErrorRates:
    """Counts over a set of hypotheses, and the two rates that follow from them."""

    sequences: int
    """Hypotheses."""
    wrong_sequences: int
    """Hypotheses that equal none of their references."""
    edits: int
    """Insertions, deletions and replacements to the closest references."""
    reference_tokens: int
    """Tokens of those references."""

    @property
    def sequence_error_rate(self) -> float:
        """wrong_sequences / sequences; the word error rate of pronunciation."""
        return self.wrong_sequences / self.sequences

    @property
    def token_error_rate(self) -> float:
        """edits / reference_tokens; the phoneme error rate of pronunciation.

        It can be above 1; where all references are empty it is 0 without edits, infinite with some.
        """
        if self.reference_tokens == 0:
            return math.inf if self.edits else 0.0
        return self.edits / self.reference_tokens


def error_rates(
    hypotheses: Sequence[Sequence[Hashable]], references: Sequence[Sequence[Sequence[Hashable]]]
) -> ErrorRates:
    """Each hypothesis against the closest of its references (one list of references per hypothesis)."""
    if len(hypotheses) != len(references) or not hypotheses:
        raise ValueError(
            f"hypotheses and references must be as many, and at least one, "
            f"got {len(hypotheses)} hypotheses and {len(references)} lists of references"
        )
    wrong = edits = tokens = 0
    for hypothesis, allowed in zip(hypotheses, references, strict=True):
        reference = closest(hypothesis, allowed)
        distance = edit_distance(hypothesis, reference)
        wrong += distance > 0
        edits += distance
        tokens += len(reference)
    return ErrorRates(len(hypotheses), wrong, edits, tokens)


def closest(hypothesis: Sequence[Hashable], references: Sequence[Reference]) -> Reference:
    """The reference with the fewest edits from the hypothesis; of equals, the first."""
    if isinstance(references, str):
        raise TypeError(
            f"references must be the references of a hypothesis, got the text {references!r}, whose letters would each "
            f"be one; write [{references!r}]"
        )
    if not references:
        raise ValueError("references is empty; a hypothesis needs at least one to be compared with")
    return min(references, key=lambda reference: edit_distance(hypothesis, reference))


def edit_distance(a: Sequence[Hashable], b: Sequence[Hashable]) -> int:
    """The fewest insertions, deletions and replacements that turn `a` into `b` (Levenshtein).

        d[i][j] = min(d[i-1][j] + 1, d[i][j-1] + 1, d[i-1][j-1] + (a[i] != b[j]))

    A whole row of the table at once: neighbors differ by -1, 0 or 1, so two bits an entry say it
    all, and Python's integers are as long as `a` is. Hyyro's form of Myers' algorithm:
    https://doi.org/10.1145/316542.316550.
    """
    if a == b:
        return 0
    if not a:
        return len(b)
    places: dict[Hashable, int] = {}
    for i, token in enumerate(a):
        places[token] = places.get(token, 0) | 1 << i
    whole, last = (1 << len(a)) - 1, 1 << (len(a) - 1)
    # bit i: where d rises or falls from i - 1 to i, in the column of the tokens of b so far
    rises, falls, distance = whole, 0, len(a)
    for token in b:
        equal = places.get(token, 0)
        level = ((equal & rises) + rises ^ rises) | equal | falls  # d[i][j] = d[i-1][j-1]
        grows = falls | ~(level | rises)  # d[i][j] = d[i][j-1] + 1
        shrinks = rises & level
        distance += bool(grows & last) - bool(shrinks & last)
        grows, shrinks = grows << 1 | 1, shrinks << 1
        rises = (shrinks | ~(level | grows)) & whole
        falls = grows & level & whole
    return distance
