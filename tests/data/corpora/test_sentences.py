"""Splitting text into sentences takes linear time, and gives the sentences that it always gave."""

import re
import time

import pytest

from qkv.data.corpora.text import _ABBREVIATION, python_docs, split_sentences

MARKS = re.compile(r"""([.!?]+['"\u201d\u2019)\]]*)\s+(?=['"\u201c\u2018(\[]*\s?[A-Z0-9])""")
HOSTILE = {
    "dots": "." * 500,
    "dots and closers": ".'" * 500,
    "capitals": "A. " * 200,
    "abbreviations": "Dr. No. St. " * 50,
    "marks": "?! " * 200,
    "openers": ". ((((" * 100,
    "an abbreviation after a word": "approx. Aapprox. Dr. Aapprox. A (approx. B) e.g. C. x approx . D",
}


def plain_sentences(document):
    """The definition: search everything before a mark for an abbreviation at its end; quadratic."""
    sentences = []
    for paragraph in re.split(r"\n\s*\n", document):
        text = " ".join(paragraph.split())
        if text.startswith("= ") and text.endswith(" ="):
            continue
        start = 0
        for match in MARKS.finditer(text):
            if not _ABBREVIATION.search(text[start : match.start(1)]):
                sentences.append(text[start : match.end(1)])
                start = match.end()
        sentences.append(text[start:])
    return [sentence for sentence in sentences if re.search(r"\w", sentence)]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_has_the_same_sentences(name):
    assert split_sentences(HOSTILE[name]) == plain_sentences(HOSTILE[name])


def test_real_text_has_the_same_sentences():
    documents = [document for _, document in zip(range(200), python_docs()["train"], strict=False)]
    found = [split_sentences(document) for document in documents]
    assert found == [plain_sentences(document) for document in documents]
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
