"""Units: texts to tokens and back."""

import json
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.data import SubwordVocabulary, Tokenizer, Vocabulary, subword_size, unit_of, vocabulary_from_record
from qkv.data.units import PLAIN

TEXTS = ["the cat sat on the mat", "the hat of the cat", "a mat, a hat"] * 3
SUBWORDS = SubwordVocabulary.train(TEXTS, 280)


def test_characters_and_words():
    characters, words = PLAIN["characters"], PLAIN["words"]
    assert characters.split(" a b ") == ("a", " ", "b")
    assert characters.join("a b") == "a b"
    assert words.split(" ab  c ") == ("ab", "c")
    assert words.join(("ab", "c")) == "ab c"
    assert words.labels(("ab", "c")) == ["ab", "c"]
    assert words.example(Vocabulary(("x", "y"))) == "x y"


@given(st.text())
def test_every_text_is_written_exactly(text):
    tokens = SUBWORDS.unit.split(text)
    assert SUBWORDS.unit.join(tokens) == text
    ids = SUBWORDS.encode(tokens)
    assert Vocabulary.UNKNOWN not in ids
    assert SUBWORDS.decode(ids) == list(tokens)


@pytest.mark.parametrize(
    "text", ["<pad>", "<unknown> <end>", "  two  spaces ", "\n\t", "caf\u00e9 \U0001f600", "\u0120"]
)
def test_special_names_and_spaces_are_text(text):
    assert SUBWORDS.unit.join(SUBWORDS.unit.split(text)) == text


def test_frequent_words_are_one_token_and_labels_are_read():
    tokens = SUBWORDS.unit.split("the the")
    assert SUBWORDS.unit.labels(tokens) == ["the", " the"]
    assert SUBWORDS.unit.split_all(["the the", ""]) == [tokens, ()]
    assert SUBWORDS.unit.labels(SUBWORDS.unit.split("\u00e9")) == ["\u2039C3\u203a", "\u2039A9\u203a"]


def test_the_first_merge_is_the_most_frequent_pair():
    """Independent count: byte pair encoding merges the most frequent neighbors of all words first."""
    words = Counter(word for text in TEXTS for word in text.replace(" ", " \u0120").split(" "))
    pairs = Counter()
    for word, times in words.items():
        for pair in pairwise(word):
            pairs[pair] += times
    most = max(pairs.values())
    assert SUBWORDS.tokens[256] in {"".join(pair) for pair, times in pairs.items() if times == most}


def test_the_same_texts_give_the_same_tokens():
    again = SubwordVocabulary.train(list(TEXTS), 280)
    assert again == SUBWORDS
    assert SubwordVocabulary.train(TEXTS, 270) != SUBWORDS
    assert len(SubwordVocabulary.train(TEXTS, 270)) == 270


def test_a_record_gives_the_same_vocabulary():
    record = json.loads(json.dumps(SUBWORDS.to_record()))
    assert vocabulary_from_record(record) == SUBWORDS
    assert vocabulary_from_record({"tokens": ["a"]}) == Vocabulary(("a",))


def test_names_of_units():
    assert subword_size("bpe:8000") == 8000
    assert subword_size("words") is None
    assert unit_of("bpe:280", SUBWORDS) is SUBWORDS.unit
    assert unit_of("words", Vocabulary(("a",))) is PLAIN["words"]
    for name in ("bpe", "bpe:", "bpe:259", "bpe:x", "bpe:-300", "bpe:99999999"):
        with pytest.raises(ValueError, match=r"must be bpe:SIZE with a size from 260 to 1,048,576, as in bpe:8000"):
            subword_size(name)
    with pytest.raises(ValueError, match=r"unknown unit 'word'; did you mean 'words'\?"):
        subword_size("word")


def test_another_vocabulary_is_refused():
    with pytest.raises(ValueError, match="the unit bpe:300 needs a vocabulary with a tokenizer, got 5 plain tokens"):
        unit_of("bpe:300", Vocabulary(("a",)))
    with pytest.raises(
        ValueError, match=r"must have the ids 0 to 3 for <pad>.* got \d+ tokens that begin with \[PAD\]"
    ):
        SubwordVocabulary.of(Tokenizer.train(TEXTS, "wordpiece", 60))
