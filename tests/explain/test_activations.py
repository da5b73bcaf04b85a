import pytest
import torch

from qkv.data import Vocabulary
from qkv.explain import alignment, attention_sites, observe
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


def test_every_attention_site_of_a_transformer():
    records = observe(transformer(), SOURCE, TARGET)
    assert [(record.site.name, record.site.rows, record.site.columns) for record in records] == [
        ("encoder 1", "source", "source"),
        ("encoder 2", "source", "source"),
        ("decoder 1", "target", "target"),
        ("decoder 2", "target", "target"),
        ("cross 1", "generated", "source"),
        ("cross 2", "generated", "source"),
    ]
    assert [tuple(record.call.weights().shape) for record in records] == [(1, 3, 5, 5)] * 2 + [(1, 3, 4, 4)] * 2 + [
        (1, 3, 4, 5)
    ] * 2


@pytest.mark.parametrize(
    "options",
    [{}, {"positions": "t5"}, {"attention": "taylor", "positions": "rope"}, {"attention": "elu", "positions": "none"}],
    ids=str,
)
def test_a_head_alone_is_the_same_head(options):
    for record in observe(transformer(**options), SOURCE, TARGET):
        whole = record.call.weights()
        for number in range(3):
            alone = record.head(number)
            torch.testing.assert_close(alone.weights(), whole[:, number : number + 1], rtol=0, atol=1e-14)
            torch.testing.assert_close(alone.weights() @ alone.v, alone.output, rtol=0, atol=1e-12)


def test_decay_and_grouped_heads_follow_their_head():
    config = DecoderConfig(dim=12, heads=3, layers=1, attention="taylor", positions="alibi", max_length=16)
    (record,) = observe(Decoder(config, 11).double(), SOURCE)
    whole = record.call.weights()
    assert not torch.allclose(whole[:, 0], whole[:, 2])
    torch.testing.assert_close(record.head(2).weights(), whole[:, 2:], rtol=0, atol=1e-14)


def test_cross_attention_is_the_alignment():
    model = transformer()
    found = alignment(model, SOURCE, TARGET)
    crosses = [
        record.call.weights()[0] for record in observe(model, SOURCE, TARGET) if record.site.name.startswith("cross")
    ]
    torch.testing.assert_close(torch.stack(crosses), torch.tensor(found.blocks, dtype=torch.float64))


def test_a_recurrent_model_attends_once_per_token():
    model = Recurrent(RecurrentConfig(dim=12), 11, 13).double()
    (record,) = observe(model, SOURCE, TARGET)
    assert record.call.weights().shape == (1, 1, 4, 5)
    torch.testing.assert_close(
        record.call.weights()[0, 0], torch.tensor(alignment(model, SOURCE, TARGET).weights).double()
    )


def test_a_model_without_attention_has_no_sites():
    assert attention_sites(Recurrent(RecurrentConfig(dim=12, attention="none"), 11, 13)) == []


def test_a_decoder_has_one_sequence():
    model = Decoder(DecoderConfig(dim=12, heads=3, layers=2, max_length=16), 11).double()
    records = observe(model, SOURCE)
    assert [record.site.name for record in records] == ["layer 1", "layer 2"]
    assert records[0].call.weights()[0, 0].triu(1).abs().max() == 0


def test_an_encoder_attends_both_ways():
    model = Encoder(EncoderConfig(dim=12, heads=3, layers=2), 11).double()
    records = observe(model, SOURCE)
    assert [(record.site.name, record.site.rows) for record in records] == [
        ("layer 1", "source"),
        ("layer 2", "source"),
    ]
    assert records[1].call.weights()[0].min() > 0


def test_the_pass_is_the_one_of_the_model():
    """The last decoder block's cross attention, joined and carried on by hand, gives the model's logits."""
    model = transformer()
    record = observe(model, SOURCE, TARGET)[-1]
    seen = {}
    model.decoder[1].cross.output.register_forward_hook(lambda module, given, output: seen.update(joined=given[0]))
    with torch.no_grad():
        model(torch.tensor([SOURCE]), torch.tensor([[Vocabulary.START, *TARGET]]))
    joined = torch.cat([(record.head(n).weights() @ record.head(n).v)[:, 0] for n in range(3)], -1)
    torch.testing.assert_close(joined, seen["joined"], rtol=0, atol=1e-12)


def test_bad_input():
    with pytest.raises(ValueError, match="source must have at least one token"):
        observe(transformer(), [], TARGET)
    with pytest.raises(ValueError, match=r"source\[1\] is 11, but the model's ids are 0 to 10"):
        observe(transformer(), [4, 11], TARGET)
    with pytest.raises(ValueError, match="head must be from 0 to 2, got 3"):
        observe(transformer(), SOURCE, TARGET)[0].head(3)
    with pytest.raises(TypeError, match="got a Linear"):
        attention_sites(torch.nn.Linear(2, 3))
