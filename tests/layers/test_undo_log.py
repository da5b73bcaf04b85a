import pytest
import torch
from torch import nn

from qkv.attention import Delta, Elu, Linear, Softmax, Taylor
from qkv.layers import ForgetGate, Gates, MultiHead, OutputGate, ProjectionConvolution, ShortConvolution, WriteGate
from qkv.positions import Alibi

DIM, HEADS = 22, 2


def gated_delta():
    gates = Gates(forget=ForgetGate(DIM, HEADS), write=WriteGate(DIM, HEADS), output=OutputGate(DIM, HEADS, 11))
    convolution = ProjectionConvolution(3 * DIM, 4)
    return MultiHead(DIM, HEADS, Delta(), convolution=convolution, gates=gates, output_norm=nn.RMSNorm(11))


LAYERS = {
    "softmax": lambda: MultiHead(DIM, HEADS, Softmax()),
    "window": lambda: MultiHead(DIM, HEADS, Softmax(window=3)),
    "window, bias": lambda: MultiHead(DIM, HEADS, Softmax(window=3), Alibi(HEADS)),
    "bias, convolution": lambda: MultiHead(DIM, HEADS, Softmax(), Alibi(HEADS), convolution=ShortConvolution(DIM)),
    "linear": lambda: MultiHead(DIM, HEADS, Linear()),
    "linear, decay": lambda: MultiHead(DIM, HEADS, Linear(), Alibi(HEADS)),
    "elu": lambda: MultiHead(DIM, HEADS, Elu()),
    "taylor, convolution": lambda: MultiHead(DIM, HEADS, Taylor(), convolution=ShortConvolution(DIM)),
    "delta": gated_delta,
}


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
def test_any_tokens_of_the_last_step_can_be_taken_back(layer, inference):
    layer, x = layer().double(), torch.randn(3, 13, DIM, dtype=torch.float64)
    with torch.inference_mode(inference):
        expected, state, place = layer(x, causal=True), layer.start(3).with_undo_log(), 0
        for kept, wrong in [(3, 2), (0, 4), (4, 0), (1, 5), (5, 1)]:
            noise = torch.randn(3, wrong, DIM, dtype=torch.float64)
            out, state = layer.step(torch.cat((x[:, place : place + kept], noise), 1), state)
            state = state.rewind(wrong)
            torch.testing.assert_close(out[:, :kept], expected[:, place : place + kept], rtol=0, atol=1e-12)
            place += kept
    assert state.length == place == 13


def test_keys_of_a_cache_are_not_recorded():
    layer = MultiHead(DIM, HEADS, Softmax())
    _, state = layer.step(torch.randn(3, 5, DIM), layer.start(3).with_undo_log())
    assert state.log is None
    assert (state.rewindable, state.place_axes) == (5, {"attention.keys": 2, "attention.values": 2})


@pytest.mark.parametrize("layer", [LAYERS["linear"], LAYERS["bias, convolution"]], ids=["linear", "convolution"])
def test_without_a_log_nothing_can_be_taken_back(layer):
    layer = layer()
    _, state = layer.step(torch.randn(3, 5, DIM), layer.start(3))
    with pytest.raises(ValueError, match=r"count=2 tokens cannot be taken back from this HeadsState, only 0 to 0"):
        state.rewind(2)


def test_only_the_last_step_is_recorded_and_no_state_before_it_is_kept():
    layer = MultiHead(DIM, HEADS, Linear())
    _, first = layer.step(torch.randn(3, 5, DIM), layer.start(3).with_undo_log())
    _, second = layer.step(torch.randn(3, 2, DIM), first)
    assert (first.rewindable, second.rewindable) == (5, 2)
    assert second.log.before is first.attention
    assert second.rewind(1).rewindable == 0
    assert second.fork().rewindable == 0
    assert layer.step(torch.randn(3, 4, DIM), second.fork())[1].rewindable == 4
