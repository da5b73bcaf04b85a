import xml.etree.ElementTree as ET

import pytest

from qkv.draw.text import escape_text, shorten, text_width


@pytest.mark.parametrize("text", ["<script>alert(1)</script>", "\"quoted\" & 'so'", "שלום עולם", "a\u200db"])
def test_escaping_round_trips(text):
    for form in (f"<a>{escape_text(text)}</a>", f'<a b="{escape_text(text)}"/>', f"<a b='{escape_text(text)}'/>"):
        element = ET.fromstring(form)
        assert (element.text or element.get("b")) == text


@pytest.mark.parametrize("number", [*range(9), 0x0B, 0x1B, 0x7F, 0x85, 0x202A, 0x202E, 0x2066, 0x2069, 0xD800, 0xFFFF])
def test_control_and_direction_characters_are_shown(number):
    element = ET.fromstring(f"<a>{escape_text('x' + chr(number) + 'y')}</a>")
    assert element.text == f"x<U+{number:04X}>y"
    element.text.encode("utf-8")


def test_shorten():
    assert shorten("abcde", 5) == "abcde"
    assert shorten("abcdef", 5) == "abcd…"


def test_wide_characters_are_wide():
    assert text_width("語語") == 28
    assert text_width("ab", 26) == 32
