"""Escaping and measuring of text for SVG and HTML."""

import re
import unicodedata
from html import escape

_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069\ufffe\uffff]")
"""Characters that XML forbids, that UTF-8 cannot encode, or that change the text direction."""


def escape_text(text: str) -> str:
    """Escape a text for elements and quoted attributes of HTML and SVG.

    Characters that would break the file or reorder the text around them are shown as <U+202E>.
    """
    return escape(_UNSAFE.sub(lambda found: f"<U+{ord(found[0]):04X}>", text))


def shorten(text: str, max_length: int) -> str:
    """Truncate a text to `max_length` characters, the last of them an ellipsis."""
    return text if len(text) <= max_length else text[: max_length - 1] + "…"


def text_width(text: str, size: float = 13) -> float:
    """Estimate the width of a text in pixels at this font size; an error makes it too large, not too small."""
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return (8 * (len(text) - wide) + 14 * wide) * size / 13
