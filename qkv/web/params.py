"""Read and check the parameters of an API request; a wrong one is a ValueError that the page shows."""

from collections.abc import Mapping, Sequence
from typing import Any

from qkv.errors import unknown_name_error

Params = Mapping[str, Any]
"""Parameters of a request, as parsed from JSON: nothing in them is checked yet."""

MAX_TEXT_LENGTH = 20_000
"""Longest text of a request, in characters; 2,048 tokens fit."""


def get_text(params: Params, name: str, default: str = "") -> str:
    """Return a string of at most MAX_TEXT_LENGTH characters."""
    value = params.get(name, default)
    if not isinstance(value, str):
        raise ValueError(f"{name} must be a text, got a {type(value).__name__}")
    if len(value) > MAX_TEXT_LENGTH:
        raise ValueError(f"{name} has {len(value):,} characters, must have at most {MAX_TEXT_LENGTH:,}")
    return value


def get_int(params: Params, name: str, default: int, low: int, high: int) -> int:
    """Return an integer from `low` to `high`."""
    value = params.get(name, default)
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{name} must be a whole number from {low} to {high}, got {_shorten(value)}")
    return value


def get_choice(params: Params, name: str, default: str, choices: Sequence[str]) -> str:
    """Return one of the choices."""
    value = params.get(name, default)
    if not isinstance(value, str) or value not in choices:
        raise unknown_name_error(name, _shorten(value), choices)
    return value


def _shorten(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
