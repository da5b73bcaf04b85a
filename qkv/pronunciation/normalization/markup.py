"""Marks that are silent: tags of HTML, lines and headings of Markdown, numbers of footnotes."""

import re

from qkv.pronunciation.normalization.rule import Neighbors, compile_rule
from qkv.pronunciation.normalization.values.numbers import Words


def _read_nothing(match: "re.Match[str]", near: Neighbors) -> Words:
    return ()


def _read_footnote(match: "re.Match[str]", near: Neighbors) -> Words | None:
    before = near.token_before()
    is_index = before is not None and before.kind == "word" and (len(before.text) < 3 or "_" in before.text)
    return None if before is None or before.end != match.start() or is_index else ()


RULES = (
    compile_rule("punctuation", r"[~=#+*]{3,}+|~~|(?<![^\n])\#{1,2}(?=[ ])", _read_nothing),
    compile_rule(
        "punctuation", r"</?[a-zA-Z][a-zA-Z0-9]{0,15}(?:[ ][\w:-]{1,40}=[^<>\n]{0,300})?[ ]?/?>", _read_nothing
    ),
    compile_rule("punctuation", r"(?<=[\w.,;:!?)\"”’'\]])\[(?:\d{1,3}|[a-z]|note[ ]\d{1,2})\]", _read_footnote),
)
"""Tags, rules, headings and footnotes."""
