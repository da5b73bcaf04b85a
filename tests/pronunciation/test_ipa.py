import pytest

from qkv.pronunciation import from_ipa, strip_stress, to_ipa
from qkv.pronunciation.ipa import ipa_symbols
from qkv.storage.cmudict_file import read_text


@pytest.fixture(scope="module")
def entries():
    """Every line of CMUdict, by its own rules."""
    lines = (line.partition(" #")[0].split() for line in read_text().splitlines())
    return [tuple(phones) for _, *phones in lines]


def test_there_and_back_is_the_identity_on_every_entry(entries):
    assert len(entries) == 135_166
    assert [phones for phones in set(entries) if from_ipa(to_ipa(phones)) != phones] == []


def test_without_stress_too(entries):
    different = [p for p in set(entries) if from_ipa(to_ipa(p, stress=False), stress=False) != strip_stress(p)]
    assert different == []


@pytest.mark.parametrize(
    ("phones", "written"),
    [
        ("HH AH0 L OW1", "həˈloʊ"),
        ("B ER1 D ER0", "ˈbɝdɚ"),
        ("K AH1 T", "ˈkʌt"),
        ("N AH1 T SH EH2 L", "ˈnʌtˌʃɛl"),
        ("CH ER1 CH", "ˈt͡ʃɝt͡ʃ"),
        ("D R AO1 IH0 NG", "ˈdɹɔ.ɪŋ"),
        ("B OY1", "ˈbɔɪ"),
        ("AH0 S T R EY1", "əˈstɹeɪ"),
        ("AE0 B S T R AE1 K T", "æbˈstɹækt"),
        ("S IH1 NG ER0", "ˈsɪŋɚ"),
        ("IH0 NG EY1", "ɪŋˈeɪ"),
        ("R IY0 AE1 K T", "ɹiˈækt"),
        ("HH M", "hm"),
    ],
)
def test_words_as_a_phonetician_writes_them(phones, written):
    """Marks before the syllable; an onset as long as English allows, never with NG."""
    assert to_ipa(phones.split()) == written
    assert from_ipa(written) == tuple(phones.split())


def test_without_stress_the_reduced_vowels_stay_apart():
    assert to_ipa(("AH0", "B", "AH1", "V"), stress=False) == "əbʌv"


def test_symbols_of_single_phones():
    assert ipa_symbols(("AH0", "B", "AH1", "V")) == ("ə", "b", "ˈʌ", "v")
    assert ipa_symbols(("AH0", "B", "AH1", "V"), stress=False) == ("ə", "b", "ʌ", "v")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hxl", "'x' at position 2"),
        ("ˈˌa", "two stress marks"),
        ("ləˈ", "no vowel after"),
        ("həl oʊ", "' ' at position 4"),
    ],
)
def test_what_is_no_ipa_of_ours_is_named(text, message):
    with pytest.raises(ValueError, match=message):
        from_ipa(text)
