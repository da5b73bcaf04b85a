"""The data settings of a task, as they come from the command line or a file."""

from typing import Any, TypeVar

from qkv.records import from_mapping

Options = TypeVar("Options")


def read_options(record: type[Options], given: dict[str, Any]) -> Options:
    """The record with these values; an unknown name is an error that says the nearest."""
    return from_mapping(record, given, "data setting")


def read_text_options(record: type[Options], given: dict[str, Any]) -> Options:
    """The same for a task that reads a text, which a run keeps by where it is from: `train_file` is its `source`."""
    given = dict(given)
    if "train_file" in given:
        given["source"] = given.pop("train_file")
    return read_options(record, given)
