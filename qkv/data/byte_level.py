"""Tokens of byte-level tokenizers as text.

Such a tokenizer writes each byte as a printable letter: a space is "\u0120", and other bytes that cannot be printed are
letters from U+0100 on.
"""

_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
_BYTES = {chr(byte): byte for byte in _PRINTABLE} | {chr(256 + n): byte for n, byte in enumerate(_OTHERS)}
SPACE = "\u0120"
"""How a space is written."""


def byte_level_text(token: str) -> str:
    """Return the text of a byte-level token; bytes that are a part of a letter only are shown as \u2039E2\u203a."""
    if not all(letter in _BYTES for letter in token):
        return token  # a special token
    text = bytes(_BYTES[letter] for letter in token).decode("utf-8", errors="surrogateescape")
    return "".join(f"\u2039{ord(c) - 0xDC00:02X}\u203a" if 0xDC80 <= ord(c) <= 0xDCFF else c for c in text)
