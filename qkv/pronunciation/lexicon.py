"""Write lexicon files for other tools, entry by entry, in constant memory.

    cmu     word PH PH, then word(2) PH PH             kaldi   lexicon.txt: word PH PH, a line per pronunciation
    mfa     word TAB PH PH                             kaldip  lexiconp.txt: word 1.0 PH PH, the likeliest 1.0
    mfap    word TAB 1.0 TAB PH PH                     pls     W3C Pronunciation Lexicon 1.0
    tsv     word TAB PH PH TAB PH PH (as `pairs`)      json    {word: [pronunciation, ...]}

Kaldi's files begin with its two special entries, `!SIL SIL` and `<UNK> SPN`. A repeated word is written once.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from xml.sax.saxutils import escape

from qkv.errors import unknown_name_error
from qkv.pronunciation.answer import ALPHABETS, Pronunciation, WordAnswer

Pronunciations = tuple[Pronunciation, ...]
FormatEntry = Callable[[str, Pronunciations, str], str]
"""(word, its pronunciations, alphabet) -> text of the entry"""

MIN_RELATIVE_PROBABILITY = 0.01
"""Lower bound of written relative probabilities: readers treat 0 as impossible."""

_PLS_ALPHABETS = {"ipa": "ipa", "arpabet": "x-cmu-arpabet"}
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_PLS_HEAD = (
    '<?xml version="1.0" encoding="UTF-8"?>\n<lexicon version="1.0" '
    'xmlns="http://www.w3.org/2005/01/pronunciation-lexicon" alphabet="{alphabet}" xml:lang="en-US">\n'
)


@dataclass(frozen=True)
class EntryFormat:
    """Head, entries, separator and tail of a file format."""

    entry: FormatEntry
    head: str = ""
    between: str = ""
    tail: str = ""
    alphabet: str = "arpabet"
    """Default alphabet."""
    takes_spaces: bool = False
    """Whether a word may contain spaces."""


def write_lexicon(answers: Iterable[WordAnswer], format: str, alphabet: str | None = None) -> Iterator[str]:  # noqa: A002
    """Yield the text of the file piece by piece; answers without a pronunciation are skipped."""
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


def _phones(one: Pronunciation, alphabet: str) -> str:
    return " ".join(one.symbols(alphabet))


def _relative(one: Pronunciation, variants: Pronunciations) -> str:
    """Return the probability relative to that of the likeliest pronunciation."""
    likeliest = max(variant.probability for variant in variants)
    return f"{max(one.probability / likeliest, MIN_RELATIVE_PROBABILITY):.4f}"


def _cmu(word: str, variants: Pronunciations, alphabet: str) -> str:
    numbered = (word if number == 1 else f"{word}({number})" for number in range(1, len(variants) + 1))
    return "".join(f"{name} {_phones(variant, alphabet)}\n" for name, variant in zip(numbered, variants, strict=True))


def _kaldi(word: str, variants: Pronunciations, alphabet: str) -> str:
    return "".join(f"{word} {_phones(variant, alphabet)}\n" for variant in variants)


def _kaldip(word: str, variants: Pronunciations, alphabet: str) -> str:
    return "".join(f"{word} {_relative(variant, variants)} {_phones(variant, alphabet)}\n" for variant in variants)


def _mfa(word: str, variants: Pronunciations, alphabet: str) -> str:
    return "".join(f"{word}\t{_phones(variant, alphabet)}\n" for variant in variants)


def _mfap(word: str, variants: Pronunciations, alphabet: str) -> str:
    return "".join(f"{word}\t{_relative(variant, variants)}\t{_phones(variant, alphabet)}\n" for variant in variants)


def _tsv(word: str, variants: Pronunciations, alphabet: str) -> str:
    return "\t".join((word, *(_phones(variant, alphabet) for variant in variants))) + "\n"


def _json(word: str, variants: Pronunciations, alphabet: str) -> str:
    texts = [variant.to_text(alphabet) for variant in variants]
    return f"{json.dumps(word, ensure_ascii=False)}: {json.dumps(texts, ensure_ascii=False)}"


def _pls(word: str, variants: Pronunciations, alphabet: str) -> str:
    if _NOT_XML.search(word):
        raise ValueError(f"{word!r} has a character that XML cannot hold")
    phonemes = "".join(f"<phoneme>{escape(variant.to_text(alphabet))}</phoneme>" for variant in variants)
    return f" <lexeme><grapheme>{escape(word)}</grapheme>{phonemes}</lexeme>\n"


FORMATS = {
    "cmu": EntryFormat(_cmu),
    "kaldi": EntryFormat(_kaldi, head="!SIL SIL\n<UNK> SPN\n"),
    "kaldip": EntryFormat(_kaldip, head="!SIL 1.0 SIL\n<UNK> 1.0 SPN\n"),
    "mfa": EntryFormat(_mfa),
    "mfap": EntryFormat(_mfap),
    "tsv": EntryFormat(_tsv, takes_spaces=True),
    "json": EntryFormat(_json, head="{\n", between=",\n", tail="\n}\n", takes_spaces=True),
    "pls": EntryFormat(_pls, head=_PLS_HEAD, tail="</lexicon>\n", alphabet="ipa", takes_spaces=True),
}
