"""Word vectors as text, in the format of word2vec, which most tools read.

    2 3                          how many words, how wide
    king 0.25 -1 0.125           a word, then its numbers
    queen 0.5 0 3

Numbers are written so that the same float32 comes back. A word may be anything without white space.
"""

from pathlib import Path

import torch

from qkv.data.sampling.vectors import Vectors
from qkv.storage import QkvError, open_file, write_atomic


def write_vectors(path: Path, vectors: Vectors) -> None:
    """Write the file as a whole or not at all."""
    for word in vectors.words:
        if not word or any(sign in word for sign in " \t\r\n"):
            raise ValueError(f"the format has no room for the word {word!r}: it must be without white space")
    lines = [f"{len(vectors)} {vectors.table.shape[1]}"]
    for word, row in zip(vectors.words, vectors.table.float().tolist(), strict=True):
        lines.append(f"{word} {' '.join(f'{number:.9g}' for number in row)}")
    write_atomic(path, ("\n".join(lines) + "\n").encode())


def read_vectors(path: Path) -> Vectors:
    """Read such a file; one that says other sizes than it has, or holds what is no number, is refused."""
    with open_file(path) as file:
        try:
            lines = file.read().decode().split("\n")
        except UnicodeDecodeError as error:
            raise QkvError(
                f"the file is not UTF-8 (byte {error.start:,}); the binary format is not read", path
            ) from None
    while lines and not lines[-1].strip():
        lines.pop()
    count, width = _header(lines, path)
    if len(lines) - 1 != count:
        raise QkvError(f"the first line says {count:,} words, but {len(lines) - 1:,} follow", path)
    table = torch.empty(count, width)
    places: dict[str, int] = {}
    for number, line in enumerate(lines[1:]):
        # only spaces separate: other white space may be part of a word in files of others
        word, *rest = line.rstrip(" \r").split(" ")
        place = f"line {number + 2}"
        if len(rest) != width:
            raise QkvError(
                f"{place} has {len(rest)} numbers after {word[:40]!r}, but the first line says {width}", path
            )
        if places.setdefault(word, number) != number:
            raise QkvError(f"{place} has {word[:40]!r} again, which stands in line {places[word] + 2}", path)
        try:
            table[number] = torch.tensor([float(text) for text in rest])
        except ValueError as error:
            raise QkvError(f"{place}, {word[:40]!r}: {str(error).removeprefix('could not convert ')}", path) from None
    if not bool(table.isfinite().all()):
        bad = int((~table.isfinite()).any(1).nonzero()[0])
        raise QkvError(f"line {bad + 2} holds a number that is not finite", path)
    return Vectors(tuple(places), table)


def _header(lines: list[str], path: Path) -> tuple[int, int]:
    first = lines[0].split() if lines else []
    if len(first) != 2 or not all(text.isascii() and text.isdigit() and int(text) for text in first):
        shown = lines[0][:40] if lines else ""
        raise QkvError(f"the first line must be two numbers, words and width, but is {shown!r}", path)
    return int(first[0]), int(first[1])
