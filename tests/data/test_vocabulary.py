import json
from dataclasses import FrozenInstanceError

import pytest

from qkv.data import Vocabulary


def test_the_first_ids_are_special_and_tokens_follow():
    assert (Vocabulary.PAD, Vocabulary.START, Vocabulary.END, Vocabulary.UNKNOWN) == (0, 1, 2, 3)
    vocabulary = Vocabulary(("b", "a", "ä"))
    assert len(vocabulary) == 7
    assert vocabulary.encode(["a", "ä", "?", "b"]) == [5, 6, 3, 4]
    assert vocabulary.encode("ab") == [5, 4]


def test_build_sorts_so_that_order_does_not_matter():
    vocabulary = Vocabulary.build([("K", "AE1"), (), ("T", "AE1")])
    assert vocabulary.tokens == ("AE1", "K", "T")
    assert vocabulary == Vocabulary.build(iter([["T"], ["AE1", "K"]]))
    assert hash(vocabulary) == hash(Vocabulary(("AE1", "K", "T")))
    assert len(Vocabulary.build([])) == 4


def test_decode_stops_at_the_end_and_skips_padding():
    vocabulary = Vocabulary(("x", "y"))
    assert vocabulary.decode([1, 4, 0, 5, 3, 5, 2, 4, 99]) == ["x", "y", "<unknown>", "y"]
    assert vocabulary.decode(vocabulary.encode(["y", "x", "y"])) == ["y", "x", "y"]
    assert vocabulary.decode([]) == []


def test_a_token_that_looks_special_is_a_token():
    vocabulary = Vocabulary(("<pad>",))
    assert vocabulary.encode(["<pad>", "<end>"]) == [4, 3]
    assert vocabulary.decode([4]) == ["<pad>"]


@pytest.mark.parametrize("number", [-1, 6])
def test_an_id_out_of_range(number):
    with pytest.raises(ValueError, match=f"ids must be 0 to 5, got {number}"):
        Vocabulary(("x", "y")).decode([4, number])


def test_json_round_trip():
    vocabulary = Vocabulary(("é", "\u2028", '"'))
    assert Vocabulary.from_record(json.loads(json.dumps(vocabulary.to_record()))) == vocabulary


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (("a", "b", "a"), r"tokens\[2\] repeats tokens\[0\]: 'a'"),
        (("a", ""), r"tokens\[1\] must be a non-empty string, got ''"),
        (("a", 5), r"tokens\[1\] must be a non-empty string, got 5"),
    ],
)
def test_bad_tokens_raise(tokens, message):
    with pytest.raises(ValueError, match=message):
        Vocabulary(tokens)


def test_only_a_tuple_is_accepted():
    with pytest.raises(TypeError, match="tokens must be a tuple of strings, got a str"):
        Vocabulary("abc")
    with pytest.raises(ValueError, match="must have a list of tokens, got None"):
        Vocabulary.from_record({"token": ["a"]})


def test_it_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        Vocabulary(("a",)).tokens = ("b",)
