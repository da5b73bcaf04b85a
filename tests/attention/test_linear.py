import torch

from qkv.attention import Linear
from tests.attention.loops import attention, dot, random_qkv


def test_equals_plain_loops():
    q, k, v = random_qkv(queries=9, keys=9)
    decay = torch.rand(6, dtype=torch.float64)
    expected = attention(q, k, v, lambda x, y, at: dot(x, y) / 11**0.5, causal=True, decay=decay, divide=False)
    for chunk in (1, 4, 100):
        out = Linear(chunk=chunk, backend="chunked")(q, k, v, causal=True, decay=decay)
        torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)


def test_the_order_of_the_products_does_not_matter():
    """sum_j (q.k_j) v_j = q' (sum_j k_j v_j')"""
    q, k, v = random_qkv(heads=3)
    by_keys = (q @ k.mT) @ v
    by_state = q @ (k.mT @ v)
    torch.testing.assert_close(by_keys, by_state, rtol=1e-12, atol=1e-12)
    for backend in ("reference", "chunked"):
        torch.testing.assert_close(Linear(scale=1.0, backend=backend)(q, k, v), by_state, rtol=1e-12, atol=1e-12)
