import math
import random

import pytest
from rapidfuzz.distance import Levenshtein

from qkv.metrics import ErrorRates, closest_reference, edit_distance, error_rates


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ("", "", 0),
        ("", "abc", 3),
        ("abc", "", 3),
        ("kitten", "sitting", 3),
        ("ab", "ba", 2),
        ("abc", list("abc"), 0),
        (("K", "AE1", "T"), ["K", "AE0", "T", "S"], 2),
    ],
)
def test_distances_by_hand(a, b, expected):
    assert edit_distance(a, b) == expected


@pytest.mark.parametrize(("letters", "longest"), [(2, 9), (3, 20), (26, 12), (4, 200)])
def test_equals_rapidfuzz(letters, longest):
    generator = random.Random(letters)
    for _ in range(500):
        a, b = (
            [generator.randrange(letters) for _ in range(generator.randint(0, longest))],
            [generator.randrange(letters) for _ in range(generator.randint(0, longest))],
        )
        assert edit_distance(a, b) == Levenshtein.distance(a, b)


def test_closest_takes_the_fewest_edits_and_then_the_first():
    assert closest_reference("abc", ["xyz", "abd", "abe"]) == "abd"
    assert closest_reference("abc", ["abd", "abc"]) == "abc"
    with pytest.raises(ValueError, match="references must hold at least one"):
        closest_reference("abc", [])


def test_a_string_is_not_a_list_of_references():
    with pytest.raises(TypeError, match=r"got the string 'abc', .*; pass \['abc'\]"):
        error_rates(["abc"], ["abc"])


def test_rates_by_hand():
    """Right by the second reference; one edit of 3; two edits of 2."""
    rates = error_rates(["ab", "abc", "x"], [["ba", "ab"], ["abd", "xyzw"], ["yz"]])
    assert rates == ErrorRates(sequences=3, wrong_sequences=2, edits=3, reference_tokens=7)
    assert rates.sequence_error_rate == pytest.approx(2 / 3)
    assert rates.token_error_rate == pytest.approx(3 / 7)


def test_the_closest_reference_is_not_the_longest():
    """The length that counts is that of the reference that was compared with."""
    assert error_rates(["ab"], [["abcdefgh", "abc"]]) == ErrorRates(1, 1, 1, 3)


def test_rates_of_many_words():
    """Against rapidfuzz, on words with one to three references each."""
    generator = random.Random(0)

    def word():
        return "".join(generator.choices("abcd", k=generator.randint(1, 9)))

    references = [[word() for _ in range(generator.randint(1, 3))] for _ in range(1000)]
    hypotheses = [generator.choice([word(), allowed[-1]]) for allowed in references]
    pairs = list(zip(hypotheses, references, strict=True))
    distances = [[Levenshtein.distance(h, r) for r in allowed] for h, allowed in pairs]
    lengths = [len(allowed[d.index(min(d))]) for allowed, d in zip(references, distances, strict=True)]
    rates = error_rates(hypotheses, references)
    assert rates.wrong_sequences == sum(h not in allowed for h, allowed in pairs)
    assert rates.edits == sum(map(min, distances))
    assert rates.reference_tokens == sum(lengths)


def test_references_of_no_tokens():
    assert error_rates(["", ""], [[""], [""]]).token_error_rate == 0
    assert error_rates(["a", ""], [[""], [""]]).token_error_rate == math.inf


@pytest.mark.parametrize(("hypotheses", "references"), [(["a"], []), ([], []), (["a"], [["a"], ["b"]])])
def test_lists_that_do_not_match(hypotheses, references):
    with pytest.raises(ValueError, match=f"got {len(hypotheses)} hypotheses and {len(references)} lists of references"):
        error_rates(hypotheses, references)
