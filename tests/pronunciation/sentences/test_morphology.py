import pytest

from qkv.pronunciation import cmu_dictionary
from qkv.pronunciation.sentences.morphology import add_s, derive, letter_phones, split_compound

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
