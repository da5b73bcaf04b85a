"""Word vectors in word2vec's text format, which most tools read.

    2 3                          number of words, dimension
    king 0.25 -1 0.125           a word, then its vector
    queen 0.5 0 3

Values round-trip exactly as float32. A word must not contain white space.
"""

from pathlib import Path

import torch

from qkv.data.sampling.vectors import Vectors
from qkv.errors import QkvError
from qkv.storage import open_file, write_atomic


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
        try:
            lines = file.read().decode().split("\n")
        except UnicodeDecodeError as error:
            raise QkvError(
                f"the file is not UTF-8 (byte {error.start:,}); the binary format is not supported", path
            ) from None
    while lines and not lines[-1].strip():
        lines.pop()
    count, width = _parse_header(lines, path)
    if len(lines) - 1 != count:
        raise QkvError(f"the first line gives {count:,} words, but {len(lines) - 1:,} follow", path)
    table = torch.empty(count, width)
    rows: dict[str, int] = {}
    for number, line in enumerate(lines[1:]):
        # split at spaces only: other tools allow other white space inside a word
        word, *rest = line.rstrip(" \r").split(" ")
        where = f"line {number + 2}"
        if len(rest) != width:
            raise QkvError(
                f"{where} has {len(rest)} values after {word[:40]!r}, but the first line gives {width}", path
            )
        if rows.setdefault(word, number) != number:
            raise QkvError(f"{where} repeats {word[:40]!r} of line {rows[word] + 2}", path)
        try:
            table[number] = torch.tensor([float(text) for text in rest])
        except ValueError as error:
            raise QkvError(f"{where}, {word[:40]!r}: {str(error).removeprefix('could not convert ')}", path) from None
    if not bool(table.isfinite().all()):
        bad = int((~table.isfinite()).any(1).nonzero()[0])
        raise QkvError(f"line {bad + 2} has a value that is not finite", path)
    return Vectors(tuple(rows), table)


def _parse_header(lines: list[str], path: Path) -> tuple[int, int]:
    first = lines[0].split() if lines else []
    if len(first) != 2 or not all(text.isascii() and text.isdigit() and int(text) for text in first):
        shown = lines[0][:40] if lines else ""
        raise QkvError(f"the first line must be the number of words and the dimension, got {shown!r}", path)
    return int(first[0]), int(first[1])
