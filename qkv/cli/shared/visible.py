r"""Control characters of data, made visible: ESC is printed as \x1b.

Training data, vocabularies and file names come from others. An escape sequence in them could change colors, move the
cursor, or rewrite what is on the terminal. So every text that a command prints goes through `visible`, into a pipe or a
file too: it may be shown on a terminal later.
"""

_CONTROLS = [code for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\n"]
_AS_TEXT = {code: rf"\x{code:02x}" for code in _CONTROLS}
_AS_JSON = {code: rf"\u{code:04x}" for code in _CONTROLS}


def visible(text: str) -> str:
    r"""Return the text with its control characters, except tab and newline, as \xNN."""
    return text.translate(_AS_TEXT)


def visible_json(text: str) -> str:
    r"""Return JSON with its control characters as \uNNNN, which JSON reads as the same characters."""
    return text.translate(_AS_JSON)
