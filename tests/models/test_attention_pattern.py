"""One attention kind per layer: patterns, their errors, and models whose layers have states of different types."""

import pytest
import torch

from qkv.attention import KVCache, Linear, RecurrentState, Softmax, Taylor
from qkv.cost import Span, count_multiplications
from qkv.decode import SearchLimits, beam
from qkv.models import Decoder, DecoderConfig, Encoder, EncoderConfig, EncoderDecoder, EncoderDecoderConfig
from qkv.models.attention_pattern import (
    distinct_kinds,
    is_pattern,
    kinds_of_layers,
    pattern_period,
    split_encoder_decoder,
)

SIZES = {"dim": 24, "heads": 3, "hidden_dim": 20, "max_length": 17}


def decoder(attention, layers, **options):
    return Decoder(DecoderConfig(**SIZES, attention=attention, layers=layers, **options), 19).double().eval()


@pytest.mark.parametrize(
    ("text", "layers", "expected"),
    [
        ("softmax", 2, ["softmax"] * 2),
        (" taylor(order=4, chunk=8) ", 1, ["taylor(order=4, chunk=8)"]),
        ("linear,softmax", 4, ["linear", "softmax", "linear", "softmax"]),
        ("[linear, taylor(order=4)]", 2, ["linear", "taylor(order=4)"]),
        ("3*linear,softmax", 8, (["linear"] * 3 + ["softmax"]) * 2),
        ("2 * elu, linear", 3, ["elu", "elu", "linear"]),
        ("linear,softmax", 0, []),
    ],
)
def test_the_kind_of_each_layer(text, layers, expected):
    assert kinds_of_layers(text, layers) == expected


def test_what_a_pattern_is_made_of():
    assert split_encoder_decoder("softmax(dropout=1/8)/linear,elu") == ("softmax(dropout=1/8)", "linear,elu")
    assert split_encoder_decoder("elu") == ("elu", "elu")
    assert distinct_kinds("2*softmax/3*linear,softmax") == ["softmax", "linear"]
    assert [pattern_period(text) for text in ("elu", "elu,elu", "2*elu/3*elu", "3*elu,linear")] == [1, 2, 6, 4]
    assert [is_pattern(text) for text in ("elu", " taylor(order=4) ", "elu,elu", "elu/elu", "2*elu")] == [
        *(False, False, True, True, True)
    ]


def test_bad_input_of_a_pattern():
    for layers in (2, 6, 9):
        message = rf"attention='3\*linear,softmax' is a pattern of 4 layers, which must divide layers={layers}$"
        with pytest.raises(ValueError, match=message):
            decoder("3*linear,softmax", layers)
    with pytest.raises(ValueError, match="unknown attention kind 'softmux'; did you mean 'softmax'"):
        decoder("linear,softmux", 2)
    for text in ("linear,", ",", "", "[]", "linear,,softmax"):
        with pytest.raises(ValueError, match="must be a kind, or kinds with commas between them"):
            kinds_of_layers(text, 2)
    for text in ("0*linear", "10001*linear", "999999999*linear"):
        with pytest.raises(ValueError, match="must repeat a kind 1 to 10,000 times, got "):
            kinds_of_layers(text, 2)
    with pytest.raises(ValueError, match="has '/', which separates encoder and decoder, but this is one stack"):
        decoder("linear/softmax", 2)
    with pytest.raises(ValueError, match=r"must be one pattern, or two as ENCODER/DECODER, got 3"):
        split_encoder_decoder("linear/softmax/elu")
    config = EncoderDecoderConfig(**SIZES, attention="elu/2*elu,softmax", encoder_layers=3, decoder_layers=2)
    with pytest.raises(
        ValueError, match=r"'2\*elu,softmax' is a pattern of 3 layers, which must divide decoder_layers=2"
    ):
        EncoderDecoder(config, 11, 13)


def test_each_layer_has_its_kind_and_its_own_type_of_state():
    model = decoder("taylor(order=4),linear,softmax(window=3)", 6)
    mechanisms = [block.attention.attention for block in model.blocks]
    assert [type(one) for one in mechanisms] == [Taylor, Linear, Softmax] * 2
    assert (mechanisms[3].order, mechanisms[5].window) == (4, 3)
    state = model.start(torch.randint(0, 19, (2, 5)), None)
    assert [type(block.attention) for block in state.blocks] == [RecurrentState, RecurrentState, KVCache] * 2
    assert state.bytes == sum(block.bytes for block in state.blocks)


def test_a_pattern_of_one_kind_is_that_kind_bit_for_bit():
    tokens, found = torch.randint(0, 19, (2, 7)), []
    for text in ("linear", "linear,linear", "[2*linear]"):
        torch.manual_seed(0)
        model = decoder(text, 4)
        found.append((list(model.state_dict()), model(tokens)))
    for names, logits in found[1:]:
        assert names == found[0][0]
        assert torch.equal(logits, found[0][1])


def test_an_encoder_decoder_with_a_pattern_for_each():
    config = EncoderDecoderConfig(**SIZES, attention="elu,softmax/taylor", encoder_layers=2, decoder_layers=3)
    model = EncoderDecoder(config, 11, 13)
    assert [block.attention.attention.kind for block in model.encoder] == ["elu", "softmax"]
    assert [block.attention.attention.kind for block in model.decoder] == ["taylor"] * 3


def test_an_encoder_with_a_pattern():
    model = Encoder(EncoderConfig(**SIZES, attention="elu,softmax", layers=4), 19, 2)
    assert [block.attention.attention.kind for block in model.blocks] == ["elu", "softmax"] * 2


@pytest.mark.parametrize("positions", ["rope", "alibi"])
def test_cost_is_the_sum_of_the_layers(positions):
    """Declared and counted; half of each kind's blocks."""
    span, tokens = Span(2, 13, causal=True), torch.zeros(2, 13, dtype=torch.long)
    mixed = decoder("linear,softmax", 4, positions=positions)
    with count_multiplications() as counted, torch.no_grad():
        mixed(tokens)
    declared = mixed.cost(span)
    assert counted.total == sum(declared.executed.values())
    assert sum(p.numel() for p in mixed.parameters()) == sum(declared.parameters.values())
    pure = [decoder(kind, 4, positions=positions).cost(span) for kind in ("linear", "softmax")]
    assert sum(declared.executed.values()) == sum(sum(one.executed.values()) for one in pure) / 2
    assert sum(declared.state.values()) == sum(sum(one.state.values()) for one in pure) / 2


def test_beam_search_reorders_states_of_different_types():
    """The score of each hypothesis is that of a parallel pass over its tokens."""
    torch.manual_seed(0)
    model = decoder("linear,softmax(window=3),softmax", 3)
    prompt = torch.randint(4, 19, (5, 6))
    with torch.inference_mode():
        found = beam(model, prompt, None, SearchLimits(7), beams=4, n_best=4)
    for row, hypotheses in enumerate(found):
        assert len(hypotheses) == 4
        for hypothesis in hypotheses:
            path = torch.tensor([[*hypothesis.tokens, 2][:7]])
            logits = model(torch.cat((prompt[row : row + 1], torch.tensor([[1]]), path[:, :-1]), 1))[:, 6:]
            logits[..., :2] = -torch.inf
            total = logits.log_softmax(-1).gather(-1, path[..., None]).sum().item()
            assert hypothesis.log_probability == pytest.approx(total, abs=1e-12)
