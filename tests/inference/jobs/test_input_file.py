"""Pieces of a file against the lines that Python splits."""

import os
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.errors import QkvError
from qkv.inference.jobs import InputFile, InputLine, index_lines, input_file
from qkv.storage.lines import MAX_LINE_BYTES

BYTES = (b"\n", b"\n", b"\r\n", b"a", b"\xc3\xa9", b"\xff", b"\xef\xbb\xbf")


def pieces(path, part_lines):
    source = InputFile(path, index_lines(path, part_lines))
    return [list(source.read_piece(piece)) for piece in range(source.pieces)]


@pytest.mark.parametrize("chunk", [1, 3, 2**20])
@given(st.lists(st.sampled_from(BYTES), max_size=60).map(b"".join), st.integers(1, 7))
def test_pieces_are_the_lines_that_python_splits(tmp_path_factory, chunk, data, part_lines):
    path = tmp_path_factory.mktemp("input") / "lines"
    path.write_bytes(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(input_file, "CHUNK_BYTES", chunk)
        index = index_lines(path, part_lines)
    lines = data.split(b"\n")[: None if data and not data.endswith(b"\n") else -1]
    starts = [sum(len(line) + 1 for line in lines[:first]) for first in range(0, len(lines), part_lines)]
    assert (index.lines, index.offsets) == (len(lines), starts)
    assert (index.bytes, index.sha256) == (len(data), sha256(data).hexdigest())
    texts = [line.decode("utf-8", "replace").rstrip("\r\n").removeprefix("\ufeff") for line in lines]
    numbered = [InputLine(number, text, None) for number, text in enumerate(texts, 1)]
    source = InputFile(path, index)
    found = [list(source.read_piece(piece)) for piece in range(source.pieces)]
    assert found == [numbered[first : first + part_lines] for first in range(0, len(lines), part_lines)]


def test_an_empty_file_has_no_pieces(tmp_path):
    (tmp_path / "lines").touch()
    assert pieces(tmp_path / "lines", 3) == []


def test_lines_are_read_as_from_stdin(tmp_path):
    """A byte order mark, CRLF, invalid UTF-8, spaces, and no end of the last line."""
    (tmp_path / "lines").write_bytes(b"\xef\xbb\xbfa\r\n\r\n \t\nw\xffd\nlast")
    ((*first, _), second) = pieces(tmp_path / "lines", 4)
    assert [line.text for line in (*first, *second)] == ["a", "", " \t", "last"]
    assert pieces(tmp_path / "lines", 5)[0][3] == InputLine(4, "w\ufffdd", None)


def test_a_line_of_a_megabyte_has_an_error_and_its_number(tmp_path):
    (tmp_path / "lines").write_bytes(b"a" * MAX_LINE_BYTES + b"\n" + b"b" * 2**20 + b"\nc\n")
    (first, second, third) = pieces(tmp_path / "lines", 3)[0]
    assert (first.number, len(first.text), first.error) == (1, MAX_LINE_BYTES, None)
    assert second == InputLine(2, "", "line 2 is longer than 100,000 bytes")
    assert third == InputLine(3, "c", None)


def test_bad_input_a_file_without_line_ends_is_no_text(tmp_path):
    with (tmp_path / "zeros").open("wb") as file:
        file.write(b"a\n")
        file.truncate(2**26 + 3)
    with pytest.raises(QkvError, match="a line is longer than 67,108,864 bytes, so this is not a text file"):
        index_lines(tmp_path / "zeros", 10)


def test_bad_input_part_lines(tmp_path):
    with pytest.raises(ValueError, match="part_lines must be at least 1, got 0"):
        index_lines(tmp_path / "lines", 0)


def test_a_file_that_changes_while_a_job_runs_is_an_error(tmp_path):
    path = tmp_path / "lines"
    path.write_text("a\nb\nc\n")
    source = InputFile(path, index_lines(path, 2))
    assert len(list(source.read_piece(0))) == 2
    path.write_text("a\nb\nd\n")
    os.utime(path, ns=(0, source.index.modified + 1))
    with pytest.raises(QkvError, match="lines was changed while it was read"):
        list(source.read_piece(1))
