"""Dataclasses of settings from names and values, as a command line or a file gives them."""

import ast
import inspect
from ast import literal_eval
from collections.abc import Iterable, Mapping
from dataclasses import fields
from itertools import pairwise
from textwrap import dedent
from types import NoneType
from typing import Any, TypeVar, get_args, get_type_hints

from qkv.errors import unknown_name_error

Record = TypeVar("Record")
_TYPE_NAMES = {
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    NoneType: "None",
    str: "a text",
    dict: "an object",
    list[str]: "a list of texts",
    list[int]: "a list of whole numbers",
    list[float]: "a list of numbers",
}
MAX_LITERAL = 10_000
"""Longest text that is read as a literal; Python's parser takes memory for each nested sign."""


def from_mapping(record: type[Record], given: dict[str, Any], what: str) -> Record:
    """Return the dataclass with these values; raise for an unknown field name, or for text where a number belongs."""
    names = [field.name for field in fields(record)]  # type: ignore[arg-type]
    hints = get_type_hints(record)
    values = dict(given)
    for name, text in given.items():
        if name not in names:
            raise unknown_name_error(what, name, names)
        types = get_args(hints[name]) or (hints[name],)
        if str in types and type(text) in (int, float):  # a file may be called 1984
            values[name] = str(text)
        if set(types) <= set(_TYPE_NAMES) and not _is_one_of(types, values[name]):
            expected = " or ".join(_TYPE_NAMES[each] for each in types)
            raise ValueError(f"{name} must be {expected}, got {values[name]!r:.100}")
    return record(**values)


def require_fields(record: Mapping[str, Any], types: Mapping[str, Any]) -> None:
    """Raise ValueError unless a record of a file has these fields with values of these types, such as list[str]."""
    for name, expected in types.items():
        value = record.get(name)
        member = get_args(expected)
        is_valid = type(value) is list and all(_is_one_of(member, item) for item in value) if member else False
        if name not in record or not (is_valid or _is_one_of((expected,), value)):
            got = f"got {value!r:.100}" if name in record else "but it is missing"
            raise ValueError(f"{name} must be {_TYPE_NAMES[expected]}, {got}")


def field_docs(record: type[Any]) -> dict[str, str]:
    """Return {field: its docstring, on one line} of a dataclass, with the fields it inherits."""
    docs: dict[str, str] = {}
    for cls in reversed(record.__mro__[:-1]):
        (definition,) = ast.parse(dedent(inspect.getsource(cls))).body
        assert isinstance(definition, ast.ClassDef)
        for line, following in pairwise(definition.body):
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                text = following.value if isinstance(following, ast.Expr) else None
                if isinstance(text, ast.Constant) and isinstance(text.value, str):
                    docs[line.target.id] = " ".join(text.value.split())
    return docs


def read_value(text: str) -> Any:
    """Return the Python literal in a text, or else the text; true and false may be in lower case."""
    if len(text) > MAX_LITERAL:
        return text
    if text in ("true", "false"):
        return text == "true"
    try:
        return literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):  # the last two: nested too deep
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
