import pytest
import torch

from qkv.layers import ShortConvolution


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_equals_plain_loops(causal, width):
    layer = ShortConvolution(5, width).double()
    x = torch.randn(2, 7, 5, dtype=torch.float64)
    mask = torch.rand(2, 7) > 0.3
    out = layer(x, causal=causal, mask=mask)
    own = width - 1 if causal else width // 2  # the tap of the token itself
    taps = layer.taps[:, 0] if causal else layer.taps[:, 0].roll(own - (width - 1), -1)
    for b in range(2):
        for t in range(7):
            positions = [(t + w - own, w) for w in range(width) if 0 <= t + w - own < 7]
            expected = sum(taps[:, w] * x[b, p] * mask[b, p] for p, w in positions)
            torch.testing.assert_close(out[b, t], expected + torch.zeros(5, dtype=torch.float64), rtol=0, atol=1e-12)


@pytest.mark.parametrize("causal", [True, False])
def test_initialized_near_the_identity(causal):
    """Three taps of noise with deviation 0.3: the mean square of the difference is 3 * 0.09."""
    x = torch.randn(2, 200, 500)
    difference = (ShortConvolution(500)(x, causal=causal) - x).square().mean()
    assert float(difference.detach()) == pytest.approx(0.27, rel=0.1)


def test_steps_equal_the_whole():
    layer, x = ShortConvolution(5, 4).double(), torch.randn(2, 9, 5, dtype=torch.float64)
    state, parts = layer.start(2), []
    for start, end in ((0, 1), (1, 2), (2, 8), (8, 9)):
        out, state = layer.step(x[:, start:end], state)
        parts.append(out)
    torch.testing.assert_close(torch.cat(parts, 1), layer(x, causal=True), rtol=0, atol=1e-12)


def test_bad_width():
    with pytest.raises(ValueError, match="width must be at least 1, got 0"):
        ShortConvolution(5, 0)
