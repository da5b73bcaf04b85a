"""Settings of the wrong type are refused by name."""

from dataclasses import dataclass

import pytest

from qkv.records import from_mapping, read_value, split_outside_brackets


@dataclass(frozen=True)
class Sizes:
    width: int = 1
    rate: float = 0.5
    heads: int | None = None
    fast: bool = False
    name: str = "any"


def test_what_fits():
    given = {"width": 3, "rate": 2, "heads": None, "fast": True, "name": 5}
    assert from_mapping(Sizes, given, "size") == Sizes(3, 2, None, True, "5")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"width": 1.5}, "width must be a whole number, got 1.5"),
        ({"width": True}, "width must be a whole number, got True"),
        ({"rate": "nan"}, "rate must be a number, got 'nan'"),
        ({"heads": "x"}, "heads must be a whole number or None, got 'x'"),
        ({"fast": 1}, "fast must be True or False, got 1"),
        ({"wide": 1}, "unknown size 'wide'; did you mean 'width'"),
    ],
    ids=str,
)
def test_what_does_not(given, words):
    with pytest.raises(ValueError, match=words):
        from_mapping(Sizes, given, "size")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("64", 64),
        ("1e-3", 0.001),
        ("None", None),
        ("true", True),
        ("False", False),
        ("(1, 2)", (1, 2)),
        ("taylor(order=4)", "taylor(order=4)"),
        ("a b", "a b"),
    ],
)
def test_a_text_is_read_as_what_it_says(text, value):
    assert read_value(text) == value


def test_separators_inside_brackets_do_not_split():
    text = "softmax, taylor(order=4, scale=1),linear"
    assert split_outside_brackets(text, ",") == ["softmax", "taylor(order=4, scale=1)", "linear"]
