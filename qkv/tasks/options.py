"""Data options of a task, from the command line or a file."""

from typing import Any, TypeVar

from qkv.records import from_mapping

Options = TypeVar("Options")


def read_options(record: type[Options], given: dict[str, Any]) -> Options:
    """Return the record with these values; an unknown name raises and names the nearest."""
    return from_mapping(record, given, "data setting")


def read_text_options(record: type[Options], given: dict[str, Any]) -> Options:
    """Return `read_options` for a task that reads text, where `--train-file` sets `source`."""
    given = dict(given)
    if "train_file" in given:
        given["source"] = given.pop("train_file")
    return read_options(record, given)
