import io

import pytest

from qkv.pronunciation import Dictionary, Pronouncer, SentenceReader, Source, read_pieces
from tests.pronunciation.tiny import spoken


@pytest.fixture(scope="module")
def reader(tiny):
    return SentenceReader(Pronouncer(model=tiny))


def words_of(tokens):
    return [(word.word, str(word.answer), word.why) for token in tokens for word in token.words]


def test_a_sentence(reader):
    tokens = reader.read("He read 12 kod, FBI.")
    assert "".join(token.text for token in tokens) == "He read 12 kod, FBI."
    assert words_of(tokens) == [
        ("He", "HH IY1", "dictionary"),
        ("read", "R EH1 D", "heteronym: past tense (after he)"),
        ("twelve", "T W EH1 L V", "dictionary"),
        ("kod", " ".join(spoken("kod")), "model"),
        ("F", "EH1 F", "letters"),
        ("B", "B IY1", "letters"),
        ("I", "AY1", "letters"),
    ]
    record = next(token for token in tokens if token.text == "FBI").to_record("ipa")
    assert (record["start"], record["end"], record["kind"], record["source"]) == (16, 19, "initialism", "letters")
    assert [word["output"] for word in record["words"]] == ["ˈɛf", "ˈbi", "ˈaɪ"]


def test_what_has_no_answer_says_why(reader):
    tokens = reader.read("ok 🙂 привет \x00")
    reasons = [token.to_answer().reason for token in tokens if token.token.kind != "space"]
    assert reasons[0] is None
    assert "it is not a word" in reasons[1]
    assert "never seen" in reasons[2]
    assert "it is not a word" in reasons[3]


def test_the_users_dictionary_comes_before_readings(tiny):
    mine = SentenceReader(Pronouncer(model=tiny, dictionary=Dictionary({"read": ["K"]})))
    assert words_of(mine.read("he read it"))[1] == ("read", "K", "user")


def test_the_best_and_no_stress(tiny):
    ways = SentenceReader(Pronouncer(model=tiny), best=2).read("the lead pipe")[2].words[0].answer.best
    assert [one.phones for one in ways] == [("L", "EH1", "D"), ("L", "IY1", "D")]
    assert sum(one.probability for one in ways) == pytest.approx(1)
    bare = SentenceReader(Pronouncer(model=tiny, stress=False)).read("the lead pipe")[2].words[0].answer
    assert str(bare) == "L EH D"
    with pytest.raises(ValueError, match="best must be at least 1, got 0"):
        SentenceReader(Pronouncer(model=tiny), best=0)


def test_a_book_has_places_from_its_beginning(reader):
    text = "One short sentence is here. " * 700
    tokens = list(reader.read_book(read_pieces(io.StringIO(text))))
    assert all(text[token.start : token.end] == token.text for token in tokens)
    assert sum(token.text == "sentence" for token in tokens) == 700
    assert {token.text_number for token in tokens} == {1}


def test_texts_are_read_a_window_at_a_time(reader):
    read = []
    texts = ((read.append(number) or number, "one two") for number in range(1000))
    next(reader.stream(texts, window=30))
    assert len(read) == 10
    assert [token.text_number for token in reader.stream([(7, "a"), (9, "b")], window=1)] == [7, 9]


def test_model_only_reads_numbers_but_looks_up_nothing(tiny):
    alone = SentenceReader(Pronouncer(model=tiny, model_only=True))
    assert words_of(alone.read("kod bad")) == [
        ("kod", " ".join(spoken("kod")), "model"),
        ("bad", " ".join(spoken("bad")), "model"),
    ]


def test_an_unknown_compound_is_derived(reader):
    (token,) = reader.read("waterpaper")
    assert token.words[0].why == "dictionary, by its parts"
    assert token.to_answer().source is Source.dictionary
