"""Linear and elu attention on a GPU: what their kernels compute of a score, and of a key.

linear   weight(s) = s, slope(s) = 1, features(x) = x; results are multiplied by the scale
elu      the same of elu(scale x) + 1, which replaces x where it is loaded
"""

import triton
import triton.language as tl


@triton.jit
def lift(x, valid, scale, MASKED: tl.constexpr, KEY_DIM: tl.constexpr, KEY_SIZE: tl.constexpr):
    """Scores are of the plain numbers."""
    return x


@triton.jit
def lower(x, gradient, scale):
    """Nothing to undo."""
    return gradient


@triton.jit
def weight(product, scale):
    """The product itself: its scale is left to the end."""
    return product


@triton.jit
def slope(product, scale):
    """1, whatever the score."""
    return 1.0


@triton.jit
def chosen(places, first, second, biases, KEY_SIZE: tl.constexpr, WIDTH: tl.constexpr):
    """Nothing: each feature is of one number, its own."""
    return places, places, places, places


@triton.jit
def turned(
    x, one, two, b, c, places, scale,
    KEY_DIM: tl.constexpr, KEY_SIZE: tl.constexpr, TYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The numbers themselves (features, tokens); their scale, too, is left to the end."""
    return tl.trans(x).to(tl.float32)


@triton.jit
def features(
    x, places, first, second, biases, scale, PURE: tl.constexpr,
    KEY_DIM: tl.constexpr, KEY_SIZE: tl.constexpr, WIDTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The same (tokens, features)."""
    return x.to(tl.float32)


@triton.jit
def pull(
    total, x, wanted, places, first, second, biases, PURE: tl.constexpr,
    KEY_SIZE: tl.constexpr, WIDTH: tl.constexpr, TYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradient of a feature is that of its number."""
    return total + wanted


@triton.jit
def positive(x):
    """elu(x) + 1, not below exp(-40): see `Elu.features`."""
    return _max(x, 0.0) + tl.exp(_min(_max(x, -40.0), 0.0))


@triton.jit
def _max(x, y):
    """NaN if x is: the chip's own would give y."""
    return tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _min(x, y):
    return tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def lift_elu(x, valid, scale, MASKED: tl.constexpr, KEY_DIM: tl.constexpr, KEY_SIZE: tl.constexpr):
    """elu(scale x) + 1, and zero where there is no number."""
    lifted = positive(x.to(tl.float32) * scale)
    if MASKED:
        lifted = tl.where(valid[:, None], lifted, 0.0)
    if KEY_DIM < KEY_SIZE:
        lifted = tl.where((tl.arange(0, KEY_SIZE) < KEY_DIM)[None, :], lifted, 0.0)
    return lifted


@triton.jit
def lower_elu(x, gradient, scale):
    """Through the derivative of elu."""
    x = x.to(tl.float32) * scale
    inner = tl.where(x > 0, 1.0, tl.where(x < -40.0, 0.0, tl.exp(_min(x, 0.0))))
    return gradient * inner * scale


@triton.jit
def turned_elu(
    x, one, two, b, c, places, scale,
    KEY_DIM: tl.constexpr, KEY_SIZE: tl.constexpr, TYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """elu(scale x) + 1, and zero beyond the last number (features, tokens)."""
    mapped = positive(tl.trans(x).to(tl.float32) * scale)
    if KEY_DIM < KEY_SIZE:
        mapped = tl.where((places < KEY_DIM)[:, None], mapped, 0.0)
    return mapped


@triton.jit
def features_elu(
    x, places, first, second, biases, scale, PURE: tl.constexpr,
    KEY_DIM: tl.constexpr, KEY_SIZE: tl.constexpr, WIDTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The same (tokens, features)."""
    mapped = positive(x.to(tl.float32) * scale)
    if KEY_DIM < KEY_SIZE:
        mapped = tl.where((places < KEY_DIM)[None, :], mapped, 0.0)
    return mapped
