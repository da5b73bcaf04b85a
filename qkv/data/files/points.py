"""Labeled points from a CSV file: coordinates, then the class in the last column or in another one.

    0.5,1.25,red

Columns are separated by commas, tabs or semicolons; with semicolons, 0,5 is one half. A first line without any number
is a header. nan and inf parse as numbers, but a point must be finite.
"""

import csv
import math
import re
from dataclasses import dataclass
from pathlib import Path

import torch

from qkv.data.files.limits import MAX_CLASSES
from qkv.data.labeled import LabeledExamples
from qkv.errors import QkvError
from qkv.storage import open_file
from qkv.storage.lines import read_lines

MAX_FLOAT32 = torch.finfo(torch.float32).max
"""Largest coordinate, since models compute in float32."""
MAX_NUMERIC_CLASSES = 20
"""Maximum number of classes in a class column of numbers, if most of them differ."""
MAX_LINE_BYTES = 2**20
"""Longest line that is read."""
SEPARATORS = "\t;,"
LAST = "-1"


@dataclass(frozen=True)
class Points:
    """Points and the names of their classes; label i is classes[i]."""

    examples: LabeledExamples
    classes: tuple[str, ...]


class _Columns:
    """The separator of a file, its header and the column of the class, found in its first line."""

    def __init__(self, label: str, path: Path):
        self.label, self.path = label, path
        self.separator, self.index, self.count = "", -1, 0

    def read(self, line: bytes, number: int) -> list[str]:
        """Return the fields of a line; empty for a blank line and for the header."""
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip(" \r\n")
            if not text.strip():
                return []
            self.separator = self.separator or _sniff_separator(text)
            (fields,) = csv.reader([text], strict=True, delimiter=self.separator)
        except (UnicodeDecodeError, csv.Error) as error:
            raise QkvError(f"line {number}: {error}", self.path) from None
        fields = [field.strip() for field in fields]
        if len(fields) == 1:
            raise QkvError(
                f"line {number}: one column, expected numbers and a class, separated by commas, tabs or semicolons",
                self.path,
            )
        if self.separator == ";":
            fields = [_with_decimal_point(field) for field in fields]
        return self._locate(fields, number) if not self.count else fields

    def _locate(self, fields: list[str], number: int) -> list[str]:
        """Find the column of the class in the first line; return the line unless it is a header."""
        is_header = number == 1 and not any(map(_is_number, fields))
        self.count = len(fields)
        if is_header and self.label in fields:
            self.index = fields.index(self.label)
        elif self.label.removeprefix("-").isdecimal() and -self.count <= int(self.label) < self.count:
            self.index = int(self.label) % self.count
        else:
            names = ", ".join(fields) if is_header else "the file has no header"
            raise QkvError(
                f"data.label={self.label}: no such column among {self.count} ({names}); "
                f"give a name of the header, or a number from 0 to {self.count - 1}",
                self.path,
            )
        return [] if is_header else fields


def read_points(path: Path | str, classes: tuple[str, ...] = (), *, label: str = LAST) -> Points:
    """Read a file of points.

    Args:
        path: The file. Coordinates are float64: large values that differ slightly would be equal in float32.
        classes: The only classes allowed (default: those that occur, sorted, at least two).
        label: Column of the class: its name in the header, or its number from 0 (default: -1, the last).
    """
    path = Path(path)
    rows: list[tuple[list[float], str]] = []
    columns = _Columns(label, path)
    with open_file(path) as file:
        for number, line in enumerate(read_lines(file, MAX_LINE_BYTES, path), 1):
            if line is None:
                raise QkvError(f"line {number} is longer than {MAX_LINE_BYTES:,} bytes", path)
            fields = columns.read(line, number)
            if not fields:
                continue
            if len(fields) != columns.count:
                raise QkvError(f"line {number}: {len(fields)} columns, expected {columns.count} as above", path)
            name = fields.pop(columns.index)
            rows.append((_parse_coordinates(fields, columns.index, number, path), name))
            if classes and name not in classes:
                raise QkvError(f"line {number}: class must be one of {', '.join(classes)}, got {name!r}", path)
    if not rows:
        raise QkvError("the file has no points", path)
    found = classes or tuple(sorted({name for _, name in rows}))
    if len(found) < 2:
        raise QkvError(f"all {len(rows)} points are of class {found[0]!r}; at least two classes are needed", path)
    if not classes:
        _require_classes(found, len(rows), path)
    numbers = {name: number for number, name in enumerate(found)}
    labels = torch.tensor([numbers[name] for _, name in rows])
    points = torch.tensor([point for point, _ in rows], dtype=torch.float64)
    return Points(LabeledExamples(points, labels), found)


def _require_classes(found: tuple[str, ...], lines: int, path: Path) -> None:
    """Raise if the class of each line looks like a measured number, which is a value to predict by regression."""
    if len(found) <= max(MAX_NUMERIC_CLASSES, lines // 2) or not all(map(_is_number, found)):
        if len(found) > MAX_CLASSES:
            raise QkvError(f"there are {len(found):,} classes, but at most {MAX_CLASSES:,} are supported", path)
        return
    raise QkvError(
        f"the column of the class holds {len(found):,} different numbers in {lines:,} lines, so it is a "
        "quantity and not a class; --set data.label=COLUMN chooses another column, and regression is not supported",
        path,
    )


def parse_numbers(text: str) -> list[float]:
    """Parse numbers separated by commas, semicolons or whitespace; raise ValueError naming one that is not valid."""
    fields = text.replace(",", " ").replace(";", " ").split()
    for field in fields:
        if problem := _number_problem(field):
            raise ValueError(f"{field!r} in {text[:40]!r} is {problem}")
    return [float(field) for field in fields]


def _sniff_separator(line: str) -> str:
    """Return the separator of a line: a tab, else a semicolon, else a comma."""
    bare = re.sub(r'"[^"]*"', "", line)
    return next((separator for separator in SEPARATORS if separator in bare), ",")


def _with_decimal_point(field: str) -> str:
    """Return a number such as 0,5 with a point; any other field as it is."""
    return field.replace(",", ".") if field.count(",") == 1 and _is_number(field.replace(",", ".")) else field


def _parse_coordinates(fields: list[str], label: int, number: int, path: Path) -> list[float]:
    """Return the numbers of a line without the field of its class, which was in column `label`."""
    for index, field in enumerate(fields):
        if problem := _number_problem(field):
            raise QkvError(f"line {number}: {field!r:.60} in column {index + 1 + (index >= label)} is {problem}", path)
    return [float(field) for field in fields]


def _number_problem(text: str) -> str:
    """Return why a text is not a valid coordinate, or an empty string."""
    if not _is_number(text) or not math.isfinite(float(text)):
        return "not a finite number"
    return "" if abs(float(text)) <= MAX_FLOAT32 else f"outside the range of float32, +-{MAX_FLOAT32:.3g}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
