"""Dataclasses of settings from names and values, as a command line or a file gives them."""

from ast import literal_eval
from collections.abc import Iterable
from dataclasses import fields
from types import NoneType
from typing import Any, TypeVar, get_args, get_type_hints

from qkv.errors import unknown_name_error

Record = TypeVar("Record")
_TYPE_NAMES = {int: "a whole number", float: "a number", bool: "True or False", NoneType: "None"}


def from_mapping(record: type[Record], given: dict[str, Any], what: str) -> Record:
    """Return the dataclass with these values; raise for an unknown field name, or for text where a number belongs."""
    names = [field.name for field in fields(record)]  # type: ignore[arg-type]
    hints = get_type_hints(record)
    values = dict(given)
    for name, value in given.items():
        if name not in names:
            raise unknown_name_error(what, name, names)
        types = get_args(hints[name]) or (hints[name],)
        if set(types) <= set(_TYPE_NAMES) and not _is_one_of(types, value):
            expected = " or ".join(_TYPE_NAMES[each] for each in types)
            raise ValueError(f"{name} must be {expected}, got {value!r}")
        if str in types and type(value) in (int, float):  # a file may be called 1984
            values[name] = str(value)
    return record(**values)


def read_value(text: str) -> Any:
    """Return the Python literal in a text, or else the text."""
    try:
        return literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def split_outside_brackets(text: str, separator: str) -> list[str]:
    """Return the stripped parts of a text such as `softmax, taylor(order=4, chunk=8)`, split outside of brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character == separator and depth <= 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def _is_one_of(types: Iterable[type], value: Any) -> bool:
    """Return whether a value has one of these types; an int is a float as well, a bool is neither."""
    return type(value) in types or (type(value) is int and float in types)
