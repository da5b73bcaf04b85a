"""Evaluate word vectors: rank correlation with human similarity scores (WS-353), and analogies solved."""

from collections.abc import Sequence
from dataclasses import dataclass

from qkv.data import Analogy, Vectors, WordPair
from qkv.errors import QkvError
from qkv.metrics import spearman

REPRESENTATIONS = ("center", "context", "mean", "concatenation")


@dataclass(frozen=True)
class SimilarityScore:
    """Rank correlation with human scores, over the pairs whose words both have vectors."""

    spearman: float
    pairs: int
    """Pairs scored."""
    of: int
    """Pairs in the test set."""


@dataclass(frozen=True)
class AnalogyScore:
    """Analogies whose four words all have vectors, and how many were solved."""

    right: int
    asked: int
    of: int
    """Analogies in the test set."""

    @property
    def accuracy(self) -> float:
        """right / asked; 0 if asked is 0."""
        return self.right / self.asked if self.asked else 0.0


def score_similarity(vectors: Vectors, pairs: Sequence[WordPair]) -> SimilarityScore:
    """Return Spearman's rank correlation of cosines with human scores."""
    known = [pair for pair in pairs if pair.left in vectors and pair.right in vectors]
    if len(known) < 2:
        raise QkvError(f"{len(known)} of {len(pairs)} word pairs have vectors for both words; at least 2 are needed")
    cosines = [vectors.cosine(pair.left, pair.right) for pair in known]
    return SimilarityScore(spearman(cosines, [pair.score for pair in known]), len(known), len(pairs))


def score_analogies(vectors: Vectors, analogies: Sequence[Analogy]) -> AnalogyScore:
    """Return how many analogies 3CosAdd completes with the right word."""
    known = [analogy.words for analogy in analogies if all(word in vectors for word in analogy.words)]
    answers = vectors.solve_analogies([(first, second, third) for first, second, third, _ in known])
    right = sum(answer == words[3] for answer, words in zip(answers, known, strict=True))
    return AnalogyScore(right, len(known), len(analogies))
