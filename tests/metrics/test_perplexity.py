import math

import pytest

from qkv.metrics import Perplexity, count_words


def test_a_model_that_guesses_among_equals():
    """Of 8 equally likely tokens each costs ln 8: perplexity 8 a token, 8^(6/4) a word, 3 bits each of 6 in 9 bytes."""
    found = Perplexity(loss=6 * math.log(8), tokens=6, words=4, bytes=9)
    assert found.per_token == pytest.approx(8, rel=1e-12)
    assert found.per_word == pytest.approx(8**1.5, rel=1e-12)
    assert found.bits_per_byte == pytest.approx(2, rel=1e-12)


def test_perplexities_add():
    assert Perplexity(1.5, 2, 3, 5) + Perplexity(2.0, 7, 11, 13) == Perplexity(3.5, 9, 14, 18)


def test_empty_text_and_overflow():
    nothing = Perplexity()
    assert all(map(math.isnan, (nothing.per_token, nothing.per_word, nothing.bits_per_byte)))
    assert Perplexity(1e6, 1, 1, 1).per_token == math.inf


def test_words_are_between_white_space_and_each_line_end_is_one():
    assert count_words(" = A title = \n \n Two words .\n") == 4 + 3 + 3
    assert count_words("") == 0
    assert count_words("one") == 1
