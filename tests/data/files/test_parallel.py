"""Sentence pairs from two files."""

import pytest

from qkv.data import SentencePair, read_parallel
from qkv.data.files.limits import MAX_LINE_BYTES
from qkv.data.files.pairs import MalformedLine
from qkv.errors import QkvError


@pytest.fixture
def write(tmp_path):
    def write(source, target):
        paths = tmp_path / "a.en", tmp_path / "a.de"
        for path, data in zip(paths, (source, target), strict=True):
            path.write_bytes(data)
        return paths

    return write


def test_lines_are_pairs(write):
    paths = write("\ufeffOne.\r\nTwo\tthree.\r\n".encode(), " Eins. \nZwei, dr\u00fcei.".encode())
    pairs, bad = read_parallel(*paths)
    assert pairs == [SentencePair("One.", "Eins."), SentencePair("Two\tthree.", "Zwei, dr\u00fcei.")]
    assert bad == []


def test_a_different_number_of_lines_names_both_counts(write):
    one, other = write(b"a\nb\nc\n", b"a\nb\n")
    with pytest.raises(QkvError) as caught:
        read_parallel(one, other)
    assert str(caught.value) == (
        f"{one} has 3 lines and {other} 2: line n of one must be the translation of line n of the other"
    )


def test_empty_and_unreadable_lines_are_skipped_and_counted(write):
    long = b"x" * (MAX_LINE_BYTES + 1)
    paths = write(b"a\n\nc\n\xff\ne\n" + long + b"\ng\0\nh\n", b"A\nB\n  \nD\nE\nF\nG\nH\n")
    pairs, bad = read_parallel(*paths)
    assert [pair.source for pair in pairs] == ["a", "e", "h"]
    assert bad == [
        MalformedLine(2, "empty in a.en"),
        MalformedLine(3, "empty in a.de"),
        MalformedLine(4, "not UTF-8 at byte 1 in a.en"),
        MalformedLine(6, f"longer than {MAX_LINE_BYTES} bytes in a.en"),
        MalformedLine(7, "a NUL character in a.en"),
    ]
    with pytest.raises(QkvError, match=r"^line 2: empty in a\.en"):
        read_parallel(*paths, strict=True)


def test_files_without_a_pair_are_refused(write):
    paths = write(b"\n\n", b"x\n\n")
    with pytest.raises(QkvError, match="no sentence pair among 2 lines"):
        read_parallel(*paths)
    with pytest.raises(QkvError, match=r"a\.xx"):
        read_parallel(paths[0], paths[0].with_suffix(".xx"))
