from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.pronunciation.normalization.values.numbers import (
    MAX_DIGITS,
    cardinal,
    decimal,
    ordinal,
    pairs,
    plural,
    spoken_digits,
    year,
)

UNITS = {"one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10}
UNITS |= {"eleven": 11, "twelve": 12, "thirteen": 13, "fourteen": 14, "fifteen": 15}
UNITS |= {"sixteen": 16, "seventeen": 17, "eighteen": 18, "nineteen": 19}
TENS = {"twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "seventy": 70, "eighty": 80, "ninety": 90}
POWERS = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12, "quadrillion": 15, "quintillion": 18}


def value_of(words):
    """Add words up again, from left to right: an independent reading of the number."""
    total = part = 0
    for word in words:
        if word in POWERS:
            total, part = total + part * 10 ** POWERS[word], 0
        elif word == "hundred":
            part *= 100
        else:
            part += UNITS.get(word, 0) or TENS.get(word, 0)
    return total + part


@given(st.integers(1, 10**21 - 1))
def test_words_add_up_to_the_number(number):
    words = cardinal(str(number))
    assert value_of(words) == number
    powers = [POWERS[word] for word in words if word in POWERS]
    assert all(one > other for one, other in pairwise(powers))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0", "zero"),
        ("10", "ten"),
        ("21", "twenty one"),
        ("100", "one hundred"),
        ("1000000", "one million"),
        ("1001", "one thousand one"),
        ("007", "zero zero seven"),
        ("1" + 33 * "0", "one decillion"),
    ],
)
def test_cardinals(text, words):
    assert " ".join(cardinal(text)) == words


def test_a_long_number_is_read_digit_by_digit():
    assert cardinal("12" * MAX_DIGITS) == ("one", "two") * MAX_DIGITS
    assert len(cardinal("9" * 10_000)) == 10_000
    assert cardinal("9" * MAX_DIGITS)[1] == "hundred"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1", "first"),
        ("2", "second"),
        ("3", "third"),
        ("5", "fifth"),
        ("8", "eighth"),
        ("9", "ninth"),
        ("12", "twelfth"),
        ("20", "twentieth"),
        ("43", "forty third"),
        ("100", "one hundredth"),
        ("111", "one hundred eleventh"),
    ],
)
def test_ordinals(text, words):
    assert " ".join(ordinal(text)) == words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1066", "ten sixty six"),
        ("1700", "seventeen hundred"),
        ("1905", "nineteen oh five"),
        ("2000", "two thousand"),
        ("2007", "two thousand seven"),
        ("2013", "twenty thirteen"),
        ("79", "seventy nine"),
        ("410", "four hundred ten"),
    ],
)
def test_years(text, words):
    assert " ".join(year(text)) == words


def test_numbers_that_are_names():
    assert [" ".join(pairs(text)) for text in ("101", "747", "300", "1408", "66")] == [
        "one oh one",
        "seven forty seven",
        "three hundred",
        "fourteen oh eight",
        "sixty six",
    ]
    assert spoken_digits("502") == ("five", "oh", "two")


def test_plurals_and_decimals():
    assert [plural((word,)) for word in ("ninety", "six", "five", "sixth")] == [
        ("nineties",),
        ("sixes",),
        ("fives",),
        ("sixths",),
    ]
    assert decimal("3", "14") == ("three", "point", "one", "four")
    assert decimal("", "5") == ("point", "five")
