import pytest
import torch

from qkv.positions import Learned


def test_adds_the_vector_of_each_position():
    positions = Learned(5, length=7)
    x = torch.randn(2, 3, 5)
    expected = x + positions.table.weight[[4, 0, 6]]
    torch.testing.assert_close(positions(x, torch.tensor([4, 0, 6])), expected)


def test_position_beyond_the_table():
    with pytest.raises(ValueError, match="position 7 is beyond the 7 learned positions"):
        Learned(5, length=7)(torch.zeros(1, 1, 5), torch.tensor([7]))
