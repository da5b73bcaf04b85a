import pytest

from qkv.pronunciation import cmu_dictionary
from qkv.pronunciation.heteronyms import choose, heteronyms
from qkv.pronunciation.normalization import normalize


def chosen(text, word):
    tokens = list(normalize(text, cmu_dictionary().lookup))
    (index,) = [index for index, token in enumerate(tokens) if token.text.lower() == word]
    return choose(tokens, index)


@pytest.mark.parametrize(
    ("text", "word", "phones"),
    [
        ("She has read it twice.", "read", "R EH1 D"),
        ("Please read it to me.", "read", "R IY1 D"),
        ("The pipes are made of lead.", "lead", "L EH1 D"),
        ("You lead and we follow.", "lead", "L IY1 D"),
        ("He set a world record.", "record", "R EH1 K ER0 D"),
        ("They will record the song.", "record", "R IH0 K AO1 R D"),
        ("The wind blew all night.", "wind", "W IH1 N D"),
        ("Remember to wind the clock.", "wind", "W AY1 N D"),
        ("I do not object.", "object", "AH0 B JH EH1 K T"),
        ("A strange object fell.", "object", "AA1 B JH EH0 K T"),
        ("He played bass guitar.", "bass", "B EY1 S"),
        ("We caught a bass in the lake.", "bass", "B AE1 S"),
        ("They live in Ohio.", "live", "L IH1 V"),
        ("It was a live broadcast.", "live", "L AY1 V"),
        ("Did you close the door?", "close", "K L OW1 Z"),
        ("She is a close friend.", "close", "K L OW1 S"),
        ("We speak Polish at home.", "polish", "P OW1 L IH0 SH"),
        ("I need to polish my shoes.", "polish", "P AA1 L IH0 SH"),
        ("Have you read it?", "read", "R EH1 D"),
        ("Did you read it?", "read", "R IY1 D"),
        ("I read it last night.", "read", "R EH1 D"),
        ("They read it a week ago.", "read", "R EH1 D"),
        ("She was very upset.", "upset", "AH0 P S EH1 T"),
        ("It was a big upset.", "upset", "AH1 P S EH2 T"),
        ("He told it in minute detail.", "minute", "M AY0 N UW1 T"),
        ("Wear appropriate clothes.", "appropriate", "AH0 P R OW1 P R IY0 AH0 T"),
    ],
)
def test_readings_by_context(text, word, phones):
    best = chosen(text, word)[0]
    assert " ".join(best.reading.phones) == phones
    assert best.reason.startswith(f"heteronym: {best.reading.name}")


def test_probabilities_and_the_default():
    choices = chosen("minute", "minute")
    assert sum(one.probability for one in choices) == pytest.approx(1)
    assert choices[0].reading == heteronyms()["minute"][0]
    assert chosen("hello there", "hello") is None


def test_the_table_is_whole():
    table = heteronyms()
    assert len(table) >= 48
    assert all(len({one.phones for one in readings}) == len(readings) >= 2 for readings in table.values())
    assert all(word == word.lower() and all(one.tags for one in readings) for word, readings in table.items())
