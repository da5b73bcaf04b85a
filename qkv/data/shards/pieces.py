"""The pieces of a corpus, which worker processes tokenize on their own.

A piece is about as many bytes of input as its limit: a range of one file that begins and ends with a line, or some row
groups of a Parquet file, or several small files. A .gz file or an .arrow file is not cut. The pieces depend on the
corpus and the limit alone, not on the number of workers.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from qkv.data.corpora.corpus_files import FileRange, file_format, find_splits, list_corpus_files
from qkv.data.files.arrow import parquet_group_sizes
from qkv.storage import open_file

READ_BYTES = 2**16


@dataclass(frozen=True)
class Piece:
    """Parts of files that are tokenized one after the other."""

    number: int
    split: str | None
    """Split of all its documents; None: held out by the hash of each document."""
    parts: tuple[FileRange, ...]


def list_pieces(source: str, max_bytes: int) -> list[Piece]:
    """Return the pieces of a folder or a file, in the order of the corpus."""
    splits = find_splits(source)
    folders: list[tuple[str | None, str]] = [(None, source)] if splits is None else [*splits.items()]
    pieces: list[Piece] = []
    for split, folder in folders:
        waiting: list[FileRange] = []
        size = 0
        for part, part_size in _parts(list_corpus_files(folder), max_bytes):
            if waiting and size + part_size > max_bytes:
                pieces.append(Piece(len(pieces), split, tuple(waiting)))
                waiting, size = [], 0
            waiting.append(part)
            size += part_size
        pieces.append(Piece(len(pieces), split, tuple(waiting)))
    return pieces


def _parts(files: list[Path], max_bytes: int) -> Iterator[tuple[FileRange, int]]:
    """Yield parts of files with their sizes."""
    for path in files:
        size, kind = path.stat().st_size, file_format(path)
        if kind == "parquet":
            yield from _row_groups(path, max_bytes)
        elif size <= max_bytes or kind == "arrow" or path.suffix.lower() == ".gz":
            yield FileRange(path), size
        else:
            yield from _line_ranges(path, size, max_bytes)


def _row_groups(path: Path, max_bytes: int) -> Iterator[tuple[FileRange, int]]:
    start = taken = 0
    sizes = parquet_group_sizes(path)
    for number, size in enumerate(sizes):
        if number > start and taken + size > max_bytes:
            yield FileRange(path, start, number), taken
            start, taken = number, 0
        taken += size
    if sizes:
        yield FileRange(path, start, len(sizes)), taken


def _line_ranges(path: Path, size: int, max_bytes: int) -> Iterator[tuple[FileRange, int]]:
    """Yield ranges that end with the first line end after `max_bytes`."""
    start = 0
    with open_file(path) as file:
        while start < size:
            end = min(start + max_bytes, size)
            file.seek(end)
            while end < size and (block := file.read(READ_BYTES)):
                found = block.find(b"\n")
                end += len(block) if found < 0 else found + 1
                if found >= 0:
                    break
            yield FileRange(path, start, end), end - start
            start = end
