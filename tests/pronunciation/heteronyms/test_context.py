from qkv.pronunciation.heteronyms.context import clause_of, describe
from qkv.pronunciation.normalization import normalize


def tokens_of(text):
    tokens = list(normalize(text))
    return tokens, next(index for index, token in enumerate(tokens) if token.text == "object")


def test_a_clause_ends_at_the_sentence():
    tokens, index = tokens_of("One. Two, three object four. Five")
    assert clause_of(tokens, index) == (["Two", ",", "three"], ["four", "."])


def test_features_are_those_of_the_neighbors():
    found = describe(*tokens_of("The very small object fell.")).features
    assert {"p:small", "pt:JJ", "n:fell", "open", "lower", "past", "w:very"} <= found
    assert "start" not in found
    assert {"start", "n:to"} <= describe(*tokens_of("object to it")).features
    assert {"pa:did", "pat:VBD"} <= describe(*tokens_of("I did not object")).features
