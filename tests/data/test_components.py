"""Splits in which no sentence is in two parts."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.data import SentencePair, split_by_components
from qkv.data.components import sentence_key


def keys(pairs, side):
    return {sentence_key(pair[side]) for pair in pairs}


@given(st.lists(st.tuples(st.sampled_from("abcdefghij"), st.sampled_from("klmnopqrst")), min_size=1, max_size=30))
@settings(max_examples=30, deadline=None)
def test_no_sentence_is_in_two_parts(pairs):
    given = [SentencePair(*pair) for pair in pairs]
    splits = split_by_components(given, valid=0.3, test=0.3)
    assert sorted(pair for own in splits.values() for pair in own) == sorted(given)
    for side in (0, 1):
        parts = [keys(own, side) for own in splits.values()]
        assert sum(map(len, parts)) == len(set().union(*parts))


def test_a_chain_of_sentences_stays_together():
    chain = [SentencePair(f"a{n // 2}", f"b{(n + 1) // 2}") for n in range(200)]
    splits = split_by_components(chain, valid=0.4, test=0.4)
    assert sorted(map(len, splits.values())) == [0, 0, 200]


def test_the_order_does_not_matter():
    pairs = [SentencePair(f"s{n % 70}", f"t{n % 90}") for n in range(300)]
    pairs += [SentencePair(f"u{n}", f"v{n // 2}") for n in range(300)]
    shuffled = list(pairs)
    random.Random(0).shuffle(shuffled)
    one, other = (split_by_components(own, valid=0.1, test=0.2) for own in (pairs, shuffled))
    assert {name: sorted(own) for name, own in one.items()} == {name: sorted(own) for name, own in other.items()}


def test_shares_are_those_asked_for():
    pairs = [SentencePair(f"s{n}", f"t{n}") for n in range(4000)]
    splits = split_by_components(pairs, valid=0.1, test=0.2)
    assert len(splits["valid"]) / 4000 == pytest.approx(0.1, abs=0.02)
    assert len(splits["test"]) / 4000 == pytest.approx(0.2, abs=0.02)


def test_case_spaces_and_punctuation_do_not_make_a_sentence_another():
    assert sentence_key("  Go,  now!") == sentence_key("go now") == "go now"
    assert sentence_key("?!") == "?!"
    pairs = [SentencePair(f"Go {n}{end}", f"x{n}{end and 'y'}") for n in range(99) for end in ("", "!", " !")]
    splits = split_by_components(pairs, valid=0.3, test=0.3)
    assert sum(len(keys(own, 0)) for own in splits.values()) == 99


def test_a_word_written_alike_in_both_languages_is_two_sentences():
    """`a` as a source and `a` as a target do not join 'a - b' with 'c - a'."""
    pairs = [SentencePair(f"w{n}", f"w{n + 1}") for n in range(200)]
    splits = split_by_components(pairs, valid=0.3, test=0.3)
    assert min(map(len, splits.values())) > 20


def test_impossible_shares_are_refused():
    for valid, test in ((0.5, 0.5), (-0.1, 0.2), (0.2, -0.1)):
        with pytest.raises(ValueError, match=f"shares with a sum below 1, got valid={valid}, test={test}"):
            split_by_components([], valid=valid, test=test)
