"""JSON files with a format number.

Every record that is written has `"format": 2`. A record of format 1 is upgraded by the function that the reader
passes in (`qkv.storage.format_1` holds them all); a newer format is an error.
"""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from qkv.errors import QkvError
from qkv.storage.atomic import read_file, write_atomic

FORMAT = 2
"""Format of the JSON files that this version writes; it reads this one and all below it."""

MAX_BYTES = 64 * 2**20
"""Largest JSON file that is read. The tokenizer of a large vocabulary has about 20 MB."""
MAX_VALUES = 2_000_000
"""Maximum number of values in a JSON file: each takes up to 200 bytes of memory."""
MAX_DEPTH = 64
"""Deepest nesting of lists and objects."""

Record = dict[str, Any]
Upgrade = Callable[[Record], Record]


def write_json(path: Path, record: Mapping[str, Any]) -> None:
    """Write the record with its format, atomically."""
    write_atomic(path, to_json(record))


def read_json(path: Path, upgrade: Upgrade | None = None) -> Record:
    """Return the record that `write_json` wrote, without its format; `upgrade` is applied to one of format 1."""
    return parse_json(read_file(path, MAX_BYTES), path, upgrade)


def to_json(record: Mapping[str, Any]) -> bytes:
    """Return the bytes of the record with its format."""
    if record.get("format", FORMAT) != FORMAT:
        raise ValueError(f"record has format {record['format']!r}, but this version of qkv writes format {FORMAT}")
    # no newline at the end: the last byte closes the object, so that a truncated file is never valid JSON
    return json.dumps({"format": FORMAT, **record}, ensure_ascii=False, allow_nan=False, indent=1).encode()


def parse_json(data: bytes, path: Path, upgrade: Upgrade | None = None) -> Record:
    """Return the record in these bytes, without its format; `path` is the file that an error names."""
    record = load_json(data, path)
    number = record.pop("format", None)
    if type(number) is not int or number < 1:
        raise QkvError(f'{path.name} must have a "format" of 1 to {FORMAT}, but has {number!r}', path.parent)
    if number > FORMAT:
        raise QkvError(f"{path.name} has format {number}, but this version of qkv reads up to {FORMAT}", path.parent)
    return upgrade(record) if upgrade is not None and number < FORMAT else record


def load_json(data: bytes, path: Path) -> Record:
    """Return the JSON object in these bytes, of any origin; too many values or too deep nesting is an error."""
    # every value follows a comma or a bracket, or is the value of such a key
    if data.count(b",") + data.count(b"[") + data.count(b"{") > MAX_VALUES:
        raise QkvError(f"{path.name} has more than {MAX_VALUES:,} values", path.parent)
    try:
        record = json.loads(data, parse_constant=_reject_constant)
    except RecursionError:
        raise QkvError(f"{path.name} is nested deeper than {MAX_DEPTH} levels", path.parent) from None
    except ValueError as error:
        raise QkvError(f"{path.name} is not JSON or is truncated ({error})", path.parent) from None
    if not isinstance(record, dict):
        raise QkvError(f"{path.name} must hold a JSON object, but holds a {type(record).__name__}", path.parent)
    if _is_deep(record):
        raise QkvError(f"{path.name} is nested deeper than {MAX_DEPTH} levels", path.parent)
    return record


def finite_values(value: Any) -> Any:
    """Return the value with None for NaN and inf, which JSON does not have."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: finite_values(item) for key, item in value.items()}
    return [finite_values(item) for item in value] if isinstance(value, list | tuple) else value


def _is_deep(record: Record) -> bool:
    """Return whether lists and objects are nested deeper than `MAX_DEPTH`; level by level, without recursion."""
    level: list[Any] = [record]
    for _ in range(MAX_DEPTH):
        values = (value for node in level for value in (node.values() if type(node) is dict else node))
        level = [value for value in values if type(value) in (dict, list)]
        if not level:
            return False
    return True


def _reject_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not a JSON number")
