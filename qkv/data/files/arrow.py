"""A column of texts from Parquet files and from Arrow files, as `datasets.save_to_disk` writes them, by pyarrow."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from qkv.errors import QkvError, nearest_name
from qkv.storage import open_file

ROWS = 256
"""Rows that are decoded together."""


def read_parquet(path: Path, column: str, start: int = 0, end: int | None = None) -> Iterator[str]:
    """Yield the texts of a column in the row groups [start, end), without empty ones."""
    with _errors(path), open_file(path) as opened:
        file = _library("pyarrow.parquet").ParquetFile(opened)
        _require_text(file.schema_arrow, column, path)
        groups = list(range(file.num_row_groups))[start:end]
        for batch in file.iter_batches(ROWS, row_groups=groups, columns=[column], use_threads=False):
            yield from _texts(batch.column(0))


def parquet_group_sizes(path: Path) -> list[int]:
    """Return the unpacked bytes of each row group of a file."""
    with _errors(path), open_file(path) as opened:
        metadata = _library("pyarrow.parquet").ParquetFile(opened).metadata
        return [metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups)]


def read_arrow(path: Path, column: str) -> Iterator[str]:
    """Yield the texts of a column of an Arrow file, in the stream or the file format, without empty ones."""
    ipc = _library("pyarrow.ipc")
    with _errors(path), open_file(path) as opened:
        is_file = opened.peek(6)[:6] == b"ARROW1"
        if not is_file:
            reader = ipc.open_stream(opened)
            _require_text(reader.schema, column, path)
            batches: Iterator[Any] = iter(reader)
        else:
            reader = ipc.open_file(opened)
            _require_text(reader.schema, column, path)
            batches = map(reader.get_batch, range(reader.num_record_batches))
        for batch in batches:
            for first in range(0, len(batch), ROWS):
                yield from _texts(batch.column(column).slice(first, ROWS))


def _texts(values: Any) -> Iterator[str]:
    for text in values.to_pylist():
        if text is not None and text.strip():
            yield text


def _require_text(schema: Any, column: str, path: Path) -> None:
    """Raise unless the file has one column of this name, with texts."""
    if schema.names.count(column) != 1:
        number = "no" if column not in schema.names else "more than one"
        shown = ", ".join(schema.names[:10])
        nearest = nearest_name(column, schema.names)
        raise QkvError(f"there is {number} column {column!r} (data.column) but {shown}", path, nearest)
    types, found = _library("pyarrow").types, schema.field(column).type
    value = found.value_type if types.is_dictionary(found) else found
    if not (types.is_string(value) or types.is_large_string(value) or types.is_string_view(value)):
        raise QkvError(f"the column {column!r} must hold texts, but holds {found}", path)


@contextmanager
def _errors(path: Path) -> Iterator[None]:
    """Name the file in the errors of the library, and the extra if the library is missing."""
    arrow = _library("pyarrow")
    try:
        yield
    except UnicodeDecodeError as error:
        raise QkvError(f"a text is not UTF-8 ({error.reason})", path) from None
    except (arrow.ArrowException, OSError) as error:
        line = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise QkvError(f"the file is damaged or not what its name says ({line})", path) from None


def _library(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError:
        raise QkvError('Parquet and Arrow files need the package pyarrow: pip install "qkv[arrow]"') from None
