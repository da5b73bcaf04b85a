"""The data settings of a task, as they come from the command line or a file."""

from typing import Any, TypeVar

from qkv.records import filled

Options = TypeVar("Options")


def read_options(record: type[Options], given: dict[str, Any]) -> Options:
    """The record with these values; an unknown name is an error that says the nearest."""
    return filled(record, given, "data setting")
