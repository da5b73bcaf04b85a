"""A part-of-speech tagger: an averaged perceptron over words, suffixes and the two tags before, from left to right.

Tags are those of the Penn Treebank. The weights (LICENSE_TAGGER.txt) are read when the first heteronym needs them.
"""

import lzma
from collections.abc import Sequence
from functools import cache
from pathlib import Path

WEIGHTS = Path(__file__).with_name("tagger.txt.xz")
START = ("-START-", "-START2-")
END = ("-END-", "-END2-")

Row = tuple[tuple[str, int], ...]


class Tagger:
    """Tags of words in context."""

    def __init__(self, frequent: dict[str, str], rows: dict[str, str]):
        self._frequent = frequent
        self._rows = rows
        self._parsed: dict[str, Row] = {}

    @classmethod
    def read(cls, path: Path = WEIGHTS) -> "Tagger":
        """Read the weights."""
        frequent, _, rows = lzma.decompress(path.read_bytes()).decode("utf-8").partition("\n\n")
        return cls(_parse(frequent), _parse(rows))

    def tag(self, words: Sequence[str], *, is_start: bool = True) -> list[str]:
        """Return the tag of each word; `is_start` says whether the first one begins a sentence."""
        plain = [_normalize(word) for word in words]
        context = [*(START if is_start else (",", "and")), *plain, *END]
        before, second = START if is_start else ("CC", ",")
        tags = []
        for index, word in enumerate(words):
            tag = self._frequent.get(word) or self._best(word, context, index + 2, (before, second))
            second, before = before, tag
            tags.append(tag)
        return tags

    def has_word(self, word: str) -> bool:
        """Return whether a word in lower case occurred in the training of the tagger."""
        return f"i word {word}" in self._rows or word in self._frequent

    def scores(self, words: Sequence[str], tags: Sequence[str], index: int) -> dict[str, int]:
        """Return the score of every tag of one word, after the tags before it."""
        context = [*START, *map(_normalize, words), *END]
        before = [*START[::-1], *tags][index : index + 2]
        return self._score(words[index], context, index + 2, (before[1], before[0]))

    def _best(self, word: str, context: Sequence[str], place: int, before: tuple[str, str]) -> str:
        scores = self._score(word, context, place, before)
        return max(scores, key=lambda tag: (scores[tag], tag))

    def _score(self, word: str, context: Sequence[str], place: int, before: tuple[str, str]) -> dict[str, int]:
        first, second = before
        middle, left, right = context[place], context[place - 1], context[place + 1]
        features = (
            "bias",
            f"i suffix {word[-3:]}",
            f"i pref1 {word[0]}",
            f"i-1 tag {first}",
            f"i-2 tag {second}",
            f"i tag+i-2 tag {first} {second}",
            f"i word {middle}",
            f"i-1 tag+i word {first} {middle}",
            f"i-1 word {left}",
            f"i-1 suffix {left[-3:]}",
            f"i-2 word {context[place - 2]}",
            f"i+1 word {right}",
            f"i+1 suffix {right[-3:]}",
            f"i+2 word {context[place + 2]}",
        )
        scores: dict[str, int] = {"NN": 0}
        for feature in features:
            for tag, weight in self._row(feature):
                scores[tag] = scores.get(tag, 0) + weight
        return scores

    def _row(self, feature: str) -> Row:
        text = self._rows.get(feature)
        if text is None:
            return ()
        row = self._parsed.get(feature)
        if row is None:
            pairs = (item.rpartition(":") for item in text.split(" "))
            row = self._parsed[feature] = tuple((tag, int(weight)) for tag, _, weight in pairs)
        return row


@cache
def tagger() -> Tagger:
    """Return the tagger of the package."""
    return Tagger.read()


def _parse(text: str) -> dict[str, str]:
    return dict(line.rsplit("\t", 1) for line in text.split("\n"))


def _normalize(word: str) -> str:
    """Return the form that the weights were trained on."""
    if "-" in word and word[0] != "-":
        return "!HYPHEN"
    if word[0].isdecimal():
        return "!YEAR" if len(word) == 4 and word.isdecimal() else "!DIGITS"
    return word.lower()
