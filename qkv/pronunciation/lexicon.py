"""Lexicon files that other tools read, written entry by entry so that their length does not matter.

    cmu     word PH PH, then word(2) PH PH             kaldi   lexicon.txt: word PH PH, a line a pronunciation
    mfa     word TAB PH PH                             kaldip  lexiconp.txt: word 1.0 PH PH, the likeliest 1.0
    mfap    word TAB 1.0 TAB PH PH                     pls     W3C Pronunciation Lexicon 1.0
    tsv     word TAB PH PH TAB PH PH (as `pairs`)      json    {word: [pronunciation, ...]}

Kaldi's files begin with its two words that are none, `!SIL SIL` and `<UNK> SPN`. A word that comes twice is written
once.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from xml.sax.saxutils import escape

from qkv.pronunciation.answer import ALPHABETS, Answer, Pronunciation
from qkv.registry import unknown_name_error

Ways = tuple[Pronunciation, ...]
Write = Callable[[str, Ways, str], str]
"""(word, the ways to say it, alphabet) -> the text of the entry"""

LEAST_SHARE = 0.01
"""A relative probability is never written smaller: readers take 0 for impossible."""

_PLS_ALPHABETS = {"ipa": "ipa", "arpabet": "x-cmu-arpabet"}
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_PLS_HEAD = (
    '<?xml version="1.0" encoding="UTF-8"?>\n<lexicon version="1.0" '
    'xmlns="http://www.w3.org/2005/01/pronunciation-lexicon" alphabet="{alphabet}" xml:lang="en-US">\n'
)


@dataclass(frozen=True)
class Format:
    """How a file begins, how an entry is written, what stands between entries, how the file ends."""

    entry: Write
    head: str = ""
    between: str = ""
    tail: str = ""
    alphabet: str = "arpabet"
    """The one to use where none is asked for."""
    takes_spaces: bool = False
    """Whether a word may have spaces."""


def write_lexicon(answers: Iterable[Answer], format: str, alphabet: str | None = None) -> Iterator[str]:  # noqa: A002
    """The pieces of the file, one after the other; answers without a pronunciation are passed over."""
    if format not in FORMATS:
        raise unknown_name_error("lexicon format", format, FORMATS)
    chosen = FORMATS[format]
    alphabet = chosen.alphabet if alphabet is None else alphabet
    if alphabet not in ALPHABETS:
        raise unknown_name_error("alphabet", alphabet, ALPHABETS)
    yield chosen.head.replace("{alphabet}", _PLS_ALPHABETS[alphabet])
    written: set[str] = set()
    for answer in answers:
        word = answer.input.strip()
        if not answer.best or word in written:
            continue
        if not chosen.takes_spaces and len(word.split()) > 1:
            raise ValueError(f"{word!r} has a space, which a word of format {format} cannot have")
        yield (chosen.between if written else "") + chosen.entry(word, answer.best, alphabet)
        written.add(word)
    yield chosen.tail


def _phones(way: Pronunciation, alphabet: str) -> str:
    return " ".join(way.symbols(alphabet))


def _share(way: Pronunciation, ways: Ways) -> str:
    """The probability, relative to that of the likeliest."""
    return f"{max(way.probability / max(one.probability for one in ways), LEAST_SHARE):.4f}"


def _cmu(word: str, ways: Ways, alphabet: str) -> str:
    numbered = (word if number == 1 else f"{word}({number})" for number in range(1, len(ways) + 1))
    return "".join(f"{name} {_phones(way, alphabet)}\n" for name, way in zip(numbered, ways, strict=True))


def _kaldi(word: str, ways: Ways, alphabet: str) -> str:
    return "".join(f"{word} {_phones(way, alphabet)}\n" for way in ways)


def _kaldip(word: str, ways: Ways, alphabet: str) -> str:
    return "".join(f"{word} {_share(way, ways)} {_phones(way, alphabet)}\n" for way in ways)


def _mfa(word: str, ways: Ways, alphabet: str) -> str:
    return "".join(f"{word}\t{_phones(way, alphabet)}\n" for way in ways)


def _mfap(word: str, ways: Ways, alphabet: str) -> str:
    return "".join(f"{word}\t{_share(way, ways)}\t{_phones(way, alphabet)}\n" for way in ways)


def _tsv(word: str, ways: Ways, alphabet: str) -> str:
    return "\t".join((word, *(_phones(way, alphabet) for way in ways))) + "\n"


def _json(word: str, ways: Ways, alphabet: str) -> str:
    said = [way.write(alphabet) for way in ways]
    return f"{json.dumps(word, ensure_ascii=False)}: {json.dumps(said, ensure_ascii=False)}"


def _pls(word: str, ways: Ways, alphabet: str) -> str:
    if _NOT_XML.search(word):
        raise ValueError(f"{word!r} has a character that XML cannot hold")
    phonemes = "".join(f"<phoneme>{escape(way.write(alphabet))}</phoneme>" for way in ways)
    return f" <lexeme><grapheme>{escape(word)}</grapheme>{phonemes}</lexeme>\n"


FORMATS = {
    "cmu": Format(_cmu),
    "kaldi": Format(_kaldi, head="!SIL SIL\n<UNK> SPN\n"),
    "kaldip": Format(_kaldip, head="!SIL 1.0 SIL\n<UNK> 1.0 SPN\n"),
    "mfa": Format(_mfa),
    "mfap": Format(_mfap),
    "tsv": Format(_tsv, takes_spaces=True),
    "json": Format(_json, head="{\n", between=",\n", tail="\n}\n", takes_spaces=True),
    "pls": Format(_pls, head=_PLS_HEAD, tail="</lexicon>\n", alphabet="ipa", takes_spaces=True),
}
