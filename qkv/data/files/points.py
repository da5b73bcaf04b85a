"""Points with a class, from a CSV file: numbers, then the class in the last column.

    0.5,1.25,red

A first line without a number in it is a heading; nan and inf are numbers, though none that a point may have.
"""

import csv
import math
from dataclasses import dataclass
from pathlib import Path

import torch

from qkv.data.labeled import Labeled
from qkv.storage import QkvError, open_file

LARGEST = torch.finfo(torch.float32).max
"""Models compute in float32."""


@dataclass(frozen=True)
class Points:
    """Points, and the names of their classes in the order of their numbers."""

    examples: Labeled
    classes: tuple[str, ...]


def xor() -> Points:
    """The four corners of a square: 1 where the coordinates differ."""
    corners = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    return Points(Labeled(corners, torch.tensor([0, 1, 1, 0])), ("0", "1"))


def read_points(path: Path | str, classes: tuple[str, ...] = ()) -> Points:
    """Read a file; with `classes` these are the only ones allowed, else those that occur, sorted, at least two.

    Numbers are float64, since what tells large ones apart is lost in float32.
    """
    path = Path(path)
    rows: list[tuple[list[float], str]] = []
    with open_file(path) as file:
        for number, line in enumerate(file, 1):
            fields = _fields(line, number, path)
            if not fields or (number == 1 and not any(map(_reads_as_number, fields))):
                continue
            if rows and len(fields) != len(rows[0][0]) + 1:
                raise QkvError(f"line {number}: {len(fields)} columns, but {len(rows[0][0]) + 1} before", path)
            rows.append((_numbers(fields[:-1], number, path), fields[-1]))
            if classes and fields[-1] not in classes:
                raise QkvError(f"line {number}: class {fields[-1]!r} is none of {', '.join(classes)}", path)
    if not rows:
        raise QkvError("there is no point in it", path)
    found = classes or tuple(sorted({name for _, name in rows}))
    if len(found) < 2:
        raise QkvError(f"all {len(rows)} points are of class {found[0]!r}; at least two classes are needed", path)
    labels = torch.tensor([found.index(name) for _, name in rows])
    return Points(Labeled(torch.tensor([point for point, _ in rows], dtype=torch.float64), labels), found)


def parse_numbers(text: str) -> list[float]:
    """Numbers separated by commas or spaces; a ValueError names what is none."""
    fields = text.replace(",", " ").split()
    for field in fields:
        if flaw := _flaw(field):
            raise ValueError(f"{field!r} in {text[:40]!r} is {flaw}")
    return [float(field) for field in fields]


def _fields(line: bytes, number: int, path: Path) -> list[str]:
    try:
        text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
        (fields,) = csv.reader([text], strict=True) if text else ([],)
    except (UnicodeDecodeError, csv.Error) as error:
        raise QkvError(f"line {number}: {error}", path) from None
    if len(fields) == 1:
        raise QkvError(f"line {number}: one column, but numbers and a class, with commas between, are expected", path)
    return [field.strip() for field in fields]


def _numbers(fields: list[str], number: int, path: Path) -> list[float]:
    for column, field in enumerate(fields, 1):
        if flaw := _flaw(field):
            raise QkvError(f"line {number}: {field!r} in column {column} is {flaw}", path)
    return [float(field) for field in fields]


def _flaw(text: str) -> str:
    """What is wrong with a number; nothing if a model can be given it."""
    if not _reads_as_number(text) or not math.isfinite(float(text)):
        return "not a finite number"
    return "" if abs(float(text)) <= LARGEST else f"beyond the range of float32, {LARGEST:.3g} either way"


def _reads_as_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
