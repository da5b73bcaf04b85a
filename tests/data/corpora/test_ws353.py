import pytest

from qkv.data import Analogy, WordPair, analogies, ws353
from qkv.data.corpora.ws353 import parse_analogies, parse_pairs
from qkv.errors import QkvError
from tests.data.archives import need_word_tests


def test_parsing():
    assert parse_pairs("# remark\nTiger\tcat\t7.35\n\nbook\tpaper\t7\n") == [
        WordPair("tiger", "cat", 7.35),
        WordPair("book", "paper", 7.0),
    ]
    assert parse_analogies(": capital\nAthens Greece Oslo Norway\n: family\nboy girl king queen\n") == [
        Analogy("capital", ("athens", "greece", "oslo", "norway")),
        Analogy("family", ("boy", "girl", "king", "queen")),
    ]


@pytest.mark.parametrize("line", ["tiger cat 7", "tiger\tcat\tmuch", "tiger\tcat"])
def test_a_bad_pair(line):
    with pytest.raises(QkvError, match="line 1 must be word TAB word TAB score, got 'tiger"):
        parse_pairs(line)


def test_a_bad_analogy():
    with pytest.raises(QkvError, match="line 2 must be four words, got 'one two three'"):
        parse_analogies(": x\none two three")


@pytest.mark.slow
def test_as_published():
    """353 pairs, the first about love and sex; 19,544 questions in 14 sections, 8,869 of them about meaning."""
    need_word_tests()
    pairs, questions = ws353(), analogies()
    assert len(pairs) == 353
    assert pairs[0] == WordPair("love", "sex", 6.77)
    assert len(questions) == 19_544
    assert len({question.section for question in questions}) == 14
    assert sum(not question.section.startswith("gram") for question in questions) == 8_869
