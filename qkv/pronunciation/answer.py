"""What a pronouncer answers."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum

from qkv.pronunciation.arpabet import Phones, strip_stress
from qkv.pronunciation.ipa import ipa_symbols, to_ipa
from qkv.registry import unknown_name_error

ALPHABETS = ("arpabet", "ipa")


class Source(StrEnum):
    """Where an answer comes from, the surest first."""

    user = "user"
    """The dictionary file that was given."""
    dictionary = "dictionary"
    """CMUdict."""
    model = "model"
    """The trained model."""
    punctuation = "punctuation"
    """Nobody says it."""
    none = "none"
    """There is no answer; `why` says what is in the way."""


@dataclass(frozen=True)
class Pronunciation:
    """One way to say a word."""

    phones: Phones
    """ARPAbet, with stress digits where they are known."""
    probability: float
    """The model's; a dictionary has no counts, so its ways to say a word have equal shares."""
    stressed: Phones | None = field(default=None, compare=False, repr=False)
    """Where stress was taken away, the phones as they were: IPA still writes their reduced vowels ə and ɚ."""

    def write(self, alphabet: str = "arpabet") -> str:
        """As text: phones with spaces between, or IPA."""
        if alphabet not in ALPHABETS:
            raise unknown_name_error("alphabet", alphabet, ALPHABETS)
        if alphabet == "arpabet":
            return " ".join(self.phones)
        return to_ipa(self.stressed or self.phones, stress=self.stressed is None)

    def symbols(self, alphabet: str = "arpabet") -> tuple[str, ...]:
        """One text a phone; in IPA a stress mark is part of its vowel's symbol."""
        if alphabet == "arpabet":
            return self.phones
        return ipa_symbols(self.stressed or self.phones, stress=self.stressed is None)


@dataclass(frozen=True)
class Answer:
    """A word, or what stands between words, and how it is said."""

    input: str
    """As it was given."""
    source: Source
    best: tuple[Pronunciation, ...] = ()
    """The likeliest first; none for punctuation and where there is no answer."""
    why: str | None = None
    """What is in the way of an answer, as a sentence."""

    def __str__(self) -> str:
        return self.best[0].write() if self.best else self.input

    def without_stress(self) -> "Answer":
        """The same without stress; ways that differed in nothing else become one, with the sum of their probabilities.

        In IPA a vowel is reduced (ə, ɚ) where the first of them has it reduced.
        """
        bare = [Pronunciation(strip_stress(way.phones), way.probability, way.phones) for way in self.best]
        return replace(self, best=rank(bare))

    def to_record(self, alphabet: str = "arpabet") -> dict[str, object]:
        """{input, source, best: [{output, probability}]}: plain data for JSON."""
        best = [{"output": way.write(alphabet), "probability": way.probability} for way in self.best]
        return {"input": self.input, "source": self.source.value, "best": best}


def rank(ways: Iterable[Pronunciation]) -> tuple[Pronunciation, ...]:
    """Equal ones together, their probabilities added; the likeliest first, of equals the one that came first."""
    found: dict[Phones, Pronunciation] = {}
    for way in ways:
        before = found.setdefault(way.phones, replace(way, probability=0.0))
        found[way.phones] = replace(before, probability=before.probability + way.probability)
    return tuple(sorted(found.values(), key=lambda way: -way.probability))
