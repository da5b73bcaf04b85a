"""Reading what a page asks: every value is checked, and a wrong one is answered in words."""

from collections.abc import Mapping, Sequence
from typing import Any

from qkv.registry import unknown_name_error

LONGEST_TEXT = 20_000
"""Characters: 2,048 tokens and room."""


def text_of(asked: Mapping[str, Any], name: str, default: str = "") -> str:
    """A text, of at most LONGEST_TEXT characters."""
    value = asked.get(name, default)
    if not isinstance(value, str):
        raise ValueError(f"{name} must be a text, got a {type(value).__name__}")
    if len(value) > LONGEST_TEXT:
        raise ValueError(f"{name} has {len(value):,} characters; at most {LONGEST_TEXT:,} can be taken")
    return value


def whole_of(asked: Mapping[str, Any], name: str, default: int, low: int, high: int) -> int:
    """A whole number from `low` to `high`."""
    value = asked.get(name, default)
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{name} must be a whole number from {low} to {high}, got {_shown(value)}")
    return value


def choice_of(asked: Mapping[str, Any], name: str, default: str, choices: Sequence[str]) -> str:
    """One of a few words."""
    value = asked.get(name, default)
    if not isinstance(value, str) or value not in choices:
        raise unknown_name_error(name, _shown(value), choices)
    return value


def _shown(value: Any) -> str:
    text = str(value) if isinstance(value, str) else repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
