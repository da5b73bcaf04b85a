import pytest

from qkv.pronunciation.arpabet import CONSONANTS, VOWELS, check_phones, is_vowel, split_stress, strip_stress


def test_the_inventory_is_that_of_cmudict():
    assert len(CONSONANTS) == len(set(CONSONANTS)) == 24
    assert len(VOWELS) == len(set(VOWELS)) == 15


def test_stress():
    assert split_stress("AH0") == ("AH", "0")
    assert split_stress("NG") == ("NG", "")
    assert strip_stress(("HH", "AH0", "L", "OW1")) == ("HH", "AH", "L", "OW")
    assert [is_vowel(phone) for phone in ("ER2", "ER", "R")] == [True, True, False]


@pytest.mark.parametrize(
    ("phones", "message"),
    [
        (("K", "AH3"), "unknown phone 'AH3'; did you mean 'AH"),
        (("K1",), "unknown phone 'K1'"),
        (("k",), "unknown phone 'k'; did you mean 'K'"),
        ((), "at least one phone"),
    ],
)
def test_what_is_no_phone_is_named(phones, message):
    with pytest.raises(ValueError, match=message):
        check_phones(phones)


def test_stress_may_be_left_out():
    assert check_phones(["K", "AH", "T"]) == ("K", "AH", "T")
