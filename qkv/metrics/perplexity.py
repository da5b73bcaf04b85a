"""Perplexity: the effective number of equally likely next tokens of a language model.

    per token   exp(loss / tokens)        per word   exp(loss / words)        bits per byte   loss / (bytes ln 2)

The loss is the sum of -ln p over the whole text. Perplexities per token depend on the tokenizer and cannot be compared
across tokenizers; per word they can. Words are separated by white space, and the end of a line counts as one more word,
as in WikiText.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Perplexity:
    """Loss of a text and the counts it is divided by; + adds two texts."""

    loss: float = 0.0
    """Sum of -ln p, in nats."""
    tokens: int = 0
    """Predicted tokens; the end of each document is one."""
    words: int = 0
    bytes: int = 0

    def __add__(self, other: "Perplexity") -> "Perplexity":
        return Perplexity(
            self.loss + other.loss,
            self.tokens + other.tokens,
            self.words + other.words,
            self.bytes + other.bytes,
        )

    @property
    def per_token(self) -> float:
        """exp(loss / tokens)"""
        return _exponential(self.loss, self.tokens)

    @property
    def per_word(self) -> float:
        """exp(loss / words)"""
        return _exponential(self.loss, self.words)

    @property
    def bits_per_byte(self) -> float:
        """loss / (bytes ln 2)"""
        return self.loss / (self.bytes * math.log(2)) if self.bytes else math.nan


def count_words(text: str) -> int:
    """Count words separated by white space, plus one per line end."""
    return len(text.split()) + text.count("\n")


def _exponential(loss: float, count: int) -> float:
    """Return exp(loss / count): NaN for a count of 0, inf on overflow."""
    if not count:
        return math.nan
    try:
        return math.exp(loss / count)
    except OverflowError:
        return math.inf
