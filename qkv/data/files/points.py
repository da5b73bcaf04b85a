"""Labeled points from a CSV file: coordinates, then the class in the last column.

    0.5,1.25,red

A first line without any number is a header. nan and inf parse as numbers, but a point must be finite.
"""

import csv
import math
from dataclasses import dataclass
from pathlib import Path

import torch

from qkv.data.labeled import LabeledExamples
from qkv.errors import QkvError
from qkv.storage import open_file

MAX_FLOAT32 = torch.finfo(torch.float32).max
"""Largest coordinate, since models compute in float32."""


@dataclass(frozen=True)
class Points:
    """Points and the names of their classes; label i is classes[i]."""

    examples: LabeledExamples
    classes: tuple[str, ...]


def read_points(path: Path | str, classes: tuple[str, ...] = ()) -> Points:
    """Read a file; `classes` are the only ones allowed (default: those that occur, sorted, at least two).

    Coordinates are float64: large values that differ slightly would be equal in float32.
    """
    path = Path(path)
    rows: list[tuple[list[float], str]] = []
    with open_file(path) as file:
        for number, line in enumerate(file, 1):
            fields = _fields(line, number, path)
            if not fields or (number == 1 and not any(map(_is_number, fields))):
                continue
            if rows and len(fields) != len(rows[0][0]) + 1:
                raise QkvError(f"line {number}: {len(fields)} columns, expected {len(rows[0][0]) + 1} as above", path)
            rows.append((_parse_coordinates(fields[:-1], number, path), fields[-1]))
            if classes and fields[-1] not in classes:
                raise QkvError(f"line {number}: class must be one of {', '.join(classes)}, got {fields[-1]!r}", path)
    if not rows:
        raise QkvError("the file has no points", path)
    found = classes or tuple(sorted({name for _, name in rows}))
    if len(found) < 2:
        raise QkvError(f"all {len(rows)} points are of class {found[0]!r}; at least two classes are needed", path)
    labels = torch.tensor([found.index(name) for _, name in rows])
    points = torch.tensor([point for point, _ in rows], dtype=torch.float64)
    return Points(LabeledExamples(points, labels), found)


def parse_numbers(text: str) -> list[float]:
    """Parse numbers separated by commas or spaces; raise ValueError naming the first that is not valid."""
    fields = text.replace(",", " ").split()
    for field in fields:
        if problem := _number_problem(field):
            raise ValueError(f"{field!r} in {text[:40]!r} is {problem}")
    return [float(field) for field in fields]


def _fields(line: bytes, number: int, path: Path) -> list[str]:
    try:
        text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
        (fields,) = csv.reader([text], strict=True) if text else ([],)
    except (UnicodeDecodeError, csv.Error) as error:
        raise QkvError(f"line {number}: {error}", path) from None
    if len(fields) == 1:
        raise QkvError(f"line {number}: one column, expected numbers and a class, separated by commas", path)
    return [field.strip() for field in fields]


def _parse_coordinates(fields: list[str], number: int, path: Path) -> list[float]:
    for column, field in enumerate(fields, 1):
        if problem := _number_problem(field):
            raise QkvError(f"line {number}: {field!r} in column {column} is {problem}", path)
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
