import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaConfig, LlamaRotaryEmbedding, apply_rotary_pos_emb

from qkv.positions import Rope


def test_parity_with_transformers_and_its_float32_angles():
    q, k = torch.randn(2, 2, 3, 19, 16)
    config = LlamaConfig(hidden_size=48, num_attention_heads=3, head_dim=16)
    index = torch.arange(5, 24)
    expected = apply_rotary_pos_emb(q, k, *LlamaRotaryEmbedding(config)(q, index[None]))
    for x, e in zip((q, k), expected, strict=True):
        torch.testing.assert_close(Rope().rotate(x, index), e, rtol=0, atol=1e-6)


def test_parity_with_transformers_in_float64():
    """The rotation of transformers with float64 angles; its own angles are always float32."""
    q, k = torch.randn(2, 2, 3, 19, 16, dtype=torch.float64)
    index = torch.arange(5, 24)
    half = index.double()[:, None] / 10000 ** (torch.arange(0, 16, 2).double() / 16)
    angle = torch.cat((half, half), -1)[None]
    expected = apply_rotary_pos_emb(q, k, angle.cos(), angle.sin())
    for x, e in zip((q, k), expected, strict=True):
        torch.testing.assert_close(Rope().rotate(x, index), e, rtol=0, atol=1e-12)


def test_parity_with_a_rotation_matrix_in_float64():
    x = torch.randn(1, 1, 7, 6, dtype=torch.float64)
    index = torch.arange(100, 107)
    rotated = Rope().rotate(x, index)
    for t, position in enumerate(index.tolist()):
        for i in range(3):
            angle = torch.tensor(position / 10000 ** (2 * i / 6), dtype=torch.float64)
            matrix = torch.stack((torch.stack((angle.cos(), -angle.sin())), torch.stack((angle.sin(), angle.cos()))))
            pair = [i, i + 3]
            torch.testing.assert_close(rotated[0, 0, t, pair], matrix @ x[0, 0, t, pair], rtol=0, atol=1e-12)


def test_products_depend_on_the_distance_alone():
    q, k = torch.randn(2, 1, 1, 1, 8, dtype=torch.float64)
    rope = Rope()

    def product(i, j):
        return float((rope.rotate(q, torch.tensor([i])) * rope.rotate(k, torch.tensor([j]))).sum())

    assert product(3, 1) == pytest.approx(product(1003, 1001), abs=1e-10)
    assert product(3, 1) != pytest.approx(product(3, 2), abs=1e-3)


def test_odd_width():
    with pytest.raises(ValueError, match="key_dim must be even, got 5"):
        Rope().rotate(torch.zeros(1, 1, 2, 5), torch.arange(2))
