import math

import pytest
import torch

import qkv
from qkv.errors import QkvError
from qkv.pronunciation import Dictionary, NeuralG2P, Pronouncer, Source, bundled, read_dictionary
from qkv.pronunciation.text import TextToken
from tests.pronunciation.tiny import made_up, spoken


@pytest.fixture(scope="module")
def pronouncer(tiny):
    return Pronouncer(model=tiny)


def phones(answer):
    return answer.best[0].phones


def test_the_dictionary_first_and_then_the_model(pronouncer):
    bake, other = pronouncer.words(["Bake", "kod"])
    assert (bake.source, phones(bake)) == (Source.dictionary, ("B", "EY1", "K"))
    assert (other.input, other.source, phones(other)) == ("kod", Source.model, spoken("kod"))


def test_ones_own_dictionary_goes_before_both(tiny, tmp_path):
    path = tmp_path / "mine.dict"
    path.write_text("bake B AA1 K\nkod K OW1\n")
    mine = Pronouncer(dictionary=path, model=tiny)
    assert [(a.source, phones(a)) for a in mine.words(["BAKE", "kod"])] == [
        (Source.user, ("B", "AA1", "K")),
        (Source.user, ("K", "OW1")),
    ]


def test_model_only_asks_no_dictionary(tiny):
    answer = Pronouncer(model=tiny, model_only=True, dictionary=Dictionary({"bad": ["K"]})).word("bad")
    assert (answer.source, phones(answer)) == (Source.model, spoken("bad"))


def test_a_list_of_the_best(pronouncer):
    answer = pronouncer.word("kod", best=3)
    shares = [way.probability for way in answer.best]
    assert len(shares) == 3
    assert shares == sorted(shares, reverse=True)
    assert 0 < sum(shares) <= 1
    assert [way.probability for way in pronouncer.word("tomato", best=5).best] == [0.5, 0.5]


def test_probabilities_are_those_of_the_model(tiny):
    """exp of the log-softmax of a forward pass, summed along the answer."""
    network = NeuralG2P.open(tiny)
    (way,) = network.predict(["bad"])[0]
    strings, model = network.task.data, network.model
    target = strings.targets.encode(way.phones)
    with torch.no_grad():
        logits = model(torch.tensor([strings.sources.encode("bad")]), torch.tensor([[1, *target]]))
    logits[..., [0, 1]] = -torch.inf  # never emitted
    chosen = logits.log_softmax(-1)[0].gather(-1, torch.tensor([[t] for t in (*target, 2)]))
    assert way.probability == pytest.approx(math.exp(float(chosen.sum())), rel=1e-4)


def test_without_stress(tiny):
    bare = Pronouncer(model=tiny, stress=False)
    assert phones(bare.word("kod")) == ("K", "OW", "D")
    assert len(bare.word("kod", best=3).best) <= 3
    assert phones(bare.word("tomato")) == ("T", "AH", "M", "EY", "T", "OW")


def test_parts_of_a_word_are_said_one_after_the_other(pronouncer):
    answers = list(pronouncer.words(["mp3", "bake-kod", "hello-world", "Café", "4"]))
    assert [answer.source for answer in answers] == [
        Source.dictionary,
        Source.model,
        Source.dictionary,
        Source.dictionary,
        Source.dictionary,
    ]
    assert phones(answers[0]) == ("EH1", "M", "P", "IY1", "TH", "R", "IY1")
    assert phones(answers[1]) == ("B", "EY1", "K", *spoken("kod"))
    assert phones(answers[2]) == ("HH", "AH0", "L", "OW1", "W", "ER1", "L", "D")
    assert phones(answers[3]) == ("K", "AH0", "F", "EY1")
    assert phones(answers[4]) == ("F", "AO1", "R")
    both = pronouncer.word("tomato-hello", best=3)
    assert [way.probability for way in both.best] == [0.25] * 3


def test_a_sentence_keeps_its_punctuation_apart(pronouncer):
    answers = pronouncer.sentence("Hello, kod!")
    assert [(answer.input, answer.source) for answer in answers] == [
        ("Hello", Source.dictionary),
        (",", Source.punctuation),
        ("kod", Source.model),
        ("!", Source.punctuation),
    ]


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("привет", "which the model has never seen"),
        ("日本", "'日', '本', which the model has never seen"),
        ("bxzzq", "'q', 'x', 'z', which the model has never seen"),
        ("ba" * 5000, "10,000 letters, and the model takes 256"),
        ("", "no letters"),
        ("7" * 10_000, "10,000 parts, and the limit is 64"),
        ("...", "never seen"),
    ],
)
def test_what_has_no_answer_says_why(pronouncer, word, reason):
    before, answer, after = pronouncer.words(["hello", word, "kod"])
    assert (answer.source, answer.best) == (Source.none, ())
    assert reason in answer.reason
    assert len(answer.reason) < 200
    assert before.best
    assert after.best


def test_order_and_answers_do_not_depend_on_the_window(tiny):
    words = [*made_up(3)[:97:5], "hello", *made_up(2)[:7]]
    pronouncer = Pronouncer(model=tiny, beams=1, model_only=True)
    whole = list(pronouncer.words(words))
    pieces = (TextToken(word, "word") for word in words)
    apart = list(Pronouncer(model=tiny, beams=1, model_only=True).answer_tokens(pieces, window=3))
    assert [answer.input for answer in whole] == words
    assert [a.best and phones(a) for a in whole] == [a.best and phones(a) for a in apart]


def test_words_are_read_a_window_at_a_time(pronouncer):
    read = []
    stream = pronouncer.answer_tokens((read.append(n) or TextToken("hello", "word") for n in range(1000)), window=10)
    next(stream)
    assert len(read) == 10


def test_a_word_is_decoded_once(tiny, monkeypatch):
    pronouncer, decoded = Pronouncer(model=tiny), []
    predict = pronouncer.network.predict
    monkeypatch.setattr(
        pronouncer.network, "predict", lambda words, *rest: decoded.extend(words) or predict(words, *rest)
    )
    list(pronouncer.words(["kod", "Kod", "kod"]))
    pronouncer.word("kod")
    assert decoded == ["kod"]


def test_one_call(monkeypatch, tmp_path):
    answer = qkv.pronounce("tomato", best=2)
    assert [way.phones[3] for way in answer.best] == ["EY1", "AA1"]
    with pytest.raises(ValueError, match="must be one word, got 'two words'"):
        qkv.pronounce("two words")
    with pytest.raises(QkvError, match="it is not a word|never seen|no model"):
        qkv.pronounce("🙂")


def test_without_a_model_the_dictionary_answers(monkeypatch, tmp_path):
    monkeypatch.setattr(bundled, "FOLDER", tmp_path / "model")
    hello, other = Pronouncer().words(["hello", "kod"])
    assert hello.source == Source.dictionary
    assert other.source == Source.none
    assert "the bundled model is not here; train one with `qkv train pronounce" in other.reason


def test_wrong_arguments(tiny, tmp_path):
    with pytest.raises(ValueError, match="beams must be at least 1, got 0"):
        Pronouncer(model=tiny, beams=0)
    with pytest.raises(ValueError, match="best must be at least 1, got 0"):
        Pronouncer(model=tiny).word("a", best=0)
    with pytest.raises(QkvError, match="no run folder"):
        Pronouncer(model=tmp_path / "nowhere")


def test_a_dictionary_read_before_can_be_given(tmp_path, tiny):
    path = tmp_path / "mine.dict"
    path.write_text("bake B AA1 K\n")
    assert Pronouncer(dictionary=read_dictionary(path), model=tiny).word("bake").source == Source.user
