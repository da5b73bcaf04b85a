import re

import pytest
import torch

from qkv.data import Vectors, read_vectors, write_vectors
from qkv.errors import QkvError

ODD = ("king", "2", "don\u2019t", "日本", "a\u00a0b", "1.5", "\u2028x", "<unk>", "naïve")


def test_every_float32_round_trips(tmp_path):
    torch.manual_seed(1)
    table = torch.randn(9, 5) * 10.0 ** torch.randint(-30, 30, (9, 5))
    write_vectors(tmp_path / "v.txt", Vectors(ODD, table))
    found = read_vectors(tmp_path / "v.txt")
    assert found.words == ODD
    assert torch.equal(found.table, table)


def test_the_format(tmp_path):
    write_vectors(tmp_path / "v.txt", Vectors(("king", "queen"), torch.tensor([[0.25, -1, 0.125], [0.5, 0, 3]])))
    assert (tmp_path / "v.txt").read_text() == "2 3\nking 0.25 -1 0.125\nqueen 0.5 0 3\n"


def test_files_of_other_tools(tmp_path):
    """word2vec ends a line with a space; Windows with a carriage return."""
    (tmp_path / "v.txt").write_bytes(b"2 2\nking 1e-3 -2.50 \r\nqueen +3 4 \r\n\n")
    found = read_vectors(tmp_path / "v.txt")
    assert found.words == ("king", "queen")
    assert torch.equal(found.table, torch.tensor([[1e-3, -2.5], [3, 4]]))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the first line must be the number of words and the dimension, got ''"),
        (b"king 1 2\n", "the first line must be the number of words and the dimension, got 'king 1 2'"),
        (b"0 2\n", "the first line must be the number of words and the dimension, got '0 2'"),
        (b"-1 2\n", "the first line must be the number of words"),
        (b"2 2\na 1.25 2.5\n", "the first line gives 2 words, but 1 follow"),
        (b"2 3\na 1\n", "the first line gives 2 x 3 values, but the file has 8 bytes"),
        (b"1 100000000000\na 1\n", "the first line gives 1 x 100,000,000,000 values, but the file has 19 bytes"),
        (b"1 " + b"9" * 5_000 + b"\n", "the first line must be the number of words"),
        (b"1 2\na 1 2\nb 1 2\n", "the first line gives 1 words, but more follow: 'b 1 2'"),
        (b"2 2\na 1 2\nb 1\n", "line 3 has 1 values after 'b', but the first line gives 2"),
        (b"1 2\na b 1 2\n", "line 2 has 3 values after 'a', but the first line gives 2"),
        (b"1 2\na 1 x\n", "line 2, 'a': string to float: 'x'"),
        (b"2 1\na 1\na 2\n", "line 3 repeats 'a' of line 2"),
        (b"2 1\na 1\nb nan\n", "line 3 has a value that is not finite"),
        (b"1 1\n\xff 1\n", "the file is not UTF-8 (byte 4); the binary format is not supported"),
    ],
)
def test_bad_files(tmp_path, data, message):
    (tmp_path / "v.txt").write_bytes(data)
    with pytest.raises(QkvError, match=re.escape(message) + r".*v\.txt"):
        read_vectors(tmp_path / "v.txt")


def test_a_missing_file(tmp_path):
    (tmp_path / "vectors.txt").touch()
    with pytest.raises(QkvError, match="did you mean vectors.txt"):
        read_vectors(tmp_path / "vector.txt")


@pytest.mark.parametrize("word", ["a b", "", "a\n", "\tb"])
def test_words_with_white_space_are_rejected(tmp_path, word):
    with pytest.raises(ValueError, match="words must be non-empty and without white space"):
        write_vectors(tmp_path / "v.txt", Vectors((word,), torch.zeros(1, 2)))
    assert not (tmp_path / "v.txt").exists()
