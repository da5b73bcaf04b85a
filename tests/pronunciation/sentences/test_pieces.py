import io

from hypothesis import given
from hypothesis import strategies as st

from qkv.pronunciation.sentences.pieces import MAX_PIECE, PIECE, cut, read_pieces


@given(st.lists(st.sampled_from(["word ", "End. Next ", "\n\n", "x" * 9_000, "y" * 40_000]), max_size=9))
def test_pieces_are_the_text(parts):
    text = "".join(parts)
    assert "".join(cut(text)) == text
    pieces = list(read_pieces(io.StringIO(text)))
    assert "".join(pieces) == text
    assert max(map(len, pieces), default=0) <= MAX_PIECE


def test_a_piece_ends_with_a_sentence():
    text = "A short sentence of seven words here. " * 1000
    first, *_ = cut(text)
    assert PIECE <= len(first) < PIECE + 100
    assert first.endswith("here. ")
