"""The choice between the readings of a heteronym: the reading with the highest sum of weights.

A reading has a weight before any cue, the score that the tagger gives to its parts of speech, weights of features that
suit its class of word (cues.tsv), and weights of its own cues (readings.tsv). Without a cue the most frequent one wins.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from qkv.pronunciation.arpabet import Phones
from qkv.pronunciation.heteronyms.context import WordContext, describe
from qkv.pronunciation.normalization.rule import SpokenToken

_FOLDER = Path(__file__).parent
_CLASSES = {"N": "n", "J": "a", "R": "d", "I": "d"}
TAGGER_WEIGHT = 0.05
"""Weight of an eighth of the tagger's score."""
MAX_TAGGER_GAP = 4.0
NEIGHBOR_WEIGHT, DISTANT_WEIGHT, MAX_DISTANT = 2.0, 1.3, 3.9
CASE_WEIGHT = 4.0


@dataclass(frozen=True)
class Reading:
    """One reading of a heteronym."""

    name: str
    """What tells it from the others: noun, verb, or its sense."""
    phones: Phones
    tags: tuple[str, ...]
    weight: float
    cues: frozenset[str]

    @property
    def classes(self) -> set[str]:
        """Classes of words that cues.tsv knows: noun, verb, adjective, past, adverb."""
        return {"p" if tag in ("VBD", "VBN") else _CLASSES.get(tag[0], "v") for tag in self.tags}


@dataclass(frozen=True)
class Choice:
    """A reading with its probability and the cues that favored it."""

    reading: Reading
    probability: float
    cues: tuple[str, ...] = ()

    @property
    def reason(self) -> str:
        """Why, in words: the reading and its strongest cues."""
        return f"heteronym: {self.reading.name}" + (
            f" ({', '.join(self.cues[:3])})" if self.cues else " (most frequent)"
        )


@cache
def heteronyms() -> dict[str, tuple[Reading, ...]]:
    """Return the readings of every heteronym, in lower case; the most frequent one first."""
    table: dict[str, list[Reading]] = {}
    for line in (_FOLDER / "readings.tsv").read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            continue
        word, name, phones, tags, weight, cues = [*line.split("\t"), ""][:6]
        one = Reading(name, tuple(phones.split()), tuple(tags.split()), float(weight), frozenset(cues.split()))
        table.setdefault(word, []).append(one)
    return {word: tuple(sorted(ways, key=lambda one: -one.weight)) for word, ways in table.items()}


@cache
def _class_weights() -> dict[str, dict[str, float]]:
    weights: dict[str, dict[str, float]] = {name: {} for name in "nvapd"}
    for line in (_FOLDER / "cues.tsv").read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            name, weight, features = line.split("\t")
            weights[name] |= dict.fromkeys(features.split(), float(weight))
    return weights


def choose(tokens: Sequence[SpokenToken], index: int) -> list[Choice] | None:
    """Return the readings of a token, the likeliest first; None if it is no heteronym."""
    readings = heteronyms().get(tokens[index].text.lower())
    if readings is None:
        return None
    context = describe(tokens, index)
    best_tag = max(max(context.tag_scores.get(tag, 0) for tag in one.tags) for one in readings)
    scored = [(_score(one, context, best_tag), one) for one in readings]
    top = max(score for score, _ in scored)
    total = sum(math.exp(score - top) for score, _ in scored)
    choices = [Choice(one, math.exp(score - top) / total, _found(one, context)) for score, one in scored]
    return sorted(choices, key=lambda choice: -choice.probability)


def _score(reading: Reading, context: WordContext, best_tag: int) -> float:
    gap = TAGGER_WEIGHT * (best_tag - max(context.tag_scores.get(tag, 0) for tag in reading.tags))
    weights = _class_weights()
    by_class = max(
        sum(weights[name].get(feature, 0.0) for feature in context.features) for name in sorted(reading.classes)
    )
    found = reading.cues & context.features
    distant = sum(cue[:2] == "w:" for cue in found)
    near = len(found) - distant - ("cap" in found)
    return (
        reading.weight
        - min(gap, MAX_TAGGER_GAP)
        + by_class
        + NEIGHBOR_WEIGHT * near
        + min(DISTANT_WEIGHT * distant, MAX_DISTANT)
        + _case(reading, context)
    )


def _case(reading: Reading, context: WordContext) -> float:
    if "cap" not in reading.cues or not context.features & {"cap", "lower"}:
        return 0.0
    return CASE_WEIGHT if "cap" in context.features else -CASE_WEIGHT


def _found(reading: Reading, context: WordContext) -> tuple[str, ...]:
    """Return the cues of a reading that are there, its own before those of its class, each in words."""
    own = sorted(reading.cues & context.features, key=lambda cue: (cue[:2] == "w:", cue))
    weights = _class_weights()
    general = [
        cue
        for name in sorted(reading.classes)
        for cue in sorted(context.features, key=lambda one: (-weights[name].get(one, 0.0), one))
        if weights[name].get(cue, 0.0) > 1
    ]
    return tuple(dict.fromkeys(_in_words(cue) for cue in (*own, *general)))


_WORDS = {
    "p": "after {}",
    "n": "before {}",
    "w": "near {}",
    "pt": "after a {}",
    "nt": "before a {}",
    "pa": "after {}",
    "pat": "after a {}",
}


def _in_words(cue: str) -> str:
    kind, _, value = cue.partition(":")
    return _WORDS.get(kind, kind).format(value)
