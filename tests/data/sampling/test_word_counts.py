import math
import re

import pytest
import torch

from qkv.data import WordCounts, split_paragraphs, split_words


def test_words_are_letters_and_digits_in_lower_case():
    text = "The Café's 3rd __init__ don\u2019t; x-ray, 'quoted' 日本 a_b"
    assert split_words(text) == [
        *("the", "café's", "3rd", "init", "don\u2019t", "x", "ray", "quoted", "日本", "a", "b")
    ]


def test_paragraphs_end_at_blank_lines():
    documents = ["One two\nthree.\n \t\nFour", "...\n\nfive"]
    assert list(split_paragraphs(documents)) == [["one", "two", "three"], ["four"], ["five"]]


def test_words_are_sorted_by_frequency_and_rare_ones_dropped():
    counts = WordCounts.build([["b", "a", "c", "a"], ["c", "a", "d", "b"]], min_count=2)
    assert counts == WordCounts(("a", "b", "c"), (3, 2, 2))
    assert counts.encode(["d", "a", "x", "c"]) == [0, 2]
    assert "b" in counts
    assert "d" not in counts
    assert WordCounts.from_record(counts.to_record()) == counts


def test_subsampling_by_hand():
    """At t = 0.1: shares 0.8 and 0.2 give sqrt(t / f) + t / f; a share below t is kept whole."""
    kept = WordCounts(("a", "b"), (80, 20)).keep_probabilities(0.1)
    assert kept.tolist() == pytest.approx([math.sqrt(1 / 8) + 1 / 8, 1.0])
    assert WordCounts(("a", "b"), (80, 20)).keep_probabilities(0).tolist() == [1, 1]
    assert WordCounts(("a", "b"), (96, 4)).keep_probabilities(0.06)[0] == pytest.approx(math.sqrt(1 / 16) + 1 / 16)


def test_negative_probabilities_by_hand():
    """16 and 81 to the power of 3/4 are 8 and 27."""
    assert WordCounts(("a", "b"), (81, 16)).negative_probabilities(0.75).tolist() == pytest.approx([27 / 35, 8 / 35])
    assert torch.equal(WordCounts(("a",), (7,)).negative_probabilities(0.75), torch.ones(1, dtype=torch.float64))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: WordCounts((), ()), "words and counts must have the same length, at least 1, got 0 and 0"),
        (lambda: WordCounts(("a",), (1, 2)), "words and counts must have the same length, at least 1, got 1 and 2"),
        (lambda: WordCounts(("a", "a"), (1, 2)), "words must be distinct, got 'a' twice"),
        (lambda: WordCounts(("a",), (0,)), "counts must be at least 1, got 0"),
        (lambda: WordCounts.build([["a", "b"]]), "no word occurs 5 times; the text has 2 distinct words"),
        (lambda: WordCounts.build([["a"]], min_count=0), "min_count must be at least 1, got 0"),
        (lambda: WordCounts(("a",), (1,)).keep_probabilities(1.0), "threshold must be at least 0 and below 1, got 1.0"),
        (lambda: WordCounts.from_record({"tokens": []}), "words must be a list of texts, but it is missing"),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make()
