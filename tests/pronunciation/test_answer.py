import pytest

from qkv.pronunciation import Pronunciation, Source, WordAnswer

READ = WordAnswer(
    "read",
    Source.model,
    (
        Pronunciation(("R", "IY1", "D"), 0.5),
        Pronunciation(("R", "EH1", "D"), 0.25),
        Pronunciation(("R", "EH2", "D"), 0.5),
    ),
)


def test_a_record_has_the_keys_that_were_promised():
    assert READ.to_record("ipa") == {
        "input": "read",
        "source": "model",
        "best": [
            {"output": "ˈɹid", "probability": 0.5},
            {"output": "ˈɹɛd", "probability": 0.25},
            {"output": "ˌɹɛd", "probability": 0.5},
        ],
    }


def test_without_stress_equal_ways_are_one_and_their_probabilities_add_up():
    assert READ.without_stress().best == (
        Pronunciation(("R", "EH", "D"), 0.75),
        Pronunciation(("R", "IY", "D"), 0.5),
    )


def test_without_stress_ipa_keeps_reduced_vowels():
    (way,) = (
        WordAnswer("above", Source.dictionary, (Pronunciation(("AH0", "B", "AH1", "V"), 1.0),)).without_stress().best
    )
    assert (way.to_text(), way.to_text("ipa")) == ("AH B AH V", "əbʌv")
    assert way.symbols("ipa") == ("ə", "b", "ʌ", "v")


def test_as_text():
    assert str(READ) == "R IY1 D"
    assert str(WordAnswer("!", Source.punctuation)) == "!"
    with pytest.raises(ValueError, match="did you mean 'ipa'"):
        READ.best[0].to_text("ip")
