import pytest
import torch

from qkv.attention import Softmax, Taylor
from qkv.positions import Alibi


def test_slopes_of_the_paper():
    assert Alibi(8).slopes.tolist() == [2.0**-n for n in range(1, 9)]
    assert Alibi(6).slopes.tolist() == pytest.approx([2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8, 2.0**-1, 2.0**-3])


def test_bias_equals_a_plain_loop():
    q = torch.zeros(1, 4, 3, 5, dtype=torch.float64)
    queries, keys = torch.tensor([4, 9, 2]), torch.arange(7)
    bias = Alibi(4).bias(q, queries, keys)
    for h, slope in enumerate([2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8]):
        for a, i in enumerate(queries.tolist()):
            for b, j in enumerate(keys.tolist()):
                assert float(bias[0, h, a, b]) == -slope * abs(i - j)


def test_for_causal_softmax_the_decay_is_the_bias():
    """exp(s - slope d) = exp(s) exp(-slope d): a softmax with the bias is an exp-weighted mean with the decay."""
    q, k, v = (torch.randn(1, 4, 9, 5, dtype=torch.float64) for _ in range(3))
    index, alibi = torch.arange(9), Alibi(4)
    out = Softmax()(q, k, v, causal=True, bias=alibi.bias(q, index, index))
    fading = torch.exp(-alibi.decay(q)[:, None, None] * (index[:, None] - index).clamp(min=0))
    weights = (torch.exp(q @ k.mT / 5**0.5) * fading).tril()
    torch.testing.assert_close(out, weights @ v / weights.sum(-1, keepdim=True), rtol=0, atol=1e-12)
    weights = (Taylor().similarity(q / 5**0.5, k) * fading).tril()
    out = Taylor()(q, k, v, causal=True, decay=alibi.decay(q))
    torch.testing.assert_close(out, weights @ v / weights.sum(-1, keepdim=True), rtol=0, atol=1e-12)


def test_wrong_number_of_heads():
    with pytest.raises(ValueError, match="q has 3 heads, but alibi was built for 4"):
        Alibi(4).decay(torch.zeros(1, 3, 2, 5))


def test_zero_heads():
    with pytest.raises(ValueError, match="heads must be at least 1, got 0"):
        Alibi(0)


def test_slopes_of_other_head_counts_in_float64():
    expected = [2.0 ** (-8 * h / 8) for h in range(1, 9)] + [2.0 ** (-8 * h / 16) for h in (1, 3, 5)]
    q = torch.zeros(1, 11, 1, 1, dtype=torch.float64)
    assert Alibi(11).double().decay(q).tolist() == pytest.approx(expected, rel=1e-15)


def test_casts_and_meta_device_do_not_change_slopes():
    q, expected = torch.zeros(1, 6, 1, 1), Alibi(6).decay(torch.zeros(1, 6, 1, 1))
    assert torch.equal(Alibi(6).half().float().decay(q), expected)
    with torch.device("meta"):
        empty = Alibi(6)
    empty.load_state_dict(Alibi(6).state_dict(), assign=True)
    assert torch.equal(empty.decay(q), expected)
    assert torch.equal(empty.to_empty(device="cpu").decay(q), expected)
    assert not empty.state_dict()
    assert repr(empty) == "Alibi(heads=6)"
