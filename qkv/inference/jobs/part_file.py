"""Files of answers, a row or an object per answer, each with the number of its line in the input.

part-000000.tsv     line, the columns of the task, error; with a header
part-000000.jsonl   {"line": 1, "input": ..., "answers": [...], "error": null}
"""

import csv
import io
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from qkv.inference.predictor import Predictor
from qkv.storage import open_file
from qkv.storage.json import finite_values

Answer = tuple[int, dict[str, Any]]
"""Number of a line, and its record."""


def _format_table(predictor: Predictor, answers: Iterable[Answer]) -> str:
    return _format_rows(
        (str(number), *row, record.get("error") or "") for number, record in answers for row in predictor.rows(record)
    )


def _table_header(predictor: Predictor) -> str:
    return _format_rows([("line", *predictor.columns, "error")])


def _format_rows(rows: Iterable[Iterable[str]]) -> str:
    """Return rows of cells between tabs; a cell with a tab or a line end is quoted."""
    text = io.StringIO(newline="")
    csv.writer(text, delimiter="\t", lineterminator="\n").writerows(rows)
    return text.getvalue()


def _format_objects(_: Predictor, answers: Iterable[Answer]) -> str:
    objects = (finite_values({"line": number, "error": None, **record}) for number, record in answers)
    return "".join(json.dumps(one, ensure_ascii=False, allow_nan=False) + "\n" for one in objects)


class PartFormat(NamedTuple):
    """Functions that format the beginning of a part, and answers."""

    header: Callable[[Predictor], str]
    answers: Callable[[Predictor, Iterable[Answer]], str]


FORMATS = {"tsv": PartFormat(_table_header, _format_table), "jsonl": PartFormat(lambda _: "", _format_objects)}
"""Name, which is also the suffix of a part -> format."""


@dataclass(frozen=True)
class PartRecord:
    """Counts and checksum of a part; it is written after the part, and a part without one is predicted again."""

    lines: int
    failed: int
    """Lines that have no answer."""
    blank: int
    """Lines that are empty or have only spaces."""
    bytes: int
    sha256: str

    def to_record(self) -> dict[str, Any]:
        """Return the record as plain data."""
        return asdict(self)

    def matches(self, path: Path) -> bool:
        """Return whether a file has this size and checksum."""
        digest, size = sha256(), 0
        with open_file(path) as file:
            while chunk := file.read(2**20):
                digest.update(chunk)
                size += len(chunk)
        return (size, digest.hexdigest()) == (self.bytes, self.sha256)


class PartWriter:
    """Writes the answers of one part to an open file, and counts them."""

    def __init__(self, file: TextIO, form: PartFormat, predictor: Predictor):
        self._file, self._form, self._predictor = file, form, predictor
        self._digest, self._bytes = sha256(), 0
        self.lines = self.failed = self.blank = 0
        self._write(form.header(predictor))

    def write(self, answers: list[Answer]) -> None:
        """Write records with the numbers of their lines."""
        self.lines += len(answers)
        self.failed += sum(record.get("error") is not None for _, record in answers)
        self.blank += sum(record.get("error") is None and not record["input"].strip() for _, record in answers)
        self._write(self._form.answers(self._predictor, answers))

    def _write(self, text: str) -> None:
        data = text.encode("utf-8", "backslashreplace")
        self._digest.update(data)
        self._bytes += len(data)
        self._file.write(data.decode())

    def record(self) -> PartRecord:
        """Return the counts and the checksum of what was written."""
        return PartRecord(self.lines, self.failed, self.blank, self._bytes, self._digest.hexdigest())
