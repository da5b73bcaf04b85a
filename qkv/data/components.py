"""Split sentence pairs so that no sentence of either side is in two parts.

Sentences are the nodes of a graph, pairs its edges. Each connected component goes to one part as a whole: which one
depends on the hash of its first sentence in alphabetical order, not on the order of the pairs.

Sentences that differ only in case, spaces and punctuation count as the same.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple


class SentencePair(NamedTuple):
    """A sentence and a translation of it."""

    source: str
    target: str


def split_by_components(pairs: Sequence[SentencePair], *, valid: float, test: float) -> dict[str, list[SentencePair]]:
    """Return "train", "valid" and "test", with about these shares of the components in the last two."""
    if not 0 <= valid + test < 1 or min(valid, test) < 0:
        raise ValueError(f"valid and test must be shares with a sum below 1, got valid={valid}, test={test}")
    splits: dict[str, list[SentencePair]] = {"train": [], "valid": [], "test": []}
    for pair, component in zip(pairs, _components(pairs), strict=True):
        place = _place(component)
        name = "test" if place < test else "valid" if place < test + valid else "train"
        splits[name].append(pair)
    return splits


def sentence_key(text: str) -> str:
    """Return the letters and digits of a sentence in lower case, a space between words; of signs alone, the signs."""
    spaced = "".join(letter if letter.isalnum() else " " for letter in text.casefold())
    return " ".join(spaced.split()) or text.strip()


def _components(pairs: Sequence[SentencePair]) -> list[str]:
    """Return the first sentence of the component of each pair."""
    parents: dict[str, str] = {}

    def find(node: str) -> str:
        while (parent := parents.setdefault(node, node)) != node:
            parents[node] = node = parents[parent]
        return node

    # the side is a part of the node: a word may be written alike in both languages
    edges = [(f"s {sentence_key(pair.source)}", f"t {sentence_key(pair.target)}") for pair in pairs]
    for source, target in edges:
        first, second = sorted((find(source), find(target)))
        parents[second] = first
    return [find(source) for source, _ in edges]


def _place(text: str) -> float:
    """Return a number from 0 to 1 that depends on the text alone."""
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big") / 2**64
