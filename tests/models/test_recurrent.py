import pytest
import torch
from torch import nn

from qkv.decode import SearchLimits, beam
from qkv.models import Recurrent, RecurrentConfig
from tests.models.sequences import padded, walk
from tests.models.states import advance, check_forked, check_independent, check_saved

SOURCES, TARGETS = 19, 23
EACH = pytest.mark.parametrize(
    ("cell", "attention"), [(c, a) for c in ("rnn", "gru", "lstm") for a in ("none", "additive", "softmax")]
)


def small(**options):
    model = Recurrent(RecurrentConfig(**{"dim": 14, "layers": 2, "max_length": 17, **options}), SOURCES, TARGETS)
    return model.double().eval()


@EACH
def test_token_by_token_equals_all_at_once(cell, attention):
    model = small(cell=cell, attention=attention)
    (source, mask), (target, _) = padded(5, 11, SOURCES), padded(5, 13, TARGETS)
    expected = model(source, target, mask)
    torch.testing.assert_close(walk(model, model.start(source, mask), target), expected, rtol=0, atol=1e-12)
    assert expected.shape == (5, 13, TARGETS)


@EACH
def test_a_row_alone_equals_itself_in_a_padded_batch(cell, attention):
    model = small(cell=cell, attention=attention)
    (source, mask), (target, _) = padded(7, 11, SOURCES), padded(7, 13, TARGETS)
    together = model(source, target, mask)
    for row, length in enumerate(mask.sum(1)):
        alone = model(source[row : row + 1, :length], target[row : row + 1])
        torch.testing.assert_close(alone[0], together[row], rtol=0, atol=1e-12)


@EACH
def test_every_parameter_gets_a_gradient(cell, attention):
    model = small(cell=cell, attention=attention).train()
    (source, mask), (target, _) = padded(5, 11, SOURCES), padded(5, 13, TARGETS)
    model(source, target, mask).square().sum().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0] == []


def test_without_attention_it_is_torch_s_own_sequence_to_sequence():
    """Torch's LSTM over the target and zeros, started from what the encoder ended with."""
    model = small(attention="none", layers=1)
    source, target = torch.randint(4, SOURCES, (3, 5)), torch.randint(4, TARGETS, (3, 7))
    _, (hidden, memory) = model.encoder(model.source_embedding(source))
    start = tuple(torch.cat((state[0], state[1]), -1)[None] for state in (hidden, memory))
    given = torch.cat((model.target_embedding(target), torch.zeros(3, 7, 14, dtype=torch.float64)), -1)
    out, _ = model.decoder(given, start)
    weight, bias = model.join.weight[:, :14], model.join.bias
    expected = model.lm_head(torch.tanh(nn.functional.linear(out, weight, bias)))
    torch.testing.assert_close(model(source, target), expected, rtol=0, atol=1e-12)


def test_beam_scores_are_those_of_a_parallel_pass():
    model = small()
    with torch.no_grad():
        model.lm_head.weight *= 9
        model.lm_head.bias[2] += 1
    source, mask = padded(6, 11, SOURCES)
    with torch.inference_mode():
        found = beam(model, source, mask, SearchLimits(9), beams=4, n_best=4)
    for row, hypotheses in enumerate(found):
        assert len(hypotheses) == 4
        for hypothesis in hypotheses:
            path = torch.tensor([[*hypothesis.tokens, 2][:9]])
            given = torch.cat((torch.tensor([[1]]), path[:, :-1]), 1)
            with torch.no_grad():
                logits = model(source[row : row + 1], given, mask[row : row + 1])
            logits[..., :2] = -torch.inf
            total = logits.log_softmax(-1).gather(-1, path[..., None]).sum().item()
            assert hypothesis.log_probability == pytest.approx(total, abs=1e-12)


def test_the_number_of_parameters_by_hand():
    """GRU: 3 gates of input, state and two biases; reading 7 each way, writing 14 from 28."""
    first, second = 2 * 3 * 7 * (14 + 7 + 2), 2 * 3 * 7 * (14 + 7 + 2)
    writing = 3 * 14 * (28 + 14 + 2) + 3 * 14 * (14 + 14 + 2)
    additive = 2 * 14 * 14 + 14
    rest = (SOURCES + TARGETS) * 14 + (28 * 14 + 14) + (14 * TARGETS + TARGETS)
    model = small(cell="gru")
    assert sum(p.numel() for p in model.attention.parameters()) == additive
    assert sum(p.numel() for p in model.parameters()) == first + second + writing + additive + rest == 6785


def test_too_long_a_sequence_is_refused():
    model, words = small(), torch.full((1, 18), 5)
    with pytest.raises(ValueError, match="a sequence of 18 exceeds max_length=17"):
        model(words, words)
    with pytest.raises(ValueError, match="a sequence of 18 exceeds max_length=17"):
        walk(model, model.start(words, None), words)


def test_padding_that_does_not_come_last_is_refused():
    source, mask = padded(4, 6, SOURCES, first=True)
    mask[1, 0] = False
    with pytest.raises(ValueError, match="mask must be True at the first tokens of each row"):
        small().start(source, mask)
    with pytest.raises(ValueError, match=r"inputs must have at least one row and one token, got shape \(2, 0\)"):
        small().start(source[:2, :0], None)


def test_nothing_to_read_is_refused_and_nothing_to_write_is_nothing():
    words = torch.full((2, 5), 5)
    assert small()(words, words[:, :0]).shape == (2, 0, small().lm_head.out_features)
    with pytest.raises(ValueError, match=r"inputs must have at least one row and one token, got shape \(0, 5\)"):
        small()(words[:0], words[:0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cell": "ltsm"}, "unknown cell 'ltsm'; did you mean 'lstm'"),
        ({"attention": "additiv"}, "unknown attention of a recurrent model 'additiv'; did you mean 'additive'"),
        ({"dim": 7}, "dim must be even .*, got 7"),
        ({"layers": 0}, "layers must be at least 1, got 0"),
    ],
)
def test_settings_that_make_no_sense(options, message):
    with pytest.raises(ValueError, match=message):
        small(**options)


BOUNDS = {torch.float32: 1e-5, torch.float64: 1e-12}


def sources(model, *lengths):
    """One state for each source."""
    torch.nn.init.normal_(model.lm_head.weight)  # so that no two tokens are nearly as likely
    with torch.inference_mode():
        return [model.start(torch.randint(4, SOURCES, (1, length)), None) for length in lengths]


def ragged(model):
    """The state of three rows, of which one entered late, with sources of other lengths."""
    source, mask = padded(2, 5, SOURCES)
    with torch.inference_mode():
        _, state = advance(model, model.start(source, mask), torch.randint(4, TARGETS, (2, 3)))
        return state.join(*sources(model, 7))


@EACH
@pytest.mark.parametrize("dtype", BOUNDS)
def test_a_saved_state_continues_with_the_same_bits(cell, attention, dtype, tmp_path):
    model = small(cell=cell, attention=attention).to(dtype)
    check_saved(model, ragged(model), torch.randint(4, TARGETS, (3, 5)), tmp_path / "x.safetensors")


@EACH
@pytest.mark.parametrize("dtype", BOUNDS)
def test_a_row_does_not_depend_on_the_others(cell, attention, dtype):
    model = small(cell=cell, attention=attention).to(dtype)
    check_independent(model, sources(model, 3, 7, 2, 11), BOUNDS[dtype])


@EACH
def test_forks_do_not_disturb_each_other(cell, attention):
    model = small(cell=cell, attention=attention)
    check_forked(model, ragged(model), *torch.randint(4, TARGETS, (2, 3, 5)))


def test_what_no_row_needs_is_dropped():
    state = ragged(small())
    assert (state.rows, state.length, state.lengths, state.source.shape) == (3, 3, [3, 3, 0], (3, 7, 14))
    late, early = (state.select(torch.tensor(rows)).compact() for rows in ([2], [1, 0]))
    assert (late.length, late.lengths, late.padding, late.mask) == (0, [0], None, None)
    assert (early.lengths, early.source.shape) == ([3, 3], (2, 5, 14))
    assert late.bytes == 8 * (2 * 2 * 14 + 14 + 7 * 14)  # two states of two layers, the context, the source


def test_bad_input_states_of_different_models_are_not_joined():
    lstm, gru, wide = (sources(small(**options), 3)[0] for options in ({}, {"cell": "gru"}, {"dim": 16}))
    with pytest.raises(ValueError, match="states cannot be joined: only some have the second state of an lstm"):
        lstm.join(gru)
    with pytest.raises(ValueError, match=r"hidden of one has shape \(1, 2, 14\).*, that of another \(1, 2, 16\)"):
        lstm.join(wide)
