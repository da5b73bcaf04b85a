"""How a text becomes tokens and tokens become a text: characters, words, or subwords of a trained tokenizer.

`bpe:8000` names subwords of a byte-level BPE with 8,000 tokens. Every text can be written with them, so nothing is
unknown, and `join(split(text)) == text`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from qkv.data.byte_level import byte_level_text
from qkv.data.tokenizer import SPECIAL_TOKENS, Tokenizer
from qkv.data.vocabulary import Vocabulary
from qkv.errors import unknown_name_error

Tokens = tuple[str, ...]
SMALLEST = 260
"""Tokens of a byte-level BPE without merges: the special ones and a token per byte."""
LARGEST = 2**20
_PREFIX = "bpe:"
_EXAMPLE_TOKENS = 6


class Unit(ABC):
    """A way to split texts into tokens."""

    @abstractmethod
    def split(self, text: str) -> Tokens:
        """Return the tokens of a text."""

    @abstractmethod
    def join(self, tokens: Iterable[str]) -> str:
        """Return the text of these tokens."""

    def split_all(self, texts: Sequence[str]) -> list[Tokens]:
        """Return the tokens of each text."""
        return [self.split(text) for text in texts]

    def labels(self, tokens: Iterable[str]) -> list[str]:
        """Return each token as people read it."""
        return list(tokens)

    def example(self, vocabulary: Vocabulary) -> str:
        """Return a text of known tokens."""
        return self.join(vocabulary.tokens[:_EXAMPLE_TOKENS])


class Characters(Unit):
    """Every character is a token; spaces around the text are dropped."""

    def split(self, text: str) -> Tokens:
        """Return the characters."""
        return tuple(text.strip())

    def join(self, tokens: Iterable[str]) -> str:
        """Return the characters as a text."""
        return "".join(tokens)


class SpacedWords(Unit):
    """Tokens are separated by spaces."""

    def split(self, text: str) -> Tokens:
        """Return the words."""
        return tuple(text.split())

    def join(self, tokens: Iterable[str]) -> str:
        """Return the words with a space between two."""
        return " ".join(tokens)


class Subwords(Unit):
    """Tokens of a byte-level tokenizer: frequent words are one token, rare ones several."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._names = [tokenizer.id_to_token(number) for number in range(len(tokenizer))]
        self._ids = {name: number for number, name in enumerate(self._names)}

    def split(self, text: str) -> Tokens:
        """Return the subwords, spaces included."""
        return tuple(self._names[number] for number in self._tokenizer.encode(text))

    def split_all(self, texts: Sequence[str]) -> list[Tokens]:
        """Return the subwords of each text, computed on all cores."""
        return [tuple(self._names[n] for n in ids) for ids in self._tokenizer.encode_batch(list(texts))]

    def join(self, tokens: Iterable[str]) -> str:
        """Return the text, byte for byte; bytes that are no UTF-8 become a replacement character."""
        return self._tokenizer.decode([self._ids[token] for token in tokens])

    def labels(self, tokens: Iterable[str]) -> list[str]:
        """Return the text of each subword."""
        return [byte_level_text(token) for token in tokens]

    def example(self, vocabulary: Vocabulary) -> str:
        """Return the last merge, often a word."""
        return self.join(vocabulary.tokens[-1:]).strip() or "a"


@dataclass(frozen=True)
class SubwordVocabulary(Vocabulary):
    """The vocabulary of a byte-level tokenizer, with the same ids."""

    tokenizer: Tokenizer

    @classmethod
    def train(cls, texts: Iterable[str], size: int) -> "SubwordVocabulary":
        """Train byte-level BPE on these texts; the same texts in the same order give the same tokens."""
        return cls.of(Tokenizer.train(texts, "bytes", size))

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "SubwordVocabulary":
        """Return the vocabulary of a tokenizer whose ids 0 to 3 are the special ones of `Vocabulary`."""
        names = tuple(tokenizer.id_to_token(number) for number in range(len(tokenizer)))
        if names[:4] != SPECIAL_TOKENS or len(names) < SMALLEST:
            raise ValueError(
                f"a tokenizer of subwords must have the ids 0 to 3 for {', '.join(SPECIAL_TOKENS)} and all bytes, got "
                f"{len(names)} tokens that begin with {', '.join(names[:4])}"
            )
        return cls(names[4:], tokenizer)

    @cached_property
    def unit(self) -> Subwords:
        """How texts are split: into subwords, by the tokenizer."""
        return Subwords(self.tokenizer)

    def to_record(self) -> dict[str, Any]:
        """Return the tokenizer as plain data."""
        return self.tokenizer.to_record()

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "SubwordVocabulary":
        """Build the vocabulary that `to_record` returned."""
        return cls.of(Tokenizer.from_record(record))


PLAIN: dict[str, Unit] = {"characters": Characters(), "words": SpacedWords()}
"""Units that need no training."""


def subword_size(name: str) -> int | None:
    """Return the size of a unit such as bpe:8000; None for a plain unit; any other name raises."""
    if name in PLAIN:
        return None
    if not name.startswith("bpe"):
        raise unknown_name_error("unit", name, (*PLAIN, "bpe:8000"))
    digits = name.removeprefix(_PREFIX)
    if not (digits.isascii() and digits.isdigit() and len(digits) < 9 and SMALLEST <= int(digits) <= LARGEST):
        raise ValueError(
            f"the unit {name!r} must be bpe:SIZE with a size from {SMALLEST} to {LARGEST:,}, as in bpe:8000"
        )
    return int(digits)


def unit_of(name: str, vocabulary: Vocabulary) -> Unit:
    """Return the unit of this name; subwords come from the vocabulary, which must have a tokenizer for them."""
    size = subword_size(name)
    if size is None:
        return PLAIN[name]
    if not isinstance(vocabulary, SubwordVocabulary):
        raise ValueError(f"the unit {name} needs a vocabulary with a tokenizer, got {len(vocabulary)} plain tokens")
    return vocabulary.unit


def vocabulary_from_record(record: Mapping[str, Any]) -> Vocabulary:
    """Build the vocabulary of a run: of a tokenizer, or a list of tokens."""
    return (SubwordVocabulary if "tokenizer" in record else Vocabulary).from_record(record)
