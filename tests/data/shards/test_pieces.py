import gzip

import pytest

from qkv.data.corpora.text import read_range
from qkv.data.shards import pieces as pieces_module
from qkv.data.shards.pieces import list_pieces


def ranges(pieces):
    return [[(part.path.name, part.start, part.end) for part in piece.parts] for piece in pieces]


def test_small_files_share_a_piece_and_large_ones_are_cut_at_lines(tmp_path):
    for name, size in (("a", 30), ("b", 40), ("c", 50)):
        (tmp_path / f"{name}.txt").write_text("x" * size)
    (tmp_path / "d.txt").write_text("".join(f"line {number:04}\n" for number in range(25)))  # 10 bytes each
    found = list_pieces(str(tmp_path), 105)
    assert ranges(found) == [
        [("a.txt", 0, None), ("b.txt", 0, None)],
        [("c.txt", 0, None)],
        [("d.txt", 0, 110)],
        [("d.txt", 110, 220)],
        [("d.txt", 220, 250)],
    ]
    assert [piece.number for piece in found] == [0, 1, 2, 3, 4]
    assert {piece.split for piece in found} == {None}


@pytest.mark.parametrize("block", [3, 2**16])
def test_lines_are_whole_wherever_the_limit_falls(tmp_path, monkeypatch, block):
    monkeypatch.setattr(pieces_module, "READ_BYTES", block)
    text = "".join(f"{'é' * (number % 5)} {number}\n" for number in range(40)) + "no end"
    (tmp_path / "a.txt").write_text(text)
    for limit in range(1, 60, 7):
        found = list_pieces(str(tmp_path / "a.txt"), limit)
        parts = [part for piece in found for part in piece.parts]
        texts = ["".join(read_range(part, "text")) for part in parts]
        assert "".join(texts) == text
        assert all(one.endswith("\n") for one in texts[:-1])
        assert len(found) > 5


def test_a_file_of_one_line_is_one_piece(tmp_path):
    (tmp_path / "a.txt").write_text("x" * 500)
    assert ranges(list_pieces(str(tmp_path), 7)) == [[("a.txt", 0, 500)]]


def test_compressed_files_are_not_cut(tmp_path):
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"text": "abc"}\n' * 100))
    assert ranges(list_pieces(str(tmp_path), 7)) == [[("a.jsonl.gz", 0, None)]]


def test_splits_of_the_corpus_are_pieces_of_their_own(tmp_path):
    for split in ("train", "validation", "test"):
        (tmp_path / split).mkdir()
        (tmp_path / split / "a.jsonl").write_text('{"text": "abc"}\n')
    found = list_pieces(str(tmp_path), 100)
    assert {piece.split: len(piece.parts) for piece in found} == {"train": 1, "valid": 1, "test": 1}
