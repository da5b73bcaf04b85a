"""NaN, overflow and long sums: what a kind does at the edge of its range."""

import pytest
import torch

from qkv.attention import Elu, Softmax, Taylor
from qkv.attention.internal.nonfinite import all_finite


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_one_bad_element_is_found(bad):
    x = torch.ones(3, 5)
    assert all_finite(x)
    x[1, 2] = bad
    assert not all_finite(x)


def test_values_that_cannot_be_read_count_as_finite():
    assert all_finite(torch.full((2,), torch.nan, device="meta"))
    assert torch.func.vmap(lambda x: x * all_finite(x))(torch.full((2, 3), torch.nan)).isnan().all()
    assert torch.compile(all_finite, backend="eager")(torch.full((2,), torch.nan))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("order", "size"), [(2, 1e12), (4, 1e6)])
@pytest.mark.parametrize("backend", ["reference", "chunked"])
def test_scores_whose_powers_overflow_float32(backend, order, size, causal):
    """Softmax is finite there. Values and gradients are those of float64, rounded."""
    taylor = Taylor(order, backend=backend, chunk=7)
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, 17, 5, generator=generator) for _ in "qkv")
    q, k = q * size, k * size
    assert not taylor.similarity(q, k).isfinite().all()
    assert Softmax()(q, k, v, causal=causal).isfinite().all()
    narrow = [x.clone().requires_grad_() for x in (q, k, v)]
    wide = [x.double().requires_grad_() for x in (q, k, v)]
    found, expected = (taylor(*x, causal=causal) for x in (narrow, wide))
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(taylor.weights(q, k, causal=causal) @ v, found, rtol=1e-4, atol=1e-5)
    gradients = [torch.autograd.grad(out.sum(), x) for out, x in ((found, narrow), (expected, wide))]
    for mine, true in zip(*gradients, strict=True):
        assert mine.isfinite().all()
        assert (mine - true).abs().max() <= 1e-4 * true.abs().max()


@pytest.mark.parametrize(("order", "size"), [(2, 1e12), (4, 1e6)])
def test_steps_whose_powers_overflow_float32(order, size):
    taylor = Taylor(order)
    q, k, v = (torch.randn(1, 2, 6, 5, generator=torch.Generator().manual_seed(seed)) for seed in range(3))
    q, k, state = q * size, k * size, taylor.start(1, 2, 5, 5)
    expected = taylor(q.double(), k.double(), v.double(), causal=True)
    for t in range(6):
        out, state = taylor.step(*(x[:, :, t : t + 1] for x in (q, k, v)), state)
        torch.testing.assert_close(out.double(), expected[:, :, t : t + 1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kind", [Taylor, Elu])
def test_a_hundred_thousand_equal_tokens_in_float32(kind, causal):
    """Every output is the value itself. Chunks are summed before they are added, so rounding grows with the chunks."""
    tokens = 100_000
    q, k, v = (torch.randn(1, 1, 1, 8, generator=torch.Generator().manual_seed(seed)).abs() for seed in range(3))
    out = kind(backend="chunked")(*(x.expand(-1, -1, tokens, -1) for x in (q, k, v)), causal=causal)
    assert ((out - v) / v).abs().max() <= tokens / 128 * 2**-24


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Taylor, Elu])
def test_steps_of_equal_tokens_stay_within_their_bound(kind):
    """One rounding per token, each at most half a unit of the last place: relative error at most tokens / 2^24."""
    tokens, mechanism = 20_000, kind()
    q, k, v = (torch.randn(1, 1, 1, 8, generator=torch.Generator().manual_seed(seed)).abs() for seed in range(3))
    state = mechanism.start(1, 1, 8, 8)
    with torch.inference_mode():
        for _ in range(tokens):
            out, state = mechanism.step(q, k, v, state)
    assert ((out - v) / v).abs().max() <= tokens * 2**-24
