"""Perplexity: how many equally likely choices a language model is left with, on average.

    per token   exp(loss / tokens)        per word   exp(loss / words)        bits per byte   loss / (bytes ln 2)

The loss is the sum of -ln p over the whole text. Tokens are those of one tokenizer, so perplexities per token of two
tokenizers cannot be compared; per word they can. A word is what stands between white space, and the end of a line is
one word more, as WikiText counts.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Perplexity:
    """The loss of a text, and what it is a loss over; two texts are added with +."""

    loss: float = 0.0
    """Sum of -ln p, in nats."""
    tokens: int = 0
    """Predicted; the end of each document is one."""
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
    """Words between white space, and one for each line end."""
    return len(text.split()) + text.count("\n")


def _exponential(loss: float, count: int) -> float:
    """NaN where there is nothing, inf where no float is large enough."""
    if not count:
        return math.nan
    try:
        return math.exp(loss / count)
    except OverflowError:
        return math.inf
