import pytest
import torch

from qkv.data import Vocabulary
from qkv.explain import alignment, observe, sites
from qkv.models import (
    Decoder,
    DecoderConfig,
    Encoder,
    EncoderConfig,
    EncoderDecoder,
    EncoderDecoderConfig,
    Recurrent,
    RecurrentConfig,
)

SOURCE, TARGET = [4, 9, 6, 5, 8], [7, 4, 10]


def transformer(**options):
    config = EncoderDecoderConfig(dim=12, heads=3, hidden_dim=14, encoder_layers=2, decoder_layers=2, **options)
    return EncoderDecoder(config, 11, 13).double().eval()


def test_every_place_where_a_transformer_attends():
    looks = observe(transformer(), SOURCE, TARGET)
    assert [(look.site.name, look.site.rows, look.site.columns) for look in looks] == [
        ("encoder 1", "source", "source"),
        ("encoder 2", "source", "source"),
        ("decoder 1", "target", "target"),
        ("decoder 2", "target", "target"),
        ("cross 1", "written", "source"),
        ("cross 2", "written", "source"),
    ]
    assert [tuple(look.call.weights().shape) for look in looks] == [(1, 3, 5, 5)] * 2 + [(1, 3, 4, 4)] * 2 + [
        (1, 3, 4, 5)
    ] * 2


@pytest.mark.parametrize(
    "options",
    [{}, {"positions": "t5"}, {"attention": "taylor", "positions": "rope"}, {"attention": "elu", "positions": "none"}],
    ids=str,
)
def test_a_head_alone_is_the_same_head(options):
    for look in observe(transformer(**options), SOURCE, TARGET):
        whole = look.call.weights()
        for number in range(3):
            alone = look.head(number)
            torch.testing.assert_close(alone.weights(), whole[:, number : number + 1], rtol=0, atol=1e-14)
            torch.testing.assert_close(alone.weights() @ alone.v, alone.output, rtol=0, atol=1e-12)


def test_decay_and_grouped_heads_follow_their_head():
    config = DecoderConfig(dim=12, heads=3, layers=1, attention="taylor", positions="alibi", max_length=16)
    (look,) = observe(Decoder(config, 11).double(), SOURCE)
    whole = look.call.weights()
    assert not torch.allclose(whole[:, 0], whole[:, 2])
    torch.testing.assert_close(look.head(2).weights(), whole[:, 2:], rtol=0, atol=1e-14)


def test_cross_attention_is_the_alignment():
    model = transformer()
    found = alignment(model, SOURCE, TARGET)
    crosses = [look.call.weights()[0] for look in observe(model, SOURCE, TARGET) if look.site.name.startswith("cross")]
    torch.testing.assert_close(torch.stack(crosses), torch.tensor(found.blocks, dtype=torch.float64))


def test_a_recurrent_model_looks_once_a_token():
    model = Recurrent(RecurrentConfig(dim=12), 11, 13).double()
    (look,) = observe(model, SOURCE, TARGET)
    assert look.call.weights().shape == (1, 1, 4, 5)
    torch.testing.assert_close(
        look.call.weights()[0, 0], torch.tensor(alignment(model, SOURCE, TARGET).weights).double()
    )


def test_a_model_that_never_looks_has_no_places():
    assert sites(Recurrent(RecurrentConfig(dim=12, attention="none"), 11, 13)) == []


def test_a_decoder_has_one_sequence():
    model = Decoder(DecoderConfig(dim=12, heads=3, layers=2, max_length=16), 11).double()
    looks = observe(model, SOURCE)
    assert [look.site.name for look in looks] == ["layer 1", "layer 2"]
    assert looks[0].call.weights()[0, 0].triu(1).abs().max() == 0


def test_an_encoder_looks_both_ways():
    model = Encoder(EncoderConfig(dim=12, heads=3, layers=2), 11).double()
    looks = observe(model, SOURCE)
    assert [(look.site.name, look.site.rows) for look in looks] == [("layer 1", "source"), ("layer 2", "source")]
    assert looks[1].call.weights()[0].min() > 0


def test_the_pass_is_the_one_of_the_model():
    """The last decoder block's cross attention, joined and carried on by hand, gives the model's logits."""
    model = transformer()
    look = observe(model, SOURCE, TARGET)[-1]
    seen = {}
    model.decoder[1].cross.output.register_forward_hook(lambda module, given, output: seen.update(joined=given[0]))
    with torch.no_grad():
        model(torch.tensor([SOURCE]), torch.tensor([[Vocabulary.START, *TARGET]]))
    joined = torch.cat([(look.head(n).weights() @ look.head(n).v)[:, 0] for n in range(3)], -1)
    torch.testing.assert_close(joined, seen["joined"], rtol=0, atol=1e-12)


def test_bad_input():
    with pytest.raises(ValueError, match="source must have at least one token"):
        observe(transformer(), [], TARGET)
    with pytest.raises(ValueError, match=r"source\[1\] is 11, but the model's ids are 0 to 10"):
        observe(transformer(), [4, 11], TARGET)
    with pytest.raises(ValueError, match="head must be from 0 to 2, got 3"):
        observe(transformer(), SOURCE, TARGET)[0].head(3)
    with pytest.raises(TypeError, match="got a Linear"):
        sites(torch.nn.Linear(2, 3))
