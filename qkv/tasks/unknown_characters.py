"""A warning about characters of a test text that the tokenizer does not know."""

from collections import Counter
from collections.abc import Iterable

from qkv.data import Tokenizer

MAX_LISTED = 8
"""Most characters that the warning lists."""


def unknown_characters(tokenizer: Tokenizer, documents: Iterable[str]) -> tuple[str, ...]:
    """Return a sentence about the characters that become the unknown token; none: an empty tuple."""
    counts: Counter[str] = Counter()
    for document in documents:
        counts.update(document)
    unknown = [character for character, _ in counts.most_common() if tokenizer.unknown in tokenizer.encode(character)]
    if not unknown:
        return ()
    shown = ", ".join(map(repr, unknown[:MAX_LISTED]))
    more = f" and {len(unknown) - MAX_LISTED} more" if len(unknown) > MAX_LISTED else ""
    count = sum(counts[character] for character in unknown)
    return (
        f"{count:,} of {counts.total():,} characters of the test text are unknown to the tokenizer: {shown}{more}; "
        "the metrics are those of the text with unknown tokens",
    )
