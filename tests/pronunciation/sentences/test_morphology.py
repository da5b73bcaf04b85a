import pytest

from qkv.pronunciation import cmu_dictionary
from qkv.pronunciation.sentences.morphology import add_s, derive, join_parts, letter_phones, spell, split_compound

lookup = cmu_dictionary().lookup


@pytest.mark.parametrize(
    ("phones", "ending"),
    [("K AE1 T", "S"), ("D AO1 G", "Z"), ("B AH1 S", "IH0 Z"), ("D EY1", "Z"), ("M AE1 CH", "IH0 Z")],
)
def test_endings(phones, ending):
    assert " ".join(add_s(tuple(phones.split()))) == f"{phones} {ending}"


def test_letters():
    assert letter_phones("X") == ("EH1", "K", "S")
    assert letter_phones("X's") == ("EH1", "K", "S", "IH0", "Z")
    assert letter_phones("XY") is letter_phones("x") is None


def test_words_made_of_others():
    assert split_compound("gearboxes", lookup) == ("gear", "boxes")
    assert split_compound("gearness", lookup) is None
    assert split_compound("box", lookup) is None
    assert derive("gearbox's", {"gearbox": (("G",),)}.get) == (("G", "Z"),)
    assert derive("gearboxs", lambda word: (("S",),) if word == "gearbox" else ()) == (("S", "IH0", "Z"),)
    assert derive("blorft", lookup) == ()


def test_a_short_word_without_vowels_is_spelled():
    assert " ".join(spell("pts")) == "P IY1 T IY1 EH1 S"
    assert spell("www") == 3 * letter_phones("W")
    assert spell("psst") == spell("sky") == spell("bcdfgh") == ()


def test_capitals_inside_a_word_part_it():
    assert " ".join(join_parts("NaCl", {"na": (("N", "AA1"),)}.get)) == "N AA1 S IY1 EH1 L"
    assert join_parts("fMRI", lambda word: (("EH1", "F"),)) == ("EH1", "F", "EH1", "M", "AA1", "R", "AY1")
    assert join_parts("JPEGs", lookup) == join_parts("Word", lookup) == join_parts("PyBlorft", lookup) == ()
