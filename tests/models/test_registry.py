from dataclasses import fields

import pytest

from qkv.models import families, family


def test_the_families():
    assert sorted(families) == [
        "convolutional",
        "decoder",
        "encoder_decoder",
        "network",
        "perceptron",
        "recurrent",
        "word_vectors",
    ]
    assert [family(name).model.__name__ for name in families] == [families[name].model.__name__ for name in families]


@pytest.mark.parametrize("name", sorted(families))
def test_at_most_twelve_settings_each_with_a_default(name):
    config = family(name).config
    assert 1 <= len(fields(config)) <= 12
    assert family(name).configure({}) == config()


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(ValueError, match="unknown model 'encoder_decode'; did you mean 'encoder_decoder'"):
        family("encoder_decode")
    with pytest.raises(ValueError, match="unknown setting of EncoderDecoder: 'head'; did you mean 'heads'"):
        family("encoder_decoder").configure({"head": 4})
    assert family("recurrent").configure({"cell": "gru", "dim": 8}).cell == "gru"
