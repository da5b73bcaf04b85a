"""Functions of linear and elu attention that the kernels call.

linear   weight(s) = s, slope(s) = 1, features(x) = x; results are multiplied by the scale
elu      the same of elu(scale x) + 1, which replaces x where it is loaded
"""

import triton
import triton.language as tl

from qkv.attention.triton.constants import KernelFunctions


@triton.jit
def map_input(x, valid, scale, MASKED: tl.constexpr, TILES: tl.constexpr):
    """Return x: scores are dot products of the inputs themselves."""
    return x


@triton.jit
def map_grad(x, gradient, scale):
    """Return the gradient unchanged."""
    return gradient


@triton.jit
def weight(product, scale):
    """Return the product; its scale is applied to the result."""
    return product


@triton.jit
def slope(product, scale):
    """Return 1, whatever the score."""
    return 1.0


@triton.jit
def lane_sums(x):
    """Return the sums of every 8th column of x [rows, columns]: [rows, 8]; each is held by one thread."""
    return tl.sum(tl.reshape(x, [x.shape[0], x.shape[1] // 8, 8]), 1)


@triton.jit
def pair_sums(d_weight, product, scale):
    """Return sums of weights times their gradients by `lane_sums`."""
    return lane_sums(d_weight * product)


@triton.jit
def load_picks(features, pointers, TILES: tl.constexpr):
    """Load nothing: each feature is one element of the input."""
    return features, features, features, features


@triton.jit
def features_t(
    x, first, second, first_bias, second_bias, features, scale, TILES: tl.constexpr
):  # fmt: skip
    """Return x transposed [BLOCK_F, tokens]; its scale, too, is applied to the result."""
    return tl.trans(x).to(tl.float32)


@triton.jit
def features(x, features, pointers, scale, PURE: tl.constexpr, TILES: tl.constexpr):
    """Return x [tokens, BLOCK_F]."""
    return x.to(tl.float32)


@triton.jit
def grad_features(total, x, d_phi, features, pointers, PURE: tl.constexpr, TILES: tl.constexpr):
    """Add the gradient of the features, which are the inputs."""
    return total + d_phi


@triton.jit
def token_features(x, features, first, second, terms, scale, FEATURES: tl.constexpr):
    """Load scale * x, and 0 beyond the last feature."""
    inside = features < FEATURES
    element = tl.load(first + features, mask=inside, other=-1)  # [TILE]
    return tl.load(x + element, mask=element >= 0, other=0.0).to(tl.float32) * scale  # [TILE]


@triton.jit
def elu_plus_one(x):
    """Return elu(x) + 1, not below exp(-40): see `Elu.features`."""
    return _max(x, 0.0) + tl.exp(_min(_max(x, -40.0), 0.0))


@triton.jit
def _max(x, y):
    """Return max(x, y), and NaN if x is NaN: the hardware instruction would return y."""
    return tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _min(x, y):
    return tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def map_input_elu(x, valid, scale, MASKED: tl.constexpr, TILES: tl.constexpr):
    """Return elu(scale x) + 1, and 0 in padding."""
    mapped = elu_plus_one(x.to(tl.float32) * scale)
    if MASKED:
        mapped = tl.where(valid[:, None], mapped, 0.0)
    if TILES.KEY_DIM < TILES.BLOCK_K:
        mapped = tl.where((tl.arange(0, TILES.BLOCK_K) < TILES.KEY_DIM)[None, :], mapped, 0.0)
    return mapped


@triton.jit
def map_grad_elu(x, gradient, scale):
    """Return the gradient through the derivative of elu."""
    x = x.to(tl.float32) * scale
    inner = tl.where(x > 0, 1.0, tl.where(x < -40.0, 0.0, tl.exp(_min(x, 0.0))))
    return gradient * inner * scale


@triton.jit
def features_t_elu(
    x, first, second, first_bias, second_bias, features, scale, TILES: tl.constexpr
):  # fmt: skip
    """Return elu(scale x) + 1 transposed [BLOCK_F, tokens], and 0 beyond the last feature."""
    mapped = elu_plus_one(tl.trans(x).to(tl.float32) * scale)
    if TILES.KEY_DIM < TILES.BLOCK_K:
        mapped = tl.where((features < TILES.KEY_DIM)[:, None], mapped, 0.0)
    return mapped


@triton.jit
def features_elu(x, features, pointers, scale, PURE: tl.constexpr, TILES: tl.constexpr):
    """Return elu(scale x) + 1 [tokens, BLOCK_F], and 0 beyond the last feature."""
    mapped = elu_plus_one(x.to(tl.float32) * scale)
    if TILES.KEY_DIM < TILES.BLOCK_K:
        mapped = tl.where((features < TILES.KEY_DIM)[None, :], mapped, 0.0)
    return mapped


@triton.jit
def token_features_elu(x, features, first, second, terms, scale, FEATURES: tl.constexpr):
    """Load elu(scale x) + 1, and 0 beyond the last feature."""
    scaled = token_features(x, features, first, second, terms, scale, FEATURES)  # [TILE]
    return tl.where(features < FEATURES, elu_plus_one(scaled), 0.0)


LINEAR = KernelFunctions(
    map_input=map_input,
    map_grad=map_grad,
    weight=weight,
    slope=slope,
    pair_sums=pair_sums,
    load_picks=load_picks,
    features_t=features_t,
    features=features,
    grad_features=grad_features,
    token_features=token_features,
)
ELU = KernelFunctions(
    map_input=map_input_elu,
    map_grad=map_grad_elu,
    weight=weight,
    slope=slope,
    pair_sums=pair_sums,
    load_picks=load_picks,
    features_t=features_t_elu,
    features=features_elu,
    grad_features=grad_features,
    token_features=token_features_elu,
)
