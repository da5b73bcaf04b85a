"""One source in numpy is what the model makes of it; the model itself is the independent implementation."""

import pytest
import torch
from torch import nn

from qkv.decode import SearchLimits, beam, greedy
from qkv.models.fast.fused import FusedEncoderDecoder, FusedState
from qkv.models.fast.fused_numpy import NumpyState
from qkv.pronunciation import NeuralG2P
from qkv.pronunciation.bundled import model_folder
from tests.models.fast.test_fused import LONGEST, SOURCES, TARGETS, built


def word(time):
    return torch.randint(4, SOURCES, (1, time))


@pytest.mark.parametrize("positions", ["rope", "sinusoidal", "learned", "none"])
@pytest.mark.parametrize(("layers", "time"), [(1, 7), (2, 1), (2, LONGEST)])
@torch.inference_mode()
def test_every_logit_is_the_model_s(positions, layers, time):
    """As far as it can write, so the room for keys and values has to grow."""
    model, inputs = built(positions=positions, decoder_layers=layers), word(time)
    given = torch.randint(2, TARGETS, (1, LONGEST))
    wanted, fast = model(inputs, given, None), FusedEncoderDecoder(model)
    state = fast.start(inputs, torch.ones_like(inputs, dtype=torch.bool))
    assert isinstance(state, NumpyState)
    for place in range(LONGEST):
        logits, state = fast.step(given[:, place], state)
        torch.testing.assert_close(logits, wanted[:, place], rtol=1e-11, atol=1e-11)


@torch.inference_mode()
def test_paths_are_repeated_reordered_and_left_out():
    model, inputs = built(positions="rope", decoder_layers=2), word(5)
    fast = FusedEncoderDecoder(model)
    given, rows, further = (
        torch.randint(2, TARGETS, (3, 4)),
        torch.tensor([2, 0, 2, 1]),
        torch.randint(2, TARGETS, (4, 2)),
    )
    state = fast.start(inputs, None).select(torch.tensor([0, 0, 0]))
    for place in range(4):
        _, state = fast.step(given[:, place], state)
    state = state.select(rows)
    for place in range(2):
        logits, state = fast.step(further[:, place], state)
    path = torch.cat((given[rows], further), 1)
    torch.testing.assert_close(logits, model(inputs.expand(4, -1), path, None)[:, -1], rtol=1e-11, atol=1e-11)
    only, _ = fast.step(torch.tensor([9]), state.select(torch.tensor([3])))
    path = torch.cat((path[3:], torch.tensor([[9]])), 1)
    torch.testing.assert_close(only, model(inputs, path, None)[:, -1], rtol=1e-11, atol=1e-11)


def test_another_activation():
    model = built()
    for block in (*model.encoder, *model.decoder):
        block.feed_forward.activation = nn.SiLU()
    inputs, given = word(6), torch.tensor([[5]])
    fast = FusedEncoderDecoder(model)
    with torch.inference_mode():
        logits, _ = fast.step(given[0], fast.start(inputs, None))
        torch.testing.assert_close(logits, model(inputs, given, None)[:, 0], rtol=1e-11, atol=1e-11)


def test_what_is_padded_is_fused_in_torch_only():
    inputs, mask = word(3), torch.tensor([[True, True, False]])
    assert isinstance(FusedEncoderDecoder(built()).start(inputs, mask), FusedState)


@pytest.mark.slow
def test_the_bundled_model_says_a_thousand_words_as_its_definition_does():
    network, limits = NeuralG2P.open(model_folder()), SearchLimits(63)
    generator = torch.Generator().manual_seed(0)
    letters = torch.tensor(network.task.data.sources.encode("abcdefghijklmnopqrstuvwxyz"))
    for _ in range(1000):
        time = int(torch.randint(1, 15, (), generator=generator))
        inputs = letters[torch.randint(26, (1, time), generator=generator)]
        (wanted,), (found,) = (greedy(model, inputs, None, limits) for model in (network.model, network._fast_model))
        assert found.tokens == wanted.tokens
        assert found.score == pytest.approx(wanted.score, abs=1e-5 * max(1, len(wanted.tokens)))


def test_beams_find_the_same():
    model = built(positions="rope").float()
    fast, limits = FusedEncoderDecoder(model), SearchLimits(LONGEST - 1)
    for time in range(1, 12):
        inputs = word(time)
        (wanted,), (found,) = (beam(one, inputs, None, limits, beams=5, n_best=3) for one in (model, fast))
        assert [one.tokens for one in found] == [one.tokens for one in wanted]
        assert [one.score for one in found] == pytest.approx([one.score for one in wanted], abs=1e-4)
