"""Sentence pairs from two files: line n of one is the translation of line n of the other."""

from io import TextIOWrapper
from itertools import zip_longest
from pathlib import Path

from qkv.data.components import SentencePair
from qkv.data.files.limits import MAX_LINE_BYTES
from qkv.data.files.pairs import MalformedLine, decode_line, read_lines
from qkv.errors import QkvError
from qkv.storage import open_file


def read_parallel(
    source: Path | str, target: Path | str, *, strict: bool = False
) -> tuple[list[SentencePair], list[MalformedLine]]:
    """Read two files with as many lines each; lines that are empty or unreadable on a side are skipped and returned.

    With `strict` the first such line raises.
    """
    source, target = Path(source), Path(target)
    # latin-1 keeps every byte, so that invalid UTF-8 is reported per line
    with TextIOWrapper(open_file(source), "latin-1") as one, TextIOWrapper(open_file(target), "latin-1") as other:
        sides = list(zip_longest(read_lines(one, source), read_lines(other, target), fillvalue=_END))
    counts = [sum(side[i] is not _END for side in sides) for i in (0, 1)]
    if counts[0] != counts[1]:
        raise QkvError(
            f"{source} has {counts[0]:,} lines and {target} {counts[1]:,}: line n of one must be the translation of "
            "line n of the other"
        )
    pairs, bad = [], []
    for number, lines in enumerate(sides, 1):
        try:
            texts = [_read(line, path, first=number == 1) for line, path in zip(lines, (source, target), strict=True)]
            pairs.append(SentencePair(*texts))
        except ValueError as error:
            if strict:
                raise QkvError(f"line {number}: {error}") from None
            bad.append(MalformedLine(number, str(error)))
    if not pairs:
        raise QkvError(f"no sentence pair among {counts[0]} lines", source)
    return pairs, bad


_END = b"\0the end"
"""What stands for the lines that the shorter file does not have."""


def _read(line: bytes | None, path: Path, *, first: bool) -> str:
    if line is None:
        raise ValueError(f"longer than {MAX_LINE_BYTES} bytes in {path.name}")
    try:
        text = decode_line(line, first=first).strip()
    except ValueError as error:
        raise ValueError(f"{error} in {path.name}") from None
    if not text:
        raise ValueError(f"empty in {path.name}")
    return text
