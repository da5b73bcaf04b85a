import math

import pytest
import torch
from torch.nn import functional

from qkv.attention import Case, Softmax, parse
from qkv.attention.contract import identities
from tests.attention.loops import attention, dot, random_qkv


def test_equals_plain_loops():
    q, k, v = random_qkv()
    bias = torch.randn(1, 6, 5, 7, dtype=torch.float64)
    mask = torch.rand(2, 7) > 0.3
    expected = attention(
        q, k, v, lambda x, y, at: math.exp(dot(x, y) / math.sqrt(11) + float(bias[0, at[1], at[2], at[3]])), mask=mask
    )
    torch.testing.assert_close(Softmax()(q, k, v, mask=mask, bias=bias), expected, rtol=1e-12, atol=1e-13)


def test_weights_of_2_1_0():
    """Worked by hand: exp(2), exp(1), exp(0) sum to 11.1073."""
    q = torch.ones(1, 1, 1, 1)
    k = torch.tensor([2.0, 1.0, 0.0]).view(1, 1, 3, 1)
    expected = torch.tensor([0.66524, 0.24473, 0.09003])
    torch.testing.assert_close(Softmax().weights(q, k)[0, 0, 0], expected, rtol=0, atol=5e-6)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
@pytest.mark.parametrize("causal", [False, True])
def test_parity_with_torch(dtype, bound, causal):
    q, k, v = (torch.randn(2, 3, 19, 8, dtype=dtype) for _ in range(3))
    expected = functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    for backend in ("reference", "sdpa"):
        out = Softmax(backend=backend)(q, k, v, causal=causal)
        torch.testing.assert_close(out, expected, rtol=0, atol=bound)


def test_window_sees_the_last_keys_only():
    q, k, v = random_qkv(queries=23, keys=23)
    for window in (1, 2, 5, 40):
        expected = attention(
            q,
            k,
            v,
            lambda x, y, at, w=window: math.exp(dot(x, y) / math.sqrt(11)) if at[2] - at[3] < w else 0.0,
            causal=True,
        )
        torch.testing.assert_close(Softmax(window=window)(q, k, v, causal=True), expected, rtol=1e-12, atol=1e-13)


def test_window_over_many_blocks():
    """Longer than a block of queries, so several blocks must join correctly."""
    case = Case(queries=211, keys=211, masked=True, modifier="bias")
    assert identities.form_error(Softmax(window=7), case, identities.forward_output) <= 1e-12


def test_window_makes_the_cost_linear():
    mechanism = Softmax(window=64)
    shapes = [Case(queries=n, keys=n).shape for n in (1024, 2048)]
    first, second = (sum(mechanism.cost(shape).executed.values()) for shape in shapes)
    assert second < 2.1 * first


def test_pair_mask_hides_pairs():
    q, k, v = random_qkv()
    pairs = torch.rand(2, 1, 5, 7) > 0.4
    expected = attention(
        q, k, v, lambda x, y, at: math.exp(dot(x, y) / math.sqrt(11)) * bool(pairs[at[0], 0, at[2], at[3]])
    )
    torch.testing.assert_close(Softmax()(q, k, v, mask=pairs), expected, rtol=1e-12, atol=1e-13)


def test_pair_mask_that_hides_a_key_from_all_also_hides_its_nan():
    q, k, v = random_qkv()
    pairs = torch.ones(1, 1, 5, 7, dtype=torch.bool)
    pairs[..., 3] = False
    expected = Softmax()(q, k, v, mask=pairs)
    k[:, :, 3], v[:, :, 3] = math.nan, math.inf
    assert torch.equal(Softmax()(q, k, v, mask=pairs), expected)


def test_a_bias_of_minus_infinity_hides():
    q, k, v = random_qkv()
    bias = torch.zeros(1, 6, 5, 7, dtype=torch.float64)
    bias[..., 4:] = -math.inf
    bias[:, :, 2] = -math.inf
    for backend in ("reference", "sdpa"):
        out = Softmax(backend=backend)(q, k, v, bias=bias)
        torch.testing.assert_close(out[:, :, 0], Softmax()(q, k[:, :, :4], v[:, :, :4])[:, :, 0], rtol=0, atol=1e-12)
        assert not out[:, :, 2].any()


def test_narrow_keys_are_padded_not_computed_by_the_slow_kernel():
    """torch's fused CPU kernel needs key_dim = value_dim; otherwise it falls back to the full matrix."""
    q, k, v = random_qkv(queries=7, heads=3, key_dim=3)
    cost = Softmax().cost(Case(queries=7, keys=7, heads=3, key_dim=3, value_dim=13, causal=False).shape)
    assert cost.executed == {"scores": 2 * 3 * 49 * 13, "values": 2 * 3 * 49 * 13}
    assert cost.needed == {"scores": 2 * 3 * 49 * 3, "values": 2 * 3 * 49 * 13}
    expected = functional.scaled_dot_product_attention(q, k, v)
    torch.testing.assert_close(Softmax()(q, k, v), expected, rtol=0, atol=1e-12)


def test_bfloat16_on_a_cpu_is_computed_in_float32():
    q, k, v = (x.bfloat16() for x in random_qkv())
    out = Softmax()(q, k, v)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out, Softmax()(q.float(), k.float(), v.float()).bfloat16(), rtol=0, atol=0)


def test_dropout_leaves_out_weights_and_keeps_the_mean():
    """With equal weights and one-hot values, the outputs are the weights themselves: 0 or 1/n / (1 - p)."""
    n = 64
    q, k, v = torch.zeros(1, 5, 500, 3), torch.zeros(1, 5, n, 3), torch.eye(n).expand(1, 5, n, n)
    softmax = Softmax(dropout=0.25)
    dropped = softmax(q, k, v)
    kept = dropped > 0
    torch.testing.assert_close(dropped[kept], torch.full_like(dropped[kept], 1 / n / 0.75))
    assert float(kept.float().mean()) == pytest.approx(0.75, abs=0.01)  # of 160,000 weights: 9 standard deviations
    assert torch.equal(softmax.eval()(q, k, v), Softmax()(q, k, v))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1, got 1.0"),
        ({"dropout": -0.1}, "dropout must be at least 0"),
        ({"dropout": 0.1, "backend": "reference"}, "dropout=0.1 needs backend='sdpa'"),
    ],
)
def test_invalid_dropout_raises(options, words):
    with pytest.raises(ValueError, match=words):
        Softmax(**options)


def test_dropout_is_an_option_of_attend():
    softmax = parse("softmax(dropout=0.125)")
    assert isinstance(softmax, Softmax)
    assert softmax.dropout == 0.125


@pytest.mark.parametrize("backend", ["sdpa", "reference"])
def test_autocast_keeps_scores_in_the_dtype_of_the_inputs(backend):
    """These scores overflow float16, where the weights would be NaN."""
    q, k, v = (60 * x for x in torch.randn(3, 1, 2, 7, 5))
    softmax = Softmax(backend=backend, scale=20.0)
    expected, weights = softmax(q, k, v, causal=True), softmax.weights(q, k, causal=True)
    with torch.autocast("cpu", torch.float16):
        assert torch.equal(softmax(q, k, v, causal=True), expected)
        assert torch.equal(softmax.weights(q, k, causal=True), weights)
    assert expected.isfinite().all()


@pytest.mark.parametrize("scale", [-2.0, -0.0, 0.0])
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_negative_and_zero_scales(scale, window, dtype):
    q, k, v = (x.to(dtype) for x in random_qkv(queries=7))
    given = [[x.clone().requires_grad_() for x in (q, k, v)] for _ in range(2)]
    fast, law = (Softmax(scale=scale, window=window, backend=backend) for backend in ("sdpa", "reference"))
    for causal in (True,) if window else (True, False):
        found, expected = (form(*inputs, causal=causal) for form, inputs in zip((fast, law), given, strict=True))
        slopes = [torch.autograd.grad(out.sum(), x) for out, x in zip((found, expected), given, strict=True)]
        close = {"rtol": 2e-2, "atol": 2e-2} if dtype == torch.float16 else {"rtol": 0, "atol": 1e-12}
        torch.testing.assert_close((found, *slopes[0]), (expected, *slopes[1]), **close)
        assert expected.isfinite().all()
