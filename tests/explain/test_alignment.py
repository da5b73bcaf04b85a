import pytest
import torch

from qkv.data import Vocabulary
from qkv.explain import alignment, record_calls
from qkv.models import Decoder, DecoderConfig, EncoderDecoder, EncoderDecoderConfig, Recurrent, RecurrentConfig

SOURCE = [4, 9, 6, 5, 8]
TARGET = [7, 4, 10]


def transformer(cross="softmax", **options):
    config = EncoderDecoderConfig(
        dim=12, heads=3, hidden_dim=14, encoder_layers=1, decoder_layers=2, cross=cross, **options
    )
    return EncoderDecoder(config, 11, 13).double().eval()


def recurrent(attention="additive", **options):
    return Recurrent(RecurrentConfig(dim=12, attention=attention, **options), 11, 13).double().eval()


MODELS = {
    **{cross: lambda cross=cross: transformer(cross) for cross in ("softmax", "taylor", "additive", "elu")},
    "recurrent additive": lambda: recurrent("additive", cell="lstm"),
    "recurrent softmax": lambda: recurrent("softmax", cell="gru", layers=2),
}


@pytest.mark.parametrize("name", MODELS)
def test_rows_sum_to_one(name):
    found = alignment(MODELS[name](), SOURCE, TARGET)
    for matrix in (found.weights, *(head for block in found.blocks for head in block)):
        assert [len(row) for row in matrix] == [5] * 4
        assert [sum(row) for row in matrix] == pytest.approx([1.0] * 4, abs=1e-12)


def test_every_block_and_head_is_there():
    found = alignment(transformer(), SOURCE, TARGET)
    assert [len(block) for block in found.blocks] == [3, 3]
    mean = torch.tensor(found.blocks).mean((0, 1))
    torch.testing.assert_close(torch.tensor(found.weights), mean)
    assert len({str(head) for block in found.blocks for head in block}) == 6
    assert [len(block) for block in alignment(recurrent(), SOURCE, TARGET).blocks] == [1]


def cross_attentions(model):
    return [model.attention] if isinstance(model, Recurrent) else [block.cross.attention for block in model.decoder]


@pytest.mark.parametrize("name", MODELS)
def test_the_weights_make_what_the_fast_form_returned(name):
    """The record and an independent watch of the same pass: weights @ v = output."""
    model = MODELS[name]()
    given = torch.tensor([[Vocabulary.START, *TARGET]])
    with torch.no_grad(), record_calls(cross_attentions(model)) as calls:
        model(torch.tensor([SOURCE]), given)
    found = alignment(model, SOURCE, TARGET)
    for number, attention in enumerate(cross_attentions(model)):
        mine = [call for call in calls if call.attention is attention]
        output = torch.cat([call.output for call in mine], 2)[0]  # heads target dim
        weights = torch.tensor(found.blocks[number], dtype=torch.float64)
        assert output.shape[:2] == weights.shape[:2]
        assert (weights @ mine[0].v[0] - output).abs().max() <= 1e-10
        assert output.abs().max() > 1e-3


def test_the_rows_are_those_of_decoding_step_by_step():
    """Row i belongs to the state that wrote token i: the same queries as when it is decoded."""
    model = recurrent()
    seen = []
    state = model.start(torch.tensor([SOURCE]), None)
    with record_calls([model.attention]) as calls:
        for token in (Vocabulary.START, *TARGET):
            _, state = model.step(torch.tensor([token]), state)
            seen.append(calls[-1].weights()[0, 0, 0])
    torch.testing.assert_close(
        torch.tensor(alignment(model, SOURCE, TARGET).weights, dtype=torch.float64), torch.stack(seen)
    )


def test_a_target_token_changes_only_the_rows_after_it():
    model = transformer()
    one, other = (torch.tensor(alignment(model, SOURCE, target).weights) for target in (TARGET, [7, 4, 11]))
    torch.testing.assert_close(one[:3], other[:3])
    assert (one[3] - other[3]).abs().max() > 1e-4


def test_an_empty_target_still_has_an_end():
    assert len(alignment(transformer(), SOURCE, []).weights) == 1


def test_linear_rows_are_free():
    found = alignment(transformer("linear"), SOURCE, TARGET)
    assert max(abs(sum(row) - 1) for row in found.weights) > 0.1


def test_modes_and_hooks_are_restored():
    model = transformer(dropout=0.5)
    model.train()
    model.encoder.eval()
    first = alignment(model, SOURCE, TARGET)
    assert first == alignment(model, SOURCE, TARGET)
    assert model.training
    assert model.decoder.training
    assert not any(module.training for module in model.encoder.modules())
    assert not any(module._forward_hooks for module in model.modules())


def test_hooks_are_removed_when_the_pass_fails():
    model = transformer(max_length=3)
    with pytest.raises(ValueError, match="a sequence of 5 exceeds max_length=3"):
        alignment(model, SOURCE, TARGET)
    assert not any(module._forward_hooks for module in model.modules())


def test_bad_input():
    with pytest.raises(ValueError, match='attention="none": it never attends to the source'):
        alignment(recurrent("none"), SOURCE, TARGET)
    with pytest.raises(TypeError, match="EncoderDecoder or a Recurrent, which attend to a source, got a Decoder"):
        alignment(Decoder(DecoderConfig(dim=8, heads=2, layers=1), 11), SOURCE, TARGET)
    with pytest.raises(ValueError, match=r"source\[1\] is 11, but the model's ids are 0 to 10"):
        alignment(transformer(), [4, 11], TARGET)
    with pytest.raises(ValueError, match=r"target\[0\] is -1, but the model's ids are 0 to 12"):
        alignment(transformer(), SOURCE, [-1])
    with pytest.raises(ValueError, match="source must have at least one token"):
        alignment(transformer(), [], TARGET)
