"""Addresses of mail and of web pages, handles and hashtags: me@site.org me at site dot org."""

import re

from qkv.pronunciation.normalization.rule import Neighbors, compile_rule, word_set
from qkv.pronunciation.normalization.values.numbers import Words, cardinal, digits

_SIGNS = {".": "dot", "@": "at", "/": "slash", "-": "dash", "_": "underscore", ":": "colon", "?": "question mark"}
_SIGNS |= {"=": "equals", "&": "and", "#": "hash", "%": "percent", "+": "plus", "~": "tilde", ",": "comma"}
_SPELLED = word_set("www http https ftp html htm php css js io uk de fr jp eu ca tv ai xml json pdf jpg png url id")
_SPELLED_TOP = word_set("us me co au ch")
_TOP = "com|org|net|edu|gov|io|ai|dev|info|co|uk|de|fr|ca|us|me|tv|app|mil|int|jp|eu|ch|au|biz"
_PIECE = re.compile(r"[A-Za-z]+|\d+|[^\W\d_]+|[^\w\s]|_")
_CASES = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def _spell(text: str, near: Neighbors) -> Words:
    words: list[str] = []
    before = ""
    for piece in _PIECE.findall(text):
        if piece in _SIGNS:
            words += _SIGNS[piece].split()
        elif before == "." and piece in _SPELLED_TOP:
            words += piece.upper()
        elif piece.isdecimal():
            words += cardinal(piece) if len(piece) <= 2 else digits(piece)
        elif piece.isalpha():
            words += word_or_letters(piece, near)
        before = piece
    return tuple(words)


def word_or_letters(piece: str, near: Neighbors) -> Words:
    """Return a word, its parts in camel case, or its letters if it has no vowel."""
    lower = piece.lower()
    if lower in _SPELLED:
        return tuple(lower.upper())
    if near.known(lower) or len(piece) > 40:
        return (lower,)
    parts = _CASES.findall(piece) if piece.isascii() else [piece]
    if len(parts) > 1:
        return tuple(word for part in parts for word in word_or_letters(part, near))
    return (lower,) if re.search("[aeiouy]", lower) or not piece.isascii() or len(piece) > 8 else tuple(lower.upper())


def _read_address(match: "re.Match[str]", near: Neighbors) -> Words:
    return _spell(match[0], near)


def _read_link(match: "re.Match[str]", near: Neighbors) -> Words:
    return _spell(match["rest"].rstrip("/") or match["rest"], near)


def _read_link_with_scheme(match: "re.Match[str]", near: Neighbors) -> Words:
    return (*tuple(match["scheme"].upper()), "colon", "slash", "slash", *_read_link(match, near))


def _read_hashtag(match: "re.Match[str]", near: Neighbors) -> Words:
    return ("hashtag", *_spell(match["name"], near))


def _read_handle(match: "re.Match[str]", near: Neighbors) -> Words:
    return ("at", *_spell(match["name"], near))


def _read_file(match: "re.Match[str]", near: Neighbors) -> Words:
    """Read a file name or an extension: main.py main dot P Y."""
    start = _spell(match["name"], near) if match["name"] else ()
    ending = match["ending"].lower()
    return (*start, "dot", *((ending,) if near.known(ending) and len(ending) > 2 else ending.upper()))


_ENDINGS = (
    "py|js|ts|txt|csv|json|xml|html|css|md|pdf|docx?|xlsx?|pptx?|jpe?g|png|gif|svg|zip|exe|java|cpp|rs|sh|ya?ml|toml|log|"
    "mp3|mp4"
)
_REST = r"[^\s<>\"'“”‘’\x00-\x1f]{0,200}[^\s<>\"'“”‘’.,;:!?)\]\x00-\x1f]"
RULES = (
    compile_rule("web", rf"(?P<scheme>https?|ftp)://(?P<rest>{_REST})", _read_link_with_scheme),
    compile_rule("web", rf"(?P<rest>www\.[\w-]{{1,63}}\.{_REST})", _read_link),
    compile_rule("web", r"[A-Za-z0-9][\w.%+-]{0,63}+@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){1,6}\b", _read_address),
    compile_rule(
        "web",
        rf"(?P<rest>[A-Za-z0-9][A-Za-z0-9-]{{1,62}}(?:\.[A-Za-z0-9-]{{1,63}}){{0,4}}"
        rf"\.(?:{_TOP})\b(?:/{_REST}|(?![\w.]\w|@)))",
        _read_link,
    ),
)
"""Links and addresses."""
SCHEME, WWW, MAIL, DOMAIN = RULES
FILE = compile_rule(
    "web", rf"(?P<name>[A-Za-z0-9][\w-]{{0,40}})\.(?P<ending>{_ENDINGS})(?![\w]|\.\w|[-@/])", _read_file
)
"""A file name."""
SIGNED = (
    compile_rule("web", r"(?<![\w.)])\.(?P<name>(?!))?(?P<ending>[A-Za-z][A-Za-z]{1,5})(?![\w.])", _read_file),
    compile_rule("web", r"\#(?P<name>[^\W\d_][\w]{0,100})", _read_hashtag),
    compile_rule("web", r"(?<![\w])@(?P<name>[^\W\d_][\w]{0,60})", _read_handle),
)
"""Hashtags and handles."""
