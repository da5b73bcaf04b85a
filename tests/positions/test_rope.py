import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaConfig, LlamaRotaryEmbedding, apply_rotary_pos_emb

from qkv.positions import Rope


def test_parity_with_transformers_and_its_float32_angles():
    q, k = torch.randn(2, 2, 3, 19, 16)
    config = LlamaConfig(hidden_size=48, num_attention_heads=3, head_dim=16)
    places = torch.arange(5, 24)
    expected = apply_rotary_pos_emb(q, k, *LlamaRotaryEmbedding(config)(q, places[None]))
    for x, e in zip((q, k), expected, strict=True):
        torch.testing.assert_close(Rope().rotate(x, places), e, rtol=0, atol=1e-6)


def test_parity_with_transformers_in_float64():
    """Its rotation with angles in float64; its own angles are float32 whatever the type."""
    q, k = torch.randn(2, 2, 3, 19, 16, dtype=torch.float64)
    places = torch.arange(5, 24)
    half = places.double()[:, None] / 10000 ** (torch.arange(0, 16, 2).double() / 16)
    angle = torch.cat((half, half), -1)[None]
    expected = apply_rotary_pos_emb(q, k, angle.cos(), angle.sin())
    for x, e in zip((q, k), expected, strict=True):
        torch.testing.assert_close(Rope().rotate(x, places), e, rtol=0, atol=1e-12)


def test_parity_with_a_rotation_matrix_in_float64():
    x = torch.randn(1, 1, 7, 6, dtype=torch.float64)
    places = torch.arange(100, 107)
    turned = Rope().rotate(x, places)
    for t, place in enumerate(places.tolist()):
        for i in range(3):
            angle = torch.tensor(place / 10000 ** (2 * i / 6), dtype=torch.float64)
            matrix = torch.stack((torch.stack((angle.cos(), -angle.sin())), torch.stack((angle.sin(), angle.cos()))))
            pair = [i, i + 3]
            torch.testing.assert_close(turned[0, 0, t, pair], matrix @ x[0, 0, t, pair], rtol=0, atol=1e-12)


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
