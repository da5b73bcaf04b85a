from qkv.pronunciation.heteronyms.tagger import tagger


def test_tags_of_a_sentence():
    tags = tagger().tag("The old man will read two books in the garden .".split())  # noqa: SIM905
    assert tags == ["DT", "JJ", "NN", "MD", "VB", "CD", "NNS", "IN", "DT", "NN", "."]


def test_the_best_score_is_the_tag():
    words = ["I", "like", "the", "record"]
    tags = tagger().tag(words)
    scores = tagger().scores(words, tags[:3], 3)
    assert max(scores, key=scores.__getitem__) == tags[3] == "NN"


def test_known_words():
    assert tagger().has_word("gear")
    assert not tagger().has_word("blorft")
