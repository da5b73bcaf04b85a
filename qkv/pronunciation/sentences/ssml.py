"""Write read text as SSML 1.1: every word that has phones in a `phoneme` element, everything else as text."""

import re
from collections.abc import Iterable, Iterator
from xml.sax.saxutils import escape, quoteattr

from qkv.errors import unknown_name_error
from qkv.pronunciation.answer import ALPHABETS
from qkv.pronunciation.sentences.reader import ReadToken

_ALPHABETS = {"ipa": "ipa", "arpabet": "x-cmu-arpabet"}
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_HEAD = '<speak version="1.1" xmlns="http://www.w3.org/2001/10/synthesis" xml:lang="en-US">'


def write_ssml(tokens: Iterable[ReadToken], alphabet: str | None = None) -> Iterator[str]:
    """Yield a document piece by piece; texts are separated by lines. Characters that XML cannot hold become U+FFFD."""
    chosen = "ipa" if alphabet is None else alphabet
    if chosen not in ALPHABETS:
        raise unknown_name_error("alphabet", chosen, ALPHABETS)
    yield _HEAD
    number = 1
    for token in tokens:
        if token.text_number != number:
            yield "\n"
            number = token.text_number
        yield _element(token, chosen)
    yield "</speak>\n"


def _element(token: ReadToken, alphabet: str) -> str:
    text = escape(_NOT_XML.sub("\ufffd", token.text))
    if not token.words or not all(one.answer.best for one in token.words):
        return text
    phones = " ".join(one.answer.best[0].to_text(alphabet) for one in token.words)
    return f"<phoneme alphabet={quoteattr(_ALPHABETS[alphabet])} ph={quoteattr(phones)}>{text}</phoneme>"
