import pytest
import torch
from torch import nn

from qkv.layers import RecurrentCell


def test_parity_with_torch_rnn_cell():
    cell, torchs = RecurrentCell(5, 7).double(), nn.RNN(5, 7, batch_first=True).double()
    with torch.no_grad():
        torchs.weight_ih_l0.copy_(cell.input.weight)
        torchs.weight_hh_l0.copy_(cell.state.weight)
        torchs.bias_ih_l0.copy_(cell.input.bias)
        torchs.bias_hh_l0.zero_()
    x, h = torch.randn(3, 11, 5, dtype=torch.float64), torch.randn(3, 7, dtype=torch.float64)
    states, last = cell(x, h)
    expected, end = torchs(x, h[None])
    torch.testing.assert_close(states, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(last, end[0], rtol=0, atol=1e-12)
    torch.testing.assert_close(cell(x)[0], torchs(x)[0], rtol=0, atol=1e-12)


def test_an_alternating_sum_with_set_weights():
    """h_t = x_t - h_(t-1): after an even number of tokens h = sum of (x_2i - x_(2i-1)) + h_0."""
    cell = RecurrentCell(1, 1, "identity", bias=False)
    with torch.no_grad():
        cell.input.weight.fill_(1)
        cell.state.weight.fill_(-1)
    x = torch.tensor([[3.0, 5.0, 2.0, 1.0, 4.0, 9.0]])[..., None]
    states, last = cell(x, torch.tensor([[0.5]]))
    assert states[0, :, 0].tolist() == [2.5, 2.5, -0.5, 1.5, 2.5, 6.5]
    assert last.item() == (5 - 3) + (1 - 2) + (9 - 4) + 0.5


def test_empty_input_keeps_the_state():
    cell = RecurrentCell(5, 7)
    h = torch.randn(3, 7)
    states, last = cell(torch.zeros(3, 0, 5), h)
    assert states.shape == (3, 0, 7)
    assert torch.equal(last, h)


def test_bad_sizes_and_names():
    with pytest.raises(ValueError, match="inputs and dim must be at least 1, got 5 and 0"):
        RecurrentCell(5, 0)
    with pytest.raises(ValueError, match="unknown activation 'tan'; did you mean 'tanh'"):
        RecurrentCell(5, 7, "tan")
