"""Word vectors in word2vec's text format, which most tools read.

    2 3                          number of words, dimension
    king 0.25 -1 0.125           a word, then its vector
    queen 0.5 0 3

Values round-trip exactly as float32. A word must not contain white space.
"""

import os
from io import BufferedReader
from pathlib import Path

import torch
from torch import Tensor

from qkv.data.sampling.vectors import Vectors
from qkv.errors import QkvError
from qkv.storage import open_file, write_atomic

MAX_WORD_BYTES = 10_000
MAX_VALUE_BYTES = 40
"""Longest word and longest number of a line."""
MAX_DIGITS = 18


def write_vectors(path: Path, vectors: Vectors) -> None:
    """Write the file atomically."""
    for word in vectors.words:
        if not word or any(sign in word for sign in " \t\r\n"):
            raise ValueError(f"words must be non-empty and without white space, got {word!r}")
    lines = [f"{len(vectors)} {vectors.table.shape[1]}"]
    for word, row in zip(vectors.words, vectors.table.float().tolist(), strict=True):
        lines.append(f"{word} {' '.join(f'{number:.9g}' for number in row)}")
    write_atomic(path, ("\n".join(lines) + "\n").encode())


def read_vectors(path: Path) -> Vectors:
    """Read a file; raise QkvError where its header, widths or values are wrong."""
    with open_file(path) as file:
        count, width = _read_header(file, path)
        table = torch.empty(count, width)
        rows: dict[str, int] = {}
        for number in range(count):
            text = _read_line(file, width, path)
            if not text:
                raise QkvError(f"the first line gives {count:,} words, but {number:,} follow", path)
            _parse_row(text, number, table, rows, path)
        while more := _read_line(file, width, path):
            if more.strip():
                raise QkvError(f"the first line gives {count:,} words, but more follow: {more[:40].rstrip()!r}", path)
    if not bool(table.isfinite().all()):
        bad = int((~table.isfinite()).any(1).nonzero()[0])
        raise QkvError(f"line {bad + 2} has a value that is not finite", path)
    return Vectors(tuple(rows), table)


def _parse_row(text: str, number: int, table: Tensor, rows: dict[str, int], path: Path) -> None:
    """Write the values of a line into row `number` of the table."""
    # split at spaces only: other tools allow other white space inside a word
    word, *rest = text.rstrip(" \r\n").split(" ")
    where, width = f"line {number + 2}", table.shape[1]
    if len(rest) != width:
        raise QkvError(f"{where} has {len(rest)} values after {word[:40]!r}, but the first line gives {width}", path)
    if rows.setdefault(word, number) != number:
        raise QkvError(f"{where} repeats {word[:40]!r} of line {rows[word] + 2}", path)
    try:
        table[number] = torch.tensor([float(text) for text in rest])
    except ValueError as error:
        reason = str(error).removeprefix("could not convert ")
        raise QkvError(f"{where}, {word[:40]!r}: {reason:.100}", path) from None


def _read_line(file: BufferedReader, width: int, path: Path) -> str:
    """Return the next line with its end, or the beginning of one that is too long; empty at the end of the file."""
    start = file.tell()
    try:
        return file.readline(MAX_WORD_BYTES + MAX_VALUE_BYTES * width).decode()
    except UnicodeDecodeError as error:
        offset = start + error.start
        raise QkvError(f"the file is not UTF-8 (byte {offset:,}); the binary format is not supported", path) from None


def _read_header(file: BufferedReader, path: Path) -> tuple[int, int]:
    """Return the number of words and the dimension, which the rest of the file must have room for."""
    text = _read_line(file, 0, path)
    first = text.split()
    if len(first) != 2 or not all(_is_count(word) for word in first):
        shown = text[:40].rstrip("\r\n")
        raise QkvError(f"the first line must be the number of words and the dimension, got {shown!r}", path)
    count, width = map(int, first)
    size = os.fstat(file.fileno()).st_size
    if 2 * count * width > size:  # a value is a space and a digit, or more
        raise QkvError(f"the first line gives {count:,} x {width:,} values, but the file has {size:,} bytes", path)
    return count, width


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS and int(text) > 0
