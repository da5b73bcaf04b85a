"""Pieces of a long text, in bounded memory: paragraphs, cut at the end of a sentence or at a space."""

import re
from collections.abc import Iterator
from typing import TextIO

PIECE = 8_000
"""Characters of a piece, at which the next end of a sentence ends it."""
MAX_PIECE = 32_000
"""Characters of a piece without such an end; it ends at a space, or anywhere if there is no space."""
_BLANK = re.compile(r"\n[ \t\r]*\n")
_SENTENCE_END = re.compile(r"[.!?][\"”’)]*\s+(?=[\"“‘(]*[A-Z])")


def cut(text: str) -> Iterator[str]:
    """Yield the pieces of a text; joined they are the text again."""
    start = 0
    while len(text) - start > PIECE:
        end = _piece_end(text[start : start + MAX_PIECE], is_last=len(text) - start <= MAX_PIECE)
        yield text[start : start + end]
        start += end
    if start < len(text):
        yield text[start:]


def read_pieces(file: TextIO) -> Iterator[str]:
    """Yield the pieces of an open file, reading no more than `MAX_PIECE` characters ahead."""
    text = ""
    while True:
        new = file.read(max(MAX_PIECE - len(text), 1))
        text += new
        if not text:
            return
        end = len(text) if not new and len(text) <= PIECE else _piece_end(text, is_last=not new)
        yield text[:end]
        text = text[end:]


def _piece_end(text: str, *, is_last: bool) -> int:
    """Return where the first piece of a text ends."""
    if len(text) <= PIECE and is_last:
        return len(text)
    for pattern in (_BLANK, _SENTENCE_END):
        found = pattern.search(text, min(PIECE, len(text) // 2))
        if found:
            return found.end()
    if is_last:
        return len(text)
    space = max(text.rfind(" "), text.rfind("\n"))
    return space + 1 if space > 0 else len(text)
