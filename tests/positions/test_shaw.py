import pytest
import torch

from qkv.positions import Shaw


def test_bias_equals_a_plain_loop():
    positions = Shaw(key_dim=5, distance=2).double()
    q = torch.randn(2, 3, 4, 5, dtype=torch.float64)
    queries, keys = torch.arange(3, 7), torch.arange(7)
    bias = positions.bias(q, queries, keys)
    assert bias.shape == (2, 3, 4, 7)
    for a, i in enumerate(queries.tolist()):
        for j in keys.tolist():
            vector = positions.table[max(-2, min(2, j - i)) + 2]
            expected = (q[:, :, a] * vector).sum(-1) / 5**0.5
            torch.testing.assert_close(bias[:, :, a, j], expected, rtol=0, atol=1e-12)


def test_wrong_key_dim():
    with pytest.raises(ValueError, match="q has key_dim 4, but shaw was built for 5"):
        Shaw(key_dim=5).bias(torch.zeros(1, 1, 2, 4), torch.arange(2), torch.arange(2))


def test_sizes_must_be_valid():
    with pytest.raises(ValueError, match="key_dim must be at least 1, got 0"):
        Shaw(0)
    with pytest.raises(ValueError, match="distance must be at least 0, got -1"):
        Shaw(4, distance=-1)
