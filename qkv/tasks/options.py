"""The data settings of a task, as they come from the command line or a file."""

from dataclasses import fields
from typing import Any, TypeVar

from qkv.registry import unknown

Options = TypeVar("Options")


def read_options(record: type[Options], given: dict[str, Any]) -> Options:
    """The record with these values; an unknown name is an error that says the nearest."""
    names = [field.name for field in fields(record)]  # type: ignore[arg-type]
    for name in given:
        if name not in names:
            raise unknown("data setting", name, names)
    return record(**given)
