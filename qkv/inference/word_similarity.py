"""How good word vectors are: their agreement with people on WS-353, and the analogies they complete."""

from collections.abc import Sequence
from dataclasses import dataclass

from qkv.data import Analogy, Vectors, WordPair
from qkv.metrics import spearman
from qkv.storage import QkvError

REPRESENTATIONS = ("center", "context", "mean", "concatenation")


@dataclass(frozen=True)
class Agreement:
    """Rank correlation with people, over the pairs whose words both have vectors."""

    spearman: float
    pairs: int
    """Pairs that were judged."""
    of: int
    """Pairs that there are."""


@dataclass(frozen=True)
class Completed:
    """Analogies whose four words all have vectors, and how many got the right word."""

    right: int
    asked: int
    of: int
    """Analogies that there are."""

    @property
    def accuracy(self) -> float:
        """right / asked; 0 where nothing could be asked."""
        return self.right / self.asked if self.asked else 0.0


def agreement(vectors: Vectors, pairs: Sequence[WordPair]) -> Agreement:
    """How far cosines and people put pairs of words into the same order."""
    known = [pair for pair in pairs if pair.left in vectors and pair.right in vectors]
    if len(known) < 2:
        raise QkvError(f"of {len(pairs)} pairs of words {len(known)} have vectors for both; at least 2 are needed")
    cosines = [vectors.cosine(pair.left, pair.right) for pair in known]
    return Agreement(spearman(cosines, [pair.score for pair in known]), len(known), len(pairs))


def completed(vectors: Vectors, analogies: Sequence[Analogy]) -> Completed:
    """How many analogies 3CosAdd completes with just the right word."""
    known = [analogy.words for analogy in analogies if all(word in vectors for word in analogy.words)]
    answers = vectors.solve([(first, second, third) for first, second, third, _ in known])
    right = sum(answer == words[3] for answer, words in zip(answers, known, strict=True))
    return Completed(right, len(known), len(analogies))
