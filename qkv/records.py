"""A record of settings from names and values, as they come from a command line or a file."""

from ast import literal_eval
from collections.abc import Iterable
from dataclasses import fields
from types import NoneType
from typing import Any, TypeVar, get_args, get_type_hints

from qkv.registry import unknown_name_error

Record = TypeVar("Record")
_NUMBERS = {int: "a whole number", float: "a number", bool: "True or False", NoneType: "None"}


def from_mapping(record: type[Record], given: dict[str, Any], what: str) -> Record:
    """The record with these values; a name that it does not have, or a text where a number belongs, is an error."""
    names = [field.name for field in fields(record)]  # type: ignore[arg-type]
    hints = get_type_hints(record)
    values = dict(given)
    for name, value in given.items():
        if name not in names:
            raise unknown_name_error(what, name, names)
        kinds = get_args(hints[name]) or (hints[name],)
        if set(kinds) <= set(_NUMBERS) and not _is_one_of(kinds, value):
            expected = " or ".join(_NUMBERS[kind] for kind in kinds)
            raise ValueError(f"{name} must be {expected}, got {value!r}")
        if str in kinds and type(value) in (int, float):  # a file may be called 1984
            values[name] = str(value)
    return record(**values)


def read_value(text: str) -> Any:
    """What a text says: a Python literal, or else the text itself."""
    try:
        return literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _is_one_of(kinds: Iterable[type], value: Any) -> bool:
    """Whether a value is of these types; a whole number is a number as well, and True is none."""
    return type(value) in kinds or (type(value) is int and float in kinds)
