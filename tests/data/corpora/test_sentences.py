"""Splitting text into sentences takes linear time and loses no word."""

import re
import time

import pytest

from qkv.data.corpora.text import python_docs, split_sentences


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        (500 * ".", []),
        (500 * ".'", []),
        (200 * "?! ", []),
        (100 * ". ((((", []),
        ("A. " * 200, ["A. " * 199 + "A."]),
        ("Dr. No. St. " * 50, ["Dr. No. St. " * 49 + "Dr. No. St."]),
        ("approx. A", ["approx. A"]),
        ("Aapprox. A", ["Aapprox.", "A"]),
        ("an Aapprox. A", ["an Aapprox.", "A"]),
        ("about (approx. 5) or approx . 6", ["about (approx. 5) or approx . 6"]),
        ("It is one. approx. Two! Dr. No?", ["It is one. approx. Two!", "Dr. No?"]),
        ("Wait... What?! (Yes.) 'No.' 1 is odd.", ["Wait...", "What?!", "(Yes.)", "'No.'", "1 is odd."]),
    ],
)
def test_marks_and_abbreviations(text, sentences):
    assert split_sentences(text) == sentences


def test_sentences_of_real_text_have_all_its_words_and_are_not_split_again():
    documents = [document for _, document in zip(range(50), python_docs()["train"], strict=False)]
    found = [split_sentences(document) for document in documents]
    assert [_letters(" ".join(sentences)) for sentences in found] == [_letters(document) for document in documents]
    assert all(split_sentences(sentence) == [sentence] for sentences in found for sentence in sentences)
    assert sum(map(len, found)) > 500


@pytest.mark.parametrize("unit", [".", "A. ", "Dr. ", "?!'", ". ("])
def test_time_is_linear_in_length(unit):
    """Sixteen times the length takes about 16 times the time; quadratic time would take 256 times."""
    short, long = unit * (2**16 // len(unit)), unit * (2**20 // len(unit))
    ratios = []
    for _ in range(5):
        seconds = [_seconds(short), _seconds(long)]
        ratios.append(seconds[1] / seconds[0])
    assert min(ratios) < 64


def _seconds(text):
    started = time.process_time()
    split_sentences(text)
    return max(time.process_time() - started, 1e-6)


def _letters(text):
    return re.sub(r"\W", "", text)
