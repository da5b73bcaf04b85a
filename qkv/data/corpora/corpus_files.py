"""The files of a text corpus: which there are, of which format, and the documents in them.

.txt       plain text; long files are split into documents
.jsonl     one JSON object per line; a document is the text in one of its columns
.parquet   a document per row
.arrow     the same; a folder of `datasets.save_to_disk` is read as its state.json lists the files

.txt.gz and .jsonl.gz are read through gzip. A folder holds files of one format.
"""

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, cast

from qkv.data.files.arrow import read_arrow, read_parquet
from qkv.errors import QkvError
from qkv.storage import load_json, open_file, read_file
from qkv.storage.json import MAX_BYTES

SUFFIXES = {".txt": "text", ".jsonl": "lines", ".parquet": "parquet", ".arrow": "arrow"}
SPLITS = ("train", "valid", "test")
MAX_LINE_BYTES = 2**26
"""Longest line of a .jsonl file."""
_NAMES = {"train": ("train",), "valid": ("validation", "valid"), "test": ("test",)}
"""Names of the folder of each split; "validation" is for files with columns."""


@dataclass(frozen=True)
class FileRange:
    """Part of a file: bytes of a text, row groups of a Parquet file; `end` None: to its end."""

    path: Path
    start: int = 0
    end: int | None = None


def file_format(path: Path) -> str:
    """Return "text", "lines", "parquet" or "arrow"; a file of another name is a text."""
    name = path.name.lower().removesuffix(".gz")
    return next((kind for suffix, kind in SUFFIXES.items() if name.endswith(suffix)), "text")


def list_corpus_files(source: str) -> list[Path]:
    """Return the files of a folder, sorted, or the one file; a folder with files of two formats raises."""
    path = Path(source)
    if not path.is_dir():
        open_file(path).close()
        return [path]
    files = _list_saved_dataset(path)
    if files is None:
        endings = (*SUFFIXES, *(f"{suffix}.gz" for suffix in (".txt", ".jsonl")))
        files = sorted(found for found in path.rglob("*") if found.name.endswith(endings) and found.is_file())
    if not files:
        raise QkvError(f"there is no {', '.join(list(SUFFIXES)[:-1])} or .arrow file in the folder", source)
    first = {file_format(found): found for found in reversed(files)}
    if len(first) > 1:
        shown = " and ".join(str(found.relative_to(path)) for found in sorted(first.values()))
        raise QkvError(f"a corpus must have files of one format, but there are {shown}", source)
    return files


def has_columns(files: list[Path]) -> bool:
    """Return whether these files have rows with named columns."""
    return file_format(files[0]) != "text"


def find_splits(source: str) -> dict[str, str] | None:
    """Return the folder of each split, if there are subfolders for all three; a saved dataset with fewer raises."""
    path = Path(source)
    found = {split: str(path / name) for split, names in _NAMES.items() for name in names if (path / name).is_dir()}
    is_text = (path / "validation").is_dir() and not has_columns(list_corpus_files(str(path)))
    if len(found) == len(_NAMES) and not is_text:
        return found
    if (path / "dataset_dict.json").is_file():
        there = ", ".join(found.values()) or "none of them"
        raise QkvError(
            f"the saved dataset must have the splits train, valid (or validation) and test, but there is {there}; "
            "name one split to hold out documents of it",
            source,
        )
    return None


def read_rows(part: FileRange, column: str) -> Iterator[str]:
    """Yield the texts of a column, without empty ones."""
    kind = file_format(part.path)
    if kind == "parquet":
        return read_parquet(part.path, column, part.start, part.end)
    return read_arrow(part.path, column) if kind == "arrow" else _read_lines(part, column)


@contextmanager
def open_text(path: Path) -> Iterator[BufferedReader]:
    """Open a file for reading, through gzip if it is named .gz; damaged gzip data raises."""
    with open_file(path) as file:
        if path.suffix.lower() != ".gz":
            yield file
            return
        try:
            with gzip.open(file) as unpacked:
                yield cast("BufferedReader", unpacked)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise QkvError(f"the gzip data is damaged or cut off ({error})", path) from None


def _list_saved_dataset(path: Path) -> list[Path] | None:
    """Return the files that a folder of `datasets.save_to_disk` lists; its folder may also hold caches."""
    state = path / "state.json"
    if not state.is_file() or not (path / "dataset_info.json").is_file():
        return None
    listed = load_json(read_file(state, MAX_BYTES), state).get("_data_files")
    names: list[Any] = (
        [entry.get("filename") for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
    )
    if not names or not all(isinstance(name, str) and re.fullmatch(r"[^/\\]+\.arrow", name) for name in names):
        raise QkvError("state.json must list .arrow files under _data_files", path)
    files = [path / name for name in names]
    for file in files:
        open_file(file).close()
    return files


def _read_lines(part: FileRange, column: str) -> Iterator[str]:
    """Yield the texts of the lines that begin in a range."""
    with open_text(part.path) as file:
        place = part.start
        file.seek(place)
        while (part.end is None or place < part.end) and (line := file.readline(MAX_LINE_BYTES + 1)):
            if len(line) > MAX_LINE_BYTES:
                raise QkvError(f"the line at byte {place:,} is longer than {MAX_LINE_BYTES:,} bytes", part.path)
            text = _column_text(line, column, part.path, place) if line.strip() else ""
            if text.strip():
                yield text
            place += len(line)


def _column_text(line: bytes, column: str, path: Path, place: int) -> str:
    where = f"the line at byte {place:,}"
    try:
        row = json.loads(line.decode("utf-8-sig" if not place else "utf-8"))
    except UnicodeDecodeError as error:
        raise QkvError(f"{where} is not UTF-8: its byte {error.start:,} is 0x{line[error.start]:02x}", path) from None
    except (ValueError, RecursionError) as error:
        raise QkvError(f"{where} is not JSON ({error})", path) from None
    if not isinstance(row, dict):
        raise QkvError(f"{where} must be a JSON object, but is a {type(row).__name__}", path)
    if column not in row:
        shown = ", ".join(map(str, list(row)[:10]))
        raise QkvError(f"{where} has no column {column!r} (data.column); it has: {shown}", path)
    text = row[column]
    if text is not None and not isinstance(text, str):
        raise QkvError(f"the column {column!r} must hold texts, but {where} has a {type(text).__name__}", path)
    try:
        (text or "").encode()
    except UnicodeEncodeError:
        raise QkvError(f"{where} has half a character (a lone surrogate)", path) from None
    return text or ""
