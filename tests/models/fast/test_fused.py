"""A fused model writes what the model writes; the model itself is the independent implementation."""

import pytest
import torch

from qkv.decode import SearchLimits, beam, greedy
from qkv.models import EncoderDecoder, EncoderDecoderConfig, Recurrent, RecurrentConfig
from qkv.models.fast.fused import FusedEncoderDecoder, _gelu, can_fuse

SOURCES, TARGETS, LONGEST = 31, 37, 19
SIZES = {"dim": 20, "heads": 2, "hidden_dim": 29, "encoder_layers": 3, "max_length": LONGEST}


def built(**changes):
    model = EncoderDecoder(EncoderDecoderConfig(**{**SIZES, **changes}), SOURCES, TARGETS).double()
    with torch.no_grad():
        for weights in model.parameters():
            weights.add_(0.1 * torch.randn_like(weights))  # norms and biases that are not ones and zeros
    return model.eval()


def words(rows=7, time=11):
    """Words of different lengths, the longest first."""
    lengths = torch.arange(time, time - rows, -1)[:, None]
    mask = torch.arange(time) < lengths
    return torch.randint(4, SOURCES, (rows, time)).masked_fill(~mask, 0), mask


@pytest.mark.parametrize("positions", ["rope", "sinusoidal", "learned", "none"])
@pytest.mark.parametrize("layers", [1, 2])
@torch.inference_mode()
def test_every_logit_is_the_model_s(positions, layers):
    """As far as it can write, so the room for keys and values has to grow twice."""
    model = built(positions=positions, decoder_layers=layers)
    inputs, mask = words(time=7, rows=5)
    given = torch.randint(2, TARGETS, (5, LONGEST))
    wanted = model(inputs, given, mask)
    fused = FusedEncoderDecoder(model)
    state = fused.start(inputs, mask)
    for place in range(LONGEST):
        logits, state = fused.step(given[:, place], state)
        torch.testing.assert_close(logits, wanted[:, place], rtol=1e-11, atol=1e-11)


@torch.inference_mode()
def test_rows_are_reordered_repeated_and_left_out():
    model = built(positions="rope", decoder_layers=2)
    inputs, mask = words()
    given, rows = torch.randint(2, TARGETS, (7, 6)), torch.tensor([4, 1, 1, 6])
    further = torch.randint(2, TARGETS, (4, 3))
    fused = FusedEncoderDecoder(model)
    state = fused.start(inputs, mask)
    for place in range(6):
        _, state = fused.step(given[:, place], state)
    state = state.select(rows)
    for place in range(3):
        logits, state = fused.step(further[:, place], state)
    wanted = model(inputs[rows], torch.cat((given[rows], further), 1), mask[rows])[:, -1]
    torch.testing.assert_close(logits, wanted, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("masked", [True, False])
def test_searches_find_the_same(masked):
    model, (inputs, mask) = built(positions="rope").float(), words()
    inputs, given = (inputs, mask) if masked else (inputs.clamp(min=4), None)
    fused, limits = FusedEncoderDecoder(model), SearchLimits(LONGEST - 1)
    straight, wide = (greedy(m, inputs, given, limits) for m in (model, fused)), {"beams": 5, "n_best": 3}
    beams = (beam(m, inputs, given, limits, **wide) for m in (model, fused))
    for wanted, found in (tuple(straight), tuple([h for best in lists for h in best] for lists in beams)):
        assert [one.tokens for one in found] == [one.tokens for one in wanted]
        assert [one.score for one in found] == pytest.approx([one.score for one in wanted], abs=1e-4)


@pytest.mark.parametrize("shape", [(1, 2), (1, 384), (8, 384), (7, 29), (3, 2**13), (5, 2**13)])
def test_gelu_of_few_and_of_many_numbers(shape):
    x = 3 * torch.randn(shape)
    wanted = (x.double() * (1 + torch.erf(x.double() / 2**0.5)) / 2).float()
    torch.testing.assert_close(_gelu(x), wanted, rtol=1e-5, atol=4e-6)


@pytest.mark.parametrize("rows", [1, 2])
def test_too_long_is_refused(rows):
    fused = FusedEncoderDecoder(built())
    with pytest.raises(ValueError, match=f"{LONGEST + 1}.*{LONGEST}"):
        fused.start(torch.zeros(rows, LONGEST + 1, dtype=torch.int64), None)
    state = fused.start(torch.ones(rows, 3, dtype=torch.int64), None)
    for _ in range(LONGEST):
        _, state = fused.step(torch.tensor([4] * rows), state)
    with pytest.raises(ValueError, match=f"{LONGEST + 1}.*{LONGEST}"):
        fused.step(torch.tensor([4] * rows), state)


@pytest.mark.parametrize(
    "changes",
    [
        {"attention": "taylor"},
        {"cross": "linear"},
        {"positions": "t5"},
        {"positions": "alibi"},
        {"convolution": 3},
        {"hidden_dim": 0},
        {"encoder_layers": 0},
        {"attention": "softmax(window=5)", "encoder_layers": 0},
        {"key_dim": 8},
        {"max_length": 2**20},
    ],
)
def test_what_cannot_be_fused_says_so(changes):
    model = built(**changes)
    assert not can_fuse(model)
    with pytest.raises(ValueError, match="model must be an EncoderDecoder in eval mode"):
        FusedEncoderDecoder(model)


def test_other_models_decode_as_they_are():
    assert not can_fuse(Recurrent(RecurrentConfig(dim=12), SOURCES, TARGETS).eval())
    assert not can_fuse(built().train())
    assert not can_fuse(built().half())
    assert can_fuse(built())
