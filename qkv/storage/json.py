"""JSON files with a format number.

Every record that is written has `"format": 2`. A record of format 1 is upgraded by the function that the reader
passes in (`qkv.storage.format_1` holds them all); a newer format is an error.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from qkv.errors import QkvError
from qkv.storage.atomic import open_file, write_atomic

FORMAT = 2
"""Format of the JSON files that this version writes; it reads this one and all below it."""

Record = dict[str, Any]
Upgrade = Callable[[Record], Record]


def write_json(path: Path, record: Mapping[str, Any]) -> None:
    """Write the record with its format, atomically."""
    write_atomic(path, to_json(record))


def read_json(path: Path, upgrade: Upgrade | None = None) -> Record:
    """Return the record that `write_json` wrote, without its format; `upgrade` is applied to one of format 1."""
    with open_file(path) as file:
        return parse_json(file.read(), path, upgrade)


def to_json(record: Mapping[str, Any]) -> bytes:
    """Return the bytes of the record with its format."""
    if record.get("format", FORMAT) != FORMAT:
        raise ValueError(f"record has format {record['format']!r}, but this version of qkv writes format {FORMAT}")
    # no newline at the end: the last byte closes the object, so that a truncated file is never valid JSON
    return json.dumps({"format": FORMAT, **record}, ensure_ascii=False, allow_nan=False, indent=1).encode()


def parse_json(data: bytes, path: Path, upgrade: Upgrade | None = None) -> Record:
    """Return the record in these bytes, without its format; `path` is the file that an error names."""
    try:
        record = json.loads(data, parse_constant=_reject_constant)
    except (ValueError, RecursionError) as error:
        raise QkvError(f"{path.name} is not JSON or is truncated ({error})", path.parent) from None
    if not isinstance(record, dict):
        raise QkvError(f"{path.name} must hold a JSON object, but holds a {type(record).__name__}", path.parent)
    number = record.pop("format", None)
    if type(number) is not int or number < 1:
        raise QkvError(f'{path.name} must have a "format" of 1 to {FORMAT}, but has {number!r}', path.parent)
    if number > FORMAT:
        raise QkvError(f"{path.name} has format {number}, but this version of qkv reads up to {FORMAT}", path.parent)
    return upgrade(record) if upgrade is not None and number < FORMAT else record


def _reject_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not a JSON number")
