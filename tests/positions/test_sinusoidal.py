import math

import pytest
import torch

from qkv.attention import Softmax
from qkv.layers import MultiHead
from qkv.positions import Sinusoidal


def test_the_formula():
    waves = Sinusoidal(6).encode(torch.arange(11), torch.float64)
    for position in range(11):
        for i in range(3):
            angle = position / 10000 ** (2 * i / 6)
            assert float(waves[position, 2 * i]) == pytest.approx(math.sin(angle), abs=1e-14)
            assert float(waves[position, 2 * i + 1]) == pytest.approx(math.cos(angle), abs=1e-14)


def test_a_shift_is_a_fixed_rotation():
    """PE(p + k) = R_k PE(p) with the same R_k for every p."""
    waves = Sinusoidal(8).encode(torch.arange(40), torch.float64)
    turn = torch.linalg.lstsq(waves[:20], waves[7:27]).solution
    torch.testing.assert_close(waves[13:33] @ turn, waves[20:40], rtol=0, atol=1e-10)
    torch.testing.assert_close(turn.T @ turn, torch.eye(8, dtype=torch.float64), rtol=0, atol=1e-6)


def test_without_positions_attention_is_permutation_equivariant_and_with_them_not():
    heads, x = MultiHead(8, 2, Softmax()).double(), torch.randn(1, 11, 8, dtype=torch.float64)
    order = torch.randperm(11)
    torch.testing.assert_close(heads(x[:, order]), heads(x)[:, order], rtol=0, atol=1e-12)
    positions, index = Sinusoidal(8), torch.arange(11)
    difference = heads(positions(x[:, order], index)) - heads(positions(x, index))[:, order]
    assert difference.abs().max() > 1e-3


def test_bad_input():
    with pytest.raises(ValueError, match="dim must be even.*got 7"):
        Sinusoidal(7)
    with pytest.raises(ValueError, match="x has dim 4, but these positions were built for 6"):
        Sinusoidal(6)(torch.zeros(1, 2, 4), torch.arange(2))
