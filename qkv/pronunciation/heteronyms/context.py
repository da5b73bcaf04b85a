"""The context of a word as features.

p:the n:of    the words before and after         start end    the first or last word of its clause
pt:DT nt:IN   their parts of speech              open         an article or possessive stands up to three words before
pa:do pat:MD  the same for the word before an adverb: did not object
w:river       a word up to 12 words away         past present the tense of the other verbs
past-time     yesterday, ago or last week in the clause
perfect-question   have, has or had and a pronoun before: have you read
cap lower     capital or small first letter, unless it begins a sentence
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from qkv.pronunciation.heteronyms.tagger import tagger
from qkv.pronunciation.normalization.rule import SpokenToken

WORDS_BEFORE, WORDS_AFTER = 12, 12
_TAGGED_BEFORE, _TAGGED_AFTER = 8, 3
_ENDS = re.compile(r"[.!?]")
_CONTRACTION = re.compile(r"(?i)(.+)(n't|'(?:s|re|ve|ll|d|m))")
_QUOTES = {
    "“": "``",
    "”": "''",
    '"': "''",
    "(": "-LRB-",
    ")": "-RRB-",
    "—": ":",
    "–": ":",
    "-": ":",
    "...": ":",
    "…": ":",
}
_OPENING = frozenset(("DT", "PRP$", "POS", "WP$"))
_IN_NOUN_PHRASE = frozenset(("JJ", "NN", "RB", "CD", "VBN", "JJR", "JJS", "NNP", "VBG"))
_PERIODS = frozenset(("night", "week", "month", "year", "summer", "fall", "winter", "spring", "monday", "tuesday"))
_HAVE = frozenset(("have", "has", "had", "haven't", "hasn't", "hadn't", "'ve"))
_SUBJECTS = frozenset(("i", "you", "he", "she", "it", "we", "they", "anyone", "everyone"))
_PAST, _PRESENT = frozenset(("VBD", "VBN")), frozenset(("VBZ", "VBP"))


@dataclass(frozen=True)
class WordContext:
    """Features of a word, and the scores of its parts of speech."""

    features: frozenset[str]
    tag_scores: dict[str, int]


def clause_of(tokens: Sequence[SpokenToken], index: int) -> tuple[list[str], list[str]]:
    """Return the words before and after a token in its sentence, with punctuation, at most 12 on each side."""
    before, after = [], []
    for place in range(index - 1, max(index - 2 * WORDS_BEFORE, 0) - 1, -1):
        token = tokens[place]
        if token.kind == "punctuation" and _ENDS.match(token.text):
            break
        if token.kind != "space":
            before.append(token.text)
    for token in tokens[index + 1 : index + 2 * WORDS_AFTER]:
        if token.kind == "space":
            continue
        after.append(token.text)
        if token.kind == "punctuation" and _ENDS.match(token.text):
            break
    return before[::-1], after


def describe(tokens: Sequence[SpokenToken], index: int) -> WordContext:
    """Return the context of one token."""
    left, right = clause_of(tokens, index)
    word = tokens[index].text
    before, after = _split(left), _split(right)
    near = [*before[-_TAGGED_BEFORE:], word, *after[:_TAGGED_AFTER]]
    place = min(len(before), _TAGGED_BEFORE)
    tags = tagger().tag(near, is_start=len(before) <= _TAGGED_BEFORE)
    features = {f"w:{one.lower()}" for one in (*left, *right)}
    features |= _neighbors(near, tags, place) | _tense(tags, place) | _time([*left, *right], before)
    if left:
        features |= {f"p:{left[-1].lower()}", "cap" if word[0].isupper() else "lower"}
    if right:
        features.add(f"n:{right[0].lower()}")
    if not left or left[-1] in ('"', "“", ":", ","):
        features.add("start")
    if not right or not right[0][0].isalnum():
        features.add("end")
    return WordContext(frozenset(features), tagger().scores(near, tags[:place], place))


def _neighbors(words: Sequence[str], tags: Sequence[str], place: int) -> set[str]:
    features = set()
    if place:
        features |= {f"p:{words[place - 1].lower()}", f"pt:{tags[place - 1]}"}
    if place > 1 and tags[place - 1] == "RB":
        features |= {f"pa:{words[place - 2].lower()}", f"pat:{tags[place - 2]}"}
    if place + 1 < len(words):
        features |= {f"n:{words[place + 1].lower()}", f"nt:{tags[place + 1]}"}
    for distance in (2, 3, 4):
        if place < distance or tags[place - distance + 1] not in _IN_NOUN_PHRASE:
            break
        if tags[place - distance] in _OPENING:
            features.add("open")
    return features


def _tense(tags: Sequence[str], place: int) -> set[str]:
    others = {*tags[:place], *tags[place + 1 :]}
    return {name for name, kinds in (("past", _PAST), ("present", _PRESENT)) if others & kinds}


def _time(words: Sequence[str], before: Sequence[str]) -> set[str]:
    """Return the features of words that ask for a past form."""
    lower = [word.lower() for word in words]
    found = set()
    if not {"yesterday", "ago"}.isdisjoint(lower) or any(
        one == "last" and following in _PERIODS for one, following in pairwise(lower)
    ):
        found.add("past-time")
    if len(before) > 1 and before[-2].lower() in _HAVE and before[-1].lower() in _SUBJECTS:
        found.add("perfect-question")
    return found


def _split(words: Sequence[str]) -> list[str]:
    """Split contractions, and write punctuation, as the tagger was trained."""
    parts: list[str] = []
    for word in words:
        plain = word.replace("’", "'")
        match = _CONTRACTION.fullmatch(plain) if "'" in plain else None
        parts += [match[1], match[2]] if match else [_QUOTES.get(plain, plain)]
    return parts
