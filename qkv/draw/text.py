"""Texts from outside, made fit for a picture or a page."""

import re
import unicodedata
from html import escape

_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069\ufffe\uffff]")
"""What XML forbids, what cannot be written as UTF-8, and what turns the direction of the text after it."""


def safe(text: str) -> str:
    """The text, escaped for HTML and SVG, in elements and in quoted attributes.

    Characters that would break the file or rearrange what stands around them are shown as <U+202E>.
    """
    return escape(_UNSAFE.sub(lambda found: f"<U+{ord(found[0]):04X}>", text))


def shorten(text: str, most: int) -> str:
    """The text if it has at most so many characters, otherwise its beginning and an ellipsis."""
    return text if len(text) <= most else text[: most - 1] + "…"


def text_width(text: str, size: float = 13) -> float:
    """Roughly how many pixels wide it is at this font size; rather too many than too few."""
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return (8 * (len(text) - wide) + 14 * wide) * size / 13
