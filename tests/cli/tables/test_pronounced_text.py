import pytest

from qkv.cli.tables.pronounced_text import make_writer, spoken_answers
from qkv.pronunciation import Pronunciation, ReadToken, Source, SpokenWord, WordAnswer
from qkv.pronunciation.normalization import SpokenToken


def answer(word, *phones):
    ways = (Pronunciation(phones, 1.0),) if phones else ()
    return WordAnswer(word, Source.dictionary if phones else Source.punctuation, ways)


WORD = answer("hello", "HH", "AH0")
TOKEN = ReadToken(
    SpokenToken("12", 3, "cardinal", ("one", "two")),
    tuple(SpokenWord(word, answer(word, "W"), "dictionary") for word in ("one", "two")),
)
SPACE = ReadToken(SpokenToken(" ", 5, "space"))
COMMA = ReadToken(SpokenToken(",", 6, "punctuation"))


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (None, "hello\tHH AH0\tdictionary\none\tW\tdictionary\ntwo\tW\tdictionary\n,\t\tpunctuation\n"),
        ("line", "{HH AH0}{W} {W} ,"),
        ("cmu", "hello HH AH0\n"),
    ],
)
def test_words_and_tokens(form, text):
    assert "".join(make_writer(form, None, 1, as_json=False)([WORD, TOKEN, SPACE, COMMA])) == text


def test_every_word_of_a_token():
    assert [one.input for one in spoken_answers(TOKEN)] == ["one", "two"]
    assert spoken_answers(WORD) == [WORD]
    assert spoken_answers(COMMA)[0].source is Source.punctuation
