"""Answers of a pronouncer."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum

from qkv.errors import unknown_name_error
from qkv.pronunciation.arpabet import Phones, strip_stress
from qkv.pronunciation.ipa import ipa_symbols, to_ipa

ALPHABETS = ("arpabet", "ipa")


class Source(StrEnum):
    """Origin of an answer, the most reliable first."""

    user = "user"
    """The user's dictionary file."""
    dictionary = "dictionary"
    """CMUdict."""
    letters = "letters"
    """Names of letters, as in FBI."""
    model = "model"
    """The trained model."""
    punctuation = "punctuation"
    """Punctuation is not pronounced."""
    none = "none"
    """There is no answer; `reason` is the cause."""


@dataclass(frozen=True)
class Pronunciation:
    """One pronunciation of a word."""

    phones: Phones
    """ARPAbet, with stress digits where they are known."""
    probability: float
    """Probability by the model; a dictionary has no counts, so its variants are equally probable."""
    stressed: Phones | None = field(default=None, compare=False, repr=False)
    """Phones before stress was removed, from which IPA takes the reduced vowels ə and ɚ."""

    def to_text(self, alphabet: str = "arpabet") -> str:
        """Return phones separated by spaces, or IPA."""
        if alphabet not in ALPHABETS:
            raise unknown_name_error("alphabet", alphabet, ALPHABETS)
        if alphabet == "arpabet":
            return " ".join(self.phones)
        return to_ipa(self.stressed or self.phones, stress=self.stressed is None)

    def symbols(self, alphabet: str = "arpabet") -> tuple[str, ...]:
        """Return one string per phone; in IPA a stress mark is part of its vowel's symbol."""
        if alphabet == "arpabet":
            return self.phones
        return ipa_symbols(self.stressed or self.phones, stress=self.stressed is None)


@dataclass(frozen=True)
class WordAnswer:
    """Pronunciations of one token of a text: a word, or the punctuation between words."""

    input: str
    """The token as it was given."""
    source: Source
    best: tuple[Pronunciation, ...] = ()
    """Pronunciations, the likeliest first; empty for punctuation and without an answer."""
    reason: str | None = None
    """Why there is no answer, as a sentence."""

    def __str__(self) -> str:
        return self.best[0].to_text() if self.best else self.input

    def without_stress(self) -> "WordAnswer":
        """Return the answer without stress; pronunciations that become equal are merged, their probabilities added.

        In IPA a vowel is reduced (ə, ɚ) if it is in the first of the merged ones.
        """
        bare = [Pronunciation(strip_stress(one.phones), one.probability, one.phones) for one in self.best]
        return replace(self, best=merge_and_rank(bare))

    def to_record(self, alphabet: str = "arpabet") -> dict[str, object]:
        """Return {input, source, best: [{output, probability}]}: plain data for JSON."""
        best = [{"output": one.to_text(alphabet), "probability": one.probability} for one in self.best]
        return {"input": self.input, "source": self.source.value, "best": best}


def merge_and_rank(pronunciations: Iterable[Pronunciation]) -> tuple[Pronunciation, ...]:
    """Merge equal pronunciations, adding their probabilities, and sort them, the likeliest first (stable)."""
    merged: dict[Phones, Pronunciation] = {}
    for one in pronunciations:
        before = merged.setdefault(one.phones, replace(one, probability=0.0))
        merged[one.phones] = replace(before, probability=before.probability + one.probability)
    return tuple(sorted(merged.values(), key=lambda one: -one.probability))
