"""Order-2 Taylor attention for the kernels: weight, slope, features, and the tables that index the features.

    weight(s) = 1 + s + s^2 / 2,    slope(s) = 1 + s
    feature_f(x) = (x_i + b_f) (x_j + c_f)

A tensor core picks x_i and x_j for all features at once, as products with matrices of zeros and ones: exact, and the
result is in the layout of the next product. b and c are 1 instead of a missing x and otherwise 0. Products of two
elements come first, then the elements themselves and 1: most tiles are `PURE` and add nothing. The weights of
`taylor_features` and the scale are the same for all tokens, so a state is multiplied by them once, when it is stored.
"""

from functools import lru_cache
from itertools import combinations_with_replacement
from math import comb

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from qkv.attention.triton.constants import KernelFunctions
from qkv.attention.triton.kernels import linear
from qkv.attention.triton.kinds import FeatureExpansion


@triton.jit
def weight(product, scale):
    """Return 1 + s + s^2 / 2 of s = scale * product."""
    return 1.0 + product * (scale + product * (0.5 * scale * scale))


@triton.jit
def slope(product, scale):
    """Return the derivative of `weight` by the product."""
    return scale + product * (scale * scale)


@triton.jit
def pair_sums(d_weight, product, scale):
    """Return sums of weights times their gradients by `lane_sums`.

    weight = (1 + (slope / scale)^2) / 2, and the gradient times the slope is known: two operations a pair.
    """
    known = slope(product, scale)  # [BLOCK_A, BLOCK_B]
    half = tl.where(scale == 0.0, 1.0, 0.5)
    factor = tl.where(scale == 0.0, 0.0, 0.5 / tl.where(scale == 0.0, 1.0, scale * scale))
    return half * linear.lane_sums(d_weight) + factor * linear.lane_sums(d_weight * known * known)


@triton.jit
def load_picks(features, pointers, TILES: tl.constexpr):
    """Load the matrices that pick the two elements of a tile of features, a row for each, and their biases."""
    offsets = tl.arange(0, TILES.BLOCK_K)[None, :] * TILES.PADDED_FEATURES + features[:, None]
    first = tl.load(pointers.first_picks + offsets)  # [BLOCK_F, BLOCK_K]
    second = tl.load(pointers.second_picks + offsets)  # [BLOCK_F, BLOCK_K]
    first_bias = tl.load(pointers.biases + features)  # [BLOCK_F]
    second_bias = tl.load(pointers.biases + TILES.PADDED_FEATURES + features)  # [BLOCK_F]
    return first, second, first_bias, second_bias


@triton.jit
def features_t(
    x, first, second, first_bias, second_bias, features, scale, TILES: tl.constexpr
):  # fmt: skip
    """Return a tile of features by `load_picks`, transposed [BLOCK_F, tokens], float32."""
    x = tl.trans(x.to(TILES.DTYPE))
    # [BLOCK_F, BLOCK_K] x [BLOCK_K, tokens], twice
    picked = tl.dot(first, x, input_precision=TILES.PRECISION) + first_bias[:, None]
    return picked * (tl.dot(second, x, input_precision=TILES.PRECISION) + second_bias[:, None])


@triton.jit
def _pick(x, table, features, TILES: tl.constexpr):
    """Return x_i for each feature: [tokens, BLOCK_F]."""
    offsets = tl.arange(0, TILES.BLOCK_K)[:, None] * TILES.PADDED_FEATURES + features[None, :]
    # [tokens, BLOCK_K] x [BLOCK_K, BLOCK_F]
    return tl.dot(x, tl.load(table + offsets), input_precision=TILES.PRECISION)


@triton.jit
def _factors(x, features, pointers, PURE: tl.constexpr, TILES: tl.constexpr):
    """Return the two factors of a tile of features [tokens, BLOCK_F], float32."""
    first = _pick(x, pointers.first_picks, features, TILES)
    second = _pick(x, pointers.second_picks, features, TILES)
    if not PURE:
        first += tl.load(pointers.biases + features)[None, :]  # [1, BLOCK_F]
        second += tl.load(pointers.biases + TILES.PADDED_FEATURES + features)[None, :]  # [1, BLOCK_F]
    return first, second


@triton.jit
def features(x, features, pointers, scale, PURE: tl.constexpr, TILES: tl.constexpr):
    """Return a tile of features [tokens, BLOCK_F], float32."""
    first, second = _factors(x, features, pointers, PURE, TILES)
    return first * second


@triton.jit
def grad_features(total, x, d_phi, features, pointers, PURE: tl.constexpr, TILES: tl.constexpr):
    """Add to `total` the gradient of x, given the gradient of one tile of its features."""
    first, second = _factors(x, features, pointers, PURE, TILES)
    offsets = tl.arange(0, TILES.BLOCK_K)[None, :] * TILES.PADDED_FEATURES + features[:, None]
    # [tokens, BLOCK_F] x [BLOCK_F, BLOCK_K], twice
    d_first = (d_phi * second).to(TILES.DTYPE)
    total = tl.dot(d_first, tl.load(pointers.first_picks + offsets), total, input_precision=TILES.PRECISION)
    d_second = (d_phi * first).to(TILES.DTYPE)
    return tl.dot(d_second, tl.load(pointers.second_picks + offsets), total, input_precision=TILES.PRECISION)


@triton.jit
def token_features(x, features, first, second, terms, scale, FEATURES: tl.constexpr):
    """Load (u x_i + v) (x_j + w) of one token; an index of -1 is a missing element."""
    inside = features < FEATURES
    i = tl.load(first + features, mask=inside, other=-1)  # [TILE]
    x_i = tl.load(x + i, mask=i >= 0, other=0.0).to(tl.float32)  # [TILE]
    j = tl.load(second + features, mask=inside, other=-1)  # [TILE]
    x_j = tl.load(x + j, mask=j >= 0, other=0.0).to(tl.float32)  # [TILE]
    u = tl.load(terms + features, mask=inside, other=0.0)  # [TILE]
    v = tl.load(terms + FEATURES + features, mask=inside, other=0.0)  # [TILE]
    w = tl.load(terms + 2 * FEATURES + features, mask=inside, other=0.0)  # [TILE]
    return (x_i * u + v) * (x_j + w)


@lru_cache(maxsize=32)
def pairs(key_dim: int) -> list[tuple[int, int, int]]:
    """Return the two elements of each feature, `key_dim` for a missing one, and its index in `taylor_features`."""
    found = [(i, j, index) for index, (i, j) in enumerate(combinations_with_replacement(range(key_dim + 1), 2))]
    return sorted(found, key=lambda feature: (feature[0] == key_dim) + (feature[1] == key_dim))


@lru_cache(maxsize=32)
def tables(
    key_dim: int, block_k: int, padded_features: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the two matrices that pick elements (block_k, padded_features), and their biases (2, padded_features)."""
    picks, biases = torch.zeros(2, block_k, padded_features), torch.zeros(2, padded_features)
    for feature, (i, j, _) in enumerate(pairs(key_dim)):
        for side, element in enumerate((i, j)):
            if element == key_dim:
                biases[side, feature] = 1.0
            else:
                picks[side, element, feature] = 1.0
    first, second = picks.to(device, dtype)
    return first, second, biases.to(device)


@lru_cache(maxsize=64)
def weights(key_dim: int, scale: float, device: torch.device) -> Tensor:
    """Return the factor of each feature in `taylor_features` of tokens with this scale, in the kernels' order."""
    degrees = [2 - (i == key_dim) - (j == key_dim) for i, j, _ in pairs(key_dim)]
    halves = [0.5**0.5 if i == j < key_dim else 1.0 for i, j, _ in pairs(key_dim)]
    exact = torch.tensor(halves, dtype=torch.float64) * torch.tensor([scale**d for d in degrees], dtype=torch.float64)
    return exact.to(device, torch.float32)


@lru_cache(maxsize=64)
def state_weights(key_dim: int, scale: float, padded_features: int, device: torch.device) -> Tensor:
    """Return the product of a query's and a key's factor per feature, and 0 beyond the last feature."""
    both = weights(key_dim, 1.0, device) * weights(key_dim, scale, device)
    return functional.pad(both, (0, padded_features - len(both)))


@lru_cache(maxsize=32)
def order(key_dim: int, device: torch.device) -> Tensor:
    """Return the index in `taylor_features` of each feature of the kernels."""
    return torch.tensor([index for _, _, index in pairs(key_dim)], device=device)


@lru_cache(maxsize=64)
def decode_tables(key_dim: int, scale: float, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Return i, j and the (u, v, w) of `token_features`, in the order of `taylor_features`."""
    elements = torch.full((2, feature_dim(key_dim)), -1, dtype=torch.int32)
    terms = torch.zeros(3, feature_dim(key_dim), dtype=torch.float64)
    for i, j, index in pairs(key_dim):
        missing = [element == key_dim for element in (i, j)]
        for side, element in enumerate((i, j)):
            elements[side, index] = -1 if missing[side] else element
        u = scale**2 * (0.5**0.5 if i == j < key_dim else 1.0)
        terms[:, index] = torch.tensor([u, u * missing[0] / scale, missing[1] / scale])
    first, second = elements.to(device)
    return first, second, terms.to(device, torch.float32)


def feature_dim(key_dim: int) -> int:
    """Return C(key_dim + 2, 2): monomials of degree at most 2."""
    return comb(key_dim + 2, 2)


def pure_features(key_dim: int) -> int:
    """Return the number of products of two elements."""
    return comb(key_dim + 1, 2)


TAYLOR = KernelFunctions(
    map_input=linear.map_input,
    map_grad=linear.map_grad,
    weight=weight,
    slope=slope,
    pair_sums=pair_sums,
    load_picks=load_picks,
    features_t=features_t,
    features=features,
    grad_features=grad_features,
    token_features=token_features,
)
EXPANSION = FeatureExpansion(
    feature_dim=feature_dim,
    pure_features=pure_features,
    tables=tables,
    weights=weights,
    state_weights=state_weights,
    order=order,
    decode_tables=decode_tables,
)
