from dataclasses import fields

import pytest

from qkv.models import families, family


def test_the_families():
    names = "convolutional decoder encoder encoder_decoder network perceptron recurrent word_vectors"
    assert sorted(families) == names.split()
    assert [family(name).model.__name__ for name in families] == [families[name].__name__ for name in families]


@pytest.mark.parametrize("name", sorted(families))
def test_at_most_twelve_settings_each_with_a_default(name):
    config = family(name).config
    assert 1 <= len(fields(config)) <= 12
    assert family(name).configure({}) == config()


def test_a_family_of_another_kind_of_task():
    chosen = family("encoder")
    assert chosen.build(chosen.configure({"dim": 8}), 11, 3).segments.num_embeddings == 3
    with pytest.raises(ValueError, match=r"Encoder is of another kind of task: .* \(tokens, segments\), got \(11\)"):
        chosen.build(chosen.configure({}), 11)


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(ValueError, match="unknown model 'encoder_decode'; did you mean 'encoder_decoder'"):
        family("encoder_decode")
    with pytest.raises(ValueError, match="unknown setting of EncoderDecoder: 'head'; did you mean 'heads'"):
        family("encoder_decoder").configure({"head": 4})
    assert family("recurrent").configure({"cell": "gru", "dim": 8}).cell == "gru"
